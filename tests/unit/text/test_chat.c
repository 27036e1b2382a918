/* Chat wrapping: what the template says without a system message, and templates of other kinds.
 * (The golden test compares with jinja2 on real templates.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text_make.h"

static td_code wrap_all(const char *template, const td_message *messages, size_t n, td_buf *out,
                        td_error *err) {
    const make_vocab m = {
        .model = "gpt2", .pre = "qwen2", .chat = template, .all_bytes = true, .merges = ""};
    text_vocab *v = make_vocab_or_fail(&m);
    td_buf_append(out, "", 0);
    td_code rc = text_chat_wrap(v, messages, n, out, err);
    text_vocab_close(v);
    return rc;
}

static td_code wrap(const char *template, const char *system, const char *user, td_buf *out,
                    td_error *err) {
    const td_message messages[] = {{"system", system, system ? strlen(system) : 0},
                                   {"user", user, strlen(user)}};
    return wrap_all(template, messages + !system, 1 + !!system, out, err);
}

#define USER_TURN "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

static void default_system_messages(void **state) {
    (void)state;
    static const struct {
        const char *template, *want;
    } cases[] = {
        {"{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}{{ '<|im_start|>' + m }}",
         "<|im_start|>system\nBe good.<|im_end|>\n" USER_TURN},
        {"{{ '<|im_start|>system\nBe\nnew.<|im_end|>\n' }}",
         "<|im_start|>system\nBe\nnew.<|im_end|>\n" USER_TURN},
        /* the first literal is for a message that is put in */
        {"{{ '<|im_start|>system\\n' + s + '<|im_end|>' }}{{ \"<|im_start|>system\\nIt's \\\"I\\\"."
         "<|im_end|>\" }}",
         "<|im_start|>system\nIt's \"I\".<|im_end|>\n" USER_TURN},
        {"{% if x %}<|im_start|>system\nplain<|im_end|>\n{% endif %}",
         "<|im_start|>system\nplain<|im_end|>\n" USER_TURN},
        {"<|im_start|>system\n{{ s }}<|im_end|>\n", USER_TURN},
        {"{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>' }}", USER_TURN},
        {"{{ '<|im_start|>system\\nnever closed' }}", USER_TURN},
        {"{{ '<|im_start|>systematic\\n<|im_end|>' }}", USER_TURN},
        {"<|im_start|>system", USER_TURN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_buf out = {0};
        td_error err = {0};
        assert_int_equal(wrap(cases[i].template, NULL, "hi", &out, &err), TD_OK);
        assert_string_equal(out.data, cases[i].want);
        out.len = 0;
        assert_int_equal(wrap(cases[i].template, "S", "hi", &out, &err), TD_OK);
        assert_string_equal(out.data, "<|im_start|>system\nS<|im_end|>\n" USER_TURN);
        td_buf_free(&out);
    }
}

static void other_templates_are_refused_by_kind(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {NULL, "no chat template"},           {"{{ '<|start_header_id|>' }}", "Llama 3"},
        {"{{ '<start_of_turn>' }}", "Gemma"}, {"{{ '[INST]' }}", "Mistral"},
        {"{{ '<|user|>' }}", "Phi"},          {"{# what\nis it #}", "'{# what is it #}'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_buf out = {0};
        td_error err = {0};
        assert_int_equal(wrap(cases[i][0], NULL, "hi", &out, &err), TD_E_UNSUPPORTED);
        if (!strstr(err.msg, cases[i][1]) || strchr(err.msg, '\n')) fail_msg("%s", err.msg);
        assert_int_equal(out.len, 0);
        td_buf_free(&out);
    }
}

#define TURN(role, text)                                                                           \
    { role, text, sizeof text - 1 }

static void roles_in_order_only(void **state) {
    (void)state;
    static const char template[] = "{{ '<|im_start|>' + role }}";
    static const struct {
        td_message messages[3];
        size_t n;
        const char *words;
    } cases[] = {
        {.n = 0, .words = "the last message"},
        {{TURN("user", "a"), TURN("assistant", "b")}, 2, "the last message"},
        {{TURN("system", "a")}, 1, "the last message"},
        {{TURN("user", "a"), TURN("system", "b"), TURN("user", "c")}, 3, "message 2"},
        {{TURN("tool", "a"), TURN("user", "b")}, 2, "role 'tool'"},
    };
    td_buf out = {0};
    td_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(wrap_all(template, cases[i].messages, cases[i].n, &out, &err), TD_E_ARG);
        if (!strstr(err.msg, cases[i].words)) fail_msg("%s", err.msg);
        assert_int_equal(out.len, 0);
    }
    const td_message turns[] = {TURN("user", "a"), TURN("assistant", "b"), TURN("user", "c\0d")};
    assert_int_equal(wrap_all(template, turns, 3, &out, &err), TD_OK);
    static const char want[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                               "<|im_start|>user\nc\0d<|im_end|>\n<|im_start|>assistant\n";
    assert_int_equal(out.len, sizeof want - 1);
    assert_memory_equal(out.data, want, sizeof want - 1);
    td_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_system_messages),
        cmocka_unit_test(other_templates_are_refused_by_kind),
        cmocka_unit_test(roles_in_order_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
