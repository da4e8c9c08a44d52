/* SPDX-License-Identifier: Apache-2.0 */
/* Loops as Gloo has them (gloo/math.h: std::max, std::min, a + b, a * b), for the same bits. */
#include "backend/gloo_elements.h"

#include "reduce/reduce.h"

#define LOOP(name, type, expression)                                                               \
    static void name(type *own, const type *received, size_t count)                                \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            const type a = own[i], b = received[i];                                                \
            own[i] = (expression);                                                                 \
        }                                                                                          \
    }
#define LOOPS(suffix, type)                                                                        \
    LOOP(add_##suffix, type, a + b)                                                                \
    LOOP(multiply_##suffix, type, a *b)                                                            \
    LOOP(least_##suffix, type, b < a ? b : a)                                                      \
    LOOP(most_##suffix, type, a < b ? b : a)                                                       \
    static void combine_##suffix(horon_redop_t redop, type *own, const type *received,             \
                                 size_t count)                                                     \
    {                                                                                              \
        if (redop == HORON_SUM)                                                                    \
            add_##suffix(own, received, count);                                                    \
        else if (redop == HORON_PRODUCT)                                                           \
            multiply_##suffix(own, received, count);                                               \
        else if (redop == HORON_MIN)                                                               \
            least_##suffix(own, received, count);                                                  \
        else                                                                                       \
            most_##suffix(own, received, count);                                                   \
    }
LOOPS(32, float)
LOOPS(64, double)

void horon_gloo_combine(horon_dtype_t dtype, horon_redop_t redop, void *own, const void *received,
                        size_t count)
{
    if (dtype == HORON_FLOAT32)
        combine_32(redop, own, received, count);
    else if (dtype == HORON_FLOAT64)
        combine_64(redop, own, received, count);
    else
        horon_reduce_combine(dtype == HORON_BOOL ? HORON_UINT8 : dtype, redop, own, received, own,
                             count);
}
