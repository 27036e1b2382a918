/* Fuzzes gguf_open_memory: what opens is walked whole (values, typed reads, tensors, some decoded
 * rows), and checked against what format.h promises; what does not open must leave one clean line.
 *
 * The mutator knows where a GGUF file keeps its counts, lengths, types and offsets: it walks the
 * file as the format describes (not with the parser under test) and aims most changes at those
 * fields. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "gguf_make.h"

/* ---- the target ---- */

/* A broken promise. Not assert: it must stay in every build. */
#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "fuzz_gguf: line %d: %s does not hold\n", __LINE__, #x);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

uint64_t fuzz_n_good;

static volatile unsigned sink; /* makes the reads happen */

static void touch(const void *data, size_t n) {
    const uint8_t *p = data;
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    sink = sum;
}

static void check_line(td_code rc, const td_error *err) {
    CHECK(rc == err->code);
    CHECK(rc == TD_E_FORMAT || rc == TD_E_UNSUPPORTED);
    CHECK(err->msg[0] && memchr(err->msg, 0, sizeof err->msg));
    for (const char *c = err->msg; *c; c++)
        CHECK((unsigned char)*c >= 0x20 && (unsigned char)*c < 0x7f);
}

static void walk_items(const gguf_value *v, size_t file_bytes) {
    const size_t item = gguf_value_type_bytes(v->arr.type);
    CHECK(item && v->arr.n <= file_bytes / item);
    touch(v->arr.data, v->arr.n * item);
    for (uint64_t k = 0; v->arr.type == GGUF_BOOL && k < v->arr.n; k++)
        CHECK(((const uint8_t *)v->arr.data)[k] <= 1);
}

static void walk_value(const gguf_file *f, const gguf_value *v) {
    td_error err;
    int64_t i;
    double x;
    bool flag;
    const char *s;
    td_code rc;
    CHECK(v->key[0] && gguf_find(f, v->key) == v);
    CHECK(gguf_value_type_name(v->type));
    if (v->type == GGUF_STRING) touch(v->str.data, v->str.len);
    if (v->type == GGUF_ARRAY && v->arr.type == GGUF_STRING)
        for (uint64_t k = 0; k < v->arr.n; k++)
            touch(v->arr.strs[k].data, v->arr.strs[k].len);
    else if (v->type == GGUF_ARRAY)
        walk_items(v, gguf_size_bytes(f));
    if (v->type == GGUF_BOOL) CHECK(v->u <= 1);
    if ((rc = gguf_get_int(f, v->key, -5, 1000, 0, &i, &err)))
        check_line(rc, &err);
    else
        CHECK(i >= -5 && i <= 1000);
    if ((rc = gguf_get_float(f, v->key, 0, &x, &err)))
        check_line(rc, &err);
    else
        CHECK(x - x == 0);
    if ((rc = gguf_get_bool(f, v->key, false, &flag, &err))) check_line(rc, &err);
    if ((rc = gguf_get_string(f, v->key, &s, &err)))
        check_line(rc, &err);
    else
        CHECK(strlen(s) == v->str.len);
}

static void walk_tensor(const gguf_file *f, const gguf_tensor *t, const uint8_t *data,
                        size_t size) {
    enum { MAX_DECODED = 4096 };
    static float y[MAX_DECODED];
    const td_type_info *info = td_type_get(t->type);
    CHECK(t->name[0] && gguf_find_tensor(f, t->name) == t);
    CHECK(info->name && t->n_dims >= 1 && t->n_dims <= GGUF_MAX_DIMS);
    CHECK(t->dims[0] % (uint64_t)info->block == 0);
    const uint8_t *begin = t->data;
    CHECK(begin >= data && t->size_bytes <= size && (size_t)(begin - data) <= size - t->size_bytes);
    CHECK((size_t)(begin - data) % 8 == 0);
    size_t row_bytes, n_rows = 1, n_bytes;
    CHECK(td_type_row_bytes(&row_bytes, t->type, t->dims[0]));
    for (int d = 1; d < GGUF_MAX_DIMS; d++)
        CHECK(t->dims[d] >= 1 && (d < t->n_dims || t->dims[d] == 1) &&
              td_mul(&n_rows, n_rows, t->dims[d]));
    CHECK(td_mul(&n_bytes, n_rows, row_bytes) && n_bytes == t->size_bytes);
    const size_t n =
        t->dims[0] < MAX_DECODED ? (size_t)t->dims[0] : MAX_DECODED; /* 4096: whole blocks */
    td_dequantize(t->type, begin, y, n);
    touch(y, n * sizeof *y);
    const size_t tail = n / (size_t)info->block * (size_t)info->block_bytes;
    td_dequantize(t->type, begin + t->size_bytes - tail, y, n);
    touch(y, n * sizeof *y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf_file *f = NULL;
    td_error err;
    const td_code rc = gguf_open_memory(&f, data, size, "fuzz", &err);
    if (rc) {
        CHECK(!f);
        check_line(rc, &err);
        return 0;
    }
    fuzz_n_good++;
    CHECK(gguf_version(f) == 2 || gguf_version(f) == 3);
    CHECK(gguf_size_bytes(f) == size && !strcmp(gguf_path(f), "fuzz"));
    for (size_t i = 0; i < gguf_n_values(f); i++)
        walk_value(f, gguf_value_at(f, i));
    for (size_t i = 0; i < gguf_n_tensors(f); i++)
        walk_tensor(f, gguf_tensor_at(f, i), data, size);
    CHECK(!gguf_value_at(f, gguf_n_values(f)) && !gguf_tensor_at(f, gguf_n_tensors(f)));
    gguf_close(f);
    return 0;
}

/* ---- seeds ---- */

static const uint32_t readable_types[] = {TD_TYPE_F32,  TD_TYPE_F16,    TD_TYPE_BF16,  TD_TYPE_Q4_0,
                                          TD_TYPE_Q4_1, TD_TYPE_Q5_0,   TD_TYPE_Q5_1,  TD_TYPE_Q8_0,
                                          TD_TYPE_Q2_K, TD_TYPE_Q3_K,   TD_TYPE_Q4_K,  TD_TYPE_Q5_K,
                                          TD_TYPE_Q6_K, TD_TYPE_IQ4_NL, TD_TYPE_IQ4_XS};
enum { N_READABLE = sizeof readable_types / sizeof *readable_types, N_SEEDS = 8 };

/* Keys of every type, `n` in all cases 13. */
static void every_value_type(td_buf *b) {
    for (uint32_t type = GGUF_U8; type <= GGUF_F64; type++) {
        char key[24];
        snprintf(key, sizeof key, "value.%u", type);
        if (type == GGUF_STRING) {
            make_key_string(b, key, "some text");
        } else if (type == GGUF_ARRAY) {
            make_key_array(b, key, GGUF_STRING, 3);
            make_string(b, "a");
            make_string(b, "");
            make_string(b, "\xe4\xb8\xad");
        } else {
            make_key_int(b, key, type, 1);
        }
    }
}

static void every_array_type(td_buf *b) { /* 12 keys */
    for (uint32_t type = GGUF_U8; type <= GGUF_F64; type++) {
        char key[24];
        if (type == GGUF_ARRAY) continue;
        snprintf(key, sizeof key, "array.%u", type);
        make_key_array(b, key, type, 4);
        for (int i = 0; i < 4; i++)
            if (type == GGUF_STRING)
                make_string(b, "word");
            else
                make_int(b, type == GGUF_BOOL ? i & 1 : i, (int)gguf_value_type_bytes(type));
    }
}

/* Tensors of these types, two rows of one block (or 32 values) each, one after the other. */
static void tensors(td_buf *b, const uint32_t *types, size_t n, size_t alignment) {
    size_t offset = 0;
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            char name[40];
            const td_type_info *info = td_type_get(types[i]);
            const uint64_t dims[4] = {info->block > 1 ? (uint64_t)info->block : 32, 2, 1, 1};
            size_t n_bytes = 0;
            if (!td_type_row_bytes(&n_bytes, types[i], dims[0])) abort();
            n_bytes *= 2;
            if (!pass) {
                snprintf(name, sizeof name, "blk.%zu.%s.weight", i, info->name);
                make_tensor(b, name, (uint32_t)(2 + i % 3), dims, types[i], offset);
                offset += (n_bytes + alignment - 1) / alignment * alignment;
            } else {
                make_pad(b, alignment);
                make_fill(b, n_bytes, (uint32_t)i);
            }
        }
        if (!pass) make_pad(b, alignment);
    }
}

size_t fuzz_n_seeds(void) {
    return N_SEEDS;
}

void fuzz_seed(size_t i, td_buf *b) {
    switch (i) {
    case 0: /* nothing in it */
        make_header(b, 3, 0, 0);
        break;
    case 1:
        make_header(b, 2, 0, 13);
        every_value_type(b);
        break;
    case 2:
        make_header(b, 3, 0, 12);
        every_array_type(b);
        break;
    case 3: /* every tensor type */
        make_header(b, 3, N_READABLE, 1);
        make_key_string(b, "general.architecture", "llama");
        tensors(b, readable_types, N_READABLE, 32);
        break;
    case 4: /* another alignment, v2 */
        make_header(b, 2, 4, 2);
        make_key_int(b, "general.alignment", GGUF_U32, 64);
        make_key_f32(b, "llama.rope.freq_base", 1e6f);
        tensors(b, readable_types + 3, 4, 64);
        break;
    case 5: /* like a model: configuration, vocabulary, a few tensors */
        make_header(b, 3, 3, 8);
        make_key_string(b, "general.architecture", "qwen2");
        make_key_int(b, "qwen2.block_count", GGUF_U32, 2);
        make_key_int(b, "qwen2.context_length", GGUF_U32, 32768);
        make_key_f32(b, "qwen2.attention.layer_norm_rms_epsilon", 1e-6f);
        make_key_int(b, "tokenizer.ggml.add_bos_token", GGUF_BOOL, 0);
        make_key_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 6);
        for (int k = 0; k < 6; k++)
            make_string(b, k & 1 ? "token" : "!");
        make_key_array(b, "tokenizer.ggml.token_type", GGUF_I32, 6);
        for (int k = 0; k < 6; k++)
            make_int(b, 1, 4);
        make_key_string(b, "tokenizer.chat_template", "{% for m in messages %}{{ m }}{% endfor %}");
        tensors(b, readable_types + 10, 3, 32);
        break;
    case 6: /* a split model of one part, and split keys that the mutator can raise */
        make_header(b, 3, 1, 3);
        make_key_int(b, "split.no", GGUF_U16, 0);
        make_key_int(b, "split.count", GGUF_U16, 1);
        make_key_int(b, "split.tensors.count", GGUF_I32, 1);
        tensors(b, readable_types, 1, 32);
        break;
    default: /* small tensors of many shapes */
        make_header(b, 3, 5, 1);
        make_key_int(b, "general.alignment", GGUF_U32, 8);
        for (uint32_t k = 0; k < 5; k++) {
            char name[8];
            snprintf(name, sizeof name, "t%u", k);
            make_tensor(b, name, 1 + k % 4, (uint64_t[]){k + 1, k % 2 + 1, 2, 1}, TD_TYPE_F16, 0);
        }
        make_pad(b, 8);
        make_fill(b, 64, 1);
    }
}

/* ---- the mutator ---- */

enum { MAX_FIELDS = 512 };

typedef struct field {
    size_t at;
    int n_bytes;
} field;

/* Where the numbers are that a parser must not trust, and where whole entries begin. */
typedef struct map {
    field fields[MAX_FIELDS];
    size_t n_fields;
    size_t entries[MAX_FIELDS]; /* offsets of keys and tensors, then of the end of the table */
    size_t n_entries, n_keys;   /* the first n_keys entries are keys */
} map;

static uint64_t peek(const uint8_t *data, size_t size, size_t at, int n_bytes) {
    uint64_t v = 0;
    for (int i = n_bytes; i-- > 0;)
        if (at + (size_t)i < size) v = v << 8 | data[at + (size_t)i];
    return v;
}

/* Notes a field and returns its value; steps over it. */
static uint64_t note(map *m, const uint8_t *data, size_t size, size_t *at, int n_bytes) {
    if (m->n_fields < MAX_FIELDS && *at + (size_t)n_bytes <= size)
        m->fields[m->n_fields++] = (field){*at, n_bytes};
    const uint64_t v = peek(data, size, *at, n_bytes);
    *at += (size_t)n_bytes;
    return v;
}

static void skip(size_t *at, size_t size, uint64_t n, uint64_t item) {
    *at = *at < size && (!item || n <= (size - *at) / item) ? *at + (size_t)(n * item) : size;
}

static void note_entry(map *m, size_t at) {
    if (m->n_entries < MAX_FIELDS) m->entries[m->n_entries++] = at;
}

/* A walk that believes the file as far as it goes. */
static void read_map(map *m, const uint8_t *data, size_t size) {
    m->n_fields = m->n_entries = m->n_keys = 0;
    size_t at = 4;
    note(m, data, size, &at, 4);
    const uint64_t n_tensors = note(m, data, size, &at, 8), n_values = note(m, data, size, &at, 8);
    for (uint64_t i = 0; i < n_values && at < size && m->n_entries < MAX_FIELDS; i++) {
        note_entry(m, at);
        m->n_keys++;
        skip(&at, size, note(m, data, size, &at, 8), 1);
        uint64_t type = note(m, data, size, &at, 4), n = 1;
        if (type == GGUF_ARRAY) {
            type = note(m, data, size, &at, 4);
            n = note(m, data, size, &at, 8);
        }
        if (type == GGUF_STRING) {
            for (; n && at < size; n--)
                skip(&at, size, note(m, data, size, &at, 8), 1);
        } else {
            const int width = (int)gguf_value_type_bytes((uint32_t)type);
            size_t first = at;
            if (n && width) note(m, data, size, &first, width);
            skip(&at, size, n, (uint64_t)width);
        }
    }
    for (uint64_t i = 0; i < n_tensors && at < size && m->n_entries < MAX_FIELDS; i++) {
        note_entry(m, at);
        skip(&at, size, note(m, data, size, &at, 8), 1);
        const uint64_t n_dims = note(m, data, size, &at, 4);
        for (uint64_t d = 0; d < n_dims && d < 8; d++)
            note(m, data, size, &at, 8);
        note(m, data, size, &at, 4);
        note(m, data, size, &at, 8);
    }
    note_entry(m, at < size ? at : size);
}

static void poke(uint8_t *data, field f, uint64_t v) {
    for (int i = 0; i < f.n_bytes; i++)
        data[f.at + (size_t)i] = (uint8_t)(v >> (8 * i));
}

/* Numbers at which checks go wrong: around 0, the file's size, powers of two, and products that
 * wrap. */
static uint64_t bad_number(uint64_t *s, uint64_t now, size_t at, size_t size) {
    const uint64_t near_by = fuzz_below(s, 5) - 2;
    switch (fuzz_below(s, 11)) {
    case 0:
        return near_by;
    case 1:
        return now + near_by;
    case 2:
        return size - at + near_by;
    case 3:
        return size + near_by;
    case 4:
        return ((uint64_t)1 << fuzz_below(s, 64)) + near_by;
    case 5:
        return UINT64_MAX / (1 + fuzz_below(s, 300)) + near_by;
    case 6:
        return fuzz_below(s, 64); /* types */
    case 7:
        return now << fuzz_below(s, 8);
    case 8:
        return (size - at) / (1 + fuzz_below(s, 16)) + near_by;
    case 9: /* times 2, 4 or 8 it wraps to something small */
        return ((uint64_t)1 << (61 + fuzz_below(s, 3))) + fuzz_below(s, 8);
    default:
        return fuzz_next(s);
    }
}

/* Replaces data[at, at + n_out) with n_in bytes (which may lie inside data). */
static size_t replace(uint8_t *data, size_t size, size_t max_size, size_t at, size_t n_out,
                      const uint8_t *in, size_t n_in) {
    if (size - n_out + n_in > max_size) return size;
    uint8_t *copy = malloc(n_in + 1);
    if (!copy) return size;
    memcpy(copy, in, n_in);
    memmove(data + at + n_in, data + at + n_out, size - at - n_out);
    memcpy(data + at, copy, n_in);
    free(copy);
    return size - n_out + n_in;
}

/* Copies a whole key or tensor over, before or after another, and mostly keeps the header's count
 * true. */
static size_t copy_entry(uint8_t *data, size_t size, size_t max_size, const map *m, uint64_t *s) {
    if (m->n_entries < 2) return size;
    const size_t i = fuzz_below(s, m->n_entries - 1), k = fuzz_below(s, m->n_entries);
    const size_t n_in = m->entries[i + 1] - m->entries[i];
    const bool over = k + 1 < m->n_entries && fuzz_below(s, 3) == 0;
    const size_t n_out = over ? m->entries[k + 1] - m->entries[k] : 0;
    const size_t now =
        replace(data, size, max_size, m->entries[k], n_out, data + m->entries[i], n_in);
    if (now == size || over || size < 24 || fuzz_below(s, 8) == 0) return now;
    const field count = {i < m->n_keys ? 16 : 8, 8};
    poke(data, count, peek(data, now, count.at, 8) + 1);
    return now;
}

static size_t remove_entry(uint8_t *data, size_t size, size_t max_size, const map *m, uint64_t *s) {
    if (m->n_entries < 2) return size;
    const size_t i = fuzz_below(s, m->n_entries - 1);
    size = replace(data, size, max_size, m->entries[i], m->entries[i + 1] - m->entries[i], data, 0);
    if (size < 24 || fuzz_below(s, 8) == 0) return size;
    const field count = {i < m->n_keys ? 16 : 8, 8};
    poke(data, count, peek(data, size, count.at, 8) - 1);
    return size;
}

/* The tail of a seed behind the head of this one. */
static size_t splice(uint8_t *data, size_t size, size_t max_size, uint64_t *s) {
    td_buf other = {0};
    fuzz_seed(fuzz_below(s, N_SEEDS), &other);
    if (!other.failed && other.len) {
        const size_t head = fuzz_below(s, size + 1), from = fuzz_below(s, other.len);
        size = replace(data, size, max_size, head, size - head, (const uint8_t *)other.data + from,
                       other.len - from);
    }
    td_buf_free(&other);
    return size;
}

static size_t mutate_once(uint8_t *data, size_t size, size_t max_size, uint64_t *s) {
    map m;
    read_map(&m, data, size);
    const size_t at = size ? fuzz_below(s, size) : 0;
    switch (size ? fuzz_below(s, 16) : 15) {
    case 0:
        data[at] ^= (uint8_t)(1 << fuzz_below(s, 8));
        return size;
    case 1:
        data[at] = (uint8_t)fuzz_next(s);
        return size;
    case 2: /* cut anywhere */
        return at;
    case 3: /* cut at or near a field */
        if (m.n_fields) {
            const size_t cut = m.fields[fuzz_below(s, m.n_fields)].at + fuzz_below(s, 10);
            return cut < size ? cut : size;
        }
        return at;
    case 4:
        return copy_entry(data, size, max_size, &m, s);
    case 5:
        return remove_entry(data, size, max_size, &m, s);
    case 6:
        return splice(data, size, max_size, s);
    case 7: { /* lose some bytes */
        const size_t n = fuzz_below(s, size - at < 64 ? size - at + 1 : 64);
        return replace(data, size, max_size, at, n, data, 0);
    }
    case 8: { /* a piece of itself elsewhere */
        const size_t n = fuzz_below(s, size - at < 200 ? size - at + 1 : 200);
        return replace(data, size, max_size, fuzz_below(s, size + 1), 0, data + at, n);
    }
    case 15: { /* some random bytes more */
        uint8_t in[32];
        const size_t n = fuzz_below(s, sizeof in) + 1;
        for (size_t i = 0; i < n; i++)
            in[i] = (uint8_t)fuzz_next(s);
        return replace(data, size, max_size, size ? fuzz_below(s, size + 1) : 0, 0, in, n);
    }
    case 9: /* exchange two fields' values */
        if (m.n_fields > 1) {
            const field a = m.fields[fuzz_below(s, m.n_fields)],
                        b = m.fields[fuzz_below(s, m.n_fields)];
            const uint64_t was = peek(data, size, a.at, a.n_bytes);
            poke(data, a, peek(data, size, b.at, b.n_bytes));
            poke(data, b, was);
        }
        return size;
    default: /* 6 of 16: a number that must not be trusted */
        if (m.n_fields) {
            const field f = m.fields[fuzz_below(s, m.n_fields)];
            poke(data, f, bad_number(s, peek(data, size, f.at, f.n_bytes), f.at, size));
        }
        return size;
    }
}

size_t fuzz_mutate(uint8_t *data, size_t size, size_t max_size, uint64_t seed) {
    uint64_t s = seed;
    /* Mostly one change, since a second one often hides behind the first's refusal. */
    size_t n = fuzz_below(&s, 2) ? 1 : 2 + fuzz_below(&s, 4);
    while (n--)
        size = mutate_once(data, size, max_size, &s);
    return size;
}

#ifdef TD_LIBFUZZER
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    if (!size) { /* libFuzzer starts from nothing: give it a seed that fits */
        td_buf b = {0};
        fuzz_seed(seed % N_SEEDS, &b);
        if (!b.failed && b.len <= max_size) memcpy(data, b.data, size = b.len);
        td_buf_free(&b);
        if (size) return size;
    }
    return seed & 1 ? fuzz_mutate(data, size, max_size, seed)
                    : LLVMFuzzerMutate(data, size, max_size);
}
#endif
