/* Weights from the file into memory: matrices as panels, vectors as floats.
 *
 * In two passes. The first finds every tensor the architecture wants, checks its shape, and says
 * how many bytes all will take; a tensor that nobody asked for is refused, since skipping it would
 * compute another model. The second packs, one tensor after another, with its panels over the
 * threads; what was read of the file is given back to the kernel at once, so that the peak is about
 * one copy of the weights. */
#include "model/model_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

typedef struct item {
    const gguf_tensor *t;
    kern_mat *mat; /* one of the two is NULL */
    const float **vec;
    size_t n; /* values of the vector */
} item;

typedef struct loader {
    model *m;
    const gguf_file *f;
    td_error *err;
    item *items; /* owns */
    size_t n_items, items_cap;
    size_t mem_bytes, file_bytes;
} loader;

static td_code misshapen(const loader *ld, const gguf_tensor *t, uint64_t n_in, uint64_t n_out) {
    return td_fail(ld->err, TD_E_FORMAT,
                   "%s: tensor '%.64s' is (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                   "), but the configuration needs (%" PRIu64 ", %" PRIu64 ")",
                   gguf_path(ld->f), t->name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], n_in,
                   n_out);
}

static td_code find(const loader *ld, const char *name, uint64_t n_in, uint64_t n_out,
                    const gguf_tensor **out) {
    const gguf_tensor *t = gguf_find_tensor(ld->f, name);
    if (!t)
        return td_fail(ld->err, TD_E_FORMAT,
                       "%s: tensor '%s' (%" PRIu64 ", %" PRIu64 ") is missing", gguf_path(ld->f),
                       name, n_in, n_out);
    if (t->dims[0] != n_in || t->dims[1] != n_out || t->dims[2] != 1 || t->dims[3] != 1)
        return misshapen(ld, t, n_in, n_out);
    *out = t;
    return TD_OK;
}

/* Notes an item of `bytes` in memory, on a cache line. */
static td_code note(loader *ld, item it, size_t bytes) {
    if (!td_grow(&ld->items, &ld->items_cap, ld->n_items + 1, sizeof *ld->items))
        return td_fail(ld->err, TD_E_MEMORY, "out of memory for the list of tensors");
    size_t padded;
    if (!td_add(&padded, bytes, KERN_ALIGN - 1) ||
        !td_add(&ld->mem_bytes, ld->mem_bytes, padded & ~(size_t)(KERN_ALIGN - 1)) ||
        !td_add(&ld->file_bytes, ld->file_bytes, it.t->size_bytes))
        return td_fail(ld->err, TD_E_TOO_BIG, "%s: the bytes of all tensors overflow",
                       gguf_path(ld->f));
    ld->items[ld->n_items++] = it;
    return TD_OK;
}

static td_code want_vec(loader *ld, const float **vec, uint64_t n, const char *name) {
    const gguf_tensor *t = NULL;
    td_code rc = find(ld, name, n, 1, &t);
    if (rc) return rc;
    size_t row;
    if (!td_type_row_bytes(&row, t->type, n))
        return td_fail(ld->err, TD_E_FORMAT,
                       "%s: tensor '%s' of type %s cannot hold %" PRIu64 " values",
                       gguf_path(ld->f), name, td_type_get(t->type)->name, n);
    return note(ld, (item){.t = t, .vec = vec, .n = n}, n * sizeof(float));
}

static td_code want_mat(loader *ld, kern_mat *mat, uint64_t n_out, uint64_t n_in,
                        const char *name) {
    const gguf_tensor *t = NULL;
    td_code rc = find(ld, name, n_in, n_out, &t);
    if (rc) return rc;
    if ((rc = kern_mat_init(mat, (td_type)t->type, n_out, n_in, ld->err))) {
        td_fail_context(ld->err, "%s: tensor '%s'", gguf_path(ld->f), name);
        return rc;
    }
    if (!ld->m->kern->gemm[t->type])
        return td_fail(ld->err, TD_E_UNSUPPORTED, "%s: tensor '%s' is %s, which has no kernel",
                       gguf_path(ld->f), name, td_type_get(t->type)->name);
    ld->m->macs += n_out * n_in;
    ld->m->matrix_bytes += kern_mat_bytes(mat);
    return note(ld, (item){.t = t, .mat = mat}, kern_mat_bytes(mat));
}

static td_code layer_vec(loader *ld, const float **vec, int layer, uint64_t n, const char *name) {
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    return want_vec(ld, vec, n, full);
}

static td_code layer_linear(loader *ld, model_linear *lin, int layer, uint64_t n_out, uint64_t n_in,
                            const char *name) {
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    td_code rc = want_mat(ld, &lin->w, n_out, n_in, full);
    if (rc) return rc;
    snprintf(full, sizeof full, "blk.%d.%s.bias", layer, name);
    return gguf_find_tensor(ld->f, full) ? want_vec(ld, &lin->bias, n_out, full) : TD_OK;
}

static td_code want_layer(loader *ld, int l) {
    const model_config *c = &ld->m->cfg;
    const struct model_layer_config *lc = &c->layers[l];
    const model_arch *a = ld->m->arch;
    model_layer *y = &ld->m->layers[l];
    const uint64_t n = (uint64_t)c->n_embd, ff = (uint64_t)lc->n_ff;
    const uint64_t q = (uint64_t)lc->n_heads * (uint64_t)lc->head_k;
    const uint64_t k = (uint64_t)lc->n_kv_heads * (uint64_t)lc->head_k;
    const uint64_t v = (uint64_t)lc->n_kv_heads * (uint64_t)lc->head_v;
    const uint64_t o = (uint64_t)lc->n_heads * (uint64_t)lc->head_v;
    td_code rc;
    if ((rc = layer_vec(ld, &y->attn_norm, l, n, "attn_norm")) ||
        (rc = layer_linear(ld, &y->q, l, q, n, "attn_q")) ||
        (rc = layer_linear(ld, &y->k, l, k, n, "attn_k")) ||
        (rc = layer_linear(ld, &y->v, l, v, n, "attn_v")) ||
        (rc = layer_linear(ld, &y->o, l, n, o, "attn_output")) ||
        (rc = layer_vec(ld, &y->ffn_norm, l, n, "ffn_norm")) ||
        (rc = layer_linear(ld, &y->gate, l, ff, n, "ffn_gate")) ||
        (rc = layer_linear(ld, &y->up, l, ff, n, "ffn_up")) ||
        (rc = layer_linear(ld, &y->down, l, n, ff, "ffn_down")))
        return rc;
    if (a->qk_norm && ((rc = layer_vec(ld, &y->q_norm, l, (uint64_t)lc->head_k, "attn_q_norm")) ||
                       (rc = layer_vec(ld, &y->k_norm, l, (uint64_t)lc->head_k, "attn_k_norm"))))
        return rc;
    if (a->post_norm && ((rc = layer_vec(ld, &y->post_attn_norm, l, n, "post_attention_norm")) ||
                         (rc = layer_vec(ld, &y->post_ffn_norm, l, n, "post_ffw_norm"))))
        return rc;
    return TD_OK;
}

static int by_tensor(const void *a, const void *b) {
    const gguf_tensor *const x = ((const item *)a)->t, *const y = ((const item *)b)->t;
    return (x > y) - (x < y);
}

/* Every tensor of the file is in use. Sorts the items by tensor, which is the file's order as well.
 */
static td_code refuse_leftovers(loader *ld) {
    qsort(ld->items, ld->n_items, sizeof *ld->items, by_tensor);
    for (size_t i = 0; i < gguf_n_tensors(ld->f); i++) {
        const item key = {.t = gguf_tensor_at(ld->f, i)};
        if (key.t == ld->m->embd ||
            strstr(key.t->name,
                   "attn_rot_embd") || /* what old files carry: rope's own frequencies */
            bsearch(&key, ld->items, ld->n_items, sizeof *ld->items, by_tensor))
            continue;
        return td_fail(ld->err, TD_E_UNSUPPORTED,
                       "%s: tensor '%.64s' has no place in a model of architecture '%s'%s",
                       gguf_path(ld->f), key.t->name, ld->m->cfg.arch,
                       strstr(key.t->name, "_exps") || strstr(key.t->name, "ffn_gate_inp")
                           ? ": mixtures of experts are not supported"
                           : "");
    }
    return TD_OK;
}

static td_code plan(loader *ld) {
    model *m = ld->m;
    const uint64_t n_embd = (uint64_t)m->cfg.n_embd, n_vocab = (uint64_t)m->cfg.n_vocab;
    td_code rc;
    if ((rc = find(ld, "token_embd.weight", n_embd, n_vocab, &m->embd))) return rc;
    if (!td_type_row_bytes(&m->embd_row_bytes, m->embd->type, n_embd))
        return td_fail(ld->err, TD_E_FORMAT, "%s: rows of 'token_embd.weight' do not fit its type",
                       gguf_path(ld->f));
    for (int l = 0; l < m->cfg.n_layers; l++)
        if ((rc = want_layer(ld, l))) return rc;
    if ((rc = want_vec(ld, &m->output_norm, n_embd, "output_norm.weight")) ||
        (rc = want_mat(ld, &m->output.w, n_vocab, n_embd,
                       m->cfg.tied ? "token_embd.weight" : "output.weight")))
        return rc;
    if (gguf_find_tensor(ld->f, "output.bias") &&
        (rc = want_vec(ld, &m->output.bias, n_vocab, "output.bias")))
        return rc;
    if (gguf_find_tensor(ld->f, "rope_freqs.weight") &&
        (rc = want_vec(ld, &m->rope_factors, (uint64_t)m->cfg.n_rot / 2, "rope_freqs.weight")))
        return rc;
    return refuse_leftovers(ld);
}

static td_code map_memory(loader *ld) {
    const size_t available = td_memory_available();
    if (ld->mem_bytes > available)
        return td_fail(
            ld->err, TD_E_TOO_BIG,
            "%s: the weights need %.1f MiB and %.1f MiB are free; use a smaller model or a "
            "coarser quantisation",
            gguf_path(ld->f), (double)ld->mem_bytes / 0x1p20, (double)available / 0x1p20);
    if (!(ld->m->mem = td_map(ld->mem_bytes)))
        return td_fail(ld->err, TD_E_MEMORY, "%s: cannot map %.1f MiB for the weights",
                       gguf_path(ld->f), (double)ld->mem_bytes / 0x1p20);
    ld->m->mem_bytes = ld->mem_bytes;
    return TD_OK;
}

typedef struct pack_job {
    const item *it;
    size_t row_bytes;
    td_split split;
} pack_job;

static void pack_panels(void *arg, int thread, int n_threads) {
    (void)thread, (void)n_threads;
    pack_job *j = arg;
    for (int begin, end; td_split_next(&j->split, &begin, &end);)
        kern_mat_pack(j->it->mat, j->it->t->data, j->row_bytes, begin, end);
}

static td_code pack(loader *ld, const model_options *opt) {
    size_t at = 0, done = 0;
    for (size_t i = 0; i < ld->n_items; i++) {
        const item *it = &ld->items[i];
        if (opt->progress && !opt->progress(opt->user, done, ld->file_bytes))
            return td_fail(ld->err, TD_E_CANCELLED, "%s: loading was cancelled", gguf_path(ld->f));
        if (it->mat) {
            pack_job job = {.it = it};
            it->mat->data = ld->m->mem + at;
            if (!td_type_row_bytes(&job.row_bytes, it->t->type, it->t->dims[0]))
                return misshapen(ld, it->t, it->t->dims[0], it->t->dims[1]);
            td_split_init(&job.split, it->mat->n_panels, 4);
            td_pool_run(ld->m->pool, pack_panels, &job);
            at += kern_mat_bytes(it->mat);
        } else {
            float *to = (float *)(void *)(ld->m->mem + at);
            td_dequantize(it->t->type, it->t->data, to, it->n);
            *it->vec = to;
            at += it->n * sizeof *to;
        }
        at = (at + KERN_ALIGN - 1) & ~(size_t)(KERN_ALIGN - 1);
        gguf_release(ld->f, it->t->data, it->t->size_bytes);
        done += it->t->size_bytes;
    }
    if (opt->progress && !opt->progress(opt->user, done, ld->file_bytes))
        return td_fail(ld->err, TD_E_CANCELLED, "%s: loading was cancelled", gguf_path(ld->f));
    return TD_OK;
}

/* Factors divide the frequencies. */
static td_code check_rope_factors(const loader *ld) {
    const model *m = ld->m;
    for (int i = 0; m->rope_factors && i < m->cfg.n_rot / 2; i++)
        if (!(m->rope_factors[i] > 0 && m->rope_factors[i] < 1e9f))
            return td_fail(ld->err, TD_E_FORMAT, "%s: 'rope_freqs.weight' holds %g at %d",
                           gguf_path(ld->f), (double)m->rope_factors[i], i);
    return TD_OK;
}

static void init_kv_layers(model *m) {
    for (int l = 0; l < m->cfg.n_layers; l++) {
        const struct model_layer_config *lc = &m->cfg.layers[l];
        m->kv_layers[l] = (kv_layer){.n_heads = lc->n_kv_heads,
                                     .k_dim = lc->head_k,
                                     .v_dim = lc->head_v,
                                     .window = lc->windowed ? m->cfg.window : 0};
    }
}

td_code model_open(model **out, const gguf_file *f, const model_options *opt, td_error *err) {
    td_code rc;
    model *m = td_calloc(1, sizeof *m);
    loader ld = {.m = m, .f = f, .err = err};
    const model_options none = {0};
    if (!opt) opt = &none;
    if (!m) goto memory;
    m->pool = opt->pool;
    m->kern = opt->kern;
    if (!m->kern && (rc = kern_table_get(&m->kern, err))) goto fail;
    if ((rc = model_config_read(&m->cfg, f, err))) goto fail;
    m->arch = model_arch_find(m->cfg.arch);
    m->layers = td_calloc((size_t)m->cfg.n_layers, sizeof *m->layers);
    m->kv_layers = td_calloc((size_t)m->cfg.n_layers, sizeof *m->kv_layers);
    if (!m->layers || !m->kv_layers) goto memory;
    init_kv_layers(m);
    if ((rc = plan(&ld)) || (rc = map_memory(&ld)) || (rc = pack(&ld, opt)) ||
        (rc = check_rope_factors(&ld)))
        goto fail;
    if (!model_rope_init(m)) goto memory;
    free(ld.items);
    *out = m;
    return TD_OK;
memory:
    rc = td_fail(err, TD_E_MEMORY, "%s: out of memory", gguf_path(f));
fail:
    free(ld.items);
    model_close(m);
    return rc;
}

void model_close(model *m) {
    if (!m) return;
    td_unmap(m->mem, m->mem_bytes);
    for (int i = 0; i < 2; i++)
        free(m->rope_freq[i]);
    free(m->k_shifts);
    free(m->kv_layers);
    free(m->layers);
    model_config_free(&m->cfg);
    free(m);
}

const model_config *model_get_config(const model *m) {
    return &m->cfg;
}

size_t model_weight_bytes(const model *m) {
    return m->mem_bytes;
}

size_t model_step_bytes(const model *m) {
    return m->matrix_bytes + m->embd_row_bytes;
}

uint64_t model_row_macs(const model *m) {
    return m->macs;
}

void model_kv_config(const model *m, kv_config *cfg) {
    cfg->n_layers = m->cfg.n_layers;
    cfg->layers = m->kv_layers;
}
