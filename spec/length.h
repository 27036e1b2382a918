/* How far to draft: the length that commits most tokens a second, from what passes cost on this machine and what
 * this stream's text has accepted so far; zero is one of the lengths. Arithmetic only: it takes times, and reads
 * no clock.
 *
 * Costs. T(m), a target pass of m rows, and c, a step of the draft, come from a table measured at start and follow
 * the machine from then on: all passes together, since its speed drifts, and slowly each width for itself.
 *
 * Acceptance is learnt by place in the draft and by the draft's confidence, the highest probability of the law that
 * the next token is to be drawn from. It is known before the token is drawn, so that ending a draft by it leaves
 * every rule exact (trap 1 of the design).
 *
 * The bound. A ledger holds what rounds may cost beyond plain decoding: each token adds 5 % of T(1), a round takes
 * what it was slower than its tokens decoded plainly. No draft begins whose worst case the ledger does not cover, and
 * it never holds more than one round. So over any run of tokens
 *     time <= 1.05 * T(1) * tokens + one round,
 * whatever the drafter does. T(1) is here what passes of one row took of late, never more than a wider one took: a
 * table that is wrong about rows, or a machine that has changed, empties the ledger, and then plain rounds tell. */
#ifndef TD_LENGTH_H
#define TD_LENGTH_H

#include "base/base.h"

enum {
    LENGTH_MAX = 16,   /* longest draft it asks for */
    LENGTH_PLACES = 8, /* places with a rate of their own; the last stands for those behind it, too */
    LENGTH_BINS = 8,   /* of confidence */
    LENGTH_READ = 16   /* tokens a draft that was left behind reads before it tries again */
};

/* Milliseconds. */
typedef struct length_costs {
    int near, far;                    /* committed positions behind which passes were measured, near < far */
    float verify[2][LENGTH_MAX + 2];  /* [near, far][m]: a target pass of m rows, 1 <= m <= LENGTH_MAX + 1 */
    float draft;                      /* one step of the draft, behind `near` */
} length_costs;

/* Decaying counts. */
typedef struct length_rate {
    double tried, accepted;
} length_rate;

typedef enum length_answer {
    LENGTH_STOP, /* leave this token out */
    LENGTH_LAST, /* draw it; it is the last */
    LENGTH_GO_ON /* draw it and look at the next */
} length_answer;

typedef struct length_model {
    length_costs costs;
    length_rate all, place[LENGTH_PLACES], bin[LENGTH_BINS];
    length_rate pace;  /* of drafting rounds: tried: their milliseconds; accepted: their tokens */
    double drift, draft_drift;        /* actual times over the table's */
    double plain_drift;               /* the ledger's own, of passes of one row */
    double row_drift[LENGTH_MAX + 2]; /* the same of a pass of m rows, beyond what all passes share; [1] is 1 */
    double row_ms;     /* sampling, a row */
    double credit_ms;
    double idle_ms;    /* plain decoding since the last draft */
    /* of the round at hand */
    int n_pos, n_unread, k;
    double rate;       /* tokens a millisecond that a token drafted has to be worth */
    double path;       /* probability that all tokens drafted so far are accepted */
    bool trying;       /* plain decoding looks better; this round only finds out whether it still is */
    int n_asked;
    float confidence[LENGTH_MAX];
} length_model;

/* A new drafter: nothing is known of what it is worth. Copies the costs. */
void length_init(length_model *l, const length_costs *costs);
/* A new text: what was learnt stays as a first guess, with little weight. */
void length_begin(length_model *l);

/* The longest draft for the next round, 0..most. n_pos: committed positions; n_unread: committed tokens that the
 * drafter has not read, the last one among them. Where more than LENGTH_READ are unread, it counts on the drafter
 * reading only the last LENGTH_READ. */
int length_choose(length_model *l, int n_pos, int n_unread, int most);
/* While drafting: may token i (from 0) be drawn from a law with this highest probability? The token itself must not
 * have been drawn yet. */
length_answer length_ask(length_model *l, int i, float confidence);

/* What became of the round for which length_choose was called last. */
typedef struct length_round {
    int n_drafted, n_accepted;
    double draft_ms, verify_ms, sample_ms;
} length_round;
void length_learn(length_model *l, const length_round *r);

/* What the model expects, for reports: milliseconds of a round with k tokens drafted behind n_pos, and tokens it
 * commits. */
double length_round_ms(const length_model *l, int n_pos, int k);
double length_expected(const length_model *l, int k);

#endif
