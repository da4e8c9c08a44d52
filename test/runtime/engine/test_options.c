/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the option table that an engine heeds, each by what it changes: batches that are decided,
 * chunks that are posted in shared memory, bytes that go into the ring between two hosts.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct world *make(const int *hosts, int count, const char *setting)
{
    const char *const settings[] = {setting, NULL};
    return world_create(hosts, count, settings, 11);
}

/* Its hosts have one core each. */
static struct world *make_crowded(const int *hosts, int count, const char *setting)
{
    const char *const settings[] = {setting, NULL};
    return world_create_on_cores(hosts, count, 1, settings, 11);
}

static horon_descriptor_t sum(const char *name, void *data, uint64_t bytes)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_UINT8;
    desc.src = desc.dst = data;
    desc.count = bytes;
    return desc;
}

static void end(struct world *world, struct horon_request **requests, size_t count)
{
    assert_true(world_turn_until(world, requests, count));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
}

/* Sums @p tensors tensors of 4 bytes, submitted before any rank turns. @return how many decisions
 * that took */
static uint64_t decisions_of(struct world *world, int tensors, const char *prefix)
{
    static uint8_t data[4][64][4];
    struct horon_request *requests[4 * 64];
    struct horon_coordinator *root = world->ranks[0].engine->job->coordinator;
    uint64_t before = horon_coordinator_decisions(root);
    for (int rank = 0; rank < world->size; rank++) {
        for (int i = 0; i < tensors; i++) {
            char name[HORON_NAME_BYTES_MAX + 1];
            snprintf(name, sizeof name, "%s%d", prefix, i);
            horon_descriptor_t desc = sum(name, data[rank][i], 4);
            requests[rank * tensors + i] = world_submit(world, rank, &desc);
        }
    }
    end(world, requests, (size_t)(world->size * tensors));
    return horon_coordinator_decisions(root) - before;
}

static void test_options_fusion_bytes_bound_a_batch(void **state)
{
    static const int hosts[] = {2, 1};
    static const struct {
        const char *setting;
        uint64_t least, most; /* decisions for 12 tensors of 4 bytes */
    } cases[] = {{"FUSION_BYTES=0", 12, 12},
                 {"FUSION_BYTES=1", 12, 12},
                 {"FUSION_BYTES=12", 4, 4},
                 {"FUSION_BYTES=64m", 1, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = make(hosts, 2, cases[i].setting);
        uint64_t decisions = decisions_of(world, 12, "t");
        if (decisions < cases[i].least || decisions > cases[i].most)
            fail_msg("%s: %d decisions", cases[i].setting, (int)decisions);
        world_destroy(world);
    }
}

static uint64_t ring_bytes(const struct world *world, int from, int to)
{
    const struct horon_ring *ring = world->rings[from * world->size + to];
    return ring ? atomic_load(&ring->written) : 0;
}

/* Bytes from rank 1 to the root in the second round of sums of tensors with long names. */
static uint64_t bytes_of_known_names(const char *setting)
{
    static const int hosts[] = {1, 1};
    char prefix[400];
    memset(prefix, 'n', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = 0;
    struct world *world = make(hosts, 2, setting);
    decisions_of(world, 8, prefix);
    uint64_t before = ring_bytes(world, 1, 0);
    decisions_of(world, 8, prefix);
    uint64_t bytes = ring_bytes(world, 1, 0) - before;
    world_destroy(world);
    return bytes;
}

static void test_options_cache_entries_are_names_that_travel_once(void **state)
{
    (void)state;
    const uint64_t names = 8 * 400;
    assert_true(bytes_of_known_names("CACHE_ENTRIES=0") > names);
    assert_true(bytes_of_known_names("CACHE_ENTRIES=8192") < names / 4);
    /* too few for all of them: some travel again */
    uint64_t some = bytes_of_known_names("CACHE_ENTRIES=4");
    assert_true(some > names / 4 && some < names + names / 2);
}

/* Sums in order, once. @return chunks that rank 0 posted in shared memory for it; 0: it was small
 */
static uint64_t chunks_of(struct world *world, uint64_t bytes)
{
    struct horon_request *requests[4];
    const struct horon_host *host = &world->ranks[0].host;
    struct horon_flag *posted =
        horon_host_posted(host, horon_engine_arena_at(&host->shape, HORON_LANE_ORDERED), 0);
    uint64_t before = atomic_load(&posted->value);
    uint8_t *data[4];
    for (int rank = 0; rank < world->size; rank++) {
        data[rank] = calloc(1, (size_t)bytes + 1);
        horon_descriptor_t desc = sum(NULL, data[rank], bytes);
        requests[rank] = world_submit(world, rank, &desc);
    }
    end(world, requests, (size_t)world->size);
    for (int rank = 0; rank < world->size; rank++)
        free(data[rank]);
    return atomic_load(&posted->value) - before;
}

static void test_options_shm_chunk_bytes_are_posted_at_a_time(void **state)
{
    static const int hosts[] = {2};
    (void)state;
    struct world *small = make(hosts, 1, "SHM_CHUNK_BYTES=20k"), *large = make(hosts, 1, NULL);
    assert_int_equal(chunks_of(small, 100 << 10), 20); /* of a quarter of a slot each */
    assert_int_equal(chunks_of(small, (100 << 10) + 1), 21);
    assert_int_equal(chunks_of(large, (100 << 10) + 1), 1);
    /* "an arena has four such slots a rank" */
    assert_true(large->hosts[0].arena_bytes >= 4u << 20);
    assert_true(small->hosts[0].arena_bytes >= 4u * (20 << 10));
    assert_true(large->hosts[0].arena_bytes - small->hosts[0].arena_bytes ==
                4u * ((1 << 20) - (20 << 10)));
    world_destroy(small);
    world_destroy(large);
}

static void test_options_shm_small_bytes_need_no_chunks(void **state)
{
    static const int one[] = {2}, two[] = {2, 2};
    (void)state;
    struct world *spare = make(one, 1, "SHM_SMALL_BYTES=4k"),
                 *crowded = make_crowded(one, 1, "SHM_SMALL_BYTES=4k");
    struct world *several = make(two, 2, "SHM_SMALL_BYTES=4k"),
                 *none = make(one, 1, "SHM_SMALL_BYTES=0");
    assert_int_equal(chunks_of(spare, 512), 0); /* an eighth */
    assert_int_equal(chunks_of(spare, 513), 1);
    assert_int_equal(chunks_of(crowded, 4096), 0);
    assert_int_equal(chunks_of(crowded, 4097), 1);
    assert_int_equal(chunks_of(several, 4096), 0);
    assert_int_equal(chunks_of(several, 4097), 1);
    assert_int_equal(chunks_of(none, 1), 1);
    assert_int_equal(chunks_of(none, 0), 0);
    world_destroy(spare);
    world_destroy(crowded);
    world_destroy(several);
    world_destroy(none);
}

static void test_options_net_chunk_bytes_travel_at_a_time(void **state)
{
    static const int one[] = {2}, two[] = {2, 2};
    (void)state;
    struct world *world = make(two, 2, "NET_CHUNK_BYTES=32k"),
                 *alone = make(one, 1, "NET_CHUNK_BYTES=32k");
    assert_int_equal(chunks_of(world, 128 << 10), 4);
    assert_int_equal(chunks_of(world, (128 << 10) + 1), 5);
    assert_int_equal(chunks_of(alone, 128 << 10), 1); /* nothing travels */
    world_destroy(world);
    world_destroy(alone);
}

/* Rank 0 sends to a rank that does not answer. @return bytes that it sent */
static uint64_t bytes_unasked(const char *setting)
{
    static const int hosts[] = {1, 1};
    static uint8_t data[3000];
    struct world *world = make(hosts, 2, setting);
    horon_descriptor_t desc = sum(NULL, data, sizeof data);
    desc.verb = HORON_BROADCAST;
    struct horon_request *requests[2] = {world_submit(world, 0, &desc), NULL};
    for (int i = 0; i < 100; i++)
        horon_engine_progress(world->ranks[0].engine);
    uint64_t bytes = ring_bytes(world, 0, 1);
    requests[1] = world_submit(world, 1, &desc);
    end(world, requests, 2);
    world_destroy(world);
    return bytes;
}

static void test_options_net_eager_bytes_go_unasked(void **state)
{
    const uint64_t heads = 300;
    (void)state;
    uint64_t few = bytes_unasked("NET_EAGER_BYTES=1"), some = bytes_unasked("NET_EAGER_BYTES=1000");
    uint64_t all = bytes_unasked("NET_EAGER_BYTES=64k");
    assert_in_range(few, 1, heads);
    assert_in_range(some, 1000, 1000 + heads);
    assert_in_range(all, 3000, 3000 + heads);
}

static void test_options_net_algorithm_decides_which_rank_sends_what_to_which(void **state)
{
    static const int hosts[] = {1, 1, 1, 1};
    enum { BYTES = 8000, HEADS = 1500 };
    static const struct {
        const char *setting;
        uint64_t to_1, to_3; /* of BYTES, from rank 0 */
    } cases[] = {
        {"NET_ALGORITHM=flat", BYTES, BYTES}, /* all of it to everybody */
        {"NET_ALGORITHM=doubling", BYTES, 0}, /* all of it to each partner */
        {"NET_ALGORITHM=direct", BYTES / 2,
         BYTES / 2},                     /* a quarter to reduce, a quarter to gather */
        {"NET_ALGORITHM=halving", 0, 0}, /* to its partners only: see below */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = make(hosts, 4, cases[i].setting);
        chunks_of(world, BYTES);
        uint64_t to_1 = ring_bytes(world, 0, 1), to_2 = ring_bytes(world, 0, 2);
        uint64_t to_3 = ring_bytes(world, 0, 3);
        if (cases[i].to_1) {
            assert_in_range(to_1, cases[i].to_1, cases[i].to_1 + HEADS);
            assert_in_range(to_3, cases[i].to_3, cases[i].to_3 + HEADS);
            assert_int_equal(to_2 >= BYTES, cases[i].to_3 == 0 || cases[i].to_3 == BYTES);
        } else { /* a half and a quarter, each twice; nothing to the one across */
            assert_true(to_3 < HEADS);
            assert_in_range(to_1 + to_2, BYTES * 3 / 2, BYTES * 3 / 2 + 2 * HEADS);
        }
        world_destroy(world);
    }
}

/* Of a broadcast of 8000 bytes among four hosts rank 0 sends all to one or to two. */
static void test_options_net_algorithm_decides_how_a_broadcast_goes(void **state)
{
    static const int hosts[] = {1, 1, 1, 1};
    static const struct {
        const char *setting;
        bool to[4]; /* from rank 0 */
    } cases[] = {
        {"NET_ALGORITHM=doubling", {[1] = true, [2] = true}},
        {"NET_ALGORITHM=flat", {[1] = true, [2] = true}}, /* no broadcast: as auto */
        {"NET_ALGORITHM=chain", {[1] = true}},
    };
    enum { BYTES = 8000, HEADS = 1500 };
    static uint8_t data[4][BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = make(hosts, 4, cases[i].setting);
        struct horon_request *requests[4];
        for (int rank = 0; rank < 4; rank++) {
            horon_descriptor_t desc = sum(NULL, data[rank], BYTES);
            desc.verb = HORON_BROADCAST;
            requests[rank] = world_submit(world, rank, &desc);
        }
        end(world, requests, 4);
        for (int rank = 1; rank < 4; rank++) {
            const uint64_t least = cases[i].to[rank] ? BYTES : 0;
            assert_in_range(ring_bytes(world, 0, rank), least, least + HEADS);
        }
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_fusion_bytes_bound_a_batch),
        cmocka_unit_test(test_options_cache_entries_are_names_that_travel_once),
        cmocka_unit_test(test_options_shm_chunk_bytes_are_posted_at_a_time),
        cmocka_unit_test(test_options_shm_small_bytes_need_no_chunks),
        cmocka_unit_test(test_options_net_chunk_bytes_travel_at_a_time),
        cmocka_unit_test(test_options_net_eager_bytes_go_unasked),
        cmocka_unit_test(test_options_net_algorithm_decides_which_rank_sends_what_to_which),
        cmocka_unit_test(test_options_net_algorithm_decides_how_a_broadcast_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
