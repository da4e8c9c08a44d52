/* SPDX-License-Identifier: Apache-2.0 */
/* Channels of the backends that are usable everywhere or were chosen, and which is at work. */
#include "backend/route.h"

#include <stdarg.h>
#include <stdio.h>

/* What the words about usable backends show instead of an operation's check. */
#define CHECK_OF_BACKENDS UINT64_C(0x62656e6461636b62)

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

static const struct horon_backend *backend_at(const struct horon_route *route, size_t index)
{
    assert(index < route->terms.count);
    return route->terms.backends[index];
}

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
    const struct horon_backend *backend = backend_at(route, index);
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

static void unwatch_channel(const struct horon_route *route, size_t index)
{
    const struct horon_backend_channel *channel = route->channels[index];
    const int descriptor = channel ? channel->backend->descriptor(channel) : -1;
    if (descriptor >= 0 && route->options.poller)
        horon_poller_remove_descriptor(route->options.poller, descriptor);
}

static void drop_channel(struct horon_route *route, size_t index)
{
    if (route->step != HORON_ROUTE_GIVEN_UP)
        unwatch_channel(route, index);
    backend_at(route, index)->destroy(route->channels[index]);
    route->channels[index] = NULL;
}

/* What of a backend takes words before an operation. */
static uint32_t needs_of(const struct horon_route *route, size_t index)
{
    const uint32_t checks = route->terms.in_order ? HORON_BACKEND_UNCHECKED : 0;
    return backend_at(route, index)->caps & (HORON_BACKEND_ONE_LAUNCH_ORDER | checks);
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
        if (!route->channels[i] || needs_of(route, i))
            route->simple = false;
    }
    route->single = usable == 1;
}

/* What is usable here; a channel of each that needs no connecting. */
static horon_status_t look_at_backends(struct horon_route *route)
{
    horon_status_t status = HORON_OK;
    bool all_everywhere = true;
    for (size_t i = 0; i < route->terms.count && status == HORON_OK; i++) {
        const struct horon_backend *backend = backend_at(route, i);
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
        assert(!needs_of(route, i)); /* which would be words on it */
        status = make_channel(route, i, 0, NULL);
        route->words.channel = route->channels[i];
    }
    assert(status != HORON_OK || route->words.channel); /* there is always one that serves all */
    if (status == HORON_OK && all_everywhere)
        become_ready(route);
    return status;
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
    const horon_status_t status = look_at_backends(route);
    if (status != HORON_OK)
        horon_route_deinit(route);
    return status;
}

void horon_route_deinit(struct horon_route *route)
{
    if (route->options.tickets)
        horon_ticket_use(route->options.tickets, &route->ticket);
    for (size_t i = 0; i < route->terms.count; i++)
        drop_channel(route, i);
    horon_composed_deinit(&route->composed);
    horon_words_deinit(&route->words);
    *route = (struct horon_route){0};
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
        horon_backends_unused(route->options.backends, route->options.log, backend_at(route, index),
                              by, " cannot");
    drop_channel(route, index);
    route->terms.versions[index] = 0;
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

/* ---- before an operation begins -------------------------------------------------------------- */

/* One line for each backend and verb. */
static void log_passed_over(struct horon_route *route, const struct horon_signature *agreed,
                            const struct horon_backend_choice *choice)
{
    const int by = choice->backend;
    const char *dtype = horon_dtype_name((horon_dtype_t)agreed->dtype);
    for (size_t i = 0; i < route->terms.count; i++)
        if ((choice->passed_over & ~route->told[agreed->verb]) >> i & 1)
            HORON_LOG_AT(route->options.log, route->options.backends->level,
                         "backend %s does not carry %s of %s: %s does", backend_at(route, i)->name,
                         horon_verb_of(agreed)->name, dtype,
                         by < 0 ? "none" : backend_at(route, (size_t)by)->name);
    route->told[agreed->verb] |= choice->passed_over;
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

/* Makes a channel of the backend that was chosen, and tells its address. @param op the first that
 * all ranks give to it */
static horon_status_t begin_to_open(struct horon_route *route, const struct horon_operation *op,
                                    struct horon_error *error)
{
    const size_t index = (size_t)route->choice->backend, size = (size_t)route->team->size;
    const struct horon_backend *backend = backend_at(route, index);
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

/* @return OK: the channel is connected, or no rank uses that backend any more */
HORON_SELDOM static horon_status_t open_channel(struct horon_route *route,
                                                const struct horon_operation *op, bool *moved_out,
                                                struct horon_error *error)
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
        status = backend_at(route, index)
                     ->connect(route->channels[index], route->words.words + 1, moved_out, error);
    if (status == HORON_OK)
        become_ready(route);
    return status;
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
        route->step == HORON_ROUTE_AGREES ? agree(route, moved_out, error) : HORON_OK;
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
        status = open_channel(route, op, moved_out, error);
    }
    if (status != HORON_OK || route->choice->backend < 0)
        return status;
    const uint32_t needs = needs_of(route, (size_t)route->choice->backend);
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
        unwatch_channel(route, i);
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
