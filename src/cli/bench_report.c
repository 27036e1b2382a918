/* The tables and the JSON of tandem bench. Everything printed for people is narrower than 80 columns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/sweep.h"

/* ---- arms ---- */

static const char *rule_name(const bench_arm *a) {
    static const char *const names[] = {
        [TD_VERIFY_BLOCK] = "block", [TD_VERIFY_TOKEN] = "token", [TD_VERIFY_COUPLED] = "coupled"};
    return a->temperature == 0 ? "greedy" : names[a->verify];
}

const char *sweep_arm_name(char buf[24], const sweep *s, const bench_arm *a) {
    if (!a->k)
        snprintf(buf, 24, "plain");
    else if (a->k == TD_DRAFT_AUTO)
        snprintf(buf, 24, "auto");
    else if (a->width > 1)
        snprintf(buf, 24, "%dx%d", a->width, a->k);
    else
        snprintf(buf, 24, "k %d", a->k);
    if (a->k && a->temperature != 0 && s->args->n_rules > 1)
        snprintf(buf + strlen(buf), 24 - strlen(buf), " %s", rule_name(a));
    return buf;
}

/* The arms of one temperature begin at a plain one and end before the next. */
static int end_of(const sweep *s, int first) {
    int i = first + 1;
    while (i < s->n_arms && s->arms[i].k)
        i++;
    return i;
}

/* As it was typed: 0.8 and not what a float makes of it. */
static double temperature_of(const bench_arm *a) {
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)a->temperature);
    return strtod(text, NULL);
}

/* ---- figures ---- */

static double share(int64_t part, int64_t of) {
    return of ? (double)part / (double)of : NAN;
}

/* Of a pass: the accepted tokens and the target's own. */
static double length_of(const bench_case *c) {
    return 1 + share(c->accepted, c->rounds);
}

static double joules_of(const bench_case *c) {
    return c->metered_tokens ? c->joules / (double)c->metered_tokens : NAN;
}

/* T(m) of the passes that were measured; NULL for another width. */
static const bench_cost_point *pass_of(const sweep *s, int m) {
    for (int i = 0; i < s->passes.n_rows && s->measured; i++)
        if (s->points[i].m == m) return &s->points[i];
    return NULL;
}

/* What S(k) makes of the costs, with the tokens a round that this length committed: of s->all[i], a chain of fixed
 * length; NAN else. */
static double predicted(const sweep *s, int i) {
    const bench_case *c = &s->all[i], *plain = &s->all[bench_plain_of(s->arms, i)];
    const bench_cost_point *one = pass_of(s, 1), *pass = pass_of(s, c->arm.k + 1);
    if (c->arm.k <= 0 || c->arm.width > 1 || !one || !pass || !c->rounds || !plain->rounds)
        return NAN;
    const bench_forecast_round f = {.k = c->arm.k,
                                    .tokens = length_of(c),
                                    .plain_ms = one->ms.median,
                                    .verify_ms = one->ms.median * pass->growth.median,
                                    .draft_ms = one->ms.median * s->passes.draft_share.median,
                                    .plain_sample_ms = plain->sample_ms / (double)plain->rounds,
                                    .sample_ms = c->sample_ms / (double)c->rounds};
    return bench_predict(&f);
}

/* Weights and KV over the time of a plain pass, GB/s. */
static bench_range decode_rate(const sweep *s) {
    const double bytes = (double)(s->passes.weight_bytes + s->passes.kv_bytes) / 1e6;
    const bench_range *ms = &s->points[0].ms;
    return (bench_range){bytes / ms->max, bytes / ms->median, bytes / ms->min};
}

/* ---- tables ---- */

static void print_text(const char *text, size_t max) {
    cli_print_safe(stdout, text, strlen(text), max);
}

void sweep_print_models(const sweep *s) {
    const td_model *models[] = {s->models.target, s->models.draft};
    for (int i = 0; i < 2; i++) {
        const td_model_info *m = td_model_get_info(models[i]);
        char size[24];
        printf("%s   ", i ? "draft " : "target");
        print_text(*m->name ? m->name : m->path, 40);
        printf(" (%s), reads %s a token\n", m->arch, cli_size(size, m->step_bytes));
    }
    const int n = td_model_get_info(s->models.target)->n_threads;
    printf("machine  %s, %d thread%s\n", s->models.cpu, n, n == 1 ? "" : "s");
}

static const char *interval_text(char buf[32], bench_interval v) {
    if (isfinite(v.low))
        snprintf(buf, 32, v.high < 10 ? "%.3f to %.3f" : "%.1f to %.1f", v.low, v.high);
    else
        snprintf(buf, 32, "-");
    return buf;
}

/* A number that may be unknown, in so many columns. */
static const char *num(char buf[24], double v, int width, int digits) {
    if (isfinite(v))
        snprintf(buf, 24, "%*.*f", width, digits, v);
    else
        snprintf(buf, 24, "%*s", width, "-");
    return buf;
}

static void print_case(const sweep *s, const bench_case *c) {
    char name[24], interval[32], rate[24], length[24];
    printf("%-12s%7.2f %6.1f %7.1f", sweep_arm_name(name, s, &c->arm), c->tok_per_s.median,
           c->tok_per_s.min, c->tok_per_s.max);
    if (c->arm.k)
        printf(" %6.3f %14s %s %% %s  %s", c->ratio.median, interval_text(interval, c->interval),
               num(rate, 100 * share(c->accepted, c->drafted), 6, 1),
               num(length, length_of(c), 6, 2),
               !bench_arm_repeats(&c->arm) ? "-"
               : c->same                   ? "same"
                                           : "OTHER");
    putchar('\n');
}

/* A table a temperature. */
static void print_cases(const sweep *s, const bench_case *cases) {
    for (int i = 0; i < s->n_arms; i++) {
        const bench_case *c = &cases[i];
        if (!c->arm.k) {
            printf("temperature %g\n", (double)c->arm.temperature);
            printf("%-12s%7s %6s %7s %6s %14s %8s %6s  %s\n", "", "tok/s", "lowest", "highest",
                   "ratio", "95 % interval", "accepted", "length", "text");
        }
        print_case(s, c);
    }
}

void sweep_print_prompt(const sweep *s, int prompt) {
    const cli_prompt *p = &s->prompts[prompt];
    const bench_case *cases = s->cases + prompt * s->n_arms;
    printf("\nprompt %d of %d", prompt + 1, s->n_prompts);
    if (p->id) {
        printf(", ");
        print_text(p->id, 20);
    }
    printf(": %zu tokens, then %d; %d run%s of each\n", p->n, cases[0].n_tokens, s->args->n_runs,
           s->args->n_runs == 1 ? "" : "s");
    print_cases(s, cases);
    fflush(stdout);
}

static void print_passes(const sweep *s) {
    const bench_cost *c = &s->passes;
    const double ms = s->points[0].ms.median;
    char size[24];
    printf("\nread limit    %6.1f GB/s (highest; median %.1f), measured between the passes\n",
           c->read_gb_per_s.max, c->read_gb_per_s.median);
    printf("int8 dots     %6.1f Gmac/s (highest; median %.1f)\n", c->dot_gmac_per_s.max,
           c->dot_gmac_per_s.median);
    printf("plain decode  %6.1f GB/s: %s a token in %.1f ms, %d positions before it\n",
           decode_rate(s).median, cli_size(size, c->weight_bytes + c->kv_bytes), ms, c->n_context);
    printf("share         %6.0f %% of the read limit (%.0f to %.0f)\n",
           100 * s->points[0].share.median, 100 * s->points[0].share.min,
           100 * s->points[0].share.max);
    printf("draft         %6.1f ms a token, %.2f of a plain pass\n", c->draft_ms.median,
           c->draft_share.median);
}

/* A subheading where there are several temperatures. */
static void print_subheading(const sweep *s, const bench_arm *a) {
    if (!a->k && end_of(s, 0) < s->n_arms) printf("temperature %g\n", (double)a->temperature);
}

/* The cost of each arm's pass beside its roofline, and what it makes one expect. */
static void print_lengths(const sweep *s) {
    printf("\n%-12s%10s %9s %8s %11s %9s %8s\n", "", "pass ms", "roofline", "to T(1)", "predicted",
           "measured", "off");
    for (int i = 0; i < s->n_arms; i++) {
        const bench_case *c = &s->all[i];
        const bench_cost_point *p = pass_of(s, bench_arm_rows(&c->arm));
        const double speed_up = predicted(s, i);
        char name[24], ms[24], roof[24], growth[24], expected[24];
        print_subheading(s, &c->arm);
        printf("%-12s%s %s %s %s %9.3f", sweep_arm_name(name, s, &c->arm),
               num(ms, p ? p->ms.median : NAN, 10, 2),
               num(roof, p ? p->roofline_ms.median : NAN, 9, 2),
               num(growth, p ? p->growth.median : NAN, 8, 2), num(expected, speed_up, 11, 3),
               c->ratio.median);
        if (isfinite(speed_up)) printf(" %+6.1f %%", 100 * (speed_up / c->ratio.median - 1));
        putchar('\n');
    }
}

/* Where the time goes, and what a reader waits. */
static void print_times(const sweep *s) {
    printf("\n%-12s%7s %7s %7s %7s %7s %7s %5s %6s %6s\n", "", "TTFT ms", "ITL p50", "ITL p95",
           "drafted", "wasted", "J/token", "draft", "verify", "sample");
    for (int i = 0; i < s->n_arms; i++) {
        const bench_case *c = &s->all[i];
        const double ms = (c->draft_ms + c->verify_ms + c->sample_ms) / 100;
        char name[24], joules[24];
        print_subheading(s, &c->arm);
        printf("%-12s%7.0f %7.1f %7.1f %7lld %7lld %s %3.0f %% %4.0f %% %4.0f %%\n",
               sweep_arm_name(name, s, &c->arm), c->ttft_ms, c->itl_ms_p50, c->itl_ms_p95,
               (long long)c->drafted, (long long)(c->drafted - c->accepted),
               num(joules, joules_of(c), 7, 3), c->draft_ms / ms, c->verify_ms / ms,
               c->sample_ms / ms);
    }
}

/* "-k 4", "--draft-tree 2x3 --verify token": how to ask for it. */
static const char *options_of(char buf[64], const sweep *s, const bench_arm *a) {
    if (a->k == TD_DRAFT_AUTO)
        snprintf(buf, 64, "-k auto");
    else if (a->width > 1)
        snprintf(buf, 64, "--draft-tree %dx%d", a->width, a->k);
    else
        snprintf(buf, 64, "-k %d", a->k);
    if (a->temperature != 0 && s->args->n_rules > 1)
        snprintf(buf + strlen(buf), 64 - strlen(buf), " --verify %s", rule_name(a));
    return buf;
}

/* The sentence that everything else is for, of the temperature whose plain arm is `plain`. */
static void print_verdict(const sweep *s, int plain) {
    char options[64], interval[32], text[400] = "";
    int best = plain + 1;
    for (int i = plain + 2; i < end_of(s, plain); i++)
        if (s->all[i].ratio.median > s->all[best].ratio.median) best = i;
    const bench_case *c = &s->all[best];
    const double ratio = c->ratio.median;
    const bool known = isfinite(c->interval.low);
    options_of(options, s, &c->arm);
    interval_text(interval, c->interval);
    if (end_of(s, 0) < s->n_arms)
        snprintf(text, sizeof text, "Temperature %g: ", (double)c->arm.temperature);
    char *const to = text + strlen(text);
    const size_t room = sizeof text - strlen(text);
    if (c->arm.k == TD_DRAFT_AUTO && !c->drafted)
        snprintf(to, room,
                 "Do not speculate here: nothing is faster than plain decoding; -k auto "
                 "drafts nothing.");
    else if (ratio <= 1 || (known && c->interval.high <= 1))
        snprintf(to, room,
                 "Do not speculate here: the best, %s, gives %.2f of plain decoding (%s).", options,
                 ratio, interval);
    else if (known && c->interval.low <= 1)
        snprintf(to, room,
                 "Not certain to pay: the best, %s, gives %.2f times plain decoding, but the "
                 "interval (%s) holds 1. More prompts or --runs would tell.",
                 options, ratio, interval);
    else
        snprintf(to, room, "Best here: %s, %.2f times plain decoding (%s).", options, ratio,
                 known ? interval : "of too few runs for an interval");
    cli_print_wrapped(stdout, text, 0, 0);
}

void sweep_print_summary(const sweep *s) {
    for (int i = 0; i < s->n_sets && s->n_sets > 1; i++) {
        const sweep_set *set = &s->sets[i];
        printf("\nset ");
        print_text(set->name, 40);
        printf(": %d prompt%s\n", set->n_prompts, set->n_prompts == 1 ? "" : "s (their medians)");
        print_cases(s, set->cases);
    }
    if (s->n_prompts > 1) {
        printf("\nall %d prompts (their medians)\n", s->n_prompts);
        print_cases(s, s->all);
    }
    if (s->measured) {
        print_passes(s);
        print_lengths(s);
    }
    print_times(s);
    putchar('\n');
    for (int i = 0; i < s->n_arms; i = end_of(s, i))
        print_verdict(s, i);
}

/* ---- a row for each arm ---- */

void sweep_print_rows(const sweep *s) {
    static const char *const names[] = {
        "temperature", "verify",  "width",      "k",          "tok_per_s",
        "speed_up",    "low",     "high",       "predicted",  "acceptance",
        "length",      "drafted", "wasted",     "draft_ms",   "verify_ms",
        "sample_ms",   "ttft_ms", "itl_ms_p50", "itl_ms_p95", "joules_per_token",
        "same_text"};
    enum { N_NAMES = sizeof names / sizeof *names, N_NUMBERS = N_NAMES - 5 };
    const bool md = s->args->format == CLI_MD;
    const char *between = md ? " | " : ",", *begin = md ? "| " : "", *end = md ? " |" : "";
    for (int i = 0; i < N_NAMES; i++)
        printf("%s%s", i ? between : begin, names[i]);
    printf("%s\n", end);
    for (int i = 0; i < N_NAMES && md; i++)
        printf(i ? " --- |" : "| --- |");
    if (md) putchar('\n');
    for (int i = 0; i < s->n_arms; i++) {
        const bench_case *c = &s->all[i];
        const double v[N_NUMBERS] = {
            c->tok_per_s.median, c->ratio.median,    c->interval.low,
            c->interval.high,    predicted(s, i),    share(c->accepted, c->drafted),
            length_of(c),        (double)c->drafted, (double)(c->drafted - c->accepted),
            c->draft_ms,         c->verify_ms,       c->sample_ms,
            c->ttft_ms,          c->itl_ms_p50,      c->itl_ms_p95,
            joules_of(c)};
        printf("%s%g%s%s%s%d%s", begin, (double)c->arm.temperature, between, rule_name(&c->arm),
               between, c->arm.width, between);
        if (c->arm.k == TD_DRAFT_AUTO)
            printf("auto");
        else
            printf("%d", c->arm.k);
        for (int j = 0; j < N_NUMBERS; j++) {
            printf("%s", between);
            if (isfinite(v[j])) printf("%.6g", v[j]);
        }
        printf("%s%s%s\n", between,
               !bench_arm_repeats(&c->arm) ? ""
               : c->same                   ? "true"
                                           : "false",
               end);
    }
}

/* ---- JSON ---- */

static json_t *json_k(const bench_arm *a) {
    return a->k == TD_DRAFT_AUTO ? json_string("auto") : json_integer(a->k);
}

static json_t *json_case(const bench_case *c, double speed_up) {
    json_t *drafted = json_array(), *accepted = json_array();
    for (int i = 0; i < TD_MAX_DRAFT && c->drafted_per_pos[i]; i++) {
        json_array_append_new(drafted, json_integer(c->drafted_per_pos[i]));
        json_array_append_new(accepted, json_integer(c->accepted_per_pos[i]));
    }
    json_t *arm = json_pack("{s:o, s:i, s:s, s:f}", "k", json_k(&c->arm), "width", c->arm.width,
                            "verify", rule_name(&c->arm), "temperature", temperature_of(&c->arm));
    json_t *speed = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "tok_per_s", cli_json_range(&c->tok_per_s),
        "ratio", cli_json_range(&c->ratio), "ratio_low", cli_json_number(c->interval.low),
        "ratio_high", cli_json_number(c->interval.high), "predicted", cli_json_number(speed_up),
        "ttft_ms", cli_json_number(c->ttft_ms), "itl_ms_p50", cli_json_number(c->itl_ms_p50),
        "itl_ms_p95", cli_json_number(c->itl_ms_p95), "joules_per_token",
        cli_json_number(joules_of(c)));
    json_t *counts =
        json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:f, s:f, s:f, s:o}", "drafted",
                  (json_int_t)c->drafted, "accepted", (json_int_t)c->accepted, "acceptance_rate",
                  cli_json_number(share(c->accepted, c->drafted)), "acceptance_length",
                  cli_json_number(length_of(c)), "drafted_per_pos", drafted, "accepted_per_pos",
                  accepted, "passes", (json_int_t)c->rounds, "tokens", (json_int_t)c->tokens,
                  "draft_ms", c->draft_ms, "verify_ms", c->verify_ms, "sample_ms", c->sample_ms,
                  "same_text", bench_arm_repeats(&c->arm) ? json_boolean(c->same) : json_null());
    json_object_update_new(arm, speed);
    json_object_update_new(arm, counts);
    return arm;
}

/* `all`: with what S(k) predicts of them. */
static json_t *json_cases(const sweep *s, const bench_case *cases, bool all) {
    json_t *list = json_array();
    for (int i = 0; i < s->n_arms; i++)
        json_array_append_new(list, json_case(&cases[i], all ? predicted(s, i) : NAN));
    return list;
}

static json_t *json_passes(const sweep *s) {
    const bench_cost *c = &s->passes;
    if (!s->measured) return json_null();
    json_t *list = json_array();
    for (int i = 0; i < c->n_rows; i++) {
        const bench_cost_point *p = &c->points[i];
        json_array_append_new(list, json_pack("{s:i, s:o, s:o, s:o}", "rows", p->m, "ms",
                                              cli_json_range(&p->ms), "to_one_row",
                                              cli_json_range(&p->growth), "roofline_ms",
                                              cli_json_number(p->roofline_ms.median)));
    }
    const bench_range decode = decode_rate(s);
    return json_pack("{s:i, s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "context", c->n_context,
                     "draft_ms", c->draft_ms.median, "draft_to_one_row",
                     cli_json_range(&c->draft_share), "read_gb_per_s",
                     cli_json_range(&c->read_gb_per_s), "dot_gmac_per_s",
                     cli_json_range(&c->dot_gmac_per_s), "decode_gb_per_s", cli_json_range(&decode),
                     "share_of_read_limit", cli_json_range(&s->points[0].share), "widths", list);
}

static json_t *json_timeline(const sweep *s) {
    const bench_timeline *t = &s->timeline;
    const bench_arm *a = &s->arms[s->timeline_arm];
    json_t *rounds = json_array();
    for (size_t i = 0; i < t->n; i++) {
        const td_round *r = &t->rounds[i];
        json_array_append_new(rounds,
                              json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:i}", "start_ms",
                                        r->start_ms, "draft_ms", r->draft_ms, "verify_ms",
                                        r->verify_ms, "sample_ms", r->sample_ms, "drafted",
                                        r->drafted, "accepted", r->accepted, "tokens", r->tokens));
    }
    return json_pack("{s:o, s:o, s:i, s:f, s:s, s:f, s:o}", "prompt",
                     cli_json_text(s->prompts[0].id), "k", json_k(a), "width", a->width,
                     "temperature", temperature_of(a), "verify", rule_name(a), "plain_ms",
                     t->plain_ms, "rounds", rounds);
}

json_t *sweep_json(const sweep *s) {
    json_t *prompts = json_array(), *sets = json_array();
    for (int i = 0; i < s->n_prompts; i++) {
        const cli_prompt *p = &s->prompts[i];
        json_array_append_new(prompts,
                              json_pack("{s:o, s:o, s:o, s:i, s:o}", "id", cli_json_text(p->id),
                                        "set", cli_json_text(p->set), "lang",
                                        cli_json_text(p->lang), "prompt_tokens", (int)p->n, "cases",
                                        json_cases(s, s->cases + i * s->n_arms, false)));
    }
    for (int i = 0; i < s->n_sets; i++)
        json_array_append_new(
            sets, json_pack("{s:o, s:i, s:o}", "set", cli_json_text(s->sets[i].name), "prompts",
                            s->sets[i].n_prompts, "cases", json_cases(s, s->sets[i].cases, false)));
    return json_pack("{s:i, s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "tandem_bench", 1,
                     "target", cli_json_model(s->models.target), "draft",
                     cli_json_model(s->models.draft), "n_predict", s->args->n_predict, "runs",
                     s->args->n_runs, "prompts", prompts, "sets", sets, "all",
                     json_cases(s, s->all, true), "passes", json_passes(s), "timeline",
                     json_timeline(s), "versions", cli_json_versions(s->models.cpu));
}
