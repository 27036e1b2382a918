/* The model behind length.h. Rates are decaying counts with a prior; expected tokens of a draft of k are
 * 1 + sum over its places of the product of the rates up to there (algorithms 1 and 5 of the design). */
#include "spec/length.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const double slack = 0.05;      /* of plain decoding's time: the bound */
static const double try_share = 0.025; /* of it, for drafts that only find out */
static const double memory = 0.985;    /* of a count, at each new one: half is forgotten in 46 */
static const double doubt = 0.8; /* the same at each try: a text that changed shows in a few */
static const double prior = 0.7, all_weight = 6, prior_weight = 4;
static const double sibling_prior[LENGTH_WIDTH] = {0, 0.4, 0.3, 0.2};
static const double first_share =
    0.5; /* how far the first times move what is expected of the next */

/* Upper ends of the confidence bins, and what a draft of that confidence may be worth before anything is known. */
static const float bin_end[LENGTH_BINS] = {0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.97f, 2};
static const double bin_prior[LENGTH_BINS] = {0.15, 0.3, 0.45, 0.6, 0.72, 0.85, 0.93, 0.98};

static double rate_of(const length_rate *r, double guess, double weight) {
    return (r->accepted + weight * guess) / (r->tried + weight);
}

static double all_rate(const length_model *l) {
    return rate_of(&l->all, prior, all_weight);
}

static double place_rate(const length_model *l, int i) {
    return rate_of(&l->place[i < LENGTH_PLACES ? i : LENGTH_PLACES - 1], all_rate(l), prior_weight);
}

static int bin_of(float confidence) {
    int b = 0;
    while (b < LENGTH_BINS - 1 && !(confidence < bin_end[b]))
        b++;
    return b;
}

static double bin_rate(const length_model *l, float confidence) {
    const int b = bin_of(confidence);
    return rate_of(&l->bin[b], bin_prior[b], prior_weight);
}

static double sibling_rate(const length_model *l, int j) {
    return rate_of(&l->sibling[j], sibling_prior[j], prior_weight);
}

static void count(length_rate *r, double accepted) {
    r->tried = r->tried * memory + 1;
    r->accepted = r->accepted * memory + accepted;
}

static void forget(length_rate *r, double share) {
    r->tried *= share;
    r->accepted *= share;
}

static void forget_all(length_model *l, double share) {
    forget(&l->all, share);
    forget(&l->pace, share);
    forget(&l->overall, share);
    for (int i = 0; i < LENGTH_PLACES; i++)
        forget(&l->place[i], share);
    for (int i = 0; i < LENGTH_BINS; i++)
        forget(&l->bin[i], share);
    for (int j = 1; j < LENGTH_WIDTH; j++)
        forget(&l->sibling[j], share);
}

/* ---- costs ---- */

/* The table's time of a pass of m rows behind n_pos; attention grows in proportion to the context. */
static double table_ms(const length_costs *c, int n_pos, int m) {
    const double near = c->verify[0][m], far = c->verify[1][m];
    const double slope = (far - near) / (c->far - c->near);
    return fmax(near + slope * (n_pos - c->near), 0.5 * near);
}

static double verify_ms(const length_model *l, int n_pos, int m) {
    return table_ms(&l->costs, n_pos, m) * l->drift * l->row_drift[m] + l->row_ms * m;
}

/* A round without a draft, as the ledger counts it. */
static double plain_round_ms(const length_model *l) {
    return table_ms(&l->costs, l->scope.n_pos, 1) * l->plain_drift + l->row_ms;
}

/* The draft's step grows with context and rows as the target's pass does: its shape is measured, not the draft's. */
static double draft_table_ms(const length_model *l, int n_pos, int n_unread, int k) {
    const length_costs *c = &l->costs;
    if (k <= 0) return 0;
    const int n_read = n_unread < 1 ? 1 : n_unread < LENGTH_READ ? n_unread : LENGTH_READ;
    const double step = c->draft * table_ms(c, n_pos, 1) / c->verify[0][1];
    return step * (k - 1 + table_ms(c, n_pos, n_read) / table_ms(c, n_pos, 1));
}

/* Of a draft of n_nodes tokens in so many places. */
static double comb_ms(const length_model *l, int n_pos, int n_unread, int n_places, int n_nodes) {
    return draft_table_ms(l, n_pos, n_unread, n_places) * l->draft_drift +
           verify_ms(l, n_pos, n_nodes + 1);
}

static double round_ms(const length_model *l, int n_pos, int n_unread, int k) {
    return comb_ms(l, n_pos, n_unread, k, k);
}

double length_round_ms(const length_model *l, int n_pos, int k) {
    assert(k >= 0 && k <= LENGTH_MAX);
    return round_ms(l, n_pos, 1, k);
}

double length_expected(const length_model *l, int k) {
    double sum = 1, path = 1;
    for (int i = 0; i < k; i++)
        sum += path *= place_rate(l, i);
    return sum;
}

/* ---- rounds ---- */

void length_init(length_model *l, const length_costs *costs) {
    *l = (length_model){.costs = *costs, .drift = 1, .draft_drift = 1, .plain_drift = 1};
    for (int m = 1; m <= LENGTH_MAX + 1; m++)
        l->row_drift[m] = 1;
    length_begin(l);
}

void length_begin(length_model *l) {
    const double weight = 8;
    if (l->all.tried > weight) forget_all(l, weight / l->all.tried);
    l->credit_ms = INFINITY; /* one round, as soon as its length in time is known */
    l->idle_ms = 0;
}

/* Tokens a millisecond of the best comb with n_places places. Siblings are added one by one, the most probable first;
 * times do not grow evenly with rows, so that the best number of them is not where one first fails to pay. */
static double comb_rate(const length_model *l, int n_places) {
    const length_scope *at = &l->scope;
    double tokens = 1, path = 1,
           next[LENGTH_MAX]; /* of each place: what its next sibling is worth */
    int width[LENGTH_MAX];
    for (int i = 0; i < n_places; i++) {
        const double first = place_rate(l, i);
        width[i] = 1;
        next[i] = at->width > 1 ? path * (1 - first) * sibling_rate(l, 1) : 0;
        tokens += path *= first;
    }
    double best = tokens / comb_ms(l, at->n_pos, 1, n_places, n_places);
    for (int n_nodes = n_places + 1; n_nodes <= at->n_nodes && at->width > 1; n_nodes++) {
        int most = 0;
        for (int i = 1; i < n_places; i++)
            if (next[i] > next[most]) most = i;
        if (next[most] <= 0) break;
        tokens += next[most];
        best = fmax(best, tokens / comb_ms(l, at->n_pos, 1, n_places, n_nodes));
        const double s = sibling_rate(l, width[most]);
        next[most] *= ++width[most] < at->width ? (1 - s) / s * sibling_rate(l, width[most]) : 0;
    }
    return best;
}

/* Tokens a millisecond of drafting rounds: of the best fixed shape, or what they have brought lately, since ending
 * drafts by their confidence does better than any fixed length. */
static double drafting_rate(const length_model *l) {
    double best = 0;
    for (int k = 1; k <= l->scope.n_places; k++)
        best = fmax(best, comb_rate(l, k));
    if (l->pace.tried <= 0) return best;
    const double weight = 4 * round_ms(l, l->scope.n_pos, 1, 1);
    return fmax(best, rate_of(&l->pace, best, weight));
}

/* What a round takes with the draft that is usual for this text. */
static double drafted_ms(const length_model *l) {
    double best = 0, ms = 0;
    for (int k = 1; k <= l->scope.n_places; k++) {
        const double rate = comb_rate(l, k);
        if (!(rate > best)) continue;
        best = rate;
        ms = round_ms(l, l->scope.n_pos, l->scope.n_unread, k);
    }
    return ms;
}

/* What the ledger may hold: what the longest round can cost beyond a plain one. */
static double most_credit(const length_model *l) {
    return round_ms(l, l->scope.n_pos, LENGTH_READ, LENGTH_MAX) - plain_round_ms(l);
}

int length_choose(length_model *l, const length_scope *scope) {
    assert(scope->width >= 1 && scope->width <= LENGTH_WIDTH && scope->n_nodes >= scope->n_places);
    length_scope *at = &l->scope;
    *at = *scope;
    if (at->n_nodes > LENGTH_MAX) at->n_nodes = LENGTH_MAX;
    if (at->n_places > at->n_nodes) at->n_places = at->n_nodes;
    l->n_asked = l->n_nodes = 0;
    l->path = 1;
    l->trying = false;
    if (at->n_places <= 0) at->n_places = 0;
    if (!at->n_places && !at->text) return 0;
    l->credit_ms = fmin(l->credit_ms, most_credit(l));
    l->most_ms = l->credit_ms + (1 + slack) * plain_round_ms(l);
    const double plain_ms = verify_ms(l, at->n_pos, 1);
    const double drafting = at->n_places ? drafting_rate(l) : 0;
    l->rate = fmax(drafting, 1 / plain_ms);
    if (at->text && l->overall.tried > 0)
        l->rate = fmax(l->rate, rate_of(&l->overall, l->rate, 4 * plain_ms));
    l->other = fmax(1 - l->rate * plain_ms,
                    at->n_places ? (drafting - l->rate) * drafted_ms(l) : -INFINITY);
    if (drafting * plain_ms <= 1) {
        if (!at->n_places) return 0;
        const double costs = round_ms(l, at->n_pos, at->n_unread, 1) - plain_ms;
        if (costs > try_share * l->idle_ms) return at->n_places = 0;
        l->trying = true;
        at->n_places = 1;
    }
    while (at->n_places > 0 && round_ms(l, at->n_pos, at->n_unread, at->n_places) > l->most_ms)
        at->n_places--;
    l->trying = l->trying && at->n_places > 0;
    return at->n_places;
}

double length_weigh(const length_model *l, const double *path, int n, int *n_best) {
    const length_scope *at = &l->scope;
    double tokens = 1, best = -INFINITY;
    *n_best = 0;
    for (int i = 0; i < n && i < at->n_nodes; i++) {
        const double ms = verify_ms(l, at->n_pos, i + 2);
        if (ms > l->most_ms) break;
        tokens += path[i];
        const double net = tokens - l->rate * ms;
        if (net <= best) continue;
        best = net;
        *n_best = i + 1;
    }
    return best - l->other;
}

length_answer length_ask(length_model *l, int i, float confidence) {
    const length_scope *at = &l->scope;
    assert(i >= 0 && i < at->n_places);
    const int n_rows = 1 + l->n_nodes;
    const double step = draft_table_ms(l, at->n_pos, 1, 1) *
                        l->draft_drift, /* of each further place */
        before = verify_ms(l, at->n_pos, n_rows), first = bin_rate(l, confidence);
    length_answer best = {0};
    double best_net = l->trying ? -INFINITY : 0; /* a try is made to be seen */
    double beside = 0, wrong = l->path * (1 - first);
    for (int width = 1; width <= at->width; width++) {
        double gain = beside, survives = l->path * first;
        for (int j = i; j < at->n_places; j++) {
            const int n_nodes = l->n_nodes + width + j - i;
            if (n_nodes > at->n_nodes) break;
            if (n_nodes > j + 1 && comb_ms(l, at->n_pos, at->n_unread, j + 1, n_nodes) > l->most_ms)
                break;
            gain += survives;
            const double net =
                gain - l->rate * (verify_ms(l, at->n_pos, n_nodes + 1) - before + step * (j - i));
            if (net > best_net) {
                best_net = net;
                best = (length_answer){.width = width, .go_on = j > i};
            }
            survives *= place_rate(l, j + 1);
        }
        if (width < at->width)
            beside += wrong * sibling_rate(l, width), wrong *= 1 - sibling_rate(l, width);
    }
    l->confidence[i] = confidence;
    l->width[i] = best.width;
    l->n_asked = i + 1;
    l->n_nodes += best.width;
    l->path *= first;
    return best;
}

static void learn_place(length_model *l, int i, double accepted) {
    count(&l->all, accepted);
    count(&l->place[i < LENGTH_PLACES ? i : LENGTH_PLACES - 1], accepted);
}

static void learn_acceptance(length_model *l, const length_round *r) {
    const int n_first = r->n_accepted - (r->sibling > 0); /* first candidates accepted */
    for (int i = 0; i < r->n_places && i <= n_first; i++) {
        const double accepted = i < n_first;
        learn_place(l, i, accepted);
        if (i < l->n_asked) count(&l->bin[bin_of(l->confidence[i])], accepted);
    }
    if (n_first < r->n_places && n_first < l->n_asked) {
        const int last = r->sibling > 0 ? r->sibling : l->width[n_first] - 1;
        for (int j = 1; j <= last; j++)
            count(&l->sibling[j], j == r->sibling);
    }
    /* A token left out for its confidence would have stood a chance: without it the places would seem better than
     * they are. */
    if (l->n_asked > r->n_places && n_first == r->n_places)
        learn_place(l, r->n_places, bin_rate(l, l->confidence[r->n_places]));
}

/* Follows what a time was over what was expected; a hiccup of the machine moves it by the share at most. */
static void follow(double *drift, double over, double share) {
    *drift *= 1 + share * (fmin(fmax(over, 0.5), 2) - 1);
}

/* A plain pass tells of the machine, a wider one of its own width as well. */
static void learn_pass(length_model *l, int m, double ms) {
    l->n_passes++;
    const double plain = ms / (table_ms(&l->costs, l->scope.n_pos, 1) * l->plain_drift);
    if (m == 1 || plain < 1) follow(&l->plain_drift, plain, 0.3);
    const double over = ms / (table_ms(&l->costs, l->scope.n_pos, m) * l->drift * l->row_drift[m]);
    follow(&l->drift, over, fmax(first_share / l->n_passes, m == 1 ? 0.1 : 0.05));
    if (m > 1) follow(&l->row_drift[m], over, 0.05);
}

/* What a pass takes beyond twice its time is the machine's doing, not the draft's. */
static double charged_ms(const length_model *l, const length_round *r, int m) {
    return fmin(r->verify_ms + r->sample_ms, 2 * verify_ms(l, l->scope.n_pos, m));
}

void length_learn(length_model *l, const length_round *r) {
    const int m = r->n_drafted + 1, n_tokens = r->n_accepted + 1;
    assert(m <= LENGTH_MAX + 1 && r->n_places <= r->n_drafted);
    assert(r->text || r->sibling < LENGTH_WIDTH);
    if (r->text) l->trying = false; /* it was put off */
    if (l->trying) forget_all(l, doubt);
    if (!r->text) learn_acceptance(l, r);
    learn_pass(l, m, r->verify_ms);
    l->row_ms += 0.1 * (r->sample_ms / m - l->row_ms);
    const double plain_ms = plain_round_ms(l);
    double over_ms = 0; /* a plain round is what plain decoding takes */
    l->overall.tried = l->overall.tried * memory + r->draft_ms + r->verify_ms + r->sample_ms;
    l->overall.accepted = l->overall.accepted * memory + n_tokens;
    if (r->text) {
        over_ms = r->draft_ms + charged_ms(l, r, m) - plain_ms * n_tokens;
    } else if (l->scope.n_places > 0) {
        const int n_steps = l->n_asked > 0 ? l->n_asked : r->n_places > 0 ? r->n_places : 1;
        const double expected = draft_table_ms(l, l->scope.n_pos, l->scope.n_unread, n_steps);
        follow(&l->draft_drift, r->draft_ms / (expected * l->draft_drift),
               fmax(first_share / ++l->n_drafts, 0.1));
        const double pass_ms = charged_ms(l, r, m);
        over_ms = r->draft_ms + pass_ms - plain_ms * n_tokens;
        l->pace.tried = l->pace.tried * memory + r->draft_ms + pass_ms;
        l->pace.accepted = l->pace.accepted * memory + n_tokens;
        l->idle_ms = l->trying ? fmax(l->idle_ms - fmax(over_ms, 0) / try_share, 0) : 0;
    } else {
        l->idle_ms += plain_ms;
    }
    l->credit_ms = fmin(l->credit_ms + slack * plain_ms * n_tokens - over_ms, most_credit(l));
}
