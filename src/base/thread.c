/* A pool that spins briefly and then parks.
 *
 * One job at a time. The caller publishes fn and arg, opens the job in `state` and works as thread 0. A
 * worker that sees an open job it does not know joins it, works, and leaves. When the caller has run out
 * of work it closes the job and waits for those who joined, not for those who never came: on a machine
 * whose cores are shared a worker may be off its core for milliseconds, and the caller then does its
 * share.
 *
 * A forward pass has a few hundred jobs a token with microseconds between them, so a worker spins for a
 * moment before it sleeps on the futex; the bound keeps it from burning time that others need. */
#include "base/base.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ~20 us of pause instructions on current cores: longer than the serial gaps inside a pass, far
 * shorter than a time slice. */
enum { SPIN_NS = 20000 };

/* state: the number of the job, whether it is open, and how many workers are in it. */
enum { ACTIVE = 0xfff, OPEN = 0x1000, JOB = 0x2000 };

struct td_pool {
    int n_threads;
    int n_started; /* workers that exist */
    td_job_fn *fn; /* written by the caller while no job is open */
    void *arg;
    _Atomic bool stop;
    _Alignas(64) _Atomic uint32_t state;  /* futex of parked workers and of the caller */
    _Alignas(64) _Atomic int n_sleepers;  /* workers parked on it */
    _Atomic bool caller_sleeps;
    pthread_t threads[];
};

typedef struct worker {
    td_pool *pool;
    int index;
} worker;

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Joins a job that is open and not number `seen`. */
static bool try_join(td_pool *p, uint32_t seen) {
    uint32_t now = atomic_load_explicit(&p->state, memory_order_acquire);
    while ((now & OPEN) && (now & ~(uint32_t)(JOB - 1)) != seen)
        if (atomic_compare_exchange_weak_explicit(&p->state, &now, now + 1, memory_order_acquire,
                                                  memory_order_acquire))
            return true;
    return false;
}

static bool is_closed(td_pool *p, uint32_t seen) {
    (void)seen;
    return !(atomic_load_explicit(&p->state, memory_order_acquire) & ACTIVE);
}

/* Until check is true, but for at most SPIN_NS. false: it is not; go and park. */
static bool spin_until(bool (*check)(td_pool *, uint32_t), td_pool *p, uint32_t seen) {
    const uint64_t end = td_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (check(p, seen)) return true;
            pause_cpu();
        }
    } while (td_now_ns() < end);
    return false;
}

/* Parks until there is a job to join. */
static void sleep_and_join(td_pool *p, uint32_t seen) {
    atomic_fetch_add(&p->n_sleepers, 1);
    for (;;) {
        const uint32_t now = atomic_load(&p->state);
        if (try_join(p, seen)) break;
        if (!(now & OPEN) || (now & ~(uint32_t)(JOB - 1)) == seen) futex_wait(&p->state, now);
    }
    atomic_fetch_sub(&p->n_sleepers, 1);
}

static void *worker_main(void *arg) {
    const worker w = *(worker *)arg;
    free(arg);
    td_pool *p = w.pool;
    uint32_t seen = 0;
    for (;;) {
        if (!spin_until(try_join, p, seen)) sleep_and_join(p, seen);
        seen = atomic_load_explicit(&p->state, memory_order_relaxed) & ~(uint32_t)(JOB - 1);
        const bool stop = atomic_load(&p->stop);
        if (!stop) p->fn(p->arg, w.index, p->n_threads);
        const uint32_t was = atomic_fetch_sub(&p->state, 1);
        if (!(was & OPEN) && (was & ACTIVE) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake(&p->state, INT_MAX);
        if (stop) return NULL;
    }
}

/* Lets the workers in. */
static void open_job(td_pool *p) {
    const uint32_t now = atomic_load(&p->state);
    atomic_store(&p->state, ((now & ~(uint32_t)(JOB - 1)) + JOB) | OPEN);
    if (atomic_load(&p->n_sleepers)) futex_wake(&p->state, INT_MAX);
}

td_code td_pool_open(td_pool **out, int n_threads, td_error *err) {
    if (n_threads < 1 || n_threads > 1024)
        return td_fail(err, TD_E_ARG, "%d threads make no sense; use 1 to 1024", n_threads);
    size_t bytes = sizeof(td_pool) + sizeof(pthread_t) * (size_t)n_threads;
    td_pool *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!p) return td_fail(err, TD_E_MEMORY, "out of memory for %d threads", n_threads);
    *p = (td_pool){.n_threads = n_threads};
    for (int i = 1; i < n_threads; i++) {
        worker *w = malloc(sizeof *w);
        if (w) *w = (worker){p, i};
        if (!w || pthread_create(&p->threads[p->n_started], NULL, worker_main, w)) {
            free(w);
            td_pool_close(p);
            return td_fail(err, TD_E_MEMORY, "cannot start thread %d of %d; try a smaller -t", i + 1,
                           n_threads);
        }
        p->n_started++;
    }
    *out = p;
    return TD_OK;
}

void td_pool_close(td_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    open_job(p); /* and leaves it open: every worker comes to see it */
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    free(p);
}

int td_pool_size(const td_pool *p) {
    return p ? p->n_threads : 1;
}

void td_pool_run(td_pool *p, td_job_fn *fn, void *arg) {
    if (!p || p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn, p->arg = arg;
    open_job(p);
    fn(arg, 0, p->n_threads);
    atomic_fetch_and(&p->state, ~(uint32_t)OPEN);
    if (spin_until(is_closed, p, 0)) return;
    atomic_store(&p->caller_sleeps, true);
    for (uint32_t now; (now = atomic_load(&p->state)) & ACTIVE;)
        futex_wait(&p->state, now);
    atomic_store(&p->caller_sleeps, false);
}

void td_split_init(td_split *s, int n, int step) {
    atomic_init(&s->next, 0);
    s->n = n, s->step = step < 1 ? 1 : step;
}

bool td_split_next(td_split *s, int *begin, int *end) {
    int at = atomic_fetch_add_explicit(&s->next, s->step, memory_order_relaxed);
    if (at < 0 || at >= s->n) return false; /* < 0: the counter has wrapped behind the end */
    *begin = at;
    *end = s->n - at < s->step ? s->n : at + s->step;
    return true;
}
