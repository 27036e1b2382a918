/* The meters of one generation, as a table for people and as JSON for programs. Both come from the
 * same numbers. */
#include <math.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/cli.h"

static double rate(double count, double ms) {
    return count > 0 && ms > 0 ? count * 1000 / ms : NAN;
}

static double decode_rate(const td_stats *s) {
    return rate(s->decode_tokens, s->decode_ms);
}

static double acceptance_length(const td_stats *s) {
    return s->rounds > 0 ? 1 + (double)s->accepted / s->rounds : NAN;
}

static double acceptance_rate(const td_stats *s) {
    return s->drafted > 0 ? (double)s->accepted / (double)s->drafted : NAN;
}

uint64_t cli_memory_peak(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (uint64_t)u.ru_maxrss * 1024;
}

/* ---- for people ---- */

/* A number that may be unknown, in so many columns. */
static const char *num(char buf[24], double v, int width, int digits) {
    if (isfinite(v))
        snprintf(buf, 24, "%*.*f", width, digits, v);
    else
        snprintf(buf, 24, "%*s", width, "-");
    return buf;
}

static void print_speculation(FILE *f, const cli_report *r) {
    const td_stats *s = r->stats;
    char a[24], b[24];
    fprintf(f, "drafted  %8lld tokens; %lld accepted, %s %%; length %s in %d passes\n",
            (long long)s->drafted, (long long)s->accepted, num(a, 100 * acceptance_rate(s), 0, 1),
            num(b, acceptance_length(s), 0, 2), s->rounds);
    if (!s->drafted) return;
    int column = fprintf(f, "         accepted by position");
    for (int i = 0; i < r->draft_max && s->drafted_per_pos[i]; i++) {
        if (column + 5 > 79) column = fprintf(f, "\n                             ") - 1;
        column +=
            fprintf(f, " %.2f", (double)s->accepted_per_pos[i] / (double)s->drafted_per_pos[i]);
    }
    fputc('\n', f);
}

void cli_report_print(FILE *f, const cli_report *r) {
    const td_stats *s = r->stats;
    const td_model_info *target = td_model_get_info(r->models->target);
    const td_model_info *draft = r->models->draft ? td_model_get_info(r->models->draft) : NULL;
    char a[24], b[24], c[24], d[24];
    fprintf(f, "load     %8.0f ms", target->load_ms + (draft ? draft->load_ms : 0));
    if (draft) fprintf(f, "; target %.0f, draft %.0f", target->load_ms, draft->load_ms);
    fprintf(f, "\nprefill  %8d tokens  %s ms  %s tok/s", s->prefill_tokens,
            num(a, s->prefill_ms, 9, 1), num(b, rate(s->prefill_tokens, s->prefill_ms), 8, 1));
    fprintf(f, "\ndecode   %8d tokens  %s ms  %s tok/s", s->decode_tokens,
            num(a, s->decode_ms, 9, 1), num(b, decode_rate(s), 8, 1));
    fprintf(f, "\nTTFT     %8.0f ms; ITL p50 %s ms, p95 %s ms\n", s->ttft_ms,
            num(a, s->itl_ms_p50, 0, 1), num(b, s->itl_ms_p95, 0, 1));
    if (r->draft_max) print_speculation(f, r);
    fprintf(f, "time     %8.0f ms draft, %.0f ms verify, %.0f ms sampling\n", s->draft_ms,
            s->verify_ms, s->sample_ms);
    fprintf(f, "memory   target %s + KV %s", cli_size(a, target->weight_bytes),
            cli_size(b, td_session_kv_bytes(r->session, false)));
    if (draft)
        fprintf(f, "; draft %s + KV %s", cli_size(c, draft->weight_bytes),
                cli_size(d, td_session_kv_bytes(r->session, true)));
    fprintf(f, "\nstop     %s; %s, seed %llu; %s, %d thread%s\n", td_stop_reason_name(s->stop),
            cli_verify_name(r->args), (unsigned long long)r->args->sampling.seed, r->models->cpu,
            target->n_threads,
            target->n_threads == 1 ? "" : "s");
}

/* ---- for programs ---- */

json_t *cli_json_versions(const char *cpu) {
    return json_pack("{s:s, s:s, s:i}", "tandem", td_version(), "cpu", cpu, "report", 1);
}

json_t *cli_json_model(const td_model *m) {
    if (!m) return json_null();
    const td_model_info *i = td_model_get_info(m);
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:i}", "path", cli_json_text(i->path), "arch",
                     cli_json_text(i->arch), "name", cli_json_text(i->name), "file_bytes",
                     (json_int_t)i->file_bytes, "weight_bytes", (json_int_t)i->weight_bytes,
                     "step_bytes", (json_int_t)i->step_bytes, "threads", i->n_threads);
}

static json_t *per_position(const int64_t *counts, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(counts[i]));
    return list;
}

static json_t *settings(const cli_report *r) {
    const cli_args *a = r->args;
    /* As text: a seed may be larger than the whole numbers that readers of JSON keep exactly. */
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)a->sampling.seed);
    return json_pack("{s:i, s:i, s:s, s:s, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:s, s:s}",
                     "n_predict", a->n_predict, "n_ctx", td_session_n_ctx(r->session),
                     "cache_type_k", cli_kv_type_name(a->cache_type_k), "cache_type_v",
                     cli_kv_type_name(a->cache_type_v), "temperature",
                     (double)a->sampling.temperature, "top_k", a->sampling.top_k, "top_p",
                     (double)a->sampling.top_p, "min_p", (double)a->sampling.min_p,
                     "repeat_penalty", (double)a->sampling.repeat_penalty, "presence_penalty",
                     (double)a->sampling.presence_penalty, "frequency_penalty",
                     (double)a->sampling.frequency_penalty, "repeat_last_n",
                     a->sampling.repeat_last_n, "seed", seed, "verify", cli_verify_name(a));
}

static json_t *speculation(const cli_report *r) {
    const td_stats *s = r->stats;
    return json_pack(
        "{s:i, s:b, s:i, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "draft_max", r->draft_max, "auto", r->adapt,
        "passes", s->rounds, "drafted", (json_int_t)s->drafted, "accepted", (json_int_t)s->accepted,
        "acceptance_rate", cli_json_number(acceptance_rate(s)), "acceptance_length",
        cli_json_number(acceptance_length(s)), "accepted_per_pos",
        per_position(s->accepted_per_pos, r->draft_max), "drafted_per_pos",
        per_position(s->drafted_per_pos, r->draft_max), "draft_ms", cli_json_number(s->draft_ms),
        "verify_ms", cli_json_number(s->verify_ms), "sample_ms", cli_json_number(s->sample_ms));
}

static json_t *memory(const cli_report *r) {
    const td_model *draft = r->models->draft;
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "target_weight_bytes",
                     (json_int_t)td_model_get_info(r->models->target)->weight_bytes,
                     "target_kv_bytes", (json_int_t)td_session_kv_bytes(r->session, false),
                     "draft_weight_bytes",
                     (json_int_t)(draft ? td_model_get_info(draft)->weight_bytes : 0),
                     "draft_kv_bytes", (json_int_t)td_session_kv_bytes(r->session, true),
                     "peak_bytes", (json_int_t)cli_memory_peak());
}

json_t *cli_report_json(const cli_report *r) {
    const td_stats *s = r->stats;
    const double target_ms = td_model_get_info(r->models->target)->load_ms;
    const double draft_ms = r->models->draft ? td_model_get_info(r->models->draft)->load_ms : 0;
    return json_pack(
        "{s:o, s:o, s:{s:f, s:f, s:f}, s:{s:i, s:i, s:o, s:o}, s:{s:i, s:o, s:o, s:o, s:o}, s:o, "
        "s:o, "
        "s:o, s:s, s:o, s:o}",
        "target", cli_json_model(r->models->target), "draft", cli_json_model(r->models->draft),
        "load", "ms", target_ms + draft_ms, "target_ms", target_ms, "draft_ms", draft_ms, "prefill",
        "tokens", s->prefill_tokens, "prompt_tokens", s->prompt_tokens, "ms",
        cli_json_number(s->prefill_ms), "tok_per_s",
        cli_json_number(rate(s->prefill_tokens, s->prefill_ms)), "decode", "tokens",
        s->decode_tokens, "ms", cli_json_number(s->decode_ms), "tok_per_s",
        cli_json_number(decode_rate(s)), "itl_ms_p50", cli_json_number(s->itl_ms_p50), "itl_ms_p95",
        cli_json_number(s->itl_ms_p95), "ttft_ms", cli_json_number(s->ttft_ms), "speculation",
        speculation(r), "memory", memory(r), "stop_reason", td_stop_reason_name(s->stop),
        "settings", settings(r), "versions", cli_json_versions(r->models->cpu));
}
