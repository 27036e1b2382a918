/* tandem selftest: the promises, tried on the user's models. One line a check, exit code 1 when one fails. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"

static bool tick(void *user, const char *what, int done, int total) {
    (void)user;
    cli_progress(what, done, total, "");
    return !cli_stop_signal();
}

static void on_check(void *user, const td_check *c) {
    json_t *checks = user;
    cli_progress_end();
    printf("%-25s%-7s%s\n", c->name, c->passed ? "passed" : "FAILED", c->result);
    fflush(stdout);
    json_array_append_new(checks, json_pack("{s:s, s:b, s:s, s:I, s:I, s:o, s:o, s:o}", "name", c->name,
                                            "passed", c->passed, "result", c->result, "n",
                                            (json_int_t)c->n, "wrong", (json_int_t)c->n_wrong, "z",
                                            cli_json_number(c->z), "distance", cli_json_number(c->tv),
                                            "bound", cli_json_number(c->tv_bound)));
}

int cli_selftest(cli_args *a) {
    json_t *checks = json_array();
    const td_selftest_options opt = {.n_threads = a->n_threads,
                                     .progress = tick,
                                     .on_check = on_check,
                                     .user = checks};
    bool passed = false;
    const char *cpu;
    td_error err;
    int rc = cli_json_check(a->json);
    if (!rc && td_cpu_level(&cpu, &err)) rc = cli_error(&err);
    if (!rc) {
        cli_progress_init(!a->no_progress);
        cli_stop_init();
        if (td_selftest(a->model, a->draft, &opt, &passed, &err)) rc = cli_error(&err);
        cli_progress_end();
    }
    if (!rc)
        printf("%s: %s with %s as its draft, %s\n", passed ? "passed" : "FAILED", a->model,
               a->draft ? a->draft : "itself", cpu);
    if (!rc) rc = cli_finish_stdout();
    if (!rc && a->json)
        rc = cli_json_write(a->json, json_pack("{s:b, s:s, s:s?, s:O, s:o}", "passed", passed, "target",
                                               a->model, "draft", a->draft, "checks", checks,
                                               "versions", cli_json_versions(cpu)));
    json_decref(checks);
    return rc ? rc : cli_stop_signal() ? CLI_SIGNAL + cli_stop_signal() : passed ? CLI_OK : CLI_FAILED;
}
