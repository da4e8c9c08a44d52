/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for avx512; compiled with the flags of its row in meson.build. */
#include "reduce/lanes_avx512.h"

#define HORON_REDUCE_TABLE horon_reduce_kernels_avx512

#include "reduce/kernels_template.h"
