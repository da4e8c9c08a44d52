/* SPDX-License-Identifier: Apache-2.0 */
/* How Gloo's ranks combine elements, where that is not how horon does. Pure. Thread: any. */
#ifndef HORON_BACKEND_GLOO_ELEMENTS_H
#define HORON_BACKEND_GLOO_ELEMENTS_H

#include <horon/horon.h>

#include <stdbool.h>

/**
 * own = own op received, to the bits of Gloo's ranks. Floats of 32 and 64 bits add up, multiply and
 * compare as the processor does: a NaN keeps its sign, and a comparison with one gives the own
 * element. Those of 16 bits likewise, but sums and products write one NaN instead of any. All else
 * is as horon_reduce_combine() has it; booleans are bytes.
 * @param redop none that floats have but SUM, MIN, MAX or PRODUCT
 * @param e1    float16 is Gloo's own; else torch's, whose NaN keeps its sign
 * @param own, received [count]
 */
void horon_gloo_combine(horon_dtype_t dtype, horon_redop_t redop, bool e1, void *own,
                        const void *received, size_t count);

#endif
