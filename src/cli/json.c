/* JSON on standard output, and writing --json FILE so that a reader sees all of it or nothing. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

json_t *cli_json_number(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *cli_json_text(const char *text) {
    if (!text) return json_null();
    json_t *s = json_string(text);
    if (s) return s;
    char *copy = strdup(text);
    if (!copy) return NULL;
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    s = json_string(copy);
    free(copy);
    return s;
}

int cli_json_print(json_t *root) {
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(root);
    if (!text) return cli_failed("out of memory");
    printf("%s\n", text);
    free(text);
    return CLI_OK;
}

/* The folder of path, "." when it names none; the caller's. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

int cli_json_check(const char *path) {
    struct stat st;
    if (!path) return CLI_OK;
    if (!*path) return cli_misuse("--json needs the name of a file");
    if (!stat(path, &st)) {
        if (S_ISDIR(st.st_mode)) return cli_failed("--json: %s is a directory", path);
        if (access(path, W_OK))
            return cli_failed("--json: %s can't be written: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode)) return CLI_OK;
    }
    char *folder = folder_of(path);
    int rc = CLI_OK;
    if (!folder)
        rc = cli_failed("out of memory");
    else if (access(folder, W_OK | X_OK))
        rc = cli_failed("--json: no file can be made in %s: %s", folder, strerror(errno));
    free(folder);
    return rc;
}

/* All of it on its way to the disk; 0 or errno. Closes fd. */
static int write_and_close(int fd, const char *text, size_t len) {
    int why = 0;
    for (size_t done = 0; done < len && !why;) {
        const ssize_t n = write(fd, text + done, len - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            why = errno;
    }
    if (close(fd) && !why) why = errno; /* some file systems tell of a full disk only here */
    return why;
}

static int write_in_place(const char *path, const char *text, size_t len) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? errno : write_and_close(fd, text, len);
}

static int write_and_rename(const char *path, const char *text, size_t len) {
    char *temp = malloc(strlen(path) + sizeof ".tandem-XXXXXX");
    if (!temp) return ENOMEM;
    sprintf(temp, "%s.tandem-XXXXXX", path);
    const int fd = mkostemp(temp, O_CLOEXEC);
    int why = fd < 0 ? errno : 0;
    if (!why) {
        const mode_t mask = umask(0);
        umask(mask);
        if (fchmod(fd, 0666 & ~mask)) why = errno;
        const int wrote = write_and_close(fd, text, len);
        if (!why) why = wrote;
        if (!why && rename(temp, path)) why = errno;
        if (why) unlink(temp);
    }
    free(temp);
    return why;
}

int cli_json_write(const char *path, json_t *root) {
    struct stat st;
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(root);
    if (!text) return cli_failed("--json: out of memory");
    const size_t len = strlen(text);
    text[len] = '\n'; /* in the place of the NUL: the length goes along */
    int why;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        why = write_in_place(path, text, len + 1);
    } else {
        char *real = realpath(path, NULL); /* a link stays a link: what it points to is replaced */
        why = write_and_rename(real ? real : path, text, len + 1);
        free(real);
    }
    free(text);
    return why ? cli_failed("--json: %s can't be written: %s", path, strerror(why)) : CLI_OK;
}
