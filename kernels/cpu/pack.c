/* From a file's blocks to panels (panel.h). Runs once at load; every thread packs panels of its own. */
#include "kernels/cpu/panel.h"

#include <string.h>

const uint8_t panel_iq4_values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

static int float_bytes(td_type type) {
    return type == TD_TYPE_F32 ? 4 : type == TD_TYPE_F16 || type == TD_TYPE_BF16 ? 2 : 0;
}

td_code kern_mat_init(kern_mat *m, td_type type, uint64_t n_out, uint64_t n_in, td_error *err) {
    const td_type_info *info = td_type_get(type);
    if (!info->name || (!float_bytes(type) && !panel_layout_get(type)->group))
        return td_fail(err, TD_E_UNSUPPORTED, "no kernels for tensor type %d", (int)type);
    if (!n_out || !n_in || n_out > INT32_MAX / 2 || n_in > INT32_MAX / 2)
        return td_fail(err, TD_E_TOO_BIG, "a matrix of %llu x %llu is out of range",
                       (unsigned long long)n_out, (unsigned long long)n_in);
    if (n_in % (uint64_t)info->block)
        return td_fail(err, TD_E_FORMAT, "%llu columns are no multiple of %s's block of %d",
                       (unsigned long long)n_in, info->name, info->block);
    const panel_layout *l = panel_layout_get(type);
    size_t bytes;
    if (l->group) {
        const size_t span = (size_t)l->group * KERN_BLOCK;
        if (!td_mul(&bytes, (n_in + span - 1) / span, (size_t)l->group_bytes)) goto too_big;
    } else {
        if (!td_mul(&bytes, n_in, KERN_PANEL * (size_t)float_bytes(type))) goto too_big;
    }
    if (!td_add(&bytes, bytes, KERN_ALIGN - 1)) goto too_big;
    bytes &= ~(size_t)(KERN_ALIGN - 1);
    const size_t n_panels = (n_out + KERN_PANEL - 1) / KERN_PANEL;
    size_t total;
    if (!td_mul(&total, n_panels, bytes)) goto too_big;
    *m = (kern_mat){.type = type, .n_out = (int)n_out, .n_in = (int)n_in, .n_panels = (int)n_panels,
                    .panel_bytes = bytes};
    return TD_OK;
too_big:
    return td_fail(err, TD_E_TOO_BIG, "a matrix of %llu x %llu is larger than memory can address",
                   (unsigned long long)n_out, (unsigned long long)n_in);
}

size_t kern_mat_bytes(const kern_mat *m) {
    return (size_t)m->n_panels * m->panel_bytes;
}

/* ---- one row's part of one group ---- */

/* Where one row's values go. */
typedef struct put {
    uint8_t *group;
    const panel_layout *l;
    int row;
} put;

static uint32_t load4(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static void store4(uint8_t *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}

/* Writes the 32 unsigned quants of one block, four k at a time: a line's four bytes of this row. */
static void put_block(const put *p, int block, const uint8_t v[32]) {
    const panel_layout *l = p->l;
    uint32_t line[8];
    for (int g = 0; g < 8; g++)
        line[g] = load4(v + 4 * g);
    uint8_t *at = p->group + 4 * p->row;
    int bits = 0;
    if (l->q8 >= 0)
        for (int g = 0; g < 8; g++)
            store4(at + l->q8 + 512 * block + 64 * g, line[g]);
    if (l->q4 >= 0) {
        for (int g = 0; g < 4; g++)
            store4(at + l->q4 + 256 * block + 64 * g,
                   (line[g] & 0x0f0f0f0fu) | (line[g + 4] & 0x0f0f0f0fu) << 4);
        bits = 4;
    }
    if (l->q2 >= 0) {
        for (int h = 0; h < 2; h++) {
            uint32_t out = 0;
            for (int s = 0; s < 4; s++)
                out |= (line[4 * h + s] >> bits & 0x03030303u) << 2 * s;
            store4(at + l->q2 + 128 * block + 64 * h, out);
        }
        bits += 2;
    }
    if (l->q1 >= 0) {
        uint32_t out = 0;
        for (int g = 0; g < 8; g++)
            out |= (line[g] >> bits & 0x01010101u) << g;
        store4(at + l->q1 + 64 * block, out);
    }
}

static void put_half(const put *p, int plane, int block, const uint8_t *src) {
    memcpy(p->group + plane + 32 * block + 2 * p->row, src, 2);
}

/* The simple types: one block of 32, which begins with its f16 scale (and minimum). */
static void pack_block(const put *p, int block, td_type type, const uint8_t *src) {
    uint8_t v[32];
    put_half(p, p->l->d, block, src);
    src += 2;
    if (p->l->dmin >= 0) {
        put_half(p, p->l->dmin, block, src);
        src += 2;
    }
    if (type == TD_TYPE_Q8_0) {
        for (int k = 0; k < 32; k++)
            v[k] = src[k] ^ 0x80u;
        put_block(p, block, v);
        return;
    }
    uint32_t high = 0;
    if (p->l->q1 >= 0) {
        high = load4(src);
        src += 4;
    }
    for (int k = 0; k < 16; k++) {
        v[k] = (uint8_t)((src[k] & 15) | (high >> k & 1) << 4);
        v[k + 16] = (uint8_t)(src[k] >> 4 | (high >> (k + 16) & 1) << 4);
    }
    put_block(p, block, v);
}

/* 6-bit scale and minimum j of Q4_K and Q5_K out of 12 bytes. */
static void scale_min_k4(const uint8_t *s, int j, uint8_t *sc, uint8_t *mn) {
    if (j < 4) {
        *sc = s[j] & 63, *mn = s[j + 4] & 63;
    } else {
        *sc = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *mn = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

static void pack_q4_k_q5_k(const put *p, td_type type, const uint8_t *src) {
    put_half(p, p->l->d, 0, src);
    put_half(p, p->l->dmin, 0, src + 2);
    const uint8_t *scales = src + 4;
    const uint8_t *high = type == TD_TYPE_Q5_K ? src + 16 : NULL;
    const uint8_t *low = src + (high ? 48 : 16);
    for (int b = 0; b < 8; b++) {
        uint8_t *at = p->group + p->row + 16 * b;
        scale_min_k4(scales, b, at + p->l->sc, at + p->l->mn);
        uint8_t v[32];
        for (int k = 0; k < 32; k++)
            v[k] = low[32 * (b / 2) + k] >> 4 * (b % 2) & 15u;
        for (int k = 0; high && k < 32; k++)
            v[k] |= (uint8_t)((high[k] >> b & 1) << 4);
        put_block(p, b, v);
    }
}

static void pack_q6_k(const put *p, const uint8_t *src) {
    const uint8_t *low = src, *high = src + 128, *scales = src + 192;
    put_half(p, p->l->d, 0, src + 208);
    for (int s = 0; s < 16; s++)
        p->group[p->l->sc + 16 * s + p->row] = scales[s];
    for (int b = 0; b < 8; b++) { /* two halves of 128: four runs of 32 share low and high bytes */
        const int half = b / 4, run = b % 4;
        const uint8_t *lo = low + 64 * half + 32 * (run & 1), *hi = high + 32 * half;
        uint8_t v[32];
        for (int k = 0; k < 32; k++)
            v[k] = (uint8_t)((lo[k] >> 4 * (run >> 1) & 15) | (hi[k] >> 2 * run & 3) << 4);
        put_block(p, b, v);
    }
}

static void pack_q2_k(const put *p, const uint8_t *src) {
    const uint8_t *scales = src, *low = src + 16;
    put_half(p, p->l->d, 0, src + 80);
    put_half(p, p->l->dmin, 0, src + 82);
    for (int s = 0; s < 16; s++)
        p->group[p->l->sc + 16 * s + p->row] = scales[s];
    for (int b = 0; b < 8; b++) {
        uint8_t v[32];
        for (int k = 0; k < 32; k++)
            v[k] = low[32 * (b / 4) + k] >> 2 * (b % 4) & 3u;
        put_block(p, b, v);
    }
}

static void pack_q3_k(const put *p, const uint8_t *src) {
    const uint8_t *high = src, *low = src + 32, *s6 = src + 96;
    put_half(p, p->l->d, 0, src + 108);
    for (int s = 0; s < 16; s++) { /* 16 six-bit scales: low nibbles in 8 bytes, high pairs in 4 */
        const int lo = s6[s % 8] >> 4 * (s / 8) & 15, hi = s6[8 + s % 4] >> 2 * (s / 4) & 3;
        p->group[p->l->sc + 16 * s + p->row] = (uint8_t)(int8_t)((lo | hi << 4) - 32);
    }
    for (int b = 0; b < 8; b++) {
        uint8_t v[32];
        for (int k = 0; k < 32; k++)
            v[k] = (uint8_t)((low[32 * (b / 4) + k] >> 2 * (b % 4) & 3) | (high[k] >> b & 1) << 2);
        put_block(p, b, v);
    }
}

static void pack_iq4_xs(const put *p, const uint8_t *src) {
    uint16_t high;
    put_half(p, p->l->d, 0, src);
    memcpy(&high, src + 2, 2);
    const uint8_t *low = src + 4, *q = src + 8;
    for (int b = 0; b < 8; b++) {
        const int s = (low[b / 2] >> 4 * (b % 2) & 15) | (high >> 2 * b & 3) << 4;
        p->group[p->l->sc + 16 * b + p->row] = (uint8_t)(int8_t)(s - 32);
        uint8_t v[32];
        for (int k = 0; k < 16; k++)
            v[k] = q[16 * b + k] & 15, v[k + 16] = q[16 * b + k] >> 4;
        put_block(p, b, v);
    }
}

static void pack_group(const put *p, td_type type, const uint8_t *src, int n_blocks) {
    switch (type) {
    case TD_TYPE_Q4_K:
    case TD_TYPE_Q5_K: pack_q4_k_q5_k(p, type, src); return;
    case TD_TYPE_Q6_K: pack_q6_k(p, src); return;
    case TD_TYPE_Q2_K: pack_q2_k(p, src); return;
    case TD_TYPE_Q3_K: pack_q3_k(p, src); return;
    case TD_TYPE_IQ4_XS: pack_iq4_xs(p, src); return;
    default:
        for (int b = 0; b < n_blocks; b++)
            pack_block(p, b, type, src + (size_t)b * (size_t)td_type_get(type)->block_bytes);
    }
}

static void pack_float_panel(const kern_mat *m, const uint8_t *rows, size_t row_bytes, int panel,
                             uint8_t *out) {
    const int size = float_bytes(m->type);
    for (int r = 0; r < KERN_PANEL && panel * KERN_PANEL + r < m->n_out; r++) {
        const uint8_t *src = rows + (size_t)(panel * KERN_PANEL + r) * row_bytes;
        for (size_t k = 0; k < (size_t)m->n_in; k++)
            memcpy(out + (k * KERN_PANEL + (size_t)r) * (size_t)size, src + k * (size_t)size,
                   (size_t)size);
    }
}

void kern_mat_pack(const kern_mat *m, const void *rows, size_t row_bytes, int begin, int end) {
    const panel_layout *l = panel_layout_get(m->type);
    const td_type_info *info = td_type_get(m->type);
    for (int panel = begin; panel < end; panel++) {
        uint8_t *out = m->data + (size_t)panel * m->panel_bytes;
        memset(out, 0, m->panel_bytes);
        if (!l->group) {
            pack_float_panel(m, rows, row_bytes, panel, out);
            continue;
        }
        const int n_blocks = m->n_in / KERN_BLOCK;
        const int file_span = info->block / KERN_BLOCK; /* blocks of 32 in one block of the file */
        for (int r = 0; r < KERN_PANEL && panel * KERN_PANEL + r < m->n_out; r++) {
            const uint8_t *src =
                (const uint8_t *)rows + (size_t)(panel * KERN_PANEL + r) * row_bytes;
            put p = {out, l, r};
            for (int b = 0; b < n_blocks; b += l->group, p.group += l->group_bytes) {
                const int left = n_blocks - b;
                pack_group(&p, m->type, src + (size_t)(b / file_span) * (size_t)info->block_bytes,
                           left < l->group ? left : l->group);
            }
        }
    }
}
