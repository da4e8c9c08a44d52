/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from rank to rank. They stand in no lane and are not negotiated: their two ends are all
 * that know of them.
 *
 *      sender                                    receiver
 *      MESSAGE: tag, count, dtype  ----------->  meets the receive of its tag, now or later
 *      data, within the eager room ----------->  (matching.h), which is then posted to the link
 *                                  <-----------  the link's credit, if it is long; or REFUSAL
 *      the rest of the data        ----------->
 *
 * The announcement goes ahead of the data, on the same link, so that both ends know what the other
 * one says and can tell a difference in words. The number of a message among those of its sender is
 * the sequence of its transfer (link/mux.h). The link is the job's, whatever the team, also on one
 * host; one that is missing is made when the first message needs it. Before the first send on such
 * a link this rank waits until it knows that the other side has it, too: what it has sent then
 * arrives even if it leaves at once. If the link ends before that, messages look for another one.
 *
 * A short message on a ring where nothing waits to be sent goes when it is taken up, and has ended
 * then: one frame announces it and holds its data. That it has a count and a dtype, too, is said by
 * the bytes of the transfer and by its tag. If its receive waits, and the frame has come whole, the
 * data goes from where the link has read it to its place, and the receive has ended, too.
 *
 * Between two ranks of a host long data does not go by their link: the receiver reads it where it
 * lies (link/mux_loan.c).
 *
 * A rank that leaves ends its link with a last word, behind all that it sent: what has not come
 * whole by then never will. Nothing else of the team fails for it.
 */
#include "engine/messages.h"

#include "engine/carried.h"
#include "engine/express.h"
#include "exec/owed_ring.h"
#include "link/mux_announced.h"

#include <stddef.h>
#include <string.h>

/* What a peer may announce before anybody asks for it: its link lets it send no more. */
#define WAITING_MAX ((size_t)HORON_MUX_WAITING_MAX + HORON_MUX_EAGER_TRANSFERS_MAX)

static void move(struct horon_request *request, enum horon_message_state to)
{
    static const unsigned legal[] = {[HORON_MESSAGE_NEW] = 1u << HORON_MESSAGE_WAITS |
                                                           1u << HORON_MESSAGE_UNDERWAY |
                                                           1u << HORON_MESSAGE_CARRIED,
                                     [HORON_MESSAGE_WAITS] = 1u << HORON_MESSAGE_NEW,
                                     [HORON_MESSAGE_UNDERWAY] = 1u << HORON_MESSAGE_NEW,
                                     [HORON_MESSAGE_CARRIED] = 1u << HORON_MESSAGE_NEW};
    assert(legal[request->message.state] & 1u << to);
    request->message.state = to;
}

/* The rank at the other end, of the job. */
static int peer_of(const struct horon_request *request)
{
    assert(request->message.peer >= 0);
    return request->message.peer;
}

/* What came on a link that has ended can be taken. NULL: there was none. */
static struct horon_mux *link_to(const struct horon_engine *engine, int rank)
{
    const struct horon_membership *membership = engine->membership;
    return membership->mux_of[rank] ? membership->mux_of[rank] : membership->dead_of[rank];
}

/* Each direction of a link counts by itself. @param from, to ranks of the team */
static uint64_t sequence_of(uint64_t number, int from, int to)
{
    assert(number < UINT64_MAX / 2);
    return number << 1 | (from > to);
}

static bool make_matching(struct horon_engine_team *team)
{
    if (!team->messages.matching)
        team->messages.matching = horon_matching_create(team->view.size, WAITING_MAX);
    return team->messages.matching != NULL;
}

void horon_team_unbind_messages(struct horon_engine_team *team)
{
    assert(!team->messages.first);
    horon_matching_destroy(team->messages.matching);
    team->messages.matching = NULL;
    team->messages.carrier = NULL;
    team->messages.seen = 0;
}

bool horon_team_has_messages(const struct horon_engine_team *team)
{
    const struct horon_team_messages *messages = &team->messages;
    return messages->first ||
           (messages->matching && horon_matching_waiting(messages->matching) > 0);
}

static bool is_done(const struct horon_request *request)
{
    return request->message.state == HORON_MESSAGE_UNDERWAY && request->message.transfer.done;
}

static void append(struct horon_request *request)
{
    struct horon_team_messages *messages = &request->team->messages;
    request->message.next = NULL;
    request->message.at = messages->last;
    *messages->last = request;
    messages->last = &request->message.next;
}

static void unlink_message(struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_request **at = request->message.at, *next = request->message.next;
    assert(*at == request);
    *at = next;
    if (next)
        next->message.at = at;
    else
        team->messages.last = at;
}

/* Does it wait for its link? Those behind it must not go before it. */
static void count_unlinked(struct horon_request *request, bool waits)
{
    struct horon_team_messages *messages = &request->team->messages;
    assert(messages->unlinked >= request->message.unlinked);
    messages->unlinked += (size_t)waits - request->message.unlinked;
    request->message.unlinked = waits;
}

/* The link and the table know it no more: its memory is its user's again. */
static void detach(struct horon_request *request)
{
    struct horon_message *message = &request->message;
    struct horon_engine_team *team = request->team;
    if (message->state == HORON_MESSAGE_WAITS)
        horon_matching_withdraw(team->messages.matching, &message->expected);
    if (message->state == HORON_MESSAGE_UNDERWAY && !is_done(request))
        horon_mux_forget(link_to(team->engine, peer_of(request)), message->transfer.id.channel,
                         message->transfer.id.sequence);
    if (message->state != HORON_MESSAGE_NEW)
        move(request, HORON_MESSAGE_NEW);
    count_unlinked(request, false);
}

void horon_message_end(struct horon_request *request, const struct horon_error *why)
{
    struct horon_engine_team *team = request->team;
    detach(request);
    unlink_message(team, request);
    team->messages.moves++;
    horon_engine_end(team->engine, request, why);
}

/* One whose data has come, or gone, has ended well, although nobody has looked yet. */
void horon_team_give_up_messages(struct horon_engine_team *team)
{
    if (team->messages.first && team->messages.carrier)
        horon_carried_give_up(team);
    struct horon_request *request = team->messages.first, *next;
    horon_mux_ends_init(&team->messages.ends);
    for (; request; request = next) {
        next = request->message.next;
        if (is_done(request))
            horon_message_end(request, NULL);
        else
            detach(request);
    }
    team->messages.first = NULL;
    team->messages.last = &team->messages.first;
}

/* ---- a peer that is not there any more ------------------------------------------------------ */

/* The member that @p rank blames, if that has stopped: it stays in the job and takes no part in the
 * team; -1: it takes part. */
static int stopped_for(const struct horon_engine_team *team, int rank)
{
    return team->stopped_for[team->member_of[rank]] - 1;
}

/* Does nothing more come from it? What it has said on its link goes before what others say of it:
 * also to a send, which it may have refused. */
static bool is_over(const struct horon_engine_team *team, int rank)
{
    const struct horon_membership *membership = team->engine->membership;
    return stopped_for(team, rank) >= 0 ||
           (membership->left[rank] && (membership->ended[rank] || !membership->mux_of[rank]));
}

HORON_SELDOM static void end_left(struct horon_request *request)
{
    const struct horon_engine_team *team = request->team;
    const struct horon_membership *membership = team->engine->membership;
    const int peer = peer_of(request), culprit = stopped_for(team, peer);
    const bool has_left = membership->left[peer] || culprit < 0;
    const char *verb = horon_message_sends(request) ? "receives" : "sends";
    struct horon_error why;
    if (has_left)
        horon_error_set(&why, HORON_ERR_CLOSED, "%s has shut down its context and %s nothing more",
                        membership->rank_names[peer], verb);
    else
        horon_error_set(&why, HORON_ERR_CLOSED, "that rank %s nothing more, since %s has %s", verb,
                        team->rank_names[culprit], horon_team_how_left(team, culprit));
    horon_error_blame(&why, HORON_CAUSE_LEFT, has_left ? peer : team->ranks[culprit], -1);
    horon_message_end(request, &why);
}

/* ---- transfers ------------------------------------------------------------------------------ */

struct horon_transfer *horon_message_fill(struct horon_request *request, uint64_t number)
{
    const struct horon_operation *op = &request->op;
    const int peer = op->agreed.root, self = request->team->view.rank;
    const bool sends = horon_message_sends(request);
    struct horon_transfer *transfer = &request->message.transfer;
    const struct horon_part *part = &request->part;
    *transfer = (struct horon_transfer){
        .id = {.channel = horon_team_message_channel(request->team->id),
               .sequence =
                   sends ? sequence_of(number, self, peer) : sequence_of(number, peer, self),
               .tag = op->agreed.dtype},
        .data = sends ? (void *)(uintptr_t)part->src : part->dst,
        .bytes = (size_t)op->count * horon_dtype_bytes((horon_dtype_t)op->agreed.dtype),
        .check = request->message.tag,
        .ends = &request->team->messages.ends,
    };
    return transfer;
}

static void add_begun_event(struct horon_request *request)
{
    horon_engine_add_event(request->team->engine, HORON_EVENT_BEGUN, &request->op,
                           request->op.count, HORON_EVENT_MESSAGE);
}

void horon_message_begins(struct horon_request *request, enum horon_message_state as)
{
    move(request, as);
    assert(!request->begun && !request->held);
    request->begun = true;
    request->team->messages.moves++;
    add_begun_event(request);
}

void horon_team_adopt_message(struct horon_engine_team *team, struct horon_request *request)
{
    horon_engine_link(team->engine, request);
    append(request);
    horon_message_begins(request, HORON_MESSAGE_UNDERWAY);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* horon_team_on_offer() and horon_team_on_refusal() read it. */
void horon_message_write_offer(struct horon_writer *out, uint64_t known_by, uint64_t count,
                               uint8_t dtype)
{
    horon_write_u64(out, known_by);
    horon_write_u64(out, count);
    horon_write_u8(out, dtype);
}

static void announce(struct horon_request *request)
{
    uint8_t bytes[48];
    struct horon_writer out =
        horon_team_begin_message(request->team->id, bytes, sizeof bytes, HORON_CONTROL_MESSAGE);
    horon_message_write_offer(&out, request->message.tag, request->op.count,
                              request->op.agreed.dtype);
    horon_team_send_control(request->team, peer_of(request), &out);
}

static void send_or_post(struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    const int to = request->op.agreed.root;
    struct horon_mux *mux = team->engine->membership->mux_of[peer_of(request)];
    struct horon_error error;
    horon_error_clear(&error);
    const uint64_t number = horon_matching_next_send(team->messages.matching, to);
    struct horon_transfer *transfer = horon_message_fill(request, number);
    const bool now = horon_mux_send_now(mux, transfer);
    const horon_status_t status = now ? HORON_OK : horon_mux_post_send(mux, transfer, &error);
    count_unlinked(request, false);
    if (status != HORON_OK) {
        horon_message_end(request, &error);
        return;
    }
    horon_matching_count_send(team->messages.matching, to);
    horon_message_begins(request, HORON_MESSAGE_UNDERWAY);
    if (!now)
        announce(request); /* it goes before all data that waits */
    else if (transfer->done)
        horon_message_end(request, NULL);
}

/* Its link is there, on both sides. To wake its reader waits until what was written has reached
 * that core: meanwhile this one ends the message. */
static void begin_send(struct horon_request *request)
{
    struct horon_host *host = request->team->engine->job->host;
    horon_host_put_off_wake(host);
    send_or_post(request);
    horon_host_pay_wake(host); /* it may have ended the request */
}

/* On both sides, and does it carry more? */
bool horon_team_has_link(const struct horon_engine_team *team, int rank)
{
    const struct horon_membership *membership = team->engine->membership;
    return membership->mux_of[rank] && membership->mutual[rank] && !is_over(team, rank);
}

/* @return OK, both sides have it | AGAIN | why there is none */
static horon_status_t find_link(struct horon_engine *engine, int rank, struct horon_error *error)
{
    const struct horon_membership *membership = engine->membership;
    if (membership->mux_of[rank])
        return membership->mutual[rank] ? HORON_OK : HORON_AGAIN;
    if (membership->dead_of[rank])
        return HORON_AGAIN; /* the peer has left, or the team is about to fail */
    const horon_status_t status = horon_engine_connect(engine, rank, error);
    return status == HORON_OK ? HORON_AGAIN : status;
}

horon_status_t horon_team_on_refusal(struct horon_engine_team *team, int peer,
                                     struct horon_reader *in)
{
    const uint64_t number = horon_read_u64(in), count = horon_read_u64(in);
    const uint8_t dtype = horon_read_u8(in);
    struct horon_request *request = team->messages.first;
    struct horon_error why;
    if (!horon_reader_finished(in) || dtype >= HORON_DTYPE_COUNT || number >= UINT64_MAX / 2)
        return HORON_ERR_PROTO;
    const uint64_t sequence = sequence_of(number, team->view.rank, peer);
    while (request && (request->op.agreed.root != peer || !horon_message_sends(request) ||
                       request->message.state != HORON_MESSAGE_UNDERWAY || is_done(request) ||
                       request->message.transfer.id.sequence != sequence))
        request = request->message.next;
    if (!request)
        return HORON_OK; /* it was small, and has ended */
    if (count == request->op.count && dtype == request->op.agreed.dtype)
        horon_message_explain_lack(request, &why);
    else
        horon_message_explain_difference(request, count, dtype, &why);
    horon_message_end(request, &why);
    return HORON_OK;
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* The sender may wait for credit, and nobody takes what it has sent. */
static void refuse(struct horon_request *request, const struct horon_offer *offer)
{
    struct horon_engine_team *team = request->team;
    uint8_t bytes[48];
    struct horon_writer out =
        horon_team_begin_message(team->id, bytes, sizeof bytes, HORON_CONTROL_REFUSAL);
    horon_message_write_offer(&out, offer->number, request->op.count, request->op.agreed.dtype);
    horon_mux_forget(link_to(team->engine, peer_of(request)), horon_team_message_channel(team->id),
                     sequence_of(offer->number, offer->peer, team->view.rank));
    horon_team_send_control(team, peer_of(request), &out); /* may fail the team, which ends it */
}

void horon_message_take_data(const struct horon_request *request,
                             struct horon_mux_announced *announced)
{
    assert(announced->data);
    if (announced->bytes > 0)
        memcpy(request->part.dst, announced->data, (size_t)announced->bytes);
    announced->taken = true;
}

/* A receive has met its message.
 * @param announced  NULL: it announced itself before, or does not */
static void begin_recv(struct horon_request *request, const struct horon_offer *offer,
                       struct horon_mux_announced *announced)
{
    struct horon_engine_team *team = request->team;
    const struct horon_operation *op = &request->op;
    struct horon_error why;
    horon_error_clear(&why);
    horon_status_t status = HORON_ERR_MISMATCH;
    move(request, HORON_MESSAGE_NEW);
    if (offer->count != op->count || offer->dtype != op->agreed.dtype) {
        horon_message_explain_difference(request, offer->count, offer->dtype, &why);
    } else if (announced && announced->data) {
        horon_message_take_data(request, announced);
        add_begun_event(request);
        horon_message_end(request, NULL);
        return;
    } else {
        status = horon_mux_post_recv(link_to(team->engine, peer_of(request)),
                                     horon_message_fill(request, offer->number), &why);
    }
    if (status == HORON_OK) {
        horon_message_begins(request, HORON_MESSAGE_UNDERWAY);
        if (is_done(request))
            horon_message_end(request, NULL);
        return;
    }
    refuse(request, offer);
    if (!team->failed) /* to tell the sender may need memory that is not there */
        horon_message_end(request, &why);
}

horon_status_t horon_team_take_offer(struct horon_engine_team *team, struct horon_offer *offer,
                                     struct horon_mux_announced *announced)
{
    struct horon_expected *expected;
    if (!link_to(team->engine, team->ranks[offer->peer])) /* it came by another one */
        return HORON_ERR_PROTO;
    if (team->failed)
        return HORON_OK;
    if (!make_matching(team))
        return HORON_ERR_MEMORY;
    const uint64_t number = horon_matching_next_offer(team->messages.matching, offer->peer);
    if (announced && announced->id.sequence != sequence_of(number, offer->peer, team->view.rank))
        return HORON_ERR_PROTO;
    if (team->messages.awaited && horon_express_take(team, offer, announced))
        return HORON_OK;
    const horon_status_t status =
        horon_matching_announce(team->messages.matching, offer, &expected);
    if (status != HORON_OK || !expected)
        return status;
    const size_t at = offsetof(struct horon_request, message.expected);
    struct horon_request *request = (struct horon_request *)(void *)((char *)expected - at);
    assert(request->message.state == HORON_MESSAGE_WAITS);
    begin_recv(request, offer, announced);
    return HORON_OK;
}

horon_status_t horon_team_on_offer(struct horon_engine_team *team, int peer,
                                   struct horon_reader *in)
{
    struct horon_offer offer = {.peer = peer};
    offer.tag = horon_read_u64(in);
    offer.count = horon_read_u64(in);
    offer.dtype = horon_read_u8(in);
    if (!horon_reader_finished(in) || offer.dtype >= HORON_DTYPE_COUNT)
        return HORON_ERR_PROTO;
    return horon_team_take_offer(team, &offer, NULL);
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* All with one rank fail alike: one that tried anew could overtake those that have failed. */
static void end_unlinked(struct horon_engine_team *team, int peer, const struct horon_error *why)
{
    struct horon_request *next;
    for (struct horon_request *request = team->messages.first; request; request = next) {
        next = request->message.next;
        if (peer_of(request) == peer && request->message.state != HORON_MESSAGE_UNDERWAY)
            horon_message_end(request, why);
    }
}

/* A try to link has failed. One on this host that leaves has said so before. */
HORON_SELDOM static void heed_unlinked(struct horon_request *request, struct horon_error *why)
{
    struct horon_engine_team *team = request->team;
    const int peer = peer_of(request);
    horon_team_check_left(team->engine->job);
    if (team->failed)
        return;
    if (is_over(team, peer)) {
        end_left(request);
        return;
    }
    horon_message_explain_unlinked(team->engine, peer, why);
    end_unlinked(team, peer, why);
}

/* A send goes once there is a link; of those to one rank all wait for the same. A receive needs the
 * link for one thing: it hears there that the peer leaves.
 * @return false: the link cannot be made, and others have ended with this one */
static bool move_unlinked(struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    const int peer = peer_of(request);
    struct horon_error error = {0};
    const horon_status_t status = find_link(team->engine, peer, &error);
    if (status < 0)
        heed_unlinked(request, &error);
    else if (status == HORON_OK && request->message.state == HORON_MESSAGE_NEW)
        begin_send(request);
    return status >= 0;
}

/* @return false: others have ended with it */
static bool move_message(struct horon_request *request)
{
    const struct horon_message *message = &request->message;
    const struct horon_transfer *transfer = &message->transfer;
    struct horon_engine_team *team = request->team;
    struct horon_engine *engine = team->engine;
    const bool underway = message->state == HORON_MESSAGE_UNDERWAY;
    if (is_done(request)) {
        return true; /* those are taken from `ends` */
    } else if (is_over(team, peer_of(request))) {
        horon_team_hear_host(team); /* where that rank may have said why */
        if (team->failed)
            return false;
        end_left(request);
    } else if (underway && transfer->status != HORON_OK) {
        struct horon_error why;
        horon_mux_transfer_error(link_to(engine, peer_of(request)), transfer, &why);
        horon_message_end(request, &why);
    } else if (!underway) {
        return move_unlinked(request);
    }
    return true;
}

/* Only these: a step may have thousands that wait. */
static void end_done(struct horon_engine_team *team)
{
    struct horon_transfer *transfer;
    while ((transfer = horon_mux_ends_take(&team->messages.ends))) {
        const size_t at = offsetof(struct horon_request, message.transfer);
        horon_message_end((struct horon_request *)(void *)((char *)transfer - at), NULL);
    }
}

bool horon_team_move_messages(struct horon_engine_team *team)
{
    struct horon_team_messages *messages = &team->messages;
    struct horon_engine *engine = team->engine;
    const uint64_t moves = messages->moves;
    struct horon_request *next;
    if (messages->carrier)
        return horon_carried_move(team);
    end_done(team);
    if (messages->seen == engine->membership->changes && !messages->ends.differs)
        return messages->moves != moves;
    messages->seen = engine->membership->changes;
    messages->ends.differs = false;
    for (struct horon_request *request = messages->first; request && !team->failed;
         request = next) {
        next = request->message.next;
        if (!move_message(request))
            next = messages->first;
    }
    return messages->moves != moves;
}

void horon_team_aim_message(const struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_operation *op = &request->op;
    if (team->ranks) /* else it was removed */
        request->message.peer = team->ranks[op->agreed.root];
    op->name_hash = request->subject =
        horon_event_of_message(op->agreed.verb, request->message.peer);
}

void horon_team_read_room(const struct horon_request *send)
{
    struct horon_engine *engine = send->team->engine;
    const int peer = send->message.peer;
    const size_t bytes =
        (size_t)send->op.count * horon_dtype_bytes((horon_dtype_t)send->op.agreed.dtype);
    assert(!send->linked);
    if (peer >= 0 && horon_mux_lacks_room(engine->membership->mux_of[peer], bytes))
        horon_engine_move_link(engine, peer);
}

void horon_team_start_message(struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_message *message = &request->message;
    struct horon_offer offer;
    if (team->messages.carrier) {
        message->state = HORON_MESSAGE_NEW;
        append(request);
        horon_carried_start(request);
        return;
    }
    if (!make_matching(team)) {
        horon_engine_end_here(team->engine, request, HORON_ERR_MEMORY, "no memory for a message");
        return;
    }
    message->state = HORON_MESSAGE_NEW;
    append(request);
    const bool linked = horon_team_has_link(team, peer_of(request));
    if (!linked || (horon_message_sends(request) && team->messages.unlinked > 0))
        team->engine->membership->changes++; /* this turn looks for links */
    if (horon_message_sends(request)) {
        count_unlinked(request, true);
        if (team->messages.unlinked == 1 && linked)
            begin_send(request);
        return;
    }
    message->expected =
        (struct horon_expected){.peer = request->op.agreed.root, .tag = message->tag};
    move(request, HORON_MESSAGE_WAITS);
    if (horon_matching_expect(team->messages.matching, &message->expected, &offer))
        begin_recv(request, &offer, NULL);
}
