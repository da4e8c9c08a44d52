/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages without a life of their own: what the frame that announces a message brings, and
 * messages that begin and end within one call (run.c). Mostly nothing else is in flight, a short
 * message finds room on its ring, and what is awaited comes within a moment. Its request is then
 * never in flight: a send goes with the frame that announces it; a receive stands in its team as
 * what is awaited, until the frame comes from which its data is copied. Of one that is longer the
 * header comes alone (mux.c): the receive is posted then, and its data read to where it belongs.
 *
 * All else goes the long way, as if this had not been tried (messages.c): where anything else is in
 * flight or was posted, on links that are no rings, if a rank has left, if the message does not
 * come soon. A longer one of which only a part has come is in flight from there on.
 */
#include "engine/express.h"

#include "engine/messages.h"
#include "exec/owed_ring.h"

/* Read in one turn at most, so that the caller can see to others. */
#define FRAMES_A_TURN 16
/* In vain, of a rank that has a core for itself. */
#define LOOKS_A_TURN 16
/* In vain, after which what comes has a time of its own. To look at the clock takes as long as a
 * dozen looks, and so what comes before has the time of what was done last. */
#define TURNS_A_TIME 4

static struct horon_mux *mux_of(const struct horon_request *message)
{
    const int peer = message->message.peer;
    assert(message->paired);
    return peer < 0 ? NULL : message->team->engine->membership->mux_of[peer];
}

/* What is in flight or posted goes before it. */
static bool is_alone(const struct horon_engine *engine, struct horon_request *message)
{
    const struct horon_engine_team *team = message->team;
    const struct horon_team_messages *messages = &team->messages;
    if (horon_engine_in_flight(engine) > 0 || horon_engine_has_post(engine) || engine->leaving ||
        team->failed || team->joining || team->departures.any || message->callback)
        return false;
    assert(!messages->first && !messages->awaited);
    horon_team_aim_message(team, message);
    return messages->matching && horon_mux_is_in_memory(mux_of(message)) &&
           horon_team_has_link(team, message->message.peer);
}

void horon_express_begin(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    engine->heard = false;
    horon_events_turn(engine->events);
}

static void add_event(struct horon_request *message, enum horon_event_kind kind, int32_t other)
{
    horon_engine_add_request_event(message->team->engine, kind, message, other);
}

static void add_begin(struct horon_request *message)
{
    add_event(message, HORON_EVENT_BEGUN, HORON_EVENT_MESSAGE);
}

static void add_end(struct horon_request *message)
{
    add_event(message, HORON_EVENT_ENDED, HORON_OK);
    message->team->messages.moves++;
    message->team->engine->ends++;
}

/* ---- sending -------------------------------------------------------------------------------- */

static horon_status_t send_it(struct horon_engine_team *team, struct horon_request *send)
{
    struct horon_matching *matching = team->messages.matching;
    const int to = send->op.agreed.root;
    struct horon_transfer *transfer =
        horon_message_fill(send, horon_matching_next_send(matching, to));
    if (!horon_mux_send_now(mux_of(send), transfer))
        return HORON_AGAIN;
    horon_matching_count_send(matching, to);
    if (!transfer->done) {
        add_event(send, HORON_EVENT_TAKEN, HORON_EVENT_MESSAGE);
        horon_team_adopt_message(team, send);
        return HORON_IN_PROGRESS;
    }
    add_begin(send);
    add_end(send);
    return HORON_OK;
}

horon_status_t horon_express_send(struct horon_engine *engine, struct horon_request *send)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    if (!is_alone(engine, send))
        return HORON_AGAIN;
    struct horon_host *host = engine->job->host;
    horon_host_put_off_wake(host);
    const horon_status_t status = send_it(send->team, send);
    horon_host_pay_wake(host);
    return status;
}

/* ---- receiving ------------------------------------------------------------------------------ */

horon_status_t horon_express_expect(struct horon_engine *engine, struct horon_request *receive)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    struct horon_team_messages *messages = &receive->team->messages;
    if (!is_alone(engine, receive) || horon_matching_waiting(messages->matching) > 0)
        return HORON_AGAIN;
    messages->awaited = receive;
    messages->turns = 0;
    receive->message.transfer.done = false;
    return HORON_IN_PROGRESS;
}

/* Its header has come, and its data goes to where it belongs. @return false: no memory */
static bool post(struct horon_request *receive, const struct horon_offer *offer)
{
    struct horon_error ignored;
    const struct horon_matching *matching = receive->team->messages.matching;
    struct horon_transfer *transfer =
        horon_message_fill(receive, horon_matching_next_offer(matching, offer->peer));
    receive->team->messages.coming =
        horon_mux_post_recv(mux_of(receive), transfer, &ignored) == HORON_OK ? receive : NULL;
    return receive->team->messages.coming;
}

bool horon_express_take(struct horon_engine_team *team, const struct horon_offer *offer,
                        struct horon_mux_announced *announced)
{
    struct horon_request *receive = team->messages.awaited;
    const struct horon_operation *op = &receive->op;
    if (op->agreed.root != offer->peer || receive->message.tag != offer->tag)
        return false;
    team->messages.awaited = NULL;
    if (!announced || op->count != offer->count || op->agreed.dtype != offer->dtype)
        return false; /* it waits for the receive, which comes the long way */
    if (!announced->data && !post(receive, offer))
        return false;
    if (announced->data) {
        horon_message_take_data(receive, announced);
        receive->message.transfer.done = true;
    }
    horon_matching_count_offer(team->messages.matching, offer->peer);
    return true;
}

/* Does it come by that link, yet? */
static bool is_due(const struct horon_request *receive, const struct horon_mux *mux)
{
    const struct horon_team_messages *messages = &receive->team->messages;
    return (messages->awaited == receive || messages->coming == receive) &&
           !receive->message.transfer.done && !receive->team->failed && mux_of(receive) == mux;
}

/* @param mux  where it was posted; of a team that has failed it may be that no more
 * @return OK | AGAIN, it is in flight, as not all has come, or the link is lost, or the team has
 * failed */
static horon_status_t end_coming(struct horon_request *receive, struct horon_mux *mux)
{
    struct horon_engine_team *team = receive->team;
    struct horon_transfer *transfer = &receive->message.transfer;
    team->messages.coming = NULL;
    if (transfer->done && transfer->status == HORON_OK) {
        /* nothing else was in flight; NULL: its data came before it was announced */
        struct horon_transfer *ended = horon_mux_ends_take(&team->messages.ends);
        assert(!ended || ended == transfer);
        (void)ended;
        return HORON_OK;
    }
    if (!team->failed) {
        add_event(receive, HORON_EVENT_TAKEN, HORON_EVENT_MESSAGE);
        horon_team_adopt_message(team, receive);
    } else if (!transfer->done) {
        horon_mux_forget(mux, transfer->id.channel, transfer->id.sequence);
    }
    return HORON_AGAIN;
}

horon_status_t horon_express_receive(struct horon_engine *engine, struct horon_request *receive,
                                     bool spins)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    struct horon_mux *mux = mux_of(receive);
    const struct horon_team_messages *messages = &receive->team->messages;
    const size_t bytes =
        (size_t)receive->op.count * horon_dtype_bytes((horon_dtype_t)receive->op.agreed.dtype);
    if (!horon_mux_wants_turn_soon(mux, spins ? LOOKS_A_TURN : 1)) {
        if (receive->team->messages.turns++ == TURNS_A_TIME)
            horon_events_turn(engine->events);
        return HORON_IN_PROGRESS;
    }
    for (int i = 0; i < FRAMES_A_TURN && is_due(receive, mux) && horon_mux_wants_turn(mux); i++) {
        if (!horon_mux_read_one(mux, bytes))
            horon_engine_move_link(engine, receive->message.peer);
    }
    const horon_status_t status = messages->coming == receive ? end_coming(receive, mux) : HORON_OK;
    if (status == HORON_OK && receive->message.transfer.done) {
        add_begin(receive);
        add_end(receive);
        return HORON_OK;
    }
    if (status == HORON_OK && is_due(receive, mux))
        return HORON_IN_PROGRESS;
    if (status == HORON_OK)
        horon_express_withdraw(receive);
    return HORON_AGAIN;
}

void horon_express_withdraw(struct horon_request *receive)
{
    assert(!receive->message.transfer.done);
    receive->team->messages.awaited = NULL;
}

bool horon_express_leaves_work(const struct horon_engine *engine,
                               struct horon_request *const *messages, size_t n)
{
    const struct horon_mux *looked_at = NULL;
    HORON_ASSERT_OWNER(engine->options.owner);
    if (engine->heard) /* more than messages came, or a link is lost: that may touch anything */
        return true;
    for (size_t i = 0; i < n; i++) {
        const struct horon_mux *mux = mux_of(messages[i]);
        if (mux != looked_at && (!mux || horon_mux_leaves_work(mux, true)))
            return true;
        looked_at = mux;
    }
    return false;
}

/* ---- what comes whole ------------------------------------------------------------------------ */

/* As if it had been announced before: the team may be one that is made yet, or was. */
static horon_status_t hear_apart(struct horon_engine *engine, uint32_t team, int peer,
                                 const struct horon_offer *offer, struct horon_error *error)
{
    uint8_t bytes[48];
    struct horon_writer out =
        horon_team_begin_message(team, bytes, sizeof bytes, HORON_CONTROL_MESSAGE);
    horon_message_write_offer(&out, offer->tag, offer->count, offer->dtype);
    return horon_engine_on_control(engine, peer, bytes, out.used, error);
}

horon_status_t horon_engine_on_announced(void *arg, int peer, struct horon_mux_announced *announced,
                                         struct horon_error *error)
{
    const struct horon_transfer_id *id = &announced->id;
    const uint64_t bytes = announced->bytes;
    struct horon_engine *engine = arg;
    const uint32_t number = horon_team_of_channel(id->channel);
    const size_t element =
        id->tag < HORON_DTYPE_COUNT ? horon_dtype_bytes((horon_dtype_t)id->tag) : 0;
    horon_status_t status = HORON_ERR_PROTO;
    if (element > 0 && bytes % element == 0 && number < HORON_TEAMS_END &&
        id->channel == horon_team_message_channel(number)) {
        struct horon_engine_team *team = horon_engine_find_team(engine, number);
        struct horon_offer offer = {
            .dtype = (uint8_t)id->tag, .tag = announced->check, .count = bytes / element};
        offer.peer = team && horon_team_is_bound(team) ? team->member_of[peer] : -1;
        if (offer.peer < 0)
            return hear_apart(engine, number, peer, &offer, error);
        status = horon_team_take_offer(team, &offer, announced);
    }
    if (status == HORON_OK)
        return HORON_OK;
    return horon_error_set(
        error, status, "%s announced a message %s", engine->membership->rank_names[peer],
        status == HORON_ERR_MEMORY ? "that no memory was left for" : "that makes no sense");
}

/* ---- in flight ------------------------------------------------------------------------------ */

horon_status_t horon_engine_move_messages(struct horon_engine *engine,
                                          struct horon_request *const *messages, size_t n)
{
    struct horon_engine_team *team = messages[0]->team;
    bool wants = false, moved = false;
    HORON_ASSERT_OWNER(engine->options.owner);
    if (horon_engine_has_post(engine) || team->messages.carrier)
        return HORON_AGAIN;
    for (size_t i = 0; i < n; i++) {
        const struct horon_mux *mux = mux_of(messages[i]);
        assert(messages[i]->team == team);
        if (!horon_mux_is_in_memory(mux))
            return HORON_AGAIN;
        wants |= horon_mux_wants_turn(mux);
    }
    if (!wants)
        return HORON_OK;
    if (horon_engine_in_flight(engine) > n) /* something else moves, too */
        return HORON_AGAIN;
    horon_events_turn(engine->events);
    for (size_t i = 0; i < n; i++)
        if (horon_mux_is_in_memory(mux_of(messages[i])) &&
            horon_mux_wants_turn(mux_of(messages[i])))
            moved |= horon_engine_move_link(engine, messages[i]->message.peer);
    return horon_team_move_messages(team) || moved ? HORON_IN_PROGRESS : HORON_OK;
}
