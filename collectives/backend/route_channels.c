/* SPDX-License-Identifier: Apache-2.0 */
/* Which backends all ranks of a route can use, and the channels of those that are at work. */
#include "backend/route_channels.h"

#include <stdio.h>

/* What the words about usable backends show instead of an operation's check. */
#define CHECK_OF_BACKENDS UINT64_C(0x62656e6461636b62)

static bool is_usable_here(const struct horon_route *route,
                           const struct horon_backend_context *context, char *why, size_t why_bytes)
{
    const uint32_t caps = context->backend->caps;
    if (!(caps & HORON_BACKEND_ANY_THREAD)) {
        snprintf(why, why_bytes, "it wants one thread, and each thread that waits drives it");
        return false;
    }
    if ((caps & HORON_BACKEND_ONE_LAUNCH_ORDER) && !route->options.tickets) {
        snprintf(why, why_bytes, "it wants one order of launches, and there are no tickets");
        return false;
    }
    return context->backend->usable(context, route->team, why, why_bytes);
}

/* ---- channels -------------------------------------------------------------------------------- */

/* @param address  [address_words] of this rank's */
static horon_status_t make_channel(struct horon_route *route, size_t index, int device,
                                   uint64_t *address)
{
    const struct horon_backend *backend = horon_route_backend_at(route, index);
    struct horon_poller *poller = route->options.poller;
    struct horon_backend_channel *channel = NULL;
    horon_status_t status =
        backend->create(route->options.backends->contexts[index], &route->options.channel,
                        route->team, route->host, device, address, &channel);
    if (status != HORON_OK)
        return status;
    assert(channel->backend == backend);
    const int descriptor = backend->descriptor(channel);
    if (descriptor >= 0 && poller)
        status = horon_poller_add_descriptor(poller, descriptor, NULL);
    if (status == HORON_OK)
        route->channels[index] = channel;
    else
        backend->destroy(channel);
    return status;
}

void horon_route_unwatch(const struct horon_route *route, size_t index)
{
    const struct horon_backend_channel *channel = route->channels[index];
    const int descriptor = channel ? channel->backend->descriptor(channel) : -1;
    if (descriptor >= 0 && route->options.poller)
        horon_poller_remove_descriptor(route->options.poller, descriptor);
}

void horon_route_drop(struct horon_route *route, size_t index)
{
    if (route->step != HORON_ROUTE_GIVEN_UP)
        horon_route_unwatch(route, index);
    horon_route_backend_at(route, index)->destroy(route->channels[index]);
    route->channels[index] = NULL;
}

/* After all ranks have agreed on what is usable, or connected what they use. */
static void become_ready(struct horon_route *route)
{
    horon_route_move(route, HORON_ROUTE_READY);
    memset(route->memos, 0, sizeof route->memos);
    route->simple = true;
    int usable = 0;
    for (size_t i = 0; i < route->terms.count; i++) {
        if (!route->terms.versions[i])
            continue;
        usable++;
        if (!route->channels[i] || horon_route_needs_of(route, i))
            route->simple = false;
    }
    route->single = usable == 1;
}

horon_status_t horon_route_look(struct horon_route *route)
{
    horon_status_t status = HORON_OK;
    bool all_everywhere = true;
    for (size_t i = 0; i < route->terms.count && status == HORON_OK; i++) {
        const struct horon_backend *backend = horon_route_backend_at(route, i);
        const struct horon_backend_context *context = route->options.backends->contexts[i];
        char why[256] = "";
        if (context && is_usable_here(route, context, why, sizeof why))
            route->terms.versions[i] = context->version;
        else if (context)
            horon_backends_unused(route->options.backends, route->options.log, backend, "", why);
        const bool everywhere = backend->caps & HORON_BACKEND_EVERYWHERE;
        all_everywhere &= everywhere;
        if (!everywhere)
            continue;
        assert(route->terms.versions[i]);
        assert(backend->address_words == 0);
        assert(!horon_route_needs_of(route, i)); /* which would be words on it */
        status = make_channel(route, i, 0, NULL);
        route->words.channel = route->channels[i];
    }
    assert(status != HORON_OK || route->words.channel); /* there is always one that serves all */
    if (status == HORON_OK && all_everywhere)
        become_ready(route);
    return status;
}

/* ---- what is usable -------------------------------------------------------------------------- */

/* A word for each backend, the higher the lower its version, since the highest of all is heard; and
 * the rank that says so. */
static horon_status_t begin_to_agree(struct horon_route *route, struct horon_error *error)
{
    if (horon_words_clear(&route->words, HORON_BACKENDS_MAX) != HORON_OK)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to agree on backends");
    for (size_t i = 0; i < route->terms.count; i++)
        route->words.words[i] =
            (uint64_t)(UINT32_MAX - route->terms.versions[i]) << 32 | (uint64_t)route->team->rank;
    horon_words_begin(&route->words, HORON_BACKENDS_MAX, NULL, CHECK_OF_BACKENDS);
    return HORON_OK;
}

/* All ranks do, before the same operation. @param could this rank @param rank that cannot */
static void do_without(struct horon_route *route, size_t index, bool could, uint64_t rank)
{
    const char *by = rank < (uint64_t)route->team->size ? route->team->rank_names[rank] : "a rank";
    if (could)
        horon_backends_unused(route->options.backends, route->options.log,
                              horon_route_backend_at(route, index), by, " cannot");
    horon_route_drop(route, index);
    route->terms.versions[index] = 0;
}

horon_status_t horon_route_agree(struct horon_route *route, bool *moved_out,
                                 struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    if (!route->words.flying)
        status = begin_to_agree(route, error);
    if (status == HORON_OK)
        status = horon_words_advance(&route->words, moved_out, error);
    if (status != HORON_OK)
        return status;
    for (size_t i = 0; i < route->terms.count; i++) {
        const uint64_t word = route->words.words[i];
        const uint32_t version = UINT32_MAX - (uint32_t)(word >> 32);
        if (!version)
            do_without(route, i, route->terms.versions[i], (uint32_t)word);
        route->terms.versions[i] = version;
    }
    become_ready(route);
    return HORON_OK;
}

/* Makes a channel of the backend that was chosen, and tells its address. @param op the first that
 * all ranks give to it */
static horon_status_t begin_to_open(struct horon_route *route, const struct horon_operation *op,
                                    struct horon_error *error)
{
    const size_t index = (size_t)route->choice->backend, size = (size_t)route->team->size;
    const struct horon_backend *backend = horon_route_backend_at(route, index);
    const size_t words = backend->address_words;
    if (horon_words_clear(&route->words, 1 + size * words) != HORON_OK)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the addresses of all ranks");
    uint64_t *addresses = route->words.words + 1;
    const horon_status_t status =
        make_channel(route, index, op->device, addresses + (size_t)route->team->rank * words);
    if (status == HORON_IN_PROGRESS)
        return status;
    if (status != HORON_OK) {
        horon_backends_unused(route->options.backends, route->options.log, backend,
                              "no channel: ", horon_status_text(status));
        memset(addresses, 0, size * words * sizeof *addresses);
    }
    route->words.words[0] = status == HORON_OK ? 0 : 1 + (uint64_t)route->team->rank;
    horon_words_begin(&route->words, 1 + size * words, op, 0);
    horon_route_move(route, HORON_ROUTE_OPENS);
    return HORON_OK;
}

horon_status_t horon_route_open(struct horon_route *route, const struct horon_operation *op,
                                bool *moved_out, struct horon_error *error)
{
    const size_t index = (size_t)route->choice->backend;
    horon_status_t status = HORON_OK;
    if (route->step == HORON_ROUTE_READY)
        status = begin_to_open(route, op, error);
    if (status == HORON_OK && route->step == HORON_ROUTE_OPENS) {
        status = horon_words_advance(&route->words, moved_out, error);
        if (status == HORON_OK && route->words.words[0]) {
            do_without(route, index, route->channels[index], route->words.words[0] - 1);
            become_ready(route);
            return HORON_OK;
        }
        if (status == HORON_OK)
            horon_route_move(route, HORON_ROUTE_CONNECTS);
    }
    if (status == HORON_OK)
        status = horon_route_backend_at(route, index)
                     ->connect(route->channels[index], route->words.words + 1, moved_out, error);
    if (status == HORON_OK)
        become_ready(route);
    return status;
}
