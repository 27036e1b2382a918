/* Angles of the rotary embedding (Su et al., arXiv 2104.09864), with linear scaling, YaRN (Peng et
 * al., arXiv 2309.00071) and the per-frequency divisors of Llama 3's files. In double, at open and
 * once a row: float angles of position 30000 are off by 2e-3. */
#include "model/model_internal.h"

#include <math.h>

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

bool model_rope_init(model *m) {
    for (int i = 0; i < 2; i++) {
        if (!(m->rope_freq[i] = td_calloc((size_t)m->cfg.n_rot / 2, sizeof(double)))) return false;
        init_table(m, i, i ? m->cfg.rope_base_local : m->cfg.rope_base);
    }
    return true;
}

void model_rope_angles(const model *m, int windowed, int position, float *cosine, float *sine) {
    const double scale = m->rope_mscale[windowed];
    for (int i = 0; i < m->cfg.n_rot / 2; i++) {
        const double angle = position * m->rope_freq[windowed][i];
        cosine[i] = (float)(cos(angle) * scale);
        sine[i] = (float)(sin(angle) * scale);
    }
}
