/* The prompt: where it comes from, and its tokens. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

int cli_prompt_read(cli_prompt *p, const cli_args *a) {
    if (a->prompt && strcmp(a->prompt, "-")) {
        if (!(p->text = strdup(a->prompt))) return cli_failed("out of memory");
        p->len = strlen(p->text);
        return CLI_OK;
    }
    if (a->prompt_file && strcmp(a->prompt_file, "-"))
        return cli_read_file(a->prompt_file, &p->text, &p->len);
    if (!a->prompt && !a->prompt_file && isatty(0))
        return cli_misuse("no prompt: give -p TEXT or -f FILE, or pipe it in");
    return cli_read_stdin(&p->text, &p->len);
}

static int tokenize(cli_prompt *p, const td_model *m, const char *text, size_t len,
                    bool add_special, bool parse_special) {
    td_error err;
    if (td_tokenize(m, text, len, add_special, parse_special, &p->tokens, &p->n, &err))
        return cli_error(&err);
    return CLI_OK;
}

/* The messages, or the text as a user's, behind the system message of -sys where they have none. */
static int encode_chat(cli_prompt *p, const cli_args *a, const td_model *m) {
    const td_message user = {"user", p->text, p->len};
    const td_message *from = p->n_messages ? p->messages : &user;
    const size_t n_from = p->n_messages ? p->n_messages : 1;
    td_message *all = calloc(n_from + 1, sizeof *all);
    size_t n = 0, len;
    char *text;
    td_error err;
    if (!all) return cli_failed("out of memory");
    if (a->system && strcmp(from->role, "system"))
        all[n++] = (td_message){"system", a->system, strlen(a->system)};
    memcpy(all + n, from, n_from * sizeof *all);
    const td_code code = td_chat_wrap(m, all, n + n_from, &text, &len, &err);
    free(all);
    if (code) return cli_error(&err);
    /* the template holds all control tokens it wants: nothing is added */
    const int rc = tokenize(p, m, text, len, false, true);
    td_free(text);
    return rc;
}

int cli_prompt_encode(cli_prompt *p, const cli_args *a, const td_model *m) {
    int rc;
    if (a->chat || p->n_messages) {
        rc = encode_chat(p, a, m);
    } else {
        rc = tokenize(p, m, p->text, p->len, true, !a->no_special);
    }
    if (rc || p->n) return rc;
    const td_token bos = td_model_get_info(m)->bos;
    if (bos < 0)
        return cli_failed(
            "the prompt is empty and this model has no token to begin a text with; give "
            "it at least one character");
    td_free(p->tokens);
    if (!(p->tokens = malloc(sizeof *p->tokens))) return cli_failed("out of memory");
    p->tokens[0] = bos;
    p->n = 1;
    return CLI_OK;
}

void cli_prompt_close(cli_prompt *p) {
    free(p->text);
    free(p->messages);
    json_decref(p->source);
    td_free(p->tokens);
    *p = (cli_prompt){0};
}
