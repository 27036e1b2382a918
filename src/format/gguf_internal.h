/* What gguf.c (one file), split.c (several) and values.c (reading them) share. */
#ifndef TD_GGUF_INTERNAL_H
#define TD_GGUF_INTERNAL_H

#include "format/format.h"

/* Open-addressed table over an array of structs whose first member is a NUL-terminated name: slots
 * hold index + 1, 0 is empty, at most half are used. Built once. */
typedef struct gguf_index {
    uint32_t *slots; /* owns */
    size_t mask;
} gguf_index;

typedef struct gguf_chunk {
    struct gguf_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
} gguf_chunk;

struct gguf_file {
    char *path;          /* owns */
    char label[160];     /* the path as messages show it: its tail, printable */
    const uint8_t *base; /* the mapping (owns), or the caller's memory (borrows) */
    size_t size_bytes;
    bool mapped;
    uint32_t version;
    gguf_value *values; /* owns */
    size_t n_values, cap_values;
    gguf_index value_index;
    gguf_tensor *tensors; /* owns; in a split file, part 1 lists the tensors of all parts */
    size_t n_tensors, cap_tensors;
    gguf_index tensor_index;
    gguf_chunk *chunks; /* owns: names, strings, string arrays */
    gguf_file **parts;  /* owns: the other parts of a split file, in order */
    size_t n_parts, cap_parts;
};

enum { GGUF_QUOTED = 80, GGUF_MAX_ITEMS = 1 << 30 };

/* Writes a name for a message: at most 64 bytes of it, each printable ASCII or \xNN. Returns buf.
 */
const char *gguf_quote(char buf[GGUF_QUOTED], const char *name, size_t len);

/* One file, whatever its split keys say. */
td_code gguf_open_part(gguf_file **out, const char *path, td_error *err);

/* Fills the index over n items of `stride` bytes. When two names are equal, *twice is the index of
 * the second (else SIZE_MAX) and the index is unfinished. false: out of memory. */
bool gguf_index_build(gguf_index *ix, const void *items, size_t n, size_t stride, size_t *twice);
/* Index of the item of that name; SIZE_MAX when absent. */
size_t gguf_index_find(const gguf_index *ix, const void *items, size_t stride, const char *name);

#endif
