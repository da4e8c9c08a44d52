/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A length is believed only as far as bytes have come: the buffer doubles behind them, so a peer
 * makes us hold no more than twice what it has sent.
 *
 * The pump calls as long as the descriptor has something to give, but a wrapping link may hold
 * bytes that the descriptor does not show: so each turn reads until the link has no more.
 */
#include "boot/store/stream.h"

#include "alloc.h"
#include "boot/connect/prover.h"

#include <assert.h>
#include <string.h>

#define LENGTH_BYTES 4
#define FIRST_BYTES 512
/* What is left is looked at in the next turn, which comes at once. */
#define FRAMES_A_TURN 16

size_t horon_store_frame_bytes_max(int size)
{
    return 5 + (size_t)size * (4 + HORON_STORE_BLOB_BYTES_MAX); /* type and round, then blobs */
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

/* ---- What comes ---- */

/* @return how long the frame is, as far as that is known, its length included */
static size_t wanted(const struct horon_store_inbox *inbox)
{
    struct horon_reader in = horon_reader_over(inbox->frame, inbox->used);
    const size_t rest = horon_read_u32(&in);
    return LENGTH_BYTES + (in.ok ? rest : 0);
}

uint8_t *horon_store_inbox_room(struct horon_store_inbox *inbox, size_t *bytes_out)
{
    if (inbox->used > LENGTH_BYTES && inbox->used == wanted(inbox))
        inbox->used = 0; /* the last one was whole: begin anew */
    if (inbox->used == inbox->capacity) {
        const size_t twice = inbox->capacity ? inbox->capacity * 2 : FIRST_BYTES;
        const size_t most = LENGTH_BYTES + inbox->limit, capacity = twice < most ? twice : most;
        uint8_t *frame = horon_realloc(inbox->frame, capacity);
        if (!frame)
            return NULL;
        inbox->frame = frame;
        inbox->capacity = capacity;
    }
    const size_t want = wanted(inbox), most = want < inbox->capacity ? want : inbox->capacity;
    assert(inbox->used < most);
    *bytes_out = most - inbox->used;
    return inbox->frame + inbox->used;
}

horon_status_t horon_store_inbox_fill(struct horon_store_inbox *inbox, size_t bytes)
{
    inbox->used += bytes;
    const size_t want = wanted(inbox);
    assert(inbox->used <= want);
    if (inbox->used < LENGTH_BYTES)
        return HORON_AGAIN;
    if (want == LENGTH_BYTES || want > LENGTH_BYTES + inbox->limit)
        return HORON_ERR_PROTO;
    return inbox->used == want ? HORON_OK : HORON_AGAIN;
}

uint8_t *horon_store_inbox_take(struct horon_store_inbox *inbox)
{
    uint8_t *frame = inbox->frame;
    assert(inbox->used == wanted(inbox));
    *inbox = (struct horon_store_inbox){.limit = inbox->limit};
    return frame;
}

void horon_store_inbox_deinit(struct horon_store_inbox *inbox)
{
    horon_free(inbox->frame);
    memset(inbox, 0, sizeof *inbox);
}

/* ---- Over a connection ---- */

static horon_status_t watch(struct horon_store_stream *stream, bool again,
                            struct horon_error *error)
{
    const struct horon_link *link = stream->link;
    const unsigned bits = link->ops->interest(link, stream->letters[0] != NULL);
    uint32_t events = again ? EPOLLOUT : 0;
    if (bits & HORON_LINK_READ)
        events |= EPOLLIN;
    if (bits & HORON_LINK_WRITE)
        events |= EPOLLOUT;
    return horon_pump_watch(stream->pump, &stream->watch, events, error);
}

static void drop_first(struct horon_store_stream *stream)
{
    struct horon_store_letter **letters = stream->letters;
    horon_store_letter_drop(letters[0]);
    memmove(letters, letters + 1, (HORON_STORE_LETTERS_MAX - 1) * sizeof *letters);
    letters[HORON_STORE_LETTERS_MAX - 1] = NULL;
    stream->sent = 0;
}

static horon_status_t send_some(struct horon_store_stream *stream)
{
    struct horon_link *link = stream->link;
    horon_status_t status = HORON_OK;
    size_t sent = 0;
    while (status == HORON_OK && stream->letters[0]) {
        struct horon_store_letter *letter = stream->letters[0];
        const struct iovec rest = {letter->data + stream->sent, letter->bytes - stream->sent};
        status = link->ops->send(link, &rest, 1, &sent, NULL);
        if (status == HORON_OK)
            stream->sent += sent;
        assert(stream->sent <= letter->bytes);
        if (stream->sent == letter->bytes)
            drop_first(stream);
    }
    if (status == HORON_OK && link->ops->interest(link, false) & HORON_LINK_WRITE)
        status = link->ops->send(link, NULL, 0, &sent, NULL);
    return status;
}

/* One frame, or as much of it as there is. @return OK, a frame was taken | AGAIN | a failure */
static horon_status_t receive_frame(struct horon_store_stream *stream)
{
    horon_status_t status = HORON_AGAIN;
    while (status == HORON_AGAIN) {
        size_t room, got = 0;
        uint8_t *to = horon_store_inbox_room(&stream->inbox, &room);
        if (!to)
            return HORON_ERR_MEMORY;
        const struct iovec part = {to, room};
        status = stream->link->ops->recv(stream->link, &part, 1, &got, NULL);
        if (status != HORON_OK)
            return status;
        status = horon_store_inbox_fill(&stream->inbox, got);
    }
    if (status != HORON_OK)
        return status;
    struct horon_reader body =
        horon_reader_over(stream->inbox.frame + LENGTH_BYTES, stream->inbox.used - LENGTH_BYTES);
    const uint8_t type = horon_read_u8(&body);
    return stream->take(stream->arg, type, &body);
}

static void stream_ready(void *arg, uint32_t events)
{
    struct horon_store_stream *stream = arg;
    horon_status_t status = HORON_OK;
    (void)events; /* whatever it is, receiving and sending find out */
    for (int i = 0; i < FRAMES_A_TURN && status == HORON_OK && stream->link; i++)
        status = receive_frame(stream);
    if (!stream->link)
        return;
    const bool again = status == HORON_OK;
    if (status >= 0)
        status = send_some(stream);
    if (status >= 0)
        status = watch(stream, again, NULL);
    if (status < 0)
        stream->ended(stream->arg, status);
}

horon_status_t horon_store_stream_open(struct horon_store_stream *stream,
                                       const struct horon_proven *proven, horon_link_wrap_fn_t wrap,
                                       struct horon_error *error)
{
    assert(!stream->link);
    horon_status_t status = horon_proven_open_link(proven, 0, wrap, &stream->link, error);
    if (status != HORON_OK)
        return status;
    stream->watch = (struct horon_watch){
        .ready = stream_ready, .arg = stream, .fd = stream->link->ops->descriptor(stream->link)};
    status = watch(stream, false, error);
    if (status != HORON_OK)
        horon_store_stream_close(stream);
    return status;
}

bool horon_store_stream_send(struct horon_store_stream *stream, struct horon_store_letter *letter)
{
    int count = 0;
    while (count < HORON_STORE_LETTERS_MAX && stream->letters[count])
        count++;
    if (count == HORON_STORE_LETTERS_MAX)
        return false;
    stream->letters[count] = letter;
    letter->references++;
    if (stream->link)
        watch(stream, false, NULL);
    return true;
}

bool horon_store_stream_busy(const struct horon_store_stream *stream)
{
    const struct horon_link *link = stream->link;
    return link && (stream->letters[0] || link->ops->interest(link, false) & HORON_LINK_WRITE);
}

void horon_store_stream_close(struct horon_store_stream *stream)
{
    horon_pump_unwatch(stream->pump, &stream->watch);
    if (stream->link)
        stream->link->ops->destroy(stream->link);
    stream->link = NULL;
    while (stream->letters[0])
        drop_first(stream);
    horon_store_inbox_deinit(&stream->inbox);
}
