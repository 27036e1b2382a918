/* The sampler: a row of logits to probabilities, or to its argmax.
 *
 * Runs once for each row of a verify pass, over 32,000 to 262,000 ids, so nothing is sorted and
 * nothing is copied. Every filter of the chain keeps the front of one order (logit downward, ties:
 * id upward); the whole chain is therefore one cut in that order, and each filter only moves the
 * cut. Work goes by blocks of 128 ids: the block maxima, found first, tell which blocks lie wholly
 * behind the cut. The few ids with a bias or a penalty are overlaid when their block is read.
 *
 * Results are the same bits on every machine: additions in a written order, and an exponential of
 * our own (libm's differs between CPUs). */
#include "verify/verify_internal.h"

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 128,
    LANES = 8,
    SHELLS = 512,       /* top-p's histogram: distance below the largest logit, */
    SHELLS_PER_NAT = 8, /* in steps of 1/8; the last shell holds the rest */
    COPIES = 4          /* of the histogram: additions to one shell would wait for each other */
};

typedef struct touched {
    int32_t token;
    int32_t count; /* in the penalty window */
    float logit;   /* after bias, then after penalties */
} touched;

typedef struct candidate {
    uint64_t key; /* place in the order: higher comes first; unlike for all ids */
    double weight;
} candidate;

struct verify_work {
    int n_vocab, n_blocks, n_touched;
    uint32_t *slot;         /* (n_vocab) 1 + index into touched, 0: plain; all 0 between calls */
    touched *touched;       /* (n_vocab) */
    candidate *candidates;  /* (n_vocab) */
    float *block_max;       /* (n_blocks) */
    unsigned char *overlay; /* (n_blocks) the block holds a touched id or an infinite logit */
    double shell[COPIES][SHELLS];
};

/* A row being worked on, and what is still in it: the ids up to and with (value, id) in the order.
 */
typedef struct row {
    verify_work *w;
    const float *logits;
    float max;
    float cut_value;
    int32_t cut_id;
} row;

/* ---- settings ---- */

td_code verify_sampler_check(const verify_sampler *s, int n_vocab, td_error *err) {
    if (n_vocab < 1)
        return td_fail(err, TD_E_ARG, "a vocabulary of %d tokens makes no sense", n_vocab);
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        return td_fail(err, TD_E_ARG, "--temp is %g; it must be 0 (greedy) or more",
                       s->temperature);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return td_fail(err, TD_E_ARG, "--top-p is %g; it must lie between 0 and 1 (off)", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return td_fail(err, TD_E_ARG, "--min-p is %g; it must lie between 0 (off) and 1", s->min_p);
    if (!(s->repeat_penalty > 0 && isfinite(s->repeat_penalty)))
        return td_fail(err, TD_E_ARG, "--repeat-penalty is %g; it must be above 0 (1: off)",
                       s->repeat_penalty);
    if (!isfinite(s->presence_penalty))
        return td_fail(err, TD_E_ARG,
                       "--presence-penalty is %g; it must be a finite number (0: off)",
                       s->presence_penalty);
    if (!isfinite(s->frequency_penalty))
        return td_fail(err, TD_E_ARG,
                       "--frequency-penalty is %g; it must be a finite number (0: off)",
                       s->frequency_penalty);
    if (s->repeat_last_n < -1)
        return td_fail(
            err, TD_E_ARG,
            "--repeat-last-n is %d; it must be 0 (off), -1 (the whole context) or a count",
            s->repeat_last_n);
    if (s->n_bias < 0 || (s->n_bias > 0 && !s->bias))
        return td_fail(err, TD_E_ARG, "--logit-bias: a list of %d entries makes no sense",
                       s->n_bias);
    for (int i = 0; i < s->n_bias; i++) {
        const verify_bias *b = &s->bias[i];
        if (b->token < 0 || b->token >= n_vocab)
            return td_fail(err, TD_E_ARG,
                           "--logit-bias names token %d; this model has tokens 0 to %d", b->token,
                           n_vocab - 1);
        if (!(b->bias < INFINITY) /* NaN too; -inf forbids the token */)
            return td_fail(
                err, TD_E_ARG,
                "--logit-bias of token %d is %g; it must be a number, or -inf to forbid it",
                b->token, b->bias);
    }
    return TD_OK;
}

/* ---- scratch ---- */

td_code verify_work_open(verify_work **out, int n_vocab, td_error *err) {
    verify_work *w = NULL;
    if (n_vocab < 1)
        return td_fail(err, TD_E_ARG, "a vocabulary of %d tokens makes no sense", n_vocab);
    const size_t n = (size_t)n_vocab, n_blocks = (n + BLOCK - 1) / BLOCK;
    if (!(w = td_calloc(1, sizeof *w))) goto fail;
    w->n_vocab = n_vocab;
    w->n_blocks = (int)n_blocks;
    if (!(w->slot = td_calloc(n, sizeof *w->slot)) ||
        !(w->touched = td_calloc(n, sizeof *w->touched)) ||
        !(w->candidates = td_calloc(n, sizeof *w->candidates)) ||
        !(w->block_max = td_calloc(n_blocks, sizeof *w->block_max)) ||
        !(w->overlay = td_calloc(n_blocks, sizeof *w->overlay)))
        goto fail;
    *out = w;
    return TD_OK;
fail:
    verify_work_close(w);
    return td_fail(err, TD_E_MEMORY, "out of memory for sampling from %d tokens", n_vocab);
}

void verify_work_close(verify_work *w) {
    if (!w) return;
    free(w->slot);
    free(w->touched);
    free(w->candidates);
    free(w->block_max);
    free(w->overlay);
    free(w);
}

/* ---- bias and penalties: a list of the ids they touch ---- */

static touched *touch(verify_work *w, const float *logits, int32_t token) {
    if (!w->slot[token]) {
        w->touched[w->n_touched] = (touched){.token = token, .logit = logits[token]};
        w->slot[token] = (uint32_t)++w->n_touched;
        w->overlay[token / BLOCK] = 1;
    }
    return &w->touched[w->slot[token] - 1];
}

static void count_window(verify_work *w, const float *logits, const int32_t *tokens, int n) {
    for (int i = 0; i < n; i++)
        /* A draft with a padded vocabulary may have put in an id that this row does not have. */
        if (tokens[i] >= 0 && tokens[i] < w->n_vocab) touch(w, logits, tokens[i])->count++;
}

static void row_begin(row *r, verify_work *w, const verify_sampler *s, const float *logits,
                      int n_vocab, const int32_t *history, int n_history, const int32_t *path,
                      int n_path) {
    assert(n_vocab == w->n_vocab && n_history >= 0 && n_path >= 0 && !w->n_touched);
    *r = (row){
        .w = w, .logits = logits, .max = -INFINITY, .cut_value = -INFINITY, .cut_id = INT32_MAX};
    memset(w->overlay, 0, (size_t)w->n_blocks);
    for (int i = 0; i < s->n_bias; i++)
        touch(w, logits, s->bias[i].token)->logit += s->bias[i].bias;

    const bool penalties =
        s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
    if (!penalties || s->repeat_last_n == 0) return;
    const int window = s->repeat_last_n < 0 ? INT_MAX : s->repeat_last_n;
    const int from_path = n_path < window ? n_path : window;
    const int from_history = n_history < window - from_path ? n_history : window - from_path;
    if (from_path) count_window(w, logits, path + n_path - from_path, from_path);
    if (from_history) count_window(w, logits, history + n_history - from_history, from_history);
    for (int i = 0; i < w->n_touched; i++) {
        touched *t = &w->touched[i];
        if (!t->count) continue; /* only a bias */
        t->logit = t->logit > 0 ? t->logit / s->repeat_penalty : t->logit * s->repeat_penalty;
        t->logit -= (float)t->count * s->frequency_penalty + s->presence_penalty;
    }
}

/* Leaves the scratch as the next call expects it: in as many steps as ids were touched. */
static void row_end(row *r) {
    verify_work *w = r->w;
    for (int i = 0; i < w->n_touched; i++)
        w->slot[w->touched[i].token] = 0;
    w->n_touched = 0;
}

/* ---- reading blocks ---- */

static int block_size(const row *r, int b) {
    const int left = r->w->n_vocab - b * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

/* The block's logits after bias and penalties; -inf past the vocabulary. NaN may be among them:
 * every comparison below is written so that NaN loses it. */
static const float *block_read(const row *r, int b, float buf[BLOCK]) {
    const verify_work *w = r->w;
    const int at = b * BLOCK, n = block_size(r, b);
    if (!w->overlay[b] && n == BLOCK) return r->logits + at;
    for (int i = 0; i < n; i++) {
        const uint32_t slot = w->slot[at + i];
        const float x = slot ? w->touched[slot - 1].logit : r->logits[at + i];
        buf[i] = x > FLT_MAX ? FLT_MAX : x;
    }
    for (int i = n; i < BLOCK; i++)
        buf[i] = -INFINITY;
    return buf;
}

/* The same without what lies behind the cut: that is -inf. */
static const float *block_read_kept(const row *r, int b, float buf[BLOCK]) {
    const float *x = block_read(r, b, buf), cut = r->cut_value;
    if (cut == -INFINITY) return x;
    const int32_t last =
        r->cut_id < b * BLOCK ? -1 : r->cut_id - b * BLOCK; /* of those at the cut */
    for (int i = 0; i < BLOCK; i++)
        buf[i] = (x[i] > cut) | ((x[i] == cut) & (i <= last)) ? x[i] : -INFINITY;
    return buf;
}

static bool block_alive(const row *r, int b) {
    return r->w->block_max[b] >= r->cut_value;
}

static float max_of(const float x[BLOCK]) {
    float m[16];
    for (int j = 0; j < 16; j++)
        m[j] = -INFINITY;
    for (int i = 0; i < BLOCK; i += 16)
        for (int j = 0; j < 16; j++)
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++)
            m[j] = m[j + half] > m[j] ? m[j + half] : m[j];
    return m[0];
}

/* Fills block_max and returns the id of the row's largest logit; -1 when nothing is above -inf. */
static int32_t row_max(row *r) {
    verify_work *w = r->w;
    float buf[BLOCK];
    int best = -1;
    for (int b = 0; b < w->n_blocks; b++) {
        float m = max_of(block_read(r, b, buf));
        if (m > FLT_MAX) {
            w->overlay[b] = 1; /* from now on +inf reads as the largest float */
            m = max_of(block_read(r, b, buf));
        }
        w->block_max[b] = m;
        if (m > r->max) r->max = m, best = b;
    }
    if (best < 0) return -1;
    const float *x = block_read(r, best, buf);
    int i = 0;
    while (!(x[i] == r->max))
        i++;
    return best * BLOCK + i;
}

/* ---- the exponential ---- */

/* exp(d) for d <= 0, to 1e-11 (the probability is rounded to a float, 6e-8); 0 below -697 and for
 * NaN. Cody-Waite reduction to |r| <= ln(2)/2, a polynomial of degree 9, the exponent added as
 * bits. In two steps, since gcc turns clamp and polynomial in one loop into a branch for the
 * constant instead of vector lanes: 2x slower. */
static inline double exp_clamp(double d) {
    return d > -700 ? d : -700;
}

static inline double exp_clamped(double x) {
    const double shift = 0x1.8p52; /* adding it leaves the nearest integer in the low bits */
    const double shifted = x * 0x1.71547652b82fep0 + shift;
    const double k = shifted - shift;
    const double r = (x - k * 0x1.62e42fefa38p-1) - k * 0x1.ef35793c7673p-45;
    double y = 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = y * r + 1;
    y = y * r + 1;
    uint64_t bits, exponent;
    memcpy(&bits, &y, sizeof bits);
    memcpy(&exponent, &shifted, sizeof exponent);
    bits += exponent << 52;
    memcpy(&y, &bits, sizeof y);
    return y > 1e-303 ? y : 0;
}

static double exp_down(double d) {
    return exp_clamped(exp_clamp(d));
}

static void exp_block(const float x[BLOCK], float max, double scale, double out[BLOCK]) {
    for (int i = 0; i < BLOCK; i++)
        out[i] = exp_clamp(((double)x[i] - max) * scale);
    for (int i = 0; i < BLOCK; i++)
        out[i] = exp_clamped(out[i]);
}

static double add_lanes(const double lane[LANES]) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* ---- the cut ---- */

/* Floats as integers of the same order; the two zeros are equal. */
static uint32_t float_rank(float x) {
    uint32_t bits;
    x += 0.0f; /* -0 becomes +0 */
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float float_of_rank(uint32_t rank) {
    const uint32_t bits = rank & 0x80000000u ? rank & 0x7fffffffu : ~rank;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t key_of(float x, int32_t id) {
    return (uint64_t)float_rank(x) << 32 | (UINT32_MAX - (uint32_t)id);
}

static void cut_at(row *r, uint64_t key) {
    r->cut_value = float_of_rank((uint32_t)(key >> 32));
    r->cut_id = (int32_t)(UINT32_MAX - (uint32_t)key);
}

/* Walks the candidates from the highest key downward until their weights reach `target` and returns
 * the key it stops at; the lowest of all where they do not reach it. A radix selection: in each
 * round the candidates fall into 256 bins by the 8 highest bits in which they still differ, and one
 * bin stays. Linear, and has no bad case. n >= 1; reorders nothing but drops candidates from the
 * array. */
static uint64_t select_key(candidate *c, int n, double target) {
    double above = 0;
    for (;;) {
        uint64_t differ = 0;
        for (int i = 1; i < n; i++)
            differ |= c[i].key ^ c[0].key;
        if (!differ) return c[0].key;
        const int top = 63 - __builtin_clzll(differ), shift = top < 7 ? 0 : top - 7;

        double weight[256] = {0};
        int count[256] = {0};
        for (int i = 0; i < n; i++) {
            const unsigned bin = c[i].key >> shift & 255;
            weight[bin] += c[i].weight;
            count[bin]++;
        }
        /* Where the target is not reached (rounding, or less weight than asked for), the lowest
         * bin. */
        int chosen = -1;
        double above_chosen = 0;
        for (int bin = 255; bin >= 0; bin--) {
            if (!count[bin]) continue;
            chosen = bin;
            above_chosen = above;
            above += weight[bin];
            if (above >= target) break;
        }
        above = above_chosen;
        int m = 0;
        for (int i = 0; i < n; i++)
            if ((int)(c[i].key >> shift & 255) == chosen) c[m++] = c[i];
        n = m;
    }
}

/* Keeps the k highest. Of the block maxima the k-th highest is a bound that at least k ids reach,
 * and few more, so that only those become candidates: ~45 of 152,000 for k = 40. */
static void cut_top_k(row *r, int k) {
    verify_work *w = r->w;
    if (k >= w->n_vocab) return;
    candidate *c = w->candidates;
    float buf[BLOCK], bound = -INFINITY;
    if (k <= w->n_blocks) {
        for (int b = 0; b < w->n_blocks; b++)
            c[b] = (candidate){key_of(w->block_max[b], b), 1};
        bound = float_of_rank((uint32_t)(select_key(c, w->n_blocks, k) >> 32));
    }
    int n = 0;
    for (int b = 0; b < w->n_blocks; b++) {
        if (!(w->block_max[b] >= bound)) continue;
        const float *x = block_read(r, b, buf);
        for (int i = 0; i < BLOCK; i++)
            if (x[i] >= bound && x[i] > -INFINITY)
                c[n++] = (candidate){key_of(x[i], b * BLOCK + i), 1};
    }
    cut_at(r, select_key(c, n, k));
}

/* The shell of a logit: steps of 1/8 below the largest. Exact arithmetic up to one rounding each,
 * so it falls monotonically and is the same whenever it is asked for. */
static int shell_of(float x, float max) {
    const double d = ((double)max - x) * SHELLS_PER_NAT;
    return d < SHELLS - 1 ? (int)d
                          : SHELLS - 1; /* NaN and -inf: the last, where their weight is 0 */
}

/* Keeps the fewest of the highest whose probabilities, among those still kept, add up to top_p. A
 * first pass sums the weights and the weights of each shell; only the shell in which the mark lies
 * is looked into. */
static void cut_top_p(row *r, double top_p) {
    verify_work *w = r->w;
    float buf[BLOCK];
    double weight[BLOCK], lane[LANES] = {0};
    memset(w->shell, 0, sizeof w->shell);
    for (int b = 0; b < w->n_blocks; b++) {
        if (!block_alive(r, b)) continue;
        const float *x = block_read_kept(r, b, buf);
        exp_block(x, r->max, 1, weight);
        for (int i = 0; i < BLOCK; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += weight[i + j];
        for (int i = 0; i < BLOCK; i++)
            w->shell[i % COPIES][shell_of(x[i], r->max)] += weight[i];
    }
    const double mark = top_p * add_lanes(lane);
    double above = 0;
    int shell = 0;
    for (; shell < SHELLS; shell++) {
        const double here =
            (w->shell[0][shell] + w->shell[1][shell]) + (w->shell[2][shell] + w->shell[3][shell]);
        if (here > 0 && above + here >= mark) break;
        above += here;
    }
    if (shell == SHELLS) return; /* short of the mark by rounding: all of it */

    candidate *c = w->candidates;
    int n = 0;
    for (int b = 0; b < w->n_blocks; b++) {
        if (!block_alive(r, b) || shell_of(w->block_max[b], r->max) > shell) continue;
        const float *x = block_read_kept(r, b, buf);
        for (int i = 0; i < BLOCK; i++)
            if (x[i] > -INFINITY && shell_of(x[i], r->max) == shell)
                c[n++] = (candidate){key_of(x[i], b * BLOCK + i), exp_down((double)x[i] - r->max)};
    }
    cut_at(r, select_key(c, n, mark - above));
}

/* Keeps what has at least min_p of the largest probability: finds the lowest float whose weight
 * reaches min_p, 32 halvings. */
static void cut_min_p(row *r, double min_p) {
    uint32_t below = float_rank(-INFINITY), reached = float_rank(r->max);
    while (reached - below > 1) {
        const uint32_t middle = below + (reached - below) / 2;
        if (exp_down((double)float_of_rank(middle) - r->max) >= min_p)
            reached = middle;
        else
            below = middle;
    }
    const float value = float_of_rank(reached);
    if (value > r->cut_value) r->cut_value = value, r->cut_id = INT32_MAX;
}

/* ---- the two ways out ---- */

int32_t verify_argmax(const verify_sampler *s, const float *logits, int n_vocab,
                      const int32_t *history, int n_history, const int32_t *path, int n_path,
                      verify_work *w) {
    row r;
    row_begin(&r, w, s, logits, n_vocab, history, n_history, path, n_path);
    const int32_t best = row_max(&r);
    row_end(&r);
    return best < 0 ? 0 : best;
}

float verify_confidence(const float *logits, int n_vocab, int32_t token) {
    const double max = logits[token];
    double sum = 0, weight[BLOCK];
    for (int at = 0; at < n_vocab; at += BLOCK) {
        float buf[BLOCK];
        const int n = n_vocab - at < BLOCK ? n_vocab - at : BLOCK;
        for (int i = 0; i < BLOCK; i++)
            buf[i] = i < n ? logits[at + i] : -INFINITY;
        if (!(max_of(buf) > max - 16)) continue; /* e^-16 a token: nothing that shows */
        exp_block(buf, (float)max, 1, weight);
        for (int i = 0; i < n; i++)
            sum += weight[i];
    }
    return sum > 1 ? (float)(1 / sum) : 1;
}

static void one_hot(float *probs, int n_vocab, int32_t token) {
    memset(probs, 0, sizeof *probs * (size_t)n_vocab);
    probs[token] = 1;
}

/* Probabilities of what is kept, at this temperature; all others 0. */
static void row_softmax(const row *r, double temperature, float *probs) {
    const verify_work *w = r->w;
    const double scale = 1 / temperature;
    float buf[BLOCK];
    double weight[BLOCK], lane[LANES] = {0};
    for (int b = 0; b < w->n_blocks; b++) {
        const int at = b * BLOCK, n = block_size(r, b);
        if (!block_alive(r, b)) {
            memset(probs + at, 0, sizeof *probs * (size_t)n);
            continue;
        }
        exp_block(block_read_kept(r, b, buf), r->max, scale, weight);
        for (int i = 0; i < BLOCK; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += weight[i + j];
        for (int i = 0; i < n; i++)
            probs[at + i] = (float)weight[i];
    }
    const double inverse = 1 / add_lanes(lane);
    for (int b = 0; b < w->n_blocks; b++) {
        if (!block_alive(r, b)) continue;
        const int at = b * BLOCK, n = block_size(r, b);
        for (int i = 0; i < n; i++)
            probs[at + i] = (float)(probs[at + i] * inverse);
    }
}

void verify_probs(const verify_sampler *s, const float *logits, int n_vocab, const int32_t *history,
                  int n_history, const int32_t *path, int n_path, verify_work *w, float *probs) {
    row r;
    row_begin(&r, w, s, logits, n_vocab, history, n_history, path, n_path);
    const int32_t best = row_max(&r);
    if (s->temperature == 0 || best < 0) {
        one_hot(probs, n_vocab, best < 0 ? 0 : best);
    } else {
        if (s->top_k > 0) cut_top_k(&r, s->top_k);
        if (s->top_p < 1) cut_top_p(&r, s->top_p);
        if (s->min_p > 0) cut_min_p(&r, s->min_p);
        row_softmax(&r, s->temperature, probs);
    }
    row_end(&r);
}
