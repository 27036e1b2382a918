/* See tiny.h. */
#include "tiny.h"

#include "gguf_make.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a file ---- */

enum { N_HEADS = 4, N_KV_HEADS = 2, MAX_TENSORS = 64 };

typedef struct plan {
    char name[64];
    uint64_t dims[2];
    bool is_vec;
    float deviation; /* of a matrix */
} plan;

typedef struct maker {
    tiny_params p;
    plan tensors[MAX_TENSORS];
    int n_tensors;
} maker;

static void add(maker *k, bool is_vec, uint64_t n_in, uint64_t n_out, float deviation,
                const char *format, ...) {
    assert_true(k->n_tensors < MAX_TENSORS);
    plan *t = &k->tensors[k->n_tensors++];
    va_list args;
    va_start(args, format);
    vsnprintf(t->name, sizeof t->name, format, args);
    va_end(args);
    t->dims[0] = n_in, t->dims[1] = n_out;
    t->is_vec = is_vec;
    t->deviation = deviation;
}

static void add_layer(maker *k, int l, bool gemma) {
    const uint64_t n = (uint64_t)k->p.n_embd, head = n / N_HEADS, ff = n + 32;
    const float in = 1 / sqrtf((float)n);
    add(k, true, n, 1, 0, "blk.%d.attn_norm.weight", l);
    add(k, false, n, n, 2 * in, "blk.%d.attn_q.weight", l);
    add(k, false, n, head * N_KV_HEADS, 2 * in, "blk.%d.attn_k.weight", l);
    add(k, false, n, head * N_KV_HEADS, 2 * in, "blk.%d.attn_v.weight", l);
    add(k, false, n, n, in, "blk.%d.attn_output.weight", l);
    add(k, true, n, 1, 0, "blk.%d.ffn_norm.weight", l);
    add(k, false, n, ff, 2 * in, "blk.%d.ffn_gate.weight", l);
    add(k, false, n, ff, in, "blk.%d.ffn_up.weight", l);
    add(k, false, ff, n, in, "blk.%d.ffn_down.weight", l);
    if (!gemma) return;
    add(k, true, head, 1, 0, "blk.%d.attn_q_norm.weight", l);
    add(k, true, head, 1, 0, "blk.%d.attn_k_norm.weight", l);
    add(k, true, n, 1, 0, "blk.%d.post_attention_norm.weight", l);
    add(k, true, n, 1, 0, "blk.%d.post_ffw_norm.weight", l);
}

/* Near enough to a normal deviate, exact on every machine. */
static float deviate(uint64_t seed, uint64_t at) {
    double sum = 0;
    for (uint32_t i = 0; i < 4; i++)
        sum += td_uniform(seed, TD_STREAM_PLAIN, at, i) - 0.5;
    return (float)(sum * 1.7320508);
}

static float weight(const maker *k, int tensor, uint64_t i) {
    const uint64_t at = (uint64_t)tensor << 32 | i;
    const float w = deviate(k->p.seed, at);
    return k->p.noise > 0 ? w * (1 - k->p.noise) + k->p.noise * deviate(k->p.noise_seed, at) : w;
}

/* Q8_0: a half and 32 int8. */
static void put_matrix(td_buf *b, const maker *k, int tensor) {
    const plan *t = &k->tensors[tensor];
    for (uint64_t i = 0; i < t->dims[0] * t->dims[1]; i += 32) {
        const float d = t->deviation * 4 / 127;
        uint8_t block[34];
        make_int(b, td_f32_to_f16(d), 2);
        for (uint64_t j = 0; j < 32; j++) {
            const float q = roundf(weight(k, tensor, i + j) * t->deviation / d);
            block[j] = (uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        }
        td_buf_append(b, block, 32);
    }
}

static void put_vector(td_buf *b, const maker *k, int tensor) {
    for (uint64_t i = 0; i < k->tensors[tensor].dims[0]; i++) {
        const float w = 1 + 0.2f * weight(k, tensor, i);
        uint32_t bits;
        memcpy(&bits, &w, sizeof bits);
        make_int(b, bits, 4);
    }
}

/* Spellings in byte-level form. Some tokens are halves of a character, some begin as others do, so
 * that text across tokens is put to the test. */
static void spell(char out[16], int id, const tiny_params *p) {
    static const char *const special[] = {
        "<end>", "\xc3\x83", "\xc2\xa9", "ab",
        "abc",   "bc",       "\xc4\xa0", "aab"}; /* C3, A9: the halves of e acute; a space */
    if (id && id == p->odd_token)
        snprintf(out, 16, "odd%d", id);
    else if (id < 8)
        snprintf(out, 16, "%s", special[id]);
    else if (id < 34)
        snprintf(out, 16, "%c", 'a' + id - 8);
    else
        snprintf(out, 16, "t%d.", id);
}

static void put_vocabulary(td_buf *b, const tiny_params *p) {
    make_key_string(b, "tokenizer.ggml.model", "gpt2");
    make_key_string(b, "tokenizer.ggml.pre", "default");
    make_key_array(b, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)p->n_vocab);
    for (int i = 0; i < p->n_vocab; i++) {
        char s[16];
        spell(s, i, p);
        make_string(b, s);
    }
    make_key_array(b, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)p->n_vocab);
    for (int i = 0; i < p->n_vocab; i++)
        make_int(b, i ? 1 : 3, 4);
    make_key_array(b, "tokenizer.ggml.merges", GGUF_STRING, 1);
    make_string(b, "a b");
    make_key_int(b, "tokenizer.ggml.eos_token_id", GGUF_U32, (uint64_t)p->eos);
}

static void put_int(td_buf *b, const char *arch, const char *name, uint64_t v) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    make_key_int(b, key, GGUF_U32, v);
}

static void put_config(td_buf *b, const tiny_params *p, bool gemma) {
    char key[64];
    make_key_string(b, "general.architecture", p->arch);
    make_key_string(b, "general.name", "tiny");
    put_int(b, p->arch, "block_count", (uint64_t)p->n_layers);
    put_int(b, p->arch, "context_length", (uint64_t)p->n_ctx);
    put_int(b, p->arch, "embedding_length", (uint64_t)p->n_embd);
    put_int(b, p->arch, "feed_forward_length", (uint64_t)p->n_embd + 32);
    put_int(b, p->arch, "attention.head_count", N_HEADS);
    put_int(b, p->arch, "attention.head_count_kv", N_KV_HEADS);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", p->arch);
    make_key_f32(b, key, 1e-5f);
    if (!gemma) return;
    put_int(b, p->arch, "attention.sliding_window", (uint64_t)p->window);
    put_int(b, p->arch, "attention.sliding_window_pattern", 2);
}

static size_t tensor_bytes(const plan *t) {
    return t->is_vec ? t->dims[0] * 4 : t->dims[0] * t->dims[1] / 32 * 34;
}

void tiny_file(td_buf *out, const tiny_params *params) {
    maker k = {.p = *params};
    tiny_params *p = &k.p;
    if (!p->arch) p->arch = "llama";
    if (!p->n_vocab) p->n_vocab = 48;
    if (!p->n_layers) p->n_layers = 2;
    if (!p->n_embd) p->n_embd = 64;
    if (!p->n_ctx) p->n_ctx = 512;
    if (!p->window) p->window = 32;
    if (!(p->sharp > 0)) p->sharp = 3;
    const bool gemma = !strcmp(p->arch, "gemma3");
    const uint64_t n = (uint64_t)p->n_embd, n_vocab = (uint64_t)p->n_vocab;
    add(&k, false, n, n_vocab, gemma ? 1 / sqrtf((float)n) : 1, "token_embd.weight");
    for (int l = 0; l < p->n_layers; l++)
        add_layer(&k, l, gemma);
    add(&k, true, n, 1, 0, "output_norm.weight");
    add(&k, false, n, n_vocab, p->sharp / sqrtf((float)n), "output.weight");

    make_header(out, 3, (uint64_t)k.n_tensors, 9 + 6 + (gemma ? 2 : 0));
    put_config(out, p, gemma);
    put_vocabulary(out, p);
    for (uint64_t i = 0, at = 0; i < (uint64_t)k.n_tensors; i++) {
        const plan *t = &k.tensors[i];
        make_tensor(out, t->name, t->is_vec ? 1 : 2, t->dims,
                    t->is_vec ? TD_TYPE_F32 : TD_TYPE_Q8_0, at);
        at += (tensor_bytes(t) + 31) & ~(size_t)31;
    }
    for (int i = 0; i < k.n_tensors; i++) {
        make_pad(out, 32);
        if (k.tensors[i].is_vec)
            put_vector(out, &k, i);
        else
            put_matrix(out, &k, i);
    }
    make_pad(out, 32);
    assert_false(out->failed);
}

/* ---- opened ---- */

void tiny_open(tiny *t, const tiny_params *p) {
    td_error err = {0};
    *t = (tiny){0};
    tiny_file(&t->file, p);
    if (gguf_open_memory(&t->f, t->file.data, t->file.len, "tiny", &err) ||
        model_open(&t->m, t->f, &(model_options){0}, &err))
        fail_msg("%s", err.msg);
}

void tiny_close(tiny *t) {
    model_close(t->m);
    gguf_close(t->f);
    td_buf_free(&t->file);
    *t = (tiny){0};
}

void tiny_text(int32_t *to, int n, int n_vocab, uint64_t seed) {
    for (int i = 0; i < n; i++)
        to[i] = (int32_t)(td_uniform(seed, TD_STREAM_PLAIN, (uint64_t)i, 99) * n_vocab);
}

void tiny_pair_open_with(tiny_pair *p, const tiny *target_model, draft *d,
                         const tiny_setup *setup) {
    td_error err = {0};
    const target_config cfg = {.n_ctx = setup->n_ctx ? setup->n_ctx : 256,
                               .k_type = setup->type,
                               .v_type = setup->type,
                               .max_rows = 1 + (setup->max_draft ? setup->max_draft : 16),
                               .prefill_chunk = setup->chunk ? setup->chunk : 16};
    *p = (tiny_pair){.d = d};
    if (target_open(&p->t, target_model->m, &cfg, &err) ||
        spec_open(&p->s, p->t, p->d, cfg.max_rows - 1, &err))
        fail_msg("%s", err.msg);
}

void tiny_pair_open(tiny_pair *p, const tiny *target_model, const tiny *draft_model,
                    const tiny_setup *setup) {
    td_error err = {0};
    draft *d = NULL;
    const int n_ctx = setup->n_ctx ? setup->n_ctx : 256;
    const draft_model_config cfg = {.n_ctx = setup->draft_ctx ? setup->draft_ctx : n_ctx,
                                    .k_type = setup->type,
                                    .v_type = setup->type,
                                    .max_tokens = setup->max_draft ? setup->max_draft : 16,
                                    .prefill_chunk = setup->chunk ? setup->chunk : 16,
                                    .n_vocab = model_get_config(target_model->m)->n_vocab};
    if (draft_model && draft_model_open(&d, draft_model->m, &cfg, &err)) fail_msg("%s", err.msg);
    tiny_pair_open_with(p, target_model, d, setup);
}

void tiny_pair_close(tiny_pair *p) {
    spec_close(p->s);
    draft_close(p->d);
    target_close(p->t);
    *p = (tiny_pair){0};
}

void tiny_set_costs(tiny_pair *p) {
    length_costs c = {.near = 8, .far = 16, .draft = 0.001f};
    for (int i = 0; i < 2; i++)
        for (int m = 1; m <= LENGTH_MAX + 1; m++)
            c.verify[i][m] = 0.02f + 0.0001f * (float)m;
    spec_set_costs(p->s, &c);
}
