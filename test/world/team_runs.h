/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of second teams with a plain model of them: what each member gives is told by its rank
 * and the place of the element, and so is what each gets. */
#ifndef HORON_TEST_WORLD_TEAM_RUNS_H
#define HORON_TEST_WORLD_TEAM_RUNS_H

#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 8
#define COUNT_MAX 5000
#define UNTOUCHED (-1) /* of bytes and elements; no element that is given is below 0 */

static const struct {
    int hosts[RANKS_MAX], count, size;
} layouts[] = {
    {{6}, 1, 6}, {{1, 1, 1, 1, 1}, 5, 5}, {{3, 1, 2}, 3, 6}, {{4, 4}, 2, 8}, {{1, 5}, 2, 6},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

static const char *const settings[] = {"SHM_SMALL_BYTES=64", "SHM_CHUNK_BYTES=4096",
                                       "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100", NULL};

/* One operation of a team: what each member gave and got. */
struct run {
    struct horon_request *requests[RANKS_MAX];
    int32_t *in[RANKS_MAX], *out[RANKS_MAX];
    struct world_team *team;
    horon_verb_t verb;
    uint64_t count;
    int root;
};

/* Element @p i of what a member gave. */
static int32_t given(const struct run *run, int member, uint64_t i)
{
    return (int32_t)(i * 7 + (uint64_t)run->team->ranks[member] * 1000);
}

static void submit_as(struct run *run, int member, const char *name)
{
    const uint64_t room = run->count * (uint64_t)run->team->size + 1;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    run->in[member] = malloc((run->count + 1) * sizeof(int32_t));
    run->out[member] = malloc(room * sizeof(int32_t));
    for (uint64_t i = 0; i < run->count; i++)
        run->in[member][i] = given(run, member, i);
    memset(run->out[member], UNTOUCHED, room * sizeof(int32_t));
    desc.verb = run->verb;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_INT32;
    desc.count = run->count;
    desc.root = run->root;
    desc.src = run->in[member];
    desc.dst = run->out[member];
    desc.dst_count = room;
    run->requests[member] = world_team_submit(run->team, member, &desc);
}

static int32_t sum_at(const struct run *run, uint64_t i)
{
    int32_t sum = 0;
    for (int member = 0; member < run->team->size; member++)
        sum += given(run, member, i);
    return sum;
}

/* Where the share of a member begins: the first ones get one more of what is left over. */
static uint64_t share_begin(const struct run *run, int member)
{
    const uint64_t size = (uint64_t)run->team->size, m = (uint64_t)member;
    return run->count / size * m + (m < run->count % size ? m : run->count % size);
}

/* How many elements a member gets. */
static uint64_t expected_count(const struct run *run, int member)
{
    const uint64_t all = run->count * (uint64_t)run->team->size;
    switch (run->verb) {
    case HORON_ALLREDUCE:
    case HORON_BROADCAST:
    case HORON_ALLTOALL:
        return run->count;
    case HORON_REDUCE:
        return member == run->root ? run->count : 0;
    case HORON_ALLGATHER:
        return all;
    case HORON_GATHER:
        return member == run->root ? all : 0;
    case HORON_SCATTER:
    case HORON_REDUCESCATTER:
        return share_begin(run, member + 1) - share_begin(run, member);
    case HORON_BARRIER:
    case HORON_SEND:
    case HORON_RECV:
        break;
    }
    return 0;
}

/* Element @p i of what a member gets. */
static int32_t expected(const struct run *run, int member, uint64_t i)
{
    const uint64_t part = run->count / (uint64_t)run->team->size; /* of an all-to-all */
    switch (run->verb) {
    case HORON_ALLREDUCE:
    case HORON_REDUCE:
        return sum_at(run, i);
    case HORON_BROADCAST:
        return given(run, run->root, i);
    case HORON_ALLGATHER:
    case HORON_GATHER:
        return given(run, (int)(i / run->count), i % run->count);
    case HORON_ALLTOALL:
        return given(run, (int)(i / part), (uint64_t)member * part + i % part);
    case HORON_SCATTER:
        return given(run, run->root, share_begin(run, member) + i);
    case HORON_REDUCESCATTER:
        return sum_at(run, share_begin(run, member) + i);
    case HORON_BARRIER:
    case HORON_SEND:
    case HORON_RECV:
        break;
    }
    return 0;
}

/* A member got what it should, and nothing behind it. */
static void check(const struct run *run, int member)
{
    const uint64_t count = expected_count(run, member);
    assert_int_equal(run->requests[member]->status, HORON_OK);
    for (uint64_t i = 0; i <= run->count * (uint64_t)run->team->size; i++) {
        const int32_t wanted = i < count ? expected(run, member, i) : UNTOUCHED;
        if (run->out[member][i] != wanted)
            fail_msg("team %u, member %d, %s: element %d is %d, not %d", run->team->id, member,
                     horon_verb_name(run->verb), (int)i, run->out[member][i], wanted);
    }
}

static void run_free(struct run *run)
{
    for (int member = 0; member < run->team->size; member++) {
        world_release(run->requests[member]);
        free(run->in[member]);
        free(run->out[member]);
    }
}

static void shuffle(struct world *world, int *ranks, int count)
{
    for (int i = count - 1; i > 0; i--) {
        const int other = (int)(world_random(world) % (unsigned)(i + 1));
        const int rank = ranks[i];
        ranks[i] = ranks[other];
        ranks[other] = rank;
    }
}

/* @p size ranks of the world, drawn from its seed, in any order, @p must among them. */
static struct world_team *draw_team(struct world *world, uint32_t id, int size, int must)
{
    int ranks[RANKS_MAX];
    for (int rank = 0; rank < world->size; rank++)
        ranks[rank] = rank;
    shuffle(world, ranks, world->size);
    for (int i = size; i < world->size; i++)
        if (ranks[i] == must) {
            ranks[i] = ranks[0];
            ranks[0] = must;
        }
    shuffle(world, ranks, size);
    return world_team_create(world, id, ranks, size);
}

static void add_all(struct world_team *team)
{
    for (int member = 0; member < team->size; member++)
        world_team_add(team, member);
}

static void run_one(struct world_team *team, horon_verb_t verb, uint64_t count, bool named)
{
    struct run run = {.team = team, .verb = verb, .count = count, .root = (int)count % team->size};
    for (int member = 0; member < team->size; member++)
        submit_as(&run, member, named ? "x" : NULL);
    assert_true(world_turn_until(team->world, run.requests, (size_t)team->size));
    for (int member = 0; member < team->size; member++)
        check(&run, member);
    run_free(&run);
}

#endif
