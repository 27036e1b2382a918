/* The draft length, against worlds made up here: their clock and their texts are arithmetic, so every bound can be
 * checked at every token, and the best fixed length is known. */
#include "spec/length.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKENS = 4000, BURST = 64 };

/* A machine and a text. Chances are of a drafted token being accepted, given that those before it were. */
typedef struct world {
    const char *name;
    double verify_1, verify_row; /* T(1), and each row more */
    double draft;                /* a step, as the table says */
    double draft_true;           /* times that: what it really takes */
    double sure, unsure;         /* the two kinds of token */
    double share_sure;           /* how often a token is of the first kind */
    bool told;                   /* the draft's confidence tells the kinds apart */
    int change_at;               /* from this token on the draft is worth nothing; 0: never */
    int useful_at;               /* before this token it is worth nothing; 0: always */
    double hiccup;               /* share of passes that take four times as long */
    double free_rows;            /* so much of a row's time the table does not know of */
    double second; /* chance of each further candidate, when those before it are wrong */
} world;

typedef struct run {
    double ms[N_TOKENS + LENGTH_MAX + 1]; /* clock when token i was there */
    double hiccup_ms;
    int n, n_drafted, n_rounds;
} run;

static length_costs costs_of(const world *w) {
    length_costs c = {.near = 128, .far = 2048, .draft = (float)w->draft};
    for (int i = 0; i < 2; i++)
        for (int m = 1; m <= LENGTH_MAX + 1; m++)
            c.verify[i][m] = (float)(w->verify_1 + w->verify_row * (1 - w->free_rows) * (m - 1));
    return c;
}

static double draw(uint64_t seed, int i, int what) {
    return td_uniform(seed, TD_STREAM_DRAFT, (uint64_t)i, (uint32_t)what);
}

/* The text's token i: what the draft makes of it. */
static void token_of(const world *w, uint64_t seed, int i, bool *hit, float *confidence) {
    const bool sure = draw(seed, i, 0) < w->share_sure;
    const bool useless = (w->change_at && i >= w->change_at) || i < w->useful_at;
    const double chance = useless ? 0 : sure ? w->sure : w->unsure;
    *hit = draw(seed, i, 1) < chance;
    *confidence = !w->told ? 0.6f : sure ? 0.95f : 0.3f;
}

/* fixed >= 0: drafts of that length, `width` candidates for each place; -1: what the model under test chooses. */
static void go_wide(const world *w, uint64_t seed, int fixed, int width, run *r) {
    const length_costs c = costs_of(w);
    length_model l;
    int read = 0;
    *r = (run){0};
    length_init(&l, &c);
    for (double clock = 0; r->n < N_TOKENS; r->n_rounds++) {
        length_round round = {0};
        const int n_unread = r->n - read + 1;
        const length_scope scope = {.n_pos = 100 + r->n,
                                    .n_unread = n_unread,
                                    .n_places = LENGTH_MAX,
                                    .n_nodes = LENGTH_MAX,
                                    .width = width};
        const int k = fixed >= 0 ? fixed : length_choose(&l, &scope);
        int n_steps = 0;
        bool wrong = false;
        while (round.n_places < k) {
            const int at = r->n + round.n_places;
            bool hit;
            float confidence;
            token_of(w, seed, at, &hit, &confidence);
            n_steps++;
            const length_answer a = fixed >= 0 ? (length_answer){.width = width, .go_on = true}
                                               : length_ask(&l, round.n_places, confidence);
            if (!a.width) break;
            assert_true(a.width <= width);
            for (int j = 0; j < a.width && !wrong; j++)
                if (j ? draw(seed, at, 2 + j) < w->second : hit) {
                    round.n_accepted++;
                    round.sibling = j;
                    wrong = j > 0;
                    break;
                }
            wrong = wrong || round.n_accepted <= round.n_places;
            round.n_places++;
            round.n_drafted += a.width;
            if (!a.go_on) break;
        }
        assert_true(round.n_drafted <= LENGTH_MAX || fixed >= 0);
        if (n_steps) {
            const int n_read = n_unread < LENGTH_READ ? n_unread : LENGTH_READ;
            const double read_rows = 1 + w->verify_row / w->verify_1 * (n_read - 1);
            round.draft_ms = w->draft * w->draft_true * (n_steps - 1 + read_rows);
            read = r->n;
        }
        round.verify_ms = w->verify_1 + w->verify_row * round.n_drafted;
        if (draw(seed, r->n_rounds, 9) < w->hiccup) {
            r->hiccup_ms += 3 * round.verify_ms;
            round.verify_ms *= 4;
        }
        clock += round.draft_ms + round.verify_ms;
        for (int i = 0; i <= round.n_accepted; i++)
            r->ms[r->n++] = clock;
        r->n_drafted += round.n_drafted;
        if (fixed < 0) length_learn(&l, &round);
    }
}

static void go(const world *w, uint64_t seed, int fixed, run *r) {
    go_wide(w, seed, fixed, 1, r);
}

static double speed(const run *r) {
    return r->n / r->ms[r->n - 1];
}

/* ---- the bound ---- */

/* Over any run of BURST tokens or more: the largest time beyond 1.05 * T(1) * tokens, in milliseconds. What counts is
 * the worst stretch: the largest rise of time minus allowance, found in one walk. */
static double worst_stretch(const run *r, double plain_ms) {
    double worst = -INFINITY, lowest = INFINITY;
    for (int i = BURST; i < r->n; i++) {
        const int j = i - BURST;
        const double before = (j ? r->ms[j - 1] : 0) - 1.05 * plain_ms * j;
        lowest = fmin(lowest, before);
        worst = fmax(worst, r->ms[i - 1] - 1.05 * plain_ms * i - lowest);
    }
    return worst;
}

static void never_much_slower_than_plain(void **state) {
    (void)state;
    static const world worlds[] = {
        {"always wrong", 40, 2, 15, 1, 0, 0, 0, false, 0, 0, 0, 0, 0},
        {"always wrong, and sure", 40, 2, 15, 1, 0, 0, 1, true, 0, 0, 0, 0, 0},
        {"right, but slow", 40, 2, 60, 1, 1, 1, 1, true, 0, 0, 0, 0, 0},
        {"right, but ten times as slow as measured", 40, 2, 8, 10, 1, 1, 1, true, 0, 0, 0, 0, 0},
        {"wrong, and ten times as slow", 40, 2, 8, 10, 0, 0, 1, true, 0, 0, 0, 0, 0},
        {"rows cost as much as passes", 40, 38, 10, 1, 0.6, 0.2, 0.5, false, 0, 0, 0, 0, 0},
        {"good, then worthless", 40, 2, 15, 1, 0.95, 0.9, 0.8, true, 1000, 0, 0, 0, 0},
        {"good until it has credit, then worthless, and sure", 40, 2, 15, 1, 1, 1, 1, true, 200, 0,
         0, 0, 0},
        {"worthless, then good", 40, 2, 15, 1, 0.95, 0.9, 0.8, true, 0, 2000, 0, 0, 0},
        {"a coin", 40, 2, 15, 1, 0.5, 0.5, 1, false, 0, 0, 0, 0, 0},
        {"just not worth it", 40, 4, 20, 1, 0.5, 0.3, 0.5, false, 0, 0, 0, 0, 0},
        {"free drafts, always wrong", 40, 2, 0.01, 1, 0, 0, 1, true, 0, 0, 0, 0, 0},
        {"free drafts, always wrong, rows dearer than said", 40, 4, 0.01, 1, 0, 0, 1, true, 0, 0, 0,
         1, 0},
    };
    static run r;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            const world *w = &worlds[i];
            go_wide(w, seed, -1, seed % 2 ? LENGTH_WIDTH : 1, &r);
            const double longest = w->draft * w->draft_true * (LENGTH_MAX + LENGTH_READ) +
                                   w->verify_1 + w->verify_row * LENGTH_MAX;
            const double over = worst_stretch(&r, w->verify_1);
            if (seed == 1)
                print_message(
                    "%-52s %.3f of plain (256 tokens: %.3f), %5d drafted, worst %.0f of %.0f ms\n",
                    w->name, speed(&r) * w->verify_1, 256 / r.ms[255] * w->verify_1, r.n_drafted,
                    over, longest);
            /* What the table does not know of can come on top, once. */
            assert_true(over <= longest + w->free_rows * w->verify_row * LENGTH_MAX);
            assert_true(speed(&r) * w->verify_1 >= 1 / 1.06);
        }
}

/* ---- what pays ---- */

static void as_good_as_the_best_length(void **state) {
    (void)state;
    static const world worlds[] = {
        {"0.9 each", 40, 2, 15, 1, 0.9, 0.9, 1, false, 0, 0, 0, 0, 0},
        {"0.7 each", 40, 2, 10, 1, 0.7, 0.7, 1, false, 0, 0, 0, 0, 0},
        {"0.98 each, cheap draft", 40, 1, 3, 1, 0.98, 0.98, 1, false, 0, 0, 0, 0, 0},
        {"dear rows", 40, 12, 6, 1, 0.85, 0.85, 1, false, 0, 0, 0, 0, 0},
        {"two kinds, told apart", 40, 2, 12, 1, 0.97, 0.35, 0.7, true, 0, 0, 0, 0, 0},
        {"two kinds, not told apart", 40, 2, 12, 1, 0.97, 0.35, 0.7, false, 0, 0, 0, 0, 0},
        {"rarely good, told apart", 40, 2, 8, 1, 0.97, 0.1, 0.4, true, 0, 0, 0, 0, 0},
        {"the draft is slower than measured", 40, 2, 8, 2, 0.85, 0.85, 1, false, 0, 0, 0, 0, 0},
        {"the draft is faster than measured", 40, 2, 38, 0.35, 0.9, 0.9, 1, false, 0, 0, 0, 0, 0},
        {"hiccups", 40, 2, 12, 1, 0.85, 0.85, 1, false, 0, 0, 0.02, 0, 0},
        {"rows dearer than the table says", 40, 5, 12, 1, 0.85, 0.85, 1, false, 0, 0, 0, 0.8, 0},
    };
    static run r;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        const world *w = &worlds[i];
        double own = 0, best = 0;
        int best_k = 0;
        for (uint64_t seed = 1; seed <= 10; seed++) {
            go(w, seed, -1, &r);
            own += speed(&r);
        }
        for (int k = 0; k <= LENGTH_MAX; k++) {
            double sum = 0;
            for (uint64_t seed = 1; seed <= 10; seed++) {
                go(w, seed, k, &r);
                sum += speed(&r);
            }
            if (sum > best) best = sum, best_k = k;
        }
        print_message("%-36s %.3f of the best fixed length, %d (%.2f of plain)\n", w->name,
                      own / best, best_k, best / 10 * w->verify_1);
        assert_true(own >= 0.95 * best);
    }
}

/* Shapes, too: against every fixed one. */
static void as_good_as_the_best_comb(void **state) {
    (void)state;
    static const world worlds[] = {
        {"a coin, seconds good, rows cheap", 40, 1, 14, 1, 0.5, 0.5, 1, false, 0, 0, 0, 0, 0.5},
        {"rarely right, seconds good", 40, 1, 14, 1, 0.35, 0.35, 1, false, 0, 0, 0, 0, 0.5},
        {"two kinds, seconds good", 40, 2, 12, 1, 0.95, 0.4, 0.6, true, 0, 0, 0, 0, 0.5},
        {"seconds worthless", 40, 2, 12, 1, 0.8, 0.8, 1, false, 0, 0, 0, 0, 0},
        {"rows dear", 40, 10, 8, 1, 0.7, 0.7, 1, false, 0, 0, 0, 0, 0.4},
        {"rows dearer than said", 40, 5, 8, 1, 0.7, 0.7, 1, false, 0, 0, 0, 0.8, 0.4},
    };
    static run r;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        const world *w = &worlds[i];
        double own = 0, chain = 0, best = 0;
        int best_k = 0, best_width = 1;
        for (uint64_t seed = 1; seed <= 10; seed++) {
            go_wide(w, seed, -1, LENGTH_WIDTH, &r);
            own += speed(&r);
            go(w, seed, -1, &r);
            chain += speed(&r);
        }
        for (int width = 1; width <= LENGTH_WIDTH; width++)
            for (int k = 0; k * width <= LENGTH_MAX; k++) {
                double sum = 0;
                for (uint64_t seed = 1; seed <= 10; seed++) {
                    go_wide(w, seed, k, width, &r);
                    sum += speed(&r);
                }
                if (sum > best) best = sum, best_k = k, best_width = width;
            }
        print_message(
            "%-36s %.3f of the best fixed comb, %dx%d (%.2f of plain); %.2f times chains\n",
            w->name, own / best, best_width, best_k, best / 10 * w->verify_1, own / chain);
        assert_true(own >= 0.95 * best);
        assert_true(own >= 0.96 * chain);
    }
}

static void finds_out_that_the_text_has_changed(void **state) {
    (void)state;
    const world w = {"", 40, 2, 12, 1, 0.95, 0.95, 1, true, 0, 2000, 0, 0, 0};
    static run r;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        go(&w, seed, -1, &r);
        const double before = 1000 / (r.ms[1999] - r.ms[999]) * w.verify_1;
        const double after = (N_TOKENS - 3000) / (r.ms[N_TOKENS - 1] - r.ms[2999]) * w.verify_1;
        assert_true(before >= 0.95 && before <= 1.0);
        assert_true(after >= 1.5);
    }
}

/* Soon, where the text has not been bad for long. */
static void finds_out_soon_after_a_bad_beginning(void **state) {
    (void)state;
    const world w = {"", 40, 2, 12, 1, 0.95, 0.95, 1, true, 0, 30, 0, 0, 0};
    static run r;
    double sum = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        go(&w, seed, -1, &r);
        sum += 60 / (r.ms[159] - r.ms[99]) * w.verify_1 / 20;
    }
    print_message("tokens 100 to 160 at %.2f of plain\n", sum);
    assert_true(sum >= 1.5);
}

/* What was learnt of one text is a guess for the next, no more. */
static void a_new_text_begins_with_a_guess(void **state) {
    (void)state;
    const world w = {"", 40, 2, 15, 1, 0, 0, 0, false, 0, 0, 0, 0, 0};
    const length_costs c = costs_of(&w);
    length_model l;
    length_init(&l, &c);
    length_scope scope = {
        .n_pos = 100, .n_unread = 1, .n_places = LENGTH_MAX, .n_nodes = LENGTH_MAX, .width = 1};
    assert_true(length_choose(&l, &scope) > 0);
    scope.n_places = 0;
    assert_int_equal(length_choose(&l, &scope), 0);
    scope.n_places = 3;
    assert_in_range(length_choose(&l, &scope), 1, 3);
    scope.n_places = scope.n_nodes = 64; /* more than it ever asks for */
    assert_in_range(length_choose(&l, &scope), 1, LENGTH_MAX);
    for (int i = 0; i < 300; i++) {
        scope.n_pos++;
        const int k = length_choose(&l, &scope);
        length_learn(
            &l, &(length_round){
                    .n_drafted = k, .n_places = k, .draft_ms = 15 * k, .verify_ms = 40 + 2 * k});
    }
    assert_true(length_expected(&l, 4) < 1.3);
    length_begin(&l);
    assert_true(l.all.tried <= 8.001);
    for (int i = 0; i < 40; i++)
        length_learn(
            &l, &(length_round){.n_drafted = 4, .n_places = 4, .n_accepted = 4, .verify_ms = 48});
    assert_true(length_expected(&l, 4) > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_much_slower_than_plain),
        cmocka_unit_test(as_good_as_the_best_length),
        cmocka_unit_test(as_good_as_the_best_comb),
        cmocka_unit_test(finds_out_that_the_text_has_changed),
        cmocka_unit_test(finds_out_soon_after_a_bad_beginning),
        cmocka_unit_test(a_new_text_begins_with_a_guess),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
