/* Do both caches hold the committed tokens and nothing else? Looked at from outside: what a cache answers is compared,
 * bit by bit, with what a second one answers that has read the same text plainly. */
#ifndef TD_AUDIT_H
#define TD_AUDIT_H

#include "spec/spec.h"

typedef struct audit {
    spec *s; /* borrowed, as all; over t and d */
    target *t, *shadow_t; /* the second of the same model; passes of one row or more */
    draft *d, *shadow_d;  /* the second of the same kind */
    const int32_t *prompt;
    int n_prompt, n_longest; /* texts grow up to so many tokens, n_prompt + 20 or more */
    uint64_t seed;
    bool (*tick)(void *user, int done, int total); /* NULL: nobody asks */
    void *user;
} audit;

/* n_steps rounds, cuts, new texts and cancelled ones, at random, under every rule, with many lengths and trees, and with
 * what pays by the costs that s was given, if it was; both caches are looked at after each. *n_wrong: after how many of them one was not what it should be. */
td_code audit_run(const audit *a, int n_steps, int *n_wrong, td_error *err);

#endif
