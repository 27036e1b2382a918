/* How a matrix lies in memory, for every CPU level alike.
 *
 * A panel is 16 rows of the matrix over all of k. It is a row of *groups*; a group covers 2 blocks of 32 k
 * (8 for the K-quants, whose scales come in 256) and holds the planes below one after the other, each on a
 * cache line (in every second group of Q3_K on half of one), so that a panel is one forward stream. k past n_in is
 * zero.
 *
 * The quants of one block of 32 k by 16 rows are eight *lines* of 64 bytes when unpacked: byte 4 * row + j
 * of line g is k = 4 * g + j. One broadcast of 4 activations meets one line (vpdpbusd), and four of them
 * stacked are an AMX tile. Packed:
 *   4 bits: 4 lines; line i holds line i in its low nibbles, line i + 4 in its high ones
 *   2 bits: 2 lines; line h holds line 4 * h + s at bits 2 * s
 *   1 bit:  1 line;  bit g belongs to line g
 *   8 bits: 8 lines, stored as q + 128
 * Scales are planes of 16, one a row, in the file's own precision.
 *
 * Type    a group's planes (bytes a group; share of the file's bytes)
 * Q4_0    q4 2x256, d f16 2x16                                     576   1.00
 * Q4_1    q4 2x256, d f16 2x16, m f16 2x16                         640   1.00
 * Q5_0    q4 2x256, q1 2x64, d f16 2x16                            704   1.00
 * Q5_1    q4 2x256, q1 2x64, d f16 2x16, m f16 2x16                768   1.00
 * Q8_0    q8 2x512, d f16 2x16                                    1088   1.00
 * IQ4_NL  as Q4_0 (indices)                                        576   1.00
 * Q4_K    q4 8x256, d f16 16, dmin f16 16, sc u8 8x16, mn u8 8x16 2368   1.03
 * Q5_K    q4 8x256, q1 8x64, the scales of Q4_K                   2880   1.02
 * Q6_K    q4 8x256, q2 8x128, sc i8 16x16, d f16 16, pad 32       3392   1.01
 * Q2_K    q2 8x128, d f16 16, dmin f16 16, sc|mn<<4 16x16         1344   1.00
 * Q3_K    q2 8x128, q1 8x64, sc i8 16x16, d f16 16                1824   1.04
 * IQ4_XS  q4 8x256, sc i8 8x16, d f16 16, pad 32                  2240   1.03
 * F32, F16, BF16: no groups; k after k, 16 rows each.
 *
 * The integer product of a block is sum q_unsigned * a - offset * sum a, with the offset of the type:
 * Q4_0 8, Q5_0 16, Q8_0 128, IQ4 128 (table + 128), Q6_K 32, Q3_K 4, others 0. */
#ifndef TD_KERNELS_PANEL_H
#define TD_KERNELS_PANEL_H

#include "kernels/kernels.h"

typedef struct panel_layout {
    int group;       /* blocks of 32 a group; 0: float weights */
    int group_bytes;
    int q4, q2, q1, q8;   /* offsets of the quant planes in a group; -1: none */
    int d, dmin;          /* offsets of f16 planes; -1: none. Groups of 2: one plane a block */
    int sc, mn;           /* offsets of 8-bit scale planes; -1: none */
    int scales;           /* scales a block: 1 or 2 */
    int offset;           /* subtracted from every unsigned quant */
} panel_layout;

/* By td_type. In the header, so that a type known when compiling becomes constants. */
static const panel_layout panel_layouts[TD_TYPE_COUNT] = {
    [TD_TYPE_Q4_0] = {2, 576, .q4 = 0, -1, -1, -1, .d = 512, -1, -1, -1, 1, 8},
    [TD_TYPE_Q4_1] = {2, 640, .q4 = 0, -1, -1, -1, .d = 512, .dmin = 576, -1, -1, 1, 0},
    [TD_TYPE_Q5_0] = {2, 704, .q4 = 0, -1, .q1 = 512, -1, .d = 640, -1, -1, -1, 1, 16},
    [TD_TYPE_Q5_1] = {2, 768, .q4 = 0, -1, .q1 = 512, -1, .d = 640, .dmin = 704, -1, -1, 1, 0},
    [TD_TYPE_Q8_0] = {2, 1088, -1, -1, -1, .q8 = 0, .d = 1024, -1, -1, -1, 1, 128},
    [TD_TYPE_IQ4_NL] = {2, 576, .q4 = 0, -1, -1, -1, .d = 512, -1, -1, -1, 1, 128},
    [TD_TYPE_Q4_K] = {8, 2368, .q4 = 0, -1, -1, -1, .d = 2048, .dmin = 2080, .sc = 2112, .mn = 2240, 1, 0},
    [TD_TYPE_Q5_K] = {8, 2880, .q4 = 0, -1, .q1 = 2048, -1, .d = 2560, .dmin = 2592, .sc = 2624,
                      .mn = 2752, 1, 0},
    [TD_TYPE_Q6_K] = {8, 3392, .q4 = 0, .q2 = 2048, -1, -1, .d = 3328, -1, .sc = 3072, -1, 2, 32},
    [TD_TYPE_Q2_K] = {8, 1344, -1, .q2 = 0, -1, -1, .d = 1024, .dmin = 1056, .sc = 1088, -1, 2, 0},
    [TD_TYPE_Q3_K] = {8, 1824, -1, .q2 = 0, .q1 = 1024, -1, .d = 1792, -1, .sc = 1536, -1, 2, 4},
    [TD_TYPE_IQ4_XS] = {8, 2240, .q4 = 0, -1, -1, -1, .d = 2176, -1, .sc = 2048, -1, 1, 128},
};

static inline const panel_layout *panel_layout_get(td_type type) {
    return &panel_layouts[type];
}
static inline bool panel_two_scales(td_type type) {
    return panel_layouts[type].scales == 2;
}
static inline bool panel_has_min(td_type type) { /* one a block; Q2_K has two */
    return panel_layouts[type].dmin >= 0 && !panel_two_scales(type);
}
static inline bool panel_is_iq4(td_type type) { /* 4 bits that stand for the values below */
    return type == TD_TYPE_IQ4_NL || type == TD_TYPE_IQ4_XS;
}

enum { PANEL_FAR_BYTES = 8192, PANEL_NEAR_BYTES = 2048 };

/* This block's share of what comes PANEL_FAR_BYTES later into the second-level cache, of what comes PANEL_NEAR_BYTES
 * later into the first. The few misses a core may have open at the first level are then short ones, and those to memory
 * wait in the second's longer queue. On Zen 4, cycles a block of Q4_K and thread with both cores reading, one prefetch
 * into the first level 4096 bytes ahead -> two: AVX-512 1 row 60 -> 53, 5 rows 112 -> 67; AVX2 1 row 56 -> 47. */
static inline __attribute__((always_inline)) void panel_prefetch(td_type type, const uint8_t *group, size_t block) {
    const panel_layout *l = panel_layout_get(type);
    const size_t block_bytes = (size_t)(l->group_bytes / l->group);
    const uint8_t *at = group + block_bytes * block;
    _Pragma("GCC unroll 16") for (size_t i = 0; i < block_bytes; i += 64) {
        __builtin_prefetch(at + PANEL_FAR_BYTES + i, 0, 2);
        __builtin_prefetch(at + PANEL_NEAR_BYTES + i, 0, 3);
    }
}

/* Every type that lies in panels of groups: what a level instantiates its template for. */
#define PANEL_TYPES(X) \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS)

/* The IQ4 code book (ggml's kvalues_iq4nl; facts of the format), plus 128. */
extern const uint8_t panel_iq4_values[16];

#endif
