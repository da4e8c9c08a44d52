/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way in. Bytes are read into a staging buffer, where headers are found, and past it: the body
 * of a transfer that is posted goes straight into its memory, and only what was read along with the
 * header is copied. While a long body runs, one header is read ahead and no more, so that of a
 * stream of long bodies nothing is staged.
 *
 * What may come without our having posted is bounded by eager room (bytes and transfers), by the
 * transfers that may wait, and by control_bytes_max. A frame beyond its bound ends the mux; an
 * honest peer never sends one, as it counts the same.
 */
#include "link/mux_announced.h"
#include "link/mux_internal.h"

#include <assert.h>
#include <string.h>

/* Reads in one progress at most, so that the caller can see to its other peers. */
#define RX_TURN_READS 8
/* A body of this size is followed by another of its kind, as a rule. */
#define RX_LONG_BODY_BYTES ((size_t)64 << 10)

size_t horon_mux_eager_share(const struct horon_mux *mux, uint64_t bytes)
{
    if (horon_mux_lends(mux, bytes))
        return 0;
    return bytes < mux->options.eager_bytes ? (size_t)bytes : mux->options.eager_bytes;
}

static void return_room(struct horon_mux *mux, uint64_t bytes)
{
    mux->rx.returned_bytes += horon_mux_eager_share(mux, bytes);
    mux->rx.returned_transfers++;
}

void horon_mux_rx_drop_arrival(struct horon_mux *mux, struct horon_mux_record *record)
{
    struct horon_mux_rx *rx = &mux->rx;
    if (record->wanted) {
        assert(rx->wants > 0);
        rx->wants--;
    } else {
        assert(rx->buffered_transfers > 0);
        assert(rx->buffered_bytes >= horon_mux_eager_share(mux, record->bytes));
        rx->buffered_bytes -= horon_mux_eager_share(mux, record->bytes);
        rx->buffered_transfers--;
        return_room(mux, record->bytes);
    }
    horon_mux_record_release(&mux->table, record);
}

static horon_status_t refuse(struct horon_mux *mux, const char *what)
{
    return horon_mux_fail(mux, HORON_ERR_PROTO, what);
}

static struct horon_transfer_id frame_id(const struct horon_mux_frame *frame)
{
    return (struct horon_transfer_id){
        .channel = frame->channel, .sequence = frame->sequence, .tag = frame->tag};
}

static bool agrees(struct horon_transfer *transfer, const struct horon_mux_frame *frame)
{
    if (transfer->check != frame->check || transfer->bytes != frame->bytes)
        horon_mux_mark_mismatch(transfer, frame->check, frame->bytes);
    return transfer->status == HORON_OK;
}

static bool takes_room(const struct horon_mux_frame *frame)
{
    return (frame->flags & HORON_MUX_FLAG_EAGER) && frame->offset == 0;
}

/* The body is read and dropped. */
static horon_status_t data_to_nobody(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    mux->rx.target = HORON_MUX_TO_NOBODY;
    if (takes_room(frame))
        return_room(mux, frame->bytes);
    return HORON_OK;
}

static bool eager_beyond_share(const struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    return frame->offset + frame->body_bytes > horon_mux_eager_share(mux, frame->bytes);
}

static horon_status_t data_to_posted(struct horon_mux *mux, struct horon_transfer *transfer,
                                     const struct horon_mux_frame *frame)
{
    if (!agrees(transfer, frame))
        return data_to_nobody(mux, frame);
    if (transfer->state & (HORON_MUX_RECV_FETCHES | HORON_MUX_TAKEN_DUE))
        return refuse(mux, "sent data that it has lent");
    if (frame->offset != transfer->moved_bytes)
        return refuse(mux, "sent pieces of a transfer out of order");
    if (frame->flags & HORON_MUX_FLAG_EAGER) {
        /* a short one that asked for credit must wait for it: ours may stand in a queue yet */
        const uint32_t credited = HORON_MUX_CREDIT_DUE | HORON_MUX_RECV_CREDITED;
        const bool is_long = transfer->bytes > mux->options.eager_bytes;
        if (eager_beyond_share(mux, frame) || (!is_long && (transfer->state & credited)))
            return refuse(mux, "sent more data without credit than was agreed");
    } else if (!(transfer->state & HORON_MUX_RECV_CREDITED)) {
        return refuse(mux, "sent data before it had credit");
    }
    if (takes_room(frame))
        return_room(mux, frame->bytes);
    mux->rx.target = HORON_MUX_TO_TRANSFER;
    mux->rx.transfer = transfer;
    return HORON_OK;
}

static horon_status_t data_to_arrival(struct horon_mux *mux, struct horon_mux_record *record,
                                      const struct horon_mux_frame *frame)
{
    if (record->wanted || record->bytes != frame->bytes || record->check != frame->check)
        return refuse(mux, "sent data of a transfer that it announced otherwise");
    /* a transfer without data has one frame, and this is its second */
    if (frame->offset != record->got_bytes || frame->bytes == 0)
        return refuse(mux, "sent pieces of a transfer out of order");
    mux->rx.target = HORON_MUX_TO_RECORD;
    mux->rx.record = record;
    return HORON_OK;
}

static horon_status_t data_is_new(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    struct horon_mux_rx *rx = &mux->rx;
    const struct horon_transfer_id id = frame_id(frame);
    const size_t share = horon_mux_eager_share(mux, frame->bytes);
    if (frame->offset != 0)
        return refuse(mux, "sent pieces of a transfer out of order");
    if (rx->buffered_transfers == HORON_MUX_EAGER_TRANSFERS_MAX ||
        share > mux->options.eager_total_bytes - rx->buffered_bytes)
        return refuse(mux, "sent more data without credit than was agreed");
    struct horon_mux_record *record = horon_mux_record_take(&mux->table, share);
    if (!record)
        return horon_mux_fail(mux, HORON_ERR_MEMORY, "sent data that no memory was left for");
    rx->buffered_transfers++;
    rx->buffered_bytes += share;
    record->id = id;
    record->check = frame->check;
    record->bytes = frame->bytes;
    horon_mux_insert_record(&mux->table, HORON_MUX_ARRIVALS, record);
    horon_mux_compare_posted(&mux->table, &id, frame->check, frame->bytes);
    rx->target = HORON_MUX_TO_RECORD;
    rx->record = record;
    return HORON_OK;
}

/* Nobody here waits for it, or will. */
static bool is_past(const struct horon_mux *mux, const struct horon_transfer_id *id)
{
    const struct horon_mux_options *options = &mux->options;
    return horon_mux_is_forgotten(&mux->table, id) ||
           (options->is_over && options->is_over(options->arg, id->channel));
}

/* It may be posted then, or taken where it was read to. */
static horon_status_t hear_of(struct horon_mux *mux, const struct horon_mux_frame *frame,
                              bool *taken_out)
{
    const struct horon_mux_options *options = &mux->options;
    const struct horon_mux_rx *rx = &mux->rx;
    const bool is_here = rx->staged_end - rx->staged_begin >= frame->body_bytes;
    struct horon_mux_announced announced = {
        .id = frame_id(frame), .check = frame->check, .bytes = frame->bytes};
    struct horon_error error;
    horon_error_clear(&error);
    announced.data = is_here ? rx->staging + rx->staged_begin : NULL;
    if (!options->on_announced)
        return refuse(mux, "announced data that nobody hears of");
    const horon_status_t status =
        options->on_announced(options->arg, options->peer, &announced, &error);
    assert(is_here || !announced.taken);
    *taken_out = announced.taken;
    if (status && !mux->failure.status) { /* likewise: end_control() */
        mux->failure = error;
        mux->failure.status = status;
    }
    return mux->failure.status;
}

static horon_status_t begin_data(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    const struct horon_transfer_id id = frame_id(frame);
    const bool announces = frame->flags & HORON_MUX_FLAG_ANNOUNCES;
    bool taken = false;
    const horon_status_t heard = announces ? hear_of(mux, frame, &taken) : HORON_OK;
    if (heard)
        return heard;
    if (taken)
        return data_to_nobody(mux, frame);
    struct horon_transfer *transfer = horon_mux_find_transfer(&mux->table, HORON_MUX_RECVS, &id);
    if (transfer)
        return data_to_posted(mux, transfer, frame);
    if (is_past(mux, &id))
        return data_to_nobody(mux, frame);
    if (!(frame->flags & HORON_MUX_FLAG_EAGER))
        return refuse(mux, "sent data before it had credit");
    if (eager_beyond_share(mux, frame))
        return refuse(mux, "sent more data without credit than was agreed");
    struct horon_mux_record *record = horon_mux_find_record(&mux->table, HORON_MUX_ARRIVALS, &id);
    return record ? data_to_arrival(mux, record, frame) : data_is_new(mux, frame);
}

/* A record of something the peer said about a transfer that we did not post yet. */
static struct horon_mux_record *record_of(struct horon_mux *mux,
                                          const struct horon_mux_frame *frame)
{
    struct horon_mux_record *record = horon_mux_record_take(&mux->table, 0);
    if (!record) {
        horon_mux_fail(mux, HORON_ERR_MEMORY, "announced a transfer that no memory was left for");
        return NULL;
    }
    record->id = frame_id(frame);
    record->check = frame->check;
    record->bytes = frame->bytes;
    horon_mux_compare_posted(&mux->table, &record->id, frame->check, frame->bytes);
    return record;
}

static horon_status_t take_credit(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    const uint32_t asked = HORON_MUX_SEND_WANTED;
    const bool unasked =
        frame->bytes > mux->options.eager_bytes && !horon_mux_lends(mux, frame->bytes);
    const struct horon_transfer_id id = frame_id(frame);
    struct horon_transfer *transfer = horon_mux_find_transfer(&mux->table, HORON_MUX_SENDS, &id);
    if (transfer) {
        if (!agrees(transfer, frame))
            return HORON_OK;
        const bool due = unasked || (transfer->state & asked) != 0;
        if (!due || (transfer->state & HORON_MUX_SEND_CREDITED))
            return refuse(mux, "gave credit that was not asked for");
        horon_mux_tx_credit(mux, transfer);
        return HORON_OK;
    }
    if (is_past(mux, &id))
        return HORON_OK;
    if (!unasked || mux->rx.credits == HORON_MUX_WAITING_MAX ||
        horon_mux_find_record(&mux->table, HORON_MUX_CREDITS, &id))
        return refuse(mux, "gave credit that was not asked for");
    struct horon_mux_record *record = record_of(mux, frame);
    if (!record)
        return mux->failure.status;
    mux->rx.credits++;
    horon_mux_insert_record(&mux->table, HORON_MUX_CREDITS, record);
    return HORON_OK;
}

/* @param loan NULL: the peer asks for credit */
static horon_status_t take_want(struct horon_mux *mux, const struct horon_mux_frame *frame,
                                const struct horon_mux_loan *loan)
{
    const struct horon_transfer_id id = frame_id(frame);
    struct horon_transfer *transfer = horon_mux_find_transfer(&mux->table, HORON_MUX_RECVS, &id);
    if (transfer) {
        if (!agrees(transfer, frame))
            return HORON_OK;
        if (transfer->state || transfer->moved_bytes > 0)
            return refuse(mux, "asked for credit that it has");
        if (loan) {
            horon_mux_rx_borrow(mux, transfer, loan);
            return HORON_OK;
        }
        horon_mux_move_transfer(transfer, HORON_MUX_OWE_CREDIT);
        horon_mux_queue_push(&mux->tx.notes, transfer);
        return HORON_OK;
    }
    if (is_past(mux, &id))
        return HORON_OK;
    if (mux->rx.wants == HORON_MUX_WAITING_MAX ||
        horon_mux_find_record(&mux->table, HORON_MUX_ARRIVALS, &id))
        return refuse(mux, "asked for credit that it has");
    struct horon_mux_record *record = record_of(mux, frame);
    if (!record)
        return mux->failure.status;
    record->wanted = true;
    if (loan)
        record->loan = *loan;
    mux->rx.wants++;
    horon_mux_insert_record(&mux->table, HORON_MUX_ARRIVALS, record);
    return HORON_OK;
}

/* It lends all that is long, and nothing else; what is long is asked for no other way. */
static horon_status_t take_want_or_loan(struct horon_mux *mux, const struct horon_mux_frame *frame,
                                        const struct horon_mux_loan *loan)
{
    if ((loan != NULL) != (frame->bytes > mux->options.eager_bytes) ||
        (loan && !horon_mux_lends(mux, frame->bytes)))
        return refuse(mux, loan ? "lent what is to be sent" : "asked for credit that it has");
    return take_want(mux, frame, loan);
}

static horon_status_t take_taken(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    const struct horon_transfer_id id = frame_id(frame);
    struct horon_transfer *transfer = horon_mux_find_transfer(&mux->table, HORON_MUX_SENDS, &id);
    if (!transfer && is_past(mux, &id))
        return HORON_OK;
    if (!transfer || !horon_mux_lends(mux, transfer->bytes) || transfer->bytes != frame->bytes ||
        transfer->check != frame->check ||
        (transfer->state & ~HORON_MUX_SEND_WAITS) != HORON_MUX_SEND_WANTED)
        return refuse(mux, "took what was not lent");
    horon_mux_tx_taken(mux, transfer);
    return HORON_OK;
}

static horon_status_t take_returned(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    struct horon_mux_tx *tx = &mux->tx;
    const size_t sent_bytes = mux->options.eager_total_bytes - tx->room_bytes - tx->unsent_bytes;
    const uint32_t sent_transfers =
        HORON_MUX_EAGER_TRANSFERS_MAX - tx->room_transfers - tx->unsent_transfers;
    if (frame->returned_bytes > sent_bytes || frame->returned_transfers > sent_transfers)
        return refuse(mux, "gave back more eager room than was taken");
    tx->room_bytes += frame->returned_bytes;
    tx->room_transfers += frame->returned_transfers;
    return HORON_OK;
}

static horon_status_t begin_control(struct horon_mux *mux, const struct horon_mux_frame *frame)
{
    struct horon_mux_rx *rx = &mux->rx;
    rx->target = HORON_MUX_TO_RECORD;
    if (rx->staged_end - rx->staged_begin >= frame->body_bytes)
        return HORON_OK; /* it is all here, and is read where it lies */
    rx->record = horon_mux_record_take(&mux->table, frame->body_bytes);
    if (!rx->record)
        return horon_mux_fail(mux, HORON_ERR_MEMORY, "sent a message that no memory was left for");
    return HORON_OK;
}

/* A header was read: says where the body goes. */
static horon_status_t begin_frame(struct horon_mux *mux)
{
    struct horon_mux_rx *rx = &mux->rx;
    const struct horon_mux_frame *frame = &rx->frame;
    rx->target = HORON_MUX_TO_NOBODY;
    rx->transfer = NULL;
    rx->record = NULL;
    rx->body_left = frame->body_bytes;
    horon_status_t status = take_returned(mux, frame);
    if (status)
        return status;
    switch ((enum horon_mux_type)frame->type) {
    case HORON_MUX_CONTROL:
    case HORON_MUX_LOAN:
        return begin_control(mux, frame);
    case HORON_MUX_DATA:
        return begin_data(mux, frame);
    case HORON_MUX_CREDIT:
        return take_credit(mux, frame);
    case HORON_MUX_WANT:
        return take_want_or_loan(mux, frame, NULL);
    case HORON_MUX_TAKEN:
        return take_taken(mux, frame);
    case HORON_MUX_ROOM:
        break;
    }
    return HORON_OK;
}

static horon_status_t end_control(struct horon_mux *mux, const uint8_t *bytes)
{
    struct horon_mux_rx *rx = &mux->rx;
    struct horon_mux_record *record = rx->record;
    rx->record = NULL;
    struct horon_error error;
    horon_error_clear(&error);
    horon_status_t status =
        mux->options.on_control(mux->options.arg, mux->options.peer, record ? record->data : bytes,
                                rx->frame.body_bytes, &error);
    horon_mux_record_release(&mux->table, record);
    if (status && !mux->failure.status) { /* else what it posted or forgot has failed before */
        mux->failure = error;
        mux->failure.status = status;
    }
    return mux->failure.status;
}

static horon_status_t end_loan(struct horon_mux *mux, const uint8_t *bytes)
{
    struct horon_mux_rx *rx = &mux->rx;
    struct horon_mux_record *record = rx->record;
    rx->record = NULL;
    const struct horon_mux_loan loan = horon_mux_loan_decode(record ? record->data : bytes);
    horon_mux_record_release(&mux->table, record);
    return take_want_or_loan(mux, &rx->frame, &loan);
}

static void end_data(struct horon_mux *mux)
{
    struct horon_transfer *transfer = mux->rx.transfer;
    if (mux->rx.target == HORON_MUX_TO_TRANSFER && transfer->moved_bytes == transfer->bytes)
        horon_mux_rx_end(mux, transfer);
}

void horon_mux_rx_end(struct horon_mux *mux, struct horon_transfer *transfer)
{
    assert(!transfer->done);
    assert(transfer->moved_bytes == transfer->bytes);
    assert(!(transfer->state & HORON_MUX_CREDIT_DUE)); /* which would go out about nothing */
    horon_mux_remove_transfer(&mux->table, HORON_MUX_RECVS, transfer);
    if (transfer->bytes > mux->options.eager_bytes) {
        assert(mux->rx.recvs_waiting > 0);
        mux->rx.recvs_waiting--;
    }
    horon_mux_set_done(transfer);
}

/* Where the next bytes of the body go; NULL: nowhere. */
static uint8_t *body_memory(const struct horon_mux_rx *rx)
{
    switch (rx->target) {
    case HORON_MUX_TO_TRANSFER:
        return rx->transfer->data ? (uint8_t *)rx->transfer->data + rx->transfer->moved_bytes
                                  : NULL;
    case HORON_MUX_TO_RECORD:
        return rx->record ? rx->record->data + rx->record->got_bytes : NULL;
    case HORON_MUX_TO_NOBODY:
        break;
    }
    return NULL;
}

/* Does the frame that comes continue what came of its transfer, or message? */
static bool is_in_order(const struct horon_mux_rx *rx)
{
    const uint64_t first = rx->frame.type == HORON_MUX_DATA ? rx->frame.offset : 0;
    const uint64_t at = first + rx->frame.body_bytes - rx->body_left;
    switch (rx->target) {
    case HORON_MUX_TO_TRANSFER:
        return rx->transfer->moved_bytes == at && at <= rx->transfer->bytes;
    case HORON_MUX_TO_RECORD:
        return !rx->record || rx->record->got_bytes == at;
    case HORON_MUX_TO_NOBODY:
        break;
    }
    return true;
}

static void body_came(struct horon_mux_rx *rx, size_t bytes)
{
    assert(bytes <= rx->body_left);
    rx->body_left -= bytes;
    if (rx->frame.type == HORON_MUX_DATA)
        rx->received_bytes += bytes;
    if (rx->target == HORON_MUX_TO_TRANSFER)
        rx->transfer->moved_bytes += bytes;
    else if (rx->target == HORON_MUX_TO_RECORD && rx->record)
        rx->record->got_bytes += bytes;
    assert(is_in_order(rx));
}

/* Takes what is staged of the body. */
static void body_from_staging(struct horon_mux_rx *rx)
{
    size_t bytes = rx->staged_end - rx->staged_begin;
    if (bytes > rx->body_left)
        bytes = rx->body_left;
    uint8_t *memory = body_memory(rx);
    if (memory && bytes)
        memcpy(memory, rx->staging + rx->staged_begin, bytes);
    rx->staged_begin += bytes;
    body_came(rx, bytes);
}

static horon_status_t next_header(struct horon_mux *mux, bool *found_out)
{
    struct horon_mux_rx *rx = &mux->rx;
    const size_t staged = rx->staged_end - rx->staged_begin;
    const uint8_t *header = rx->staging + rx->staged_begin;
    size_t bytes = HORON_MUX_SHORT_HEADER_BYTES;
    if (staged >= bytes)
        bytes = horon_mux_frame_header_bytes(header);
    *found_out = staged >= bytes;
    if (!*found_out)
        return HORON_OK;
    const struct horon_mux_frame_limits limits = {
        .generation = mux->options.generation,
        .control_bytes_max = mux->options.control_bytes_max,
        .peer_name = mux->options.peer_name,
    };
    horon_status_t status = horon_mux_frame_decode(header, &limits, &rx->frame, &mux->failure);
    if (status)
        return status;
    rx->staged_begin += bytes;
    rx->in_body = true;
    return begin_frame(mux);
}

/* Takes apart what is staged. */
static horon_status_t consume(struct horon_mux *mux)
{
    struct horon_mux_rx *rx = &mux->rx;
    for (;;) {
        if (!rx->in_body) {
            bool found = false;
            horon_status_t status = next_header(mux, &found);
            if (status || !found)
                return status;
        }
        const uint8_t *body = rx->staging + rx->staged_begin;
        body_from_staging(rx);
        if (rx->body_left > 0)
            return HORON_OK;
        rx->in_body = false;
        if (rx->frame.type == HORON_MUX_DATA)
            end_data(mux);
        if (horon_mux_rx_keeps_body(rx)) {
            horon_status_t status =
                rx->frame.type == HORON_MUX_LOAN ? end_loan(mux, body) : end_control(mux, body);
            if (status)
                return status;
        }
    }
}

/* Room for the next read: the rest of the body in its place, then the staging buffer. */
static int read_vector(struct horon_mux_rx *rx, struct iovec vector[2], size_t *direct_out)
{
    int count = 0;
    size_t ahead = sizeof rx->staging;
    *direct_out = 0;
    rx->staged_end -= rx->staged_begin;
    if (rx->staged_end > 0)
        memmove(rx->staging, rx->staging + rx->staged_begin, rx->staged_end);
    rx->staged_begin = 0;
    uint8_t *memory = rx->in_body ? body_memory(rx) : NULL;
    if (memory) {
        *direct_out = rx->body_left;
        vector[count++] = (struct iovec){.iov_base = memory, .iov_len = rx->body_left};
        if (rx->read_max > 0)
            return count; /* and no further */
        if (rx->body_left >= RX_LONG_BODY_BYTES)
            ahead = HORON_MUX_HEADER_BYTES;
    }
    size_t room = ahead - rx->staged_end, most = rx->read_max;
    if (most > 0 && rx->in_body && most < rx->body_left)
        most = rx->body_left; /* which is dropped */
    if (most > 0 && most < room)
        room = most;
    vector[count++] = (struct iovec){.iov_base = rx->staging + rx->staged_end, .iov_len = room};
    return count;
}

horon_status_t horon_mux_rx_progress(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *error)
{
    struct horon_mux_rx *rx = &mux->rx;
    const int reads = rx->read_max > 0 ? 1 : RX_TURN_READS;
    for (int i = 0; i < reads; i++) {
        struct iovec vector[2];
        size_t direct = 0, got = 0;
        const int count = read_vector(rx, vector, &direct);
        const size_t asked = vector[0].iov_len + (count > 1 ? vector[1].iov_len : 0);
        horon_status_t status = mux->link->ops->recv(mux->link, vector, count, &got, error);
        if (status == HORON_AGAIN)
            return HORON_OK;
        if (status)
            return status;
        assert(got > 0);
        assert(got <= asked);
        *moved_out = true;
        const size_t placed = got < direct ? got : direct;
        if (placed)
            body_came(rx, placed);
        rx->staged_end += got - placed;
        assert(rx->staged_end <= sizeof rx->staging);
        status = consume(mux);
        if (status)
            return status;
        if (got < asked)
            return HORON_OK;
    }
    return HORON_OK;
}
