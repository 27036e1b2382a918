/* The CPU levels, each in its own library with its own flags. Every init overrides what it has. */
#ifndef TD_KERNELS_LEVELS_H
#define TD_KERNELS_LEVELS_H

#include "kernels/kernels.h"

void kern_init_ref(kern_table *k);
void kern_init_avx2(kern_table *k);
void kern_init_avx512(kern_table *k);
void kern_init_neon(kern_table *k);

#endif
