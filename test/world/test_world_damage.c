/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that goes astray writes over what another one shares with its host. Anything may stand
 * there then: the job fails with a reason, or goes on, and no process aborts.
 */
#undef NDEBUG
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, BYTES = 5000 };

struct bed {
    struct world *world;
    struct horon_request *requests[RANKS];
    uint8_t in[RANKS][BYTES], out[RANKS][RANKS * BYTES];
};

static int make(void **state)
{
    static const char *const settings[] = {"SHM_SMALL_BYTES=64", NULL};
    static const int hosts[] = {RANKS};
    struct bed *bed = test_calloc(1, sizeof *bed);
    bed->world = world_create(hosts, 1, settings, 1);
    *state = bed;
    return 0;
}

static int end(void **state)
{
    struct bed *bed = *state;
    for (int rank = 0; rank < RANKS; rank++)
        world_release(bed->requests[rank]);
    world_destroy(bed->world);
    test_free(bed);
    return 0;
}

static void submit(struct bed *bed, int rank, horon_verb_t verb, uint64_t bytes)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_UINT8;
    desc.src = bed->in[rank];
    desc.dst = bed->out[rank];
    desc.count = bytes;
    desc.dst_count = sizeof bed->out[rank];
    bed->requests[rank] = world_submit(bed->world, rank, &desc);
}

/* Rank 0 comes first, as far as it gets alone. */
static const struct horon_host *begin(struct bed *bed, horon_verb_t verb, uint64_t bytes)
{
    submit(bed, 0, verb, bytes);
    while (horon_engine_progress(bed->world->ranks[0].engine))
        ;
    return &bed->world->ranks[0].host;
}

/* Rank 0 has found it; the other one may have ended before. */
static void expect_found(struct bed *bed, horon_verb_t verb, uint64_t bytes)
{
    submit(bed, 1, verb, bytes);
    assert_true(world_turn_until(bed->world, bed->requests, RANKS));
    assert_int_equal(bed->requests[0]->status, HORON_ERR_PROTO);
    assert_non_null(strstr(bed->requests[0]->error_text, "has written over what rank 0"));
}

static size_t ordered_at(const struct horon_host *host)
{
    return horon_engine_arena_at(&host->shape, HORON_LANE_ORDERED);
}

static void test_damage_of_a_length_fails_the_job(void **state)
{
    struct bed *bed = *state;
    const struct horon_host *host = begin(bed, HORON_ALLGATHER, 10);
    horon_host_small(host, ordered_at(host), 0, 0)->count = BYTES;
    expect_found(bed, HORON_ALLGATHER, 10);
}

static void test_damage_of_a_flag_fails_the_job(void **state)
{
    struct bed *bed = *state;
    const struct horon_host *host = begin(bed, HORON_ALLREDUCE, BYTES);
    atomic_fetch_add(&horon_host_posted(host, ordered_at(host), 0)->value, 5);
    expect_found(bed, HORON_ALLREDUCE, BYTES);
}

static void test_damage_of_a_departure_keeps_it_from_nobody(void **state)
{
    struct bed *bed = *state;
    struct horon_engine *leaver = bed->world->ranks[0].engine;
    struct horon_team_line *line = horon_host_team_line(&bed->world->ranks[0].host, 0);
    atomic_store(&line->version, 7);
    horon_engine_leave(leaver);
    submit(bed, 1, HORON_ALLREDUCE, 10);
    assert_true(world_turn_until(bed->world, bed->requests, RANKS));
    assert_int_equal(bed->requests[1]->status, HORON_ERR_CLOSED);
}

/* Root of a gather in place finds it when it has written over what it gives itself. */
static void test_damage_of_an_entry_may_cost_the_input(void **state)
{
    enum { ALL = 3, ROOT = 1, EACH = 5 };
    static const int hosts[] = {ALL}, order[] = {2, 0, ROOT};
    static uint8_t memory[ALL][ALL * EACH];
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct horon_request *requests[ALL];
    (void)state;
    for (int i = 0; i < ALL; i++) {
        const int rank = order[i];
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_GATHER;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_UINT8;
        desc.root = ROOT;
        desc.src = memory[rank];
        desc.dst = rank == ROOT ? memory[rank] : NULL;
        desc.count = EACH;
        desc.dst_count = rank == ROOT ? ALL * EACH : 0;
        requests[rank] = world_submit(world, rank, &desc);
        while (rank != ROOT && horon_engine_progress(world->ranks[rank].engine))
            ;
        if (rank != 2)
            continue;
        const struct horon_host *host = &world->ranks[rank].host;
        struct horon_slot_head *head = horon_host_small(host, ordered_at(host), rank, 0);
        uint32_t *words = (uint32_t *)(void *)(head + 1);
        assert_int_equal(head->area, 0);
        words[ROOT] += 1000000;
        words[ROOT + 1] += 1000000;
    }
    assert_true(world_turn_until(world, requests, ALL));
    assert_int_equal(requests[ROOT]->status, HORON_ERR_PROTO);
    assert_true(requests[ROOT]->blame.input_lost);
    for (int rank = 0; rank < ALL; rank++)
        world_release(requests[rank]);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_damage_of_a_length_fails_the_job, make, end),
        cmocka_unit_test_setup_teardown(test_damage_of_a_flag_fails_the_job, make, end),
        cmocka_unit_test_setup_teardown(test_damage_of_a_departure_keeps_it_from_nobody, make, end),
        cmocka_unit_test(test_damage_of_an_entry_may_cost_the_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
