/* Text to tokens and back, and chat wrapping. Works from a GGUF file's tokenizer.* keys alone. */
#ifndef TD_TEXT_H
#define TD_TEXT_H

#include "base/base.h"
#include "format/format.h"

typedef struct text_vocab text_vocab;

/* Token attributes, from tokenizer.ggml.token_type. */
enum { TEXT_NORMAL = 1, TEXT_UNKNOWN = 2, TEXT_CONTROL = 3, TEXT_USER = 4, TEXT_UNUSED = 5, TEXT_BYTE = 6 };

/* Builds the vocabulary: byte-level BPE ("gpt2" models, pre-splitter by tokenizer.ggml.pre) or
 * SentencePiece ("llama"). Everything is copied: the file may be closed after. Unknown model or
 * pre-splitter: TD_E_UNSUPPORTED by name; inconsistent tables: TD_E_FORMAT. Immutable once open, so
 * threads may share it. */
td_code text_vocab_open(text_vocab **out, const gguf_file *f, td_error *err);
void text_vocab_close(text_vocab *v);

int text_n_tokens(const text_vocab *v);
const char *text_model_name(const text_vocab *v); /* "gpt2", "llama" */
const char *text_pre_name(const text_vocab *v);   /* "qwen2", "smollm", "default" ... */
int32_t text_bos(const text_vocab *v);            /* -1: none */
int32_t text_eos(const text_vocab *v);
bool text_adds_bos(const text_vocab *v);
bool text_adds_eos(const text_vocab *v);
/* True for EOS, EOT, EOM and the end-of-turn tokens known by name (<|im_end|>, <|eot_id|>,
 * <end_of_turn>, <|endoftext|> ...): generation ends there. */
bool text_is_end(const text_vocab *v, int32_t token);
int text_token_type(const text_vocab *v, int32_t token);
/* The string as the vocabulary spells it (byte-level or with U+2581), for comparing vocabularies. */
const char *text_token_raw(const text_vocab *v, int32_t token, size_t *len);
/* The bytes the token stands for in text. A control token gives its own name when `special`, else
 * nothing. Out of range: nothing. Points into the vocabulary. */
const char *text_token_bytes(const text_vocab *v, int32_t token, bool special, size_t *len);

/* Appends the tokens of text[0..len) to *tokens (grown with td_grow; *n in use, *cap allocated).
 * add_special: put BOS/EOS where the file says so. parse_special: text that spells a control or
 * user-defined token becomes that token; otherwise only user-defined ones match (as llama.cpp does).
 * Invalid UTF-8 never fails: every byte survives the round trip in a byte-level vocabulary. Time is
 * linear in practice. Fails only for memory. */
td_code text_encode(const text_vocab *v, const char *text, size_t len, bool add_special,
                    bool parse_special, int32_t **tokens, size_t *n, size_t *cap, td_error *err);

/* ---- streaming detokenisation ---- */

/* Holds back the bytes of an unfinished UTF-8 character (at most 3) until they complete or turn out to
 * be invalid (invalid bytes are passed on as they are: nothing is swallowed). For SentencePiece
 * vocabularies with add_space_prefix, the space before the first token of a text is dropped when
 * `at_start` was given at init. */
typedef struct text_stream {
    const text_vocab *v;
    bool special, at_start;
    uint8_t held[4];
    int n_held;
} text_stream;
void text_stream_init(text_stream *s, const text_vocab *v, bool special, bool at_start);
/* Appends to *out what can be shown after this token. */
void text_stream_push(text_stream *s, int32_t token, td_buf *out);
/* Appends what is held, at the end of a text. */
void text_stream_flush(text_stream *s, td_buf *out);

/* ---- chat ---- */

/* The chat template of the file; NULL: none. Owned by the vocabulary. */
const char *text_chat_template(const text_vocab *v);
/* Writes messages (n, borrowed; see td_message) for the assistant to answer the last, when the file's
 * template is of the ChatML kind (<|im_start|>); otherwise TD_E_UNSUPPORTED, saying what the template
 * looks like. Without a system message comes the template's own, if it has one. Roles out of order:
 * TD_E_ARG. Appends to *out; encode the result with parse_special. */
td_code text_chat_wrap(const text_vocab *v, const td_message *messages, size_t n, td_buf *out,
                       td_error *err);

#endif
