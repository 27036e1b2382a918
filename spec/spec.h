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
#include "target/target.h"
#include "verify/verify.h"

typedef struct spec spec;

typedef struct spec_params {
    verify_sampler sampler; /* arrays borrowed until the next begin */
    uint64_t seed;
    int draft_max;          /* 0: plain decoding */
} spec_params;

typedef struct spec_round {
    const int32_t *tokens; /* committed by this round: accepted tokens, then the target's own; owned by spec */
    int n_tokens;          /* 1 + n_accepted */
    int n_drafted, n_accepted;
    uint64_t draft_ns, verify_ns, sample_ns;
} spec_round;

/* Borrows both; d may be NULL (plain decoding). max_draft bounds draft_max of every begin. */
td_code spec_open(spec **out, target *t, draft *d, int max_draft, td_error *err);
void spec_close(spec *s);

/* Takes prompt[0..n), n >= 1, as the committed text: keeps what the caches hold of a common prefix, prefills
 * the rest (*n_prefilled tokens of it in the target; may be NULL). TD_E_TOO_BIG when it does not fit. */
td_code spec_begin(spec *s, const int32_t *prompt, int n, const spec_params *p, int *n_prefilled,
                   bool (*progress)(void *, int done), void *user, td_error *err);
/* One round. Room permitting, up to draft_max tokens are drafted; TD_E_TOO_BIG: not even one more position
 * fits. max_tokens > 0 bounds what the round may commit (the caller's token limit). */
td_code spec_step(spec *s, int max_tokens, spec_round *out, td_error *err);
/* Keeps only the first n tokens of the text (1 <= n <= spec_n_tokens): a stop inside an accepted run. Both
 * caches forget the rest. */
td_code spec_cut(spec *s, int n, td_error *err);
const int32_t *spec_tokens(const spec *s);
int spec_n_tokens(const spec *s);
/* Asserts contract C: target cache = text - 1 positions ...; true, to stand in an assert. */
bool spec_check(const spec *s);

#endif
