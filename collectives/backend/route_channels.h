/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a route: which backends all ranks can use, and the channels of those that were chosen.
 * Ranks agree on the one before the first operation of all, and make and connect the other before
 * the first operation of a backend, by words that they tell each other.
 */
#ifndef HORON_BACKEND_ROUTE_CHANNELS_H
#define HORON_BACKEND_ROUTE_CHANNELS_H

#include "backend/route.h"

static inline const struct horon_backend *horon_route_backend_at(const struct horon_route *route,
                                                                 size_t index)
{
    assert(index < route->terms.count);
    return route->terms.backends[index];
}

/** What of a backend takes words before an operation, of HORON_BACKEND_*. */
static inline uint32_t horon_route_needs_of(const struct horon_route *route, size_t index)
{
    const uint32_t checks = route->terms.in_order ? HORON_BACKEND_UNCHECKED : 0;
    return horon_route_backend_at(route, index)->caps & (HORON_BACKEND_ONE_LAUNCH_ORDER | checks);
}

/** What is usable here; a channel of each that needs no connecting.
 * @return OK | ERR_MEMORY | what such a one failed with */
horon_status_t horon_route_look(struct horon_route *route);
/** Before the first operation of all: what is usable on all ranks. @return OK | IN_PROGRESS | what
 * the words' channel failed with */
HORON_SELDOM horon_status_t horon_route_agree(struct horon_route *route, bool *moved_out,
                                              struct horon_error *error);
/** Makes and connects a channel of the backend that was chosen for @p op, the first that all ranks
 * give to it.
 * @return OK: it is connected, or no rank uses that backend any more | IN_PROGRESS | what the
 * backend or the words' channel failed with */
HORON_SELDOM horon_status_t horon_route_open(struct horon_route *route,
                                             const struct horon_operation *op, bool *moved_out,
                                             struct horon_error *error);
void horon_route_drop(struct horon_route *route, size_t index);
/** Its descriptor wakes nobody any more. */
void horon_route_unwatch(const struct horon_route *route, size_t index);

#endif
