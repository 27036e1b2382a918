/* Metadata and tensors, good and bad: every case is a small file made in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_make.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a file that works, and what to change in it ---- */

enum { N_EMBD = 24, N_FF = 40, N_VOCAB = 19, N_LAYERS = 2, N_HEADS = 4, N_KV = 2, MAX_KEYS = 24 };

typedef struct key {
    const char *name; /* without the architecture */
    gguf_value_type type;
    double v;
    const char *str;
    int n; /* items of an array of I32 that holds v, v + 1 ... ; 0: no array */
} key;

typedef struct file {
    const char *arch;
    key keys[MAX_KEYS];
    int n_keys;
    /* one tensor may be left out, reshaped or added */
    const char *leave_out, *reshape, *extra;
    bool with_tensors;
    td_buf buf;
    gguf_file *f;
} file;

static void set(file *f, key k) {
    for (int i = 0; i < f->n_keys; i++)
        if (!strcmp(f->keys[i].name, k.name)) {
            f->keys[i] = k;
            return;
        }
    assert_true(f->n_keys < MAX_KEYS);
    f->keys[f->n_keys++] = k;
}

static file good_file(const char *arch) {
    file f = {.arch = arch};
    set(&f, (key){"block_count", GGUF_U32, N_LAYERS});
    set(&f, (key){"context_length", GGUF_U32, 4096});
    set(&f, (key){"embedding_length", GGUF_U32, N_EMBD});
    set(&f, (key){"feed_forward_length", GGUF_U32, N_FF});
    set(&f, (key){"attention.head_count", GGUF_U32, N_HEADS});
    set(&f, (key){"attention.head_count_kv", GGUF_U32, N_KV});
    set(&f, (key){"attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5});
    set(&f, (key){"vocab_size", GGUF_U32, N_VOCAB});
    return f;
}

static void put_key(td_buf *b, const char *arch, const key *k) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", arch, k->name);
    if (k->n) {
        make_key_array(b, name, k->type, (uint64_t)k->n);
        for (int i = 0; i < k->n; i++)
            make_int(b, (uint64_t)(int64_t)k->v + (uint64_t)(k->type == GGUF_BOOL ? 0 : i),
                     k->type == GGUF_BOOL ? 1 : 4);
    } else if (k->str) {
        make_key_string(b, name, k->str);
    } else if (k->type == GGUF_F32) {
        make_key_f32(b, name, (float)k->v);
    } else {
        make_key_int(b, name, k->type, (uint64_t)(int64_t)k->v);
    }
}

typedef struct shape {
    char name[48];
    uint64_t n_in, n_out;
} shape;

static int list_tensors(const file *f, shape *out) {
    int n = 0;
    const uint64_t head = N_EMBD / N_HEADS, kv = N_KV * head;
    out[n++] = (shape){"token_embd.weight", N_EMBD, N_VOCAB};
    out[n++] = (shape){"output_norm.weight", N_EMBD, 1};
    for (int l = 0; l < N_LAYERS; l++) {
        const shape layer[] = {
            {"attn_norm", N_EMBD, 1},   {"ffn_norm", N_EMBD, 1},  {"attn_q", N_EMBD, N_EMBD},
            {"attn_k", N_EMBD, kv},     {"attn_v", N_EMBD, kv},   {"attn_output", N_EMBD, N_EMBD},
            {"ffn_gate", N_EMBD, N_FF}, {"ffn_up", N_EMBD, N_FF}, {"ffn_down", N_FF, N_EMBD}};
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++, n++) {
            out[n] = layer[i];
            snprintf(out[n].name, sizeof out[n].name, "blk.%d.%.20s.weight", l, layer[i].name);
        }
    }
    if (f->extra) {
        out[n] = (shape){.n_in = 4, .n_out = 4};
        snprintf(out[n].name, sizeof out[n].name, "%s", f->extra);
        n++;
    }
    for (int i = 0; i < n; i++) {
        if (f->reshape && !strcmp(out[i].name, f->reshape)) out[i].n_in += 4;
        if (f->leave_out && !strcmp(out[i].name, f->leave_out)) out[i--] = out[--n];
    }
    return n;
}

static void open_file(file *f) {
    shape tensors[64];
    const int n = f->with_tensors ? list_tensors(f, tensors) : 0;
    uint64_t at = 0;
    td_error err;
    make_header(&f->buf, 3, (uint64_t)n, (uint64_t)f->n_keys + 1);
    make_key_string(&f->buf, "general.architecture", f->arch);
    for (int i = 0; i < f->n_keys; i++)
        put_key(&f->buf, f->arch, &f->keys[i]);
    for (int i = 0; i < n; i++) {
        const uint64_t dims[2] = {tensors[i].n_in, tensors[i].n_out};
        make_tensor(&f->buf, tensors[i].name, tensors[i].n_out == 1 ? 1 : 2, dims, TD_TYPE_F32, at);
        at = (at + dims[0] * dims[1] * 4 + 31) & ~31ull;
    }
    make_pad(&f->buf, 32);
    for (uint64_t i = 0; i < at; i++)
        make_int(&f->buf, 0, 1);
    assert_false(f->buf.failed);
    assert_int_equal(gguf_open_memory(&f->f, f->buf.data, f->buf.len, "made", &err), TD_OK);
}

static void close_file(file *f) {
    gguf_close(f->f);
    td_buf_free(&f->buf);
}

static model_config read_config(file *f) {
    model_config c;
    td_error err = {0};
    open_file(f);
    if (model_config_read(&c, f->f, &err)) fail_msg("%s", err.msg);
    close_file(f);
    return c;
}

/* ---- good ---- */

static void test_defaults(void **state) {
    (void)state;
    file f = good_file("llama");
    model_config c = read_config(&f);
    assert_string_equal(c.arch, "llama");
    assert_int_equal(c.n_vocab, N_VOCAB);
    assert_int_equal(c.layers[1].head_k, N_EMBD / N_HEADS);
    assert_int_equal(c.layers[1].head_v, N_EMBD / N_HEADS);
    assert_int_equal(c.n_rot, N_EMBD / N_HEADS);
    assert_false(c.rope_neox);
    assert_true(c.rope_base == 10000 && c.rope_scaling == MODEL_ROPE_NONE && c.rope_factor == 1);
    assert_true(c.attn_scale == (float)(1 / sqrt(6)) && c.embd_scale == 1);
    assert_int_equal(c.window, 0);
    assert_true(c.tied);
    model_config_free(&c);
    f = good_file("qwen3");
    c = read_config(&f);
    assert_true(c.rope_neox && c.act == MODEL_SILU);
    model_config_free(&c);
}

static void test_gemma3_defaults(void **state) {
    (void)state;
    file f = good_file("gemma3");
    set(&f, (key){"block_count", GGUF_U32, 13});
    set(&f, (key){"rope.freq_base", GGUF_F32, 1e6});
    set(&f, (key){"rope.scaling.type", .type = GGUF_STRING, .str = "linear"});
    set(&f, (key){"rope.scaling.factor", GGUF_F32, 8});
    model_config c = read_config(&f);
    assert_int_equal(c.window, 512);
    for (int l = 0; l < 13; l++)
        assert_int_equal(c.layers[l].windowed, l != 5 && l != 11);
    assert_true(c.rope_base == 1e6f && c.rope_base_local == 10000 && !c.rope_scale_local);
    assert_true(c.rope_scaling == MODEL_ROPE_LINEAR && c.rope_factor == 8);
    assert_true(c.embd_scale == (float)sqrt(N_EMBD) && c.act == MODEL_GELU);
    assert_true(c.attn_scale == (float)(1 / sqrt(6)));
    model_config_free(&c);
    f = good_file("gemma3"); /* the 27B */
    set(&f, (key){"block_count", GGUF_U32, 62});
    set(&f, (key){"attention.key_length", GGUF_U32, 10});
    c = read_config(&f);
    assert_true(c.attn_scale == (float)(1 / sqrt((double)N_EMBD / N_HEADS)));
    model_config_free(&c);
}

static void test_keys_are_obeyed(void **state) {
    (void)state;
    file f = good_file("llama");
    set(&f, (key){"attention.head_count_kv", GGUF_I32, 1, .n = 2}); /* 1, 2 */
    set(&f, (key){"feed_forward_length", GGUF_I32, 50, .n = 2});
    set(&f, (key){"attention.key_length", GGUF_U32, 10});
    set(&f, (key){"attention.value_length", GGUF_U32, 12});
    set(&f, (key){"rope.dimension_count", GGUF_U32, 8});
    set(&f, (key){"attention.scale", GGUF_F32, 0.5});
    set(&f, (key){"attn_logit_softcapping", GGUF_F32, 50});
    set(&f, (key){"final_logit_softcapping", GGUF_F32, 30});
    set(&f, (key){"attention.sliding_window", GGUF_U32, 100});
    set(&f, (key){"attention.sliding_window_pattern", GGUF_BOOL, 1, .n = 2});
    set(&f, (key){"rope.scaling.type", .type = GGUF_STRING, .str = "yarn"});
    set(&f, (key){"rope.scaling.factor", GGUF_F32, 4});
    set(&f, (key){"rope.scaling.original_context_length", GGUF_U32, 1024});
    set(&f, (key){"rope.scaling.attn_factor", GGUF_F32, 1.5});
    model_config c = read_config(&f);
    assert_int_equal(c.layers[0].n_kv_heads, 1);
    assert_int_equal(c.layers[1].n_kv_heads, 2);
    assert_int_equal(c.layers[1].n_ff, 51);
    assert_int_equal(c.layers[0].head_k, 10);
    assert_int_equal(c.layers[0].head_v, 12);
    assert_int_equal(c.n_rot, 8);
    assert_true(c.attn_scale == 0.5f && c.attn_softcap == 50 && c.final_softcap == 30);
    assert_int_equal(c.window, 100);
    assert_true(c.layers[0].windowed && c.layers[1].windowed && c.rope_scale_local);
    assert_true(c.rope_scaling == MODEL_ROPE_YARN && c.rope_factor == 4 && c.rope_orig_ctx == 1024);
    assert_true(c.yarn_attn_factor == 1.5f && c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1);
    model_config_free(&c);
    f = good_file("llama"); /* the old key */
    set(&f, (key){"rope.scale_linear", GGUF_F32, 2});
    c = read_config(&f);
    assert_true(c.rope_scaling == MODEL_ROPE_LINEAR && c.rope_factor == 2);
    model_config_free(&c);
}

/* ---- bad ---- */

typedef struct bad_key {
    key k;
    td_code code;
    const char *says;
} bad_key;

static void test_bad_keys(void **state) {
    (void)state;
    static const bad_key table[] = {
        {{"block_count", GGUF_U32, 0}, TD_E_FORMAT, "block_count"},
        {{"block_count", GGUF_U32, 1e9}, TD_E_FORMAT, "block_count"},
        {{"block_count", GGUF_F32, 2}, TD_E_FORMAT, "block_count"},
        {{"block_count", GGUF_STRING, .str = "two"}, TD_E_FORMAT, "block_count"},
        {{"context_length", GGUF_I32, -1}, TD_E_FORMAT, "context_length"},
        {{"embedding_length", GGUF_U32, 0}, TD_E_FORMAT, "embedding_length"},
        {{"embedding_length", GGUF_U32, 4e9}, TD_E_FORMAT, "embedding_length"},
        {{"embedding_length", GGUF_U32, 3}, TD_E_FORMAT, "heads of 0"},
        {{"feed_forward_length", GGUF_U32, 0}, TD_E_FORMAT, "feed_forward_length"},
        {{"feed_forward_length", GGUF_I32, 8, .n = 3}, TD_E_FORMAT, "feed_forward_length"},
        {{"attention.head_count", GGUF_U32, 0}, TD_E_FORMAT, "head_count"},
        {{"attention.head_count", GGUF_I32, 0, .n = 2}, TD_E_FORMAT, "layer 0"},
        {{"attention.head_count_kv", GGUF_U32, 3}, TD_E_FORMAT, "do not divide"},
        {{"attention.head_count_kv", GGUF_U32, 0}, TD_E_FORMAT, "head_count_kv"},
        {{"attention.head_count_kv", GGUF_F32, 2, .n = 2}, TD_E_FORMAT, "head_count_kv"},
        {{"attention.key_length", GGUF_U32, 0}, TD_E_FORMAT, "key_length"},
        {{"attention.key_length", GGUF_U32, 1e8}, TD_E_FORMAT, "key_length"},
        {{"attention.value_length", GGUF_I32, -3}, TD_E_FORMAT, "value_length"},
        {{"attention.layer_norm_rms_epsilon", GGUF_F32, NAN}, TD_E_FORMAT, "epsilon"},
        {{"attention.layer_norm_rms_epsilon", GGUF_F32, -1}, TD_E_FORMAT, "epsilon"},
        {{"vocab_size", GGUF_U32, 0}, TD_E_FORMAT, "vocab_size"},
        {{"rope.dimension_count", GGUF_U32, 5}, TD_E_FORMAT, "dimension_count"},
        {{"rope.dimension_count", GGUF_U32, 8}, TD_E_FORMAT, "dimension_count"},
        {{"rope.freq_base", GGUF_F32, 0}, TD_E_FORMAT, "freq_base"},
        {{"rope.freq_base", GGUF_F32, INFINITY}, TD_E_FORMAT, "freq_base"},
        {{"rope.scaling.type", GGUF_STRING, .str = "longrope"}, TD_E_UNSUPPORTED, "longrope"},
        {{"rope.scaling.type", GGUF_U32, 1}, TD_E_FORMAT, "scaling.type"},
        {{"rope.scaling.factor", GGUF_F32, -2}, TD_E_FORMAT, "scaling.factor"},
        {{"attention.sliding_window", GGUF_I32, -1}, TD_E_FORMAT, "sliding_window"},
        {{"attention.scale", GGUF_F32, NAN}, TD_E_FORMAT, "scale"},
        {{"attn_logit_softcapping", GGUF_F32, -1}, TD_E_FORMAT, "softcapping"},
        {{"attention.causal", GGUF_BOOL, 0}, TD_E_UNSUPPORTED, "causal"},
        {{"expert_count", GGUF_U32, 8}, TD_E_UNSUPPORTED, "expert_count"},
        {{"attention.clamp_kqv", GGUF_F32, 8}, TD_E_UNSUPPORTED, "clamp_kqv"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        file f = good_file("llama");
        model_config c;
        td_error err = {0};
        set(&f, table[i].k);
        open_file(&f);
        const td_code rc = model_config_read(&c, f.f, &err);
        if (rc != table[i].code || !strstr(err.msg, table[i].says) || err.code != rc)
            fail_msg("case %zu (%s): code %d, '%s'", i, table[i].k.name, (int)rc, err.msg);
        close_file(&f);
    }
}

static void test_missing_keys(void **state) {
    (void)state;
    const file all = good_file("llama");
    for (int i = 0; i < all.n_keys; i++) {
        file f = all;
        model_config c;
        td_error err = {0};
        const char *name = all.keys[i].name;
        f.keys[i] = f.keys[--f.n_keys];
        if (!strcmp(name, "attention.head_count_kv")) { /* as many as heads */
            c = read_config(&f);
            assert_int_equal(c.layers[0].n_kv_heads, N_HEADS);
            model_config_free(&c);
            continue;
        }
        open_file(&f);
        assert_int_equal(model_config_read(&c, f.f, &err), TD_E_FORMAT);
        if (strcmp(name, "vocab_size")) assert_non_null(strstr(err.msg, name));
        close_file(&f);
    }
}

static void test_unknown_architecture(void **state) {
    (void)state;
    file f = good_file("mamba");
    model_config c;
    td_error err;
    open_file(&f);
    assert_int_equal(model_config_read(&c, f.f, &err), TD_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "mamba"));
    assert_non_null(strstr(err.msg, "qwen3")); /* what would do */
    close_file(&f);
}

/* ---- tensors ---- */

static td_code open_model(file *f, td_error *err) {
    f->with_tensors = true;
    open_file(f);
    model *m = NULL;
    const td_code rc = model_open(&m, f->f, NULL, err);
    model_close(m);
    close_file(f);
    return rc;
}

static void test_bad_tensors(void **state) {
    (void)state;
    static const char *const names[] = {"token_embd.weight", "output_norm.weight",
                                        "blk.0.attn_q.weight", "blk.1.ffn_down.weight",
                                        "blk.1.attn_norm.weight"};
    td_error err;
    file f = good_file("llama");
    assert_int_equal(open_model(&f, &err), TD_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        f = good_file("llama");
        f.leave_out = names[i];
        assert_int_equal(open_model(&f, &err), TD_E_FORMAT);
        assert_non_null(strstr(err.msg, names[i]));
        assert_non_null(strstr(err.msg, "missing"));
        f = good_file("llama");
        f.reshape = names[i];
        assert_int_equal(open_model(&f, &err), TD_E_FORMAT);
        assert_non_null(strstr(err.msg, names[i]));
        assert_non_null(strstr(err.msg, "24"));
    }
    f = good_file("llama");
    f.extra = "blk.0.ffn_gate_exps.weight";
    assert_int_equal(open_model(&f, &err), TD_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "experts"));
    f = good_file("llama");
    f.extra = "blk.7.attn_q.weight"; /* a layer too many */
    assert_int_equal(open_model(&f, &err), TD_E_UNSUPPORTED);
    f = good_file("qwen3"); /* whose norms of q and k are missing */
    assert_int_equal(open_model(&f, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "attn_q_norm"));
}

typedef struct progress {
    size_t last, total, n_calls, cancel_at;
} progress;

static bool tell(void *user, size_t done, size_t total) {
    progress *p = user;
    assert_true(done >= p->last && done <= total && (!p->n_calls || total == p->total));
    p->last = done, p->total = total;
    return ++p->n_calls != p->cancel_at;
}

static void test_progress_and_cancel(void **state) {
    (void)state;
    td_error err;
    file f = good_file("llama");
    f.with_tensors = true;
    open_file(&f);
    progress p = {0};
    const model_options opt = {.progress = tell, .user = &p};
    model *m = NULL;
    assert_int_equal(model_open(&m, f.f, &opt, &err), TD_OK);
    assert_int_equal(p.last, p.total);
    assert_true(p.n_calls > 10);
    model_close(m);
    m = NULL;
    p = (progress){.cancel_at = 5};
    assert_int_equal(model_open(&m, f.f, &opt, &err), TD_E_CANCELLED);
    assert_null(m);
    close_file(&f);
}

/* ---- rows that cannot be ---- */

static void test_bad_rows(void **state) {
    (void)state;
    static const struct {
        model_row rows[3];
        int n;
        td_code code;
    } table[] = {
        {{{.token = N_VOCAB, .parent = -1}}, 1, TD_E_ARG},
        {{{.token = -1, .parent = -1}}, 1, TD_E_ARG},
        {{{.parent = 0}}, 1, TD_E_ARG},
        {{{.parent = -2}}, 1, TD_E_ARG},
        {{{.parent = -1}, {.parent = 1}}, 2, TD_E_ARG},
        {{{.parent = -1}, {.seq = 1, .parent = 0}}, 2, TD_E_ARG},
        {{{.parent = -1}, {.seq = 1, .parent = -1}, {.parent = 0}}, 3, TD_E_ARG},
        {{{.parent = -1}}, 4, TD_E_ARG}, /* more than the scratch has */
        {{{.seq = 1, .parent = -1}, {.parent = -1}, {.parent = 1}}, 3, TD_E_TOO_BIG},
    };
    td_error err;
    file f = good_file("llama");
    f.with_tensors = true;
    open_file(&f);
    model *m;
    kv_cache *kv;
    model_work *w;
    float logits[N_VOCAB * 3];
    int seq;
    assert_int_equal(model_open(&m, f.f, NULL, &err), TD_OK);
    kv_config cfg = {.n_ctx = 1, .max_seqs = 2, .max_rows = 3};
    model_kv_config(m, &cfg);
    assert_int_equal(cfg.n_layers, N_LAYERS);
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_OK);
    assert_int_equal(model_work_open(&w, m, 3, &err), TD_OK);
    assert_int_equal(kv_seq_new(kv, &seq, &err), TD_OK);
    assert_int_equal(kv_seq_new(kv, &seq, &err), TD_OK);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const td_code rc = model_forward(m, kv, table[i].rows, table[i].n, w, logits, &err);
        if (rc != table[i].code) fail_msg("case %zu: code %d", i, (int)rc);
        assert_int_equal(kv_used_bytes(kv), 0); /* nothing was left reserved */
    }
    assert_int_equal(model_work_open(&w, m, 0, &err), TD_E_ARG);
    model_work_close(w);
    kv_close(kv);
    model_close(m);
    close_file(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),        cmocka_unit_test(test_gemma3_defaults),
        cmocka_unit_test(test_keys_are_obeyed), cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_missing_keys),    cmocka_unit_test(test_unknown_architecture),
        cmocka_unit_test(test_bad_tensors),     cmocka_unit_test(test_progress_and_cancel),
        cmocka_unit_test(test_bad_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
