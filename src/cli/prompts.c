/* tandem bench --prompts: files of many prompts, in the shapes that the field's own sets have, and
 * the sets of bench/prompts, which are built in. A file holds a JSON value a line, or is one JSON
 * array. A value is
 *
 *     "text"                                              a text to continue
 *     {"prompt": "text"}                                  the same (HumanEval)
 *     {"messages": [{"role": .., "content": ..}, ..]}     up to the last user message (OpenAI)
 *     {"turns": ["text", ..]}                             the first (MT-Bench, Spec-Bench)
 *     {"question": "text"}                                (GSM8K)
 *     {"conversations": [{"from": .., "value": ..}, ..]}  up to its first answer (ShareGPT)
 *
 * and all but the first two are messages, which the model's chat template wraps. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

enum { MAX_PROMPTS = 1000 };

typedef struct reader {
    cli_prompt **list;
    int *n;
    const char *name, *set; /* the file's; NULL, or the set's twice */
    const char *unit;       /* "line" or "entry" */
    size_t number;          /* of it, from 1 */
} reader;

static int wrong(const reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int wrong(const reader *r, const char *fmt, ...) {
    char what[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return cli_failed("%s, %s %zu: %s", r->name, r->unit, r->number, what);
}

static int too_many(const reader *r) {
    return cli_failed("%s: more than %d prompts; keep as many as you have time for, as in "
                      "'head -n 100'",
                      r->name, MAX_PROMPTS);
}

/* ---- one prompt ---- */

static int set_text(const reader *r, const json_t *text, cli_prompt *p) {
    if (!json_is_string(text)) return wrong(r, "\"prompt\" has to be a string");
    p->len = json_string_length(text);
    if (!(p->text = malloc(p->len + 1))) return cli_failed("out of memory");
    memcpy(p->text, json_string_value(text), p->len + 1);
    return CLI_OK;
}

static td_message message(const char *role, const json_t *text) {
    return (td_message){role, json_string_value(text), json_string_length(text)};
}

static int set_question(const reader *r, const char *what, const json_t *text, cli_prompt *p) {
    if (!json_is_string(text)) return wrong(r, "%s has to be a string", what);
    if (!(p->messages = malloc(sizeof *p->messages))) return cli_failed("out of memory");
    p->messages[p->n_messages++] = message("user", text);
    return CLI_OK;
}

/* Template roles under the names that files have for them; NULL: unknown. */
static const char *role_of(const char *name) {
    static const char *const names[][2] = {
        {"system", "system"},       {"user", "user"},      {"human", "user"},
        {"assistant", "assistant"}, {"gpt", "assistant"},  {"chatgpt", "assistant"},
        {"bing", "assistant"},      {"bard", "assistant"},
    };
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i][0])) return names[i][1];
    return NULL;
}

/* The shapes of a list of messages. `opening`: only what comes before the first answer; of a
 * conversation cut so that it begins with an answer, what comes before the second. */
typedef struct shape {
    const char *list, *role, *text;
    bool opening;
} shape;
static const shape shapes[] = {{"messages", "role", "content", false},
                               {"conversations", "from", "value", true}};

static int set_messages(const reader *r, const shape *s, const json_t *list, cli_prompt *p) {
    size_t n = 0, i;
    const json_t *item;
    if (!json_is_array(list)) return wrong(r, "\"%s\" has to be a list", s->list);
    if (!(p->messages = calloc(json_array_size(list) + 1, sizeof *p->messages)))
        return cli_failed("out of memory");
    json_array_foreach(list, i, item) {
        const char *name = json_string_value(json_object_get(item, s->role)), *role = role_of(name);
        const json_t *text = json_object_get(item, s->text);
        if (!name || !json_is_string(text))
            return wrong(r, "\"%s\", item %zu: needs strings \"%s\" and \"%s\"", s->list, i + 1,
                         s->role, s->text);
        if (!role)
            return wrong(r,
                         "\"%s\", item %zu: there is no role '%.40s'; there are system, user and "
                         "assistant",
                         s->list, i + 1, name);
        if (!strcmp(role, "system") && i)
            return wrong(r, "\"%s\", item %zu: a system message has to be the first", s->list,
                         i + 1);
        if (s->opening && !strcmp(role, "assistant")) {
            if (p->n_messages) break;
            continue;
        }
        p->messages[n++] = message(role, text);
        if (!strcmp(role, "user")) p->n_messages = n; /* what follows the last is left out */
    }
    return p->n_messages ? CLI_OK : wrong(r, "\"%s\" has no message of a user", s->list);
}

static int set_content(const reader *r, const json_t *v, cli_prompt *p) {
    const json_t *part;
    if (json_is_string(v)) return set_text(r, v, p);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if ((part = json_object_get(v, shapes[i].list)))
            return set_messages(r, &shapes[i], part, p);
    if ((part = json_object_get(v, "turns")))
        return set_question(r, "the first of \"turns\"", json_array_get(part, 0), p);
    if ((part = json_object_get(v, "prompt"))) return set_text(r, part, p);
    if ((part = json_object_get(v, "question"))) return set_question(r, "\"question\"", part, p);
    return wrong(r, "needs a string, or an object with \"prompt\", \"messages\", \"turns\", "
                    "\"question\" or \"conversations\"");
}

/* The first of the keys that v has as a string; NULL: none. A number becomes a string in v. */
static const char *label(json_t *v, const char *const *keys) {
    for (; *keys; keys++) {
        const json_t *value = json_object_get(v, *keys);
        if (json_is_integer(value)) {
            char digits[24];
            snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(value));
            json_object_set_new(v, *keys, json_string(digits));
        }
        const char *text = json_string_value(json_object_get(v, *keys));
        if (text) return text;
    }
    return NULL;
}

static int add(const reader *r, json_t *v) {
    static const char *const ids[] = {"id", "task_id", "question_id", NULL};
    static const char *const sets[] = {"category", NULL}, *const langs[] = {"lang", "language",
                                                                            NULL};
    if (*r->n == MAX_PROMPTS) return too_many(r);
    cli_prompt *more = realloc(*r->list, ((size_t)*r->n + 1) * sizeof *more);
    if (!more) return cli_failed("out of memory");
    *r->list = more;
    more += (*r->n)++;
    *more = (cli_prompt){.source = json_incref(v), .set = r->set};
    more->id = label(v, ids);
    more->lang = label(v, langs);
    if (!more->set) more->set = label(v, sets);
    return set_content(r, v, more);
}

/* ---- files and sets ---- */

static int add_line(const reader *r, const char *line, size_t len) {
    json_error_t why;
    json_t *v = json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    const int rc = v ? add(r, v) : wrong(r, "not a whole JSON value: %s", why.text);
    json_decref(v);
    return rc;
}

static int add_lines(reader *r, const char *text, size_t len) {
    int rc = CLI_OK;
    r->unit = "line";
    for (size_t i = 0; i < len && !rc;) {
        const char *end = memchr(text + i, '\n', len - i);
        const size_t n = end ? (size_t)(end - text) - i : len - i;
        size_t blank = 0;
        while (blank < n && isspace((unsigned char)text[i + blank]))
            blank++;
        r->number++;
        if (blank < n) rc = add_line(r, text + i, n);
        i += n + 1;
    }
    return rc;
}

static int add_array(reader *r, const char *text, size_t len) {
    json_error_t why;
    json_t *list = json_loadb(text, len, JSON_ALLOW_NUL, &why), *v;
    size_t i;
    int rc = CLI_OK;
    r->unit = "entry";
    if (!list) return cli_failed("%s, line %d: not JSON: %s", r->name, why.line, why.text);
    json_array_foreach(list, i, v) {
        r->number++;
        if ((rc = add(r, v))) break;
    }
    json_decref(list);
    return rc;
}

static int add_text(reader *r, const char *text, size_t len) {
    const int before = *r->n;
    size_t first = 0;
    while (first < len && isspace((unsigned char)text[first]))
        first++;
    const int rc =
        first < len && text[first] == '[' ? add_array(r, text, len) : add_lines(r, text, len);
    return rc || *r->n > before ? rc : cli_failed("%s holds no prompt", r->name);
}

static int add_file(reader *r) {
    char *text;
    size_t len;
    int rc = cli_read_file(r->name, &text, &len);
    if (rc) return rc;
    rc = add_text(r, text, len);
    free(text);
    return rc;
}

static bool is_file(const char *path) {
    struct stat st;
    return !stat(path, &st) && !S_ISDIR(st.st_mode);
}

static int unknown(const char *name) {
    const char *words[CLI_N_PROMPT_SETS + 1];
    char all[200] = "";
    for (int i = 0; i < CLI_N_PROMPT_SETS; i++) {
        words[i] = cli_prompt_sets[i].name;
        strcat(strcat(all, i ? ", " : ""), words[i]);
    }
    words[CLI_N_PROMPT_SETS] = "all";
    const char *near = cli_nearest(name, words, CLI_N_PROMPT_SETS + 1);
    return near ? cli_misuse("--prompts: there is no file and no set '%s'; did you mean %s?", name,
                             near)
                : cli_misuse("--prompts: there is no file and no set '%s'; the sets are %s and all",
                             name, all);
}

/* A file, else a set or all of them. */
static int add_name(cli_prompt **list, int *n, const char *name) {
    reader r = {.list = list, .n = n, .name = name};
    if (is_file(name)) return add_file(&r);
    const bool all = !strcmp(name, "all");
    bool found = false;
    int rc = CLI_OK;
    for (int i = 0; i < CLI_N_PROMPT_SETS && !rc; i++) {
        const cli_prompt_set *set = &cli_prompt_sets[i];
        if (!all && strcmp(name, set->name)) continue;
        reader of_set = {.list = list, .n = n, .name = set->name, .set = set->name};
        rc = add_text(&of_set, (const char *)set->text, set->len);
        found = true;
    }
    if (found) return rc;
    return strpbrk(name, "./") ? add_file(&r) /* says why it can't be read */ : unknown(name);
}

static int add_names(cli_prompt **list, int *n, const char *names) {
    if (is_file(names)) return add_name(list, n, names); /* a comma may stand in a file's name */
    char *copy = strdup(names), *rest = copy, *name;
    int rc = copy ? CLI_OK : cli_failed("out of memory");
    while (!rc && (name = strsep(&rest, ",")))
        rc = add_name(list, n, name);
    free(copy);
    return rc;
}

int cli_prompts_read(cli_prompt **list, int *n, const cli_args *a) {
    const int rc = add_names(list, n, a->prompts);
    for (int i = 0; i < *n && !rc && a->no_special; i++)
        if ((*list)[i].n_messages)
            return cli_misuse("--no-parse-special does not go with %s: messages are wrapped in "
                              "control tokens",
                              a->prompts);
    return rc;
}
