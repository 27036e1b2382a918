/* Acceptance rules: which drafted tokens are kept, and the target's own token after them.
 *
 * A rule for trees is a way to choose a row's token: by p alone (greedy, coupled, point masses), or
 * from the row's children and what they leave of p. Whatever chose it, the walk goes on in the
 * child with that token. */
#include "verify/verify_internal.h"

#include <assert.h>

bool verify_follow(const verify_tree *tree, verify_result *r) {
    assert(tree->n >= 0 && tree->n <= VERIFY_MAX_DRAFT);
    const int at = verify_row(r) - 1;
    for (int i = at + 1; i < tree->n; i++) {
        assert(tree->parent[i] >= -1 && tree->parent[i] < i);
        if (tree->parent[i] != at || tree->token[i] != r->token) continue;
        r->path[r->n_accepted++] = i;
        return true;
    }
    return false;
}

void verify_greedy(const int32_t *argmax, const verify_tree *tree, verify_result *out) {
    out->n_accepted = 0;
    do
        out->token = argmax[verify_row(out)];
    while (verify_follow(tree, out));
}

/* A row with children. A point mass has q NULL and its probability, 1 of 1, on the drafted token. */
typedef struct draft_row {
    const float *p, *q;
    double p_sum, q_sum;
} draft_row;

static draft_row row_at(const float *p, const float *q, int i, int n_vocab) {
    draft_row r = {.p = p + (size_t)i * n_vocab, .q = q ? q + (size_t)i * n_vocab : NULL};
    r.p_sum = verify_mass_total(&(verify_mass){.p = r.p}, n_vocab);
    r.q_sum = q ? verify_mass_total(&(verify_mass){.p = r.q}, n_vocab) : 1;
    return r;
}

/* A token from `rest`, whose total is given, or from p if that is 0: p = q but for rounding (trap
 * 3). */
static int32_t draw_rest(const draft_row *r, const verify_mass *rest, double total, int n_vocab,
                         double u) {
    if (total > 0) return verify_mass_draw(rest, n_vocab, total, u);
    return verify_draw(r->p, n_vocab, u);
}

static double number(const verify_source *from, td_stream stream, int offset) {
    return from->uniform(from->arg, stream, from->position + (uint64_t)offset, from->lane);
}

/* The first child of a node from index i on; tree->n: there is none. */
static int next_child(const verify_tree *tree, int node, int i) {
    while (i < tree->n && tree->parent[i] != node)
        i++;
    return i;
}

/* The token of a row from its children, of which the first is given.
 *
 * The proof for one child is two lines, with p and q divided by their sums. Token x leaves as an
 * accepted draft with probability q(x) min(1, p(x) / q(x)) = min(p(x), q(x)); a rejection happens
 * with the rest, sum(max(p - q, 0)), which is the residual's own sum, so the residual adds max(p(x)
 * - q(x), 0): together p(x). Any way to draw from the residual will do: the next child, a token of
 * what is left of q, is the same problem with the residual for p.
 *
 * The residuals need no memory: max(max(p - a q, 0) - b q, 0) = max(p - (a + b) q, 0), so each is p
 * less a multiple of q, to which a rejection adds the residual's sum over that of q's rest. Nothing
 * is left at a rejected token, cut out of q or not. To stay clear of divisions in a chain all is
 * multiplied by sum(p) * sum(q): p / sum(p) against q / sum(q) becomes p * sum(q) against q *
 * sum(p). */
static int32_t token_by_children(const draft_row *row, const verify_tree *tree, int first,
                                 int n_vocab, const verify_source *from, int depth) {
    verify_mass rest = {.p = row->p, .q = row->q, .p_scale = row->q_sum}; /* p, so far */
    double total = 0, scale = row->p_sum;
    int32_t taken[VERIFY_MAX_DRAFT];
    int n_taken = 0;
    for (int i = first; i < tree->n; i = next_child(tree, tree->parent[i], i + 1)) {
        const int32_t x = tree->token[i];
        assert(x >= 0 && x < n_vocab);
        if (n_taken) {
            const verify_mass q_rest = {.p = row->q, .without = taken, .n_without = n_taken};
            scale = total / verify_mass_total(&q_rest, n_vocab);
        }
        const double of_q = row->q[x] * scale;
        const double of_p = row->p[x] * rest.p_scale - row->q[x] * rest.q_scale;
        if (number(from, TD_STREAM_ACCEPT, i) * of_q < of_p) return x;

        verify_mass next = rest;
        next.q_scale += scale;
        const double next_total = verify_mass_total(&next, n_vocab);
        if (!(next_total > 0)) break; /* but for rounding p_j = q_j, and i accepted (trap 3) */
        rest = next, total = next_total;
        taken[n_taken++] = x;
    }
    const double u = number(from, TD_STREAM_RESIDUAL, depth);
    return draw_rest(row, &rest, total, n_vocab, u);
}

void verify_token_from(const float *p, const float *q, const verify_tree *tree, int n_vocab,
                       const verify_source *from, verify_result *out) {
    assert(tree->n <= VERIFY_MAX_DRAFT && n_vocab > 0);
    out->n_accepted = 0;
    do {
        const int r = verify_row(out), depth = out->n_accepted;
        const int first = next_child(tree, r - 1, r);
        if (q && first < tree->n) {
            const draft_row row = row_at(p, q, r, n_vocab);
            out->token = token_by_children(&row, tree, first, n_vocab, from, depth);
        } else {
            const double u = number(from, TD_STREAM_PLAIN, depth);
            out->token = verify_draw(p + (size_t)r * n_vocab, n_vocab, u);
        }
    } while (verify_follow(tree, out));
}

/* What a draft of x leaves of weight * p: max(weight * p - q, 0), times p_sum * q_sum. Of a point
 * mass at x that is p without x, whatever the weight, which is left out. */
static verify_mass row_rest(const draft_row *r, double weight, const int32_t *x) {
    if (!r->q) return (verify_mass){.p = r->p, .without = x, .n_without = 1};
    return (verify_mass){r->p, r->q, weight * r->q_sum, r->p_sum};
}

static void keep_first(verify_result *out, int n, int32_t token) {
    out->n_accepted = n;
    for (int i = 0; i < n; i++)
        out->path[i] = i;
    out->token = token;
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
                       int n_vocab, const verify_source *from, verify_result *out) {
    assert(n_draft >= 0 && n_draft <= VERIFY_MAX_DRAFT && n_vocab > 0);
    draft_row row[VERIFY_MAX_DRAFT];
    double weight[VERIFY_MAX_DRAFT + 1];
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
    if (n == 0 || number(from, TD_STREAM_ACCEPT, n - 1) <= weight[n]) {
        const double v = number(from, TD_STREAM_PLAIN, n);
        keep_first(out, n, verify_draw(p + (size_t)n * n_vocab, n_vocab, v));
        return;
    }
    for (int i = n - 1;; i--) {
        const verify_mass rest = row_rest(&row[i], weight[i], &draft[i]);
        const double total = verify_mass_total(&rest, n_vocab);
        const double stands = q ? total : weight[i] * total;
        const double falls = (1 - weight[i]) * (row[i].p_sum * row[i].q_sum);
        if (i > 0) {
            const double u = number(from, TD_STREAM_ACCEPT, i - 1);
            if (u * (stands + falls) > stands) continue;
        }
        const double v = number(from, TD_STREAM_RESIDUAL, i);
        keep_first(out, i, draw_rest(&row[i], &rest, total, n_vocab, v));
        return;
    }
}

static double philox(void *arg, td_stream stream, uint64_t position, uint32_t lane) {
    const uint64_t *seed = arg;
    return td_uniform(*seed, stream, position, lane);
}

void verify_token(const float *p, const float *q, const verify_tree *tree, int n_vocab,
                  const verify_rng *rng, verify_result *out) {
    uint64_t seed = rng->seed;
    const verify_source from = {philox, &seed, rng->position, rng->lane};
    verify_token_from(p, q, tree, n_vocab, &from, out);
}

void verify_block(const float *p, const float *q, const int32_t *draft, int n_draft, int n_vocab,
                  const verify_rng *rng, verify_result *out) {
    uint64_t seed = rng->seed;
    const verify_source from = {philox, &seed, rng->position, rng->lane};
    verify_block_from(p, q, draft, n_draft, n_vocab, &from, out);
}

void verify_proposal(verify_rule rule, const float *p, const float *q, const verify_tree *tree,
                     int n_vocab, const verify_rng *rng, verify_result *out) {
    switch (rule) {
    case VERIFY_TOKEN:
        verify_token(p, q, tree, n_vocab, rng, out);
        break;
    case VERIFY_BLOCK:
        for (int i = 0; i < tree->n; i++)
            assert(tree->parent[i] == i - 1);
        verify_block(p, q, tree->token, tree->n, n_vocab, rng, out);
        break;
    case VERIFY_COUPLED:
        verify_coupled(p, tree, n_vocab, rng->seed, rng->position, out);
    }
}
