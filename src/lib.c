/* The small entry points of libtandem: names, versions, what machine this is. */
#include "lib_internal.h"

#include <stdlib.h>

const char *td_version(void) {
    return TANDEM_VERSION;
}

const char *td_code_name(td_code code) {
    switch (code) {
    case TD_OK:
        return "TD_OK";
    case TD_E_ARG:
        return "TD_E_ARG";
    case TD_E_IO:
        return "TD_E_IO";
    case TD_E_FORMAT:
        return "TD_E_FORMAT";
    case TD_E_UNSUPPORTED:
        return "TD_E_UNSUPPORTED";
    case TD_E_MEMORY:
        return "TD_E_MEMORY";
    case TD_E_TOO_BIG:
        return "TD_E_TOO_BIG";
    case TD_E_MISMATCH:
        return "TD_E_MISMATCH";
    case TD_E_CANCELLED:
        return "TD_E_CANCELLED";
    }
    return "unknown";
}

const char *td_stop_reason_name(td_stop_reason r) {
    switch (r) {
    case TD_STOP_NONE:
        return "none";
    case TD_STOP_EOS:
        return "eos";
    case TD_STOP_STRING:
        return "stop";
    case TD_STOP_LENGTH:
        return "length";
    case TD_STOP_CONTEXT:
        return "context";
    case TD_STOP_CANCELLED:
        return "cancelled";
    }
    return "unknown";
}

int td_default_threads(void) {
    return td_cpu_count();
}

td_code td_cpu_level(const char **out, td_error *err) {
    const kern_table *k;
    td_code rc = kern_table_get(&k, err);
    if (!rc) *out = k->level;
    return rc;
}

void td_free(void *p) {
    free(p);
}
