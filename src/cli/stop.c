/* Ctrl-C and SIGTERM. The first one asks the running session to stop after its step; the handler
 * then goes back to the default, so the second one ends the process. A signal handler can reach
 * globals only, hence the two here. */
#include <signal.h>
#include <stdatomic.h>

#include "cli/cli.h"

static volatile sig_atomic_t signalled;
static _Atomic(td_session *) running;

static void on_signal(int number) {
    td_session *s = atomic_load(&running);
    signalled = number;
    if (s) td_session_cancel(s);
}

void cli_stop_init(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

void cli_stop_session(td_session *s) {
    atomic_store(&running, s);
    if (s && signalled) td_session_cancel(s); /* it came before there was anything to stop */
}

int cli_stop_signal(void) {
    return signalled;
}
