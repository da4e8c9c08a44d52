/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A length is believed only as far as bytes have come: the buffer doubles behind them, so a peer
 * makes us hold no more than twice what it has sent.
 */
#include "boot/store/frame.h"

#include "alloc.h"
#include "codec.h"

#include <string.h>

#define FIRST_BYTES 512

size_t horon_store_frame_bytes_max(int size)
{
    return 5 + (size_t)size * (4 + HORON_STORE_BLOB_BYTES_MAX);
}

static bool make_room(struct horon_store_inbox *inbox)
{
    size_t capacity = inbox->capacity ? inbox->capacity * 2 : FIRST_BYTES;
    if (inbox->used < inbox->capacity)
        return true;
    if (capacity > inbox->limit)
        capacity = inbox->limit;
    uint8_t *body = horon_realloc(inbox->body, capacity);
    if (!body)
        return false;
    inbox->body = body;
    inbox->capacity = capacity;
    return true;
}

static size_t take_head(struct horon_store_inbox *inbox, const uint8_t *in, size_t bytes)
{
    size_t taken = 0;
    while (inbox->head_bytes < sizeof inbox->head && taken < bytes)
        inbox->head[inbox->head_bytes++] = in[taken++];
    if (inbox->head_bytes == sizeof inbox->head && inbox->want == 0)
        inbox->want = (size_t)inbox->head[0] | (size_t)inbox->head[1] << 8 |
                      (size_t)inbox->head[2] << 16 | (size_t)inbox->head[3] << 24;
    return taken;
}

horon_status_t horon_store_inbox_feed(struct horon_store_inbox *inbox, const uint8_t *in,
                                      size_t bytes, size_t *taken_out)
{
    if (inbox->want && inbox->used == inbox->want) /* the last one was whole: begin anew */
        inbox->head_bytes = inbox->used = inbox->want = 0;
    *taken_out = take_head(inbox, in, bytes);
    if (inbox->head_bytes < sizeof inbox->head)
        return HORON_AGAIN;
    if (inbox->want == 0 || inbox->want > inbox->limit)
        return HORON_ERR_PROTO;
    while (*taken_out < bytes && inbox->used < inbox->want) {
        if (!make_room(inbox))
            return HORON_ERR_MEMORY;
        size_t part = bytes - *taken_out;
        size_t room = inbox->capacity - inbox->used;
        size_t rest = inbox->want - inbox->used;
        part = part < room ? part : room;
        part = part < rest ? part : rest;
        memcpy(inbox->body + inbox->used, in + *taken_out, part);
        inbox->used += part;
        *taken_out += part;
    }
    return inbox->used == inbox->want ? HORON_OK : HORON_AGAIN;
}

size_t horon_store_inbox_want(const struct horon_store_inbox *inbox)
{
    if (inbox->head_bytes < sizeof inbox->head)
        return sizeof inbox->head - inbox->head_bytes;
    return inbox->used < inbox->want ? inbox->want - inbox->used : sizeof inbox->head;
}

void horon_store_inbox_deinit(struct horon_store_inbox *inbox)
{
    horon_free(inbox->body);
    memset(inbox, 0, sizeof *inbox);
}

/* FAIL: the store's last word. */
static horon_status_t decode_failure(struct horon_reader *in, struct horon_store_answer *answer_out,
                                     struct horon_error *error)
{
    const bool whole = horon_read_u8(in);
    const uint32_t number = horon_read_u32(in);
    const size_t bytes = in->limit - in->used;
    const char *text = horon_read_view(in, bytes);
    if (!in->ok || (int32_t)number >= 0 || bytes >= HORON_ERROR_TEXT_BYTES ||
        strnlen(text, bytes) != bytes || bytes == 0)
        return horon_error_set(error, HORON_ERR_PROTO, "fails without a reason");
    *answer_out = (struct horon_store_answer){.failed = true, .whole = whole};
    horon_error_set(&answer_out->why, horon_status_from_peer(number), "%.*s", (int)bytes, text);
    return HORON_OK;
}

horon_status_t horon_store_answer_decode(const struct horon_store_inbox *inbox, uint32_t round,
                                         struct horon_store_answer *answer_out,
                                         struct horon_error *error)
{
    struct horon_reader in = horon_reader_over(inbox->body, inbox->used);
    const uint8_t type = horon_read_u8(&in);
    if (type == HORON_STORE_FAIL)
        return decode_failure(&in, answer_out, error);
    if (type != HORON_STORE_ALL || horon_read_u32(&in) != round || !in.ok)
        return horon_error_set(error, HORON_ERR_PROTO, "answers out of turn");
    *answer_out = (struct horon_store_answer){.failed = false};
    return HORON_OK;
}
