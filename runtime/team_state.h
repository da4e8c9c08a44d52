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

/* How far this rank is with it. Which moves are legal says a table in teams.c. */
enum horon_context_team_state {
    HORON_CONTEXT_TEAM_ASKS,   /* it waits for what it needs of the other members */
    HORON_CONTEXT_TEAM_FAILED, /* it cannot be made: other members here may wait to be told */
    HORON_CONTEXT_TEAM_MADE,   /* the engine has it */
    HORON_CONTEXT_TEAM_LEFT    /* what was said to the others goes out */
};

struct horon_context_team {
    enum horon_context_team_state state;
    struct horon_context *ctx;
    struct horon_context_team *next;
    uint32_t id;
    struct horon_topology topology;
    int *ranks;                            /* [size] of the job */
    struct horon_engine_team *engine_team; /* once it is made */
    bool all_settled;                      /* its members have said so: teams.h */
    struct horon_error failure;            /* of making it: the first one */
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

/** It has failed on this rank, made or not. Owner only; teams.c. */
void horon_context_team_fail(struct horon_context_team *team, const struct horon_error *why);

/* team_memory.c; all for the owner only */

/** Makes the team's segment, on the member that leads, or fails the team. */
void horon_team_make_segment(struct horon_context_team *team);
/** Sends what is there to send, as far as the sockets take it; the rest follows by itself. */
void horon_team_send_memory(struct horon_context_team *team);
/** Is memory on its way that members on this host wait for? */
bool horon_team_memory_unsent(const struct horon_context_team *team);
/** Takes what came for the team before it was here, and forgets what came for those before it.
 * @param team NULL: forgets everything */
void horon_team_take_early_memory(struct horon_context *ctx, struct horon_context_team *team);
/** It has failed before it was made: tells members here that hear nothing by a link. Those that
 * never made it forget that. */
void horon_team_refuse_memory(struct horon_context_team *team);
/** Gives its memory back. */
void horon_team_free_memory(struct horon_context_team *team);

#endif
