/* tandem bench --roofline, --kernels, --cost: what the machine can do, and how near to it products
 * and passes come. The measuring is the bench room's; here are shapes, tables and JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench/bench.h"
#include "cli/cli.h"

enum { PROBE_BYTES = 1 << 30, PREFILL_TOKENS = 512 };

bool cli_tick(void *user, const char *what, int done, int total) {
    (void)user;
    cli_progress(what, done, total, "steps");
    return !cli_stop_signal();
}

int cli_probe_open(bench_probe **probe, const cli_args *a) {
    td_error err;
    const int n_threads = a->n_threads ? a->n_threads : td_default_threads();
    cli_progress("filling memory", 0, 0, "");
    return bench_probe_open(probe, n_threads, PROBE_BYTES, &err) ? cli_error(&err) : CLI_OK;
}

static void print_machine(const bench_probe *p, int n_runs) {
    const int n = bench_probe_threads(p);
    printf("machine  %s, %d thread%s; medians of %d run%s in turn\n", bench_probe_level(p), n,
           n == 1 ? "" : "s", n_runs, n_runs == 1 ? "" : "s");
}

json_t *cli_json_range(const bench_range *r) {
    return json_pack("{s:o, s:o, s:o}", "median", cli_json_number(r->median), "min",
                     cli_json_number(r->min), "max", cli_json_number(r->max));
}

/* Of a limit: its best is what counts. */
static json_t *json_limit(bench_range r) {
    return json_pack("{s:o, s:o}", "best", cli_json_number(r.max), "median",
                     cli_json_number(r.median));
}

/* To standard output where --format says so, and into --json FILE. Takes both. */
static int write_json(const cli_args *a, json_t *printed, json_t *whole) {
    int rc = CLI_OK;
    if (a->print_json)
        rc = cli_json_print(printed);
    else
        json_decref(printed);
    if (!rc) rc = cli_finish_stdout();
    if (!rc && a->json) return cli_json_write(a->json, whole);
    json_decref(whole);
    return rc;
}

/* ---- --roofline ---- */

typedef struct roofline {
    bench_range read, dot, fma;
} roofline;

static int measure_roofline(roofline *out, bench_probe *probe, int n_runs) {
    double *v[3] = {NULL};
    int rc = CLI_OK;
    for (int i = 0; i < 3; i++)
        if (!(v[i] = calloc((size_t)n_runs, sizeof *v[i]))) rc = cli_failed("out of memory");
    for (int r = 0; r < n_runs && !rc; r++) {
        if (!cli_tick(NULL, "measuring", r, n_runs)) {
            rc = CLI_SIGNAL + cli_stop_signal();
            break;
        }
        v[0][r] = bench_probe_read(probe);
        v[1][r] = bench_probe_dot(probe);
        v[2][r] = bench_probe_fma(probe);
    }
    if (!rc)
        *out = (roofline){bench_range_of(v[0], n_runs), bench_range_of(v[1], n_runs),
                          bench_range_of(v[2], n_runs)};
    for (int i = 0; i < 3; i++)
        free(v[i]);
    return rc;
}

static void print_limit(const char *what, bench_range r, const char *unit, const char *note) {
    printf("%-14s %9.1f %9.1f  %-7s  %s\n", what, r.max, r.median, unit, note);
}

static void print_roofline(const roofline *r, const bench_probe *p) {
    char size[24], note[48];
    snprintf(note, sizeof note, "over %s", cli_size(size, bench_probe_size(p)));
    printf("%-14s %9s %9s\n", "limit", "best", "median");
    print_limit("memory reads", r->read, "GB/s", note);
    print_limit("int8 dots", r->dot, "Gmac/s", bench_probe_dot_name(p));
    print_limit("float", r->fma, "Gmac/s", bench_probe_fma_name(p));
}

static json_t *json_roofline(const roofline *r, const bench_probe *p, int n_runs) {
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:s, s:s, s:I}", "level", bench_probe_level(p),
                     "threads", bench_probe_threads(p), "runs", n_runs, "read_gb_per_s",
                     json_limit(r->read), "dot_gmac_per_s", json_limit(r->dot), "fma_gmac_per_s",
                     json_limit(r->fma), "dot_instruction", bench_probe_dot_name(p),
                     "fma_instruction", bench_probe_fma_name(p), "read_bytes",
                     (json_int_t)bench_probe_size(p));
}

static int run_roofline(const cli_args *a) {
    bench_probe *probe = NULL;
    roofline r;
    int rc = cli_probe_open(&probe, a);
    if (!rc) rc = measure_roofline(&r, probe, a->n_runs);
    cli_progress_end();
    if (!rc && !a->print_json) {
        print_machine(probe, a->n_runs);
        print_roofline(&r, probe);
    }
    if (!rc) {
        json_t *whole = json_roofline(&r, probe, a->n_runs);
        json_object_set_new(whole, "versions", cli_json_versions(bench_probe_level(probe)));
        rc = write_json(a, json_roofline(&r, probe, a->n_runs), whole);
    }
    bench_probe_close(&probe);
    return rc;
}

/* ---- --kernels ---- */

/* (out, in): the 1.5B's Q and O, gate and up, output, down; then inputs of 896 and 576, the 0.5B's
 * and SmolLM2's, for types whose blocks divide them. Equal inputs are neighbours: they share what
 * was filled. */
static const struct {
    int n_out, n_in;
} shapes[] = {{1536, 1536}, {8960, 1536}, {151936, 1536}, {1536, 8960}, {4864, 896}, {1536, 576}};
static const int kernel_rows[] = {1, 2, 4, 8, 16, 64};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_KERNEL_ROWS = sizeof kernel_rows / sizeof *kernel_rows
};

typedef struct kernel_bench {
    const cli_args *args;
    bench_probe *probe;
    bench_kernels *kernels;
    bool types[TD_TYPE_COUNT]; /* wanted */
    bench_limits seen;
    json_t *list;
} kernel_bench;

static td_type find_type(const char *word, size_t len) {
    for (int t = 0; t < TD_TYPE_COUNT; t++) {
        const char *name = td_type_get((uint32_t)t)->name;
        if (name && strlen(name) == len && !strncasecmp(name, word, len)) return (td_type)t;
    }
    return TD_TYPE_COUNT;
}

static int unknown_type(const char *word, size_t len) {
    char all[256] = "";
    for (int t = 0; t < TD_TYPE_COUNT; t++) {
        const char *name = td_type_get((uint32_t)t)->name;
        if (!name) continue;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? " " : "", name);
    }
    return cli_misuse("--type: there is no '%.*s'; there are %s", (int)len, word, all);
}

static int read_types(kernel_bench *b) {
    const char *p = b->args->types;
    for (int t = 0; t < TD_TYPE_COUNT; t++)
        b->types[t] = !p;
    while (p) {
        const size_t len = strcspn(p, ",");
        const td_type type = find_type(p, len);
        if (type == TD_TYPE_COUNT) return unknown_type(p, len);
        b->types[type] = true;
        p = p[len] ? p + len + 1 : NULL;
    }
    return CLI_OK;
}

static const char *limit_name(const bench_product *p, const bench_product_point *t) {
    return t->by_memory ? "memory" : td_type_get(p->type)->block == 1 ? "float" : "dots";
}

static void print_product(const bench_product *p, const bench_product_point *points, int n) {
    for (int i = 0; i < n; i++) {
        const bench_product_point *t = &points[i];
        char shape[32];
        snprintf(shape, sizeof shape, "%dx%d", p->n_out, p->n_in);
        printf("%-7s %-12s %4d %10.3f %7.1f %8.1f  %-6s %5.0f %%\n", td_type_get(p->type)->name,
               shape, t->m, t->ms.median, t->gb_per_s, t->gmac_per_s, limit_name(p, t),
               100 * t->reached.median);
    }
    fflush(stdout);
}

static void add_json_product(kernel_bench *b, const bench_product *p,
                             const bench_product_point *points, int n) {
    for (int i = 0; i < n; i++) {
        const bench_product_point *t = &points[i];
        json_array_append_new(
            b->list,
            json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:s}", "type",
                      td_type_get(p->type)->name, "n_out", p->n_out, "n_in", p->n_in, "m", t->m,
                      "level", bench_probe_level(b->probe), "threads",
                      bench_probe_threads(b->probe), "ms", cli_json_number(t->ms.median),
                      "roofline_ms", cli_json_number(t->roofline_ms), "reached",
                      cli_json_number(t->reached.median), "gb_per_s", cli_json_number(t->gb_per_s),
                      "gmac_per_s", cli_json_number(t->gmac_per_s), "limit", limit_name(p, t)));
    }
}

static int measure_product(kernel_bench *b, const bench_product *p, const int *rows, int n_rows) {
    bench_product_point points[CLI_ROWS_MAX];
    td_error err;
    const td_code rc = bench_kernels_measure(b->kernels, p, rows, n_rows, b->args->n_runs, points,
                                             &b->seen, cli_tick, NULL, &err);
    cli_progress_end();
    if (rc == TD_E_MEMORY) { /* the largest ones need a gigabyte */
        cli_warn("%s %dx%d: %s; leaving it out", td_type_get(p->type)->name, p->n_out, p->n_in,
                 err.msg);
        return CLI_OK;
    }
    if (rc) return cli_error(&err);
    if (!b->args->print_json) print_product(p, points, n_rows);
    add_json_product(b, p, points, n_rows);
    return CLI_OK;
}

static int measure_products(kernel_bench *b) {
    const int *rows = b->args->n_rows ? b->args->rows : kernel_rows;
    const int n_rows = b->args->n_rows ? b->args->n_rows : N_KERNEL_ROWS;
    td_error err;
    char size[24];
    int rc = CLI_OK;
    const size_t memory = bench_beyond_caches();
    if (bench_kernels_open(&b->kernels, b->probe, memory, rows[n_rows - 1], &err))
        return cli_error(&err);
    if (!b->args->print_json) {
        print_machine(b->probe, b->args->n_runs);
        printf("Weights come from memory: copies of each matrix, %s or more, in turn.\n"
               "limit: which of reads and multiply-adds takes longer at best; reached: that\n"
               "best time over the time taken.\n\n"
               "%-7s %-12s %4s %10s %7s %8s  %-6s %7s\n",
               cli_size(size, memory), "type", "out x in", "m", "ms", "GB/s", "Gmac/s", "limit",
               "reached");
    }
    for (int t = 0; t < TD_TYPE_COUNT && !rc; t++)
        for (int i = 0; i < N_SHAPES && !rc; i++) {
            const bench_product p = {(td_type)t, shapes[i].n_out, shapes[i].n_in};
            if (b->types[t] && bench_kernels_can(b->kernels, &p))
                rc = measure_product(b, &p, rows, n_rows);
        }
    if (!rc && !b->args->print_json)
        printf("\nlimits   %.1f GB/s; Gmac/s: %.1f %s, %.1f %s\n", b->seen.read_gb_per_s,
               b->seen.dot_gmac_per_s, bench_probe_dot_name(b->probe), b->seen.fma_gmac_per_s,
               bench_probe_fma_name(b->probe));
    return rc;
}

static json_t *json_limits(const bench_limits *l, const bench_probe *p) {
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:s, s:s}", "level", bench_probe_level(p),
                     "threads", bench_probe_threads(p), "read_gb_per_s",
                     cli_json_number(l->read_gb_per_s), "dot_gmac_per_s",
                     cli_json_number(l->dot_gmac_per_s), "fma_gmac_per_s",
                     cli_json_number(l->fma_gmac_per_s), "dot_instruction", bench_probe_dot_name(p),
                     "fma_instruction", bench_probe_fma_name(p));
}

static int run_kernels(const cli_args *a) {
    kernel_bench b = {.args = a, .list = json_array()};
    int rc;
    if ((rc = read_types(&b)) || (rc = cli_probe_open(&b.probe, a)) || (rc = measure_products(&b)))
        goto fail;
    rc = write_json(a, json_incref(b.list),
                    json_pack("{s:O, s:i, s:o, s:o}", "products", b.list, "runs", a->n_runs,
                              "limits", json_limits(&b.seen, b.probe), "versions",
                              cli_json_versions(bench_probe_level(b.probe))));
fail:
    cli_progress_end();
    json_decref(b.list);
    bench_kernels_close(&b.kernels);
    bench_probe_close(&b.probe);
    return rc;
}

/* ---- --cost ---- */

static const int cost_contexts[] = {512, 2048, 8192};
enum { N_COST_CONTEXTS = sizeof cost_contexts / sizeof *cost_contexts, N_COST_ROWS = 32 };

typedef struct cost_bench {
    const cli_args *args;
    cli_models models;
    td_session *session;
    bench_probe *probe;
    bench_sizes sizes;
    int rows[TD_MAX_DRAFT + 1], contexts[CLI_LIST_MAX];
    int n_rows, n_contexts;
    bench_prefill prefill;
    bench_cost_point points[TD_MAX_DRAFT + 1];
    json_t *list;
} cost_bench;

static void choose_work(cost_bench *b) {
    const cli_args *a = b->args;
    const int trained = td_model_get_info(b->models.target)->n_ctx_train;
    b->n_rows = a->n_rows ? a->n_rows : N_COST_ROWS;
    for (int i = 0; i < b->n_rows; i++)
        b->rows[i] = a->n_rows ? a->rows[i] : i + 1;
    for (int i = 0; i < a->n_contexts; i++)
        b->contexts[b->n_contexts++] = a->contexts[i];
    if (b->n_contexts) return;
    for (int i = 0; i < N_COST_CONTEXTS; i++)
        if (cost_contexts[i] <= trained) b->contexts[b->n_contexts++] = cost_contexts[i];
    if (!b->n_contexts) b->contexts[b->n_contexts++] = trained;
    if (b->contexts[b->n_contexts - 1] < cost_contexts[N_COST_CONTEXTS - 1])
        cli_warn("contexts past the %d positions that the model was trained for are left out; -c "
                 "takes them",
                 trained);
}

static int open_cost(cost_bench *b) {
    const cli_args *a = b->args;
    td_error err;
    int rc;
    if ((rc = cli_models_open(&b->models, a, false)) || 
        (rc = cli_model_sizes(&b->sizes, a->model, b->models.target))) return rc;
    choose_work(b);
    const int most = b->rows[b->n_rows - 1];
    const int longest = b->contexts[b->n_contexts - 1] + most;
    const td_session_options opt = {.n_ctx =
                                        longest > PREFILL_TOKENS ? longest + 1 : PREFILL_TOKENS + 1,
                                    .cache_type_k = a->cache_type_k,
                                    .cache_type_v = a->cache_type_v,
                                    .draft_max = most - 1};
    if (td_session_open(&b->session, b->models.target, NULL, &opt, &err)) return cli_error(&err);
    cli_stop_session(b->session);
    return cli_probe_open(&b->probe, a);
}

static void print_cost_head(const cost_bench *b) {
    const td_model_info *m = td_model_get_info(b->models.target);
    char size[24];
    printf("target   ");
    cli_print_safe(stdout, *m->name ? m->name : m->path, strlen(*m->name ? m->name : m->path), 40);
    printf(" (%s)\npass     %s of weights, %.3f Gmac a row\n", m->arch,
           cli_size(size, m->step_bytes), (double)m->row_macs / 1e9);
    print_machine(b->probe, b->args->n_runs);
    printf("Roofline: weights and KV over the read limit, or the multiply-adds of the\n"
           "matrices (attention's are not in it) over %s, whichever is longer.\n",
           bench_probe_dot_name(b->probe));
    fflush(stdout);
}

static int measure_prefill(cost_bench *b) {
    const td_model_info *m = td_model_get_info(b->models.target);
    bench_prefill *p = &b->prefill;
    td_error err;
    *p = (bench_prefill){.n_tokens = PREFILL_TOKENS,
                         .n_rounds = b->args->n_runs,
                         .int_macs = (uint64_t)b->sizes.prefill_int_macs,
                         .float_macs = (uint64_t)b->sizes.prefill_float_macs};
    const td_code rc =
        bench_measure_prefill(b->session, b->probe, p, m->n_vocab, cli_tick, NULL, &err);
    cli_progress_end();
    if (rc) return cli_error(&err);
    if (b->args->print_json) return CLI_OK;
    printf("\nprefill  %d tokens in %.0f ms: %.1f tok/s, %.1f Gmac/s, %.0f %% of the limit\n",
           p->n_tokens, p->ms.median, p->tok_per_s.median, p->gmac_per_s.median,
           100 * p->share.median);
    fflush(stdout);
    return CLI_OK;
}

static void print_cost(const bench_cost *c) {
    char size[24];
    printf("\nbehind %d positions (KV %s); limits %.1f GB/s, %.1f Gmac/s\n", c->n_context,
           cli_size(size, c->kv_bytes), c->read_gb_per_s.median, c->dot_gmac_per_s.median);
    printf("%7s %4s %9s %9s %8s %8s %7s\n", "context", "m", "ms", "roofline", "T/roof", "T/T(1)",
           "GB/s");
    for (int i = 0; i < c->n_rows; i++) {
        const bench_cost_point *p = &c->points[i];
        printf("%7d %4d %9.2f %9.2f %8.2f ", c->n_context, p->m, p->ms.median,
               p->roofline_ms.median, p->over.median);
        if (isfinite(p->growth.median))
            printf("%8.2f", p->growth.median);
        else
            printf("%8s", "-");
        printf(" %7.1f\n", p->gb_per_s);
    }
    fflush(stdout);
}

static void add_json_cost(json_t *list, const bench_cost *c) {
    for (int i = 0; i < c->n_rows; i++) {
        const bench_cost_point *p = &c->points[i];
        json_array_append_new(
            list,
            json_pack("{s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}",
                      "context", c->n_context, "m", p->m, "ms", cli_json_number(p->ms.median),
                      "ms_min", cli_json_number(p->ms.min), "ms_max", cli_json_number(p->ms.max),
                      "roofline_ms", cli_json_number(p->roofline_ms.median), "to_roofline",
                      cli_json_number(p->over.median), "to_one_row",
                      cli_json_number(p->growth.median), "gb_per_s", cli_json_number(p->gb_per_s),
                      "read_gb_per_s", cli_json_number(c->read_gb_per_s.median), "dot_gmac_per_s",
                      cli_json_number(c->dot_gmac_per_s.median), "weight_bytes",
                      (json_int_t)c->weight_bytes, "kv_bytes", (json_int_t)c->kv_bytes, "macs",
                      (json_int_t)(c->int_macs + c->float_macs) * p->m));
    }
}

static int measure_contexts(cost_bench *b) {
    for (int i = 0; i < b->n_contexts; i++) {
        td_error err;
        bench_cost c = {.n_context = b->contexts[i],
                        .rows = b->rows,
                        .n_rows = b->n_rows,
                        .n_rounds = b->args->n_runs,
                        .points = b->points};
        cli_cost_sizes(&c, &b->sizes, b->args);
        const td_code rc = bench_measure_cost(b->session, b->probe, &c, cli_tick, NULL, &err);
        cli_progress_end();
        if (rc) return cli_error(&err);
        if (!b->args->print_json) print_cost(&c);
        add_json_cost(b->list, &c);
    }
    return CLI_OK;
}

static json_t *json_prefill(const bench_prefill *p) {
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o}", "tokens", p->n_tokens, "ms",
                     cli_json_range(&p->ms), "tok_per_s", cli_json_range(&p->tok_per_s), "gmac_per_s",
                     cli_json_range(&p->gmac_per_s), "dot_gmac_per_s", cli_json_range(&p->dot_gmac_per_s),
                     "share_of_limit", cli_json_range(&p->share));
}

static int run_cost(const cli_args *a) {
    cost_bench b = {.args = a, .list = json_array()};
    int rc = open_cost(&b);
    cli_progress_end();
    if (!rc && !a->print_json) print_cost_head(&b);
    if (rc || (rc = measure_prefill(&b)) || (rc = measure_contexts(&b))) goto fail;
    rc =
        write_json(a, json_incref(b.list),
                   json_pack("{s:o, s:i, s:s, s:s, s:o, s:O, s:s, s:o}", "target",
                             cli_json_model(b.models.target), "runs", a->n_runs, "cache_type_k",
                             cli_kv_type_name(a->cache_type_k), "cache_type_v",
                             cli_kv_type_name(a->cache_type_v), "prefill", json_prefill(&b.prefill),
                             "passes", b.list, "dot_instruction", bench_probe_dot_name(b.probe),
                             "versions", cli_json_versions(b.models.cpu)));
fail:
    cli_stop_session(NULL);
    json_decref(b.list);
    bench_probe_close(&b.probe);
    td_session_close(&b.session);
    cli_models_close(&b.models);
    return rc;
}

int cli_measure(cli_args *a) {
    const int rc = cli_json_check(a->json);
    if (rc) return rc;
    cli_progress_init(!a->no_progress);
    cli_stop_init();
    return a->mode == CLI_ROOFLINE  ? run_roofline(a)
           : a->mode == CLI_KERNELS ? run_kernels(a)
                                    : run_cost(a);
}
