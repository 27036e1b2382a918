/* What every part stands on: errors with words, checked sizes, memory, threads, random numbers, CPU
 * features, time. Includes nothing of Tandem but the public error type. */
#ifndef TD_BASE_H
#define TD_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tandem.h" /* td_code, td_error */

#ifdef __GNUC__
#define TD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define TD_PRINTF(fmt, args)
#endif

/* ---- errors ---- */

/* Writes code and message to *err (err may be NULL) and returns code, so that a caller can
 * `return td_fail(...)`. The message says what, where, and what to do; it is cut at the buffer. */
td_code td_fail(td_error *err, td_code code, const char *fmt, ...) TD_PRINTF(3, 4);

/* Puts "context: " before the message that *err already has. Keeps the code; returns it. */
td_code td_fail_context(td_error *err, const char *fmt, ...) TD_PRINTF(2, 3);

/* ---- sizes: every number from a file, a request or a flag goes through these ---- */

static inline bool td_mul(size_t *out, size_t a, size_t b) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool td_add(size_t *out, size_t a, size_t b) {
    return !__builtin_add_overflow(a, b, out);
}

/* ---- memory ---- */

/* Zeroed memory for n items of `size` bytes; NULL when the product overflows or memory is short.
 * Free with free(). */
void *td_calloc(size_t n, size_t size);
/* Grows *ptr (n_have items) so that it holds at least n_need items, doubling; keeps the contents.
 * false when out of memory (then nothing changed). */
bool td_grow(void *ptr_to_ptr, size_t *n_have, size_t n_need, size_t item_bytes);

/* Large zeroed memory on 2 MiB boundaries, huge pages asked for; committed when first touched.
 * NULL when the address space or the limit refuses. Release with td_unmap and the same size. */
void *td_map(size_t size_bytes);
void td_unmap(void *ptr, size_t size_bytes);
/* Bytes this machine (or its cgroup) can still give without swapping; SIZE_MAX when unknown. */
size_t td_memory_available(void);

/* A growing byte buffer, always NUL-terminated (len does not count the NUL). Zero-initialise.
 * A failed append sets `failed` and keeps what was there. */
typedef struct td_buf {
    char *data;
    size_t len, cap;
    bool failed;
} td_buf;
void td_buf_append(td_buf *b, const void *bytes, size_t n);
void td_buf_printf(td_buf *b, const char *fmt, ...) TD_PRINTF(2, 3);
void td_buf_free(td_buf *b);

/* ---- time ---- */

uint64_t td_now_ns(void); /* monotonic */

/* ---- threads ---- */

/* Cores this process may use: affinity mask and cgroup CPU quota, at least 1. */
int td_cpu_count(void);

/* A pool of n_threads - 1 workers; the caller of td_pool_run is thread 0. Workers spin for some
 * microseconds and then park on a futex, so that a machine with other work on it does not collapse.
 */
typedef struct td_pool td_pool;
typedef void td_job_fn(void *arg, int thread, int n_threads);
td_code td_pool_open(td_pool **out, int n_threads, td_error *err);
void td_pool_close(td_pool *pool); /* NULL is fine */
int td_pool_size(const td_pool *pool);
/* Runs fn on the caller and, once each, on those workers that come before the caller is through; returns
 * when all who came are done, and what they wrote is then visible to the caller. So fn has to take its
 * work from a shared split, never from its thread's number. Not reentrant; one caller at a time. pool ==
 * NULL runs fn on the caller alone. */
void td_pool_run(td_pool *pool, td_job_fn *fn, void *arg);

/* Hands out [0, n) in pieces of `step` to the threads of one job, by an atomic counter. */
typedef struct td_split {
    _Atomic int next;
    int n, step;
} td_split;
void td_split_init(td_split *s, int n, int step);
/* false when nothing is left; otherwise *begin < *end. */
bool td_split_next(td_split *s, int *begin, int *end);

/* ---- random numbers: Philox4x32-10 (Salmon et al., SC 2011), counter-based ----
 * A draw is a pure function of (seed, stream, index, lane): nothing is carried from call to call,
 * so a draw for one purpose can never shift the draws of another (trap 2 of the design). */

typedef enum td_stream {
    TD_STREAM_PLAIN = 1,    /* the target's own token */
    TD_STREAM_DRAFT = 2,    /* what the draft proposes */
    TD_STREAM_ACCEPT = 3,   /* the accept test */
    TD_STREAM_RESIDUAL = 4, /* the token after a rejection */
    TD_STREAM_GUMBEL = 5    /* noise shared by draft and target (coupled rule) */
} td_stream;

/* In the header, since in a loop over counters it runs in vector lanes: half the time of calls. */
static inline void td_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
/* 64 random bits as a number in (0, 1): (the upper 52 + 0.5) * 2^-52, exact. With 53 bits the half
 * would not fit into a double, and the highest value would round to 1. */
static inline double td_unit(uint64_t bits) {
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}
/* Uniform in (0, 1). */
double td_uniform(uint64_t seed, td_stream stream, uint64_t index, uint32_t lane);
/* A seed from the operating system. */
uint64_t td_random_seed(void);

/* ---- CPU features ---- */

enum {
    TD_CPU_AVX2 = 1 << 0,        /* AVX2 + FMA + F16C */
    TD_CPU_AVX512 = 1 << 1,      /* F, BW, VL, DQ */
    TD_CPU_AVX512_VNNI = 1 << 2, /* vpdpbusd on 512 bits */
    TD_CPU_AMX = 1 << 3,         /* int8 tiles, and the kernel granted them */
    TD_CPU_DOTPROD = 1 << 4      /* ARM: sdot and udot (Armv8.2) */
};
/* Features of this CPU, lowered by TANDEM_CPU where that is set: ref|avx2|avx512|amx on x86-64,
 * ref|neon on ARM (any other word fails). Read once a call; cheap enough. */
td_code td_cpu_features(unsigned *out, td_error *err);

#endif
