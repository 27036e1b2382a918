/* How often guesses by text are right: for each drafter that goes by text, for each kind of guess that it counts.
 *
 * Learnt from every round, whoever drafted in it: what a drafter proposed is compared with what was committed, so that
 * a drafter that is left out goes on being judged, at no cost, and comes back as soon as its text does. Decaying
 * counts over the drafter's own idea; half is forgotten in 14, since texts copy by fits and starts. */
#ifndef TD_GUESSES_H
#define TD_GUESSES_H

#include "draft/draft.h"

typedef struct guesses {
    int n_sources;
    float rate[DRAFT_SOURCES][DRAFT_CLASSES]; /* what a draft_request carries */
    double tried[DRAFT_SOURCES][DRAFT_CLASSES], right[DRAFT_SOURCES][DRAFT_CLASSES];
    const float *prior[DRAFT_SOURCES];        /* NULL: no drafter by text */
    draft_proposal of[DRAFT_SOURCES];         /* what each proposed in the round at hand */
} guesses;

/* The drafters of d, nothing learnt; d NULL: none. */
void guesses_init(guesses *g, const draft *d);
bool guesses_by_text(const guesses *g, int source); /* false for -1 */
bool guesses_any(const guesses *g);
/* A new text: what was learnt stays as a first guess, with little weight. */
void guesses_begin(guesses *g);
/* A new round: nobody has proposed anything. */
void guesses_clear(guesses *g);
/* Remembers a proposal by text; path[i], (p->n): the probability that token i and all before it on its path are
 * accepted. */
void guesses_note(guesses *g, const draft_proposal *p, double path[DRAFT_MAX]);
/* The round committed tokens[0..n). */
void guesses_learn(guesses *g, const int32_t *tokens, int n);

#endif
