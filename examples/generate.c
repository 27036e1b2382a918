/* Text from a prompt, with a draft model if one is named. Built against an installed libtandem:
 *     cc generate.c $(pkg-config --cflags --libs tandem) -o generate
 *     ./generate "def quicksort(a):" target.gguf [draft.gguf] */
#include <stdio.h>
#include <string.h>
#include <tandem.h>

static bool print(void *user, const char *text, size_t len) {
    return fwrite(text, 1, len, user) == len && !fflush(user);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: generate PROMPT TARGET [DRAFT]\n"), 2;
    td_error err;
    td_model *target = NULL, *draft = NULL;
    td_session *session = NULL;
    td_token *tokens = NULL;
    size_t n;
    td_stats stats;
    td_generate_options opt;
    td_generate_defaults(&opt);
    opt.sampling.temperature = 0; /* greedy: the same text with and without a draft */
    opt.n_predict = 64;
    opt.on_text = print, opt.user = stdout;
    const bool failed =
        td_model_open(&target, argv[2], NULL, &err) ||
        (argc > 3 && td_model_open(&draft, argv[3], NULL, &err)) ||
        td_session_open(&session, target, draft, NULL, &err) ||
        td_tokenize(target, argv[1], strlen(argv[1]), true, false, &tokens, &n, &err) ||
        td_generate(session, tokens, n, &opt, &stats, &err);
    if (failed)
        fprintf(stderr, "generate: %s\n", err.msg);
    else
        fprintf(stderr, "\n%d tokens in %d passes\n", stats.decode_tokens, stats.rounds);
    td_free(tokens);
    td_session_close(&session);
    td_model_close(&draft);
    td_model_close(&target);
    return failed;
}
