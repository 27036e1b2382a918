/* tandem: finds the command and runs it. */
#include <string.h>

#include "cli/cli.h"

static int unknown_command(const char *word) {
    static const char *const words[] = {"run", "bench", "plan", "selftest", "inspect", "help"};
    if (word[0] == '-' && word[1])
        return cli_misuse("the command comes first: tandem run %s ...", word);
    const char *near = cli_nearest(word, words, sizeof words / sizeof *words);
    return near ? cli_misuse("unknown command '%s'; did you mean %s?", word, near)
                : cli_misuse("unknown command '%s'; there are run, bench, plan, selftest, inspect and help",
                             word);
}

static int version(void) {
    td_error err;
    const char *cpu;
    if (td_cpu_level(&cpu, &err)) return cli_error(&err);
    printf("tandem %s (%s)\n", td_version(), cpu);
    return cli_finish_stdout();
}

static int help(const char *word) {
    const cli_command command = word ? cli_command_find(word) : 0;
    if (word && !command && strcmp(word, "help")) return unknown_command(word);
    if (command)
        cli_print_command_help(stdout, command);
    else
        cli_print_help(stdout);
    return cli_finish_stdout();
}

int main(int argc, char **argv) {
    cli_args args;
    cli_stdio_init();
    if (argc < 2) {
        cli_print_usage(stderr);
        return CLI_MISUSE;
    }
    const char *word = argv[1];
    if (!strcmp(word, "--version") || !strcmp(word, "version")) return version();
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) return help(NULL);
    if (!strcmp(word, "help")) return help(argc > 2 ? argv[2] : NULL);
    const cli_command command = cli_command_find(word);
    if (!command) return unknown_command(word);
    cli_message_command(word);
    int rc = cli_parse(&args, command, argc - 2, argv + 2);
    if (!rc && args.help)
        rc = help(word);
    else if (!rc)
        rc = command == CLI_RUN     ? cli_run(&args)
             : command == CLI_BENCH ? cli_bench(&args)
             : command == CLI_PLAN  ? cli_plan(&args)
             : command == CLI_SELFTEST ? cli_selftest(&args)
                                       : cli_inspect(&args);
    cli_args_free(&args);
    return rc;
}
