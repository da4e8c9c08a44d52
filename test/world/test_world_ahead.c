/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that needs nobody, such as the root of a small broadcast, runs ahead of the others by as
 * many operations as it has small slots, less one; and what it gave is there when they come. */
#undef NDEBUG
#include "exec/host.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, OPERATIONS = 3 * HORON_SMALL_SLOTS + 1, TURNS = 1000 };

static void test_ahead_root_gives_as_many_as_it_has_slots(void **state)
{
    (void)state;
    static const int hosts[] = {RANKS};
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct horon_request *requests[RANKS][OPERATIONS];
    uint32_t values[RANKS][OPERATIONS];
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            values[rank][i] = rank == 1 ? 1000 + i : 0;
            desc.verb = HORON_BROADCAST;
            desc.flags = HORON_IN_ORDER;
            desc.dtype = HORON_UINT32;
            desc.root = 1;
            desc.src = desc.dst = &values[rank][i];
            desc.count = desc.dst_count = 1;
            requests[rank][i] = world_submit(world, rank, &desc);
        }
    for (int turn = 0; turn < TURNS; turn++)
        horon_engine_progress(world->ranks[1].engine);
    for (int i = 0; i < OPERATIONS; i++)
        assert_int_equal(atomic_load(&requests[1][i]->state) == HORON_REQUEST_ENDED,
                         i < HORON_SMALL_SLOTS - 1);
    assert_true(world_turn_until(world, &requests[0][0], RANKS * OPERATIONS));
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            assert_int_equal(requests[rank][i]->status, HORON_OK);
            assert_int_equal(values[rank][i], 1000 + i);
            world_release(requests[rank][i]);
        }
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ahead_root_gives_as_many_as_it_has_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
