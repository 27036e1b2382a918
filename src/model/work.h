/* Scratch of a pass. n stands for the rows of the pass; widths are padded to 32 values, so that
 * every row of every buffer begins on a cache line. */
#ifndef TD_MODEL_WORK_H
#define TD_MODEL_WORK_H

#include "model/model_internal.h"

/* Rows of one sequence whose queries meet a page together. 16 rows of 6 heads: 48 KiB of running
 * sums, which still stay in the second-level cache beside the page. */
enum { MODEL_Q_ROWS = 16 };

static inline int model_pad(int n) {
    return (n + 31) & ~31;
}

/* What a row is, worked out once a pass. */
typedef struct model_row_info {
    int seq, token, parent;
    int len; /* committed positions of its sequence */
    int position;
    int slot;
    bool chain; /* its ancestors are the rows right before it: slot == position for all of them */
    int want;   /* index among the rows that want logits; -1 */
} model_row_info;

/* Neighbouring rows of one sequence, at most MODEL_Q_ROWS: the unit of attention. */
typedef struct model_block {
    int begin, end;
} model_block;

/* One thread's own, for attention. A query is a (row, head). */
typedef struct model_scratch {
    kern_attn_state *states; /* (MODEL_Q_ROWS, group) */
    float *out;              /* (MODEL_Q_ROWS, group, head_v) */
    kern_query *q;           /* the call: queries, their states and ranges */
    kern_attn_state **state;
    int16_t *begin, *end;
    void *k_page, *v_page; /* gathered pages */
} model_scratch;

struct model_work {
    int max_rows, n_threads;
    int n_embd, n_q, n_k, n_v, n_att, n_ff, n_in, n_rot; /* padded widths; n_in: of acts */
    int group, head_k, head_v; /* most query heads a KV head; padded head sizes */
    model_row_info *rows;      /* (n) */
    model_block *blocks;       /* (n) at most */
    int n_blocks;
    int *seqs; /* (n) at most: sequences of the pass */
    int n_seqs;
    float *x;                   /* (n, n_embd) the residual stream */
    float *h;                   /* (n, n_embd) normed */
    float *o;                   /* (n, n_embd) what a block adds to x */
    float *q, *k, *v;           /* (n, n_q), (n, n_k), (n, n_v) */
    float *att;                 /* (n, n_att) */
    float *gate, *up;           /* (n, n_ff) */
    float *cosine[2], *sine[2]; /* (n, n_rot): full, windowed layers */
    kern_acts acts;             /* the input of the product at hand */
    kern_acts ff_acts;          /* down's: made while acts still serve gate and up */
    kern_acts q_acts;           /* queries, for keys in q8_0 */
    model_scratch *scratch;     /* (n_threads); owns */
    uint8_t *mem;               /* all of the above; owns */
    size_t mem_bytes;
};

#endif
