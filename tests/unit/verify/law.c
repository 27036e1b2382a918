#include "law.h"

#include <math.h>
#include <string.h>

/* ---- every branch of a rule, with its share ---- */

static double tape_uniform(void *arg, td_stream stream, uint64_t position, uint32_t lane) {
    tape *t = arg;
    assert_int_equal(lane, 9);
    if (t->used < t->n) return t->u[t->used++];
    if (t->used++ == t->n) t->asked = stream, t->asked_at = position;
    return 0.5;
}

verify_source tape_source(tape *t) {
    return (verify_source){tape_uniform, t, 100, 9};
}

/* What is seen when the numbers on the tape are used up: a further question, or the end. The result
 * is then that of further numbers of 1/2: it tells apart two states that ask the same question. */
typedef struct sight {
    bool end;
    td_stream asked;
    uint64_t asked_at;
    verify_result result;
} sight;

static bool same_sight(const sight *a, const sight *b) {
    if (a->end != b->end) return false;
    if (!a->end && (a->asked != b->asked || a->asked_at != b->asked_at)) return false;
    const verify_result *r = &a->result, *s = &b->result;
    return r->n_accepted == s->n_accepted && r->token == s->token &&
           !memcmp(r->path, s->path, sizeof *r->path * (size_t)r->n_accepted);
}

static sight look(branches *b, tape *t) {
    sight s;
    t->used = 0;
    const verify_source from = tape_source(t);
    b->run(b->arg, &from, &s.result);
    b->n_runs++;
    s.end = t->used <= t->n;
    s.asked = t->asked, s.asked_at = t->asked_at;
    return s;
}

static sight look_at(branches *b, const tape *t, uint64_t i) {
    tape longer = *t;
    longer.u[longer.n++] = td_unit(i << 12);
    return look(b, &longer);
}

static bool sees_at(branches *b, const tape *t, uint64_t i, const sight *what) {
    const sight s = look_at(b, t, i);
    return same_sight(&s, what);
}

static void walk(branches *b, const tape *t, double share) {
    tape copy = *t;
    const sight now = look(b, &copy);
    if (now.end) {
        b->end(b->arg, &now.result, share);
        return;
    }
    assert_in_range(t->n, 0, TAPE - 2);
    for (uint64_t from = 0; from < GRID;) {
        const sight here = look_at(b, t, from);
        uint64_t last = GRID - 1;
        if (!sees_at(b, t, last, &here)) {
            uint64_t in = from, out = last;
            while (out - in > 1) {
                const uint64_t middle = in + (out - in) / 2;
                *(sees_at(b, t, middle, &here) ? &in : &out) = middle;
            }
            last = in;
        }
        /* The step really is one piece: look at a third and two thirds of it. */
        assert_true(sees_at(b, t, from + (last - from) / 3, &here));
        assert_true(sees_at(b, t, last - (last - from) / 3, &here));
        tape longer = *t;
        longer.u[longer.n++] = td_unit((from + (last - from) / 2) << 12);
        walk(b, &longer, share * ((double)(last - from + 1) / (double)GRID));
        from = last + 1;
    }
}

void branches_walk(branches *b) {
    walk(b, &(tape){0}, 1);
}

bool draw_shares(const float *row, int v, const int32_t *taken, int n_taken, double *share) {
    memset(share, 0, sizeof *share * (size_t)v);
    for (uint64_t from = 0; from < GRID;) {
        const int32_t id = verify_draw_next(row, v, taken, n_taken, td_unit(from << 12));
        if (id < 0) return false;
        uint64_t in = from, out = GRID;
        while (out - in > 1) {
            const uint64_t middle = in + (out - in) / 2;
            *(verify_draw_next(row, v, taken, n_taken, td_unit(middle << 12)) == id ? &in : &out) =
                middle;
        }
        share[id] += (double)(in - from + 1) / (double)GRID;
        from = in + 1;
    }
    return true;
}

double row_prob(const float *row, int v, int token) {
    double sum = 0;
    for (int i = 0; i < v; i++)
        sum += row[i];
    return row[token] / sum;
}

/* ---- random rows ---- */

double number(uint64_t *at) {
    return td_uniform(2211, TD_STREAM_GUMBEL, (*at)++, 0);
}

static void random_row(rows kind, int v, uint64_t *at, float *row) {
    double w[MAX_V], sum = 0;
    const int sure = (int)(number(at) * v); /* at least one token keeps its mass */
    for (int i = 0; i < v; i++) {
        w[i] = number(at);
        if ((kind == WITH_ZEROS && number(at) < 0.4 && i != sure) || (kind == ONE_HOT && i != sure))
            w[i] = 0;
        if (kind == TINY && number(at) < 0.5 && i != sure) w[i] *= pow(10, -30 * number(at));
        sum += w[i];
    }
    const double scale = kind == SCALED ? 0.3 + 3 * number(at) : 1;
    int left = 64;
    for (int i = 0; i < v; i++) {
        int part = i == v - 1 ? left : (int)(w[i] / sum * 64);
        left -= part;
        row[i] = kind == DYADIC ? (float)part / 64 : (float)(w[i] / sum * scale);
    }
}

void random_rows(rows kind, int v, uint64_t *at, float *p, float *q) {
    random_row(kind, v, at, p);
    /* A one-hot against a broad row, either way round. */
    const bool broad = kind == ONE_HOT && number(at) < 0.5;
    random_row(broad ? NORMALISED : kind, v, at, q);
    if (kind == ONE_HOT && !broad && number(at) < 0.5) random_row(NORMALISED, v, at, p);
    if (kind == SAME) memcpy(q, p, sizeof *q * (size_t)v);
    if (kind == DISJOINT) {
        const int of_p = 1 + (int)(number(at) * (v - 1)); /* p: [0, of_p), q: the rest */
        for (int i = 0; i < v; i++)
            *(i < of_p ? &q[i] : &p[i]) = 0;
    }
}

int prefix_row(int v, const int32_t *tokens, int n) {
    int first = 0, code = 0;
    for (int i = 0, width = 1; i < n; i++, width *= v) {
        first += width;
        code = code * v + tokens[i];
    }
    return first + code;
}

double chi_as_normal(double chi, double df) {
    const double a = 2 / (9 * df);
    return (cbrt(chi / df) - (1 - a)) / sqrt(a);
}
