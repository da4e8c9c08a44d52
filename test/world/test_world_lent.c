/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs that are read where they lie: what is read so, and what happens where the system refuses,
 * or the owner gives up while it is read. The system call is this test's: it counts, refuses, and
 * lets something happen in between.
 */
#undef NDEBUG
#include "world/world.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS_MAX = 4, COUNT = 5000, OPS_MAX = 3 };

struct scene {
    struct world *world;
    horon_verb_t verb;
    int root;
    uint64_t total;                           /* elements of an output */
    int32_t in[RANKS_MAX][RANKS_MAX * COUNT]; /* of an all-to-all, COUNT for each */
    int32_t out[RANKS_MAX][RANKS_MAX * COUNT];
    struct horon_request *requests[RANKS_MAX];
};

static int reads, refused_from; /* calls; those from that one on are refused; 0: none */
static int other_from; /* from that one on the number read is that of another process; 0: never */
static void (*before_read)(struct scene *scene);
static struct scene scene;

static struct horon_alive *alive_of(int rank)
{
    return &horon_host_line(&scene.world->ranks[rank].host, rank)->alive;
}

/* What it has at the address nobody knows. */
static void read_of_another(const struct iovec *into)
{
    for (int rank = 0; reads == other_from && rank < scene.world->size; rank++)
        horon_alive_let_go(alive_of(rank));
    memset(into->iov_base, 0xee, into->iov_len);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *into, unsigned long into_count,
                         const struct iovec *from, unsigned long from_count, unsigned long flags)
{
    void (*happens)(struct scene *) = before_read;
    before_read = NULL;
    reads++;
    if (happens)
        happens(&scene);
    if (refused_from && reads >= refused_from) {
        errno = EPERM;
        return -1;
    }
    const ssize_t got =
        syscall(SYS_process_vm_readv, pid, into, into_count, from, from_count, flags);
    if (other_from && reads >= other_from)
        read_of_another(into);
    return got;
}

static void begin(int size, horon_verb_t verb, const char *setting)
{
    const char *settings[] = {"SHM_CHUNK_BYTES=4096", setting, NULL};
    scene = (struct scene){.verb = verb};
    reads = refused_from = other_from = 0;
    before_read = NULL;
    scene.world = world_create(&size, 1, settings, 1);
    scene.total = (uint64_t)size * COUNT;
}

static int32_t value(int from, int at, int number)
{
    return 1000000 * number + 100000 * from + at;
}

static void submit(int number)
{
    const int size = scene.world->size;
    for (int rank = 0; rank < size; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (int i = 0; i < size * COUNT; i++)
            scene.in[rank][i] = value(rank, i, number);
        memset(scene.out[rank], 0, sizeof scene.out[rank]);
        desc.verb = scene.verb;
        desc.root = scene.root;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_INT32;
        const bool for_each = scene.verb == HORON_ALLTOALL || scene.verb == HORON_SCATTER;
        desc.count = for_each ? scene.total : COUNT;
        desc.src = scene.in[rank];
        desc.dst = scene.out[rank];
        desc.dst_count = scene.total;
        scene.requests[rank] = world_submit(scene.world, rank, &desc);
    }
}

static int output_of(int rank)
{
    if (scene.verb == HORON_SCATTER || scene.verb == HORON_BROADCAST)
        return COUNT;
    return scene.verb == HORON_GATHER && rank != 0 ? 0 : (int)scene.total;
}

static int32_t expected(int rank, int at, int number)
{
    if (scene.verb == HORON_SCATTER)
        return value(0, rank * COUNT + at, number);
    if (scene.verb == HORON_BROADCAST)
        return value(scene.root, at, number);
    const int first = scene.verb == HORON_ALLTOALL ? rank * COUNT : 0;
    return value(at / COUNT, first + at % COUNT, number);
}

static void run(int number)
{
    const int size = scene.world->size;
    submit(number);
    assert_true(world_turn_until(scene.world, scene.requests, (size_t)size));
    for (int rank = 0; rank < size; rank++) {
        assert_int_equal(scene.requests[rank]->status, HORON_OK);
        for (int i = 0; i < output_of(rank); i++)
            assert_int_equal(scene.out[rank][i], expected(rank, i, number));
        world_release(scene.requests[rank]);
    }
}

static void expect_reads(int size, horon_verb_t verb, const char *setting, int expected)
{
    begin(size, verb, setting);
    run(1);
    assert_int_equal(reads, expected);
    world_destroy(scene.world);
}

static void test_lent_is_what_is_long_and_all_read_at_once(void **state)
{
    (void)state;
    expect_reads(2, HORON_ALLGATHER, "SHM_LEND_BYTES=20000", 2);
    expect_reads(2, HORON_ALLGATHER, "SHM_LEND_BYTES=20001", 0);
    expect_reads(2, HORON_ALLGATHER, "SHM_LEND_BYTES=0", 0);
    expect_reads(3, HORON_ALLGATHER, "SHM_LEND_BYTES=1", 0);  /* slots are better */
    expect_reads(2, HORON_GATHER, "SHM_LEND_BYTES=20000", 1); /* by root alone */
    expect_reads(3, HORON_GATHER, "SHM_LEND_BYTES=1", 0);
    expect_reads(3, HORON_SCATTER, "SHM_LEND_BYTES=20000", 2);
    expect_reads(3, HORON_SCATTER, "SHM_LEND_BYTES=20001", 0);
    expect_reads(2, HORON_BROADCAST, "SHM_LEND_BYTES=20000", 1);
    expect_reads(2, HORON_BROADCAST, "SHM_LEND_BYTES=20001", 0);
    expect_reads(3, HORON_BROADCAST, "SHM_LEND_BYTES=1", 0);
    expect_reads(2, HORON_ALLTOALL, "SHM_LEND_BYTES=20000", 2);
    expect_reads(4, HORON_ALLTOALL, "SHM_LEND_BYTES=20000", 4 * 3);
    expect_reads(4, HORON_ALLTOALL, "SHM_LEND_BYTES=20001", 0);
}

static const struct {
    int size;
    horon_verb_t verb;
    int all; /* reads of one operation */
} cases[] = {{2, HORON_ALLGATHER, 2}, {2, HORON_GATHER, 1},   {3, HORON_SCATTER, 2},
             {2, HORON_BROADCAST, 1}, {2, HORON_ALLTOALL, 2}, {4, HORON_ALLTOALL, 12}};
#define CASES (sizeof cases / sizeof cases[0])

/* Whichever read it is that fails, all ranks go through slots, and try it no more. */
static void test_lent_goes_through_slots_where_the_system_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const int all = cases[i].all;
        for (int from = 1; from <= 2 * all; from++) {
            begin(cases[i].size, cases[i].verb, "SHM_LEND_BYTES=1");
            refused_from = from;
            run(1);
            run(2);
            assert_in_range(reads, from, 2 * all);
            const int tried = reads;
            run(3);
            assert_int_equal(reads, tried);
            world_destroy(scene.world);
        }
    }
}

/* The ranks whose processes have ended are not told of here. */
static void test_lent_is_not_what_another_process_of_that_number_has(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        for (int from = 1; from <= cases[i].all; from++) {
            begin(cases[i].size, cases[i].verb, "SHM_LEND_BYTES=1");
            other_from = from;
            run(1);
            assert_true(reads >= from);
            run(2);
            for (int rank = 0; rank < scene.world->size; rank++)
                assert_true(horon_alive_hold(alive_of(rank)));
            world_destroy(scene.world);
        }
    }
}

static void *give_input(void *arg, uint64_t rows, uint64_t bytes)
{
    (void)rows;
    assert_true(bytes <= sizeof scene.in[0]);
    return arg;
}

/* Memory for the output may be asked for, and be that of the input: slots bear with it. */
static void test_lent_is_nothing_where_the_output_takes_the_inputs_place(void **state)
{
    (void)state;
    begin(2, HORON_ALLTOALL, "SHM_LEND_BYTES=1");
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (int i = 0; i < 2 * COUNT; i++)
            scene.in[rank][i] = value(rank, i, 1);
        desc.verb = HORON_ALLTOALL;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_INT32;
        desc.count = 2 * COUNT;
        desc.src = scene.in[rank];
        desc.alloc = give_input;
        desc.alloc_arg = scene.in[rank];
        scene.requests[rank] = world_submit(scene.world, rank, &desc);
    }
    assert_true(world_turn_until(scene.world, scene.requests, 2));
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(scene.requests[rank]->status, HORON_OK);
        for (int i = 0; i < 2 * COUNT; i++)
            assert_int_equal(scene.in[rank][i], value(i / COUNT, rank * COUNT + i % COUNT, 1));
        world_release(scene.requests[rank]);
    }
    world_destroy(scene.world);
}

/* A rank that has read all waits, and time limits ask whether anything moves meanwhile. */
static void test_lent_input_that_another_rank_still_reads_moves(void **state)
{
    enum { LONG = 40 << 20 }; /* read in several turns */
    char *in = calloc(2, LONG), *out = calloc(2, (size_t)2 * LONG);
    (void)state;
    begin(2, HORON_ALLGATHER, NULL);
    assert_true(in && out);
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLGATHER;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_INT8;
        desc.count = LONG;
        desc.src = in + rank * LONG;
        desc.dst = out + rank * 2 * LONG;
        desc.dst_count = (uint64_t)2 * LONG;
        scene.requests[rank] = world_submit(scene.world, rank, &desc);
        horon_engine_progress(scene.world->ranks[rank].engine);
    }
    struct horon_engine *waits = scene.world->ranks[0].engine;
    struct horon_engine *reads_on = scene.world->ranks[1].engine;
    while (horon_engine_progress(waits))
        ; /* it has read, and copied its own */
    for (int turns = 0; atomic_load(&scene.requests[0]->state) != HORON_REQUEST_ENDED; turns++) {
        const uint64_t before = horon_engine_moves(waits, scene.requests[0]);
        assert_in_range(turns, 0, 50);
        assert_true(horon_engine_progress(reads_on));
        horon_engine_progress(waits);
        assert_true(horon_engine_moves(waits, scene.requests[0]) > before);
    }
    assert_true(world_turn_until(scene.world, scene.requests, 2));
    for (int rank = 0; rank < 2; rank++)
        world_release(scene.requests[rank]);
    world_destroy(scene.world);
    free(in);
    free(out);
}

/* Rank 1 does, and its memory is its own again. */
static void give_up(struct scene *there)
{
    world_fail(there->world->ranks[1].engine, HORON_ERR_CANCELLED, "it gave up");
    memset(there->in[1], 0xee, sizeof there->in[1]);
}

/* What a rank reads of one that has given up meanwhile is not taken for its input. */
static void test_lent_input_of_a_rank_that_gave_up_is_not_taken(void **state)
{
    static const horon_verb_t verbs[] = {HORON_ALLGATHER, HORON_ALLTOALL, HORON_BROADCAST};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        begin(2, verbs[i], "SHM_LEND_BYTES=1");
        scene.root = verbs[i] == HORON_BROADCAST;
        submit(1);
        horon_engine_progress(scene.world->ranks[0].engine); /* it enters */
        while (horon_engine_progress(scene.world->ranks[1].engine))
            ; /* it has read what it gets; so rank 0 waits for nobody when it has */
        assert_int_equal(reads, verbs[i] != HORON_BROADCAST);
        before_read = give_up;
        while (before_read)
            horon_engine_progress(scene.world->ranks[0].engine);
        assert_true(world_turn_until(scene.world, scene.requests, 2));
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(scene.requests[rank]->status, HORON_ERR_CANCELLED);
            world_release(scene.requests[rank]);
        }
        world_destroy(scene.world);
    }
}

static struct horon_request *submit_broadcast(int rank, const char *name, int root, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_INT32;
    desc.root = root;
    desc.count = count;
    desc.src = scene.in[rank];
    desc.dst = scene.out[rank];
    return world_submit(scene.world, rank, &desc);
}

static void expect_end(struct horon_request **requests, size_t n)
{
    assert_true(world_turn_until(scene.world, requests, n));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
}

/* It knows the size of a batch and not of what tensors it is. */
static void test_lent_broadcasts_beside_a_rank_that_has_joined_stay_in_step(void **state)
{
    static const char *const names[] = {"a", "b", "c"};
    (void)state;
    for (size_t tensors = 1; tensors <= 3; tensors++) {
        begin(2, HORON_BROADCAST, "SHM_LEND_BYTES=1");
        struct horon_request *joins[2], *requests[3];
        joins[1] = world_join(scene.world, 1, horon_engine_job(scene.world->ranks[1].engine));
        for (int turns = 0; turns < 20; turns++)
            for (int rank = 0; rank < 2; rank++)
                horon_engine_progress(scene.world->ranks[rank].engine);
        for (size_t i = 0; i < tensors; i++)
            requests[i] = submit_broadcast(0, names[i], 0, i == 0 ? COUNT : 100);
        expect_end(requests, tensors);
        assert_int_equal(reads, 0); /* nobody wants it */
        joins[0] = world_join(scene.world, 0, horon_engine_job(scene.world->ranks[0].engine));
        expect_end(joins, 2);
        for (int number = 1; number <= 3; number++)
            run(number);
        assert_int_equal(reads, 3);
        world_destroy(scene.world);
    }
}

/* Each of two ranks takes itself for root, and one of them has done its part when it has said so.
 * The other one waits for it: by its input, or, with 0 bytes lent, for room in its slots. */
static void test_broadcast_of_two_roots_is_a_mismatch(void **state)
{
    static const char *const settings[] = {"SHM_LEND_BYTES=1", "SHM_LEND_BYTES=0"};
    (void)state;
    for (int way = 0; way < 4; way++) {
        const int stays = way % 2;
        struct horon_request *requests[4];
        begin(2, HORON_BROADCAST, settings[way / 2]);
        for (int rank = 0; rank < 2; rank++)
            requests[rank] = submit_broadcast(rank, NULL, rank, rank == stays ? COUNT : 10);
        for (int rank = 0; rank < 2; rank++)
            requests[2 + rank] = submit_broadcast(rank, NULL, 0, COUNT);
        assert_true(world_turn_until(scene.world, requests, 4));
        for (int i = 0; i < 4; i++) {
            if (i != 1 - stays)
                assert_int_equal(requests[i]->status, HORON_ERR_MISMATCH);
            world_release(requests[i]);
        }
        world_destroy(scene.world);
    }
}

/* Likewise where chunks between hosts are the shorter ones: root of four chunks has two slots. */
static void test_broadcast_of_two_roots_of_a_host_among_several_is_a_mismatch(void **state)
{
    static const int hosts[] = {2, 1}, roots[] = {2, 1, 1};
    static const char *const settings[] = {"SHM_CHUNK_BYTES=64k", "NET_CHUNK_BYTES=4k",
                                           "SHM_SMALL_BYTES=1k", NULL};
    struct horon_request *requests[3];
    (void)state;
    scene = (struct scene){.verb = HORON_BROADCAST};
    scene.world = world_create(hosts, 2, settings, 1);
    for (int rank = 0; rank < 3; rank++)
        requests[rank] = submit_broadcast(rank, NULL, roots[rank], 8192);
    assert_true(world_turn_until(scene.world, requests, 3));
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        world_release(requests[rank]);
    }
    world_destroy(scene.world);
}

/* It has it in its slot, whatever a chunk is, and tells the other host at once. */
static void test_broadcast_of_what_is_small_waits_for_nobody_here(void **state)
{
    static const int hosts[] = {2, 1};
    static const char *const settings[] = {"SHM_CHUNK_BYTES=4096", NULL};
    struct horon_request *requests[3];
    (void)state;
    scene = (struct scene){.verb = HORON_BROADCAST};
    scene.world = world_create(hosts, 2, settings, 1);
    for (int rank = 0; rank < 3; rank += 2)
        requests[rank / 2] = submit_broadcast(rank, NULL, 0, 2500);
    expect_end(requests, 2); /* of the other host, too */
    requests[0] = submit_broadcast(1, NULL, 0, 2500);
    expect_end(requests, 1);
    world_destroy(scene.world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent_is_what_is_long_and_all_read_at_once),
        cmocka_unit_test(test_lent_goes_through_slots_where_the_system_refuses),
        cmocka_unit_test(test_lent_is_not_what_another_process_of_that_number_has),
        cmocka_unit_test(test_lent_is_nothing_where_the_output_takes_the_inputs_place),
        cmocka_unit_test(test_lent_input_that_another_rank_still_reads_moves),
        cmocka_unit_test(test_lent_input_of_a_rank_that_gave_up_is_not_taken),
        cmocka_unit_test(test_lent_broadcasts_beside_a_rank_that_has_joined_stay_in_step),
        cmocka_unit_test(test_broadcast_of_two_roots_is_a_mismatch),
        cmocka_unit_test(test_broadcast_of_two_roots_of_a_host_among_several_is_a_mismatch),
        cmocka_unit_test(test_broadcast_of_what_is_small_waits_for_nobody_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
