/* The pool: every piece once a job, every thread at most once, results visible, no hang however many threads share the cores.
 * Counters here are plain ints on purpose: the thread sanitizer then sees a missing barrier. */
#include "base/base.h"

#include <limits.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MAX_THREADS = 8, N_ITEMS = 1009 };

typedef struct task {
    int runs[MAX_THREADS];
    int n_threads[MAX_THREADS];
    int items[N_ITEMS];
    td_split split;
    int step_ns;
} task;

static void sleep_ns(long ns) {
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void run_task(void *arg, int thread, int n_threads) {
    task *t = arg;
    t->runs[thread]++;
    t->n_threads[thread] = n_threads;
    if (t->step_ns) sleep_ns(t->step_ns * (thread + 1)); /* uneven: the caller has to park */
    int begin, end;
    while (td_split_next(&t->split, &begin, &end))
        for (int i = begin; i < end; i++)
            t->items[i]++;
}

static void check_jobs(int n_threads, int n_jobs, int step, long gap_ns, int step_ns) {
    td_pool *pool = NULL;
    td_error err;
    assert_int_equal(td_pool_open(&pool, n_threads, &err), TD_OK);
    assert_int_equal(td_pool_size(pool), n_threads);
    task *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->step_ns = step_ns;
    for (int job = 1; job <= n_jobs; job++) {
        td_split_init(&t->split, N_ITEMS, step);
        td_pool_run(pool, run_task, t);
        assert_int_equal(t->runs[0], job);
        for (int i = 0; i < n_threads; i++) {
            assert_true(t->runs[i] <= job); /* a worker that came too late was not waited for */
            assert_true(t->n_threads[i] == (t->runs[i] ? n_threads : 0));
        }
        for (int i = 0; i < N_ITEMS; i++)
            assert_int_equal(t->items[i], job);
        if (gap_ns) sleep_ns(gap_ns);
    }
    free(t);
    td_pool_close(pool);
}

static void many_jobs_back_to_back(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++)
        check_jobs(n, 500, 1 + 13 * n, 0, 0);
}

/* The gap is longer than the spin: every job finds its workers asleep or on the way there. */
static void jobs_wake_parked_workers(void **state) {
    (void)state;
    for (int n = 2; n <= MAX_THREADS; n += 3) {
        check_jobs(n, 60, 64, 1000000, 0);
        check_jobs(n, 200, 64, 20000, 0); /* about as long as the spin */
    }
}

static void caller_parks_for_slow_workers(void **state) {
    (void)state;
    check_jobs(4, 30, 64, 0, 300000);
}

/* The caller waits until each worker has come once: they do come, parked or not. */
static void meet(void *arg, int thread, int n_threads) {
    _Atomic int *n = arg;
    (void)thread;
    atomic_fetch_add(n, 1);
    while (atomic_load(n) < n_threads)
        sleep_ns(20000);
}

static void workers_come(void **state) {
    (void)state;
    for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
        td_pool *pool = NULL;
        assert_int_equal(td_pool_open(&pool, n_threads, NULL), TD_OK);
        for (int i = 0; i < 30; i++) {
            _Atomic int n = 0;
            td_pool_run(pool, meet, &n);
            assert_int_equal(n, n_threads);
            if (i % 3 == 0) sleep_ns(100000);
        }
        td_pool_close(pool);
    }
}

static void opens_and_closes_at_once(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        td_pool *pool = NULL;
        assert_int_equal(td_pool_open(&pool, 1 + i % MAX_THREADS, NULL), TD_OK);
        if (i % 3 == 0) sleep_ns(100000);
        td_pool_close(pool);
    }
    td_pool_close(NULL);
}

static void no_pool_runs_on_the_caller(void **state) {
    (void)state;
    task *t = calloc(1, sizeof *t);
    assert_non_null(t);
    td_split_init(&t->split, N_ITEMS, 10);
    td_pool_run(NULL, run_task, t);
    assert_int_equal(t->runs[0], 1);
    assert_int_equal(t->n_threads[0], 1);
    for (int i = 0; i < N_ITEMS; i++)
        assert_int_equal(t->items[i], 1);
    assert_int_equal(td_pool_size(NULL), 1);
    free(t);
}

static void refuses_absurd_sizes(void **state) {
    (void)state;
    td_pool *pool = NULL;
    td_error err;
    const int bad[] = {0, -1, INT_MIN, 1025, INT_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(td_pool_open(&pool, bad[i], &err), TD_E_ARG);
        assert_non_null(strstr(err.msg, "threads"));
        assert_null(pool);
    }
}

static void split_covers_each_index_once(void **state) {
    (void)state;
    const int sizes[] = {0, 1, 2, 15, 16, 17, 1000}, steps[] = {-3, 0, 1, 3, 16, 1000, INT_MAX};
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++) {
        for (size_t b = 0; b < sizeof steps / sizeof *steps; b++) {
            td_split s;
            td_split_init(&s, sizes[a], steps[b]);
            int at = 0, begin, end;
            while (td_split_next(&s, &begin, &end)) {
                assert_int_equal(begin, at);
                assert_true(end > begin && end <= sizes[a]);
                assert_true(end == sizes[a] || end - begin == (steps[b] < 1 ? 1 : steps[b]));
                at = end;
            }
            assert_int_equal(at, sizes[a]);
            assert_false(td_split_next(&s, &begin, &end)); /* stays at its end */
        }
    }
}

/* The counter runs past INT_MAX here; a wrapped one once was handed out as a negative index. */
static void split_does_not_wrap(void **state) {
    (void)state;
    td_split s;
    td_split_init(&s, INT_MAX, 1 << 30);
    int begin, end;
    assert_true(td_split_next(&s, &begin, &end) && begin == 0 && end == 1 << 30);
    assert_true(td_split_next(&s, &begin, &end) && begin == 1 << 30 && end == INT_MAX);
    assert_false(td_split_next(&s, &begin, &end));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_jobs_back_to_back),        cmocka_unit_test(jobs_wake_parked_workers),
        cmocka_unit_test(caller_parks_for_slow_workers), cmocka_unit_test(opens_and_closes_at_once),
        cmocka_unit_test(workers_come),
        cmocka_unit_test(no_pool_runs_on_the_caller),    cmocka_unit_test(refuses_absurd_sizes),
        cmocka_unit_test(split_covers_each_index_once),  cmocka_unit_test(split_does_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
