/* The types of a cache by name, for the tools of this folder. */
#ifndef KV_TYPE_ARG_H
#define KV_TYPE_ARG_H

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline kern_kv_type kv_type_arg(const char *name) {
    static const char *const names[KERN_KV_TYPES] = {"f16", "f32", "q8_0", "q4_0"};
    for (int i = 0; i < KERN_KV_TYPES; i++)
        if (!strcmp(name, names[i])) return (kern_kv_type)i;
    fprintf(stderr, "KV cache type %s is unknown\n", name);
    exit(2);
}

#endif
