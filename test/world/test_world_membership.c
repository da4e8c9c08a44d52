/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generation of a membership: it goes with every frame and the head of every small slot, and
 * nothing of another one is taken for something of this one; a membership is replaced between two
 * operations, and requests that nothing has begun of go on in the next.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct horon_request *submit(struct world *world, int rank, const char *name, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = 1;
    return world_submit(world, rank, &desc);
}

/* Two ranks that believe in different memberships. */
static struct world *world_of_two(const int *hosts, int host_count)
{
    struct world *world = world_create_bare(hosts, host_count, NULL, 1);
    for (int rank = 0; rank < 2; rank++) {
        struct horon_error error = {0};
        world->generation = HORON_GENERATION_FIRST + (uint32_t)rank;
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    }
    return world;
}

static void test_membership_of_another_generation_is_seen_in_slots(void **state)
{
    static const int one_host[] = {2};
    struct horon_request *requests[2];
    float data[2] = {1, 2};
    (void)state;
    struct world *world = world_of_two(one_host, 1);
    for (int rank = 0; rank < 2; rank++)
        requests[rank] = submit(world, rank, NULL, &data[rank]);
    for (int i = 0; i < 20; i++)
        horon_engine_progress(world->ranks[i % 2].engine);
    for (int rank = 0; rank < 2; rank++) {
        const int status = (int)requests[rank]->status;
        if (atomic_load(&requests[rank]->state) != HORON_REQUEST_ENDED)
            continue; /* the other one was first, and its word is of another generation */
        assert_int_equal(status, HORON_ERR_MISMATCH);
        assert_non_null(strstr(requests[rank]->error_text, "in generation 1"));
        assert_non_null(strstr(requests[rank]->error_text, "in generation 2"));
    }
    assert_true(requests[0]->status == HORON_ERR_MISMATCH ||
                requests[1]->status == HORON_ERR_MISMATCH);
    world_release(requests[0]);
    world_release(requests[1]);
    world_destroy(world);
}

static void test_membership_of_another_generation_is_seen_in_frames(void **state)
{
    static const int two_hosts[] = {1, 1};
    float data[2] = {1, 2};
    const char *text = "";
    (void)state;
    struct world *world = world_of_two(two_hosts, 2);
    struct horon_request *request = submit(world, 1, "x", &data[1]);
    for (int i = 0; i < 20; i++)
        horon_engine_progress(world->ranks[i % 2].engine);
    assert_int_equal(world_failure(world->ranks[0].engine, &text), HORON_ERR_PROTO);
    assert_non_null(strstr(text, "generation 2"));
    world_release(request);
    world_destroy(world);
}

/* What the abort record and the lines of departures say counts in their own generation only. */
static void test_membership_of_another_generation_is_not_heard(void **state)
{
    static const int one_host[] = {2};
    struct horon_error error = {0};
    struct horon_departures news;
    uint32_t version = 0;
    bool left;
    (void)state;
    struct world *world = world_of_two(one_host, 1);
    struct horon_host *hosts[] = {&world->ranks[0].host, &world->ranks[1].host};
    const struct horon_departures own = {.any = true, .sequence = {1, 2, 3}};
    horon_error_set(&error, HORON_ERR_SYSTEM, "why");
    horon_host_post_abort(hosts[1], &error);
    horon_host_write_departures(hosts[1], &own, true);
    assert_true(horon_host_aborted(hosts[1], 2, &error));
    assert_false(horon_host_aborted(hosts[0], 2, &error));
    assert_false(horon_host_see_departures(hosts[0], 1, &version, &news, &left));
    version = 0;
    hosts[0]->generation = hosts[1]->generation;
    assert_true(horon_host_see_departures(hosts[0], 1, &version, &news, &left));
    assert_int_equal(news.sequence[2], 3);
    hosts[0]->generation = HORON_GENERATION_FIRST;
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_membership_of_another_generation_is_seen_in_slots),
        cmocka_unit_test(test_membership_of_another_generation_is_seen_in_frames),
        cmocka_unit_test(test_membership_of_another_generation_is_not_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
