/* What a GGUF file says of itself, for `inspect`. Works for every valid file: where the
 * architecture is unknown, the sizes that only it could tell are 0. */
#include "lib_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct td_file {
    gguf_file *f;
    td_file_info info;
};

/* A string for showing: absent, of another type or with a NUL inside is as good as none. */
static const char *string_or(const gguf_file *f, const char *key, const char *fallback) {
    const char *s = NULL;
    return gguf_get_string(f, key, &s, NULL) || !s ? fallback : s;
}

static int int_or(const gguf_file *f, const char *key, int fallback) {
    int64_t v;
    return gguf_get_int(f, key, 0, INT32_MAX, fallback, &v, NULL) ? fallback : (int)v;
}

static void read_sizes(td_file_info *info, const gguf_file *f) {
    model_config c;
    if (model_config_read(&c, f, NULL)) return;
    info->n_layers = c.n_layers, info->n_embd = c.n_embd, info->n_vocab = c.n_vocab;
    info->n_ctx_train = c.n_ctx_train, info->window = c.window;
    info->n_heads = c.layers[0].n_heads, info->n_kv_heads = c.layers[0].n_kv_heads;
    info->head_dim = c.layers[0].head_k, info->n_ff = c.layers[0].n_ff;
    for (int l = 0; l < c.n_layers; l++) { /* every factor is bounded by model_config_read */
        const struct model_layer_config *y = &c.layers[l];
        const uint64_t bytes = 2 * (uint64_t)y->n_kv_heads * (uint64_t)(y->head_k + y->head_v);
        if (y->windowed)
            info->kv_bytes_window_f16 += bytes * (uint64_t)c.window;
        else
            info->kv_bytes_per_token_f16 += bytes;
    }
    model_config_free(&c);
}

td_code td_file_open(td_file **out, const char *path, td_error *err) {
    if (!path || !*path) return td_fail(err, TD_E_ARG, "no model file was named");
    td_file *t = td_calloc(1, sizeof *t);
    if (!t) return td_fail(err, TD_E_MEMORY, "out of memory");
    td_code rc = gguf_open(&t->f, path, err);
    if (rc) {
        free(t);
        return rc;
    }
    const gguf_file *f = t->f;
    const gguf_value *tokens = gguf_find(f, "tokenizer.ggml.tokens");
    t->info = (td_file_info){
        .path = gguf_path(f),
        .arch = string_or(f, "general.architecture", ""),
        .name = string_or(f, "general.name", ""),
        .tokenizer = string_or(f, "tokenizer.ggml.model", ""),
        .tokenizer_pre = string_or(f, "tokenizer.ggml.pre", ""),
        .chat_template = string_or(f, "tokenizer.chat_template", NULL),
        .gguf_version = gguf_version(f),
        .size_bytes = gguf_size_bytes(f),
        .n_tensors = (int)gguf_n_tensors(f),
        .n_keys = (int)gguf_n_values(f),
        .bos = int_or(f, "tokenizer.ggml.bos_token_id", -1),
        .eos = int_or(f, "tokenizer.ggml.eos_token_id", -1),
    };
    if (tokens && tokens->type == GGUF_ARRAY && tokens->arr.n <= INT32_MAX)
        t->info.n_vocab = (int)tokens->arr.n;
    for (int i = 0; i < t->info.n_tensors; i++) {
        const gguf_tensor *y =
            gguf_tensor_at(f, (size_t)i); /* its bytes lie in the file: no overflow */
        t->info.n_params += y->dims[0] * y->dims[1] * y->dims[2] * y->dims[3];
    }
    read_sizes(&t->info, f);
    *out = t;
    return TD_OK;
}

void td_file_close(td_file **f) {
    if (!f || !*f) return;
    gguf_close((*f)->f);
    free(*f);
    *f = NULL;
}

const td_file_info *td_file_get_info(const td_file *f) {
    return &f->info;
}

int td_file_n_tensors(const td_file *f) {
    return f->info.n_tensors;
}

void td_file_get_tensor(const td_file *f, int i, td_tensor_info *out) {
    const gguf_tensor *t = gguf_tensor_at(f->f, (size_t)i);
    *out = (td_tensor_info){.name = t->name,
                            .type = td_type_get(t->type)->name,
                            .n_dims = t->n_dims,
                            .size_bytes = t->size_bytes};
    memcpy(out->dims, t->dims, sizeof out->dims);
}

int td_file_n_keys(const td_file *f) {
    return f->info.n_keys;
}

/* ---- values as text ---- */

/* Text into a buffer that cuts it. */
typedef struct writer {
    char *to;
    size_t size, len;
} writer;

static bool full(const writer *w) {
    return w->len + 1 >= w->size;
}

static void put(writer *w, const char *s) {
    for (; *s && !full(w); s++)
        w->to[w->len++] = *s;
    if (w->size) w->to[w->len] = 0;
}

/* On one line: control characters are written as escapes. */
static void put_string(writer *w, const gguf_string *s) {
    for (size_t i = 0; i < s->len && !full(w); i++) {
        const unsigned char c = (unsigned char)s->data[i];
        char one[8];
        if (c == '\n')
            snprintf(one, sizeof one, "\\n");
        else if (c == '\t')
            snprintf(one, sizeof one, "\\t");
        else if (c == '\r')
            snprintf(one, sizeof one, "\\r");
        else if (c < 32 || c == 127)
            snprintf(one, sizeof one, "\\x%02x", c);
        else
            snprintf(one, sizeof one, "%c", c);
        put(w, one);
    }
}

static bool is_signed(gguf_value_type t) {
    return t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
}

static void put_unsigned(writer *w, gguf_value_type type, uint64_t u) {
    char s[32];
    if (type == GGUF_BOOL)
        snprintf(s, sizeof s, "%s", u ? "true" : "false");
    else
        snprintf(s, sizeof s, "%" PRIu64, u);
    put(w, s);
}

static void put_number(writer *w, gguf_value_type type, uint64_t u, int64_t i, double f) {
    char s[32];
    if (type == GGUF_F32 || type == GGUF_F64) {
        snprintf(s, sizeof s, "%.9g", f);
        put(w, s);
    } else if (is_signed(type)) {
        snprintf(s, sizeof s, "%" PRId64, i);
        put(w, s);
    } else {
        put_unsigned(w, type, u);
    }
}

/* Item i of an array of numbers; little-endian as the format is. */
static void put_item(writer *w, const gguf_value *v, uint64_t i) {
    const size_t n = gguf_value_type_bytes(v->arr.type);
    uint64_t u = 0;
    memcpy(&u, (const uint8_t *)v->arr.data + i * n, n);
    double f = 0;
    if (v->arr.type == GGUF_F64) {
        memcpy(&f, &u, sizeof f);
    } else if (v->arr.type == GGUF_F32) {
        float f32;
        memcpy(&f32, &u, sizeof f32);
        f = f32;
    }
    const int unused = 64 - 8 * (int)n; /* sign extension of the narrow ones */
    put_number(w, v->arr.type, u, (int64_t)(u << unused) >> unused, f);
}

enum { ITEMS_SHOWN = 8 };

static void put_array(writer *w, const gguf_value *v) {
    char n[32];
    snprintf(n, sizeof n, "[%" PRIu64 "]", v->arr.n);
    put(w, n);
    for (uint64_t i = 0; i < v->arr.n && i < ITEMS_SHOWN; i++) {
        put(w, i ? ", " : " ");
        if (v->arr.type == GGUF_STRING)
            put_string(w, &v->arr.strs[i]);
        else
            put_item(w, v, i);
    }
    if (v->arr.n > ITEMS_SHOWN) put(w, ", ...");
}

const char *td_file_get_key(const td_file *f, int i, char *value, size_t value_size) {
    const gguf_value *v = gguf_value_at(f->f, (size_t)i);
    writer w = {.to = value, .size = value_size};
    put(&w, "");
    if (v->type == GGUF_ARRAY)
        put_array(&w, v);
    else if (v->type == GGUF_STRING)
        put_string(&w, &v->str);
    else
        put_number(&w, v->type, v->u, v->i, v->f);
    return v->key;
}
