/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flow control, and why nothing can get stuck. A sender may use eager room: so many bytes and
 * transfers that the receiver has not posted yet, counted alike by both. It takes room when a
 * transfer is posted and gets it back when the receiver has matched it. It never waits for room: a
 * transfer that finds none, or is longer than eager_bytes, waits for the receiver's CREDIT instead.
 * A longer one gets it as soon as it is posted there, a shorter one asks for it (WANT). So whatever
 * the receiver posts, and in whatever order, is sent to it in the end; and what it has not posted
 * holds nothing else up.
 *
 *      sender                      receiver
 *      DATA eager  ------------>   kept, or straight into memory if posted
 *
 *      WANT        ------------>   unless the transfer is longer than eager_bytes
 *                  <------------   CREDIT, as soon as posted
 *      DATA        ------------>   straight into memory
 *
 * Eager data may announce itself: the receiver then posts it when its first frame comes, or keeps
 * it as any other (horon_mux_send_now()).
 *
 * Exactly one CREDIT comes for each transfer that waits, and none for others.
 *
 * On a link that lends, a longer one waits for neither (mux_loan.c).
 */
#include "link/mux_announced.h"
#include "link/mux_internal.h"

#include "alloc.h"
#include "clock.h"
#include "cpu.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* Of a message that is awaited: by its header alone it is posted, and read to where it belongs. One
 * that is shorter is copied from where it was read to along with that, which takes less time. */
#define DIRECT_BYTES ((size_t)8192)

horon_status_t horon_mux_fail(struct horon_mux *mux, horon_status_t status, const char *what)
{
    return horon_error_set(&mux->failure, status, "%s %s", mux->options.peer_name, what);
}

horon_status_t horon_mux_create(struct horon_link *link, const struct horon_mux_options *options,
                                struct horon_mux **mux_out)
{
    struct horon_mux *mux = horon_zalloc(1, sizeof *mux);
    if (!mux || !horon_mux_table_init(&mux->table)) {
        if (mux)
            horon_mux_table_deinit(&mux->table);
        horon_free(mux);
        return HORON_ERR_MEMORY;
    }
    mux->link = link;
    mux->in_memory = link->ops->descriptor(link) < 0;
    mux->may_hold = link->ops->interest != horon_link_plain_interest;
    mux->options = *options;
    if (mux->options.eager_total_bytes > UINT32_MAX)
        mux->options.eager_total_bytes = UINT32_MAX; /* as wide as returned_bytes of a frame */
    if (mux->options.control_bytes_max > UINT32_MAX)
        mux->options.control_bytes_max = UINT32_MAX;
    mux->tx.room_bytes = mux->options.eager_total_bytes;
    mux->tx.room_transfers = HORON_MUX_EAGER_TRANSFERS_MAX;
    mux->tx.control_last = &mux->tx.control_first;
    horon_mux_queue_init(&mux->tx.notes);
    horon_mux_queue_init(&mux->tx.ready);
    horon_mux_queue_init(&mux->rx.fetches);
    *mux_out = mux;
    return HORON_OK;
}

void horon_mux_destroy(struct horon_mux *mux)
{
    if (!mux)
        return;
    horon_mux_tx_recall_all(mux); /* memory that was given back keeps what it held */
    mux->link->ops->destroy(mux->link);
    horon_mux_tx_deinit(mux);
    if (mux->rx.in_body && horon_mux_rx_keeps_body(&mux->rx))
        horon_mux_record_release(&mux->table, mux->rx.record);
    horon_mux_table_deinit(&mux->table);
    horon_free(mux);
}

horon_status_t horon_mux_post_control(struct horon_mux *mux, const void *bytes, size_t byte_count)
{
    HORON_ASSERT_OWNER(mux->options.owner);
    if (byte_count > mux->options.control_bytes_max)
        return HORON_ERR_INVALID;
    if (mux->failure.status || mux->tx.broken.status)
        return HORON_OK;
    if (byte_count > HORON_MUX_CONTROL_QUEUE_BYTES_MAX - mux->tx.control_bytes)
        return HORON_ERR_MEMORY;
    struct horon_mux_record *record = horon_mux_record_take(&mux->table, byte_count);
    if (!record)
        return HORON_ERR_MEMORY;
    if (byte_count)
        memcpy(record->data, bytes, byte_count);
    record->got_bytes = byte_count;
    mux->tx.control_bytes += byte_count;
    *mux->tx.control_last = record;
    mux->tx.control_last = &record->next;
    return HORON_OK;
}

horon_status_t horon_mux_transfer_error(const struct horon_mux *mux,
                                        const struct horon_transfer *transfer,
                                        struct horon_error *error)
{
    horon_error_set(error, HORON_ERR_MISMATCH,
                    "%s carries out another operation in this place (channel %" PRIu32
                    ", sequence %" PRIu64 "): it says %" PRIu64 " bytes, check %016" PRIx64
                    "; here it is %zu bytes, check %016" PRIx64,
                    mux->options.peer_name, transfer->id.channel, transfer->id.sequence,
                    transfer->their_bytes, transfer->their_check, transfer->bytes, transfer->check);
    horon_error_blame(error, HORON_CAUSE_DESCRIPTION, mux->options.peer, -1);
    return HORON_ERR_MISMATCH;
}

/* Sets the mux's fields; fails if the peer is known to carry out another operation. */
static horon_status_t transfer_begin(struct horon_mux *mux, struct horon_transfer *transfer,
                                     const struct horon_mux_record *announced,
                                     struct horon_error *error)
{
    transfer->done = false;
    transfer->status = HORON_OK;
    transfer->next = transfer->queued_next = NULL;
    transfer->moved_bytes = transfer->limit_bytes = 0;
    transfer->state = 0;
    if (announced && announced->bytes == transfer->bytes && announced->check == transfer->check)
        return HORON_OK; /* looked at first, as it is the common case */
    if (!announced)
        announced = horon_mux_find_conflict(&mux->table, &transfer->id, transfer->check);
    if (!announced)
        return HORON_OK;
    horon_mux_mark_mismatch(transfer, announced->check, announced->bytes);
    return horon_mux_transfer_error(mux, transfer, error);
}

static void send_ready(struct horon_mux *mux, struct horon_transfer *transfer, size_t limit_bytes)
{
    assert(limit_bytes <= transfer->bytes);
    horon_mux_move_transfer(transfer, HORON_MUX_ENQUEUE);
    transfer->limit_bytes = limit_bytes;
    horon_mux_queue_push(&mux->tx.ready, transfer);
}

/* Takes eager room for it, if there is enough and it would help. */
static void send_eagerly(struct horon_mux *mux, struct horon_transfer *transfer)
{
    struct horon_mux_tx *tx = &mux->tx;
    const size_t share = horon_mux_eager_share(mux, transfer->bytes);
    if (share == 0 && transfer->bytes > 0)
        return;
    if (!horon_mux_tx_has_room(mux, transfer->bytes))
        return;
    horon_mux_tx_take_room(mux, transfer);
    tx->unsent_bytes += share;
    tx->unsent_transfers++;
    send_ready(mux, transfer, share);
}

horon_status_t horon_mux_post_send(struct horon_mux *mux, struct horon_transfer *transfer,
                                   struct horon_error *error)
{
    HORON_ASSERT_OWNER(mux->options.owner);
    struct horon_mux_record *credit =
        horon_mux_find_record(&mux->table, HORON_MUX_CREDITS, &transfer->id);
    horon_status_t status = transfer_begin(mux, transfer, credit, error);
    if (status)
        return status;
    const bool is_long = transfer->bytes > mux->options.eager_bytes;
    if (mux->tx.sends_waiting == HORON_MUX_WAITING_MAX)
        return horon_error_set(error, HORON_ERR_MEMORY, "%u transfers to %s wait already",
                               HORON_MUX_WAITING_MAX, mux->options.peer_name);
    if (credit) {
        horon_mux_remove_record(&mux->table, HORON_MUX_CREDITS, credit);
        horon_mux_record_release(&mux->table, credit);
        assert(mux->rx.credits > 0);
        mux->rx.credits--;
        horon_mux_move_transfer(transfer, HORON_MUX_GET_CREDIT);
        send_ready(mux, transfer, transfer->bytes);
    } else {
        send_eagerly(mux, transfer);
        const bool eager = transfer->state & HORON_MUX_SEND_EAGER;
        if (is_long || !eager) {
            horon_mux_move_transfer(transfer, HORON_MUX_AWAIT_CREDIT);
            mux->tx.sends_waiting++;
        }
        if (!eager && (!is_long || horon_mux_lends(mux, transfer->bytes))) {
            horon_mux_move_transfer(transfer, HORON_MUX_OWE_WANT);
            horon_mux_queue_push(&mux->tx.notes, transfer);
        }
    }
    horon_mux_insert_transfer(&mux->table, HORON_MUX_SENDS, transfer);
    return HORON_OK;
}

/* Moves what came before the post into its memory, the frame that is coming now included. */
static void recv_take_arrival(struct horon_mux *mux, struct horon_transfer *transfer,
                              struct horon_mux_record *record)
{
    struct horon_mux_rx *rx = &mux->rx;
    assert(record->got_bytes <= transfer->bytes);
    if (record->got_bytes && transfer->data)
        memcpy(transfer->data, record->data, record->got_bytes);
    transfer->moved_bytes = record->got_bytes;
    if (rx->in_body && rx->target == HORON_MUX_TO_RECORD && rx->record == record) {
        rx->target = HORON_MUX_TO_TRANSFER;
        rx->transfer = transfer;
    }
    horon_mux_remove_record(&mux->table, HORON_MUX_ARRIVALS, record);
    horon_mux_rx_drop_arrival(mux, record);
}

horon_status_t horon_mux_post_recv(struct horon_mux *mux, struct horon_transfer *transfer,
                                   struct horon_error *error)
{
    HORON_ASSERT_OWNER(mux->options.owner);
    struct horon_mux_record *record =
        horon_mux_find_record(&mux->table, HORON_MUX_ARRIVALS, &transfer->id);
    horon_status_t status = transfer_begin(mux, transfer, record, error);
    if (status)
        return status;
    const bool is_long = transfer->bytes > mux->options.eager_bytes;
    if (is_long && mux->rx.recvs_waiting == HORON_MUX_WAITING_MAX)
        return horon_error_set(error, HORON_ERR_MEMORY, "%u transfers from %s wait already",
                               HORON_MUX_WAITING_MAX, mux->options.peer_name);
    const bool wanted = record && record->wanted;
    const bool lent = horon_mux_lends(mux, transfer->bytes);
    const struct horon_mux_loan loan = record ? record->loan : (struct horon_mux_loan){0};
    assert(!lent || !record || wanted);
    if (record) {
        recv_take_arrival(mux, transfer, record);
        if (!wanted && transfer->moved_bytes == transfer->bytes) {
            transfer->done = true;
            return HORON_OK;
        }
    }
    if (is_long)
        mux->rx.recvs_waiting++;
    if (lent && wanted) {
        horon_mux_rx_borrow(mux, transfer, &loan);
    } else if ((is_long && !lent) || wanted) {
        horon_mux_move_transfer(transfer, HORON_MUX_OWE_CREDIT);
        horon_mux_queue_push(&mux->tx.notes, transfer);
    }
    horon_mux_insert_transfer(&mux->table, HORON_MUX_RECVS, transfer);
    return HORON_OK;
}

static bool belongs(const struct horon_transfer_id *id, uint32_t channel, uint64_t sequence)
{
    return id->sequence == sequence && id->channel == channel;
}

/* @param sequence NULL: of all operations; likewise below */
static bool forget_sends(struct horon_mux *mux, uint32_t channel, const uint64_t *sequence,
                         struct horon_mux_bucket *bucket)
{
    bool ok = true;
    struct horon_transfer **link = &bucket->posted[HORON_MUX_SENDS];
    while (*link) {
        struct horon_transfer *transfer = *link;
        if (belongs(&transfer->id, channel, sequence ? *sequence : transfer->id.sequence)) {
            *link = transfer->next;
            mux->table.count--;
            ok = horon_mux_tx_withdraw(mux, transfer) && ok;
        } else {
            link = &transfer->next;
        }
    }
    return ok;
}

static void forget_recvs(struct horon_mux *mux, uint32_t channel, uint64_t sequence,
                         struct horon_mux_bucket *bucket)
{
    struct horon_transfer **link = &bucket->posted[HORON_MUX_RECVS];
    while (*link) {
        struct horon_transfer *transfer = *link;
        if (!belongs(&transfer->id, channel, sequence)) {
            link = &transfer->next;
            continue;
        }
        *link = transfer->next;
        mux->table.count--;
        if (transfer->state & (HORON_MUX_CREDIT_DUE | HORON_MUX_TAKEN_DUE))
            horon_mux_queue_remove(&mux->tx.notes, transfer);
        if (transfer->state & HORON_MUX_RECV_FETCHES)
            horon_mux_queue_remove(&mux->rx.fetches, transfer);
        if (transfer->bytes > mux->options.eager_bytes)
            mux->rx.recvs_waiting--;
        if (mux->rx.target == HORON_MUX_TO_TRANSFER && mux->rx.transfer == transfer)
            mux->rx.target = HORON_MUX_TO_NOBODY;
    }
}

static void forget_records(struct horon_mux *mux, uint32_t channel, const uint64_t *sequence,
                           struct horon_mux_bucket *bucket)
{
    struct horon_mux_record **link = &bucket->came[HORON_MUX_ARRIVALS];
    while (*link) {
        struct horon_mux_record *record = *link;
        if (!belongs(&record->id, channel, sequence ? *sequence : record->id.sequence)) {
            link = &record->next;
            continue;
        }
        *link = record->next;
        mux->table.count--;
        if (mux->rx.target == HORON_MUX_TO_RECORD && mux->rx.record == record)
            mux->rx.target = HORON_MUX_TO_NOBODY;
        horon_mux_rx_drop_arrival(mux, record);
    }
    link = &bucket->came[HORON_MUX_CREDITS];
    while (*link) {
        struct horon_mux_record *record = *link;
        if (!belongs(&record->id, channel, sequence ? *sequence : record->id.sequence)) {
            link = &record->next;
            continue;
        }
        *link = record->next;
        mux->table.count--;
        mux->rx.credits--;
        horon_mux_record_release(&mux->table, record);
    }
}

static void lack_memory(struct horon_mux *mux)
{
    horon_mux_tx_recall_all(mux); /* the mux ends here, and not in its progress */
    if (!mux->failure.status)
        horon_mux_fail(mux, HORON_ERR_MEMORY, "cannot be served: no memory to end an operation");
}

void horon_mux_forget(struct horon_mux *mux, uint32_t channel, uint64_t sequence)
{
    if (!mux)
        return;
    HORON_ASSERT_OWNER(mux->options.owner);
    struct horon_mux_bucket *bucket = horon_mux_bucket_of(&mux->table, channel, sequence);
    bool ok = forget_sends(mux, channel, &sequence, bucket);
    forget_recvs(mux, channel, sequence, bucket);
    forget_records(mux, channel, &sequence, bucket);
    ok = horon_mux_note_forgotten(&mux->table, channel, sequence) && ok;
    if (!ok)
        lack_memory(mux);
}

void horon_mux_forget_channel(struct horon_mux *mux, uint32_t channel)
{
    if (!mux)
        return;
    HORON_ASSERT_OWNER(mux->options.owner);
    for (size_t i = 0; i < horon_mux_bucket_count(&mux->table); i++) {
        if (!forget_sends(mux, channel, NULL, &mux->table.buckets[i]))
            lack_memory(mux);
        forget_records(mux, channel, NULL, &mux->table.buckets[i]);
    }
}

/* What waits to be sent, unless the link is full. What goes wrong is said once all has been read.
 */
static void offer(struct horon_mux *mux, bool *moved_out)
{
    struct horon_error *broken = &mux->tx.broken;
    if (!broken->status && !mux->tx.full && horon_mux_tx_wants(mux))
        broken->status = horon_mux_tx_progress(mux, moved_out, broken);
}

/* Out first: somebody may wait for it. What comes in often asks for something more to go out. If
 * the way out is gone, what the peer sent before it went still counts, its last words above all:
 * the link is lost once a turn has found nothing more to read. Else it is read only if something is
 * said to be there: to find nothing costs a system call. What was lent is read in the turn after
 * the one that heard of it: reading takes long, and what this rank lends in turn goes out before.
 */
static horon_status_t move_both_ways(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *lost)
{
    struct horon_error *broken = &mux->tx.broken;
    const bool lent = mux->rx.fetches.first != NULL;
    bool came = false;
    mux->tx.full = false; /* of what goes from here on the link has not said anything */
    offer(mux, moved_out);
    horon_status_t status = HORON_OK;
    if (broken->status || mux->link->ops->ready(mux->link))
        status = horon_mux_rx_progress(mux, &came, lost);
    mux->rx.read_max = 0; /* of this turn, even if it did not read */
    if (!status && lent)
        came |= horon_mux_rx_fetch(mux);
    if (came)
        *moved_out = true;
    if (broken->status && (status || !came)) {
        *lost = *broken;
        return broken->status;
    }
    if (!status)
        offer(mux, moved_out);
    return status;
}

/* @param lost set if the link itself says so */
HORON_SELDOM static void end_mux(struct horon_mux *mux, horon_status_t status,
                                 const struct horon_error *lost)
{
    struct horon_error *failure = &mux->failure;
    horon_mux_tx_recall_all(mux);
    if (!failure->status) {
        horon_mux_fail(mux, status, lost->text);
        failure->blame.cause = lost->blame.cause;
    }
    if (failure->blame.rank < 0 && status != HORON_ERR_MEMORY) /* which is missing here */
        failure->blame.rank = mux->options.peer;
}

horon_status_t horon_mux_progress(struct horon_mux *mux, bool *moved_out, struct horon_error *error)
{
    HORON_ASSERT_OWNER(mux->options.owner);
    struct horon_error *failure = &mux->failure;
    if (!failure->status) {
        struct horon_error lost;
        lost.text[0] = 0; /* all of it is too much for every turn of a loop that spins */
        const horon_status_t status = move_both_ways(mux, moved_out, &lost);
        if (status)
            end_mux(mux, status, &lost);
    }
    if (failure->status && error)
        *error = *failure;
    return failure->status;
}

void horon_mux_push(struct horon_mux *mux)
{
    bool moved = false;
    if (!mux)
        return;
    HORON_ASSERT_OWNER(mux->options.owner);
    if (!mux->failure.status)
        offer(mux, &moved);
}

static void lose_peer(struct horon_mux *mux, const char *what, horon_cause_t cause)
{
    if (mux->tx.broken.status)
        return;
    horon_error_set(&mux->tx.broken, HORON_ERR_PEER_LOST, "%s", what);
    horon_error_blame(&mux->tx.broken, cause, mux->options.peer, -1);
}

void horon_mux_peer_gone(struct horon_mux *mux, const char *what)
{
    HORON_ASSERT_OWNER(mux->options.owner);
    lose_peer(mux, what, HORON_CAUSE_DIED);
}

void horon_mux_check(struct horon_mux *mux)
{
    struct horon_error error;
    if (!mux)
        return;
    HORON_ASSERT_OWNER(mux->options.owner);
    if (!mux->failure.status && mux->link->ops->check(mux->link, &error))
        lose_peer(mux, error.text, error.blame.cause);
}

horon_status_t horon_mux_failure(const struct horon_mux *mux, struct horon_error *error)
{
    if (mux->failure.status && error)
        *error = mux->failure;
    return mux->failure.status;
}

/* A mux that can send no more wants turns until it has read all that came. */
bool horon_mux_wants_write(const struct horon_mux *mux)
{
    return !mux->failure.status && (mux->tx.broken.status || horon_mux_tx_wants(mux));
}

bool horon_mux_wants_control(const struct horon_mux *mux)
{
    return mux && !mux->failure.status && !mux->tx.broken.status && horon_mux_tx_has_control(mux);
}

bool horon_mux_wants_turn(const struct horon_mux *mux)
{
    return mux->link->ops->ready(mux->link) || horon_mux_has_unsent(mux);
}

/* What it has to send does not change meanwhile. */
bool horon_mux_wants_turn_soon(const struct horon_mux *mux, int looks)
{
    const struct horon_link *link = mux->link;
    do {
        if (link->ops->ready(link))
            return true;
        if (looks > 1)
            horon_cpu_relax();
    } while (--looks > 0);
    return horon_mux_has_unsent(mux);
}

bool horon_mux_leaves_work(const struct horon_mux *mux, bool even_if_full)
{
    return even_if_full
               ? (mux->rx.fetches.first && !mux->failure.status) || horon_mux_wants_write(mux)
               : horon_mux_has_unsent(mux);
}

bool horon_mux_has_unsent(const struct horon_mux *mux)
{
    if (mux->rx.fetches.first && !mux->failure.status)
        return true;
    return horon_mux_wants_write(mux) &&
           (mux->tx.broken.status || !mux->tx.full || mux->link->ops->ready(mux->link));
}

size_t horon_mux_undelivered(const struct horon_mux *mux)
{
    if (!mux || mux->failure.status)
        return 0;
    return horon_mux_tx_left(mux) + mux->link->ops->undelivered(mux->link);
}

size_t horon_mux_eager_bytes(const struct horon_mux *mux)
{
    return mux ? mux->options.eager_bytes : 0;
}

/* Of a failure the turn that is due tells. */
bool horon_mux_read_one(struct horon_mux *mux, size_t bytes)
{
    struct horon_error lost;
    bool came = false;
    HORON_ASSERT_OWNER(mux->options.owner);
    mux->rx.read_max = HORON_MUX_SHORT_HEADER_BYTES + (bytes < DIRECT_BYTES ? bytes : 0);
    if (mux->failure.status || mux->tx.broken.status || mux->rx.fetches.first ||
        horon_mux_tx_wants(mux))
        return false;
    lost.text[0] = 0; /* all of it is too much for every turn of a loop that spins */
    const horon_status_t status = horon_mux_rx_progress(mux, &came, &lost);
    if (status)
        end_mux(mux, status, &lost);
    if (status || !came)
        return false;
    mux->rx.read_max = 0;
    return true;
}

bool horon_mux_lacks_room(const struct horon_mux *mux, size_t bytes)
{
    return mux && !mux->failure.status && bytes <= mux->options.eager_bytes &&
           !horon_mux_tx_has_room(mux, bytes) && mux->link->ops->ready(mux->link);
}

bool horon_mux_is_in_memory(const struct horon_mux *mux)
{
    return mux && mux->in_memory;
}

struct horon_link *horon_mux_link(const struct horon_mux *mux)
{
    return mux ? mux->link : NULL;
}

void horon_mux_bytes(const struct horon_mux *mux, uint64_t *sent_out, uint64_t *received_out)
{
    *sent_out = mux->tx.sent_bytes;
    *received_out = mux->rx.received_bytes;
}
