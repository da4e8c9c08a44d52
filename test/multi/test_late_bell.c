/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that runs one named operation after another drives itself. If each of them left the bell
 * set, as for work that is left behind, its progress thread would wake all the time, and take the
 * core from a rank that works.
 */
#undef NDEBUG
#include "context_state.h"
#include "multi/duo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { OPERATIONS = 300 };

static void *run_sums(void *ctx)
{
    float x = 1;
    const horon_descriptor_t sum = duo_sum("x", &x);
    for (int i = 0; i < OPERATIONS; i++)
        assert_int_equal(horon_run(ctx, &sum, -1, NULL, 0), HORON_OK);
    return NULL;
}

/* Rank 0 tells the decision with the mark of what cannot wait. */
static void test_late_bell_is_not_set_for_a_decision_that_was_awaited(void **state)
{
    struct duo duo;
    pthread_t other;
    float x = 1;
    int set = 0;
    (void)state;
    duo_make(&duo, NULL);
    const horon_descriptor_t sum = duo_sum("x", &x);
    assert_int_equal(pthread_create(&other, NULL, run_sums, duo.ctx[0]), 0);
    for (int i = 0; i < OPERATIONS; i++) {
        assert_int_equal(horon_run(duo.ctx[1], &sum, -1, NULL, 0), HORON_OK);
        set += atomic_load(&duo.ctx[1]->late_bell.set) == HORON_LATE_BELL_SOON;
    }
    pthread_join(other, NULL);
    duo_end(&duo);
    assert_in_range(set, 0, OPERATIONS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_bell_is_not_set_for_a_decision_that_was_awaited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
