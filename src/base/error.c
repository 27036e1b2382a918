/* Errors with words. */
#include "base/base.h"

#include <string.h>

td_code td_fail(td_error *err, td_code code, const char *fmt, ...) {
    if (!err) return code;
    err->code = code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return code;
}

td_code td_fail_context(td_error *err, const char *fmt, ...) {
    if (!err) return TD_E_IO; /* nobody reads the words; callers return their own code */
    char was[sizeof err->msg], head[sizeof err->msg];
    memcpy(was, err->msg, sizeof was);
    va_list args;
    va_start(args, fmt);
    vsnprintf(head, sizeof head, fmt, args);
    va_end(args);
    snprintf(err->msg, sizeof err->msg, "%.200s: %.300s", head, was);
    return err->code;
}
