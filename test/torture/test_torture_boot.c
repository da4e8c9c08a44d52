/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining while the nth allocation of the process fails: the rank that it hits fails, the others
 * with it or by their time limit; nobody hangs, and nothing is left. Which rank is hit varies with
 * the order of threads, so this looks at what must hold whichever it is. It is told how many hosts
 * the ranks are on.
 */
#undef NDEBUG
#include "../runtime/boot/boots.h"
#include "alloc_failing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define RANKS 2
#define ALLOCATIONS_MAX 500 /* far more than two ranks make */

static void torture(const char *shared)
{
    char store[64];
    int limit_ms = 200;
    const int fds = count_fds();
    const long live = alloc_live();
    for (long nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        struct boots world;
        snprintf(store, sizeof store, "STORE=tcp://127.0.0.1:%d", free_port());
        boots_init(&world, RANKS, store);
        boots_setting(&world, "JOB_KEY=a secret of these tests");
        world.limit_ms = limit_ms;
        boots_setting(&world, shared);
        alloc_fail_at(nth, 0);
        boots_join(&world);
        const long count = alloc_count();
        alloc_fail_at(0, 0);
        for (int r = 0; r < RANKS; r++)
            if (world.ranks[r].status != HORON_OK)
                assert_true(world.ranks[r].error.text[0]);
        const bool joined = world.ranks[0].status == HORON_OK && world.ranks[1].status == HORON_OK;
        boots_part(&world);
        assert_int_equal(count_fds(), fds);
        assert_int_equal(alloc_live(), live);
        if (count >= nth)
            continue;
        if (joined) /* it never came to the nth: all were tried */
            return;
        limit_ms *= 4; /* the limit came first, as others have the cores */
        nth--;
        assert_true(limit_ms < 60000);
    }
    fail_msg("joining makes too many allocations");
}

static void test_torture_boot_one_host_leaves_nothing(void **state)
{
    (void)state;
    torture("SHM=1");
}

static void test_torture_boot_two_hosts_leave_nothing(void **state)
{
    (void)state;
    torture("SHM=0");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest one_host[] = {
        cmocka_unit_test(test_torture_boot_one_host_leaves_nothing),
    };
    const struct CMUnitTest two_hosts[] = {
        cmocka_unit_test(test_torture_boot_two_hosts_leave_nothing),
    };
    if (argc == 2 && strcmp(argv[1], "one_host") == 0)
        return cmocka_run_group_tests(one_host, NULL, NULL);
    if (argc == 2 && strcmp(argv[1], "two_hosts") == 0)
        return cmocka_run_group_tests(two_hosts, NULL, NULL);
    fprintf(stderr, "one_host or two_hosts?\n");
    return 2;
}
