/* Checked allocation, large mappings, a growing buffer, and how much memory there is. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

void *td_calloc(size_t n, size_t size) {
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

void *td_map(size_t size_bytes) {
    size_t whole;
    if (!td_add(&whole, size_bytes, 2 * (size_t)HUGE_BYTES)) return NULL;
    whole &= ~(size_t)(HUGE_BYTES - 1); /* >= size + 2 MiB - 1: room to align */
    char *raw =
        mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t used = (size_bytes + HUGE_BYTES - 1) & ~(size_t)(HUGE_BYTES - 1);
    size_t lead = (size_t)(-(uintptr_t)raw & (HUGE_BYTES - 1));
    if (lead) munmap(raw, lead);
    if (whole - lead > used) munmap(raw + lead + used, whole - lead - used);
    madvise(raw + lead, used, MADV_HUGEPAGE); /* a hint: failing costs speed only */
    return raw + lead;
}

void td_unmap(void *ptr, size_t size_bytes) {
    if (ptr) munmap(ptr, (size_bytes + HUGE_BYTES - 1) & ~(size_t)(HUGE_BYTES - 1));
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

size_t td_memory_available(void) {
    size_t best = SIZE_MAX;
    FILE *f = fopen("/proc/meminfo", "re");
    if (f) {
        char line[128];
        unsigned long long kib;
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) best = (size_t)kib * 1024;
        fclose(f);
    }
    size_t limit, used;
    if (read_number("/sys/fs/cgroup/memory.max", &limit) &&
        read_number("/sys/fs/cgroup/memory.current", &used) && limit > used && limit - used < best)
        best = limit - used;
    return best;
}

size_t td_memory_peak(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (size_t)u.ru_maxrss * 1024;
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
