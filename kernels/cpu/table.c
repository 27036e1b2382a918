/* Picks the level. */
#include "kernels/cpu/levels.h"

#include <pthread.h>

void kern_table_init(kern_table *k, unsigned cpu) {
    *k = (kern_table){0};
    kern_init_ref(k);
#if defined(__x86_64__)
    if (!(cpu & TD_CPU_AVX2)) return;
    kern_init_avx2(k);
    if (!(cpu & TD_CPU_AVX512_VNNI)) return;
    kern_init_avx512(k);
#elif defined(__aarch64__)
    if (cpu & TD_CPU_DOTPROD) kern_init_neon(k);
#else
    (void)cpu;
#endif
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

td_code kern_table_get(const kern_table **out, td_error *err) {
    static kern_table table;
    unsigned cpu;
    td_code rc = td_cpu_features(&cpu, err);
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    if (!table.level) kern_table_init(&table, cpu);
    pthread_mutex_unlock(&lock);
    *out = &table;
    return TD_OK;
}
