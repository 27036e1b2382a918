/* tandem plan: what to expect of a model on a machine, this one or another, before it is loaded. The
 * arithmetic is the bench room's (bench/plan.c); here are where its numbers come from, the text and
 * JSON. Each figure of the text has its formula beside it. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/base.h"
#include "bench/bench.h"
#include "cli/cli.h"

enum { LOOKS = 5 };
static const double MAX_KV_BYTES = 1e15; /* keeps whole numbers of bytes below 2^53 in any batch */

typedef struct plan {
    const cli_args *args;
    td_file *target, *draft; /* NULL: by numbers, or none */
    bench_forecast_in in;
    bench_forecast out;
    double params, draft_params;
    int n_ctx_train; /* 0: not known */
    const char *cpu;
    /* where the machine's figures come from */
    char memory_from[48], read_from[48], dot_from[48], fma_from[48];
} plan;

static const char *const cache_names[BENCH_CACHES] = {"f16", "q8_0", "q4_0"};

/* ---- where the numbers come from ---- */

static int open_model(td_file **f, bench_sizes *sizes, const char *path) {
    td_error err;
    if (td_file_open(f, path, &err)) return cli_error(&err);
    const td_file_info *info = td_file_get_info(*f);
    if (!info->n_layers)
        return cli_failed(
            "%s: the sizes of this model (architecture '%s') are beyond this build, as "
            "are mixtures of experts; a dense one can be given by --params",
            path, info->arch);
    cli_file_sizes(sizes, *f);
    if (!(sizes->int_macs + sizes->float_macs > 0))
        return cli_failed("%s holds no weights; is it a whole model file?", path);
    return CLI_OK;
}

/* Every parameter is read and multiplied once a token: right but for an embedding of its own, some
 * per cent. Query heads, which only attention's arithmetic needs, come from the width that layers of
 * 12 width^2 parameters would have. */
static bench_sizes sizes_of_numbers(const cli_args *a) {
    const double values = 2.0 * a->n_layers * a->n_kv_heads * a->head_dim;
    const double width = sqrt(a->params / (12.0 * a->n_layers));
    const double group =
        a->n_heads ? a->n_heads / a->n_kv_heads : round(width / a->head_dim / a->n_kv_heads);
    bench_sizes s = {.weight_bytes = a->params * a->bits / 8,
                     .step_bytes = a->params * a->bits / 8,
                     .kv_values = values,
                     .group = fmax(group, 1)};
    *(a->bits < 16 ? &s.int_macs : &s.float_macs) = a->params;
    s.prefill_int_macs = s.int_macs;
    s.prefill_float_macs = s.float_macs;
    return s;
}

/* A draft of so many parameters; its KV, of which nothing is known, is to the target's as the square
 * roots of the parameters. Of Llama 3 8B with 1B, 70B with 8B and Qwen2.5 1.5B with 0.5B that gives
 * 0.36, 0.34 and 0.58 where 0.25, 0.40 and 0.43 are true. */
static bench_sizes sizes_of_draft(const plan *p) {
    const cli_args *a = p->args;
    const double ratio = sqrt(a->draft_params / p->params);
    bench_sizes s = p->in.target;
    s.weight_bytes = s.step_bytes = a->draft_params * a->draft_bits / 8;
    s.kv_values *= ratio;
    s.window_values *= ratio;
    s.int_macs = a->draft_bits < 16 ? a->draft_params : 0;
    s.float_macs = a->draft_params - s.int_macs;
    return s;
}

static int read_models(plan *p) {
    const cli_args *a = p->args;
    int rc;
    if (a->model) {
        if ((rc = open_model(&p->target, &p->in.target, a->model))) return rc;
        p->params = (double)td_file_get_info(p->target)->n_params;
        p->n_ctx_train = td_file_get_info(p->target)->n_ctx_train;
    } else {
        p->in.target = sizes_of_numbers(a);
        p->params = a->params;
    }
    if (a->draft) {
        if ((rc = open_model(&p->draft, &p->in.draft, a->draft))) return rc;
        p->draft_params = (double)td_file_get_info(p->draft)->n_params;
    } else if (a->draft_params) {
        p->in.draft = sizes_of_draft(p);
        p->draft_params = a->draft_params;
    }
    return CLI_OK;
}

static int read_work(plan *p) {
    const cli_args *a = p->args;
    const int text = a->prompt_tokens + a->answer_tokens;
    int n = a->n_ctx;
    if (n == 0) n = p->n_ctx_train;
    if (n < 0) {
        n = p->n_ctx_train && p->n_ctx_train < CLI_PLAN_CONTEXT ? p->n_ctx_train : CLI_PLAN_CONTEXT;
        if (n < text) n = text;
    }
    if (n < text)
        return cli_misuse("-c 0: the %d positions that the model was trained for are too few for "
                          "prompt and answer",
                          n);
    p->in.n_context = n;
    p->in.n_prompt = a->prompt_tokens;
    p->in.n_answer = a->answer_tokens;
    p->in.acceptance = a->acceptance;
    p->in.kv_bits = cli_kv_bits(a);
    if (bench_kv_bytes(&p->in.target, 32, n) + bench_kv_bytes(&p->in.draft, 32, n) > MAX_KV_BYTES)
        return cli_misuse("-c %d: a KV cache of more than a petabyte is a mistake", n);
    return CLI_OK;
}

static int measure(plan *p) {
    bench_limits *l = &p->in.limits, seen = {0};
    bench_probe *probe = NULL;
    int rc = cli_probe_open(&probe, p->args);
    for (int i = 0; i < LOOKS && !rc; i++) {
        if (!cli_tick(NULL, "measuring this machine", i, LOOKS))
            rc = CLI_SIGNAL + cli_stop_signal();
        else
            bench_limits_look(&seen, probe, 1);
    }
    cli_progress_end();
    if (!rc && !l->read_gb_per_s) {
        const int n = bench_probe_threads(probe);
        l->read_gb_per_s = seen.read_gb_per_s;
        snprintf(p->read_from, sizeof p->read_from, "measured: %d thread%s", n, n == 1 ? "" : "s");
    }
    if (!rc && !l->dot_gmac_per_s) {
        l->dot_gmac_per_s = seen.dot_gmac_per_s;
        l->fma_gmac_per_s = seen.fma_gmac_per_s;
        snprintf(p->dot_from, sizeof p->dot_from, "measured: %s", bench_probe_dot_name(probe));
        snprintf(p->fma_from, sizeof p->fma_from, "measured: %s", bench_probe_fma_name(probe));
    }
    bench_probe_close(&probe);
    return rc;
}

static int unknown_gpu(const char *name) {
    char all[160] = "";
    const bench_gpu *g;
    for (int i = 0; (g = bench_gpu_get(i)); i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "", g->name);
    return cli_misuse("--gpu: '%s' is none, or not one, of %s; for others --ram, --bandwidth and "
                      "--flops",
                      name, all);
}

/* --gpu, then what is given one by one, then this machine. */
static int read_machine(plan *p) {
    const cli_args *a = p->args;
    const bench_gpu *g = a->gpu ? bench_gpu_find(a->gpu) : NULL;
    if (a->gpu && !g) return unknown_gpu(a->gpu);
    if (g) {
        p->in.limits = g->limits;
        p->in.memory_bytes = g->memory_bytes;
        snprintf(p->memory_from, sizeof p->memory_from, "of one %s", g->name);
        snprintf(p->read_from, sizeof p->read_from, "data sheet of %s", g->name);
        snprintf(p->dot_from, sizeof p->dot_from, "data sheet: int8, dense");
        snprintf(p->fma_from, sizeof p->fma_from, "data sheet: fp16, dense");
    }
    if (a->ram) {
        p->in.memory_bytes = a->ram;
        snprintf(p->memory_from, sizeof p->memory_from, "given");
    }
    if (a->bandwidth) {
        p->in.limits.read_gb_per_s = a->bandwidth / 1e9;
        snprintf(p->read_from, sizeof p->read_from, "given");
    }
    if (a->flops) {
        p->in.limits.dot_gmac_per_s = p->in.limits.fma_gmac_per_s = a->flops / 2e9;
        snprintf(p->dot_from, sizeof p->dot_from, "given: half of --flops");
        snprintf(p->fma_from, sizeof p->fma_from, "the same");
    }
    if (!p->in.memory_bytes) {
        const size_t free_bytes = td_memory_available();
        if (free_bytes == SIZE_MAX)
            return cli_failed(
                "this system does not say how much memory is free; give it: --ram 16GB");
        p->in.memory_bytes = (double)free_bytes;
        snprintf(p->memory_from, sizeof p->memory_from, "free here");
    }
    return p->in.limits.read_gb_per_s && p->in.limits.dot_gmac_per_s ? CLI_OK : measure(p);
}

/* ---- text ---- */

enum { TEXT = 24, FORMULA = 72 };

/* Three digits. */
static const char *number(char buf[TEXT], double v) {
    snprintf(buf, TEXT, "%.*f", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v);
    return buf;
}

/* "1.12 GB", "139 Gmac/s" */
static const char *scaled(char buf[TEXT], double v, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    char digits[TEXT];
    int i = 0;
    while (i < 5 && v >= 999.5) {
        v /= 1000;
        i++;
    }
    snprintf(buf, TEXT, "%.12s %s%s", number(digits, v), prefixes[i], unit);
    return buf;
}

static const char *bytes(char buf[TEXT], double v) {
    return scaled(buf, v, "B");
}

static const char *speed(char buf[TEXT], double tok_per_s) {
    char digits[TEXT];
    snprintf(buf, TEXT, "%.12s tok/s", number(digits, tok_per_s));
    return buf;
}

static const char *duration(char buf[TEXT], double ms) {
    char digits[TEXT];
    const bool minutes = ms >= 600e3, hours = ms >= 600 * 60e3;
    const double v = hours ? ms / 3600e3 : minutes ? ms / 60e3 : ms >= 999.5 ? ms / 1e3 : ms;
    snprintf(buf, TEXT, "%.12s %s", number(digits, v),
             hours         ? "h"
             : minutes     ? "min"
             : ms >= 999.5 ? "s"
                           : "ms");
    return buf;
}

/* "  label          value   how it came about" */
__attribute__((format(printf, 3, 4))) static void row(const char *label, const char *value,
                                                      const char *how, ...) {
    va_list args;
    printf("  %-14s %11s   ", label, value);
    va_start(args, how);
    vprintf(how, args);
    va_end(args);
    putchar('\n');
}

/* "(980 MB + 117 MB of KV)" */
static const char *moved(char buf[FORMULA], const bench_pass *p, double weights) {
    char a[TEXT], b[TEXT];
    if (p->bytes > weights)
        snprintf(buf, FORMULA, "(%s + %s of KV)", bytes(a, weights), bytes(b, p->bytes - weights));
    else
        snprintf(buf, FORMULA, "%s", bytes(a, weights));
    return buf;
}

/* "1.54 Gmac / I + 352 Mmac / F" */
static const char *multiplied(char buf[FORMULA], const bench_pass *p) {
    char a[TEXT], b[TEXT];
    if (p->int_macs > 0 && p->float_macs > 0)
        snprintf(buf, FORMULA, "%s / I + %s / F", scaled(a, p->int_macs, "mac"),
                 scaled(b, p->float_macs, "mac"));
    else
        snprintf(buf, FORMULA, "%s / %c", scaled(a, p->int_macs + p->float_macs, "mac"),
                 p->int_macs > 0 ? 'I' : 'F');
    return buf;
}

/* The longer side of a pass's roofline: its time, or passes a second. */
static const char *side(char buf[FORMULA], const bench_pass *p, double weights, bool rate) {
    char text[FORMULA];
    if (p->read_ms >= p->arithmetic_ms)
        snprintf(buf, FORMULA, rate ? "B / %.58s" : "%.58s / B", moved(text, p, weights));
    else
        snprintf(buf, FORMULA, rate ? "1 / (%.58s)" : "%s", multiplied(text, p));
    return buf;
}

static void print_file_model(const plan *p) {
    const td_file_info *i = td_file_get_info(p->target);
    const bench_sizes *s = &p->in.target;
    const double macs = s->int_macs + s->float_macs;
    const double prefill_macs = s->prefill_int_macs + s->prefill_float_macs;
    const char *name = *i->name ? i->name : i->path;
    char a[TEXT], b[TEXT];
    printf("Model        ");
    cli_print_safe(stdout, name, strlen(name), 40);
    printf(" (%s)\n", i->arch);
    row("parameters", scaled(a, p->params, ""), "%d layers; heads of %d: %d for Q, %d for KV",
        i->n_layers, i->head_dim, i->n_heads, i->n_kv_heads);
    row("weights", bytes(a, s->weight_bytes), "%s bits a parameter",
        number(b, 8 * s->weight_bytes / p->params));
    row("read a pass", bytes(a, s->step_bytes), "%s",
        s->step_bytes < s->weight_bytes ? "all but the embedding, of which one row"
                                        : "all of them");
    row("multiply-adds", scaled(a, macs, ""), "a token; %s in a prompt (no logits)",
        scaled(b, prefill_macs, ""));
}

static void print_number_model(const plan *p) {
    const cli_args *a = p->args;
    const bench_sizes *s = &p->in.target;
    char n[TEXT], b[TEXT];
    printf("Model        by numbers: dense, each parameter read and multiplied once a token\n");
    row("parameters", scaled(n, p->params, ""), "%d layers; heads of %d: %.0f for Q, %d for KV",
        a->n_layers, a->head_dim, s->group * a->n_kv_heads, a->n_kv_heads);
    row("weights", bytes(n, s->weight_bytes), "%s x %g bits / 8", scaled(b, p->params, ""),
        a->bits);
    row("multiply-adds", scaled(n, p->params, ""), "a token, one a parameter");
}

static void print_model(const plan *p) {
    const bench_sizes *t = &p->in.target, *d = &p->in.draft;
    char a[TEXT], b[TEXT], c[TEXT];
    if (p->target)
        print_file_model(p);
    else
        print_number_model(p);
    if (d->weight_bytes > 0)
        row("draft", bytes(a, d->weight_bytes), "%s parameters; reads %s a pass",
            scaled(b, p->draft_params, ""), bytes(c, d->step_bytes));
    if (d->weight_bytes > 0 && !p->draft)
        row("", "", "its KV: sqrt(%s / %s) of the target's", scaled(a, p->draft_params, ""),
            scaled(b, p->params, ""));
    if (t->window > 0)
        row("window", scaled(a, t->window, ""), "positions, in layers with %.0f %% of the KV",
            100 * t->window_values / (t->kv_values + t->window_values));
}

static void print_memory(const plan *p) {
    const bench_forecast *f = &p->out;
    const double windows = fmax(p->in.target.window, p->in.draft.window);
    char a[TEXT], b[TEXT], c[TEXT], at[TEXT];
    printf("\nMemory       %s %s - %s of weights", bytes(a, p->in.memory_bytes), p->memory_from,
           bytes(b, p->in.target.weight_bytes + p->in.draft.weight_bytes));
    if (f->free_bytes < 0)
        printf(": %s too little\n", bytes(a, -f->free_bytes));
    else
        printf(" = %s for KV\n", bytes(a, f->free_bytes));
    snprintf(at, sizeof at, "at %d", p->in.n_context);
    printf("  KV      a token  %11s  longest context\n", at);
    for (int i = 0; i < BENCH_CACHES; i++) {
        const bench_cache *k = &f->caches[i];
        printf("  %-5s %9s  %11s  ", cache_names[i], bytes(a, k->token_bytes),
               bytes(b, k->context_bytes));
        if (isinf(k->longest))
            printf("%15s\n", "any");
        else if (k->longest < 1)
            printf("%15s\n", "none");
        else if (k->longest < windows) /* not full: no formula as short as the others */
            printf("%15.0f\n", k->longest);
        else if (windows > 0)
            printf("%15.0f   (%s - %s) / %s\n", k->longest, bytes(a, f->free_bytes),
                   bytes(b, k->window_bytes), bytes(c, k->token_bytes));
        else
            printf("%15.0f   %s / %s\n", k->longest, bytes(a, f->free_bytes),
                   bytes(b, k->token_bytes));
    }
    printf("  a token: %.0f values%s of 16, 8.5 or 4.5 bits\n",
           p->in.target.kv_values + p->in.draft.kv_values,
           p->in.draft.weight_bytes > 0 ? ", the draft's among them," : "");
    if (windows > 0)
        printf("  beside it windows, once full of %s in f16\n",
               bytes(a, f->caches[0].window_bytes));
    if (p->n_ctx_train) printf("  the model was trained for %d positions\n", p->n_ctx_train);
}

static void print_speed(const plan *p) {
    const bench_forecast *f = &p->out;
    const bench_limits *l = &p->in.limits;
    const double weights = p->in.target.step_bytes;
    char a[TEXT], b[TEXT], c[TEXT], how[FORMULA], label[32];
    printf("\nSpeed        ceilings: the longer of reading and arithmetic; KV of %g bits\n",
           p->in.kv_bits);
    row("B, reading", scaled(a, 1e9 * l->read_gb_per_s, "B/s"), "%s", p->read_from);
    row("I, integers", scaled(a, 1e9 * l->dot_gmac_per_s, "mac/s"), "%s", p->dot_from);
    row("F, floats", scaled(a, 1e9 * l->fma_gmac_per_s, "mac/s"), "%s, for attention", p->fma_from);
    row("decode, empty", speed(a, 1e3 / f->empty.ms), "%s", side(how, &f->empty, weights, true));
    snprintf(label, sizeof label, "at %d", p->in.n_context);
    row(label, speed(a, 1e3 / f->full.ms), "%s", side(how, &f->full, weights, true));
    snprintf(label, sizeof label, "prompt, %d", p->in.n_prompt);
    row(label, duration(a, f->prefill.ms), "%s", side(how, &f->prefill, weights, false));
    snprintf(label, sizeof label, "answer, %d", p->in.n_answer);
    row(label, duration(a, f->answer_ms), "%d x %s", p->in.n_answer,
        side(how, &f->answer, weights, false));
    row("together", duration(a, f->prefill.ms + f->answer_ms), "%d / %s + %d / %s", p->in.n_prompt,
        speed(b, 1e3 * p->in.n_prompt / f->prefill.ms), p->in.n_answer,
        speed(c, 1e3 * p->in.n_answer / f->answer_ms));
}

static void print_batch(const plan *p) {
    const bench_forecast *f = &p->out;
    char a[TEXT], b[TEXT], c[TEXT], d[TEXT], how[FORMULA];
    printf("\nBatch        streams of %d positions each; a pass takes the longer column\n"
           "  streams  bytes / B  arithmetic     tok/s   a stream   limit\n",
           p->in.n_context);
    for (int i = 0; i < BENCH_BATCHES; i++) {
        const bench_batch *t = &f->batch[i];
        printf("  %7d  %9s  %10s  %8s  %9s   %s%s\n", t->streams, duration(a, t->pass.read_ms),
               duration(b, t->pass.arithmetic_ms), number(c, t->tok_per_s),
               number(d, t->tok_per_s / t->streams),
               t->pass.arithmetic_ms > t->pass.read_ms ? "arithmetic" : "bandwidth",
               t->streams > f->streams_fit ? ", no memory" : "");
    }
    printf("  (%s + b x %s KV) / B against b x (%s)\n", bytes(a, p->in.target.step_bytes),
           bytes(b, f->full.bytes - p->in.target.step_bytes), multiplied(how, &f->full));
    if (isinf(f->streams_turn))
        printf("  arithmetic is never the limit, a stream's KV takes longer");
    else
        printf("  arithmetic is the limit from %.0f streams on", f->streams_turn);
    printf("; memory holds %.0f\n", f->streams_fit);
}

static void print_speculation(const plan *p) {
    const bench_forecast *f = &p->out;
    const bench_speculation *alone = &f->speculation[0];
    char a[TEXT], b[TEXT];
    if (!p->in.draft.weight_bytes) {
        printf("\nSpeculation  with -md, or --draft-params and --draft-bits, and --acceptance\n");
        return;
    }
    printf("\nSpeculation  a = %g for each next drafted token, at %d positions\n", p->in.acceptance,
           p->in.n_context);
    printf("  S(k) = E[N] / (k c + v(k+1) + o), E[N] = (1 - a^(k+1)) / (1 - a)\n"
           "  c = %s / %s = %.3f, a draft pass to a plain one; o = 0\n",
           duration(a, alone->draft_ms), duration(b, alone->plain_ms),
           alone->draft_ms / alone->plain_ms);
    printf("  k         ");
    for (int k = 1; k <= BENCH_SPEC_K; k++)
        printf("%7d", k);
    printf("\n  E[N]      ");
    for (int k = 1; k <= BENCH_SPEC_K; k++)
        printf("%7.2f", f->expected[k - 1]);
    printf("\n  v(k+1)    ");
    for (int k = 1; k <= BENCH_SPEC_K; k++)
        printf("%7.2f", alone->v[k - 1]);
    printf("   pays");
    for (int i = 0; i < BENCH_SPEC_BATCHES; i++) {
        const bench_speculation *t = &f->speculation[i];
        if (i)
            printf("\n  batch %-4d", t->streams);
        else
            printf("\n  S, alone  ");
        for (int k = 1; k <= BENCH_SPEC_K; k++)
            printf("%7.2f", t->speedup[k - 1]);
        if (t->best_k)
            printf("   k = %d", t->best_k);
        else
            printf("   no");
    }
    putchar('\n');
}

static void print_text(const plan *p) {
    print_model(p);
    print_memory(p);
    print_speed(p);
    print_batch(p);
    print_speculation(p);
}

/* ---- JSON ---- */

static json_t *json_model(const bench_sizes *s, const td_file *f, double params) {
    const td_file_info *i = f ? td_file_get_info(f) : NULL;
    if (!(s->weight_bytes > 0)) return json_null();
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "path",
                     cli_json_text(i ? i->path : NULL), "arch", cli_json_text(i ? i->arch : NULL),
                     "parameters", (json_int_t)params, "weight_bytes", (json_int_t)s->weight_bytes,
                     "step_bytes", (json_int_t)s->step_bytes, "macs",
                     (json_int_t)(s->int_macs + s->float_macs), "prefill_macs",
                     (json_int_t)(s->prefill_int_macs + s->prefill_float_macs), "kv_values",
                     (json_int_t)s->kv_values, "window_values", (json_int_t)s->window_values,
                     "window", (int)s->window);
}

static json_t *json_machine(const plan *p) {
    const bench_limits *l = &p->in.limits;
    return json_pack("{s:I, s:s, s:o, s:s, s:o, s:s, s:o, s:s}", "memory_bytes",
                     (json_int_t)p->in.memory_bytes, "memory_from", p->memory_from, "read_gb_per_s",
                     cli_json_number(l->read_gb_per_s), "read_from", p->read_from, "dot_gmac_per_s",
                     cli_json_number(l->dot_gmac_per_s), "dot_from", p->dot_from, "fma_gmac_per_s",
                     cli_json_number(l->fma_gmac_per_s), "fma_from", p->fma_from);
}

/* A count that may be infinite: null. */
static json_t *json_count(double v) {
    return isfinite(v) ? json_integer((json_int_t)v) : json_null();
}

static json_t *json_memory(const plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < BENCH_CACHES; i++) {
        const bench_cache *c = &p->out.caches[i];
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:o}", "type",
                                              cache_names[i], "bits", c->bits, "bytes_per_token",
                                              c->token_bytes, "bytes_in_windows", c->window_bytes,
                                              "bytes_at_context", c->context_bytes,
                                              "longest_context", json_count(c->longest)));
    }
    return json_pack("{s:I, s:i, s:o}", "free_bytes", (json_int_t)p->out.free_bytes, "context",
                     p->in.n_context, "kv", list);
}

static json_t *json_speed(const plan *p) {
    const bench_forecast *f = &p->out;
    return json_pack("{s:f, s:f, s:i, s:f, s:f, s:i, s:f, s:f, s:f}", "decode_tok_per_s_empty",
                     1e3 / f->empty.ms, "decode_tok_per_s_full", 1e3 / f->full.ms, "prompt_tokens",
                     p->in.n_prompt, "prefill_ms", f->prefill.ms, "prefill_tok_per_s",
                     1e3 * p->in.n_prompt / f->prefill.ms, "answer_tokens", p->in.n_answer,
                     "answer_ms", f->answer_ms, "answer_tok_per_s",
                     1e3 * p->in.n_answer / f->answer_ms, "total_ms", f->prefill.ms + f->answer_ms);
}

static json_t *json_batch(const plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < BENCH_BATCHES; i++) {
        const bench_batch *b = &p->out.batch[i];
        json_array_append_new(
            list, json_pack("{s:i, s:f, s:f, s:f, s:f, s:s, s:b}", "streams", b->streams, "read_ms",
                            b->pass.read_ms, "arithmetic_ms", b->pass.arithmetic_ms, "tok_per_s",
                            b->tok_per_s, "tok_per_s_a_stream", b->tok_per_s / b->streams, "limit",
                            b->pass.arithmetic_ms > b->pass.read_ms ? "arithmetic" : "bandwidth",
                            "fits", b->streams <= p->out.streams_fit));
    }
    return json_pack("{s:o, s:o, s:o}", "batches", list, "arithmetic_from_streams",
                     json_count(p->out.streams_turn), "streams_that_fit",
                     json_count(p->out.streams_fit));
}

static json_t *json_speculation(const plan *p) {
    json_t *batches = json_array(), *expected = json_array();
    if (!(p->in.draft.weight_bytes > 0)) {
        json_decref(batches);
        json_decref(expected);
        return json_null();
    }
    for (int k = 0; k < BENCH_SPEC_K; k++)
        json_array_append_new(expected, json_real(p->out.expected[k]));
    for (int i = 0; i < BENCH_SPEC_BATCHES; i++) {
        const bench_speculation *s = &p->out.speculation[i];
        json_t *v = json_array(), *speedup = json_array();
        for (int k = 0; k < BENCH_SPEC_K; k++) {
            json_array_append_new(v, json_real(s->v[k]));
            json_array_append_new(speedup, json_real(s->speedup[k]));
        }
        json_array_append_new(batches, json_pack("{s:i, s:f, s:f, s:o, s:o, s:b, s:i}", "streams",
                                                 s->streams, "plain_ms", s->plain_ms, "draft_ms",
                                                 s->draft_ms, "v", v, "speedup", speedup, "pays",
                                                 s->best_k > 0, "best_k", s->best_k));
    }
    return json_pack("{s:f, s:o, s:o}", "acceptance", p->in.acceptance, "tokens_a_pass", expected,
                     "batches", batches);
}

static json_t *to_json(const plan *p) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "target",
                     json_model(&p->in.target, p->target, p->params), "draft",
                     json_model(&p->in.draft, p->draft, p->draft_params), "machine",
                     json_machine(p), "memory", json_memory(p), "speed", json_speed(p), "batch",
                     json_batch(p), "speculation", json_speculation(p), "versions",
                     cli_json_versions(p->cpu));
}

/* ---- the command ---- */

static int list_gpus(bool json) {
    const bench_gpu *g;
    json_t *list = json_array();
    if (!json)
        printf("%-10s  %7s  %9s  %12s  %11s\n", "", "memory", "bandwidth", "fp16, dense",
               "int8, dense");
    for (int i = 0; (g = bench_gpu_get(i)); i++) {
        const double memory = g->memory_bytes / 1e9, bandwidth = g->limits.read_gb_per_s;
        const double fp16 = 2e-3 * g->limits.fma_gmac_per_s, int8 = 2e-3 * g->limits.dot_gmac_per_s;
        if (!json)
            printf("%-10s  %4.0f GB  %4.0f GB/s  %5.0f TFLOPS  %6.0f TOPS\n", g->name, memory,
                   bandwidth, fp16, int8);
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f}", "name", g->name,
                                              "memory_gb", memory, "read_gb_per_s", bandwidth,
                                              "fp16_tflops", fp16, "int8_tops", int8));
    }
    int rc = CLI_OK;
    if (json)
        rc = cli_json_print(list);
    else
        json_decref(list);
    return rc ? rc : cli_finish_stdout();
}

int cli_plan(cli_args *a) {
    plan p = {.args = a};
    td_error err;
    int rc;
    if (a->gpu && !strcmp(a->gpu, "list")) return list_gpus(a->print_json);
    cli_progress_init(!a->no_progress);
    cli_stop_init();
    if (td_cpu_level(&p.cpu, &err)) return cli_error(&err);
    if ((rc = cli_json_check(a->json)) || (rc = read_models(&p)) || (rc = read_work(&p)) ||
        (rc = read_machine(&p)))
        goto fail;
    bench_forecast_make(&p.out, &p.in);
    if (a->print_json)
        rc = cli_json_print(to_json(&p));
    else
        print_text(&p);
    if (!rc) rc = cli_finish_stdout();
    if (!rc && a->json) rc = cli_json_write(a->json, to_json(&p));
fail:
    td_file_close(&p.draft);
    td_file_close(&p.target);
    return rc;
}
