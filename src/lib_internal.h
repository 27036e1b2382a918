/* What the files of libtandem share. Nobody else includes this. */
#ifndef TD_LIB_INTERNAL_H
#define TD_LIB_INTERNAL_H

#include "base/base.h"
#include "format/format.h"
#include "model/model.h"
#include "spec/spec.h"
#include "text/text.h"

/* ---- threads ----
 * One pool a number of threads for the whole process, shared by all models opened with it: a draft
 * and a target take turns, and two pools would keep each other's workers from parking. A pool runs
 * one job at a time, so every pass holds the pool's lock. */
typedef struct lib_pool lib_pool;
td_code lib_pool_get(lib_pool **out, int n_threads, td_error *err);
void lib_pool_put(lib_pool *p); /* NULL is fine */
td_pool *lib_pool_threads(lib_pool *p);
/* Locks both (either may be NULL, or both the same) in one order for all callers. */
void lib_pool_lock(lib_pool *a, lib_pool *b);
void lib_pool_unlock(lib_pool *a, lib_pool *b);

/* ---- models ---- */

struct td_model {
    gguf_file *f;
    model *m;
    text_vocab *v;
    lib_pool *pool;
    td_token *ends; /* (n_ends) every token that ends a text; owns */
    size_t n_ends;
    td_model_info info;
};

/* TD_E_MISMATCH unless ids that both have mean the same strings. */
td_code lib_check_vocabularies(const td_model *verifier, const td_model *drafter, td_error *err);

/* ---- sessions ---- */

struct td_session {
    td_model *target_model, *draft_model; /* borrowed; the draft may be NULL */
    target *t;
    draft *d;
    spec *s;
    int n_ctx, draft_max;
    bool calibrated;
    _Atomic int cancelled;
    verify_bias *bias; /* the user's and those of ignore_eos; owns */
    size_t bias_cap;
    /* Of the call at hand; sized at open, so that the token loop allocates nothing. */
    double *gaps_ms; /* (n_ctx + 1) between tokens */
    size_t *begins;  /* (n_ctx + 1) where the bytes of each generated token begin */
    uint8_t *origin; /* (n_ctx + 1) place in the proposal it was accepted from, counted from 1; 0:
                        the target's own */
    td_buf bytes, held; /* of one token; waiting for a stop string */
};

/* Held during every pass of the session: its pools run one job at a time. */
void lib_session_lock(td_session *s);
void lib_session_unlock(td_session *s);
/* TD_E_TOO_BIG when n tokens do not fit, TD_E_ARG when there are none. */
td_code lib_check_prompt(const td_session *s, size_t n, td_error *err);
/* td_session_calibrate where it has not been done. */
td_code lib_session_calibrated(td_session *s, td_error *err);
/* The value below which `share` of v[0..n) lie, between neighbours by interpolation; sorts v. 0 for
 * none. */
double lib_percentile(double *v, size_t n, double share);

/* ---- the text of a call, watched for stop strings ----
 * Bytes go in, text that is certain comes out: what might be the beginning of a stop string waits.
 */
typedef struct lib_stops {
    const char *const *stops; /* borrowed; none is empty */
    int n_stops;
    td_buf *held;  /* not passed on yet; borrowed */
    size_t passed; /* bytes passed on before `held` */
} lib_stops;

/* Appends text. True: a stop string begins at byte *at of the whole text (the one that ends first;
 * of several, the one that begins first). What comes before it, or everything that cannot become
 * one, is then the first *n_ready bytes of held.data; lib_stops_pass takes them off. */
bool lib_stops_push(lib_stops *s, const char *text, size_t len, size_t *n_ready, size_t *at);
void lib_stops_pass(lib_stops *s, size_t n);

#endif
