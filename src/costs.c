/* What passes cost, kept on disk: measuring takes seconds, and the same models on the same machine cost the same
 * tomorrow. One file of text for each key; a file that is damaged, of another key or not there is measured anew, and
 * one that can't be written is no error: the work goes on without. */
#include "lib_internal.h"
#include "spec/measure.h"

#include <assert.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char first_line[] = "tandem costs 1";

/* ---- the key: everything that the figures hang on, as a line of text ---- */

static void add_cpu(td_buf *b) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) && strncmp(line, "CPU part", 8)) continue;
        line[strcspn(line, "\n")] = 0;
        td_buf_printf(b, "%s", line);
        break;
    }
    if (f) fclose(f);
    td_buf_printf(b, "; %d cores", td_cpu_count());
}

/* The file this code was loaded from: another build may be faster. */
static void add_build(td_buf *b) {
    Dl_info at;
    struct stat st;
    td_buf_printf(b, "; %s", td_version());
    if (dladdr((const void *)first_line, &at) && at.dli_fname && !stat(at.dli_fname, &st))
        td_buf_printf(b, " %lld %lld", (long long)st.st_size, (long long)st.st_mtime);
}

static void add_model(td_buf *b, const td_model *m) {
    const td_model_info *i = &m->info;
    td_buf_printf(b, "; %s %" PRIu64 " bytes, step %" PRIu64 ", macs %" PRIu64 ", %d threads",
                  i->arch, i->file_bytes, i->step_bytes, i->row_macs, i->n_threads);
}

static bool make_key(const td_session *s, td_buf *b) {
    const char *level = "";
    td_cpu_level(&level, NULL);
    add_cpu(b);
    td_buf_printf(b, ", %s", level);
    add_build(b);
    add_model(b, s->target_model);
    add_model(b, s->draft_model);
    const kv_cache *kv = target_cache(s->t);
    td_buf_printf(b, "; kv %d %d", (int)kv_k_type(kv), (int)kv_v_type(kv));
    const int most = MEASURE_FAR + LENGTH_MAX + 1; /* a larger context is measured no farther */
    if (s->n_ctx < most) td_buf_printf(b, ", context %d", s->n_ctx);
    if (s->draft_max < LENGTH_MAX) td_buf_printf(b, ", drafts of %d", s->draft_max);
    for (size_t i = 0; i < b->len; i++)
        if ((unsigned char)b->data[i] < ' ') b->data[i] = ' ';
    return !b->failed;
}

/* FNV-1a: names the file; the key itself stands inside. */
static uint64_t hash(const char *text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

/* ---- the file ---- */

/* The cache folder with its file; false where there is none (no home). make: creates the folder. */
static bool make_path(td_buf *b, const char *key, bool make) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/')
        td_buf_printf(b, "%s", cache);
    else if (home && *home == '/')
        td_buf_printf(b, "%s/.cache", home);
    else
        return false;
    if (make && !b->failed) mkdir(b->data, 0700);
    td_buf_printf(b, "/tandem");
    if (make && !b->failed) mkdir(b->data, 0755);
    td_buf_printf(b, "/costs-%016" PRIx64, hash(key));
    return !b->failed;
}

static bool read_number(FILE *f, float *out) {
    double v;
    if (fscanf(f, "%lf", &v) != 1 || !(v > 0 && v < 1e7)) return false;
    *out = (float)v;
    return true;
}

static bool read_line(FILE *f, const char *want) {
    const size_t n = strlen(want);
    for (size_t i = 0; i < n; i++)
        if (getc(f) != (unsigned char)want[i]) return false;
    return getc(f) == '\n';
}

static bool read_costs(const char *path, const char *key, length_costs *c) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = read_line(f, first_line) && read_line(f, key) &&
              fscanf(f, "%d %d", &c->near, &c->far) == 2 && c->near >= 1 && c->far > c->near &&
              read_number(f, &c->draft);
    for (int i = 0; i < 2; i++)
        for (int m = 1; m <= LENGTH_MAX + 1 && ok; m++)
            ok = read_number(f, &c->verify[i][m]);
    fclose(f);
    return ok;
}

/* Into a file beside it, then renamed: nobody reads half of it. */
static void write_costs(const char *path, const char *key, const length_costs *c) {
    td_buf part = {0};
    td_buf_printf(&part, "%s.%ld", path, (long)getpid());
    FILE *f = part.failed ? NULL : fopen(part.data, "we");
    if (f) {
        fprintf(f, "%s\n%s\n%d %d %.4f\n", first_line, key, c->near, c->far, (double)c->draft);
        for (int i = 0; i < 2; i++)
            for (int m = 1; m <= LENGTH_MAX + 1; m++)
                fprintf(f, "%.4f%c", (double)c->verify[i][m], m > LENGTH_MAX ? '\n' : ' ');
        if (ferror(f) + fclose(f) || rename(part.data, path)) unlink(part.data);
    }
    td_buf_free(&part);
}

/* ---- the session ---- */

static td_code measure(td_session *s, length_costs *c, bool (*progress)(void *, int, int),
                       void *user, td_error *err) {
    lib_session_lock(s);
    const td_code rc = spec_measure(s->s, c, progress, user, err);
    lib_session_unlock(s);
    return rc;
}

td_code td_session_calibrate(td_session *s, bool again,
                             bool (*progress)(void *user, int done, int total), void *user,
                             bool *measured, td_error *err) {
    static_assert((int)TD_AUTO_MAX_DRAFT == (int)LENGTH_MAX, "the longest draft");
    if (!s->d) return td_fail(err, TD_E_ARG, "without a draft there is nothing to measure for");
    td_buf key = {0}, path = {0};
    length_costs c;
    td_code rc = TD_OK;
    const bool named = make_key(s, &key) && make_path(&path, key.data, false);
    const bool known = named && !again && read_costs(path.data, key.data, &c);
    if (!known && !(rc = measure(s, &c, progress, user, err)) && named) {
        path.len = 0;
        if (make_path(&path, key.data, true)) write_costs(path.data, key.data, &c);
    }
    if (!rc) {
        spec_set_costs(s->s, &c);
        s->calibrated = true;
        if (measured) *measured = !known;
    }
    td_buf_free(&key);
    td_buf_free(&path);
    return rc;
}

td_code lib_session_calibrated(td_session *s, td_error *err) {
    return s->calibrated ? TD_OK : td_session_calibrate(s, false, NULL, NULL, NULL, err);
}
