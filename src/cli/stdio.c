/* Reading prompts and writing text, with every failure said in words. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

enum {
    MAX_PROMPT_BYTES = 256 << 20
}; /* no context holds more; an endless pipe must end somewhere */

void cli_stdio_init(void) {
    /* Opened the wrong way round, so that reading or writing still fails as on the closed one. */
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", modes[fd]) < 0) _exit(1);
    signal(SIGPIPE, SIG_IGN); /* writing says EPIPE instead, and the run ends in order */
}

static int read_all(int fd, const char *name, char **text, size_t *len) {
    size_t cap = 1 << 16, n = 0;
    char *buf = malloc(cap + 1);
    for (;;) {
        if (!buf) return cli_failed("%s: out of memory", name);
        const ssize_t got = read(fd, buf + n, cap - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            const int why = errno;
            free(buf);
            return cli_failed("%s can't be read: %s", name, strerror(why));
        }
        if (got == 0) break;
        if ((n += (size_t)got) > MAX_PROMPT_BYTES) {
            free(buf);
            return cli_failed("%s: a prompt of more than %d MB is not one", name,
                              MAX_PROMPT_BYTES >> 20);
        }
        if (n < cap) continue;
        char *more = realloc(buf, 2 * cap + 1);
        if (!more) free(buf);
        buf = more;
        cap *= 2;
    }
    buf[n] = 0;
    *text = buf;
    *len = n;
    return CLI_OK;
}

int cli_read_stdin(char **text, size_t *len) {
    return read_all(0, "standard input", text, len);
}

int cli_read_file(const char *path, char **text, size_t *len) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return cli_failed("%s can't be read: %s", path, strerror(errno));
    int rc = CLI_OK;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > MAX_PROMPT_BYTES)
        rc = cli_failed("%s: a prompt of more than %d MB is not one; is this the right file?", path,
                        MAX_PROMPT_BYTES >> 20);
    else
        rc = read_all(fd, path, text, len);
    close(fd);
    return rc;
}

bool cli_write(const char *text, size_t len) {
    while (len) {
        const ssize_t n = write(1, text, len);
        if (n >= 0) {
            text += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) { /* somebody made it non-blocking: wait until it takes more */
            struct pollfd p = {.fd = 1, .events = POLLOUT};
            poll(&p, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

int cli_finish_stdout(void) {
    const bool failed_before = ferror(stdout);
    errno = 0;
    if (fflush(stdout) || failed_before)
        return cli_failed("standard output can't be written: %s",
                          errno ? strerror(errno) : "it failed");
    return CLI_OK;
}
