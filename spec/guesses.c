/* See guesses.h. Arithmetic over small tables; a round costs a few hundred operations. */
#include "spec/guesses.h"

#include <assert.h>
#include <string.h>

static const double memory = 0.95, prior_weight = 2, text_weight = 4;

static void set_rate(guesses *g, int s, int c) {
    g->rate[s][c] = (float)((g->right[s][c] + prior_weight * (double)g->prior[s][c]) /
                            (g->tried[s][c] + prior_weight));
}

void guesses_init(guesses *g, const draft *d) {
    memset(g, 0, sizeof *g);
    g->n_sources = d ? draft_n_sources(d) : 0;
    assert(g->n_sources <= DRAFT_SOURCES);
    for (int s = 0; s < g->n_sources; s++) {
        g->prior[s] = draft_source(d, s)->ops->guess_prior;
        for (int c = 0; c < DRAFT_CLASSES && g->prior[s]; c++)
            set_rate(g, s, c);
    }
}

bool guesses_by_text(const guesses *g, int source) {
    return source >= 0 && source < g->n_sources && g->prior[source];
}

bool guesses_any(const guesses *g) {
    for (int s = 0; s < g->n_sources; s++)
        if (g->prior[s]) return true;
    return false;
}

void guesses_begin(guesses *g) {
    for (int s = 0; s < g->n_sources; s++)
        for (int c = 0; c < DRAFT_CLASSES && g->prior[s]; c++) {
            const double share = g->tried[s][c] > text_weight ? text_weight / g->tried[s][c] : 1;
            g->tried[s][c] *= share, g->right[s][c] *= share;
            set_rate(g, s, c);
        }
}

void guesses_clear(guesses *g) {
    for (int s = 0; s < g->n_sources; s++)
        g->of[s].n = 0;
}

void guesses_note(guesses *g, const draft_proposal *p, double path[DRAFT_MAX]) {
    assert(guesses_by_text(g, p->source));
    draft_proposal *own = &g->of[p->source];
    own->n = p->n;
    memcpy(own->token, p->token, (size_t)p->n * sizeof *p->token);
    memcpy(own->parent, p->parent, (size_t)p->n * sizeof *p->parent);
    memcpy(own->guess, p->guess, (size_t)p->n * sizeof *p->guess);
    for (int i = 0; i < p->n; i++) {
        assert(p->guess[i] < DRAFT_CLASSES && p->parent[i] < i);
        path[i] = (p->parent[i] < 0 ? 1 : path[p->parent[i]]) *
                  (double)g->rate[p->source][p->guess[i]];
    }
}

/* A token has been put to the test when those before it on its path were committed, and one more token after them. */
static void learn_one(guesses *g, int s, const int32_t *tokens, int n) {
    const draft_proposal *p = &g->of[s];
    int depth[DRAFT_MAX]; /* in the text, of those that were committed; -1: not */
    for (int i = 0; i < p->n; i++) {
        const int at = p->parent[i] < 0 ? 0 : depth[p->parent[i]] < 0 ? -1 : depth[p->parent[i]] + 1;
        depth[i] = -1;
        if (at < 0 || at >= n) continue;
        const bool right = p->token[i] == tokens[at];
        const int c = p->guess[i];
        g->tried[s][c] = g->tried[s][c] * memory + 1;
        g->right[s][c] = g->right[s][c] * memory + right;
        set_rate(g, s, c);
        if (right) depth[i] = at;
    }
}

void guesses_learn(guesses *g, const int32_t *tokens, int n) {
    for (int s = 0; s < g->n_sources; s++)
        learn_one(g, s, tokens, n);
}
