/* What src/format makes of a file or of blocks, for the tests in test_dequant.py and test_gguf.py
 * to compare with the gguf Python package.
 *
 *   gguf_tool decode                  stdin: any number of (u32 type, u64 n values, their blocks);
 *                                     stdout: the floats
 *   gguf_tool list FILE               a line a value (V) and a tensor (T), fields between tabs
 *   gguf_tool rows FILE NAME FIRST N  stdout: N rows of a tensor as floats
 *
 * Little-endian hosts only, as the files are. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"

static uint32_t crc32_update(uint32_t crc, const void *data, size_t n) {
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void print_hex(const void *data, size_t n) {
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        printf("%02x", p[i]);
}

static int write_row(uint32_t type, const void *src, size_t n) {
    float *y = malloc(n * sizeof *y);
    if (!y) return 1;
    td_dequantize(type, src, y, n);
    const bool ok = fwrite(y, sizeof *y, n, stdout) == n;
    free(y);
    return !ok;
}

static int decode(void) {
    uint32_t type;
    uint64_t n;
    while (fread(&type, sizeof type, 1, stdin) == 1) {
        size_t n_bytes;
        if (fread(&n, sizeof n, 1, stdin) != 1 || !td_type_row_bytes(&n_bytes, type, n)) return 1;
        void *blocks = malloc(n_bytes);
        const bool ok = blocks && fread(blocks, 1, n_bytes, stdin) == n_bytes &&
                        !write_row(type, blocks, (size_t)n);
        free(blocks);
        if (!ok) return 1;
    }
    return 0;
}

static void list_value(const gguf_value *v) {
    printf("V\t%s\t%s\t", v->key, gguf_value_type_name(v->type));
    switch (v->type) {
    case GGUF_STRING:
        print_hex(v->str.data, v->str.len);
        break;
    case GGUF_F32:
    case GGUF_F64:
        printf("%.17g", v->f);
        break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        printf("%" PRId64, v->i);
        break;
    case GGUF_ARRAY: {
        uint32_t crc = 0;
        if (v->arr.type != GGUF_STRING)
            crc = crc32_update(0, v->arr.data, v->arr.n * gguf_value_type_bytes(v->arr.type));
        for (uint64_t i = 0; v->arr.type == GGUF_STRING && i < v->arr.n; i++) {
            const uint64_t len = v->arr.strs[i].len;
            crc = crc32_update(crc, &len, sizeof len);
            crc = crc32_update(crc, v->arr.strs[i].data, v->arr.strs[i].len);
        }
        printf("%s %" PRIu64 " %08" PRIx32, gguf_value_type_name(v->arr.type), v->arr.n, crc);
        break;
    }
    default:
        printf("%" PRIu64, v->u);
    }
    putchar('\n');
}

static int list(const gguf_file *f) {
    printf("F\t%" PRIu32 "\t%zu\n", gguf_version(f), gguf_size_bytes(f));
    for (size_t i = 0; i < gguf_n_values(f); i++)
        list_value(gguf_value_at(f, i));
    const gguf_tensor *first = gguf_tensor_at(f, 0);
    for (size_t i = 0; i < gguf_n_tensors(f); i++) {
        const gguf_tensor *t = gguf_tensor_at(f, i);
        printf("T\t%s\t%s\t%" PRIu64, t->name, td_type_get(t->type)->name, t->dims[0]);
        for (int d = 1; d < t->n_dims; d++)
            printf("x%" PRIu64, t->dims[d]);
        const size_t n = t->size_bytes < 16 ? t->size_bytes : 16;
        printf("\t%zu\t%td\t", t->size_bytes, (const char *)t->data - (const char *)first->data);
        print_hex(t->data, n);
        putchar('\t');
        print_hex((const char *)t->data + t->size_bytes - n, n);
        putchar('\n');
    }
    return 0;
}

static int rows(const gguf_file *f, char **argv) {
    const gguf_tensor *t = gguf_find_tensor(f, argv[0]);
    const size_t first = strtoul(argv[1], NULL, 10), n = strtoul(argv[2], NULL, 10);
    size_t row;
    if (!t || !td_type_row_bytes(&row, t->type, t->dims[0]) || first + n > t->size_bytes / row) {
        fprintf(stderr, "no tensor '%s' with rows %zu to %zu\n", argv[0], first, first + n);
        return 1;
    }
    for (size_t r = first; r < first + n; r++)
        if (write_row(t->type, (const char *)t->data + r * row, t->dims[0])) return 1;
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (argc == 2 && !strcmp(mode, "decode")) return decode();
    const bool want_list = argc == 3 && !strcmp(mode, "list");
    if (!want_list && !(argc == 6 && !strcmp(mode, "rows"))) {
        fprintf(stderr, "usage: gguf_tool decode | list FILE | rows FILE NAME FIRST N\n");
        return 2;
    }
    td_error err;
    gguf_file *f = NULL;
    if (gguf_open(&f, argv[2], &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int rc = want_list ? list(f) : rows(f, argv + 3);
    gguf_close(f);
    return rc;
}
