/* SPDX-License-Identifier: Apache-2.0 */
/* Second teams in a world: any of its ranks in any order, with shared memory of their own. The
 * arenas of those of a host are made once all of them have asked. */
#ifndef HORON_TEST_WORLD_TEAMS_H
#define HORON_TEST_WORLD_TEAMS_H

#include "engine/engine_state.h"
#include "world/world.h"

struct world_team_memory {
    uint8_t **segments; /* [host count] */
    uint8_t **arenas;   /* [size] by host, then local rank; NULL: nobody has asked */
};

struct world_team {
    struct world *world;
    struct world_team *next;
    uint32_t id;
    int *ranks; /* [size] of the world */
    int size;
    struct horon_topology topology; /* of its members */
    struct world_team_memory memory;
    int *process_of;                    /* [size] likewise: local ranks in the world */
    struct horon_host *hosts;           /* [size] of each member */
    struct horon_engine_team **members; /* [size] NULL: not added yet, or removed */
    int *asked;                         /* [host count] members that wanted arenas */
    int has_no_room;                    /* for an arena of this member; -1: all have */
};

/** Memory, and links between hosts that the world has not, unless it is bare; no engine knows of
 * it yet. */
struct world_team *world_team_create(struct world *world, uint32_t id, const int *ranks, int size);
void world_team_add(struct world_team *team, int member);
/** Makes the arenas of its members on @p host, which nobody has been given yet. */
void world_team_map_arenas(struct world_team *team, int host);
/** Gives it new memory, as its hosts have got in world_renew_hosts(); its members are not told.
 * @return the old memory, which goes by world_team_free_memory() */
struct world_team_memory world_team_renew(struct world_team *team);
void world_team_free_memory(const struct world_team *team, struct world_team_memory memory);
/** Have two members of a team ended the same in it, and decided the same? NULL: not made yet. */
bool world_teams_are_level(const struct horon_engine_team *one,
                           const struct horon_engine_team *other);
/** Gives a world of one host, whose ranks are all in the same place, another membership: all ranks,
 * and all teams that they are in. @return false: they are not */
bool world_replace(struct world *world);
void world_team_remove(struct world_team *team, int member);
/** Removes it from all members that have it, and frees it. */
void world_team_destroy(struct world_team *team);

/** As world_submit(), for one member. */
struct horon_request *world_team_submit(struct world_team *team, int member,
                                        const horon_descriptor_t *desc);

/** The process of a rank is gone: others on its host are told, its links end. */
void world_kill(struct world *world, int rank);

#endif
