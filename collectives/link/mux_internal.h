/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the mux: what its files share. mux.c creates, posts and forgets; mux_table.h finds
 * transfers and records, mux_moves.h says what may befall a transfer; mux_send.c makes frames of
 * what is due; mux_recv.c takes frames apart; mux_loan.c reads what is not sent at all.
 */
#ifndef HORON_LINK_MUX_INTERNAL_H
#define HORON_LINK_MUX_INTERNAL_H

#include "link/mux.h"
#include "link/mux_frame.h"
#include "link/mux_moves.h"
#include "link/mux_table.h"

/* Frames of one burst: half of the link's vector, as each has a header and may have a body. */
#define HORON_MUX_BURST_FRAMES (HORON_LINK_VECTOR_MAX / 2)
/* A burst takes no more data once it holds this much; large writes, and still control soon. */
#define HORON_MUX_BURST_BYTES ((size_t)1 << 20)

/* Frames that were begun: the vector given to the link, and what to do when an entry is gone. */
struct horon_mux_burst {
    struct iovec vector[HORON_LINK_VECTOR_MAX];
    struct {
        struct horon_transfer *transfer; /* concerned, or NULL */
        struct horon_mux_record *record; /* released when the entry is gone, or NULL */
        bool body;                       /* the entry is memory of `transfer` */
        bool ends;                       /* the transfer is done when the entry is gone */
    } entry[HORON_LINK_VECTOR_MAX];
    int at, count;
    int frames;
    size_t data_bytes;
    uint8_t headers[HORON_MUX_BURST_FRAMES][HORON_MUX_HEADER_BYTES];
    uint8_t loans[HORON_MUX_BURST_FRAMES][HORON_MUX_LOAN_BYTES]; /* of the frame of that number */
};

struct horon_mux_tx {
    struct horon_mux_record *control_first; /* messages to send */
    struct horon_mux_record **control_last;
    size_t control_bytes;
    struct horon_mux_queue notes; /* receives whose CREDIT or TAKEN is due, sends whose WANT is */
    struct horon_mux_queue ready; /* sends with data that may go */
    struct horon_mux_burst burst;
    bool full; /* the link took less than it was given last */
    /* why nothing goes out any more; what came in before is read to its end all the same */
    struct horon_error broken;
    size_t room_bytes; /* eager room the peer has for us */
    uint32_t room_transfers;
    size_t unsent_bytes; /* room that sends hold before their first frame: unknown to the peer */
    uint32_t unsent_transfers;
    uint32_t sends_waiting; /* posted sends that cannot end without credit */
    uint64_t sent_bytes;
};

/* Read ahead: small frames come many to a system call. Bodies of posted receives bypass it but for
 * what was read along with the header. */
#define HORON_MUX_STAGING_BYTES 16384

enum horon_mux_target {
    HORON_MUX_TO_NOBODY, /* dropped */
    HORON_MUX_TO_TRANSFER,
    HORON_MUX_TO_RECORD, /* an arrival or a control message */
};

struct horon_mux_rx {
    struct horon_mux_frame frame; /* the one whose body comes now */
    size_t body_left;
    bool in_body;
    enum horon_mux_target target;
    struct horon_transfer *transfer;
    struct horon_mux_record *record;
    size_t staged_begin, staged_end;
    size_t read_max;       /* of the turn that is next, which reads once; 0: as much as comes */
    size_t buffered_bytes; /* eager room of arrivals in use */
    uint32_t buffered_transfers;
    uint32_t wants, credits;                     /* records of these kinds */
    uint32_t recvs_waiting;                      /* posted receives above eager_bytes */
    struct horon_mux_queue fetches;              /* those that are read where they lie */
    uint64_t returned_bytes, returned_transfers; /* eager room to give back with the next frame */
    uint64_t received_bytes;
    uint8_t staging[HORON_MUX_STAGING_BYTES];
};

struct horon_mux {
    struct horon_link *link;
    bool in_memory; /* the link is, so that nothing but a look tells what has come */
    bool may_hold;  /* it may keep what it took: see horon_mux_link_holds() */
    struct horon_mux_options options;
    struct horon_error failure; /* status is not OK: the mux is dead */
    struct horon_mux_table table;
    struct horon_mux_tx tx;
    struct horon_mux_rx rx;
};

/* ---- mux_send.c ---- */

/* Sends a bounded amount. OK also when the link is full | ERR_PEER_LOST, text without the name. */
horon_status_t horon_mux_tx_progress(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *error);
/* Is a control message not sent yet, or not whole? */
bool horon_mux_tx_has_control(const struct horon_mux *mux);
/* Room is given back on its own only when much of it is due: usually another frame takes it along.
 */
static inline bool horon_mux_tx_room_is_due(const struct horon_mux *mux)
{
    const struct horon_mux_rx *rx = &mux->rx;
    if (rx->returned_transfers > HORON_MUX_EAGER_TRANSFERS_MAX / 2)
        return true;
    return rx->returned_bytes > mux->options.eager_total_bytes / 2;
}

/* Of what it took, in a frame of its own: it must be let finish that. */
static inline bool horon_mux_link_holds(const struct horon_mux *mux)
{
    return mux->may_hold && mux->link->ops->interest(mux->link, false) & HORON_LINK_WRITE;
}

/* Is a transfer of so many bytes lent, instead of sent? Both ends say so alike. */
static inline bool horon_mux_lends(const struct horon_mux *mux, uint64_t bytes)
{
    return mux->link->lends && bytes > mux->options.eager_bytes;
}

/* Has it anything to send? */
static inline bool horon_mux_tx_wants(const struct horon_mux *mux)
{
    const struct horon_mux_tx *tx = &mux->tx;
    if (tx->burst.at < tx->burst.count || tx->control_first)
        return true;
    return tx->notes.first || tx->ready.first || horon_mux_tx_room_is_due(mux) ||
           horon_mux_link_holds(mux);
}

/* Has the peer eager room for a send of `bytes`? */
bool horon_mux_tx_has_room(const struct horon_mux *mux, uint64_t bytes);
/* Takes it; the peer knows once the first frame has gone. */
void horon_mux_tx_take_room(struct horon_mux *mux, struct horon_transfer *transfer);
/* Bytes made ready that the link has not taken. */
size_t horon_mux_tx_left(const struct horon_mux *mux);
/* The peer has posted: all of it may go. */
void horon_mux_tx_credit(struct horon_mux *mux, struct horon_transfer *transfer);
/* The peer has read all of it. */
void horon_mux_tx_taken(struct horon_mux *mux, struct horon_transfer *transfer);
/* Takes a send out of queues and burst; what is in the burst is copied. False: no memory. */
bool horon_mux_tx_withdraw(struct horon_mux *mux, struct horon_transfer *transfer);
void horon_mux_tx_deinit(struct horon_mux *mux);

/* ---- mux_recv.c ---- */

/* Receives a bounded amount. OK also when nothing is there | a failure, in mux->failure or, from
 * the link, in `error` without the name. */
horon_status_t horon_mux_rx_progress(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *error);
/* A receive has come whole. */
void horon_mux_rx_end(struct horon_mux *mux, struct horon_transfer *transfer);
/* Is the body that comes read as one, from a record if it does not lie in the staging buffer? */
static inline bool horon_mux_rx_keeps_body(const struct horon_mux_rx *rx)
{
    return rx->frame.type == HORON_MUX_CONTROL || rx->frame.type == HORON_MUX_LOAN;
}
/* The eager share of a transfer of `bytes`. */
size_t horon_mux_eager_share(const struct horon_mux *mux, uint64_t bytes);
/* Gives the eager room of an arrival back and releases it. It is out of the table. */
void horon_mux_rx_drop_arrival(struct horon_mux *mux, struct horon_mux_record *record);

/* ---- mux_loan.c ---- */

/* What the peer is to be told of a send. */
struct horon_mux_loan horon_mux_tx_lend(const struct horon_mux *mux,
                                        const struct horon_transfer *transfer);
/* A send is withdrawn: a peer that reads it from now on is to find out. */
void horon_mux_tx_recall(struct horon_mux *mux, const struct horon_transfer *transfer);
/* Likewise all of them: the mux ends, and its users may not withdraw them one by one. */
void horon_mux_tx_recall_all(struct horon_mux *mux);
/* A receive is read where it lies, in the turns to come. */
void horon_mux_rx_borrow(struct horon_mux *mux, struct horon_transfer *transfer,
                         const struct horon_mux_loan *loan);
/* Reads some more of what the peer has lent. @return was there anything? */
bool horon_mux_rx_fetch(struct horon_mux *mux);

/* ---- mux.c ---- */

/* Ends the mux with a text in which the peer's name goes first. @return status */
horon_status_t horon_mux_fail(struct horon_mux *mux, horon_status_t status, const char *what);

#endif
