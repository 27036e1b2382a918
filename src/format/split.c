/* gguf_open: a file, or all parts of a split one.
 *
 * A split model is N files "NAME-00001-of-0000N.gguf", each a whole GGUF file with split.no (from
 * 0), split.count (N) and split.tensors.count (of all parts together). Part 1 has the model's
 * metadata; it may have no tensors. Its gguf_file becomes the model: it takes the list of all
 * tensors, in order of parts, and owns the other parts. */
#include "gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct split_info {
    int64_t no, count, n_tensors; /* -1: the key is absent */
} split_info;

static td_code read_split(const gguf_file *f, split_info *s, td_error *err) {
    td_code rc;
    if ((rc = gguf_get_int(f, "split.count", 0, UINT16_MAX, -1, &s->count, err)) ||
        (rc = gguf_get_int(f, "split.no", 0, UINT16_MAX, -1, &s->no, err)) ||
        (rc = gguf_get_int(f, "split.tensors.count", 0, GGUF_MAX_ITEMS, -1, &s->n_tensors, err)))
        return rc;
    if (s->count > 1 && (s->no < 0 || s->no >= s->count))
        return td_fail(err, TD_E_FORMAT,
                       "%s: split.count is %" PRId64 ", so split.no must be 0 to %" PRId64
                       ", but it is %s",
                       f->label, s->count, s->count - 1, s->no < 0 ? "absent" : "larger");
    return TD_OK;
}

static void part_suffix(char out[40], int64_t no, int64_t count) {
    snprintf(out, 40, "-%05d-of-%05d.gguf", (int)no + 1, (int)count);
}

/* Opens part `no` beside the others and compares its keys with those of the part opened first. */
static td_code open_part(gguf_file **out, const char *stem, int64_t no, const split_info *first,
                         const char *first_label, td_error *err) {
    char suffix[40];
    part_suffix(suffix, no, first->count);
    const size_t n_stem = strlen(stem), n_suffix = strlen(suffix);
    char *path = malloc(n_stem + n_suffix + 1);
    if (!path) return td_fail(err, TD_E_MEMORY, "out of memory for a path");
    memcpy(path, stem, n_stem);
    memcpy(path + n_stem, suffix, n_suffix + 1);
    gguf_file *f = NULL;
    td_code rc = gguf_open_part(&f, path, err);
    free(path);
    if (rc) {
        td_fail_context(err, "part %" PRId64 " of %" PRId64, no + 1, first->count);
        return rc;
    }
    split_info s;
    if ((rc = read_split(f, &s, err))) goto fail;
    if (s.count != first->count || s.no != no) {
        rc = td_fail(err, TD_E_FORMAT,
                     "%s: split.no %" PRId64 " and split.count %" PRId64 " in it, but %" PRId64
                     " and %" PRId64 " are expected of a part of the same model as %s (-1: absent)",
                     f->label, s.no, s.count, no, first->count, first_label);
        goto fail;
    }
    if (s.n_tensors != first->n_tensors) {
        rc = td_fail(err, TD_E_FORMAT,
                     "%s: split.tensors.count is %" PRId64 ", but %" PRId64
                     " in %s: parts of different "
                     "models? (-1: absent)",
                     f->label, s.n_tensors, first->n_tensors, first_label);
        goto fail;
    }
    *out = f;
    return TD_OK;
fail:
    gguf_close(f);
    return rc;
}

/* Moves the tensors of the parts into the first one's list. */
static td_code join(gguf_file *whole, const split_info *s, td_error *err) {
    char quoted[GGUF_QUOTED];
    size_t n = whole->n_tensors, twice;
    for (size_t i = 0; i < whole->n_parts; i++)
        n += whole->parts[i]->n_tensors;
    if (s->n_tensors >= 0 && n != (uint64_t)s->n_tensors)
        return td_fail(err, TD_E_FORMAT,
                       "%s: its %" PRId64
                       " parts hold %zu tensors, but split.tensors.count is %" PRId64,
                       whole->label, s->count, n, s->n_tensors);
    if (n > GGUF_MAX_ITEMS)
        return td_fail(err, TD_E_TOO_BIG, "%s: %zu tensors in all its parts", whole->label, n);
    if (!td_grow(&whole->tensors, &whole->cap_tensors, n, sizeof *whole->tensors)) goto no_memory;
    for (size_t i = 0; i < whole->n_parts; i++) {
        const gguf_file *part = whole->parts[i];
        if (part->n_tensors)
            memcpy(whole->tensors + whole->n_tensors, part->tensors,
                   part->n_tensors * sizeof *part->tensors);
        whole->n_tensors += part->n_tensors;
    }
    if (!gguf_index_build(&whole->tensor_index, whole->tensors, n, sizeof *whole->tensors, &twice))
        goto no_memory;
    if (twice == SIZE_MAX) return TD_OK;
    const char *name = whole->tensors[twice].name;
    return td_fail(err, TD_E_FORMAT, "%s: tensor '%s' is in two of its %" PRId64 " parts",
                   whole->label, gguf_quote(quoted, name, strlen(name)), s->count);
no_memory:
    return td_fail(err, TD_E_MEMORY, "%s: out of memory for the list of tensors", whole->label);
}

td_code gguf_open(gguf_file **out, const char *path, td_error *err) {
    gguf_file *given = NULL, *whole = NULL;
    split_info s;
    char suffix[40], *stem = NULL;
    td_code rc;
    if ((rc = gguf_open_part(&given, path, err)) || (rc = read_split(given, &s, err))) goto end;
    if (s.count <= 1) {
        *out = given;
        return TD_OK;
    }
    part_suffix(suffix, s.no, s.count);
    const char *label = given->label; /* lives as long as one of given and whole does */
    const size_t n_path = strlen(path), n_suffix = strlen(suffix);
    if (n_path < n_suffix || strcmp(path + n_path - n_suffix, suffix)) {
        rc = td_fail(err, TD_E_FORMAT,
                     "%s: part %" PRId64 " of %" PRId64
                     " of a split model, but its name does not end in "
                     "'%s', so the other parts cannot be found; rename it",
                     given->label, s.no + 1, s.count, suffix);
        goto end;
    }
    if (!(stem = strndup(path, n_path - n_suffix))) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for a path");
        goto end;
    }
    for (int64_t no = 0; no < s.count; no++) {
        gguf_file *part = NULL;
        if (no != s.no && (rc = open_part(&part, stem, no, &s, label, err))) goto end;
        const bool is_given = no == s.no;
        if (is_given) part = given;
        if (!no) {
            whole = part;
        } else if (td_grow(&whole->parts, &whole->cap_parts, whole->n_parts + 1, sizeof part)) {
            whole->parts[whole->n_parts++] = part;
        } else {
            if (!is_given) gguf_close(part);
            rc = td_fail(err, TD_E_MEMORY, "%s: out of memory for its parts", whole->label);
            goto end;
        }
        if (is_given) given = NULL; /* now the whole owns it, or is it */
    }
    if ((rc = join(whole, &s, err))) goto end;
    *out = whole;
    whole = NULL;
end:
    free(stem);
    gguf_close(given);
    gguf_close(whole);
    return rc;
}
