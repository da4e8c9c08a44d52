/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A length is believed only as far as bytes have come: the buffer doubles behind them, so a peer
 * makes us hold no more than twice what it has sent.
 */
#include "boot/store/frame.h"

#include "alloc.h"

#include <assert.h>
#include <string.h>

#define FIRST_BYTES 512

size_t horon_store_frame_bytes_max(int size)
{
    return HORON_STORE_ALL_BYTES + (size_t)size * (4 + HORON_STORE_BLOB_BYTES_MAX);
}

struct horon_store_letter *horon_store_letter_create(enum horon_store_frame type, size_t body_bytes,
                                                     struct horon_writer *body_out)
{
    const size_t bytes = 5 + body_bytes;
    struct horon_store_letter *letter = horon_alloc(sizeof *letter + bytes);
    if (!letter)
        return NULL;
    letter->references = 1;
    letter->bytes = bytes;
    *body_out = horon_writer_over(letter->data, bytes);
    horon_write_u32(body_out, (uint32_t)(1 + body_bytes));
    horon_write_u8(body_out, (uint8_t)type);
    return letter;
}

void horon_store_letter_drop(struct horon_store_letter *letter)
{
    assert(!letter || letter->references > 0);
    if (letter && --letter->references == 0)
        horon_free(letter);
}

struct horon_store_letter *horon_store_failure_letter(const struct horon_error *why, bool whole)
{
    uint8_t bytes[HORON_ERROR_WIRE_BYTES_MAX];
    struct horon_writer error = horon_writer_over(bytes, sizeof bytes), out;
    horon_error_write(&error, why);
    struct horon_store_letter *letter =
        horon_store_letter_create(HORON_STORE_FAIL, 1 + error.used, &out);
    if (!letter)
        return NULL;
    horon_write_u8(&out, whole);
    horon_write_bytes(&out, bytes, error.used);
    assert(out.ok);
    return letter;
}

bool horon_store_failure_read(struct horon_reader *in, int size, struct horon_error *why_out,
                              bool *whole_out)
{
    struct horon_error why;
    const bool whole = horon_read_u8(in);
    horon_error_read(in, size, &why);
    if (!horon_reader_finished(in))
        return false;
    *why_out = why;
    *whole_out = whole;
    return true;
}

uint8_t *horon_store_inbox_room(struct horon_store_inbox *inbox, size_t *bytes_out)
{
    if (inbox->want && inbox->used == inbox->want) /* the last one was whole: begin anew */
        inbox->head_bytes = inbox->used = inbox->want = 0;
    if (inbox->head_bytes < sizeof inbox->head) {
        *bytes_out = sizeof inbox->head - inbox->head_bytes;
        return inbox->head + inbox->head_bytes;
    }
    if (inbox->used == inbox->capacity) {
        const size_t twice = inbox->capacity ? inbox->capacity * 2 : FIRST_BYTES;
        const size_t capacity = twice < inbox->limit ? twice : inbox->limit;
        uint8_t *body = horon_realloc(inbox->body, capacity);
        if (!body)
            return NULL;
        inbox->body = body;
        inbox->capacity = capacity;
    }
    const size_t most = inbox->want < inbox->capacity ? inbox->want : inbox->capacity;
    assert(inbox->used < most);
    *bytes_out = most - inbox->used;
    return inbox->body + inbox->used;
}

horon_status_t horon_store_inbox_fill(struct horon_store_inbox *inbox, size_t bytes)
{
    if (inbox->head_bytes == sizeof inbox->head) {
        inbox->used += bytes;
        assert(inbox->used <= inbox->want);
        return inbox->used == inbox->want ? HORON_OK : HORON_AGAIN;
    }
    inbox->head_bytes += bytes;
    assert(inbox->head_bytes <= sizeof inbox->head);
    if (inbox->head_bytes < sizeof inbox->head)
        return HORON_AGAIN;
    struct horon_reader in = horon_reader_over(inbox->head, sizeof inbox->head);
    inbox->want = horon_read_u32(&in);
    return inbox->want == 0 || inbox->want > inbox->limit ? HORON_ERR_PROTO : HORON_AGAIN;
}

uint8_t *horon_store_inbox_take(struct horon_store_inbox *inbox)
{
    uint8_t *body = inbox->body;
    assert(inbox->want && inbox->used == inbox->want);
    *inbox = (struct horon_store_inbox){.limit = inbox->limit};
    return body;
}

void horon_store_inbox_deinit(struct horon_store_inbox *inbox)
{
    horon_free(inbox->body);
    memset(inbox, 0, sizeof *inbox);
}
