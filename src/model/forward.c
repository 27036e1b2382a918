/* The pass: rows in, logits out. Read model_forward from the bottom up beside the Llama paper
 * (Touvron et al., arXiv 2302.13971) and Gemma 3's (arXiv 2503.19786).
 *
 * Three kinds of work, each a job of the pool:
 *   products   panels of weights over the threads, all rows at once; where the weight bytes go.
 *              Gate and up go together, with the activation behind them
 *   attention  (block of rows, KV head, part of its query heads) over the threads
 *   row steps  everything between two products (norms, RoPE, activation, quantisation), row by row
 * No sum is ever split between threads, and no row's arithmetic looks at another row but through K
 * and V, so contract R holds whatever the split. */
#include "model/work.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct pass {
    const model *m;
    const kern_table *kern;
    kv_cache *kv;
    model_work *w;
    int n_rows, n_want;
    int layer;     /* where the pass is */
    float *logits; /* (n_want, n_vocab) */
} pass;

/* ---- jobs ---- */

typedef void row_fn(const pass *p, int row);

typedef struct row_job {
    const pass *p;
    row_fn *fn;
    td_split split;
} row_job;

static void run_rows(void *arg, int thread, int n_threads) {
    (void)thread, (void)n_threads;
    row_job *j = arg;
    for (int begin, end; td_split_next(&j->split, &begin, &end);)
        for (int r = begin; r < end; r++)
            j->fn(j->p, r);
}

static void each_row(const pass *p, int n_rows, row_fn *fn) {
    row_job job = {.p = p, .fn = fn};
    td_split_init(&job.split, n_rows, n_rows / (4 * p->w->n_threads) + 1);
    td_pool_run(n_rows < 2 ? NULL : p->m->pool, run_rows, &job);
}

enum { MAX_PRODUCTS = 3 };

typedef struct product {
    const model_linear *lin;
    float *y;
    size_t y_stride;
} product;

/* Matrices with one input, their panels counted through. */
typedef struct product_job {
    const kern_table *kern;
    const kern_acts *acts;
    product parts[MAX_PRODUCTS];
    int n_parts;
    td_split split;
} product_job;

static void run_products(void *arg, int thread, int n_threads) {
    (void)thread, (void)n_threads;
    product_job *j = arg;
    for (int begin, end; td_split_next(&j->split, &begin, &end);)
        for (int i = 0; i < j->n_parts && end > 0; i++) {
            const product *t = &j->parts[i];
            const kern_mat *w = &t->lin->w;
            const int b = begin > 0 ? begin : 0, e = end < w->n_panels ? end : w->n_panels;
            if (b < e) j->kern->gemm[w->type](w, b, e, j->acts, t->y, t->y_stride);
            begin -= w->n_panels, end -= w->n_panels;
        }
}

/* Some 8 pieces a thread: the last ones even out what a busy core lost. Long pieces keep the stream
 * of weights unbroken, so never fewer panels than that gives. */
static int panels_a_piece(const pass *p, int n_panels) {
    const int step = n_panels / (8 * p->w->n_threads);
    return step < 1 ? 1 : step > 256 ? 256 : step;
}

/* The first n_rows rows of a, of width n_in. x: the same as floats, x_stride apart. */
static kern_acts input(const kern_acts *a, int n_rows, int n_in, const float *x, int x_stride) {
    kern_acts acts = *a;
    acts.n_rows = n_rows, acts.n_in = n_in, acts.x = x, acts.x_stride = (size_t)x_stride;
    return acts;
}

static void multiply(const pass *p, const kern_acts *acts, product_job *j) {
    j->kern = p->kern, j->acts = acts;
    int n_panels = 0;
    for (int i = 0; i < j->n_parts; i++)
        n_panels += j->parts[i].lin->w.n_panels;
    td_split_init(&j->split, n_panels, panels_a_piece(p, n_panels));
    td_pool_run(p->m->pool, run_products, j);
}

/* ---- steps of a row ---- */

static float *row_of(float *base, int row, int width) {
    return base + (size_t)row * (size_t)width;
}

/* Columns [begin, end) of x (n_in), begin a multiple of a block, become those of row `row` of a.
 * Rows of a follow each other without gaps of their own, as kern_acts wants it. */
static void quantize_columns(const pass *p, const kern_acts *a, int row, const float *x, int n_in,
                             int begin, int end) {
    const size_t n_pad = (size_t)model_pad(n_in);
    const size_t at = (size_t)row * n_pad + (size_t)begin, block = at / KERN_BLOCK;
    p->kern->quantize(x + begin, end - begin, a->q + at, a->scale + block, a->sum + KERN_SUMS * block,
                      a->min_scale + block);
}

static void quantize_row(const pass *p, int row, const float *x, int n_in) {
    quantize_columns(p, &p->w->acts, row, x, n_in, 0, n_in);
}

static void add_bias(const pass *p, const model_linear *lin, float *y) {
    if (lin->bias) p->kern->add(y, lin->bias, lin->w.n_out);
}

/* x -> input of q, k, v of a layer */
static void attn_norm_row(const pass *p, int row, int layer) {
    const int n = p->m->cfg.n_embd;
    float *h = row_of(p->w->h, row, p->w->n_embd);
    p->kern->rmsnorm(row_of(p->w->x, row, p->w->n_embd), p->m->layers[layer].attn_norm, n,
                     p->m->cfg.norm_eps, h);
    quantize_row(p, row, h, n);
}

static void embed_row(const pass *p, int row) {
    const model *m = p->m;
    float *x = row_of(p->w->x, row, p->w->n_embd);
    const uint8_t *from = m->embd->data;
    td_dequantize(m->embd->type, from + (size_t)p->w->rows[row].token * m->embd_row_bytes, x,
                  (size_t)m->cfg.n_embd);
    if (m->cfg.embd_scale != 1) p->kern->scale(x, m->cfg.embd_scale, m->cfg.n_embd);
    for (int i = 0; i < (m->cfg.window ? 2 : 1); i++)
        model_rope_angles(m, i, p->w->rows[row].position, row_of(p->w->cosine[i], row, p->w->n_rot),
                          row_of(p->w->sine[i], row, p->w->n_rot));
    attn_norm_row(p, row, 0);
}

/* Norm and rotation of all heads of q or k. */
static void turn_heads(const pass *p, int row, float *x, int n_heads, const float *norm) {
    const model_config *c = &p->m->cfg;
    const struct model_layer_config *lc = &c->layers[p->layer];
    const float *cosine = row_of(p->w->cosine[lc->windowed], row, p->w->n_rot);
    const float *sine = row_of(p->w->sine[lc->windowed], row, p->w->n_rot);
    for (int h = 0; h < n_heads; h++, x += lc->head_k) {
        if (norm) p->kern->rmsnorm(x, norm, lc->head_k, c->norm_eps, x);
        p->kern->rope(x, c->n_rot, cosine, sine, c->rope_neox);
    }
}

/* Quantised blocks have one scale, and some models' keys a few dimensions hundreds of times the size of the rest: turned
 * by an orthogonal matrix, which q . k and what is turned back do not feel, no dimension stands out. (Ashkboos et al.,
 * arXiv 2404.00456.) */
static void spread(const pass *p, kern_kv_type type, float *x, int n_heads, int dim) {
    if (kern_kv_quantised(type)) p->kern->hadamard(x, n_heads * dim, dim & -dim);
}

/* q, k, v as the products left them -> queries, and K and V in the cache */
static void qkv_row(const pass *p, int row) {
    const struct model_layer_config *lc = &p->m->cfg.layers[p->layer];
    const model_layer *y = &p->m->layers[p->layer];
    const model_row_info *info = &p->w->rows[row];
    float *q = row_of(p->w->q, row, p->w->n_q), *k = row_of(p->w->k, row, p->w->n_k);
    float *v = row_of(p->w->v, row, p->w->n_v);
    add_bias(p, &y->q, q);
    add_bias(p, &y->k, k);
    add_bias(p, &y->v, v);
    turn_heads(p, row, q, lc->n_heads, y->q_norm);
    turn_heads(p, row, k, lc->n_kv_heads, y->k_norm);
    p->kern->scale(q, p->m->cfg.attn_scale, lc->n_heads * lc->head_k);
    if (kern_kv_quantised(kv_k_type(p->kv)) && y->k_shift)
        p->kern->add(k, y->k_shift, lc->n_kv_heads * lc->head_k);
    spread(p, kv_k_type(p->kv), q, lc->n_heads, lc->head_k);
    if (kv_k_type(p->kv) == KERN_KV_Q8_0) {
        const int n = lc->n_heads * lc->head_k;
        quantize_columns(p, &p->w->q_acts, row, q, n, 0, n);
    }
    spread(p, kv_k_type(p->kv), k, lc->n_kv_heads, lc->head_k);
    spread(p, kv_v_type(p->kv), v, lc->n_kv_heads, lc->head_v);
    kv_write(p->kv, info->seq, p->layer, info->slot, k, v);
}

/* Attention's output -> input of o: by the thread that has it, where heads are whole blocks. */
static bool att_by_head(const struct model_layer_config *lc) {
    return lc->head_v % KERN_BLOCK == 0;
}

static void att_row(const pass *p, int row) {
    const struct model_layer_config *lc = &p->m->cfg.layers[p->layer];
    quantize_row(p, row, row_of(p->w->att, row, p->w->n_att), lc->n_heads * lc->head_v);
}

/* x += what a block gave */
static void add_residual(const pass *p, int row, const model_linear *lin, const float *post_norm) {
    const int n = p->m->cfg.n_embd;
    float *o = row_of(p->w->o, row, p->w->n_embd);
    add_bias(p, lin, o);
    if (post_norm) p->kern->rmsnorm(o, post_norm, n, p->m->cfg.norm_eps, o);
    p->kern->add(row_of(p->w->x, row, p->w->n_embd), o, n);
}

/* x += attention's output; x -> input of gate, up */
static void ffn_norm_row(const pass *p, int row) {
    const model_layer *y = &p->m->layers[p->layer];
    const int n = p->m->cfg.n_embd;
    float *h = row_of(p->w->h, row, p->w->n_embd);
    add_residual(p, row, &y->o, y->post_attn_norm);
    p->kern->rmsnorm(row_of(p->w->x, row, p->w->n_embd), y->ffn_norm, n, p->m->cfg.norm_eps, h);
    quantize_row(p, row, h, n);
}

/* Rows that want logits: x -> input of the output matrix, gathered. */
static void output_norm_row(const pass *p, int row) {
    const int want = p->w->rows[row].want, n = p->m->cfg.n_embd;
    if (want < 0) return;
    float *h = row_of(p->w->h, want, p->w->n_embd);
    p->kern->rmsnorm(row_of(p->w->x, row, p->w->n_embd), p->m->output_norm, n, p->m->cfg.norm_eps,
                     h);
    quantize_row(p, want, h, n);
}

/* x += the FFN's output; x -> input of what comes next */
static void ffn_residual_row(const pass *p, int row) {
    const model_layer *y = &p->m->layers[p->layer];
    add_residual(p, row, &y->down, y->post_ffn_norm);
    if (p->layer + 1 < p->m->cfg.n_layers)
        attn_norm_row(p, row, p->layer + 1);
    else
        output_norm_row(p, row);
}

static void finish_logits(const pass *p, int want) {
    float *y = p->logits + (size_t)want * (size_t)p->m->cfg.n_vocab;
    add_bias(p, &p->m->output, y);
    if (p->m->cfg.final_softcap > 0)
        p->kern->softcap(y, p->m->cfg.final_softcap, p->m->cfg.n_vocab);
}

/* ---- attention ---- */

/* Queries of one attn_page call. */
typedef struct page_call {
    kern_attn a;
    model_scratch *s;
} page_call;

/* The unit of work: heads [head_begin, head_end) of one KV head's group, for the rows of one block.
 */
typedef struct attn_part {
    const pass *p;
    const model_block *block;
    int kv_head, head_begin, head_end;
} attn_part;

/* Positions of page `page` that the row sees: [*begin, *end) of 32. false: none. */
static bool visible(const model_row_info *r, int window, int page, int *begin, int *end) {
    const int first = page * KERN_PAGE;
    int b = window && r->position + 1 > window ? r->position + 1 - window : 0;
    b = b > first ? b - first : 0;
    int e = r->position + 1 - first;
    e = e < KERN_PAGE ? e : KERN_PAGE;
    *begin = b, *end = e;
    return b < e;
}

/* Query head `head` of a row. What q_acts hold is of use with keys in q8_0 alone: their heads are whole blocks. */
static kern_query query_of(const pass *p, int row, int head) {
    const struct model_layer_config *lc = &p->m->cfg.layers[p->layer];
    const kern_acts *a = &p->w->q_acts;
    const int column = head * lc->head_k, n_pad = model_pad(lc->n_heads * lc->head_k);
    const size_t at = (size_t)row * (size_t)n_pad + (size_t)column, block = at / KERN_BLOCK;
    return (kern_query){row_of(p->w->q, row, p->w->n_q) + column, a->q + at, a->scale + block,
                        a->sum + KERN_SUMS * block};
}

/* Adds the part's queries of one row to the call. */
static void add_queries(const attn_part *t, page_call *call, int row, int begin, int end) {
    const int n_heads = t->head_end - t->head_begin;
    for (int h = 0; h < n_heads; h++) {
        const int at = call->a.n_q++;
        call->s->q[at] = query_of(t->p, row, t->head_begin + h);
        call->s->state[at] = &call->s->states[(row - t->block->begin) * n_heads + h];
        call->s->begin[at] = (int16_t)begin, call->s->end[at] = (int16_t)end;
    }
}

static void run_call(const attn_part *t, page_call *call, const void *k, const void *v) {
    assert(k && v);
    call->a.k = k, call->a.v = v;
    t->p->kern->attn_page(&call->a);
    call->a.n_q = 0;
}

/* Brings positions [begin, end) of a page together, as a tree row sees them: committed positions,
 * then its ancestors and itself, wherever their slots are. */
static void gather_page(const attn_part *t, const model_scratch *s, int row, int page, int begin,
                        int end) {
    const model_row_info *rows = t->p->w->rows;
    int slots[KERN_PAGE];
    const int first = page * KERN_PAGE;
    for (int i = begin; i < end && first + i < rows[row].len; i++)
        slots[i] = first + i;
    for (int r = row; r >= 0 && rows[r].position >= first + begin; r = rows[r].parent)
        if (rows[r].position < first + end) slots[rows[r].position - first] = rows[r].slot;
    kv_gather(t->p->kv, rows[row].seq, t->p->layer, t->kv_head, slots + begin, end - begin, begin,
              s->k_page, s->v_page);
}

static void attend(const attn_part *t, model_scratch *s) {
    const pass *p = t->p;
    const struct model_layer_config *lc = &p->m->cfg.layers[p->layer];
    const int window = lc->windowed ? p->m->cfg.window : 0;
    const int n_heads = t->head_end - t->head_begin, v_pad = p->w->head_v;
    const model_row_info *rows = p->w->rows;
    for (int i = 0; i < (t->block->end - t->block->begin) * n_heads; i++) {
        s->states[i] = (kern_attn_state){-INFINITY, 0, s->out + (size_t)i * (size_t)v_pad};
        memset(s->states[i].out, 0, (size_t)v_pad * sizeof(float));
    }
    page_call call = {.a = {.k_type = kv_k_type(p->kv),
                            .v_type = kv_v_type(p->kv),
                            .k_dim = lc->head_k,
                            .v_dim = lc->head_v,
                            .softcap = p->m->cfg.attn_softcap,
                            .q = s->q,
                            .begin = s->begin,
                            .end = s->end,
                            .state = s->state},
                      .s = s};
    int first = INT32_MAX, last = 0; /* pages that any row of the block sees */
    for (int r = t->block->begin; r < t->block->end; r++) {
        const int oldest =
            window && rows[r].position + 1 > window ? rows[r].position + 1 - window : 0;
        first = oldest / KERN_PAGE < first ? oldest / KERN_PAGE : first;
        last = rows[r].position / KERN_PAGE > last ? rows[r].position / KERN_PAGE : last;
    }
    for (int page = first; page <= last; page++) { /* in order of position, for every query */
        const int seq = rows[t->block->begin].seq;
        call.a.next_k = page < last ? kv_page_k(p->kv, seq, p->layer, t->kv_head, page + 1) : NULL;
        call.a.next_v = page < last ? kv_page_v(p->kv, seq, p->layer, t->kv_head, page + 1) : NULL;
        const bool committed = (page + 1) * KERN_PAGE <= rows[t->block->begin].len;
        for (int r = t->block->begin, b, e; r < t->block->end; r++)
            if ((committed || rows[r].chain) && visible(&rows[r], window, page, &b, &e))
                add_queries(t, &call, r, b, e);
        if (call.a.n_q)
            run_call(t, &call, kv_page_k(p->kv, seq, p->layer, t->kv_head, page),
                     kv_page_v(p->kv, seq, p->layer, t->kv_head, page));
        for (int r = t->block->begin, b, e; r < t->block->end; r++)
            if (!committed && !rows[r].chain && visible(&rows[r], window, page, &b, &e)) {
                gather_page(t, s, r, page, b, e);
                add_queries(t, &call, r, b, e);
                run_call(t, &call, s->k_page, s->v_page);
            }
    }
    for (int r = t->block->begin; r < t->block->end; r++) {
        float *att = row_of(p->w->att, r, p->w->n_att);
        for (int h = 0; h < n_heads; h++) {
            const kern_attn_state *st = &s->states[(r - t->block->begin) * n_heads + h];
            float *to = att + (t->head_begin + h) * lc->head_v;
            for (int d = 0; d < lc->head_v; d++)
                to[d] = st->out[d] / st->sum;
            spread(p, kv_v_type(p->kv), to, 1, lc->head_v);
        }
        if (att_by_head(lc))
            quantize_columns(p, &p->w->acts, r, att, lc->n_heads * lc->head_v,
                             t->head_begin * lc->head_v, t->head_end * lc->head_v);
    }
}

typedef struct attn_job {
    const pass *p;
    int n_kv_heads, group, n_splits; /* a KV head's group of queries is cut into n_splits parts */
    td_split split;
} attn_job;

static void run_attention(void *arg, int thread, int n_threads) {
    (void)n_threads;
    attn_job *j = arg;
    for (int begin, end; td_split_next(&j->split, &begin, &end);) {
        const int part = begin % j->n_splits, unit = begin / j->n_splits;
        const int head = unit % j->n_kv_heads, block = unit / j->n_kv_heads;
        const attn_part t = {.p = j->p,
                             .block = &j->p->w->blocks[block],
                             .kv_head = head,
                             .head_begin = head * j->group + part * j->group / j->n_splits,
                             .head_end = head * j->group + (part + 1) * j->group / j->n_splits};
        attend(&t, &j->p->w->scratch[thread]);
    }
}

static void attention(const pass *p) {
    const struct model_layer_config *lc = &p->m->cfg.layers[p->layer];
    attn_job j = {.p = p, .n_kv_heads = lc->n_kv_heads, .group = lc->n_heads / lc->n_kv_heads};
    const int n_units = p->w->n_blocks * lc->n_kv_heads;
    /* Query heads of a group share each page that is read, so they part only to keep threads busy.
     */
    j.n_splits = (p->w->n_threads + n_units - 1) / n_units;
    if (j.n_splits > j.group) j.n_splits = j.group;
    td_split_init(&j.split, n_units * j.n_splits, 1);
    td_pool_run(n_units * j.n_splits > 1 ? p->m->pool : NULL, run_attention, &j);
}

/* ---- gate and up ---- */

typedef struct gate_up_job {
    const pass *p;
    const kern_acts *acts;
    td_split split;
} gate_up_job;

/* Columns [begin, end) of gate and up -> input of down */
static void act_columns(const pass *p, int row, int begin, int end) {
    const model_layer *y = &p->m->layers[p->layer];
    const int n = end - begin;
    float *all = row_of(p->w->gate, row, p->w->n_ff);
    float *gate = all + begin, *up = row_of(p->w->up, row, p->w->n_ff) + begin;
    if (y->gate.bias) p->kern->add(gate, y->gate.bias + begin, n);
    if (y->up.bias) p->kern->add(up, y->up.bias + begin, n);
    if (p->m->cfg.act == MODEL_GELU)
        p->kern->gelu_mul(gate, up, n, gate);
    else
        p->kern->silu_mul(gate, up, n, gate);
    quantize_columns(p, &p->w->ff_acts, row, all, p->m->cfg.layers[p->layer].n_ff, begin, end);
}

/* A piece of both matrices, then all that stands between them and down. */
static void run_gate_up(void *arg, int thread, int n_threads) {
    (void)thread, (void)n_threads;
    gate_up_job *j = arg;
    const pass *p = j->p;
    const kern_mat *gate = &p->m->layers[p->layer].gate.w, *up = &p->m->layers[p->layer].up.w;
    const size_t stride = (size_t)p->w->n_ff;
    for (int begin, end; td_split_next(&j->split, &begin, &end);) {
        p->kern->gemm[gate->type](gate, begin, end, j->acts, p->w->gate, stride);
        p->kern->gemm[up->type](up, begin, end, j->acts, p->w->up, stride);
        const int last = end * KERN_PANEL < gate->n_out ? end * KERN_PANEL : gate->n_out;
        for (int r = 0; r < p->n_rows; r++)
            act_columns(p, r, begin * KERN_PANEL, last);
    }
}

static void gate_up(const pass *p, const kern_acts *acts) {
    gate_up_job j = {.p = p, .acts = acts};
    const int n_panels = p->m->layers[p->layer].gate.w.n_panels;
    const int block = KERN_BLOCK / KERN_PANEL; /* panels whose columns are quantised together */
    td_split_init(&j.split, n_panels, (panels_a_piece(p, n_panels) + block - 1) / block * block);
    td_pool_run(p->m->pool, run_gate_up, &j);
}

/* ---- the pass ---- */

static void attention_block(pass *p) {
    const model_work *w = p->w;
    const struct model_layer_config *lc = &p->m->cfg.layers[p->layer];
    const model_layer *y = &p->m->layers[p->layer];
    const kern_acts in = input(&w->acts, p->n_rows, p->m->cfg.n_embd, w->h, w->n_embd);
    multiply(p, &in,
             &(product_job){.parts = {{&y->q, w->q, (size_t)w->n_q},
                                      {&y->k, w->k, (size_t)w->n_k},
                                      {&y->v, w->v, (size_t)w->n_v}},
                            .n_parts = 3});
    each_row(p, p->n_rows, qkv_row);
    attention(p);
    if (!att_by_head(lc)) each_row(p, p->n_rows, att_row);
    const kern_acts att = input(&w->acts, p->n_rows, lc->n_heads * lc->head_v, w->att, w->n_att);
    multiply(p, &att, &(product_job){.parts = {{&y->o, w->o, (size_t)w->n_embd}}, .n_parts = 1});
}

static void ffn_block(pass *p) {
    const model_work *w = p->w;
    const model_layer *y = &p->m->layers[p->layer];
    each_row(p, p->n_rows, ffn_norm_row);
    const kern_acts in = input(&w->acts, p->n_rows, p->m->cfg.n_embd, w->h, w->n_embd);
    gate_up(p, &in);
    const kern_acts act =
        input(&w->ff_acts, p->n_rows, p->m->cfg.layers[p->layer].n_ff, w->gate, w->n_ff);
    multiply(p, &act, &(product_job){.parts = {{&y->down, w->o, (size_t)w->n_embd}}, .n_parts = 1});
    each_row(p, p->n_rows, ffn_residual_row);
}

static void output_block(pass *p) {
    const model_config *c = &p->m->cfg;
    const kern_acts in = input(&p->w->acts, p->n_want, c->n_embd, p->w->h, p->w->n_embd);
    multiply(
        p, &in,
        &(product_job){.parts = {{&p->m->output, p->logits, (size_t)c->n_vocab}}, .n_parts = 1});
    if (p->m->output.bias || c->final_softcap > 0) each_row(p, p->n_want, finish_logits);
}

/* Works out what each row is; TD_E_ARG for what cannot be. */
static td_code read_rows(pass *p, const model_row *rows, td_error *err) {
    model_work *w = p->w;
    w->n_blocks = w->n_seqs = 0;
    int begin = 0; /* of the sequence at hand */
    for (int i = 0; i < p->n_rows; i++) {
        const model_row *r = &rows[i];
        if (r->token < 0 || r->token >= p->m->cfg.n_vocab)
            return td_fail(err, TD_E_ARG, "row %d: token %d is not in the vocabulary of %d", i,
                           (int)r->token, p->m->cfg.n_vocab);
        if (!i || r->seq != rows[i - 1].seq) {
            begin = i;
            for (int s = 0; s < w->n_seqs; s++)
                if (w->seqs[s] == r->seq)
                    return td_fail(err, TD_E_ARG,
                                   "row %d: the rows of sequence %d are not neighbours", i, r->seq);
            w->seqs[w->n_seqs++] = r->seq;
        }
        if (r->parent < -1 || r->parent >= i || (r->parent >= 0 && r->parent < begin))
            return td_fail(err, TD_E_ARG, "row %d: its parent cannot be row %d", i, r->parent);
        if (i == begin || i - w->blocks[w->n_blocks - 1].begin == MODEL_Q_ROWS)
            w->blocks[w->n_blocks++] = (model_block){i, i};
        w->blocks[w->n_blocks - 1].end = i + 1;
        const int len = kv_seq_len(p->kv, r->seq);
        const model_row_info *parent = r->parent < 0 ? NULL : &w->rows[r->parent];
        w->rows[i] = (model_row_info){
            .seq = r->seq,
            .token = r->token,
            .parent = r->parent,
            .len = len,
            .slot = len + i - begin,
            .position = parent ? parent->position + 1 : len,
            .chain = parent ? r->parent == i - 1 && parent->chain : i == begin,
            .want = r->want_logits ? p->n_want++ : -1,
        };
    }
    return TD_OK;
}

/* All sequences or none. */
static td_code reserve(const pass *p, td_error *err) {
    const model_work *w = p->w;
    for (int s = 0, row = 0; s < w->n_seqs; s++) {
        const int begin = row;
        while (row < p->n_rows && w->rows[row].seq == w->seqs[s])
            row++;
        td_code rc = kv_seq_reserve(p->kv, w->seqs[s], row - begin, err);
        if (!rc) continue;
        while (s-- > 0)
            kv_seq_reserve(p->kv, w->seqs[s], 0, NULL);
        return rc;
    }
    return TD_OK;
}

td_code model_forward(const model *m, kv_cache *kv, const model_row *rows, int n_rows,
                      model_work *w, float *logits, td_error *err) {
    if (n_rows < 0 || n_rows > w->max_rows)
        return td_fail(err, TD_E_ARG, "a pass of %d rows; the scratch was opened for at most %d",
                       n_rows, w->max_rows);
    if (!n_rows) return TD_OK;
    pass p = {.m = m, .kern = m->kern, .kv = kv, .w = w, .n_rows = n_rows, .logits = logits};
    td_code rc;
    if ((rc = read_rows(&p, rows, err)) || (rc = reserve(&p, err))) return rc;
    each_row(&p, n_rows, embed_row);
    for (p.layer = 0; p.layer < m->cfg.n_layers; p.layer++) {
        attention_block(&p);
        ffn_block(&p);
    }
    if (p.n_want) output_block(&p);
    return TD_OK;
}
