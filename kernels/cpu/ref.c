/* Plain C: fills every entry, and is the truth the other levels are checked against. */
#include "kernels/cpu/attn_inl.h"
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

typedef uint8_t block_lines[8][64];

/* Plane by plane, in loops a compiler turns into vectors of whatever it has. */
static void unpack(const panel_layout *l, td_type type, const uint8_t *group, int block,
                   block_lines out) {
    int bits = 0;
    if (l->q8 >= 0) {
        memcpy(out, group + l->q8 + 512 * block, sizeof(block_lines));
        return;
    }
    if (l->q4 >= 0) {
        const uint8_t *p = group + l->q4 + 256 * block;
        for (int g = 0; g < 4; g++, p += 64)
            for (int i = 0; i < 64; i++)
                out[g][i] = p[i] & 15, out[g + 4][i] = p[i] >> 4;
        bits = 4;
    }
    if (l->q2 >= 0) {
        const uint8_t *p = group + l->q2 + 128 * block;
        for (int g = 0; g < 8; g++)
            for (int i = 0; i < 64; i++)
                out[g][i] = (uint8_t)((bits ? out[g][i] : 0) |
                                      (p[64 * (g >> 2) + i] >> 2 * (g & 3) & 3) << bits);
        bits += 2;
    }
    if (l->q1 >= 0) {
        const uint8_t *p = group + l->q1 + 64 * block;
        for (int g = 0; g < 8; g++)
            for (int i = 0; i < 64; i++)
                out[g][i] |= (uint8_t)((p[i] >> g & 1) << bits);
    }
    if (type == TD_TYPE_IQ4_NL || type == TD_TYPE_IQ4_XS)
        for (int g = 0; g < 8; g++)
            for (int i = 0; i < 64; i++)
                out[g][i] = panel_iq4_values[out[g][i]];
}

/* Scales of one block: d[half][row], and m[half][row] (the minimum, with its sign). */
typedef struct scales {
    float d[2][KERN_PANEL], m[2][KERN_PANEL];
} scales;

static void get_scales(const panel_layout *l, td_type type, const uint8_t *group, int block, scales *s) {
    for (int r = 0; r < KERN_PANEL; r++) {
        uint16_t h;
        const int plane = l->group == 2 ? block : 0;
        memcpy(&h, group + l->d + 32 * plane + 2 * r, 2);
        const float d = td_f16_to_f32(h);
        float dmin = 0;
        if (l->dmin >= 0) {
            memcpy(&h, group + l->dmin + 32 * plane + 2 * r, 2);
            dmin = td_f16_to_f32(h);
        }
        for (int half = 0; half < l->scales; half++) {
            const int at = 16 * (l->scales * block + half) + r;
            if (l->sc < 0) {
                s->d[half][r] = d, s->m[half][r] = dmin;
            } else if (type == TD_TYPE_Q2_K) {
                s->d[half][r] = d * (float)(group[l->sc + at] & 15);
                s->m[half][r] = -(dmin * (float)(group[l->sc + at] >> 4));
            } else if (l->mn >= 0) {
                s->d[half][r] = d * (float)group[l->sc + at];
                s->m[half][r] = -(dmin * (float)group[l->mn + at]);
            } else {
                s->d[half][r] = d * (float)(int8_t)group[l->sc + at];
            }
        }
    }
}

static void dot_block(const panel_layout *l, const block_lines w, const scales *s, const int8_t *q, float xs,
                      const int32_t *sum, float min_scale, float *acc) {
    const int32_t sum0 = sum[1], sum1 = sum[2];
    int32_t part[2][4 * KERN_PANEL], dot[2][KERN_PANEL];
    for (int g = 0; g < 8; g++) {
        const int16_t four[4] = {q[4 * g], q[4 * g + 1], q[4 * g + 2], q[4 * g + 3]};
        int16_t x[4 * KERN_PANEL];
        for (int r = 0; r < KERN_PANEL; r++)
            memcpy(x + 4 * r, four, sizeof four);
        for (int i = 0; i < 4 * KERN_PANEL; i++) /* at most 255 * 127: 16 bits hold it */
            part[g >> 2][i] = (g & 3 ? part[g >> 2][i] : 0) + (int16_t)(w[g][i] * x[i]);
    }
    for (int h = 0; h < 2; h++)
        for (int r = 0; r < KERN_PANEL; r++)
            dot[h][r] = part[h][4 * r] + part[h][4 * r + 1] + part[h][4 * r + 2] + part[h][4 * r + 3];
    for (int r = 0; r < KERN_PANEL; r++) {
        const int32_t i0 = dot[0][r] + l->offset * sum0, i1 = dot[1][r] + l->offset * sum1;
        if (l->scales == 1) {
            acc[r] = FMA((float)(i0 + i1) * s->d[0][r], xs, acc[r]);
            if (l->dmin >= 0) acc[r] = FMA(s->m[0][r], min_scale, acc[r]);
        } else {
            const float t = FMA((float)i1, s->d[1][r], (float)i0 * s->d[0][r]);
            acc[r] = FMA(t, xs, acc[r]);
            if (l->dmin >= 0) {
                acc[r] = FMA(s->m[0][r], xs * (float)-sum0, acc[r]);
                acc[r] = FMA(s->m[1][r], xs * (float)-sum1, acc[r]);
            }
        }
    }
}

enum { ROWS = 8 }; /* rows that share an unpacked block */

static void gemm_quant(const kern_mat *w, int begin, int end, const kern_acts *a, float *y,
                       size_t y_stride) {
    const panel_layout *l = panel_layout_get(w->type);
    const int n_blocks = w->n_in / KERN_BLOCK;
    for (int panel = begin; panel < end; panel++) {
        const int left = w->n_out - panel * KERN_PANEL;
        const size_t n = left < KERN_PANEL ? (size_t)left : KERN_PANEL;
        for (int first = 0; first < a->n_rows; first += ROWS) {
            const int nr = a->n_rows - first < ROWS ? a->n_rows - first : ROWS;
            float acc[ROWS][KERN_PANEL] = {{0}};
            for (int b = 0; b < n_blocks; b++) {
                const uint8_t *group = w->data + (size_t)panel * w->panel_bytes +
                                       (size_t)(b / l->group) * (size_t)l->group_bytes;
                block_lines unpacked;
                scales s;
                unpack(l, w->type, group, b % l->group, unpacked);
                get_scales(l, w->type, group, b % l->group, &s);
                for (int r = 0; r < nr; r++) {
                    const size_t at = (size_t)(first + r) * (size_t)n_blocks + (size_t)b;
                    dot_block(l, unpacked, &s, a->q + at * KERN_BLOCK, a->scale[at],
                              a->sum + KERN_SUMS * at, a->min_scale[at], acc[r]);
                }
            }
            for (int r = 0; r < nr; r++)
                memcpy(y + (size_t)(first + r) * y_stride + (size_t)panel * KERN_PANEL, acc[r],
                       n * sizeof(float));
        }
    }
}

void kern_init_ref(kern_table *k) {
    k->level = "ref";
    kern_init_float(k);
    kern_init_attn(k);
    for (int t = 0; t < TD_TYPE_COUNT; t++)
        if (panel_layout_get((td_type)t)->group) k->gemm[t] = gemm_quant;
}
