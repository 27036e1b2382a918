/* tandem run: one prompt, its continuation as it comes, the meters. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

typedef struct run {
    cli_models models;
    cli_prompt prompt;
    td_session *session;
    int write_error; /* errno of standard output; 0: fine */
    bool began;      /* some text was written */
    char last;       /* its last byte */
} run;

static bool on_text(void *user, const char *text, size_t len) {
    run *r = user;
    if (!len) return true;
    if (!r->began) cli_progress_end();
    if (!cli_write(text, len)) {
        r->write_error = errno;
        return false;
    }
    r->began = true;
    r->last = text[len - 1];
    return true;
}

static void on_prefill(void *user, int done, int total) {
    (void)user;
    cli_progress("reading the prompt", done, total, "tokens");
}

static void draw_seed(cli_args *a) {
    td_generate_options fresh;
    td_generate_defaults(&fresh);
    if (a->sampling.seed == UINT64_MAX) /* stands for "a new one" */
        a->sampling.seed = fresh.sampling.seed;
}

static int prepare(run *r, const cli_args *a, int draft_max) {
    td_error err;
    int rc;
    if ((rc = cli_json_check(a->json)) || (rc = cli_prompt_read(&r->prompt, a))) return rc;
    cli_stop_init(); /* until here Ctrl-C just ends the process */
    if ((rc = cli_models_open(&r->models, a, draft_max != 0)) ||
        (rc = cli_check_bias(a, r->models.target)) ||
        (rc = cli_prompt_encode(&r->prompt, a, r->models.target)))
        return rc;
    const int n_ctx = a->n_ctx == 0  ? td_model_get_info(r->models.target)->n_ctx_train
                      : a->n_ctx < 0 ? 0
                                     : a->n_ctx;
    const td_session_options opt = {
        .n_ctx = n_ctx,
        .cache_type_k = a->cache_type_k,
        .cache_type_v = a->cache_type_v,
        .draft_max = draft_max == TD_DRAFT_AUTO ? TD_AUTO_MAX_DRAFT
                                                : draft_max * (a->draft_width ? a->draft_width : 1)};
    if (td_session_open(&r->session, r->models.target, r->models.draft, &opt, &err))
        return cli_error(&err);
    return draft_max == TD_DRAFT_AUTO ? cli_calibrate(r->session, a) : CLI_OK;
}

/* Whether standard output and standard error are the same terminal, file or pipe. */
static bool one_place(void) {
    struct stat out, err;
    return !fstat(1, &out) && !fstat(2, &err) && out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

static int generate(run *r, const cli_args *a, int draft_max, td_stats *stats) {
    td_generate_options opt;
    td_error err;
    cli_generate_options(&opt, a);
    opt.draft_max = draft_max;
    opt.draft_width = a->draft_width;
    opt.on_text = on_text;
    opt.on_prefill = on_prefill;
    opt.user = r;
    cli_stop_session(r->session);
    const td_code rc = td_generate(r->session, r->prompt.tokens, r->prompt.n, &opt, stats, &err);
    cli_stop_session(NULL);
    cli_progress_end();
    /* Where both streams end in one place, the meters begin on a line of their own; the text itself stays as
     * it is. */
    if (r->began && r->last != '\n' && one_place()) fputc('\n', stderr);
    if (r->write_error)
        return cli_failed("standard output can't be written: %s", strerror(r->write_error));
    return rc ? cli_error(&err) : CLI_OK;
}

int cli_run(cli_args *a) {
    run r = {0};
    td_stats stats;
    int rc;
    const int draft_max = !a->draft || a->no_draft ? 0
                          : a->draft_width         ? a->draft_depth
                          : a->n_k                 ? a->k[0]
                                                   : a->draft_max;
    cli_progress_init(!a->no_progress && !a->quiet);
    draw_seed(a);
    if ((rc = prepare(&r, a, draft_max)) || (rc = generate(&r, a, draft_max, &stats))) goto fail;
    const cli_report report = {.args = a,
                               .models = &r.models,
                               .session = r.session,
                               .stats = &stats,
                               .draft_max =
                                   draft_max == TD_DRAFT_AUTO ? TD_AUTO_MAX_DRAFT : draft_max,
                               .adapt = draft_max == TD_DRAFT_AUTO};
    if (!a->quiet) cli_report_print(stderr, &report);
    if (a->json) rc = cli_json_write(a->json, cli_report_json(&report));
    if (!rc && cli_stop_signal()) rc = CLI_SIGNAL + cli_stop_signal();
fail:
    td_session_close(&r.session);
    cli_models_close(&r.models);
    cli_prompt_close(&r.prompt);
    return rc;
}
