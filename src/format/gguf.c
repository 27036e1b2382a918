/* Reads one GGUF file: maps it, checks it from front to back, and keeps a table of its values and
 * tensors. Runs once a model.
 *
 * The file, little-endian throughout, with nothing aligned before the tensor data:
 *
 *   "GGUF"  u32 version (2, 3: the same layout)  u64 n_tensors  u64 n_values
 *   n_values times    string key, u32 value type, value
 *   n_tensors times   string name, u32 n_dims, u64 dims[n_dims] (fastest first), u32 type, u64 offset
 *   zeros up to a multiple of general.alignment (32 when the key is absent)
 *   tensor data; an offset counts from here and is a multiple of the alignment
 *
 *   string: u64 length, bytes.   array: u32 item type, u64 n, items.   bool: one byte, 0 or 1.
 *
 * The file is hostile until read: a length is compared with the bytes that are left before anything
 * is done with it, sums and products are checked, and tables grow only as entries are really there,
 * so that a count of 2^60 costs nothing. */
#include "gguf_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 24,
    MAX_KEY_BYTES = 65535, /* the format's own limit */
    MIN_VALUE_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
    DEFAULT_ALIGNMENT = 32
};

/* ---- names in messages ---- */

const char *gguf_quote(char buf[GGUF_QUOTED], const char *name, size_t len) {
    size_t n = 0, i = 0;
    for (; i < len && n < 64; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (c >= 0x20 && c < 0x7f)
            buf[n++] = (char)c;
        else
            n += (size_t)snprintf(buf + n, GGUF_QUOTED - n, "\\x%02x", c);
    }
    snprintf(buf + n, GGUF_QUOTED - n, "%s", i < len ? "..." : "");
    return buf;
}

static bool set_path(gguf_file *f, const char *path) {
    const size_t len = strlen(path), room = sizeof f->label - 1;
    if (len <= room)
        memcpy(f->label, path, len + 1);
    else /* the tail says more than the head */
        snprintf(f->label, sizeof f->label, "...%s", path + len - (room - 3));
    for (char *c = f->label; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return (f->path = strdup(path)) != NULL;
}

/* ---- memory of one file ---- */

static void *keep(gguf_file *f, size_t size) {
    enum { CHUNK = 4096 - sizeof(gguf_chunk) };
    size_t whole;
    if (!td_add(&whole, size, 15)) return NULL;
    whole &= ~(size_t)15;
    gguf_chunk *c = f->chunks;
    if (!c || c->size - c->used < whole) {
        const size_t room = whole > CHUNK ? whole : CHUNK;
        size_t bytes;
        if (!td_add(&bytes, room, sizeof *c) || !(c = td_calloc(1, bytes))) return NULL;
        c->size = room;
        c->next = f->chunks;
        f->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += whole;
    return p;
}

static char *keep_string(gguf_file *f, gguf_string s) {
    size_t bytes;
    char *copy = td_add(&bytes, s.len, 1) ? keep(f, bytes) : NULL;
    if (!copy) return NULL;
    if (s.len) memcpy(copy, s.data, s.len);
    copy[s.len] = 0;
    return copy;
}

/* ---- the index ---- */

static const char *name_at(const void *items, size_t i, size_t stride) {
    const char *name;
    memcpy(&name, (const char *)items + i * stride, sizeof name);
    return name;
}

/* FNV-1a, then one round of mixing: the table uses the low bits. */
static size_t hash_name(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 29);
}

bool gguf_index_build(gguf_index *ix, const void *items, size_t n, size_t stride, size_t *twice) {
    *twice = SIZE_MAX;
    size_t n_slots = 8;
    while (n_slots < 2 * n)
        n_slots *= 2; /* n <= 2^30 */
    free(ix->slots);
    if (!(ix->slots = td_calloc(n_slots, sizeof *ix->slots))) return false;
    ix->mask = n_slots - 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = name_at(items, i, stride);
        size_t s = hash_name(name) & ix->mask;
        for (; ix->slots[s]; s = (s + 1) & ix->mask)
            if (!strcmp(name_at(items, ix->slots[s] - 1, stride), name)) {
                *twice = i;
                return true;
            }
        ix->slots[s] = (uint32_t)(i + 1);
    }
    return true;
}

size_t gguf_index_find(const gguf_index *ix, const void *items, size_t stride, const char *name) {
    if (!ix->slots) return SIZE_MAX;
    for (size_t s = hash_name(name) & ix->mask; ix->slots[s]; s = (s + 1) & ix->mask)
        if (!strcmp(name_at(items, ix->slots[s] - 1, stride), name)) return ix->slots[s] - 1;
    return SIZE_MAX;
}

/* ---- reading, with the place at hand for messages ---- */

typedef struct cursor {
    gguf_file *f;
    size_t pos;       /* <= f->size_bytes */
    const char *kind; /* "key", "tensor" */
    size_t i, n;      /* which of how many */
    gguf_string name; /* of the entry, once read; len 0 before */
    td_error *err;
} cursor;

/* "tensor 3 of 12 ('blk.0.attn_q.weight')" */
static const char *place(const cursor *c, char buf[160]) {
    char quoted[GGUF_QUOTED];
    const int n = snprintf(buf, 160, "%s %zu of %zu", c->kind, c->i + 1, c->n);
    if (c->name.len)
        snprintf(buf + n, 160 - (size_t)n, " ('%s')",
                 gguf_quote(quoted, c->name.data, c->name.len));
    return buf;
}

static size_t left(const cursor *c) {
    return c->f->size_bytes - c->pos;
}

static td_code no_memory(const gguf_file *f, td_error *err) {
    return td_fail(err, TD_E_MEMORY, "%s: out of memory for the metadata", f->label);
}

/* The next n bytes, or NULL and the error. `what` names the field. */
static const uint8_t *take(cursor *c, size_t n, const char *what) {
    char at[160];
    if (n > left(c)) {
        td_fail(c->err, TD_E_FORMAT,
                "%s: truncated: %s, %s: needs %zu bytes at offset %zu, but the file ends after %zu",
                c->f->label, place(c, at), what, n, c->pos, left(c));
        return NULL;
    }
    const uint8_t *p = c->f->base + c->pos;
    c->pos += n;
    return p;
}

static uint64_t load(const uint8_t *p, int n_bytes) {
    uint64_t v = 0;
    for (int i = n_bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static bool take_u32(cursor *c, uint32_t *out, const char *what) {
    const uint8_t *p = take(c, 4, what);
    if (p) *out = (uint32_t)load(p, 4);
    return p;
}

static bool take_u64(cursor *c, uint64_t *out, const char *what) {
    const uint8_t *p = take(c, 8, what);
    if (p) *out = load(p, 8);
    return p;
}

static bool take_string(cursor *c, gguf_string *out, const char *what) {
    char at[160];
    uint64_t len;
    if (!take_u64(c, &len, what)) return false;
    if (len > left(c)) {
        td_fail(c->err, TD_E_FORMAT,
                "%s: %s, %s: length %" PRIu64
                " at offset %zu runs past the end of the file (%zu bytes left)",
                c->f->label, place(c, at), what, len, c->pos - 8, left(c));
        return false;
    }
    out->data = (const char *)c->f->base + c->pos;
    out->len = (size_t)len;
    c->pos += (size_t)len;
    return true;
}

/* A key or a tensor's name: 1 to 65535 bytes without NUL, copied with one at its end. */
static td_code take_name(cursor *c, const char **out) {
    char at[160];
    gguf_string s;
    c->name = (gguf_string){0};
    if (!take_string(c, &s, "its name")) return TD_E_FORMAT;
    if (!s.len)
        return td_fail(c->err, TD_E_FORMAT, "%s: %s, at offset %zu: its name is empty", c->f->label,
                       place(c, at), c->pos);
    c->name = s;
    if (s.len > MAX_KEY_BYTES)
        return td_fail(c->err, TD_E_FORMAT, "%s: %s: its name has %zu bytes, at most %d are valid",
                       c->f->label, place(c, at), s.len, MAX_KEY_BYTES);
    if (memchr(s.data, 0, s.len))
        return td_fail(c->err, TD_E_FORMAT, "%s: %s: its name holds a NUL byte", c->f->label,
                       place(c, at));
    return (*out = keep_string(c->f, s)) ? TD_OK : no_memory(c->f, c->err);
}

/* ---- values ---- */

static td_code bad_bool(const cursor *c, uint8_t v) {
    char at[160];
    return td_fail(c->err, TD_E_FORMAT, "%s: %s: a BOOL is %u, only 0 and 1 are valid", c->f->label,
                   place(c, at), v);
}

static td_code read_array(cursor *c, gguf_value *v) {
    char at[160];
    uint32_t type;
    uint64_t n;
    if (!take_u32(c, &type, "its item type") || !take_u64(c, &n, "its item count"))
        return TD_E_FORMAT;
    if (!gguf_value_type_name(type))
        return td_fail(c->err, TD_E_FORMAT,
                       "%s: %s: array items of unknown type %" PRIu32 " at offset %zu", c->f->label,
                       place(c, at), type, c->pos - 12);
    if (type == GGUF_ARRAY)
        return td_fail(c->err, TD_E_UNSUPPORTED, "%s: %s: an array of arrays is not supported",
                       c->f->label, place(c, at));
    const size_t item = type == GGUF_STRING ? 8 : gguf_value_type_bytes(type); /* at least */
    if (n > left(c) / item)
        return td_fail(
            c->err, TD_E_FORMAT,
            "%s: %s: %" PRIu64 " items of type %s at offset %zu run past the end of the file "
            "(%zu bytes left)",
            c->f->label, place(c, at), n, gguf_value_type_name(type), c->pos - 8, left(c));
    v->arr.type = (gguf_value_type)type;
    v->arr.n = n;
    v->arr.strs = NULL;
    v->arr.data = NULL;
    if (type != GGUF_STRING) {
        const uint8_t *p = c->f->base + c->pos;
        c->pos += (size_t)n * item;
        for (size_t i = 0; type == GGUF_BOOL && i < n; i++)
            if (p[i] > 1) return bad_bool(c, p[i]);
        v->arr.data = p;
        return TD_OK;
    }
    /* Twice over the strings: memory only once all of them are known to be there. */
    const size_t start = c->pos;
    gguf_string s;
    for (size_t i = 0; i < n; i++)
        if (!take_string(c, &s, "a string of the array")) return TD_E_FORMAT;
    size_t bytes;
    gguf_string *strs = td_mul(&bytes, (size_t)n, sizeof *strs) ? keep(c->f, bytes) : NULL;
    if (!strs) return no_memory(c->f, c->err);
    c->pos = start;
    for (size_t i = 0; i < n; i++)
        if (!take_string(c, &strs[i], "a string of the array")) return TD_E_FORMAT;
    v->arr.strs = strs;
    return TD_OK;
}

static td_code read_value(cursor *c, gguf_value *v) {
    char at[160];
    uint32_t type;
    if (!take_u32(c, &type, "its type")) return TD_E_FORMAT;
    if (!gguf_value_type_name(type))
        return td_fail(c->err, TD_E_FORMAT, "%s: %s: unknown value type %" PRIu32 " at offset %zu",
                       c->f->label, place(c, at), type, c->pos - 4);
    v->type = (gguf_value_type)type;
    if (type == GGUF_ARRAY) return read_array(c, v);
    if (type == GGUF_STRING) {
        if (!take_string(c, &v->str, "its value")) return TD_E_FORMAT;
        /* A copy, so that a NUL stands behind it (gguf_get_string). */
        return (v->str.data = keep_string(c->f, v->str)) ? TD_OK : no_memory(c->f, c->err);
    }
    const int width = (int)gguf_value_type_bytes(type);
    const uint8_t *p = take(c, (size_t)width, "its value");
    if (!p) return TD_E_FORMAT;
    const uint64_t bits = load(p, width);
    switch (v->type) {
    case GGUF_I8:
        v->i = (int8_t)bits;
        break;
    case GGUF_I16:
        v->i = (int16_t)bits;
        break;
    case GGUF_I32:
        v->i = (int32_t)bits;
        break;
    case GGUF_I64:
        v->i = (int64_t)bits;
        break;
    case GGUF_F32: {
        const uint32_t half = (uint32_t)bits;
        float x;
        memcpy(&x, &half, sizeof x);
        v->f = x;
        break;
    }
    case GGUF_F64:
        memcpy(&v->f, &bits, sizeof v->f);
        break;
    case GGUF_BOOL:
        if (bits > 1) return bad_bool(c, (uint8_t)bits);
        v->u = bits;
        break;
    default:
        v->u = bits; /* the unsigned ones */
    }
    return TD_OK;
}

static td_code read_values(cursor *c, size_t n) {
    gguf_file *f = c->f;
    td_code rc;
    c->kind = "key";
    c->n = n;
    for (c->i = 0; c->i < n; c->i++) {
        gguf_value v = {0};
        if ((rc = take_name(c, &v.key)) || (rc = read_value(c, &v))) return rc;
        if (!td_grow(&f->values, &f->cap_values, f->n_values + 1, sizeof v))
            return no_memory(f, c->err);
        f->values[f->n_values++] = v;
    }
    size_t twice;
    if (!gguf_index_build(&f->value_index, f->values, n, sizeof *f->values, &twice))
        return no_memory(f, c->err);
    if (twice != SIZE_MAX) {
        char quoted[GGUF_QUOTED];
        const char *key = f->values[twice].key;
        return td_fail(c->err, TD_E_FORMAT, "%s: key %zu of %zu: '%s' is there already", f->label,
                       twice + 1, n, gguf_quote(quoted, key, strlen(key)));
    }
    return TD_OK;
}

/* ---- tensors ---- */

static td_code read_tensor(cursor *c, gguf_tensor *t, uint64_t *offset) {
    const gguf_file *f = c->f;
    char at[160];
    td_code rc;
    uint32_t n_dims;
    if ((rc = take_name(c, &t->name))) return rc;
    if (!take_u32(c, &n_dims, "its number of dimensions")) return TD_E_FORMAT;
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return td_fail(c->err, TD_E_FORMAT, "%s: %s: %" PRIu32 " dimensions, 1 to %d are valid",
                       f->label, place(c, at), n_dims, GGUF_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d < n_dims && !take_u64(c, &t->dims[d], "its dimensions")) return TD_E_FORMAT;
        if (!t->dims[d])
            return td_fail(c->err, TD_E_FORMAT, "%s: %s: dimension %" PRIu32 " is 0", f->label,
                           place(c, at), d);
    }
    if (!take_u32(c, &t->type, "its type") || !take_u64(c, offset, "its offset"))
        return TD_E_FORMAT;
    const td_type_info *info = td_type_get(t->type);
    if (!info->name) {
        const char *known = td_type_known_name(t->type);
        return td_fail(c->err, TD_E_UNSUPPORTED, "%s: %s: type %" PRIu32 "%s%s is not supported",
                       f->label, place(c, at), t->type, known ? ", " : "", known ? known : "");
    }
    if (t->dims[0] % (uint64_t)info->block)
        return td_fail(c->err, TD_E_FORMAT,
                       "%s: %s: rows of %" PRIu64 " values are no multiple of %s's block of %d",
                       f->label, place(c, at), t->dims[0], info->name, info->block);
    bool fits = td_type_row_bytes(&t->size_bytes, t->type, t->dims[0]);
    for (int d = 1; fits && d < t->n_dims; d++)
        fits = t->dims[d] <= SIZE_MAX && td_mul(&t->size_bytes, t->size_bytes, (size_t)t->dims[d]);
    if (!fits)
        return td_fail(c->err, TD_E_FORMAT,
                       "%s: %s: its dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                       " are larger than any memory",
                       f->label, place(c, at), t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    return TD_OK;
}

static td_code read_alignment(const gguf_file *f, size_t *out, td_error *err) {
    int64_t v;
    td_code rc = gguf_get_int(f, "general.alignment", 8, 1 << 30, DEFAULT_ALIGNMENT, &v, err);
    if (rc) return rc;
    if (v % 8)
        return td_fail(err, TD_E_FORMAT,
                       "%s: general.alignment is %" PRId64 ", only multiples of 8 are valid",
                       f->label, v);
    *out = (size_t)v;
    return TD_OK;
}

/* Points each tensor at its bytes, once the end of the table is known. */
static td_code place_tensors(cursor *c, const uint64_t *offsets) {
    gguf_file *f = c->f;
    char at[160];
    size_t alignment = DEFAULT_ALIGNMENT, start;
    td_code rc = read_alignment(f, &alignment, c->err);
    if (rc) return rc;
    if (!td_add(&start, c->pos, alignment - 1)) return no_memory(f, c->err); /* only on 32 bits */
    start -= start % alignment;
    size_t n_cut = 0, first_cut = 0, first_missing = 0, need = 0;
    for (c->i = 0; c->i < f->n_tensors; c->i++) {
        gguf_tensor *t = &f->tensors[c->i];
        c->name = (gguf_string){t->name, strlen(t->name)};
        size_t begin, end;
        if (offsets[c->i] % alignment)
            return td_fail(c->err, TD_E_FORMAT,
                           "%s: %s: its offset %" PRIu64 " is no multiple of the alignment %zu",
                           f->label, place(c, at), offsets[c->i], alignment);
        if (offsets[c->i] > SIZE_MAX || !td_add(&begin, start, (size_t)offsets[c->i]) ||
            !td_add(&end, begin, t->size_bytes))
            return td_fail(c->err, TD_E_FORMAT,
                           "%s: %s: its offset %" PRIu64 " lies past any file's end", f->label,
                           place(c, at), offsets[c->i]);
        if (end > f->size_bytes) {
            if (!n_cut++) {
                first_cut = c->i;
                first_missing = begin < f->size_bytes ? end - f->size_bytes : t->size_bytes;
            }
            if (end > need) need = end;
            continue;
        }
        t->data = f->base + begin;
    }
    if (!n_cut) return TD_OK;
    c->i = first_cut;
    c->name = (gguf_string){f->tensors[first_cut].name, strlen(f->tensors[first_cut].name)};
    return td_fail(
        c->err, TD_E_FORMAT,
        "%s: truncated: %s lacks %zu of its %zu bytes; %zu of %zu tensors reach past the end, "
        "and the file should have %zu bytes but has %zu (%zu missing)",
        f->label, place(c, at), first_missing, f->tensors[first_cut].size_bytes, n_cut,
        f->n_tensors, need, f->size_bytes, need - f->size_bytes);
}

static td_code read_tensors(cursor *c, size_t n) {
    gguf_file *f = c->f;
    uint64_t *offsets = NULL;
    size_t cap_offsets = 0, twice;
    td_code rc = TD_OK;
    c->kind = "tensor";
    c->n = n;
    for (c->i = 0; c->i < n; c->i++) {
        gguf_tensor t = {0};
        uint64_t offset = 0;
        if ((rc = read_tensor(c, &t, &offset))) goto end;
        if (!td_grow(&f->tensors, &f->cap_tensors, f->n_tensors + 1, sizeof t) ||
            !td_grow(&offsets, &cap_offsets, f->n_tensors + 1, sizeof *offsets)) {
            rc = no_memory(f, c->err);
            goto end;
        }
        offsets[f->n_tensors] = offset;
        f->tensors[f->n_tensors++] = t;
    }
    if (!gguf_index_build(&f->tensor_index, f->tensors, n, sizeof *f->tensors, &twice)) {
        rc = no_memory(f, c->err);
    } else if (twice != SIZE_MAX) {
        char quoted[GGUF_QUOTED];
        const char *name = f->tensors[twice].name;
        rc = td_fail(c->err, TD_E_FORMAT, "%s: tensor %zu of %zu: '%s' is there already", f->label,
                     twice + 1, n, gguf_quote(quoted, name, strlen(name)));
    } else {
        rc = place_tensors(c, offsets);
    }
end:
    free(offsets);
    return rc;
}

/* ---- the whole ---- */

/* What people hand over instead of a GGUF file, from the first bytes. */
static const char *foreign_hint(const uint8_t *p, size_t n) {
    static const struct {
        const char *start, *hint;
    } kinds[] = {
        {"version https://git-lfs", "it is a Git LFS pointer; fetch the file itself"},
        {"lmgg", "it is an old ggml file; convert it to GGUF"},
        {"fmgg", "it is an old ggml file; convert it to GGUF"},
        {"tjgg", "it is an old ggml file; convert it to GGUF"},
        {"PK\3\4", "it is a zip archive, perhaps a PyTorch checkpoint"},
        {"<!", "it is a web page; was the download refused?"},
        {"<html", "it is a web page; was the download refused?"},
        {"FUGG", "its magic is byte-swapped"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const size_t len = strlen(kinds[i].start);
        if (n >= len && !memcmp(p, kinds[i].start, len)) return kinds[i].hint;
    }
    /* safetensors: u64 length of a JSON header */
    if (n > 9 && p[8] == '{' && !p[7] && !p[6])
        return "it looks like a safetensors file; convert it to GGUF";
    return "wrong first four bytes";
}

static td_code read_file(gguf_file *f, td_error *err) {
    if (!f->size_bytes) return td_fail(err, TD_E_FORMAT, "%s: the file is empty", f->label);
    if (f->size_bytes < 4 || memcmp(f->base, "GGUF", 4))
        return td_fail(err, TD_E_FORMAT, "%s: not a GGUF file (%s)", f->label,
                       foreign_hint(f->base, f->size_bytes));
    if (f->size_bytes < HEADER_BYTES)
        return td_fail(err, TD_E_FORMAT, "%s: truncated: %zu bytes, the header alone has %d",
                       f->label, f->size_bytes, HEADER_BYTES);
    f->version = (uint32_t)load(f->base + 4, 4);
    if (!(f->version & 0xffff)) /* 2 and 3 with their bytes swapped */
        return td_fail(err, TD_E_UNSUPPORTED,
                       "%s: a big-endian GGUF file (version field 0x%08" PRIx32
                       "); only little-endian ones "
                       "are supported",
                       f->label, f->version);
    if (f->version == 1)
        return td_fail(err, TD_E_UNSUPPORTED,
                       "%s: GGUF version 1 is not supported; convert the model anew", f->label);
    if (f->version != 2 && f->version != 3)
        return td_fail(err, TD_E_UNSUPPORTED,
                       "%s: GGUF version %" PRIu32 " is unknown; 2 and 3 are supported", f->label,
                       f->version);
    const uint64_t n_tensors = load(f->base + 8, 8), n_values = load(f->base + 16, 8);
    const size_t rest = f->size_bytes - HEADER_BYTES;
    if (n_values > rest / MIN_VALUE_BYTES || n_values > GGUF_MAX_ITEMS)
        return td_fail(err, TD_E_FORMAT,
                       "%s: the header counts %" PRIu64 " keys, more than %zu bytes can hold",
                       f->label, n_values, rest);
    if (n_tensors > rest / MIN_TENSOR_BYTES || n_tensors > GGUF_MAX_ITEMS)
        return td_fail(err, TD_E_FORMAT,
                       "%s: the header counts %" PRIu64 " tensors, more than %zu bytes can hold",
                       f->label, n_tensors, rest);
    cursor c = {.f = f, .pos = HEADER_BYTES, .err = err};
    td_code rc = read_values(&c, (size_t)n_values);
    return rc ? rc : read_tensors(&c, (size_t)n_tensors);
}

td_code gguf_open_memory(gguf_file **out, const void *data, size_t size, const char *name,
                         td_error *err) {
    td_code rc;
    int64_t count;
    gguf_file *f = td_calloc(1, sizeof *f);
    if (!f || !set_path(f, name)) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for a model file");
        goto fail;
    }
    f->base = data;
    f->size_bytes = size;
    if ((rc = read_file(f, err)) ||
        (rc = gguf_get_int(f, "split.count", 0, UINT16_MAX, 0, &count, err)))
        goto fail;
    if (count > 1) {
        rc = td_fail(err, TD_E_UNSUPPORTED,
                     "%s: one of %d parts; a split file is opened by its path", f->label,
                     (int)count);
        goto fail;
    }
    *out = f;
    return TD_OK;
fail:
    gguf_close(f);
    return rc;
}

td_code gguf_open_part(gguf_file **out, const char *path, td_error *err) {
    td_code rc;
    int fd = -1;
    struct stat st;
    gguf_file *f = td_calloc(1, sizeof *f);
    if (!f || !set_path(f, path)) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for a model file");
        goto fail;
    }
    /* O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever. */
    if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0 || fstat(fd, &st)) {
        rc = td_fail(err, TD_E_IO, "%s: cannot open the model file: %s", f->label, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = td_fail(err, TD_E_IO, "%s: %s, not a model file", f->label,
                     S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
        goto fail;
    }
    if ((uint64_t)st.st_size > SIZE_MAX / 2) {
        rc = td_fail(err, TD_E_TOO_BIG, "%s: too large for this machine's address space", f->label);
        goto fail;
    }
    if (st.st_size) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            rc = td_fail(err, TD_E_IO, "%s: cannot map the model file: %s", f->label,
                         strerror(errno));
            goto fail;
        }
        f->base = p;
        f->mapped = true;
        f->size_bytes = (size_t)st.st_size;
    }
    close(fd);
    fd = -1;
    if ((rc = read_file(f, err))) goto fail;
    *out = f;
    return TD_OK;
fail:
    if (fd >= 0) close(fd);
    gguf_close(f);
    return rc;
}

void gguf_close(gguf_file *f) {
    if (!f) return;
    for (size_t i = 0; i < f->n_parts; i++)
        gguf_close(f->parts[i]);
    free(f->parts);
    for (gguf_chunk *c = f->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(f->value_index.slots);
    free(f->tensor_index.slots);
    free(f->values);
    free(f->tensors);
    if (f->mapped) munmap((void *)(uintptr_t)f->base, f->size_bytes);
    free(f->path);
    free(f);
}

void gguf_release(const gguf_file *f, const void *ptr, size_t n) {
    for (size_t i = 0; i < f->n_parts; i++)
        gguf_release(f->parts[i], ptr, n);
    const uintptr_t base = (uintptr_t)f->base, at = (uintptr_t)ptr;
    if (!f->mapped || at < base || at - base > f->size_bytes || n > f->size_bytes - (at - base))
        return;
    /* Whole pages only: a neighbour may still be reading the first and the last one. */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (at + page - 1) & ~(page - 1), end = (at + n) & ~(page - 1);
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED); /* a hint */
}
