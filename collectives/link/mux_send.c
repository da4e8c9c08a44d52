/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way out of a mux. What is due (control messages first, then CREDIT and WANT, then data) is
 * made into a burst: up to 32 frames whose headers lie in the burst and whose bodies are the
 * senders' own memory, given to the link as one vector. A burst is sent whole before the next one
 * is made, so that what it holds is bounded and a control message waits for at most one burst.
 *
 * A short send that finds nothing due is a burst of its own, made and given to the link by its
 * poster.
 *
 * A send is done when the link took its last byte. One that is withdrawn before leaves a copy
 * behind in the burst, as the peer was promised those bytes.
 */
#include "link/mux_internal.h"

#include <assert.h>
#include <string.h>

/* Bytes sent in one progress at most, so that the caller can see to its other peers. */
#define TX_TURN_BYTES ((size_t)4 << 20)

static void burst_add(struct horon_mux_burst *burst, void *memory, size_t bytes,
                      struct horon_transfer *transfer, struct horon_mux_record *record)
{
    assert(burst->count < HORON_LINK_VECTOR_MAX);
    const int i = burst->count++;
    burst->vector[i] = (struct iovec){.iov_base = memory, .iov_len = bytes};
    burst->entry[i].transfer = transfer;
    burst->entry[i].record = record;
    burst->entry[i].body = false;
    burst->entry[i].ends = false;
}

static uint32_t clip32(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

/* Fills in what every frame says; eager room goes back with it. */
static void complete(struct horon_mux *mux, struct horon_mux_frame *frame)
{
    frame->generation = mux->options.generation;
    frame->returned_bytes = clip32(mux->rx.returned_bytes);
    frame->returned_transfers = clip32(mux->rx.returned_transfers);
    mux->rx.returned_bytes -= frame->returned_bytes;
    mux->rx.returned_transfers -= frame->returned_transfers;
}

/* Writes the header of a new frame into the burst. */
static void burst_header(struct horon_mux *mux, struct horon_mux_frame *frame)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    complete(mux, frame);
    assert(burst->frames < HORON_MUX_BURST_FRAMES);
    uint8_t *header = burst->headers[burst->frames++];
    burst_add(burst, header, horon_mux_frame_encode(frame, header), NULL, NULL);
}

static void burst_control(struct horon_mux *mux)
{
    struct horon_mux_tx *tx = &mux->tx;
    struct horon_mux_record *record = tx->control_first;
    tx->control_first = record->next;
    if (!tx->control_first)
        tx->control_last = &tx->control_first;
    assert(tx->control_bytes >= record->got_bytes);
    tx->control_bytes -= record->got_bytes;
    struct horon_mux_frame frame = {.type = HORON_MUX_CONTROL,
                                    .body_bytes = (uint32_t)record->got_bytes};
    burst_header(mux, &frame);
    if (record->got_bytes)
        burst_add(&tx->burst, record->data, record->got_bytes, NULL, record);
    else
        tx->burst.entry[tx->burst.count - 1].record = record;
}

static struct horon_mux_frame frame_about(const struct horon_transfer *transfer,
                                          enum horon_mux_type type)
{
    return (struct horon_mux_frame){.type = (uint8_t)type,
                                    .channel = transfer->id.channel,
                                    .sequence = transfer->id.sequence,
                                    .tag = transfer->id.tag,
                                    .check = transfer->check,
                                    .bytes = transfer->bytes};
}

static void burst_loan(struct horon_mux *mux, struct horon_mux_frame *frame,
                       const struct horon_transfer *transfer)
{
    struct horon_mux_tx *tx = &mux->tx;
    const struct horon_mux_loan loan = horon_mux_tx_lend(mux, transfer);
    frame->type = HORON_MUX_LOAN;
    frame->body_bytes = HORON_MUX_LOAN_BYTES;
    burst_header(mux, frame);
    uint8_t *body = tx->burst.loans[tx->burst.frames - 1];
    horon_mux_loan_encode(&loan, body);
    burst_add(&tx->burst, body, HORON_MUX_LOAN_BYTES, NULL, NULL);
}

static void burst_note(struct horon_mux *mux)
{
    struct horon_transfer *transfer = horon_mux_queue_pop(&mux->tx.notes);
    struct horon_mux_frame frame = frame_about(transfer, HORON_MUX_WANT);
    if (transfer->state & HORON_MUX_CREDIT_DUE) {
        frame.type = HORON_MUX_CREDIT;
        horon_mux_move_transfer(transfer, HORON_MUX_GIVE_CREDIT);
        burst_header(mux, &frame);
    } else if (transfer->state & HORON_MUX_TAKEN_DUE) {
        frame.type = HORON_MUX_TAKEN;
        horon_mux_move_transfer(transfer, HORON_MUX_SAY_TAKEN);
        burst_header(mux, &frame);
        horon_mux_rx_end(mux, transfer);
    } else {
        const bool lent = horon_mux_lends(mux, transfer->bytes);
        horon_mux_move_transfer(transfer, HORON_MUX_SAY_WANT);
        if (lent)
            burst_loan(mux, &frame, transfer);
        else
            burst_header(mux, &frame);
    }
}

/* No frame of it was made yet. */
static bool send_is_untouched(const struct horon_transfer *transfer)
{
    return (transfer->state & HORON_MUX_SEND_QUEUED) && transfer->moved_bytes == 0;
}

/* It took eager room that the peer does not know of yet. */
static bool send_holds_unsent_room(const struct horon_transfer *transfer)
{
    return (transfer->state & HORON_MUX_SEND_EAGER) && send_is_untouched(transfer);
}

static void room_is_no_longer_unsent(struct horon_mux *mux, size_t share)
{
    assert(share <= mux->tx.unsent_bytes);
    assert(mux->tx.unsent_transfers > 0);
    mux->tx.unsent_bytes -= share;
    mux->tx.unsent_transfers--;
}

static void burst_data(struct horon_mux *mux)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    struct horon_transfer *transfer = mux->tx.ready.first;
    assert(transfer->moved_bytes <= transfer->limit_bytes);
    assert(transfer->limit_bytes <= transfer->bytes);
    if (send_holds_unsent_room(transfer))
        room_is_no_longer_unsent(mux, horon_mux_eager_share(mux, transfer->bytes));
    size_t bytes = transfer->limit_bytes - transfer->moved_bytes;
    if (bytes > HORON_MUX_BODY_BYTES_MAX)
        bytes = HORON_MUX_BODY_BYTES_MAX;
    struct horon_mux_frame frame = frame_about(transfer, HORON_MUX_DATA);
    if (!(transfer->state & HORON_MUX_SEND_CREDITED))
        frame.flags = HORON_MUX_FLAG_EAGER;
    frame.body_bytes = (uint32_t)bytes;
    frame.offset = transfer->moved_bytes;
    burst_header(mux, &frame);
    if (bytes)
        burst_add(burst, (uint8_t *)transfer->data + transfer->moved_bytes, bytes, NULL, NULL);
    const int last = burst->count - 1;
    burst->entry[last].transfer = transfer;
    burst->entry[last].body = bytes > 0;
    burst->data_bytes += bytes;
    transfer->moved_bytes += bytes;
    if (transfer->moved_bytes == transfer->limit_bytes) {
        horon_mux_queue_pop(&mux->tx.ready);
        horon_mux_move_transfer(transfer, HORON_MUX_DEQUEUE);
        burst->entry[last].ends = transfer->moved_bytes == transfer->bytes;
    }
}

static void burst_clear(struct horon_mux_burst *burst)
{
    assert(burst->at == burst->count);
    burst->at = burst->count = burst->frames = 0;
    burst->data_bytes = 0;
}

static void burst_make(struct horon_mux *mux)
{
    struct horon_mux_tx *tx = &mux->tx;
    struct horon_mux_burst *burst = &tx->burst;
    burst_clear(burst);
    while (burst->frames < HORON_MUX_BURST_FRAMES) {
        if (tx->control_first)
            burst_control(mux);
        else if (tx->notes.first)
            burst_note(mux);
        else if (tx->ready.first && burst->data_bytes < HORON_MUX_BURST_BYTES)
            burst_data(mux);
        else
            break;
    }
    if (burst->frames == 0 && horon_mux_tx_room_is_due(mux)) {
        struct horon_mux_frame frame = {.type = HORON_MUX_ROOM};
        burst_header(mux, &frame);
    }
}

static void burst_entry_gone(struct horon_mux *mux, int i)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    horon_mux_record_release(&mux->table, burst->entry[i].record);
    burst->entry[i].record = NULL;
    if (burst->entry[i].ends) {
        assert(!(burst->entry[i].transfer->state & HORON_MUX_SEND_QUEUED));
        assert(burst->entry[i].transfer->moved_bytes == burst->entry[i].transfer->bytes);
        horon_mux_remove_transfer(&mux->table, HORON_MUX_SENDS, burst->entry[i].transfer);
        horon_mux_set_done(burst->entry[i].transfer);
    }
    burst->entry[i].transfer = NULL;
}

static void burst_advance(struct horon_mux *mux, size_t sent)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    while (sent > 0) {
        assert(burst->at < burst->count);
        struct iovec *entry = &burst->vector[burst->at];
        size_t bytes = sent < entry->iov_len ? sent : entry->iov_len;
        if (burst->entry[burst->at].body)
            mux->tx.sent_bytes += bytes;
        sent -= bytes;
        entry->iov_base = (uint8_t *)entry->iov_base + bytes;
        entry->iov_len -= bytes;
        if (entry->iov_len == 0)
            burst_entry_gone(mux, burst->at++);
    }
}

static size_t burst_left(const struct horon_mux_burst *burst)
{
    size_t bytes = 0;
    for (int i = burst->at; i < burst->count; i++)
        bytes += burst->vector[i].iov_len;
    return bytes;
}

horon_status_t horon_mux_tx_progress(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *error)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    mux->tx.full = false;
    for (size_t total = 0; total < TX_TURN_BYTES;) {
        if (burst->at == burst->count)
            burst_make(mux);
        const size_t asked = burst_left(burst);
        if (asked == 0 && !horon_mux_link_holds(mux))
            return HORON_OK;
        size_t sent = 0;
        horon_status_t status = mux->link->ops->send(mux->link, burst->vector + burst->at,
                                                     burst->count - burst->at, &sent, error);
        mux->tx.full = status == HORON_AGAIN || sent < asked;
        if (status == HORON_AGAIN || (status == HORON_OK && asked == 0))
            return HORON_OK;
        if (status)
            return status;
        assert(sent > 0);
        assert(sent <= asked);
        burst_advance(mux, sent);
        *moved_out = true;
        total += sent;
        if (mux->tx.full)
            return HORON_OK;
    }
    return HORON_OK;
}

bool horon_mux_tx_has_control(const struct horon_mux *mux)
{
    const struct horon_mux_burst *burst = &mux->tx.burst;
    bool has = mux->tx.control_first != NULL;
    for (int i = burst->at; i < burst->count && !has; i++)
        has = burst->entry[i].record != NULL;
    return has;
}

bool horon_mux_tx_has_room(const struct horon_mux *mux, uint64_t bytes)
{
    return horon_mux_eager_share(mux, bytes) <= mux->tx.room_bytes && mux->tx.room_transfers > 0;
}

void horon_mux_tx_take_room(struct horon_mux *mux, struct horon_transfer *transfer)
{
    assert(horon_mux_tx_has_room(mux, transfer->bytes));
    mux->tx.room_bytes -= horon_mux_eager_share(mux, transfer->bytes);
    mux->tx.room_transfers--;
    horon_mux_move_transfer(transfer, HORON_MUX_TAKE_ROOM);
}

/* Links that are asked by a system call take many frames with one, and so are left to progress. */
static bool goes_now(const struct horon_mux *mux, const struct horon_transfer *transfer)
{
    const struct horon_mux_tx *tx = &mux->tx;
    const size_t bytes = transfer->bytes;
    if (mux->failure.status || tx->broken.status || horon_mux_tx_wants(mux) || !mux->in_memory ||
        transfer->id.tag > HORON_MUX_SHORT_TAG_MAX)
        return false;
    return bytes <= mux->options.eager_bytes && bytes <= HORON_MUX_BODY_BYTES_MAX &&
           horon_mux_tx_has_room(mux, bytes);
}

/* The link took less than all of it: what is left is a burst of its own. */
HORON_SELDOM static void burst_rest(struct horon_mux *mux, struct horon_transfer *transfer,
                                    const struct iovec *frame, int count, size_t sent)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    assert(count >= 1 && count <= 2);
    horon_mux_insert_transfer(&mux->table, HORON_MUX_SENDS, transfer);
    burst_clear(burst);
    burst->frames = 1;
    memcpy(burst->headers[0], frame[0].iov_base, frame[0].iov_len);
    burst_add(burst, burst->headers[0], frame[0].iov_len, NULL, NULL);
    if (count > 1)
        burst_add(burst, frame[1].iov_base, frame[1].iov_len, NULL, NULL);
    burst->entry[count - 1].transfer = transfer;
    burst->entry[count - 1].body = count > 1;
    burst->entry[count - 1].ends = true;
    burst_advance(mux, sent);
}

/* Nearly always the link takes all at once, and neither a burst nor the table ever has it. */
bool horon_mux_send_now(struct horon_mux *mux, struct horon_transfer *transfer)
{
    struct horon_mux_tx *tx = &mux->tx;
    const size_t bytes = transfer->bytes;
    uint8_t header[HORON_MUX_HEADER_BYTES];
    size_t sent = 0;
    HORON_ASSERT_OWNER(mux->options.owner);
    if (!goes_now(mux, transfer))
        return false;
    transfer->status = HORON_OK;
    transfer->state = 0;
    transfer->moved_bytes = transfer->limit_bytes = bytes;
    horon_mux_tx_take_room(mux, transfer);
    struct horon_mux_frame frame = frame_about(transfer, HORON_MUX_DATA);
    frame.flags = HORON_MUX_FLAG_EAGER | HORON_MUX_FLAG_ANNOUNCES;
    frame.body_bytes = (uint32_t)bytes;
    complete(mux, &frame);
    const size_t header_bytes = horon_mux_frame_encode(&frame, header);
    const struct iovec vector[2] = {{header, header_bytes}, {transfer->data, bytes}};
    const int count = bytes > 0 ? 2 : 1;
    const horon_status_t status =
        mux->link->ops->send(mux->link, vector, count, &sent, &tx->broken);
    transfer->done = sent == header_bytes + bytes;
    tx->full = !transfer->done;
    if (transfer->done) {
        tx->sent_bytes += bytes;
        return true;
    }
    burst_rest(mux, transfer, vector, count, sent);
    if (status < 0)
        tx->broken.status = status; /* as the next progress says */
    return true;
}

size_t horon_mux_tx_left(const struct horon_mux *mux)
{
    /* what has no frame yet counts as a byte: it is enough that it is not 0 */
    return burst_left(&mux->tx.burst) + mux->tx.control_bytes + (horon_mux_tx_wants(mux) ? 1 : 0);
}

static void give_room_back(struct horon_mux *mux, struct horon_transfer *transfer)
{
    if (!send_holds_unsent_room(transfer))
        return;
    const size_t share = horon_mux_eager_share(mux, transfer->bytes);
    room_is_no_longer_unsent(mux, share);
    mux->tx.room_bytes += share;
    mux->tx.room_transfers++;
    assert(mux->tx.room_bytes <= mux->options.eager_total_bytes);
    assert(mux->tx.room_transfers <= HORON_MUX_EAGER_TRANSFERS_MAX);
    horon_mux_move_transfer(transfer, HORON_MUX_RETURN_ROOM);
}

static void stop_waiting(struct horon_mux *mux, struct horon_transfer *transfer)
{
    if (!(transfer->state & HORON_MUX_SEND_WAITS))
        return;
    assert(mux->tx.sends_waiting > 0);
    mux->tx.sends_waiting--;
    horon_mux_move_transfer(transfer, HORON_MUX_END_WAIT);
}

void horon_mux_tx_credit(struct horon_mux *mux, struct horon_transfer *transfer)
{
    stop_waiting(mux, transfer);
    give_room_back(mux, transfer);
    horon_mux_move_transfer(transfer, HORON_MUX_GET_CREDIT);
    transfer->limit_bytes = transfer->bytes;
    if (!(transfer->state & HORON_MUX_SEND_QUEUED)) {
        horon_mux_move_transfer(transfer, HORON_MUX_ENQUEUE);
        horon_mux_queue_push(&mux->tx.ready, transfer);
    }
}

void horon_mux_tx_taken(struct horon_mux *mux, struct horon_transfer *transfer)
{
    assert(transfer->state & HORON_MUX_SEND_WANTED);
    stop_waiting(mux, transfer);
    horon_mux_remove_transfer(&mux->table, HORON_MUX_SENDS, transfer);
    transfer->moved_bytes = transfer->bytes;
    mux->tx.sent_bytes += transfer->bytes;
    horon_mux_set_done(transfer);
}

/* The rest of a body that the peer was promised, copied; the entry forgets the transfer. */
static bool burst_keep_copy(struct horon_mux *mux, int i)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    struct iovec *entry = &burst->vector[i];
    if (burst->entry[i].body) {
        struct horon_mux_record *copy = horon_mux_record_take(&mux->table, entry->iov_len);
        if (!copy)
            return false;
        memcpy(copy->data, entry->iov_base, entry->iov_len);
        entry->iov_base = copy->data;
        burst->entry[i].record = copy;
    }
    burst->entry[i].transfer = NULL;
    burst->entry[i].ends = false;
    return true;
}

bool horon_mux_tx_withdraw(struct horon_mux *mux, struct horon_transfer *transfer)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    horon_mux_tx_recall(mux, transfer);
    stop_waiting(mux, transfer);
    give_room_back(mux, transfer);
    if (transfer->state & HORON_MUX_SEND_WANT_DUE)
        horon_mux_queue_remove(&mux->tx.notes, transfer);
    if (transfer->state & HORON_MUX_SEND_QUEUED)
        horon_mux_queue_remove(&mux->tx.ready, transfer);
    for (int i = burst->at; i < burst->count; i++) {
        if (burst->entry[i].transfer == transfer && !burst_keep_copy(mux, i))
            return false;
    }
    return true;
}

static void release_chain(struct horon_mux *mux, struct horon_mux_record *record)
{
    while (record) {
        struct horon_mux_record *next = record->next;
        horon_mux_record_release(&mux->table, record);
        record = next;
    }
}

void horon_mux_tx_deinit(struct horon_mux *mux)
{
    struct horon_mux_burst *burst = &mux->tx.burst;
    for (int i = burst->at; i < burst->count; i++)
        horon_mux_record_release(&mux->table, burst->entry[i].record);
    release_chain(mux, mux->tx.control_first);
}
