/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the mux: what its files share. mux.c creates, posts and forgets; mux_table.c finds
 * transfers and records; mux_send.c makes frames of what is due; mux_recv.c takes frames apart.
 */
#ifndef HORON_LINK_MUX_INTERNAL_H
#define HORON_LINK_MUX_INTERNAL_H

#include "link/mux.h"
#include "link/mux_frame.h"

/* State bits of a transfer. */
#define HORON_MUX_RECV_CREDITED 1u  /* receive: credit was put on the wire */
#define HORON_MUX_CREDIT_DUE 2u     /* receive: credit is queued in `notes` */
#define HORON_MUX_SEND_EAGER 4u     /* send: has taken eager room */
#define HORON_MUX_SEND_CREDITED 8u  /* send: the peer has posted */
#define HORON_MUX_SEND_WANT_DUE 16u /* send: its WANT is queued in `notes` */
#define HORON_MUX_SEND_WANTED 32u   /* send: its WANT was put on the wire */
#define HORON_MUX_SEND_QUEUED 64u   /* send: stands in `ready` */
#define HORON_MUX_SEND_WAITS 128u   /* send: counted in sends_waiting */

/* What the peer did before we posted, or a control message on its way: the one kind of memory the
 * mux takes while running. Ended records are kept for the next. */
struct horon_mux_record {
    struct horon_mux_record *next;
    struct horon_transfer_id id;
    uint64_t check, bytes; /* as the peer said them */
    size_t got_bytes;      /* in data */
    size_t capacity_bytes; /* of data */
    bool wanted;           /* arrival: the peer asked for credit and sends nothing before it */
    _Alignas(16) uint8_t data[];
};

/* Records kept for reuse; a record above the size is given back to the heap. */
#define HORON_MUX_SPARE_RECORDS_MAX 16
#define HORON_MUX_SPARE_RECORD_BYTES_MAX ((size_t)64 << 10)

#define HORON_MUX_BUCKETS 64
/* Operations that ended in an error and whose last frames may still come. One that many failures
 * ago has none: the peer has long given it up, too, and a link keeps order. */
#define HORON_MUX_FORGOTTEN_MAX 1024

struct horon_mux_table {
    struct horon_transfer *sends[HORON_MUX_BUCKETS]; /* posted, not done */
    struct horon_transfer *recvs[HORON_MUX_BUCKETS];
    struct horon_mux_record
        *arrivals[HORON_MUX_BUCKETS]; /* data or WANT that came before the post */
    struct horon_mux_record *credits[HORON_MUX_BUCKETS]; /* CREDIT that came before the post */
    struct horon_mux_record *spare;
    int spare_count;
    struct {
        uint32_t channel;
        uint64_t sequence;
    } * forgotten; /* [HORON_MUX_FORGOTTEN_MAX], a ring; NULL until something was forgotten */
    uint64_t forgotten_count;
};

struct horon_mux_queue {
    struct horon_transfer *first;
    struct horon_transfer **last; /* where the next one is linked */
};

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
};

struct horon_mux_tx {
    struct horon_mux_record *control_first; /* messages to send */
    struct horon_mux_record **control_last;
    size_t control_bytes;
    struct horon_mux_queue notes; /* receives whose CREDIT is due, sends whose WANT is due */
    struct horon_mux_queue ready; /* sends with data that may go */
    struct horon_mux_burst burst;
    bool full; /* the link took less than it was given last */
    /* why nothing goes out any more; what came in before is read to its end all the same */
    struct horon_error broken;
    size_t room_bytes; /* eager room the peer has for us */
    uint32_t room_transfers;
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
    size_t buffered_bytes; /* eager room of arrivals in use */
    uint32_t buffered_transfers;
    uint32_t wants, credits;                     /* records of these kinds */
    uint32_t recvs_waiting;                      /* posted receives above eager_bytes */
    uint64_t returned_bytes, returned_transfers; /* eager room to give back with the next frame */
    uint64_t received_bytes;
    uint8_t staging[HORON_MUX_STAGING_BYTES];
};

struct horon_mux {
    struct horon_link *link;
    struct horon_mux_options options;
    struct horon_error failure; /* status is not OK: the mux is dead */
    struct horon_mux_table table;
    struct horon_mux_tx tx;
    struct horon_mux_rx rx;
};

/* ---- mux_table.c ---- */

size_t horon_mux_bucket_of(uint32_t channel, uint64_t sequence);
bool horon_transfer_id_equal(const struct horon_transfer_id *a, const struct horon_transfer_id *b);
/* Each finds by id or gives NULL. */
struct horon_transfer *horon_mux_find_send(const struct horon_mux_table *table,
                                           const struct horon_transfer_id *id);
struct horon_transfer *horon_mux_find_recv(const struct horon_mux_table *table,
                                           const struct horon_transfer_id *id);
struct horon_mux_record *horon_mux_find_arrival(const struct horon_mux_table *table,
                                                const struct horon_transfer_id *id);
struct horon_mux_record *horon_mux_find_credit(const struct horon_mux_table *table,
                                               const struct horon_transfer_id *id);
void horon_mux_insert_send(struct horon_mux_table *table, struct horon_transfer *transfer);
void horon_mux_insert_recv(struct horon_mux_table *table, struct horon_transfer *transfer);
void horon_mux_insert_arrival(struct horon_mux_table *table, struct horon_mux_record *record);
void horon_mux_insert_credit(struct horon_mux_table *table, struct horon_mux_record *record);
/* The item must be there. */
void horon_mux_remove_send(struct horon_mux_table *table, const struct horon_transfer *transfer);
void horon_mux_remove_recv(struct horon_mux_table *table, const struct horon_transfer *transfer);
void horon_mux_remove_arrival(struct horon_mux_table *table, const struct horon_mux_record *record);
void horon_mux_remove_credit(struct horon_mux_table *table, const struct horon_mux_record *record);
/* Marks what is posted for the operation as mismatched if its check is another. */
void horon_mux_compare_posted(const struct horon_mux_table *table,
                              const struct horon_transfer_id *id, uint64_t check, uint64_t bytes);
/* A record of the operation with another check, or NULL. */
const struct horon_mux_record *horon_mux_find_conflict(const struct horon_mux_table *table,
                                                       const struct horon_transfer_id *id,
                                                       uint64_t check);
void horon_mux_mark_mismatch(struct horon_transfer *transfer, uint64_t their_check,
                             uint64_t their_bytes);

/* A record for `bytes` bytes; everything but capacity is 0. NULL: no memory. */
struct horon_mux_record *horon_mux_record_take(struct horon_mux_table *table, size_t bytes);
/* NULL is a no-op. */
void horon_mux_record_release(struct horon_mux_table *table, struct horon_mux_record *record);

bool horon_mux_is_forgotten(const struct horon_mux_table *table,
                            const struct horon_transfer_id *id);
/* False: no memory. */
bool horon_mux_note_forgotten(struct horon_mux_table *table, uint32_t channel, uint64_t sequence);
void horon_mux_table_deinit(struct horon_mux_table *table);

void horon_mux_queue_init(struct horon_mux_queue *queue);
void horon_mux_queue_push(struct horon_mux_queue *queue, struct horon_transfer *transfer);
struct horon_transfer *horon_mux_queue_pop(struct horon_mux_queue *queue);
void horon_mux_queue_remove(struct horon_mux_queue *queue, struct horon_transfer *transfer);

/* ---- mux_send.c ---- */

/* Sends a bounded amount. OK also when the link is full | ERR_PEER_LOST, text without the name. */
horon_status_t horon_mux_tx_progress(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *error);
bool horon_mux_tx_wants(const struct horon_mux *mux);
/* The peer has posted: all of it may go. */
void horon_mux_tx_credit(struct horon_mux *mux, struct horon_transfer *transfer);
/* Takes a send out of queues and burst; what is in the burst is copied. False: no memory. */
bool horon_mux_tx_withdraw(struct horon_mux *mux, struct horon_transfer *transfer);
void horon_mux_tx_deinit(struct horon_mux *mux);

/* ---- mux_recv.c ---- */

/* Receives a bounded amount. OK also when nothing is there | a failure, in mux->failure or, from
 * the link, in `error` without the name. */
horon_status_t horon_mux_rx_progress(struct horon_mux *mux, bool *moved_out,
                                     struct horon_error *error);
/* The eager share of a transfer of `bytes`. */
size_t horon_mux_eager_share(const struct horon_mux *mux, uint64_t bytes);
/* Gives the eager room of an arrival back and releases it. It is out of the table. */
void horon_mux_rx_drop_arrival(struct horon_mux *mux, struct horon_mux_record *record);

/* ---- mux.c ---- */

/* Ends the mux with a text in which the peer's name goes first. @return status */
horon_status_t horon_mux_fail(struct horon_mux *mux, horon_status_t status, const char *what);

#endif
