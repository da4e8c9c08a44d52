/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of a pair. What goes out is gloo_out.c's. What comes in: heads, and payloads
 * straight into the message that awaits them, or into memory of the pair (`early`) if none does and
 * the other end is a horon.
 */
#include "link/gloo_pair.h"

#include "alloc.h"

#include <assert.h>
#include <string.h>

/* Eager bytes are given back in quarters of the window. */
#define TAKEN_BYTES (HORON_GLOO_WINDOW_BYTES / 4)
/* Reads of one turn, so that the caller gets its own. */
#define READS_MAX 16

/* ---- life ------------------------------------------------------------------------------------ */

horon_status_t horon_gloo_pair_create(struct horon_link *link, bool native,
                                      struct horon_gloo_pair **pair_out)
{
    struct horon_gloo_pair *pair = horon_zalloc(1, sizeof *pair);
    if (!pair)
        return HORON_ERR_MEMORY;
    pair->waiting.last = &pair->waiting.first;
    pair->ready.last = &pair->ready.first;
    pair->awaited.last = &pair->awaited.first;
    pair->early_last = &pair->early;
    pair->native = native;
    /* by the first frame another rank knows, too, that this one is no stranger, and may leave */
    if (horon_gloo_say(pair, native ? HORON_GLOO_HELLO : HORON_GLOO_JOINED, 0, 0) != HORON_OK) {
        horon_free(pair);
        return HORON_ERR_MEMORY;
    }
    pair->link = link;
    *pair_out = pair;
    return HORON_OK;
}

void horon_gloo_pair_destroy(struct horon_gloo_pair *pair)
{
    if (!pair)
        return;
    pair->link->ops->destroy(pair->link);
    horon_gloo_drop_notes(pair, &pair->credits);
    horon_gloo_drop_notes(pair, &pair->announced);
    while (pair->early) {
        struct horon_gloo_early *early = pair->early;
        pair->early = early->next;
        horon_free(early);
    }
    horon_free(pair->control);
    horon_free(pair);
}

bool horon_gloo_pair_is_native(const struct horon_gloo_pair *pair)
{
    return pair->peer_is_horon;
}

bool horon_gloo_pair_is_foreign(const struct horon_gloo_pair *pair)
{
    return pair->heard && !pair->peer_is_horon;
}

struct horon_link *horon_gloo_pair_link(const struct horon_gloo_pair *pair)
{
    return pair->link;
}

/* ---- in -------------------------------------------------------------------------------------- */

static horon_status_t grant(struct horon_gloo_pair *pair, struct horon_gloo_message *message,
                            bool by_grant)
{
    message->credited = true;
    return horon_gloo_say(pair, by_grant ? HORON_GLOO_GRANT : HORON_GLOO_RECV_READY, message->slot,
                          message->bytes);
}

/* Eager bytes have left the window, or are about to.
 * @return OK | ERR_MEMORY, nothing was taken back */
static horon_status_t take_back(struct horon_gloo_pair *pair, size_t bytes)
{
    size_t to_take = pair->to_take + bytes;
    if (to_take >= TAKEN_BYTES) {
        const horon_status_t status = horon_gloo_say(pair, HORON_GLOO_TAKEN, 0, to_take);
        if (status != HORON_OK)
            return status;
        to_take = 0;
    }
    pair->to_take = to_take;
    return HORON_OK;
}

static void free_early(struct horon_gloo_pair *pair, struct horon_gloo_early *early)
{
    struct horon_gloo_early **at = &pair->early;
    while (*at != early)
        at = &(*at)->next;
    *at = early->next;
    if (!*at)
        pair->early_last = at;
    assert(early != pair->into_early); /* nothing comes into it any more */
    assert(early->bytes <= pair->early_bytes);
    pair->early_bytes -= early->bytes;
    horon_free(early);
}

static void hand_over(struct horon_gloo_early *early, struct horon_gloo_message *message)
{
    if (early->bytes && early->bytes <= message->bytes)
        memcpy(message->data, early->data, early->bytes);
    message->done = true;
}

static struct horon_gloo_early *first_early(const struct horon_gloo_pair *pair, uint64_t slot)
{
    struct horon_gloo_early *early = pair->early;
    while (early && early->slot != slot)
        early = early->next;
    return early;
}

static struct horon_gloo_note *first_unmatched(const struct horon_gloo_pair *pair, uint64_t slot)
{
    struct horon_gloo_note *note = pair->announced;
    while (note && (note->slot != slot || note->matched))
        note = note->next;
    return note;
}

/* A credit of Gloo's kind, given before HELLO has come, would be one for which no horon waits. */
static bool may_be_horon(const struct horon_gloo_pair *pair)
{
    return pair->peer_is_horon || (pair->native && !pair->heard);
}

/* It comes just now: the rest goes where it belongs. */
static void take_over(struct horon_gloo_pair *pair, struct horon_gloo_message *message)
{
    const struct horon_gloo_early *early = pair->into_early;
    assert(early && !pair->into && pair->payload_left <= early->bytes);
    const size_t filled = early->bytes - pair->payload_left;
    const bool fits = early->bytes <= message->bytes;
    if (filled && fits)
        memcpy(message->data, early->data, filled);
    pair->payload = fits ? (uint8_t *)message->data + filled : NULL;
    pair->into = message;
    pair->into_early = NULL;
}

/* Where it cannot be told that the window has room again, the message is the caller's still, and
 * what came early waits for the next one. */
static horon_status_t take_early(struct horon_gloo_pair *pair, struct horon_gloo_early *early,
                                 struct horon_gloo_message *message)
{
    const horon_status_t status = take_back(pair, early->bytes);
    if (status != HORON_OK)
        return status;
    if (early == pair->into_early)
        take_over(pair, message);
    else
        hand_over(early, message);
    message->got = early->bytes;
    free_early(pair, early);
    return HORON_OK;
}

horon_status_t horon_gloo_pair_recv(struct horon_gloo_pair *pair,
                                    struct horon_gloo_message *message)
{
    struct horon_gloo_early *early = first_early(pair, message->slot);
    message->done = message->credited = message->matched = message->by_grant = false;
    message->got = 0;
    if (early)
        return take_early(pair, early, message);
    struct horon_gloo_note *note = first_unmatched(pair, message->slot);
    horon_status_t status = HORON_OK;
    if (note || !may_be_horon(pair)) /* else it asks, comes by itself, or is announced */
        status = grant(pair, message, note && note->by_grant);
    if (status != HORON_OK)
        return status;
    if (note)
        note->matched = message->matched = true;
    horon_gloo_append(&pair->awaited, message);
    return HORON_OK;
}

bool horon_gloo_pair_announced(const struct horon_gloo_pair *pair, uint64_t slot, size_t *bytes_out)
{
    const struct horon_gloo_early *early = first_early(pair, slot);
    const struct horon_gloo_note *note = first_unmatched(pair, slot);
    if (early)
        *bytes_out = early->bytes;
    else if (note)
        *bytes_out = note->length;
    return early || note;
}

static horon_status_t on_announced(struct horon_gloo_pair *pair,
                                   const struct horon_gloo_frame *frame, bool by_grant)
{
    horon_status_t status = horon_gloo_note(pair, &pair->announced, frame, by_grant);
    if (status != HORON_OK)
        return status;
    struct horon_gloo_message *message = pair->awaited.first;
    while (message && (message->slot != frame->slot || message->matched))
        message = message->next;
    if (!message)
        return HORON_OK;
    first_unmatched(pair, frame->slot)->matched = message->matched = true;
    return message->credited ? HORON_OK : grant(pair, message, by_grant);
}

/* Of Gloo's kind, for what was sent before its receiver was known to be a horon, or to none. */
static horon_status_t on_credit(struct horon_gloo_pair *pair, const struct horon_gloo_frame *frame)
{
    struct horon_gloo_message *message = horon_gloo_take(&pair->waiting, frame->slot, false);
    if (message)
        horon_gloo_make_ready(pair, message, HORON_GLOO_SEND);
    else if (!pair->peer_is_horon)
        return horon_gloo_note(pair, &pair->credits, frame, false);
    return HORON_OK;
}

static horon_status_t on_grant(struct horon_gloo_pair *pair, uint64_t slot)
{
    struct horon_gloo_message *message = horon_gloo_take(&pair->waiting, slot, true);
    if (!message)
        return HORON_ERR_PROTO;
    horon_gloo_make_ready(pair, message, HORON_GLOO_SEND);
    return HORON_OK;
}

static horon_status_t begin_early(struct horon_gloo_pair *pair,
                                  const struct horon_gloo_frame *frame)
{
    if (frame->length > HORON_GLOO_WINDOW_BYTES - pair->early_bytes)
        return HORON_ERR_PROTO;
    struct horon_gloo_early *early = horon_alloc(sizeof *early + (size_t)frame->length);
    if (!early)
        return HORON_ERR_MEMORY;
    *early = (struct horon_gloo_early){.slot = frame->slot, .bytes = (size_t)frame->length};
    *pair->early_last = early;
    pair->early_last = &early->next;
    pair->early_bytes += early->bytes;
    pair->into_early = early;
    pair->payload = early->data;
    return HORON_OK;
}

static horon_status_t begin_payload(struct horon_gloo_pair *pair,
                                    const struct horon_gloo_frame *frame)
{
    const bool eager = frame->code == HORON_GLOO_EAGER;
    if (eager ? !pair->peer_is_horon
              : !horon_gloo_drop_note(pair, &pair->announced, frame->slot) && pair->peer_is_horon)
        return HORON_ERR_PROTO;
    pair->payload_left = (size_t)frame->length;
    pair->into = horon_gloo_take(&pair->awaited, frame->slot, false);
    if (!pair->into)
        return eager ? begin_early(pair, frame) : HORON_ERR_PROTO;
    if (!eager && !pair->into->credited)
        return HORON_ERR_PROTO;
    pair->into->got = (size_t)frame->length;
    pair->payload = frame->length > pair->into->bytes ? NULL : pair->into->data;
    return eager ? take_back(pair, (size_t)frame->length) : HORON_OK;
}

/* The other end is none of horon's: it gets the credits that it was not given. */
static horon_status_t credit_all(struct horon_gloo_pair *pair)
{
    horon_status_t status = HORON_OK;
    for (struct horon_gloo_message *message = pair->awaited.first; message && status == HORON_OK;
         message = message->next)
        if (!message->credited)
            status = grant(pair, message, false);
    return status;
}

static horon_status_t on_frame(struct horon_gloo_pair *pair, const struct horon_gloo_frame *frame)
{
    const bool first = !pair->heard;
    pair->heard = true;
    if (first && frame->code != HORON_GLOO_HELLO && credit_all(pair) != HORON_OK)
        return HORON_ERR_MEMORY;
    switch (frame->code) {
    case HORON_GLOO_SEND:
    case HORON_GLOO_EAGER:
        return begin_payload(pair, frame);
    case HORON_GLOO_SEND_READY:
        return on_announced(pair, frame, false);
    case HORON_GLOO_ASK:
        return pair->peer_is_horon ? on_announced(pair, frame, true) : HORON_ERR_PROTO;
    case HORON_GLOO_RECV_READY:
        return on_credit(pair, frame);
    case HORON_GLOO_GRANT:
        return on_grant(pair, frame->slot);
    case HORON_GLOO_TAKEN:
        if (frame->length > pair->window)
            return HORON_ERR_PROTO;
        pair->window -= (size_t)frame->length;
        return HORON_OK;
    case HORON_GLOO_HELLO:
        if (pair->native && !pair->peer_is_horon) {
            pair->peer_is_horon = true;
            horon_gloo_drop_notes(pair, &pair->credits);
        }
        return HORON_OK;
    }
    return HORON_OK; /* as Gloo does with what it does not know */
}

static void end_payload(struct horon_gloo_pair *pair)
{
    pair->payload = NULL;
    if (pair->into)
        pair->into->done = true;
    pair->into = NULL;
    pair->into_early = NULL;
}

static bool in_payload(const struct horon_gloo_pair *pair)
{
    return pair->into || pair->into_early;
}

/* @param to  NULL: it goes nowhere */
static size_t take_in(struct horon_gloo_pair *pair, void *to, size_t bytes)
{
    const size_t have = pair->in_end - pair->in_at;
    const size_t part = bytes < have ? bytes : have;
    if (part && to)
        memcpy(to, pair->in + pair->in_at, part);
    pair->in_at += part;
    return part;
}

/* What has been read. */
static horon_status_t digest(struct horon_gloo_pair *pair)
{
    horon_status_t status = HORON_OK;
    while (status == HORON_OK) {
        if (in_payload(pair)) {
            const size_t part = take_in(pair, pair->payload, pair->payload_left);
            pair->payload_left -= part;
            pair->payload = pair->payload ? pair->payload + part : NULL;
            if (pair->payload_left > 0)
                return HORON_OK;
            end_payload(pair);
            continue;
        }
        uint8_t head[HORON_GLOO_FRAME_BYTES];
        struct horon_gloo_frame frame;
        if (pair->in_end - pair->in_at < sizeof head)
            return HORON_OK;
        (void)take_in(pair, head, sizeof head);
        status = horon_gloo_frame_decode(head, &frame) ? on_frame(pair, &frame) : HORON_ERR_PROTO;
    }
    return status;
}

static bool is_long(const struct horon_gloo_pair *pair)
{
    return pair->payload_left >= sizeof pair->in;
}

/* Is this the payload of the last message that is awaited, and long? What comes next is likely to
 * be awaited once this one has ended, and is left alone until then: it would have to be copied. */
static bool is_last(const struct horon_gloo_pair *pair)
{
    return pair->into && is_long(pair) && !pair->awaited.first;
}

/* The rest of a payload to its place, and what is behind it. */
static horon_status_t read_some(struct horon_gloo_pair *pair, bool *all_out,
                                struct horon_error *error)
{
    struct iovec vector[2];
    int count = 0;
    size_t got = 0;
    memmove(pair->in, pair->in + pair->in_at, pair->in_end - pair->in_at);
    pair->in_end -= pair->in_at;
    pair->in_at = 0;
    const size_t direct = in_payload(pair) && pair->payload ? pair->payload_left : 0;
    assert(!direct || pair->in_end == 0);
    count = horon_gloo_add_piece(vector, count, pair->payload, direct, 0);
    if (!is_last(pair) || !direct)
        count = horon_gloo_add_piece(vector, count, pair->in, sizeof pair->in, pair->in_end);
    const size_t asked = horon_link_vector_bytes(vector, count);
    const horon_status_t status = pair->link->ops->recv(pair->link, vector, count, &got, error);
    if (status != HORON_OK)
        return status;
    const size_t part = got < direct ? got : direct;
    pair->payload_left -= part;
    if (part)
        pair->payload += part;
    pair->in_end += got - part;
    *all_out = got < asked;
    return HORON_OK;
}

static horon_status_t read_in(struct horon_gloo_pair *pair, bool *moved_out,
                              struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    bool all = false, stops = false;
    for (int i = 0; i < READS_MAX && status == HORON_OK && !all && !stops; i++) {
        const bool last = is_last(pair), early = pair->into_early;
        status = read_some(pair, &all, error);
        if (status != HORON_OK)
            break;
        *moved_out = true;
        status = digest(pair);
        if (status == HORON_ERR_MEMORY)
            return horon_error_set(error, status, "sent what there is no memory for");
        if (status != HORON_OK)
            return horon_error_set(error, status,
                                   "sent what Gloo's protocol forbids (is it a Gloo peer, and do "
                                   "all ranks make the same calls with the same sizes?)");
        /* its caller may await more now, or what has begun to come before it was awaited */
        stops = (last && !pair->into) || (!early && pair->into_early && is_long(pair));
    }
    return status == HORON_AGAIN ? HORON_OK : status;
}

/* A peer that has done its part may leave while others still do theirs: that it is gone fails what
 * waits for it, and nothing else. */
static bool waits(const struct horon_gloo_pair *pair)
{
    return pair->waiting.first || pair->ready.first || pair->awaited.first || pair->into ||
           pair->into_early;
}

bool horon_gloo_pair_check(struct horon_gloo_pair *pair)
{
    struct horon_error why = {0};
    if (pair->end.status != HORON_OK || pair->link->ops->check(pair->link, &why) == HORON_OK)
        return false;
    pair->end = why;
    return true;
}

const struct horon_error *horon_gloo_pair_end(const struct horon_gloo_pair *pair)
{
    return pair->end.status == HORON_OK ? NULL : &pair->end;
}

horon_status_t horon_gloo_pair_move(struct horon_gloo_pair *pair, bool *moved_out,
                                    struct horon_error *error)
{
    if (pair->end.status == HORON_OK) {
        bool read = false;
        (void)horon_gloo_write_out(pair, moved_out, &pair->broken);
        const horon_status_t status = read_in(pair, &read, &pair->end);
        if (status == HORON_OK && pair->broken.status == HORON_OK)
            (void)horon_gloo_write_out(pair, moved_out, &pair->broken); /* what that asks for */
        else if (status == HORON_OK && !read)
            pair->end = pair->broken;
        *moved_out |= read;
        if (pair->end.status == HORON_OK)
            return HORON_OK;
        *moved_out = true;
    }
    if (pair->end.status == HORON_ERR_PEER_LOST && !waits(pair))
        return HORON_OK;
    *error = pair->end;
    return pair->end.status;
}
