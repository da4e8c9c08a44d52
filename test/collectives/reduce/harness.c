/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every buffer lies between guards, and begins one element after an aligned address, so that a
 * kernel that needs more alignment than the element's, or that writes past its end, is found out.
 */
#undef NDEBUG
#include "harness.h"

#include "reference.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD_BYTES = 64, GUARD = 0xa5 };

struct buffers {
    size_t bytes;          /* of the elements of one buffer */
    size_t stride;         /* from buffer to buffer */
    size_t first;          /* offset of the elements in their buffer */
    unsigned char *memory; /* [n + n_out] buffers */
    unsigned char *before; /* what memory held before the call */
};

uint64_t harness_random(uint64_t *rng)
{
    uint64_t x = (*rng += 0x9e3779b97f4a7c15u); /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct float_shape {
    int mantissa_bits, exponent_bias, bits;
};

static struct float_shape shape_of(horon_dtype_t dtype)
{
    static const struct float_shape shapes[HORON_DTYPE_COUNT] = {
        [HORON_FLOAT16] = {10, 15, 16},
        [HORON_BFLOAT16] = {7, 127, 16},
        [HORON_FLOAT32] = {23, 127, 32},
        [HORON_FLOAT64] = {52, 1023, 64},
    };
    return shapes[dtype];
}

static uint64_t special(struct float_shape f, uint64_t r)
{
    uint64_t infinity = (((uint64_t)1 << (f.bits - 1 - f.mantissa_bits)) - 1) << f.mantissa_bits;
    uint64_t magnitudes[] = {0,
                             0,
                             1,
                             ((uint64_t)1 << f.mantissa_bits) - 1, /* subnormal: most */
                             (uint64_t)1 << f.mantissa_bits,
                             infinity - 1,
                             infinity,
                             infinity,
                             infinity + 1 /* signalling */,
                             infinity + 3,
                             infinity | (uint64_t)5 << (f.mantissa_bits - 3)};
    uint64_t sign = (r >> 32 & 1) << (f.bits - 1);
    return sign | magnitudes[r % (sizeof magnitudes / sizeof magnitudes[0])];
}

uint64_t harness_element(horon_dtype_t dtype, bool wild, uint64_t *rng)
{
    uint64_t r = harness_random(rng);
    uint64_t choice = harness_random(rng) % 8;
    struct float_shape f = shape_of(dtype);
    uint64_t mask = UINT64_MAX >> (64 - 8 * reference_bytes(dtype));
    if (f.bits == 0 && choice > 1)
        return r & mask;
    if (f.bits == 0)
        return (choice == 0 ? mask / 2 : 0) + (r & 1);
    if (wild && choice > 5)
        return special(f, r);
    if (wild && choice > 2)
        return r & mask;
    /* Tame: 2^-2 to 2^2, either sign, all bits of the mantissa. */
    uint64_t exponent = (uint64_t)f.exponent_bias - 2 + (r >> 60) % 4;
    uint64_t mantissa = r & (((uint64_t)1 << f.mantissa_bits) - 1);
    return (r >> 59 & 1) << (f.bits - 1) | exponent << f.mantissa_bits | mantissa;
}

struct job harness_job(horon_dtype_t dtype, horon_redop_t op, int n, size_t count)
{
    return (struct job){.dtype = dtype,
                        .op = op,
                        .n = n,
                        .count = count,
                        .prescale = 1.0,
                        .n_out = 1,
                        .alias = {HARNESS_OWN, HARNESS_OWN, HARNESS_OWN, HARNESS_OWN},
                        .seed = (uint64_t)n * 1000003 + count};
}

static unsigned char *buffer(const struct buffers *b, int i)
{
    return b->memory + (size_t)i * b->stride + b->first;
}

static void buffers_make(struct buffers *b, const struct job *job)
{
    size_t element = reference_bytes(job->dtype);
    size_t n = (size_t)(job->n + job->n_out);
    uint64_t rng = job->seed;
    b->bytes = job->count * element;
    b->first = GUARD_BYTES + element;
    b->stride = (b->first + b->bytes + GUARD_BYTES) / GUARD_BYTES * GUARD_BYTES + GUARD_BYTES;
    b->memory = aligned_alloc(GUARD_BYTES, n * b->stride);
    b->before = malloc(n * b->stride);
    assert_non_null(b->memory);
    assert_non_null(b->before);
    memset(b->memory, GUARD, n * b->stride);
    for (int k = 0; k < job->n; k++)
        for (size_t i = 0; i < job->count; i++)
            reference_set(job->dtype, buffer(b, k), i,
                          harness_element(job->dtype, job->wild, &rng));
    memcpy(b->before, b->memory, n * b->stride);
}

/* Turns `before` into what memory must hold afterwards. */
static void buffers_expect(struct buffers *b, const struct job *job)
{
    struct buffers after = *b;
    after.memory = b->before;
    for (size_t i = 0; i < job->count; i++) {
        uint64_t leaves[HORON_REDUCE_INPUTS_MAX];
        for (int k = 0; k < job->n; k++)
            leaves[k] = reference_get(job->dtype, buffer(b, k), i);
        uint64_t result =
            reference_tree(job->dtype, job->op, leaves, job->n, job->prescale, job->finish);
        for (int j = 0; j < job->n_out; j++) {
            int to = job->alias[j] == HARNESS_OWN ? job->n + j : job->alias[j];
            reference_set(job->dtype, buffer(&after, to), i, result);
        }
    }
}

static void report(const struct job *job, const struct buffers *b, const char *isa, size_t at)
{
    size_t element = reference_bytes(job->dtype);
    size_t in_buffer = at % b->stride;
    print_error("%s dtype %d op %d n %d count %zu outputs %d prescale %g wild %d: buffer %zu, ",
                isa, (int)job->dtype, (int)job->op, job->n, job->count, job->n_out, job->prescale,
                job->wild, at / b->stride);
    if (in_buffer < b->first || in_buffer >= b->first + b->bytes) {
        print_error("written outside of its elements at byte %zu\n", in_buffer);
        return;
    }
    size_t i = (in_buffer - b->first) / element;
    size_t start = at - (in_buffer - b->first) % element;
    print_error("element %zu is %llx, expected %llx\n", i,
                (unsigned long long)reference_get(job->dtype, b->memory + start, 0),
                (unsigned long long)reference_get(job->dtype, b->before + start, 0));
}

static void run(const struct job *job, const struct buffers *b,
                const struct horon_reduce_kernels *kernels)
{
    const void *in[HORON_REDUCE_INPUTS_MAX];
    void *out[HARNESS_OUT_MAX];
    for (int k = 0; k < job->n; k++)
        in[k] = buffer(b, k);
    for (int j = 0; j < job->n_out; j++)
        out[j] = buffer(b, job->alias[j] == HARNESS_OWN ? job->n + j : job->alias[j]);
    if (kernels == NULL)
        horon_reduce_tree(job->dtype, job->op, in, job->n, job->prescale, out, job->n_out,
                          job->count, job->finish);
    else
        horon_reduce_tree_on(kernels, job->dtype, job->op, in, job->n, job->prescale, out,
                             job->n_out, job->count, job->finish, NULL);
}

static void check_one(const struct job *job, const struct buffers *b, const unsigned char *fresh,
                      const char *name, const struct horon_reduce_kernels *kernels)
{
    size_t bytes = (size_t)(job->n + job->n_out) * b->stride;
    memcpy(b->memory, fresh, bytes);
    run(job, b, kernels);
    if (memcmp(b->memory, b->before, bytes) == 0)
        return;
    size_t at = 0;
    while (b->memory[at] == b->before[at])
        at++;
    report(job, b, name, at);
    fail();
}

void harness_check(const struct job *job)
{
    struct buffers b;
    buffers_make(&b, job);
    size_t bytes = (size_t)(job->n + job->n_out) * b.stride;
    unsigned char *fresh = malloc(bytes);
    assert_non_null(fresh);
    memcpy(fresh, b.memory, bytes);
    buffers_expect(&b, job);
    check_one(job, &b, fresh, "public", NULL);
    for (size_t i = 0; i < horon_reduce_isas_count; i++)
        if (horon_reduce_isas[i].usable())
            check_one(job, &b, fresh, horon_reduce_isas[i].name, horon_reduce_isas[i].kernels);
    free(fresh);
    free(b.before);
    free(b.memory);
}
