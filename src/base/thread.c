/* A pool that spins briefly and then parks.
 *
 * One job at a time. The caller publishes fn and arg, bumps `job` and works as thread 0; a worker that
 * sees a new `job` runs it and counts itself out in `left`. A forward pass has a few hundred jobs a
 * token with microseconds between them, so a worker spins for a moment before it sleeps on the futex;
 * the bound keeps a machine whose cores are shared from burning time that the other side needs. */
#include "base/base.h"

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

struct td_pool {
    int n_threads;
    int n_started;    /* workers that exist */
    td_job_fn *fn;    /* written by the caller before `job` is bumped */
    void *arg;
    _Atomic bool stop;
    _Alignas(64) _Atomic uint32_t job;    /* futex: number of jobs published */
    _Alignas(64) _Atomic uint32_t left;   /* futex: workers still in this job */
    _Alignas(64) _Atomic int n_sleepers;  /* workers parked on `job` */
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

/* Returns once *word != seen, having spun for at most SPIN_NS. false: still the same, go and park. */
static bool spin_changed(_Atomic uint32_t *word, uint32_t seen) {
    const uint64_t end = td_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
            pause_cpu();
        }
    } while (td_now_ns() < end);
    return false;
}

static void *worker_main(void *arg) {
    const worker w = *(worker *)arg;
    free(arg);
    td_pool *p = w.pool;
    uint32_t seen = 0;
    for (;;) {
        if (!spin_changed(&p->job, seen)) {
            atomic_fetch_add(&p->n_sleepers, 1);
            while (atomic_load(&p->job) == seen)
                futex_wait(&p->job, seen);
            atomic_fetch_sub(&p->n_sleepers, 1);
        }
        seen = atomic_load_explicit(&p->job, memory_order_acquire);
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->arg, w.index, p->n_threads);
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake(&p->left, 1);
    }
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
    atomic_fetch_add(&p->job, 1);
    futex_wake(&p->job, p->n_started);
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
    atomic_store(&p->left, (uint32_t)p->n_started);
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->n_sleepers)) futex_wake(&p->job, p->n_started);
    fn(arg, 0, p->n_threads);
    for (uint32_t left; (left = atomic_load_explicit(&p->left, memory_order_acquire)) != 0;) {
        if (spin_changed(&p->left, left)) continue;
        atomic_store(&p->caller_sleeps, true);
        while ((left = atomic_load(&p->left)) != 0)
            futex_wait(&p->left, left);
        atomic_store(&p->caller_sleeps, false);
    }
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
