/* How far to draft: the length and shape that commit most tokens a second, from what passes cost on this machine and
 * what this stream's text has accepted so far; zero is one of the lengths. Arithmetic only: it takes times, and reads
 * no clock.
 *
 * Shapes are combs: a chain of first candidates, beside each place of it further ones that end there; they cost the
 * draft nothing, and the target's pass a row each. A candidate adds to the expected tokens the probability of the
 * path that ends with it, whatever else is in the comb, so that the dynamic programme of Sequoia (arXiv 2402.12374)
 * comes down to taking the most probable ones, as long as their rows pay.
 *
 * Costs. T(m), a target pass of m rows, and c, a step of the draft, come from a table measured at start and follow
 * the machine from then on: all passes together, since its speed drifts, and slowly each width for itself.
 *
 * Acceptance is learnt by place in the draft and by the draft's confidence, the highest probability of the law that
 * the next token is to be drawn from. It is known before the token is drawn, so that ending a draft by it leaves
 * every rule exact (trap 1 of the design). Further candidates have a rate by their number: of being the right one when
 * those before them were not.
 *
 * Proposals by text (lookup, suffix ...) cost no step, and the share accepted of each kind of guess is learnt elsewhere
 * (guesses.h). One is taken where it promises more than the round without it would: tokens less the time they take at
 * the rate that a millisecond is worth, which is the best that can be had all the time, or has been had lately.
 *
 * Where plain decoding looks better, drafts are tried now and then, for 2.5 % of its time; a try that paid cost nothing,
 * so that the next follows at once.
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
    LENGTH_WIDTH = 4,  /* candidates for a place, at most */
    LENGTH_READ = 8    /* tokens a draft that was left behind reads before it tries again */
};

/* Milliseconds. */
typedef struct length_costs {
    int near, far;                    /* committed positions behind which passes were measured, near < far; the same
                                         times for both: they are taken not to grow */
    float verify[2][LENGTH_MAX + 2];  /* [near, far][m]: a target pass of m rows, 1 <= m <= LENGTH_MAX + 1 */
    float draft;                      /* one step of the draft, behind `near` */
} length_costs;

/* Decaying counts. */
typedef struct length_rate {
    double tried, accepted;
} length_rate;

/* Of the draft's next place. */
typedef struct length_answer {
    int width;  /* candidates to draw; 0: leave this place out */
    bool go_on; /* and look at the place behind the first of them */
} length_answer;

/* Where a round stands, and what it may use. */
typedef struct length_scope {
    int n_pos;    /* committed positions */
    int n_unread; /* committed tokens that the drafter has not read, the last one among them; where more than
                     LENGTH_READ are, it is taken to read only the last LENGTH_READ */
    int n_places; /* longest path, >= 0 */
    int n_nodes;  /* tokens in all, >= n_places */
    int width;    /* candidates for a place, 1..LENGTH_WIDTH */
    bool text;    /* proposals by text may come (length_weigh); n_places may then be 0 for want of a model */
} length_scope;

typedef struct length_model {
    length_costs costs;
    length_rate all, place[LENGTH_PLACES], bin[LENGTH_BINS], sibling[LENGTH_WIDTH]; /* [0] is not used */
    length_rate pace;  /* of drafting rounds: tried: their milliseconds; accepted: their tokens */
    length_rate overall; /* of all rounds, the same way */
    double drift, draft_drift;        /* actual times over the table's */
    double plain_drift;               /* the ledger's own, of passes of one row */
    double row_drift[LENGTH_MAX + 2]; /* the same of a pass of m rows, beyond what all passes share; [1] is 1 */
    double row_ms;     /* sampling, a row */
    double credit_ms;
    double idle_ms;    /* plain decoding that has not been spent on tries yet */
    int n_drafts, n_passes; /* timed so far */
    /* of the round at hand */
    length_scope scope; /* n_places: what the ledger covers */
    double rate;       /* tokens a millisecond that a token drafted has to be worth */
    double most_ms;    /* what the round may take */
    double other;      /* what a round without text is worth: tokens beyond `rate` times its milliseconds */
    double path;       /* probability that the first candidates so far are all accepted */
    bool trying;       /* plain decoding looks better; this round only finds out whether it still is */
    int n_asked, n_nodes;
    int width[LENGTH_MAX];
    float confidence[LENGTH_MAX];
} length_model;

/* A new drafter: nothing is known of what it is worth. Copies the costs. */
void length_init(length_model *l, const length_costs *costs);
/* A new text: what was learnt stays as a first guess, with little weight. */
void length_begin(length_model *l);

/* The longest path of the next round's draft, 0..scope.n_places. */
int length_choose(length_model *l, const length_scope *scope);
/* While drafting: how many candidates may place i (from 0) have, drawn from a law with this highest probability? None
 * of them must have been drawn yet. */
length_answer length_ask(length_model *l, int i, float confidence);

/* After length_choose, before anything is drafted: what a proposal by text is worth, in tokens, beyond the round that
 * length_choose had in mind; 0 or less: it should be left out. path: (n) the probability of each token's path, no token
 * before its parent; *n_best: how many of the first tokens to take. They cost the draft nothing. */
double length_weigh(const length_model *l, const double *path, int n, int *n_best);

/* What became of the round for which length_choose was called last. */
typedef struct length_round {
    int n_drafted;  /* tokens */
    int n_places;   /* of the draft: its longest path */
    int n_accepted;
    int sibling;    /* which of its place's candidates the last accepted token was, from 0 */
    bool text;      /* the proposal was one by text: no model was asked */
    double draft_ms, verify_ms, sample_ms;
} length_round;
void length_learn(length_model *l, const length_round *r);

/* What the model expects of a chain, for reports: milliseconds of a round with k tokens drafted behind n_pos, and
 * tokens it commits. */
double length_round_ms(const length_model *l, int n_pos, int k);
double length_expected(const length_model *l, int k);

#endif
