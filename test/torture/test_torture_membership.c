/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory ends while a rank with two teams gets another membership. Either nothing has changed, or
 * both teams have failed and nothing of them is left in flight; or it went well.
 */
#undef NDEBUG
#include "alloc_failing.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Rank 0 of two, and a team of both in which it is the second. */
struct trial {
    struct world *world;
    struct world_team *team;
    struct horon_engine *engine;
    struct horon_request *requests[2]; /* one in each team, to which rank 1 does not come */
    float data[2];
};

static void begin(struct trial *trial)
{
    static const int one_host[] = {2}, ranks[] = {1, 0};
    trial->world = world_create(one_host, 1, NULL, 1);
    trial->team = world_team_create(trial->world, 1, ranks, 2);
    trial->engine = trial->world->ranks[0].engine;
    for (int member = 0; member < 2; member++)
        world_team_add(trial->team, member);
    for (int i = 0; i < 2; i++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.name = i ? "of the team" : "of the job";
        desc.dtype = HORON_FLOAT32;
        desc.src = desc.dst = &trial->data[i];
        desc.count = 1;
        struct horon_engine_team *team = i ? trial->team->members[1] : trial->engine->job;
        trial->requests[i] = world_submit_to(trial->world, 0, team, &desc);
    }
    while (horon_engine_progress(trial->engine))
        ;
    assert_int_equal(horon_engine_in_flight(trial->engine), 2);
    assert_true(horon_engine_is_between(trial->engine));
}

/* Without a link to rank 1, which stays where it is; but with a ring in the team's memory. */
static horon_status_t replace(struct trial *trial, struct horon_error *error)
{
    struct horon_link *links[2] = {NULL}, *rings[2] = {NULL};
    struct horon_host *host = &trial->team->hosts[1];
    const struct horon_team_options options = {
        .id = 1, .ranks = trial->team->ranks, .size = 2, .host = host, .rings = rings};
    const struct horon_engine_place place = {.topology = &trial->world->ranks[0].topology,
                                             .host = &trial->world->ranks[0].host,
                                             .links = links,
                                             .generation = HORON_GENERATION_FIRST + 1,
                                             .teams = &options,
                                             .team_count = 1};
    const horon_status_t made =
        horon_link_ring_create(horon_host_ring(host, 1, true), horon_host_ring(host, 1, false),
                               HORON_RING_DATA_BYTES, NULL, &rings[0]);
    if (made != HORON_OK)
        return made;
    const horon_status_t status = horon_engine_replace(trial->engine, &place, error);
    assert_null(rings[0]); /* taken, whatever has happened */
    return status;
}

/* Where it went well, a request may have been refused as it was submitted again: on this rank
 * alone, as any that meets no memory. */
static void check(const struct trial *trial, horon_status_t status)
{
    const bool failed = horon_engine_failure(trial->engine) != NULL;
    size_t ended = 0;
    assert_true(status == HORON_OK || status == HORON_ERR_MEMORY);
    assert_false(status == HORON_OK && failed);
    assert_int_equal(horon_team_failure(trial->team->members[1]) != NULL, failed);
    for (int i = 0; i < 2; i++) {
        if (atomic_load(&trial->requests[i]->state) != HORON_REQUEST_ENDED)
            continue;
        assert_int_equal(trial->requests[i]->status, HORON_ERR_MEMORY);
        ended++;
    }
    assert_int_equal(horon_engine_in_flight(trial->engine), 2 - ended);
    if (failed)
        assert_int_equal(ended, 2);
    else
        assert_true(ended <= (status == HORON_OK));
}

static void end(const struct trial *trial)
{
    for (int rank = 0; rank < 2; rank++)
        horon_engine_end_requests(trial->world->ranks[rank].engine);
    for (int i = 0; i < 2; i++)
        world_release(trial->requests[i]);
    world_team_destroy(trial->team);
    world_destroy(trial->world);
}

static void test_torture_membership_each_allocation_fails_once(void **state)
{
    long unchanged = 0, failed = 0;
    (void)state;
    for (long n = 1;; n++) {
        const long live = alloc_live();
        struct trial trial = {0};
        struct horon_error error = {0};
        begin(&trial);
        alloc_fail_at(n, 0);
        const horon_status_t status = replace(&trial, &error);
        const bool hit = alloc_count() >= n;
        alloc_fail_at(0, 0);
        check(&trial, status);
        if (horon_engine_failure(trial.engine))
            failed++;
        else if (status != HORON_OK)
            unchanged++;
        assert_true(horon_engine_failure(trial.engine) || status == HORON_OK ||
                    trial.engine->membership->generation == HORON_GENERATION_FIRST);
        end(&trial);
        assert_int_equal(alloc_live(), live);
        if (!hit)
            break;
    }
    print_message("# %ld times nothing changed, %ld times all failed\n", unchanged, failed);
    assert_true(unchanged > 0);
    assert_true(failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_membership_each_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
