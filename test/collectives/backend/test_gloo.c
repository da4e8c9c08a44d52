/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend gloo: ranks of one process in turns, over loopback. Each verb between all sizes of
 * worlds, as Gloo speaks and as horons do among themselves, or some of both.
 */
#include "../mesh.h"

#include "address.h"
#include "backend/backend.h"
#include "backend/backends.h"
#include "backend/gloo_plan.h"
#include "backend/gloo_state.h"
#include "link/gloo_frame.h"
#include "log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS_MAX 7

struct member {
    struct horon_backend_context *context;
    struct horon_backend_channel *channel;
    struct horon_team team;
    struct horon_operation op;
    struct horon_part part;
    uint64_t ahead[RANKS_MAX];
    int32_t *src, *dst;
    uint64_t dst_count, rows[RANKS_MAX];
    bool ended;
};

static struct world {
    int size;
    struct member members[RANKS_MAX];
} world;

static const char *const names[RANKS_MAX] = {"rank 0", "rank 1", "rank 2", "rank 3",
                                             "rank 4", "rank 5", "rank 6"};
static const struct horon_log quiet = {.level = HORON_LOG_ERROR, .rank = -1};

/* Which ranks say that they are horons; a bit each. */
static void open_world(int size, unsigned horons)
{
    struct horon_link *links[RANKS_MAX][RANKS_MAX] = {{NULL}};
    struct horon_error error = {0};
    memset(&world, 0, sizeof world);
    world.size = size;
    for (int a = 0; a < size; a++)
        for (int b = 0; b < a; b++) {
            int sockets[2];
            mesh_tcp_pair(sockets);
            assert_int_equal(horon_link_tcp_create(sockets[0], 0, &links[a][b], &error), HORON_OK);
            assert_int_equal(horon_link_tcp_create(sockets[1], 0, &links[b][a], &error), HORON_OK);
        }
    for (int rank = 0; rank < size; rank++) {
        struct member *me = &world.members[rank];
        const struct horon_backend_settings settings = {
            .launched = size, .gloo_links = links[rank], .gloo_native = horons >> rank & 1};
        const struct horon_channel_options options = {0};
        me->team = (struct horon_team){.rank = rank, .size = size, .rank_names = names};
        assert_int_equal(
            horon_backend_gloo.open(&horon_backend_gloo, &settings, &quiet, &me->context, &error),
            HORON_OK);
        assert_int_equal(horon_backend_gloo.create(me->context, &options, &me->team, NULL, 0, NULL,
                                                   &me->channel),
                         HORON_OK);
    }
}

static struct horon_gloo_pair *pair_of(int rank, int peer)
{
    return ((struct horon_gloo_context *)(void *)world.members[rank].context)->mesh.pairs[peer];
}

static void close_world(void)
{
    for (int rank = 0; rank < world.size; rank++) {
        horon_backend_gloo.destroy(world.members[rank].channel);
        horon_backend_gloo.close(world.members[rank].context);
        free(world.members[rank].src);
        free(world.members[rank].dst);
    }
}

static int32_t value_of(int rank, uint64_t i)
{
    return (int32_t)((uint64_t)(rank + 1) * 1000003 + i * 7919) % 100019;
}

/* @param counts  elements of each rank's input, and of its room */
static void prepare(int rank, horon_verb_t verb, uint64_t count, uint64_t room)
{
    struct member *me = &world.members[rank];
    free(me->src);
    free(me->dst);
    me->src = calloc(count + 1, sizeof *me->src);
    me->dst = calloc(room + 1, sizeof *me->dst);
    assert_non_null(me->src);
    assert_non_null(me->dst);
    for (uint64_t i = 0; i < count; i++)
        me->src[i] = value_of(rank, i);
    me->dst_count = room;
    me->ended = false;
    me->part = (struct horon_part){.src = me->src, .dst = me->dst, .count = count};
    me->op = (struct horon_operation){
        .count = count, .parts = &me->part, .part_count = 1, .ahead = me->ahead, .row_elements = 1};
    me->op.agreed.verb = (uint8_t)verb;
    me->op.agreed.dtype = HORON_INT32;
    me->op.agreed.prescale = me->op.agreed.postscale = 1.0;
    me->op.agreed.shape[0] = count;
    me->op.agreed.ndim = 1;
}

static void *take_output(void *arg, const uint64_t *rows, uint64_t total)
{
    struct member *me = arg;
    assert_int_equal(total, me->dst_count);
    memcpy(me->rows, rows, (size_t)world.size * sizeof *rows);
    return me->dst;
}

/* Any order of turns must do. */
static void run(unsigned seed)
{
    int left = world.size;
    for (int rank = 0; rank < world.size; rank++)
        horon_backend_gloo.begin(world.members[rank].channel, &world.members[rank].op);
    for (uint64_t turn = 0; left > 0; turn++) {
        assert_true(turn < 50000000);
        seed = seed * 1103515245 + 12345;
        struct member *me = &world.members[(seed >> 16) % (unsigned)world.size];
        struct horon_error error = {0};
        bool moved = false;
        if (me->ended)
            continue;
        const horon_status_t status = horon_backend_gloo.advance(me->channel, &moved, &error);
        if (status < 0)
            fail_msg("%s: %s", names[me->team.rank], error.text);
        me->ended = status == HORON_OK;
        left -= me->ended;
    }
}

static void reduce_all(uint64_t count, horon_verb_t verb, int root)
{
    for (int rank = 0; rank < world.size; rank++) {
        prepare(rank, verb, count, count);
        world.members[rank].op.agreed.root = verb == HORON_REDUCESCATTER ? 0 : root;
    }
    run((unsigned)count + (unsigned)root);
    for (int rank = 0; rank < world.size; rank++) {
        uint64_t first = 0, many = count;
        if (verb == HORON_REDUCE && rank != root)
            continue;
        if (verb == HORON_REDUCESCATTER) {
            for (int other = 0; other < rank; other++)
                first += horon_rows_even(count, other, world.size);
            many = horon_rows_even(count, rank, world.size);
        }
        for (uint64_t i = 0; i < many; i++) {
            int32_t sum = 0;
            for (int other = 0; other < world.size; other++)
                sum += value_of(other, first + i);
            assert_int_equal(world.members[rank].dst[i], sum);
        }
        for (uint64_t i = 0; i < count; i++) /* inputs stay */
            assert_int_equal(world.members[rank].src[i], value_of(rank, i));
    }
}

static void broadcast(uint64_t count, int root)
{
    for (int rank = 0; rank < world.size; rank++) {
        prepare(rank, HORON_BROADCAST, count, count);
        world.members[rank].op.agreed.root = root;
    }
    run((unsigned)root);
    for (int rank = 0; rank < world.size; rank++)
        for (uint64_t i = 0; i < count; i++)
            assert_int_equal(world.members[rank].dst[i], value_of(root, i));
}

static void barrier(void)
{
    for (int rank = 0; rank < world.size; rank++) {
        prepare(rank, HORON_BARRIER, 0, 0);
        world.members[rank].op.part_count = 0;
    }
    run(1);
}

static void allgather(uint64_t count)
{
    for (int rank = 0; rank < world.size; rank++) {
        struct member *me = &world.members[rank];
        prepare(rank, HORON_ALLGATHER, count, count * (uint64_t)world.size);
        me->ahead[0] = count;
        me->op.output = take_output;
        me->op.output_arg = me;
    }
    run((unsigned)count);
    for (int rank = 0; rank < world.size; rank++)
        for (int from = 0; from < world.size; from++)
            for (uint64_t i = 0; i < count; i++)
                assert_int_equal(world.members[rank].dst[(uint64_t)from * count + i],
                                 value_of(from, i));
}

static uint64_t rows_of(int from, int to, uint64_t count)
{
    return (from + 2 * to) % 3 == 0 ? 0 : count + (uint64_t)from * 2 + (uint64_t)to;
}

static uint64_t place_of(int from, int to, uint64_t count)
{
    uint64_t at = 0;
    for (int other = 0; other < to; other++)
        at += rows_of(from, other, count);
    return at;
}

static void alltoall(uint64_t count)
{
    for (int rank = 0; rank < world.size; rank++) {
        struct member *me = &world.members[rank];
        uint64_t room = 0;
        for (int from = 0; from < world.size; from++)
            room += rows_of(from, rank, count);
        prepare(rank, HORON_ALLTOALL, place_of(rank, world.size, count), room);
        for (int to = 0; to < world.size; to++)
            me->ahead[to] = rows_of(rank, to, count);
        me->op.output = take_output;
        me->op.output_arg = me;
    }
    run((unsigned)count);
    for (int rank = 0; rank < world.size; rank++) {
        const int32_t *at = world.members[rank].dst;
        for (int from = 0; from < world.size; from++) {
            assert_int_equal(world.members[rank].rows[from], rows_of(from, rank, count));
            for (uint64_t i = 0; i < rows_of(from, rank, count); i++)
                assert_int_equal(*at++, value_of(from, place_of(from, rank, count) + i));
        }
    }
}

static void gather(uint64_t count, int root)
{
    uint64_t total = 0;
    for (int rank = 0; rank < world.size; rank++)
        total += rows_of(rank, 0, count);
    for (int rank = 0; rank < world.size; rank++) {
        struct member *me = &world.members[rank];
        prepare(rank, HORON_GATHER, rows_of(rank, 0, count), rank == root ? total : 0);
        me->op.agreed.root = root;
        me->ahead[0] = rows_of(rank, 0, count);
        me->op.output = take_output;
        me->op.output_arg = me;
    }
    run((unsigned)root);
    const int32_t *at = world.members[root].dst;
    for (int from = 0; from < world.size; from++)
        for (uint64_t i = 0; i < rows_of(from, 0, count); i++)
            assert_int_equal(*at++, value_of(from, i));
}

static void scatter(uint64_t count, int root)
{
    for (int rank = 0; rank < world.size; rank++) {
        struct member *me = &world.members[rank];
        prepare(rank, HORON_SCATTER, rank == root ? place_of(root, world.size, count) : 0,
                rows_of(root, rank, count));
        me->op.agreed.root = root;
        for (int to = 0; to < world.size; to++)
            me->ahead[to] = rank == root ? rows_of(root, to, count) : 0;
        me->op.output = take_output;
        me->op.output_arg = me;
    }
    run((unsigned)root);
    for (int rank = 0; rank < world.size; rank++)
        for (uint64_t i = 0; i < rows_of(root, rank, count); i++)
            assert_int_equal(world.members[rank].dst[i],
                             value_of(root, place_of(root, rank, count) + i));
}

/* Ranks of Gloo tell no rows: all say what each gives. */
static void allgatherv(uint64_t count)
{
    uint64_t splits[RANKS_MAX], total = 0;
    for (int rank = 0; rank < world.size; rank++)
        total += splits[rank] = rows_of(rank, 1, count);
    for (int rank = 0; rank < world.size; rank++) {
        struct member *me = &world.members[rank];
        prepare(rank, HORON_ALLGATHER, splits[rank], total);
        me->ahead[0] = splits[rank];
        me->op.splits = splits;
        me->op.output = take_output;
        me->op.output_arg = me;
    }
    run((unsigned)count);
    for (int rank = 0; rank < world.size; rank++) {
        const int32_t *at = world.members[rank].dst;
        for (int from = 0; from < world.size; from++)
            for (uint64_t i = 0; i < splits[from]; i++)
                assert_int_equal(*at++, value_of(from, i));
    }
}

static void all_verbs(uint64_t count)
{
    barrier();
    reduce_all(count, HORON_ALLREDUCE, 0);
    reduce_all(count, HORON_REDUCESCATTER, 0);
    allgather(count);
    allgatherv(count);
    alltoall(count);
    for (int root = 0; root < world.size; root++) {
        broadcast(count, root);
        reduce_all(count, HORON_REDUCE, root);
        gather(count, root);
        scatter(count, root);
    }
}

/* One horon among Gloo's is at either end of each kind of pair with these. */
static const unsigned mixtures[] = {0, 1, 2, 5, ~0u};

static void test_gloo_every_verb_gives_what_it_should(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        for (size_t i = 0; i < sizeof mixtures / sizeof mixtures[0]; i++) {
            open_world(size, mixtures[i]);
            all_verbs(0);
            all_verbs(1);
            all_verbs((uint64_t)size - 1);
            all_verbs(17);
            all_verbs(4099);
            close_world();
        }
}

/* More than a segment for each rank; more than what goes eagerly, and than sockets hold. */
static void test_gloo_long_vectors_go_in_segments(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++)
        for (size_t i = 0; i < sizeof mixtures / sizeof mixtures[0]; i++) {
            open_world(size, mixtures[i]);
            all_verbs((UINT64_C(3) << 20) / 4 * (uint64_t)size + 5);
            close_world();
        }
}

static void first_operation(int number, uint64_t count, int root)
{
    switch (number) {
    case 0:
        broadcast(count, root);
        break;
    case 1:
        gather(count, root);
        break;
    case 2:
        scatter(count, root);
        break;
    case 3:
        reduce_all(count, HORON_REDUCE, root);
        break;
    case 4:
        allgather(count + (uint64_t)root);
        break;
    default:
        alltoall(count + (uint64_t)root);
    }
}

/* A receiver may begin before it knows that the sender is a horon, which knows that of it. What is
 * longest goes in two pieces each of which is asked for. */
static void test_gloo_first_operation_may_be_any(void **state)
{
    static const uint64_t counts[] = {0, 4099, (UINT64_C(3) << 20) / sizeof(int32_t) + 1};
    (void)state;
    for (int size = 2; size <= 3; size++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (int root = 0; root < size; root++)
                for (int number = 0; number < 6; number++) {
                    open_world(size, ~0u);
                    first_operation(number, counts[c], root);
                    close_world();
                }
}

static int writes[RANKS_MAX];
static struct horon_link_ops counted;
static const struct horon_link_ops *uncounted;

static horon_status_t count_send(struct horon_link *link, const struct iovec *vector, int count,
                                 size_t *sent_bytes_out, struct horon_error *error)
{
    for (int peer = 1; peer < world.size; peer++)
        writes[peer] += horon_gloo_pair_link(pair_of(0, peer)) == link;
    return uncounted->send(link, vector, count, sent_bytes_out, error);
}

/* Each write wakes the rank that it goes to. */
static void test_gloo_steps_that_begin_at_once_go_in_one_write(void **state)
{
    struct horon_error error = {0};
    bool moved = false;
    (void)state;
    open_world(4, 0);
    all_verbs(1); /* each knows what the others are */
    for (int peer = 1; peer < world.size; peer++) {
        struct horon_link *link = horon_gloo_pair_link(pair_of(0, peer));
        uncounted = link->ops;
        counted = *link->ops;
        counted.send = count_send;
        link->ops = &counted;
    }
    prepare(0, HORON_ALLREDUCE, 64, 64);
    memset(writes, 0, sizeof writes);
    horon_backend_gloo.begin(world.members[0].channel, &world.members[0].op);
    assert_int_equal(horon_backend_gloo.advance(world.members[0].channel, &moved, &error),
                     HORON_IN_PROGRESS);
    assert_int_equal(writes[1], 1);
    assert_int_equal(writes[2], 0);
    assert_int_equal(writes[3], 1);
    close_world();
}

static void test_gloo_ranks_that_are_no_horons_are_known(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mixtures / sizeof mixtures[0]; i++) {
        const unsigned all = 7;
        open_world(3, mixtures[i]);
        all_verbs(1);
        for (int rank = 0; rank < 3; rank++) {
            const bool says = mixtures[i] >> rank & 1;
            assert_int_equal(world.members[rank].context->is_mixed,
                             !says || (mixtures[i] & all) != all);
        }
        close_world();
    }
}

/* A rank that says anything: its length and what came before it add up to less than either. */
static void test_gloo_length_that_no_memory_holds_is_refused(void **state)
{
    struct member *me = &world.members[0];
    const struct horon_gloo_frame frame = {.code = HORON_GLOO_SEND_READY,
                                           .slot = horon_gloo_plan_slot(HORON_GLOO_GATHER, 0),
                                           .length = UINT64_MAX - 7};
    uint8_t bytes[HORON_GLOO_FRAME_BYTES];
    struct horon_link *links[2] = {NULL};
    struct horon_error error = {0};
    const struct horon_backend_settings settings = {.launched = 2, .gloo_links = links};
    const struct horon_channel_options options = {0};
    int sockets[2];
    bool moved = false;
    horon_status_t status = HORON_IN_PROGRESS;
    (void)state;
    memset(&world, 0, sizeof world);
    world.size = 1; /* that is to be closed */
    mesh_tcp_pair(sockets);
    assert_int_equal(horon_link_tcp_create(sockets[0], 0, &links[1], &error), HORON_OK);
    me->team = (struct horon_team){.rank = 0, .size = 2, .rank_names = names};
    assert_int_equal(
        horon_backend_gloo.open(&horon_backend_gloo, &settings, &quiet, &me->context, &error),
        HORON_OK);
    assert_int_equal(
        horon_backend_gloo.create(me->context, &options, &me->team, NULL, 0, NULL, &me->channel),
        HORON_OK);
    prepare(0, HORON_GATHER, 4, 4);
    me->ahead[0] = 4;
    me->op.output = take_output;
    me->op.output_arg = me;
    horon_gloo_frame_encode(&frame, bytes);
    assert_int_equal(send(sockets[1], bytes, sizeof bytes, 0), sizeof bytes);
    horon_backend_gloo.begin(me->channel, &me->op);
    for (int turn = 0; turn < 10000000 && status == HORON_IN_PROGRESS; turn++)
        status = horon_backend_gloo.advance(me->channel, &moved, &error);
    assert_int_equal(status, HORON_ERR_MISMATCH);
    assert_non_null(strstr(error.text, "rank 1"));
    close_world();
    close(sockets[1]);
}

/* Before there is a team: by the memory of old classes, which is not spoken. */
static void test_gloo_peer_that_is_wrong_at_once_is_named(void **state)
{
    static const struct horon_backend *const tables[] = {&horon_backend_gloo};
    const struct horon_gloo_frame frame = {.code = HORON_GLOO_SEND_BUFFER};
    struct horon_link *links[2] = {NULL};
    const struct horon_backend_settings settings = {.launched = 2, .gloo_links = links};
    struct horon_backends backends = {0};
    struct horon_error error = {0};
    uint8_t bytes[HORON_GLOO_FRAME_BYTES];
    char at[HORON_ADDRESS_TEXT_BYTES], expected[HORON_ADDRESS_TEXT_BYTES + 64];
    int sockets[2];
    (void)state;
    mesh_tcp_pair(sockets);
    snprintf(expected, sizeof expected, "rank 1 (%s) sent what Gloo's protocol forbids",
             horon_address_end_text(sockets[0], true, at));
    horon_gloo_frame_encode(&frame, bytes);
    assert_int_equal(send(sockets[1], bytes, sizeof bytes, 0), sizeof bytes);
    assert_int_equal(horon_link_tcp_create(sockets[0], 0, &links[1], &error), HORON_OK);
    assert_int_equal(horon_backends_open(&backends, tables, 1, &settings, &quiet, &error),
                     HORON_ERR_PROTO);
    if (!strstr(error.text, expected))
        print_message("%s\n", error.text);
    assert_non_null(strstr(error.text, expected));
    assert_int_equal(error.blame.rank, 1);
    assert_int_equal(error.blame.cause, HORON_CAUSE_PROTOCOL);
    close(sockets[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_every_verb_gives_what_it_should),
        cmocka_unit_test(test_gloo_long_vectors_go_in_segments),
        cmocka_unit_test(test_gloo_first_operation_may_be_any),
        cmocka_unit_test(test_gloo_steps_that_begin_at_once_go_in_one_write),
        cmocka_unit_test(test_gloo_ranks_that_are_no_horons_are_known),
        cmocka_unit_test(test_gloo_length_that_no_memory_holds_is_refused),
        cmocka_unit_test(test_gloo_peer_that_is_wrong_at_once_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
