/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: the list itself, and teams of two that overlap on a backend whose launches occupy the
 * device. Each rank has its operations ready in an order of its own; without tickets some of these
 * orders wait for ever.
 */
#undef NDEBUG
#include "backend/route.h"
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void test_tickets_are_used_from_the_lowest_up(void **state)
{
    struct horon_tickets tickets = {0};
    struct horon_ticket a = {.lane = 7}, b = {.lane = 3}, c = {.lane = 5};
    (void)state;
    assert_int_equal(horon_ticket_propose(&tickets, &a), 1);
    assert_int_equal(horon_ticket_propose(&tickets, &b), 2);
    horon_ticket_draw(&tickets, &b, 4);
    assert_false(horon_ticket_is_next(&tickets, &b)); /* a may become less */
    horon_ticket_draw(&tickets, &a, 4);
    assert_true(horon_ticket_is_next(&tickets, &b)); /* the lower lane */
    assert_false(horon_ticket_is_next(&tickets, &a));
    assert_int_equal(horon_ticket_propose(&tickets, &c), 5); /* above all that was drawn */
    horon_ticket_use(&tickets, &b);
    assert_true(horon_ticket_is_next(&tickets, &a)); /* whatever becomes of c */
    horon_ticket_use(&tickets, &a);
    horon_ticket_use(&tickets, &a); /* no longer in the list */
    horon_ticket_draw(&tickets, &c, 5);
    assert_true(horon_ticket_is_next(&tickets, &c));
    horon_ticket_use(&tickets, &c);
    assert_null(tickets.first);
}

enum { RANKS = 3, TEAMS = 3, ROUNDS = 3 };

struct world {
    struct fake_device devices[RANKS];
    struct horon_tickets tickets[RANKS];
    struct fake fakes[TEAMS], words[TEAMS]; /* on the device; what ranks tell each other */
    const struct horon_backend *backends[TEAMS][2];
    struct horon_backends opened[TEAMS][2];
    int members[TEAMS][2]; /* ranks */
    struct horon_team teams[TEAMS][2];
    struct horon_route routes[TEAMS][2];
    unsigned char value[TEAMS][2];
    struct horon_part part[TEAMS][2];
    struct horon_operation op[TEAMS][2];
    unsigned begun[TEAMS][2];
};
static struct world w;

static void make_member(int team, int place, bool with_tickets)
{
    const int rank = w.members[team][place];
    const struct horon_route_options options = {
        .backends = &w.opened[team][place],
        .channel = {.channel = (uint32_t)team * 2},
        .in_order = true,
        .tickets = with_tickets ? &w.tickets[rank] : NULL,
    };
    w.teams[team][place] = (struct horon_team){.rank = place, .size = 2};
    assert_int_equal(
        horon_backends_open(&w.opened[team][place], w.backends[team], 2, NULL, NULL, NULL),
        HORON_OK);
    assert_int_equal(
        horon_route_init(&w.routes[team][place], &options, &w.teams[team][place], NULL), HORON_OK);
    w.part[team][place] =
        (struct horon_part){.src = &w.value[team][place], .dst = &w.value[team][place], .count = 1};
    w.op[team][place] =
        (struct horon_operation){.agreed = {.verb = HORON_ALLREDUCE, .dtype = HORON_UINT8},
                                 .count = 1,
                                 .parts = &w.part[team][place],
                                 .part_count = 1};
}

static void make_team(int team, int first, int second, bool with_tickets)
{
    fake_init(&w.fakes[team], "device",
              HORON_BACKEND_ANY_THREAD | (with_tickets ? HORON_BACKEND_ONE_LAUNCH_ORDER : 0));
    fake_init(&w.words[team], "words", HORON_BACKEND_ANY_THREAD | HORON_BACKEND_EVERYWHERE);
    w.fakes[team].devices = w.devices;
    w.fakes[team].device_of = w.members[team];
    w.backends[team][0] = &w.fakes[team].base;
    w.backends[team][1] = &w.words[team].base;
    w.members[team][0] = first;
    w.members[team][1] = second;
    for (int place = 0; place < 2; place++)
        make_member(team, place, with_tickets);
}

static void end_teams(int teams)
{
    for (int team = 0; team < teams; team++)
        for (int place = 0; place < 2; place++) {
            horon_route_abort(&w.routes[team][place]);
            horon_route_deinit(&w.routes[team][place]);
            horon_backends_close(&w.opened[team][place], true);
        }
    for (int rank = 0; rank < RANKS; rank++)
        assert_null(w.tickets[rank].first);
}

/* One turn of the rank at @p place of a team. @param submitted  operations it has so far */
static void turn(int team, int place, uint64_t submitted)
{
    struct horon_route *route = &w.routes[team][place];
    const struct horon_operation *op = &w.op[team][place];
    bool moved = false;
    struct horon_error error = {0};
    if (w.begun[team][place] < submitted) {
        const horon_status_t status = horon_route_ready(route, op, &moved, &error);
        assert_true(status >= 0);
        if (status == HORON_OK && ++w.begun[team][place])
            horon_route_begin(route, op);
    }
    if (route->launched)
        assert_true(horon_route_advance(route, &moved, &error) >= 0);
}

/* Team t is of ranks t and t + 1.
 * @param order  bit r: rank r turns the higher of its two teams first. @return all ended */
static bool play(bool with_tickets, unsigned order)
{
    memset(&w, 0, sizeof w);
    for (int team = 0; team < TEAMS; team++)
        make_team(team, team, (team + 1) % RANKS, with_tickets);
    bool all = false;
    for (int turns = 0; turns < 200 && !all; turns++) {
        all = true;
        for (int i = 0; i < RANKS * 2; i++) {
            const int rank = i / 2, higher = (i % 2) ^ (int)(order >> rank & 1);
            const int mine[2] = {rank, (rank + TEAMS - 1) % TEAMS};
            const int team = mine[higher], place = team == rank ? 0 : 1;
            if (horon_route_ended(&w.routes[team][place]) < ROUNDS)
                turn(team, place, ROUNDS);
            all &= horon_route_ended(&w.routes[team][place]) == ROUNDS;
        }
    }
    end_teams(TEAMS);
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

/* Rank 0 has both teams' operations at once, rank 1 the second one's when the first one's has
 * ended: a number that rank 0 proposed for what nobody else has would keep it from the other. */
static void test_tickets_are_drawn_for_what_all_ranks_have(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        memset(&w, 0, sizeof w);
        make_team(0, 0, 1, true);
        make_team(1, 0, 1, true);
        for (int turns = 0; horon_route_ended(&w.routes[!first][1]) == 0; turns++) {
            assert_in_range(turns, 0, 100);
            turn(!first, 0, 1);
            turn(first, 0, 1);
            turn(first, 1, 1);
            turn(!first, 1, horon_route_ended(&w.routes[first][1]));
        }
        end_teams(2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tickets_are_used_from_the_lowest_up),
        cmocka_unit_test(test_tickets_let_overlapping_teams_end_in_any_order_of_readiness),
        cmocka_unit_test(test_tickets_are_drawn_for_what_all_ranks_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
