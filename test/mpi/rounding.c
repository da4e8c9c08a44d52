/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of floats that round, by MPI: it adds in an order of its own, so the last bits are no
 * others' either. But each of the size - 1 additions rounds once, to the type's own precision, by
 * no more than its unit roundoff times the sum of all magnitudes; an average rounds twice more.
 */
#include <horon/horon.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 4099 };

static const struct type {
    horon_dtype_t dtype;
    int bytes, exponent_bits, mantissa_bits;
} types[] = {
    {HORON_FLOAT16, 2, 5, 10},
    {HORON_BFLOAT16, 2, 8, 7},
    {HORON_FLOAT32, 4, 8, 23},
    {HORON_FLOAT64, 8, 11, 52},
};

static const horon_verb_t verbs[] = {HORON_ALLREDUCE, HORON_REDUCE, HORON_REDUCESCATTER};

/* Splitmix64: the nth number of a seed. */
static uint64_t random_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Of any sign, between a quarter and four. */
static uint64_t bits_of(const struct type *type, int rank, uint64_t n)
{
    const uint64_t drawn = random_of((uint64_t)rank, n);
    const uint64_t bias = ((uint64_t)1 << (type->exponent_bits - 1)) - 1;
    const uint64_t mantissa = drawn & (((uint64_t)1 << type->mantissa_bits) - 1);
    return drawn >> 63 << (8 * type->bytes - 1) |
           (bias - 2 + (drawn >> 60 & 3)) << type->mantissa_bits | mantissa;
}

/* A zero or a number that is not too small for a whole mantissa, as those above and their sums. */
static double value_of(const struct type *type, uint64_t bits)
{
    const uint64_t bias = ((uint64_t)1 << (type->exponent_bits - 1)) - 1;
    const uint64_t one = (uint64_t)1 << type->mantissa_bits;
    const uint64_t exponent = bits >> type->mantissa_bits & (2 * bias + 1);
    const double magnitude =
        exponent ? ldexp((double)(one | (bits & (one - 1))),
                         (int)exponent - (int)bias - type->mantissa_bits)
                 : ldexp((double)(bits & (one - 1)), 1 - (int)bias - type->mantissa_bits);
    return bits >> (8 * type->bytes - 1) & 1 ? -magnitude : magnitude;
}

/* @return the number of elements that this rank gets, as equal a share as can be of a
 * reduce-scatter and none of a reduce with another root; *first_out are before them */
static uint64_t share(const horon_context_t *ctx, horon_verb_t verb, uint64_t *first_out)
{
    const uint64_t size = (uint64_t)horon_size(ctx), rank = (uint64_t)horon_rank(ctx);
    const uint64_t each = COUNT / size, more = COUNT % size;
    *first_out = 0;
    if (verb == HORON_REDUCE)
        return rank == size - 1 ? COUNT : 0;
    if (verb == HORON_ALLREDUCE)
        return COUNT;
    *first_out = each * rank + (rank < more ? rank : more);
    return each + (rank < more);
}

/* @return the error of an element, in parts of what it may be */
static double error_of(const struct type *type, uint64_t number, bool average, int size,
                       uint64_t bits)
{
    double sum = 0, magnitudes = 0;
    for (int other = 0; other < size; other++) {
        const double value = value_of(type, bits_of(type, other, number));
        sum += value;
        magnitudes += fabs(value);
    }
    const double roundings = size - 1 + (average ? 2 : 0);
    const double scale = average ? size : 1;
    /* the test's own sum of float64 rounds as well */
    const double own = type->dtype == HORON_FLOAT64 ? 2 : 1;
    const double may = own * roundings * ldexp(1, -type->mantissa_bits - 1) * magnitudes / scale;
    return fabs(value_of(type, bits) - sum / scale) / may;
}

/* @return the largest error, in parts of what it may be */
static double check(horon_context_t *ctx, const struct type *type, horon_verb_t verb,
                    horon_redop_t redop)
{
    static unsigned char in[8 * COUNT], out[8 * COUNT];
    const int size = horon_size(ctx), rank = horon_rank(ctx);
    char why[HORON_ERROR_TEXT_BYTES];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    double worst = 0;
    uint64_t first = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t bits = bits_of(type, rank, i);
        memcpy(in + i * (size_t)type->bytes, &bits, (size_t)type->bytes); /* low bytes first */
    }
    memset(out, 0, sizeof out);
    const uint64_t count = share(ctx, verb, &first);
    desc.verb = verb;
    desc.root = size - 1;
    desc.dtype = type->dtype;
    desc.redop = redop;
    desc.src = in;
    desc.dst = out;
    desc.count = COUNT;
    desc.dst_count = count;
    desc.flags = HORON_IN_ORDER;
    if (horon_run(ctx, &desc, -1, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "%s\n", why);
        return INFINITY;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, out + i * (size_t)type->bytes, (size_t)type->bytes);
        worst = fmax(worst, error_of(type, first + i, redop == HORON_AVERAGE, size, bits));
    }
    return worst;
}

int main(void)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    bool right = true;
    if (horon_context_create(NULL, &ctx, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    for (size_t i = 0; i < 3 * sizeof types / sizeof types[0]; i++)
        for (int average = 0; average < 2; average++) {
            const horon_verb_t verb = verbs[i % 3];
            const double worst =
                check(ctx, &types[i / 3], verb, average ? HORON_AVERAGE : HORON_SUM);
            printf("%s of type %zu, %s: %.3f of what it may be wrong\n", horon_verb_name(verb),
                   i / 3, average ? "average" : "sum", worst);
            right = right && worst <= 1;
        }
    horon_context_destroy(ctx);
    return right ? 0 : 1;
}
