/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a lane's operations to the backends: a route has a channel of each backend that is
 * usable on its team, and gives each operation to the one that is chosen (choose.c). Operations end
 * in the order in which they were begun. Several may be launched at a time if their backend lets
 * them, and only on one backend at a time: so the order holds without comparing backends.
 */
#ifndef HORON_BACKEND_ROUTE_H
#define HORON_BACKEND_ROUTE_H

#include "backend/backend.h"
#include "backend/compose.h"
#include "backend/tickets.h"
#include "log.h"

struct horon_route_options {
    const struct horon_backend *const *backends; /* [backend_count]; must outlive the route */
    size_t backend_count;
    const struct horon_channel_options *channel;
    bool deterministic, in_order;  /* as in horon_backend_terms */
    int32_t team;                  /* its number */
    struct horon_tickets *tickets; /* of the device; or NULL: no backend here needs them */
    const struct horon_log *log;
};

struct horon_route {
    struct horon_backend_terms terms;
    const struct horon_team *team;
    const struct horon_log *log;
    struct horon_tickets *tickets;
    int32_t number; /* of the team */
    struct horon_backend_channel *channels[HORON_BACKENDS_MAX];
    struct horon_backend_channel *current; /* of what is launched */
    int launched;
    uint64_t ended;
    struct horon_backend_choice choice;   /* the last one, if there was one */
    struct horon_backend_channel *chosen; /* by it; NULL: none carries that */
    uint8_t chosen_for[4]; /* verb, dtype, reduction and memory: all that counts for it */
    bool has_chosen;
    bool plain; /* what was chosen takes the operation as it is, at any time */
    struct horon_composed composed;
    bool composing;                  /* `composed` is in flight, and nothing else */
    uint32_t told[HORON_VERB_COUNT]; /* backends whose lack of the verb was told */
    horon_status_t refused;          /* why the operation that was begun last cannot be */
    char why[256];
};

/** One line is logged for each backend that is not usable.
 * @return OK | ERR_MEMORY | what a backend that said it is usable failed with */
horon_status_t horon_route_init(struct horon_route *route,
                                const struct horon_route_options *options,
                                const struct horon_team *team, struct horon_host *host);
/** All zero is a no-op. */
void horon_route_deinit(struct horon_route *route);

/** May this operation be begun now: is nothing in its way, and is it its team's turn? */
bool horon_route_may_begin(struct horon_route *route, const struct horon_operation *op);
/** Begins it; it stays as it is until it ends. */
void horon_route_begin(struct horon_route *route, const struct horon_operation *op);
/** As horon_channel_advance(), of the first that has not ended; ERR_UNSUPPORTED: no backend carries
 * it. */
horon_status_t horon_route_advance(struct horon_route *route, bool *moved_out,
                                   struct horon_error *error);
/** Gives up what is launched: nobody touches the operations' memory any more. */
void horon_route_abort(struct horon_route *route);

/** Does the first that has not ended wait for @p rank? */
bool horon_route_waits_for(struct horon_route *route, int rank);

/** Operations ended so far. */
static inline uint64_t horon_route_ended(const struct horon_route *route)
{
    return route->ended;
}

/** Nanoseconds after which one has to look again, since nobody says when it may go on; 0: somebody
 * does. */
uint64_t horon_route_interval_ns(const struct horon_route *route);

#endif
