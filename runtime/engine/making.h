/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How teams are made and removed on one rank, and how the membership that they are bound to is
 * replaced: calls of the engine, for its owner.
 */
#ifndef HORON_ENGINE_MAKING_H
#define HORON_ENGINE_MAKING_H

#include "engine/engine.h"

struct horon_engine_team;

/** A second team, of any ranks in any order. */
struct horon_team_options {
    uint32_t id;      /* above those of all teams before it; the same on all members, and below
                         HORON_TEAMS_END */
    const int *ranks; /* [size] of the job, this one among them; each once */
    int size;
    struct horon_host *host; /* what its members on this host share; must outlive the team. Its
                                arenas may be NULL: see engine_options.make_arenas */
    /* [size] links in shared memory to its neighbours in its tree on this host, else NULL; taken
     * over, also on failure */
    struct horon_link **rings;
    const struct horon_backends *backends; /* of the job's, copied; NULL: all of these */
};
#define HORON_TEAMS_END (UINT32_C(1) << 30)

/** Makes a team. Between members on different hosts there must be the links that
 * horon_topology_linked() asks for: see horon_engine_connect(). @return OK | ERR_MEMORY */
horon_status_t horon_engine_add_team(struct horon_engine *engine,
                                     const struct horon_team_options *options,
                                     struct horon_engine_team **team_out,
                                     struct horon_error *error);
/** Is there a link to a rank, on which control messages go? Owner only. */
bool horon_engine_is_linked(const struct horon_engine *engine, int rank);
/** Has a rank said that it leaves the job? Owner only. */
bool horon_engine_has_left(const struct horon_engine *engine, int rank);
/** A team could not be made on this rank: tells its other members that have a link to it, whether
 * they have it already or not; nobody waits for links to the others any more. @p ranks [size] its
 * members */
void horon_engine_refuse_team(struct horon_engine *engine, uint32_t id, const int *ranks, int size,
                              const struct horon_error *why);
/** Has another member said that it cannot make a team that is not here yet? @return whether, and
 * why. Owner only. */
bool horon_engine_is_refused(const struct horon_engine *engine, uint32_t id,
                             struct horon_error *error);
/** Ends what a team has in flight with ERR_CLOSED. The other members hear of it: what this rank had
 * completed they can complete, too, and nothing later; once its rings have nothing unsent. */
void horon_engine_leave_team(struct horon_engine *engine, struct horon_engine_team *team);
/** Beside a bit for each lane: all has ended, and well, that this rank has submitted to a team. */
#define HORON_TEAM_SETTLED 0x80u
/** From now on nothing begins that has not, but that channels which ranks open get connected.
 * @return TEAM_SETTLED or not, and by lane: has this rank told the others that it opens one, or
 * have they done so? */
uint8_t horon_engine_part_team(struct horon_engine *engine, struct horon_engine_team *team);
/** @return by lane, a bit: do ranks open a channel? */
uint8_t horon_team_opens(const struct horon_engine_team *team);
/** Before its channels go: not all ranks have settled. What they share for it stays with them. */
void horon_team_unsettle(struct horon_engine_team *team);
/** Leaves a team, if that is not done, and frees what it has; what is unsent is lost. Requests of
 * it that are not released yet keep the struct, and fail if they are started again. */
void horon_engine_remove_team(struct horon_engine *engine, struct horon_engine_team *team);

/** Where a membership is: as the fields of the same names in horon_engine_options. */
struct horon_engine_place {
    const struct horon_topology *topology;
    struct horon_host *host;
    struct horon_link **links;
    uint32_t generation; /* above the one before */
    /* [team_count] of each team of this rank but the job, in the order of their ids: its ranks may
     * have other numbers now, and its shared memory is new. Its links are among the above. */
    const struct horon_team_options *teams;
    int team_count;
};
/** May the membership be replaced as far as this rank sees: has every operation that was begun or
 * decided ended here, in all teams, and is nobody lost? And no team may be about to get arenas, or
 * to be removed. */
bool horon_engine_is_between(const struct horon_engine *engine);
/**
 * Replaces the membership, as all ranks do after the same operations and with the same teams: no
 * team is here that another member has not made yet, or does not have any more, and no link is
 * being made. The old links are closed; the shared memory is new. Teams keep their ids, and are
 * bound anew; requests of which nothing has begun go on in them; names, configuration and counts
 * stay. So does the highest ticket of the device: what was drawn and not launched is drawn again,
 * by all.
 * @return OK | ERR_MEMORY: all teams have failed on this rank, or nothing has changed. Links and
 * rings are taken over in any case.
 */
horon_status_t horon_engine_replace(struct horon_engine *engine,
                                    const struct horon_engine_place *place,
                                    struct horon_error *error);

#endif
