/* Measuring: how fast this machine reads memory, and plain against speculative decoding in one
 * process, in turn. Used by `tandem bench`; knows the public API and src/base, nothing else. */
#ifndef TD_BENCH_H
#define TD_BENCH_H

#include "base/base.h"
#include "tandem.h"

/* ---- the read limit: what n threads can read from memory when they do nothing else ---- */

typedef struct bench_probe bench_probe;

/* Maps and fills about size_bytes (less where memory is short, at least 128 MiB or TD_E_MEMORY).
 * The pool is the probe's own. */
td_code bench_probe_open(bench_probe **out, int n_threads, size_t size_bytes, td_error *err);
void bench_probe_close(bench_probe **p);
size_t bench_probe_size(const bench_probe *p);
/* Reads everything once; GB/s (1e9 bytes). */
double bench_probe_read(bench_probe *p);

/* ---- order statistics of a few numbers ---- */

typedef struct bench_range {
    double min, median, max; /* NAN when there were no numbers */
} bench_range;
/* Sorts v in place. An even count gives the mean of the two in the middle. */
bench_range bench_range_of(double *v, int n);

/* ---- plain and speculating in turn ---- */

typedef struct bench_plan {
    const td_token *prompt; /* (n_prompt) */
    size_t n_prompt;
    const int *k; /* (n_k) draft lengths; plain decoding comes on its own */
    int n_k;
    int n_runs; /* of each; run 1 goes plain, k[0], ..., run 2 back again, and so on */
    const td_generate_options *generate; /* draft_max and the callbacks are set here */
} bench_plan;

typedef struct bench_case {
    int k;                                     /* 0: plain */
    bench_range tok_per_s, ratio;              /* ratio: to plain in the same run */
    int64_t drafted, accepted, rounds, tokens; /* over all runs */
    double draft_ms, verify_ms, sample_ms;     /* over all runs */
    int n_tokens;                              /* of the last run */
    bool same; /* every run gave exactly the tokens of the first plain run */
} bench_case;

/* cases: (1 + n_k), plain first. tick (may be NULL) is called before each generation with the
 * number done and in all; false ends with TD_E_CANCELLED, as a cancelled session does. */
td_code bench_compare(td_session *s, const bench_plan *plan, bench_case *cases,
                      bool (*tick)(void *user, int done, int total), void *user, td_error *err);

/* Decoded tokens a second, as `tandem run` prints it. NAN for no tokens. */
double bench_tok_per_s(const td_stats *stats);

/* ---- what a pass of m rows costs, against the read limit ---- */

enum { BENCH_MAX_WIDTHS = 8 };

typedef struct bench_passes {
    int n_context; /* positions behind which it was measured */
    int n_widths, m[BENCH_MAX_WIDTHS];
    bench_range ms[BENCH_MAX_WIDTHS];     /* over the rounds */
    bench_range growth[BENCH_MAX_WIDTHS]; /* T(m) / T(1) of the same round */
    bench_range read_gb_per_s;            /* the probe, between the passes */
    bench_range decode_gb_per_s;          /* step_bytes / T(1) */
    bench_range share; /* decode over the faster of the two probe reads around it */
} bench_passes;

/* Rounds of: read, T(1), read, then the other widths. Set n_context, n_widths and m (m[0] = 1)
 * before; the rest is written. */
td_code bench_measure_passes(td_session *s, uint64_t step_bytes, bench_probe *probe, int n_rounds,
                             bench_passes *out, bool (*tick)(void *user, int done, int total),
                             void *user, td_error *err);

#endif
