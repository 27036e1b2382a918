/* What passes cost on this machine, before the first text: the table that the draft length is chosen by.
 *
 * All widths behind a short context, some behind a longer one where there is room; between them attention grows in proportion to the
 * rows. In turns, up and down, each figure the least of its visits: what others on the machine take from a pass only
 * makes it longer, and how much they take at the moment is the drift that the length follows later. A figure stands
 * when a second visit came near it; until then there are more visits, to a limit. For the same reason a pass is
 * taken to cost no more than one of more rows. */
#include "spec/measure.h"

#include <stdlib.h>
#include <string.h>

enum {
    NEAR = 128,
    FAR = MEASURE_FAR,
    LEAST_FAR =
        1024,   /* attention grows too little before, beside what the machine drifts meanwhile */
    VISITS = 4, /* of each figure; to MOST_VISITS where they disagree */
    MOST_VISITS = 12,
    TEXT = 16, /* the draft's, while its step is timed */
    STEPS = 8  /* of a proposal */
};

enum { MOST_ROWS = LENGTH_MAX + 1, N_FAR = 4 };

static const int32_t text[TEXT] = {0};
static const float near_to = 1.05f;    /* the second least of the visits, over the least */
static const float least_row = 0.005f; /* of T(1), that a row costs */

typedef struct measuring {
    target *t;
    draft *d;
    bool (*progress)(void *, int, int);
    void *user;
    int done, total;
} measuring;

/* The least of the visits, and the next. */
typedef struct figure {
    float least, second;
    int n;
} figure;

static void add(figure *f, double ms) {
    const float v = (float)ms;
    if (!f->n++ || v < f->least)
        f->second = f->least, f->least = v;
    else if (f->n == 2 || v < f->second)
        f->second = v;
}

static bool stands(const figure *f) {
    return f->n >= VISITS && (f->second <= near_to * f->least || f->n >= MOST_VISITS);
}

static td_code step(measuring *x, td_error *err) {
    if (x->progress && !x->progress(x->user, x->done, x->total))
        return td_fail(err, TD_E_CANCELLED, "cancelled while measuring what passes cost");
    if (x->done + 1 < x->total) x->done++; /* visits beyond the usual number do not count */
    return TD_OK;
}

static td_code time_pass(measuring *x, int n_rows, figure *f, td_error *err) {
    static const int32_t tokens[MOST_ROWS] = {0};
    const float *logits;
    td_code rc = step(x, err);
    if (rc) return rc;
    const uint64_t start = td_now_ns();
    if ((rc = target_verify(x->t, tokens, NULL, n_rows, &logits, err))) return rc;
    add(f, (double)(td_now_ns() - start) / 1e6);
    return TD_OK;
}

/* When the draft asks about its next token, a step is done. */
typedef struct steps {
    uint64_t last;
    double ms[STEPS];
    int n;
} steps;

static draft_answer on_step(void *user, int i, float confidence) {
    steps *s = user;
    (void)confidence;
    const uint64_t now = td_now_ns();
    if (i > 0) s->ms[s->n++] = (double)(now - s->last) / 1e6;
    s->last = now;
    return (draft_answer){.width = 1, .go_on = true};
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A proposal; its median step. */
static td_code time_draft(measuring *x, figure *f, td_error *err) {
    static const verify_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    steps s = {0};
    const draft_request req = {.max_tokens = STEPS,
                               .sampler = &greedy,
                               .history = text,
                               .n_history = TEXT,
                               .ask = on_step,
                               .user = &s};
    draft_proposal p;
    td_code rc = step(x, err);
    if (rc) return rc;
    const uint64_t start = td_now_ns();
    if ((rc = draft_propose(x->d, &req, &p, err))) return rc;
    if (!s.n)
        s.ms[s.n++] =
            (double)(td_now_ns() - start) / 1e6; /* it takes one token at a time, or does not ask */
    qsort(s.ms, (size_t)s.n, sizeof *s.ms, by_value);
    add(f, s.ms[s.n / 2]);
    return TD_OK;
}

/* ms[i] of a pass of rows[i] rows (rows NULL: i + 1) behind n_pos positions; between the passes a step of the draft,
 * where draft_ms is not NULL. */
static td_code time_all(measuring *x, int n_pos, const int *rows, int n, float *ms, float *draft_ms,
                        td_error *err) {
    figure f[MOST_ROWS] = {{0}}, f_draft = {0};
    td_code rc = target_pretend(x->t, n_pos, err);
    for (int visit = 0, open = 1; open && !rc; visit++) {
        open = 0;
        if (draft_ms && !stands(&f_draft)) {
            rc = time_draft(x, &f_draft, err);
            open += !stands(&f_draft);
        }
        for (int i = 0; i < n && !rc; i++) {
            const int at = visit % 2 ? n - 1 - i : i;
            if (stands(&f[at])) continue;
            rc = time_pass(x, rows ? rows[at] : at + 1, &f[at], err);
            open += !stands(&f[at]);
        }
    }
    if (draft_ms) *draft_ms = f_draft.least;
    for (int i = n - 1; i >= 0; i--) {
        ms[i] = f[i].least;
        if (i + 1 < n && ms[i + 1] < ms[i]) ms[i] = ms[i + 1];
    }
    for (int i = 1; i < n; i++) {
        const float least = ms[i - 1] + least_row * ms[0];
        if (ms[i] < least) ms[i] = least;
    }
    return rc;
}

/* The column of the longer context: attention's part grows in proportion between the widths that were measured. */
static void fill_far(length_costs *c, const int rows[N_FAR], const float ms[N_FAR]) {
    for (int m = 1, i = 0; m <= MOST_ROWS; m++) {
        while (i + 2 < N_FAR && m > rows[i + 1])
            i++;
        const float first = ms[i] - c->verify[0][rows[i]],
                    last = ms[i + 1] - c->verify[0][rows[i + 1]];
        const int width = rows[i + 1] - rows[i];
        const float share = width ? (float)(m - rows[i]) / (float)width : 0;
        const float more = first + (last - first) * share;
        c->verify[1][m] = c->verify[0][m] + (more > 0 ? more : 0);
    }
}

td_code measure_costs(target *t, draft *d, int max_rows, length_costs *out,
                      bool (*progress)(void *, int done, int total), void *user, td_error *err) {
    const int n_ctx = kv_n_ctx(target_cache(t));
    int n = max_rows < MOST_ROWS ? max_rows : MOST_ROWS;
    if (n > n_ctx / 2) n = n_ctx / 2;
    const int far_rows[N_FAR] = {1, (n + 3) / 4, (n + 1) / 2, n};
    const int room = n_ctx - n;
    measuring x = {.t = t, .d = d, .progress = progress, .user = user};
    *out = (length_costs){.near = room < 2 * NEAR ? room / 2 : NEAR};
    if (n < 2 || out->near < 1)
        return td_fail(err, TD_E_TOO_BIG,
                       "a context of %d positions is too small to measure passes in; 4 will do, or "
                       "a fixed draft length",
                       n_ctx);
    const bool reaches = room >= LEAST_FAR;
    x.total = VISITS * (n + 1 + (reaches ? N_FAR : 0));
    out->far = room >= FAR ? FAR : reaches ? room : out->near + 1;
    float far_ms[N_FAR], *near_ms = out->verify[0];
    bool has_model = false;
    for (int i = 0; i < draft_n_sources(d); i++)
        has_model |= !draft_by_text(draft_source(d, i));
    out->draft = 0.001f; /* of guesses by text */
    td_code rc;
    if ((rc = draft_begin(d, text, TEXT, NULL, NULL, err)) ||
        (rc = time_all(&x, out->near, NULL, n, near_ms + 1, has_model ? &out->draft : NULL, err)) ||
        (reaches && (rc = time_all(&x, out->far, far_rows, N_FAR, far_ms, NULL, err))))
        goto done;
    for (int m = n + 1; m <= MOST_ROWS; m++) /* never asked for; no hole in the table */
        near_ms[m] = 2 * near_ms[m - 1] - near_ms[m - 2];
    if (reaches)
        fill_far(out, far_rows, far_ms);
    else
        memcpy(out->verify[1], near_ms, sizeof out->verify[1]);
done:
    target_truncate(t, 0);
    return rc;
}
