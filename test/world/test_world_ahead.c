/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that needs nobody, such as the root of a small broadcast, runs ahead of the others by as
 * many operations as it has small slots, less one; and what it gave is there when they come. And
 * what entries tell ahead of the rows, and between hosts an allgather and a run ahead of data. */
#undef NDEBUG
#include "engine/engine_state.h"
#include "exec/host.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, ROOT = 1, OPERATIONS = 3 * HORON_SMALL_SLOTS + 1, TURNS = 1000 };

/* What rank @p rank gets of operation @p i. */
static uint32_t value_of(horon_verb_t verb, int rank, uint32_t i)
{
    return 1000 * i + (verb == HORON_SCATTER ? (uint32_t)rank : 0);
}

static void run_ahead(horon_verb_t verb)
{
    static const int hosts[] = {RANKS};
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct horon_request *requests[RANKS][OPERATIONS];
    uint32_t in[OPERATIONS][RANKS], out[RANKS][OPERATIONS];
    memset(out, 0, sizeof out);
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            in[i][rank] = value_of(verb, rank, i);
            desc.verb = verb;
            desc.flags = HORON_IN_ORDER;
            desc.dtype = HORON_UINT32;
            desc.root = ROOT;
            desc.src = rank == ROOT ? in[i] : NULL;
            desc.dst = &out[rank][i];
            desc.count = verb == HORON_BROADCAST ? 1 : rank == ROOT ? RANKS : 0;
            desc.dst_count = 1;
            requests[rank][i] = world_submit(world, rank, &desc);
        }
    for (int turn = 0; turn < TURNS; turn++)
        horon_engine_progress(world->ranks[ROOT].engine);
    for (int i = 0; i < OPERATIONS; i++)
        assert_int_equal(atomic_load(&requests[ROOT][i]->state) == HORON_REQUEST_ENDED,
                         i < HORON_SMALL_SLOTS - 1);
    assert_true(world_turn_until(world, &requests[0][0], RANKS * OPERATIONS));
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            assert_int_equal(requests[rank][i]->status, HORON_OK);
            assert_int_equal(out[rank][i], value_of(verb, rank, i));
            world_release(requests[rank][i]);
        }
    world_destroy(world);
}

static void test_ahead_root_gives_as_many_as_it_has_slots(void **state)
{
    (void)state;
    run_ahead(HORON_BROADCAST);
    run_ahead(HORON_SCATTER);
}

/* More rows than fit the short words of an entry, which lies in the line of its head; no row has
 * any element, so that nothing moves. */
static void test_ahead_rows_beyond_short_words_are_counted(void **state)
{
    (void)state;
    struct world *world = world_create((const int[]){2}, 1, NULL, 1);
    struct horon_request *requests[2];
    const uint64_t shape[2] = {(uint64_t)1 << 33, 0};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLTOALL;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_INT32;
    desc.shape = shape;
    desc.ndim = 2;
    for (int rank = 0; rank < 2; rank++)
        requests[rank] = world_submit(world, rank, &desc);
    assert_true(world_turn_until(world, requests, 2));
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(requests[rank]->status, HORON_OK);
        for (int other = 0; other < 2; other++)
            assert_int_equal(requests[rank]->output_rows[other], (uint64_t)1 << 32);
        world_release(requests[rank]);
    }
    world_destroy(world);
}

/* ---- an allgather between hosts -------------------------------------------------------------- */

enum { HOSTS = 3, ROOM = 32 << 10, LONGEST = ROOM + 1 };

/* Elements that a rank gives in step @p i. */
static uint64_t given(const uint64_t *lengths, int i, int rank)
{
    return lengths[i] > (uint64_t)rank ? lengths[i] - (uint64_t)rank : 0;
}

static uint8_t element(int i, int rank, uint64_t at)
{
    return (uint8_t)(at * 7 + (uint64_t)rank * 31 + (uint64_t)i);
}

/* Payload that rank 0 has sent. */
static uint64_t sent_by_first(const struct world *world)
{
    uint64_t all = 0, sent = 0, received = 0;
    for (int peer = 1; peer < HOSTS; peer++) {
        horon_mux_bytes(world->ranks[0].engine->membership->mux_of[peer], &sent, &received);
        all += sent;
    }
    return all;
}

/* @return payload bytes that rank 0 sends each other one */
static uint64_t gather(struct world *world, const uint64_t *lengths, int i)
{
    static uint8_t in[HOSTS][LONGEST], out[HOSTS][HOSTS * LONGEST];
    struct horon_request *requests[HOSTS];
    const uint64_t before = sent_by_first(world);
    for (int rank = 0; rank < HOSTS; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (uint64_t at = 0; at < given(lengths, i, rank); at++)
            in[rank][at] = element(i, rank, at);
        desc.verb = HORON_ALLGATHER;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_UINT8;
        desc.count = given(lengths, i, rank);
        desc.src = in[rank];
        desc.dst = out[rank];
        desc.dst_count = HOSTS * LONGEST;
        requests[rank] = world_submit(world, rank, &desc);
    }
    assert_true(world_turn_until(world, requests, HOSTS));
    for (int rank = 0; rank < HOSTS; rank++) {
        const uint8_t *got = out[rank];
        assert_int_equal(requests[rank]->status, HORON_OK);
        for (int from = 0; from < HOSTS; from++)
            for (uint64_t at = 0; at < given(lengths, i, from); at++)
                if (*got++ != element(i, from, at))
                    fail_msg("step %d: rank %d has other bytes of rank %d at %d", i, rank, from,
                             (int)at);
        world_release(requests[rank]);
    }
    return (sent_by_first(world) - before) / (HOSTS - 1);
}

/* Room ahead, of the words of 8 bytes of which the first says the rows, is for what each of the two
 * before had, if no rank's share of it is too long. */
static void test_ahead_of_an_allgather_goes_what_those_before_had(void **state)
{
    static const uint64_t lengths[] = {256,  1000, 1000, 1000, 1001,     1000,     100,      100,
                                       ROOM, ROOM, ROOM, 0,    ROOM + 1, ROOM + 1, ROOM + 1, 8};
    static const uint64_t sent[] = {8 + 256,
                                    8 + 256 + 1000,
                                    8 + 256 + 1000,
                                    8 + 1000,
                                    8 + 1000 + 1001,
                                    8 + 1000,
                                    8 + 1000,
                                    8 + 256,
                                    8 + 256 + ROOM,
                                    8 + 256 + ROOM,
                                    8 + ROOM,
                                    8 + ROOM,
                                    8 + 256 + ROOM + 1,
                                    8 + 256 + ROOM + 1,
                                    8 + 256 + ROOM + 1,
                                    8 + 256};
    struct world *world = world_create((const int[]){1, 1, 1}, HOSTS, NULL, 1);
    (void)state;
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++)
        assert_int_equal(gather(world, lengths, i), sent[i]);
    world_destroy(world);
}

/* ---- the runs of an all-to-all between hosts, of a gather and a scatter -----------------------
 */

enum { RUN_ROOM = 4 << 10, RUN_LONGEST = RUN_ROOM + 1, GIVER = 0, TAKER = 1 };

/* Rank 0 gives each rank @p bytes and gets as many; where root alone gives or gets, it gives rank 1
 * so many. @return payload bytes that it sends rank 1 */
static uint64_t give(struct world *world, horon_verb_t verb, uint64_t bytes, int i)
{
    static uint8_t in[HOSTS][HOSTS * RUN_LONGEST], out[HOSTS][HOSTS * RUN_LONGEST];
    struct horon_request *requests[HOSTS];
    uint64_t before = 0, sent = 0, received = 0;
    const struct horon_mux *mux = world->ranks[GIVER].engine->membership->mux_of[TAKER];
    horon_mux_bytes(mux, &before, &received);
    for (int rank = 0; rank < HOSTS; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        const uint64_t runs = verb == HORON_GATHER ? 1 : HOSTS;
        for (uint64_t at = 0; at < runs * bytes; at++)
            in[rank][at] = element(i, rank, at);
        desc.verb = verb;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_UINT8;
        desc.root = verb == HORON_GATHER ? TAKER : GIVER;
        desc.src = in[rank];
        desc.count = verb == HORON_SCATTER && rank != GIVER ? 0 : runs * bytes;
        desc.dst = out[rank];
        desc.dst_count = HOSTS * RUN_LONGEST;
        requests[rank] = world_submit(world, rank, &desc);
    }
    assert_true(world_turn_until(world, requests, HOSTS));
    for (uint64_t at = 0; at < bytes; at++) {
        const uint64_t from = verb == HORON_GATHER ? at : TAKER * bytes + at;
        assert_int_equal(out[TAKER][at], element(i, GIVER, from));
    }
    for (int rank = 0; rank < HOSTS; rank++) {
        assert_int_equal(requests[rank]->status, HORON_OK);
        world_release(requests[rank]);
    }
    horon_mux_bytes(mux, &sent, &received);
    return sent - before;
}

/* Whichever verb it was: a run between two ranks is like those before it. */
static void test_ahead_of_a_run_goes_what_those_before_had(void **state)
{
    static const struct {
        horon_verb_t verb;
        uint64_t bytes, sent;
    } steps[] = {
        {HORON_ALLTOALL, 256, 8 + 256},
        {HORON_GATHER, 1000, 8 + 256 + 1000},
        {HORON_SCATTER, 1000, 8 + 256 + 1000},
        {HORON_ALLTOALL, 1000, 8 + 1000},
        {HORON_ALLTOALL, 1001, 8 + 1000 + 1001},
        {HORON_GATHER, 1000, 8 + 1000},
        {HORON_SCATTER, 0, 8 + 1000},
        {HORON_ALLTOALL, 1000, 8 + 256 + 1000},
        {HORON_ALLTOALL, RUN_ROOM, 8 + 256 + RUN_ROOM},
        {HORON_ALLTOALL, RUN_ROOM, 8 + 1000 + RUN_ROOM},
        {HORON_ALLTOALL, RUN_ROOM, 8 + RUN_ROOM},
        {HORON_GATHER, RUN_LONGEST, 8 + RUN_ROOM + RUN_LONGEST},
        {HORON_GATHER, RUN_LONGEST, 8 + RUN_ROOM + RUN_LONGEST},
        {HORON_SCATTER, RUN_LONGEST, 8 + 256 + RUN_LONGEST},
        {HORON_SCATTER, 1, 8 + 256},
    };
    struct world *world = world_create((const int[]){1, 1, 1}, HOSTS, NULL, 1);
    (void)state;
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++)
        assert_int_equal(give(world, steps[i].verb, steps[i].bytes, i), steps[i].sent);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ahead_root_gives_as_many_as_it_has_slots),
        cmocka_unit_test(test_ahead_rows_beyond_short_words_are_counted),
        cmocka_unit_test(test_ahead_of_an_allgather_goes_what_those_before_had),
        cmocka_unit_test(test_ahead_of_a_run_goes_what_those_before_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
