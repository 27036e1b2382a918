/* td_model and td_session: opening, sharing, and what does not fit together. */
#include "lib_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib_make.h"

static void info(void **state) {
    (void)state;
    td_model *m = open_tiny_model(&(tiny_params){.seed = 1, .eos = 7}, 2);
    const td_model_info *i = td_model_get_info(m);
    assert_string_equal(i->arch, "llama");
    assert_string_equal(i->name, "tiny");
    assert_int_equal(i->n_layers, 2);
    assert_int_equal(i->n_embd, 64);
    assert_int_equal(i->n_vocab, 48);
    assert_int_equal(i->n_ctx_train, 512);
    assert_int_equal(i->n_threads, 2);
    assert_int_equal(i->eos, 7);
    assert_int_equal(i->bos, -1);
    /* q, k, v, o, gate, up, down of two layers, and the output matrix. */
    assert_int_equal(i->row_macs, 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96) + 64 * 48);
    assert_true(i->weight_bytes > 50000 && i->weight_bytes < 200000);
    assert_true(i->step_bytes > 50000 && i->step_bytes <= i->weight_bytes + 64);
    assert_true(i->file_bytes > 50000 && i->load_ms > 0);
    td_model_close(&m);
    assert_null(m);
    td_model_close(&m);
    td_model_close(NULL);
}

static void text(void **state) {
    (void)state;
    td_model *m = open_tiny_model(&(tiny_params){.seed = 1}, 1);
    td_token *tokens = NULL;
    size_t n = 0, len = 0;
    td_error err = {0};
    assert_int_equal(td_tokenize(m, "abz", 3, true, false, &tokens, &n, &err), TD_OK);
    assert_int_equal(n, 2); /* "ab" by the only merge, "z" */
    assert_int_equal(tokens[0], 3);
    assert_int_equal(tokens[1], 8 + 25);
    td_free(tokens);
    assert_memory_equal(td_token_text(m, 4, false, &len), "abc", 3);
    assert_int_equal(len, 3);
    td_token_text(m, 0, false, &len);
    assert_int_equal(len, 0); /* a control token says nothing */
    assert_memory_equal(td_token_text(m, 0, true, &len), "<end>", 5);
    td_token_text(m, 1000, true, &len);
    assert_int_equal(len, 0);
    char *chat = NULL;
    assert_int_equal(td_chat_wrap(m, &(td_message){"user", "hi", 2}, 1, &chat, &n, &err), TD_E_UNSUPPORTED);
    assert_null(chat);
    td_model_close(&m);
}

typedef struct watcher {
    int calls;
    uint64_t last, total;
    bool give_up;
} watcher;

static bool watch(void *user, uint64_t done, uint64_t total) {
    watcher *w = user;
    assert_true(done >= w->last && done <= total);
    w->calls++, w->last = done, w->total = total;
    return !w->give_up;
}

static void loading(void **state) {
    (void)state;
    char path[64];
    td_model *m = NULL;
    td_error err = {0};
    watcher w = {0};
    write_model(path, &(tiny_params){.seed = 1});
    td_model_options opt = {.progress = watch, .user = &w};
    assert_int_equal(td_model_open(&m, path, &opt, &err), TD_OK);
    assert_true(w.calls > 2 && w.last == w.total && w.total > 0);
    assert_int_equal(td_model_get_info(m)->n_threads, td_default_threads());
    td_model_close(&m);
    w = (watcher){.give_up = true};
    assert_int_equal(td_model_open(&m, path, &opt, &err), TD_E_CANCELLED);
    opt = (td_model_options){.n_threads = -1};
    assert_int_equal(td_model_open(&m, path, &opt, &err), TD_E_ARG);
    opt.n_threads = 1000000;
    assert_int_equal(td_model_open(&m, path, &opt, &err), TD_E_ARG);
    unlink(path);
    assert_int_equal(td_model_open(&m, path, NULL, &err), TD_E_IO);
    assert_int_equal(td_model_open(&m, "/", NULL, &err), TD_E_IO);
    assert_int_equal(td_model_open(&m, "", NULL, &err), TD_E_ARG);
    assert_int_equal(td_model_open(&m, NULL, NULL, NULL), TD_E_ARG);
    assert_null(m);
}

static void vocabularies(void **state) {
    (void)state;
    td_model *t = open_tiny_model(&(tiny_params){.seed = 1}, 1);
    td_model *longer = open_tiny_model(&(tiny_params){.seed = 1, .n_vocab = 60}, 1);
    td_model *other = open_tiny_model(&(tiny_params){.seed = 1, .odd_token = 40}, 1);
    td_session *s = NULL;
    td_error err = {0};
    assert_int_equal(td_session_open(&s, t, longer, NULL, &err), TD_OK);
    assert_true(td_session_kv_bytes(s, false) > 0 && td_session_kv_bytes(s, true) > 0);
    td_session_close(&s);
    assert_int_equal(td_session_open(&s, longer, t, NULL, &err), TD_OK);
    td_session_close(&s);
    assert_int_equal(td_session_open(&s, t, other, NULL, &err), TD_E_MISMATCH);
    assert_null(s);
    assert_non_null(strstr(err.msg, "token 40 is 'odd40'"));
    assert_non_null(strstr(err.msg, "'t40.'"));
    assert_non_null(strstr(err.msg, "97.9 % of 48"));
    td_model_close(&other);
    td_model_close(&longer);
    td_model_close(&t);
}

static void session_options(void **state) {
    (void)state;
    td_model *m = open_tiny_model(&(tiny_params){.seed = 1}, 1);
    td_session *s = NULL;
    td_error err = {0};
    const td_session_options bad[] = {
        {.n_ctx = -1},         {.draft_max = -1},          {.draft_max = 65},
        {.prefill_chunk = -1}, {.prefill_chunk = 1 << 20}, {.cache_type_k = (td_kv_type)7},
        {.cache_type_v = (td_kv_type)4},        {.n_ctx = INT32_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (td_error){0};
        assert_int_equal(td_session_open(&s, m, m, &bad[i], &err), TD_E_ARG);
        assert_true(strlen(err.msg) > 10);
    }
    const td_session_options big = {.n_ctx = 1 << 28, .draft_max = 4};
    assert_int_equal(td_session_open(&s, m, m, &big, &err), TD_E_TOO_BIG);
    assert_null(s);
    assert_int_equal(td_session_open(&s, m, NULL, NULL, &err), TD_OK);
    assert_int_equal(td_session_n_ctx(s), 512); /* what it was trained for */
    assert_int_equal(td_session_kv_bytes(s, true), 0);
    td_session_close(&s);
    const td_session_options no_draft = {.n_ctx = 64};
    assert_int_equal(td_session_open(&s, m, m, &no_draft, &err), TD_OK);
    assert_int_equal(td_session_kv_bytes(s, true), 0); /* never used, never opened */
    td_session_close(&s);
    td_session_close(&s);
    td_session_close(NULL);
    td_model_close(&m);
}

/* Two sessions of one pair of models on two threads: each writes its own text. */
typedef struct job {
    td_model *target, *draft;
    td_token prompt[8], out[120];
    bool good;
} job;

static void *work(void *arg) {
    job *j = arg;
    td_session *s = NULL;
    td_stats st;
    td_generate_options opt;
    td_generate_defaults(&opt);
    opt.sampling.temperature = 0;
    opt.n_predict = 120;
    opt.ignore_eos = true;
    j->good = !td_session_open(&s, j->target, j->draft, NULL, NULL) &&
              !td_generate(s, j->prompt, 8, &opt, &st, NULL) && st.decode_tokens == 120;
    if (j->good) memcpy(j->out, st.tokens, sizeof j->out);
    td_session_close(&s);
    return NULL;
}

static void models_are_shared(void **state) {
    (void)state;
    td_model *t = open_tiny_model(&(tiny_params){.seed = 1}, 2);
    td_model *d = open_tiny_model(&(tiny_params){.seed = 1, .noise = 0.1f, .noise_seed = 2}, 3);
    job alone[2] = {0}, together[2] = {0};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        alone[i] = (job){.target = t, .draft = d};
        tiny_text(alone[i].prompt, 8, 40, (uint64_t)i);
        together[i] = alone[i];
        work(&alone[i]);
        assert_true(alone[i].good);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &together[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_true(together[i].good);
        assert_memory_equal(together[i].out, alone[i].out, sizeof alone[i].out);
    }
    td_model_close(&d);
    td_model_close(&t);
}

static void pools_are_shared(void **state) {
    (void)state;
    lib_pool *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(lib_pool_get(&a, 2, NULL), TD_OK);
    assert_int_equal(lib_pool_get(&b, 2, NULL), TD_OK);
    assert_int_equal(lib_pool_get(&c, 3, NULL), TD_OK);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_int_equal(td_pool_size(lib_pool_threads(c)), 3);
    lib_pool_lock(a, c);
    lib_pool_unlock(a, c);
    lib_pool_lock(c, a);
    lib_pool_unlock(c, a);
    lib_pool_lock(a, a);
    lib_pool_unlock(a, a);
    lib_pool_lock(NULL, a);
    lib_pool_unlock(NULL, a);
    lib_pool_put(a);
    lib_pool_lock(b, NULL); /* still there */
    lib_pool_unlock(b, NULL);
    lib_pool_put(b);
    lib_pool_put(c);
    lib_pool_put(NULL);
}

static void names(void **state) {
    (void)state;
    assert_string_equal(td_version(), TANDEM_VERSION);
    for (int c = TD_OK; c <= TD_E_CANCELLED; c++)
        assert_int_equal(strncmp(td_code_name((td_code)c), "TD_", 3), 0);
    assert_string_equal(td_code_name(TD_E_MISMATCH), "TD_E_MISMATCH");
    assert_string_equal(td_code_name((td_code)99), "unknown");
    assert_string_equal(td_stop_reason_name(TD_STOP_STRING), "stop");
    assert_string_equal(td_stop_reason_name((td_stop_reason)99), "unknown");
    const char *level = NULL;
    assert_int_equal(td_cpu_level(&level, NULL), TD_OK);
    assert_true(strlen(level) > 0);
    assert_true(td_default_threads() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info),
        cmocka_unit_test(text),
        cmocka_unit_test(loading),
        cmocka_unit_test(vocabularies),
        cmocka_unit_test(session_options),
        cmocka_unit_test(models_are_shared),
        cmocka_unit_test(pools_are_shared),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
