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

/* A row of a chain. A point mass has q NULL and its probability, 1 of 1, on the drafted token. */
typedef struct chain_row {
    const float *p, *q;
    double p_sum, q_sum;
} chain_row;

static chain_row row_at(const float *p, const float *q, int i, int n_vocab) {
    chain_row r = {.p = p + (size_t)i * n_vocab, .q = q ? q + (size_t)i * n_vocab : NULL};
    r.p_sum = verify_mass_total(&(verify_mass){.p = r.p, .without = -1}, n_vocab);
    r.q_sum = q ? verify_mass_total(&(verify_mass){.p = r.q, .without = -1}, n_vocab) : 1;
    return r;
}

/* What a draft of x leaves of weight * p: max(weight * p - q, 0), times p_sum * q_sum. Of a point
 * mass at x that is p without x, whatever the weight, which is left out. */
static verify_mass row_rest(const chain_row *r, double weight, int32_t x) {
    if (!r->q) return (verify_mass){.p = r->p, .without = x};
    return (verify_mass){r->p, r->q, weight * r->q_sum, r->p_sum, -1};
}

/* A token from `rest`, whose total is given, or from p if that is 0: p = q but for rounding (trap
 * 3). */
static int32_t draw_rest(const chain_row *r, const verify_mass *rest, double total, int n_vocab,
                         double u) {
    if (total > 0) return verify_mass_draw(rest, n_vocab, total, u);
    return verify_draw(r->p, n_vocab, u);
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
        const chain_row row = row_at(p, q, i, n_vocab);
        const double u = uniform(arg, TD_STREAM_ACCEPT, position + i, lane);
        if (u * ((q ? row.q[x] : 1) * row.p_sum) < row.p[x] * row.q_sum) continue;

        const verify_mass rest = row_rest(&row, 1, x);
        const double total = verify_mass_total(&rest, n_vocab);
        const double v = uniform(arg, TD_STREAM_RESIDUAL, position + i, lane);
        *out = (verify_result){i, draw_rest(&row, &rest, total, n_vocab, v)};
        return;
    }
    const double v = uniform(arg, TD_STREAM_PLAIN, position + i, lane);
    *out = (verify_result){i, verify_draw(p + (size_t)i * n_vocab, n_vocab, v)};
}

/* With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)), all drafts x_1..x_i stand with
 * probability w_i: suppose it of i + 1. Then, x_1..x_i given, more than i stand with probability
 * sum_x q(x) min(1, w_i p(x) / q(x)) = sum_x min(w_i p(x), q(x)) = w_i - Z, where Z = sum(max(w_i p
 * - q, 0)). Of the rest, 1 - w_i + Z, the test at i takes its share Z / (1 - w_i + Z): exactly i
 * stand with Z, at least i with w_i. The residual then adds max(w_i p(x) - q(x), 0) to the drafts'
 * min(w_i p(x), q(x)): the token after x_1..x_i has p's law.
 *
 * Only the last test that succeeds counts, so they run from the end and stop at the first success.
 * Behind a weight of 0 nothing can stand. Sums are multiplied by p_sum * q_sum, as above. */
void verify_block_from(const float *p, const float *q, const int32_t *draft, int n_draft,
                       int n_vocab, verify_uniform_fn *uniform, void *arg, uint64_t position,
                       uint32_t lane, verify_result *out) {
    assert(n_draft >= 0 && n_draft <= VERIFY_MAX_BLOCK && n_vocab > 0);
    chain_row row[VERIFY_MAX_BLOCK];
    double weight[VERIFY_MAX_BLOCK + 1];
    weight[0] = 1;
    int n = 0;
    for (; n < n_draft && weight[n] > 0; n++) {
        const int32_t x = draft[n];
        assert(x >= 0 && x < n_vocab);
        row[n] = row_at(p, q, n, n_vocab);
        const double of_p = weight[n] * (row[n].p[x] * row[n].q_sum);
        const double of_q = (q ? row[n].q[x] : 1) * row[n].p_sum;
        weight[n + 1] = of_p < of_q ? of_p / of_q : of_p > 0;
    }
    if (n == 0 || uniform(arg, TD_STREAM_ACCEPT, position + n - 1, lane) <= weight[n]) {
        const double v = uniform(arg, TD_STREAM_PLAIN, position + n, lane);
        *out = (verify_result){n, verify_draw(p + (size_t)n * n_vocab, n_vocab, v)};
        return;
    }
    for (int i = n - 1;; i--) {
        const verify_mass rest = row_rest(&row[i], weight[i], draft[i]);
        const double total = verify_mass_total(&rest, n_vocab);
        const double stands = q ? total : weight[i] * total;
        const double falls = (1 - weight[i]) * (row[i].p_sum * row[i].q_sum);
        if (i > 0) {
            const double u = uniform(arg, TD_STREAM_ACCEPT, position + i - 1, lane);
            if (u * (stands + falls) > stands) continue;
        }
        const double v = uniform(arg, TD_STREAM_RESIDUAL, position + i, lane);
        *out = (verify_result){i, draw_rest(&row[i], &rest, total, n_vocab, v)};
        return;
    }
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

void verify_block(const float *p, const float *q, const int32_t *draft, int n_draft, int n_vocab,
                  const verify_rng *rng, verify_result *out) {
    uint64_t seed = rng->seed;
    verify_block_from(p, q, draft, n_draft, n_vocab, philox, &seed, rng->position, rng->lane, out);
}

void verify_chain(verify_rule rule, const float *p, const float *q, const int32_t *draft, int n_draft,
                  int n_vocab, const verify_rng *rng, verify_result *out) {
    switch (rule) {
    case VERIFY_TOKEN:
        verify_token(p, q, draft, n_draft, n_vocab, rng, out);
        break;
    case VERIFY_BLOCK:
        verify_block(p, q, draft, n_draft, n_vocab, rng, out);
        break;
    case VERIFY_COUPLED:
        verify_coupled(p, draft, n_draft, n_vocab, rng->seed, rng->position, out);
    }
}
