/* The sampler against a naive second one: doubles, libm, a full sort, counts by search. */
#include "verify/verify.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/count_allocations.h"

/* ---- random inputs ---- */

static uint64_t n_numbers;

static double number(void) {
    return td_uniform(152, TD_STREAM_GUMBEL, n_numbers++, 0);
}

static int below(int n) {
    return (int)(number() * n);
}

/* About normal, from sums alone: the same bits on every machine, as no libm is asked. */
static float bell(void) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += number();
    return (float)sum;
}

#define PICK(array) (array)[below((int)(sizeof(array) / sizeof *(array)))]

/* ---- the reference ---- */

typedef struct place {
    float x;
    int32_t id;
} place;

static int by_order(const void *a, const void *b) {
    const place *l = a, *r = b;
    if (l->x != r->x) return l->x < r->x ? 1 : -1;
    return l->id < r->id ? -1 : 1;
}

typedef struct context {
    const int32_t *history, *path;
    int n_history, n_path;
} context;

/* Logits after bias and penalties, in order. The penalties are defined on floats, so they are
 * floats here too. */
static void ref_order(const verify_sampler *s, const float *logits, int n, const context *c,
                      place *out) {
    int *count = calloc((size_t)n, sizeof *count);
    assert_non_null(count);
    const int total = c->n_history + c->n_path;
    for (int i = 0; i < total; i++) {
        const int32_t t = i < c->n_history ? c->history[i] : c->path[i - c->n_history];
        if (t < 0 || t >= n) continue;
        if (s->repeat_last_n < 0 || i >= total - s->repeat_last_n) count[t]++;
    }
    for (int id = 0; id < n; id++) {
        float x = logits[id];
        for (int i = 0; i < s->n_bias; i++)
            if (s->bias[i].token == id) x += s->bias[i].bias;
        if (count[id]) {
            if (x > 0)
                x /= s->repeat_penalty;
            else
                x *= s->repeat_penalty;
            x -= (float)count[id] * s->frequency_penalty + s->presence_penalty;
        }
        if (isnan(x)) x = -INFINITY;
        if (x > FLT_MAX) x = FLT_MAX;
        out[id] = (place){x, id};
    }
    free(count);
    qsort(out, (size_t)n, sizeof *out, by_order);
}

/* Returns false where a cut falls so close to its mark that the last bits of exp decide. */
static bool ref_probs(const verify_sampler *s, const place *order, int n, double *probs) {
    bool clear = true;
    for (int i = 0; i < n; i++)
        probs[i] = 0;
    if (order[0].x == -INFINITY) {
        probs[0] = 1;
        return true;
    }
    if (s->temperature == 0) {
        probs[order[0].id] = 1;
        return true;
    }
    const double max = order[0].x;
    int keep = n;
    if (s->top_k > 0 && s->top_k < keep) keep = s->top_k;
    if (s->top_p < 1) {
        double sum = 0, upto = 0;
        for (int i = 0; i < keep; i++)
            sum += exp(order[i].x - max);
        const double mark = s->top_p * sum;
        for (int i = 0; i < keep; i++) {
            upto += exp(order[i].x - max);
            if (fabs(upto - mark) < 1e-9 * sum) clear = false;
            if (upto >= mark) {
                keep = i + 1;
                break;
            }
        }
    }
    if (s->min_p > 0) {
        int kept = 0;
        for (int i = 0; i < keep; i++) {
            const double w = exp(order[i].x - max);
            if (order[i].x != order[0].x && fabs(w - s->min_p) < 1e-9) clear = false;
            if (w >= s->min_p) kept = i + 1;
        }
        keep = kept;
    }
    double sum = 0;
    for (int i = 0; i < keep; i++)
        sum += exp((order[i].x - max) / s->temperature);
    for (int i = 0; i < keep; i++)
        probs[order[i].id] = exp((order[i].x - max) / s->temperature) / sum;
    return clear;
}

/* ---- one comparison ---- */

static int n_compared, n_unclear;

static void compare(const verify_sampler *s, const float *logits, int n, const context *c,
                    verify_work *w) {
    td_error err;
    if (verify_sampler_check(s, n, &err)) fail_msg("%s", err.msg);
    const size_t size = (size_t)n;
    place *order = calloc(size, sizeof *order);
    double *want = calloc(size, sizeof *want);
    float *got = calloc(size + 1, sizeof *got), *was = calloc(size, sizeof *was);
    assert_true(order && want && got && was);
    ref_order(s, logits, n, c, order);
    got[n] = 12345; /* guard */
    memcpy(was, logits, size * sizeof *was);

    const int before = n_allocations;
    verify_probs(s, logits, n, c->history, c->n_history, c->path, c->n_path, w, got);
    const int32_t best =
        verify_argmax(s, logits, n, c->history, c->n_history, c->path, c->n_path, w);
    assert_int_equal(n_allocations, before);
    assert_memory_equal(was, logits, size * sizeof *was);
    assert_true(got[n] == 12345);
    assert_int_equal(best, order[0].x == -INFINITY ? 0 : order[0].id);

    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += got[i];
    if (!(fabs(sum - 1) < 2e-7)) fail_msg("sum of %d probabilities: %.9f", n, sum);
    n_compared++;
    if (!ref_probs(s, order, n, want)) {
        n_unclear++;
    } else {
        for (int i = 0; i < n; i++)
            if (!(fabs(got[i] - want[i]) <= 2e-7 * want[i] + 1e-37) ||
                (want[i] == 0 && got[i] != 0))
                fail_msg(
                    "temp %g top_k %d top_p %g min_p %g repeat %g presence %g frequency %g last %d "
                    "bias %d, vocabulary %d: token %d (logit %g) has %g, not %g",
                    s->temperature, s->top_k, s->top_p, s->min_p, s->repeat_penalty,
                    s->presence_penalty, s->frequency_penalty, s->repeat_last_n, s->n_bias, n, i,
                    logits[i], got[i], want[i]);
    }
    free(order);
    free(want);
    free(got);
    free(was);
}

static const verify_sampler off = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};

static void random_settings(verify_sampler *s, int n, verify_bias bias[4]) {
    const float temps[] = {0, 1e-6f, 0.1f, 0.8f, 1, 1, 2, 100, 1e6f, 1e30f};
    const int ks[] = {0, 0, 0, -1, 1, 2, 5, 40, 200, 1000, n - 1, n, n + 5, INT_MAX};
    const float top_ps[] = {1, 1, 1, 0, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 0.9999999f};
    const float min_ps[] = {0, 0, 0, 1e-30f, 0.01f, 0.05f, 0.5f, 1};
    const float repeats[] = {1, 1, 1.1f, 1.5f, 0.7f}, presences[] = {0, 0, 0.5f, -1, 2};
    const float frequencies[] = {0, 0, 0.3f, -0.25f, 1};
    const int windows[] = {0, 1, 2, 5, 64, -1, INT_MAX};
    *s = (verify_sampler){
        .temperature = PICK(temps),
        .top_k = PICK(ks),
        .top_p = PICK(top_ps),
        .min_p = PICK(min_ps),
        .repeat_penalty = PICK(repeats),
        .presence_penalty = PICK(presences),
        .frequency_penalty = PICK(frequencies),
        .repeat_last_n = PICK(windows),
        .bias = bias,
        .n_bias = number() < 0.5 ? 0 : below(5),
    };
    const float biases[] = {-INFINITY, -100, -1, 0.5f, 3, 100};
    for (int i = 0; i < 4; i++) /* the same token may come twice: both count */
        bias[i] = (verify_bias){below(n < 3 ? n : 3 + below(n - 2)), PICK(biases)};
}

enum { PLAIN, SHARP, FLAT, TIES, EQUAL, HUGE_ONES, BROKEN, ZEROS, N_KINDS };

static void random_logits(int kind, int n, float *x) {
    const float huge[] = {1e30f, -1e30f, FLT_MAX, -FLT_MAX, 0, 1};
    const float broken[] = {NAN, INFINITY, -INFINITY, -INFINITY, 0, 3.5f, -NAN};
    const float zeros[] = {0.0f, -0.0f};
    for (int i = 0; i < n; i++) {
        x[i] = kind == PLAIN       ? 2.5f * bell()
               : kind == SHARP     ? 12 * bell()
               : kind == FLAT      ? 0.01f * bell()
               : kind == TIES      ? (float)(below(9) - 4)
               : kind == EQUAL     ? -7.25f
               : kind == ZEROS     ? PICK(zeros)
               : kind == HUGE_ONES ? (number() < 0.5 ? PICK(huge) : bell())
                                   : (number() < 0.3 ? PICK(broken) : bell());
    }
}

/* The scratch is shared by all calls of one size, so that what one leaves behind hurts the next. */
static void same_as_the_reference(void **state) {
    (void)state;
    const int sizes[] = {1, 2, 3, 10, 127, 128, 129, 300, 1000};
    float x[1000];
    int32_t tokens[100];
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++) {
        const int n = sizes[a];
        verify_work *w = NULL;
        assert_int_equal(verify_work_open(&w, n, NULL), TD_OK);
        for (int t = 0; t < 2500; t++) {
            random_logits(t % N_KINDS, n, x);
            verify_sampler s;
            verify_bias bias[4];
            random_settings(&s, n, bias);
            for (int i = 0; i < 100; i++) /* a few ids often, and some that do not exist */
                tokens[i] = number() < 0.1 ? -3 + below(n + 6) : below(n < 20 ? n : 20);
            const int n_history = below(80), n_path = below(20);
            compare(&s, x, n, &(context){tokens, tokens + 80, n_history, n_path}, w);
        }
        verify_work_close(w);
    }
    print_message("%d compared, %d with a cut too close to call\n", n_compared, n_unclear);
    assert_true(n_unclear * 20 < n_compared);
}

static void same_as_the_reference_when_large(void **state) {
    (void)state;
    enum { N = 151936 };
    float *x = calloc(N, sizeof *x);
    int32_t tokens[300];
    verify_work *w = NULL;
    assert_non_null(x);
    assert_int_equal(verify_work_open(&w, N, NULL), TD_OK);
    for (int i = 0; i < 300; i++)
        tokens[i] = below(N);
    const context c = {tokens, tokens + 290, 290, 10};
    const verify_sampler fixed[] = {
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1},
        {.temperature = 0.8f,
         .top_k = 40,
         .top_p = 0.95f,
         .min_p = 0.05f,
         .repeat_penalty = 1.1f,
         .repeat_last_n = 64},
        {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1},
        {.temperature = 1.3f, .top_k = 1188, .top_p = 0.99f, .repeat_penalty = 1}, /* one a block */
        {.temperature = 1.3f, .top_k = 1187, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1.3f, .top_k = 20000, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.001f, .repeat_penalty = 1},
        {.temperature = 1,
         .top_p = 1,
         .repeat_penalty = 1.2f,
         .presence_penalty = 0.4f,
         .frequency_penalty = 0.1f,
         .repeat_last_n = -1},
    };
    for (int kind = 0; kind < N_KINDS; kind++) {
        random_logits(kind, N, x);
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
            compare(&fixed[i], x, N, &c, w);
        for (int i = 0; i < 6; i++) {
            verify_sampler s;
            verify_bias bias[4];
            random_settings(&s, N, bias);
            compare(&s, x, N, &c, w);
        }
    }
    verify_work_close(w);
    free(x);
}

/* ---- by hand ---- */

static void run(const verify_sampler *s, const float *logits, int n, const context *c,
                float *probs) {
    verify_work *w = NULL;
    assert_int_equal(verify_work_open(&w, n, NULL), TD_OK);
    verify_probs(s, logits, n, c->history, c->n_history, c->path, c->n_path, w, probs);
    verify_work_close(w);
}

static const context nothing = {0};

static void penalties_by_hand(void **state) {
    (void)state;
    /* Token: 0 once, 1 once, 2 twice, 3 never, 4 outside the window. */
    const int32_t history[] = {4, 4, 0, 2}, path[] = {2, 1};
    const context c = {history, path, 4, 2};
    const float x[5] = {2, -2, 1, 0.5f, 3};
    verify_sampler s = off;
    s.repeat_penalty = 2, s.frequency_penalty = 0.25f, s.presence_penalty = 0.125f,
    s.repeat_last_n = 4;
    const double y[5] = {2 / 2. - 0.375, -2 * 2. - 0.375, 1 / 2. - 0.625, 0.5, 3};
    float probs[5];
    run(&s, x, 5, &c, probs);
    double sum = 0;
    for (int i = 0; i < 5; i++)
        sum += exp(y[i]);
    for (int i = 0; i < 5; i++)
        assert_true(fabs(probs[i] - exp(y[i]) / sum) < 1e-7);

    s.temperature =
        0; /* the argmax stands after the penalties: 3 falls, once it is in the window */
    run(&s, x, 5, &c, probs);
    assert_true(probs[4] == 1);
    s.repeat_last_n = 6;
    s.presence_penalty = 5;
    run(&s, x, 5, &c, probs);
    assert_true(probs[3] == 1);
}

/* A drafted token counts exactly as the same token does when it is committed. */
static void path_is_history(void **state) {
    (void)state;
    float x[50], a[50], b[50];
    int32_t tokens[30];
    for (int t = 0; t < 300; t++) {
        random_logits(PLAIN, 50, x);
        for (int i = 0; i < 30; i++)
            tokens[i] = below(50);
        verify_sampler s;
        verify_bias bias[4];
        random_settings(&s, 50, bias);
        const int cut = below(31);
        run(&s, x, 50, &(context){tokens, NULL, 30, 0}, a);
        run(&s, x, 50, &(context){tokens, tokens + cut, cut, 30 - cut}, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void ties_go_to_the_lower_id(void **state) {
    (void)state;
    float x[300], probs[300];
    for (int i = 0; i < 300; i++)
        x[i] = i % 3 ? 1 : 2; /* 0, 3, 6 ... are highest */
    verify_sampler s = off;
    s.top_k = 5;
    run(&s, x, 300, &nothing, probs);
    for (int i = 0; i < 300; i++)
        assert_true(probs[i] == (i % 3 == 0 && i <= 12 ? 0.2f : 0));
    s.top_k = 102; /* all 100 of the highest and the two lowest ids of the others */
    run(&s, x, 300, &nothing, probs);
    for (int i = 0; i < 300; i++)
        assert_int_equal(probs[i] > 0, i % 3 == 0 || i < 3);
    s.temperature = 0;
    x[0] = x[3] = 1;
    run(&s, x, 300, &nothing, probs);
    assert_true(probs[6] == 1);
}

static void rows_with_nothing_in_them(void **state) {
    (void)state;
    enum { N = 200 };
    const float fills[] = {NAN, -INFINITY};
    float x[N], probs[N];
    verify_bias bias[N];
    for (int i = 0; i < N; i++)
        bias[i] = (verify_bias){i, -INFINITY};
    for (int t = 0; t < 3 * 40; t++) {
        for (int i = 0; i < N; i++)
            x[i] = t % 3 < 2 ? fills[t % 3] : bell(); /* or all of it forbidden */
        verify_sampler s;
        verify_bias unused[4];
        random_settings(&s, N, unused);
        s.bias = bias, s.n_bias = t % 3 < 2 ? 0 : N;
        run(&s, x, N, &nothing, probs);
        assert_true(probs[0] == 1);
        for (int i = 1; i < N; i++)
            assert_true(probs[i] == 0);
    }
    for (int i = 0; i < N; i++)
        x[i] = i < 4   ? -INFINITY
               : i < 8 ? INFINITY
                       : 1; /* +inf: the largest float, shared by four */
    run(&off, x, N, &nothing, probs);
    for (int i = 0; i < N; i++)
        assert_true(probs[i] == (i >= 4 && i < 8 ? 0.25f : 0));
}

static void forbidden_tokens_stay_at_zero(void **state) {
    (void)state;
    const verify_bias bias[] = {{3, -INFINITY}, {1, -INFINITY}, {3, 100}};
    const float x[5] = {0, 50, 0, 60, 0};
    verify_sampler s = off;
    s.bias = bias, s.n_bias = 3;
    float probs[5];
    run(&s, x, 5, &nothing, probs);
    for (int i = 0; i < 5; i++)
        assert_true(probs[i] == (i % 2 ? 0 : (float)(1 / 3.0)));
}

/* Temperature comes last: what the filters keep does not depend on it. */
static void temperature_comes_last(void **state) {
    (void)state;
    float x[500], cold[500], hot[500];
    for (int t = 0; t < 200; t++) {
        random_logits(PLAIN, 500, x);
        verify_sampler s = off;
        s.top_k = 100, s.top_p = 0.9f, s.min_p = 0.02f;
        s.temperature = 0.5f;
        run(&s, x, 500, &nothing, cold);
        s.temperature = 50;
        run(&s, x, 500, &nothing, hot);
        for (int i = 0; i < 500; i++)
            assert_int_equal(cold[i] > 0, hot[i] > 0);
    }
}

/* The same bits from every compiler and machine: a hash of 40 rows, fixed once. Inputs come from
 * sums and products of Philox numbers alone. */
static void same_bits_everywhere(void **state) {
    (void)state;
    enum { N = 3000 };
    const uint64_t kept = n_numbers;
    n_numbers = 1 << 30;
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    float x[N], probs[N];
    for (int t = 0; t < 40; t++) {
        random_logits(t % 4, N, x);
        verify_sampler s = off;
        s.temperature = 0.25f + 0.25f * (float)(t % 5);
        s.top_k = t % 3 ? 0 : 50;
        s.top_p = t % 4 ? 0.9f : 1;
        s.min_p = t % 5 ? 0 : 0.1f;
        run(&s, x, N, &nothing, probs);
        const unsigned char *bytes = (const unsigned char *)probs;
        for (size_t i = 0; i < sizeof probs; i++)
            hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    n_numbers = kept;
    if (hash != 0xc1cdf135f62e23c0u) fail_msg("hash 0x%llx", (unsigned long long)hash);
}

/* ---- the check ---- */

static void settings_are_checked(void **state) {
    (void)state;
    static const verify_bias high = {100, 1}, low = {-1, 1}, nan_bias = {5, NAN},
                             inf = {5, INFINITY}, fine = {99, -INFINITY};
#define WITH(...)                                                                                  \
    { .temperature = 1, .top_p = 1, .repeat_penalty = 1, __VA_ARGS__ }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
    const struct {
        verify_sampler s;
        const char *flag; /* NULL: fine */
    } cases[] = {
        {WITH(.top_k = 40), NULL},
        {WITH(.temperature = 0), NULL},
        {WITH(.temperature = -0.1f), "--temp"},
        {WITH(.temperature = NAN), "--temp"},
        {WITH(.temperature = INFINITY), "--temp"},
        {WITH(.top_k = -1), NULL},
        {WITH(.top_p = 0), NULL},
        {WITH(.top_p = 95), "--top-p"},
        {WITH(.top_p = -0.5f), "--top-p"},
        {WITH(.top_p = NAN), "--top-p"},
        {WITH(.min_p = 1), NULL},
        {WITH(.min_p = 1.01f), "--min-p"},
        {WITH(.min_p = -0.01f), "--min-p"},
        {WITH(.min_p = NAN), "--min-p"},
        {WITH(.repeat_penalty = 0.5f), NULL},
        {WITH(.repeat_penalty = 0), "--repeat-penalty"},
        {WITH(.repeat_penalty = -1), "--repeat-penalty"},
        {WITH(.repeat_penalty = NAN), "--repeat-penalty"},
        {WITH(.repeat_penalty = INFINITY), "--repeat-penalty"},
        {WITH(.presence_penalty = -2), NULL},
        {WITH(.presence_penalty = NAN), "--presence-penalty"},
        {WITH(.presence_penalty = INFINITY), "--presence-penalty"},
        {WITH(.frequency_penalty = 2), NULL},
        {WITH(.frequency_penalty = NAN), "--frequency-penalty"},
        {WITH(.frequency_penalty = -INFINITY), "--frequency-penalty"},
        {WITH(.repeat_last_n = -1), NULL},
        {WITH(.repeat_last_n = -2), "--repeat-last-n"},
        {WITH(.bias = &fine, .n_bias = 1), NULL},
        {WITH(.bias = &high, .n_bias = 1), "token 100"},
        {WITH(.bias = &low, .n_bias = 1), "token -1"},
        {WITH(.bias = &nan_bias, .n_bias = 1), "--logit-bias"},
        {WITH(.bias = &inf, .n_bias = 1), "--logit-bias"},
        {WITH(.bias = &fine, .n_bias = -1), "--logit-bias"},
        {WITH(.n_bias = 1), "--logit-bias"},
    };
#pragma GCC diagnostic pop
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_error err = {0};
        const td_code rc = verify_sampler_check(&cases[i].s, 100, &err);
        if ((rc == TD_OK) != !cases[i].flag) fail_msg("case %zu: %s", i, err.msg);
        if (!cases[i].flag) continue;
        assert_int_equal(rc, TD_E_ARG);
        if (!strstr(err.msg, cases[i].flag)) fail_msg("case %zu: %s", i, err.msg);
        assert_null(strchr(err.msg, '\n'));
    }
    assert_int_equal(verify_sampler_check(&off, 0, NULL), TD_E_ARG);
    verify_work *w = NULL;
    td_error err;
    assert_int_equal(verify_work_open(&w, 0, &err), TD_E_ARG);
    assert_int_equal(verify_work_open(&w, -5, &err), TD_E_ARG);
    assert_null(w);
    verify_work_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_the_reference),
        cmocka_unit_test(same_as_the_reference_when_large),
        cmocka_unit_test(penalties_by_hand),
        cmocka_unit_test(path_is_history),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(rows_with_nothing_in_them),
        cmocka_unit_test(forbidden_tokens_stay_at_zero),
        cmocka_unit_test(temperature_comes_last),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(settings_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
