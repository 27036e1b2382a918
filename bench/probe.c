/* The limits of this machine's threads: reading and arithmetic.
 *
 * Reading: they XOR their way through a buffer far larger than any cache, in huge pages, with the
 * widest loads this CPU has. Decoding one token reads the weights once, so this is the ceiling of
 * plain decoding; it is measured in the same run because the machine's neighbours change it from
 * minute to minute. Pieces go out by a counter, as the weight panels do: a thread that lost its
 * core for a while must not hold up the others.
 *
 * Arithmetic: the loops of rate.c, on all threads for a few milliseconds. */
#include "bench/bench_internal.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* 4 MiB a piece: long enough for the hardware prefetcher, short enough to share out evenly. */
enum { PIECE_BYTES = 4 << 20, AHEAD_BYTES = 4096 };
static const size_t MIN_BYTES = (size_t)128 << 20;

typedef uint64_t read_fn(const char *p, size_t n); /* n: a multiple of 256 */

struct bench_probe {
    td_pool *pool; /* owns */
    char *data;    /* owns; size_bytes + AHEAD_BYTES, so that prefetching stays inside */
    size_t size_bytes;
    read_fn *read;
    bench_rate dot, fma;
    const char *level; /* static */
    td_split split;
    _Atomic uint64_t sink; /* the sums go here, or the compiler drops the loads */
};

static uint64_t read_plain(const char *p, size_t n) {
    uint64_t x[8] = {
        0}; /* eight lanes: one 64-byte line a step, vectorised where there are vectors */
    for (size_t i = 0; i < n; i += 64) {
        uint64_t line[8];
        memcpy(line, p + i, sizeof line);
        for (int j = 0; j < 8; j++)
            x[j] ^= line[j];
    }
    return x[0] ^ x[1] ^ x[2] ^ x[3] ^ x[4] ^ x[5] ^ x[6] ^ x[7];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *p, size_t n) {
    __m256i x[8];
    for (int j = 0; j < 8; j++)
        x[j] = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 256) {
        for (int j = 0; j < 4; j++)
            _mm_prefetch(p + i + AHEAD_BYTES + 64 * j, _MM_HINT_T0);
        for (int j = 0; j < 8; j++)
            x[j] = _mm256_xor_si256(x[j], _mm256_loadu_si256((const void *)(p + i + 32 * j)));
    }
    for (int j = 1; j < 8; j++)
        x[0] = _mm256_xor_si256(x[0], x[j]);
    uint64_t v[4];
    _mm256_storeu_si256((void *)v, x[0]);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *p, size_t n) {
    __m512i x[4];
    for (int j = 0; j < 4; j++)
        x[j] = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 256)
        for (int j = 0; j < 4; j++) {
            _mm_prefetch(p + i + AHEAD_BYTES + 64 * j, _MM_HINT_T0);
            x[j] = _mm512_xor_si512(x[j], _mm512_loadu_si512(p + i + 64 * j));
        }
    for (int j = 1; j < 4; j++)
        x[0] = _mm512_xor_si512(x[0], x[j]);
    uint64_t v[8];
    _mm512_storeu_si512(v, x[0]);
    return v[0] ^ v[1] ^ v[2] ^ v[3] ^ v[4] ^ v[5] ^ v[6] ^ v[7];
}
#endif

/* By CPUID alone: TANDEM_CPU lowers the kernels, not what memory can do. */
static read_fn *widest(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return read_avx512;
    if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
    return read_plain;
}

static void fill_job(void *arg, int thread, int n_threads) {
    bench_probe *p = arg;
    int begin, end;
    (void)n_threads;
    while (td_split_next(&p->split, &begin, &end)) /* written, or every page is the one zero page */
        memset(p->data + (size_t)begin * PIECE_BYTES, thread + 1,
               (size_t)(end - begin) * PIECE_BYTES);
}

static void read_job(void *arg, int thread, int n_threads) {
    bench_probe *p = arg;
    uint64_t x = 0;
    int begin, end;
    (void)thread;
    (void)n_threads;
    while (td_split_next(&p->split, &begin, &end))
        x ^= p->read(p->data + (size_t)begin * PIECE_BYTES, (size_t)(end - begin) * PIECE_BYTES);
    p->sink ^= x;
}

/* A loop of rate.c on every thread until the time is over. */
typedef struct rate_job {
    const bench_rate *rate;
    uint64_t end_ns;
    _Atomic long turns;
} rate_job;

enum { RATE_NS = 10000000 };

static void rate_until(void *arg, int thread, int n_threads) {
    rate_job *j = arg;
    (void)thread, (void)n_threads;
    while (td_now_ns() < j->end_ns) {
        j->rate->run(j->rate->turns);
        j->turns += j->rate->turns;
    }
}

/* Gmac/s. What a thread that comes late or loses its core does not do is missing from the sum. */
static double rate_of(bench_probe *p, const bench_rate *rate) {
    const uint64_t begin = td_now_ns();
    rate_job j = {.rate = rate, .end_ns = begin + RATE_NS};
    td_pool_run(p->pool, rate_until, &j);
    return (double)j.turns * (double)rate->macs / (double)(td_now_ns() - begin);
}

td_code bench_probe_open(bench_probe **out, int n_threads, size_t size_bytes, td_error *err) {
    const kern_table *kern;
    unsigned cpu;
    td_code rc;
    if ((rc = td_cpu_features(&cpu, err)) || (rc = kern_table_get(&kern, err))) return rc;
    bench_probe *p = td_calloc(1, sizeof *p);
    if (!p) return td_fail(err, TD_E_MEMORY, "out of memory for the read probe");
    p->level = kern->level;
    p->dot = bench_rate_dot(cpu, kern->level);
    p->fma = bench_rate_fma(cpu, kern->level);
    const size_t room = td_memory_available() / 2; /* the models are loaded beside it */
    if (size_bytes > room) size_bytes = room;
    if (size_bytes < MIN_BYTES) {
        rc = td_fail(err, TD_E_MEMORY, "the read probe needs %zu MB of free memory",
                     2 * MIN_BYTES / 1000000);
        goto fail;
    }
    p->size_bytes = size_bytes / PIECE_BYTES * PIECE_BYTES;
    p->read = widest();
    if ((rc = td_pool_open(&p->pool, n_threads, err))) goto fail;
    if (!(p->data = td_map(p->size_bytes + AHEAD_BYTES))) {
        rc = td_fail(err, TD_E_MEMORY, "no memory for the read probe (%zu MB)",
                     p->size_bytes / 1000000);
        goto fail;
    }
    td_split_init(&p->split, (int)(p->size_bytes / PIECE_BYTES), 1);
    td_pool_run(p->pool, fill_job, p);
    *out = p;
    return TD_OK;
fail:
    bench_probe_close(&p);
    return rc;
}

void bench_probe_close(bench_probe **p) {
    if (!*p) return;
    td_pool_close((*p)->pool);
    td_unmap((*p)->data, (*p)->size_bytes + AHEAD_BYTES);
    free(*p);
    *p = NULL;
}

size_t bench_probe_size(const bench_probe *p) {
    return p->size_bytes;
}

double bench_probe_read(bench_probe *p) {
    td_split_init(&p->split, (int)(p->size_bytes / PIECE_BYTES), 1);
    const uint64_t begin = td_now_ns();
    td_pool_run(p->pool, read_job, p);
    return (double)p->size_bytes / (double)(td_now_ns() - begin);
}

double bench_probe_dot(bench_probe *p) {
    return rate_of(p, &p->dot);
}

double bench_probe_fma(bench_probe *p) {
    return rate_of(p, &p->fma);
}

const char *bench_probe_dot_name(const bench_probe *p) {
    return p->dot.name;
}

const char *bench_probe_fma_name(const bench_probe *p) {
    return p->fma.name;
}

const char *bench_probe_level(const bench_probe *p) {
    return p->level;
}

td_pool *bench_probe_pool(bench_probe *p) {
    return p->pool;
}

int bench_probe_threads(const bench_probe *p) {
    return td_pool_size(p->pool);
}

void bench_limits_raise(bench_limits *best, const bench_limits *by) {
    best->read_gb_per_s = fmax(best->read_gb_per_s, by->read_gb_per_s);
    best->dot_gmac_per_s = fmax(best->dot_gmac_per_s, by->dot_gmac_per_s);
    best->fma_gmac_per_s = fmax(best->fma_gmac_per_s, by->fma_gmac_per_s);
}

void bench_limits_look(bench_limits *best, bench_probe *p, int n_reads) {
    bench_limits now = {.dot_gmac_per_s = bench_probe_dot(p), .fma_gmac_per_s = bench_probe_fma(p)};
    for (int i = 0; i < n_reads; i++)
        now.read_gb_per_s = fmax(now.read_gb_per_s, bench_probe_read(p));
    bench_limits_raise(best, &now);
}

double bench_roofline_ms(const bench_limits *l, double bytes, double int_macs, double float_macs) {
    const double arithmetic = int_macs / l->dot_gmac_per_s + float_macs / l->fma_gmac_per_s;
    return fmax(bytes / l->read_gb_per_s, arithmetic) / 1e6;
}
