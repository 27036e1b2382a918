/* The architectures. */
#include "model/model_internal.h"

#include <string.h>

static const model_arch archs[] = {
    /* Llama 1 to 3, Mistral (whose window, where a file gives one, holds in every layer), SmolLM
       ... */
    {.name = "llama", .rope_neox = false, .act = MODEL_SILU},
    {.name = "qwen2", .rope_neox = true, .act = MODEL_SILU, .window_period = 1},
    {.name = "qwen3", .rope_neox = true, .act = MODEL_SILU, .qk_norm = true, .window_period = 1},
    {.name = "gemma3",
     .rope_neox = true,
     .act = MODEL_GELU,
     .qk_norm = true,
     .post_norm = true,
     .scale_embd = true,
     .window = 512,
     .window_period = 6,
     .rope_base_local = 10000.0},
};

enum { N_ARCHS = sizeof archs / sizeof *archs };

const model_arch *model_arch_find(const char *name) {
    for (int i = 0; i < N_ARCHS; i++)
        if (!strcmp(archs[i].name, name)) return &archs[i];
    return NULL;
}

const char *model_arch_names(void) {
    return "llama, qwen2, qwen3, gemma3";
}
