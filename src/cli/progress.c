/* One line of progress on a terminal, drawn at most ten times a second and erased when it is over;
 * in a pipe or a log there is none. State of the process, not of a session: there is one terminal.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static struct {
    bool on, drawn, begun;
    int width; /* what the last line took */
    double begin_s, last_s;
    char what[40];
} line;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_progress_init(bool wanted) {
    line.on = wanted && isatty(2);
}

void cli_progress(const char *what, double done, double total, const char *unit) {
    if (!line.on) return;
    const double now = now_s();
    if (!line.begun || strncmp(line.what, what, sizeof line.what - 1)) {
        line.begun = true;
        line.begin_s = now;
        snprintf(line.what, sizeof line.what, "%s", what);
    }
    /* what is over in a moment needs no line */
    if (now - line.begin_s < 0.3 || (line.drawn && now - line.last_s < 0.1)) return;
    char text[80];
    int n = total > 0 ? snprintf(text, sizeof text, "%.38s  %3.0f %%  %.0f of %.0f %s", what,
                                 100 * done / total, done, total, unit)
                      : snprintf(text, sizeof text, "%.70s", what);
    if (n > 79) n = 79;
    fprintf(stderr, "\r%s%*s", text, line.width > n ? line.width - n : 0, "");
    fflush(stderr);
    line.width = n;
    line.drawn = true;
    line.last_s = now;
}

void cli_progress_end(void) {
    if (line.drawn) {
        fprintf(stderr, "\r%*s\r", line.width, "");
        fflush(stderr);
    }
    line.drawn = line.begun = false;
    line.width = 0;
}
