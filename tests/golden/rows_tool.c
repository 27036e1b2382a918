/* rows_tool MODEL N_THREADS TYPE [STRIDE] < ids (int32)
 *
 * Contract R on a real model. The text is decoded one row a pass, and each row's logits are hashed:
 * that is what everything else must give again, bit for bit: passes of many sizes, trees with
 * decoys (their rows too, against plain decoding of their own paths), decoding on after a path was
 * kept, truncation, forks, two sequences in one pass. Prints the number of rows compared and one
 * digest of all logits, which test_rows.py compares between thread counts and CPU levels. Exit 1 on
 * the first difference. */
#include "kv_type_arg.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 128, ROLLBACK = 24, MAX_TREE = 32, MAX_DEPTH = 6 };

typedef struct tester {
    const model *m;
    kv_cache *kv;
    model_work *w;
    float *logits;           /* (MAX_ROWS, n_vocab) */
    uint64_t hash[MAX_ROWS]; /* of the last pass */
    model_row rows[MAX_ROWS];
    const int32_t *ids;
    int n;
    uint64_t *want; /* (n): plain decoding */
    int stride;     /* positions that are looked at */
    long n_compared;
    uint64_t random;
} tester;

static void die(const char *what) {
    fprintf(stderr, "rows_tool: %s\n", what);
    exit(1);
}

static int below(tester *t, int n) { /* SplitMix64: the same trees on every machine */
    uint64_t z = t->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int)((z ^ z >> 31) % (uint64_t)n);
}

static uint64_t hash_bytes(const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t h = 0x243f6a8885a308d3u;
    for (; n >= 4; n -= 4, p += 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        h = (h ^ v) * 0x100000001b3u;
        h ^= h >> 29;
    }
    return h;
}

/* Runs t->rows[0..n) and hashes the logits of those that want them. */
static void forward(tester *t, int n) {
    td_error err;
    const size_t n_vocab = (size_t)model_get_config(t->m)->n_vocab;
    if (model_forward(t->m, t->kv, t->rows, n, t->w, t->logits, &err)) die(err.msg);
    const float *y = t->logits;
    for (int i = 0; i < n; i++) {
        if (!t->rows[i].want_logits) continue;
        t->hash[i] = hash_bytes(y, n_vocab * sizeof(float));
        y += n_vocab;
    }
}

/* Rows of ids[0..n), which will stand at positions at .. of their sequence. */
static void set_chain(tester *t, int first, int seq, const int32_t *ids, int n, int at) {
    for (int i = 0; i < n; i++)
        t->rows[first + i] = (model_row){.seq = seq,
                                         .token = ids[i],
                                         .parent = i ? first + i - 1 : -1,
                                         .want_logits = (at + i) % t->stride == 0};
}

static void check(tester *t, uint64_t got, uint64_t want, const char *what, int position) {
    if (position % t->stride) return;
    t->n_compared++;
    if (got == want) return;
    fprintf(stderr, "rows_tool: %s: the logits at position %d differ from plain decoding's\n", what,
            position);
    exit(1);
}

static int new_seq(tester *t) {
    td_error err;
    int seq;
    if (kv_seq_new(t->kv, &seq, &err)) die(err.msg);
    return seq;
}

static int fork_seq(tester *t, int from, int n_pos) {
    td_error err;
    int seq;
    if (kv_seq_fork(t->kv, from, n_pos, &seq, &err)) die(err.msg);
    return seq;
}

static void keep(tester *t, int seq, const int *rows, int n) {
    kv_seq_keep(t->kv, seq, rows, n);
    if (!kv_check(t->kv)) die("the cache broke its invariants");
}

static void decode(tester *t, int seq, const int32_t *ids, int n, uint64_t *hashes) {
    for (int i = 0; i < n; i++) {
        set_chain(t, 0, seq, ids + i, 1, kv_seq_len(t->kv, seq));
        forward(t, 1);
        hashes[i] = t->hash[0];
        keep(t, seq, NULL, 1);
    }
}

/* ids[from .. to) in passes of `size` rows (0: 2 to 32 at random) behind what seq has. */
static void in_passes(tester *t, int seq, int from, int to, int size, const char *what) {
    for (int at = from; at < to;) {
        int n = size ? size : 2 + below(t, 31);
        n = n < to - at ? n : to - at;
        set_chain(t, 0, seq, t->ids + at, n, at);
        forward(t, n);
        for (int i = 0; i < n; i++)
            check(t, t->hash[i], t->want[at + i], what, at + i);
        keep(t, seq, NULL, n);
        at += n;
    }
}

static void chunk_sizes(tester *t) {
    static const int sizes[] = {3, 16, 33, MAX_ROWS, 0};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char what[64];
        snprintf(what, sizeof what, "passes of %d rows", sizes[s]);
        const int seq = new_seq(t);
        in_passes(t, seq, 0, t->n, sizes[s], what);
        kv_seq_free(t->kv, seq);
    }
}

/* A tree of ids[at .. at + depth) with decoys between, all hanging somewhere on it. */
static int plant_tree(tester *t, int seq, int at, int depth, int *path) {
    int n = 0;
    const int n_vocab = model_get_config(t->m)->n_vocab;
    for (int d = 0; d < depth; d++) {
        for (int decoys = d ? below(t, 4) : 0; decoys > 0 && n < MAX_TREE - depth; decoys--)
            t->rows[n] = (model_row){.seq = seq, .token = below(t, n_vocab), .parent = below(t, n)},
            n++;
        t->rows[n] =
            (model_row){.seq = seq, .token = t->ids[at + d], .parent = d ? path[d - 1] : -1};
        path[d] = n++;
    }
    /* siblings of the root and leaves behind the path's end */
    t->rows[n++] = (model_row){.seq = seq, .token = below(t, n_vocab), .parent = -1};
    t->rows[n] = (model_row){.seq = seq, .token = below(t, n_vocab), .parent = n - 1}, n++;
    return n;
}

/* A row of the tree against plain decoding of its own path on a fork. */
static void check_decoy(tester *t, const model_row *rows, const uint64_t *hashes, int row,
                        int prefix) {
    int32_t ids[MAX_TREE];
    uint64_t got[MAX_TREE];
    int n = 0;
    for (int r = row; r >= 0; r = rows[r].parent)
        n++;
    for (int r = row, i = n; r >= 0; r = rows[r].parent)
        ids[--i] = rows[r].token;
    const int at = kv_seq_len(t->kv, prefix), seq = fork_seq(t, prefix, at), stride = t->stride;
    t->stride = 1;
    decode(t, seq, ids, n, got);
    check(t, hashes[row], got[n - 1], "a decoy's row of a tree", at + n - 1);
    t->stride = stride;
    kv_seq_free(t->kv, seq);
}

static void tree_at(tester *t, int prefix, int at) {
    int path[MAX_DEPTH];
    model_row rows[MAX_TREE + 2];
    uint64_t hashes[MAX_TREE + 2];
    const int depth = 2 + below(t, MAX_DEPTH - 1), seq = fork_seq(t, prefix, at);
    const int n = plant_tree(t, seq, at, depth, path);
    for (int i = 0; i < n; i++)
        t->rows[i].want_logits = true;
    forward(t, n);
    memcpy(rows, t->rows, sizeof rows);
    memcpy(hashes, t->hash, sizeof hashes);
    for (int d = 0; d < depth; d++)
        check(t, hashes[path[d]], t->want[at + d], "the kept path of a tree", at + d);
    const int n_kept = 1 + below(t, depth);
    keep(t, seq, path, n_kept);
    check_decoy(t, rows, hashes, n - 1, prefix);
    check_decoy(t, rows, hashes, below(t, n), prefix);
    in_passes(t, seq, at + n_kept, at + depth + 2, 1, "decoding on after a tree");
    /* back, as far as is promised, and on again */
    const int back = at + depth + 2 > ROLLBACK ? at + depth + 2 - ROLLBACK : 1;
    if (!kv_seq_truncate(t->kv, seq, back)) die("a rollback within bounds was refused");
    in_passes(t, seq, back, back + ROLLBACK / 2, 5, "decoding on after a rollback");
    if (kv_seq_len(t->kv, seq) > at) kv_seq_truncate(t->kv, seq, at);
    kv_seq_free(t->kv, seq);
}

static void trees(tester *t) {
    /* around edges of pages and of Gemma's window, and here and there */
    static const int edges[] = {1,   29,  31,  32,  33,  60,  64,  100,
                                500, 511, 512, 513, 540, 575, 600, 690};
    const int prefix = new_seq(t);
    int at = 0;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        if (edges[i] + ROLLBACK + MAX_DEPTH + 2 > t->n) break;
        in_passes(t, prefix, at, edges[i], MAX_ROWS, "prefill before a tree");
        at = edges[i];
        tree_at(t, prefix, at);
    }
    kv_seq_free(t->kv, prefix);
}

/* Two texts in one pass, the second a chain with a gap at times. */
static void two_sequences(tester *t) {
    const int n = t->n < 96 ? t->n : 96;
    int32_t *other = td_calloc((size_t)n, sizeof *other);
    uint64_t *want = td_calloc((size_t)n, sizeof *want);
    if (!other || !want) die("out of memory");
    for (int i = 0; i < n; i++)
        other[i] = t->ids[n - 1 - i];
    int a = new_seq(t), b = new_seq(t);
    decode(t, b, other, n, want);
    kv_seq_truncate(t->kv, b, 0);
    for (int na = 0, nb = 0; na < n || nb < n;) {
        int ca = below(t, 8), cb = below(t, 8);
        ca = ca < n - na ? ca : n - na, cb = cb < n - nb ? cb : n - nb;
        if (ca + cb == 0) continue;
        set_chain(t, 0, a, t->ids + na, ca, na);
        set_chain(t, ca, b, other + nb, cb, nb);
        forward(t, ca + cb);
        for (int i = 0; i < ca; i++)
            check(t, t->hash[i], t->want[na + i], "the first of two sequences", na + i);
        for (int i = 0; i < cb; i++)
            check(t, t->hash[ca + i], want[nb + i], "the second of two sequences", nb + i);
        keep(t, a, NULL, ca);
        keep(t, b, NULL, cb);
        na += ca, nb += cb;
    }
    kv_seq_free(t->kv, a);
    kv_seq_free(t->kv, b);
    free(want);
    free(other);
}

static td_code open_tester(tester *t, kern_kv_type type, td_error *err) {
    kv_config cfg = {.k_type = type,
                     .v_type = type,
                     .n_ctx = 3 * t->n + 256,
                     .max_seqs = 4,
                     .max_rows = MAX_ROWS,
                     .max_rollback = ROLLBACK};
    td_code rc;
    model_kv_config(t->m, &cfg);
    if ((rc = kv_open(&t->kv, &cfg, err)) || (rc = model_work_open(&t->w, t->m, MAX_ROWS, err)))
        return rc;
    t->logits =
        td_calloc((size_t)MAX_ROWS * (size_t)model_get_config(t->m)->n_vocab, sizeof(float));
    t->want = td_calloc((size_t)t->n, sizeof *t->want);
    return t->logits && t->want ? TD_OK : td_fail(err, TD_E_MEMORY, "out of memory");
}

int main(int argc, char **argv) {
    static int32_t ids[4096];
    static tester t;
    td_error err = {0};
    gguf_file *f = NULL;
    model *m = NULL;
    td_pool *pool = NULL;
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: rows_tool MODEL N_THREADS TYPE [STRIDE] < ids\n");
        return 2;
    }
    t.stride = argc == 5 && atoi(argv[4]) > 0 ? atoi(argv[4]) : 1;
    t.ids = ids, t.n = (int)fread(ids, sizeof *ids, 4096, stdin);
    td_code rc;
    if (!t.n) die("no ids on standard input");
    if ((rc = td_pool_open(&pool, atoi(argv[2]), &err)) || (rc = gguf_open(&f, argv[1], &err)) ||
        (rc = model_open(&m, f, &(model_options){.pool = pool}, &err)))
        die(err.msg);
    t.m = m;
    if ((rc = open_tester(&t, kv_type_arg(argv[3]), &err))) die(err.msg);
    const int seq = new_seq(&t);
    decode(&t, seq, ids, t.n, t.want);
    kv_seq_free(t.kv, seq);
    chunk_sizes(&t);
    trees(&t);
    two_sequences(&t);
    if (kv_used_bytes(t.kv)) die("pages are still in use when all sequences are gone");
    printf("rows %ld digest %016llx\n", t.n_compared,
           (unsigned long long)hash_bytes(t.want, (size_t)t.n * sizeof *t.want));
    free(t.want);
    free(t.logits);
    model_work_close(t.w);
    kv_close(t.kv);
    model_close(m);
    gguf_close(f);
    td_pool_close(pool);
    return 0;
}
