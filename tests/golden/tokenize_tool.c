/* The tokenizer as a filter, for test_tokenizer.py: thousands of strings in one process.
 *
 * `tokenize_tool encode MODEL` reads records of (u32 flags, u32 length, bytes) from standard input;
 * flags: 1 add_special, 2 parse_special. For each comes back (u32 count, i32 tokens, u32 length,
 * bytes), the bytes being what the streaming detokeniser makes of the tokens, specials shown.
 *
 * `tokenize_tool time MODEL` reads the same. It prints nanoseconds of processor time: of opening,
 * then of each record's encoding (the best of three) with its number of tokens.
 *
 * `tokenize_tool info MODEL` prints names, ids and the ends of text, one "key value" a line.
 *
 * `tokenize_tool chat MODEL` reads the same kind of records, one a message: with flag 1 a system's,
 * 2 an earlier one of the user's, 3 an assistant's; 0 the last, for which (u32 length, the bytes of
 * the whole conversation) comes back. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/text.h"

static int fail(const td_error *err) {
    fprintf(stderr, "tokenize_tool: %s\n", err->msg);
    return 1;
}

/* Processor time: the ratios that the test checks must not depend on who else is running. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool read_record(uint32_t head[2], td_buf *text) {
    if (fread(head, sizeof *head, 2, stdin) != 2) return false;
    if (!td_grow(&text->data, &text->cap, (size_t)head[1] + 1, 1)) return false;
    text->len = head[1];
    return fread(text->data, 1, text->len, stdin) == text->len;
}

static int encode(const text_vocab *v, bool timing) {
    td_error err = {0};
    td_buf text = {0}, back = {0};
    int32_t *tokens = NULL;
    size_t n, cap = 0;
    uint32_t head[2];
    int rc = 0;
    while (!rc && read_record(head, &text)) {
        uint64_t best = UINT64_MAX;
        for (int i = 0; i < (timing ? 3 : 1) && !rc; i++) {
            n = 0;
            uint64_t t0 = cpu_ns();
            if (text_encode(v, text.data, text.len, head[0] & 1, head[0] & 2, &tokens, &n, &cap,
                            &err))
                rc = fail(&err);
            uint64_t ns = cpu_ns() - t0;
            if (ns < best) best = ns;
        }
        if (rc) break;
        if (timing) {
            printf("%llu %zu\n", (unsigned long long)best, n);
            continue;
        }
        text_stream stream;
        text_stream_init(&stream, v, true, true);
        back.len = 0;
        for (size_t i = 0; i < n; i++)
            text_stream_push(&stream, tokens[i], &back);
        text_stream_flush(&stream, &back);
        uint32_t counts[2] = {(uint32_t)n, (uint32_t)back.len};
        fwrite(&counts[0], sizeof *counts, 1, stdout);
        fwrite(tokens, sizeof *tokens, n, stdout);
        fwrite(&counts[1], sizeof *counts, 1, stdout);
        fwrite(back.data, 1, back.len, stdout);
    }
    free(tokens);
    td_buf_free(&text);
    td_buf_free(&back);
    return rc;
}

static int info(const text_vocab *v) {
    printf("model %s\npre %s\nn_tokens %d\nbos %d\neos %d\nadd_bos %d\nadd_eos %d\nends",
           text_model_name(v), text_pre_name(v), text_n_tokens(v), text_bos(v), text_eos(v),
           text_adds_bos(v), text_adds_eos(v));
    for (int i = 0; i < text_n_tokens(v); i++)
        if (text_is_end(v, i)) printf(" %d", i);
    printf("\n");
    return 0;
}

static int chat(const text_vocab *v) {
    static const char *const roles[] = {"user", "system", "user", "assistant"};
    enum { MAX = 8 };
    td_error err = {0};
    td_buf texts[MAX] = {0}, out = {0};
    td_message messages[MAX];
    uint32_t head[2];
    int rc = 0, n = 0;
    while (!rc && n < MAX && read_record(head, &texts[n])) {
        messages[n] = (td_message){roles[head[0] & 3], texts[n].data, texts[n].len};
        n++;
        if (head[0]) continue;
        out.len = 0;
        if (text_chat_wrap(v, messages, (size_t)n, &out, &err)) rc = fail(&err);
        n = 0;
        uint32_t len = (uint32_t)out.len;
        if (rc) break;
        fwrite(&len, sizeof len, 1, stdout);
        fwrite(out.data, 1, out.len, stdout);
    }
    for (int i = 0; i < MAX; i++)
        td_buf_free(&texts[i]);
    td_buf_free(&out);
    return rc;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    td_error err = {0};
    gguf_file *f = NULL;
    text_vocab *v = NULL;
    if (gguf_open(&f, argv[2], &err)) return fail(&err);
    uint64_t t0 = cpu_ns();
    td_code code = text_vocab_open(&v, f, &err);
    uint64_t ns = cpu_ns() - t0;
    gguf_close(f);
    if (code) return fail(&err);
    int rc = 2;
    if (!strcmp(argv[1], "encode")) rc = encode(v, false);
    if (!strcmp(argv[1], "time")) {
        printf("%llu\n", (unsigned long long)ns);
        rc = encode(v, true);
    }
    if (!strcmp(argv[1], "info")) rc = info(v);
    if (!strcmp(argv[1], "chat")) rc = chat(v);
    text_vocab_close(v);
    return rc;
}
