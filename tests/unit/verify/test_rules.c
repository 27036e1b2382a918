/* Acceptance rules for chains: their law, to 1e-12, and with the program's own random numbers.
 *
 * A target and a draft are tables of random rows, one for each prefix; the joint law of k + 1
 * tokens (what a round emits, then plain draws) must be the target's. How it is found: law.h.
 *
 * Each check is also run on rules that are wrong in a known way, and must say so. */
#include "law.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_K = 3, MAX_ROWS = 1 + 4 + 16 + 64, MAX_JOINT = 256 };

typedef void rule_fn(const float *p, const float *q, const int32_t *draft, int n_draft, int n_vocab,
                     const verify_source *from, verify_result *out);

/* A chain is a tree. */
static verify_tree chain(const int32_t *draft, int n_draft) {
    static const int parent[] = {-1, 0, 1, 2, 3};
    assert_in_range(n_draft, 0, sizeof parent / sizeof *parent);
    return (verify_tree){n_draft, draft, parent};
}

static void token_from(const float *p, const float *q, const int32_t *draft, int n_draft,
                       int n_vocab, const verify_source *from, verify_result *out) {
    const verify_tree tree = chain(draft, n_draft);
    verify_token_from(p, q, &tree, n_vocab, from, out);
}

static double ask(const verify_source *from, td_stream stream, int i) {
    return from->uniform(from->arg, stream, from->position + (uint64_t)i, from->lane);
}

static void keep_first(verify_result *out, int n, int32_t token) {
    out->n_accepted = n;
    for (int i = 0; i < n; i++)
        out->path[i] = i;
    out->token = token;
}

/* ---- rules that are wrong ---- */

typedef enum wrong { RESIDUAL_FROM_P, ACCEPT_SWAPPED, ONE_NUMBER_TWICE, BONUS_FROM_Q } wrong;

static void wrong_rule(wrong kind, const float *p, const float *q, const int32_t *draft,
                       int n_draft, int n_vocab, const verify_source *from, verify_result *out) {
    int i = 0;
    for (; i < n_draft; i++) {
        const float *pi = p + i * n_vocab, *qi = q + i * n_vocab;
        const double px = pi[draft[i]], qx = qi[draft[i]];
        const double u = ask(from, TD_STREAM_ACCEPT, i);
        if (kind == ACCEPT_SWAPPED ? u * px < qx : u * qx < px) continue;
        float rest[MAX_V];
        double sum = 0;
        for (int t = 0; t < n_vocab; t++) {
            rest[t] = kind == RESIDUAL_FROM_P ? pi[t] : fmaxf(pi[t] - qi[t], 0);
            sum += rest[t];
        }
        const double v = kind == ONE_NUMBER_TWICE ? u : ask(from, TD_STREAM_RESIDUAL, i);
        keep_first(out, i, verify_draw(sum > 0 ? rest : pi, n_vocab, v));
        return;
    }
    const float *last = kind == BONUS_FROM_Q && i ? q + (i - 1) * n_vocab : p + i * n_vocab;
    keep_first(out, i, verify_draw(last, n_vocab, ask(from, TD_STREAM_PLAIN, i)));
}

#define WRONG_RULE(name, kind)                                                                     \
    static void name(const float *p, const float *q, const int32_t *draft, int n_draft,            \
                     int n_vocab, const verify_source *from, verify_result *out) {                 \
        wrong_rule(kind, p, q, draft, n_draft, n_vocab, from, out);                                \
    }
WRONG_RULE(residual_from_p, RESIDUAL_FROM_P)
WRONG_RULE(accept_swapped, ACCEPT_SWAPPED)
WRONG_RULE(one_number_twice, ONE_NUMBER_TWICE)
WRONG_RULE(bonus_from_q, BONUS_FROM_Q)

typedef enum wrong_block_kind {
    UNSCALED_RESIDUAL, /* max(p - q, 0) whatever the weight (vllm-ascend, issue 7807) */
    TARGET_RESIDUAL,   /* p, with the drafted token in it */
    NO_RUNNING_MINIMUM,
    FIRST_FAILURE_ENDS
} wrong_block_kind;

static void wrong_block(wrong_block_kind kind, const float *p, const float *q, const int32_t *draft,
                        int n_draft, int n_vocab, const verify_source *from, verify_result *out) {
    double weight[MAX_K + 1] = {1}, share[MAX_K + 1] = {1};
    float rest[MAX_K][MAX_V];
    for (int i = 0; i < n_draft; i++) {
        const float *pi = p + i * n_vocab;
        double of_p = 0, total = 0;
        for (int t = 0; t < n_vocab; t++) {
            const double qt = q ? q[i * n_vocab + t] : t == draft[i];
            const double unscaled = fmax(pi[t] - qt, 0), scaled = fmax(weight[i] * pi[t] - qt, 0);
            rest[i][t] = (float)(kind == UNSCALED_RESIDUAL ? unscaled
                                 : kind == TARGET_RESIDUAL ? pi[t]
                                                           : scaled);
            of_p += rest[i][t];
            total += scaled;
            if (t != draft[i]) continue;
            weight[i + 1] = weight[i] * pi[t] / qt;
            if (kind != NO_RUNNING_MINIMUM) weight[i + 1] = fmin(weight[i + 1], 1);
        }
        if (!(of_p > 0)) memcpy(rest[i], pi, sizeof(float) * (size_t)n_vocab);
        const double falls = 1 - fmin(weight[i], 1);
        share[i] = total + falls > 0 ? total / (total + falls) : 1;
    }
    share[n_draft] = weight[n_draft];
    int n = kind == FIRST_FAILURE_ENDS ? 0 : n_draft;
    if (kind == FIRST_FAILURE_ENDS)
        while (n < n_draft && ask(from, TD_STREAM_ACCEPT, n) <= share[n + 1])
            n++;
    else
        while (n > 0 && ask(from, TD_STREAM_ACCEPT, n - 1) > share[n])
            n--;
    const td_stream stream = n == n_draft ? TD_STREAM_PLAIN : TD_STREAM_RESIDUAL;
    const float *row = n == n_draft ? p + n * n_vocab : rest[n];
    keep_first(out, n, verify_draw(row, n_vocab, ask(from, stream, n)));
}

#define WRONG_BLOCK(name, kind)                                                                    \
    static void name(const float *p, const float *q, const int32_t *draft, int n_draft,            \
                     int n_vocab, const verify_source *from, verify_result *out) {                 \
        wrong_block(kind, p, q, draft, n_draft, n_vocab, from, out);                               \
    }
WRONG_BLOCK(block_residual_unscaled, UNSCALED_RESIDUAL)
WRONG_BLOCK(block_residual_from_p, TARGET_RESIDUAL)
WRONG_BLOCK(block_without_minimum, NO_RUNNING_MINIMUM)
WRONG_BLOCK(block_ends_at_failure, FIRST_FAILURE_ENDS)

/* ---- a small world: a row for each prefix ---- */

/* How much of the drafted chain is proposed. */
typedef enum chain_cut { WHOLE, BY_PREFIX, DROP_LOW_Q } chain_cut;

typedef struct world {
    int v, k;
    bool point_mass;
    chain_cut cut;
    float p[MAX_ROWS][MAX_V], q[MAX_ROWS][MAX_V]; /* by prefix_row */
    int32_t proposed[MAX_ROWS];                   /* what a point mass proposes after a prefix */
} world;

typedef struct explorer {
    rule_fn *rule;
    const world *w;
    float p[(MAX_K + 1) * MAX_V], q[MAX_K * MAX_V];
    int32_t draft[MAX_K];
    int n_draft;
    double share;       /* of this proposal */
    double *law;        /* of w->k + 1 tokens */
    double kept[MAX_K]; /* probability that more than i drafted tokens are accepted */
    uint64_t n_runs;
} explorer;

/* Adds `share` to all continuations of tokens[0..n) by plain draws. */
static void complete(explorer *e, int32_t *tokens, int n, double share) {
    const world *w = e->w;
    if (n > w->k || n > MAX_K) { /* the second for gcc 12, which unrolls past the arrays */
        int code = 0;
        for (int i = 0; i < n; i++)
            code = code * w->v + tokens[i];
        e->law[code] += share;
        return;
    }
    const float *row = w->p[prefix_row(w->v, tokens, n)];
    for (tokens[n] = 0; tokens[n] < w->v; tokens[n]++)
        complete(e, tokens, n + 1, share * row_prob(row, w->v, tokens[n]));
}

static void run(void *arg, const verify_source *from, verify_result *out) {
    explorer *e = arg;
    e->rule(e->p, e->w->point_mass ? NULL : e->q, e->draft, e->n_draft, e->w->v, from, out);
}

static void end(void *arg, const verify_result *r, double share) {
    explorer *e = arg;
    share *= e->share;
    assert_in_range(r->n_accepted, 0, e->n_draft);
    assert_in_range(r->token, 0, e->w->v - 1);
    int32_t tokens[MAX_K + 1];
    for (int i = 0; i < r->n_accepted; i++) {
        assert_int_equal(r->path[i], i);
        e->kept[i] += share;
        tokens[i] = e->draft[i];
    }
    tokens[r->n_accepted] = r->token;
    complete(e, tokens, r->n_accepted + 1, share);
}

static void explore(explorer *e, int n_draft, double share) {
    e->n_draft = n_draft, e->share = share;
    branches b = {run, end, e, 0};
    branches_walk(&b);
    e->n_runs += b.n_runs;
}

static void propose(explorer *e, int n, double share) {
    const world *w = e->w;
    const int row = prefix_row(w->v, e->draft, n);
    memcpy(e->p + n * w->v, w->p[row], sizeof(float) * (size_t)w->v);
    const bool stop_here = w->cut == BY_PREFIX && n > 0 && row % 3 == 1;
    if (n == w->k || stop_here) {
        explore(e, n, share);
        return;
    }
    if (w->point_mass) {
        e->draft[n] = w->proposed[row];
        propose(e, n + 1, share);
        return;
    }
    double shares[MAX_V];
    draw_shares(w->q[row], w->v, NULL, 0, shares);
    for (int32_t x = 0; x < w->v; x++) {
        if (!(shares[x] > 0)) continue;
        memcpy(e->q + n * w->v, w->q[row], sizeof(float) * (size_t)w->v);
        if (w->cut == DROP_LOW_Q && w->q[row][x] < 0.3f) { /* trap 1 */
            memcpy(e->p + n * w->v, w->p[row], sizeof(float) * (size_t)w->v);
            explore(e, n, share * shares[x]);
            continue;
        }
        e->draft[n] = x;
        propose(e, n + 1, share * shares[x]);
    }
}

/* Largest difference between the law of what comes out and the target's own. kept: (MAX_K) out. */
static double law_error(rule_fn *rule, const world *w, uint64_t *n_runs, double *kept) {
    double law[MAX_JOINT] = {0}, want[MAX_JOINT] = {0}, worst = 0;
    explorer e = {.rule = rule, .w = w, .law = law};
    propose(&e, 0, 1);
    *n_runs += e.n_runs;
    memcpy(kept, e.kept, sizeof e.kept);
    int32_t tokens[MAX_K + 1];
    e.law = want;
    complete(&e, tokens, 0, 1);
    for (int i = 0; i < MAX_JOINT; i++)
        worst = fmax(worst, fabs(law[i] - want[i]));
    return worst;
}

static void random_world(world *w, rows kind, int v, int k, uint64_t *at) {
    *w = (world){.v = v, .k = k};
    for (int r = 0; r < MAX_ROWS; r++) {
        random_rows(kind, v, at, w->p[r], w->q[r]);
        w->proposed[r] = (int32_t)(number(at) * v);
    }
}

static void law_is_the_targets(void **state) {
    (void)state;
    static rule_fn *const rules[] = {token_from, verify_block_from};
    uint64_t at = 0, n_runs = 0, n_worlds = 0;
    double worst = 0, gain = 0;
    world w;
    for (int v = 2; v <= MAX_V; v++)
        for (int k = 1; k <= MAX_K; k++)
            for (int kind = 0; kind < N_ROWS; kind++)
                for (int i = 0; i < (k == 3 ? 6 : 25); i++) {
                    random_world(&w, (rows)kind, v, k, &at);
                    for (int variant = 0; variant < 4; variant++) {
                        w.cut = (chain_cut)(variant / 2);
                        w.point_mass = variant % 2;
                        double kept[2][MAX_K];
                        for (int r = 0; r < 2; r++) {
                            const double error = law_error(rules[r], &w, &n_runs, kept[r]);
                            if (!(error <= 1e-12))
                                fail_msg("%s: v %d k %d rows %d number %d variant %d: off by %g",
                                         r ? "block" : "token", v, k, kind, i, variant, error);
                            worst = fmax(worst, error);
                        }
                        /* Block verification keeps i tokens at least as often, at every i; a single
                         * one, and point masses, just as often. */
                        for (int n = 0; n < k; n++) {
                            const double more = kept[1][n] - kept[0][n];
                            assert_true(more > -1e-12);
                            assert_true(more < 1e-12 || (k > 1 && !w.point_mass));
                            gain = fmax(gain, more);
                        }
                        n_worlds++;
                    }
                }
    print_message("%llu worlds, %llu runs of a rule, largest difference %.1e; block verification "
                  "keeps a token up to %.3f more often\n",
                  (unsigned long long)n_worlds, (unsigned long long)n_runs, worst, gain);
    assert_true(gain > 0.05);
}

static void law_check_sees_wrong_rules(void **state) {
    (void)state;
    static const struct {
        const char *name;
        rule_fn *rule;
        chain_cut cut;
        bool point_mass;
    } planted[] = {
        {"residual taken from p", residual_from_p, WHOLE, false},
        {"accept test with p and q swapped", accept_swapped, WHOLE, false},
        {"one number for accept and residual", one_number_twice, WHOLE, false},
        {"bonus from q", bonus_from_q, WHOLE, false},
        {"low-q tokens dropped after sampling", token_from, DROP_LOW_Q, false},
        {"block: residual without the weight", block_residual_unscaled, WHOLE, false},
        {"block: residual taken from p", block_residual_from_p, WHOLE, false},
        {"block: residual of a point mass from p", block_residual_from_p, WHOLE, true},
        {"block: product without running minimum", block_without_minimum, WHOLE, false},
        {"block: the first failure ends it", block_ends_at_failure, WHOLE, false},
        {"block: low-q tokens dropped after sampling", verify_block_from, DROP_LOW_Q, false},
    };
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        uint64_t at = 1000000, n_runs = 0;
        double kept[MAX_K], most = 0;
        for (int n = 0; n < 20; n++) {
            world w;
            random_world(&w, n % 2 ? WITH_ZEROS : NORMALISED, 4, 2, &at);
            w.cut = planted[i].cut;
            w.point_mass = planted[i].point_mass;
            most = fmax(most, law_error(planted[i].rule, &w, &n_runs, kept));
        }
        print_message("%s: off by %.3f\n", planted[i].name, most);
        assert_true(most > 5e-3);
    }
}

/* ---- with the program's own random numbers ---- */

static double philox(void *arg, td_stream stream, uint64_t position, uint32_t lane) {
    const uint64_t *seed = arg;
    return td_uniform(*seed, stream, position, lane);
}

/* The rules as the program calls them, in the shape of the others. */
static void token_as_shipped(const float *p, const float *q, const int32_t *draft, int n_draft,
                             int n_vocab, const verify_source *from, verify_result *out) {
    const verify_rng rng = {*(uint64_t *)from->arg, from->position, from->lane};
    const verify_tree tree = chain(draft, n_draft);
    verify_token(p, q, &tree, n_vocab, &rng, out);
}

static void block_as_shipped(const float *p, const float *q, const int32_t *draft, int n_draft,
                             int n_vocab, const verify_source *from, verify_result *out) {
    const verify_rng rng = {*(uint64_t *)from->arg, from->position, from->lane};
    verify_block(p, q, draft, n_draft, n_vocab, &rng, out);
}

enum { TOY_V = 3, TOY_K = 2, TOY_N = TOY_K + 2, TOY_CELLS = 81, TOY_SAMPLES = 200000 };

/* Rows by the token before. */
static const float toy_p[TOY_V][TOY_V] = {
    {0.6f, 0.3f, 0.1f}, {0.15f, 0.05f, 0.8f}, {0.4f, 0.4f, 0.2f}};
static const float toy_q[TOY_V][TOY_V] = {
    {0.3f, 0.3f, 0.4f}, {0.2f, 0.2f, 0.6f}, {0.7f, 0.2f, 0.1f}};

/* Rounds until TOY_N tokens stand: at least two, as one emits at most TOY_K + 1. */
static int toy_sample(rule_fn *rule, chain_cut cut, bool point_mass, uint64_t seed) {
    int32_t out[TOY_N + TOY_K + 1];
    int n = 0;
    for (uint32_t round = 0; n < TOY_N; round++) {
        float p[(TOY_K + 1) * TOY_V], q[TOY_K * TOY_V];
        int32_t draft[TOY_K], before = n ? out[n - 1] : 0;
        int k = 0;
        memcpy(p, toy_p[before], sizeof toy_p[before]);
        for (; k < TOY_K; k++) {
            draft[k] =
                point_mass
                    ? (before + 1) % TOY_V
                    : verify_draw(toy_q[before], TOY_V,
                                  td_uniform(seed, TD_STREAM_DRAFT, (uint64_t)(n + k), round));
            if (cut == DROP_LOW_Q && toy_q[before][draft[k]] < 0.25f) break;
            memcpy(q + k * TOY_V, toy_q[before], sizeof toy_q[before]);
            before = draft[k];
            memcpy(p + (k + 1) * TOY_V, toy_p[before], sizeof toy_p[before]);
        }
        verify_result r;
        const verify_source from = {philox, &seed, (uint64_t)n, round};
        rule(p, point_mass ? NULL : q, draft, k, TOY_V, &from, &r);
        memcpy(out + n, draft, sizeof *draft * (size_t)r.n_accepted);
        n += r.n_accepted;
        out[n++] = r.token;
    }
    int code = 0;
    for (int i = 0; i < TOY_N; i++)
        code = code * TOY_V + out[i];
    return code;
}

/* Chi-square against the target's law, as a standard normal. */
static double toy_z(rule_fn *rule, chain_cut cut, bool point_mass) {
    int seen[TOY_CELLS] = {0};
    for (uint64_t s = 0; s < TOY_SAMPLES; s++)
        seen[toy_sample(rule, cut, point_mass, 900000000 + s)]++;
    double chi = 0;
    for (int c = 0; c < TOY_CELLS; c++) {
        double expect = TOY_SAMPLES;
        for (int i = TOY_N - 1, width = 1, before = 0; i >= 0; i--, width *= TOY_V) {
            before = i ? c / (width * TOY_V) % TOY_V : 0;
            expect *= toy_p[before][c / width % TOY_V];
        }
        assert_true(expect > 5);
        chi += (seen[c] - expect) * (seen[c] - expect) / expect;
    }
    return chi_as_normal(chi, TOY_CELLS - 1);
}

static void samples_follow_the_target(void **state) {
    (void)state;
    const double z[] = {
        toy_z(token_as_shipped, WHOLE, false),
        toy_z(token_as_shipped, WHOLE, true),
        toy_z(block_as_shipped, WHOLE, false),
        toy_z(block_as_shipped, WHOLE, true),
    };
    print_message("z: drafts sampled %.2f, point masses %.2f; block %.2f, %.2f\n", z[0], z[1], z[2],
                  z[3]);
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        assert_true(fabs(z[i]) < 4);
}

static void samples_show_wrong_rules(void **state) {
    (void)state;
    const double z[] = {
        toy_z(residual_from_p, WHOLE, false),       toy_z(accept_swapped, WHOLE, false),
        toy_z(one_number_twice, WHOLE, false),      toy_z(bonus_from_q, WHOLE, false),
        toy_z(token_as_shipped, DROP_LOW_Q, false), toy_z(block_residual_from_p, WHOLE, false),
        toy_z(block_without_minimum, WHOLE, false),
    };
    print_message(
        "z: residual from p %.0f, swapped %.0f, one number twice %.0f, bonus from q %.0f, "
        "low q dropped %.0f; block: residual from p %.0f, no minimum %.0f\n",
        z[0], z[1], z[2], z[3], z[4], z[5], z[6]);
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        assert_true(z[i] > 15);
}

/* ---- the streams ---- */

typedef struct witness {
    uint64_t seed, position;
    uint32_t lane;
    int n_draft;
    bool all_plain;  /* each token is drawn from p */
    unsigned tested; /* bit i: the accept test of draft i has asked */
    td_stream last;
    uint64_t last_at;
} witness;

static double witness_uniform(void *arg, td_stream stream, uint64_t position, uint32_t lane) {
    witness *w = arg;
    assert_int_equal(lane, w->lane);
    assert_int_not_equal(w->last, TD_STREAM_RESIDUAL); /* it was the last question */
    if (w->all_plain) {
        assert_int_equal(stream, TD_STREAM_PLAIN);
        assert_int_equal(position, w->last ? w->last_at + 1 : w->position);
    } else if (stream == TD_STREAM_ACCEPT) {
        assert_int_not_equal(w->last, TD_STREAM_PLAIN);
        assert_true(position - w->position < (uint64_t)w->n_draft);
        const unsigned bit = 1u << (position - w->position);
        assert_false(w->tested & bit);
        w->tested |= bit;
    } else {
        assert_true(stream == TD_STREAM_RESIDUAL || stream == TD_STREAM_PLAIN);
    }
    w->last = stream, w->last_at = position;
    return td_uniform(w->seed, stream, position, lane);
}

/* Trap 2: each purpose has its stream, at the position of the token it decides. */
static void streams_as_documented(void **state) {
    (void)state;
    enum { V = 300, K = 5 };
    static float p[(K + 1) * V], q[K * V];
    int32_t draft[K];
    int ends[2][K + 1] = {0};
    for (uint64_t t = 0; t < 3000; t++) {
        const int k = (int)(t % (K + 1));
        for (int i = 0; i < (k + 1) * V; i++) {
            p[i] = (float)td_uniform(t, TD_STREAM_GUMBEL, (uint64_t)i, 0);
            if (i < k * V)
                q[i] = p[i] * (float)(0.7 + td_uniform(t, TD_STREAM_GUMBEL, (uint64_t)i, 1));
        }
        for (int i = 0; i < k; i++)
            draft[i] =
                verify_draw(q + i * V, V, td_uniform(t, TD_STREAM_DRAFT, 50 + (uint64_t)i, 3));
        const float *given = t % 7 ? q : NULL;
        uint64_t seed = t;
        for (int block = 0; block < 2; block++) {
            witness w = {.seed = t, .position = 50, .lane = 3, .n_draft = k};
            w.all_plain = !block && !given;
            const verify_source from = {witness_uniform, &w, 50, 3},
                                as_shipped = {NULL, &seed, 50, 3};
            verify_result want, got;
            (block ? verify_block_from : token_from)(p, given, draft, k, V, &from, &want);
            assert_int_equal(w.last_at, 50 + want.n_accepted);
            assert_int_equal(w.last, w.all_plain || want.n_accepted == k ? TD_STREAM_PLAIN
                                                                         : TD_STREAM_RESIDUAL);
            (block ? block_as_shipped : token_as_shipped)(p, given, draft, k, V, &as_shipped, &got);
            assert_int_equal(got.n_accepted, want.n_accepted);
            assert_int_equal(got.token, want.token);
            ends[block][got.n_accepted]++;
        }
    }
    for (int i = 0; i <= K; i++)
        assert_true(ends[0][i] > 0 && ends[1][i] > 0);
}

/* With nothing drafted a round is a plain draw: the same token as plain decoding takes. */
static void no_draft_is_a_plain_draw(void **state) {
    (void)state;
    const float p[5] = {0.1f, 0.2f, 0, 0.3f, 0.4f};
    for (uint64_t t = 0; t < 1000; t++) {
        uint64_t seed = 4;
        const verify_source from = {NULL, &seed, t, 2};
        for (int block = 0; block < 2; block++) {
            verify_result r;
            (block ? block_as_shipped : token_as_shipped)(p, NULL, NULL, 0, 5, &from, &r);
            assert_int_equal(r.n_accepted, 0);
            assert_int_equal(r.token, verify_draw(p, 5, td_uniform(4, TD_STREAM_PLAIN, t, 2)));
        }
    }
}

/* ---- corners ---- */

/* Trap 3. The small entries vanish in the sums, so q looks larger than p at the drafted token and
 * no larger p makes up for it: a rejection with nothing in the residual. */
static void empty_residual_draws_p(void **state) {
    (void)state;
    const float p[2 * 3] = {0.25f, 0.75f, 1e-20f, 1, 0, 0}, q[3] = {0.25f, 0.75f, 2e-20f};
    const int32_t draft[1] = {2};
    static rule_fn *const rules[] = {token_from, verify_block_from};
    for (int rule = 0; rule < 2; rule++) {
        verify_result r;
        for (int i = 1; i < 100; i++) {
            tape t = {.u = {0.9, i / 100.0}, .n = 2};
            const verify_source from = tape_source(&t);
            rules[rule](p, q, draft, 1, 3, &from, &r);
            assert_int_equal(t.used, 2);
            assert_int_equal(r.n_accepted, 0);
            assert_int_equal(r.token, verify_draw(p, 3, i / 100.0));
        }
        tape t = {.u = {0.4, 0.5}, .n = 2}; /* and its accept test still works: p / q = 1/2 */
        const verify_source from = tape_source(&t);
        rules[rule](p, q, draft, 1, 3, &from, &r);
        assert_int_equal(r.n_accepted, 1);
    }
}

/* The longest chain that block verification takes, and a token in it that p forbids: nothing
 * behind it stands, whatever the numbers. */
static void block_at_full_length(void **state) {
    (void)state;
    enum { K = VERIFY_MAX_DRAFT };
    float p[(K + 1) * 2], q[K * 2];
    int32_t draft[K];
    for (int i = 0; i <= K; i++)
        p[2 * i] = p[2 * i + 1] = 0.5f;
    for (int i = 0; i < K; i++)
        q[2 * i] = q[2 * i + 1] = 0.5f, draft[i] = i % 2;
    for (uint64_t seed = 0; seed < 100; seed++) {
        const verify_rng rng = {.seed = seed, .position = 7, .lane = 1};
        verify_result r;
        verify_block(p, q, draft, K, 2, &rng, &r);
        assert_int_equal(r.n_accepted, K);
        p[2 * 40 + draft[40]] = 0;
        verify_block(p, q, draft, K, 2, &rng, &r);
        p[2 * 40 + draft[40]] = 0.5f;
        assert_int_equal(r.n_accepted, 40);
        assert_int_equal(r.token, 1 - draft[40]);
    }
}

static void certain_cases(void **state) {
    (void)state;
    static const struct {
        float p[2 * 3], q[3];
        bool point_mass;
        int32_t draft;
        int n_accepted; /* at every u */
        int32_t token;
    } cases[] = {
        {{0, 1, 0, 0, 0, 1}, {0, 1, 0}, false, 1, 1, 2},       /* agreed */
        {{0, 1, 0, 0, 0, 1}, {1, 0, 0}, false, 0, 0, 1},       /* p has nothing there */
        {{0, 1, 0, 0, 0, 1}, {0.5f, 0.5f, 0}, false, 1, 1, 2}, /* p above q */
        {{0, 1, 0, 0, 0, 1}, {0}, true, 1, 1, 2},
        {{0, 1, 0, 0, 0, 1}, {0}, true, 2, 0, 1},
        {{0.5f, 0, 0.5f, 0, 1, 0}, {0.5f, 0, 0.5f}, false, 2, 1, 1}, /* p = q */
        {{0, 0.5f, 0.5f, 1, 0, 0}, {0, 1, 0}, false, 0, 0, 2}, /* a token of q = p = 0: refused */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const uint64_t at[] = {0, 1, GRID / 3, GRID / 2, GRID - 2, GRID - 1};
        for (size_t i = 0; i < 6; i++)
            for (size_t j = 0; j < 6; j++) {
                tape t = {.u = {td_unit(at[i] << 12), td_unit(at[j] << 12)}, .n = 2};
                for (int block = 0; block < 2; block++) {
                    verify_result r;
                    t.used = 0;
                    const verify_source from = tape_source(&t);
                    const float *q = cases[c].point_mass ? NULL : cases[c].q;
                    (block ? verify_block_from : token_from)(cases[c].p, q, &cases[c].draft, 1, 3,
                                                             &from, &r);
                    assert_int_equal(r.n_accepted, cases[c].n_accepted);
                    assert_int_equal(r.token, cases[c].token);
                }
            }
    }
}

static void greedy_accepts_the_common_prefix(void **state) {
    (void)state;
    static const struct {
        int n_draft;
        int32_t argmax[5], draft[4];
        int n_accepted;
        int32_t token;
    } cases[] = {
        {0, {7}, {0}, 0, 7},
        {4, {1, 2, 3, 4, 5}, {1, 2, 3, 4}, 4, 5},
        {4, {1, 2, 3, 4, 5}, {9, 2, 3, 4}, 0, 1},
        {4, {1, 2, 3, 4, 5}, {1, 2, 9, 4}, 2, 3}, /* what agrees after a miss does not count */
        {4, {1, 2, 3, 4, 5}, {1, 2, 3, 9}, 3, 4},
        {1, {0, 0}, {0}, 1, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        verify_result r;
        const verify_tree tree = chain(cases[c].draft, cases[c].n_draft);
        verify_greedy(cases[c].argmax, &tree, &r);
        assert_int_equal(r.n_accepted, cases[c].n_accepted);
        assert_int_equal(r.token, cases[c].token);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(law_is_the_targets),
        cmocka_unit_test(law_check_sees_wrong_rules),
        cmocka_unit_test(samples_follow_the_target),
        cmocka_unit_test(samples_show_wrong_rules),
        cmocka_unit_test(streams_as_documented),
        cmocka_unit_test(no_draft_is_a_plain_draw),
        cmocka_unit_test(empty_residual_draws_p),
        cmocka_unit_test(block_at_full_length),
        cmocka_unit_test(certain_cases),
        cmocka_unit_test(greedy_accepts_the_common_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
