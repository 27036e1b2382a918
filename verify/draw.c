/* Drawing a token by inversion. A draw costs two passes over the vocabulary at most (one for the
 * total, one until the sum passes its mark), in blocks so that the sums run in vector lanes: a
 * plain running sum waits for each addition and takes five times as long at 152,000 ids.
 *
 * The total is taken although probabilities "sum to 1": 152,000 floats do so only to about 1e-7,
 * and what is missing would fall to the last id. Divided by its own total the law is p / sum(p),
 * exactly the one that the acceptance rules reproduce. */
#include "verify/verify_internal.h"

#include <assert.h>

enum { BLOCK = 128, LANES = 8 };

/* Weights of ids [at, at + BLOCK), zero past the vocabulary. */
static void load_block(const verify_mass *m, int n_vocab, int at, double out[BLOCK]) {
    const int n = n_vocab - at < BLOCK ? n_vocab - at : BLOCK;
    const float *p = m->p + at;
    if (m->q) {
        const float *q = m->q + at;
        for (int i = 0; i < n; i++) {
            const double d = p[i] * m->p_scale - q[i] * m->q_scale;
            out[i] = d > 0 ? d : 0;
        }
    } else {
        for (int i = 0; i < n; i++)
            out[i] = p[i];
    }
    for (int i = n; i < BLOCK; i++)
        out[i] = 0;
    for (int i = 0; i < m->n_without; i++)
        if (m->without[i] >= at && m->without[i] - at < n) out[m->without[i] - at] = 0;
}

static double sum_block(const double w[BLOCK]) {
    double lane[LANES] = {0};
    for (int i = 0; i < BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += w[i + j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

double verify_mass_total(const verify_mass *m, int n_vocab) {
    double w[BLOCK], total = 0;
    for (int at = 0; at < n_vocab; at += BLOCK) {
        load_block(m, n_vocab, at, w);
        total += sum_block(w);
    }
    return total;
}

int32_t verify_mass_draw(const verify_mass *m, int n_vocab, double total, double u) {
    assert(total > 0 && u > 0 && u < 1);
    const double mark = u * total; /* < total, also after rounding: u <= 1 - 2^-53 */
    double w[BLOCK], below = 0;
    int32_t last = 0; /* highest id seen with a weight */
    for (int at = 0; at < n_vocab; at += BLOCK) {
        load_block(m, n_vocab, at, w);
        const double here = sum_block(w);
        if (!(below + here > mark)) {
            below += here;
            continue;
        }
        for (int i = 0; i < BLOCK; i++) {
            if (!(w[i] > 0)) continue;
            last = at + i;
            below += w[i];
            if (below > mark) break;
        }
        /* The walk adds in another order than the block's sum and may stop a rounding short of the
         * mark: then the block's last id is meant. */
        return last;
    }
    assert(!"the blocks add up to the total");
    return last;
}

int32_t verify_draw(const float *probs, int n_vocab, double u) {
    const verify_mass m = {.p = probs};
    return verify_mass_draw(&m, n_vocab, verify_mass_total(&m, n_vocab), u);
}

int32_t verify_draw_next(const float *probs, int n_vocab, const int32_t *taken, int n_taken,
                         double u) {
    const verify_mass m = {.p = probs, .without = taken, .n_without = n_taken};
    const double total = verify_mass_total(&m, n_vocab);
    return total > 0 ? verify_mass_draw(&m, n_vocab, total, u) : -1;
}
