/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for generic; compiled with the flags of its row in meson.build. */
#include "reduce/lanes_generic.h"

#define HORON_REDUCE_TABLE horon_reduce_kernels_generic

#include "reduce/kernels_template.h"
