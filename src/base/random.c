/* Random numbers: a seed from the system, and draws at a counter. */
#include "base/base.h"

#include <sys/random.h>

/* counter = (index low, index high, lane, stream): streams and lanes can never meet. */
double td_uniform(uint64_t seed, td_stream stream, uint64_t index, uint32_t lane) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), lane, (uint32_t)stream};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    td_philox(counter, key, r);
    return td_unit((uint64_t)r[0] << 32 | r[1]);
}

uint64_t td_random_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = td_now_ns();
    return seed;
}
