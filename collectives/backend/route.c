/* SPDX-License-Identifier: Apache-2.0 */
/* Channels of all usable backends, and which of them is at work. */
#include "backend/route.h"

#include <stdarg.h>
#include <stdio.h>

/* What the words about usable backends show instead of an operation's check. */
#define CHECK_OF_BACKENDS UINT64_C(0x62656e6461636b62)

#define BIT(step) (1u << HORON_ROUTE_##step)
static const uint8_t steps_after[] = {
    [HORON_ROUTE_READY] = BIT(MEETS) | BIT(DRAWS),
    [HORON_ROUTE_MEETS] = BIT(DRAWS),
    [HORON_ROUTE_DRAWS] = BIT(HAS_DRAWN),
    [HORON_ROUTE_HAS_DRAWN] = BIT(READY),
};

void horon_route_move(struct horon_route *route, enum horon_route_step to)
{
    assert(steps_after[route->step] & 1u << to);
    route->step = to;
}

static const struct horon_backend *backend_at(const struct horon_route *route, size_t index)
{
    assert(index < route->terms.count);
    return route->terms.backends[index];
}

static bool is_everywhere(const struct horon_backend *backend)
{
    return backend->caps & HORON_BACKEND_EVERYWHERE;
}

static bool is_usable_here(const struct horon_route *route, const struct horon_backend *backend,
                           char *why, size_t why_bytes)
{
    if (!(backend->caps & HORON_BACKEND_ANY_THREAD)) {
        snprintf(why, why_bytes, "it wants one thread, and each thread that waits drives it");
        return false;
    }
    if ((backend->caps & HORON_BACKEND_ONE_LAUNCH_ORDER) && !route->options.tickets) {
        snprintf(why, why_bytes, "it wants one order of launches, and there are no tickets");
        return false;
    }
    return backend->usable(backend, route->team, why, why_bytes);
}

static horon_status_t make_channel(struct horon_route *route, size_t index,
                                   struct horon_error *error)
{
    const struct horon_backend *backend = backend_at(route, index);
    struct horon_backend_channel **channel = &route->channels[index];
    horon_status_t status =
        backend->create(backend, &route->options.channel, route->team, route->host, channel);
    if (status != HORON_OK)
        return horon_error_set(error, status, "backend %s made no channel: %s", backend->name,
                               horon_status_text(status));
    assert((*channel)->backend == backend);
    if (backend->wake == HORON_BACKEND_WAKE_DESCRIPTOR && route->options.poller)
        status = horon_poller_add_descriptor(route->options.poller, backend->descriptor(*channel),
                                             error);
    if (status != HORON_OK) {
        backend->destroy(*channel);
        *channel = NULL;
    }
    return status;
}

static void set_simple(struct horon_route *route)
{
    route->agreed = true;
    route->simple = true;
    for (size_t i = 0; i < route->terms.count; i++)
        if (route->terms.usable >> i & 1 &&
            (backend_at(route, i)->caps & HORON_BACKEND_ONE_LAUNCH_ORDER))
            route->simple = false;
}

horon_status_t horon_route_init(struct horon_route *route,
                                const struct horon_route_options *options,
                                const struct horon_team *team, struct horon_host *host)
{
    bool all_everywhere = true;
    assert(options->backend_count <= HORON_BACKENDS_MAX);
    *route = (struct horon_route){
        .options = *options,
        .terms = {.backends = options->backends,
                  .count = options->backend_count,
                  .deterministic = options->deterministic,
                  .in_order = options->in_order},
        .team = team,
        .host = host,
        .ticket.lane = options->channel.channel,
    };
    for (size_t i = 0; i < options->backend_count; i++) {
        const struct horon_backend *backend = options->backends[i];
        char why[256] = "";
        assert(backend->launched_max >= 1);
        if (is_usable_here(route, backend, why, sizeof why))
            route->terms.usable |= 1u << i;
        else
            HORON_LOG_INFO(options->log, "backend %s is not used: %s", backend->name, why);
        if (!is_everywhere(backend)) {
            all_everywhere = false;
            continue;
        }
        assert(route->terms.usable >> i & 1);
        const horon_status_t status = make_channel(route, i, NULL);
        if (status != HORON_OK) {
            horon_route_deinit(route);
            return status;
        }
        route->words.channel = route->channels[i];
    }
    assert(route->words.channel); /* there is always one that serves all */
    if (all_everywhere)
        set_simple(route);
    return HORON_OK;
}

void horon_route_deinit(struct horon_route *route)
{
    if (route->options.tickets)
        horon_ticket_use(route->options.tickets, &route->ticket);
    for (size_t i = 0; i < route->terms.count; i++) {
        const struct horon_backend *backend = backend_at(route, i);
        if (!route->channels[i])
            continue;
        if (backend->wake == HORON_BACKEND_WAKE_DESCRIPTOR && route->options.poller)
            horon_poller_remove_descriptor(route->options.poller,
                                           backend->descriptor(route->channels[i]));
        backend->destroy(route->channels[i]);
    }
    horon_composed_deinit(&route->composed);
    horon_words_deinit(&route->words);
    *route = (struct horon_route){0};
}

/* ---- what is usable -------------------------------------------------------------------------- */

/* A word for each backend, 1 from a rank that cannot use it: the highest says whether any cannot.
 */
static horon_status_t begin_to_agree(struct horon_route *route, struct horon_error *error)
{
    if (horon_words_clear(&route->words, HORON_BACKENDS_MAX) != HORON_OK)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to agree on backends");
    for (size_t i = 0; i < route->terms.count; i++)
        route->words.words[i] = !(route->terms.usable >> i & 1);
    horon_words_begin(&route->words, HORON_BACKENDS_MAX, CHECK_OF_BACKENDS);
    return HORON_OK;
}

/* Before the first operation of all. */
HORON_SELDOM static horon_status_t agree(struct horon_route *route, bool *moved_out,
                                         struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    if (!route->words.flying)
        status = begin_to_agree(route, error);
    if (status == HORON_OK)
        status = horon_words_advance(&route->words, moved_out, error);
    for (size_t i = 0; i < route->terms.count && status == HORON_OK; i++) {
        const struct horon_backend *backend = backend_at(route, i);
        const bool here = route->terms.usable >> i & 1;
        if (route->words.words[i] == 0 && !route->channels[i])
            status = make_channel(route, i, error);
        else if (route->words.words[i] && here)
            HORON_LOG_INFO(route->options.log, "backend %s is not used: another rank cannot",
                           backend->name);
        if (route->words.words[i])
            route->terms.usable &= ~(1u << i);
    }
    if (status == HORON_OK)
        set_simple(route);
    return status;
}

/* ---- before an operation begins -------------------------------------------------------------- */

/* One line for each backend and verb. */
static void tell_passed_over(struct horon_route *route, const struct horon_signature *agreed)
{
    const struct horon_backend_choice *choice = &route->choice;
    const uint32_t fresh = choice->passed_over & ~route->told[agreed->verb];
    route->told[agreed->verb] |= fresh;
    for (size_t i = 0; i < route->terms.count; i++)
        if (fresh >> i & 1)
            HORON_LOG_INFO(route->options.log, "backend %s does not carry %s of %s: %s does",
                           backend_at(route, i)->name, horon_verb_of(agreed)->name,
                           horon_dtype_name((horon_dtype_t)agreed->dtype),
                           choice->backend < 0 ? "none"
                                               : backend_at(route, (size_t)choice->backend)->name);
}

HORON_SELDOM static void choose(struct horon_route *route, const struct horon_signature *agreed)
{
    route->choice = horon_backend_choose(&route->terms, agreed);
    route->chosen = route->choice.backend < 0 ? NULL : route->channels[route->choice.backend];
    memcpy(route->chosen_for, &agreed->verb, sizeof route->chosen_for);
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

static bool needs_ticket(const struct horon_route *route)
{
    return route->chosen && (route->chosen->backend->caps & HORON_BACKEND_ONE_LAUNCH_ORDER);
}

/* Ranks that submit in order meet first: only of what all of them have numbers are proposed. A
 * batch was decided because all have it. */
static horon_status_t begin_to_draw(struct horon_route *route, const struct horon_operation *op,
                                    struct horon_error *error)
{
    const bool meets = route->step == HORON_ROUTE_READY && route->terms.in_order;
    if (horon_words_clear(&route->words, 1) != HORON_OK)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a ticket");
    if (!meets)
        route->words.words[0] = horon_ticket_propose(route->options.tickets, &route->ticket);
    horon_words_begin(&route->words, 1, op->check);
    horon_route_move(route, meets ? HORON_ROUTE_MEETS : HORON_ROUTE_DRAWS);
    return HORON_OK;
}

HORON_SELDOM static horon_status_t draw(struct horon_route *route, const struct horon_operation *op,
                                        bool *moved_out, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && route->step != HORON_ROUTE_HAS_DRAWN) {
        if (!route->words.flying)
            status = begin_to_draw(route, op, error);
        if (status == HORON_OK)
            status = horon_words_advance(&route->words, moved_out, error);
        if (status == HORON_OK && route->step == HORON_ROUTE_DRAWS) {
            horon_ticket_draw(route->options.tickets, &route->ticket, route->words.words[0]);
            horon_route_move(route, HORON_ROUTE_HAS_DRAWN);
        }
    }
    if (status != HORON_OK)
        return status;
    return horon_ticket_is_next(route->options.tickets, &route->ticket) ? HORON_OK
                                                                        : HORON_IN_PROGRESS;
}

horon_status_t horon_route_prepare(struct horon_route *route, const struct horon_operation *op,
                                   bool *moved_out, struct horon_error *error)
{
    if (!route->agreed) {
        const horon_status_t status = agree(route, moved_out, error);
        if (status != HORON_OK)
            return status;
    }
    if (route->launched && (route->composing || route->refused ||
                            route->launched == route->current->backend->launched_max))
        return HORON_IN_PROGRESS;
    const struct horon_backend_channel *channel = channel_for(route, &op->agreed);
    if (route->launched && (channel != route->current || route->choice.composed))
        return HORON_IN_PROGRESS;
    return needs_ticket(route) ? draw(route, op, moved_out, error) : HORON_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Told by the next advance(). */
__attribute__((format(printf, 3, 4))) static void refuse(struct horon_route *route,
                                                         horon_status_t status, const char *format,
                                                         ...)
{
    va_list arguments;
    va_start(arguments, format);
    route->refused = status;
    vsnprintf(route->why, sizeof route->why, format, arguments);
    va_end(arguments);
}

/* All of the operation is launched: it is the turn of the next ticket. */
static void give_ticket_back(struct horon_route *route)
{
    if (route->step == HORON_ROUTE_HAS_DRAWN) {
        horon_ticket_use(route->options.tickets, &route->ticket);
        horon_route_move(route, HORON_ROUTE_READY);
    }
}

/* Launches the next operation of a composed one. @return false: it has ended */
static bool launch_next(struct horon_route *route)
{
    if (!horon_compose_next(&route->composed)) {
        route->composing = false;
        give_ticket_back(route);
        return false;
    }
    route->current->backend->begin(route->current, &route->composed.op);
    return true;
}

static void compose(struct horon_route *route, const struct horon_operation *op,
                    const uint64_t *rows)
{
    const horon_status_t status =
        horon_compose(&route->composed, op, route->team->rank, route->team->size, rows);
    if (status == HORON_ERR_MEMORY)
        refuse(route, status, "no memory to compose an operation");
    else if (status != HORON_OK)
        refuse(route, status, "the inputs add up to more than memory can hold");
}

/* Each rank's in a word of its own. */
static void gather_rows(struct horon_route *route, const struct horon_operation *op)
{
    if (horon_words_clear(&route->words, (size_t)route->team->size) != HORON_OK) {
        refuse(route, HORON_ERR_MEMORY, "no memory for the rows of all ranks");
        return;
    }
    route->words.words[route->team->rank] = op->rows;
    route->composed.whole = op;
    route->gathers_rows = true;
    horon_words_begin(&route->words, (size_t)route->team->size, op->check);
}

HORON_SELDOM static void begin_composed(struct horon_route *route, const struct horon_operation *op)
{
    route->composing = true;
    if (horon_compose_needs_rows(op)) {
        gather_rows(route, op);
        return;
    }
    compose(route, op, NULL);
    if (!route->refused)
        launch_next(route);
}

void horon_route_begin(struct horon_route *route, const struct horon_operation *op)
{
    struct horon_backend_channel *channel = channel_for(route, &op->agreed);
    assert(!route->launched || channel == route->current);
    route->launched++;
    route->current = channel;
    if (!channel) {
        refuse(route, HORON_ERR_UNSUPPORTED, "no backend carries %s of %s",
               horon_verb_of(&op->agreed)->name, horon_dtype_name((horon_dtype_t)op->agreed.dtype));
        return;
    }
    if (route->choice.composed) {
        begin_composed(route, op);
        return;
    }
    channel->backend->begin(channel, op);
    give_ticket_back(route);
}

/* @return as horon_route_advance(); OK: all of it has ended */
HORON_SELDOM static horon_status_t advance_composed(struct horon_route *route, bool *moved_out,
                                                    struct horon_error *error)
{
    horon_status_t status;
    if (route->gathers_rows) {
        status = horon_words_advance(&route->words, moved_out, error);
        if (status != HORON_OK)
            return status;
        route->gathers_rows = false;
        compose(route, route->composed.whole, route->words.words);
        if (route->refused)
            return horon_error_set(error, route->refused, "%s", route->why);
    } else {
        status = route->current->backend->advance(route->current, moved_out, error);
        if (status != HORON_OK)
            return status;
    }
    return launch_next(route) ? HORON_IN_PROGRESS : HORON_OK;
}

horon_status_t horon_route_advance(struct horon_route *route, bool *moved_out,
                                   struct horon_error *error)
{
    assert(route->launched > 0);
    if (route->refused)
        return horon_error_set(error, route->refused, "%s", route->why);
    const horon_status_t status =
        route->composing ? advance_composed(route, moved_out, error)
                         : route->current->backend->advance(route->current, moved_out, error);
    if (status == HORON_OK) {
        route->launched--;
        route->ended++;
    }
    return status;
}

void horon_route_forgo_ticket(struct horon_route *route)
{
    if (route->step == HORON_ROUTE_DRAWS)
        horon_ticket_use(route->options.tickets, &route->ticket);
}

void horon_route_abort(struct horon_route *route)
{
    if (route->launched && route->current)
        route->current->backend->abort(route->current);
    horon_words_abort(&route->words);
    if (route->options.tickets)
        horon_ticket_use(route->options.tickets, &route->ticket);
    route->launched = 0;
    route->composing = route->gathers_rows = false;
    route->refused = HORON_OK;
}

bool horon_route_waits_for(struct horon_route *route, int rank)
{
    if (horon_words_wait_for(&route->words, rank))
        return true;
    return route->launched && !route->refused && !route->gathers_rows &&
           route->current->backend->waits_for(route->current, rank);
}

uint64_t horon_route_interval_ns(const struct horon_route *route)
{
    const bool polled = route->launched && route->current &&
                        route->current->backend->wake == HORON_BACKEND_WAKE_INTERVAL;
    return polled ? route->current->backend->interval_ns : 0;
}
