/* Checked allocation, large mappings, a growing buffer, and how much memory there is. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *td_calloc(size_t n, size_t size) {
    size_t bytes; /* checked here too: under sanitizers calloc ends the program instead */
    if (!td_mul(&bytes, n, size)) return NULL;
    return calloc(n ? n : 1, size ? size : 1);
}

bool td_grow(void *ptr_to_ptr, size_t *n_have, size_t n_need, size_t item_bytes) {
    if (n_need <= *n_have) return true;
    size_t n = *n_have ? *n_have : 16;
    while (n < n_need)
        if (!td_mul(&n, n, 2)) return false;
    size_t bytes;
    if (!td_mul(&bytes, n, item_bytes)) return false;
    void *was, *now;
    memcpy(&was, ptr_to_ptr, sizeof was);
    if (!(now = realloc(was, bytes))) return false;
    memcpy(ptr_to_ptr, &now, sizeof now);
    *n_have = n;
    return true;
}

enum { HUGE_BYTES = 2 << 20 };

static size_t huge_round(size_t size_bytes) { /* 0 maps like 1: a mapping, not a stray pointer */
    return ((size_bytes ? size_bytes : 1) + HUGE_BYTES - 1) & ~(size_t)(HUGE_BYTES - 1);
}

void *td_map(size_t size_bytes) {
    size_t whole;
    if (!td_add(&whole, size_bytes, 2 * (size_t)HUGE_BYTES)) return NULL;
    whole &= ~(size_t)(HUGE_BYTES - 1); /* >= size + 2 MiB - 1: room to align */
    char *raw = mmap(NULL, whole, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t used = huge_round(size_bytes);
    size_t lead = (size_t)(-(uintptr_t)raw & (HUGE_BYTES - 1));
    if (lead) munmap(raw, lead);
    if (whole - lead > used) munmap(raw + lead + used, whole - lead - used);
    madvise(raw + lead, used, MADV_HUGEPAGE); /* a hint: failing costs speed only */
    return raw + lead;
}

void td_unmap(void *ptr, size_t size_bytes) {
    if (ptr) munmap(ptr, huge_round(size_bytes));
}

/* Reads one non-negative number from a small file; false where there is none ("max" included). */
static bool read_number(const char *path, size_t *out) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    unsigned long long v;
    bool ok = fscanf(f, "%llu", &v) == 1;
    fclose(f);
    if (ok) *out = (size_t)v;
    return ok;
}

/* The number after `name` in a cgroup's memory.stat; 0 where there is none. */
static size_t read_stat(const char *path, const char *name) {
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    char line[128], word[64];
    unsigned long long v;
    size_t found = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %llu", word, &v) == 2 && !strcmp(word, name)) found = (size_t)v;
    fclose(f);
    return found;
}

size_t td_memory_available(void) {
    /* Version 2, then version 1. Cached file pages count as used there, a mapped model's weights
     * too, though the kernel drops them before it refuses memory. */
    static const struct {
        const char *limit, *used, *stat, *active, *inactive;
    } groups[] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
         "active_file", "inactive_file"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
         "total_active_file", "total_inactive_file"},
    };
    const size_t free_kib = read_stat("/proc/meminfo", "MemAvailable:");
    size_t best = free_kib ? free_kib * 1024 : SIZE_MAX;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        size_t limit, used;
        if (!read_number(groups[i].limit, &limit) || !read_number(groups[i].used, &used)) continue;
        const size_t cached = read_stat(groups[i].stat, groups[i].active) +
                              read_stat(groups[i].stat, groups[i].inactive);
        used = used > cached ? used - cached : 0;
        const size_t left = limit > used ? limit - used : 0;
        if (left < best) best = left;
    }
    return best;
}

void td_buf_append(td_buf *b, const void *bytes, size_t n) {
    size_t need;
    if (b->failed || !td_add(&need, b->len, n) || !td_add(&need, need, 1) ||
        !td_grow(&b->data, &b->cap, need, 1)) {
        b->failed = true;
        return;
    }
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void td_buf_printf(td_buf *b, const char *fmt, ...) {
    char small[256];
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        td_buf_append(b, small, (size_t)n);
    } else {
        char *large = malloc((size_t)n + 1);
        if (large) {
            vsnprintf(large, (size_t)n + 1, fmt, again);
            td_buf_append(b, large, (size_t)n);
            free(large);
        } else {
            b->failed = true;
        }
    }
    va_end(again);
}

void td_buf_free(td_buf *b) {
    free(b->data);
    *b = (td_buf){0};
}
