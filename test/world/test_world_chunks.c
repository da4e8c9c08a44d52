/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sizes of the option table that say how a tensor is cut: each is set, and what it promises is
 * counted. Results do not depend on them, so no other test would miss one that did nothing.
 *
 * A rank's "posted" flag counts the chunks of all its operations, and small operations have none.
 */
#undef NDEBUG
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Hosts of a world: one with two ranks, two with one each, or two of which one has two. */
static const int together[] = {2}, apart[] = {1, 1}, unequal[] = {2, 1};

static uint64_t chunks_so_far(const struct world *world, int rank)
{
    const struct horon_host *host = &world->ranks[rank].host;
    const size_t at = horon_engine_arena_at(&host->shape, HORON_LANE_ORDERED);
    return atomic_load(&horon_host_posted(host, at, host->local_rank)->value);
}

/* Runs an operation in which each rank gives @p bytes. @return how many chunks it took */
static uint64_t chunks_of(struct world *world, horon_verb_t verb, uint64_t bytes)
{
    struct horon_request *requests[8] = {0};
    void *data[8] = {0};
    uint64_t before = chunks_so_far(world, 0);
    assert_true(world->size <= 8);
    for (int i = 0; i < world->size; i++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        data[i] = malloc(bytes);
        memset(data[i], 1, bytes);
        desc.verb = verb;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_UINT8;
        desc.count = bytes;
        desc.src = data[i];
        desc.dst = verb == HORON_ALLGATHER ? NULL : data[i];
        desc.dst_count = bytes;
        requests[i] = world_submit(world, i, &desc);
    }
    assert_true(world_turn_until(world, requests, (size_t)world->size));
    for (int i = 0; i < world->size; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        assert_int_equal(chunks_so_far(world, i), chunks_so_far(world, 0));
        world_release(requests[i]);
        free(data[i]);
    }
    return chunks_so_far(world, 0) - before;
}

static struct world *create(const int *hosts, int host_count, const char *const *settings)
{
    return world_create(hosts, host_count, settings, 1);
}

static struct world *create_crowded(const int *hosts, int host_count, const char *const *settings)
{
    return world_create_on_cores(hosts, host_count, 1, settings, 1);
}

#define CREATE_CROWDED(hosts, setting)                                                             \
    create_crowded(hosts, sizeof(hosts) / sizeof(hosts)[0], (const char *const[]){setting, NULL})
#define CREATE(hosts, ...)                                                                         \
    create(hosts, sizeof(hosts) / sizeof(hosts)[0], (const char *const[]){__VA_ARGS__, NULL})

/* One byte more than five pieces of 4 KiB. */
#define SOME_BYTES ((uint64_t)5 * 4096 + 1)

static void expect_chunks(struct world *world, uint64_t reduced, uint64_t sent, uint64_t gathered,
                          uint64_t shared)
{
    assert_int_equal(chunks_of(world, HORON_ALLREDUCE, SOME_BYTES), reduced);
    assert_int_equal(chunks_of(world, HORON_BROADCAST, SOME_BYTES), sent);
    assert_int_equal(chunks_of(world, HORON_ALLGATHER, SOME_BYTES), gathered);
    assert_int_equal(chunks_of(world, HORON_REDUCE, SOME_BYTES), reduced);
    assert_int_equal(chunks_of(world, HORON_REDUCESCATTER, SOME_BYTES), shared);
    world_destroy(world);
}

/* Sums use a quarter of a slot at a time, and where ranks share cores an eighth. */
static void test_chunks_in_a_host_are_shm_chunk_bytes(void **state)
{
    (void)state;
    expect_chunks(CREATE(together, "SHM_CHUNK_BYTES=4096"), 21, 6, 6, 21);
    expect_chunks(CREATE(together, "SHM_CHUNK_BYTES=8k"), 11, 3, 3, 11);
    /* nothing goes between hosts */
    expect_chunks(CREATE(together, "SHM_CHUNK_BYTES=16k", "NET_CHUNK_BYTES=4096"), 6, 2, 2, 6);
    expect_chunks(CREATE_CROWDED(together, "SHM_CHUNK_BYTES=8k"), 21, 3, 3, 21);
}

/* Of an allgather the first is the lengths. */
static void test_chunks_between_hosts_are_net_chunk_bytes_in_a_slot(void **state)
{
    (void)state;
    expect_chunks(CREATE(apart, "SHM_CHUNK_BYTES=16k", "NET_CHUNK_BYTES=4096"), 6, 6, 7, 3);
    /* an allgather's slot holds the windows of both hosts, a reducescatter's three */
    expect_chunks(CREATE(apart, "SHM_CHUNK_BYTES=16k", "NET_CHUNK_BYTES=16k"), 2, 2, 4, 2);
    expect_chunks(CREATE(apart, "SHM_CHUNK_BYTES=8k", "NET_CHUNK_BYTES=16k"), 3, 3, 7, 4);
    expect_chunks(CREATE(unequal, "SHM_CHUNK_BYTES=16k", "NET_CHUNK_BYTES=4096"), 6, 6, 7, 2);
}

static uint8_t *slot_of(const struct world *world, int rank, int slot)
{
    const struct horon_host *host = &world->ranks[rank].host;
    const size_t at = horon_engine_arena_at(&host->shape, HORON_LANE_ORDERED);
    return horon_host_chunk(host, at, host->local_rank, slot);
}

/* Runs an operation of several chunks of ones. @return bytes of a rank's slots that they came to */
static size_t slot_bytes_used(struct world *world, horon_verb_t verb, int rank)
{
    const size_t bytes = world->ranks[rank].host.shape.chunk_bytes;
    size_t used = 0;
    for (int slot = 0; slot < HORON_SLOTS; slot++)
        memset(slot_of(world, rank, slot), 0, bytes);
    assert_int_equal(chunks_of(world, verb, SOME_BYTES), 6);
    for (int slot = 0; slot < HORON_SLOTS; slot++)
        for (size_t i = 0; i < bytes; i++)
            used += slot_of(world, rank, slot)[i] != 0;
    return used;
}

static void test_chunks_of_a_rank_alone_on_its_host_go_through_no_slot(void **state)
{
    (void)state;
    static const horon_verb_t verbs[] = {HORON_ALLREDUCE, HORON_BROADCAST, HORON_REDUCE};
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        struct world *world = CREATE(apart, "NET_CHUNK_BYTES=4096");
        assert_int_equal(slot_bytes_used(world, verbs[v], 0), 0);
        assert_int_equal(slot_bytes_used(world, verbs[v], 1), 0);
        world_destroy(world);
        world = CREATE(unequal, "NET_CHUNK_BYTES=4096");
        assert_true(slot_bytes_used(world, verbs[v], 0) > 0);
        world_destroy(world);
    }
}

static void expect_small_up_to(struct world *world, horon_verb_t verb, uint64_t bytes)
{
    assert_int_equal(chunks_of(world, verb, bytes), 0);
    assert_int_equal(chunks_of(world, verb, bytes + 1), 1);
}

static void test_chunks_are_none_up_to_shm_small_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *setting;
        uint64_t bytes;
    } cases[] = {{"SHM_SMALL_BYTES=4096", 4096}, {"SHM_SMALL_BYTES=1k", 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *crowded = CREATE_CROWDED(together, cases[i].setting);
        struct world *roomy = CREATE(together, cases[i].setting);
        struct world *hosts = CREATE(unequal, cases[i].setting);
        static const horon_verb_t verbs[] = {HORON_ALLREDUCE, HORON_BROADCAST, HORON_REDUCESCATTER,
                                             HORON_REDUCE};
        for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
            expect_small_up_to(crowded, verbs[v], cases[i].bytes);
            expect_small_up_to(roomy, verbs[v], cases[i].bytes / 8);
            expect_small_up_to(hosts, verbs[v], cases[i].bytes);
        }
        expect_small_up_to(crowded, HORON_ALLGATHER, cases[i].bytes);
        expect_small_up_to(roomy, HORON_ALLGATHER, cases[i].bytes);
        /* with several hosts the first bytes go with the lengths, and all if they are so few */
        assert_int_equal(chunks_of(hosts, HORON_ALLGATHER, 256), 1);
        assert_int_equal(chunks_of(hosts, HORON_ALLGATHER, 257), 2);
        world_destroy(crowded);
        world_destroy(roomy);
        world_destroy(hosts);
    }
}

/* ---- Teams ---- */

static uint64_t chunks_of_member(const struct world_team *team, int member)
{
    const struct horon_host *host = &team->hosts[member];
    const size_t at = horon_engine_arena_at(&host->shape, HORON_LANE_ORDERED);
    if (!host->arenas)
        return 0; /* its first operation asks for them */
    return atomic_load(&horon_host_posted(host, at, host->local_rank)->value);
}

/* Sums in a team. @return how many chunks it took, on each member */
static uint64_t chunks_of_team(struct world_team *team, uint64_t bytes)
{
    struct horon_request *requests[4] = {0};
    uint8_t *data = calloc((size_t)team->size, bytes);
    uint64_t before[4] = {0};
    assert_true(team->size <= 4);
    for (int i = 0; i < team->size; i++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLREDUCE;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_UINT8;
        desc.count = bytes;
        desc.src = desc.dst = data + (uint64_t)i * bytes;
        before[i] = chunks_of_member(team, i);
        requests[i] = world_team_submit(team, i, &desc);
    }
    assert_true(world_turn_until(team->world, requests, (size_t)team->size));
    const uint64_t chunks = chunks_of_member(team, 0) - before[0];
    for (int i = 0; i < team->size; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        assert_int_equal(chunks_of_member(team, i) - before[i], chunks);
        world_release(requests[i]);
    }
    free(data);
    return chunks;
}

static struct world_team *add_team(struct world *world, uint32_t id, const int *ranks, int size)
{
    struct world_team *team = world_team_create(world, id, ranks, size);
    for (int i = 0; i < size; i++)
        world_team_add(team, i);
    return team;
}

static void expect_team(struct world_team *team, bool crowded, uint64_t small_bytes)
{
    for (int i = 0; i < team->size; i++)
        assert_int_equal(team->members[i]->view.crowded, crowded);
    assert_int_equal(chunks_of_team(team, small_bytes), 0);
    assert_int_equal(chunks_of_team(team, small_bytes + 1), 1);
}

/* A machine of three cores has four ranks, one of one core has two. */
static void test_chunks_of_a_team_go_by_its_own_ranks(void **state)
{
    (void)state;
    static const int hosts[] = {4, 2};
    static const char *const settings[] = {"SHM_SMALL_BYTES=4096", NULL};
    static const struct {
        int ranks[4], size;
        bool crowded;
        uint64_t small_bytes;
    } teams[] = {
        {{2, 0, 1}, 3, false, 512}, {{3, 0, 1, 2}, 4, true, 4096},
        {{5, 4}, 2, true, 4096},    {{4, 0, 3}, 3, false, 4096}, /* as between hosts */
        {{0, 4, 5}, 3, true, 4096},
    };
    struct world *world = world_create_bare(hosts, 2, settings, 1);
    struct horon_error error = {0};
    world_put_machine(world, 0, (struct horon_machine){.id = 7, .cores = 3});
    world_put_machine(world, 1, (struct horon_machine){.id = 8, .cores = 1});
    for (int rank = 0; rank < world->size; rank++)
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    for (uint32_t i = 0; i < sizeof teams / sizeof teams[0]; i++) {
        struct world_team *team = add_team(world, i + 1, teams[i].ranks, teams[i].size);
        expect_team(team, teams[i].crowded, teams[i].small_bytes);
        world_team_destroy(team);
    }
    world_destroy(world);
}

static void test_chunks_of_a_team_are_the_same_in_another_membership(void **state)
{
    (void)state;
    static const int hosts[] = {4}, some[] = {3, 1}, most[] = {3, 1, 2};
    static const char *const settings[] = {"SHM_SMALL_BYTES=4096", NULL};
    struct world *world = world_create_on_cores(hosts, 1, 2, settings, 1);
    struct world_team *roomy = add_team(world, 1, some, 2), *full = add_team(world, 2, most, 3);
    for (int membership = 0; membership < 2; membership++) {
        expect_team(roomy, false, 512);
        expect_team(full, true, 4096);
        expect_small_up_to(world, HORON_ALLREDUCE, 4096);
        assert_true(world_replace(world));
    }
    world_team_destroy(roomy);
    world_team_destroy(full);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_in_a_host_are_shm_chunk_bytes),
        cmocka_unit_test(test_chunks_between_hosts_are_net_chunk_bytes_in_a_slot),
        cmocka_unit_test(test_chunks_of_a_rank_alone_on_its_host_go_through_no_slot),
        cmocka_unit_test(test_chunks_are_none_up_to_shm_small_bytes),
        cmocka_unit_test(test_chunks_of_a_team_go_by_its_own_ranks),
        cmocka_unit_test(test_chunks_of_a_team_are_the_same_in_another_membership),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
