/* Opening a vocabulary from a GGUF file's tokenizer.* keys, and asking about its tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

/* ---- strings ---- */

static td_code strings_open(text_strings *s, size_t n, td_error *err) {
    s->at = td_calloc(n + 1, sizeof *s->at);
    return s->at ? TD_OK : text_no_memory(err);
}

static bool strings_put(text_strings *s, const char *bytes, size_t n) {
    size_t need;
    if (!td_add(&need, s->len, n) || !td_grow(&s->data, &s->cap, need, 1)) return false;
    if (n) memcpy(s->data + s->len, bytes, n);
    s->len += n;
    return true;
}

/* Ends string i, which began at s->at[i]. */
static bool strings_end(text_strings *s, int i) {
    if (!strings_put(s, "", 1)) return false;
    s->at[i + 1] = s->len;
    return true;
}

static const char *strings_get(const text_strings *s, int i, size_t *len) {
    *len = s->at[i + 1] - s->at[i] - 1;
    return s->data + s->at[i];
}

/* ---- spelling to id ---- */

static uint64_t hash(const char *text, size_t len) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ len, x;
    for (; len >= 8; text += 8, len -= 8) {
        memcpy(&x, text, 8);
        h = (h ^ x) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    x = 0;
    memcpy(&x, text, len);
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
    return h * 0xc4ceb9fe1a85ec53u;
}

int32_t text_find(const text_vocab *v, const char *raw, size_t len) {
    uint64_t h = hash(raw, len);
    for (size_t i = (size_t)(h >> 32) & v->names.mask; v->names.slots[i];
         i = (i + 1) & v->names.mask) {
        if (v->names.slots[i] >> 32 != (h & UINT32_MAX)) continue;
        int32_t id = (int32_t)((uint32_t)v->names.slots[i] - 1);
        size_t n;
        const char *t = strings_get(&v->raw, id, &n);
        if (n == len && !memcmp(t, raw, len)) return id;
    }
    return -1;
}

/* Of two tokens with one spelling a normal one is found, and the lower id among equals. */
static td_code names_build(text_vocab *v, td_error *err) {
    size_t slots = 16;
    while (slots < (size_t)v->n + (size_t)v->n / 2)
        slots *= 2;
    if (!(v->names.slots = td_calloc(slots, sizeof *v->names.slots))) return text_no_memory(err);
    v->names.mask = slots - 1;
    for (int pass = 0; pass < 2; pass++)
        for (int id = 0; id < v->n; id++) {
            if ((v->type[id] == TEXT_NORMAL) != (pass == 0)) continue;
            size_t n;
            const char *t = strings_get(&v->raw, id, &n);
            if (text_find(v, t, n) >= 0) continue;
            uint64_t h = hash(t, n);
            size_t i = (size_t)(h >> 32) & v->names.mask;
            while (v->names.slots[i])
                i = (i + 1) & v->names.mask;
            v->names.slots[i] = h << 32 | ((uint32_t)id + 1);
        }
    return TD_OK;
}

/* ---- byte-level spelling (GPT-2): a printable Latin-1 byte is itself, the others are U+0100
 * upward ---- */

static bool stands_for_itself(int byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static int byte_codepoint(int byte) {
    if (stands_for_itself(byte)) return byte;
    int n = 0;
    for (int b = 0; b < byte; b++)
        n += !stands_for_itself(b);
    return 0x100 + n;
}

int text_byte_spelling(uint8_t byte, char out[2]) {
    int c = byte_codepoint(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

enum { N_SPELLED = 0x144 }; /* code points below this may spell a byte */

/* Appends the bytes of a byte-level spelling; false when it is none (an added token, spelled as it
 * is). */
static bool put_spelled(text_strings *s, const int16_t byte_of[N_SPELLED], const char *t, size_t n,
                        bool *no_memory) {
    size_t before = s->len;
    for (size_t i = 0; i < n;) {
        uint8_t c = (uint8_t)t[i];
        int cp = -1, len = 1;
        if (c < 0x80) {
            cp = c;
        } else if (c >= 0xc2 && c <= 0xc5 && i + 1 < n && ((uint8_t)t[i + 1] & 0xc0) == 0x80) {
            cp = (c & 0x1f) << 6 | ((uint8_t)t[i + 1] & 0x3f);
            len = 2;
        }
        if (cp < 0 || cp >= N_SPELLED || byte_of[cp] < 0) {
            s->len = before;
            return false;
        }
        char byte = (char)byte_of[cp];
        if (!strings_put(s, &byte, 1)) {
            *no_memory = true;
            return false;
        }
        i += (size_t)len;
    }
    return true;
}

/* ---- opening ---- */

static const gguf_value *find_array(const gguf_file *f, const char *key, gguf_value_type type) {
    const gguf_value *a = gguf_find(f, key);
    bool same = a && a->type == GGUF_ARRAY &&
                (a->arr.type == type || (type == GGUF_I32 && a->arr.type == GGUF_U32));
    return same ? a : NULL;
}

static td_code load_types(text_vocab *v, const gguf_file *f, td_error *err) {
    const char *key = "tokenizer.ggml.token_type";
    memset(v->type, TEXT_NORMAL, (size_t)v->n);
    if (!gguf_find(f, key)) return TD_OK;
    const gguf_value *a = find_array(f, key, GGUF_I32);
    if (!a)
        return td_fail(err, TD_E_FORMAT, "%s: %s is no list of 32-bit integers", gguf_path(f), key);
    if (a->arr.n != (uint64_t)v->n)
        return td_fail(err, TD_E_FORMAT, "%s: %s has %llu entries for %d tokens", gguf_path(f), key,
                       (unsigned long long)a->arr.n, v->n);
    for (int i = 0; i < v->n; i++) {
        int32_t t;
        memcpy(&t, (const char *)a->arr.data + sizeof t * (size_t)i, sizeof t);
        if (t < TEXT_NORMAL || t > TEXT_BYTE) t = t ? TEXT_UNUSED : TEXT_NORMAL; /* 0: undefined */
        v->type[i] = (uint8_t)t;
    }
    return TD_OK;
}

/* Lower ranks merge first: the scores' order upside down, kept in its bits. */
static td_code load_scores(text_vocab *v, const gguf_file *f, td_error *err) {
    const char *key = "tokenizer.ggml.scores";
    const gguf_value *a = find_array(f, key, GGUF_F32);
    if (!a || a->arr.n != (uint64_t)v->n)
        return td_fail(err, TD_E_FORMAT, "%s: %s is missing or not one float a token (%d)",
                       gguf_path(f), key, v->n);
    if (!(v->piece_rank = td_calloc((size_t)v->n, sizeof *v->piece_rank)))
        return text_no_memory(err);
    for (int i = 0; i < v->n; i++) {
        float score;
        memcpy(&score, (const char *)a->arr.data + sizeof score * (size_t)i, sizeof score);
        if (isnan(score))
            return td_fail(err, TD_E_FORMAT, "%s: the score of token %d is not a number",
                           gguf_path(f), i);
        score += 0.0f; /* -0 and 0 are one score */
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        v->piece_rank[i] = bits >> 31 ? bits : ~(bits | 0x80000000u);
    }
    return TD_OK;
}

/* "<0xNN>"; -1: it is not spelled so. */
static int byte_of_name(const char *t, size_t n) {
    if (n != 6 || memcmp(t, "<0x", 3) || t[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        const char *digits = "0123456789ABCDEF0123456789abcdef";
        const char *d = t[i] ? strchr(digits, t[i]) : NULL;
        if (!d) return -1;
        value = value * 16 + (int)((d - digits) % 16);
    }
    return value;
}

static td_code load_bytes(text_vocab *v, const char *path, td_error *err) {
    int16_t byte_of[N_SPELLED];
    memset(byte_of, 0xff, sizeof byte_of);
    for (int b = 0; b < 256; b++) {
        v->byte_token[b] = -1;
        byte_of[byte_codepoint(b)] = (int16_t)b;
    }
    for (int i = 0; i < v->n; i++) {
        size_t n;
        const char *t = strings_get(&v->raw, i, &n);
        bool ok = true, no_memory = false;
        if (v->is_spm && v->type[i] == TEXT_BYTE) {
            int b = byte_of_name(t, n);
            if (b < 0)
                return td_fail(err, TD_E_FORMAT, "%s: byte token %d is spelled '%.20s', not <0xNN>",
                               path, i, t);
            if (v->byte_token[b] < 0) v->byte_token[b] = i;
            char byte = (char)b;
            ok = strings_put(&v->bytes, &byte, 1);
        } else if (v->is_spm && (v->type[i] == TEXT_NORMAL || v->type[i] == TEXT_USER)) {
            for (size_t j = 0; j < n && ok;) {
                bool space = n - j >= 3 && !memcmp(t + j, "\xe2\x96\x81", 3);
                ok = strings_put(&v->bytes, space ? " " : t + j, 1);
                if (space && j) v->crosses[(uint8_t)t[j - 1]] = true;
                j += space ? 3 : 1;
            }
        } else if (v->is_spm || v->type[i] != TEXT_NORMAL ||
                   !put_spelled(&v->bytes, byte_of, t, n, &no_memory)) {
            ok = !no_memory && strings_put(&v->bytes, t, n);
        }
        if (!ok || !strings_end(&v->bytes, i)) return text_no_memory(err);
    }
    if (v->is_spm) return TD_OK;
    bool any = false;
    for (int b = 0; b < 256; b++) {
        char spelling[2];
        int32_t id = text_find(v, spelling, (size_t)text_byte_spelling((uint8_t)b, spelling));
        if (id >= 0 && v->type[id] == TEXT_NORMAL) v->byte_token[b] = id;
        any = any || v->byte_token[b] >= 0;
    }
    return any ? TD_OK
               : td_fail(err, TD_E_FORMAT,
                         "%s: no token stands for a single byte, so this is no "
                         "byte-level vocabulary",
                         path);
}

static td_code load_tokens(text_vocab *v, const gguf_file *f, td_error *err) {
    const char *key = "tokenizer.ggml.tokens", *path = gguf_path(f);
    const gguf_value *a = find_array(f, key, GGUF_STRING);
    if (!a || !a->arr.n || a->arr.n >= INT32_MAX)
        return td_fail(err, TD_E_FORMAT, "%s: %s is missing or no list of 1 to 2^31 strings", path,
                       key);
    v->n = (int)a->arr.n;
    v->type = td_calloc((size_t)v->n, 1);
    v->is_end = td_calloc((size_t)v->n, 1);
    if (!v->type || !v->is_end) return text_no_memory(err);
    td_code rc;
    if ((rc = strings_open(&v->raw, (size_t)v->n, err)) ||
        (rc = strings_open(&v->bytes, (size_t)v->n, err)) || (rc = load_types(v, f, err)))
        return rc;
    for (int i = 0; i < v->n; i++) {
        gguf_string s = a->arr.strs[i];
        if (!strings_put(&v->raw, s.data, s.len) || !strings_end(&v->raw, i))
            return text_no_memory(err);
        if (s.len > v->longest) v->longest = s.len;
    }
    return names_build(v, err);
}

/* ---- ends of text ---- */

#define DEEPSEEK_END                                                                               \
    "<\xef\xbd\x9c"                                                                                \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
/* Marks that nothing but a chat format uses: control tokens whatever the file calls them. */
static const char *const end_marks[] = {
    "<|im_end|>",    "<|eot_id|>",         "<|eom_id|>",      "<|end|>",
    "<end_of_turn>", "<|endoftext|>",      "<|end_of_text|>", "<|return|>",
    "<|call|>",      "<end_of_utterance>", DEEPSEEK_END};
/* Names that can also be ordinary text (Gemma 3 spells an HTML tag "</s>") or fill-in-the-middle
 * marks, after which a code model has left the file it was completing: ends where the file types
 * them as control. */
static const char *const end_names[] = {"</s>",        "<EOT>",         "_<EOT>",      "<eos>",
                                        "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};

static void find_ends(text_vocab *v) {
    /* In the Harmony format <|end|> closes a message and the turn goes on; <|return|> and <|call|>
     * end it. */
    bool harmony = text_find(v, "<|return|>", 10) >= 0 && text_find(v, "<|call|>", 8) >= 0;
    for (size_t i = 0; i < sizeof end_marks / sizeof *end_marks; i++) {
        int32_t id = text_find(v, end_marks[i], strlen(end_marks[i]));
        if (id < 0) continue;
        v->type[id] = TEXT_CONTROL;
        v->is_end[id] = !(harmony && !strcmp(end_marks[i], "<|end|>"));
    }
    for (size_t i = 0; i < sizeof end_names / sizeof *end_names; i++) {
        int32_t id = text_find(v, end_names[i], strlen(end_names[i]));
        if (id >= 0 && v->type[id] == TEXT_CONTROL) v->is_end[id] = true;
    }
}

static td_code load_ids(text_vocab *v, const gguf_file *f, td_error *err) {
    /* SentencePiece's own numbers hold where the file is silent. */
    int64_t id[5] = {-1, -1, -1, -1, -1};
    if (v->is_spm && v->n > 2) {
        if (v->type[1] == TEXT_CONTROL) id[0] = 1;
        if (v->type[2] == TEXT_CONTROL) id[1] = 2;
        if (v->type[0] == TEXT_UNKNOWN) id[2] = 0;
    }
    static const char *const keys[5] = {
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id"};
    td_code rc;
    for (int i = 0; i < 5; i++)
        if ((rc = gguf_get_int(f, keys[i], -1, v->n - 1, id[i], &id[i], err))) return rc;
    v->bos = (int32_t)id[0];
    v->eos = (int32_t)id[1];
    v->unknown = (int32_t)id[2];
    find_ends(v);
    for (int i = 1; i < 5; i++)
        if (i != 2 && id[i] >= 0) v->is_end[id[i]] = true;
    if ((rc = gguf_get_bool(f, "tokenizer.ggml.add_bos_token", v->is_spm || v->pre->add_bos,
                            &v->add_bos, err)) ||
        (rc = gguf_get_bool(f, "tokenizer.ggml.add_eos_token", false, &v->add_eos, err)) ||
        (rc = gguf_get_bool(f, "tokenizer.ggml.add_space_prefix", v->is_spm, &v->add_space_prefix,
                            err)))
        return rc;
    return TD_OK;
}

static td_code load(text_vocab *v, const gguf_file *f, td_error *err) {
    const char *path = gguf_path(f), *model, *pre, *chat;
    td_code rc;
    if ((rc = gguf_get_string(f, "tokenizer.ggml.model", &model, err)) ||
        (rc = gguf_get_string(f, "tokenizer.ggml.pre", &pre, err)) ||
        (rc = gguf_get_string(f, "tokenizer.chat_template", &chat, err)))
        return rc;
    if (!model)
        return td_fail(err, TD_E_FORMAT,
                       "%s: no tokenizer in this file (tokenizer.ggml.model is missing)", path);
    v->is_spm = !strcmp(model, "llama");
    if (!v->is_spm && strcmp(model, "gpt2"))
        return td_fail(
            err, TD_E_UNSUPPORTED,
            "%s: tokenizers of the kind '%.60s' are not supported; gpt2 (byte-level BPE) and llama "
            "(SentencePiece) are",
            path, model);
    if (!(v->pre_name = strdup(pre ? pre : "default")) ||
        (chat && !(v->chat_template = strdup(chat))))
        return text_no_memory(err);
    if (!v->is_spm && (rc = text_pre_open(v, v->pre_name, err))) {
        td_fail_context(err, "%.150s", path);
        return rc;
    }
    if ((rc = load_tokens(v, f, err)) || (rc = load_ids(v, f, err)) ||
        (rc = load_bytes(v, path, err)) ||
        (rc = v->is_spm ? load_scores(v, f, err) : text_merges_load(v, f, err)) ||
        (rc = text_specials_build(&v->user, v, false, err)))
        return rc;
    return text_specials_build(&v->parsed, v, true, err);
}

td_code text_vocab_open(text_vocab **out, const gguf_file *f, td_error *err) {
    text_vocab *v = td_calloc(1, sizeof *v);
    if (!v) return text_no_memory(err);
    td_code rc = load(v, f, err);
    if (rc) goto fail;
    *out = v;
    return TD_OK;
fail:
    text_vocab_close(v);
    return rc;
}

void text_vocab_close(text_vocab *v) {
    if (!v) return;
    for (int i = 0; i < TEXT_MAX_PASSES; i++)
        pcre2_code_free(v->passes[i]);
    pcre2_match_context_free(v->match_context);
    text_specials_free(&v->user);
    text_specials_free(&v->parsed);
    free(v->raw.data);
    free(v->raw.at);
    free(v->bytes.data);
    free(v->bytes.at);
    free(v->type);
    free(v->is_end);
    free(v->names.slots);
    free(v->pairs);
    free(v->piece_rank);
    free(v->pre_name);
    free(v->chat_template);
    free(v);
}

/* ---- asking ---- */

int text_n_tokens(const text_vocab *v) {
    return v->n;
}

const char *text_model_name(const text_vocab *v) {
    return v->is_spm ? "llama" : "gpt2";
}

const char *text_pre_name(const text_vocab *v) {
    return v->pre_name;
}

int32_t text_bos(const text_vocab *v) {
    return v->bos;
}

int32_t text_eos(const text_vocab *v) {
    return v->eos;
}

bool text_adds_bos(const text_vocab *v) {
    return v->add_bos && v->bos >= 0;
}

bool text_adds_eos(const text_vocab *v) {
    return v->add_eos && v->eos >= 0;
}

static bool in_range(const text_vocab *v, int32_t token) {
    return token >= 0 && token < v->n;
}

bool text_is_end(const text_vocab *v, int32_t token) {
    return in_range(v, token) && v->is_end[token];
}

int text_token_type(const text_vocab *v, int32_t token) {
    return in_range(v, token) ? v->type[token] : TEXT_UNUSED;
}

const char *text_token_raw(const text_vocab *v, int32_t token, size_t *len) {
    *len = 0;
    return in_range(v, token) ? strings_get(&v->raw, token, len) : "";
}

const char *text_token_bytes(const text_vocab *v, int32_t token, bool special, size_t *len) {
    *len = 0;
    if (!in_range(v, token)) return "";
    int type = v->type[token];
    if (!special && (type == TEXT_CONTROL || type == TEXT_UNKNOWN || type == TEXT_UNUSED))
        return "";
    return strings_get(&v->bytes, token, len);
}

const char *text_chat_template(const text_vocab *v) {
    return v->chat_template;
}
