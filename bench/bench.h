/* Measuring: how fast this machine reads and computes, how near to that the kernels and the passes
 * come, and plain against speculative decoding, all in one process, in turn; and what to expect of a
 * model from that. Used by `tandem bench` and `tandem plan`; knows the public API, the kernels'
 * table and src/base, nothing else. */
#ifndef TD_BENCH_H
#define TD_BENCH_H

#include "base/base.h"
#include "format/format.h" /* td_type */
#include "tandem.h"

/* ---- the limits: what n threads can read, or compute, when they do nothing else ---- */

typedef struct bench_probe bench_probe;

/* Maps and fills about size_bytes (less where memory is short, at least 128 MiB or TD_E_MEMORY).
 * The pool is the probe's own. TD_E_ARG: TANDEM_CPU is an unknown word. */
td_code bench_probe_open(bench_probe **out, int n_threads, size_t size_bytes, td_error *err);
void bench_probe_close(bench_probe **p);
size_t bench_probe_size(const bench_probe *p);
int bench_probe_threads(const bench_probe *p);
const char *bench_probe_level(const bench_probe *p); /* the kernels': "avx2" ...; static */
/* Reads everything once; GB/s (1e9 bytes). */
double bench_probe_read(bench_probe *p);
/* Multiply-adds a second (1e9) of all threads in registers, over 10 ms: int8 with the widest dot
 * instruction of the level, float with its widest multiply-add. TANDEM_CPU lowers both. */
double bench_probe_dot(bench_probe *p);
double bench_probe_fma(bench_probe *p);
const char *bench_probe_dot_name(const bench_probe *p); /* the instruction, "plain C"; static */
const char *bench_probe_fma_name(const bench_probe *p);

/* The highest of what was seen. A limit is what the machine can do, so the best of several looks
 * counts: on a busy machine a single one falls below what decoding itself reads a moment later. */
typedef struct bench_limits {
    double read_gb_per_s, dot_gmac_per_s, fma_gmac_per_s;
} bench_limits;
/* Measures each once more, reading n_reads times. */
void bench_limits_look(bench_limits *best, bench_probe *p, int n_reads);
void bench_limits_raise(bench_limits *best, const bench_limits *by);
/* Milliseconds that moving the bytes takes at best, or the arithmetic, whichever is longer. Integer
 * and float multiply-adds use the same units one after the other, so their times add up. */
double bench_roofline_ms(const bench_limits *l, double bytes, double int_macs, double float_macs);

/* A few devices by name (gpu.c says what is assumed); NULL after the last. */
typedef struct bench_gpu {
    const char *name;
    double memory_bytes;
    bench_limits limits; /* dot: int8, fma: fp16 */
} bench_gpu;
const bench_gpu *bench_gpu_get(int i);
/* Case, spaces and hyphens do not count, and a part that only one name has is enough: "4090". NULL:
 * none, or several. */
const bench_gpu *bench_gpu_find(const char *name);

/* Asked before each step: what is measured, steps done and in all. False ends with TD_E_CANCELLED. */
typedef bool bench_tick_fn(void *user, const char *what, int done, int total);

/* ---- what to expect of a model on a machine, before anything is loaded ---- */

/* What passes of a model move and compute. Counts, as doubles. */
typedef struct bench_sizes {
    double weight_bytes, step_bytes; /* all weights; those that a pass reads */
    double int_macs, float_macs;     /* multiply-adds of a row: quantised and float matrices */
    double prefill_int_macs, prefill_float_macs; /* the same without the output matrix */
    double kv_values, window_values; /* K and V of a position: layers of full attention, windowed */
    double window;                   /* positions the latter see; 0: there are none */
    double group;                    /* query heads a KV head */
} bench_sizes;

/* Of the KV behind n_context positions, `bits` a value. */
double bench_kv_bytes(const bench_sizes *s, double bits, double n_context);

enum { BENCH_CACHES = 3, BENCH_BATCHES = 6, BENCH_SPEC_BATCHES = 3, BENCH_SPEC_K = 8 };

typedef struct bench_forecast_in {
    bench_sizes target, draft; /* draft.weight_bytes 0: there is none */
    bench_limits limits;       /* above 0 */
    double memory_bytes;
    double kv_bits; /* a value in the caches takes, in all that is timed */
    int n_context, n_prompt, n_answer; /* tokens, above 0 */
    double acceptance;                 /* of a drafted token, 0 to 1 */
} bench_forecast_in;

/* A pass by its roofline. float_macs: those of float matrices and of attention. */
typedef struct bench_pass {
    double bytes, int_macs, float_macs;
    double read_ms, arithmetic_ms, ms; /* ms: the longer of the two */
} bench_pass;

/* KV of target and draft together, by the width of a value. */
typedef struct bench_cache {
    double bits;                       /* 16, 8.5, 4.5 */
    double token_bytes, window_bytes;  /* a position in the full layers; the windows, once full */
    double context_bytes;              /* both, behind n_context positions */
    double longest;                    /* positions that memory holds; INFINITY: windows only */
} bench_cache;

/* A row for each of so many streams, all n_context long. */
typedef struct bench_batch {
    int streams; /* 1, 2, 4, 8, 16, 32 */
    bench_pass pass;
    double tok_per_s; /* of all streams */
} bench_batch;

/* S(k) = E[N] / (k c + v(k + 1)), c = draft_ms / plain_ms (Leviathan et al., arXiv 2211.17192, with
 * the pass of k + 1 rows not for free). Sampling and accepting count as nothing. */
typedef struct bench_speculation {
    int streams;                               /* 1, 4, 16 */
    double plain_ms, draft_ms;                 /* a row for each stream: target, draft */
    double v[BENCH_SPEC_K];                    /* [k - 1]: T(k + 1 rows) / T(1) of the target */
    double speedup[BENCH_SPEC_K];              /* [k - 1]: S(k) */
    int best_k;                                /* 0: no length gains */
} bench_speculation;

typedef struct bench_forecast {
    double free_bytes; /* memory less the weights; below 0: they do not fit */
    bench_cache caches[BENCH_CACHES];
    bench_pass empty, full, answer; /* one row behind 0, n_context and, amid the answer, n_prompt +
                                       n_answer / 2 positions */
    bench_pass prefill;             /* all of the prompt; no logits */
    double answer_ms;               /* n_answer tokens, plainly */
    bench_batch batch[BENCH_BATCHES];
    double streams_fit;  /* contexts of n_context that memory holds */
    double streams_turn; /* from so many on arithmetic is the longer side; INFINITY: never */
    double expected[BENCH_SPEC_K]; /* [k - 1]: E[N] = (1 - a^(k+1)) / (1 - a), tokens a pass */
    bench_speculation speculation[BENCH_SPEC_BATCHES]; /* zero without a draft */
} bench_forecast;

/* Pure: no allocation, cannot fail. */
void bench_forecast_make(bench_forecast *out, const bench_forecast_in *in);

/* ---- order statistics of a few numbers ---- */

typedef struct bench_range {
    double min, median, max; /* NAN when there were no numbers */
} bench_range;
/* Sorts v in place. An even count gives the mean of the two in the middle. */
bench_range bench_range_of(double *v, int n);

typedef struct bench_interval {
    double low, high; /* NAN: too few numbers */
} bench_interval;
/* Of the median of v[0..n): 95 %, by the bootstrap; NAN for fewer than three. Reads v only. */
bench_interval bench_bootstrap(const double *v, int n);

/* ---- energy: RAPL's counters of the processor packages, where they can be read ---- */

enum { BENCH_MAX_PACKAGES = 16 };

typedef struct bench_package {
    char zone[256];             /* its folder */
    uint64_t last_uj, range_uj; /* of its counter, which turns to 0 behind range_uj */
} bench_package;

typedef struct bench_energy {
    bench_package package[BENCH_MAX_PACKAGES];
    int n_packages; /* 0: nothing can be read */
} bench_energy;

/* folder NULL: /sys/class/powercap. Of its intel-rapl:N those that are named package...; all of them can be read, or
 * none counts. */
void bench_energy_open(bench_energy *e, const char *folder);
/* Joules of all packages since the last lap, or open; of everything that ran on them. NAN: none can be read. Not for
 * laps in which a counter turns twice (an hour at 70 W). */
double bench_energy_lap(bench_energy *e);

/* ---- plain and speculating in turn ---- */

/* What is timed: plain decoding, or drafts of one shape under one rule, at one temperature. */
typedef struct bench_arm {
    float temperature;
    td_verify verify; /* without meaning at temperature 0 */
    int k;            /* length of the drafts; 0: plain; TD_DRAFT_AUTO */
    int width;        /* candidates for each place: over 1 a tree; else 1 */
} bench_arm;

/* Whether this arm's text must be that of the plain arm of its temperature. */
bool bench_arm_repeats(const bench_arm *a);
/* Rows of the arm's widest pass; of TD_DRAFT_AUTO 0. */
int bench_arm_rows(const bench_arm *a);
/* The plain arm that arm i is compared with: the last one up to i. */
int bench_plain_of(const bench_arm *arms, int i);

/* The rounds of one generation. */
typedef struct bench_timeline {
    td_round *rounds; /* (n), owned: free() it */
    size_t n, cap;
    double plain_ms; /* decode time of the plain arm's text in the same run */
} bench_timeline;

typedef struct bench_plan {
    const td_token *prompt; /* (n_prompt) */
    size_t n_prompt;
    const bench_arm *arms; /* (n_arms); each temperature's plain one before its others */
    int n_arms;
    int n_runs; /* of each; run 1 goes through the arms in order, run 2 back again, and so on */
    const td_generate_options *generate; /* what an arm says, and the callbacks, are set here */
    bench_energy *energy;                /* NULL: nobody asks */
    bench_timeline *timeline;            /* of arm timeline_arm in run 1; NULL: nobody asks */
    int timeline_arm;
} bench_plan;

typedef struct bench_case {
    bench_arm arm;
    bench_range tok_per_s, ratio;  /* ratio: to plain_of in the same run */
    bench_interval interval;       /* of the ratio's median */
    double ttft_ms;                /* median over the runs that read the prompt anew: the first two */
    double itl_ms_p50, itl_ms_p95; /* medians over the runs */
    int64_t drafted_per_pos[TD_MAX_DRAFT], accepted_per_pos[TD_MAX_DRAFT]; /* over all runs */
    int64_t drafted, accepted, rounds, tokens;                             /* over all runs */
    double draft_ms, verify_ms, sample_ms;                                 /* over all runs */
    double joules; /* over all runs, from the end of the first round to that of the last; NAN: can't be read */
    int64_t metered_tokens; /* tokens of that time */
    int n_tokens;           /* of the last run */
    bool same; /* every run gave the tokens of the first plain run of the temperature; only where bench_arm_repeats */
} bench_case;

/* cases: (n_arms). tick (may be NULL) is called before each generation with the number done and in all; false ends with
 * TD_E_CANCELLED, as a cancelled session does. */
td_code bench_compare(td_session *s, const bench_plan *plan, bench_case *cases,
                      bool (*tick)(void *user, int done, int total), void *user, td_error *err);

/* Decoded tokens a second, as `tandem run` prints it. NAN for no tokens. */
double bench_tok_per_s(const td_stats *stats);

/* A round of k drafted tokens, and the plain one it is compared with. Milliseconds. */
typedef struct bench_forecast_round {
    int k;
    double tokens;     /* that a round commits: 1 + accepted */
    double plain_ms, verify_ms; /* T(1), T(k + 1) */
    double draft_ms;   /* a step of the draft */
    double plain_sample_ms, sample_ms;
} bench_forecast_round;
/* The speed-up: S(k) = E[N] / (k c + v(k + 1) + o) with all of it in units of a plain round. */
double bench_predict(const bench_forecast_round *f);

/* ---- T(m), the time of a pass by its rows, against the roofline ---- */

enum { BENCH_MAX_ROUNDS = 1000 };

typedef struct bench_cost_point {
    int m;          /* rows of the pass */
    bench_range ms; /* over the rounds */
    bench_range roofline_ms;
    bench_range over;   /* T(m) / roofline of the same round */
    bench_range growth; /* T(m) / T(1) of the same round; NAN where 1 is not among the widths */
    bench_range share;  /* of the round's read limit that moving the bytes in T(m) takes */
    double gb_per_s;    /* weights and KV over the median */
} bench_cost_point;

typedef struct bench_cost {
    /* set before */
    int n_context;   /* positions behind which it is measured */
    const int *rows; /* (n_rows), ascending; borrowed */
    int n_rows, n_rounds;
    uint64_t weight_bytes, kv_bytes; /* that a pass reads; KV behind n_context positions */
    uint64_t int_macs, float_macs;   /* of one row: quantised and float matrices */
    bool with_draft;                 /* its step is measured, too */
    /* written */
    bench_range read_gb_per_s, dot_gmac_per_s, fma_gmac_per_s; /* the rounds' limits */
    bench_range draft_ms, draft_share;                         /* a step of the draft, and over T(1) of the round */
    bench_cost_point *points;                                  /* (n_rows), the caller's */
} bench_cost;

/* Rounds over all widths, up and down in turn (ABBA), the limits measured between the passes. A
 * context longer than the last one goes on from it. */
td_code bench_measure_cost(td_session *s, bench_probe *probe, bench_cost *c, bench_tick_fn *tick,
                           void *user, td_error *err);

/* The same with other work between the rounds, for figures that are to be compared with that work's:
 * open, up to c->n_rounds rounds, close. c is borrowed; close writes to it what the rounds gave, where
 * there were any. */
typedef struct bench_costing bench_costing;
td_code bench_costing_open(bench_costing **out, bench_cost *c, td_error *err);
td_code bench_costing_round(bench_costing *x, td_session *s, bench_probe *probe, bench_tick_fn *tick,
                            void *user, td_error *err);
void bench_costing_close(bench_costing **x);

typedef struct bench_prefill {
    int n_tokens, n_rounds; /* set before */
    uint64_t int_macs,
        float_macs; /* of one row, without the output matrix: prefill needs no logits; set
                                      before */
    bench_range ms, tok_per_s, gmac_per_s, dot_gmac_per_s;
    bench_range share; /* of what the arithmetic limit allows, in the same round */
} bench_prefill;
/* Prefills of n_tokens, each of another text. Overwrites the caches. */
td_code bench_measure_prefill(td_session *s, bench_probe *probe, bench_prefill *p, int n_vocab,
                              bench_tick_fn *tick, void *user, td_error *err);

/* ---- one product, weights (n_out, n_in) by m rows, against the roofline ---- */

typedef struct bench_kernels bench_kernels;

typedef struct bench_product {
    td_type type;
    int n_out, n_in;
} bench_product;

typedef struct bench_product_point {
    int m;
    bench_range ms;              /* of the whole product, over the rounds */
    double roofline_ms;          /* of the best limits seen around the rounds */
    bench_range reached;         /* roofline / time */
    bool by_memory;              /* the bytes are the longer side of the roofline */
    double gb_per_s, gmac_per_s; /* weights read and multiply-adds done, over the median time */
} bench_product_point;

/* Room for matrices of memory_bytes together (copies of a smaller one, so that it always comes from
 * memory) and for passes of max_rows. Borrows the probe and uses its threads. */
td_code bench_kernels_open(bench_kernels **out, bench_probe *probe, size_t memory_bytes,
                           int max_rows, td_error *err);
void bench_kernels_close(bench_kernels **k);
/* Bytes that exceed every cache of this machine several times. */
size_t bench_beyond_caches(void);
/* Whether the level has a product for this type and n_in is a multiple of its block. */
bool bench_kernels_can(const bench_kernels *k, const bench_product *p);
/* points: (n_rows). Rounds over all widths, up and down in turn, the limits measured between; `seen`
 * is raised to the best of them. TD_E_MEMORY leaves k good for smaller products. */
td_code bench_kernels_measure(bench_kernels *k, const bench_product *p, const int *rows, int n_rows,
                              int n_rounds, bench_product_point *points, bench_limits *seen,
                              bench_tick_fn *tick, void *user, td_error *err);

#endif
