/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a lane's operations to the backends. A route has a channel of each backend that is
 * usable everywhere, and of each that was chosen for an operation (choose.c). It gives every
 * operation to the backend that was chosen for it.
 * Operations end in the order in which they were begun. Several may be launched at a time if their
 * backend lets them, and only on one backend at a time: so the order holds without comparing
 * backends.
 *
 * What ranks must know of each other before an operation of another backend can begin, they tell
 * each other on a channel that all can use (words.h): before the first of all, which backends are
 * usable; before the first of a backend, the addresses of its channels; before each that needs a
 * ticket, the proposals for it; before one in order whose data shows no check, nothing but that, or
 * the rows; before one that is composed in rounds, the rows. Where all operations go to that
 * channel's backend nothing of this happens.
 */
#ifndef HORON_BACKEND_ROUTE_H
#define HORON_BACKEND_ROUTE_H

#include "backend/backends.h"
#include "backend/compose.h"
#include "backend/tickets.h"
#include "backend/words.h"
#include "link/poller.h"
#include "log.h"

struct horon_route_options {
    const struct horon_backends *backends; /* must outlive the route */
    struct horon_channel_options channel;  /* whose owner is the route's, too */
    bool deterministic, in_order;          /* as in horon_backend_terms */
    struct horon_tickets *tickets;         /* of the device; or NULL: no backend here needs them */
    struct horon_poller *poller; /* watches descriptors of backends, too; or NULL: nobody sleeps */
    const struct horon_log *log;
};

/** How far the next operation is on its way to be begun. */
enum horon_route_step {
    HORON_ROUTE_AGREES, /* ranks tell which backends they can use; once */
    HORON_ROUTE_READY,  /* nothing is in flight for it */
    HORON_ROUTE_OPENS,  /* ranks tell the addresses of the channels that they made for it */
    HORON_ROUTE_CONNECTS,
    HORON_ROUTE_MEETS,    /* in order: until all ranks have it */
    HORON_ROUTE_DRAWS,    /* ranks tell their proposals for its ticket */
    HORON_ROUTE_IS_KNOWN, /* to all ranks, and has its ticket if it needs one */
    HORON_ROUTE_GIVEN_UP  /* nothing begins any more */
};

/** What was chosen for operations of one verb, of that kind and size. */
struct horon_route_memo {
    uint8_t kind[4]; /* verb, dtype, reduction and memory */
    bool holds;
    uint64_t bytes; /* 0 where there is one backend: it carries all sizes or none */
    struct horon_backend_choice choice;
};

struct horon_route {
    struct horon_route_options options;
    struct horon_backend_terms terms;
    const struct horon_team *team;
    struct horon_host *host;
    struct horon_backend_channel *channels[HORON_BACKENDS_MAX]; /* NULL: not made yet */
    bool simple; /* no operation needs anything before it is begun */
    bool single; /* only one backend is usable */
    enum horon_route_step step;
    struct horon_words words; /* on the channel that all ranks can use */
    struct horon_ticket ticket;
    struct horon_backend_channel *current; /* of what is launched */
    int launched;
    uint64_t ended;
    uint64_t settle_ns; /* until the next horon_route_settle(); 0: nothing asks for it */
    struct horon_route_memo memos[HORON_VERB_COUNT]; /* by verb */
    const struct horon_backend_choice *choice;       /* the last one, if there was one */
    struct horon_composed composed;
    bool composing;         /* `composed` is in flight, and nothing else */
    bool gathers_rows;      /* of what is composed */
    bool knows_rows;        /* the words are those of the next one, from all ranks */
    horon_status_t refused; /* why the operation that was begun last cannot be */
    char why[256];
};

/** One line is logged for each backend that is not usable for the team.
 * @return OK | ERR_MEMORY | what a backend that is usable everywhere failed with */
horon_status_t horon_route_init(struct horon_route *route,
                                const struct horon_route_options *options,
                                const struct horon_team *team, struct horon_host *host);
/** Before horon_route_deinit(): other ranks may be at operations that this one is not. */
void horon_route_unsettle(struct horon_route *route);
/** All zero is a no-op. */
void horon_route_deinit(struct horon_route *route);

/** The only function that changes the step; asserts that the move is a legal one. */
void horon_route_move(struct horon_route *route, enum horon_route_step to);

/** As horon_route_ready(), where there is something to see to. */
horon_status_t horon_route_prepare(struct horon_route *route, const struct horon_operation *op,
                                   bool *moved_out, struct horon_error *error);
/** May this operation, the next one, be begun now? To be asked until it may.
 * @return OK | IN_PROGRESS, another one or another team is first, or ranks tell each other what
 * they must | as horon_channel_advance(), or what a backend failed with */
static inline horon_status_t horon_route_ready(struct horon_route *route,
                                               const struct horon_operation *op, bool *moved_out,
                                               struct horon_error *error)
{
    if (route->simple && !route->launched)
        return HORON_OK;
    return horon_route_prepare(route, op, moved_out, error);
}
/** Begins it; it stays as it is until it ends. */
void horon_route_begin(struct horon_route *route, const struct horon_operation *op);
/** As horon_channel_advance(), of the first that has not ended; ERR_UNSUPPORTED: no backend carries
 * it. */
horon_status_t horon_route_advance(struct horon_route *route, bool *moved_out,
                                   struct horon_error *error);
/** A rank has left that has not carried out the next operation: its ticket is never drawn, if it is
 * not yet, and others need not wait for it. */
void horon_route_forgo_ticket(struct horon_route *route);
/** Gives up what is launched, or connecting: nobody touches the operations' memory any more.
 * Afterwards it waits for nothing and wakes nobody. A second call is a no-op. */
void horon_route_abort(struct horon_route *route);

/** As settle() of the backends, while nothing is launched; settle.c. */
void horon_route_let_settle(struct horon_route *route);
/** @param waits  this rank does, for an operation of any route; else nothing of this is done */
static inline void horon_route_settle(struct horon_route *route, bool waits)
{
    route->settle_ns = 0;
    if (waits && route->terms.count > 1 && !route->launched)
        horon_route_let_settle(route);
}

/** Do ranks make or connect channels of a backend, for the next one? */
static inline bool horon_route_opens(const struct horon_route *route)
{
    return route->step == HORON_ROUTE_OPENS || route->step == HORON_ROUTE_CONNECTS;
}
/** Has this rank told the others that it does, or have they done so? */
bool horon_route_has_opened(const struct horon_route *route);

/** Does the first that has not ended, or the next one, wait for @p rank? */
bool horon_route_waits_for(struct horon_route *route, int rank);
/** If what has begun were given up now, would its inputs be as they were, in place too? */
bool horon_route_keeps_inputs(const struct horon_route *route);
/** What that does just now, for texts; "" if nothing is known. */
void horon_route_explain(const struct horon_route *route, char *text, size_t text_bytes);

/** The channel that carries messages, too; NULL: links do. */
static inline struct horon_backend_channel *horon_route_carrier(const struct horon_route *route)
{
    struct horon_backend_channel *channel = route->words.channel;
    return channel && channel->backend->messages ? channel : NULL;
}

/** Operations ended so far. */
static inline uint64_t horon_route_ended(const struct horon_route *route)
{
    return route->ended;
}

/** Nanoseconds after which it wants its next turn, since nothing wakes a thread that sleeps; 0:
 * something does. */
uint64_t horon_route_interval_ns(const struct horon_route *route);

#endif
