/* SPDX-License-Identifier: Apache-2.0 */
/* The teams of a run besides the job, which has the number 0. */
#ifndef HORON_TEST_SIMULATION_TEAMS_H
#define HORON_TEST_SIMULATION_TEAMS_H

#include "simulation/simulation.h"

/** Perhaps there is a second one in this run, or process sets are added and removed. */
void sim_team_draw(struct simulation *sim);
/** One more. @return its number */
int sim_team_create(struct simulation *sim, const int *ranks, int size);
int sim_team_size(const struct simulation *sim, int team);
/** A member's rank in the job. */
int sim_team_rank(const struct simulation *sim, int team, int member);
/** @return the place of @p rank in it, or -1 */
int sim_team_member(const struct simulation *sim, int team, int rank);
const struct horon_topology *sim_team_topology(const struct simulation *sim, int team);
struct horon_engine_team *sim_team_of(const struct sim_rank *rank, int team);
/** Does a team need a link between two ranks of the job, of different hosts? */
bool sim_team_links(const struct simulation *sim, int team, int a, int b);
/** With the token: makes a team on one of its members. */
void sim_team_add(struct sim_rank *rank, int team);
/** Binds all teams to the memory that their hosts have got in world_renew_hosts(). @param memories
 * [team_count] the old memory of each, for world_team_free_memory(); the first is not set */
void sim_teams_renew(struct simulation *sim, struct world_team_memory *memories);
/** What a rank's engine is told of a team that it makes, or that gets another membership. @param
 * rings [size] NULL; they are made */
struct horon_team_options sim_team_describe(struct sim_rank *rank, int team,
                                            struct horon_link **rings);
/** Nothing happens if the team is removed. */
void sim_team_give_arenas(struct sim_rank *rank, int team);
/** engine_options.make_arenas */
horon_status_t sim_make_arenas(void *rank, struct horon_engine_team *team,
                               struct horon_error *error);

#endif
