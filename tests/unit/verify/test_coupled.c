/* The coupled rule: the law of its draw, and the same text with and without a draft.
 *
 * The reference is the paper's formula, the argmax of log p + Gumbel noise, over every id, in long
 * double. The law is checked by chi-square at fixed seeds; the same checks on draws that are wrong
 * in a known way must fail. */
#include "law.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the reference, and what can go wrong ---- */

typedef enum fault {
    NONE,
    SHARED_BY_IDS,       /* ids 2j and 2j + 1 have one noise */
    SHARED_BY_POSITIONS, /* positions 2j and 2j + 1 have one noise */
    UNIFORM_WAITS,       /* v / p in place of -log(1 - v) / p */
    UPPER_BITS_ONLY      /* v has 5 bits */
} fault;

static double reference_v(fault f, int32_t x, uint64_t seed, uint64_t position) {
    const uint32_t id = (uint32_t)(f == SHARED_BY_IDS ? x & ~1 : x);
    const uint64_t at = f == SHARED_BY_POSITIONS ? position & ~(uint64_t)1 : position;
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), id / 4, TD_STREAM_GUMBEL};
    uint32_t upper[4], lower[4];
    td_philox(counter, key, upper);
    counter[2] |= 0x80000000u;
    td_philox(counter, key, lower);
    uint64_t bits = (uint64_t)upper[id % 4] << 32 | lower[id % 4];
    if (f == UPPER_BITS_ONLY) bits &= (uint64_t)0x1f << 59;
    return td_unit(bits);
}

static int32_t reference(fault f, const float *p, int n, uint64_t seed, uint64_t position) {
    int32_t best = -1;
    long double highest = 0;
    for (int32_t x = 0; x < n; x++) {
        if (!(p[x] > 0)) continue;
        const long double v = reference_v(f, x, seed, position);
        const long double score = logl(p[x]) - logl(f == UNIFORM_WAITS ? v : -log1pl(-v));
        if (best < 0 || score > highest) highest = score, best = x;
    }
    return best;
}

typedef int32_t draw_fn(const float *p, int n, uint64_t seed, uint64_t position);

#define FAULTY(name, f)                                                                            \
    static int32_t name(const float *p, int n, uint64_t seed, uint64_t position) {                 \
        return reference(f, p, n, seed, position);                                                 \
    }
FAULTY(shared_by_ids, SHARED_BY_IDS)
FAULTY(shared_by_positions, SHARED_BY_POSITIONS)
FAULTY(uniform_waits, UNIFORM_WAITS)
FAULTY(upper_bits_only, UPPER_BITS_ONLY)

static double noise(uint64_t index, uint32_t lane) {
    return td_uniform(240807978, TD_STREAM_PLAIN, index, lane);
}

/* ---- the logarithm ---- */

static void exponential_is_close(void **state) {
    (void)state;
    const uint64_t grid = (uint64_t)1 << 52;
    long double worst = 0;
    for (uint64_t i = 0; i < 1000000; i++) {
        uint64_t bits = (uint64_t)(noise(i, 0) * 0x1p52);
        if (i % 3 == 1) bits >>= (int)(noise(i, 1) * 52);                    /* v near 0 */
        if (i % 3 == 2) bits = grid - 1 - (bits >> (int)(noise(i, 1) * 52)); /* near 1 */
        if (i < 4) bits = i < 2 ? i : grid - i + 1;                          /* the ends */
        const double v = td_unit(bits << 12);
        const long double want = -log1pl(-(long double)v);
        worst = fmaxl(worst, fabsl(verify_exponential(v) - want) / want);
    }
    print_message("largest relative error %.1Le\n", worst);
    assert_true(worst < 1e-15L);
}

/* ---- the draw ---- */

static void draws_are_the_formulas(void **state) {
    (void)state;
    enum { LARGE = 151936 };
    float *p = calloc(LARGE, sizeof *p);
    assert_non_null(p);
    const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 40, 1001, LARGE};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int n = sizes[s];
        for (uint64_t t = 0; t < (n == LARGE ? 12 : n > 100 ? 300 : 3000); t++) {
            /* Broad rows, rows with few tokens left, and probabilities down to 1e-30. */
            for (int i = 0; i < n; i++) {
                const double u = noise(t * LARGE + (uint64_t)i, 2);
                p[i] = (float)(t % 3 == 0   ? u / n
                               : t % 3 == 1 ? (u < 0.9 ? 0 : u)
                                            : pow(10, -30 * u));
            }
            p[t % (uint64_t)n] += 1e-3f;
            const uint64_t seed = t * 0x9E3779B97F4A7C15u, position = t % 2 ? t : t << 33;
            const int32_t got = verify_coupled_draw(p, n, seed, position);
            assert_true(p[got] > 0);
            assert_int_equal(got, reference(NONE, p, n, seed, position));
        }
    }
    free(p);
}

/* Two tokens that arrive within 2e-6 of each other, the one so early that the lower bits of its v
 * decide: the right one comes first, whichever has the lower id. */
static void near_ties_are_decided(void **state) {
    (void)state;
    enum { N = 6 };
    int n_seen[N] = {0};
    for (uint64_t t = 0; t < 200000; t++)
        for (int32_t x = 0; x < N; x++) {
            const double v = reference_v(NONE, x, 21, t);
            if (v > 0x1p-14) continue;
            const int32_t other = (x + 1 + (int32_t)(t % (N - 1))) % N;
            const long double wait = -log1pl(-(long double)v),
                              other_wait = -log1pl(-(long double)reference_v(NONE, other, 21, t));
            float p[N] = {0};
            p[other] = 1;
            p[x] = (float)(wait / other_wait * (1 + 1e-6L));
            assert_int_equal(verify_coupled_draw(p, N, 21, t), x);
            p[x] = (float)(wait / other_wait * (1 - 1e-6L));
            assert_int_equal(verify_coupled_draw(p, N, 21, t), other);
            n_seen[x]++;
        }
    for (int x = 0; x < N; x++)
        assert_true(n_seen[x] > 0);
}

static void one_hot_is_drawn_always(void **state) {
    (void)state;
    enum { N = 131 };
    for (int hot = 0; hot < N; hot++) {
        float p[N] = {0};
        p[hot] = hot % 2 ? 1.0f : 1e-45f;
        for (uint64_t seed = 0; seed < 20; seed++)
            assert_int_equal(verify_coupled_draw(p, N, seed, seed * 3), hot);
    }
}

/* ---- its law ---- */

enum { V = 7, PAIRS = V * V, SAMPLES = 200000 };
static const float law[V] = {0.3f, 0.25f, 0, 0.2f, 0.15f, 0.09f, 0.01f}; /* sums to 1 */

/* Pairs of draws against the product of their laws: of neighbours in the text with one seed, or of
 * neighbouring seeds at one position. A sum or a product as index would show here. */
static double pairs_z(draw_fn *draw, bool of_seeds) {
    int seen[PAIRS] = {0};
    for (uint64_t s = 0; s < SAMPLES; s++) {
        const int32_t a = draw(law, V, of_seeds ? 2 * s : 11, of_seeds ? 11 : 2 * s);
        const int32_t b = draw(law, V, of_seeds ? 2 * s + 1 : 11, of_seeds ? 11 : 2 * s + 1);
        seen[a * V + b]++;
    }
    double chi = 0;
    int df = -1;
    for (int c = 0; c < PAIRS; c++) {
        const double expect = (double)SAMPLES * law[c / V] * law[c % V];
        if (!(expect > 0)) {
            assert_int_equal(seen[c], 0);
            continue;
        }
        assert_true(expect > 5);
        chi += (seen[c] - expect) * (seen[c] - expect) / expect;
        df++;
    }
    return chi_as_normal(chi, df);
}

static void draws_follow_the_law(void **state) {
    (void)state;
    const double positions = pairs_z(verify_coupled_draw, false),
                 seeds = pairs_z(verify_coupled_draw, true);
    print_message("z: over positions %.2f, over seeds %.2f\n", positions, seeds);
    assert_true(fabs(positions) < 4 && fabs(seeds) < 4);
}

static void law_check_sees_faults(void **state) {
    (void)state;
    const double z[] = {pairs_z(shared_by_ids, false), pairs_z(shared_by_positions, false),
                        pairs_z(uniform_waits, false), pairs_z(upper_bits_only, false)};
    print_message("z: noise shared by two ids %.0f, by two positions %.0f, uniform waits %.0f, "
                  "5 bits %.0f\n",
                  z[0], z[1], z[2], z[3]);
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        assert_true(z[i] > 15);
}

/* A vocabulary of many blocks: no part of it is favoured. */
static void no_range_of_ids_is_favoured(void **state) {
    (void)state;
    enum { N = 4003, CELLS = 50, DRAWS = 20000 };
    static float p[N];
    double share[CELLS] = {0}, sum = 0, chi = 0;
    int seen[CELLS] = {0};
    for (int i = 0; i < N; i++) {
        p[i] = (float)pow(noise((uint64_t)i, 3), 4);
        share[i % CELLS] += p[i], sum += p[i];
    }
    for (uint64_t t = 0; t < DRAWS; t++)
        seen[verify_coupled_draw(p, N, 5, t) % CELLS]++;
    for (int c = 0; c < CELLS; c++) {
        const double expect = DRAWS * share[c] / sum;
        chi += (seen[c] - expect) * (seen[c] - expect) / expect;
    }
    print_message("z: %.2f\n", chi_as_normal(chi, CELLS - 1));
    assert_true(fabs(chi_as_normal(chi, CELLS - 1)) < 4);
}

/* The paper's bound, (1 - d) / (1 + d): without a shared noise two draws agree far less often. */
static void draft_and_target_agree(void **state) {
    (void)state;
    enum { N = 30, DRAWS = 20000 };
    for (uint32_t world = 0; world < 6; world++) {
        float p[N], q[N];
        double p_sum = 0, q_sum = 0, distance = 0;
        for (uint32_t i = 0; i < N; i++) {
            p[i] = (float)pow(noise(i, 10 + world), 3);
            q[i] = p[i] * (float)pow(noise(i, 20 + world), 0.2 * world);
            p_sum += p[i], q_sum += q[i];
        }
        for (int i = 0; i < N; i++)
            distance += fabs(p[i] / p_sum - q[i] / q_sum) / 2;
        int same = 0, same_elsewhere = 0;
        for (uint64_t t = 0; t < DRAWS; t++) {
            const int32_t x = verify_coupled_draw(p, N, 3, t);
            same += x == verify_coupled_draw(q, N, 3, t);
            same_elsewhere += x == verify_coupled_draw(q, N, 3, t + DRAWS);
        }
        const double bound = (1 - distance) / (1 + distance), slack = 4 * sqrt(0.25 / DRAWS);
        assert_true(same >= DRAWS * (bound - slack));
        assert_true(same_elsewhere < DRAWS * (bound - slack));
    }
}

/* ---- plain decoding and rounds ---- */

enum { WORDS = 11, TEXT = 300, MAX_DRAFT = 6 };

/* A row by the two tokens before it, some of its tokens at 0. */
static void model_row(uint32_t model, const int32_t *text, int at, float *row) {
    const uint64_t before =
        (uint64_t)(at > 0 ? text[at - 1] : 0) * WORDS + (uint64_t)(at > 1 ? text[at - 2] : 0);
    for (uint32_t i = 0; i < WORDS; i++) {
        const double u = noise(before * WORDS + i, model);
        row[i] = u < 0.3 ? 0 : (float)(u * u);
    }
    row[before % WORDS] = 0.1f;
}

typedef enum drafter { ITSELF, OTHER_MODEL, OTHER_SEED, JUNK } drafter;

/* Tokens on the way to a node, behind the text at `out`; returns how many. */
static int path_to(const int *parent, const int32_t *token, int node, int32_t *out) {
    if (node < 0) return 0;
    const int n = path_to(parent, token, parent[node], out);
    out[n] = token[node];
    return n + 1;
}

/* The text of rounds with drafts, chains or trees; returns how many drafted tokens it holds. */
static int speculate(uint32_t target, drafter kind, bool trees, int most, uint64_t seed,
                     int32_t *text) {
    int n = 0, n_kept = 0;
    for (uint64_t round = 0; n < TEXT; round++) {
        float p[(MAX_DRAFT + 1) * WORDS], q[(MAX_DRAFT + 1) * WORDS];
        int32_t way[TEXT + 1 + MAX_DRAFT], token[MAX_DRAFT + 1];
        int parent[MAX_DRAFT + 1];
        memcpy(way, text, sizeof *text * (size_t)n);
        const int k = (int)(noise(round, 40) * (most + 1)); /* another length every round */
        for (int r = 0;; r++) {
            const int depth = path_to(parent, token, r - 1, way + n);
            model_row(target, way, n + depth, p + r * WORDS);
            model_row(kind == OTHER_MODEL ? target + 1 : target, way, n + depth, q + r * WORDS);
            if (r == k) break;
            /* The token that is next in a row's order of log q + noise: without its siblings. */
            parent[r] = trees ? (int)(noise(round, 60 + (uint32_t)r) * (r + 1)) - 1 : r - 1;
            float *row = q + (parent[r] + 1) * WORDS;
            const int at = n + path_to(parent, token, parent[r], way + n);
            float left = 0;
            for (int i = 0; i < WORDS; i++)
                left += row[i];
            token[r] =
                kind == JUNK || !(left > 0)
                    ? (int32_t)(noise(round, 50 + (uint32_t)r) * WORDS)
                    : verify_coupled_draw(row, WORDS, seed + (kind == OTHER_SEED), (uint64_t)at);
            row[token[r]] = 0;
        }
        verify_result r;
        const verify_tree tree = {k, token, parent};
        verify_coupled(p, &tree, WORDS, seed, (uint64_t)n, &r);
        const int last = r.n_accepted ? r.path[r.n_accepted - 1] : -1;
        assert_int_equal(path_to(parent, token, last, way + n), r.n_accepted);
        way[n + r.n_accepted] = r.token;
        /* The first nodes alone give the same tokens, as far as they go. */
        for (int fewer = 0; fewer < k; fewer++) {
            verify_result s;
            const verify_tree part = {fewer, token, parent};
            verify_coupled(p, &part, WORDS, seed, (uint64_t)n, &s);
            int n_in = 0;
            while (n_in < r.n_accepted && r.path[n_in] < fewer)
                n_in++;
            assert_int_equal(s.n_accepted, n_in);
            assert_int_equal(s.token, way[n + n_in]);
        }
        for (int i = 0; i <= r.n_accepted && n < TEXT; i++, n++)
            text[n] = way[n];
        n_kept += r.n_accepted;
        if (kind == ITSELF && !trees) assert_int_equal(r.n_accepted, k);
        if (kind == ITSELF && k > 0) assert_true(r.n_accepted > 0);
    }
    return n_kept;
}

static void text_is_the_same_with_any_draft(void **state) {
    (void)state;
    int n_kept[2][JUNK + 1] = {{0}};
    for (uint32_t model = 60; model < 90; model++) {
        int32_t plain[TEXT], text[TEXT], other_seed[TEXT];
        const uint64_t seed = model * 77;
        for (int i = 0; i < TEXT; i++) {
            float row[WORDS];
            model_row(model, plain, i, row);
            plain[i] = verify_coupled_draw(row, WORDS, seed, (uint64_t)i);
        }
        for (int kind = ITSELF; kind <= JUNK; kind++)
            for (int run = 0; run < 2 * (MAX_DRAFT + 1); run++) {
                const int trees = run % 2, most = run / 2;
                n_kept[trees][kind] += speculate(model, (drafter)kind, trees, most, seed, text);
                assert_memory_equal(text, plain, sizeof plain);
            }
        speculate(model, ITSELF, false, MAX_DRAFT, seed + 1, other_seed);
        assert_memory_not_equal(other_seed, plain, sizeof plain);
    }
    for (int trees = 0; trees < 2; trees++)
        print_message("drafted tokens kept of %s: the model itself %d, another %d, another seed "
                      "%d, junk %d\n",
                      trees ? "trees" : "chains", n_kept[trees][0], n_kept[trees][1],
                      n_kept[trees][2], n_kept[trees][3]);
    for (int kind = ITSELF; kind <= JUNK; kind++)
        assert_true(n_kept[0][kind] > 0 && n_kept[1][kind] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_is_close),
        cmocka_unit_test(draws_are_the_formulas),
        cmocka_unit_test(near_ties_are_decided),
        cmocka_unit_test(one_hot_is_drawn_always),
        cmocka_unit_test(draws_follow_the_law),
        cmocka_unit_test(law_check_sees_faults),
        cmocka_unit_test(no_range_of_ids_is_favoured),
        cmocka_unit_test(draft_and_target_agree),
        cmocka_unit_test(text_is_the_same_with_any_draft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
