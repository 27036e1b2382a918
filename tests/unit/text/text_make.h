/* Tiny vocabularies for the unit tests, written as GGUF files in memory. */
#ifndef TD_TEXT_MAKE_H
#define TD_TEXT_MAKE_H

#include "gguf_make.h"
#include "text/text.h"

typedef struct make_token {
    const char *text;
    int type;
    float score;
} make_token;

typedef struct make_vocab {
    const char *model, *pre, *chat; /* NULL: the key is absent */
    const make_token *tokens;
    int n_tokens;
    bool all_bytes; /* the 256 byte-level letters (gpt2) or <0xNN> tokens (llama) come after them */
    const char *merges;                                /* one a line, "a b\n"; NULL: none */
    int bos, eos, eot, add_bos, add_eos, space_prefix; /* 0: the key is absent; else KEY(value) */
    int n_types, n_scores;                             /* entries that are written: 0 for all */
} make_vocab;

enum { KEY_BASE = 1 << 30 };
#define KEY(value) (KEY_BASE + (value))

/* The GGUF file of it; free with td_buf_free. */
td_buf make_vocab_file(const make_vocab *m);
/* Opens it; the file is gone when this returns. */
td_code make_vocab_open(text_vocab **v, const make_vocab *m, td_error *err);
/* The same, and fails the test when it does not open. */
text_vocab *make_vocab_or_fail(const make_vocab *m);

/* Encodes text[0..len) and compares with the spellings (raw) in `want`, separated by a newline. */
void expect_tokens(const text_vocab *v, const char *text, size_t len, bool add_special,
                   bool parse_special, const char *want);
/* The tokens' bytes one after the other, specials shown. */
void expect_round_trip(const text_vocab *v, const char *text, size_t len);

#endif
