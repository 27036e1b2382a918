/* The main of a fuzzer without an engine:
 *
 *   fuzz_NAME [FILE | FOLDER]...               replays inputs
 *   fuzz_NAME --mutations N [--seed S]         seeds as they are, then N mutations of them; input i
 * depends on S and i alone fuzz_NAME --one I [--seed S] [--save FILE] mutation I again, to debug it
 *
 * A fault ends in the sanitizer's report or abort(); the number of the input at work is printed
 * then. */
#include "fuzz.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INPUT_BYTES = 1 << 16 };

/* Of the sanitizers' runtime, where there is one: called before it ends the process. */
void __sanitizer_set_death_callback(void (*call)(void)) __attribute__((weak));

static volatile uint64_t at_work; /* number of the input + 1, for the last words */

static void last_words(void) {
    if (at_work) fprintf(stderr, "fuzz: fault at input %llu\n", (unsigned long long)at_work - 1);
}

static void on_abort(int sig) {
    last_words(); /* stdio in a handler: the process ends here, and so may it end worse */
    signal(sig, SIG_DFL);
    raise(sig);
}

/* In memory of exactly this size, so that a sanitizer sees one byte too far. */
static void run_one(const uint8_t *data, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) abort();
    if (n) memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static size_t replay_file(const char *path) {
    FILE *in = fopen(path, "rb");
    td_buf b = {0};
    char piece[4096];
    size_t n;
    if (!in) {
        perror(path);
        exit(1);
    }
    while ((n = fread(piece, 1, sizeof piece, in)) > 0)
        td_buf_append(&b, piece, n);
    fclose(in);
    run_one((const uint8_t *)b.data, b.len);
    td_buf_free(&b);
    return 1;
}

static size_t replay(const char *path) {
    struct stat st;
    if (stat(path, &st)) {
        perror(path);
        exit(1);
    }
    if (!S_ISDIR(st.st_mode)) return replay_file(path);
    DIR *dir = opendir(path);
    size_t n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char inner[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        n += replay(inner);
    }
    if (dir) closedir(dir);
    return n;
}

/* Mutation i of the run `seed`, into buf; returns its size. */
static size_t make_input(uint8_t *buf, const td_buf *seeds, size_t n_seeds, uint64_t seed,
                         uint64_t i) {
    uint64_t state = seed * 0xd1342543de82ef95u + i;
    const td_buf *from = &seeds[fuzz_below(&state, n_seeds)];
    memcpy(buf, from->data, from->len);
    return fuzz_mutate(buf, from->len, INPUT_BYTES, fuzz_next(&state));
}

static uint64_t number(const char *text) {
    char *end;
    const uint64_t v = text ? strtoull(text, &end, 10) : 0;
    if (!text || !*text || *end) {
        fprintf(stderr, "fuzz: a number is expected, not '%s'\n", text ? text : "");
        exit(2);
    }
    return v;
}

int main(int argc, char **argv) {
    uint64_t n_mutations = 0, seed = 1, one = 0;
    bool want_one = false;
    const char *save = NULL;
    size_t n_files = 0;
    for (int k = 1; k < argc; k++) {
        if (!strcmp(argv[k], "--mutations")) {
            n_mutations = number(argv[++k]);
        } else if (!strcmp(argv[k], "--seed")) {
            seed = number(argv[++k]);
        } else if (!strcmp(argv[k], "--one")) {
            one = number(argv[++k]);
            want_one = true;
        } else if (!strcmp(argv[k], "--save") && k + 1 < argc) {
            save = argv[++k];
        } else {
            n_files += replay(argv[k]);
        }
    }
    fuzz_n_good = 0;
    const size_t n_seeds = fuzz_n_seeds();
    td_buf *seeds = calloc(n_seeds, sizeof *seeds);
    uint8_t *buf = malloc(INPUT_BYTES);
    if (!seeds || !buf) return 1;
    for (size_t i = 0; i < n_seeds; i++) {
        fuzz_seed(i, &seeds[i]);
        if (seeds[i].failed || seeds[i].len > INPUT_BYTES) return 1;
        run_one((const uint8_t *)seeds[i].data, seeds[i].len);
    }
    if (fuzz_n_good < n_seeds) {
        fprintf(stderr, "fuzz: only %llu of %zu seeds are taken as good\n",
                (unsigned long long)fuzz_n_good, n_seeds);
        return 1;
    }
    fuzz_n_good = 0;
    signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(last_words);
    const uint64_t start = td_now_ns();
    for (uint64_t i = want_one ? one : 0; i < (want_one ? one + 1 : n_mutations); i++) {
        const size_t n = make_input(buf, seeds, n_seeds, seed, i);
        if (save) {
            FILE *out = fopen(save, "wb");
            if (!out || fwrite(buf, 1, n, out) != n || fclose(out)) {
                perror(save);
                return 1;
            }
        }
        at_work = i + 1;
        run_one(buf, n);
    }
    at_work = 0;
    printf("%zu files, %zu seeds, %llu mutations of seed %llu (%llu good files) in %.1f s\n",
           n_files, n_seeds, (unsigned long long)n_mutations, (unsigned long long)seed,
           (unsigned long long)fuzz_n_good, (double)(td_now_ns() - start) * 1e-9);
    for (size_t i = 0; i < n_seeds; i++)
        td_buf_free(&seeds[i]);
    free(seeds);
    free(buf);
    return 0;
}
