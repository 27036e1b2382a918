/* Chat wrapping: what the template says without a system message, and templates of other kinds.
 * (The golden test compares with jinja2 on real templates.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text_make.h"

static td_code wrap(const char *template, const char *system, const char *user, td_buf *out,
                    td_error *err) {
    const make_vocab m = {
        .model = "gpt2", .pre = "qwen2", .chat = template, .all_bytes = true, .merges = ""};
    text_vocab *v = make_vocab_or_fail(&m);
    td_buf_append(out, "", 0);
    td_code rc = text_chat_wrap(v, system, user, strlen(user), out, err);
    text_vocab_close(v);
    return rc;
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_system_messages),
        cmocka_unit_test(other_templates_are_refused_by_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
