/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a library owes to other ranks when an operation has ended here: bytes that it has taken over
 * and not sent. Nothing of ours waits for them, so nobody would call it. But others do, and may be
 * what this rank waits for next, by whatever backend: without these turns both would wait for ever.
 */
#include "backend/route.h"

void horon_route_let_settle(struct horon_route *route)
{
    HORON_ASSERT_OWNER(route->options.channel.owner);
    assert(!route->launched);
    if (route->step == HORON_ROUTE_GIVEN_UP)
        return;
    for (size_t i = 0; i < route->terms.count; i++) {
        struct horon_backend_channel *channel = route->channels[i];
        if (!channel || !channel->backend->settle)
            continue;
        const uint64_t ns = channel->backend->settle(channel);
        if (ns && (!route->settle_ns || ns < route->settle_ns))
            route->settle_ns = ns;
    }
}
