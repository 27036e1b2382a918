/* libtandem: exact speculative decoding of GGUF language models.
 *
 * A target model generates; an optional draft model proposes tokens that the target verifies in one
 * pass. The text (greedy) or its law (sampled) is exactly the target's own, with any draft.
 *
 * Conventions. Functions that can fail return a td_code and, when the td_error pointer given last is
 * not NULL, leave one line there that says what went wrong and what to do. Out-parameters are written
 * on success only. `close` takes a pointer to the pointer and clears it; closing NULL does nothing.
 * A td_model may be shared by sessions on several threads; a td_session belongs to one thread at a
 * time, except td_session_cancel. Strings are UTF-8. */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define TD_API
#else
#define TD_API __attribute__((visibility("default")))
#endif

typedef enum td_code {
    TD_OK = 0,
    TD_E_ARG = 1,         /* an argument makes no sense */
    TD_E_IO = 2,          /* a file or stream could not be read or written */
    TD_E_FORMAT = 3,      /* a file is damaged or not of the kind expected */
    TD_E_UNSUPPORTED = 4, /* valid, but not something this build can do */
    TD_E_MEMORY = 5,      /* out of memory */
    TD_E_TOO_BIG = 6,     /* larger than a limit: context, sizes */
    TD_E_MISMATCH = 7,    /* draft and target do not fit each other */
    TD_E_CANCELLED = 8    /* td_session_cancel, or a callback said stop */
} td_code;

typedef struct td_error {
    td_code code;
    char msg[512];
} td_error;

typedef int32_t td_token;

TD_API const char *td_version(void);            /* "0.1.0" */
TD_API const char *td_code_name(td_code code);  /* "TD_E_IO" ... */
/* Cores this process may use (affinity and cgroup quota): the default number of threads. */
TD_API int td_default_threads(void);
/* The instruction set in use: "ref", "avx2", "avx512" ... TANDEM_CPU lowers it (an unknown word there is
 * TD_E_ARG). The string is static. */
TD_API td_code td_cpu_level(const char **out, td_error *err);

/* ---- files ---- */

/* What a GGUF file says of itself, without loading its weights. */
typedef struct td_file td_file;

typedef struct td_file_info {
    const char *path, *arch, *name, *tokenizer, *tokenizer_pre; /* "" where the file says nothing */
    const char *chat_template;                                   /* NULL: none */
    uint32_t gguf_version;
    uint64_t size_bytes, n_params;
    int n_layers, n_embd, n_vocab, n_ctx_train;
    int n_heads, n_kv_heads, head_dim, n_ff; /* of layer 0 */
    int window;                              /* sliding window; 0: none */
    int n_tensors, n_keys;
    td_token bos, eos;                       /* -1: none */
    uint64_t kv_bytes_per_token_f16;         /* full-attention layers */
    uint64_t kv_bytes_window_f16;            /* bound of the windowed layers together */
} td_file_info;

typedef struct td_tensor_info {
    const char *name, *type; /* "blk.0.attn_q.weight", "Q4_K" */
    int n_dims;
    uint64_t dims[4];        /* dims[0] runs fastest */
    uint64_t size_bytes;
} td_tensor_info;

TD_API td_code td_file_open(td_file **out, const char *path, td_error *err);
TD_API void td_file_close(td_file **f);
TD_API const td_file_info *td_file_get_info(const td_file *f); /* strings live as long as f */
TD_API int td_file_n_tensors(const td_file *f);
TD_API void td_file_get_tensor(const td_file *f, int i, td_tensor_info *out); /* 0 <= i < n_tensors */
TD_API int td_file_n_keys(const td_file *f);
/* Key i and its value as text; arrays as "[n] first items ...". Written to value (always ended by NUL). */
TD_API const char *td_file_get_key(const td_file *f, int i, char *value, size_t value_size);

/* ---- models ---- */

typedef struct td_model td_model;

typedef struct td_model_options {
    int n_threads; /* 0: td_default_threads() */
    /* Called while weights load with bytes done and in all; return false to give up. NULL: nobody asks. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} td_model_options;

typedef struct td_model_info {
    const char *path, *arch, *name;
    int n_layers, n_embd, n_vocab, n_ctx_train, n_threads;
    uint64_t file_bytes, weight_bytes; /* on disk; in memory */
    uint64_t step_bytes;               /* weight bytes that one decode step reads */
    uint64_t row_macs;                 /* multiply-adds of one row in the matrices */
    double load_ms;
    td_token bos, eos;
} td_model_info;

/* opt NULL: defaults. */
TD_API td_code td_model_open(td_model **out, const char *path, const td_model_options *opt, td_error *err);
TD_API void td_model_close(td_model **m);
TD_API const td_model_info *td_model_get_info(const td_model *m);

/* Tokens of text[0..len), BOS and EOS where the file wants them when add_special; text that spells a control
 * token becomes it when parse_special. *tokens is the caller's, freed with td_free. */
TD_API td_code td_tokenize(const td_model *m, const char *text, size_t len, bool add_special,
                           bool parse_special, td_token **tokens, size_t *n, td_error *err);
/* The bytes of a token; control tokens give their name when `special`, else nothing. Owned by m. */
TD_API const char *td_token_text(const td_model *m, td_token token, bool special, size_t *len);

typedef struct td_message {
    const char *role; /* "system" (the first only), "user" or "assistant" */
    const char *text;
    size_t len;
} td_message;

/* Writes a conversation of n messages, the last a user's, in the model's ChatML template, ready for the
 * answer; without a system message comes the template's default. TD_E_UNSUPPORTED where the file has no
 * template of that kind, TD_E_ARG for roles out of order. *text is the caller's, freed with td_free.
 * Tokenise it with parse_special. */
TD_API td_code td_chat_wrap(const td_model *m, const td_message *messages, size_t n, char **text,
                            size_t *len, td_error *err);
TD_API void td_free(void *p);

/* ---- sessions ---- */

/* The quantised types are as in llama.cpp: blocks of 32 values of a head with one f16 scale, of 8 and 4 bits. */
typedef enum td_kv_type {
    TD_KV_F16 = 0,
    TD_KV_F32 = 1,
    TD_KV_Q8_0 = 2,
    TD_KV_Q4_0 = 3
} td_kv_type;

typedef struct td_session td_session;

typedef struct td_session_options {
    int n_ctx;         /* positions; 0: the smaller of the model's trained context and 4096 */
    td_kv_type cache_type_k, cache_type_v; /* keys and values in the caches of target and draft; a quantised
                          type for heads that are no multiple of 32 is TD_E_UNSUPPORTED */
    int draft_max;     /* tokens of the largest draft this session will use, 0..64; bounds the verify pass */
    int prefill_chunk; /* rows a prefill pass; 0: chosen */
} td_session_options;

/* Opens caches for the target and, when draft is not NULL, for the draft. Both models are borrowed and must
 * outlive the session. A draft whose vocabulary differs (other strings for ids both have) is TD_E_MISMATCH; a
 * context that memory cannot hold is TD_E_TOO_BIG. opt NULL: defaults (draft_max 16). */
TD_API td_code td_session_open(td_session **out, td_model *target, td_model *draft,
                               const td_session_options *opt, td_error *err);
TD_API void td_session_close(td_session **s);
TD_API int td_session_n_ctx(const td_session *s);
TD_API uint64_t td_session_kv_bytes(const td_session *s, bool draft); /* mapped for that cache; 0: none */
/* Asks the running td_generate of this session to stop after the current step; where none runs, the next one
 * stops before its first token. Safe from a signal handler and from other threads. */
TD_API void td_session_cancel(td_session *s);

typedef struct td_logit_bias {
    td_token token;
    float bias; /* added to the logit; -INFINITY forbids the token */
} td_logit_bias;

/* The sampler, in order: logit bias, penalties, then (temperature > 0) top-k, top-p, min-p, temperature;
 * temperature 0 takes the most probable token. td_generate_defaults fills in llama.cpp's defaults. */
typedef struct td_sampling {
    float temperature;       /* 0: greedy */
    int top_k;               /* 0: off */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    float presence_penalty;  /* 0: off */
    float frequency_penalty; /* 0: off */
    int repeat_last_n;       /* window of the penalties; -1: all */
    const td_logit_bias *bias;
    int n_bias;
    uint64_t seed;
} td_sampling;

/* How sampled drafts are accepted (temperature > 0; greedy decoding has one way only). The law of the text is
 * the target's under each. */
typedef enum td_verify {
    TD_VERIFY_BLOCK = 0, /* block verification (arXiv 2403.10444): keeps most; the text hangs on what was
                            drafted, so that a seed gives the same text only with the same draft and lengths */
    TD_VERIFY_TOKEN,     /* token by token (arXiv 2211.17192) */
    TD_VERIFY_COUPLED    /* draft and target share their noise (arXiv 2408.07978): a seed gives one text, with
                            any draft of any length and without */
} td_verify;

typedef enum td_stop_reason {
    TD_STOP_NONE = 0,
    TD_STOP_EOS,       /* an end token; not part of the text */
    TD_STOP_STRING,    /* a stop string; not part of the text */
    TD_STOP_LENGTH,    /* n_predict tokens */
    TD_STOP_CONTEXT,   /* the context is full */
    TD_STOP_CANCELLED  /* td_session_cancel or the callback */
} td_stop_reason;
TD_API const char *td_stop_reason_name(td_stop_reason r); /* "eos", "stop", "length" ... */

/* A round: a draft, the pass that verifies it, the choice of tokens. Times in milliseconds. */
typedef struct td_round {
    double start_ms;                      /* from the end of the prefill */
    double draft_ms, verify_ms, sample_ms;
    int drafted, accepted;                /* tokens; a plain round has none */
    int tokens;                           /* the accepted ones and the target's own; both less what a stop cuts off */
} td_round;

typedef struct td_generate_options {
    td_sampling sampling;
    td_verify verify;
    int n_predict;             /* tokens at most; -1: until the context is full */
    int draft_max;             /* tokens drafted a round; 0: no speculation; <= the session's draft_max.
                                  TD_DRAFT_AUTO: what pays, round by round, further candidates for a place too where
                                  the rule takes trees (td_session_calibrate). Without a draft model nothing is
                                  drafted */
    int draft_width;           /* candidates for each place of a draft: over 1 a tree, of draft_max times so many
                                  tokens, <= the session's draft_max; the first one of a place goes on. Not with
                                  TD_DRAFT_AUTO, nor with TD_VERIFY_BLOCK (TD_E_UNSUPPORTED). 0 and 1: a chain */
    bool ignore_eos;           /* end tokens are never chosen: their logits become -inf in the target and in the draft */
    const char *const *stops;  /* n_stops strings that end the text, also across tokens */
    int n_stops;
    /* Text as it becomes certain: whole UTF-8 characters, never anything of a stop string, nothing past a stop.
     * A character that the last token leaves unfinished is not text. Return false to stop. NULL: no text
     * wanted. */
    bool (*on_text)(void *user, const char *text, size_t len);
    /* Prompt tokens processed so far, during a long prefill. NULL: nobody asks. */
    void (*on_prefill)(void *user, int done, int total);
    /* Each round when it is done, behind its text; *round is valid during the call. NULL: nobody asks. */
    void (*on_round)(void *user, const td_round *round);
    void *user;
} td_generate_options;

/* Sampling as llama.cpp's defaults have it, with a random seed; no token limit; TD_DRAFT_AUTO. */
TD_API void td_generate_defaults(td_generate_options *opt);

enum { TD_MAX_DRAFT = 64, TD_DRAFT_AUTO = -1, TD_AUTO_MAX_DRAFT = 16 /* its longest draft */ };

/* Counts committed tokens only. Times in milliseconds. */
typedef struct td_stats {
    int prompt_tokens;
    int prefill_tokens;      /* prompt tokens computed; the rest were still cached from the call before */
    double prefill_ms;       /* target and draft */
    double ttft_ms;          /* call to first token */
    int decode_tokens;       /* tokens generated, the stop token not among them; before a stop string: those whose
                                text begins before it */
    double decode_ms;        /* from the end of the prefill to the last token */
    double itl_ms_p50, itl_ms_p95; /* between tokens as a reader sees them: tokens of one round share its time */
    int64_t drafted, accepted; /* accepted: drafted tokens that were committed */
    int rounds;              /* verify passes, those without a draft too */
    int64_t accepted_per_pos[TD_MAX_DRAFT], drafted_per_pos[TD_MAX_DRAFT]; /* by place in the draft; candidates
                                for one place count once */
    double draft_ms, verify_ms, sample_ms; /* parts of decode_ms */
    td_stop_reason stop;
    const td_token *tokens;  /* the decode_tokens generated; owned by the session until its next call */
} td_stats;

/* Generates after `prompt` (n_prompt > 0 tokens). Reuses what the session's caches hold of the same prefix.
 * A prompt longer than the context is TD_E_TOO_BIG; a bad number in opt TD_E_ARG. On a stop of any kind
 * returns TD_OK with stats->stop; both caches then hold exactly prompt and generated tokens (but the last,
 * which no pass has read yet). stats may be NULL. */
TD_API td_code td_generate(td_session *s, const td_token *prompt, size_t n_prompt,
                           const td_generate_options *opt, td_stats *stats, td_error *err);

/* Measures what passes of this session's models cost on this machine, some seconds of work: TD_DRAFT_AUTO goes by it.
 * The figures are kept in a file of the user's cache folder (XDG_CACHE_HOME, else ~/.cache; tandem/costs-*) and
 * read from there by later sessions of the same models, threads, machine and build; `again` measures all the same.
 * *measured (may be NULL): whether there was any measuring. A td_generate with TD_DRAFT_AUTO does it where it has not
 * been done. `progress` (NULL: nobody asks) hears of steps done and in all; false: TD_E_CANCELLED. TD_E_ARG without
 * a draft; TD_E_TOO_BIG: the context is too small to measure in. The caches are empty afterwards. */
TD_API td_code td_session_calibrate(td_session *s, bool again, bool (*progress)(void *user, int done, int total),
                                    void *user, bool *measured, td_error *err);

/* Logits of the last `n_rows` positions of a text computed in one pass after prefilling the rest; for tests
 * and scoring. out: (n_rows, n_vocab) of the target. The caches hold the text afterwards. */
TD_API td_code td_logits(td_session *s, const td_token *tokens, size_t n, size_t n_rows, float *out,
                         td_error *err);

/* Median milliseconds of a target pass of m rows (1 <= m <= draft_max + 1) behind n_context positions, over
 * `repeats` passes: what a verify pass costs. Overwrites the caches; the text is always the same one, so that a
 * longer context goes on from where the call before it ended. */
TD_API td_code td_measure_pass(td_session *s, int n_context, int m, int repeats, double *ms, td_error *err);

/* Median milliseconds that the draft takes for a token of a greedy proposal behind n_context tokens, over `repeats`
 * proposals of up to 8. Overwrites the caches. TD_E_ARG without a draft. */
TD_API td_code td_measure_draft(td_session *s, int n_context, int repeats, double *ms, td_error *err);

/* ---- the selftest ---- */

/* One thing tried. */
typedef struct td_check {
    const char *name; /* "greedy text" ...; static */
    bool passed;
    char result[96];  /* what was done and found, a few words */
    int64_t n, n_wrong;
    double z, tv, tv_bound; /* of samples: chi-square as a normal deviate, total variation distance and its bound;
                               NAN elsewhere */
} td_check;

typedef struct td_selftest_options {
    int n_threads; /* 0: td_default_threads(); texts are also written with another number */
    int n_samples; /* texts for each law from tables; 0: a million */
    /* Asked now and then; false ends with TD_E_CANCELLED. NULL: nobody asks. */
    bool (*progress)(void *user, const char *what, int done, int total);
    void (*on_check)(void *user, const td_check *check); /* told of each as it is done; NULL: nobody */
    void *user;
} td_selftest_options;

/* Tries what this library promises on a pair of files; draft_path NULL: the target drafts for itself. Greedy and
 * seeded texts with drafts of many lengths and other threads equal the plain ones; samples have the target's law, from
 * tables of its logits (a bug in sampler or rules) and from the whole loop (anything else); caches hold the committed
 * tokens and nothing else. Samples that are exact fail once in a million. A test that fails is not an error: TD_OK, and
 * *passed is false. Opens the models itself; some minutes of work. opt NULL: defaults. */
TD_API td_code td_selftest(const char *target_path, const char *draft_path, const td_selftest_options *opt,
                           bool *passed, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
