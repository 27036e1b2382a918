/* The command line: one file a command (run, bench, plan, selftest, inspect, help), and what they share. One table
 * of options (options.c) drives parsing and help alike. Results go to standard output, everything
 * else to standard error. Stands on the public API; bench and plan add the
 * bench room. */
#ifndef TD_CLI_H
#define TD_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tandem.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_MISUSE = 2, CLI_SIGNAL = 128 /* + the signal's number */ };

enum {
    CLI_LIST_MAX = 256,   /* --stop, --logit-bias, bench's -k: at most so many each */
    CLI_SWEEP_MAX = 16,   /* bench's temperatures, rules, trees: the same */
    CLI_ROWS_MAX = 512,   /* --rows: rows of the widest product */
    CLI_BENCH_RUNS = 4,   /* even: as many runs begin with plain as with speculation */
    CLI_MEASURE_RUNS = 5, /* of --roofline, --kernels and --cost */
    CLI_BENCH_PREDICT = 128,
    CLI_PLAN_PROMPT = 512, /* --prompt-tokens, --answer-tokens */
    CLI_PLAN_ANSWER = 128,
    CLI_PLAN_CONTEXT = 4096
};

/* ---- commands and their options ---- */

typedef enum cli_command { CLI_RUN = 1, CLI_BENCH = 2, CLI_INSPECT = 4, CLI_PLAN = 8, CLI_SELFTEST = 16 } cli_command;

/* What bench measures; bits. */
typedef enum cli_mode {
    CLI_COMPARE = 1, /* plain against speculative */
    CLI_ROOFLINE = 2,
    CLI_KERNELS = 4,
    CLI_COST = 8,
    CLI_SAVED = 16, /* --compare of two saved results */
    CLI_REPLOT = 32 /* --plot of one */
} cli_mode;

typedef enum cli_format { CLI_TEXT, CLI_JSON, CLI_CSV, CLI_MD } cli_format;

/* --verify; what it says by default depends on --seed. */
typedef enum cli_verify {
    CLI_VERIFY_DEFAULT,
    CLI_VERIFY_GREEDY,
    CLI_VERIFY_TOKEN,
    CLI_VERIFY_BLOCK,
    CLI_VERIFY_COUPLED
} cli_verify;

typedef struct cli_tree {
    int width, depth; /* candidates a place, places */
} cli_tree;

/* Everything the options can say; unset pointers are NULL. Strings are argv's own, or are freed by
 * cli_args_free where --escape rewrote them. */
typedef struct cli_args {
    cli_command command;
    bool help;
    /* models */
    const char *model, *draft;
    int n_threads, n_ctx; /* n_ctx -1: the library's default; 0: as trained */
    td_kv_type cache_type_k, cache_type_v;
    /* prompt */
    const char *prompt, *prompt_file, *prompts, *system;
    bool chat, escape, no_special;
    /* generating; bias, stops, k are (n_bias), (n_stops), (n_k) */
    int n_predict;
    td_sampling sampling;
    cli_verify verify;
    bool ignore_eos, no_draft, recalibrate;
    td_logit_bias bias[CLI_LIST_MAX];
    const char *stops[CLI_LIST_MAX];
    int k[CLI_LIST_MAX];
    int draft_width, draft_depth; /* --draft-tree; 0: not given */
    int n_bias, n_stops, n_k; /* n_k 0: draft_max, the library's default */
    int draft_max;
    /* bench's sweeps, one value or more each but for trees; the values alone are then the last of them */
    float temperatures[CLI_SWEEP_MAX];
    cli_verify rules[CLI_SWEEP_MAX];
    cli_tree trees[CLI_SWEEP_MAX];
    int n_temperatures, n_rules, n_trees;
    int n_runs;
    /* measuring: rows and contexts are (n_rows), (n_contexts), ascending; none: the mode's own */
    cli_mode mode;
    bool roofline, kernels, cost;
    const char *types;
    int rows[CLI_ROWS_MAX], contexts[CLI_LIST_MAX];
    int n_rows, n_contexts;
    /* planning; 0: not given */
    double params, bits, draft_params, draft_bits; /* bits: a parameter */
    double ram, bandwidth, flops;                  /* bytes, bytes/s, operations/s */
    double acceptance;                             /* -1: not given */
    int n_layers, n_heads, n_kv_heads, head_dim;
    int prompt_tokens, answer_tokens;
    const char *gpu;
    /* output */
    const char *json, *plot, *compare;
    cli_format format;
    bool print_json; /* format is CLI_JSON */
    bool json_flag, quiet, no_progress, tensors, keys;
    /* what the options did not take */
    const char *file;
    void *owned[CLI_LIST_MAX + 2];
    int n_owned;
} cli_args;

/* Parses argv after the command's name. CLI_OK, or CLI_MISUSE after one line on standard error. */
int cli_parse(cli_args *a, cli_command command, int argc, char **argv);
void cli_args_free(cli_args *a);

const char *cli_kv_type_name(td_kv_type type);
/* The rule in use: "greedy", "token" ... */
const char *cli_verify_name(const cli_args *a);
/* Greedy and default are block: what they verify is not sampled, or has been settled. */
td_verify cli_verify_rule(cli_verify rule);
/* Of a value in the caches that -ctk and -ctv ask for, K and V taken as equally wide. */
double cli_kv_bits(const cli_args *a);

/* Each takes parsed arguments and returns the exit code. */
int cli_run(cli_args *a);
int cli_bench(cli_args *a);
int cli_measure(cli_args *a); /* bench --roofline, --kernels, --cost */
int cli_compare(const cli_args *a);    /* bench --compare */
int cli_plot_saved(const cli_args *a); /* bench --plot DIR RESULT */
int cli_inspect(cli_args *a);
int cli_plan(cli_args *a);
int cli_selftest(cli_args *a);

/* ---- help.c ---- */

/* Prints text from column `at` (the cursor stands there), continued at column `indent`; ends the line. */
void cli_print_wrapped(FILE *f, const char *text, int at, int indent);
void cli_print_usage(FILE *f);
void cli_print_help(FILE *f); /* tandem --help */
void cli_print_command_help(FILE *f, cli_command command);
/* The command of that name; 0: there is none. */
cli_command cli_command_find(const char *name);
const char *cli_command_name(cli_command command);
/* The nearest of (n) words to `word`; NULL when nothing is near. */
const char *cli_nearest(const char *word, const char *const *words, int n);

/* One option as help shows it; i counts from 0, false after the last. */
typedef struct cli_option_text {
    const char *group, *names, *arg, *help;
    unsigned commands;
} cli_option_text;
bool cli_option_get(int i, cli_option_text *out);

/* ---- messages (message.c) ---- */

#define CLI_PRINTF __attribute__((format(printf, 1, 2)))
/* "tandem: ..." on one line of standard error, control characters made visible; return the code. */
int cli_failed(const char *fmt, ...) CLI_PRINTF;
int cli_misuse(const char *fmt, ...) CLI_PRINTF; /* adds where the help is */
void cli_message_command(const char *command);   /* whose help misuse points at */
void cli_warn(const char *fmt, ...) CLI_PRINTF;
/* Prints err; misuse for TD_E_ARG, else failed. Silent when a signal asked for the end. */
int cli_error(const td_error *err);
/* Text of a file's making, safe for a terminal: control characters as \n, \x1b ...; at most max
 * characters, then "..."; max 0: all. */
void cli_print_safe(FILE *f, const char *text, size_t len, size_t max);
/* "1.12 GB", "36.9 MB", "812 bytes"; in buf, which is returned. */
const char *cli_size(char buf[24], uint64_t bytes);

/* ---- progress (progress.c): one line on a terminal, erased afterwards ---- */

void cli_progress_init(bool wanted); /* stays silent where standard error is no terminal */
/* Shows "what  43 %  480 of 1117 unit"; nothing in the first 300 ms of each thing. total 0: only
 * `what`. */
void cli_progress(const char *what, double done, double total, const char *unit);
void cli_progress_end(void); /* erases the line; the next thing starts anew */

/* ---- standard input and output (stdio.c) ---- */

/* Keeps 0, 1 and 2 occupied, so that no file opened later takes the place of a closed one. */
void cli_stdio_init(void);
/* All of standard input / of a file, any bytes; *text is the caller's, *len bytes and a NUL. */
int cli_read_stdin(char **text, size_t *len);
int cli_read_file(const char *path, char **text, size_t *len);
/* Writes all of it to standard output now. false: errno says why. */
bool cli_write(const char *text, size_t len);
/* CLI_OK when everything printed to standard output arrived, else one line and CLI_FAILED. */
int cli_finish_stdout(void);

/* Prints it to standard output; takes root. */
int cli_json_print(json_t *root);
/* --json FILE. Check before the work, write after it: into a file beside it, then renamed, so that
 * a reader never sees half of it. Devices and pipes are written in place. */
int cli_json_check(const char *path);
int cli_json_write(const char *path, json_t *root); /* takes root */
/* A finite number, else null. */
json_t *cli_json_number(double v);
/* Text that may not be UTF-8 (a path, a file's word): the bytes that stand in the way become '?'.
 * NULL gives null. */
json_t *cli_json_text(const char *text);

/* ---- stopping (stop.c): Ctrl-C and SIGTERM end the work after the current step, twice at once
 * ---- */

void cli_stop_init(void);
void cli_stop_session(td_session *s); /* the one to cancel; NULL: none */
int cli_stop_signal(void);            /* 0: nobody asked */

/* ---- loading (load.c) ---- */

typedef struct cli_models {
    td_model *target, *draft; /* draft NULL: none */
    const char *cpu;          /* "avx512" ... */
} cli_models;

/* Loads -m and, with `draft`, -md, with progress. */
int cli_models_open(cli_models *m, const cli_args *a, bool draft);
void cli_models_close(cli_models *m);

/* A text to continue, or messages to answer. */
typedef struct cli_prompt {
    char *text; /* owned; NULL where there are messages */
    size_t len;
    td_message *messages; /* (n_messages), owned; their texts are source's */
    size_t n_messages;
    const char *id, *set, *lang; /* source's, or static; NULL: not said */
    json_t *source;              /* owned; what a file of prompts says */
    td_token *tokens; /* owned; n of them */
    size_t n;
} cli_prompt;

/* -p, -f or standard input, in this order. */
int cli_prompt_read(cli_prompt *p, const cli_args *a);
/* Wraps (messages, and with --chat the text) and tokenises; an empty text becomes BOS where the
 * model has one. */
int cli_prompt_encode(cli_prompt *p, const cli_args *a, const td_model *m);
void cli_prompt_close(cli_prompt *p);
/* Makes ready for TD_DRAFT_AUTO: reads what passes cost on this machine, or measures it, with progress. */
int cli_calibrate(td_session *s, const cli_args *a);
/* --prompts (prompts.c): appends the prompts of each file or set named, in order, to *list, (*n),
 * which begins NULL and empty; close each and free the list, also after a failure. */
int cli_prompts_read(cli_prompt **list, int *n, const cli_args *a);

/* The sets of bench/prompts, built in by embed.py: the bytes of their files. */
typedef struct cli_prompt_set {
    const char *name;
    const unsigned char *text;
    size_t len;
} cli_prompt_set;
enum { CLI_N_PROMPT_SETS = 7 };
extern const cli_prompt_set cli_prompt_sets[CLI_N_PROMPT_SETS];


/* Says what is wrong with --logit-bias ids for this model. */
int cli_check_bias(const cli_args *a, const td_model *m);
/* Fills in everything but draft_max and the callbacks; borrows a. */
void cli_generate_options(td_generate_options *opt, const cli_args *a);

/* ---- what bench and plan share (measure.c, sizes.c); their types are bench/bench.h's ---- */

typedef struct bench_probe bench_probe;
typedef struct bench_sizes bench_sizes;
typedef struct bench_cost bench_cost;
typedef struct bench_range bench_range;

/* The probe of this machine, with -t threads. */
int cli_probe_open(bench_probe **probe, const cli_args *a);
/* Asked before every step of a measurement: shows progress; false after Ctrl-C. */
bool cli_tick(void *user, const char *what, int done, int total);
/* Of a model whose architecture is known. */
void cli_file_sizes(bench_sizes *out, const td_file *f);
/* Of the file at `path` as it lies in memory, loaded as m. */
int cli_model_sizes(bench_sizes *out, const char *path, const td_model *m);
/* Fills in what a pass behind c->n_context positions reads and multiplies. */
void cli_cost_sizes(bench_cost *c, const bench_sizes *s, const cli_args *a);
json_t *cli_json_range(const bench_range *r);

/* ---- saved results of bench (results.c) ---- */

/* What a case of a result measured. */
typedef struct cli_arm {
    int k, width; /* k: 0 plain, TD_DRAFT_AUTO */
    double temperature;
    const char *verify; /* the result's, or static */
} cli_arm;

/* Reads and checks: "all" and each prompt's "cases" are lists of cases. NULL after a message; else the caller's. */
json_t *cli_result_read(const char *path);
/* Of a case, or of the timeline; what it does not say is taken from the result, or usual. */
cli_arm cli_arm_of(const json_t *result, const json_t *c);
/* "k 4", "tree 2x4 T 0.8 token"; in buf, which is returned. */
const char *cli_arm_name(char buf[64], const cli_arm *a);
/* The number of that name; NAN: there is none. */
double cli_json_get(const json_t *o, const char *key);

/* ---- pictures of a result (plot.c) ---- */

/* --plot DIR: makes the folder and looks for gnuplot, before minutes of measuring; NULL is fine. */
int cli_plot_check(const char *dir);
/* Draws what the result has figures for, as PNG and SVG; says on standard error what is left out. */
int cli_plot(const char *dir, const json_t *result);

/* ---- the meters (report.c) ---- */

typedef struct cli_report {
    const cli_args *args;
    const cli_models *models;
    const td_session *session;
    const td_stats *stats;
    int draft_max;
    bool adapt; /* draft_max is the most */
} cli_report;

void cli_report_print(FILE *f, const cli_report *r);
json_t *cli_report_json(const cli_report *r); /* NULL: out of memory */
json_t *cli_json_versions(const char *cpu);
json_t *cli_json_model(const td_model *m); /* json null for NULL */
uint64_t cli_memory_peak(void);

#endif
