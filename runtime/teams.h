/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams of a context besides the job: any of its ranks in any order, made and removed while it
 * runs. Inside of the library; process_sets.c makes those of the ABI of it.
 */
#ifndef HORON_TEAMS_H
#define HORON_TEAMS_H

#include "context_state.h"

struct horon_context_team;
struct horon_backends;

/**
 * Makes a team; every member calls this, and waits for the others as far as it needs them: for the
 * memory that its members on this host share, and for links to those of other hosts. What fails on
 * one member fails the team on those that have made it.
 * @param id    above those of all teams before it, the same on all members, below HORON_TEAMS_END
 * @param ranks [size] of the job, this one among them; each once
 * @param backends what may carry its operations, of the job's; copied; NULL: all of these
 * @return OK | ERR_MEMORY | ERR_TIMEOUT, naming the rank that was waited for longer than
 *         PEER_TIMEOUT | ERR_CLOSED, a member has left the job | why the job failed, or a member
 *         could not be reached
 * Thread: any but the progress thread; one call at a time. Blocks: PEER_TIMEOUT at most.
 */
horon_status_t horon_context_add_team(struct horon_context *ctx, uint32_t id, const int *ranks,
                                      int size, const struct horon_backends *backends,
                                      struct horon_context_team **team_out,
                                      struct horon_error *error);
/**
 * Removes it here: what it has in flight ends with ERR_CLOSED, and its memory is given back. Its
 * persistent requests must be released before. The other members can still complete what this rank
 * has completed. Thread: any but the progress thread. Blocks: while a member on this host does not
 * take what this rank has said to it, PEER_TIMEOUT at most.
 */
void horon_context_remove_team(struct horon_context_team *team);

/** It is about to be removed: nothing of it begins here any more.
 * @return as horon_engine_part_team(). Thread: any. Blocks: as horon_token_take(). */
uint8_t horon_context_team_part(struct horon_context_team *team);
/** Where all ranks open a channel, a library may wait in each for all others: so they end it.
 * Drives. @param said  what all have said of the team. Blocks: PEER_TIMEOUT at most. */
void horon_context_team_end_opening(struct horon_context_team *team, uint8_t said);

/** The engine's, for horon_team_submit(); it is there until the team is removed. */
struct horon_engine_team *horon_context_team_of(const struct horon_context_team *team);

#endif
