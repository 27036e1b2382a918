/* Acceptance rules on trees.
 *
 * Token rejection: the joint law of the tokens of a round, then plain draws, must be the target's
 * to 1e-12, on every shape of a few nodes, over random rows for each prefix; how it is found:
 * law.h. A rule that refuses everything passes that, so each node must also be accepted as often as
 * by the algorithm of the papers, written down plainly with arrays. The same algorithm with known
 * mistakes, and drafts with theirs, must fail.
 *
 * The rules that choose a row's token without a look at the tree: the walk alone. */
#include "law.h"

#include <math.h>
#include <string.h>

enum { MAX_N = 6, MAX_ROWS = (4096 * 4 - 1) / 3, MAX_JOINT = 4096 * 4 };

typedef void rule_fn(const float *p, const float *q, const verify_tree *tree, int n_vocab,
                     const verify_source *from, verify_result *out);

/* ---- the algorithm of the papers, and what can go wrong ---- */

typedef enum fault {
    NONE,
    RESIDUAL_NOT_CARRIED, /* each sibling is tested against p itself */
    Q_NOT_RENORMALISED,   /* after a token is taken out */
    Q_NOT_CUT,            /* as if siblings were drawn with replacement */
    RESIDUAL_FROM_P,
    ONE_NUMBER /* for all siblings */
} fault;

static double ask(const verify_source *from, td_stream stream, int i) {
    return from->uniform(from->arg, stream, from->position + (uint64_t)i, from->lane);
}

static void normalise(double *row, int v) {
    double sum = 0;
    for (int i = 0; i < v; i++)
        sum += row[i];
    for (int i = 0; i < v && sum > 0; i++)
        row[i] /= sum;
}

static void load(const float *row, int v, double *out) {
    for (int i = 0; i < v; i++)
        out[i] = row[i];
    normalise(out, v);
}

static int32_t draw(const double *row, int v, double u) {
    double below = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < v; i++) {
        if (!(row[i] > 0)) continue;
        last = i;
        if ((below += row[i]) > u) break;
    }
    return last;
}

static void textbook(fault f, const float *p, const float *q, const verify_tree *tree, int v,
                     const verify_source *from, verify_result *out) {
    out->n_accepted = 0;
    for (int at = -1;;) {
        double start[MAX_V], pj[MAX_V], qj[MAX_V], u = 0;
        int next = -1, first = -1;
        load(p + (at + 1) * v, v, start);
        memcpy(pj, start, sizeof pj);
        for (int i = at + 1; i < tree->n; i++) {
            if (tree->parent[i] != at) continue;
            const int32_t x = tree->token[i];
            if (!q)
                for (int t = 0; t < v; t++)
                    qj[t] = t == x;
            else if (first < 0)
                load(q + (at + 1) * v, v, qj);
            if (first < 0) first = i;
            if (f == RESIDUAL_NOT_CARRIED) memcpy(pj, start, sizeof pj);
            if (f != ONE_NUMBER || i == first) u = ask(from, TD_STREAM_ACCEPT, i);
            if (u * qj[x] < pj[x]) next = i;
            if (next >= 0) break;
            double rest[MAX_V], sum = 0;
            for (int t = 0; t < v; t++)
                sum += rest[t] = fmax(pj[t] - qj[t], 0);
            if (sum > 0) memcpy(pj, rest, sizeof pj);
            normalise(pj, v);
            if (f != Q_NOT_CUT) qj[x] = 0;
            if (f != Q_NOT_RENORMALISED) normalise(qj, v);
        }
        if (next < 0) {
            const td_stream stream = first < 0 ? TD_STREAM_PLAIN : TD_STREAM_RESIDUAL;
            out->token =
                draw(f == RESIDUAL_FROM_P ? start : pj, v, ask(from, stream, out->n_accepted));
            return;
        }
        out->path[out->n_accepted++] = at = next;
    }
}

#define TEXTBOOK(name, f)                                                                          \
    static void name(const float *p, const float *q, const verify_tree *tree, int n_vocab,         \
                     const verify_source *from, verify_result *out) {                              \
        textbook(f, p, q, tree, n_vocab, from, out);                                               \
    }
TEXTBOOK(by_the_book, NONE)
TEXTBOOK(residual_not_carried, RESIDUAL_NOT_CARRIED)
TEXTBOOK(q_not_renormalised, Q_NOT_RENORMALISED)
TEXTBOOK(q_not_cut, Q_NOT_CUT)
TEXTBOOK(residual_from_p, RESIDUAL_FROM_P)
TEXTBOOK(one_number, ONE_NUMBER)

/* ---- a small world: a row for each prefix ---- */

/* How a draft fills a shape. A node whose law has nothing left is not proposed, in any case. */
typedef enum drafting {
    WHOLE,
    BY_EARLIER, /* as the prefix and the earlier siblings say, some nodes are not proposed */
    WITH_REPLACEMENT,
    DROP_LOW_Q /* trap 1 */
} drafting;

typedef struct world {
    int v, n, parent[MAX_N]; /* of a shape */
    int depth;
    bool point_mass;
    drafting how;
    float p[MAX_ROWS][MAX_V], q[MAX_ROWS][MAX_V]; /* by prefix_row */
    int32_t proposed[MAX_ROWS][MAX_V];            /* the order of point masses after a prefix */
} world;

typedef struct explorer {
    rule_fn *rule;
    const world *w;
    int node[MAX_N]; /* of the shape's nodes in the tree; ABSENT */
    int n;           /* the tree */
    int32_t token[MAX_N];
    int parent[MAX_N], row[MAX_N + 1]; /* row of the world behind each place */
    float p[(MAX_N + 1) * MAX_V], q[(MAX_N + 1) * MAX_V];
    double share;       /* of this tree */
    double *law;        /* of w->depth + 1 tokens */
    double kept[MAX_N]; /* probability that a node of the shape is accepted */
    uint64_t n_runs;
} explorer;

enum { ABSENT = -2 };

/* The tokens on the path to a node of the tree; returns how many. */
static int path_to(const explorer *e, int node, int32_t *tokens) {
    if (node < 0) return 0;
    const int n = path_to(e, e->parent[node], tokens);
    tokens[n] = e->token[node];
    return n + 1;
}

/* Adds `share` to all continuations of tokens[0..n) by plain draws. */
static void complete(explorer *e, int32_t *tokens, int n, double share) {
    const world *w = e->w;
    if (n > w->depth || n > MAX_N) { /* the second for gcc 12, which unrolls past the arrays */
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
    const verify_tree tree = {e->n, e->token, e->parent};
    e->rule(e->p, e->w->point_mass ? NULL : e->q, &tree, e->w->v, from, out);
}

static void end(void *arg, const verify_result *r, double share) {
    explorer *e = arg;
    share *= e->share;
    assert_in_range(r->n_accepted, 0, e->n);
    assert_in_range(r->token, 0, e->w->v - 1);
    int32_t tokens[MAX_N + 2] = {0};
    int at = -1;
    for (int i = 0; i < r->n_accepted; i++) {
        assert_in_range(r->path[i], at + 1, e->n - 1);
        assert_int_equal(e->parent[r->path[i]], at);
        at = r->path[i];
        for (int s = 0; s < e->w->n; s++)
            if (e->node[s] == at) e->kept[s] += share;
    }
    const int n = path_to(e, at, tokens);
    tokens[n] = r->token;
    complete(e, tokens, n + 1, share);
}

/* Rows of q without children are not to be read: they hold no numbers. */
static void explore(explorer *e, double share) {
    const size_t v = (size_t)e->w->v;
    for (int r = 0; r <= e->n; r++) {
        memcpy(e->p + (size_t)r * v, e->w->p[e->row[r]], v * sizeof *e->p);
        for (size_t x = 0; x < v; x++)
            e->q[(size_t)r * v + x] = NAN;
    }
    for (int i = 0; i < e->n; i++) {
        const int r = e->parent[i] + 1;
        memcpy(e->q + (size_t)r * v, e->w->q[e->row[r]], v * sizeof *e->q);
    }
    e->share = share;
    branches b = {run, end, e, 0};
    branches_walk(&b);
    e->n_runs += b.n_runs;
}

/* The law of the next child behind node `at` of the tree; false: none is proposed. */
static bool next_law(const explorer *e, int at, double *shares) {
    const world *w = e->w;
    if (at == ABSENT) return false;
    const int row = e->row[at + 1];
    int32_t taken[MAX_N] = {0};
    int n_taken = 0, sum = row;
    for (int i = 0; i < e->n; i++)
        if (e->parent[i] == at) sum += taken[n_taken++] = e->token[i];
    if (w->how == BY_EARLIER && e->n > 0 && sum % 3 == 1) return false;
    if (!w->point_mass)
        return draw_shares(w->q[row], w->v, taken, w->how == WITH_REPLACEMENT ? 0 : n_taken,
                           shares);
    for (int x = 0; x < w->v; x++)
        shares[x] = n_taken < w->v && x == w->proposed[row][n_taken];
    return n_taken < w->v;
}

/* Node s of the shape and all after it. */
static void propose(explorer *e, int s, double share) {
    const world *w = e->w;
    if (s == w->n) {
        explore(e, share);
        return;
    }
    const int i = e->n, at = w->parent[s] < 0 ? -1 : e->node[w->parent[s]];
    double shares[MAX_V];
    e->node[s] = ABSENT;
    if (!next_law(e, at, shares)) {
        propose(e, s + 1, share);
        return;
    }
    for (int32_t x = 0; x < w->v; x++) {
        if (!(shares[x] > 0)) continue;
        e->node[s] = ABSENT;
        if (w->how != DROP_LOW_Q || w->q[e->row[at + 1]][x] >= 0.3f) {
            int32_t path[MAX_N + 1];
            e->node[s] = i, e->n = i + 1;
            e->token[i] = x, e->parent[i] = at;
            const int depth = path_to(e, i, path);
            e->row[i + 1] = prefix_row(w->v, path, depth);
        }
        propose(e, s + 1, share * shares[x]);
        e->n = i;
    }
}

/* Largest difference between the law of what comes out and the target's own. kept: (MAX_N) out. */
static double law_error(rule_fn *rule, const world *w, uint64_t *n_runs, double *kept) {
    static double law[MAX_JOINT], want[MAX_JOINT];
    explorer e = {.rule = rule, .w = w, .law = law};
    int32_t tokens[MAX_N + 2] = {0};
    double worst = 0;
    memset(law, 0, sizeof law);
    memset(want, 0, sizeof want);
    propose(&e, 0, 1);
    *n_runs += e.n_runs;
    memcpy(kept, e.kept, sizeof e.kept);
    e.law = want;
    complete(&e, tokens, 0, 1);
    for (int i = 0; i < MAX_JOINT; i++)
        worst = fmax(worst, fabs(law[i] - want[i]));
    return worst;
}

/* ---- shapes ---- */

/* The next list of parents, parent[i] < i, in the order of numbers; false: that was the last. */
static bool next_shape(int *parent, int n) {
    int i = n - 1;
    while (i >= 0 && parent[i] == i - 1)
        parent[i--] = -1;
    if (i >= 0) parent[i]++;
    return i >= 0;
}

/* Breadth first: of lists that differ only in the order of their nodes, one. */
static bool in_order(const int *parent, int n) {
    for (int i = 1; i < n; i++)
        if (parent[i] < parent[i - 1]) return false;
    return true;
}

static void random_world(world *w, rows kind, int v, const int *parent, int n, uint64_t *at) {
    int depth[MAX_N] = {0}, n_rows = 1;
    w->v = v, w->n = n, w->depth = 0;
    for (int i = 0; i < n; i++) {
        w->parent[i] = parent[i];
        depth[i] = parent[i] < 0 ? 1 : depth[parent[i]] + 1;
        if (depth[i] > w->depth) w->depth = depth[i];
    }
    for (int i = 0; i < w->depth; i++)
        n_rows = n_rows * v + 1;
    for (int r = 0; r < n_rows; r++) {
        random_rows(kind, v, at, w->p[r], w->q[r]);
        for (int i = 0; i < v; i++) { /* a random order, as it grows */
            const int to = (int)(number(at) * (i + 1));
            w->proposed[r][i] = w->proposed[r][to];
            w->proposed[r][to] = i;
        }
    }
}

/* ---- token rejection ---- */

typedef struct tally {
    uint64_t n_worlds, n_runs;
    double worst;
} tally;

static void check_shape(int v, const int *parent, int n, rows kind, uint64_t *at, tally *sum) {
    static world w;
    random_world(&w, kind, v, parent, n, at);
    for (int variant = 0; variant < 4; variant++) {
        w.how = variant / 2 ? BY_EARLIER : WHOLE;
        w.point_mass = variant % 2;
        double kept[MAX_N], by_book[MAX_N];
        double error = fmax(law_error(verify_token_from, &w, &sum->n_runs, kept),
                            law_error(by_the_book, &w, &sum->n_runs, by_book));
        for (int i = 0; i < n; i++)
            error = fmax(error, fabs(kept[i] - by_book[i]));
        if (!(error <= 1e-12))
            fail_msg("v %d, parents %d %d %d %d %d %d of %d, rows %d, variant %d: off by %g", v,
                     w.parent[0], w.parent[1], w.parent[2], w.parent[3], w.parent[4], w.parent[5],
                     n, kind, variant, error);
        sum->worst = fmax(sum->worst, error);
        sum->n_worlds++;
    }
}

static void law_is_the_targets(void **state) {
    (void)state;
    tally sum = {0};
    uint64_t at = 0;
    /* The largest shapes in one order of their nodes. */
    for (int n = 0; n <= MAX_N; n++)
        for (int v = 2; v <= (n <= 3 ? 4 : n == 4 ? 3 : 2); v++) {
            int parent[MAX_N] = {-1, -1, -1, -1, -1, -1};
            do
                for (int kind = 0; kind < N_ROWS; kind++)
                    if (n < MAX_N || in_order(parent, n))
                        check_shape(v, parent, n, (rows)kind, &at, &sum);
            while (next_shape(parent, n));
        }
    print_message("%llu worlds, %llu runs of a rule, largest difference %.1e\n",
                  (unsigned long long)sum.n_worlds, (unsigned long long)sum.n_runs, sum.worst);
}

static void law_check_sees_mistakes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        rule_fn *rule;
        drafting how;
        bool point_mass;
    } planted[] = {
        {"residual not carried to the next sibling", residual_not_carried, WHOLE, false},
        {"q not renormalised after a removal", q_not_renormalised, WHOLE, false},
        {"q with its removed tokens", q_not_cut, WHOLE, false},
        {"residual taken from p", residual_from_p, WHOLE, false},
        {"one number for all siblings", one_number, WHOLE, false},
        {"siblings drawn with replacement", verify_token_from, WITH_REPLACEMENT, false},
        {"low-q siblings dropped after sampling", verify_token_from, DROP_LOW_Q, false},
        {"point masses: residual not carried", residual_not_carried, WHOLE, true},
        {"point masses: residual taken from p", residual_from_p, WHOLE, true},
        {"point masses: one number for all siblings", one_number, WHOLE, true},
    };
    static const int shape[] = {-1, -1, 0, -1};
    static world w;
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        uint64_t at = 1000000, n_runs = 0;
        double kept[MAX_N], most = 0;
        for (int n = 0; n < 10; n++) {
            random_world(&w, n % 2 ? WITH_ZEROS : NORMALISED, 4, shape, 4, &at);
            w.how = planted[i].how;
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

static void as_shipped(const float *p, const float *q, const verify_tree *tree, int n_vocab,
                       const verify_source *from, verify_result *out) {
    const verify_rng rng = {*(uint64_t *)from->arg, from->position, from->lane};
    verify_token(p, q, tree, n_vocab, &rng, out);
}

enum { TOY_V = 3, TOY_N = 4, TOY_CELLS = 81, TOY_SAMPLES = 200000, TOY_NODES = 5 };

/* Rows by the token before. */
static const float toy_p[TOY_V][TOY_V] = {
    {0.6f, 0.3f, 0.1f}, {0.15f, 0.05f, 0.8f}, {0.4f, 0.4f, 0.2f}};
static const float toy_q[TOY_V][TOY_V] = {
    {0.2f, 0.15f, 0.65f}, {0.08f, 0.9f, 0.02f}, {0.3f, 0.1f, 0.6f}};

/* Rounds until TOY_N tokens stand: at least two, as one emits at most three. */
static int toy_sample(rule_fn *rule, bool replace, bool point_mass, uint64_t seed) {
    static const int parent[TOY_NODES] = {-1, -1, 0, 0, 1};
    int32_t text[TOY_N + 3];
    int n = 0;
    for (uint32_t round = 0; n < TOY_N; round++) {
        float p[(TOY_NODES + 1) * TOY_V], q[(TOY_NODES + 1) * TOY_V];
        int32_t token[TOY_NODES];
        for (int r = 0; r <= TOY_NODES; r++) {
            const int32_t before = r ? token[r - 1] : n ? text[n - 1] : 0;
            memcpy(p + r * TOY_V, toy_p[before], sizeof toy_p[before]);
            memcpy(q + r * TOY_V, toy_q[before], sizeof toy_q[before]);
            if (r == TOY_NODES) break;
            int32_t taken[2] = {0};
            int n_taken = 0;
            for (int i = 0; i < r; i++)
                if (parent[i] == parent[r]) taken[n_taken++] = token[i];
            const float *law = q + (parent[r] + 1) * TOY_V;
            const double u = td_uniform(seed, TD_STREAM_DRAFT, (uint64_t)(n + r), round);
            token[r] = point_mass ? (parent[r] + n_taken + 1) % TOY_V
                                  : verify_draw_next(law, TOY_V, taken, replace ? 0 : n_taken, u);
        }
        const verify_tree tree = {TOY_NODES, token, parent};
        const verify_source from = {philox, &seed, (uint64_t)n, round};
        verify_result r;
        rule(p, point_mass ? NULL : q, &tree, TOY_V, &from, &r);
        for (int i = 0; i < r.n_accepted; i++)
            text[n++] = token[r.path[i]];
        text[n++] = r.token;
    }
    int code = 0;
    for (int i = 0; i < TOY_N; i++)
        code = code * TOY_V + text[i];
    return code;
}

static double toy_z(rule_fn *rule, bool replace, bool point_mass) {
    int seen[TOY_CELLS] = {0};
    for (uint64_t s = 0; s < TOY_SAMPLES; s++)
        seen[toy_sample(rule, replace, point_mass, 700000000 + s)]++;
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
    const double right[] = {toy_z(as_shipped, false, false), toy_z(as_shipped, false, true)};
    const double wrong[] = {toy_z(residual_not_carried, false, false),
                            toy_z(one_number, false, false), toy_z(as_shipped, true, false)};
    print_message("z: drafts sampled %.2f, point masses %.2f; residual not carried %.0f, one "
                  "number for siblings %.0f, with replacement %.0f\n",
                  right[0], right[1], wrong[0], wrong[1], wrong[2]);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        assert_true(fabs(right[i]) < 4);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_true(wrong[i] > 15);
}

/* ---- the walk ---- */

/* What must be accepted when the token of each row is known; of equal siblings the first. */
static void expect_walk(const verify_tree *tree, const int32_t *choice, const verify_result *r) {
    int at = -1, n = 0;
    for (int i = 0; i < tree->n; i++)
        if (tree->parent[i] == at && tree->token[i] == choice[at + 1]) {
            assert_true(n < r->n_accepted);
            assert_int_equal(r->path[n++], i);
            at = i;
        }
    assert_int_equal(r->n_accepted, n);
    assert_int_equal(r->token, choice[at + 1]);
}

/* Every shape of up to five nodes with every choice of its tokens, equal siblings too. */
static void the_child_with_the_token_is_accepted(void **state) {
    (void)state;
    enum { N = 5, V = 3 };
    uint64_t at = 2000000;
    int n_kept[3] = {0};
    for (int n = 0; n <= N; n++) {
        int parent[N] = {-1, -1, -1, -1, -1}, n_codes = 1;
        for (int i = 0; i < n; i++)
            n_codes *= V;
        do
            for (int code = 0; code < n_codes; code++) {
                float p[(N + 1) * V];
                int32_t token[N], choice[N + 1];
                int depth[N + 1] = {0};
                for (int i = 0, c = code; i < n; i++, c /= V) {
                    token[i] = c % V;
                    depth[i + 1] = depth[parent[i] + 1] + 1;
                }
                for (int i = 0; i < (n + 1) * V; i++)
                    p[i] = (float)number(&at);
                const verify_tree tree = {n, token, parent};
                const verify_rng rng = {.seed = at, .position = 70, .lane = 4};
                verify_result r[3];

                for (int i = 0; i <= n; i++)
                    choice[i] = (int32_t)(number(&at) * V);
                verify_greedy(choice, &tree, &r[0]);
                expect_walk(&tree, choice, &r[0]);

                for (int i = 0; i <= n; i++)
                    choice[i] = verify_coupled_draw(p + i * V, V, rng.seed, 70 + depth[i]);
                verify_coupled(p, &tree, V, rng.seed, 70, &r[1]);
                expect_walk(&tree, choice, &r[1]);

                for (int i = 0; i <= n; i++)
                    choice[i] = verify_draw(
                        p + i * V, V, td_uniform(rng.seed, TD_STREAM_PLAIN, 70 + depth[i], 4));
                verify_token(p, NULL, &tree, V, &rng, &r[2]); /* point masses */
                expect_walk(&tree, choice, &r[2]);
                for (int i = 0; i < 3; i++)
                    n_kept[i] += r[i].n_accepted;
            }
        while (next_shape(parent, n));
    }
    for (int i = 0; i < 3; i++)
        assert_true(n_kept[i] > 10000);
}

/* The longest chain, the widest tree and one of both. Drafts are the target's only choice, behind
 * siblings that it forbids. */
static void at_full_size(void **state) {
    (void)state;
    enum { N = VERIFY_MAX_DRAFT, V = N + 1 };
    static float p[(N + 1) * V], q[(N + 1) * V];
    static int32_t argmax[N + 1];
    for (int width = 1; width <= N; width *= 2) {
        int32_t token[N];
        int parent[N];
        memset(p, 0, sizeof p);
        for (int i = 0; i < N; i++) {
            token[i] = i % width;
            parent[i] = i / width * width - 1; /* the last of each row of siblings goes on */
        }
        for (int r = 0; r <= N; r++) {
            argmax[r] = width - 1;
            p[r * V + width - 1] = 1;
            for (int x = 0; x < V; x++)
                q[r * V + x] = 1.0f / V;
        }
        const verify_tree tree = {N, token, parent};
        const verify_rng rng = {.seed = 8, .position = 3, .lane = 0};
        verify_result r[4];
        verify_token(p, q, &tree, V, &rng, &r[0]);
        verify_token(p, NULL, &tree, V, &rng, &r[1]);
        verify_coupled(p, &tree, V, 8, 3, &r[2]);
        verify_greedy(argmax, &tree, &r[3]);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(r[k].n_accepted, N / width);
            for (int i = 0; i < N / width; i++)
                assert_int_equal(r[k].path[i], (i + 1) * width - 1);
            assert_int_equal(r[k].token, width - 1);
        }
    }
}

/* Trap 3 at a second sibling. What the first leaves of p is what it leaves of q, but for token 3,
 * too small to count in q's sum: the second takes it all. The token then comes from what was left
 * before. */
static void empty_residual_draws_the_one_before(void **state) {
    (void)state;
    const float p[3 * 4] = {0.25f, 0.375f, 0.375f, 0}, q[4] = {0.5f, 0.25f, 0.25f, 2e-20f};
    const float left[4] = {0, 0.125f, 0.125f, 0};
    const int32_t token[2] = {0, 3};
    const int parent[2] = {-1, -1};
    const verify_tree tree = {2, token, parent};
    for (int i = 1; i < 100; i++) {
        tape t = {.u = {0.9, 0.9, i / 100.0}, .n = 3};
        const verify_source from = tape_source(&t);
        verify_result r;
        verify_token_from(p, q, &tree, 4, &from, &r);
        assert_int_equal(t.used, 3);
        assert_int_equal(r.n_accepted, 0);
        assert_int_equal(r.token, verify_draw(left, 4, i / 100.0));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(law_is_the_targets),
        cmocka_unit_test(law_check_sees_mistakes),
        cmocka_unit_test(samples_follow_the_target),
        cmocka_unit_test(the_child_with_the_token_is_accepted),
        cmocka_unit_test(at_full_size),
        cmocka_unit_test(empty_residual_draws_the_one_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
