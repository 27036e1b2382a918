/* What a pass reads and writes: one row's K and V into its slot, a page's address, and the
 * gathering of scattered slots into one page. kv_write and kv_gather run inside a pass, on many
 * threads. */
#include "kv/kv_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The block of one head in the page that holds `slot`; NULL when the page left the window. */
static uint8_t *head_block(const kv_cache *kv, int seq, const kv_place *y, int head, int page) {
    assert(seq >= 0 && seq < kv->max_seqs && kv->seqs[seq].used);
    assert(head >= 0 && head < y->n_heads && page >= 0 && page < kv->n_table);
    const int at = kv_table(kv, y->group, seq)[page];
    if (at < 0) return NULL;
    return kv_page(&kv->groups[y->group], at) + y->offset + (size_t)head * y->head_bytes;
}

/* ---- quantising 32 values ---- */

static float to_nearest(float x) { /* even, for |x| < 2^22 */
    return x + 12582912.0f - 12582912.0f;
}

/* NaN becomes lo. */
static int clamp(float x, int lo, int hi) {
    return x > (float)lo ? x < (float)hi ? (int)x : hi : lo;
}

/* Rounded to f16, so that what is rounded with it is what it will be multiplied with. */
static uint16_t scale_of(float x, float *inverse) {
    const uint16_t h = td_f32_to_f16(x > 65504 ? 65504 : x < -65504 ? -65504 : x);
    const float d = td_f16_to_f32(h);
    *inverse = d != 0 ? 1 / d : 0;
    return h;
}

/* q in [-127, 127], q * scale about x. Returns the scale. */
static uint16_t quantize_q8(const float *x, int8_t q[KERN_BLOCK]) {
    float top = 0, inverse;
    for (int i = 0; i < KERN_BLOCK; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    const uint16_t scale = scale_of(top / 127, &inverse);
    for (int i = 0; i < KERN_BLOCK; i++)
        q[i] = (int8_t)clamp(to_nearest(x[i] * inverse), -127, 127);
    return scale;
}

/* q in [0, 15], (q - 8) * scale about x: the value of largest size becomes -8 * scale. */
static uint16_t quantize_q4(const float *x, uint8_t q[KERN_BLOCK]) {
    float top = 0, inverse;
    for (int i = 0; i < KERN_BLOCK; i++)
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    const uint16_t scale = scale_of(top / -8, &inverse);
    for (int i = 0; i < KERN_BLOCK; i++)
        q[i] = (uint8_t)clamp(to_nearest(x[i] * inverse) + 8, 0, 15);
    return scale;
}

/* ---- one slot of one head ---- */

static void write_k(kern_kv_type type, void *page, int at, const float *k, int dim) {
    switch (type) {
    case KERN_KV_F32:
        for (int d = 0; d < dim; d++)
            ((float *)page)[d * KERN_PAGE + at] = k[d];
        return;
    case KERN_KV_F16:
        for (int d = 0; d < dim; d++)
            ((uint16_t *)page)[d * KERN_PAGE + at] = td_f32_to_f16(k[d]);
        return;
    case KERN_KV_Q8_0:
        for (kern_kv_q8 *b = page; dim > 0; b++, k += KERN_BLOCK, dim -= KERN_BLOCK) {
            int8_t q[KERN_BLOCK];
            b->scale[at] = quantize_q8(k, q);
            for (int d = 0; d < KERN_BLOCK; d++)
                b->q[d / 4][at][d % 4] = q[d];
        }
        return;
    default:
        for (kern_kv_q4 *b = page; dim > 0; b++, k += KERN_BLOCK, dim -= KERN_BLOCK) {
            uint8_t q[KERN_BLOCK];
            b->scale[at] = quantize_q4(k, q);
            for (int i = 0; i < KERN_BLOCK / 2; i++)
                b->q[i * KERN_PAGE + at] = (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
        }
    }
}

static void write_v(kern_kv_type type, void *page, int at, const float *v, int dim) {
    switch (type) {
    case KERN_KV_F32:
        memcpy((float *)page + (size_t)at * (size_t)dim, v, (size_t)dim * sizeof *v);
        return;
    case KERN_KV_F16:
        for (int d = 0; d < dim; d++)
            ((uint16_t *)page)[at * dim + d] = td_f32_to_f16(v[d]);
        return;
    case KERN_KV_Q8_0:
        for (kern_kv_q8 *b = page; dim > 0; b++, v += KERN_BLOCK, dim -= KERN_BLOCK) {
            int8_t q[KERN_BLOCK];
            b->scale[at] = quantize_q8(v, q);
            for (int d = 0; d < KERN_BLOCK; d++)
                b->q[at / 4][d][at % 4] = q[d];
        }
        return;
    default:
        for (kern_kv_q4 *b = page; dim > 0; b++, v += KERN_BLOCK, dim -= KERN_BLOCK) {
            uint8_t q[KERN_BLOCK];
            b->scale[at] = quantize_q4(v, q);
            for (int i = 0; i < KERN_BLOCK / 2; i++)
                b->q[at * (KERN_BLOCK / 2) + i] = (uint8_t)(q[i] | q[i + KERN_BLOCK / 2] << 4);
        }
    }
}

static void copy_k(kern_kv_type type, const void *from_page, int from, void *to_page, int to,
                   int dim) {
    switch (type) {
    case KERN_KV_F32:
        for (int d = 0; d < dim; d++)
            ((float *)to_page)[d * KERN_PAGE + to] =
                ((const float *)from_page)[d * KERN_PAGE + from];
        return;
    case KERN_KV_F16:
        for (int d = 0; d < dim; d++)
            ((uint16_t *)to_page)[d * KERN_PAGE + to] =
                ((const uint16_t *)from_page)[d * KERN_PAGE + from];
        return;
    case KERN_KV_Q8_0: {
        const kern_kv_q8 *f = from_page;
        for (kern_kv_q8 *b = to_page; dim > 0; b++, f++, dim -= KERN_BLOCK) {
            b->scale[to] = f->scale[from];
            for (int g = 0; g < KERN_BLOCK / 4; g++)
                memcpy(b->q[g][to], f->q[g][from], sizeof b->q[g][to]);
        }
        return;
    }
    default: {
        const kern_kv_q4 *f = from_page;
        for (kern_kv_q4 *b = to_page; dim > 0; b++, f++, dim -= KERN_BLOCK) {
            b->scale[to] = f->scale[from];
            for (int i = 0; i < KERN_BLOCK / 2; i++)
                b->q[i * KERN_PAGE + to] = f->q[i * KERN_PAGE + from];
        }
    }
    }
}

static void copy_v(kern_kv_type type, const void *from_page, int from, void *to_page, int to,
                   int dim) {
    switch (type) {
    case KERN_KV_Q8_0: {
        const kern_kv_q8 *f = from_page;
        for (kern_kv_q8 *b = to_page; dim > 0; b++, f++, dim -= KERN_BLOCK) {
            b->scale[to] = f->scale[from];
            for (int d = 0; d < KERN_BLOCK; d++)
                b->q[to / 4][d][to % 4] = f->q[from / 4][d][from % 4];
        }
        return;
    }
    case KERN_KV_Q4_0: {
        const kern_kv_q4 *f = from_page;
        const int n = KERN_BLOCK / 2;
        for (kern_kv_q4 *b = to_page; dim > 0; b++, f++, dim -= KERN_BLOCK) {
            b->scale[to] = f->scale[from];
            memcpy(b->q + to * n, f->q + from * n, (size_t)n);
        }
        return;
    }
    default: {
        const size_t bytes = kern_kv_page_bytes(type, dim) / KERN_PAGE;
        memcpy((uint8_t *)to_page + (size_t)to * bytes,
               (const uint8_t *)from_page + (size_t)from * bytes, bytes);
    }
    }
}

void kv_copy_slot(const kv_cache *kv, const kv_place *y, const uint8_t *from_k,
                  const uint8_t *from_v, int from, uint8_t *to_k, uint8_t *to_v, int to) {
    copy_k(kv->k_type, from_k, from, to_k, to, y->k_dim);
    copy_v(kv->v_type, from_v, from, to_v, to, y->v_dim);
}

/* ---- a pass ---- */

void kv_write(kv_cache *kv, int seq, int layer, int slot, const float *k, const float *v) {
    const kv_place *y = &kv->places[layer];
    const int at = slot % KERN_PAGE;
    assert(slot >= kv->seqs[seq].len && slot < kv->seqs[seq].len + kv->seqs[seq].n_reserved);
    for (int h = 0; h < y->n_heads; h++, k += y->k_dim, v += y->v_dim) {
        uint8_t *block = head_block(kv, seq, y, h, slot / KERN_PAGE);
        write_k(kv->k_type, block, at, k, y->k_dim);
        write_v(kv->v_type, block + y->k_bytes, at, v, y->v_dim);
    }
}

const void *kv_page_k(const kv_cache *kv, int seq, int layer, int head, int page) {
    return head_block(kv, seq, &kv->places[layer], head, page);
}

const void *kv_page_v(const kv_cache *kv, int seq, int layer, int head, int page) {
    const kv_place *y = &kv->places[layer];
    const uint8_t *block = head_block(kv, seq, y, head, page);
    return block ? block + y->k_bytes : NULL;
}

void kv_gather(const kv_cache *kv, int seq, int layer, int head, const int *slots, int n, int first,
               void *k_page, void *v_page) {
    const kv_place *y = &kv->places[layer];
    assert(first >= 0 && n >= 0 && first + n <= KERN_PAGE);
    for (int i = 0; i < n; i++) {
        const uint8_t *block = head_block(kv, seq, y, head, slots[i] / KERN_PAGE);
        assert(block);
        kv_copy_slot(kv, y, block, block + y->k_bytes, slots[i] % KERN_PAGE, k_page, v_page,
                     first + i);
    }
}

/* ---- the invariants of kv_internal.h ---- */

static bool check_group(const kv_cache *kv, int group) {
    const kv_group *g = &kv->groups[group];
    if (!g->n_layers) return true;
    int *n_seen = g->n_seen;
    memset(n_seen, 0, (size_t)g->n_pages * sizeof *n_seen);
    bool ok = true;
    for (int q = 0; q < kv->max_seqs; q++) {
        const kv_seq *s = &kv->seqs[q];
        const int *table = kv_table(kv, group, q);
        const int first = s->used ? s->held[group].first : 0;
        const int end = s->used ? s->held[group].end : 0;
        if (s->used) {
            ok = ok && end == kv_pages_of(s->len + s->n_reserved) && first >= 0 && first <= end;
            ok = ok && (group == KV_WINDOWED ? first <= kv_first_needed(s->len, g->window - 1)
                                             : first == 0);
        }
        for (int p = 0; p < kv->n_table && ok; p++) {
            if (p < first || p >= end) {
                ok = table[p] == -1;
                continue;
            }
            ok = table[p] >= 0 && table[p] < g->n_pages;
            if (!ok) break;
            n_seen[table[p]]++;
            if (s->n_reserved && p >= s->len / KERN_PAGE) ok = g->ref[table[p]] == 1;
        }
    }
    int n_used = 0;
    for (int p = 0; p < g->n_pages && ok; p++) {
        ok = n_seen[p] == g->ref[p];
        n_used += g->ref[p] > 0;
    }
    ok = ok && n_used + g->n_free == g->n_pages;
    for (int i = 0; i < g->n_free && ok; i++) { /* on the list, and once */
        const int p = g->free_pages[i];
        ok = p >= 0 && p < g->n_pages && g->ref[p] == 0 && n_seen[p] == 0;
        if (ok) n_seen[p] = -1;
    }
    return ok;
}

bool kv_check(const kv_cache *kv) {
    for (int q = 0; q < kv->max_seqs; q++) {
        const kv_seq *s = &kv->seqs[q];
        if (!s->used) continue;
        if (s->len < 0 || s->n_reserved < 0 || s->n_reserved > kv->max_rows ||
            s->len + s->n_reserved > kv->n_ctx)
            return false;
    }
    for (int i = 0; i < KV_MAX_GROUPS; i++)
        if (!check_group(kv, i)) return false;
    return true;
}
