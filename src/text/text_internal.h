/* What the files of src/text share; nobody else includes it.
 *
 * A vocabulary is flat tables indexed by token id, one hash from spelling to id, and what its
 * family needs: merges and a compiled pre-splitter (byte-level BPE) or ranks from scores
 * (SentencePiece). Encoding works in a text_work, which lives for one call, so a vocabulary can be
 * shared. */
#ifndef TD_TEXT_INTERNAL_H
#define TD_TEXT_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/text.h"

/* Strings of all tokens in one block: token i is data[at[i] .. at[i + 1] - 1), a NUL after each. */
typedef struct text_strings {
    char *data;
    size_t *at; /* (n + 1) */
    size_t len, cap;
} text_strings;

/* ---- the hash from a spelling to a token id: open addressing, slots of (hash high half, id + 1)
 * ---- */
typedef struct text_names {
    uint64_t *slots;
    size_t mask;
} text_names;

/* ---- merges: (left id, right id) -> rank and the id they make ---- */
typedef struct text_pair {
    uint64_t key; /* left << 32 | right; PAIR_EMPTY: free */
    uint32_t rank;
    int32_t merged;
} text_pair;

/* ---- control and user-defined tokens, sorted by their bytes, for leftmost-longest search ---- */
typedef struct text_specials {
    int32_t *ids;
    size_t n;
    uint32_t first[257]; /* those that begin with byte b are ids[first[b] .. first[b + 1]) */
} text_specials;

enum { TEXT_MAX_PASSES = 7 };

/* A pre-splitter: each pass cuts the pieces of the pass before into its matches and the gaps
 * between them; what is left after the last are the words that merges never cross. */
typedef struct text_pre {
    const char *names[6];
    const char *passes[TEXT_MAX_PASSES];
    bool ignore_merges; /* a word that is a token as a whole is that token, whatever the merges say
                         */
    bool add_bos;       /* the default where the file is silent */
} text_pre;

struct text_vocab {
    int n;
    bool is_spm;
    char *pre_name;      /* owned */
    char *chat_template; /* owned; NULL: none */
    text_strings raw, bytes;
    uint8_t *type;   /* (n) */
    uint8_t *is_end; /* (n) */
    text_names names;
    int32_t byte_token[256]; /* -1: the vocabulary has none for this byte */
    int32_t bos, eos, unknown;
    bool add_bos, add_eos, add_space_prefix;
    text_specials user, parsed; /* user-defined alone; those and the control tokens */
    size_t longest;             /* bytes of the longest spelling */

    /* byte-level BPE */
    const text_pre *pre;
    pcre2_code *passes[TEXT_MAX_PASSES];
    int n_passes;
    pcre2_match_context *match_context;
    text_pair *pairs;
    size_t pair_mask;

    /* SentencePiece */
    uint32_t *piece_rank; /* (n) lower is merged first; from the scores */
    bool crosses[256];    /* some piece holds this byte directly before U+2581 */
};

/* One symbol of a word: a token (or, in SentencePiece, an unknown character), linked to its
 * neighbours. */
typedef struct text_sym {
    int32_t prev, next; /* -1: none */
    int32_t id;         /* -1: not a token */
    uint32_t at, len;   /* its bytes in work->text (SentencePiece) */
    uint32_t rank;      /* of the pair with `next`; TEXT_NO_RANK: they do not merge */
    int32_t merged;     /* what that pair makes */
} text_sym;

#define TEXT_NO_RANK UINT32_MAX

typedef struct text_work {
    const text_vocab *v;
    const char *text; /* what the symbols' offsets point into */
    text_sym *syms;
    size_t n_syms, cap_syms;
    uint64_t *heap; /* rank << 32 | symbol: the smallest is merged next, the leftmost on a tie */
    size_t n_heap, cap_heap;
    td_buf scratch;
    pcre2_match_data *match;
    int32_t **tokens; /* the caller's */
    size_t *n, *cap;
    td_error *err;
} text_work;

/* utf8.c. The character at p[0..n), n >= 1, strictly (no surrogates, overlong forms or values past
 * U+10FFFF): its length, 0 when no valid character begins so, -1 when all n bytes are the beginning
 * of one. */
int text_utf8_check(const uint8_t *p, size_t n);
/* Bytes of the longest valid prefix. */
size_t text_utf8_valid(const char *text, size_t len);

/* vocab.c. The token spelled so; -1: none. */
int32_t text_find(const text_vocab *v, const char *raw, size_t len);
/* The UTF-8 spelling of a byte in byte-level vocabularies (1 or 2 bytes; returns how many). */
int text_byte_spelling(uint8_t byte, char out[2]);

/* special.c */
td_code text_specials_build(text_specials *s, const text_vocab *v, bool control, td_error *err);
void text_specials_free(text_specials *s);
/* The first match at or after `from`, the longest there; false: none. */
bool text_specials_find(const text_specials *s, const text_vocab *v, const char *text, size_t len,
                        size_t from, size_t *at, int32_t *token);

/* split.c */
td_code text_pre_open(text_vocab *v, const char *name, td_error *err);
typedef td_code text_word_fn(text_work *w, const char *word, size_t len);
/* Calls fn for each word of valid UTF-8 text, in order. */
td_code text_split(text_work *w, const char *text, size_t len, text_word_fn *fn);

/* merge.c. Merges syms[0..n_syms), freshly linked by text_sym_push, until no pair merges.
 * Afterwards the list from symbol 0 along `next` is the result. */
td_code text_merge(text_work *w);
td_code text_sym_push(text_work *w, int32_t id, size_t at, size_t len);
td_code text_emit(text_work *w, int32_t token);
td_code text_no_memory(td_error *err);

/* bpe.c, spm.c: the tokens of one stretch of text that holds no special token. */
td_code text_bpe_encode(text_work *w, const char *text, size_t len);
td_code text_spm_encode(text_work *w, const char *text, size_t len, bool space_prefix);
/* bpe.c */
td_code text_merges_load(text_vocab *v, const gguf_file *f, td_error *err);
const text_pair *text_pair_find(const text_vocab *v, int32_t left, int32_t right);

#endif
