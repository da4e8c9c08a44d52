/* SPDX-License-Identifier: Apache-2.0 */
/* Channels of all usable backends, and which of them is at work. */
#include "backend/route.h"

#include <stdio.h>

static bool is_usable(const struct horon_backend *backend, const struct horon_team *team,
                      const struct horon_route_options *options, char *why, size_t why_bytes)
{
    if (!(backend->caps & HORON_BACKEND_ANY_THREAD)) {
        snprintf(why, why_bytes, "it wants one thread, and here whoever waits drives");
        return false;
    }
    if ((backend->caps & HORON_BACKEND_ONE_LAUNCH_ORDER) && !options->tickets) {
        snprintf(why, why_bytes, "it wants one order of launches, and there are no tickets");
        return false;
    }
    return backend->usable(backend, team, why, why_bytes);
}

horon_status_t horon_route_init(struct horon_route *route,
                                const struct horon_route_options *options,
                                const struct horon_team *team, struct horon_host *host)
{
    assert(options->backend_count <= HORON_BACKENDS_MAX);
    *route = (struct horon_route){
        .terms = {.backends = options->backends,
                  .count = options->backend_count,
                  .deterministic = options->deterministic,
                  .in_order = options->in_order},
        .team = team,
        .log = options->log,
        .tickets = options->tickets,
        .number = options->team,
    };
    for (size_t i = 0; i < options->backend_count; i++) {
        const struct horon_backend *backend = options->backends[i];
        char why[256] = "";
        assert(backend->launched_max >= 1);
        if (!is_usable(backend, team, options, why, sizeof why)) {
            HORON_LOG_INFO(route->log, "backend %s is not used: %s", backend->name, why);
            continue;
        }
        horon_status_t status =
            backend->create(backend, options->channel, team, host, &route->channels[i]);
        if (status != HORON_OK) {
            horon_route_deinit(route);
            return status;
        }
        assert(route->channels[i]->backend == backend);
        route->terms.usable |= 1u << i;
    }
    return HORON_OK;
}

void horon_route_deinit(struct horon_route *route)
{
    for (size_t i = 0; i < route->terms.count; i++)
        if (route->channels[i])
            route->channels[i]->backend->destroy(route->channels[i]);
    horon_composed_deinit(&route->composed);
    *route = (struct horon_route){0};
}

/* One line for each backend and verb. */
static void tell_passed_over(struct horon_route *route, const struct horon_signature *agreed)
{
    const struct horon_backend_choice *choice = &route->choice;
    const uint32_t fresh = choice->passed_over & ~route->told[agreed->verb];
    route->told[agreed->verb] |= fresh;
    for (size_t i = 0; i < route->terms.count; i++)
        if (fresh >> i & 1)
            HORON_LOG_INFO(route->log, "backend %s does not carry %s of %s: %s does",
                           route->terms.backends[i]->name, horon_verb_of(agreed)->name,
                           horon_dtype_name((horon_dtype_t)agreed->dtype),
                           choice->backend < 0 ? "none"
                                               : route->terms.backends[choice->backend]->name);
}

HORON_SELDOM static void choose(struct horon_route *route, const struct horon_signature *agreed)
{
    route->choice = horon_backend_choose(&route->terms, agreed);
    route->chosen = route->choice.backend < 0 ? NULL : route->channels[route->choice.backend];
    memcpy(route->chosen_for, &agreed->verb, sizeof route->chosen_for);
    route->plain = route->chosen && !route->choice.composed &&
                   !(route->chosen->backend->caps & HORON_BACKEND_ONE_LAUNCH_ORDER);
    route->has_chosen = true;
    tell_passed_over(route, agreed);
}

/* Looks at nothing but the four bytes of a signature from `verb` on, so it is done once for a run
 * of operations of a kind. */
static struct horon_backend_channel *channel_for(struct horon_route *route,
                                                 const struct horon_signature *agreed)
{
    if (!route->has_chosen ||
        memcmp(route->chosen_for, &agreed->verb, sizeof route->chosen_for) != 0)
        choose(route, agreed);
    return route->chosen;
}

bool horon_route_may_begin(struct horon_route *route, const struct horon_operation *op)
{
    if (route->launched && (route->composing || route->refused ||
                            route->launched == route->current->backend->launched_max))
        return false;
    if (!route->tickets && !route->launched)
        return true; /* the usual case: one backend, one at a time */
    const struct horon_backend_channel *channel = channel_for(route, &op->agreed);
    if (route->launched && (channel != route->current || route->choice.composed))
        return false;
    const bool ordered = channel && (channel->backend->caps & HORON_BACKEND_ONE_LAUNCH_ORDER);
    return !ordered || horon_tickets_turn(route->tickets, route->number);
}

/* Told by the next advance(). */
static void refuse(struct horon_route *route, horon_status_t status, const char *why)
{
    route->refused = status;
    snprintf(route->why, sizeof route->why, "%s", why);
}

static void refuse_unknown(struct horon_route *route, const struct horon_operation *op)
{
    route->refused = HORON_ERR_UNSUPPORTED;
    snprintf(route->why, sizeof route->why, "no backend carries %s of %s",
             horon_verb_of(&op->agreed)->name, horon_dtype_name((horon_dtype_t)op->agreed.dtype));
}

/* What is not plain. @return what to begin; NULL: it is refused */
HORON_SELDOM static const struct horon_operation *prepare(struct horon_route *route,
                                                          const struct horon_operation *op)
{
    if (!route->chosen) {
        refuse_unknown(route, op);
        return NULL;
    }
    if (route->chosen->backend->caps & HORON_BACKEND_ONE_LAUNCH_ORDER)
        horon_tickets_use(route->tickets, route->number);
    if (!route->choice.composed)
        return op;
    if (horon_compose(&route->composed, op, route->team->rank) != HORON_OK) {
        refuse(route, HORON_ERR_MEMORY, "no memory to compose an operation");
        return NULL;
    }
    route->composing = true;
    return &route->composed.op;
}

void horon_route_begin(struct horon_route *route, const struct horon_operation *op)
{
    struct horon_backend_channel *channel = channel_for(route, &op->agreed);
    assert(!route->launched || channel == route->current);
    route->launched++;
    route->current = channel;
    if (!route->plain)
        op = prepare(route, op);
    if (op)
        channel->backend->begin(channel, op);
}

horon_status_t horon_route_advance(struct horon_route *route, bool *moved_out,
                                   struct horon_error *error)
{
    assert(route->launched > 0);
    if (route->refused)
        return horon_error_set(error, route->refused, "%s", route->why);
    horon_status_t status = route->current->backend->advance(route->current, moved_out, error);
    if (status == HORON_OK) {
        route->composing = false;
        route->launched--;
        route->ended++;
    }
    return status;
}

void horon_route_abort(struct horon_route *route)
{
    if (route->launched && route->current)
        route->current->backend->abort(route->current);
    route->launched = 0;
    route->composing = false;
}

bool horon_route_waits_for(struct horon_route *route, int rank)
{
    return route->launched && !route->refused &&
           route->current->backend->waits_for(route->current, rank);
}

uint64_t horon_route_interval_ns(const struct horon_route *route)
{
    const bool polled = route->launched && route->current &&
                        route->current->backend->wake == HORON_BACKEND_WAKE_INTERVAL;
    return polled ? route->current->backend->interval_ns : 0;
}
