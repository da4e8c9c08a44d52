/* SPDX-License-Identifier: Apache-2.0 */
/* Gives operations to their backends, and lets ranks tell each other what must be known before. */
#include "backend/route.h"

#include "backend/route_channels.h"

#include <stdarg.h>
#include <stdio.h>

#define BIT(step) (1u << HORON_ROUTE_##step)
static const uint8_t steps_after[] = {
    [HORON_ROUTE_AGREES] = BIT(READY) | BIT(GIVEN_UP),
    [HORON_ROUTE_READY] = BIT(OPENS) | BIT(MEETS) | BIT(DRAWS) | BIT(GIVEN_UP),
    [HORON_ROUTE_OPENS] = BIT(CONNECTS) | BIT(READY) | BIT(GIVEN_UP),
    [HORON_ROUTE_CONNECTS] = BIT(READY) | BIT(GIVEN_UP),
    [HORON_ROUTE_MEETS] = BIT(DRAWS) | BIT(IS_KNOWN) | BIT(GIVEN_UP),
    [HORON_ROUTE_DRAWS] = BIT(IS_KNOWN) | BIT(GIVEN_UP),
    [HORON_ROUTE_IS_KNOWN] = BIT(READY) | BIT(GIVEN_UP),
    [HORON_ROUTE_GIVEN_UP] = 0,
};

void horon_route_move(struct horon_route *route, enum horon_route_step to)
{
    assert(steps_after[route->step] & 1u << to);
    route->step = to;
}

horon_status_t horon_route_init(struct horon_route *route,
                                const struct horon_route_options *options,
                                const struct horon_team *team, struct horon_host *host)
{
    *route = (struct horon_route){
        .options = *options,
        .terms = {.backends = options->backends->tables,
                  .count = options->backends->count,
                  .deterministic = options->deterministic,
                  .in_order = options->in_order},
        .team = team,
        .host = host,
        .ticket.lane = options->channel.channel,
    };
    route->options.channel.ended_before = &route->ended;
    const horon_status_t status = horon_route_look(route);
    if (status != HORON_OK)
        horon_route_deinit(route);
    return status;
}

bool horon_route_has_opened(const struct horon_route *route)
{
    bool has = horon_route_opens(route);
    for (size_t i = 0; i < route->terms.count; i++)
        has = has || (route->channels[i] &&
                      !(horon_route_backend_at(route, i)->caps & HORON_BACKEND_EVERYWHERE));
    return has;
}

void horon_route_unsettle(struct horon_route *route)
{
    for (size_t i = 0; i < route->terms.count; i++)
        if (route->channels[i])
            route->channels[i]->unsettled = true;
}

void horon_route_deinit(struct horon_route *route)
{
    if (route->options.tickets)
        horon_ticket_use(route->options.tickets, &route->ticket);
    for (size_t i = 0; i < route->terms.count; i++)
        horon_route_drop(route, i);
    horon_composed_deinit(&route->composed);
    horon_words_deinit(&route->words);
    *route = (struct horon_route){0};
}

/* ---- before an operation begins -------------------------------------------------------------- */

static void log_passed_over(const struct horon_route *route, const struct horon_signature *agreed,
                            const struct horon_backend_choice *choice)
{
    const struct horon_backend *by = NULL;
    if (choice->backend >= 0)
        by = horon_route_backend_at(route, (size_t)choice->backend);
    for (size_t i = 0; i < route->terms.count; i++) {
        const struct horon_backend *backend = horon_route_backend_at(route, i);
        const char *why = "";
        if (horon_backend_is_kept_from(&route->terms, backend, agreed))
            why = " with HORON_DETERMINISTIC=1";
        if (choice->passed_over >> i & 1)
            horon_backends_passed_over(route->options.backends, route->options.log, backend, agreed,
                                       by, why);
    }
}

HORON_SELDOM static void choose(struct horon_route *route, const struct horon_signature *agreed,
                                uint64_t bytes, struct horon_route_memo *memo)
{
    *memo = (struct horon_route_memo){.choice = horon_backend_choose(&route->terms, agreed, bytes),
                                      .bytes = bytes,
                                      .holds = true};
    memcpy(memo->kind, &agreed->verb, sizeof memo->kind);
    log_passed_over(route, agreed, &memo->choice);
}

/* Depends on the four bytes of a signature from `verb` on, and on the size; where only one backend
 * is usable, on those bytes alone.
 * @return NULL: none carries it, or the channel is not made yet */
static struct horon_backend_channel *channel_for(struct horon_route *route,
                                                 const struct horon_operation *op)
{
    struct horon_route_memo *memo = &route->memos[op->agreed.verb];
    const uint64_t bytes = route->single ? 0 : horon_operation_bytes(op);
    if (!memo->holds || memo->bytes != bytes ||
        memcmp(memo->kind, &op->agreed.verb, sizeof memo->kind) != 0)
        choose(route, &op->agreed, bytes, memo);
    route->choice = &memo->choice;
    return memo->choice.backend < 0 ? NULL : route->channels[memo->choice.backend];
}

/* Numbers are proposed only for an operation that all ranks have. A batch was decided because all
 * have it; ranks that submit in order meet first, and tell each other their rows on the way. */
static horon_status_t begin_to_draw(struct horon_route *route, const struct horon_operation *op,
                                    struct horon_error *error)
{
    const bool meets = route->step == HORON_ROUTE_READY && route->terms.in_order;
    route->knows_rows = meets && !route->choice->composed &&
                        horon_verb_of(&op->agreed)->ahead != HORON_AHEAD_NOTHING;
    const size_t count = route->knows_rows ? horon_words_put_rows(&route->words, op, route->team)
                                           : horon_words_clear(&route->words, 1) == HORON_OK;
    if (count == 0)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for words of all ranks");
    if (!meets)
        route->words.words[0] = horon_ticket_propose(route->options.tickets, &route->ticket);
    horon_words_begin(&route->words, count, op, 0);
    horon_route_move(route, meets ? HORON_ROUTE_MEETS : HORON_ROUTE_DRAWS);
    return HORON_OK;
}

/* The words of this step are through. */
static void step_on(struct horon_route *route, bool has_ticket)
{
    if (route->step == HORON_ROUTE_DRAWS)
        horon_ticket_draw(route->options.tickets, &route->ticket, route->words.words[0]);
    if (route->step == HORON_ROUTE_DRAWS || !has_ticket)
        horon_route_move(route, HORON_ROUTE_IS_KNOWN);
}

/* @param needs  of the chosen backend */
HORON_SELDOM static horon_status_t make_known(struct horon_route *route, uint32_t needs,
                                              const struct horon_operation *op, bool *moved_out,
                                              struct horon_error *error)
{
    const bool has_ticket = needs & HORON_BACKEND_ONE_LAUNCH_ORDER;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && route->step != HORON_ROUTE_IS_KNOWN) {
        if (!route->words.flying)
            status = begin_to_draw(route, op, error);
        if (status == HORON_OK)
            status = horon_words_advance(&route->words, moved_out, error);
        if (status == HORON_OK)
            step_on(route, has_ticket);
    }
    if (status != HORON_OK || !has_ticket)
        return status;
    return horon_ticket_is_next(route->options.tickets, &route->ticket) ? HORON_OK
                                                                        : HORON_IN_PROGRESS;
}

horon_status_t horon_route_prepare(struct horon_route *route, const struct horon_operation *op,
                                   bool *moved_out, struct horon_error *error)
{
    HORON_ASSERT_OWNER(route->options.channel.owner);
    horon_status_t status =
        route->step == HORON_ROUTE_AGREES ? horon_route_agree(route, moved_out, error) : HORON_OK;
    while (status == HORON_OK) {
        if (route->launched && (route->composing || route->refused ||
                                route->launched == route->current->backend->launched_max))
            return HORON_IN_PROGRESS;
        const struct horon_backend_channel *channel = channel_for(route, op);
        if (route->launched && (channel != route->current || route->choice->composed))
            return HORON_IN_PROGRESS;
        const bool opens = route->step == HORON_ROUTE_OPENS || route->step == HORON_ROUTE_CONNECTS;
        if (channel ? !opens : route->choice->backend < 0)
            break;
        status = horon_route_open(route, op, moved_out, error);
    }
    if (status != HORON_OK || route->choice->backend < 0)
        return status;
    const uint32_t needs = horon_route_needs_of(route, (size_t)route->choice->backend);
    return needs ? make_known(route, needs, op, moved_out, error) : HORON_OK;
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
    if (route->step == HORON_ROUTE_IS_KNOWN) {
        if (route->options.tickets)
            horon_ticket_use(route->options.tickets, &route->ticket);
        horon_route_move(route, HORON_ROUTE_READY);
    }
}

/* Launches the next operation of a composed one. @return false: it has ended */
static bool launch_next(struct horon_route *route)
{
    if (!horon_composed_next(&route->composed)) {
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
        horon_composed_init(&route->composed, op, route->team->rank, route->team->size, rows);
    if (status == HORON_ERR_MEMORY)
        refuse(route, status, "no memory to compose an operation");
    else if (status != HORON_OK)
        refuse(route, status, "the inputs add up to more than memory can hold");
}

static void gather_rows(struct horon_route *route, const struct horon_operation *op)
{
    const size_t count = horon_words_put_rows(&route->words, op, route->team);
    if (count == 0) {
        refuse(route, HORON_ERR_MEMORY, "no memory for the rows of all ranks");
        return;
    }
    route->composed.whole = op;
    route->gathers_rows = true;
    horon_words_begin(&route->words, count, op, 0);
}

HORON_SELDOM static void begin_composed(struct horon_route *route, const struct horon_operation *op)
{
    route->composing = true;
    if (horon_operation_needs_rows(op)) {
        gather_rows(route, op);
        return;
    }
    compose(route, op, NULL);
    if (!route->refused)
        launch_next(route);
}

void horon_route_begin(struct horon_route *route, const struct horon_operation *op)
{
    HORON_ASSERT_OWNER(route->options.channel.owner);
    struct horon_backend_channel *channel = channel_for(route, op);
    assert(!route->launched || channel == route->current);
    route->launched++;
    route->current = channel;
    if (!channel) {
        refuse(route, HORON_ERR_UNSUPPORTED, "no backend carries %s of %s",
               horon_verb_of(&op->agreed)->name, horon_dtype_name((horon_dtype_t)op->agreed.dtype));
        return;
    }
    if (route->choice->composed) {
        begin_composed(route, op);
        return;
    }
    channel->rows = route->knows_rows ? route->words.words : NULL;
    route->knows_rows = false;
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
    HORON_ASSERT_OWNER(route->options.channel.owner);
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
    HORON_ASSERT_OWNER(route->options.channel.owner);
    if (route->step == HORON_ROUTE_DRAWS)
        horon_ticket_use(route->options.tickets, &route->ticket);
}

/* The channel that is at work: it connects, or something is launched on it; or NULL. */
static struct horon_backend_channel *channel_at_work(const struct horon_route *route)
{
    if (route->step == HORON_ROUTE_CONNECTS)
        return route->channels[route->choice->backend];
    return route->launched && !route->refused && !route->gathers_rows ? route->current : NULL;
}

void horon_route_abort(struct horon_route *route)
{
    HORON_ASSERT_OWNER(route->options.channel.owner);
    struct horon_backend_channel *channel = channel_at_work(route);
    if (route->step == HORON_ROUTE_GIVEN_UP)
        return;
    for (size_t i = 0; i < route->terms.count; i++)
        horon_route_unwatch(route, i);
    if (channel)
        channel->backend->abort(channel);
    horon_words_abort(&route->words);
    if (route->options.tickets)
        horon_ticket_use(route->options.tickets, &route->ticket);
    route->launched = 0;
    route->composing = route->gathers_rows = false;
    route->refused = HORON_OK;
    horon_route_move(route, HORON_ROUTE_GIVEN_UP);
}

bool horon_route_waits_for(struct horon_route *route, int rank)
{
    HORON_ASSERT_OWNER(route->options.channel.owner);
    struct horon_backend_channel *channel = channel_at_work(route);
    return horon_words_wait_for(&route->words, rank) ||
           (channel && channel->backend->waits_for(channel, rank));
}

/* Of a composed one nobody knows how many of its operations have ended. */
bool horon_route_keeps_inputs(const struct horon_route *route)
{
    const struct horon_backend_channel *channel = channel_at_work(route);
    HORON_ASSERT_OWNER(route->options.channel.owner);
    return !channel || !route->launched ||
           (!route->composing && channel->backend->keeps_inputs(channel));
}

void horon_route_explain(const struct horon_route *route, char *text, size_t text_bytes)
{
    static const char *const steps[HORON_ROUTE_GIVEN_UP + 1] = {
        [HORON_ROUTE_AGREES] = "ranks tell each other which backends they can use",
        [HORON_ROUTE_OPENS] = "ranks tell each other where their channels are",
        [HORON_ROUTE_MEETS] = "ranks tell each other that they have it",
        [HORON_ROUTE_DRAWS] = "ranks agree on its turn on the device",
        [HORON_ROUTE_IS_KNOWN] = "it waits for its turn on the device",
    };
    const struct horon_backend_channel *channel = channel_at_work(route);
    HORON_ASSERT_OWNER(route->options.channel.owner);
    if (channel)
        channel->backend->explain(channel, text, text_bytes);
    else if (route->gathers_rows)
        snprintf(text, text_bytes, "ranks tell each other their rows");
    else
        snprintf(text, text_bytes, "%s", steps[route->step] ? steps[route->step] : "");
}

uint64_t horon_route_interval_ns(const struct horon_route *route)
{
    HORON_ASSERT_OWNER(route->options.channel.owner);
    const struct horon_backend_channel *channel = channel_at_work(route);
    return channel ? channel->backend->interval_ns(channel) : route->settle_ns;
}
