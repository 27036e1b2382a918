/* greedy_tool TARGET DRAFT N_THREADS N_TOKENS MAX_PROMPT TYPE K,K,... FILE...
 *
 * Greedy text of the target alone and with drafts of each length, for each prompt (the first
 * MAX_PROMPT tokens of a file): one line a run, tab-separated: FILE k same|DIFFERS hash-of-tokens
 * rounds drafted accepted ms prompt-tokens k = 0 is plain decoding. DRAFT may be the same file as
 * TARGET; TYPE is that of keys and values in the caches. Exit status 1 when a text differs. Public API alone; models are loaded once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem.h>

typedef struct text {
    char *bytes;
    size_t len;
} text;

static bool collect(void *user, const char *s, size_t len) {
    text *t = user;
    t->bytes = realloc(t->bytes, t->len + len + 1);
    if (!t->bytes) abort();
    memcpy(t->bytes + t->len, s, len);
    t->len += len;
    return true;
}

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    char *s = malloc(1 << 20);
    if (!f || !s) {
        fprintf(stderr, "greedy_tool: cannot read %s\n", path);
        exit(2);
    }
    *len = fread(s, 1, 1 << 20, f);
    fclose(f);
    return s;
}

/* FNV-1a over the ids. */
static unsigned long long hash_of(const td_token *tokens, int n) {
    unsigned long long h = 0xcbf29ce484222325u;
    for (int i = 0; i < n; i++)
        for (int b = 0; b < 4; b++)
            h = (h ^ ((unsigned)tokens[i] >> (8 * b) & 255)) * 0x100000001b3u;
    return h;
}

typedef struct result {
    td_token *tokens;
    int n;
    text text;
} result;

static void run(td_session *s, const char *file, const td_token *prompt, size_t n_prompt,
                int n_tokens, int k, const result *want, result *out) {
    td_generate_options opt;
    td_stats st;
    td_error err;
    *out = (result){0};
    td_generate_defaults(&opt);
    opt.sampling.temperature = 0;
    opt.ignore_eos = true;
    opt.n_predict = n_tokens;
    opt.draft_max = k;
    opt.on_text = collect;
    opt.user = &out->text;
    if (td_generate(s, prompt, n_prompt, &opt, &st, &err)) {
        fprintf(stderr, "greedy_tool: %s\n", err.msg);
        exit(2);
    }
    out->n = st.decode_tokens;
    out->tokens = malloc((size_t)(out->n + 1) * sizeof *out->tokens);
    if (!out->tokens) abort();
    memcpy(out->tokens, st.tokens, (size_t)out->n * sizeof *out->tokens);
    const bool same =
        !want || (want->n == out->n && want->text.len == out->text.len &&
                  !memcmp(want->tokens, out->tokens, (size_t)out->n * sizeof(td_token)) &&
                  !memcmp(want->text.bytes, out->text.bytes, out->text.len));
    printf("%s\t%d\t%s\t%016llx\t%d\t%lld\t%lld\t%.0f\t%d\n", file, k, same ? "same" : "DIFFERS",
           hash_of(out->tokens, out->n), st.rounds, (long long)st.drafted, (long long)st.accepted,
           st.decode_ms, st.prompt_tokens);
    fflush(stdout);
}

static bool same_text(const result *a, const result *b) {
    return a->n == b->n && !memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof *a->tokens);
}

static void forget(result *r) {
    free(r->tokens);
    free(r->text.bytes);
}

static td_kv_type cache_type(const char *name) {
    static const char *const names[] = {
        [TD_KV_F16] = "f16", [TD_KV_F32] = "f32", [TD_KV_Q8_0] = "q8_0", [TD_KV_Q4_0] = "q4_0"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return (td_kv_type)i;
    fprintf(stderr, "greedy_tool: cache type %s is unknown\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    const char *level;
    if (argc == 2 && !strcmp(argv[1], "level") && !td_cpu_level(&level, NULL))
        return puts(level) < 0;
    if (argc < 9) {
        fprintf(
            stderr,
            "usage: greedy_tool TARGET DRAFT N_THREADS N_TOKENS MAX_PROMPT TYPE K,K,... FILE...\n");
        return 2;
    }
    const td_model_options mo = {.n_threads = atoi(argv[3])};
    const int n_tokens = atoi(argv[4]);
    const size_t max_prompt = strtoul(argv[5], NULL, 10);
    td_model *target = NULL, *draft = NULL;
    td_session *s = NULL;
    td_error err;
    int longest = 0, n_different = 0;
    for (const char *k = argv[7]; k; k = strchr(k, ',') ? strchr(k, ',') + 1 : NULL)
        longest = atoi(k) > longest ? atoi(k) : longest;
    const bool own = !strcmp(argv[1], argv[2]);
    const td_session_options so = {.n_ctx = (int)max_prompt + n_tokens + 1,
                                   .cache_type_k = cache_type(argv[6]),
                                   .cache_type_v = cache_type(argv[6]),
                                   .draft_max = longest};
    if (td_model_open(&target, argv[1], &mo, &err) ||
        (!own && td_model_open(&draft, argv[2], &mo, &err)) ||
        td_session_open(&s, target, own ? target : draft, &so, &err)) {
        fprintf(stderr, "greedy_tool: %s\n", err.msg);
        return 2;
    }
    for (int i = 8; i < argc; i++) {
        size_t len, n_prompt;
        char *prompt = read_file(argv[i], &len);
        td_token *tokens = NULL;
        result plain, spec;
        if (td_tokenize(target, prompt, len, true, false, &tokens, &n_prompt, &err)) {
            fprintf(stderr, "greedy_tool: %s\n", err.msg);
            return 2;
        }
        if (n_prompt > max_prompt) n_prompt = max_prompt;
        run(s, argv[i], tokens, n_prompt, n_tokens, 0, NULL, &plain);
        for (const char *k = argv[7]; k; k = strchr(k, ',') ? strchr(k, ',') + 1 : NULL) {
            run(s, argv[i], tokens, n_prompt, n_tokens, atoi(k), &plain, &spec);
            n_different += !same_text(&plain, &spec) || plain.text.len != spec.text.len;
            forget(&spec);
        }
        forget(&plain);
        td_free(tokens);
        free(prompt);
    }
    td_session_close(&s);
    td_model_close(&draft);
    td_model_close(&target);
    return n_different ? 1 : 0;
}
