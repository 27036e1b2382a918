/* td_model: a file, its weights, its vocabulary and the threads that compute. */
#include "lib_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct progress_adapter {
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} progress_adapter;

static bool tell_progress(void *user, size_t done, size_t total) {
    const progress_adapter *a = user;
    return a->progress(a->user, done, total);
}

static td_code find_ends(td_model *m, td_error *err) {
    size_t cap = 0;
    const int n = text_n_tokens(m->v) < m->info.n_vocab ? text_n_tokens(m->v) : m->info.n_vocab;
    for (int32_t id = 0; id < n; id++) {
        if (!text_is_end(m->v, id)) continue;
        if (!td_grow(&m->ends, &cap, m->n_ends + 1, sizeof *m->ends))
            return td_fail(err, TD_E_MEMORY, "out of memory for the end tokens");
        m->ends[m->n_ends++] = id;
    }
    return TD_OK;
}

static td_code load(td_model *m, const char *path, const td_model_options *opt, td_error *err) {
    progress_adapter adapter = {opt->progress, opt->user};
    td_code rc;
    if ((rc = gguf_open(&m->f, path, err)) || (rc = text_vocab_open(&m->v, m->f, err))) return rc;
    const model_options mo = {.pool = lib_pool_threads(m->pool),
                              .progress = opt->progress ? tell_progress : NULL,
                              .user = &adapter};
    lib_pool_lock(m->pool, NULL);
    rc = model_open(&m->m, m->f, &mo, err);
    lib_pool_unlock(m->pool, NULL);
    return rc;
}

td_code td_model_open(td_model **out, const char *path, const td_model_options *opt,
                      td_error *err) {
    const td_model_options defaults = {0};
    const uint64_t start = td_now_ns();
    td_code rc;
    if (!path || !*path) return td_fail(err, TD_E_ARG, "no model file was named");
    if (!opt) opt = &defaults;
    if (opt->n_threads < 0)
        return td_fail(err, TD_E_ARG, "%d threads make no sense; use 1 or more, 0 for all cores",
                       opt->n_threads);
    td_model *m = td_calloc(1, sizeof *m);
    if (!m) return td_fail(err, TD_E_MEMORY, "out of memory");
    const int n_threads = opt->n_threads ? opt->n_threads : td_default_threads();
    if ((rc = lib_pool_get(&m->pool, n_threads, err)) || (rc = load(m, path, opt, err))) goto fail;
    const model_config *c = model_get_config(m->m);
    const char *name = NULL;
    if (gguf_get_string(m->f, "general.name", &name, NULL) || !name) name = "";
    m->info = (td_model_info){.path = gguf_path(m->f),
                              .arch = c->arch,
                              .name = name,
                              .n_layers = c->n_layers,
                              .n_embd = c->n_embd,
                              .n_vocab = c->n_vocab,
                              .n_ctx_train = c->n_ctx_train,
                              .n_threads = n_threads,
                              .file_bytes = gguf_size_bytes(m->f),
                              .weight_bytes = model_weight_bytes(m->m),
                              .step_bytes = model_step_bytes(m->m),
                              .row_macs = model_row_macs(m->m),
                              .bos = text_bos(m->v),
                              .eos = text_eos(m->v)};
    if ((rc = find_ends(m, err))) goto fail;
    m->info.load_ms = (double)(td_now_ns() - start) / 1e6;
    *out = m;
    return TD_OK;
fail:
    td_model_close(&m);
    return rc;
}

void td_model_close(td_model **model_ptr) {
    if (!model_ptr || !*model_ptr) return;
    td_model *m = *model_ptr;
    model_close(m->m);
    text_vocab_close(m->v);
    gguf_close(m->f);
    lib_pool_put(m->pool);
    free(m->ends);
    free(m);
    *model_ptr = NULL;
}

const td_model_info *td_model_get_info(const td_model *m) {
    return &m->info;
}

td_code td_tokenize(const td_model *m, const char *text, size_t len, bool add_special,
                    bool parse_special, td_token **tokens, size_t *n, td_error *err) {
    td_token *list = NULL;
    size_t n_list = 0, cap = 0;
    td_code rc =
        text_encode(m->v, text, len, add_special, parse_special, &list, &n_list, &cap, err);
    if (rc) {
        free(list);
        return rc;
    }
    *tokens = list;
    *n = n_list;
    return TD_OK;
}

const char *td_token_text(const td_model *m, td_token token, bool special, size_t *len) {
    return text_token_bytes(m->v, token, special, len);
}

td_code td_chat_wrap(const td_model *m, const td_message *messages, size_t n, char **text,
                     size_t *len, td_error *err) {
    td_buf out = {0};
    td_code rc = text_chat_wrap(m->v, messages, n, &out, err);
    if (!rc && out.failed) rc = td_fail(err, TD_E_MEMORY, "out of memory for the chat");
    if (rc) {
        td_buf_free(&out);
        return rc;
    }
    *text = out.data;
    *len = out.len;
    return TD_OK;
}

/* ---- do a target and a draft speak of the same tokens? ---- */

/* A token's string for a message: cut, and on one line. */
static void show(const char *s, size_t len, char out[40]) {
    size_t n = 0;
    for (size_t i = 0; i < len && n < 30; i++)
        out[n++] = (unsigned char)s[i] < 32 || s[i] == 127 ? '?' : s[i];
    while (n && len > n &&
           ((unsigned char)s[n] & 0xc0) == 0x80) /* not in the middle of a character */
        n--;
    out[n] = 0;
    if (len > n) strcpy(out + n, "...");
}

td_code lib_check_vocabularies(const td_model *verifier, const td_model *drafter, td_error *err) {
    const int n_target = text_n_tokens(verifier->v), n_draft = text_n_tokens(drafter->v);
    const int n = n_target < n_draft ? n_target : n_draft;
    int first = -1, n_same = 0;
    for (int32_t id = 0; id < n; id++) {
        size_t a_len, b_len;
        const char *a = text_token_raw(verifier->v, id, &a_len);
        const char *b = text_token_raw(drafter->v, id, &b_len);
        if (a_len == b_len && !memcmp(a, b, a_len))
            n_same++;
        else if (first < 0)
            first = id;
    }
    if (first < 0) return TD_OK;
    size_t a_len, b_len;
    char a_text[40], b_text[40];
    const char *a = text_token_raw(verifier->v, first, &a_len);
    const char *b = text_token_raw(drafter->v, first, &b_len);
    show(a, a_len, a_text);
    show(b, b_len, b_text);
    return td_fail(err, TD_E_MISMATCH,
                   "the draft's vocabulary is not the target's: token %d is '%s' in %s and '%s' in "
                   "%s; %.1f %% of %d ids agree. Choose a draft of the target's own family",
                   first, b_text, drafter->info.path, a_text, verifier->info.path,
                   100.0 * n_same / n, n);
}
