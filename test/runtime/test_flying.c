/* SPDX-License-Identifier: Apache-2.0 */
/* How many requests fly, as several threads count them. */
#undef NDEBUG
#include "flying.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void test_flying_is_limited_also_where_counts_wrap(void **state)
{
    _Atomic uint32_t posted = UINT32_MAX - 1, landed = UINT32_MAX - 1;
    uint32_t before;
    (void)state;
    assert_int_equal(horon_flying_add(&posted, &landed, 3, 4, &before), 3);
    assert_int_equal(before, 0);
    assert_int_equal(horon_flying_add(&posted, &landed, 2, 4, &before), 1);
    assert_int_equal(before, 3);
    assert_int_equal(horon_flying_add(&posted, &landed, 1, 4, &before), 0);
    assert_int_equal(before, 4);
    horon_flying_take_back(&posted, &landed, 1);
    horon_flying_land(&posted, &landed);
    assert_int_equal(horon_flying_add(&posted, &landed, SIZE_MAX, 4, &before), 2);
    assert_int_equal(before, 2);
    assert_int_equal((uint32_t)(posted - landed), 4);
}

/* ---- two threads ---------------------------------------------------------------------------- */

/* One of them lands what it posts, as the thread with the token; the other one takes it back. */
enum { LANDED = 20000000 };

struct counts {
    _Atomic uint32_t posted, landed;
    _Atomic int over;
};

static void *post_and_land(void *arg)
{
    struct counts *counts = arg;
    uint32_t before;
    while (!atomic_load_explicit(&counts->over, memory_order_relaxed))
        if (horon_flying_add(&counts->posted, &counts->landed, 1, 2, &before) == 1)
            horon_flying_land(&counts->posted, &counts->landed);
    return NULL;
}

/* Each has one at most in flight, and so none is refused, wherever the other one is preempted. */
static void test_flying_counts_none_that_has_landed(void **state)
{
    struct counts counts = {0};
    uint32_t before;
    int refused = 0;
    pthread_t other;
    (void)state;
    assert_int_equal(pthread_create(&other, NULL, post_and_land, &counts), 0);
    while (refused == 0 && atomic_load_explicit(&counts.landed, memory_order_relaxed) < LANDED)
        if (horon_flying_add(&counts.posted, &counts.landed, 1, 2, &before) == 1)
            horon_flying_take_back(&counts.posted, &counts.landed, 1);
        else
            refused++;
    atomic_store(&counts.over, 1);
    pthread_join(other, NULL);
    assert_int_equal(refused, 0);
    assert_int_equal(counts.posted, counts.landed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flying_is_limited_also_where_counts_wrap),
        cmocka_unit_test(test_flying_counts_none_that_has_landed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
