/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How teams come and go on one rank, and how the membership that they are bound to is replaced.
 * Then all of them are bound anew, or none: what a team is besides its place (id, requests, names,
 * counts) outlives the membership, and its requests are submitted again to the new coordinator.
 */
#include "engine/messages.h"

static_assert(HORON_TEAM_SETTLED >> HORON_LANE_COUNT, "a bit of its own");

/* A team that is new, with a rank that is not here any more. */
static void lose_again(struct horon_engine_team *team, int rank)
{
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_PEER_LOST, "%s is gone already",
                    team->engine->membership->rank_names[rank]);
    horon_error_blame(&why, HORON_CAUSE_DIED, rank, -1);
    horon_team_lose_rank(team, rank, &why);
}

static void drop_rings(const struct horon_team_options *options)
{
    for (int i = 0; i < options->size; i++) {
        if (options->rings[i])
            options->rings[i]->ops->destroy(options->rings[i]);
        options->rings[i] = NULL;
    }
}

static horon_status_t bind_team(struct horon_engine_team *team,
                                const struct horon_team_options *options, struct horon_error *error)
{
    const horon_status_t status =
        horon_team_bind(team, options->ranks, options->size, options->host, options->rings, error);
    drop_rings(options);
    return status;
}

horon_status_t horon_engine_add_team(struct horon_engine *engine,
                                     const struct horon_team_options *options,
                                     struct horon_engine_team **team_out, struct horon_error *error)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    assert(options->id > engine->newest_team && options->id < HORON_TEAMS_END);
    horon_status_t status = HORON_ERR_MEMORY;
    struct horon_engine_team *team = horon_team_create(engine, options->id, options->backends);
    struct horon_engine_team **last = &engine->job->next;
    if (team)
        status = bind_team(team, options, error);
    else
        drop_rings(options);
    if (status != HORON_OK) {
        horon_team_destroy(team);
        return status;
    }
    while (*last)
        last = &(*last)->next;
    *last = team;
    engine->newest_team = team->id;
    *team_out = team;
    for (int i = 0; i < options->size; i++) /* one that is lost already is not lost again */
        if (options->ranks[i] != engine->membership->topology->rank &&
            engine->membership->gone[options->ranks[i]])
            lose_again(team, options->ranks[i]);
    struct horon_error why = {0};
    if (horon_engine_take_early(engine, team->id, team, &why) != HORON_OK)
        horon_team_fail_here(team, &why);
    for (int i = 0; i < options->size; i++)
        if (engine->membership->left[options->ranks[i]])
            horon_team_lacks_member(team, options->ranks[i]);
    return HORON_OK;
}

uint8_t horon_engine_part_team(struct horon_engine *engine, struct horon_engine_team *team)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    horon_engine_take_posts(engine);
    team->parts = true;
    uint8_t said = !team->oldest && !team->failed ? HORON_TEAM_SETTLED : 0;
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        said |= (uint8_t)(horon_route_has_opened(&team->lanes[i].route) << i);
    return said;
}

uint8_t horon_team_opens(const struct horon_engine_team *team)
{
    uint8_t lanes = 0;
    for (int i = 0; i < HORON_LANE_COUNT && !team->failed; i++)
        lanes |= (uint8_t)(horon_route_opens(&team->lanes[i].route) << i);
    return lanes;
}

void horon_team_unsettle(struct horon_engine_team *team)
{
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        horon_route_unsettle(&team->lanes[i].route);
}

void horon_engine_leave_team(struct horon_engine *engine, struct horon_engine_team *team)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    assert(team->failed != HORON_TEAM_REMOVED);
    horon_engine_take_posts(engine); /* those of its requests would name it later */
    horon_team_end_removed(team);
    if (!engine->said_goodbye)
        horon_team_leave(team, false);
    horon_team_move_rings(team);
}

void horon_engine_remove_team(struct horon_engine *engine, struct horon_engine_team *team)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    if (team->failed != HORON_TEAM_REMOVED)
        horon_engine_leave_team(engine, team);
    horon_engine_free_team(engine, team);
}

/* ---- another membership --------------------------------------------------------------------- */

static bool is_between(const struct horon_engine_team *team)
{
    return !team->failed && !team->departures.any && team->state != HORON_TEAM_ASKING &&
           !horon_team_has_messages(team) && !team->lanes[HORON_LANE_ORDERED].running &&
           !team->lanes[HORON_LANE_NAMED].head;
}

bool horon_engine_is_between(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    bool between = !engine->leaving;
    for (const struct horon_engine_team *team = engine->job; team && between; team = team->next)
        between = is_between(team);
    return between;
}

static void unbind_all(struct horon_engine *engine)
{
    for (struct horon_engine_team *team = engine->job; team; team = team->next)
        horon_team_unbind(team);
}

/* All or none. */
static horon_status_t bind_all(struct horon_engine *engine, const struct horon_engine_place *place,
                               struct horon_error *error)
{
    const struct horon_team_options *options = place->teams;
    horon_status_t status =
        horon_team_bind(engine->job, NULL, place->topology->size, place->host, NULL, error);
    for (struct horon_engine_team *team = engine->job->next; team && status == HORON_OK;
         team = team->next) {
        assert(options < place->teams + place->team_count);
        assert(options->id == team->id);
        status = bind_team(team, options++, error);
    }
    if (status == HORON_OK)
        assert(options == place->teams + place->team_count);
    else
        unbind_all(engine);
    return status;
}

static void drop_place(const struct horon_engine_place *place)
{
    for (int i = 0; i < place->team_count; i++)
        drop_rings(&place->teams[i]);
}

horon_status_t horon_engine_replace(struct horon_engine *engine,
                                    const struct horon_engine_place *place,
                                    struct horon_error *error)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    assert(horon_engine_is_between(engine));
    assert(place->generation > engine->membership->generation);
    const struct horon_engine_options before = engine->options;
    struct horon_engine_team *team;
    struct horon_membership *next = NULL;
    engine->options.topology = place->topology;
    engine->options.host = place->host;
    engine->options.links = place->links;
    engine->options.generation = place->generation;
    horon_status_t status = horon_engine_create_membership(engine, &next, error);
    if (status != HORON_OK) {
        engine->options = before;
        drop_place(place);
        return status;
    }
    unbind_all(engine);
    horon_membership_destroy(engine->membership);
    horon_engine_free_early(engine);
    engine->membership = next;
    status = bind_all(engine, place, error);
    drop_place(place);
    if (status != HORON_OK)
        horon_error_set(error, status, "no memory for another membership");
    else
        horon_engine_say_linked(engine);
    for (team = engine->job; team; team = team->next)
        if (status == HORON_OK)
            horon_team_resubmit(team);
        else
            horon_team_give_up(team, error);
    return status;
}
