/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from rank to rank: in any order of tags and peers, beside collective operations and in
 * several teams; what the two ends say differently; ranks that leave or are lost; teams that are
 * removed with messages in flight. Links that are missing are made when the first message needs
 * them, on one host, too.
 */
#undef NDEBUG
#include "layouts.h"
#include "world/teams.h"

#define RANKS_MAX 24
enum { MESSAGES = 120, SUMS = 6, TAGS = 5, BYTES_MAX = 3000, LONG = 40000 };

/* Small rings and little eager room, so that everything waits now and then. */
static const char *const tight[] = {"NET_EAGER_BYTES=100", NULL};

static horon_descriptor_t message(horon_verb_t verb, int peer, uint64_t tag, void *data,
                                  uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_UINT8;
    desc.root = peer;
    desc.tag = tag;
    desc.src = data;
    desc.dst = data;
    desc.count = count;
    return desc;
}

static struct horon_request *send(struct world *world, int rank, int peer, uint64_t tag, void *data,
                                  uint64_t count)
{
    const horon_descriptor_t desc = message(HORON_SEND, peer, tag, data, count);
    return world_submit(world, rank, &desc);
}

static struct horon_request *recv(struct world *world, int rank, int peer, uint64_t tag, void *data,
                                  uint64_t count)
{
    const horon_descriptor_t desc = message(HORON_RECV, peer, tag, data, count);
    return world_submit(world, rank, &desc);
}

static void turn(struct world *world, int turns)
{
    world_make_wished_links(world);
    for (int i = 0; i < turns * world->size; i++) {
        struct world_rank *rank = &world->ranks[world_random(world) % (unsigned)world->size];
        if (!rank->dead)
            horon_engine_progress(rank->engine);
    }
}

static void expect_end(struct world *world, struct horon_request *request, horon_status_t status,
                       const char *words)
{
    if (!world_turn_until(world, &request, 1))
        fail_msg("it does not end; %d was expected", status);
    const char *text = request->error_text ? request->error_text : "";
    if (request->status != status || !strstr(text, words))
        fail_msg("status %d, not %d, or '%s' lacks '%s'", request->status, status, text, words);
    world_release(request);
}

static bool ended(const struct horon_request *request)
{
    return atomic_load(&request->state) == HORON_REQUEST_ENDED;
}

/* ---- Random programs ------------------------------------------------------------------------ */

struct planned {
    int from, to;
    uint64_t tag;
    size_t bytes;
    uint8_t *in, *out;
};

/* What one rank does: sends, receives and sums, in an order of its own. */
struct step {
    enum { SENDS, RECEIVES, SUMS_UP } kind;
    int which; /* message or sum */
};

struct program {
    struct planned messages[MESSAGES];
    struct step steps[RANKS_MAX][MESSAGES + SUMS];
    int step_count[RANKS_MAX], at[RANKS_MAX];
    struct horon_request *requests[2 * MESSAGES + RANKS_MAX * SUMS];
    size_t request_count;
    int32_t sums[RANKS_MAX][SUMS];
};

static const struct planned *of(const struct program *program, const struct step *step)
{
    return &program->messages[step->which];
}

static bool same_line(const struct program *program, const struct step *a, const struct step *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == SUMS_UP)
        return true;
    return of(program, a)->from == of(program, b)->from &&
           of(program, a)->to == of(program, b)->to && of(program, a)->tag == of(program, b)->tag;
}

/* Any order, but for what has one: sums, and messages of a peer and tag. */
static void shuffle(struct world *world, struct program *program, int rank)
{
    struct step *steps = program->steps[rank];
    const int count = program->step_count[rank];
    for (int i = count - 1; i > 0; i--) {
        const int other = (int)(world_random(world) % (unsigned)(i + 1));
        const struct step kept = steps[i];
        steps[i] = steps[other];
        steps[other] = kept;
    }
    for (int i = 0; i < count; i++)
        for (int k = i + 1; k < count; k++)
            if (same_line(program, &steps[i], &steps[k]) && steps[k].which < steps[i].which) {
                const int kept = steps[i].which;
                steps[i].which = steps[k].which;
                steps[k].which = kept;
            }
}

static void plan(struct world *world, struct program *program, int size)
{
    for (int i = 0; i < MESSAGES; i++) {
        struct planned *one = &program->messages[i];
        one->from = (int)(world_random(world) % (unsigned)size);
        one->to = (one->from + 1 + (int)(world_random(world) % (unsigned)(size - 1))) % size;
        one->tag = (world_random(world) % TAGS) << 60;
        one->bytes = world_random(world) % 4 ? world_random(world) % BYTES_MAX : 0;
        one->in = malloc(one->bytes + 1);
        one->out = calloc(1, one->bytes + 1);
        for (size_t k = 0; k < one->bytes; k++)
            one->in[k] = (uint8_t)(k * 7 + (size_t)i);
        program->steps[one->from][program->step_count[one->from]++] = (struct step){SENDS, i};
        program->steps[one->to][program->step_count[one->to]++] = (struct step){RECEIVES, i};
    }
    for (int rank = 0; rank < size; rank++) {
        for (int i = 0; i < SUMS; i++)
            program->steps[rank][program->step_count[rank]++] = (struct step){SUMS_UP, i};
        shuffle(world, program, rank);
    }
}

static horon_descriptor_t describe(struct program *program, int rank, const struct step *step)
{
    struct planned *one = &program->messages[step->which];
    if (step->kind == SENDS)
        return message(HORON_SEND, one->to, one->tag, one->in, one->bytes);
    if (step->kind == RECEIVES)
        return message(HORON_RECV, one->from, one->tag, one->out, one->bytes);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    program->sums[rank][step->which] = rank + 1;
    desc.dtype = HORON_INT32;
    desc.count = 1;
    desc.src = desc.dst = &program->sums[rank][step->which];
    desc.name = step->which % 2 ? "sum" : NULL;
    desc.flags = desc.name ? 0 : HORON_IN_ORDER;
    return desc;
}

/* A name is in flight once at a time: a rank that has two sums of it waits for the first. */
static bool may_begin(const struct program *program, const struct step *step,
                      struct horon_request *const *last_named)
{
    (void)program;
    return step->kind != SUMS_UP || step->which % 2 == 0 || !*last_named || ended(*last_named);
}

static void check(const struct program *program, int size)
{
    for (int i = 0; i < MESSAGES; i++)
        assert_memory_equal(program->messages[i].in, program->messages[i].out,
                            program->messages[i].bytes);
    for (int rank = 0; rank < size; rank++)
        for (int i = 0; i < SUMS; i++)
            assert_int_equal(program->sums[rank][i], size * (size + 1) / 2);
}

static void free_program(struct program *program)
{
    for (int i = 0; i < MESSAGES; i++) {
        free(program->messages[i].in);
        free(program->messages[i].out);
    }
    free(program);
}

/* @param team NULL: the job */
static void run_program(struct world *world, struct world_team *team)
{
    const int size = team ? team->size : world->size;
    struct program *program = calloc(1, sizeof *program);
    struct horon_request *last_named[RANKS_MAX] = {NULL};
    plan(world, program, size);
    int left = 0;
    for (int rank = 0; rank < size; rank++)
        left += program->step_count[rank];
    while (left > 0) {
        const int rank = (int)(world_random(world) % (unsigned)size);
        const struct step *step = &program->steps[rank][program->at[rank]];
        if (program->at[rank] == program->step_count[rank] ||
            !may_begin(program, step, &last_named[rank])) {
            turn(world, 1);
            continue;
        }
        const horon_descriptor_t desc = describe(program, rank, step);
        struct horon_request *request =
            team ? world_team_submit(team, rank, &desc) : world_submit(world, rank, &desc);
        program->requests[program->request_count++] = request;
        if (desc.name)
            last_named[rank] = request;
        program->at[rank]++;
        left--;
        if (world_random(world) % 3 == 0)
            turn(world, 1);
    }
    settle(world, program->requests, program->request_count);
    check(program, size);
    for (size_t i = 0; i < program->request_count; i++)
        world_release(program->requests[i]);
    free_program(program);
}

static void run_in_job(struct world *world)
{
    if (world->size > 1)
        run_program(world, NULL);
}

static void test_messages_of_random_programs_all_arrive(void **state)
{
    (void)state;
    for_all_worlds(run_in_job);
}

static void test_messages_of_several_teams_do_not_meet(void **state)
{
    static const int hosts[] = {3, 1, 2}, some[] = {5, 0, 1, 2}, others[] = {1, 2};
    struct world *world = world_create(hosts, 3, tight, 1);
    struct world_team *teams[] = {world_team_create(world, 1, some, 4),
                                  world_team_create(world, 2, others, 2)};
    uint8_t out[2] = {0, 0}, in[2] = {11, 22};
    struct horon_request *requests[4];
    (void)state;
    for (int member = 0; member < 4; member++)
        world_team_add(teams[0], member);
    for (int member = 0; member < 2; member++)
        world_team_add(teams[1], member);
    /* the first messages of the same two ranks, with the same tag: each team has its own */
    for (int i = 0; i < 2; i++) {
        horon_descriptor_t desc = message(HORON_SEND, i ? 1 : 3, 9, &in[i], 1);
        requests[i] = world_team_submit(teams[i], i ? 0 : 2, &desc);
        desc = message(HORON_RECV, i ? 0 : 2, 9, &out[i], 1);
        requests[2 + i] = world_team_submit(teams[i], i ? 1 : 3, &desc);
    }
    settle(world, requests, 4);
    assert_memory_equal(in, out, 2);
    for (int i = 0; i < 4; i++)
        world_release(requests[i]);
    run_program(world, teams[0]);
    run_program(world, teams[1]);
    for (int i = 0; i < 2; i++)
        world_team_destroy(teams[i]);
    world_destroy(world);
}

/* ---- Beside other operations ---------------------------------------------------------------- */

static void test_messages_and_operations_do_not_wait_for_each_other(void **state)
{
    static const int hosts[] = {2, 1};
    struct world *world = world_create(hosts, 2, NULL, 3);
    uint8_t early = 0, late = 0, byte = 5;
    float sums[3] = {1, 1, 1};
    struct horon_request *waits = recv(world, 0, 1, 1, &late, 1), *ordered[3];
    (void)state;
    for (int rank = 0; rank < 2; rank++) { /* one rank is missing */
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_FLOAT32;
        desc.count = 1;
        desc.src = desc.dst = &sums[rank];
        ordered[rank] = world_submit(world, rank, &desc);
    }
    expect_end(world, send(world, 0, 2, 7, &byte, 1), HORON_OK, "");
    expect_end(world, recv(world, 2, 0, 7, &early, 1), HORON_OK, "");
    assert_int_equal(early, 5);
    assert_false(ended(waits));
    assert_false(ended(ordered[0]));
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    desc.src = desc.dst = &sums[2];
    ordered[2] = world_submit(world, 2, &desc);
    settle(world, ordered, 3);
    assert_false(ended(waits));
    assert_int_equal(horon_engine_awaited(world->ranks[0].engine, waits), 1);
    char why[256];
    horon_engine_explain(world->ranks[0].engine, waits, why, sizeof why);
    assert_string_equal(why, "waiting for rank 1 (host-0) to send it");
    expect_end(world, send(world, 1, 0, 1, &byte, 1), HORON_OK, "");
    expect_end(world, waits, HORON_OK, "");
    for (int rank = 0; rank < 3; rank++)
        world_release(ordered[rank]);
    world_destroy(world);
}

static void test_messages_that_are_long_wait_for_their_receiver(void **state)
{
    static const int hosts[] = {1, 1};
    struct world *world = world_create(hosts, 2, tight, 3);
    uint8_t *in = malloc(LONG), *out = calloc(1, LONG);
    char why[256];
    (void)state;
    memset(in, 9, LONG);
    struct horon_request *sent = send(world, 0, 1, 1, in, LONG);
    turn(world, 50);
    assert_false(ended(sent));
    horon_engine_explain(world->ranks[0].engine, sent, why, sizeof why);
    assert_string_equal(why,
                        "waiting for rank 1 (host-1) to receive it; 100 of 40000 bytes have gone");
    expect_end(world, recv(world, 1, 0, 1, out, LONG), HORON_OK, "");
    expect_end(world, sent, HORON_OK, "");
    assert_memory_equal(in, out, LONG);
    free(in);
    free(out);
    world_destroy(world);
}

/* ---- What two ranks say differently --------------------------------------------------------- */

/* @param first  the receiver begins */
static void differ(bool first, uint64_t sent, uint64_t received, horon_dtype_t dtype,
                   const char *words)
{
    static const int hosts[] = {2, 1};
    struct world *world = world_create(hosts, 2, tight, sent + received);
    uint8_t *data = calloc(4, LONG), *room = calloc(8, LONG);
    struct horon_request *to = NULL, *from;
    const bool is_long = sent > 100;
    for (int i = 0; i < 3; i++) { /* again and again: nothing is left of the one before */
        horon_descriptor_t desc = message(HORON_RECV, 0, 3, room, received);
        desc.dtype = dtype;
        if (first)
            to = world_submit(world, 2, &desc);
        turn(world, 20);
        from = send(world, 0, 2, 3, data, sent);
        turn(world, 20);
        if (!first)
            to = world_submit(world, 2, &desc);
        expect_end(world, to, HORON_ERR_MISMATCH, words);
        /* a short one has gone, and nobody can tell its sender any more */
        expect_end(world, from, is_long ? HORON_ERR_MISMATCH : HORON_OK, is_long ? words : "");
    }
    memset(data, 4, 4);
    expect_end(world, send(world, 0, 2, 3, data, 4), HORON_OK, "");
    expect_end(world, recv(world, 2, 0, 3, room, 4), HORON_OK, "");
    assert_int_equal(room[3], 4);
    for (int rank = 0; rank < 3; rank++)
        assert_null(horon_engine_failure(world->ranks[rank].engine));
    free(data);
    free(room);
    world_destroy(world);
}

static void test_messages_that_differ_fail_both_ends_alone(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        differ(first, 10, 20, HORON_UINT8,
               "rank 0 (host-0) sends 10 uint8 with tag 3, and rank 2 (host-1) receives 20 uint8");
        differ(first, 10, 10, HORON_INT8, "receives 10 int8");
        differ(first, 0, 1, HORON_UINT8, "sends 0 uint8");
        differ(first, 1, 0, HORON_UINT8, "receives 0 uint8");
        differ(first, LONG, 5, HORON_UINT8, "sends 40000 uint8");
        differ(first, 5, LONG, HORON_UINT8, "receives 40000 uint8");
        differ(first, LONG, LONG / 4, HORON_FLOAT32, "receives 10000 float32");
    }
}

/* ---- Ranks and teams that are no more ------------------------------------------------------- */

static void leave(const int *hosts, int host_count, int leaver, int peer, int third)
{
    struct world *world = world_create(hosts, host_count, tight, 11);
    uint8_t byte = 7, got = 0, *data = calloc(1, LONG);
    struct horon_request *others, *sent, *waits, *unfinished;
    expect_end(world, send(world, leaver, peer, 1, &byte, 1), HORON_OK, "");
    waits = recv(world, peer, leaver, 2, data, 1);
    sent = send(world, peer, leaver, 3, data, LONG);
    unfinished = recv(world, peer, leaver, 4, data, LONG);
    others = recv(world, peer, third, 1, &byte, 1);
    struct horon_request *cut = send(world, leaver, peer, 4, data, LONG);
    horon_engine_progress(world->ranks[leaver].engine);
    horon_engine_leave(world->ranks[leaver].engine);
    while (!horon_engine_flushed(world->ranks[leaver].engine))
        turn(world, 1);
    world->ranks[leaver].dead = true; /* it gets no turns, as a context that is destroyed */
    expect_end(world, cut, HORON_ERR_CLOSED, "");
    char gone[64];
    snprintf(gone, sizeof gone, "rank %d (", leaver);
    expect_end(world, waits, HORON_ERR_CLOSED, gone);
    expect_end(world, sent, HORON_ERR_CLOSED, "has shut down its context and receives nothing");
    expect_end(world, unfinished, HORON_ERR_CLOSED, "has shut down its context and sends nothing");
    expect_end(world, send(world, peer, leaver, 1, data, 1), HORON_ERR_CLOSED, gone);
    /* what it had sent before is there */
    expect_end(world, recv(world, peer, leaver, 1, &got, 1), HORON_OK, "");
    assert_int_equal(got, 7);
    expect_end(world, recv(world, peer, leaver, 1, &got, 1), HORON_ERR_CLOSED, gone);
    /* others go on */
    expect_end(world, send(world, third, peer, 1, &got, 1), HORON_OK, "");
    expect_end(world, others, HORON_OK, "");
    assert_null(horon_engine_failure(world->ranks[peer].engine));
    free(data);
    world_destroy(world);
}

static void test_messages_with_a_rank_that_leaves_fail_and_no_others(void **state)
{
    static const int one[] = {4}, each[] = {1, 1, 1}, mixed[] = {2, 2};
    (void)state;
    leave(one, 1, 0, 2, 1);
    leave(one, 1, 3, 2, 1); /* a link that was made later */
    leave(each, 3, 1, 2, 0);
    leave(mixed, 2, 0, 3, 2); /* likewise */
    leave(mixed, 2, 1, 3, 0);
}

/* The job fails on rank 1, for rank 3, which has left. Rank 1 stays. */
static void stop(const int *hosts, int host_count, bool linked)
{
    static uint8_t data[LONG], got;
    struct world *world = world_create(hosts, host_count, tight, 11);
    horon_descriptor_t sum = message(HORON_ALLREDUCE, 0, 0, data, 1);
    sum.name = "x";
    data[0] = 7;
    expect_end(world, send(world, 3, 2, 1, data, 1), HORON_OK, "");
    if (linked)
        expect_end(world, send(world, 1, 2, 1, data, 1), HORON_OK, "");
    horon_engine_leave(world->ranks[3].engine);
    while (!horon_engine_flushed(world->ranks[3].engine))
        turn(world, 1);
    world->ranks[3].dead = true;
    expect_end(world, world_submit(world, 1, &sum), HORON_ERR_CLOSED, "rank 3 (");
    expect_end(world, recv(world, 2, 1, 2, data, LONG), HORON_ERR_CLOSED,
               "sends nothing more, since rank 3 (");
    expect_end(world, send(world, 2, 1, 2, data, LONG), HORON_ERR_CLOSED,
               "receives nothing more, since rank 3 (");
    expect_end(world, recv(world, 2, 3, 1, &got, 1), HORON_OK, ""); /* what was sent before */
    assert_int_equal(got, 7);
    assert_null(horon_engine_failure(world->ranks[2].engine));
    world_destroy(world);
}

static void test_messages_with_a_rank_that_stops_for_one_that_left_end(void **state)
{
    static const int one[] = {4}, each[] = {1, 1, 1, 1}, mixed[] = {2, 2};
    (void)state;
    for (int linked = 0; linked < 2; linked++) {
        stop(one, 1, linked);
        stop(each, 4, linked);
        stop(mixed, 2, linked);
    }
}

/* What it has said on its link is heard before what its line in shared memory says. */
static void test_messages_that_a_rank_refuses_as_it_leaves_say_why(void **state)
{
    static const int host[] = {2};
    struct world *world = world_create(host, 1, tight, 11);
    uint8_t *data = calloc(1, LONG);
    struct horon_request *sent = send(world, 1, 0, 3, data, LONG), *received;
    (void)state;
    turn(world, 20);
    received = recv(world, 0, 1, 3, data, 7);
    horon_engine_leave(world->ranks[0].engine);
    for (int i = 0; i < 20; i++)
        horon_engine_progress(world->ranks[1].engine);
    expect_end(world, received, HORON_ERR_MISMATCH, "sends 40000 uint8");
    expect_end(world, sent, HORON_ERR_MISMATCH, "rank 0 (host-0) receives 7 uint8");
    free(data);
    world_destroy(world);
}

static void test_messages_with_a_lost_rank_fail_with_its_name(void **state)
{
    static const int hosts[] = {3, 1};
    (void)state;
    for (int lost = 1; lost < 4; lost++) {
        struct world *world = world_create(hosts, 2, tight, (uint64_t)lost);
        uint8_t *data = calloc(1, LONG);
        const int peer = lost == 2 ? 1 : 2;
        struct horon_request *requests[] = {recv(world, peer, lost, 1, data, LONG),
                                            send(world, peer, lost, 2, data, LONG),
                                            send(world, lost, peer, 1, data, LONG)};
        for (int i = 0; i < 4; i++)
            turn(world, 1);
        world_kill(world, lost);
        char gone[64];
        snprintf(gone, sizeof gone, "rank %d (", lost);
        for (int i = 0; i < 2; i++)
            expect_end(world, requests[i], HORON_ERR_PEER_LOST, gone);
        world_release(requests[2]);
        world_destroy(world); /* the lost rank's engine is still there until now */
        free(data);
    }
}

static void test_messages_of_a_removed_team_end(void **state)
{
    static const int hosts[] = {3, 1}, some[] = {1, 2, 3};
    struct world *world = world_create(hosts, 2, tight, 5);
    struct world_team *team = world_team_create(world, 1, some, 3);
    uint8_t *data = calloc(1, LONG), byte = 3;
    (void)state;
    for (int member = 0; member < 3; member++)
        world_team_add(team, member);
    horon_descriptor_t out = message(HORON_SEND, 1, 1, data, LONG);
    horon_descriptor_t in = message(HORON_RECV, 2, 1, data, LONG);
    struct horon_request *requests[] = {world_team_submit(team, 0, &out),
                                        world_team_submit(team, 1, &in),
                                        world_team_submit(team, 2, &out)};
    struct horon_request *of_job = recv(world, 2, 1, 1, &byte, 1);
    for (int i = 0; i < 3; i++)
        turn(world, 1);
    for (int member = 0; member < 3; member++)
        world_team_remove(team, member);
    for (int i = 0; i < 3; i++)
        expect_end(world, requests[i], HORON_ERR_CLOSED, "its process set was removed");
    expect_end(world, send(world, 1, 2, 1, &byte, 1), HORON_OK, "");
    expect_end(world, of_job, HORON_OK, "");
    world_team_destroy(team);
    free(data);
    world_destroy(world);
}

/* What was given back is written no more, although the sender goes on. */
static void test_messages_of_a_removed_team_leave_their_memory_alone(void **state)
{
    static const int hosts[] = {1, 1}, both[] = {0, 1};
    struct world *world = world_create(hosts, 2, tight, 5);
    struct world_team *team = world_team_create(world, 1, both, 2);
    uint8_t *in = calloc(1, LONG), *out = calloc(1, LONG);
    (void)state;
    for (int member = 0; member < 2; member++)
        world_team_add(team, member);
    horon_descriptor_t desc = message(HORON_SEND, 1, 1, in, LONG);
    struct horon_request *sent = world_team_submit(team, 0, &desc);
    desc = message(HORON_RECV, 0, 1, out, LONG);
    struct horon_request *received = world_team_submit(team, 1, &desc);
    memset(in, 1, LONG);
    while (out[LONG / 4] == 0)
        turn(world, 1);
    assert_int_equal(out[LONG - 1], 0); /* the ring holds a tenth */
    world_team_remove(team, 1);
    assert_true(ended(received));
    memset(out, 7, LONG);
    turn(world, 200);
    for (int i = 0; i < LONG; i++)
        assert_int_equal(out[i], 7);
    world_team_remove(team, 0);
    world_release(sent);
    world_release(received);
    world_team_destroy(team);
    free(in);
    free(out);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_of_random_programs_all_arrive),
        cmocka_unit_test(test_messages_of_several_teams_do_not_meet),
        cmocka_unit_test(test_messages_and_operations_do_not_wait_for_each_other),
        cmocka_unit_test(test_messages_that_are_long_wait_for_their_receiver),
        cmocka_unit_test(test_messages_that_differ_fail_both_ends_alone),
        cmocka_unit_test(test_messages_with_a_rank_that_leaves_fail_and_no_others),
        cmocka_unit_test(test_messages_with_a_rank_that_stops_for_one_that_left_end),
        cmocka_unit_test(test_messages_that_a_rank_refuses_as_it_leaves_say_why),
        cmocka_unit_test(test_messages_with_a_lost_rank_fail_with_its_name),
        cmocka_unit_test(test_messages_of_a_removed_team_end),
        cmocka_unit_test(test_messages_of_a_removed_team_leave_their_memory_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
