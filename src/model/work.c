/* Scratch of a pass: one mapping, cut into the buffers of work.h. Touched as far as passes are
 * wide. */
#include "model/work.h"

#include <stdlib.h>

static int max_int(int a, int b) {
    return a > b ? a : b;
}

/* The widest layer decides. */
static void find_widths(model_work *w, const model_config *c) {
    w->n_embd = model_pad(c->n_embd);
    w->n_rot = model_pad(c->n_rot / 2);
    for (int l = 0; l < c->n_layers; l++) {
        const struct model_layer_config *lc = &c->layers[l];
        w->n_q = max_int(w->n_q, model_pad(lc->n_heads * lc->head_k));
        w->n_k = max_int(w->n_k, model_pad(lc->n_kv_heads * lc->head_k));
        w->n_v = max_int(w->n_v, model_pad(lc->n_kv_heads * lc->head_v));
        w->n_att = max_int(w->n_att, model_pad(lc->n_heads * lc->head_v));
        w->n_ff = max_int(w->n_ff, model_pad(lc->n_ff));
        w->group = max_int(w->group, lc->n_heads / lc->n_kv_heads);
        w->head_k = max_int(w->head_k, model_pad(lc->head_k));
        w->head_v = max_int(w->head_v, model_pad(lc->head_v));
    }
    w->n_in = max_int(w->n_embd, w->n_att);
}

/* With base NULL only counts. Each buffer begins on a cache line. */
typedef struct cutter {
    uint8_t *base;
    size_t at;
    bool overflow;
} cutter;

static void *cut(cutter *c, size_t n, size_t width, size_t item_bytes) {
    size_t bytes;
    uint8_t *p = c->base ? c->base + c->at : NULL;
    if (!td_mul(&bytes, n, width) || !td_mul(&bytes, bytes, item_bytes) ||
        !td_add(&bytes, bytes, KERN_ALIGN - 1) ||
        !td_add(&c->at, c->at, bytes & ~(size_t)(KERN_ALIGN - 1)))
        c->overflow = true;
    return p;
}

static void cut_thread(model_scratch *s, const model_work *w, cutter *c) {
    const size_t n_q = (size_t)MODEL_Q_ROWS * (size_t)w->group;
    s->states = cut(c, n_q, 1, sizeof *s->states);
    s->out = cut(c, n_q, (size_t)w->head_v, sizeof *s->out);
    s->q = cut(c, n_q, 1, sizeof *s->q);
    s->state = cut(c, n_q, 1, sizeof *s->state);
    s->begin = cut(c, n_q, 1, sizeof *s->begin);
    s->end = cut(c, n_q, 1, sizeof *s->end);
    s->k_page = cut(c, (size_t)w->head_k, KERN_PAGE, sizeof(float));
    s->v_page = cut(c, (size_t)w->head_v, KERN_PAGE, sizeof(float));
}

static void cut_acts(kern_acts *a, size_t n, size_t n_in, cutter *c) {
    a->q = cut(c, n, n_in, sizeof *a->q);
    a->scale = cut(c, n, n_in / KERN_BLOCK, sizeof *a->scale);
    a->sum = cut(c, n, n_in / KERN_BLOCK * KERN_SUMS, sizeof *a->sum);
    a->min_scale = cut(c, n, n_in / KERN_BLOCK, sizeof *a->min_scale);
}

static void cut_all(model_work *w, cutter *c) {
    const size_t n = (size_t)w->max_rows, n_in = (size_t)w->n_in;
    w->rows = cut(c, n, 1, sizeof *w->rows);
    w->blocks = cut(c, n, 1, sizeof *w->blocks);
    w->seqs = cut(c, n, 1, sizeof *w->seqs);
    w->x = cut(c, n, (size_t)w->n_embd, sizeof(float));
    w->h = cut(c, n, (size_t)w->n_embd, sizeof(float));
    w->o = cut(c, n, (size_t)w->n_embd, sizeof(float));
    w->q = cut(c, n, (size_t)w->n_q, sizeof(float));
    w->k = cut(c, n, (size_t)w->n_k, sizeof(float));
    w->v = cut(c, n, (size_t)w->n_v, sizeof(float));
    w->att = cut(c, n, (size_t)w->n_att, sizeof(float));
    w->gate = cut(c, n, (size_t)w->n_ff, sizeof(float));
    w->up = cut(c, n, (size_t)w->n_ff, sizeof(float));
    w->cosine[0] = cut(c, n, (size_t)w->n_rot, sizeof(float));
    w->sine[0] = cut(c, n, (size_t)w->n_rot, sizeof(float));
    w->cosine[1] = cut(c, n, (size_t)w->n_rot, sizeof(float));
    w->sine[1] = cut(c, n, (size_t)w->n_rot, sizeof(float));
    cut_acts(&w->acts, n, n_in, c);
    cut_acts(&w->ff_acts, n, (size_t)w->n_ff, c);
    cut_acts(&w->q_acts, n, (size_t)w->n_q, c);
    for (int t = 0; t < w->n_threads; t++)
        cut_thread(&w->scratch[t], w, c);
}

enum { MAX_ROWS = 1 << 20 };

td_code model_work_open(model_work **out, const model *m, int max_rows, td_error *err) {
    if (max_rows < 1 || max_rows > MAX_ROWS)
        return td_fail(err, TD_E_ARG, "passes of %d rows make no sense; use 1 to %d", max_rows,
                       (int)MAX_ROWS);
    model_work *w = td_calloc(1, sizeof *w);
    if (!w) goto memory;
    w->max_rows = max_rows;
    w->n_threads = td_pool_size(m->pool);
    find_widths(w, &m->cfg);
    if (!(w->scratch = td_calloc((size_t)w->n_threads, sizeof *w->scratch))) goto memory;
    cutter c = {0};
    cut_all(w, &c);
    if (c.overflow || c.at > td_memory_available()) {
        model_work_close(w);
        return td_fail(err, TD_E_TOO_BIG,
                       "passes of %d rows need more memory than is free; use fewer", max_rows);
    }
    w->mem_bytes = c.at;
    if (!(w->mem = td_map(w->mem_bytes))) goto memory;
    c = (cutter){.base = w->mem};
    cut_all(w, &c);
    *out = w;
    return TD_OK;
memory:
    model_work_close(w);
    return td_fail(err, TD_E_MEMORY, "out of memory for passes of %d rows", max_rows);
}

void model_work_close(model_work *w) {
    if (!w) return;
    td_unmap(w->mem, w->mem_bytes);
    free(w->scratch);
    free(w);
}

size_t model_work_bytes(const model_work *w) {
    return w->mem_bytes;
}
