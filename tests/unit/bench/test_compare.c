/* The bench's order of runs, its sums and its eye for other tokens, against a library that is made
 * up: td_generate below takes the time and gives the tokens that a case asks for. */
#include "bench/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKENS = 10, N_ROUNDS = 4, MAX_CALLS = 64 };

static struct {
    int calls;                 /* without those that only empty the caches */
    bench_arm arm[MAX_CALLS];  /* of each call */
    bool fresh[MAX_CALLS];     /* its caches were empty */
    bool empty;                /* the caches are */
    int differ_at;             /* the call that gives another last token; -1: none */
    int short_at;              /* the call that gives one token less */
    int fail_at, cancel_at;
    td_token tokens[N_TOKENS];
    const char *counter; /* a file of microjoules, 1000000 more with each round; NULL: none */
    long long microjoules, turn; /* the counter goes from turn to 0 */
} lib;

static void reset(void) {
    memset(&lib, 0, sizeof lib);
    lib.differ_at = lib.short_at = lib.fail_at = lib.cancel_at = -1;
}

/* Each call is slower than the one before, as on a machine that gets busy: 10 % of the first's
 * time; a draft of k takes 1 / (1 + k) of the time. */
static double ms_of_call(int call, int k) {
    return 100 * (1 + 0.1 * call) / (1 + k);
}

static void write_number(const char *path, long long v) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%lld\n", v);
    assert_int_equal(fclose(f), 0);
}

static void use_energy(void) {
    if (!lib.counter) return;
    lib.microjoules += 1000000;
    if (lib.microjoules > lib.turn) lib.microjoules -= lib.turn;
    write_number(lib.counter, lib.microjoules);
}

td_code td_generate(td_session *s, const td_token *prompt, size_t n_prompt,
                    const td_generate_options *opt, td_stats *stats, td_error *err) {
    (void)s;
    assert_true(!opt->on_text && !opt->on_prefill);
    if (!opt->n_predict) { /* both caches hold another token, and nothing of the prompt */
        assert_true(n_prompt == 1 && *prompt != 3 && opt->draft_max > 0 && !opt->on_round);
        lib.empty = true;
        return TD_OK;
    }
    assert_true(n_prompt == 1 && *prompt == 3);
    const int call = lib.calls++, k = opt->draft_max;
    lib.arm[call] = (bench_arm){opt->sampling.temperature, opt->verify, k, opt->draft_width};
    lib.fresh[call] = lib.empty;
    lib.empty = false;
    if (call == lib.fail_at) return td_fail(err, TD_E_MEMORY, "made up");
    const int first = opt->sampling.temperature == 0 ? 100 : 200;
    for (int i = 0; i < N_TOKENS; i++)
        lib.tokens[i] = first + i;
    if (call == lib.differ_at) lib.tokens[N_TOKENS - 1] = 7;
    for (int i = 0; i < N_ROUNDS; i++) {
        use_energy();
        const td_round r = {.start_ms = i, .drafted = k, .tokens = i ? 3 : 1};
        opt->on_round(opt->user, &r);
    }
    *stats = (td_stats){.decode_tokens = N_TOKENS - (call == lib.short_at),
                        .decode_ms = ms_of_call(call, k),
                        .ttft_ms = 1000 + call,
                        .itl_ms_p50 = call,
                        .itl_ms_p95 = 2 * call,
                        .drafted = 4 * k,
                        .accepted = 3 * k,
                        .rounds = N_ROUNDS,
                        .stop = call == lib.cancel_at ? TD_STOP_CANCELLED : TD_STOP_LENGTH,
                        .tokens = lib.tokens};
    return TD_OK;
}

static const td_token prompt[] = {3};
static const bench_arm two_lengths[] = {{0, TD_VERIFY_COUPLED, 0, 1},
                                        {0, TD_VERIFY_BLOCK, 2, 1},
                                        {0, TD_VERIFY_BLOCK, 5, 1}};
static const td_generate_options options = {.n_predict = N_TOKENS};
static const bench_plan plan = {.arms = two_lengths,
                                .n_arms = 3,
                                .n_runs = 3,
                                .prompt = prompt,
                                .n_prompt = 1,
                                .generate = &options};

/* Two temperatures: at the second two rules, a tree among the drafts. */
static const bench_arm two_temperatures[] = {
    {0, TD_VERIFY_COUPLED, 0, 1},      {0, TD_VERIFY_TOKEN, 4, 1},
    {0.5f, TD_VERIFY_COUPLED, 0, 1},   {0.5f, TD_VERIFY_TOKEN, 2, 1},
    {0.5f, TD_VERIFY_COUPLED, 3, 2},
};
static const bench_plan sweep = {.arms = two_temperatures,
                                 .n_arms = 5,
                                 .n_runs = 3,
                                 .prompt = prompt,
                                 .n_prompt = 1,
                                 .generate = &options};

static void runs_go_back_and_forth(void **state) {
    static const int order[] = {0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4};
    bench_case cases[5];
    (void)state;
    reset();
    assert_int_equal(bench_compare(NULL, &sweep, cases, NULL, NULL, NULL), TD_OK);
    assert_int_equal(lib.calls, 15);
    for (int i = 0; i < 15; i++) {
        const bench_arm *got = &lib.arm[i], *want = &two_temperatures[order[i]];
        assert_true(got->temperature == want->temperature && got->verify == want->verify);
        assert_true(got->k == want->k && got->width == want->width);
    }
    for (int i = 0; i < 5; i++)
        assert_true(cases[i].arm.k == two_temperatures[i].k);
}

static void ratios_are_taken_within_a_run(void **state) {
    bench_case cases[3];
    (void)state;
    reset();
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, NULL), TD_OK);
    /* k = 2: calls 1, 4, 7 beside the plain calls 0, 5, 6 */
    double ratio[] = {ms_of_call(0, 0) / ms_of_call(1, 2), ms_of_call(5, 0) / ms_of_call(4, 2),
                      ms_of_call(6, 0) / ms_of_call(7, 2)};
    double speed[] = {N_TOKENS * 1000 / ms_of_call(1, 2), N_TOKENS * 1000 / ms_of_call(4, 2),
                      N_TOKENS * 1000 / ms_of_call(7, 2)};
    assert_int_equal(cases[1].arm.k, 2);
    assert_true(fabs(cases[1].ratio.min - ratio[0]) < 1e-12);
    assert_true(fabs(cases[1].ratio.median - ratio[2]) < 1e-12);
    assert_true(fabs(cases[1].ratio.max - ratio[1]) < 1e-12);
    assert_true(fabs(cases[1].tok_per_s.max - speed[0]) < 1e-9);
    assert_true(fabs(cases[1].tok_per_s.median - speed[1]) < 1e-9);
    assert_true(fabs(cases[1].tok_per_s.min - speed[2]) < 1e-9);
    assert_true(cases[0].ratio.min == 1 && cases[0].ratio.max == 1);
    assert_true(cases[1].itl_ms_p50 == 4 && cases[1].itl_ms_p95 == 8);
    assert_true(cases[2].drafted == 60 && cases[2].accepted == 45 && cases[2].rounds == 12);
    assert_true(cases[2].tokens == 3 * N_TOKENS && cases[2].n_tokens == N_TOKENS);
}

static void ratios_are_to_the_plain_arm_of_the_temperature(void **state) {
    static const int plain_of[] = {0, 0, 2, 2, 2};
    static const int call_of[3][5] = {{0, 1, 2, 3, 4}, {9, 8, 7, 6, 5}, {10, 11, 12, 13, 14}};
    bench_case cases[5];
    (void)state;
    reset();
    assert_int_equal(bench_compare(NULL, &sweep, cases, NULL, NULL, NULL), TD_OK);
    for (int i = 0; i < 5; i++) {
        double ratio[3];
        assert_int_equal(bench_plain_of(two_temperatures, i), plain_of[i]);
        for (int r = 0; r < 3; r++)
            ratio[r] = ms_of_call(call_of[r][plain_of[i]], 0) /
                       ms_of_call(call_of[r][i], two_temperatures[i].k);
        const bench_range want = bench_range_of(ratio, 3);
        assert_true(fabs(cases[i].ratio.min - want.min) < 1e-12);
        assert_true(fabs(cases[i].ratio.median - want.median) < 1e-12);
        assert_true(fabs(cases[i].ratio.max - want.max) < 1e-12);
    }
}

/* The time to the first token is that of calls that read their prompt. */
static void the_first_two_runs_read_the_prompt(void **state) {
    bench_case cases[3];
    (void)state;
    reset();
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, NULL), TD_OK);
    for (int call = 0; call < 9; call++)
        assert_int_equal(lib.fresh[call], call < 6);
    for (int i = 0; i < 3; i++)
        assert_true(cases[i].ttft_ms == 1000 + (i + (5 - i)) / 2.0);
}

/* Whichever run it is, plain ones too: then decoding itself is not repeatable. */
static void other_tokens_are_seen(void **state) {
    static const int case_of_call[] = {0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4};
    (void)state;
    for (int call = 0; call < 15; call++)
        for (int way = 0; way < 2; way++) {
            bench_case cases[5];
            if (call == 0 || call == 2) continue; /* these say what the tokens are */
            reset();
            if (way) {
                lib.differ_at = call;
            } else {
                lib.short_at = call;
            }
            assert_int_equal(bench_compare(NULL, &sweep, cases, NULL, NULL, NULL), TD_OK);
            for (int i = 0; i < 5; i++)
                assert_int_equal(cases[i].same, i != case_of_call[call]);
        }
    reset();
    bench_case cases[5];
    assert_int_equal(bench_compare(NULL, &sweep, cases, NULL, NULL, NULL), TD_OK);
    for (int i = 0; i < 5; i++) {
        assert_true(cases[i].same);
        assert_int_equal(bench_arm_repeats(&cases[i].arm), i != 3); /* token by token at 0.5 */
    }
}

static void rows_of_arms(void **state) {
    (void)state;
    assert_int_equal(bench_arm_rows(&two_temperatures[0]), 1);
    assert_int_equal(bench_arm_rows(&two_temperatures[1]), 5);
    assert_int_equal(bench_arm_rows(&two_temperatures[4]), 7);
    assert_int_equal(bench_arm_rows(&(bench_arm){.k = TD_DRAFT_AUTO, .width = 1}), 0);
}

/* Of one arm in the first run, beside its plain text's time. */
static void timeline_of_an_arm(void **state) {
    bench_timeline t = {0};
    bench_plan p = sweep;
    bench_case cases[5];
    (void)state;
    reset();
    p.timeline = &t;
    p.timeline_arm = 3;
    assert_int_equal(bench_compare(NULL, &p, cases, NULL, NULL, NULL), TD_OK);
    assert_int_equal(t.n, N_ROUNDS);
    for (int i = 0; i < N_ROUNDS; i++)
        assert_true(t.rounds[i].start_ms == i && t.rounds[i].drafted == 2);
    assert_true(t.plain_ms == ms_of_call(2, 0));
    free(t.rounds);
}

/* ---- energy: a folder as Linux shows it ---- */

typedef struct zones {
    char folder[32], path[4][64], counter[128];
} zones;

static void write_text(const char *folder, const char *file, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Two packages, the cores of one, the platform. */
static void make_zones(zones *z) {
    static const char *const names[] = {"package-0\n", "package-1\n", "core\n", "psys\n"};
    static const char *const folders[] = {"intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0",
                                          "intel-rapl:2"};
    strcpy(z->folder, "/tmp/tandem-rapl-XXXXXX");
    assert_non_null(mkdtemp(z->folder));
    for (int i = 0; i < 4; i++) {
        snprintf(z->path[i], sizeof z->path[i], "%s/%s", z->folder, folders[i]);
        assert_int_equal(mkdir(z->path[i], 0700), 0);
        write_text(z->path[i], "name", names[i]);
        write_text(z->path[i], "energy_uj", "5000000\n");
        write_text(z->path[i], "max_energy_range_uj", "262143328850\n");
    }
    snprintf(z->counter, sizeof z->counter, "%s/energy_uj", z->path[0]);
}

static void remove_zones(const zones *z) {
    static const char *const files[] = {"name", "energy_uj", "max_energy_range_uj"};
    char path[128];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 3; j++) {
            snprintf(path, sizeof path, "%s/%s", z->path[i], files[j]);
            unlink(path);
        }
        rmdir(z->path[i]);
    }
    rmdir(z->folder);
}

static void joules_of_the_packages(void **state) {
    zones z;
    bench_energy e;
    (void)state;
    make_zones(&z);
    bench_energy_open(&e, z.folder);
    assert_int_equal(e.n_packages, 2);
    write_text(z.path[0], "energy_uj", "7500000\n");  /* 2.5 J */
    write_text(z.path[1], "energy_uj", "5250000\n");  /* 0.25 J */
    write_text(z.path[2], "energy_uj", "99000000\n"); /* parts of a package */
    write_text(z.path[3], "energy_uj", "99000000\n"); /* has the packages in it */
    assert_true(fabs(bench_energy_lap(&e) - 2.75) < 1e-9);
    assert_true(bench_energy_lap(&e) == 0);
    write_text(z.path[0], "energy_uj", "500000\n"); /* past its range: 262143.32885 - 7.5 + 0.5 */
    assert_true(fabs(bench_energy_lap(&e) - 262136.32885) < 1e-6);
    unlink(z.counter);
    assert_true(isnan(bench_energy_lap(&e)));
    bench_energy_open(&e, z.folder); /* one of two packages is not the energy of the machine */
    assert_int_equal(e.n_packages, 0);
    assert_true(isnan(bench_energy_lap(&e)));
    write_text(z.path[0], "energy_uj", "no number\n");
    bench_energy_open(&e, z.folder);
    assert_int_equal(e.n_packages, 0);
    remove_zones(&z);
    bench_energy_open(&e, z.folder); /* no such folder */
    assert_true(e.n_packages == 0 && isnan(bench_energy_lap(&e)));
}

/* A joule a round: of each call three count, with the nine tokens they gave; the counter turns on the way. */
static void energy_of_an_arm(void **state) {
    zones z;
    bench_energy e;
    bench_plan p = plan;
    bench_case cases[3];
    (void)state;
    make_zones(&z);
    reset();
    lib.turn = 8000000;
    lib.counter = z.counter;
    write_number(z.counter, 0);
    char range[64];
    snprintf(range, sizeof range, "%lld\n", lib.turn);
    write_text(z.path[0], "max_energy_range_uj", range);
    bench_energy_open(&e, z.folder);
    p.energy = &e;
    assert_int_equal(bench_compare(NULL, &p, cases, NULL, NULL, NULL), TD_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(cases[i].joules - 3 * 3) < 1e-9);
        assert_int_equal(cases[i].metered_tokens, 3 * 9);
    }
    lib.counter = NULL;
    unlink(z.counter);
    assert_int_equal(bench_compare(NULL, &p, cases, NULL, NULL, NULL), TD_OK);
    assert_true(isnan(cases[0].joules));
    p.energy = NULL;
    assert_int_equal(bench_compare(NULL, &p, cases, NULL, NULL, NULL), TD_OK);
    assert_true(isnan(cases[0].joules));
    remove_zones(&z);
}

static bool stop_at_three(void *user, int done, int total) {
    assert_int_equal(total, 9);
    *(int *)user = done;
    return done < 3;
}

static void errors_and_stops_end_it(void **state) {
    bench_case cases[3];
    td_error err;
    int done;
    (void)state;
    reset();
    lib.fail_at = 4;
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, &err), TD_E_MEMORY);
    assert_int_equal(lib.calls, 5);
    assert_string_equal(err.msg, "made up");
    reset();
    lib.cancel_at = 2;
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, &err), TD_E_CANCELLED);
    assert_int_equal(lib.calls, 3);
    reset();
    assert_int_equal(bench_compare(NULL, &plan, cases, stop_at_three, &done, &err), TD_E_CANCELLED);
    assert_true(done == 3 && lib.calls == 3);
}

static void range_of_few_numbers(void **state) {
    (void)state;
    bench_range r = bench_range_of((double[]){3, 1, 2}, 3);
    assert_true(r.min == 1 && r.median == 2 && r.max == 3);
    r = bench_range_of((double[]){4, 1, 2, 3}, 4);
    assert_true(r.min == 1 && r.median == 2.5 && r.max == 4);
    r = bench_range_of((double[]){5}, 1);
    assert_true(r.min == 5 && r.median == 5 && r.max == 5);
    r = bench_range_of(NULL, 0);
    assert_true(isnan(r.median));
    assert_true(isnan(bench_tok_per_s(&(td_stats){0})));
    assert_true(bench_tok_per_s(&(td_stats){.decode_tokens = 5, .decode_ms = 100}) == 50);
}

/* The interval of a median, where its law is known: with three numbers each of the outer ones is the median of a
 * resample with 7/27; with 1..21 the median is x or less with P(at least 11 of 21 draws are), a binomial, whose 2.5 %
 * points are 7 and 15. */
static void bootstrap_interval(void **state) {
    (void)state;
    const double three[] = {1.5, 1.1, 1.2};
    bench_interval v = bench_bootstrap(three, 3);
    assert_true(v.low == 1.1 && v.high == 1.5);
    double many[21];
    for (int i = 0; i < 21; i++)
        many[i] = (i * 8) % 21 + 1;
    v = bench_bootstrap(many, 21);
    assert_true(v.low >= 6 && v.low <= 8 && v.high >= 14 && v.high <= 16);
    assert_true(many[1] == 9); /* read only */
    v = bench_bootstrap(three, 2);
    assert_true(isnan(v.low) && isnan(v.high));
}

/* S(k) by hand: 3 tokens for two steps of 10 and a pass of 44 with 1 of sampling, against 40 + 0.5 each. */
static void predicted_speed_up(void **state) {
    (void)state;
    const bench_forecast_round f = {.k = 2,
                                    .tokens = 3,
                                    .plain_ms = 40,
                                    .verify_ms = 44,
                                    .draft_ms = 10,
                                    .plain_sample_ms = 0.5,
                                    .sample_ms = 1};
    assert_true(fabs(bench_predict(&f) - 121.5 / 65) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bootstrap_interval),
        cmocka_unit_test(predicted_speed_up),
        cmocka_unit_test(runs_go_back_and_forth),
        cmocka_unit_test(ratios_are_taken_within_a_run),
        cmocka_unit_test(ratios_are_to_the_plain_arm_of_the_temperature),
        cmocka_unit_test(the_first_two_runs_read_the_prompt),
        cmocka_unit_test(other_tokens_are_seen),
        cmocka_unit_test(rows_of_arms),
        cmocka_unit_test(timeline_of_an_arm),
        cmocka_unit_test(joules_of_the_packages),
        cmocka_unit_test(energy_of_an_arm),
        cmocka_unit_test(errors_and_stops_end_it),
        cmocka_unit_test(range_of_few_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
