/* Pre-splitters: the regular expressions that models' tokenizers cut text into words with, before
 * any merge. They are facts about the models (their tokenizer.json), keyed by tokenizer.ggml.pre.
 * Compiled once by PCRE2 with its JIT; the dialects differ from the originals' (Oniguruma) in two
 * places:
 *
 * - \s in PCRE2's UCP mode takes U+180E for a space, Unicode and Oniguruma do not. So white space
 * is spelled out (WS).
 * - DeepSeek LLM's `\s+$` is tried at every space of a long run and walks the rest of it each time
 *   (PCRE2's JIT remembers that it failed, its interpreter does not). A lookbehind lets it begin at
 *   the first space of a run alone, where it would have matched anyway.
 *
 * None of the others walks a run more than a fixed number of times: a lookahead after `\s+` gives
 * back one character, and `\s*[\r\n]+` that finds no newline is followed by an alternative that
 * takes the run. */
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

#define WS                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}"                                                                                    \
    "\\x{3000}"
#define S "[" WS "]"
#define TRAILING_SPACE S "+(?![^" WS "])|" S "+"

#define GPT2_WORDS                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" TRAILING_SPACE
/* cl100k's, with numbers cut into pieces of DIGITS */
#define CL100K_WORDS(DIGITS)                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" DIGITS "| ?[^" WS                \
    "\\p{L}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+|" TRAILING_SPACE

/* CJK, kana and Hangul as DeepSeek's first tokenizers cut them */
#define DEEPSEEK_EAST_ASIAN "[\\x{800}-\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"
/* The cased letters that DeepSeek LLM's tokenizer.json lists one range after the other. */
#define DEEPSEEK_CASED                                                                             \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{"    \
    "293}"                                                                                         \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"          \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{"    \
    "52f}"                                                                                         \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{"     \
    "1cba}"                                                                                        \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{"   \
    "1f15}"                                                                                        \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{"    \
    "1f5b}"                                                                                        \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{"    \
    "1fc4}"                                                                                        \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{"   \
    "1ff4}"                                                                                        \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{"     \
    "2124}"                                                                                        \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"         \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"         \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{"    \
    "a76f}"                                                                                        \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{"   \
    "fb17}"                                                                                        \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"             \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
    "\\x{1e900}-\\x{1e943}"

static const text_pre known[] = {
    {.names = {"default"},
     .passes = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = {"gpt-2", "gpt2", "phi-2"}, .passes = {GPT2_WORDS}},
    {.names = {"qwen2", "deepseek-r1-qwen"}, .passes = {CL100K_WORDS("\\p{N}")}},
    {.names = {"llama-bpe", "llama3", "llama-v3"},
     .passes = {CL100K_WORDS("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {.names = {"smollm", "starcoder"}, .passes = {"\\p{N}", GPT2_WORDS}},
    {.names = {"deepseek-llm"},
     .passes =
         {"[\\r\\n]", S "?[" DEEPSEEK_CASED "]+",
          S
          "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
          "(?<!" S ")" S "+\\z", DEEPSEEK_EAST_ASIAN, "\\p{N}"}},
    {.names = {"deepseek-coder"},
     .passes = {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", DEEPSEEK_EAST_ASIAN, "\\p{N}"}},
    {.names = {"deepseek-v3"},
     .passes = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+",
                "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
                "?[\\p{P}\\p{S}]+[\\r\\n]*|" S "*[\\r\\n]+|" TRAILING_SPACE}},
};

static const text_pre *find_pre(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (int j = 0; j < 6 && known[i].names[j]; j++)
            if (!strcmp(known[i].names[j], name)) return &known[i];
    return NULL;
}

td_code text_pre_open(text_vocab *v, const char *name, td_error *err) {
    if (!(v->pre = find_pre(name))) {
        td_buf list = {0};
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            td_buf_printf(&list, "%s%s", i ? ", " : "", known[i].names[0]);
        td_fail(
            err, TD_E_UNSUPPORTED,
            "the tokenizer's pre-splitter '%.60s' (tokenizer.ggml.pre) is not known; known are %s",
            name, list.data ? list.data : "others");
        td_buf_free(&list);
        return TD_E_UNSUPPORTED;
    }
    if (!(v->match_context = pcre2_match_context_create(NULL))) return text_no_memory(err);
    /* A run of a million spaces is one match that steps back a million times. */
    pcre2_set_match_limit(v->match_context, UINT32_MAX);
    pcre2_set_heap_limit(v->match_context, UINT32_MAX);
    for (int i = 0; i < TEXT_MAX_PASSES && v->pre->passes[i]; i++) {
        int code;
        PCRE2_SIZE where;
        v->passes[i] = pcre2_compile((PCRE2_SPTR)v->pre->passes[i], PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
        if (!v->passes[i]) {
            char words[120];
            pcre2_get_error_message(code, (PCRE2_UCHAR *)words, sizeof words);
            return td_fail(
                err, TD_E_UNSUPPORTED,
                "pass %d of the pre-splitter '%s' does not compile with this PCRE2 (at %zu: %s)", i,
                name, (size_t)where, words);
        }
        v->n_passes = i + 1;
        /* No JIT (a system that forbids writable code): matching is slower, the result the same. */
        pcre2_jit_compile(v->passes[i], PCRE2_JIT_COMPLETE);
    }
    return TD_OK;
}

/* One piece through pass `pass` and those after it. Its ends are the ends of text for lookarounds.
 */
static td_code split_piece(text_work *w, const char *text, size_t len, int pass, text_word_fn *fn) {
    const text_vocab *v = w->v;
    if (pass == v->n_passes) return fn(w, text, len);
    td_code rc;
    size_t at = 0;
    while (at < len) {
        uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY; /* checked once, by the caller */
        int n = pcre2_match(v->passes[pass], (PCRE2_SPTR)text, len, at, options, w->match,
                            v->match_context);
        if (n == PCRE2_ERROR_JIT_STACKLIMIT)
            n = pcre2_match(v->passes[pass], (PCRE2_SPTR)text, len, at, options | PCRE2_NO_JIT,
                            w->match, v->match_context);
        if (n == PCRE2_ERROR_NOMATCH) break;
        if (n < 0)
            return td_fail(w->err, TD_E_MEMORY, "the pre-splitter stopped with PCRE2 error %d", n);
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
        size_t begin = found[0], end = found[1]; /* the deeper passes use the same match data */
        if (begin > at && (rc = split_piece(w, text + at, begin - at, pass + 1, fn))) return rc;
        if ((rc = split_piece(w, text + begin, end - begin, pass + 1, fn))) return rc;
        at = end;
    }
    return at < len ? split_piece(w, text + at, len - at, pass + 1, fn) : TD_OK;
}

td_code text_split(text_work *w, const char *text, size_t len, text_word_fn *fn) {
    return split_piece(w, text, len, 0, fn);
}
