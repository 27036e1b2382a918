/* What passes of a model move and compute, out of its file's table of tensors. */
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"

static bool is_float(const char *type) {
    return !strcmp(type, "F32") || !strcmp(type, "F16") || !strcmp(type, "BF16");
}

static void add_matrix(bench_sizes *s, const td_tensor_info *t, bool prefill) {
    const double macs = (double)t->dims[0] * (double)t->dims[1];
    *(is_float(t->type) ? &s->float_macs : &s->int_macs) += macs;
    if (prefill) *(is_float(t->type) ? &s->prefill_float_macs : &s->prefill_int_macs) += macs;
}

/* The output matrix is the embedding where the file has no other; prefill needs no logits. An
 * embedding that is nothing else gives one row a token, which is next to nothing. */
void cli_file_sizes(bench_sizes *out, const td_file *f) {
    const td_file_info *info = td_file_get_info(f);
    bench_sizes s = {.window = info->window,
                     .kv_values = (double)info->kv_bytes_per_token_f16 / 2,
                     .group = (double)info->n_heads / info->n_kv_heads};
    td_tensor_info output = {0}, embedding = {0};
    if (info->window) s.window_values = (double)info->kv_bytes_window_f16 / 2 / info->window;
    for (int i = 0; i < td_file_n_tensors(f); i++) {
        td_tensor_info t;
        td_file_get_tensor(f, i, &t);
        s.weight_bytes += (double)t.size_bytes;
        if (!strcmp(t.name, "token_embd.weight"))
            embedding = t;
        else if (!strcmp(t.name, "output.weight"))
            output = t;
        else if (t.n_dims == 2)
            add_matrix(&s, &t, true);
    }
    s.step_bytes = s.weight_bytes - (output.name ? (double)embedding.size_bytes : 0);
    if (!output.name) output = embedding;
    if (output.name) add_matrix(&s, &output, false);
    *out = s;
}

double cli_kv_bits(const cli_args *a) {
    static const double bits[] = {
        [TD_KV_F16] = 16, [TD_KV_F32] = 32, [TD_KV_Q8_0] = 8.5, [TD_KV_Q4_0] = 4.5};
    return (bits[a->cache_type_k] + bits[a->cache_type_v]) / 2;
}

int cli_model_sizes(bench_sizes *out, const char *path, const td_model *m) {
    td_file *f;
    td_error err;
    if (td_file_open(&f, path, &err)) return cli_error(&err);
    cli_file_sizes(out, f);
    out->step_bytes = (double)td_model_get_info(m)->step_bytes; /* in panels */
    td_file_close(&f);
    return CLI_OK;
}

void cli_cost_sizes(bench_cost *c, const bench_sizes *s, const cli_args *a) {
    c->weight_bytes = (uint64_t)s->step_bytes;
    c->kv_bytes = (uint64_t)bench_kv_bytes(s, cli_kv_bits(a), c->n_context);
    c->int_macs = (uint64_t)s->int_macs;
    c->float_macs = (uint64_t)s->float_macs;
}
