/* Saved results of tandem bench --json: reading them, and --compare of two. No models are needed.
 *
 * What is judged are figures that the machine's speed cancels from: the ratio to plain decoding within a run, and the
 * share of drafted tokens accepted. Tokens a second of two processes differ by the machine's mood alone, so they are
 * printed and nothing is said of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"

enum {
    VERSION = 1, /* of the format, "tandem_bench" */
    FEWEST_PAIRS =
        5 /* all of fewer differ in one direction by chance too often: 4: one time in 8 */
};

/* ---- reading ---- */

double cli_json_get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

cli_arm cli_arm_of(const json_t *result, const json_t *c) {
    const json_t *k = json_object_get(c, "k");
    const double width = cli_json_get(c, "width"), own = cli_json_get(c, "temperature");
    const double top = cli_json_get(result, "temperature");
    const char *verify = json_string_value(json_object_get(c, "verify"));
    cli_arm a = {.k = json_is_string(k) ? TD_DRAFT_AUTO : (int)json_integer_value(k),
                 .width = width >= 1 && width <= TD_MAX_DRAFT ? (int)width : 1,
                 .temperature = isfinite(own)   ? own
                                : isfinite(top) ? top
                                                : 0};
    a.verify = verify ? verify : a.temperature == 0 ? "greedy" : "sampled";
    return a;
}

const char *cli_arm_name(char buf[64], const cli_arm *a) {
    char shape[32];
    if (!a->k)
        snprintf(shape, sizeof shape, "plain");
    else if (a->k == TD_DRAFT_AUTO)
        snprintf(shape, sizeof shape, "k auto");
    else if (a->width > 1)
        snprintf(shape, sizeof shape, "tree %dx%d", a->width, a->k);
    else
        snprintf(shape, sizeof shape, "k %d", a->k);
    if (a->temperature == 0)
        snprintf(buf, 64, "%s", shape);
    else if (!a->k)
        snprintf(buf, 64, "%s T %g", shape, a->temperature);
    else
        snprintf(buf, 64, "%s T %g %.7s", shape, a->temperature, a->verify);
    return buf;
}

static bool is_case(const json_t *c) {
    const json_t *k = json_object_get(c, "k");
    if (json_is_string(k)) return !strcmp(json_string_value(k), "auto");
    return json_is_integer(k) && json_integer_value(k) >= 0 &&
           json_integer_value(k) <= TD_MAX_DRAFT;
}

static bool are_cases(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!is_case(json_array_get(list, i))) return false;
    return json_is_array(list);
}

static bool are_prompts(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!are_cases(json_object_get(json_array_get(list, i), "cases"))) return false;
    return json_is_array(list);
}

json_t *cli_result_read(const char *path) {
    char *text = NULL;
    size_t len;
    json_error_t err;
    if (cli_read_file(path, &text, &len)) return NULL;
    json_t *r = json_loadb(text, len, 0, &err);
    free(text);
    const json_t *version = json_object_get(r, "tandem_bench");
    if (!r)
        cli_failed("%s is not JSON: line %d: %s", path, err.line, err.text);
    else if (!json_is_integer(version))
        cli_failed("%s is not a result of 'tandem bench --json': it has no \"tandem_bench\"", path);
    else if (json_integer_value(version) != VERSION)
        cli_failed("%s is a result of version %lld; this program reads version %d", path,
                   (long long)json_integer_value(version), VERSION);
    else if (!are_cases(json_object_get(r, "all")) || !are_prompts(json_object_get(r, "prompts")))
        cli_failed("%s is damaged: \"all\" and \"prompts\" are not lists of cases", path);
    else
        return r;
    json_decref(r);
    return NULL;
}

int cli_plot_saved(const cli_args *a) {
    int rc = cli_plot_check(a->plot);
    json_t *r = rc ? NULL : cli_result_read(a->file);
    if (!rc) rc = r ? cli_plot(a->plot, r) : CLI_FAILED;
    json_decref(r);
    return rc;
}

/* ---- comparing ---- */

/* A figure before and after. Unknown numbers are NAN. */
typedef struct change {
    double before, after;
    double change, low,
        high; /* of the speed-up: relative; of the acceptance rate: low and high unused */
    double z;
    const char *verdict;
} change;

typedef struct arm_change {
    cli_arm arm;
    const json_t *before, *after; /* the cases over all prompts */
    change speedup, acceptance;
} arm_change;

typedef struct comparison {
    json_t *results[2]; /* owned */
    const char *paths[2];
    arm_change *arms;           /* (n_arms), owned */
    size_t n_arms, n_pairs;     /* prompts that both have; 0: others */
    json_t *warnings, *only[2]; /* owned: texts, names of arms */
} comparison;

/* Plain decoding has no rule. */
static bool same_arm(const cli_arm *a, const cli_arm *b) {
    return a->k == b->k && a->temperature == b->temperature &&
           (!a->k || (a->width == b->width && !strcmp(a->verify, b->verify)));
}

static const json_t *find_case(const json_t *result, const json_t *cases, const cli_arm *a) {
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const cli_arm other = cli_arm_of(result, json_array_get(cases, i));
        if (same_arm(a, &other)) return json_array_get(cases, i);
    }
    return NULL;
}

static const json_t *prompt_at(const json_t *result, size_t i) {
    return json_array_get(json_object_get(result, "prompts"), i);
}

/* How many, when both were measured on the same ones in the same order; else 0. */
static size_t count_pairs(const comparison *c) {
    const size_t n = json_array_size(json_object_get(c->results[0], "prompts"));
    if (n != json_array_size(json_object_get(c->results[1], "prompts"))) return 0;
    for (size_t i = 0; i < n; i++) {
        static const char *const keys[] = {"id", "set", "prompt_tokens"};
        const json_t *a = prompt_at(c->results[0], i), *b = prompt_at(c->results[1], i);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *x = json_object_get(a, keys[k]), *y = json_object_get(b, keys[k]);
            if (x != y && !json_equal(x, y)) return 0;
        }
    }
    return n;
}

static double ratio_of(const json_t *c) {
    return cli_json_get(json_object_get(c, "ratio"), "median");
}

/* Changes of the speed-up, prompt by prompt, into v; how many are known. */
static int paired_changes(const comparison *c, const cli_arm *a, double *v) {
    int n = 0;
    for (size_t i = 0; i < c->n_pairs; i++) {
        double ratio[2];
        for (int r = 0; r < 2; r++)
            ratio[r] = ratio_of(
                find_case(c->results[r], json_object_get(prompt_at(c->results[r], i), "cases"), a));
        if (ratio[0] > 0 && ratio[1] > 0) v[n++] = ratio[1] / ratio[0] - 1;
    }
    return n;
}

/* Paired where there are prompts enough; else from the intervals of both, which have to lie apart: that errs towards
 * "same". */
static int judge_speedup(const comparison *c, arm_change *a) {
    change *s = &a->speedup;
    double *v = calloc(c->n_pairs + 1, sizeof *v);
    if (!v) return cli_failed("out of memory");
    const int n = paired_changes(c, &a->arm, v);
    *s = (change){.before = ratio_of(a->before), .after = ratio_of(a->after), .z = NAN};
    if (n >= FEWEST_PAIRS) {
        const bench_interval i = bench_bootstrap(v, n);
        s->low = i.low, s->high = i.high;
        s->change = bench_range_of(v, n).median;
    } else {
        s->change = s->after / s->before - 1;
        s->low = cli_json_get(a->after, "ratio_low") / cli_json_get(a->before, "ratio_high") - 1;
        s->high = cli_json_get(a->after, "ratio_high") / cli_json_get(a->before, "ratio_low") - 1;
    }
    free(v);
    s->verdict = !isfinite(s->low) || !isfinite(s->high) ? "too few"
                 : s->low > 0                            ? "faster"
                 : s->high < 0                           ? "slower"
                                                         : "same";
    return CLI_OK;
}

/* Two proportions, pooled. Runs of one prompt repeat the same drafts, so counts are those of one run. */
static void judge_acceptance(const comparison *c, arm_change *a) {
    const json_t *cases[2] = {a->before, a->after};
    double drafted[2], accepted[2];
    for (int r = 0; r < 2; r++) {
        const double runs = fmax(1, cli_json_get(c->results[r], "runs"));
        drafted[r] = cli_json_get(cases[r], "drafted") / runs;
        accepted[r] = cli_json_get(cases[r], "accepted") / runs;
    }
    const double p = (accepted[0] + accepted[1]) / (drafted[0] + drafted[1]);
    change *s = &a->acceptance;
    *s = (change){.before = accepted[0] / drafted[0],
                  .after = accepted[1] / drafted[1],
                  .low = NAN,
                  .high = NAN};
    s->change = s->after - s->before;
    s->z = s->change == 0 ? 0 : s->change / sqrt(p * (1 - p) * (1 / drafted[0] + 1 / drafted[1]));
    s->verdict = !isfinite(s->z) ? "-" : s->z > 1.96 ? "higher" : s->z < -1.96 ? "lower" : "same";
}

static void warn_of(comparison *c, const char *what, const char *before, const char *after) {
    json_array_append_new(c->warnings, json_sprintf("%s: %s, then %s", what, before, after));
}

static void warn_if_other(comparison *c, const char *what, const char *object, const char *key) {
    const char *text[2];
    char number[2][32];
    for (int r = 0; r < 2; r++) {
        const json_t *o = object ? json_object_get(c->results[r], object) : c->results[r];
        const json_t *v = json_object_get(o, key);
        snprintf(number[r], sizeof number[r], "%.12g", json_number_value(v));
        text[r] = json_is_string(v) ? json_string_value(v) : json_is_number(v) ? number[r] : "none";
    }
    if (strcmp(text[0], text[1])) warn_of(c, what, text[0], text[1]);
}

static void find_warnings(comparison *c) {
    warn_if_other(c, "target", "target", "name");
    warn_if_other(c, "target's bytes", "target", "weight_bytes");
    warn_if_other(c, "draft", "draft", "name");
    warn_if_other(c, "draft's bytes", "draft", "weight_bytes");
    warn_if_other(c, "tokens generated (-n)", NULL, "n_predict");
    warn_if_other(c, "threads", "target", "threads");
    warn_if_other(c, "instruction set", "versions", "cpu");
    warn_if_other(c, "tandem", "versions", "tandem");
    if (!c->n_pairs)
        json_array_append_new(c->warnings,
                              json_string("the prompts are not the same: nothing is paired"));
}

static int find_arms(comparison *c) {
    const json_t *all[2];
    for (int r = 0; r < 2; r++)
        all[r] = json_object_get(c->results[r], "all");
    if (!(c->arms = calloc(json_array_size(all[0]) + 1, sizeof *c->arms)))
        return cli_failed("out of memory");
    for (int r = 0; r < 2; r++)
        for (size_t i = 0; i < json_array_size(all[r]); i++) {
            const json_t *own = json_array_get(all[r], i);
            const cli_arm arm = cli_arm_of(c->results[r], own);
            const json_t *other = find_case(c->results[!r], all[!r], &arm);
            char name[64];
            if (!other)
                json_array_append_new(c->only[r], json_string(cli_arm_name(name, &arm)));
            else if (!r)
                c->arms[c->n_arms++] = (arm_change){.arm = arm, .before = own, .after = other};
        }
    for (size_t i = 0; i < c->n_arms; i++) {
        const int rc = judge_speedup(c, &c->arms[i]);
        if (rc) return rc;
        judge_acceptance(c, &c->arms[i]);
    }
    return CLI_OK;
}

/* ---- the tables ---- */

/* The text of v, or "-" where there is none. */
static const char *number(char buf[24], const char *format, double v) {
    if (!isfinite(v)) return "-";
    snprintf(buf, 24, format, v);
    return buf;
}

static void print_speedups(const comparison *c) {
    char name[64], b[4][24];
    printf("speed-up over plain decoding, %s\n", c->n_pairs >= FEWEST_PAIRS
                                                     ? "the change paired by prompt"
                                                     : "the change from both intervals");
    printf("%-22s %8s %8s %8s  %18s  %s\n", "", "old", "new", "change", "95 % interval", "verdict");
    for (size_t i = 0; i < c->n_arms; i++) {
        const change *s = &c->arms[i].speedup;
        char interval[56] = "-";
        if (!c->arms[i].arm.k) continue;
        if (isfinite(s->low) && isfinite(s->high))
            snprintf(interval, sizeof interval, "%s to %s %%", number(b[0], "%+.1f", 100 * s->low),
                     number(b[1], "%+.1f", 100 * s->high));
        printf("%-22s %8s %8s %6s %%  %18s  %s\n", cli_arm_name(name, &c->arms[i].arm),
               number(b[0], "%.3f", s->before), number(b[1], "%.3f", s->after),
               number(b[2], "%+.1f", 100 * s->change), interval, s->verdict);
    }
}

static void print_acceptances(const comparison *c) {
    char name[64], b[4][24];
    printf("\ndrafted tokens accepted; tokens of a text hang together, so z is too sure\n");
    printf("%-22s %8s %8s %8s  %18s  %s\n", "", "old", "new", "change", "z", "verdict");
    for (size_t i = 0; i < c->n_arms; i++) {
        const change *s = &c->arms[i].acceptance;
        if (c->arms[i].arm.k)
            printf("%-22s %6s %% %6s %% %6s %%  %18s  %s\n", cli_arm_name(name, &c->arms[i].arm),
                   number(b[0], "%.1f", 100 * s->before), number(b[1], "%.1f", 100 * s->after),
                   number(b[2], "%+.1f", 100 * s->change), number(b[3], "%+.2f", s->z), s->verdict);
    }
}

static double speed_of(const json_t *c) {
    return cli_json_get(json_object_get(c, "tok_per_s"), "median");
}

static void print_speeds(const comparison *c) {
    char name[64], b[3][24];
    printf("\ntokens a second; not judged: machines drift from one process to the next\n");
    printf("%-22s %8s %8s %8s\n", "", "old", "new", "change");
    for (size_t i = 0; i < c->n_arms; i++) {
        const double before = speed_of(c->arms[i].before), after = speed_of(c->arms[i].after);
        printf("%-22s %8s %8s %6s %%\n", cli_arm_name(name, &c->arms[i].arm),
               number(b[0], "%.2f", before), number(b[1], "%.2f", after),
               number(b[2], "%+.1f", 100 * (after / before - 1)));
    }
}

static bool other_text(const json_t *c) {
    return json_is_false(json_object_get(c, "same_text"));
}

static void print_rest(const comparison *c) {
    static const char *const when[] = {"old", "new"};
    char name[64];
    putchar('\n');
    for (int r = 0; r < 2; r++) {
        for (size_t i = 0; i < c->n_arms; i++)
            if (other_text(r ? c->arms[i].after : c->arms[i].before))
                printf("text: in the %s result %s wrote another one than plain decoding\n", when[r],
                       cli_arm_name(name, &c->arms[i].arm));
        for (size_t i = 0; i < json_array_size(c->only[r]); i++)
            printf("only in the %s result: %s\n", when[r],
                   json_string_value(json_array_get(c->only[r], i)));
    }
    printf("One arm in twenty that did not change is called faster or slower by chance.\n");
}

static json_t *json_change(const change *s, bool speedup) {
    json_t *o = json_pack("{s:o, s:o, s:o, s:s}", "old", cli_json_number(s->before), "new",
                          cli_json_number(s->after), "change", cli_json_number(s->change),
                          "verdict", s->verdict);
    if (speedup) {
        json_object_set_new(o, "low", cli_json_number(s->low));
        json_object_set_new(o, "high", cli_json_number(s->high));
    } else {
        json_object_set_new(o, "z", cli_json_number(s->z));
    }
    return o;
}

static json_t *to_json(const comparison *c) {
    json_t *arms = json_array();
    for (size_t i = 0; i < c->n_arms; i++) {
        const arm_change *a = &c->arms[i];
        json_t *k = a->arm.k == TD_DRAFT_AUTO ? json_string("auto") : json_integer(a->arm.k);
        json_array_append_new(
            arms, json_pack("{s:o, s:i, s:s, s:f, s:o, s:o, s:{s:o, s:o}, s:{s:O?, s:O?}}", "k", k,
                            "width", a->arm.width, "verify", a->arm.verify, "temperature",
                            a->arm.temperature, "speedup", json_change(&a->speedup, true),
                            "acceptance", json_change(&a->acceptance, false), "tok_per_s", "old",
                            cli_json_number(speed_of(a->before)), "new",
                            cli_json_number(speed_of(a->after)), "same_text", "old",
                            json_object_get(a->before, "same_text"), "new",
                            json_object_get(a->after, "same_text")));
    }
    return json_pack("{s:o, s:I, s:O, s:O, s:O}", "arms", arms, "paired_prompts",
                     (json_int_t)c->n_pairs, "warnings", c->warnings, "only_old", c->only[0],
                     "only_new", c->only[1]);
}

int cli_compare(const cli_args *a) {
    comparison c = {.paths = {a->compare, a->file},
                    .warnings = json_array(),
                    .only = {json_array(), json_array()}};
    int rc = CLI_OK;
    for (int r = 0; r < 2 && !rc; r++)
        if (!(c.results[r] = cli_result_read(c.paths[r]))) rc = CLI_FAILED;
    if (rc) goto done;
    c.n_pairs = count_pairs(&c);
    find_warnings(&c);
    if ((rc = find_arms(&c))) goto done;
    for (size_t i = 0; i < json_array_size(c.warnings); i++)
        cli_warn("not alike: %s", json_string_value(json_array_get(c.warnings, i)));
    if (a->print_json) {
        rc = cli_json_print(to_json(&c));
    } else {
        print_speedups(&c);
        print_acceptances(&c);
        print_speeds(&c);
        print_rest(&c);
    }
    if (!rc) rc = cli_finish_stdout();
done:
    for (int r = 0; r < 2; r++) {
        json_decref(c.results[r]);
        json_decref(c.only[r]);
    }
    json_decref(c.warnings);
    free(c.arms);
    return rc;
}
