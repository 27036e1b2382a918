/* Tiny models as files, for tests that go in through the public API. */
#ifndef TD_LIB_MAKE_H
#define TD_LIB_MAKE_H

#include "tiny.h"

/* Writes the model to a new temporary file; path is filled in. Remove it with unlink. */
static inline void write_model(char path[64], const tiny_params *p) {
    td_buf b = {0};
    tiny_file(&b, p);
    snprintf(path, 64, "/tmp/tandem-test-XXXXXX");
    const int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
    assert_int_equal(fclose(f), 0);
    td_buf_free(&b);
}

static inline td_model *open_tiny_model(const tiny_params *p, int n_threads) {
    char path[64];
    td_model *m = NULL;
    td_error err = {0};
    write_model(path, p);
    const td_model_options opt = {.n_threads = n_threads};
    if (td_model_open(&m, path, &opt, &err)) fail_msg("%s", err.msg);
    unlink(path); /* it stays mapped */
    return m;
}

#endif
