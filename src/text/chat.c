/* Writing messages in ChatML. Templates are programs (Jinja); this does not run them, it
 * recognises the ChatML family and writes what those programs write for a system message and for
 * turns of user and assistant. What a template says when no system message is given differs by
 * model and is read out of it: the literal
 *
 *     '<|im_start|>system\nYou are ...<|im_end|>\n'
 *
 * inside an expression, or the same as plain template text. A literal that ends before <|im_end|>
 * belongs to a message that is put in, and is passed over. */
#include <string.h>

#include "text/text_internal.h"

#define IM_START "<|im_start|>"
#define IM_END "<|im_end|>"

/* Appends literal[0..len) with Jinja's backslash escapes undone when `escaped`. */
static void append_literal(td_buf *out, const char *literal, size_t len, bool escaped) {
    for (size_t i = 0; i < len; i++) {
        char c = literal[i];
        if (escaped && c == '\\' && i + 1 < len) {
            char e = literal[++i];
            c = e == 'n' ? '\n' : e == 't' ? '\t' : e == 'r' ? '\r' : e;
        }
        td_buf_append(out, &c, 1);
    }
}

/* The template's own system message, as a stretch of the template; false: it has none. */
static bool default_system(const char *template, const char **begin, size_t *len, bool *escaped) {
    static const char head[] = IM_START "system";
    for (const char *p = template; (p = strstr(p, head)); p++) {
        char quote = p > template && (p[-1] == '\'' || p[-1] == '"') ? p[-1] : 0;
        const char *text = p + sizeof head - 1;
        if (*text == '\n') {
            text++;
        } else if (quote && text[0] == '\\' && text[1] == 'n') {
            text += 2;
        } else {
            continue;
        }
        const char *end = strstr(text, IM_END);
        if (!end) return false;
        bool broken = false;
        for (const char *q = text; q < end && !broken; q++) {
            if (quote && *q == '\\' && q + 1 < end) {
                q++;
            } else {
                broken = quote ? *q == quote : *q == '{' && (q[1] == '{' || q[1] == '%');
            }
        }
        if (broken) continue;
        *begin = text;
        *len = (size_t)(end - text);
        *escaped = quote != 0;
        return true;
    }
    return false;
}

static td_code refuse(const char *template, td_error *err) {
    static const struct {
        const char *mark, *family;
    } families[] = {
        {"<|start_header_id|>", "Llama 3"}, {"<start_of_turn>", "Gemma"},
        {"[INST]", "Mistral or Llama 2"},   {"<|channel|>", "Harmony"},
        {"<|user|>", "Phi or Zephyr"},      {"<\xef\xbd\x9cUser\xef\xbd\x9c>", "DeepSeek"},
        {"### Instruction", "Alpaca"}};
    if (!template)
        return td_fail(err, TD_E_UNSUPPORTED,
                       "this model's file has no chat template; it needs a text to continue, "
                       "written as the model expects it, in place of messages");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strstr(template, families[i].mark))
            return td_fail(err, TD_E_UNSUPPORTED,
                           "the chat template is of the %s kind (it has '%s'); only "
                           "ChatML (" IM_START ") can be wrapped",
                           families[i].family, families[i].mark);
    char head[61];
    snprintf(head, sizeof head, "%s", template);
    for (char *c = head; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    return td_fail(err, TD_E_UNSUPPORTED,
                   "the chat template is not ChatML (" IM_START "); it begins '%s'", head);
}

static bool is_role(const char *role, const char *want) {
    return !strcmp(role, want);
}

static td_code check_messages(const td_message *messages, size_t n, td_error *err) {
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (is_role(role, "system") && i)
            return td_fail(err, TD_E_ARG, "message %zu: a system message has to be the first",
                           i + 1);
        if (!is_role(role, "system") && !is_role(role, "user") && !is_role(role, "assistant"))
            return td_fail(err, TD_E_ARG,
                           "message %zu: role '%.40s' is none of system, user and assistant", i + 1,
                           role);
    }
    if (!n || !is_role(messages[n - 1].role, "user"))
        return td_fail(err, TD_E_ARG,
                       "the last message has to be a user's: it is what is answered");
    return TD_OK;
}

static void append_message(td_buf *out, const td_message *m) {
    td_buf_printf(out, IM_START "%s\n", m->role);
    td_buf_append(out, m->text, m->len);
    td_buf_printf(out, IM_END "\n");
}

td_code text_chat_wrap(const text_vocab *v, const td_message *messages, size_t n, td_buf *out,
                       td_error *err) {
    const char *template = v->chat_template, *own;
    const td_code rc = check_messages(messages, n, err);
    if (rc) return rc;
    if (!template || !strstr(template, IM_START)) return refuse(template, err);
    size_t own_len;
    bool escaped;
    if (!is_role(messages[0].role, "system") &&
        default_system(template, &own, &own_len, &escaped)) {
        td_buf_printf(out, IM_START "system\n");
        append_literal(out, own, own_len, escaped);
        td_buf_printf(out, IM_END "\n");
    }
    for (size_t i = 0; i < n; i++)
        append_message(out, &messages[i]);
    td_buf_printf(out, IM_START "assistant\n");
    return out->failed ? text_no_memory(err) : TD_OK;
}
