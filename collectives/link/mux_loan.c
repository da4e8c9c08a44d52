/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link between two processes of a host may lend. Then a transfer above eager_bytes is announced
 * by a LOAN, which says where it lies; the receiver copies it from there once it is posted, and
 * says TAKEN: one copy, and the sender does nothing meanwhile.
 *
 *      LOAN        ------------>
 *                  (the system reads the sender's memory)
 *                  <------------   TAKEN; or, if that cannot be done, CREDIT, and DATA comes
 *
 * A send that is withdrawn is its owner's again at once, while the receiver may be reading. So a
 * loan goes with a stamp, a word of the sender's in the memory of the link that each withdrawal
 * changes before it returns, and so does the end of the mux, by a failure or with its context. The
 * receiver looks at it behind the data: if it is still the loan's, the data was, too. What was lent
 * with the old stamp besides is sent instead. The link sees to it that what was read is the
 * sender's, and not that of a process that has got its number.
 */
#include "link/mux_internal.h"

#include <assert.h>

/* Read in one progress at most, so that the caller can see to its other peers. */
#define TURN_BYTES ((size_t)1 << 20)

struct horon_mux_loan horon_mux_tx_lend(const struct horon_mux *mux,
                                        const struct horon_transfer *transfer)
{
    return (struct horon_mux_loan){
        .at = (uintptr_t)transfer->data,
        .stamp = atomic_load_explicit(mux->link->own_stamp, memory_order_relaxed),
    };
}

void horon_mux_tx_recall(struct horon_mux *mux, const struct horon_transfer *transfer)
{
    const bool waits =
        transfer->state & HORON_MUX_SEND_WANTED && !(transfer->state & HORON_MUX_SEND_CREDITED);
    if (waits && horon_mux_lends(mux, transfer->bytes))
        horon_mux_tx_recall_all(mux);
}

void horon_mux_tx_recall_all(struct horon_mux *mux)
{
    if (!mux->link->lends)
        return;
    atomic_fetch_add(mux->link->own_stamp, 1);
    atomic_thread_fence(memory_order_seq_cst); /* before the owner writes there */
}

void horon_mux_rx_borrow(struct horon_mux *mux, struct horon_transfer *transfer,
                         const struct horon_mux_loan *loan)
{
    transfer->loan = *loan;
    horon_mux_move_transfer(transfer, HORON_MUX_BEGIN_FETCH);
    horon_mux_queue_push(&mux->rx.fetches, transfer);
}

/* @return is it what was lent? */
static bool fetch(struct horon_mux *mux, const struct horon_transfer *transfer, size_t bytes)
{
    const struct horon_mux_loan *loan = &transfer->loan;
    struct horon_link *link = mux->link;
    uint8_t *to = (uint8_t *)transfer->data + transfer->moved_bytes;
    assert(link->ops->fetch);
    if (link->ops->fetch(link, to, loan->at + transfer->moved_bytes, bytes) != HORON_OK)
        return false;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(link->peer_stamp, memory_order_relaxed) == loan->stamp;
}

bool horon_mux_rx_fetch(struct horon_mux *mux)
{
    struct horon_transfer *transfer = mux->rx.fetches.first;
    if (!transfer)
        return false;
    const size_t left = transfer->bytes - transfer->moved_bytes;
    const size_t bytes = left < TURN_BYTES ? left : TURN_BYTES;
    const bool fetched = !transfer->data || fetch(mux, transfer, bytes);
    assert(bytes > 0);
    transfer->moved_bytes = fetched ? transfer->moved_bytes + bytes : 0;
    if (fetched && bytes < left)
        return true;
    horon_mux_queue_pop(&mux->rx.fetches);
    horon_mux_move_transfer(transfer, HORON_MUX_END_FETCH);
    horon_mux_move_transfer(transfer, fetched ? HORON_MUX_OWE_TAKEN : HORON_MUX_OWE_CREDIT);
    horon_mux_queue_push(&mux->tx.notes, transfer);
    mux->rx.received_bytes += fetched ? transfer->bytes : 0;
    return true;
}
