/* Pools shared by all models of the process. Opened and closed a few times in a process's life;
 * locked once a round. */
#include "lib_internal.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

struct lib_pool {
    td_pool *pool; /* owns */
    int n_threads, n_refs;
    pthread_mutex_t lock; /* held by whoever runs jobs */
    lib_pool *next;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static lib_pool *pools; /* guarded by pools_lock */

td_code lib_pool_get(lib_pool **out, int n_threads, td_error *err) {
    td_code rc = TD_OK;
    pthread_mutex_lock(&pools_lock);
    lib_pool *p = pools;
    while (p && p->n_threads != n_threads)
        p = p->next;
    if (!p) {
        if (!(p = td_calloc(1, sizeof *p))) {
            rc = td_fail(err, TD_E_MEMORY, "out of memory for a pool of %d threads", n_threads);
        } else if ((rc = td_pool_open(&p->pool, n_threads, err))) {
            free(p);
        } else {
            p->n_threads = n_threads;
            pthread_mutex_init(&p->lock, NULL);
            p->next = pools;
            pools = p;
        }
    }
    if (!rc) {
        p->n_refs++;
        *out = p;
    }
    pthread_mutex_unlock(&pools_lock);
    return rc;
}

void lib_pool_put(lib_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&pools_lock);
    assert(p->n_refs > 0);
    const bool last = --p->n_refs == 0;
    if (last) {
        lib_pool **link = &pools;
        while (*link != p)
            link = &(*link)->next;
        *link = p->next;
    }
    pthread_mutex_unlock(&pools_lock);
    if (!last) return;
    td_pool_close(p->pool);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

td_pool *lib_pool_threads(lib_pool *p) {
    return p->pool;
}

/* By number of threads, which no two pools share. */
void lib_pool_lock(lib_pool *a, lib_pool *b) {
    if (a && b && a->n_threads > b->n_threads) {
        lib_pool *t = a;
        a = b, b = t;
    }
    if (a) pthread_mutex_lock(&a->lock);
    if (b && b != a) pthread_mutex_lock(&b->lock);
}

void lib_pool_unlock(lib_pool *a, lib_pool *b) {
    if (a) pthread_mutex_unlock(&a->lock);
    if (b && b != a) pthread_mutex_unlock(&b->lock);
}
