/* A few GPUs, out of their vendors' data sheets.
 *
 * Assumed: one device, not a pair; the fastest form of the name (SXM, not PCIe); boost clocks; dense
 * rates, half of what sheets give "with sparsity"; fp16 with sums in fp32, which on GeForce cards
 * runs at half the rate of sums in fp16; a GB of memory taken as 1e9 bytes, of which drivers and a
 * runtime keep one or two. Sheets count two operations a multiply-add, bench_limits counts one. */
#include "bench/bench.h"

#include <ctype.h>
#include <string.h>

/* GB, GB/s, TFLOPS in fp16, TOPS in int8 */
#define GPU(name, memory, bandwidth, fp16, int8)                                                   \
    {                                                                                              \
        name, memory * 1e9, {                                                                      \
            bandwidth, int8 * 1e3 / 2, fp16 * 1e3 / 2                                              \
        }                                                                                          \
    }

static const bench_gpu gpus[] = {
    GPU("H100", 80, 3350, 989.4, 1978.9),
    GPU("H200", 141, 4800, 989.4, 1978.9),
    GPU("A100-40GB", 40, 1555, 312, 624),
    GPU("A100-80GB", 80, 2039, 312, 624),
    GPU("L40S", 48, 864, 362.05, 733),
    GPU("L4", 24, 300, 121, 242),
    GPU("RTX-4090", 24, 1008, 165.2, 660.6),
    GPU("RTX-3090", 24, 936, 71, 284),
    GPU("T4", 16, 320, 65, 130),
    GPU("MI300X", 192, 5300, 1307.4, 2614.9),
};
enum { N_GPUS = sizeof gpus / sizeof *gpus, NAME_BYTES = 32 };

const bench_gpu *bench_gpu_get(int i) {
    return i >= 0 && i < N_GPUS ? &gpus[i] : NULL;
}

/* Letters and digits in lower case: "RTX 4090" and "rtx-4090" are one name. */
static void plain(char out[NAME_BYTES], const char *name) {
    int n = 0;
    for (; *name && n + 1 < NAME_BYTES; name++)
        if (isalnum((unsigned char)*name)) out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}

const bench_gpu *bench_gpu_find(const char *name) {
    char wanted[NAME_BYTES], have[NAME_BYTES];
    const bench_gpu *found = NULL;
    int n_found = 0;
    plain(wanted, name);
    for (int i = 0; i < N_GPUS; i++) {
        plain(have, gpus[i].name);
        if (!strcmp(have, wanted)) return &gpus[i];
        if (*wanted && strstr(have, wanted)) {
            found = &gpus[i];
            n_found++;
        }
    }
    return n_found == 1 ? found : NULL;
}
