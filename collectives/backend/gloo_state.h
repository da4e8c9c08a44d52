/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the backend gloo: gloo.c is its table and its mesh, gloo_run.c carries an operation
 * out, and gloo_messages.c messages, which belong to none.
 */
#ifndef HORON_BACKEND_GLOO_STATE_H
#define HORON_BACKEND_GLOO_STATE_H

#include "backend/gloo_plan.h"
#include "backend/messages.h"
#include "link/gloo_wire.h"

/** The full mesh. */
struct horon_gloo_mesh {
    struct horon_gloo_pair **pairs; /* [size]; NULL: this rank, or it was closed */
    uint32_t *watched;              /* [size] for what epoll watches each; 0: it does not */
    int size;
    int epoll_fd;
    bool silent; /* some rank's system was found to answer no more */
};

struct horon_gloo_context {
    struct horon_backend_context base;
    struct horon_gloo_mesh mesh;
    bool e1;      /* as in horon_backend_settings */
    bool watched; /* a channel has the descriptor */
};

enum horon_gloo_phase {
    HORON_GLOO_IDLE,
    HORON_GLOO_BEGUN,
    HORON_GLOO_LEARNS, /* how much comes from each rank */
    HORON_GLOO_MOVES   /* the plan's steps */
};

/** A step that is under way. */
struct horon_gloo_flight {
    struct horon_gloo_step step;
    struct horon_gloo_message send, recv;
};

struct horon_gloo_memory {
    uint8_t *at;
    size_t bytes;
};

struct horon_gloo_channel {
    struct horon_backend_channel base;
    struct horon_gloo_context *context;
    const struct horon_team *team;
    bool has_descriptor;
    uint32_t tag; /* of the next collective: Gloo's callers count them */

    const struct horon_operation *op; /* in flight */
    enum horon_gloo_phase phase;
    size_t element_bytes;
    struct horon_gloo_plan plan;
    uint64_t slot, begun, over;         /* steps */
    uint8_t *output;                    /* on which the plan works: dst, or `work` */
    uint8_t *rows_out;                  /* where rows that come belong in the end; NULL: nowhere */
    uint64_t *rows;                     /* [size] that come from each rank */
    uint64_t *give_at, *take_at;        /* [size + 1] bytes */
    struct horon_gloo_flight *flights;  /* [size + 1] */
    struct horon_gloo_memory work, two; /* two segments that came, and are not yet combined */
    struct horon_gloo_carried *carried, **last_carried; /* messages in flight (gloo_messages.c) */
};

static inline struct horon_gloo_channel *horon_gloo_channel_of(struct horon_backend_channel *base)
{
    assert(!base || base->backend == &horon_backend_gloo);
    return (struct horon_gloo_channel *)(void *)base;
}

/** What it does with messages. */
extern const struct horon_backend_messages horon_gloo_messages;
/** Those in flight; the pairs know them no more. */
void horon_gloo_forget_messages(struct horon_gloo_channel *channel);

/** The only function that changes the phase; asserts that the move is a legal one. */
void horon_gloo_move_phase(struct horon_gloo_channel *channel, enum horon_gloo_phase to);

/** Writes to and reads from a rank what goes. @return as horon_gloo_pair_move(); ranks are named */
horon_status_t horon_gloo_mesh_move(struct horon_gloo_channel *channel, int rank, bool *moved_out,
                                    struct horon_error *error);
/** Likewise to and from all that can go on. If nothing has moved, whatever comes later makes the
 * epoll readable again. */
horon_status_t horon_gloo_look(struct horon_gloo_channel *channel, bool *moved_out,
                               struct horon_error *error);
/** Forgets what is in flight. */
void horon_gloo_close_mesh(struct horon_gloo_mesh *mesh);
/** @return why->status; the rank is named */
horon_status_t horon_gloo_lost(const struct horon_gloo_channel *channel, int rank,
                               const struct horon_error *why, struct horon_error *error);
/** A rank broke the protocol, or sent another amount than it should. @return ERR_MISMATCH */
horon_status_t horon_gloo_differs(const struct horon_gloo_channel *channel, int rank,
                                  uint64_t bytes, uint64_t expected, struct horon_error *error);

/** Carries the operation on as far as it goes. @return OK, it has ended | IN_PROGRESS | an error */
horon_status_t horon_gloo_run(struct horon_gloo_channel *channel, bool *moved_out,
                              struct horon_error *error);
/** Does what is in flight wait for @p rank? */
bool horon_gloo_awaits(const struct horon_gloo_channel *channel, int rank);

#endif
