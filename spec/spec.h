/* The loop: propose, verify, accept, commit.
 *
 * State between rounds: `tokens` is the committed text; the target's cache holds all of it but the last token,
 * which the next pass reads first; the drafter has observed all of it. A round:
 *   draft proposes x1..xk behind the text -> one target pass over [last, x1..xk] gives k + 1 rows of logits ->
 *   the sampler turns them into p (penalties see the committed text and the drafted path) -> a rule accepts
 *   tau tokens and draws one of the target's own -> 1 + tau rows are kept, the rest is gone; the drafter
 *   observes the tau + 1 new tokens. */
#ifndef TD_SPEC_H
#define TD_SPEC_H

#include "base/base.h"
#include "draft/draft.h"
#include "spec/length.h"
#include "target/target.h"
#include "verify/verify.h"

typedef struct spec spec;

typedef struct spec_params {
    verify_sampler sampler; /* arrays borrowed until the next begin */
    verify_rule rule;       /* with a temperature above 0 */
    uint64_t seed;
    int draft_max;          /* longest draft; 0: plain decoding */
    int width;              /* candidates for each place of a draft; 0 and 1: a chain. width * draft_max is at most
                               the max_draft of spec_open; no block verification, nor adapt, over 1 */
    bool adapt;             /* draft_max is the longest path; each round takes the length and shape that pay
                               (length.h), of at most max_draft tokens, by the costs of spec_set_costs; under block
                               verification a chain */
} spec_params;

typedef struct spec_round {
    const int32_t *tokens; /* committed by this round: accepted tokens, then the target's own; owned by spec,
                              the last n_tokens of spec_tokens */
    int n_tokens;          /* 1 + n_accepted */
    int n_drafted, n_accepted; /* tokens; of the path that was accepted */
    int n_places;          /* of the draft: its longest path */
    int source;            /* which drafter of a list it is from; 0 where nothing was drafted */
    uint64_t draft_ns, verify_ns, sample_ns;
} spec_round;

/* Borrows both; d may be NULL (plain decoding). max_draft: tokens of the largest draft of any begin. */
td_code spec_open(spec **out, target *t, draft *d, int max_draft, td_error *err);
void spec_close(spec *s);

/* Measures what passes and draft steps cost, some seconds of work; the caches are empty afterwards. `progress` as in
 * spec_begin, with steps done and in all. Wants a draft; TD_E_TOO_BIG: the context is too small to measure in. */
td_code spec_measure(spec *s, length_costs *out, bool (*progress)(void *, int done, int total), void *user,
                     td_error *err);
void spec_set_costs(spec *s, const length_costs *costs); /* copied; what was learnt of the drafter is forgotten */
/* What adapting goes by, for reports; NULL before spec_set_costs. */
const length_model *spec_length(const spec *s);

/* Takes prompt[0..n), n >= 1, as the committed text: keeps what the caches hold of a common prefix, prefills
 * the rest (*n_prefilled tokens of it in the target; may be NULL). With draft_max 0 the drafter is left as it
 * is. TD_E_TOO_BIG when it does not fit. `progress` hears of the target's positions, then again of their
 * last number while the drafter reads; false: TD_E_CANCELLED, the caches keep what is done. After a
 * failure nothing but spec_begin, spec_logits and spec_close may follow. */
td_code spec_begin(spec *s, const int32_t *prompt, int n, const spec_params *p, int *n_prefilled,
                   bool (*progress)(void *, int done), void *user, td_error *err);
/* One round. Room permitting, up to draft_max tokens are drafted; TD_E_TOO_BIG: not even one more position
 * fits. max_tokens > 0 bounds what the round may commit (the caller's token limit). A round that fails
 * commits nothing. */
td_code spec_step(spec *s, int max_tokens, spec_round *out, td_error *err);
/* Keeps only the first n tokens of the text (1 <= n <= spec_n_tokens): a stop inside an accepted run. Both
 * caches forget the rest. A cut so deep that a windowed layer no longer holds its window (more than max_draft
 * + 64 tokens) computes the text again. */
td_code spec_cut(spec *s, int n, td_error *err);
const int32_t *spec_tokens(const spec *s);
int spec_n_tokens(const spec *s);
bool spec_following(const spec *s); /* whether the drafter has observed this text */
/* Asserts contract C between rounds: the target's cache holds the text but its last token, the drafter nothing
 * that is not in the text. True, to stand in an assert. */
bool spec_check(const spec *s);

/* Logits of the last n_rows (1..n) positions of tokens[0..n), in passes of at most max_draft + 1 rows; out:
 * (n_rows, n_vocab). The text is then `tokens`, without a drafter, as after spec_begin. */
td_code spec_logits(spec *s, const int32_t *tokens, int n, int n_rows, float *out, td_error *err);

#endif
