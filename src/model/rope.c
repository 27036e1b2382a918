/* Angles of the rotary embedding (Su et al., arXiv 2104.09864), with linear scaling, YaRN (Peng et
 * al., arXiv 2309.00071) and the per-frequency divisors of Llama 3's files. In double, at open and
 * once a row: float angles of position 30000 are off by 2e-3. */
#include "model/model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The pair whose wave turns `turns` times within the original context (the paper's eq. 17 solved
 * for the dimension). */
static double yarn_dim(double turns, int n_rot, int orig_ctx, double base) {
    return n_rot * log(orig_ctx / (turns * 2 * M_PI)) / (2 * log(base));
}

/* How much of pair i is extrapolated (1) rather than interpolated (0): fast waves are left alone.
 */
static double yarn_mix(const model_config *c, double base, int i) {
    double low = floor(yarn_dim(c->yarn_beta_fast, c->n_rot, c->rope_orig_ctx, base));
    double high = ceil(yarn_dim(c->yarn_beta_slow, c->n_rot, c->rope_orig_ctx, base));
    low = low > 0 ? low : 0;
    high = high < c->n_rot - 1 ? high : c->n_rot - 1;
    double ramp = (i - low) / (high - low > 0.001 ? high - low : 0.001);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return (1 - ramp) * c->yarn_ext_factor;
}

static void init_table(model *m, int windowed, double base) {
    const model_config *c = &m->cfg;
    const bool scaled = !windowed || c->rope_scale_local;
    for (int i = 0; i < c->n_rot / 2; i++) {
        double freq = pow(base, -2.0 * i / c->n_rot);
        if (scaled) {
            if (m->rope_factors) freq /= (double)m->rope_factors[i];
            const double mix = c->rope_scaling == MODEL_ROPE_YARN ? yarn_mix(c, base, i) : 0;
            freq *= (1 - mix) / (double)c->rope_factor + mix;
        }
        m->rope_freq[windowed][i] = freq;
    }
    m->rope_mscale[windowed] = 1;
    if (scaled && c->rope_scaling == MODEL_ROPE_YARN) {
        m->rope_mscale[windowed] = c->yarn_attn_factor;
        if (c->yarn_ext_factor != 0) /* the paper's sqrt(1/t), eq. 22 */
            m->rope_mscale[windowed] *= 0.1 * log((double)c->rope_factor) + 1;
    }
}

/* The mean over positions 0 .. n - 1 of cos and sin of position * freq. */
static void mean_angle(double freq, int n, float *cosine, float *sine) {
    const double half = freq / 2;
    const double size = fabs(sin(half)) > 1e-12 ? sin(n * half) / (n * sin(half)) : 1;
    *cosine = (float)(size * cos((n - 1) * half));
    *sine = (float)(size * sin((n - 1) * half));
}

/* Some models' keys are little more than a large bias, turned. What is the same in all keys of a head adds the same to
 * all scores of a query, which the softmax does not see; so before keys are quantised, k_shift takes from them the mean
 * of the turned bias over the positions the model was trained for: all of it in slow dimensions, nothing in fast ones.
 * (Where scores are capped, they may not be shifted.) */
static bool init_shifts(model *m) {
    const model_config *c = &m->cfg;
    size_t n = 0;
    float *angles = NULL, *at;
    for (int l = 0; l < c->n_layers; l++)
        if (m->layers[l].k.bias) n += (size_t)c->layers[l].n_kv_heads * (size_t)c->layers[l].head_k;
    if (!n || c->attn_softcap > 0) return true;
    m->k_shifts = at = td_calloc(n, sizeof *at);
    angles = td_calloc((size_t)c->n_rot, sizeof *angles);
    if (!m->k_shifts || !angles) {
        free(angles);
        return false;
    }
    for (int l = 0; l < c->n_layers; l++) {
        const struct model_layer_config *lc = &c->layers[l];
        model_layer *y = &m->layers[l];
        if (!y->k.bias || y->k_norm) continue;
        for (int i = 0; i < c->n_rot / 2; i++)
            mean_angle(m->rope_freq[lc->windowed][i], c->n_ctx_train, angles + i,
                       angles + c->n_rot / 2 + i);
        m->kern->scale(angles, (float)m->rope_mscale[lc->windowed], c->n_rot);
        y->k_shift = at;
        for (int h = 0; h < lc->n_kv_heads; h++, at += lc->head_k) {
            memcpy(at, y->k.bias + (size_t)h * (size_t)lc->head_k, (size_t)lc->head_k * sizeof *at);
            m->kern->rope(at, c->n_rot, angles, angles + c->n_rot / 2, c->rope_neox);
            m->kern->scale(at, -1, lc->head_k);
        }
    }
    free(angles);
    return true;
}

bool model_rope_init(model *m) {
    for (int i = 0; i < 2; i++) {
        if (!(m->rope_freq[i] = td_calloc((size_t)m->cfg.n_rot / 2, sizeof(double)))) return false;
        init_table(m, i, i ? m->cfg.rope_base_local : m->cfg.rope_base);
    }
    return init_shifts(m);
}

void model_rope_angles(const model *m, int windowed, int position, float *cosine, float *sine) {
    const double scale = m->rope_mscale[windowed];
    for (int i = 0; i < m->cfg.n_rot / 2; i++) {
        const double angle = position * m->rope_freq[windowed][i];
        cosine[i] = (float)(cos(angle) * scale);
        sine[i] = (float)(sin(angle) * scale);
    }
}
