/* The table of options and its parser. The spellings are llama.cpp's where it has the option, so
 * that nobody has to learn them again; the longest name is the one that help and messages use. A
 * value may follow its option or stand behind '='. Numbers are read to their end, in their range,
 * or refused. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/cli.h"

typedef enum kind {
    FLAG,     /* bool, set */
    FLAG_OFF, /* bool, cleared */
    INT,      /* int in min..max */
    REAL,     /* float in min..max */
    TEXT,     /* const char * */
    STOP,     /* one more stop string */
    BIAS,     /* one more TOKEN+BIAS */
    SEED,     /* uint64_t, or -1 */
    KV_TYPE,
    /* Of these bench takes a list, a sweep: */
    TEMPERATURE, /* as REAL */
    VERIFY,
    DRAFT_TREE,
    CONTEXT,   /* run: one number; bench: a list */
    DRAFT_MAX, /* the same */
    ROWS,      /* a list */
    FORMAT,
    QUANTITY /* double in min..max, with a unit of a list */
} kind;

/* What may stand behind a quantity, "" where nothing may; NULL ends it. The first is shown in
 * messages. */
typedef struct unit {
    const char *name;
    double scale;
} unit;

static const unit no_unit[] = {{"", 1}, {NULL, 0}};
static const unit counts[] = {{"B", 1e9}, {"", 1}, {"K", 1e3}, {"M", 1e6}, {"T", 1e12}, {NULL, 0}};
static const unit sizes[] = {{"GB", 1e9}, {"MB", 1e6}, {"TB", 1e12}, {"GiB", 0x1p30}, {NULL, 0}};
static const unit rates[] = {{"GB/s", 1e9}, {"MB/s", 1e6}, {"TB/s", 1e12}, {NULL, 0}};
static const unit flops[] = {{"GFLOPS", 1e9}, {"TFLOPS", 1e12}, {NULL, 0}};

typedef struct option {
    const char *group, *names, *arg, *help;
    unsigned commands;
    kind kind;
    size_t offset;
    double min, max;
    unsigned modes; /* of bench, where it is more than plain comparison; 0: CLI_COMPARE */
    const unit *units;
} option;

#define AT(field) offsetof(cli_args, field)
#define BOTH (CLI_RUN | CLI_BENCH)
#define MEASURE (CLI_ROOFLINE | CLI_KERNELS | CLI_COST)
#define ANY_MODE (CLI_COMPARE | MEASURE)

static const option options[] = {
    {"Models", "-m --model", "FILE",
     "the target model, a GGUF file; of a split file the first part",
     BOTH | CLI_INSPECT | CLI_PLAN | CLI_SELFTEST,
     TEXT, AT(model), .modes = CLI_COMPARE | CLI_COST},
    {"Models", "-md --model-draft", "FILE",
     "the draft model, a small one with the same vocabulary; without it nothing is drafted",
     BOTH | CLI_PLAN | CLI_SELFTEST, TEXT, AT(draft)},
    {"Models", "-c --ctx-size", "N",
     "positions of the context; 0: as many as the model was trained for; default: the smaller of "
     "that and 4096 (bench: what the work needs; --cost: a list, default 512,2048,8192)",
     BOTH | CLI_PLAN, CONTEXT, AT(n_ctx), 0, 1 << 28, CLI_COMPARE | CLI_COST},
    {"Models", "-t --threads", "N", "threads; default: the cores this process may use",
     BOTH | CLI_PLAN | CLI_SELFTEST, INT, AT(n_threads), 1, 1024, ANY_MODE},
    {"Models", "-ctk --cache-type-k", "TYPE",
     "keys in the KV caches: f32, f16, q8_0 or q4_0; default f16", BOTH | CLI_PLAN, KV_TYPE,
     AT(cache_type_k), .modes = CLI_COMPARE | CLI_COST},
    {"Models", "-ctv --cache-type-v", "TYPE", "values in the KV caches; the same types",
     BOTH | CLI_PLAN, KV_TYPE, AT(cache_type_v), .modes = CLI_COMPARE | CLI_COST},

    {"Model without a file", "--params", "N", "parameters, such as 8B or 500M (K, M, B, T)",
     CLI_PLAN, QUANTITY, AT(params), 1e6, 1e14, .units = counts},
    {"Model without a file", "--bits", "B",
     "bits a parameter, such as 4.5; 16 and more are counted as floats", CLI_PLAN, QUANTITY,
     AT(bits), 1, 32, .units = no_unit},
    {"Model without a file", "--layers", "N", "layers", CLI_PLAN, INT, AT(n_layers), 1, 4096},
    {"Model without a file", "--kv-heads", "N", "heads of keys and values", CLI_PLAN, INT,
     AT(n_kv_heads), 1, 4096},
    {"Model without a file", "--head-dim", "N", "values a head", CLI_PLAN, INT, AT(head_dim), 1,
     4096},
    {"Model without a file", "--heads", "N",
     "query heads; default: what a width of sqrt(params / (12 layers)) gives", CLI_PLAN, INT,
     AT(n_heads), 1, 4096},

    {"Machine", "--gpu", "NAME",
     "one of a few GPUs by its data sheet, such as H100 or 4090; list shows them", CLI_PLAN, TEXT,
     AT(gpu)},
    {"Machine", "--ram", "SIZE", "memory, such as 64GB; default: what is free here", CLI_PLAN,
     QUANTITY, AT(ram), 1e6, 1e15, .units = sizes},
    {"Machine", "--bandwidth", "RATE",
     "bytes read a second, such as 80GB/s; default: measured here", CLI_PLAN, QUANTITY,
     AT(bandwidth), 1e6, 1e15, .units = rates},
    {"Machine", "--flops", "RATE",
     "operations a second, two a multiply-add, such as 2TFLOPS, of integers and floats; default: "
     "measured here",
     CLI_PLAN, QUANTITY, AT(flops), 1e9, 1e18, .units = flops},

    {"Work", "--prompt-tokens", "N", "tokens of the prompt; default 512", CLI_PLAN, INT,
     AT(prompt_tokens), 1, 1 << 27},
    {"Work", "--answer-tokens", "N", "tokens of the answer; default 128", CLI_PLAN, INT,
     AT(answer_tokens), 1, 1 << 27},

    {"Prompt", "-p --prompt", "TEXT",
     "the prompt; - reads standard input, as does giving neither -p nor -f in a pipe", BOTH, TEXT,
     AT(prompt)},
    {"Prompt", "-f --file", "FILE", "the prompt, byte for byte, the last newline too", BOTH, TEXT,
     AT(prompt_file)},
    {"Prompt", "--prompts", "LIST",
     "many prompts: of the sets code, edit, prose, chat, summary, json, math, as in code,math, or "
     "all of them; or of files, where each line or item of an array is a text, {\"prompt\"}, "
     "{\"messages\"}, {\"turns\"}, {\"question\"} or {\"conversations\"}",
     CLI_BENCH, TEXT, AT(prompts)},
    {"Prompt", "--chat", NULL,
     "wrap the prompt as a user's message in the model's chat template (ChatML), as is always done "
     "with the messages and questions of --prompts",
     BOTH, FLAG, AT(chat)},
    {"Prompt", "-sys --system-prompt", "TEXT",
     "with --chat: the system message, where a prompt brings none", BOTH, TEXT, AT(system)},
    {"Prompt", "-e --escape", NULL,
     "read \\n \\r \\t \\\\ \\\" \\' \\xHH in -p, -sys and --stop as the characters they stand for",
     BOTH, FLAG, AT(escape)},
    {"Prompt", "--no-escape", NULL, "take them as they are (the default)", BOTH, FLAG_OFF,
     AT(escape)},
    {"Prompt", "--no-parse-special", NULL,
     "text that looks like a control token (<|im_end|>) stays text", BOTH, FLAG, AT(no_special)},

    {"Length", "-n --predict --n-predict", "N",
     "tokens to generate at most; -1: until an end token or the end of the context; default -1 "
     "(bench: 128)",
     BOTH, INT, AT(n_predict), -1, 1e9},
    {"Length", "-r --reverse-prompt --stop", "TEXT",
     "end where this text would come, and do not print it; may be given many times", BOTH, STOP, 0},
    {"Length", "--ignore-eos", NULL, "end tokens are never chosen", BOTH, FLAG, AT(ignore_eos)},

    {"Speculation", "-k --draft --draft-n --draft-max", "N",
     "tokens to draft a pass at most, 0 to 64, or auto: what pays, round by round; default auto. "
     "bench: a list such as 2,4,8,auto", BOTH,
     DRAFT_MAX, 0, 0, TD_MAX_DRAFT},
    {"Speculation", "--draft-tree", "WxD",
     "draft D tokens a pass with W candidates for each of them; W times D is at most 64. bench: a "
     "list such as 2x2,2x3, beside those of -k",
     BOTH, DRAFT_TREE, 0},
    {"Speculation", "--verify", "RULE",
     "how sampled drafts are accepted: block, token, or coupled, with which a seed gives one text, "
     "drafts or none; default: coupled with --seed or without a draft, else block. bench: a list",
     BOTH, VERIFY, AT(verify)},
    {"Speculation", "--recalibrate", NULL,
     "auto: measure again what passes cost; else the figures in the cache folder are used", BOTH,
     FLAG, AT(recalibrate)},
    {"Speculation", "--no-draft", NULL, "decode plainly; -md is not loaded", CLI_RUN, FLAG,
     AT(no_draft)},
    {"Speculation", "--acceptance", "A",
     "chance that the next drafted token is accepted, such as 0.8: the first one under 'accepted "
     "by position' of run",
     CLI_PLAN, QUANTITY, AT(acceptance), 0, 1, .units = no_unit},
    {"Speculation", "--draft-params", "N", "a draft without a file: its parameters, such as 500M",
     CLI_PLAN, QUANTITY, AT(draft_params), 1e5, 1e14, .units = counts},
    {"Speculation", "--draft-bits", "B", "and bits a parameter", CLI_PLAN, QUANTITY, AT(draft_bits),
     1, 32, .units = no_unit},
    {"Measuring", "--runs", "N",
     "how often each case runs, in turn; default 4, with one of the next three 5", CLI_BENCH, INT,
     AT(n_runs), 1, 1000, ANY_MODE},
    {"Measuring", "--roofline", NULL,
     "what the machine can do: reading memory, int8 dot products, float multiply-adds", CLI_BENCH,
     FLAG, AT(roofline), .modes = ANY_MODE},
    {"Measuring", "--kernels", NULL,
     "every kind of matrix product by shape and rows, against the roofline", CLI_BENCH, FLAG,
     AT(kernels), .modes = ANY_MODE},
    {"Measuring", "--cost", NULL,
     "the time of a pass of -m by its rows and context, against the roofline", CLI_BENCH, FLAG,
     AT(cost), .modes = ANY_MODE},
    {"Measuring", "--rows", "LIST",
     "rows of a product or pass, as in 1,2,5-8; default 1,2,4,8,16,64 (--cost: 1-32)", CLI_BENCH,
     ROWS, 0, 1, CLI_ROWS_MAX, CLI_KERNELS | CLI_COST},
    {"Measuring", "--type", "LIST", "only these types of weights, as in Q4_K,Q6_K; default all",
     CLI_BENCH, TEXT, AT(types), .modes = CLI_KERNELS},

    {"Sampling", "--temp --temperature", "T",
     "temperature; 0 takes the most probable token; default 0.8. bench: a list such as 0,0.8; "
     "default 0",
     BOTH, TEMPERATURE, AT(sampling.temperature), 0, 1000},
    {"Sampling", "--top-k", "N", "only the N most probable; 0: off; default 40", BOTH, INT,
     AT(sampling.top_k), 0, 1e9},
    {"Sampling", "--top-p", "P",
     "only the fewest whose probabilities reach P; 1: off; default 0.95", BOTH, REAL,
     AT(sampling.top_p), 0, 1},
    {"Sampling", "--min-p", "P",
     "only those with P times the highest probability; 0: off; default 0.05", BOTH, REAL,
     AT(sampling.min_p), 0, 1},
    {"Sampling", "--repeat-penalty", "X",
     "divide the positive logits of recent tokens by X, multiply the others; 1: off; default 1",
     BOTH, REAL, AT(sampling.repeat_penalty), 0.01, 100},
    {"Sampling", "--presence-penalty", "X", "subtract X from logits of recent tokens; default 0",
     BOTH, REAL, AT(sampling.presence_penalty), -100, 100},
    {"Sampling", "--frequency-penalty", "X",
     "subtract X for each time a token stands among the recent; default 0", BOTH, REAL,
     AT(sampling.frequency_penalty), -100, 100},
    {"Sampling", "--repeat-last-n", "N", "how many tokens are recent; 0: none, -1: all; default 64",
     BOTH, INT, AT(sampling.repeat_last_n), -1, 1e9},
    {"Sampling", "-l --logit-bias", "TOKEN(+/-)BIAS",
     "add to the logit of a token id: 15043+1.5; 15043-inf forbids it; may be given many times",
     BOTH, BIAS, 0},
    {"Sampling", "-s --seed", "N",
     "the same seed gives the same text, with any draft; -1: a new one each time; default -1", BOTH,
     SEED, AT(sampling.seed)},

    {"Output", "--format", "FORMAT",
     "of what is printed: text (the default) or json; of drafts compared, csv or md, too",
     CLI_BENCH | CLI_PLAN, FORMAT, 0, .modes = ANY_MODE | CLI_SAVED},
    {"Output", "--plot", "DIR",
     "draw acceptance, speed-up, cost of passes and one stream in time into this folder, as PNG and "
     "SVG, with gnuplot; of a result that --json wrote, when one is named",
     CLI_BENCH, TEXT, AT(plot), .modes = CLI_COMPARE | CLI_REPLOT},
    {"Output", "--compare", "OLD.json",
     "measure nothing: say what changed from this result of --json to the one named after it",
     CLI_BENCH, TEXT, AT(compare), .modes = CLI_SAVED},
    {"Output", "--json", "FILE", "write the figures there, too, as one JSON object",
     BOTH | CLI_PLAN | CLI_SELFTEST, TEXT, AT(json), .modes = ANY_MODE},
    {"Output", "--json", NULL, "print one JSON object instead of text", CLI_INSPECT, FLAG,
     AT(json_flag)},
    {"Output", "--tensors", NULL, "every tensor, its shape, type and size", CLI_INSPECT, FLAG,
     AT(tensors)},
    {"Output", "--keys", NULL, "every key of the file's metadata", CLI_INSPECT, FLAG, AT(keys)},
    {"Output", "--no-progress", NULL, "no progress line on the terminal",
     BOTH | CLI_PLAN | CLI_SELFTEST, FLAG,
     AT(no_progress), .modes = ANY_MODE},
    {"Output", "-q --quiet", NULL, "neither progress nor meters", CLI_RUN, FLAG, AT(quiet)},
    {"Output", "-h --help", NULL, "this text", BOTH | CLI_INSPECT | CLI_PLAN | CLI_SELFTEST, FLAG,
     AT(help)},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* What people bring along from llama.cpp and what to do here instead. */
static const struct {
    const char *names, *hint;
} foreign[] = {
    {"-ngl --gpu-layers --n-gpu-layers -ngld", "this build computes on the CPU; leave it out"},
    {"-cnv --conversation -i --interactive", "for one exchange use --chat"},
    {"-no-cnv --no-conversation",
     "leave it out: a prompt is used as it stands unless --chat is given"},
    {"-b --batch-size -ub --ubatch-size", "batches are chosen by the program; leave it out"},
    {"-ctkd --cache-type-k-draft -ctvd --cache-type-v-draft",
     "the draft's cache has the target's types: -ctk, -ctv"},
    {"-fa --flash-attn --mlock --no-mmap", "there is no such choice here; leave it out"},
    {"--draft-min --draft-n-min --draft-p-min",
     "a draft is as long as -k says; its tokens are not dropped by probability"},
};

bool cli_option_get(int i, cli_option_text *out) {
    if (i < 0 || i >= N_OPTIONS) return false;
    const option *o = &options[i];
    *out = (cli_option_text){o->group, o->names, o->arg, o->help, o->commands};
    return true;
}

/* Is name[0..len) one of the words in `names`? llama.cpp takes --top_k for --top-k, so do we. */
static bool has_name(const char *names, const char *name, size_t len) {
    for (const char *p = names; *p;) {
        const size_t n = strcspn(p, " ");
        bool same = n == len;
        for (size_t i = 0; i < n && same; i++)
            same = p[i] == (name[i] == '_' && i > 1 ? '-' : name[i]);
        if (same) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static const option *find(unsigned commands, const char *name, size_t len) {
    for (int i = 0; i < N_OPTIONS; i++)
        if ((options[i].commands & commands) && has_name(options[i].names, name, len))
            return &options[i];
    return NULL;
}

static int unknown(const cli_args *a, const char *name, size_t len) {
    const char *words[4 * N_OPTIONS];
    char *all[N_OPTIONS];
    int n = 0, n_all = 0;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (has_name(foreign[i].names, name, len))
            return cli_misuse("option %.*s: %s", (int)len, name, foreign[i].hint);
    for (int c = CLI_RUN; c <= CLI_SELFTEST; c *= 2)
        if (find((unsigned)c, name, len))
            return cli_misuse("option %.*s is for 'tandem %s', not for '%s'", (int)len, name,
                              cli_command_name((cli_command)c), cli_command_name(a->command));
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!(options[i].commands & (unsigned)a->command) ||
            !(all[n_all] = strdup(options[i].names)))
            continue;
        for (char *p = strtok(all[n_all++], " "); p; p = strtok(NULL, " "))
            words[n++] = p;
    }
    char *typed = strndup(name, len);
    const char *near = typed ? cli_nearest(typed, words, n) : NULL;
    const int rc = near ? cli_misuse("unknown option %.*s; did you mean %s?", (int)len, name, near)
                        : cli_misuse("unknown option %.*s", (int)len, name);
    for (int i = 0; i < n_all; i++)
        free(all[i]);
    free(typed);
    return rc;
}

/* ---- values ---- */

static bool read_int(const char *text, long long *out) {
    char *end;
    if (!isdigit((unsigned char)text[text[0] == '-' || text[0] == '+'])) return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !*end && !errno;
}

/* Decimal only: no "nan", no hexadecimal, nothing behind the number. Underflow is just a small
 * number. */
static bool read_real(const char *text, double *out) {
    char *end;
    if (!*text || text[strspn(text, "0123456789+-.eE")]) return false;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

static int set_int(void *field, const option *o, const char *name, const char *value) {
    long long v;
    if (!read_int(value, &v) || (double)v < o->min || (double)v > o->max)
        return cli_misuse("%s takes a whole number from %.0f to %.0f, not '%s'", name, o->min,
                          o->max, value);
    *(int *)field = (int)v;
    return CLI_OK;
}

static int set_real(void *field, const option *o, const char *name, const char *value) {
    double v;
    if (!read_real(value, &v) || v < o->min || v > o->max)
        return cli_misuse("%s takes a number from %g to %g, not '%s'", name, o->min, o->max, value);
    *(float *)field = (float)v;
    return CLI_OK;
}

static int set_quantity(void *field, const option *o, const char *name, const char *value) {
    const unit *u = o->units;
    const size_t len = strspn(value, "0123456789+-.");
    char number[32], others[64] = "";
    double v;
    while (u->name && strcasecmp(u->name, value + len))
        u++;
    snprintf(number, sizeof number, "%.*s", (int)len, value);
    if (u->name && len < sizeof number && read_real(number, &v) && v * u->scale >= o->min &&
        v * u->scale <= o->max) {
        *(double *)field = v * u->scale;
        return CLI_OK;
    }
    const unit *first = o->units;
    for (u = first + 1; u->name; u++)
        snprintf(others + strlen(others), sizeof others - strlen(others), "%s%s",
                 *others ? ", " : " (or ", *u->name ? u->name : "no unit");
    return cli_misuse("%s takes a number from %.10g%s to %.10g%s%s%s, not '%s'", name,
                      o->min / first->scale, first->name, o->max / first->scale, first->name,
                      others, *others ? ")" : "", value);
}

static int set_seed(void *field, const char *name, const char *value) {
    char *end;
    errno = 0;
    if (!strcmp(value, "-1")) {
        *(uint64_t *)field = UINT64_MAX;
        return CLI_OK;
    }
    const unsigned long long v = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end || errno || v == UINT64_MAX)
        return cli_misuse("%s takes a whole number from 0 to 18446744073709551614, or -1, not '%s'",
                          name, value);
    *(uint64_t *)field = v;
    return CLI_OK;
}

static int add_bias(cli_args *a, const char *name, const char *value) {
    const size_t digits = strspn(value, "0123456789");
    const char *rest = value + digits;
    long long token = -1;
    double bias = 0;
    char *id = strndup(value, digits);
    bool ok = id && digits && read_int(id, &token) && token <= INT32_MAX &&
              (*rest == '+' || *rest == '-');
    free(id);
    if (ok && !strcmp(rest, "-inf"))
        bias = -INFINITY;
    else
        ok = ok && read_real(rest, &bias) && fabs(bias) <= 1e6;
    if (!ok)
        return cli_misuse("%s takes a token id and a bias, as in 15043+1.5 or 15043-inf, not '%s'",
                          name, value);
    if (a->n_bias == CLI_LIST_MAX) return cli_misuse("%s: at most %d of them", name, CLI_LIST_MAX);
    a->bias[a->n_bias++] = (td_logit_bias){(td_token)token, (float)bias};
    return CLI_OK;
}

static int add_stop(cli_args *a, const char *name, const char *value) {
    if (!*value) return cli_misuse("%s: an empty text would stop everything", name);
    if (a->n_stops == CLI_LIST_MAX) return cli_misuse("%s: at most %d of them", name, CLI_LIST_MAX);
    a->stops[a->n_stops++] = value;
    return CLI_OK;
}

/* Numbers and ranges with commas between them: 1,2,5-8. */
static int set_list(int *list, int *n, int most, const option *o, const char *name,
                    const char *value, double min) {
    const char *p = value;
    *n = 0;
    for (bool more = true; more;) {
        char *end;
        errno = 0;
        const long long from = isdigit((unsigned char)*p) ? strtoll(p, &end, 10) : -1;
        long long to = from;
        if (from >= 0 && *end == '-' && isdigit((unsigned char)end[1]))
            to = strtoll(end + 1, &end, 10);
        if (from < 0 || errno || (*end && *end != ',') || (double)from < min ||
            (double)to > o->max || to < from)
            return cli_misuse("%s takes numbers from %.0f to %.0f with commas between them, or "
                              "ranges as in 1-8, not '%s'",
                              name, min, o->max, value);
        if (to - from >= most - *n) return cli_misuse("%s: at most %d of them", name, most);
        for (long long v = from; v <= to; v++)
            list[(*n)++] = (int)v;
        more = *end == ',';
        p = end + 1;
    }
    return CLI_OK;
}

/* A length, or auto; bench takes a list, in which auto is the last. */
static int set_draft_max(cli_args *a, const option *o, const char *name, const char *value) {
    const size_t len = strlen(value);
    const bool ends_auto = len >= 4 && !strcmp(value + len - 4, "auto"),
               only_auto = ends_auto && len == 4;
    a->n_k = 0;
    if (a->command != CLI_BENCH && !only_auto) {
        a->n_k = 1;
        return set_int(a->k, o, name, value);
    }
    if (!only_auto) {
        char *list = strndup(value, ends_auto && len > 5 && value[len - 5] == ',' ? len - 5 : len);
        if (!list) return cli_failed("out of memory");
        const int rc = set_list(a->k, &a->n_k, TD_MAX_DRAFT, o, name, list, 1);
        free(list);
        if (rc || !ends_auto) return rc;
    }
    a->k[a->n_k++] = TD_DRAFT_AUTO;
    return CLI_OK;
}

static int set_draft_tree(cli_args *a, const char *name, const char *value) {
    int end = 0;
    if (!isdigit((unsigned char)*value) ||
        sscanf(value, "%3dx%3d%n", &a->draft_width, &a->draft_depth, &end) != 2 || value[end] ||
        a->draft_width < 1 || a->draft_depth < 1 || a->draft_width * a->draft_depth > TD_MAX_DRAFT)
        return cli_misuse("%s takes candidates and depth, as in 2x4, at most %d tokens together, "
                          "not '%s'",
                          name, TD_MAX_DRAFT, value);
    return CLI_OK;
}

static int by_number(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Ascending, each once. */
static void sort_list(int *list, int *n) {
    int kept = 0;
    qsort(list, (size_t)*n, sizeof *list, by_number);
    for (int i = 0; i < *n; i++)
        if (!i || list[i] != list[kept - 1]) list[kept++] = list[i];
    *n = kept;
}

static const char *const formats[] = {
    [CLI_TEXT] = "text", [CLI_JSON] = "json", [CLI_CSV] = "csv", [CLI_MD] = "md"};

static int set_format(cli_args *a, const char *name, const char *value) {
    for (int i = CLI_TEXT; i <= CLI_MD; i++)
        if (!strcmp(value, formats[i])) {
            a->format = (cli_format)i;
            a->print_json = i == CLI_JSON;
            return CLI_OK;
        }
    return cli_misuse("%s takes text, json, csv or md, not '%s'", name, value);
}

static const char *const kv_types[] = {
    [TD_KV_F16] = "f16", [TD_KV_F32] = "f32", [TD_KV_Q8_0] = "q8_0", [TD_KV_Q4_0] = "q4_0"};

const char *cli_kv_type_name(td_kv_type type) {
    return kv_types[type];
}

static int set_kv_type(td_kv_type *type, const char *name, const char *value) {
    for (size_t i = 0; i < sizeof kv_types / sizeof *kv_types; i++)
        if (!strcmp(value, kv_types[i])) {
            *type = (td_kv_type)i;
            return CLI_OK;
        }
    return cli_misuse("%s takes f32, f16, q8_0 or q4_0, not '%s'", name, value);
}

static const char *const verify_rules[] = {[CLI_VERIFY_GREEDY] = "greedy",
                                           [CLI_VERIFY_TOKEN] = "token",
                                           [CLI_VERIFY_BLOCK] = "block",
                                           [CLI_VERIFY_COUPLED] = "coupled"};

const char *cli_verify_name(const cli_args *a) {
    return verify_rules[a->sampling.temperature == 0 ? CLI_VERIFY_GREEDY : a->verify];
}

static int set_verify(cli_verify *rule, const char *name, const char *value) {
    for (int i = CLI_VERIFY_GREEDY; i <= CLI_VERIFY_COUPLED; i++)
        if (!strcmp(value, verify_rules[i])) {
            *rule = (cli_verify)i;
            return CLI_OK;
        }
    return cli_misuse("%s takes block, token, coupled or greedy, not '%s'", name, value);
}

static int set_value(cli_args *a, const option *o, const char *name, const char *value) {
    void *field = (char *)a + o->offset;
    switch (o->kind) {
    case FLAG:
    case FLAG_OFF:
        *(bool *)field = o->kind == FLAG;
        return CLI_OK;
    case INT:
        return set_int(field, o, name, value);
    case REAL:
    case TEMPERATURE:
        return set_real(field, o, name, value);
    case TEXT:
        *(const char **)field = value;
        return CLI_OK;
    case STOP:
        return add_stop(a, name, value);
    case BIAS:
        return add_bias(a, name, value);
    case SEED:
        return set_seed(field, name, value);
    case KV_TYPE:
        return set_kv_type(field, name, value);
    case DRAFT_TREE:
        return set_draft_tree(a, name, value);
    case VERIFY:
        return set_verify(field, name, value);
    case CONTEXT:
        if (a->command != CLI_BENCH) return set_int(field, o, name, value);
        return set_list(a->contexts, &a->n_contexts, CLI_LIST_MAX, o, name, value, o->min);
    case DRAFT_MAX:
        return set_draft_max(a, o, name, value);
    case ROWS:
        return set_list(a->rows, &a->n_rows, CLI_ROWS_MAX, o, name, value, o->min);
    case FORMAT:
        return set_format(a, name, value);
    case QUANTITY:
        return set_quantity(field, o, name, value);
    }
    return CLI_OK;
}

/* Puts the value just read into its sweep, as number n. */
static void add_to_sweep(cli_args *a, kind what, int n) {
    if (what == TEMPERATURE)
        a->temperatures[n] = a->sampling.temperature, a->n_temperatures = n + 1;
    else if (what == VERIFY)
        a->rules[n] = a->verify, a->n_rules = n + 1;
    else
        a->trees[n] = (cli_tree){a->draft_width, a->draft_depth}, a->n_trees = n + 1;
}

/* bench takes values with commas between them where other commands take one. */
static int set(cli_args *a, const option *o, const char *name, const char *value) {
    if (a->command != CLI_BENCH ||
        (o->kind != TEMPERATURE && o->kind != VERIFY && o->kind != DRAFT_TREE))
        return set_value(a, o, name, value);
    char *list = strdup(value);
    int rc = list ? CLI_OK : cli_failed("out of memory"), n = 0;
    for (char *item = list, *next; item && !rc; item = next) {
        if ((next = strchr(item, ','))) *next++ = 0;
        if (n == CLI_SWEEP_MAX)
            rc = cli_misuse("%s: at most %d of them", name, CLI_SWEEP_MAX);
        else if (!(rc = set_value(a, o, name, item)))
            add_to_sweep(a, o->kind, n++);
    }
    free(list);
    return rc;
}

/* ---- after the options ---- */

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Replaces *text by a copy with the escapes read; unknown ones stay as they are. */
static int unescape(cli_args *a, const char **text) {
    if (!*text || !strchr(*text, '\\')) return CLI_OK;
    char *out = strdup(*text), *w = out;
    if (!out) return cli_failed("out of memory");
    a->owned[a->n_owned++] = out;
    for (const char *p = *text; *p; p++) {
        static const char from[] = "nrt\\\"'", to[] = "\n\r\t\\\"'";
        const char *at = p[0] == '\\' && p[1] ? strchr(from, p[1]) : NULL;
        if (at) {
            *w++ = to[at - from];
            p++;
        } else if (p[0] == '\\' && p[1] == 'x' && hex(p[2]) >= 0 && hex(p[3]) >= 0) {
            const int byte = hex(p[2]) * 16 + hex(p[3]);
            if (!byte)
                return cli_misuse(
                    "\\x00 can't stand in an argument; put the text into a file (-f)");
            *w++ = (char)byte;
            p += 3;
        } else {
            *w++ = *p;
        }
    }
    *w = 0;
    *text = out;
    return CLI_OK;
}

static const struct {
    cli_mode mode;
    const char *name;
} modes[] = {{CLI_ROOFLINE, "--roofline"},
             {CLI_KERNELS, "--kernels"},
             {CLI_COST, "--cost"},
             {CLI_SAVED, "--compare"},
             {CLI_REPLOT, "a saved result"}};
enum { N_MODES = sizeof modes / sizeof *modes };

static const char *mode_name(cli_mode mode) {
    for (int i = 0; i < N_MODES; i++)
        if (modes[i].mode == mode) return modes[i].name;
    return "";
}

/* An option that the mode would leave unheard is refused. */
static int check_mode(cli_args *a, const bool *given) {
    if (a->roofline + a->kernels + a->cost + !!a->compare > 1)
        return cli_misuse("one at a time: --roofline, --kernels, --cost or --compare");
    a->mode = a->roofline  ? CLI_ROOFLINE
              : a->kernels ? CLI_KERNELS
              : a->cost    ? CLI_COST
              : a->compare ? CLI_SAVED
              : a->file    ? CLI_REPLOT
                           : CLI_COMPARE;
    for (int i = 0; i < N_OPTIONS; i++) {
        const unsigned of = options[i].modes ? options[i].modes : (unsigned)CLI_COMPARE;
        if (!given[i] || (of & (unsigned)a->mode)) continue;
        const char *names = options[i].names, *last = strrchr(names, ' ');
        const char *longest = last ? last + 1 : names;
        if (a->mode != CLI_COMPARE)
            return cli_misuse("%s does not go with %s", longest, mode_name(a->mode));
        char wanted[64] = "";
        for (int m = 0; m < N_MODES; m++)
            if (of & (unsigned)modes[m].mode)
                snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%s%s",
                         *wanted ? " or " : "", modes[m].name);
        return cli_misuse("%s needs %s", longest, wanted);
    }
    return CLI_OK;
}

static int check_bench(cli_args *a, const bool *given) {
    const int rc = check_mode(a, given);
    if (rc) return rc;
    if (a->compare && !a->file)
        return cli_misuse("--compare takes two results: --compare OLD.json NEW.json");
    if (!a->n_runs) a->n_runs = a->mode == CLI_COMPARE ? CLI_BENCH_RUNS : CLI_MEASURE_RUNS;
    sort_list(a->rows, &a->n_rows);
    sort_list(a->contexts, &a->n_contexts);
    if (a->mode == CLI_COST) {
        if (a->n_rows && a->rows[a->n_rows - 1] > TD_MAX_DRAFT + 1)
            return cli_misuse("--rows: a pass has at most %d rows with --cost", TD_MAX_DRAFT + 1);
        if (a->n_contexts && !a->contexts[0])
            return cli_misuse("-c: --cost measures behind one position or more, not 0");
        return CLI_OK;
    }
    if (a->n_contexts > 1) return cli_misuse("-c takes one number; a list needs --cost");
    if (a->n_contexts) a->n_ctx = a->contexts[0];
    return CLI_OK;
}

static int check_plan(const cli_args *a) {
    const bool by_numbers =
        a->params || a->bits || a->n_layers || a->n_heads || a->n_kv_heads || a->head_dim;
    if (a->gpu && !strcmp(a->gpu, "list")) return CLI_OK;
    if (!a->model && !by_numbers)
        return cli_misuse("which model? -m FILE, or one without a file: --params 8B --bits 4.5 "
                          "--layers 32 --kv-heads 8 --head-dim 128");
    if (a->model && by_numbers)
        return cli_misuse("-m names the model; --params, --bits, --layers, --heads, --kv-heads and "
                          "--head-dim are for one without a file");
    if (by_numbers && !(a->params && a->bits && a->n_layers && a->n_kv_heads && a->head_dim))
        return cli_misuse("a model without a file needs all of --params, --bits, --layers, "
                          "--kv-heads and --head-dim");
    if (a->n_heads % (a->n_kv_heads ? a->n_kv_heads : 1))
        return cli_misuse("--heads: %d heads do not divide over %d of keys and values", a->n_heads,
                          a->n_kv_heads);
    /* Matrices from the model's width, which no head exceeds, to K and V. */
    if (by_numbers && 2.0 * a->n_layers * a->n_kv_heads * a->head_dim * a->head_dim > a->params)
        return cli_misuse("--params is too small for %d layers with %d KV heads of %d values; are "
                          "they right?",
                          a->n_layers, a->n_kv_heads, a->head_dim);
    if (by_numbers && !a->n_ctx) return cli_misuse("-c 0 is what a file was trained for: -m FILE");
    if (a->n_ctx > 0 && a->prompt_tokens + a->answer_tokens > a->n_ctx)
        return cli_misuse("-c %d is too small for %d tokens of prompt and %d of answer", a->n_ctx,
                          a->prompt_tokens, a->answer_tokens);
    if (a->draft && a->draft_params) return cli_misuse("one draft: -md FILE or --draft-params");
    if (!a->draft_params != !a->draft_bits)
        return cli_misuse("a draft without a file needs both --draft-params and --draft-bits");
    const bool draft = a->draft || a->draft_params;
    if (draft && a->acceptance < 0)
        return cli_misuse(
            "how often is the draft right? --acceptance 0.8, say; 'tandem run' prints "
            "it by position");
    if (!draft && a->acceptance >= 0)
        return cli_misuse("--acceptance needs a draft: -md FILE, or --draft-params 500M "
                          "--draft-bits 4.5");
    return CLI_OK;
}

/* The rule where none is named: with a seed, and without a draft, the one that makes a text follow from its seed. */
static cli_verify default_rule(const cli_args *a, bool trees) {
    if (a->sampling.seed != UINT64_MAX || !a->draft || a->no_draft) return CLI_VERIFY_COUPLED;
    return trees ? CLI_VERIFY_TOKEN : CLI_VERIFY_BLOCK;
}

static const char greedy_rule[] =
    "--verify greedy is the rule of --temp 0; for samples: block, token or coupled";

static int check_rule(cli_args *a) {
    const bool samples = a->sampling.temperature != 0;
    if (a->verify == CLI_VERIFY_GREEDY && samples) return cli_misuse(greedy_rule);
    if (a->draft_width && a->n_k) return cli_misuse("one of -k and --draft-tree");
    if (a->draft_width > 1 && a->verify == CLI_VERIFY_BLOCK && samples)
        return cli_misuse("--verify block takes drafts one token wide; with --draft-tree: token or "
                          "coupled");
    if (a->verify == CLI_VERIFY_DEFAULT) a->verify = default_rule(a, a->draft_width > 1);
    return CLI_OK;
}

/* Completes the lists that bench sweeps over. */
static int check_sweeps(cli_args *a) {
    bool samples = false, trees = false;
    if (!a->n_temperatures) a->temperatures[a->n_temperatures++] = a->sampling.temperature;
    for (int i = 0; i < a->n_temperatures; i++)
        samples = samples || a->temperatures[i] != 0;
    for (int i = 0; i < a->n_trees; i++)
        trees = trees || a->trees[i].width > 1;
    for (int i = 0; i < a->n_rules; i++)
        if (a->rules[i] == CLI_VERIFY_GREEDY && samples) return cli_misuse(greedy_rule);
    if (!a->n_rules) a->rules[a->n_rules++] = default_rule(a, trees);
    return CLI_OK;
}

static int check_together(cli_args *a, const bool *given) {
    const char *command = cli_command_name(a->command);
    int rc;
    if (a->command == CLI_INSPECT) {
        if (a->file && a->model) return cli_misuse("one file at a time: '%s' or -m", a->file);
        if (!a->file) a->file = a->model;
        if (!a->file) return cli_misuse("which file? 'tandem inspect model.gguf'");
        return CLI_OK;
    }
    if (a->file && (a->command == CLI_PLAN || a->command == CLI_SELFTEST))
        return cli_misuse("unexpected argument '%s'; the model is given with -m", a->file);
    if (a->file && !a->compare && !a->plot)
        return cli_misuse(
            "unexpected argument '%s'; the prompt is given with -p or -f, the model with -m",
            a->file);
    if (a->json && !strcmp(a->json, "-"))
        return cli_misuse("--json writes a file; standard output is for the %s",
                          a->command == CLI_RUN ? "text" : "tables");
    if (a->format > CLI_JSON &&
        (a->command == CLI_PLAN || a->roofline || a->kernels || a->cost || a->compare))
        return cli_misuse("--format: csv and md are for drafts compared; here text or json");
    if (a->command == CLI_PLAN) return check_plan(a);
    if (a->command == CLI_BENCH) {
        rc = check_bench(a, given);
        if (rc || (a->mode != CLI_COMPARE && a->mode != CLI_COST)) return rc;
    }
    if (!a->model)
        return a->draft ? cli_misuse("-md needs a target as well: -m FILE")
                        : cli_misuse("%s needs a model: -m FILE", command);
    if (!!a->prompt + !!a->prompt_file + !!a->prompts > 1)
        return cli_misuse("give one of -p, -f%s", a->command == CLI_BENCH ? " and --prompts" : "");
    if (a->command == CLI_SELFTEST) return CLI_OK;
    if (a->system && !a->chat) return cli_misuse("-sys needs --chat");
    if (a->chat && a->no_special)
        return cli_misuse(
            "--chat is made of control tokens; it does not go with --no-parse-special");
    if (a->command == CLI_RUN && a->n_k && a->k[0] && !a->draft && !a->no_draft)
        return cli_misuse("-k needs a draft model: -md FILE");
    if (a->mode == CLI_COMPARE && !a->draft)
        return cli_misuse("bench compares with a draft model: -md FILE");
    if (a->draft_width && (!a->draft || a->no_draft))
        return cli_misuse("--draft-tree needs a draft model: -md FILE");
    if ((rc = a->command == CLI_BENCH ? check_sweeps(a) : check_rule(a))) return rc;
    if (a->command == CLI_BENCH && a->n_predict < 1)
        return cli_misuse("-n: bench needs at least one token to time");
    return CLI_OK;
}

static void set_defaults(cli_args *a, cli_command command) {
    td_generate_options opt;
    td_generate_defaults(&opt);
    *a = (cli_args){.command = command, .n_ctx = -1, .sampling = opt.sampling};
    a->sampling.seed = UINT64_MAX;
    a->draft_max = opt.draft_max;
    a->acceptance = -1;
    a->prompt_tokens = CLI_PLAN_PROMPT;
    a->answer_tokens = CLI_PLAN_ANSWER;
    a->n_predict = command == CLI_BENCH ? CLI_BENCH_PREDICT : -1;
    if (command == CLI_BENCH) a->sampling.temperature = 0;
}

int cli_parse(cli_args *a, cli_command command, int argc, char **argv) {
    int rc;
    bool only_files = false, given[N_OPTIONS] = {0};
    set_defaults(a, command);
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (!only_files && !strcmp(arg, "--")) {
            only_files = true;
            continue;
        }
        if (only_files || arg[0] != '-' || !arg[1]) {
            if (a->file) return cli_misuse("unexpected argument '%s'", arg);
            a->file = arg;
            continue;
        }
        const size_t len = strcspn(arg, "=");
        const option *o = find((unsigned)command, arg, len);
        const char *value = arg[len] ? arg + len + 1 : NULL;
        char name[32];
        if (!o) {
            if ((rc = unknown(a, arg, len))) return rc;
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)len, arg);
        if (!o->arg && value) return cli_misuse("%s takes no value", name);
        if (o->arg && !value) {
            /* "-m -md draft.gguf" forgot a value; a text that is an option's name needs the '='
             * form. */
            if (i + 1 >= argc) return cli_misuse("%s needs a value: %s %s", name, name, o->arg);
            value = argv[++i];
            if (value[0] == '-' && find((unsigned)command, value, strlen(value)))
                return cli_misuse(
                    "%s needs a value, but the option %s follows; to mean it, write %s=%s", name,
                    value, name, value);
        }
        if ((rc = set(a, o, name, value))) return rc;
        given[o - options] = true;
        if (a->help) return CLI_OK;
    }
    if (a->escape) {
        if ((rc = unescape(a, &a->prompt)) || (rc = unescape(a, &a->system))) return rc;
        for (int i = 0; i < a->n_stops; i++)
            if ((rc = unescape(a, &a->stops[i]))) return rc;
    }
    return check_together(a, given);
}

void cli_args_free(cli_args *a) {
    for (int i = 0; i < a->n_owned; i++)
        free(a->owned[i]);
    a->n_owned = 0;
}
