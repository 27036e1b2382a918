/* Loading the models and turning options into the library's structs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static bool on_load(void *user, uint64_t done, uint64_t total) {
    cli_progress(user, (double)done / 1e6, (double)total / 1e6, "MB");
    return !cli_stop_signal();
}

static int load(td_model **out, const char *path, const char *what, const cli_args *a) {
    char label[40];
    snprintf(label, sizeof label, "loading the %s", what);
    const td_model_options opt = {.n_threads = a->n_threads, .progress = on_load, .user = label};
    td_error err;
    const td_code rc = td_model_open(out, path, &opt, &err);
    cli_progress_end();
    return rc ? cli_error(&err) : CLI_OK;
}

int cli_models_open(cli_models *m, const cli_args *a, bool draft) {
    td_error err;
    int rc;
    if (td_cpu_level(&m->cpu, &err))
        return cli_error(&err); /* before a load that would be in vain */
    if ((rc = load(&m->target, a->model, "target", a))) return rc;
    if (draft && (rc = load(&m->draft, a->draft, "draft", a))) return rc;
    return CLI_OK;
}

void cli_models_close(cli_models *m) {
    td_model_close(&m->draft);
    td_model_close(&m->target);
}

int cli_check_bias(const cli_args *a, const td_model *m) {
    const int n_vocab = td_model_get_info(m)->n_vocab;
    for (int i = 0; i < a->n_bias; i++)
        if (a->bias[i].token >= n_vocab)
            return cli_misuse("--logit-bias: there is no token %d; this model's ids end at %d",
                              a->bias[i].token, n_vocab - 1);
    return CLI_OK;
}

static bool tick_calibrate(void *user, int done, int total) {
    (void)user;
    cli_progress("measuring what passes cost", done, total, "passes");
    return !cli_stop_signal();
}

int cli_calibrate(td_session *s, const cli_args *a) {
    td_error err;
    const td_code rc = td_session_calibrate(s, a->recalibrate, tick_calibrate, NULL, NULL, &err);
    cli_progress_end();
    return rc ? cli_error(&err) : CLI_OK;
}

td_verify cli_verify_rule(cli_verify rule) {
    return rule == CLI_VERIFY_COUPLED ? TD_VERIFY_COUPLED
           : rule == CLI_VERIFY_TOKEN ? TD_VERIFY_TOKEN
                                      : TD_VERIFY_BLOCK;
}

void cli_generate_options(td_generate_options *opt, const cli_args *a) {
    td_generate_defaults(opt);
    opt->sampling = a->sampling;
    opt->verify = cli_verify_rule(a->verify);
    opt->sampling.bias = a->bias;
    opt->sampling.n_bias = a->n_bias;
    opt->n_predict = a->n_predict;
    opt->ignore_eos = a->ignore_eos;
    opt->stops = a->stops;
    opt->n_stops = a->n_stops;
}
