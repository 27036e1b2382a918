/* Messages: one line each, whatever the text in them holds. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

void cli_print_safe(FILE *f, const char *text, size_t len, size_t max) {
    size_t shown = 0, i = 0;
    for (; i < len && (!max || shown < max); i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\n')
            fputs("\\n", f);
        else if (c == '\t')
            fputs("\\t", f);
        else if (c == '\r')
            fputs("\\r", f);
        else if (c < 0x20 || c == 0x7f)
            fprintf(f, "\\x%02x", c);
        else if (c == 0xc2 && i + 1 < len && (unsigned char)text[i + 1] >= 0x80 &&
                 (unsigned char)text[i + 1] < 0xa0) /* C1 controls: some terminals obey them */
            fprintf(f, "\\x%02x", (unsigned char)text[++i]);
        else
            fputc(c, f);
        /* a character counts once, its further bytes come along */
        while (i + 1 < len && c >= 0xc0 && ((unsigned char)text[i + 1] & 0xc0) == 0x80)
            fputc(text[++i], f);
        shown++;
    }
    if (i < len) fputs("...", f);
}

static void print_line(const char *format, va_list args, const char *tail) {
    char small[1024], *line = small;
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(small, sizeof small, format, args);
    if (n >= (int)sizeof small && (line = malloc((size_t)n + 1)))
        vsnprintf(line, (size_t)n + 1, format, again);
    if (!line) line = small;
    va_end(again);
    cli_progress_end();
    fputs("tandem: ", stderr);
    cli_print_safe(stderr, line, strlen(line), 0);
    fprintf(stderr, "%s\n", tail);
    if (line != small) free(line);
}

int cli_failed(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    print_line(fmt, args, "");
    va_end(args);
    return CLI_FAILED;
}

void cli_warn(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    print_line(fmt, args, "");
    va_end(args);
}

static const char *help_of = "";

void cli_message_command(const char *command) {
    help_of = command;
}

int cli_misuse(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char tail[64];
    snprintf(tail, sizeof tail, " (see 'tandem help%s%s')", *help_of ? " " : "", help_of);
    print_line(fmt, args, tail);
    va_end(args);
    return CLI_MISUSE;
}

int cli_error(const td_error *err) {
    if (cli_stop_signal())
        return CLI_SIGNAL + cli_stop_signal(); /* it was asked for: no complaint */
    cli_failed("%s", err->msg);
    return err->code == TD_E_ARG ? CLI_MISUSE : CLI_FAILED;
}

const char *cli_size(char buf[24], uint64_t bytes) {
    if (bytes >= 1000000000)
        snprintf(buf, 24, "%.2f GB", (double)bytes / 1e9);
    else if (bytes >= 1000000)
        snprintf(buf, 24, "%.1f MB", (double)bytes / 1e6);
    else if (bytes >= 10000)
        snprintf(buf, 24, "%.1f kB", (double)bytes / 1e3);
    else
        snprintf(buf, 24, "%llu bytes", (unsigned long long)bytes);
    return buf;
}
