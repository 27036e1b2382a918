/* Counts what a program allocates: link with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc. For one file of a
 * program only. */
#ifndef TESTS_COUNT_ALLOCATIONS_H
#define TESTS_COUNT_ALLOCATIONS_H

#include <stddef.h>

static int n_allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n) {
    n_allocations++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    n_allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    n_allocations++;
    return __real_realloc(p, n);
}

#endif
