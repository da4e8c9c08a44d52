/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floating-point mode is ours while we reduce: a caller that flushes subnormals (as frameworks
 * do on their threads), rounds otherwise or traps gets the same bits, and finds its mode unchanged.
 */
#undef NDEBUG
#include "harness.h"
#include "reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xmmintrin.h>

enum { COUNT = 1021 };

struct results {
    uint64_t tree[COUNT], combine[COUNT], finish[COUNT], prescale[COUNT];
};

static void fill(horon_dtype_t dtype, uint64_t *to, uint64_t seed)
{
    uint64_t rng = seed;
    for (size_t i = 0; i < COUNT; i++)
        reference_set(dtype, to, i, harness_element(dtype, true, &rng));
}

static void reduce_in_mode(unsigned int mode, horon_dtype_t dtype, horon_redop_t op,
                           struct results *r)
{
    static uint64_t a[COUNT], b[COUNT], c[COUNT];
    const struct horon_reduce_finish finish = {.postscale = 0.1, .divisor = 3};
    const void *in[] = {a, b, c};
    void *out = r->tree;
    unsigned int saved = _mm_getcsr();
    memset(r, 0, sizeof *r);
    fill(dtype, a, 1);
    fill(dtype, b, 2);
    fill(dtype, c, 3);
    _mm_setcsr(mode);
    horon_reduce_tree(dtype, op, in, 3, 0.7, &out, 1, COUNT, &finish);
    unsigned int after_tree = _mm_getcsr();
    horon_reduce_combine(dtype, op, a, b, r->combine, COUNT);
    unsigned int after_combine = _mm_getcsr();
    horon_reduce_finish(dtype, &finish, a, r->finish, COUNT);
    harness_scale(dtype, 0.7, a, r->prescale, COUNT);
    unsigned int after_all = _mm_getcsr();
    _mm_setcsr(saved);
    if (mode != 0x1f80) { /* in our own mode flags may be raised, as by any arithmetic */
        assert_int_equal(after_tree, mode);
        assert_int_equal(after_combine, mode);
        assert_int_equal(after_all, mode);
    }
}

static void test_reduce_in_any_mode_gives_the_same_bits_and_keeps_it(void **state)
{
    (void)state;
    static const unsigned int modes[] = {
        0x1f80 | 0x8040, /* flush to zero, subnormals are zero */
        0x1f80 | 0x4000, /* round up */
        0x1f80 | 0x6000, /* round towards zero */
        0x0000,          /* every exception traps */
        0x1fa0 | 0x8000, /* a flag is raised already */
    };
    static struct results expected, got;
    FOR_EACH_REDUCTION(dtype, op)
    {
        reduce_in_mode(0x1f80, dtype, op, &expected);
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
            reduce_in_mode(modes[i], dtype, op, &got);
            assert_memory_equal(&got, &expected, sizeof got);
        }
    }
}

/* Without this, the test above could not fail: the modes must matter to a sum that is not ours. */
static void test_reduce_fp_modes_of_the_test_matter(void **state)
{
    (void)state;
    const struct horon_reduce_kernels *kernels = horon_reduce_select();
    const uint32_t subnormal = 3;
    const void *const in[] = {&subnormal, &subnormal};
    uint32_t sum[2];
    unsigned int saved = _mm_getcsr();
    for (int flush = 0; flush < 2; flush++) {
        void *out = &sum[flush];
        _mm_setcsr(flush != 0 ? 0x1f80 | 0x8040 : 0x1f80);
        horon_reduce_tree_on(kernels, HORON_FLOAT32, HORON_SUM, in, 2, 1.0, &out, 1, 1, NULL, NULL);
    }
    _mm_setcsr(saved);
    assert_int_equal(sum[0], 6);
    assert_int_equal(sum[1], 0);
}

static void test_reduce_flags_alone_do_not_switch_the_mode(void **state)
{
    (void)state;
    struct horon_reduce_fp saved;
    unsigned int mode = _mm_getcsr();
    _mm_setcsr(0x1fa1);
    horon_reduce_fp_enter(&saved);
    unsigned int inside = _mm_getcsr();
    horon_reduce_fp_leave(&saved);
    _mm_setcsr(mode);
    assert_false(saved.changed);
    assert_int_equal(inside, 0x1fa1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_in_any_mode_gives_the_same_bits_and_keeps_it),
        cmocka_unit_test(test_reduce_fp_modes_of_the_test_matter),
        cmocka_unit_test(test_reduce_flags_alone_do_not_switch_the_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
