/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ranks have unlike parts, when memory ends: reductions of which one rank gets all or each a
 * share, messages between two ranks, and what goes on without a rank that has joined. As in
 * test_torture_world.c each allocation of a trial fails, once or with all that follow.
 */
#undef NDEBUG
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int outs[TRIAL_RANKS_MAX][TRIAL_LARGE];

/* ---- reductions ------------------------------------------------------------------------------ */

/* What rank @p rank gets of the sum of ranks 0 to @p givers - 1, and where that begins. */
static uint64_t part_of(const struct trial *trial, const struct horon_request *request, int rank,
                        uint64_t count, bool to_first, uint64_t *first_out)
{
    const uint64_t size = (uint64_t)trial->world->size, self = (uint64_t)rank;
    *first_out = 0;
    if (request->op.agreed.verb == HORON_ALLREDUCE)
        return count;
    if (request->op.agreed.verb == HORON_REDUCE || to_first)
        return rank == 0 ? count : 0;
    *first_out = self * (count / size) + (self < count % size ? self : count % size);
    return count / size + (self < count % size);
}

static void check_sums(const struct trial *trial, struct horon_request *const *requests, int givers,
                       uint64_t count, bool to_first)
{
    for (int rank = 0; rank < givers; rank++) {
        uint64_t first;
        const uint64_t part = part_of(trial, requests[rank], rank, count, to_first, &first);
        for (uint64_t i = 0; i < part; i++)
            assert_int_equal(outs[rank][i], givers * (int)(first + i) + givers * (givers - 1) / 2);
    }
}

/* Ranks 0 to @p givers - 1 reduce, and get their parts. @param to_first all of it is rank 0's, by
 * splits */
static void reduce(struct trial *trial, horon_verb_t verb, const char *name, uint64_t count,
                   int givers, bool to_first)
{
    struct horon_request *requests[TRIAL_RANKS_MAX] = {NULL};
    const uint64_t splits[TRIAL_RANKS_MAX] = {count};
    horon_descriptor_t desc = trial_describe(verb, name, count);
    if (trial->over)
        return;
    for (int rank = 0; rank < givers; rank++) {
        int *data = trial_data(trial, rank);
        for (int i = 0; i < TRIAL_LARGE; i++)
            data[i] = i + rank;
        desc.src = data;
        desc.dst = outs[rank];
        desc.dst_count = TRIAL_LARGE;
        desc.splits = to_first ? splits : NULL;
        requests[rank] = trial_submit(trial, rank, &desc);
        trial_post(trial, rank, requests[rank]);
    }
    if (trial_settle(trial, requests))
        check_sums(trial, requests, givers, count, to_first);
    trial_release_all(trial, requests);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* One that this rank could not begin, of which its peer has heard nothing, it begins again. */
static void message_turn(struct trial *trial, struct horon_request *const *sends,
                         struct horon_request *const *recvs)
{
    trial_turn(trial, sends);
    for (int rank = 0; rank < 2 && !trial->over; rank++)
        trial_begin_again(trial, rank, recvs[rank]);
}

static void post_messages(struct trial *trial, horon_verb_t verb, uint64_t count,
                          struct horon_request **requests)
{
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = trial_describe(verb, NULL, count);
        desc.flags = 0;
        desc.root = 1 - rank;
        desc.tag = count;
        desc.src = desc.dst = verb == HORON_SEND ? trial_data(trial, rank) : outs[rank];
        requests[rank] = trial_submit(trial, rank, &desc);
        trial_post(trial, rank, requests[rank]);
    }
}

/* Ranks 0 and 1 send each other something. @param early it comes before they ask for it */
static void exchange(struct trial *trial, uint64_t count, bool early)
{
    struct horon_request *sends[TRIAL_RANKS_MAX] = {NULL}, *recvs[TRIAL_RANKS_MAX] = {NULL};
    if (trial->over)
        return;
    for (int rank = 0; rank < 2; rank++) {
        memset(outs[rank], 0, sizeof outs[rank]);
        for (int i = 0; i < TRIAL_LARGE; i++)
            trial_data(trial, rank)[i] = i + rank + (int)count;
    }
    if (!early)
        post_messages(trial, HORON_RECV, count, recvs);
    post_messages(trial, HORON_SEND, count, sends);
    for (int turns = 0; early && turns < 20 && !trial->over; turns++)
        message_turn(trial, sends, recvs);
    if (early)
        post_messages(trial, HORON_RECV, count, recvs);
    for (int turns = 0; turns < TRIAL_TURNS_MAX && !trial->over; turns++) {
        if (trial_all_ended(trial, sends) && trial_all_ended(trial, recvs))
            break;
        message_turn(trial, sends, recvs);
    }
    const bool well = trial_settle(trial, sends) && trial_settle(trial, recvs);
    if (!well)
        trial_settle(trial, recvs);
    for (int rank = 0; rank < 2 && well; rank++)
        assert_memory_equal(outs[rank], trial_data(trial, 1 - rank), count * sizeof(int));
    trial_release_all(trial, sends);
    trial_release_all(trial, recvs);
}

/* ---- joins ----------------------------------------------------------------------------------- */

static void join_one(struct trial *trial, int rank, struct horon_request **joins)
{
    horon_descriptor_t desc = trial_describe(HORON_BARRIER, NULL, 0);
    desc.flags = 0; /* as horon_join() does */
    joins[rank] = trial_submit(trial, rank, &desc);
    joins[rank]->joins = true;
    trial_post(trial, rank, joins[rank]);
}

/* The last rank has no more data, and knows none of the names; then all join. */
static void join(struct trial *trial)
{
    struct horon_request *joins[TRIAL_RANKS_MAX] = {NULL};
    const int last = trial->world->size - 1;
    if (trial->over)
        return;
    join_one(trial, last, joins);
    reduce(trial, HORON_ALLREDUCE, "goes on", TRIAL_LARGE, last, false);
    reduce(trial, HORON_REDUCESCATTER, "goes on in shares", TRIAL_LARGE, last, false);
    reduce(trial, HORON_REDUCE, "goes on for one", TRIAL_SMALL, last, false);
    for (int rank = 0; rank < last && !trial->over; rank++)
        join_one(trial, rank, joins);
    trial_settle(trial, joins);
    trial_release_all(trial, joins);
}

/* ---- every n --------------------------------------------------------------------------------- */

static void everything(struct trial *trial)
{
    const int all = trial->world->size;
    reduce(trial, HORON_REDUCESCATTER, NULL, TRIAL_LARGE, all, false);
    reduce(trial, HORON_REDUCESCATTER, "shares", TRIAL_SMALL, all, true);
    reduce(trial, HORON_REDUCE, "for one", TRIAL_LARGE, all, false);
    reduce(trial, HORON_REDUCE, NULL, TRIAL_SMALL, all, false);
    exchange(trial, TRIAL_SMALL, false);
    exchange(trial, TRIAL_LARGE, true);
    join(trial);
    exchange(trial, TRIAL_SMALL, true);
    reduce(trial, HORON_REDUCE, "for one", TRIAL_SMALL, all, false);
}

static const int two_hosts[] = {2, 2}, three_hosts[] = {1, 2, 1}, one_host[] = {3};

static void test_torture_parts_each_allocation_fails_once(void **state)
{
    (void)state;
    trial_for_each(one_host, 1, 0, everything);
    trial_for_each(two_hosts, 2, 0, everything);
    trial_for_each(three_hosts, 3, 0, everything);
}

static void test_torture_parts_no_memory_from_each_allocation_on(void **state)
{
    (void)state;
    trial_for_each(one_host, 1, 1, everything);
    trial_for_each(two_hosts, 2, 1, everything);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_parts_each_allocation_fails_once),
        cmocka_unit_test(test_torture_parts_no_memory_from_each_allocation_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
