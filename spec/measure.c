/* What passes cost on this machine, before the first text: the table that the draft length is chosen by.
 *
 * All widths behind a short context, some behind a longer one; between them attention grows in proportion to the
 * rows. In turns, up and down, each figure the least of its visits: what others on the machine take from a pass only
 * makes it longer, and how much they take at the moment is the drift that the length follows later. For the same reason
 * a pass is taken to cost no more than one of more rows. */
#include "spec/measure.h"

enum {
    NEAR = 128,
    FAR = MEASURE_FAR,
    VISITS = 3,
    TEXT = 16, /* the draft's, while its step is timed */
    STEPS = 8  /* of a proposal */
};

enum { MOST_ROWS = LENGTH_MAX + 1, N_FAR = 4 };

typedef struct measuring {
    target *t;
    draft *d;
    bool (*progress)(void *, int, int);
    void *user;
    int done, total;
    double ms[MOST_ROWS][VISITS];
} measuring;

static float least(const double *v, int n) {
    double min = v[0];
    for (int i = 1; i < n; i++)
        min = v[i] < min ? v[i] : min;
    return (float)min;
}

static td_code step(measuring *x, td_error *err) {
    if (x->progress && !x->progress(x->user, x->done, x->total))
        return td_fail(err, TD_E_CANCELLED, "cancelled while measuring what passes cost");
    x->done++;
    return TD_OK;
}

/* ms[i] of a pass of rows[i] rows (rows NULL: i + 1) behind n_pos positions. */
static td_code time_passes(measuring *x, int n_pos, const int *rows, int n, float *ms,
                           td_error *err) {
    static const int32_t tokens[MOST_ROWS] = {0};
    td_code rc = target_pretend(x->t, n_pos, err);
    for (int i = 0; i < n * VISITS && !rc; i++) {
        const int visit = i / n, at = visit % 2 ? n - 1 - i % n : i % n;
        const float *logits;
        if ((rc = step(x, err))) break;
        const uint64_t start = td_now_ns();
        rc = target_verify(x->t, tokens, NULL, rows ? rows[at] : at + 1, &logits, err);
        x->ms[at][visit] = (double)(td_now_ns() - start) / 1e6;
    }
    for (int i = n - 1; i >= 0 && !rc; i--) {
        ms[i] = least(x->ms[i], VISITS);
        if (i + 1 < n && ms[i + 1] < ms[i]) ms[i] = ms[i + 1];
    }
    return rc;
}

/* A step of the draft: proposals of STEPS tokens; the first also reads a token of the text, as all do. */
static td_code time_draft(measuring *x, float *ms, td_error *err) {
    static const int32_t text[TEXT] = {0};
    static const verify_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    draft_proposal p;
    double v[VISITS];
    td_code rc = draft_begin(x->d, text, TEXT, NULL, NULL, err);
    for (int i = 0; i < VISITS && !rc; i++) {
        const draft_request req = {
            .max_tokens = STEPS, .sampler = &greedy, .history = text, .n_history = TEXT};
        if ((rc = step(x, err))) break;
        const uint64_t start = td_now_ns();
        if ((rc = draft_propose(x->d, &req, &p, err))) break;
        v[i] = (double)(td_now_ns() - start) / 1e6 / (p.n ? p.n : 1);
    }
    if (!rc) *ms = least(v, VISITS);
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
    x.total = VISITS * (n + N_FAR + 1);
    *out = (length_costs){.near = room < 2 * NEAR ? room / 2 : NEAR,
                          .far = room < FAR ? room : FAR};
    if (n < 2 || out->near < 1 || out->near >= out->far)
        return td_fail(err, TD_E_TOO_BIG,
                       "a context of %d positions is too small to measure passes in; 4 will do, or "
                       "a fixed draft length",
                       n_ctx);
    float far_ms[N_FAR], *near_ms = out->verify[0];
    td_code rc;
    if (!(rc = time_passes(&x, out->near, NULL, n, near_ms + 1, err)) &&
        !(rc = time_passes(&x, out->far, far_rows, N_FAR, far_ms, err))) {
        for (int m = n + 1; m <= MOST_ROWS; m++) /* never asked for; no hole in the table */
            near_ms[m] = 2 * near_ms[m - 1] - near_ms[m - 2];
        fill_far(out, far_rows, far_ms);
        target_truncate(t, 0);
        rc = time_draft(&x, &out->draft, err);
    }
    target_truncate(t, 0);
    return rc;
}
