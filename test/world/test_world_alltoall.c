/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-to-all, gather and scatter in worlds of 1 to 17 ranks, spread over hosts as a seed has it,
 * against a plain model: a table of how many rows each rank gives to each. Outputs lie between
 * guards.
 */
#undef NDEBUG
#include "world/world.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 17, GUARD_BYTES = 64, GUARD = 0xa5 };

static const char *const small_slots[] = {"SHM_SMALL_BYTES=64", "SHM_CHUNK_BYTES=4096",
                                          "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100", NULL};
static const char *const no_slots[] = {"SHM_SMALL_BYTES=0", "SHM_CHUNK_BYTES=8k",
                                       "NET_EAGER_BYTES=1", "SHM_LEND_BYTES=1", NULL};
static const char *const *const settings[] = {NULL, small_slots, no_slots};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

static const horon_verb_t verbs[] = {HORON_ALLTOALL, HORON_GATHER, HORON_SCATTER};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

/* How ranks say where the output goes. */
enum output { GIVEN, OWNED, ASKED, IN_PLACE, OUTPUTS };

struct plan {
    horon_verb_t verb;
    horon_dtype_t dtype;
    uint64_t row; /* elements */
    int root, size;
    bool even;                           /* no splits are given */
    uint64_t rows[RANKS_MAX][RANKS_MAX]; /* of each rank for each */
};

struct use {
    uint8_t *in, *copy, *out; /* in and out with guards */
    size_t in_bytes, out_bytes;
    uint64_t splits[RANKS_MAX], learned[RANKS_MAX];
    struct horon_request *request;
    enum output output;
    void *asked;
};

static bool gives(const struct plan *plan, int rank)
{
    return plan->verb != HORON_SCATTER || rank == plan->root;
}

static bool gets(const struct plan *plan, int rank)
{
    return plan->verb != HORON_GATHER || rank == plan->root;
}

static uint64_t given(const struct plan *plan, int rank)
{
    uint64_t rows = 0;
    for (int to = 0; to < plan->size; to++)
        rows += plan->rows[rank][to];
    return rows;
}

static size_t row_bytes(const struct plan *plan)
{
    return (size_t)plan->row * horon_dtype_bytes(plan->dtype);
}

static void draw(struct world *world, struct plan *plan, uint64_t most)
{
    const uint64_t all = most ? world_random(world) % (most + 1) : 0;
    for (int from = 0; from < plan->size; from++) {
        for (int to = 0; to < plan->size; to++) {
            const bool some = world_random(world) % 4 && gives(plan, from) && gets(plan, to);
            plan->rows[from][to] = some && most ? world_random(world) % (most + 1) : 0;
            if (plan->even && plan->verb != HORON_GATHER)
                plan->rows[from][to] = gives(plan, from) ? all : 0;
        }
    }
    if (plan->even && plan->verb == HORON_SCATTER) /* the first ranks get one more */
        for (int to = 0; to < plan->size / 2; to++)
            plan->rows[plan->root][to]++;
}

static void *guarded(size_t bytes)
{
    uint8_t *memory = malloc(bytes + 2 * GUARD_BYTES);
    assert_non_null(memory);
    memset(memory, GUARD, bytes + 2 * GUARD_BYTES);
    return memory + GUARD_BYTES;
}

static void free_guarded(uint8_t *data, size_t bytes)
{
    uint8_t *memory = data - GUARD_BYTES;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(memory[i], GUARD);
        assert_int_equal(data[bytes + i], GUARD);
    }
    free(memory);
}

static void *ask(void *arg, uint64_t rows, uint64_t bytes)
{
    struct use *use = arg;
    assert_int_equal(bytes, use->out_bytes);
    (void)rows;
    use->asked = use->out;
    return use->asked;
}

/* What @p rank gets, as the model has it. */
static void expect(const struct plan *plan, const struct use *uses, int rank, uint8_t *out)
{
    const size_t row = row_bytes(plan);
    for (int from = 0; from < plan->size; from++) {
        size_t at = 0;
        for (int to = 0; to < rank; to++)
            at += (size_t)plan->rows[from][to] * row;
        const size_t bytes = (size_t)plan->rows[from][rank] * row;
        memcpy(out, uses[from].copy + at, bytes);
        out += bytes;
    }
}

static void make(struct world *world, const struct plan *plan, struct use *use, int rank)
{
    const size_t row = row_bytes(plan);
    use->in_bytes = (size_t)given(plan, rank) * row;
    use->out_bytes = 0;
    for (int from = 0; from < plan->size; from++)
        use->out_bytes += (size_t)plan->rows[from][rank] * row;
    const size_t most = use->in_bytes > use->out_bytes ? use->in_bytes : use->out_bytes;
    if (use->output == IN_PLACE)
        use->in_bytes = use->out_bytes = most;
    use->in = guarded(use->in_bytes);
    use->copy = malloc(use->in_bytes + 1);
    use->out = guarded(use->out_bytes);
    for (size_t i = 0; i < use->in_bytes; i++)
        use->in[i] = (uint8_t)world_random(world);
    memcpy(use->copy, use->in, use->in_bytes);
    memcpy(use->splits, plan->rows[rank], sizeof use->splits);
}

static horon_descriptor_t describe(const struct plan *plan, struct use *use, int rank,
                                   uint64_t shape[2], uint32_t flags)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    shape[0] = gives(plan, rank) ? given(plan, rank) : 77; /* which nobody reads */
    shape[1] = plan->row;
    desc.verb = plan->verb;
    desc.name = "exchange";
    desc.flags = flags;
    desc.dtype = plan->dtype;
    desc.root = plan->root;
    desc.shape = shape;
    desc.ndim = 2;
    desc.src = gives(plan, rank) ? use->in : NULL;
    desc.splits = plan->even || !gives(plan, rank) ? NULL : use->splits;
    if (use->output == GIVEN)
        desc.dst = use->out;
    else if (use->output == IN_PLACE)
        desc.dst = use->in;
    if (use->output == GIVEN || use->output == IN_PLACE)
        desc.dst_count = use->out_bytes / horon_dtype_bytes(plan->dtype);
    if (desc.dst_count == 0)
        desc.dst = NULL; /* one without room is refused */
    desc.alloc = use->output == ASKED ? ask : NULL;
    desc.alloc_arg = use;
    return desc;
}

static void check_rank(const struct plan *plan, struct use *uses, int rank)
{
    struct use *use = &uses[rank];
    size_t bytes = 0;
    for (int from = 0; from < plan->size; from++) {
        assert_int_equal(use->request->output_rows[from], plan->rows[from][rank]);
        bytes += (size_t)plan->rows[from][rank] * row_bytes(plan);
    }
    uint8_t *expected = malloc(bytes + 1);
    expect(plan, uses, rank, expected);
    assert_int_equal(use->request->output_count * horon_dtype_bytes(plan->dtype), bytes);
    if (bytes)
        assert_memory_equal(use->request->output, expected, bytes);
    if (bytes && use->output == GIVEN)
        assert_ptr_equal(use->request->output, use->out);
    if (use->output != IN_PLACE)
        assert_memory_equal(use->in, use->copy, use->in_bytes);
    free(expected);
}

static void settle(struct world *world, struct use *uses)
{
    struct horon_request *requests[RANKS_MAX];
    for (int i = 0; i < world->size; i++)
        requests[i] = uses[i].request;
    if (!world_turn_until(world, requests, (size_t)world->size))
        fail_msg("hung: seed %llu", (unsigned long long)world->seed);
    for (int i = 0; i < world->size; i++)
        if (requests[i]->status != HORON_OK)
            fail_msg("%s", requests[i]->error_text);
}

static void check(struct world *world, struct plan *plan, uint64_t most, uint32_t flags)
{
    struct use *uses = calloc((size_t)world->size, sizeof *uses);
    plan->size = world->size;
    plan->root = (int)(world_random(world) % (uint64_t)world->size);
    draw(world, plan, most);
    for (int rank = 0; rank < world->size; rank++) {
        uint64_t shape[2];
        uses[rank].output = (enum output)(world_random(world) % OUTPUTS);
        if (plan->verb == HORON_ALLTOALL && uses[rank].output == IN_PLACE)
            uses[rank].output = GIVEN;
        make(world, plan, &uses[rank], rank);
        const horon_descriptor_t desc = describe(plan, &uses[rank], rank, shape, flags);
        uses[rank].request = world_submit(world, rank, &desc);
        assert_non_null(uses[rank].request);
    }
    settle(world, uses);
    for (int rank = 0; rank < world->size; rank++)
        check_rank(plan, uses, rank);
    for (int rank = 0; rank < world->size; rank++) {
        world_release(uses[rank].request);
        free_guarded(uses[rank].in, uses[rank].in_bytes);
        free_guarded(uses[rank].out, uses[rank].out_bytes);
        free(uses[rank].copy);
    }
    free(uses);
}

/* @return how many hosts */
static int draw_hosts(uint64_t seed, int size, int hosts[RANKS_MAX])
{
    int count = 0;
    uint64_t drawn = seed * 0x9e3779b97f4a7c15u;
    for (int left = size; left > 0; count++) {
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        hosts[count] = seed % 3 == 0 ? left : 1 + (int)((drawn >> 33) % (uint64_t)left);
        left -= hosts[count];
    }
    return count;
}

static struct world *make_world(uint64_t seed, int size)
{
    int hosts[RANKS_MAX];
    const int count = draw_hosts(seed, size, hosts);
    return world_create(hosts, count, settings[seed % SETTINGS], seed);
}

static void exchanges(struct world *world)
{
    static const uint64_t most[] = {0, 1, 3, 29, 1021};
    static const uint64_t rows[] = {1, 3, 0, 7};
    for (size_t m = 0; m < sizeof most / sizeof most[0]; m++) {
        for (size_t v = 0; v < VERBS; v++) {
            struct plan plan = {.verb = verbs[v],
                                .dtype = (horon_dtype_t)(world_random(world) % HORON_DTYPE_COUNT),
                                .row = rows[world_random(world) % 4],
                                .even = world_random(world) % 2};
            check(world, &plan, most[m], m % 2 ? HORON_IN_ORDER : 0);
        }
    }
}

static void test_exchanges_in_any_world_give_what_the_model_says(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        for (uint64_t layout = 0; layout < 6; layout++) {
            struct world *world = make_world((uint64_t)size * 7 + layout, size);
            exchanges(world);
            world_destroy(world);
        }
    }
}

static void test_exchanges_move_every_type(void **state)
{
    (void)state;
    struct world *world = world_create((const int[]){2, 1}, 2, small_slots, 5);
    for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        for (size_t v = 0; v < VERBS; v++) {
            struct plan plan = {.verb = verbs[v], .dtype = (horon_dtype_t)dtype, .row = 2};
            check(world, &plan, 700, HORON_IN_ORDER);
        }
    }
    world_destroy(world);
}

/* One rank has too little room, or none at all; the others get theirs. */
static void refuse_one(struct world *world, horon_verb_t verb, uint64_t most)
{
    struct plan plan = {.verb = verb, .dtype = HORON_INT32, .row = 3, .size = world->size};
    struct use *uses = calloc((size_t)world->size, sizeof *uses);
    const int poor = world->size - 1;
    struct horon_request *requests[RANKS_MAX];
    plan.root = poor;
    for (int from = 0; from < plan.size; from++)
        for (int to = 0; to < plan.size; to++)
            plan.rows[from][to] = gives(&plan, from) && gets(&plan, to) ? most : 0;
    for (int rank = 0; rank < plan.size; rank++) {
        uint64_t shape[2];
        make(world, &plan, &uses[rank], rank);
        horon_descriptor_t desc = describe(&plan, &uses[rank], rank, shape, 0);
        desc.dst_count -= rank == poor;
        requests[rank] = uses[rank].request = world_submit(world, rank, &desc);
    }
    assert_true(world_turn_until(world, requests, (size_t)plan.size));
    for (int rank = 0; rank < plan.size; rank++) {
        assert_int_equal(requests[rank]->status, rank == poor ? HORON_ERR_MEMORY : HORON_OK);
        if (rank != poor)
            check_rank(&plan, uses, rank);
        for (size_t i = 0; rank == poor && i < uses[rank].out_bytes; i++)
            assert_int_equal(uses[rank].out[i], GUARD);
    }
    for (int rank = 0; rank < plan.size; rank++) {
        world_release(requests[rank]);
        free_guarded(uses[rank].in, uses[rank].in_bytes);
        free_guarded(uses[rank].out, uses[rank].out_bytes);
        free(uses[rank].copy);
    }
    free(uses);
    struct plan next = {.verb = HORON_ALLTOALL, .dtype = HORON_INT32, .row = 3};
    check(world, &next, most, 0); /* the job goes on */
}

static void test_exchanges_never_write_beyond_an_output(void **state)
{
    static const struct {
        int hosts[3], count;
    } layouts[] = {{{1}, 1}, {{3}, 1}, {{1, 1}, 2}, {{2, 1, 2}, 3}};
    (void)state;
    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
        struct world *world = world_create(layouts[l].hosts, layouts[l].count, settings[l % 3], l);
        for (size_t v = 0; v < VERBS; v++) {
            refuse_one(world, verbs[v], 2);
            refuse_one(world, verbs[v], 5000);
        }
        world_destroy(world);
    }
}

static void refuse(struct world *world, const horon_descriptor_t *desc, const char *why)
{
    struct world_rank *rank = &world->ranks[0];
    struct horon_engine *engine = rank->engine;
    struct horon_request *request = NULL;
    struct horon_error error = {0};
    assert_int_equal(horon_request_create(&rank->pool, desc, horon_engine_job(engine),
                                          horon_engine_names(engine), &request, &error),
                     HORON_ERR_INVALID);
    assert_string_equal(error.text, why);
}

static void test_exchanges_refuse_what_cannot_be(void **state)
{
    (void)state;
    struct world *world = world_create((const int[]){3}, 1, NULL, 1);
    int32_t in[12] = {0}, out[12];
    uint64_t splits[3] = {1, 2, 2};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLTOALL;
    desc.name = "no";
    desc.dtype = HORON_INT32;
    desc.src = in;
    desc.dst = out;
    desc.count = 4;
    desc.dst_count = 12;
    refuse(world, &desc, "4 rows cannot be split evenly among 3 ranks: give splits");
    desc.splits = splits;
    refuse(world, &desc, "the splits add up to 5 rows, and src has 4");
    splits[0] = UINT64_MAX;
    refuse(world, &desc, "the splits add up to more rows than 64 bits count");
    desc.splits = NULL;
    desc.count = 6;
    desc.dst = in;
    refuse(world, &desc, "src and dst are equal, and alltoall has no form in place");
    desc.dst = in + 2;
    desc.dst_count = 10;
    refuse(world, &desc, "src and dst overlap; they must be disjoint");
    desc.verb = HORON_SCATTER;
    refuse(world, &desc,
           "src and dst overlap; they must be equal or disjoint, or dst where this rank's rows lie "
           "in src");
    desc.root = 3;
    refuse(world, &desc, "root 3 is no rank of 0..2");
    world_destroy(world);
}

/* Ranks of a host each, which give each other so much that it is on its way for long. */
enum { LONG = 300000 };

static void begin_long(struct world *world, struct horon_request **requests, int32_t **in,
                       int32_t **out)
{
    const size_t count = (size_t)world->size * LONG;
    for (int rank = 0; rank < world->size; rank++) {
        in[rank] = calloc(count, sizeof *in[rank]);
        out[rank] = malloc(count * sizeof *out[rank]);
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLTOALL;
        desc.name = "long";
        desc.dtype = HORON_INT32;
        desc.src = in[rank];
        desc.dst = out[rank];
        desc.count = desc.dst_count = count;
        requests[rank] = world_submit(world, rank, &desc);
    }
}

static void turn(struct world *world, int times)
{
    for (int i = 0; i < times; i++)
        for (int rank = 0; rank < world->size; rank++)
            if (!world->ranks[rank].dead)
                horon_engine_progress(world->ranks[rank].engine);
}

/* Links write into outputs themselves: not any more once the request has ended. */
static void fail_long(int hosts)
{
    struct world *world = world_create((const int[]){1, 1, 1}, hosts, small_slots, 3);
    struct horon_request *requests[3];
    int32_t *in[3], *out[3];
    begin_long(world, requests, in, out);
    memset(out[0], GUARD, 2 * LONG * sizeof *out[0]);
    int turns = 0;
    do
        turn(world, 1);
    while (turns++ < 1000 && out[0][LONG + LONG / 2] == out[0][2 * LONG - 1]);
    assert_int_not_equal(out[0][LONG], out[0][2 * LONG - 1]); /* it is coming in */
    assert_int_equal(atomic_load(&requests[0]->state), HORON_REQUEST_FLYING);
    world_fail(world->ranks[0].engine, HORON_ERR_PEER_LOST, "a test says so");
    assert_true(world_turn_until(world, requests, (size_t)hosts));
    for (int rank = 0; rank < hosts; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_PEER_LOST);
        world_release(requests[rank]);
        free(in[rank]); /* for a sanitizer */
    }
    memset(out[0], 7, 2 * LONG * sizeof *out[0]);
    turn(world, 1000);
    for (int i = 0; i < 2 * LONG; i++)
        assert_int_equal(out[0][i], 0x07070707);
    for (int rank = 0; rank < hosts; rank++)
        free(out[rank]);
    world_destroy(world);
}

static void test_exchanges_that_fail_leave_memory_alone(void **state)
{
    (void)state;
    fail_long(2); /* whole */
    fail_long(3); /* in rounds */
}

static void test_exchanges_fail_with_a_rank_that_dies(void **state)
{
    (void)state;
    for (int dead = 0; dead < 3; dead++) {
        struct world *world = world_create((const int[]){2, 1}, 2, small_slots, (uint64_t)dead);
        struct horon_request *requests[3] = {NULL};
        int32_t in[3] = {1, 2, 3}, out[3][3];
        for (int rank = 0; rank < 3; rank++) {
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            desc.verb = HORON_ALLTOALL;
            desc.flags = HORON_IN_ORDER;
            desc.dtype = HORON_INT32;
            desc.src = in;
            desc.dst = out[rank];
            desc.count = desc.dst_count = 3;
            if (rank != dead)
                requests[rank] = world_submit(world, rank, &desc);
        }
        turn(world, 100);
        world->ranks[dead].dead = true;
        for (int rank = 0; rank < 3; rank++)
            if (rank != dead)
                world_fail(world->ranks[rank].engine, HORON_ERR_PEER_LOST, "a test says so");
        assert_true(world_turn_until(world, requests, 3));
        for (int rank = 0; rank < 3; rank++) {
            if (rank == dead)
                continue;
            assert_int_equal(requests[rank]->status, HORON_ERR_PEER_LOST);
            world_release(requests[rank]);
        }
        world_destroy(world);
    }
}

static horon_status_t connect_never(void *rank, int peer, struct horon_error *error)
{
    (void)rank;
    return horon_error_set(error, HORON_ERR_CONFIG, "rank %d does not listen", peer);
}

/* Ranks 0 and 3 have no link from the beginning. */
static void test_exchanges_without_a_way_fail_and_say_so(void **state)
{
    struct world *world = world_create_bare((const int[]){2, 2}, 2, NULL, 9);
    struct horon_request *requests[4];
    struct horon_error error = {0};
    int32_t in[4] = {0}, out[4][4];
    (void)state;
    world->connect = connect_never;
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    for (int rank = 0; rank < 4; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLTOALL;
        desc.name = "apart";
        desc.dtype = HORON_INT32;
        desc.src = in;
        desc.dst = out[rank];
        desc.count = desc.dst_count = 4;
        requests[rank] = world_submit(world, rank, &desc);
    }
    assert_true(world_turn_until(world, requests, 4));
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_CONFIG);
        assert_non_null(strstr(requests[rank]->error_text, "does not listen"));
        world_release(requests[rank]);
    }
    world_destroy(world);
}

/* Ranks 0 and 1 share a host; rank 0 gives ranks 1 and 2 a long run, and they give it one. */
static void test_exchanges_with_other_hosts_go_on_while_one_on_this_host_stands(void **state)
{
    struct world *world = world_create((const int[]){2, 1, 1}, 3, small_slots, 11);
    struct plan plan = {.verb = HORON_ALLTOALL, .dtype = HORON_INT32, .row = 1, .size = 4};
    struct use uses[4] = {0};
    (void)state;
    plan.rows[0][1] = plan.rows[1][0] = plan.rows[0][2] = plan.rows[2][0] = LONG;
    for (int rank = 0; rank < 4; rank++) {
        uint64_t shape[2];
        make(world, &plan, &uses[rank], rank);
        const horon_descriptor_t desc = describe(&plan, &uses[rank], rank, shape, HORON_IN_ORDER);
        uses[rank].request = world_submit(world, rank, &desc);
    }
    const int32_t *from_2 = (const int32_t *)(const void *)uses[0].out + LONG, before = *from_2;
    for (int i = 0; i < 1000 && *from_2 == before; i++)
        turn(world, 1);
    assert_int_not_equal(*from_2, before); /* all have said what they give */
    world->ranks[1].dead = true;
    turn(world, 10000);
    assert_int_equal(atomic_load(&uses[2].request->state), HORON_REQUEST_ENDED);
    assert_int_equal(atomic_load(&uses[0].request->state), HORON_REQUEST_FLYING);
    world->ranks[1].dead = false;
    settle(world, uses);
    for (int rank = 0; rank < 4; rank++)
        check_rank(&plan, uses, rank);
    for (int rank = 0; rank < 4; rank++) {
        world_release(uses[rank].request);
        free_guarded(uses[rank].in, uses[rank].in_bytes);
        free_guarded(uses[rank].out, uses[rank].out_bytes);
        free(uses[rank].copy);
    }
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchanges_in_any_world_give_what_the_model_says),
        cmocka_unit_test(test_exchanges_move_every_type),
        cmocka_unit_test(test_exchanges_never_write_beyond_an_output),
        cmocka_unit_test(test_exchanges_refuse_what_cannot_be),
        cmocka_unit_test(test_exchanges_that_fail_leave_memory_alone),
        cmocka_unit_test(test_exchanges_fail_with_a_rank_that_dies),
        cmocka_unit_test(test_exchanges_without_a_way_fail_and_say_so),
        cmocka_unit_test(test_exchanges_with_other_hosts_go_on_while_one_on_this_host_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
