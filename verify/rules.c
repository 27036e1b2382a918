/* Acceptance rules: how many drafted tokens are kept, and the target's own token after them. */
#include "verify/verify_internal.h"

#include <assert.h>

void verify_greedy(const int32_t *argmax, const int32_t *draft, int n_draft, verify_result *out) {
    assert(n_draft >= 0);
    int n = 0;
    while (n < n_draft && draft[n] == argmax[n])
        n++;
    *out = (verify_result){.n_accepted = n, .token = argmax[n]};
}

/* The proof is two lines, with p and q divided by their sums. Token x leaves position i as an
 * accepted draft with probability q(x) min(1, p(x) / q(x)) = min(p(x), q(x)); a rejection happens
 * with the rest, sum(max(p - q, 0)), which is the residual's own sum, so the residual adds max(p(x)
 * - q(x), 0): together p(x). To stay clear of divisions all is multiplied by sum(p) * sum(q): p /
 * sum(p) against q / sum(q) becomes p * sum(q) against q * sum(p). */
void verify_token_from(const float *p, const float *q, const int32_t *draft, int n_draft,
                       int n_vocab, verify_uniform_fn *uniform, void *arg, uint64_t position,
                       uint32_t lane, verify_result *out) {
    assert(n_draft >= 0 && n_vocab > 0);
    int i = 0;
    for (; i < n_draft; i++) {
        const int32_t x = draft[i];
        assert(x >= 0 && x < n_vocab);
        const verify_mass target = {.p = p + (size_t)i * n_vocab, .without = -1};
        const verify_mass proposal = {.p = q ? q + (size_t)i * n_vocab : NULL, .without = -1};
        const double p_sum = verify_mass_total(&target, n_vocab);
        const double q_sum = q ? verify_mass_total(&proposal, n_vocab) : 1;
        const double q_x = q ? proposal.p[x] : 1;

        const double u = uniform(arg, TD_STREAM_ACCEPT, position + i, lane);
        if (u * (q_x * p_sum) < target.p[x] * q_sum) continue;

        verify_mass rest = target;
        if (q) {
            rest.q = proposal.p, rest.p_scale = q_sum, rest.q_scale = p_sum;
        } else {
            rest.without = x;
        }
        double rest_sum = verify_mass_total(&rest, n_vocab);
        if (!(rest_sum > 0)) rest = target, rest_sum = p_sum; /* trap 3: p = q but for rounding */
        const double v = uniform(arg, TD_STREAM_RESIDUAL, position + i, lane);
        *out = (verify_result){i, verify_mass_draw(&rest, n_vocab, rest_sum, v)};
        return;
    }
    const double v = uniform(arg, TD_STREAM_PLAIN, position + i, lane);
    *out = (verify_result){i, verify_draw(p + (size_t)i * n_vocab, n_vocab, v)};
}

static double philox(void *arg, td_stream stream, uint64_t position, uint32_t lane) {
    const uint64_t *seed = arg;
    return td_uniform(*seed, stream, position, lane);
}

void verify_token(const float *p, const float *q, const int32_t *draft, int n_draft, int n_vocab,
                  const verify_rng *rng, verify_result *out) {
    uint64_t seed = rng->seed;
    verify_token_from(p, q, draft, n_draft, n_vocab, philox, &seed, rng->position, rng->lane, out);
}
