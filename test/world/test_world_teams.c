/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Second teams: any ranks of a world in any order carry out operations together, named and in
 * order, beside other teams. Teams that share ranks see theirs become ready in opposite orders and
 * all end; a rank that is lost, or a mistake, fails the teams that contain it and no other; nothing
 * is left of a team that was removed.
 */
#undef NDEBUG
#include "world/team_runs.h"

#include <stdio.h>
#include <string.h>

/* Three teams that share ranks; each member submits to its teams in an order of its own. */
static void test_teams_that_overlap_end_in_any_order(void **state)
{
    enum { TEAMS = 3, ROUNDS = 4 };
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int named = 0; named < 2; named++)
            for (uint64_t seed = 1; seed <= 4; seed++) {
                struct world *world =
                    world_create(layouts[layout].hosts, layouts[layout].count, settings, seed);
                struct world_team *teams[TEAMS];
                struct run runs[TEAMS][ROUNDS];
                char name[ROUNDS][8];
                memset(runs, 0, sizeof runs);
                for (int t = 0; t < TEAMS; t++) {
                    teams[t] = draw_team(world, (uint32_t)t + 1, world->size - 1 - t % 2, t);
                    add_all(teams[t]);
                    for (int round = 0; round < ROUNDS; round++)
                        runs[t][round] =
                            (struct run){.team = teams[t], .count = round % 2 ? COUNT_MAX : 3};
                }
                for (int round = 0; round < ROUNDS; round++)
                    snprintf(name[round], sizeof name[round], "n%d", round);
                for (int rank = 0; rank < world->size; rank++)
                    for (int i = 0; i < TEAMS * ROUNDS; i++) { /* odd ranks begin at the end */
                        const int t = rank % 2 ? TEAMS - 1 - i / ROUNDS : i / ROUNDS;
                        const int at = named && rank % 2 ? ROUNDS - 1 - i % ROUNDS : i % ROUNDS;
                        for (int member = 0; member < teams[t]->size; member++)
                            if (teams[t]->ranks[member] == rank)
                                submit_as(&runs[t][at], member, named ? name[at] : NULL);
                    }
                for (int t = 0; t < TEAMS; t++)
                    for (int round = 0; round < ROUNDS; round++) {
                        assert_true(world_turn_until(world, runs[t][round].requests,
                                                     (size_t)teams[t]->size));
                        for (int member = 0; member < teams[t]->size; member++)
                            check(&runs[t][round], member);
                        run_free(&runs[t][round]);
                    }
                for (int t = 0; t < TEAMS; t++)
                    world_team_destroy(teams[t]);
                world_destroy(world);
            }
}

static int member_of(const struct world_team *team, int rank)
{
    for (int member = 0; member < team->size; member++)
        if (team->ranks[member] == rank)
            return member;
    return -1;
}

/* One rank is killed in the middle of operations of two teams, one of which it is not in. */
static void test_teams_without_a_lost_rank_go_on(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int lost = 0; lost < layouts[layout].size; lost++) {
            struct world *world = world_create(layouts[layout].hosts, layouts[layout].count,
                                               settings, (uint64_t)lost + 1);
            int others[RANKS_MAX], count = 0;
            char name[64];
            snprintf(name, sizeof name, "rank %d (host-", lost);
            for (int rank = 0; rank < world->size; rank++)
                if (rank != lost)
                    others[count++] = rank;
            struct world_team *without = world_team_create(world, 1, others, count);
            struct world_team *with = draw_team(world, 2, world->size - 1, lost);
            add_all(without);
            add_all(with);
            struct run well = {.team = without, .count = COUNT_MAX};
            struct run ill = {.team = with, .count = COUNT_MAX};
            for (int member = 0; member < count; member++)
                submit_as(&well, member, lost % 2 ? "x" : NULL);
            for (int member = 0; member < with->size; member++)
                if (with->ranks[member] != lost)
                    submit_as(&ill, member, lost % 2 ? "x" : NULL);
            for (int i = 0; i < 3 * world->size; i++)
                horon_engine_progress(world->ranks[i % world->size].engine);
            world_kill(world, lost);
            assert_true(world_turn_until(world, ill.requests, (size_t)with->size));
            assert_true(world_turn_until(world, well.requests, (size_t)count));
            for (int member = 0; member < with->size; member++)
                if (member != member_of(with, lost)) {
                    assert_int_equal(ill.requests[member]->status, HORON_ERR_PEER_LOST);
                    assert_non_null(strstr(ill.requests[member]->error_text, name));
                }
            for (int member = 0; member < count; member++)
                check(&well, member);
            run_one(without, HORON_ALLREDUCE, COUNT_MAX, true); /* and later ones, too */
            run_one(without, HORON_ALLGATHER, 13, false);
            for (int rank = 0; rank < world->size; rank++) /* the job contains it */
                if (rank != lost)
                    assert_int_equal(world_failure(world->ranks[rank].engine, NULL),
                                     HORON_ERR_PEER_LOST);
            run_free(&well);
            run_free(&ill);
            world_team_destroy(with);
            world_team_destroy(without);
            world_destroy(world);
        }
}

/* Ranks hear at different times that one is gone: a team may be made after that. */
static void test_teams_made_with_a_lost_rank_fail(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int lost = 0; lost < layouts[layout].size; lost++) {
            struct world *world = world_create(layouts[layout].hosts, layouts[layout].count,
                                               settings, (uint64_t)lost + 1);
            struct world_team *team = draw_team(world, 1, 2, lost);
            struct run run = {.team = team, .count = 3};
            char name[64];
            snprintf(name, sizeof name, "rank %d (host-", lost);
            world_kill(world, lost);
            for (int i = 0; i < 3 * world->size; i++)
                if (i % world->size != lost)
                    horon_engine_progress(world->ranks[i % world->size].engine);
            for (int member = 0; member < team->size; member++)
                if (team->ranks[member] != lost) {
                    world_team_add(team, member);
                    submit_as(&run, member, lost % 2 ? "x" : NULL);
                }
            assert_true(world_turn_until(world, run.requests, (size_t)team->size));
            for (int member = 0; member < team->size; member++)
                if (team->ranks[member] != lost) {
                    assert_int_equal(run.requests[member]->status, HORON_ERR_PEER_LOST);
                    assert_non_null(strstr(run.requests[member]->error_text, name));
                }
            run_free(&run);
            world_team_destroy(team);
            world_destroy(world);
        }
}

/* It leaves before the others make the team, or when they have and it has not. */
static void test_teams_that_a_rank_never_made_fail(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int left = 0; left < layouts[layout].size; left++)
            for (int way = 0; way < 4; way++) {
                struct world *world = world_create(layouts[layout].hosts, layouts[layout].count,
                                                   settings, (uint64_t)left + 1);
                struct world_team *team = draw_team(world, 1, 2 + left % (world->size - 1), left);
                struct run run = {.team = team, .count = 3};
                char text[64];
                snprintf(text, sizeof text, "rank %d (host-", left);
                for (int late = 0; late < 2; late++) {
                    for (int member = 0; member < team->size; member++)
                        if (late == (way & 1) && team->ranks[member] != left) {
                            world_team_add(team, member);
                            submit_as(&run, member, way & 2 ? "x" : NULL);
                        }
                    if (!late)
                        horon_engine_leave(world->ranks[left].engine);
                    for (int i = 0; i < 3 * world->size; i++)
                        horon_engine_progress(world->ranks[i % world->size].engine);
                }
                assert_true(world_turn_until(world, run.requests, (size_t)team->size));
                for (int member = 0; member < team->size; member++)
                    if (team->ranks[member] != left) {
                        assert_int_equal(run.requests[member]->status, HORON_ERR_CLOSED);
                        assert_non_null(strstr(run.requests[member]->error_text, text));
                    }
                run_free(&run);
                world_team_destroy(team);
                world_destroy(world);
            }
}

static void test_teams_keep_a_mistake_to_themselves(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++) {
        struct world *world =
            world_create(layouts[layout].hosts, layouts[layout].count, settings, 3);
        struct world_team *bad = draw_team(world, 1, world->size, 0);
        struct world_team *good = draw_team(world, 2, world->size, 0);
        add_all(bad);
        add_all(good);
        struct run wrong = {.team = bad, .count = 3};
        for (int member = 0; member < bad->size; member++) {
            wrong.count = member == 1 ? 4 : 3;
            submit_as(&wrong, member, NULL);
        }
        assert_true(world_turn_until(world, wrong.requests, (size_t)bad->size));
        for (int member = 0; member < bad->size; member++)
            assert_int_equal(wrong.requests[member]->status, HORON_ERR_MISMATCH);
        run_one(good, HORON_ALLREDUCE, COUNT_MAX, true);
        run_one(good, HORON_ALLREDUCE, COUNT_MAX, false);
        assert_int_equal(world_failure(world->ranks[0].engine, NULL), HORON_OK);
        run_free(&wrong);
        world_team_destroy(bad);
        world_team_destroy(good);
        world_destroy(world);
    }
}

/* Members make it one after another, and each speaks at once. */
static void test_teams_hear_what_was_said_before_they_were_made(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++) {
        struct world *world =
            world_create(layouts[layout].hosts, layouts[layout].count, settings, 5);
        struct world_team *team = draw_team(world, 1, world->size, 0);
        struct run run = {.team = team, .count = COUNT_MAX};
        for (int member = team->size - 1; member >= 0; member--) {
            world_team_add(team, member);
            submit_as(&run, member, "x");
            for (int i = 0; i < 5 * world->size; i++)
                horon_engine_progress(world->ranks[i % world->size].engine);
        }
        assert_true(world_turn_until(world, run.requests, (size_t)team->size));
        for (int member = 0; member < team->size; member++)
            check(&run, member);
        run_free(&run);
        world_team_destroy(team);
        world_destroy(world);
    }
}

/* Ranks 1 and 3 of a host: nothing is made for them before they need it, and not while one of them
 * alone does. The job works on all the time. */
static void test_teams_get_arenas_at_their_first_use(void **state)
{
    static const int hosts[] = {4}, ranks[] = {1, 3}, all[] = {0, 1, 2, 3};
    (void)state;
    for (int named = 0; named < 2; named++) {
        struct world *world = world_create(hosts, 1, settings, 11);
        struct world_team *team = world_team_create(world, 1, ranks, 2);
        struct world_team *wide = world_team_create(world, 2, all, 4);
        add_all(team);
        add_all(wide);
        run_one(wide, HORON_ALLREDUCE, COUNT_MAX, named);
        assert_int_equal(team->asked[0], 0);
        struct run run = {.team = team, .count = COUNT_MAX};
        for (int member = 0; member < 2; member++) {
            submit_as(&run, member, named ? "x" : NULL);
            run_one(wide, HORON_ALLREDUCE, COUNT_MAX, named);
            assert_int_equal(team->asked[0], named ? 2 * member : member + 1);
            assert_int_equal(team->memory.arenas[0] != NULL, member == 1);
        }
        assert_true(world_turn_until(world, run.requests, 2));
        for (int member = 0; member < 2; member++) {
            check(&run, member);
            assert_int_equal(team->members[member]->state, HORON_TEAM_READY);
        }
        run_free(&run);
        world_team_destroy(wide);
        world_team_destroy(team);
        world_destroy(world);
    }
}

/* The text names the rank that has no room. No other team hears of it. */
static void test_teams_without_room_for_an_arena_fail_alone(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int named = 0; named < 2; named++) {
            struct world *world =
                world_create(layouts[layout].hosts, layouts[layout].count, settings, 13);
            struct world_team *bad = draw_team(world, 1, world->size, 0);
            struct world_team *good = draw_team(world, 2, world->size, 0);
            char name[64];
            add_all(bad);
            add_all(good);
            bad->has_no_room = bad->size - 1;
            snprintf(name, sizeof name, "rank %d (host-", bad->ranks[bad->has_no_room]);
            struct run run = {.team = bad, .count = 3};
            for (int member = 0; member < bad->size; member++)
                submit_as(&run, member, named ? "x" : NULL);
            assert_true(world_turn_until(world, run.requests, (size_t)bad->size));
            for (int member = 0; member < bad->size; member++) {
                assert_int_equal(run.requests[member]->status, HORON_ERR_MEMORY);
                assert_non_null(strstr(run.requests[member]->error_text, name));
                assert_non_null(strstr(run.requests[member]->error_text, "no room for an arena"));
            }
            run_one(good, HORON_ALLREDUCE, COUNT_MAX, named);
            assert_int_equal(world_failure(world->ranks[0].engine, NULL), HORON_OK);
            run_free(&run);
            world_team_destroy(bad);
            world_team_destroy(good);
            world_destroy(world);
        }
}

/* Each member removes it when its own operations have ended, whatever the others still do; one that
 * goes on alone is told which rank has removed it. */
static void test_teams_can_be_removed_by_one_after_another(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            struct world *world =
                world_create(layouts[layout].hosts, layouts[layout].count, settings, seed);
            struct world_team *team = draw_team(world, 1, world->size, 0);
            struct run run = {.team = team, .count = seed % 2 ? COUNT_MAX : 3};
            add_all(team);
            for (int member = 0; member < team->size; member++)
                submit_as(&run, member, seed % 4 < 2 ? "x" : NULL);
            int left = team->size;
            while (left > 1)
                for (int member = 0; member < team->size && left > 1; member++) {
                    if (!team->members[member])
                        continue;
                    horon_engine_progress(world->ranks[team->ranks[member]].engine);
                    if (!team->members[member]->oldest &&
                        !horon_engine_has_post(team->members[member]->engine)) {
                        world_team_remove(team, member);
                        left--;
                    }
                }
            assert_true(world_turn_until(world, run.requests, (size_t)team->size));
            for (int member = 0; member < team->size; member++)
                check(&run, member);
            run_free(&run);
            int last = 0;
            while (!team->members[last])
                last++;
            struct run alone = {.team = team, .count = 3};
            submit_as(&alone, last, seed % 4 < 2 ? "x" : NULL);
            assert_true(world_turn_until(world, alone.requests, (size_t)team->size));
            assert_int_equal(alone.requests[last]->status, HORON_ERR_CLOSED);
            assert_non_null(strstr(alone.requests[last]->error_text,
                                   ") has removed the team and takes part in nothing more"));
            run_free(&alone);
            assert_int_equal(world_failure(world->ranks[0].engine, NULL), HORON_OK);
            world_team_destroy(team);
            world_destroy(world);
        }
}

/* A rank that cannot make it says so, before or after the others have made it. */
static void test_teams_refused_by_a_member_fail(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int early = 0; early < 2; early++) {
            struct world *world =
                world_create(layouts[layout].hosts, layouts[layout].count, settings, 15);
            struct world_team *team = draw_team(world, 1, world->size, 0);
            struct run run = {.team = team, .count = 3};
            struct horon_engine *refuser = world->ranks[team->ranks[0]].engine;
            struct horon_error why;
            horon_error_set(&why, HORON_ERR_MEMORY, "it has no room");
            if (early)
                horon_engine_refuse_team(refuser, 1, team->ranks, team->size, &why);
            for (int i = 0; i < 3 * world->size; i++)
                horon_engine_progress(world->ranks[i % world->size].engine);
            for (int member = 1; member < team->size; member++) {
                world_team_add(team, member);
                submit_as(&run, member, "x");
            }
            if (!early)
                horon_engine_refuse_team(refuser, 1, team->ranks, team->size, &why);
            assert_true(world_turn_until(world, run.requests, (size_t)team->size));
            for (int member = 1; member < team->size; member++) {
                assert_int_equal(run.requests[member]->status, HORON_ERR_MEMORY);
                assert_non_null(strstr(run.requests[member]->error_text, "it has no room"));
            }
            /* and one that heard of it first, and cannot make it either, keeps nothing */
            struct horon_engine *late = world->ranks[team->ranks[team->size - 1]].engine;
            horon_engine_refuse_team(refuser, 2, team->ranks, team->size, &why);
            for (int i = 0; i < 3 * world->size; i++)
                horon_engine_progress(world->ranks[i % world->size].engine);
            horon_engine_refuse_team(late, 2, team->ranks, team->size, &why);
            assert_int_equal(late->early_bytes, 0);
            run_free(&run);
            world_team_destroy(team);
            world_destroy(world);
        }
}

static void test_teams_come_and_go(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++) {
        struct world *world =
            world_create(layouts[layout].hosts, layouts[layout].count, settings, 9);
        for (uint32_t id = 1; id <= 200; id++) {
            struct world_team *team =
                draw_team(world, id, 1 + (int)(id % (unsigned)world->size), 0);
            add_all(team);
            run_one(team, HORON_ALLREDUCE, 3, id % 2);
            world_team_destroy(team);
        }
        for (int rank = 0; rank < world->size; rank++) {
            assert_null(world->ranks[rank].engine->job->next);
            assert_int_equal(world->ranks[rank].engine->early_bytes, 0);
            assert_int_equal(horon_engine_in_flight(world->ranks[rank].engine), 0);
        }
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teams_that_overlap_end_in_any_order),
        cmocka_unit_test(test_teams_without_a_lost_rank_go_on),
        cmocka_unit_test(test_teams_made_with_a_lost_rank_fail),
        cmocka_unit_test(test_teams_that_a_rank_never_made_fail),
        cmocka_unit_test(test_teams_keep_a_mistake_to_themselves),
        cmocka_unit_test(test_teams_hear_what_was_said_before_they_were_made),
        cmocka_unit_test(test_teams_get_arenas_at_their_first_use),
        cmocka_unit_test(test_teams_without_room_for_an_arena_fail_alone),
        cmocka_unit_test(test_teams_can_be_removed_by_one_after_another),
        cmocka_unit_test(test_teams_refused_by_a_member_fail),
        cmocka_unit_test(test_teams_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
