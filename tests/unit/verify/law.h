/* Laws worked out: every branch of a rule with its share, over small random rows.
 *
 * A rule's body is run with a source of random numbers that the test controls. Between two numbers
 * asked for, what happens is a step function of the number; halving the 2^52 values that td_unit
 * can give finds each step exactly, and so the probability of each outcome. No part of the rule is
 * written a second time here. */
#ifndef TESTS_VERIFY_LAW_H
#define TESTS_VERIFY_LAW_H

#include "verify/verify_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MAX_V = 4, TAPE = 16 };

static const uint64_t GRID = (uint64_t)1 << 52;

/* A source of given numbers, then of questions: the first number that is not on the tape is noted.
 */
typedef struct tape {
    double u[TAPE];
    int n, used;
    td_stream asked;
    uint64_t asked_at;
} tape;
verify_source tape_source(tape *t); /* borrows t; position 100, lane 9 */

/* run: the rule on a proposal. end: one of its outcomes; the shares of all sum to 1. */
typedef struct branches {
    void (*run)(void *arg, const verify_source *from, verify_result *out);
    void (*end)(void *arg, const verify_result *r, double share);
    void *arg;
    uint64_t n_runs; /* counts up */
} branches;
void branches_walk(branches *b);

/* The share of each token, (v) out, when verify_draw_next draws from a row; false: nothing is left.
 */
bool draw_shares(const float *row, int v, const int32_t *taken, int n_taken, double *share);

/* The probability of a token under a row, which need not sum to 1. */
double row_prob(const float *row, int v, int token);

/* ---- random rows ---- */

typedef enum rows {
    NORMALISED, /* floats that sum to 1 only to rounding */
    DYADIC,     /* multiples of 1/64: exact sums */
    WITH_ZEROS,
    ONE_HOT,
    SAME,     /* q = p */
    DISJOINT, /* q has mass only where p has none */
    SCALED,   /* sums far from 1 */
    TINY,     /* beside probabilities down to 1e-30 */
    N_ROWS
} rows;

double number(uint64_t *at); /* in (0, 1), a function of *at, which counts up */
void random_rows(rows kind, int v, uint64_t *at, float *p, float *q);

/* Prefixes in order of length, then as numbers in base v. */
int prefix_row(int v, const int32_t *tokens, int n);

/* ---- laws drawn ---- */

/* Chi-square as a standard normal (Wilson and Hilferty). */
double chi_as_normal(double chi, double df);

#endif
