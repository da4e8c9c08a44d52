/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pair sends: frames without payload (`control`) and messages that may go (`ready`), as much
 * as there is in one write: each wakes a thread of the other end's. Frames go before messages that
 * have not begun, so that the other end may begin, too. But one that goes eagerly is not announced:
 * frames that were said after it follow it, lest what they announce on its slot seem to be first.
 */
#include "link/gloo_pair.h"

#include "alloc.h"

#include <assert.h>

/* Of one write: frames, and messages, each of a head and a payload. */
#define WRITE_PIECES 9

horon_status_t horon_gloo_say(struct horon_gloo_pair *pair, uint64_t code, uint64_t slot,
                              uint64_t length)
{
    const struct horon_gloo_frame frame = {.code = code, .slot = slot, .length = length};
    if (pair->control_used + HORON_GLOO_FRAME_BYTES > pair->control_limit) {
        const size_t limit = 2 * pair->control_limit + 8 * (size_t)HORON_GLOO_FRAME_BYTES;
        uint8_t *more = horon_realloc(pair->control, limit);
        if (!more)
            return HORON_ERR_MEMORY;
        pair->control = more;
        pair->control_limit = limit;
    }
    horon_gloo_frame_encode(&frame, pair->control + pair->control_used);
    pair->control_used += HORON_GLOO_FRAME_BYTES;
    pair->said += HORON_GLOO_FRAME_BYTES;
    return HORON_OK;
}

bool horon_gloo_pair_wants_room(const struct horon_gloo_pair *pair)
{
    return pair->end.status == HORON_OK && pair->broken.status == HORON_OK &&
           (pair->control_sent < pair->control_used || pair->ready.first);
}

void horon_gloo_make_ready(struct horon_gloo_pair *pair, struct horon_gloo_message *message,
                           uint64_t code)
{
    const struct horon_gloo_frame frame = {
        .code = code, .slot = message->slot, .length = message->bytes};
    horon_gloo_frame_encode(&frame, message->head);
    const bool eager = code == HORON_GLOO_EAGER;
    message->follows = eager ? pair->said : UINT64_MAX;
    message->moved = 0;
    pair->eager += eager;
    horon_gloo_append(&pair->ready, message);
}

horon_status_t horon_gloo_pair_send(struct horon_gloo_pair *pair,
                                    struct horon_gloo_message *message)
{
    message->done = false;
    message->by_grant = pair->peer_is_horon && !horon_gloo_has(&pair->waiting, message->slot);
    if (message->by_grant && message->bytes <= HORON_GLOO_EAGER_BYTES &&
        pair->window + message->bytes <= HORON_GLOO_WINDOW_BYTES) {
        pair->window += message->bytes;
        horon_gloo_make_ready(pair, message, HORON_GLOO_EAGER);
        return HORON_OK;
    }
    const uint64_t code = message->by_grant ? HORON_GLOO_ASK : HORON_GLOO_SEND_READY;
    const horon_status_t status = horon_gloo_say(pair, code, message->slot, message->bytes);
    if (status != HORON_OK)
        return status;
    if (!message->by_grant && horon_gloo_drop_note(pair, &pair->credits, message->slot))
        horon_gloo_make_ready(pair, message, HORON_GLOO_SEND);
    else
        horon_gloo_append(&pair->waiting, message);
    return HORON_OK;
}

static size_t past(size_t moved, size_t bytes)
{
    return moved > bytes ? moved - bytes : 0;
}

/* The rest of a message. */
static int add_message(struct iovec *vector, int count, const struct horon_gloo_message *message)
{
    count =
        horon_gloo_add_piece(vector, count, message->head, sizeof message->head, message->moved);
    return horon_gloo_add_piece(vector, count, message->data, message->bytes,
                                past(message->moved, sizeof message->head));
}

/* What goes before a message must not pass one that goes eagerly behind it, either.
 * @param message  that is to begin, or NULL: none is left. @return where in `control` the frames
 * end that go before it */
static size_t frames_before(const struct horon_gloo_pair *pair,
                            const struct horon_gloo_message *message)
{
    const uint64_t gone = pair->said - pair->control_used;
    while (message && message->follows > pair->said)
        message = pair->eager ? message->next : NULL;
    if (!message)
        return pair->control_used;
    return message->follows > gone ? (size_t)(message->follows - gone) : 0;
}

static int gather(const struct horon_gloo_pair *pair, struct iovec vector[static WRITE_PIECES])
{
    const struct horon_gloo_message *message = pair->ready.first;
    size_t frames = pair->control_sent;
    int count = 0;
    for (;; message = message->next) {
        const size_t before = message && message->moved > 0 ? 0 : frames_before(pair, message);
        if (before > frames) {
            count = horon_gloo_add_piece(vector, count, pair->control, before, frames);
            frames = before;
        }
        if (!message || count + 2 > WRITE_PIECES)
            break;
        count = add_message(vector, count, message);
        if (count + 1 > WRITE_PIECES)
            break;
    }
    return count;
}

/* @return what of @p sent is not the first message's */
static size_t count_first(struct horon_gloo_pair *pair, size_t sent)
{
    struct horon_gloo_message *first = pair->ready.first;
    const size_t left = sizeof first->head + first->bytes - first->moved;
    const size_t part = sent < left ? sent : left;
    first->moved += part;
    if (part < left)
        return 0;
    pair->ready.first = first->next;
    if (!pair->ready.first)
        pair->ready.last = &pair->ready.first;
    pair->eager -= first->follows != UINT64_MAX;
    first->done = true;
    return sent - part;
}

/* In the order in which it was gathered. */
static void count_sent(struct horon_gloo_pair *pair, size_t sent)
{
    while (sent > 0) {
        const struct horon_gloo_message *first = pair->ready.first;
        const size_t before = first && first->moved > 0 ? 0 : frames_before(pair, first);
        const size_t left = before > pair->control_sent ? before - pair->control_sent : 0;
        const size_t part = sent < left ? sent : left;
        pair->control_sent += part;
        if (pair->control_sent == pair->control_used)
            pair->control_sent = pair->control_used = 0;
        assert(first || part == sent);
        sent = part == sent ? 0 : count_first(pair, sent - part);
    }
}

horon_status_t horon_gloo_write_out(struct horon_gloo_pair *pair, bool *moved_out,
                                    struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && horon_gloo_pair_wants_room(pair)) {
        struct iovec vector[WRITE_PIECES];
        size_t sent = 0;
        const int count = gather(pair, vector);
        const size_t asked = horon_link_vector_bytes(vector, count);
        status = pair->link->ops->send(pair->link, vector, count, &sent, error);
        if (status != HORON_OK)
            break;
        count_sent(pair, sent);
        *moved_out = true;
        if (sent < asked)
            break;
    }
    return status == HORON_AGAIN ? HORON_OK : status;
}

size_t horon_gloo_pair_undelivered(const struct horon_gloo_pair *pair)
{
    size_t left = pair->control_used - pair->control_sent;
    if (pair->end.status != HORON_OK)
        return 0;
    for (const struct horon_gloo_message *at = pair->ready.first; at; at = at->next)
        left += sizeof at->head + at->bytes - at->moved;
    return left + pair->link->ops->undelivered(pair->link);
}
