/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks on one host, more than fit a word of bits: all verbs, by name and in order, on the job
 * and on a process set of every second rank; and a join of half of them. The numbers of ranks are
 * arguments.
 */
#undef NDEBUG
#include "world/teams.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 256, COUNT = 1021 };

static int sizes[8] = {65}, size_count = 1; /* set before the tests begin */

struct many {
    struct world *world;
    struct world_team *team; /* NULL: the job */
    int size;                /* of the team */
    float *in[RANKS_MAX], *out[RANKS_MAX];
    struct horon_request *requests[RANKS_MAX];
};

static const char *const settings[] = {"SHM_CHUNK_BYTES=64k", NULL};

static void open_many(struct many *many, int size)
{
    *many = (struct many){.world = world_create(&size, 1, settings, 1), .size = size};
    for (int rank = 0; rank < size; rank++) {
        many->in[rank] = calloc(COUNT + RANKS_MAX, sizeof(float));
        many->out[rank] = calloc((size_t)(COUNT + RANKS_MAX) * 2, sizeof(float));
        assert(many->in[rank] && many->out[rank]);
    }
}

static void close_many(struct many *many)
{
    const int size = many->world->size;
    world_destroy(many->world);
    for (int rank = 0; rank < size; rank++) {
        free(many->in[rank]);
        free(many->out[rank]);
    }
}

static void release_all(struct many *many)
{
    for (int rank = 0; rank < many->world->size; rank++) {
        world_release(many->requests[rank]);
        many->requests[rank] = NULL;
    }
}

/* Rows that one gives another: one, but for those whose sum is odd; gathered: one or two. */
static uint64_t rows_of(horon_verb_t verb, int from, int to)
{
    if (verb == HORON_ALLGATHER || verb == HORON_GATHER)
        return 1 + (uint64_t)from % 2;
    return (from + to) % 2 == 0;
}

static bool has_rows(horon_verb_t verb)
{
    return horon_verb_rows_differ(&horon_verb_rows[verb]);
}

static bool gives(const struct many *many, horon_verb_t verb, int from, int to)
{
    const struct horon_verb_row *row = &horon_verb_rows[verb];
    const int root = many->size - 1;
    return horon_ranks_include(row->reads, root, from) &&
           horon_ranks_include(row->writes, root, to);
}

static struct horon_request *submit(struct many *many, horon_verb_t verb, bool in_order, int member)
{
    static uint64_t splits[RANKS_MAX];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    const bool by_splits = horon_verb_rows[verb].ahead == HORON_AHEAD_SPLITS;
    desc.verb = verb;
    desc.process_set = many->team ? 1 : 0;
    desc.name = in_order || verb == HORON_BARRIER ? NULL : horon_verb_name(verb);
    desc.flags = in_order ? HORON_IN_ORDER : 0;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.root = horon_verb_is_rooted(&horon_verb_rows[verb]) ? many->size - 1 : 0;
    desc.count = verb == HORON_BARRIER ? 0 : COUNT;
    if (has_rows(verb))
        desc.count = rows_of(verb, member, 0);
    for (int to = 0; by_splits && to < many->size; to++) {
        splits[to] = gives(many, verb, member, to) ? rows_of(verb, member, to) : 0;
        desc.count = to ? desc.count + splits[to] : splits[to];
    }
    if (by_splits && (verb == HORON_ALLTOALL || member == desc.root))
        desc.splits = splits;
    desc.src = many->in[member];
    desc.dst = many->out[member];
    desc.dst_count = (COUNT + RANKS_MAX) * 2;
    for (uint64_t i = 0; i < desc.count; i++)
        many->in[member][i] = (float)member + 1;
    return many->team ? world_team_submit(many->team, member, &desc)
                      : world_submit(many->world, member, &desc);
}

static void expect_runs(const struct many *many, horon_verb_t verb, int member)
{
    const float *at = many->out[member];
    for (int from = 0; from < many->size; from++)
        for (uint64_t i = 0; gives(many, verb, from, member) && i < rows_of(verb, from, member);
             i++)
            assert_true(*at++ == (float)from + 1);
}

static void expect_all(const struct many *many, int member, uint64_t count, float value)
{
    for (uint64_t i = 0; i < count; i++)
        assert_true(many->out[member][i] == value);
}

static void expect(const struct many *many, horon_verb_t verb, int member)
{
    const uint64_t size = (uint64_t)many->size;
    const float sum = (float)(size * (size + 1) / 2);
    if (has_rows(verb))
        expect_runs(many, verb, member);
    else if (verb == HORON_BROADCAST)
        expect_all(many, member, COUNT, (float)many->size);
    else if (verb == HORON_ALLREDUCE || (verb == HORON_REDUCE && member == many->size - 1))
        expect_all(many, member, COUNT, sum);
    else if (verb == HORON_REDUCESCATTER)
        expect_all(many, member, COUNT / size + ((uint64_t)member < COUNT % size), sum);
}

static void run(struct many *many, horon_verb_t verb, bool in_order)
{
    for (int member = 0; member < many->size; member++)
        many->requests[member] = submit(many, verb, in_order, member);
    assert_true(world_turn_until(many->world, many->requests, (size_t)many->size));
    for (int member = 0; member < many->size; member++) {
        assert_int_equal(many->requests[member]->status, HORON_OK);
        expect(many, verb, member);
    }
    release_all(many);
}

static void run_all(struct many *many)
{
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        if (horon_verb_rows[verb].paired)
            continue; /* of two ranks, and no operation of a team */
        run(many, (horon_verb_t)verb, false);
        run(many, (horon_verb_t)verb, true);
    }
}

static void test_many_ranks_of_a_host_carry_out_all_verbs(void **state)
{
    (void)state;
    for (int i = 0; i < size_count; i++) {
        struct many many;
        open_many(&many, sizes[i]);
        run_all(&many);
        close_many(&many);
    }
}

static void test_many_ranks_of_a_host_have_a_set(void **state)
{
    (void)state;
    for (int i = 0; i < size_count; i++) {
        struct many many;
        int ranks[RANKS_MAX], count = 0;
        open_many(&many, sizes[i]);
        for (int rank = sizes[i] - 1; rank >= 0; rank -= 2)
            ranks[count++] = rank;
        many.team = world_team_create(many.world, 1, ranks, count);
        many.size = count;
        for (int member = 0; member < count; member++)
            world_team_add(many.team, member);
        run_all(&many);
        world_team_destroy(many.team);
        close_many(&many);
    }
}

/* The first half has no more data: the others' sum is that of theirs. */
static void test_many_ranks_of_a_host_join(void **state)
{
    (void)state;
    for (int i = 0; i < size_count; i++) {
        struct many many;
        const int size = sizes[i], half = size / 2;
        struct horon_request *joins[RANKS_MAX];
        float sum = 0;
        open_many(&many, size);
        for (int rank = 0; rank < half; rank++)
            joins[rank] =
                world_join(many.world, rank, horon_engine_job(many.world->ranks[rank].engine));
        for (int rank = half; rank < size; rank++) {
            many.requests[rank] = submit(&many, HORON_ALLREDUCE, false, rank);
            sum += (float)rank + 1;
        }
        assert_true(world_turn_until(many.world, many.requests, (size_t)size));
        for (int rank = half; rank < size; rank++) {
            assert_int_equal(many.requests[rank]->status, HORON_OK);
            expect_all(&many, rank, COUNT, sum);
            joins[rank] =
                world_join(many.world, rank, horon_engine_job(many.world->ranks[rank].engine));
        }
        release_all(&many);
        assert_true(world_turn_until(many.world, joins, (size_t)size));
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(joins[rank]->status, HORON_OK);
            world_release(joins[rank]);
        }
        run(&many, HORON_ALLREDUCE, false);
        close_many(&many);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc && i <= 8; i++)
        sizes[i - 1] = atoi(argv[i]);
    size_count = argc > 1 ? argc - 1 : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ranks_of_a_host_carry_out_all_verbs),
        cmocka_unit_test(test_many_ranks_of_a_host_have_a_set),
        cmocka_unit_test(test_many_ranks_of_a_host_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
