/* tandem bench --plot: pictures of a result, by gnuplot. The folder gets NAME.dat (columns), NAME.gp (the script, which
 * names no other folder: "gnuplot NAME.gp" draws it there again), NAME.png and NAME.svg. Series differ in the shape of
 * their points, dashes and lightness as well as in colour, so that they can be told apart in grey. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

extern char **environ;

enum { SERIES_MAX = 16, NAME_SHOWN = 44 /* characters of a model's name */ };

/* The cases of one temperature and one rule. */
typedef struct series {
    double temperature;
    const char *verify; /* the result's */
    char name[64];
} series;

typedef struct plot {
    const char *dir;
    const json_t *result;
    series list[SERIES_MAX];
    int n_series;
    /* the picture being made */
    const char *name;
    FILE *dat, *gp;
    int n_blocks; /* of the data file; gnuplot counts them from 0 */
} plot;

/* Panels side by side and below each other, one legend under them. */
typedef struct page {
    const char *title;
    int rows, columns, n_legend;
    int right; /* pixels beside a panel */
} page;

/* ---- gnuplot ---- */

/* Its exit status; -1: it could not be started, errno says why. */
static int run_gnuplot(const char *dir, char *const argv[], bool quiet) {
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status, why;
    if ((errno = posix_spawn_file_actions_init(&actions))) return -1;
    why = posix_spawn_file_actions_addchdir_np(&actions, dir);
    for (int fd = 1; fd <= 2 && quiet && !why; fd++)
        why = posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
    if (!why) why = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    while (!why && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) why = errno;
    errno = why;
    return why ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : CLI_SIGNAL + WTERMSIG(status);
}

int cli_plot_check(const char *dir) {
    struct stat st;
    static char *const probe[] = {"gnuplot", "-d", "-e", "set terminal svg; set terminal pngcairo",
                                  NULL};
    if (!dir) return CLI_OK;
    if (!*dir) return cli_misuse("--plot needs the name of a folder");
    if (mkdir(dir, 0777) && errno != EEXIST)
        return cli_failed("--plot: the folder %s can't be made: %s", dir, strerror(errno));
    if (stat(dir, &st)) return cli_failed("--plot: %s: %s", dir, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return cli_failed("--plot: %s is not a folder", dir);
    if (access(dir, W_OK | X_OK))
        return cli_failed("--plot: no file can be made in %s: %s", dir, strerror(errno));
    const int rc = run_gnuplot(dir, probe, true);
    if (rc < 0)
        return cli_failed("--plot: gnuplot can't be started: %s; Debian's package is gnuplot-nox",
                          strerror(errno));
    if (rc)
        return cli_failed("--plot: the gnuplot here draws no PNG (terminal pngcairo) or no SVG; "
                          "Debian's package gnuplot-nox does");
    return CLI_OK;
}

/* ---- text in scripts ---- */

/* As a string of gnuplot's: within single quotes only the quote itself means anything. gnuplot does not make all names
 * safe for SVG, so what means something there becomes a look-alike. At most max characters; 0: all. */
static void quote(FILE *f, const char *text, int max) {
    int n = 0;
    fputc('\'', f);
    for (const char *p = text; *p; p++) {
        const unsigned char c = (unsigned char)*p;
        if ((c & 0xc0) != 0x80 && max && n++ == max) {
            fputs("...", f);
            break;
        }
        if (c == '\'')
            fputs("\u2019", f);
        else if (c == '<' || c == '>')
            fputs(c == '<' ? "\u2039" : "\u203a", f);
        else
            fputc(c < 0x20 || c == 0x7f ? ' ' : c == '&' ? '+' : c, f);
    }
    fputc('\'', f);
}

static const char *model_name(const json_t *m) {
    const char *name = json_string_value(json_object_get(m, "name"));
    if (name && *name) return name;
    const char *path = json_string_value(json_object_get(m, "path"));
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "?";
}

/* Three lines: what is shown, of which models, how it was measured. */
static void write_title(const plot *p, const char *title) {
    const json_t *r = p->result, *draft = json_object_get(r, "draft");
    const size_t prompts = json_array_size(json_object_get(r, "prompts"));
    const char *cpu = json_string_value(json_object_get(json_object_get(r, "versions"), "cpu"));
    const double threads = cli_json_get(json_object_get(r, "target"), "threads");
    char facts[160];
    int n = snprintf(facts, sizeof facts, "%.0f tokens after each of %zu prompt%s, %.0f run%s",
                     cli_json_get(r, "n_predict"), prompts, prompts == 1 ? "" : "s",
                     cli_json_get(r, "runs"), cli_json_get(r, "runs") == 1 ? "" : "s");
    if (cpu) n += snprintf(facts + n, sizeof facts - (size_t)n, "; %.20s", cpu);
    if (isfinite(threads))
        snprintf(facts + n, sizeof facts - (size_t)n, ", %.0f thread%s", threads,
                 threads == 1 ? "" : "s");
    fputs("title = ", p->gp);
    quote(p->gp, title, 0);
    fputs(".\"\\n\".", p->gp);
    quote(p->gp, model_name(json_object_get(r, "target")), NAME_SHOWN);
    if (json_is_object(draft)) {
        fputs(".', draft '.", p->gp);
        quote(p->gp, model_name(draft), NAME_SHOWN);
    }
    fputs(".\"\\n\".", p->gp);
    quote(p->gp, facts, 0);
    fputc('\n', p->gp);
}

/* ---- one picture: begin, panels, end ---- */

static FILE *create(const plot *p, const char *ending) {
    char *path;
    if (asprintf(&path, "%s/%s.%s", p->dir, p->name, ending) < 0) return NULL;
    FILE *f = fopen(path, "we");
    if (!f) cli_failed("--plot: %s can't be written: %s", path, strerror(errno));
    free(path);
    return f;
}

/* Dark to light, so that grey keeps them apart. */
static const char styles[] =
    "set style line 1 lc rgb '#08306b' lw 2 pt 7 ps 1.1 dt 1\n"
    "set style line 2 lc rgb '#d1495b' lw 2 pt 4 ps 1.2 dt 2\n"
    "set style line 3 lc rgb '#2a9d6f' lw 2 pt 9 ps 1.3 dt 4\n"
    "set style line 4 lc rgb '#b08900' lw 2 pt 12 ps 1.4 dt 5\n"
    "set style line 5 lc rgb '#7b3294' lw 2 pt 5 ps 1.1 dt 3\n"
    "set style line 6 lc rgb '#8c8c8c' lw 2 pt 6 ps 1.2 dt 1\n"
    "set style line 11 lc rgb '#e07b00' lw 2 pt 6 ps 0.9 dt 2\n" /* predicted, roofline */
    "set style line 12 lc rgb '#2a7fb8' lw 2 dt 4\n"             /* auto */
    "set style line 13 lc rgb '#404040' lw 2 dt 3\n"             /* plain */
    "set style line 20 lc rgb '#dddddd' lw 1 dt 1\n"             /* grid */
    "set grid ls 20\nset tics nomirror\nset border 3 lc rgb '#606060'\nset bars small\n";

static int begin(plot *p, const char *name, const page *g) {
    p->name = name;
    p->n_blocks = 0;
    p->dat = p->gp = NULL;
    if (!(p->dat = create(p, "dat")) || !(p->gp = create(p, "gp"))) return CLI_FAILED;
    /* gnuplot gives a legend the width of its panel. */
    const int legend_columns = g->columns == 1 ? 2 : 1;
    const int legend = (g->n_legend + legend_columns - 1) / legend_columns;
    const int left = 75, top = 100, bottom = 62 + 22 * legend, gap_x = left + g->right, gap_y = 100;
    const int w = g->columns == 1 ? 940 : 1140;
    const int h = top + bottom + g->rows * (g->columns == 1 && g->rows == 1 ? 400 : 300) +
                  (g->rows - 1) * gap_y;
    fprintf(p->gp,
            "# Written by tandem bench --plot; gnuplot %s.gp draws it again.\nset encoding utf8\n",
            name);
    write_title(p, g->title);
    fprintf(p->gp,
            "do for [format in 'png svg'] {\n"
            "reset\n"
            "if (format eq 'png') { set terminal pngcairo noenhanced size %d,%d font 'Sans,11' "
            "background 'white' }\n"
            "if (format eq 'svg') { set terminal svg noenhanced size %d,%d font 'Sans,11' "
            "background 'white' }\n"
            "set output '%s.'.format\n%s"
            "set multiplot layout %d,%d title title margins screen %.4f, screen %.4f, screen %.4f, "
            "screen %.4f "
            "spacing screen %.4f, screen %.4f\n"
            "set key at screen 0.5, screen %.4f center bottom horizontal maxcols %d samplen 3 "
            "width 1 Left reverse\n",
            w, h, w, h, name, styles, g->rows, g->columns, (double)left / w,
            1 - (double)g->right / w, (double)bottom / h, 1 - (double)top / h, (double)gap_x / w,
            (double)gap_y / h, 8.0 / h, legend_columns);
    return CLI_OK;
}

/* Closes and, unless it failed already, draws. */
static int end(plot *p, int rc) {
    bool wrote = true;
    if (p->gp) fputs("unset multiplot\nunset output\n}\n", p->gp);
    if (p->gp && (ferror(p->gp) | fclose(p->gp))) wrote = false;
    if (p->dat && (ferror(p->dat) | fclose(p->dat))) wrote = false;
    if (rc) return rc;
    if (!wrote)
        return cli_failed("--plot: %s/%s.gp can't be written: %s", p->dir, p->name,
                          strerror(errno));
    char script[32];
    snprintf(script, sizeof script, "%s.gp", p->name);
    char *const argv[] = {"gnuplot", "-d", script, NULL};
    rc = run_gnuplot(p->dir, argv, false);
    if (rc == CLI_SIGNAL + SIGINT || rc == CLI_SIGNAL + SIGTERM) return rc;
    return rc ? cli_failed("--plot: gnuplot failed on %s/%s", p->dir, script) : CLI_OK;
}

/* A block of the data file ends; its number. */
static int end_block(plot *p) {
    fputs("\n\n", p->dat);
    return p->n_blocks++;
}

static void left_out(const char *name, const char *why) {
    cli_warn("--plot: %s is left out: %s", name, why);
}

/* Whole numbers, at most twenty of them. */
static double tic_step(double span) {
    double step = 1;
    while (span / step > 20)
        step *= 2;
    return step;
}

/* Beside the first and the last point. */
static double room(double span) {
    return fmax(0.5, 0.025 * span);
}

/* ---- the cases ---- */

static bool in_series(const series *s, const cli_arm *a) {
    return a->k && s->temperature == a->temperature && !strcmp(s->verify, a->verify);
}

static void find_series(plot *p) {
    const json_t *all = json_object_get(p->result, "all");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const cli_arm a = cli_arm_of(p->result, json_array_get(all, i));
        int at = 0;
        while (at < p->n_series && !in_series(&p->list[at], &a))
            at++;
        if (!a.k || at < p->n_series) continue;
        if (at == SERIES_MAX) {
            cli_warn("--plot: the first %d of the temperatures and rules are drawn", SERIES_MAX);
            return;
        }
        series *s = &p->list[p->n_series++];
        s->temperature = a.temperature;
        s->verify = a.verify;
        if (a.temperature == 0)
            snprintf(s->name, sizeof s->name, "greedy");
        else
            snprintf(s->name, sizeof s->name, "temperature %g, %.24s", a.temperature, a.verify);
    }
}

/* The i-th case over all prompts if it belongs to s; *a says which it is. */
static const json_t *case_of(const plot *p, const series *s, size_t i, cli_arm *a) {
    const json_t *c = json_array_get(json_object_get(p->result, "all"), i);
    *a = cli_arm_of(p->result, c);
    return in_series(s, a) ? c : NULL;
}

static size_t n_cases(const plot *p) {
    return json_array_size(json_object_get(p->result, "all"));
}

static bool is_chain(const cli_arm *a) {
    return a->k > 0 && a->width == 1;
}

static double at(const json_t *list, size_t i) {
    const json_t *v = json_array_get(list, i);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- acceptance ---- */

/* By place, of the longest chain of the series. */
static void write_places(plot *p, const series *s) {
    const json_t *longest = NULL;
    int k = 0;
    for (size_t i = 0; i < n_cases(p); i++) {
        cli_arm a;
        const json_t *c = case_of(p, s, i, &a);
        if (c && is_chain(&a) && a.k > k) longest = c, k = a.k;
    }
    const json_t *drafted = json_object_get(longest, "drafted_per_pos"),
                 *accepted = json_object_get(longest, "accepted_per_pos");
    fprintf(p->dat, "# %s, %d drafted: place, %% accepted\n", s->name, k);
    for (size_t i = 0; i < json_array_size(drafted); i++)
        if (at(drafted, i) > 0 && isfinite(at(accepted, i)))
            fprintf(p->dat, "%zu %.6g\n", i + 1, 100 * at(accepted, i) / at(drafted, i));
}

static void write_rates(plot *p, const series *s) {
    fprintf(p->dat, "# %s: draft length, %% accepted\n", s->name);
    for (size_t i = 0; i < n_cases(p); i++) {
        cli_arm a;
        const json_t *c = case_of(p, s, i, &a);
        if (c && is_chain(&a) && isfinite(cli_json_get(c, "acceptance_rate")))
            fprintf(p->dat, "%d %.6g\n", a.k, 100 * cli_json_get(c, "acceptance_rate"));
    }
}

static void plot_blocks(plot *p, const int *block, int n, bool legend) {
    fputs("plot ", p->gp);
    for (int i = 0; i < n; i++) {
        fprintf(p->gp, "%s'%s.dat' index %d with linespoints ls %d ", i ? ", " : "", p->name,
                block[i], 1 + i % 6);
        if (legend) {
            fputs("title ", p->gp);
            quote(p->gp, p->list[i].name, 0);
        } else {
            fputs("notitle", p->gp);
        }
    }
    fputc('\n', p->gp);
}

static int plot_acceptance(plot *p, int k_max) {
    const page g = {"Drafted tokens that the target accepted", 1, 2, p->n_series, 25};
    int places[SERIES_MAX], rates[SERIES_MAX];
    const int rc = begin(p, "acceptance", &g);
    if (rc) return end(p, rc);
    for (int i = 0; i < p->n_series; i++) {
        write_places(p, &p->list[i]);
        places[i] = end_block(p);
        write_rates(p, &p->list[i]);
        rates[i] = end_block(p);
    }
    fprintf(p->gp, "set yrange [0:103]\nset xrange [%g:%g]\nset xtics %g\nset ytics 20\n",
            1 - room(k_max), k_max + room(k_max), tic_step(k_max));
    fputs("set ylabel 'accepted (% of those drafted)'\n"
          "set xlabel 'place in the draft, of the longest length'\n",
          p->gp);
    plot_blocks(p, places, p->n_series, true);
    fputs("unset key\nset xlabel 'draft length (tokens)'\nset ylabel 'acceptance rate (%)'\n",
          p->gp);
    plot_blocks(p, rates, p->n_series, false);
    return end(p, CLI_OK);
}

/* ---- speed-up ---- */

enum { WIDTHS_MAX = 4 }; /* of trees, that a panel tells apart */

typedef struct span {
    double low, high;
} span;

static void widen(span *s, double v) {
    if (isfinite(v) && v < s->low) s->low = v;
    if (isfinite(v) && v > s->high) s->high = v;
}

static double median_of(const json_t *c, const char *key) {
    return cli_json_get(json_object_get(c, key), "median");
}

/* What the y axis has to hold over all panels, and the longest length. */
static span speedup_span(const plot *p) {
    span s = {1, 1};
    for (size_t i = 0; i < n_cases(p); i++) {
        const json_t *c = json_array_get(json_object_get(p->result, "all"), i);
        widen(&s, median_of(c, "ratio"));
        widen(&s, cli_json_get(c, "ratio_low"));
        widen(&s, cli_json_get(c, "ratio_high"));
        widen(&s, cli_json_get(c, "predicted"));
    }
    const double pad = fmax(0.05, 0.08 * (s.high - s.low));
    return (span){fmax(0, s.low - pad), s.high + pad};
}

/* The widths of the series' cases, ascending by first appearance; how many. */
static int widths_of(const plot *p, const series *s, int widths[WIDTHS_MAX]) {
    int n = 0;
    for (size_t i = 0; i < n_cases(p); i++) {
        cli_arm a;
        int j = 0;
        if (!case_of(p, s, i, &a) || a.k < 0) continue;
        while (j < n && widths[j] != a.width)
            j++;
        if (j == n && n < WIDTHS_MAX) widths[n++] = a.width;
    }
    return n;
}

/* Length and speed-up, or the predicted one, or with `intervals` the speed-up and its interval, of the cases that have
 * it; rows written. */
static int write_speedup(plot *p, const series *s, int width, bool intervals, bool predicted) {
    int n = 0;
    for (size_t i = 0; i < n_cases(p); i++) {
        cli_arm a;
        const json_t *c = case_of(p, s, i, &a);
        if (!c || a.k < 0 || a.width != width) continue;
        const double y = predicted ? cli_json_get(c, "predicted") : median_of(c, "ratio");
        const double low = cli_json_get(c, "ratio_low"), high = cli_json_get(c, "ratio_high");
        if (!isfinite(y) || (intervals && !(isfinite(low) && isfinite(high)))) continue;
        fprintf(p->dat, intervals ? "%d %.6g %.6g %.6g\n" : "%d %.6g\n", a.k, y, low, high);
        n++;
    }
    return n;
}

static double auto_speedup(const plot *p, const series *s) {
    for (size_t i = 0; i < n_cases(p); i++) {
        cli_arm a;
        const json_t *c = case_of(p, s, i, &a);
        if (c && a.k < 0) return median_of(c, "ratio");
    }
    return NAN;
}

/* The legend of all panels, given with the first. */
static void write_speedup_legend(plot *p, const int *widths, int n_widths, bool interval) {
    for (int w = 0; w < n_widths; w++) {
        char name[80];
        const char *bars = interval ? ", with its 95 % interval" : "";
        if (widths[w] == 1)
            snprintf(name, sizeof name, "measured%s", bars);
        else
            snprintf(name, sizeof name, "measured, trees %d wide", widths[w]);
        fprintf(p->gp, "keyentry with linespoints ls %d title ", 1 + w);
        quote(p->gp, name, 0);
        fputs(", ", p->gp);
    }
    fputs("keyentry with linespoints ls 11 title 'predicted S(k)', keyentry with lines ls 12 title "
          "'auto', "
          "keyentry with lines ls 13 title 'plain decoding', ",
          p->gp);
}

static void speedup_panel(plot *p, const series *s, const int *widths, int n_widths, bool legend,
                          bool interval) {
    const double automatic = auto_speedup(p, s);
    fputs("set title ", p->gp);
    quote(p->gp, s->name, 0);
    /* Beside the panel, where nothing is drawn. */
    fprintf(p->gp, "\nunset y2tics\nset y2tics scale 0 (");
    if (isfinite(automatic)) fprintf(p->gp, "'auto %.2f' %.6g", automatic, automatic);
    fprintf(p->gp, ")\nplot ");
    if (legend) write_speedup_legend(p, widths, n_widths, interval);
    fputs("1 with lines ls 13 notitle", p->gp);
    if (isfinite(automatic)) fprintf(p->gp, ", %.6g with lines ls 12 notitle", automatic);
    for (int w = 0; w < n_widths; w++) {
        fprintf(p->dat, "# %s, width %d: draft length, speed-up\n", s->name, widths[w]);
        if (write_speedup(p, s, widths[w], false, false)) {
            fprintf(p->gp, ", 'speedup.dat' index %d with linespoints ls %d notitle", end_block(p),
                    1 + w);
            fprintf(p->dat, "# draft length, speed-up, low, high of 95 %%\n");
        }
        if (write_speedup(p, s, widths[w], true, false)) {
            fprintf(p->gp, ", 'speedup.dat' index %d with yerrorbars ls %d dt 1 notitle",
                    end_block(p), 1 + w);
            fprintf(p->dat, "# draft length, predicted\n");
        }
        if (write_speedup(p, s, widths[w], false, true))
            fprintf(p->gp, ", 'speedup.dat' index %d with linespoints ls 11 notitle", end_block(p));
    }
    fputs("\nunset key\n", p->gp);
}

static int plot_speedup(plot *p, int k_max) {
    const span y = speedup_span(p);
    int widths[WIDTHS_MAX], n_widths = 0;
    bool interval = false;
    for (int i = 0; i < p->n_series; i++) {
        int own[WIDTHS_MAX];
        const int n = widths_of(p, &p->list[i], own);
        for (int j = 0; j < n; j++) {
            int w = 0;
            while (w < n_widths && widths[w] != own[j])
                w++;
            if (w == n_widths && n_widths < WIDTHS_MAX) widths[n_widths++] = own[j];
        }
    }
    for (size_t i = 0; i < n_cases(p); i++)
        interval =
            interval || isfinite(cli_json_get(json_array_get(json_object_get(p->result, "all"), i),
                                              "ratio_low"));
    const int columns = p->n_series == 1 ? 1 : 2;
    const page g = {"Speed-up over plain decoding, by draft length",
                    (p->n_series + columns - 1) / columns, columns, n_widths + 3, 85};
    const int rc = begin(p, "speedup", &g);
    if (rc) return end(p, rc);
    fprintf(p->gp,
            "set yrange [%.6g:%.6g]\nset link y2\nset xrange [%g:%g]\nset xtics %g\n"
            "set xlabel 'draft length (tokens)'\nset ylabel 'speed-up (times plain)'\n",
            y.low, y.high, 1 - room(k_max), k_max + room(k_max), tic_step(k_max));
    for (int i = 0; i < p->n_series; i++)
        speedup_panel(p, &p->list[i], widths, n_widths, !i, interval);
    return end(p, CLI_OK);
}

/* ---- the cost of a pass ---- */

static int plot_cost(plot *p) {
    const json_t *passes = json_object_get(p->result, "passes"),
                 *widths = json_object_get(passes, "widths");
    const page g = {"Time of a pass of the target by its rows, and what reading or multiplying "
                    "takes at least (roofline)",
                    1, 1, 2, 75};
    double one = NAN, top = 0, rows = 1;
    bool roofline = false;
    const int rc = begin(p, "cost", &g);
    if (rc) return end(p, rc);
    fputs("# rows, ms: median, lowest, highest, roofline\n", p->dat);
    for (size_t i = 0; i < json_array_size(widths); i++) {
        const json_t *w = json_array_get(widths, i), *ms = json_object_get(w, "ms");
        const double m = cli_json_get(w, "rows"), best = cli_json_get(w, "roofline_ms");
        if (!isfinite(m) || !isfinite(cli_json_get(ms, "median"))) continue;
        fprintf(p->dat, "%.0f %.6g %.6g %.6g %.6g\n", m, cli_json_get(ms, "median"),
                cli_json_get(ms, "min"), cli_json_get(ms, "max"), best);
        if (m == 1) one = cli_json_get(ms, "median");
        rows = fmax(rows, m);
        top = fmax(top, fmax(cli_json_get(ms, "median"), fmax(cli_json_get(ms, "max"), best)));
        roofline = roofline || isfinite(best);
    }
    const int block = end_block(p);
    fprintf(p->gp,
            "set xrange [%g:%g]\nset xtics %g\nset yrange [0:%.6g]\n"
            "set xlabel 'rows of the pass (tokens checked at once), %.0f positions behind them'\n"
            "set ylabel 'time T(m) (ms)'\n",
            1 - room(rows), rows + room(rows), tic_step(rows), 1.08 * top,
            cli_json_get(passes, "context"));
    if (one > 0)
        fprintf(p->gp,
                "set y2range [0:%.6g]\nset y2tics\nset border 11\nset y2label 'T(m) / T(1)'\n",
                1.08 * top / one);
    fprintf(p->gp,
            "plot 'cost.dat' index %d using 1:2:3:4 with yerrorlines ls 1 title 'measured, lowest "
            "to highest'",
            block);
    if (roofline)
        fprintf(p->gp, ", 'cost.dat' index %d using 1:5 with linespoints ls 11 title 'roofline'",
                block);
    fputc('\n', p->gp);
    return end(p, CLI_OK);
}

/* ---- one stream in time ---- */

static double number_or_0(const json_t *o, const char *key) {
    const double v = cli_json_get(o, key);
    return isfinite(v) ? v : 0;
}

static int plot_timeline(plot *p) {
    const json_t *t = json_object_get(p->result, "timeline"),
                 *rounds = json_object_get(t, "rounds");
    const double plain_ms = cli_json_get(t, "plain_ms");
    const cli_arm arm = cli_arm_of(p->result, t);
    char title[128];
    double sum = 0, last = 0;
    for (size_t i = 0; i < json_array_size(rounds); i++) {
        const json_t *r = json_array_get(rounds, i);
        sum += number_or_0(r, "tokens");
        last = number_or_0(r, "start_ms") + number_or_0(r, "draft_ms") +
               number_or_0(r, "verify_ms") + number_or_0(r, "sample_ms");
    }
    char name[64];
    int n = snprintf(title, sizeof title, "One stream, %s: %.0f tokens in %.0f ms",
                     cli_arm_name(name, &arm), sum, last);
    if (isfinite(plain_ms))
        snprintf(title + n, sizeof title - (size_t)n, ", plainly in %.0f ms", plain_ms);
    const page g = {title, 2, 1, 6, 30};
    const int rc = begin(p, "timeline", &g);
    if (rc) return end(p, rc);
    /* Boxes of a round: the draft's tokens below, the target's own on top. */
    fputs("# a round: begin, end of draft, of verify, of sampling (ms); tokens before, after the "
          "draft's, after all\n",
          p->dat);
    sum = 0;
    for (size_t i = 0; i < json_array_size(rounds); i++) {
        const json_t *r = json_array_get(rounds, i);
        const double start = number_or_0(r, "start_ms"),
                     drafted = start + number_or_0(r, "draft_ms");
        const double verified = drafted + number_or_0(r, "verify_ms"),
                     tokens = number_or_0(r, "tokens");
        const double accepted = fmin(number_or_0(r, "accepted"), tokens);
        fprintf(p->dat, "%.6g %.6g %.6g %.6g %.0f %.0f %.0f\n", start, drafted, verified,
                verified + number_or_0(r, "sample_ms"), sum, sum + accepted, sum + tokens);
        sum += tokens;
    }
    const int block = end_block(p);
    const double right = isfinite(plain_ms) ? fmax(plain_ms, last) : last;
    fprintf(p->gp, "set xrange [0:%.6g]\nset yrange [0:%.6g]\nset style fill solid 1 noborder\n",
            1.02 * right, 1.05 * sum);
    /* The upper panel is the larger one. */
    fputs("set tmargin at screen 0.86\nset bmargin at screen 0.42\nset ylabel 'tokens "
          "written'\nset format x ''\nplot ",
          p->gp);
    fprintf(p->gp,
            "'timeline.dat' index %d using (($1+$4)/2):(($5+$6)/2):1:4:5:6 with boxxyerror lc rgb "
            "'#f2a541' title 'tokens that the draft guessed'"
            ", '' index %d using (($1+$4)/2):(($6+$7)/2):1:4:6:7 with boxxyerror lc rgb '#08306b' "
            "title 'tokens of the target'",
            block, block);
    if (isfinite(plain_ms))
        fprintf(p->gp,
                ", [0:%.6g] x*%.8g with lines lc rgb '#606060' dt 2 lw 2 title 'plain decoding'",
                plain_ms, sum / plain_ms);
    fputs(", keyentry with boxes lc rgb '#f9d9a8' title 'time drafting', keyentry with boxes lc "
          "rgb '#3f78b5' title 'time verifying'"
          ", keyentry with boxes lc rgb '#333333' title 'time sampling'\n",
          p->gp);
    fputs("unset key\nset format x\nunset ytics\nunset grid\nset ylabel 'time for'\nset yrange "
          "[0:1]\n"
          "set xlabel 'time since decoding began (ms)'\nset tmargin at screen 0.37\nset bmargin at "
          "screen 0.21\n",
          p->gp);
    fprintf(
        p->gp,
        "plot 'timeline.dat' index %d using (($1+$2)/2):(0.5):1:2:(0.1):(0.9) with boxxyerror lc "
        "rgb '#f9d9a8'"
        ", '' index %d using (($2+$3)/2):(0.5):2:3:(0.1):(0.9) with boxxyerror lc rgb '#3f78b5'"
        ", '' index %d using (($3+$4)/2):(0.5):3:4:(0.1):(0.9) with boxxyerror lc rgb '#333333'\n",
        block, block, block);
    return end(p, CLI_OK);
}

/* ---- all ---- */

int cli_plot(const char *dir, const json_t *result) {
    plot p = {.dir = dir, .result = result};
    int k_max = 0, rc = CLI_OK;
    find_series(&p);
    for (size_t i = 0; i < n_cases(&p); i++) {
        const cli_arm a = cli_arm_of(result, json_array_get(json_object_get(result, "all"), i));
        if (a.k > k_max) k_max = a.k;
    }
    if (k_max) {
        if ((rc = plot_acceptance(&p, k_max)) || (rc = plot_speedup(&p, k_max))) return rc;
    } else {
        left_out("acceptance", "no fixed draft length was measured");
        left_out("speedup", "no fixed draft length was measured");
    }
    if (json_array_size(json_object_get(json_object_get(result, "passes"), "widths")))
        rc = plot_cost(&p);
    else
        left_out("cost", "no passes were measured");
    if (rc) return rc;
    if (json_array_size(json_object_get(json_object_get(result, "timeline"), "rounds")))
        return plot_timeline(&p);
    left_out("timeline", "no stream was recorded");
    return CLI_OK;
}
