/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: the queue itself, and three teams of two that overlap in a ring, {0,1} {1,2} {2,0}, on a
 * backend whose launches occupy the device. Each rank has its two operations ready in an order of
 * its own; without tickets some of these orders wait for ever.
 */
#undef NDEBUG
#include "backend/route.h"
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* More are drawn than used, so that the ring grows while its first lies in the middle. */
static void test_tickets_come_in_the_order_in_which_they_were_drawn(void **state)
{
    struct horon_tickets tickets = {0};
    int32_t drawn = 0, used = 0;
    (void)state;
    assert_false(horon_tickets_turn(&tickets, 0));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 37; i++)
            assert_int_equal(horon_tickets_draw(&tickets, drawn++), HORON_OK);
        for (int i = 0; i < 30; i++) {
            assert_false(horon_tickets_turn(&tickets, used + 1));
            assert_true(horon_tickets_turn(&tickets, used));
            horon_tickets_use(&tickets, used++);
        }
    }
    assert_int_equal(tickets.count, drawn - used);
    horon_tickets_deinit(&tickets);
}

enum { RANKS = 3, TEAMS = 3, ROUNDS = 3 };

/* Team t is of ranks t and t + 1. */
struct world {
    struct fake_device devices[RANKS];
    struct horon_tickets tickets[RANKS];
    struct fake fakes[TEAMS];
    int members[TEAMS][2];
    struct horon_team teams[TEAMS][2];
    struct horon_route routes[TEAMS][2];
    unsigned char value[TEAMS][2];
    struct horon_part part[TEAMS][2];
    struct horon_operation op[TEAMS][2];
};
static struct world w;

static void make_team(int team, bool with_tickets)
{
    fake_init(&w.fakes[team], "device",
              HORON_BACKEND_ANY_THREAD | (with_tickets ? HORON_BACKEND_ONE_LAUNCH_ORDER : 0));
    w.fakes[team].devices = w.devices;
    w.fakes[team].device_of = w.members[team];
    for (int place = 0; place < 2; place++) {
        const int rank = (team + place) % RANKS;
        static const struct horon_backend *backends[TEAMS];
        backends[team] = &w.fakes[team].base;
        w.members[team][place] = rank;
        w.teams[team][place] = (struct horon_team){.rank = place, .size = 2};
        const struct horon_route_options options = {.backends = &backends[team],
                                                    .backend_count = 1,
                                                    .team = team,
                                                    .tickets =
                                                        with_tickets ? &w.tickets[rank] : NULL};
        assert_int_equal(
            horon_route_init(&w.routes[team][place], &options, &w.teams[team][place], NULL),
            HORON_OK);
        w.part[team][place] = (struct horon_part){
            .src = &w.value[team][place], .dst = &w.value[team][place], .count = 1};
        w.op[team][place] = (struct horon_operation){
            .agreed = {.verb = HORON_ALLREDUCE, .dtype = HORON_UINT8, .team = team},
            .count = 1,
            .parts = &w.part[team][place],
            .part_count = 1};
    }
}

/* @param order  bit r: rank r has the higher of its two teams ready first. @return all ended */
static bool play(bool with_tickets, unsigned order)
{
    memset(&w, 0, sizeof w);
    for (int team = 0; team < TEAMS; team++)
        make_team(team, with_tickets);
    /* the agreed sequence; each rank keeps what is of its teams */
    for (int i = 0; with_tickets && i < ROUNDS * TEAMS; i++)
        for (int place = 0; place < 2; place++)
            assert_int_equal(horon_tickets_draw(&w.tickets[(i + place) % RANKS], i % TEAMS),
                             HORON_OK);
    bool all = false;
    for (int turn = 0; turn < 200 && !all; turn++) {
        all = true;
        for (int i = 0; i < RANKS * 2; i++) {
            const int rank = i / 2, higher = (i % 2) ^ (int)(order >> rank & 1);
            const int mine[2] = {rank, (rank + TEAMS - 1) % TEAMS};
            const int team = mine[higher], place = team == rank ? 0 : 1;
            struct horon_route *route = &w.routes[team][place];
            bool moved = false;
            if (horon_route_ended(route) == ROUNDS)
                continue;
            if (!route->launched && horon_route_may_begin(route, &w.op[team][place]))
                horon_route_begin(route, &w.op[team][place]);
            if (route->launched)
                assert_true(horon_route_advance(route, &moved, NULL) >= 0);
            all &= horon_route_ended(route) == ROUNDS;
        }
    }
    for (int team = 0; team < TEAMS; team++)
        for (int place = 0; place < 2; place++) {
            horon_route_abort(&w.routes[team][place]);
            horon_route_deinit(&w.routes[team][place]);
        }
    for (int rank = 0; rank < RANKS; rank++)
        horon_tickets_deinit(&w.tickets[rank]);
    return all;
}

static void test_tickets_let_overlapping_teams_end_in_any_order_of_readiness(void **state)
{
    (void)state;
    int without = 0;
    for (unsigned order = 0; order < 1u << RANKS; order++) {
        assert_true(play(true, order));
        without += play(false, order);
    }
    assert_in_range(without, 0, (1 << RANKS) - 1); /* that is what they are for */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tickets_come_in_the_order_in_which_they_were_drawn),
        cmocka_unit_test(test_tickets_let_overlapping_teams_end_in_any_order_of_readiness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
