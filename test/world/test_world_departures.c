/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How departures and aborts get around. Messages are counted in the trace of the log: a leaver ends
 * each of its links with one message, and what is passed on beyond that is at most one message a
 * rank, however many leave. Nothing is lost of what they say or of what was decided before, and
 * aborts reach everybody, also when a rank that others hang from in the tree is gone.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 24

static const struct {
    int hosts[RANKS_MAX], count, size;
} layouts[] = {
    {{5}, 1, 5},
    {{1, 1, 1}, 3, 3},
    {{3, 1, 2}, 3, 6},
    {{2, 2, 2, 2, 2}, 5, 10},
    {{8, 1, 8}, 3, 17},
    {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 24, 24},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

struct traffic {
    unsigned goodbyes, ends;
};

/* Control messages that a rank sent, by the events of its engine. */
static void count(const struct horon_engine *engine, struct traffic *traffic)
{
    struct horon_event_reader reader = {0};
    struct horon_event event;
    uint64_t missed = 0;
    while (horon_events_read(horon_engine_events(engine), &reader, &event, &missed)) {
        if (event.kind != HORON_EVENT_SENT)
            continue;
        traffic->goodbyes += event.verb == HORON_CONTROL_GOODBYE;
        traffic->ends += event.verb == HORON_CONTROL_END;
    }
    assert_int_equal(missed, 0);
}

static void turn(struct world *world, int turns)
{
    for (int i = 0; i < turns * world->size; i++) {
        struct world_rank *rank = &world->ranks[world_random(world) % (unsigned)world->size];
        if (!rank->dead)
            horon_engine_progress(rank->engine);
    }
}

/* In order. */
static struct horon_request *submit_one_broadcast(struct world *world, int rank, int root,
                                                  float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    desc.root = root;
    desc.src = desc.dst = &data[rank];
    return world_submit(world, rank, &desc);
}

/* @return the requests of all ranks that take part, in @p requests */
static void submit_broadcast(struct world *world, int root, int but, float *data,
                             struct horon_request **requests)
{
    for (int rank = 0; rank < world->size; rank++)
        requests[rank] = rank == but ? NULL : submit_one_broadcast(world, rank, root, data);
}

static void run_broadcast(struct world *world)
{
    float data[RANKS_MAX] = {0};
    struct horon_request *requests[RANKS_MAX];
    submit_broadcast(world, world->size - 1, -1, data, requests);
    assert_true(world_turn_until(world, requests, (size_t)world->size));
    for (int rank = 0; rank < world->size; rank++) {
        assert_int_equal(requests[rank]->status, HORON_OK);
        world_release(requests[rank]);
    }
}

static unsigned count_links(const struct world *world)
{
    unsigned links = 0;
    for (int rank = 0; rank < world->size; rank++)
        links += (unsigned)world->ranks[rank].engine->membership->peer_count;
    return links;
}

/* All at once, or one by one, each heard before the next; from either end. */
static void test_departures_of_a_whole_job_take_few_messages(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int way = 0; way < 4; way++) {
            struct world *world =
                world_create(layouts[layout].hosts, layouts[layout].count, NULL, layout + 1);
            const unsigned links = count_links(world);
            const int size = world->size;
            run_broadcast(world);
            for (int i = 0; i < size; i++) {
                horon_engine_leave(world->ranks[way & 1 ? i : size - 1 - i].engine);
                turn(world, way & 2 ? 20 : 0);
            }
            turn(world, 20);
            struct traffic traffic = {0};
            for (int i = 0; i < size; i++)
                count(world->ranks[i].engine, &traffic);
            assert_in_range(traffic.goodbyes, 0, (unsigned)size - 1);
            assert_in_range(traffic.ends, links / 2, way & 2 ? links / 2 : links);
            world_destroy(world);
        }
}

/* Rank @p gone leaves; then another one that has done less. @return that one */
static int leave_one_after_another(struct world *world, int gone, int late)
{
    float data[RANKS_MAX] = {0};
    struct horon_request *requests[RANKS_MAX];
    run_broadcast(world);
    submit_broadcast(world, gone, late, data, requests);
    assert_true(world_turn_until(world, &requests[gone], 1));
    horon_engine_leave(world->ranks[gone].engine);
    turn(world, 20);
    horon_engine_leave(world->ranks[late].engine);
    turn(world, 20);
    for (int rank = 0; rank < world->size; rank++)
        world_release(requests[rank]);
    return late;
}

static void test_departures_are_known_to_all_when_a_relay_has_left(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int gone = 0; gone < layouts[layout].size; gone++) {
            struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, NULL,
                                               (uint64_t)gone + 1);
            const int late = (gone + 1 + gone % (world->size - 1)) % world->size;
            leave_one_after_another(world, gone, late);
            for (int rank = 0; rank < world->size; rank++) {
                const struct horon_departures *known = &world->ranks[rank].engine->job->departures;
                if (rank == gone)
                    continue;
                assert_true(known->any);
                assert_int_equal(known->sequence[HORON_LANE_ORDERED], 1);
                assert_int_equal(known->culprit[HORON_LANE_ORDERED], late);
            }
            world_destroy(world);
        }
}

/* One is dead, and nobody has noticed; another fails the job. */
/* Rank 0 was told by another rank that 2 has left, as on a link that is made after that. */
static void test_departures_after_an_abort_blame_the_rank_that_left_first(void **state)
{
    (void)state;
    const int hosts[] = {1, 1, 1};
    struct world *world = world_create(hosts, 3, NULL, 1);
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_CLOSED, "rank 2 has left");
    horon_error_blame(&why, HORON_CAUSE_LEFT, 2, -1);
    horon_engine_leave(world->ranks[2].engine);
    horon_team_fail(world->ranks[0].engine->job, &why);
    horon_engine_leave(world->ranks[0].engine);
    turn(world, 200);
    const struct horon_departures *known = &world->ranks[1].engine->job->departures;
    assert_true(known->any);
    for (int i = 0; i < HORON_LEFT_COUNT; i++)
        assert_int_equal(known->culprit[i], 2);
    world_destroy(world);
}

static void test_departures_do_not_keep_an_abort_from_anybody(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int gone = 0; gone < layouts[layout].size; gone++)
            for (int dies = 0; dies < 2; dies++) {
                struct world *world = world_create(layouts[layout].hosts, layouts[layout].count,
                                                   NULL, (uint64_t)gone + 1);
                if (dies)
                    world->ranks[gone].dead = true;
                else
                    horon_engine_leave(world->ranks[gone].engine);
                turn(world, gone % 2 ? 20 : 0);
                world_fail(world->ranks[(gone + 1) % world->size].engine, HORON_ERR_SYSTEM, "why");
                turn(world, 40);
                for (int rank = 0; rank < world->size; rank++) {
                    const char *text = "";
                    if (rank == gone)
                        continue;
                    assert_int_equal(world_failure(world->ranks[rank].engine, &text),
                                     HORON_ERR_SYSTEM);
                    assert_string_equal(text, "why");
                }
                world_destroy(world);
            }
}

/* As a rank that fails when it has just joined: its links end, and the others may see that first.
 */
static void test_departures_without_a_goodbye_are_for_the_reason_that_was_posted(void **state)
{
    (void)state;
    const int hosts[] = {2};
    for (int gone = 0; gone < 2; gone++) {
        struct world *world = world_create(hosts, 1, NULL, 1);
        struct horon_engine *engine = world->ranks[gone].engine;
        struct horon_error why;
        const char *text = "";
        horon_error_set(&why, HORON_ERR_SYSTEM, "it could not create its context");
        horon_host_post_abort(engine->job->host, &why);
        horon_engine_close(engine);
        world->ranks[gone].dead = true;
        turn(world, 20);
        assert_int_equal(world_failure(world->ranks[1 - gone].engine, &text), HORON_ERR_SYSTEM);
        assert_string_equal(text, "it could not create its context");
        world_destroy(world);
    }
}

/* Rank 1 leaves when it has sent what it had to broadcast. Another one has not begun that, and
 * waits for a name that rank 1 never gives: it fails first, and stays, but carries nothing on to
 * ranks that wait for it. */
static void test_departures_end_what_waits_for_a_rank_that_has_failed_for_them(void **state)
{
    enum { LEAVER = 1 };
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int first = 0; first < layouts[layout].size; first += first == 0 ? 2 : 1) {
            float data[RANKS_MAX] = {0}, x = 0;
            struct horon_request *requests[RANKS_MAX];
            struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, NULL,
                                               (uint64_t)first + 1);
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            desc.name = "x";
            desc.dtype = HORON_FLOAT32;
            desc.count = 1;
            desc.src = desc.dst = &x;
            run_broadcast(world);
            for (int rank = 0; rank < world->size; rank++)
                requests[rank] = NULL;
            requests[first] = world_submit(world, first, &desc);
            requests[LEAVER] = submit_one_broadcast(world, LEAVER, LEAVER, data);
            assert_true(world_turn_until(world, &requests[LEAVER], 1));
            horon_engine_leave(world->ranks[LEAVER].engine);
            assert_true(world_turn_until(world, &requests[first], 1));
            assert_int_equal(requests[first]->status, HORON_ERR_CLOSED);
            for (int rank = 0; rank < world->size; rank++)
                if (rank != LEAVER && rank != first)
                    requests[rank] = submit_one_broadcast(world, rank, LEAVER, data);
            for (int rank = 0; rank < world->size; rank++) {
                if (!world_turn_until(world, &requests[rank], 1))
                    fail_msg("layout %zu: rank %d waits for rank %d", layout, rank, first);
                if (requests[rank]->status == HORON_OK)
                    continue;
                assert_int_equal(requests[rank]->status, HORON_ERR_CLOSED);
                assert_int_equal(requests[rank]->blame.cause, HORON_CAUSE_LEFT);
                assert_int_equal(requests[rank]->blame.rank, LEAVER);
            }
            for (int rank = 0; rank < world->size; rank++)
                world_release(requests[rank]);
            world_destroy(world);
        }
}

/* Rank 0 began another operation than the others, needed nothing of them for it, and has left when
 * rank 1 finds that it gave nothing. */
static void test_departures_do_not_hide_a_broken_promise(void **state)
{
    static const int hosts[] = {1, 1, 1};
    float data[RANKS_MAX] = {0};
    struct horon_request *requests[3];
    struct world *world = world_create(hosts, 3, NULL, 1);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    (void)state;
    desc.verb = HORON_GATHER;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    desc.root = 2;
    desc.src = &data[0];
    run_broadcast(world);
    requests[0] = world_submit(world, 0, &desc);
    assert_true(world_turn_until(world, requests, 1));
    assert_int_equal(requests[0]->status, HORON_OK);
    world_release(requests[0]);
    horon_engine_leave(world->ranks[0].engine);
    turn(world, 20);
    horon_engine_destroy(world->ranks[0].engine);
    world->ranks[0].engine = NULL;
    world->ranks[0].dead = true;
    for (int rank = 1; rank < 3; rank++) {
        requests[rank] = submit_one_broadcast(world, rank, 0, data);
        assert_true(world_turn_until(world, &requests[rank], 1));
        assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        assert_non_null(strstr(requests[rank]->error_text,
                               "operation 1 in order differs between ranks: rank 1 (host-1) began "
                               "broadcast, but rank 0 (host-0), which has left, ended another"));
        assert_int_equal(requests[rank]->blame.cause, HORON_CAUSE_ORDER);
        assert_int_equal(requests[rank]->blame.rank, 0);
        assert_int_equal(requests[rank]->blame.other_rank, 1);
        world_release(requests[rank]);
        turn(world, 20); /* rank 2 hears it, before it finds the like itself */
    }
    world_destroy(world);
}

enum { RELAYED = 3 };

static uint64_t decisions(const struct world *world, int rank)
{
    return horon_coordinator_decisions(world->ranks[rank].engine->job->coordinator);
}

/* Rank 1 hears a decision when its turn is over; rank 2 is behind it in the tree. */
static struct world *decide(float *data, struct horon_request **requests)
{
    enum { TURNS = 10 };
    static const int hosts[] = {1, 2};
    struct world *world = world_create(hosts, 2, NULL, 1);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = "x";
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    for (int rank = 0; rank < RELAYED; rank++) {
        desc.src = desc.dst = &data[rank];
        requests[rank] = world_submit(world, rank, &desc);
    }
    for (int i = 0; i < RELAYED * TURNS; i++)
        horon_engine_progress(world->ranks[RELAYED - 1 - i / TURNS].engine);
    assert_int_equal(decisions(world, 1), 0);
    horon_engine_move_links(world->ranks[1].engine);
    assert_int_equal(decisions(world, 1), 1);
    return world;
}

static void end(struct world *world, struct horon_request **requests, horon_status_t status)
{
    assert_true(world_turn_until(world, requests, RELAYED));
    for (int rank = 0; rank < RELAYED; rank++) {
        assert_int_equal(requests[rank]->status, status);
        world_release(requests[rank]);
    }
    world_destroy(world);
}

/* It leaves before the rank behind it knows. */
static void test_departures_pass_on_what_was_decided(void **state)
{
    struct horon_request *requests[RELAYED];
    float data[RELAYED] = {0};
    (void)state;
    struct world *world = decide(data, requests);
    horon_engine_leave(world->ranks[1].engine);
    end(world, requests, HORON_ERR_CLOSED);
}

/* Its thread drives as long as there is anything to do, and would sleep then. */
static void test_departures_are_not_needed_to_pass_on_what_was_decided(void **state)
{
    struct horon_request *requests[RELAYED];
    float data[RELAYED] = {0};
    (void)state;
    struct world *world = decide(data, requests);
    while (horon_engine_has_unsent(world->ranks[1].engine))
        horon_engine_progress(world->ranks[1].engine);
    horon_engine_progress(world->ranks[2].engine);
    assert_int_equal(decisions(world, 2), 1);
    end(world, requests, HORON_OK);
}

static struct horon_request *submit_named(struct world *world, int rank, const char *name,
                                          horon_dtype_t dtype, void *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.name = name;
    desc.dtype = dtype;
    desc.count = 1;
    desc.src = desc.dst = data;
    return world_submit(world, rank, &desc);
}

static void turn_alone(struct world *world, int rank, int turns)
{
    while (turns-- > 0)
        horon_engine_progress(world->ranks[rank].engine);
}

/* A rank hears that all describe a tensor differently, and exits. The others hear both at once, and
 * are told what the program did wrong; also if they hear first that its process has ended. (Behind
 * a relay the word of the exit, which goes through the host's memory, may be faster than the
 * decision, which goes over a link.) */
static void exit_by_a_mismatch(const int *hosts, int host_count, bool dies)
{
    double data[3] = {0};
    struct horon_request *requests[3];
    struct world *world = world_create(hosts, host_count, NULL, 1);
    for (int rank = 0; rank < 3; rank++)
        requests[rank] =
            submit_named(world, rank, "x", rank ? HORON_FLOAT64 : HORON_INT64, &data[rank]);
    for (int round = 0; round < 8; round++)
        for (int rank = 2; rank > 0; rank--)
            turn_alone(world, rank, 1);
    for (int turns = 0; turns < 100 && atomic_load(&requests[0]->state) != HORON_REQUEST_ENDED;
         turns++)
        turn_alone(world, 0, 1);
    assert_int_equal(requests[0]->status, HORON_ERR_MISMATCH);
    horon_engine_exit(world->ranks[0].engine, "an exception");
    turn_alone(world, 0, 8);
    for (int rank = 1; dies && rank < 3; rank++)
        horon_engine_local_death(world->ranks[rank].engine, 0, true, "its process ended");
    assert_true(world_turn_until(world, &requests[1], 2));
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        assert_int_equal(requests[rank]->blame.cause, HORON_CAUSE_DESCRIPTION);
        world_release(requests[rank]);
    }
    world_destroy(world);
}

static void test_departures_by_an_exit_do_not_hide_what_was_decided(void **state)
{
    static const int one[] = {3}, three[] = {1, 1, 1};
    (void)state;
    exit_by_a_mismatch(one, 1, false);
    exit_by_a_mismatch(one, 1, true);
    exit_by_a_mismatch(three, 3, false);
}

/* Rank 1 leaves with a tensor in flight, of which it has let go. While it stays to say goodbye it
 * hears what was decided about the tensor, and that rank 2 exits. */
static void test_departures_leave_alone_what_has_ended_with_them(void **state)
{
    static const int one[] = {3}, three[] = {1, 1, 1};
    (void)state;
    for (int way = 0; way < 4; way++) {
        const bool keeps = way & 2;
        double data[3] = {0};
        struct horon_request *requests[3];
        struct world *world = world_create(way & 1 ? one : three, way & 1 ? 1 : 3, NULL, 1);
        for (int rank = 0; rank < 3; rank++)
            requests[rank] = submit_named(world, rank, "x", HORON_FLOAT64, &data[rank]);
        for (int round = 0; round < 8; round++)
            for (int rank = 2; rank > 0; rank--)
                turn_alone(world, rank, 1);
        turn_alone(world, 0, 8); /* decides */
        if (!keeps)
            world_release(requests[1]);
        horon_engine_leave(world->ranks[1].engine); /* the tensor has ended here */
        horon_engine_exit(world->ranks[2].engine, "an exception");
        for (int rank = 2; rank >= 0; rank -= 2)
            turn_alone(world, rank, 8);
        turn_alone(world, 1, 8);
        if (keeps) {
            assert_int_equal(requests[1]->status, HORON_ERR_CLOSED);
            assert_false(requests[1]->begun);
            world_release(requests[1]);
        }
        world_release(requests[0]);
        world_release(requests[2]);
        world_destroy(world);
    }
}

/* The decision about one tensor, that rank 0 leaves, and the end of the link come all at once.
 * Rank 1 waits for another tensor besides, which rank 0 never gives, and has a third one to tell
 * when it looks: it looks again before it has taken what was decided. */
static void test_departures_take_back_nothing_that_was_decided(void **state)
{
    static const int one_host[] = {2}, two_hosts[] = {1, 1};
    (void)state;
    for (int way = 0; way < 4; way++) {
        double given = 3, got = 0, never = 0;
        const bool differs = way & 2;
        struct world *world =
            way & 1 ? world_create(two_hosts, 2, NULL, 1) : world_create(one_host, 1, NULL, 1);
        struct horon_request *own =
            submit_named(world, 0, "x", differs ? HORON_INT64 : HORON_FLOAT64, &given);
        struct horon_request *requests[3] = {submit_named(world, 1, "x", HORON_FLOAT64, &got),
                                             submit_named(world, 1, "y", HORON_FLOAT64, &never)};
        turn_alone(world, 1, 4);
        turn_alone(world, 0, 8);
        assert_int_equal(atomic_load(&own->state), HORON_REQUEST_ENDED);
        world_release(own);
        horon_engine_leave(world->ranks[0].engine);
        turn_alone(world, 0, 4);
        horon_engine_destroy(world->ranks[0].engine);
        world->ranks[0].engine = NULL;
        world->ranks[0].dead = true;
        requests[2] = submit_named(world, 1, "z", HORON_FLOAT64, &never);
        assert_true(world_turn_until(world, requests, 3));
        assert_int_equal(requests[0]->status, differs ? HORON_ERR_MISMATCH : HORON_OK);
        assert_true(differs || got == given);
        for (int i = 0; i < 3; i++) {
            assert_true(i == 0 || requests[i]->status == HORON_ERR_CLOSED);
            assert_int_equal(requests[i]->status == HORON_OK ? 0 : requests[i]->blame.rank, 0);
            world_release(requests[i]);
        }
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_departures_of_a_whole_job_take_few_messages),
        cmocka_unit_test(test_departures_are_known_to_all_when_a_relay_has_left),
        cmocka_unit_test(test_departures_after_an_abort_blame_the_rank_that_left_first),
        cmocka_unit_test(test_departures_do_not_keep_an_abort_from_anybody),
        cmocka_unit_test(test_departures_without_a_goodbye_are_for_the_reason_that_was_posted),
        cmocka_unit_test(test_departures_end_what_waits_for_a_rank_that_has_failed_for_them),
        cmocka_unit_test(test_departures_do_not_hide_a_broken_promise),
        cmocka_unit_test(test_departures_leave_alone_what_has_ended_with_them),
        cmocka_unit_test(test_departures_pass_on_what_was_decided),
        cmocka_unit_test(test_departures_are_not_needed_to_pass_on_what_was_decided),
        cmocka_unit_test(test_departures_take_back_nothing_that_was_decided),
        cmocka_unit_test(test_departures_by_an_exit_do_not_hide_what_was_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
