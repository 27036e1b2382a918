/* libtandem: exact speculative decoding of GGUF language models.
 *
 * A target model generates; an optional draft model proposes tokens that the target verifies in one
 * pass. The text (greedy) or its law (sampled) is exactly the target's own, with any draft.
 *
 * Conventions. Functions that can fail return a td_code and, when the td_error pointer given last is
 * not NULL, leave one line there that says what went wrong and what to do. Out-parameters are written
 * on success only. `close` takes a pointer to the pointer and clears it; closing NULL does nothing.
 * A td_model may be shared by sessions on several threads; a td_session belongs to one thread at a
 * time, except td_session_cancel. Strings are UTF-8. */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define TD_API
#else
#define TD_API __attribute__((visibility("default")))
#endif

typedef enum td_code {
    TD_OK = 0,
    TD_E_ARG = 1,         /* an argument makes no sense */
    TD_E_IO = 2,          /* a file or stream could not be read or written */
    TD_E_FORMAT = 3,      /* a file is damaged or not of the kind expected */
    TD_E_UNSUPPORTED = 4, /* valid, but not something this build can do */
    TD_E_MEMORY = 5,      /* out of memory */
    TD_E_TOO_BIG = 6,     /* larger than a limit: context, sizes */
    TD_E_MISMATCH = 7,    /* draft and target do not fit each other */
    TD_E_CANCELLED = 8    /* td_session_cancel, or a callback said stop */
} td_code;

typedef struct td_error {
    td_code code;
    char msg[512];
} td_error;

#ifdef __cplusplus
}
#endif
#endif
