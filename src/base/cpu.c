/* What this machine has: time, cores, instruction sets. */
#include "base/base.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t td_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Whole cores of the cgroup's quota, rounded up; 0 where there is none. */
static int cgroup_quota(void) {
    long long quota = -1, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re"); /* v2: "max 100000" or "150000 100000" */
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) != 2) quota = -1;
        fclose(f);
    } else if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re"))) { /* v1 */
        if (fscanf(f, "%lld", &quota) != 1) quota = -1;
        fclose(f);
        if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re"))) {
            if (fscanf(f, "%lld", &period) != 1) period = 0;
            fclose(f);
        }
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int td_cpu_count(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN)
                                                   : CPU_COUNT(&set);
    int quota = cgroup_quota();
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Linux hands out the tile registers only on request (XTILEDATA is feature 18). */
static bool amx_granted(void) {
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}

/* One bit of CPUID, for the names that clang 14's __builtin_cpu_supports lacks. Whether the
 * operating system saves the registers is not in it: AVX2's test and amx_granted answer that. */
static bool cpuid_bit(unsigned leaf, bool in_edx, int bit) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(leaf, 0, &a, &b, &c, &d)) return false;
    return (in_edx ? d : c) >> bit & 1;
}

static unsigned cpu_has(void) {
    enum { F16C = 29, AMX_TILE = 24, AMX_INT8 = 25 };
    unsigned f = 0;
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          cpuid_bit(1, false, F16C)))
        return f;
    f |= TD_CPU_AVX2;
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")))
        return f;
    f |= TD_CPU_AVX512;
    if (!__builtin_cpu_supports("avx512vnni")) return f;
    f |= TD_CPU_AVX512_VNNI;
    if (cpuid_bit(7, true, AMX_TILE) && cpuid_bit(7, true, AMX_INT8) && amx_granted())
        f |= TD_CPU_AMX;
    return f;
}

#define LEVEL_WORDS "ref, avx2, avx512 or amx"
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

static unsigned cpu_has(void) {
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? TD_CPU_DOTPROD : 0;
}

#define LEVEL_WORDS "ref or neon"
#else
static unsigned cpu_has(void) {
    return 0;
}

#define LEVEL_WORDS "ref"
#endif

td_code td_cpu_features(unsigned *out, td_error *err) {
    static const struct {
        const char *name;
        unsigned mask;
    } levels[] = {
        {"ref", 0},
#if defined(__x86_64__)
        {"avx2", TD_CPU_AVX2},
        {"avx512", TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512_VNNI},
        {"amx", TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512_VNNI | TD_CPU_AMX},
#elif defined(__aarch64__)
        {"neon", TD_CPU_DOTPROD},
#endif
    };
    unsigned mask = ~0u;
    const char *want = getenv("TANDEM_CPU");
    if (want && *want) {
        size_t i = 0, n = sizeof levels / sizeof *levels;
        while (i < n && strcmp(levels[i].name, want))
            i++;
        if (i == n)
            return td_fail(err, TD_E_ARG, "TANDEM_CPU is '%s'; it may be " LEVEL_WORDS, want);
        mask = levels[i].mask;
    }
    *out = cpu_has() & mask;
    return TD_OK;
}
