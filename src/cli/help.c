/* Help: written once, wrapped to 80 columns here, the options taken from the parser's own table. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { WIDTH = 79, NAMES = 27 }; /* columns; where an option's text begins */

static const struct {
    cli_command command;
    const char *name, *usage, *summary, *text;
} commands[] = {
    {CLI_RUN, "run", "tandem run -m TARGET [-md DRAFT] [-p TEXT | -f FILE] [options]",
     "generate text from a prompt, with a draft model or without",
     "Loads the target and, with -md, a draft of the same vocabulary, and writes what follows the "
     "prompt. "
     "The draft only makes it faster: with --temp 0 the text is byte for byte what the target "
     "writes "
     "alone, and with sampling it has exactly the target's distribution.\n\n"
     "The text goes to standard output as it comes and nothing else does; progress, meters and "
     "errors "
     "go to standard error. Ctrl-C ends the text after the current step, still prints the meters "
     "and "
     "exits with 130; a second one ends at once.\n\n"
     "The sampler works in this order: logit bias, penalties, top-k, top-p, min-p, temperature."},
    {CLI_BENCH, "bench",
     "tandem bench -m TARGET -md DRAFT [-p TEXT | -f FILE | --prompts LIST] [options]\n"
     "tandem bench --cost -m MODEL [-c LIST] [--rows LIST] [options]\n"
     "tandem bench --roofline | --kernels [--type LIST] [--rows LIST] [options]\n"
     "tandem bench --compare OLD.json NEW.json\n"
     "tandem bench --plot DIR RESULT.json",
     "measure here: plain against speculative decoding, passes, kernels",
     "Loads both models once and generates the same tokens plainly and with each draft in turn, "
     "back and forth, so that a change of the machine's speed meets all alike. Lists for --temp, "
     "--verify, -k and --draft-tree make a sweep; each temperature has its own plain decoding. "
     "Prints tokens a second, the ratio to plain decoding in the same run with a 95 % interval, "
     "what share of the drafted tokens was accepted, and whether the tokens were the same, as "
     "they must be with --temp 0, the default, and under --verify coupled; with several sets of "
     "prompts also set by set. Then it measures how fast this machine reads and multiplies, how "
     "much of that plain decoding uses, what the pass of each draft costs beside its roofline, "
     "and what speed-up these predict; the time to the first token and between tokens, and, where "
     "the processor's counters can be read, joules a token; last it names the best draft, or says "
     "that speculation does not pay here. Without a prompt a built-in one is used.\n\n"
     "--roofline measures the limits of the machine's threads: B, what they read from memory over "
     "a "
     "gigabyte in huge pages; I, the multiply-adds of the widest int8 dot instruction of the "
     "level; "
     "and the same for floats. TANDEM_CPU lowers the level. No model is needed.\n\n"
     "--kernels times the matrix product of every type of weights, at the shapes of three small "
     "models, by the number of rows m: GB/s of weights, Gmac/s (1e9 multiply-adds a second, half "
     "of "
     "what others count as operations), and how much it reaches of its roofline, the time "
     "max(bytes / B, m * multiply-adds / I) that the machine allows. The weights come from memory: "
     "copies of a matrix are read in turn, more than the caches hold.\n\n"
     "--cost times passes of a model by rows and context: T(m) beside its roofline, max((weights + "
     "KV) / B, m * multiply-adds / I), attention's multiply-adds left out; and prefill of 512 "
     "tokens with its share of I. B and I are measured between the passes. It takes minutes, most "
     "of them for reading the longest context; -c 512 is quicker. With --format json it prints an "
     "array of objects with context, m, ms and roofline_ms, among others.\n\n"
     "--compare reads two results that --json wrote and says of each length whether the speed-up and "
     "the share of tokens accepted changed, with intervals; over five prompts or more, the same in "
     "both, the changes are paired. Speeds are printed but not judged: they are the machine's "
     "of the hour. --plot with a result draws it without measuring."},
    {CLI_PLAN, "plan",
     "tandem plan -m MODEL [-md DRAFT --acceptance A] [options]\n"
     "tandem plan --params N --bits B --layers L --kv-heads H --head-dim D [options]",
     "what a model takes and gives, here or on another machine",
     "Says before anything is loaded how much memory a model takes, how long a context fits beside "
     "it, how fast it can decode and prefill, what a batch gives and whether speculation pays, "
     "each figure with its formula. The model is a file or a few numbers; the machine is this one, "
     "measured in a second, or what --gpu, --ram, --bandwidth and --flops say.\n\n"
     "All speeds are ceilings: a pass takes as long as reading its bytes (B) or its multiply-adds "
     "(I for quantised weights, F for float ones and attention), whichever is longer, and nothing "
     "else takes time. 'tandem bench' measures what is reached. Models are dense: of a mixture of "
     "experts a pass reads a part only, which is not planned."},
    {CLI_SELFTEST, "selftest", "tandem selftest -m TARGET [-md DRAFT] [-t N] [--json FILE]",
     "prove on these models that speculation changes nothing",
     "Tries what Tandem promises on your own files; without -md the target drafts for itself. "
     "Greedy texts, and seeded ones under the coupled rule, must be the same with drafts of every "
     "length and on another number of threads. Samples must have the target's law: chi-square and "
     "total variation distance over the first three tokens, under every rule, once with a million "
     "texts from tables of both models' logits, once with fewer from the whole loop. Caches must "
     "hold the committed tokens and nothing else after each of hundreds of rounds, cuts and new "
     "texts. An exact program fails a law once in a million.\n\n"
     "It takes some minutes. The exit code is 1 when a check failed: please report that."},
    {CLI_INSPECT, "inspect", "tandem inspect FILE [options]", "show what a GGUF file holds",
     "Prints architecture, sizes, tensor types, tokenizer, chat template and the bytes of KV cache "
     "a "
     "token takes, without loading the weights."},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char exit_codes[] = "Exit codes: 0 done, 1 failed, 2 misuse (the command line or "
                                 "TANDEM_CPU), 130 stopped by Ctrl-C, "
                                 "143 by SIGTERM.";
static const char environment[] =
    "TANDEM_CPU=ref|avx2|avx512|amx (on ARM ref|neon) lowers the instruction set; the text does not "
    "change.";

cli_command cli_command_find(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(name, commands[i].name)) return commands[i].command;
    return 0;
}

const char *cli_command_name(cli_command command) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].command == command) return commands[i].name;
    return "";
}

/* Edits between two words (optimal string alignment: neighbours swapped count once). */
static int distance(const char *a, const char *b) {
    enum { MAX = 40 };
    int d[MAX + 1][MAX + 1];
    const int n = (int)strnlen(a, MAX + 1), m = (int)strnlen(b, MAX + 1);
    if (n > MAX || m > MAX) return MAX;
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            const int change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            int best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (change < best) best = change;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *cli_nearest(const char *word, const char *const *words, int n) {
    const char *best = NULL;
    int best_d = 1 + (int)strlen(word) / 3; /* a third of the letters may be wrong */
    for (int i = 0; i < n; i++) {
        const int d = distance(word, words[i]);
        /* "--thread", "--max": the beginning or the end of a longer name is as good as a slip */
        const size_t lw = strlen(word), ln = strlen(words[i]);
        const bool part = lw > 3 && ln > lw && !strncmp(words[i], word, lw);
        if (d < best_d || (part && !best)) {
            best = words[i];
            best_d = d < best_d ? d : best_d;
        }
    }
    return best;
}

void cli_print_wrapped(FILE *f, const char *text, int at, int indent) {
    bool first = true;
    while (*text) {
        const size_t n = strcspn(text, " \n");
        if (!first && at + 1 + (int)n > WIDTH) {
            fprintf(f, "\n%*s", indent, "");
            at = indent;
            first = true;
        }
        if (!first) {
            fputc(' ', f);
            at++;
        }
        fprintf(f, "%.*s", (int)n, text);
        at += (int)n;
        first = false;
        text += n;
        while (*text == '\n') {
            fputc('\n', f);
            text++;
            if (*text != '\n') fprintf(f, "%*s", indent, "");
            at = indent;
            first = true;
        }
        if (*text == ' ') text++;
    }
    fputc('\n', f);
}

static void print_option(FILE *f, const cli_option_text *o) {
    char names[160];
    int n = 0;
    for (const char *p = o->names; *p;) {
        const int len = (int)strcspn(p, " ");
        n += snprintf(names + n, sizeof names - (size_t)n, "%s%.*s", n ? ", " : "", len, p);
        p += len + (p[len] == ' ');
    }
    if (o->arg) n += snprintf(names + n, sizeof names - (size_t)n, " %s", o->arg);
    if (n + 2 > NAMES - 2)
        fprintf(f, "  %s\n%*s", names, NAMES, "");
    else
        fprintf(f, "  %-*s", NAMES - 2, names);
    cli_print_wrapped(f, o->help, NAMES, NAMES);
}

void cli_print_usage(FILE *f) {
    fprintf(f, "usage: tandem COMMAND [options]\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  tandem %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "'tandem help' tells more, 'tandem help COMMAND' lists its options.\n");
}

void cli_print_help(FILE *f) {
    cli_print_wrapped(f,
         "Tandem runs language models (GGUF files) with exact speculative decoding: a small draft "
         "model "
         "proposes tokens, the target checks all of them in one pass, and the text stays exactly "
         "the "
         "target's own.",
         0, 0);
    fprintf(f, "\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "  %-9s %s\n", "help", "this text; 'tandem help COMMAND' for the options of one");
    fprintf(f, "\nExamples:\n"
               "  tandem run -m target.gguf -md draft.gguf -p 'def quicksort(xs):' --temp 0\n"
               "  tandem run -m target.gguf --chat -p 'Why is the sky blue?'\n"
               "  git diff | tandem run -m target.gguf -md draft.gguf --chat -p - --temp 0\n"
               "  tandem bench -m target.gguf -md draft.gguf -k 2,4,8 --prompts code,prose\n"
               "  tandem bench -m target.gguf -md draft.gguf --temp 0,0.8 --draft-tree 2x3\n"
               "  tandem bench --cost -m target.gguf -c 512 --rows 1-9\n"
               "  tandem plan -m target.gguf -md draft.gguf --acceptance 0.8 --gpu H100\n"
               "  tandem inspect target.gguf\n\n");
    cli_print_wrapped(f, "'tandem --version' prints the version and the instruction set in use.", 0, 0);
    cli_print_wrapped(f, environment, 0, 0);
    cli_print_wrapped(f, exit_codes, 0, 0);
}

void cli_print_command_help(FILE *f, cli_command command) {
    int c = 0;
    while (commands[c].command != command)
        c++;
    fprintf(f, "usage: ");
    cli_print_wrapped(f, commands[c].usage, 7, 7);
    fputc('\n', f);
    cli_print_wrapped(f, commands[c].text, 0, 0);
    const char *group = "";
    cli_option_text o;
    for (int i = 0; cli_option_get(i, &o); i++) {
        if (!(o.commands & (unsigned)command)) continue;
        if (strcmp(group, o.group)) fprintf(f, "\n%s:\n", group = o.group);
        print_option(f, &o);
    }
    fputc('\n', f);
    cli_print_wrapped(f, environment, 0, 0);
    cli_print_wrapped(f, exit_codes, 0, 0);
}
