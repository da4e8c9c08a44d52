/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one reduction on every instruction set that the CPU has, against the reference. */
#ifndef HORON_TEST_REDUCE_HARNESS_H
#define HORON_TEST_REDUCE_HARNESS_H

#include "reduce/reduce_isa.h"

enum { HARNESS_OUT_MAX = 4, HARNESS_OWN = -1 };

struct job {
    horon_dtype_t dtype;
    horon_redop_t op;
    int n;
    size_t count;
    double prescale;
    const struct horon_reduce_finish *finish;
    int n_out;                  /* 0: one */
    int alias[HARNESS_OUT_MAX]; /* which input an output is, or HARNESS_OWN */
    bool wild;                  /* inputs of any bits, not only tame ones */
    uint64_t seed;
};

/** A job with own outputs and nothing to scale. */
struct job harness_job(horon_dtype_t dtype, horon_redop_t op, int n, size_t count);

/** Fails the running cmocka test if any set writes other bits than the reference, writes outside of
 * its outputs, or changes an input that is no output. */
void harness_check(const struct job *job);

/** @return a random element: tame (sums neither overflow nor vanish), or of any bits. */
uint64_t harness_element(horon_dtype_t dtype, bool wild, uint64_t *rng);

uint64_t harness_random(uint64_t *rng);

/** Scales [count] elements as a tree's prescale does each input; @p out may equal @p in. */
static inline void harness_scale(horon_dtype_t dtype, double scale, const void *in, void *out,
                                 size_t count)
{
    const struct horon_reduce_finish finish = {.postscale = scale, .divisor = 1};
    horon_reduce_finish(dtype, &finish, in, out, count);
}

#define FOR_EACH_REDUCTION(dtype, op)                                                              \
    for (horon_dtype_t dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++)                              \
        for (horon_redop_t op = 0; op < HORON_REDOP_COUNT; op++)                                   \
            if (op != HORON_AVERAGE && horon_reduce_supported(dtype, op))

#endif
