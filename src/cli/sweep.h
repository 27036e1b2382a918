/* tandem bench without a mode: prompts by arms. bench.c runs them, bench_report.c shows them. */
#ifndef TD_CLI_SWEEP_H
#define TD_CLI_SWEEP_H

#include "bench/bench.h"
#include "cli/cli.h"

/* The prompts of one set. */
typedef struct sweep_set {
    const char *name; /* a prompt's */
    int n_prompts;
    bench_case *cases; /* (n_arms), owned */
} sweep_set;

typedef struct sweep {
    const cli_args *args;
    cli_models models;
    cli_prompt *prompts; /* (n_prompts), owned */
    int n_prompts;
    bench_arm *arms; /* (n_arms), owned; for each temperature plain, then each rule and shape */
    int n_arms;
    td_session *session;
    bench_probe *probe;
    bench_energy energy;
    bench_case *cases; /* (n_prompts, n_arms), owned */
    bench_case *all;   /* (n_arms), owned: over all prompts */
    sweep_set *sets;   /* (n_sets), owned; none where prompts carry none */
    int n_sets;
    bench_timeline timeline; /* of the first prompt */
    int timeline_arm;
    bench_cost passes; /* of one row, and of as many as each arm's take; points below */
    int rows[TD_MAX_DRAFT + 1];
    bench_cost_point points[TD_MAX_DRAFT + 1];
    bench_costing *costing; /* of passes; NULL: they are not measured, or are summed up */
    bool measured;          /* passes holds figures */
    int at_prompt;
} sweep;

/* "plain", "k 4", "auto", "2x3"; with the rule where the sweep has several. */
const char *sweep_arm_name(char buf[24], const sweep *s, const bench_arm *a);

/* Tables for people: before the work, after each prompt, at the end. */
void sweep_print_models(const sweep *s);
void sweep_print_prompt(const sweep *s, int prompt);
void sweep_print_summary(const sweep *s);
/* A row for each arm over all prompts, --format csv and md. */
void sweep_print_rows(const sweep *s);
json_t *sweep_json(const sweep *s);

#endif
