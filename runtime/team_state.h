/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a context's teams, shared by teams.c (how one is made and removed) and
 * team_memory.c (the memory that its members on one host share). */
#ifndef HORON_TEAM_STATE_H
#define HORON_TEAM_STATE_H

#include "rings.h"
#include "teams.h"

/* A member on this host, by its local rank in the team. */
struct horon_team_member {
    struct horon_map arena;
    struct horon_context_ring ring;
    int next; /* of what is to be sent there; see piece_count() in team_memory.c */
};

struct horon_context_team {
    struct horon_context *ctx;
    struct horon_context_team *next;
    uint32_t id;
    struct horon_topology topology;
    int *ranks;                            /* [size] of the job */
    struct horon_engine_team *engine_team; /* NULL: it is being made */
    struct horon_error failure;            /* of making it */
    struct horon_host host;
    struct horon_map segment;
    int local_rank, local_size;
    struct horon_team_member *members; /* [local_size] */
    int *process_of;                   /* [local_size] their local ranks in the job */
    uint8_t **arenas;                  /* [local_size] likewise */
    int arenas_here;
};

/** Is this rank the first of the team's members on this host, which passes memory around? */
static inline bool horon_team_leads(const struct horon_context_team *team)
{
    return team->local_rank == 0;
}

/* team_memory.c; all for the owner only */

/** Makes the team's segment, on the member that leads; what fails is kept in team->failure. */
void horon_team_make_segment(struct horon_context_team *team);
/** Sends what is there to send, as far as the sockets take it; the rest follows by itself. */
void horon_team_send_memory(struct horon_context_team *team);
/** Is memory on its way that members on this host wait for? */
bool horon_team_memory_unsent(const struct horon_context_team *team);
/** Takes what came for the team before it was here, and forgets what came for those before it.
 * @param team NULL: forgets everything */
void horon_team_take_early_memory(struct horon_context *ctx, struct horon_context_team *team);
/** It cannot be made here: tells members here that hear nothing by a link. Those that never made it
 * forget that. */
void horon_team_refuse_memory(struct horon_context_team *team);
/** Gives its memory back. */
void horon_team_free_memory(struct horon_context_team *team);

#endif
