/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies beside a reduction: the bits of the reduction are those it has without them, and the
 * second copy overwrites what the first one reads, as slots of shared memory are used. A copy that
 * ran ahead of the other by one byte would be seen.
 */
#undef NDEBUG
#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { INPUTS_MAX = 5, COUNT_MAX = 1200, TIMES_MAX = 4, EXTRA_MAX = 77, GUARD = 0xa5 };
enum { INPUT_BYTES = COUNT_MAX * 8, COPY_BYTES = TIMES_MAX * INPUT_BYTES + 160 };

struct bed {
    unsigned char in[INPUTS_MAX][INPUT_BYTES], out[INPUT_BYTES], expected[INPUT_BYTES];
    unsigned char left[COPY_BYTES], slot[COPY_BYTES], right[COPY_BYTES];
    unsigned char slot_before[COPY_BYTES];
};

static void fill(struct bed *bed, horon_dtype_t dtype, size_t bytes_of_element, uint64_t seed)
{
    for (int k = 0; k < INPUTS_MAX; k++)
        for (size_t i = 0; i < COUNT_MAX; i++) {
            uint64_t bits = harness_element(dtype, false, &seed);
            memcpy(bed->in[k] + i * bytes_of_element, &bits, bytes_of_element);
        }
    for (size_t i = 0; i < COPY_BYTES; i += sizeof seed) {
        const uint64_t words[] = {harness_random(&seed), harness_random(&seed)};
        memcpy(bed->slot + i, &words[0], sizeof words[0]);
        memcpy(bed->right + i, &words[1], sizeof words[1]);
    }
    memset(bed->left, GUARD, sizeof bed->left);
    memcpy(bed->slot_before, bed->slot, sizeof bed->slot);
}

/* What was in the slot went left, and what is right is in the slot: so many bytes, no others. */
static void expect_copied(const struct bed *bed, size_t from, size_t bytes)
{
    const size_t to = from + bytes;
    assert_memory_equal(bed->left + from, bed->slot_before + from, bytes);
    assert_memory_equal(bed->slot + from, bed->right + from, bytes);
    assert_memory_equal(bed->slot, bed->slot_before, from);
    assert_memory_equal(bed->slot + to, bed->slot_before + to, COPY_BYTES - to);
    for (size_t i = 0; i < COPY_BYTES; i++)
        if ((i < from || i >= to) && bed->left[i] != GUARD)
            fail_msg("byte %zu was written, %zu were to be", i, bytes);
}

struct part {
    horon_dtype_t dtype;
    horon_redop_t op;
    int n;
    size_t count, times, extra;
    double prescale;
    double divisor;
    size_t odd; /* by how much copies are out of line */
};

static void check(struct bed *bed, const struct part *part, const struct horon_reduce_isa *isa)
{
    const struct horon_reduce_finish finish = {.postscale = 1.0, .divisor = part->divisor};
    const size_t element = horon_reduce_kernels_generic.type[part->dtype].bytes;
    const size_t bytes = part->count * element;
    const struct horon_reduce_copy copies[] = {{bed->left + part->odd, bed->slot + part->odd},
                                               {bed->slot + part->odd, bed->right + part->odd}};
    const void *in[INPUTS_MAX];
    void *expected = bed->expected;
    fill(bed, part->dtype, element, part->count * 31 + part->times);
    for (int k = 0; k < part->n; k++)
        in[k] = bed->in[k];
    horon_reduce_tree(part->dtype, part->op, in, part->n, part->prescale, &expected, 1, part->count,
                      &finish);
    void *const out[] = {bed->in[0], bed->out}; /* in place, and elsewhere */
    if (!isa) {
        const size_t copied = part->times * bytes + part->extra;
        horon_reduce_tree_beside(part->dtype, part->op, in, part->n, part->prescale, out, 2,
                                 part->count, &finish, copies, 2, copied);
        expect_copied(bed, part->odd, copied);
    } else {
        struct horon_reduce_beside beside = {.copies = copies, .n = 2, .times = part->times};
        horon_reduce_tree_on(isa->kernels, part->dtype, part->op, in, part->n, part->prescale, out,
                             2, part->count, &finish, &beside);
        assert_true(beside.done <= part->times * bytes);
        if (part->count >= COUNT_MAX) /* beside, and not all of it afterwards */
            assert_true(beside.done >= part->times * bytes / 2);
        expect_copied(bed, part->odd, beside.done);
    }
    assert_memory_equal(bed->in[0], bed->expected, bytes);
    assert_memory_equal(bed->out, bed->expected, bytes);
}

static void test_reduce_beside_copies_change_no_bits_and_keep_pace(void **state)
{
    static const size_t counts[] = {0, 1, 17, 255, 256, 700, COUNT_MAX};
    struct bed *bed = malloc(sizeof *bed);
    (void)state;
    assert_non_null(bed);
    FOR_EACH_REDUCTION(dtype, op)
    {
        for (int n = 1; n <= INPUTS_MAX; n++) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                struct part part = {.dtype = dtype, .op = op, .n = n, .count = counts[c]};
                part.times = ((size_t)n + c) % (TIMES_MAX + 1);
                part.extra = c % 2 ? 0 : EXTRA_MAX;
                part.divisor = (double)(1 + ((size_t)n + c) % 3);
                part.odd = c % 3;
                part.prescale = (c + (size_t)n) % 4 == 3 ? 0.5 : 1.0;
                check(bed, &part, NULL);
                for (size_t i = 0; i < horon_reduce_isas_count; i++)
                    if (horon_reduce_isas[i].usable())
                        check(bed, &part, &horon_reduce_isas[i]);
            }
        }
    }
    free(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_beside_copies_change_no_bits_and_keep_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
