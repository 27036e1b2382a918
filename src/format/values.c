/* Reading what gguf.c has parsed: by index, by name, and as the type the caller wants. */
#include "gguf_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} value_types[] = {
    [GGUF_U8] = {"U8", 1},       [GGUF_I8] = {"I8", 1},     [GGUF_U16] = {"U16", 2},
    [GGUF_I16] = {"I16", 2},     [GGUF_U32] = {"U32", 4},   [GGUF_I32] = {"I32", 4},
    [GGUF_F32] = {"F32", 4},     [GGUF_BOOL] = {"BOOL", 1}, [GGUF_STRING] = {"STRING", 0},
    [GGUF_ARRAY] = {"ARRAY", 0}, [GGUF_U64] = {"U64", 8},   [GGUF_I64] = {"I64", 8},
    [GGUF_F64] = {"F64", 8},
};
enum { N_VALUE_TYPES = sizeof value_types / sizeof value_types[0] };

const char *gguf_value_type_name(uint32_t type) {
    return type < N_VALUE_TYPES ? value_types[type].name : NULL;
}

size_t gguf_value_type_bytes(uint32_t type) {
    return type < N_VALUE_TYPES ? value_types[type].bytes : 0;
}

const char *gguf_path(const gguf_file *f) {
    return f->path;
}

uint32_t gguf_version(const gguf_file *f) {
    return f->version;
}

size_t gguf_size_bytes(const gguf_file *f) {
    size_t n = f->size_bytes;
    for (size_t i = 0; i < f->n_parts; i++)
        n += f->parts[i]->size_bytes; /* all are mapped: no overflow */
    return n;
}

size_t gguf_n_values(const gguf_file *f) {
    return f->n_values;
}

const gguf_value *gguf_value_at(const gguf_file *f, size_t i) {
    return i < f->n_values ? &f->values[i] : NULL;
}

const gguf_value *gguf_find(const gguf_file *f, const char *key) {
    return gguf_value_at(f, gguf_index_find(&f->value_index, f->values, sizeof *f->values, key));
}

size_t gguf_n_tensors(const gguf_file *f) {
    return f->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf_file *f, size_t i) {
    return i < f->n_tensors ? &f->tensors[i] : NULL;
}

const gguf_tensor *gguf_find_tensor(const gguf_file *f, const char *name) {
    return gguf_tensor_at(f,
                          gguf_index_find(&f->tensor_index, f->tensors, sizeof *f->tensors, name));
}

static td_code wrong_type(const gguf_file *f, const gguf_value *v, const char *wanted,
                          td_error *err) {
    char quoted[GGUF_QUOTED];
    return td_fail(err, TD_E_FORMAT, "%s: key '%s' is of type %s, but %s is expected", f->label,
                   gguf_quote(quoted, v->key, strlen(v->key)), gguf_value_type_name(v->type),
                   wanted);
}

static bool is_signed(gguf_value_type type) {
    return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
}
static bool is_unsigned(gguf_value_type type) {
    return type == GGUF_U8 || type == GGUF_U16 || type == GGUF_U32 || type == GGUF_U64;
}

td_code gguf_get_int(const gguf_file *f, const char *key, int64_t lo, int64_t hi, int64_t fallback,
                     int64_t *out, td_error *err) {
    const gguf_value *v = gguf_find(f, key);
    if (!v) {
        *out = fallback;
        return TD_OK;
    }
    char shown[24], quoted[GGUF_QUOTED];
    int64_t i = 0;
    bool fits = true;
    if (is_signed(v->type)) {
        i = v->i;
        snprintf(shown, sizeof shown, "%" PRId64, v->i);
    } else if (is_unsigned(v->type)) {
        fits = v->u <= INT64_MAX;
        i = fits ? (int64_t)v->u : 0;
        snprintf(shown, sizeof shown, "%" PRIu64, v->u);
    } else {
        return wrong_type(f, v, "an integer", err);
    }
    if (!fits || i < lo || i > hi)
        return td_fail(err, TD_E_FORMAT,
                       "%s: key '%s' is %s, but %" PRId64 " to %" PRId64 " is valid", f->label,
                       gguf_quote(quoted, key, strlen(key)), shown, lo, hi);
    *out = i;
    return TD_OK;
}

td_code gguf_get_float(const gguf_file *f, const char *key, double fallback, double *out,
                       td_error *err) {
    const gguf_value *v = gguf_find(f, key);
    double x = fallback;
    if (v) {
        if (is_signed(v->type))
            x = (double)v->i;
        else if (is_unsigned(v->type))
            x = (double)v->u;
        else if (v->type == GGUF_F32 || v->type == GGUF_F64)
            x = v->f;
        else
            return wrong_type(f, v, "a number", err);
        if (!isfinite(x)) {
            char quoted[GGUF_QUOTED];
            return td_fail(err, TD_E_FORMAT, "%s: key '%s' is %g, but a finite number is expected",
                           f->label, gguf_quote(quoted, key, strlen(key)), x);
        }
    }
    *out = x;
    return TD_OK;
}

td_code gguf_get_bool(const gguf_file *f, const char *key, bool fallback, bool *out,
                      td_error *err) {
    const gguf_value *v = gguf_find(f, key);
    if (v && v->type != GGUF_BOOL) return wrong_type(f, v, "BOOL", err);
    *out = v ? v->u != 0 : fallback;
    return TD_OK;
}

td_code gguf_get_string(const gguf_file *f, const char *key, const char **out, td_error *err) {
    const gguf_value *v = gguf_find(f, key);
    if (v && v->type != GGUF_STRING) return wrong_type(f, v, "STRING", err);
    if (v && memchr(v->str.data, 0, v->str.len)) {
        char quoted[GGUF_QUOTED];
        return td_fail(err, TD_E_FORMAT, "%s: the text of key '%s' holds a NUL byte", f->label,
                       gguf_quote(quoted, key, strlen(key)));
    }
    *out = v ? v->str.data : NULL;
    return TD_OK;
}
