/* The tables of law.h, and sampling from them.
 *
 * Contexts form a tree: the prompt; behind it every token that target or draft may choose; behind each of those again.
 * Passes run over parts of that tree. Rows are kept sparse until all tokens that occur are known, then dense over
 * those: the compact vocabulary. */
#include "spec/law.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WAYS = 2 * LAW_TOP_K, /* tokens that target or draft may choose in a context */
    N_CONTEXTS = 1 + WAYS + WAYS * WAYS,
    MOST_TOKENS = N_CONTEXTS * WAYS,
    WORST_Z = 5 /* once in 3.5 million */
};

typedef struct sparse {
    int n;
    int32_t id[LAW_TOP_K];
    float p[LAW_TOP_K];
} sparse;

typedef struct context {
    int depth;
    int32_t path[LAW_TOKENS - 1]; /* real ids behind the prompt */
    sparse p, q;                  /* q only where a draft may stand: depth < 2 */
    int n_ways, child[WAYS];      /* contexts behind the tokens in way */
    int32_t way[WAYS];
} context;

struct law {
    int n, n_vocab; /* contexts; the compact vocabulary */
    context *c;     /* (N_CONTEXTS) */
    int32_t *ids;   /* (n_vocab) real ids, ascending */
    float *p, *q;   /* (n, n_vocab) dense rows */
    int16_t *next;  /* (n, n_vocab) the context behind a token; -1: none */
    int64_t n_prompt;
    law_seams seams;
};

/* ---- building ---- */

typedef struct builder {
    law *l;
    target *t;
    bool of_draft;
    const int32_t *prompt;
    int n_prompt, n_ids; /* n_ids: the model's */
    const verify_sampler *sampler;
    verify_work *work;
    float *probs;     /* (n_ids) */
    int32_t *history; /* (n_prompt + LAW_TOKENS) */
} builder;

static void builder_close(builder *b) {
    verify_work_close(b->work);
    free(b->probs);
    free(b->history);
}

static td_code builder_open(builder *b, law *l, target *t, bool of_draft, const int32_t *prompt,
                            int n, const verify_sampler *sampler, td_error *err) {
    *b = (builder){.l = l,
                   .t = t,
                   .of_draft = of_draft,
                   .prompt = prompt,
                   .n_prompt = n,
                   .sampler = sampler,
                   .n_ids = model_get_config(target_model(t))->n_vocab};
    td_code rc = verify_work_open(&b->work, b->n_ids, err);
    if (rc) return rc;
    b->probs = td_calloc((size_t)b->n_ids, sizeof *b->probs);
    b->history = td_calloc((size_t)n + LAW_TOKENS, sizeof *b->history);
    if (!b->probs || !b->history) return td_fail(err, TD_E_MEMORY, "out of memory");
    memcpy(b->history, prompt, (size_t)n * sizeof *prompt);
    target_truncate(t, 0);
    return target_prefill(t, prompt, n - 1, NULL, NULL, err);
}

/* The row of a context, from its logits. */
static void take_row(builder *b, int i, const float *logits) {
    context *c = &b->l->c[i];
    sparse *s = b->of_draft ? &c->q : &c->p;
    int n_path = c->depth;
    if (!b->of_draft && b->l->seams.draft_history && n_path) n_path--;
    verify_probs(b->sampler, logits, b->n_ids, b->history, b->n_prompt, c->path, n_path, b->work,
                 b->probs);
    s->n = 0;
    for (int id = 0; id < b->n_ids; id++)
        if (b->probs[id] > 0) {
            assert(s->n < LAW_TOP_K);
            s->id[s->n] = id;
            s->p[s->n++] = b->probs[id];
        }
}

/* One pass: the prompt's last token, then the context first (unless it is the prompt itself), then its children. */
static td_code pass(builder *b, int first, td_error *err) {
    context *c = b->l->c;
    int32_t tokens[2 + WAYS];
    int parent[2 + WAYS], rows[2 + WAYS], n = 0;
    const float *logits;
    tokens[n] = b->prompt[b->n_prompt - 1], parent[n] = -1, rows[n++] = 0;
    if (first) tokens[n] = c[first].path[0], parent[n] = 0, rows[n++] = first;
    const int stem = n - 1;
    for (int i = 0; i < c[first].n_ways; i++) {
        tokens[n] = c[first].way[i], parent[n] = stem;
        rows[n++] = c[first].child[i];
    }
    assert(n <= LAW_PASS);
    /* Ids that the draft lacks have no row in it: it can't stand behind them. */
    int n_known = 0, at[2 + WAYS];
    for (int i = 0; i < n; i++) {
        at[i] = -1;
        if (tokens[i] >= b->n_ids || (parent[i] >= 0 && at[parent[i]] < 0)) continue;
        at[i] = n_known;
        tokens[n_known] = tokens[i];
        parent[n_known] = parent[i] < 0 ? -1 : at[parent[i]];
        rows[n_known++] = rows[i];
    }
    td_code rc = target_verify(b->t, tokens, parent, n_known, &logits, err);
    for (int i = 0; i < n_known && !rc; i++)
        if (!b->of_draft || c[rows[i]].depth < LAW_TOKENS - 1)
            take_row(b, rows[i], logits + (size_t)i * (size_t)b->n_ids);
    return rc;
}

static void add_way(law *l, int i, int32_t id) {
    context *c = &l->c[i];
    for (int j = 0; j < c->n_ways; j++)
        if (c->way[j] == id) return;
    context *new = &l->c[l->n];
    c->way[c->n_ways] = id;
    c->child[c->n_ways++] = l->n++;
    *new = (context){.depth = c->depth + 1};
    memcpy(new->path, c->path, sizeof c->path);
    new->path[c->depth] = id;
}

/* Contexts behind context i: every token that target or draft may choose there. */
static void grow(law *l, int i) {
    for (int j = 0; j < l->c[i].p.n; j++)
        add_way(l, i, l->c[i].p.id[j]);
    for (int j = 0; j < l->c[i].q.n; j++)
        add_way(l, i, l->c[i].q.id[j]);
}

static td_code find_contexts(builder side[2], td_error *err) {
    law *l = side[0].l;
    td_code rc;
    l->n = 1;
    for (int s = 0; s < 2; s++) /* the prompt's own rows */
        if ((rc = pass(&side[s], 0, err))) return rc;
    grow(l, 0);
    for (int s = 0; s < 2; s++) /* those one token behind it */
        if ((rc = pass(&side[s], 0, err))) return rc;
    const int n_near = l->n;
    for (int i = 1; i < n_near; i++)
        grow(l, i);
    for (int i = 1; i < n_near; i++) /* the draft never stands two tokens behind it */
        if ((rc = pass(&side[0], i, err))) return rc;
    return TD_OK;
}

static int by_id(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int compact(const law *l, int32_t id) {
    const int32_t *at = bsearch(&id, l->ids, (size_t)l->n_vocab, sizeof id, by_id);
    return at ? (int)(at - l->ids) : -1;
}

static void spread(const law *l, const sparse *s, float *row) {
    for (int j = 0; j < s->n; j++)
        row[compact(l, s->id[j])] = s->p[j];
}

static td_code make_dense(law *l, td_error *err) {
    if (!(l->ids = td_calloc(MOST_TOKENS, sizeof *l->ids))) goto memory;
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        memcpy(l->ids + n, l->c[i].p.id, (size_t)l->c[i].p.n * sizeof *l->ids);
        n += l->c[i].p.n;
        memcpy(l->ids + n, l->c[i].q.id, (size_t)l->c[i].q.n * sizeof *l->ids);
        n += l->c[i].q.n;
    }
    qsort(l->ids, (size_t)n, sizeof *l->ids, by_id);
    for (int i = 0; i < n; i++)
        if (!i || l->ids[i] != l->ids[l->n_vocab - 1]) l->ids[l->n_vocab++] = l->ids[i];
    const size_t cells = (size_t)l->n * (size_t)l->n_vocab;
    l->p = td_calloc(cells, sizeof *l->p);
    l->q = td_calloc(cells, sizeof *l->q);
    l->next = td_calloc(cells, sizeof *l->next);
    if (!l->p || !l->q || !l->next) goto memory;
    memset(l->next, -1, cells * sizeof *l->next);
    for (int i = 0; i < l->n; i++) {
        const size_t row = (size_t)i * (size_t)l->n_vocab;
        spread(l, &l->c[i].p, l->p + row);
        spread(l, &l->c[i].q, l->q + row);
        for (int j = 0; j < l->c[i].n_ways; j++)
            l->next[row + (size_t)compact(l, l->c[i].way[j])] = (int16_t)l->c[i].child[j];
    }
    return TD_OK;
memory:
    return td_fail(err, TD_E_MEMORY, "out of memory for the tables of %d contexts", l->n);
}

td_code law_open(law **out, target *verifier, target *drafter, const int32_t *prompt, int n,
                 const verify_sampler *sampler, const law_seams *seams, td_error *err) {
    assert(n >= 2 && sampler->temperature > 0 && sampler->top_k > 0 &&
           sampler->top_k <= LAW_TOP_K);
    const verify_sampler flatter = {.temperature = 1.5f * sampler->temperature,
                                    .top_k = sampler->top_k,
                                    .top_p = 1,
                                    .repeat_penalty = 1};
    builder side[2] = {0};
    td_code rc;
    law *l = td_calloc(1, sizeof *l);
    if (!l || !(l->c = td_calloc(N_CONTEXTS, sizeof *l->c))) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory");
        goto done;
    }
    l->n_prompt = n;
    if (seams) l->seams = *seams;
    if ((rc = builder_open(&side[0], l, verifier, false, prompt, n, sampler, err)) ||
        (rc = builder_open(&side[1], l, drafter, true, prompt, n, &flatter, err)) ||
        (rc = find_contexts(side, err)))
        goto done;
    rc = make_dense(l, err);
done:
    builder_close(&side[0]);
    builder_close(&side[1]);
    if (rc)
        law_close(l);
    else
        *out = l;
    return rc;
}

void law_close(law *l) {
    if (!l) return;
    free(l->c);
    free(l->ids);
    free(l->p);
    free(l->q);
    free(l->next);
    free(l);
}

/* ---- sampling ---- */

static const float *row_of(const law *l, const float *rows, int at) {
    return rows + (size_t)at * (size_t)l->n_vocab;
}

/* The place of a token among those that the target may choose in a context; -1: it may not. */
static int place(const law *l, int at, int32_t id) {
    const sparse *s = &l->c[at].p;
    for (int j = 0; j < s->n; j++)
        if (s->id[j] == id) return j;
    return -1;
}

static int child_of(const law *l, int at, int32_t id) {
    const context *c = &l->c[at];
    for (int j = 0; j < c->n_ways; j++)
        if (c->way[j] == id) return c->child[j];
    return -1;
}

int law_cell(const law *l, const int32_t tokens[LAW_TOKENS]) {
    int at = 0, cell = 0;
    for (int i = 0; i < LAW_TOKENS; i++) {
        const int p = at < 0 ? -1 : place(l, at, tokens[i]);
        if (p < 0) return -1;
        cell = cell * LAW_TOP_K + p;
        if (i + 1 < LAW_TOKENS) at = child_of(l, at, tokens[i]);
    }
    return cell;
}

/* One text: rounds as the loop has them. tokens: compact ids. */
static void sample_text(const law *l, verify_rule rule, int k, uint64_t seed, float *p, float *q,
                        int32_t tokens[LAW_TOKENS]) {
    const size_t width = (size_t)l->n_vocab, bytes = width * sizeof *p;
    static const int chain[LAW_TOKENS] = {-1, 0, 1};
    int n = 0, at = 0;
    for (uint32_t round = 0; n < LAW_TOKENS; round++) {
        const verify_rng rng = {.seed = seed, .position = (uint64_t)(l->n_prompt + n), .lane = round};
        const int most = k < LAW_TOKENS - 1 - n ? k : LAW_TOKENS - 1 - n;
        bool coupled = rule == VERIFY_COUPLED && !l->seams.uncoupled_drafts;
        if (l->seams.coupled_drafts) coupled = true;
        int32_t drawn[LAW_TOKENS];
        int n_draft = 0, here = at;
        memcpy(p, row_of(l, l->p, here), bytes);
        while (n_draft < most && l->c[here].q.n) {
            memcpy(q + width * (size_t)n_draft, row_of(l, l->q, here), bytes);
            drawn[n_draft] = draft_draw(q + width * (size_t)n_draft, l->n_vocab, &rng, n_draft,
                                        n_draft, coupled, NULL, 0);
            here = l->next[(size_t)here * width + (size_t)drawn[n_draft]];
            assert(here >= 0);
            n_draft++;
            memcpy(p + width * (size_t)n_draft, row_of(l, l->p, here), bytes);
        }
        if (l->seams.shorten) n_draft = l->seams.shorten(q, drawn, n_draft, l->n_vocab);
        verify_result r;
        const verify_tree tree = {n_draft, drawn, chain};
        (l->seams.accept ? l->seams.accept : verify_proposal)(rule, p, q, &tree, l->n_vocab, &rng, &r);
        for (int i = 0; i <= r.n_accepted && n < LAW_TOKENS; i++) {
            tokens[n++] = i < r.n_accepted ? drawn[i] : r.token;
            if (n < LAW_TOKENS && at >= 0) at = l->next[(size_t)at * width + (size_t)tokens[n - 1]];
        }
        if (at < 0) { /* a token that neither side may choose: impossible, whatever comes */
            while (n < LAW_TOKENS)
                tokens[n++] = tokens[0];
        }
    }
}

bool law_sample(const law *l, verify_rule rule, int k, uint64_t seed, int n, int64_t *count) {
    assert(k >= 0 && k < LAW_TOKENS);
    bool possible = true;
    float *rows = td_calloc((size_t)l->n_vocab * 2 * LAW_TOKENS, sizeof *rows);
    if (!rows) return false;
    for (int i = 0; i < n; i++) {
        int32_t tokens[LAW_TOKENS], ids[LAW_TOKENS];
        sample_text(l, rule, k, seed + (uint64_t)i, rows, rows + (size_t)l->n_vocab * LAW_TOKENS,
                    tokens);
        for (int j = 0; j < LAW_TOKENS; j++)
            ids[j] = l->ids[tokens[j]];
        const int cell = law_cell(l, ids);
        if (cell < 0)
            possible = false;
        else
            count[cell]++;
    }
    free(rows);
    return possible;
}

td_code law_sample_loop(const law *l, spec *s, const int32_t *prompt, const spec_params *params,
                        uint64_t seed, int n, int64_t *count, bool *possible, td_error *err) {
    for (int i = 0; i < n; i++) {
        spec_params seeded = *params;
        seeded.seed = seed + (uint64_t)i;
        td_code rc = spec_begin(s, prompt, (int)l->n_prompt, &seeded, NULL, NULL, NULL, err);
        while (!rc && spec_n_tokens(s) < l->n_prompt + LAW_TOKENS) {
            spec_round r;
            rc = spec_step(s, (int)l->n_prompt + LAW_TOKENS - spec_n_tokens(s), &r, err);
        }
        if (rc) return rc;
        const int cell = law_cell(l, spec_tokens(s) + l->n_prompt);
        if (cell < 0)
            *possible = false;
        else
            count[cell]++;
    }
    return TD_OK;
}

/* ---- the verdict ---- */

static void exact(const law *l, double *cell) {
    for (int i = 0; i < LAW_CELLS; i++)
        cell[i] = 0;
    for (int a = 0; a < l->c[0].p.n; a++) {
        const sparse *s0 = &l->c[0].p;
        const int i1 = child_of(l, 0, s0->id[a]);
        for (int b = 0; b < l->c[i1].p.n; b++) {
            const sparse *s1 = &l->c[i1].p;
            const sparse *s2 = &l->c[child_of(l, i1, s1->id[b])].p;
            for (int c = 0; c < s2->n; c++)
                cell[(a * LAW_TOP_K + b) * LAW_TOP_K + c] =
                    (double)s0->p[a] * (double)s1->p[b] * (double)s2->p[c];
        }
    }
    double sum = 0; /* rows of floats sum to 1 but for 1e-7 each */
    for (int i = 0; i < LAW_CELLS; i++)
        sum += cell[i];
    for (int i = 0; i < LAW_CELLS; i++)
        cell[i] /= sum;
}

law_verdict law_judge(const law *l, const int64_t *count, int64_t n) {
    double cell[LAW_CELLS], chi = 0, tv = 0, mean_tv = 0, rest = 0, rest_count = 0;
    int n_cells = 0;
    exact(l, cell);
    for (int i = 0; i < LAW_CELLS; i++) {
        const double want = cell[i] * (double)n, got = (double)count[i];
        tv += fabs(got - want) / (double)n / 2;
        mean_tv += sqrt(cell[i] * (1 - cell[i]) / (double)n) / 2; /* no less than E|got - want| / 2n */
        if (want < 5) {
            rest += want, rest_count += got;
            continue;
        }
        chi += (got - want) * (got - want) / want;
        n_cells++;
    }
    if (rest >= 5) {
        chi += (rest_count - rest) * (rest_count - rest) / rest;
        n_cells++;
    }
    law_verdict v = {.tv = tv, .tv_bound = mean_tv + sqrt(log(1e6) / (2 * (double)n))};
    const double df = n_cells - 1, s = 2 / (9 * df);
    if (n_cells > 1) v.z = (cbrt(chi / df) - (1 - s)) / sqrt(s);
    v.good = v.z < WORST_Z && v.tv < v.tv_bound;
    return v;
}
