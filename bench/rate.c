/* What the arithmetic units can do: the widest int8 dot instruction of the level and the float
 * multiply-add, in registers, with more accumulators than the latency needs (5 cycles, 2 a cycle).
 * Each loop is one block of assembly, so that no compiler and no option can hoist, merge or spill
 * any of it. Operands are small numbers, not zeros, which some units do at less power.
 *
 * vpmaddubsw sums pairs only; adding those up takes further instructions. They are left out: the
 * limit is the multiplier's. On Zen 3 it does 2.0 a cycle, with a vpaddw each 1.6, with vpmaddwd and
 * vpaddd 0.96, so a kernel at 16 bits can reach 80 % of it. */
#include "bench/bench_internal.h"

#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* ---- plain C, as the compiler does it for every machine of this kind ---- */

enum { PLAIN_DOTS = 1024, PLAIN_LANES = 16, PLAIN_STEPS = 32 };

/* Tells the compiler that the memory behind p may have changed, or is read. */
static inline void touch(const void *p) {
    __asm__ volatile("" : : "r"(p) : "memory");
}

static void dot_plain(long n) {
    int8_t a[PLAIN_DOTS], b[PLAIN_DOTS];
    int32_t sum = 0;
    memset(a, 3, sizeof a);
    memset(b, 2, sizeof b);
    for (; n > 0; n--) {
        touch(a);
        touch(b);
        int32_t s = 0; /* 6144 at most: never near overflow, and `sum` is only looked at */
        for (int i = 0; i < PLAIN_DOTS; i++)
            s += a[i] * b[i];
        sum ^= s;
    }
    touch(&sum);
}

static void fma_plain(long n) {
    float x[PLAIN_LANES * PLAIN_STEPS], y[PLAIN_LANES * PLAIN_STEPS], sum[PLAIN_LANES] = {0};
    for (int i = 0; i < PLAIN_LANES * PLAIN_STEPS; i++)
        x[i] = 1, y[i] = 1;
    for (; n > 0; n--) {
        touch(x);
        touch(y);
        for (int k = 0; k < PLAIN_STEPS; k++)
            for (int j = 0; j < PLAIN_LANES; j++)
                sum[j] += x[k * PLAIN_LANES + j] * y[k * PLAIN_LANES + j];
    }
    touch(sum);
}

/* What all loops below look like: n turns of `body`. */
#if defined(__x86_64__)
#define LOOP(before, body, after) before "\n1:\n\t" body "decq %0\n\tjnz 1b\n\t" after
#elif defined(__aarch64__)
#define LOOP(before, body) before "\n1:\n\t" body "subs %0, %0, #1\n\tb.ne 1b"
#endif

/* ---- x86-64: operands in registers 0 and 1, results in 2 to 13 ---- */

#if defined(__x86_64__)
static const uint32_t ones_i8 = 0x01010101;
static const float one_f32 = 1; /* sums stop growing at 2^24: never infinite, never denormal */

#define TWELVE(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define FILL_YMM "vpbroadcastd (%1), %%ymm0\n\tvmovdqa %%ymm0, %%ymm1\n\t"
#define FILL_ZMM "vpbroadcastd (%1), %%zmm0\n\tvmovdqa64 %%zmm0, %%zmm1\n\t"
#define ZERO_YMM(r) "vpxor %%ymm" #r ", %%ymm" #r ", %%ymm" #r "\n\t"
#define ZERO_ZMM(r) "vpxorq %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n\t"
#define MADDUBS(r) "vpmaddubsw %%ymm1, %%ymm0, %%ymm" #r "\n\t"
#define DPBUSD(r) "vpdpbusd %%zmm1, %%zmm0, %%zmm" #r "\n\t"
#define FMA_YMM(r) "vfmadd231ps %%ymm1, %%ymm0, %%ymm" #r "\n\t"
#define FMA_ZMM(r) "vfmadd231ps %%zmm1, %%zmm0, %%zmm" #r "\n\t"

#define RUN(before, body, operand)                                                                 \
    __asm__ volatile(LOOP(before, body, "vzeroupper")                                              \
                     : "+r"(n)                                                                     \
                     : "r"(operand)                                                                \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "cc", "memory")

static void dot_avx2(long n) {
    RUN(FILL_YMM, TWELVE(MADDUBS), &ones_i8);
}

static void dot_avx512(long n) {
    RUN(FILL_ZMM TWELVE(ZERO_ZMM), TWELVE(DPBUSD), &ones_i8);
}

static void fma_avx2(long n) {
    RUN(FILL_YMM TWELVE(ZERO_YMM), TWELVE(FMA_YMM), &one_f32);
}

static void fma_avx512(long n) {
    RUN(FILL_ZMM TWELVE(ZERO_ZMM), TWELVE(FMA_ZMM), &one_f32);
}

#define SIX(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define LOAD_TILES                                                                                 \
    "ldtilecfg (%1)\n\ttileloadd (%2,%3,1), %%tmm6\n\ttileloadd (%2,%3,1), %%tmm7\n\t"
#define ZERO_TILE(r) "tilezero %%tmm" #r "\n\t"
#define TILE_DOT(r) "tdpbusd %%tmm7, %%tmm6, %%tmm" #r "\n\t"

/* Six tiles of sums, two of operands, 16 rows of 64 bytes each. The process has the kernel's leave:
 * without it TD_CPU_AMX is not set. Compilers use no tiles of their own, so none is a clobber. */
static void dot_amx(long n) {
    static const _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    static const _Alignas(64) int8_t operand[16 * 64] = {[0] = 1, [17] = 1, [1000] = 1};
    __asm__ volatile(LOOP(LOAD_TILES SIX(ZERO_TILE), SIX(TILE_DOT), "tilerelease")
                     : "+r"(n)
                     : "r"(&shape), "r"(operand), "r"(64L)
                     : "cc", "memory");
}
#endif

/* ---- AArch64: operands in registers 0 and 1, results in 2 to 7 and 16 to 21 ---- */

#if defined(__aarch64__)
#define TWELVE(X) X(2) X(3) X(4) X(5) X(6) X(7) X(16) X(17) X(18) X(19) X(20) X(21)
#define ZERO(r) "movi v" #r ".4s, #0\n\t"
/* sdot vR.4s, v0.16b, v1.16b as a number: assemblers know the word only with a newer architecture. */
#define SDOT(r) ".inst 0x4e819400 + " #r "\n\t"
#define FMLA(r) "fmla v" #r ".4s, v0.4s, v1.4s\n\t"

#define RUN(before, body)                                                                          \
    __asm__ volatile(LOOP(before, body)                                                            \
                     : "+r"(n)                                                                     \
                     :                                                                             \
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", \
                       "v20", "v21", "cc")

static void dot_arm(long n) {
    RUN("movi v0.16b, #1\n\tmovi v1.16b, #1\n\t" TWELVE(ZERO), TWELVE(SDOT));
}

static void fma_arm(long n) {
    RUN("fmov v0.4s, #1.0\n\tfmov v1.4s, #1.0\n\t" TWELVE(ZERO), TWELVE(FMLA));
}

static bool has_sdot(void) {
#if defined(__linux__)
    enum { ASIMDDP = 1 << 20 }; /* HWCAP_ASIMDDP of asm/hwcap.h */
    return getauxval(AT_HWCAP) & ASIMDDP;
#else
    return false;
#endif
}
#endif

bench_rate bench_rate_dot(unsigned cpu, const char *level) {
    (void)cpu, (void)level;
#if defined(__x86_64__)
    if (cpu & TD_CPU_AMX) return (bench_rate){"tdpbusd", 6 * 16 * 16 * 64, 1024, dot_amx};
    if (cpu & TD_CPU_AVX512_VNNI) return (bench_rate){"vpdpbusd zmm", 12 * 64, 8192, dot_avx512};
    if (cpu & TD_CPU_AVX2) return (bench_rate){"vpmaddubsw ymm", 12 * 32, 8192, dot_avx2};
#elif defined(__aarch64__)
    if (strcmp(level, "ref") && has_sdot()) return (bench_rate){"sdot", 12 * 16, 8192, dot_arm};
#endif
    return (bench_rate){"plain C", PLAIN_DOTS, 256, dot_plain};
}

bench_rate bench_rate_fma(unsigned cpu, const char *level) {
    (void)cpu, (void)level;
#if defined(__x86_64__)
    if (cpu & TD_CPU_AVX512) return (bench_rate){"vfmadd231ps zmm", 12 * 16, 8192, fma_avx512};
    if (cpu & TD_CPU_AVX2) return (bench_rate){"vfmadd231ps ymm", 12 * 8, 8192, fma_avx2};
#elif defined(__aarch64__)
    if (strcmp(level, "ref")) return (bench_rate){"fmla", 12 * 4, 8192, fma_arm};
#endif
    return (bench_rate){"plain C", PLAIN_LANES * PLAIN_STEPS, 256, fma_plain};
}
