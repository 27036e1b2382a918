/* Metadata to configuration. Every number gets a range here, so that nothing behind this file can
 * overflow or divide by zero; every key that changes the arithmetic and cannot be honoured is
 * refused. */
#include "model/model_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Beyond these a number is a mistake: the largest published models stay ten times below. Products
 * of two of them (heads * head size) are checked against MAX_WIDTH on their own. */
enum {
    MAX_LAYERS = 4096,
    MAX_WIDTH = 1 << 20, /* n_embd, n_ff, heads * head size */
    MAX_HEADS = 1 << 12,
    MAX_HEAD = 1 << 12, /* values a head */
    MAX_VOCAB = 1 << 24,
    MAX_CTX = 1 << 28
};

typedef struct reader {
    const gguf_file *f;
    const model_arch *arch;
    td_error *err;
} reader;

enum { KEY_BYTES = 128 };

static const char *key_of(const reader *r, const char *name, char key[KEY_BYTES]) {
    snprintf(key, KEY_BYTES, "%s.%s", r->arch->name, name);
    return key;
}

static const gguf_value *find(const reader *r, const char *name) {
    char key[KEY_BYTES];
    return gguf_find(r->f, key_of(r, name, key));
}

static td_code missing(const reader *r, const char *name) {
    return td_fail(r->err, TD_E_FORMAT,
                   "%s: the key '%s.%s' is missing; is this a whole model file?", gguf_path(r->f),
                   r->arch->name, name);
}

static td_code get_int(const reader *r, const char *name, int lo, int hi, int fallback, int *out) {
    char key[KEY_BYTES];
    int64_t v;
    td_code rc = gguf_get_int(r->f, key_of(r, name, key), lo, hi, fallback, &v, r->err);
    if (!rc) *out = (int)v;
    return rc;
}

static td_code need_int(const reader *r, const char *name, int lo, int hi, int *out) {
    if (!find(r, name)) return missing(r, name);
    return get_int(r, name, lo, hi, lo, out);
}

/* The bounds are part of the range. */
static td_code get_float(const reader *r, const char *name, double lo, double hi, double fallback,
                         float *out) {
    char key[KEY_BYTES];
    double v;
    td_code rc = gguf_get_float(r->f, key_of(r, name, key), fallback, &v, r->err);
    if (rc) return rc;
    if (!(v >= lo && v <= hi))
        return td_fail(r->err, TD_E_FORMAT, "%s: '%s' is %g, which is not in %g to %g",
                       gguf_path(r->f), key, v, lo, hi);
    *out = (float)v;
    return TD_OK;
}

static bool is_int_type(gguf_value_type t) {
    return t != GGUF_F32 && t != GGUF_F64 && t != GGUF_STRING && t != GGUF_ARRAY;
}

/* Item i of an array of integers or bools; little-endian as the format is. */
static int64_t array_item(const gguf_value *v, uint64_t i) {
    const uint8_t *p = v->arr.data;
    switch (v->arr.type) {
    case GGUF_U8:
    case GGUF_BOOL:
        return p[i];
    case GGUF_I8:
        return (int8_t)p[i];
#define ITEM(type)                                                                                 \
    {                                                                                              \
        type x;                                                                                    \
        memcpy(&x, p + i * sizeof x, sizeof x);                                                    \
        return (int64_t)x;                                                                         \
    }
    case GGUF_U16:
        ITEM(uint16_t)
    case GGUF_I16:
        ITEM(int16_t)
    case GGUF_U32:
        ITEM(uint32_t)
    case GGUF_I32:
        ITEM(int32_t)
    case GGUF_U64:
        ITEM(uint64_t)
    default:
        ITEM(int64_t)
#undef ITEM
    }
}

/* One number for all layers, or an array with one a layer. fallback NULL: the key must be there. */
static td_code get_per_layer(const reader *r, const char *name, int n_layers, int lo, int hi,
                             const int *fallback, int *out) {
    const gguf_value *v = find(r, name);
    if (!v || v->type != GGUF_ARRAY) {
        int one = 0;
        td_code rc = !v && !fallback ? missing(r, name)
                     : v             ? get_int(r, name, lo, hi, lo, &one)
                                     : TD_OK;
        for (int l = 0; l < n_layers && !rc; l++)
            out[l] = v ? one : fallback[l];
        return rc;
    }
    if (!is_int_type(v->arr.type) || v->arr.n != (uint64_t)n_layers)
        return td_fail(
            r->err, TD_E_FORMAT,
            "%s: '%s' should be a number or an array of %d integers, one a layer; it is an "
            "array of %" PRIu64 " items of type %d",
            gguf_path(r->f), v->key, n_layers, v->arr.n, (int)v->arr.type);
    for (int l = 0; l < n_layers; l++) {
        const int64_t x = array_item(v, (uint64_t)l);
        if (x < lo || x > hi)
            return td_fail(r->err, TD_E_FORMAT,
                           "%s: '%s' is %" PRId64 " for layer %d, not in %d to %d", gguf_path(r->f),
                           v->key, x, l, lo, hi);
        out[l] = (int)x;
    }
    return TD_OK;
}

/* ---- the parts ---- */

/* Keys of relatives of these architectures that change the arithmetic; a value other than the
 * neutral one is refused by name. */
static td_code refuse_unknown(const reader *r) {
    static const struct {
        const char *name;
        double neutral;
    } keys[] = {{"expert_count", 0},
                {"expert_used_count", 0},
                {"residual_scale", 1},
                {"logit_scale", 1},
                {"attention.clamp_kqv", 0},
                {"attention.max_alibi_bias", 0},
                {"attention.temperature_length", 0},
                {"attention.temperature_scale", 0},
                {"attention.key_length_mla", 0},
                {"attention.shared_kv_layers", 0},
                {"attention.output_scale", 1},
                {"rope.scaling.alpha", 0},
                {"rope.scaling.yarn_log_multiplier", 0},
                {"attention.key_length_swa", 0},
                {"attention.value_length_swa", 0},
                {"rope.dimension_count_swa", 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const gguf_value *v = find(r, keys[i].name);
        if (!v) continue;
        double x = 1;
        if (v->type == GGUF_F32 || v->type == GGUF_F64)
            x = v->f;
        else if (v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 ||
                 v->type == GGUF_I64)
            x = (double)v->i;
        else if (is_int_type(v->type))
            x = (double)v->u;
        if (x != keys[i].neutral)
            return td_fail(r->err, TD_E_UNSUPPORTED,
                           "%s: the file asks for '%s', which this build cannot do for %s",
                           gguf_path(r->f), v->key, r->arch->name);
    }
    bool causal;
    char key[KEY_BYTES];
    td_code rc = gguf_get_bool(r->f, key_of(r, "attention.causal", key), true, &causal, r->err);
    if (!rc && !causal)
        rc = td_fail(r->err, TD_E_UNSUPPORTED,
                     "%s: '%s' is false: not a model that generates from left to right",
                     gguf_path(r->f), key);
    return rc;
}

static td_code read_vocab(const reader *r, model_config *c) {
    const gguf_tensor *embd = gguf_find_tensor(r->f, "token_embd.weight");
    const gguf_value *tokens = gguf_find(r->f, "tokenizer.ggml.tokens");
    uint64_t n = 0;
    td_code rc = get_int(r, "vocab_size", 1, MAX_VOCAB, 0, &c->n_vocab);
    if (rc) return rc;
    /* The matrix says what can be computed; files pad it past the tokenizer's count. */
    if (embd)
        n = embd->dims[1];
    else if (c->n_vocab)
        n = (uint64_t)c->n_vocab;
    else if (tokens && tokens->type == GGUF_ARRAY)
        n = tokens->arr.n;
    if (n < 1 || n > MAX_VOCAB)
        return td_fail(r->err, TD_E_FORMAT,
                       "%s: a vocabulary of %" PRIu64 " tokens is not in 1 to %d", gguf_path(r->f),
                       n, (int)MAX_VOCAB);
    c->n_vocab = (int)n;
    c->tied = !gguf_find_tensor(r->f, "output.weight");
    return TD_OK;
}

static td_code read_heads(const reader *r, model_config *c) {
    const int n = c->n_layers;
    int *v = td_calloc((size_t)n * 3, sizeof *v); /* heads, KV heads, n_ff */
    if (!v) return td_fail(r->err, TD_E_MEMORY, "out of memory for %d layers", n);
    int head_k = 0, head_v = 0;
    td_code rc;
    if ((rc = get_per_layer(r, "attention.head_count", n, 1, MAX_HEADS, NULL, v)) ||
        (rc = get_per_layer(r, "attention.head_count_kv", n, 1, MAX_HEADS, v, v + n)) ||
        (rc = get_per_layer(r, "feed_forward_length", n, 1, MAX_WIDTH, NULL, v + 2 * n)) ||
        (rc = get_int(r, "attention.key_length", 1, MAX_HEAD, c->n_embd / v[0], &head_k)) ||
        (rc = get_int(r, "attention.value_length", 1, MAX_HEAD, c->n_embd / v[0], &head_v)))
        goto done;
    if (head_k < 1 || head_k > MAX_HEAD || head_v < 1 || head_v > MAX_HEAD) {
        rc = td_fail(r->err, TD_E_FORMAT,
                     "%s: %d heads over %d values give heads of %d and %d values, not 1 to %d",
                     gguf_path(r->f), v[0], c->n_embd, head_k, head_v, (int)MAX_HEAD);
        goto done;
    }
    for (int l = 0; l < n; l++) {
        const int heads = v[l], kv_heads = v[n + l];
        if (heads % kv_heads || (int64_t)heads * head_k > MAX_WIDTH ||
            (int64_t)heads * head_v > MAX_WIDTH) {
            rc = td_fail(r->err, TD_E_FORMAT,
                         "%s: layer %d has %d heads of %d values on %d KV heads: %s",
                         gguf_path(r->f), l, heads, head_k, kv_heads,
                         heads % kv_heads ? "they do not divide evenly" : "too large");
            goto done;
        }
        c->layers[l] = (struct model_layer_config){.n_heads = heads,
                                                   .n_kv_heads = kv_heads,
                                                   .head_k = head_k,
                                                   .head_v = head_v,
                                                   .n_ff = v[2 * n + l]};
    }
done:
    free(v);
    return rc;
}

static td_code read_window(const reader *r, model_config *c) {
    const char *const name = "attention.sliding_window_pattern";
    td_code rc = get_int(r, "attention.sliding_window", 0, MAX_CTX, r->arch->window, &c->window);
    if (rc || !c->window) return rc;
    const gguf_value *v = find(r, name);
    if (v && v->type == GGUF_ARRAY) { /* true: the layer has the window */
        int *is = td_calloc((size_t)c->n_layers, sizeof *is);
        if (!is) return td_fail(r->err, TD_E_MEMORY, "out of memory for %d layers", c->n_layers);
        rc = get_per_layer(r, name, c->n_layers, 0, 1, NULL, is);
        for (int l = 0; l < c->n_layers && !rc; l++)
            c->layers[l].windowed = is[l];
        free(is);
    } else {
        int period = 0;
        rc = get_int(r, name, 0, MAX_LAYERS, r->arch->window_period, &period);
        for (int l = 0; l < c->n_layers && !rc; l++)
            c->layers[l].windowed = !period || (l + 1) % period != 0;
    }
    bool any = false;
    for (int l = 0; l < c->n_layers; l++)
        any = any || c->layers[l].windowed;
    if (!any) c->window = 0;
    return rc;
}

static td_code read_rope(const reader *r, model_config *c) {
    const int head_k = c->layers[0].head_k;
    char key[KEY_BYTES];
    const char *type = NULL;
    float legacy = 1, extra = 1;
    td_code rc;
    if ((rc = get_int(r, "rope.dimension_count", 0, MAX_HEAD, head_k, &c->n_rot)) ||
        (rc = get_float(r, "rope.freq_base", 1, 1e15, 10000, &c->rope_base)) ||
        (rc = get_float(r, "rope.freq_base_swa", 1, 1e15,
                        r->arch->rope_base_local > 0 ? r->arch->rope_base_local : c->rope_base,
                        &c->rope_base_local)) ||
        (rc = gguf_get_string(r->f, key_of(r, "rope.scaling.type", key), &type, r->err)) ||
        (rc = get_float(r, "rope.scale_linear", 0, 1e6, 1, &legacy)) ||
        (rc = get_float(r, "rope.scaling.factor", 0, 1e6, legacy, &c->rope_factor)) ||
        (rc = get_int(r, "rope.scaling.original_context_length", 1, MAX_CTX, c->n_ctx_train,
                      &c->rope_orig_ctx)) ||
        (rc = get_float(r, "rope.scaling.attn_factor", 1e-3, 1e3, 1, &c->yarn_attn_factor)) ||
        (rc = get_float(r, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, 1, &extra)) ||
        (rc = get_float(r, "rope.scaling.yarn_ext_factor", -1, 1e3, 1, &c->yarn_ext_factor)) ||
        (rc = get_float(r, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32, &c->yarn_beta_fast)) ||
        (rc = get_float(r, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1, &c->yarn_beta_slow)))
        return rc;
    if (c->n_rot % 2 || c->n_rot > head_k)
        return td_fail(
            r->err, TD_E_FORMAT,
            "%s: '%s.rope.dimension_count' is %d, which is not an even number of a head's %d",
            gguf_path(r->f), r->arch->name, c->n_rot, head_k);
    c->yarn_attn_factor *= extra;
    if (c->yarn_ext_factor < 0) c->yarn_ext_factor = 1; /* -1 stands for "the usual" */
    if (c->rope_factor == 0) c->rope_factor = 1;        /* and 0 for "not scaled" */
    c->rope_scale_local = r->arch->rope_base_local == 0;
    if (type && !strcmp(type, "none")) {
        c->rope_scaling = MODEL_ROPE_NONE;
        c->rope_factor = 1;
    } else if (!type || !strcmp(type, "linear")) {
        c->rope_scaling = c->rope_factor == 1 ? MODEL_ROPE_NONE : MODEL_ROPE_LINEAR;
    } else if (!strcmp(type, "yarn")) {
        c->rope_scaling = MODEL_ROPE_YARN;
        if (c->rope_base <= 1)
            return td_fail(r->err, TD_E_FORMAT, "%s: YaRN needs a RoPE base above 1, not %g",
                           gguf_path(r->f), (double)c->rope_base);
    } else {
        return td_fail(r->err, TD_E_UNSUPPORTED,
                       "%s: RoPE scaling '%.40s' is not supported (none, linear, yarn are)",
                       gguf_path(r->f), type);
    }
    return TD_OK;
}

static td_code read_scales(const reader *r, model_config *c) {
    const double head_k = c->layers[0].head_k;
    double scale = 1 / sqrt(head_k);
    /* Gemma 3 27B, known by its 62 layers, scales by the width of the model and not of a head. */
    if (!strcmp(r->arch->name, "gemma3") && c->n_layers == 62)
        scale = 1 / sqrt((double)c->n_embd / c->layers[0].n_heads);
    td_code rc = get_float(r, "attention.scale", 0, 1e6, scale, &c->attn_scale);
    if (rc) return rc;
    if (c->attn_scale == 0) c->attn_scale = (float)scale; /* 0 stands for "the usual" */
    if ((rc = get_float(r, "attn_logit_softcapping", 0, 1e6, 0, &c->attn_softcap)) ||
        (rc = get_float(r, "final_logit_softcapping", 0, 1e6, 0, &c->final_softcap)) ||
        (rc = get_float(r, "embedding_scale", 0, 1e6, r->arch->scale_embd ? sqrt(c->n_embd) : 1,
                        &c->embd_scale)))
        return rc;
    if (c->embd_scale == 0) c->embd_scale = 1;
    return TD_OK;
}

td_code model_config_read(model_config *cfg, const gguf_file *f, td_error *err) {
    const char *name = NULL;
    td_code rc = gguf_get_string(f, "general.architecture", &name, err);
    if (rc) return rc;
    if (!name)
        return td_fail(err, TD_E_FORMAT,
                       "%s: the key 'general.architecture' is missing; is this a model file?",
                       gguf_path(f));
    const reader r = {.f = f, .arch = model_arch_find(name), .err = err};
    if (!r.arch)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: architecture '%.40s' is not supported (%s are)",
                       gguf_path(f), name, model_arch_names());
    model_config c = {.arch = r.arch->name, .act = r.arch->act, .rope_neox = r.arch->rope_neox};
    if ((rc = refuse_unknown(&r)) ||
        (rc = need_int(&r, "block_count", 1, MAX_LAYERS, &c.n_layers)) ||
        (rc = need_int(&r, "context_length", 1, MAX_CTX, &c.n_ctx_train)) ||
        (rc = need_int(&r, "embedding_length", 1, MAX_WIDTH, &c.n_embd)))
        return rc;
    if (!find(&r, "attention.layer_norm_rms_epsilon"))
        return missing(&r, "attention.layer_norm_rms_epsilon");
    if ((rc = get_float(&r, "attention.layer_norm_rms_epsilon", 0, 1, 0, &c.norm_eps)) ||
        (rc = read_vocab(&r, &c)))
        return rc;
    if (!(c.layers = td_calloc((size_t)c.n_layers, sizeof *c.layers)))
        return td_fail(err, TD_E_MEMORY, "out of memory for %d layers", c.n_layers);
    if ((rc = read_heads(&r, &c)) || (rc = read_window(&r, &c)) || (rc = read_rope(&r, &c)) ||
        (rc = read_scales(&r, &c))) {
        model_config_free(&c);
        return rc;
    }
    *cfg = c;
    return TD_OK;
}

void model_config_free(model_config *cfg) {
    free(cfg->layers);
    cfg->layers = NULL;
}
