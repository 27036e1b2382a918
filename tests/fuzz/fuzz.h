/* What a fuzzer is here: one target (a parser that takes pointer and length), its seeds, and a
 * mutator that knows the format. -Dfuzz=libfuzzer links each with libFuzzer, which calls the
 * functions named LLVM...; -Dfuzz=none links fuzz_main.c, whose main replays files and runs seeded
 * mutations of the seeds.
 *
 * To add a fuzzer: fuzz_NAME.c with the four functions, its folder corpus_NAME for what was once
 * found, and a line in meson.build. */
#ifndef TD_FUZZ_H
#define TD_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* The target. Aborts or trips a sanitizer on a fault; always returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* The target counts here the inputs that it took as good: every seed, and enough of the mutations
 * to say that they get past the first check. */
extern uint64_t fuzz_n_good;

/* Seeds 0 to fuzz_n_seeds() - 1, made in code: appends one to an empty buffer. */
size_t fuzz_n_seeds(void);
void fuzz_seed(size_t i, td_buf *out);

/* Changes data[0, size) in place, in at most max_size bytes; returns the new size. A pure function
 * of its arguments. */
size_t fuzz_mutate(uint8_t *data, size_t size, size_t max_size, uint64_t seed);

/* The mutators' random numbers (splitmix64): a state that the caller seeds. */
static inline uint64_t fuzz_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline size_t fuzz_below(uint64_t *state, size_t n) { /* n > 0 */
    return (size_t)(fuzz_next(state) % n);
}

#endif
