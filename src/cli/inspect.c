/* tandem inspect: what a GGUF file says of itself. Everything in it is a stranger's text: control
 * characters never reach the terminal. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct type_sum {
    char name[32];
    int n;
    uint64_t bytes;
} type_sum;

enum { MAX_TYPES = 64, TEMPLATE_CHARS = 200 };

static int sum_types(const td_file *f, type_sum sums[MAX_TYPES]) {
    int n_sums = 0;
    for (int i = 0; i < td_file_n_tensors(f); i++) {
        td_tensor_info t;
        int j = 0;
        td_file_get_tensor(f, i, &t);
        while (j < n_sums && strcmp(sums[j].name, t.type))
            j++;
        if (j == MAX_TYPES) continue; /* GGUF knows half as many */
        if (j == n_sums) {
            sums[n_sums] = (type_sum){0};
            snprintf(sums[n_sums++].name, sizeof sums->name, "%s", t.type);
        }
        sums[j].n++;
        sums[j].bytes += t.size_bytes;
    }
    return n_sums;
}

static int by_bytes(const void *a, const void *b) {
    const uint64_t x = ((const type_sum *)a)->bytes, y = ((const type_sum *)b)->bytes;
    return (x < y) - (x > y);
}

static const char *template_kind(const char *template) {
    static const struct {
        const char *mark, *kind;
    } kinds[] = {{"<|im_start|>", "ChatML"},
                 {"<|start_header_id|>", "Llama 3"},
                 {"<start_of_turn>", "Gemma"},
                 {"[INST]", "Llama 2 or Mistral"}};
    if (!template) return "none";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(template, kinds[i].mark)) return kinds[i].kind;
    return "of another kind";
}

static void print_shape(const td_tensor_info *t) {
    char text[96];
    int n = 0;
    for (int d = 0; d < t->n_dims && d < 4; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%llu", d ? " x " : "",
                      (unsigned long long)t->dims[d]);
    printf("%-18s", n ? text : "");
}

static void field(const char *name, const char *text) {
    printf("%-13s", name);
    cli_print_safe(stdout, text, strlen(text), 200);
    putchar('\n');
}

static void print_summary(const td_file_info *i) {
    char a[24];
    field("file", i->path);
    field("name", *i->name ? i->name : "-");
    field("architecture", i->arch);
    printf("%-13s%s, GGUF version %u, %d tensors, %d keys\n", "size", cli_size(a, i->size_bytes),
           i->gguf_version, i->n_tensors, i->n_keys);
    printf("%-13s%.1f million\n", "parameters", (double)i->n_params / 1e6);
    printf("%-13s%d, of %d; feed-forward %d\n", "layers", i->n_layers, i->n_embd, i->n_ff);
    printf("%-13s%d heads of %d, %d for keys and values\n", "attention", i->n_heads, i->head_dim,
           i->n_kv_heads);
    printf("%-13s%d positions", "context", i->n_ctx_train);
    if (i->window) printf(", sliding window of %d", i->window);
    printf("\n%-13s%s a token in f16", "KV cache", cli_size(a, i->kv_bytes_per_token_f16));
    if (i->kv_bytes_window_f16)
        printf(", and %s for the windows", cli_size(a, i->kv_bytes_window_f16));
    printf("\n%-13s", "tokenizer");
    cli_print_safe(stdout, i->tokenizer, strlen(i->tokenizer), 40);
    if (*i->tokenizer_pre) {
        printf(" (");
        cli_print_safe(stdout, i->tokenizer_pre, strlen(i->tokenizer_pre), 40);
        putchar(')');
    }
    printf(", %d tokens, BOS %d, EOS %d\n", i->n_vocab, i->bos, i->eos);
    printf("%-13s%s", "template", template_kind(i->chat_template));
    if (i->chat_template) {
        printf(", %zu bytes\n             ", strlen(i->chat_template));
        cli_print_safe(stdout, i->chat_template, strlen(i->chat_template), 64);
    }
    putchar('\n');
}

static void print_types(const td_file *f) {
    type_sum sums[MAX_TYPES];
    char a[24];
    const int n = sum_types(f, sums);
    qsort(sums, (size_t)n, sizeof *sums, by_bytes);
    for (int i = 0; i < n; i++)
        printf("%-13s%-8s %5d tensors  %10s\n", i ? "" : "types", sums[i].name, sums[i].n,
               cli_size(a, sums[i].bytes));
}

static void print_lists(const td_file *f, const cli_args *a) {
    char size[24], value[4096];
    if (a->tensors) putchar('\n');
    for (int i = 0; a->tensors && i < td_file_n_tensors(f); i++) {
        td_tensor_info t;
        td_file_get_tensor(f, i, &t);
        print_shape(&t);
        printf("%-8s %10s  ", t.type, cli_size(size, t.size_bytes));
        cli_print_safe(stdout, t.name, strlen(t.name), 0);
        putchar('\n');
    }
    if (a->keys) putchar('\n');
    for (int i = 0; a->keys && i < td_file_n_keys(f); i++) {
        const char *key = td_file_get_key(f, i, value, sizeof value);
        cli_print_safe(stdout, key, strlen(key), 0);
        printf(" = ");
        cli_print_safe(stdout, value, strlen(value), 200);
        putchar('\n');
    }
}

static json_t *json_tensors(const td_file *f) {
    json_t *list = json_array();
    for (int i = 0; i < td_file_n_tensors(f); i++) {
        td_tensor_info t;
        json_t *shape = json_array();
        td_file_get_tensor(f, i, &t);
        for (int d = 0; d < t.n_dims && d < 4; d++)
            json_array_append_new(shape, json_integer((json_int_t)t.dims[d]));
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:I}", "name", cli_json_text(t.name),
                                              "type", t.type, "shape", shape, "bytes",
                                              (json_int_t)t.size_bytes));
    }
    return list;
}

static json_t *json_keys(const td_file *f) {
    char value[4096];
    json_t *all = json_object();
    for (int i = 0; i < td_file_n_keys(f); i++) {
        const char *key = td_file_get_key(f, i, value, sizeof value);
        json_object_set_new_nocheck(all, key, cli_json_text(value));
    }
    return all;
}

static json_t *to_json(const td_file *f, const cli_args *a) {
    const td_file_info *i = td_file_get_info(f);
    type_sum sums[MAX_TYPES];
    const int n = sum_types(f, sums);
    json_t *types = json_object();
    for (int j = 0; j < n; j++)
        json_object_set_new(
            types, sums[j].name,
            json_pack("{s:i, s:I}", "tensors", sums[j].n, "bytes", (json_int_t)sums[j].bytes));
    json_t *root = json_pack(
        "{s:o, s:o, s:o, s:i, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, "
        "s:o}",
        "path", cli_json_text(i->path), "name", cli_json_text(i->name), "architecture",
        cli_json_text(i->arch), "gguf_version", (int)i->gguf_version, "size_bytes",
        (json_int_t)i->size_bytes, "parameters", (json_int_t)i->n_params, "layers", i->n_layers,
        "embedding", i->n_embd, "feed_forward", i->n_ff, "heads", i->n_heads, "kv_heads",
        i->n_kv_heads, "head_dim", i->head_dim, "context", i->n_ctx_train, "window", i->window,
        "tensors", i->n_tensors, "kv_bytes_per_token_f16", (json_int_t)i->kv_bytes_per_token_f16,
        "kv_bytes_window_f16", (json_int_t)i->kv_bytes_window_f16, "types", types);
    if (!root) return NULL;
    json_object_set_new(root, "tokenizer",
                        json_pack("{s:o, s:o, s:i, s:i, s:i}", "model", cli_json_text(i->tokenizer),
                                  "pre", cli_json_text(i->tokenizer_pre), "tokens", i->n_vocab,
                                  "bos", i->bos, "eos", i->eos));
    json_object_set_new(root, "chat_template", cli_json_text(i->chat_template));
    json_object_set_new(root, "chat_template_kind", json_string(template_kind(i->chat_template)));
    if (a->tensors) json_object_set_new(root, "tensor_list", json_tensors(f));
    if (a->keys) json_object_set_new(root, "keys", json_keys(f));
    return root;
}

int cli_inspect(cli_args *a) {
    td_file *f;
    td_error err;
    if (td_file_open(&f, a->file, &err)) return cli_error(&err);
    int rc = CLI_OK;
    if (a->json_flag) {
        json_t *root = to_json(f, a);
        char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
        if (text)
            printf("%s\n", text);
        else
            rc = cli_failed("%s: out of memory", a->file);
        free(text);
        json_decref(root);
    } else {
        print_summary(td_file_get_info(f));
        print_types(f);
        print_lists(f, a);
    }
    td_file_close(&f);
    return rc ? rc : cli_finish_stdout();
}
