/* SPDX-License-Identifier: Apache-2.0 */
/* What may befall a transfer of a mux while it is posted, as bits and the table of legal moves. */
#ifndef HORON_LINK_MUX_MOVES_H
#define HORON_LINK_MUX_MOVES_H

#include "link/mux.h"

#include <assert.h>

/* State bits of a transfer, which horon_mux_move_transfer() changes. */
#define HORON_MUX_RECV_CREDITED 1u  /* receive: credit was put on the wire */
#define HORON_MUX_CREDIT_DUE 2u     /* receive: credit is queued in `notes` */
#define HORON_MUX_SEND_EAGER 4u     /* send: has taken eager room */
#define HORON_MUX_SEND_CREDITED 8u  /* send: the peer has posted */
#define HORON_MUX_SEND_WANT_DUE 16u /* send: its WANT is queued in `notes` */
#define HORON_MUX_SEND_WANTED 32u   /* send: its WANT was put on the wire */
#define HORON_MUX_SEND_QUEUED 64u   /* send: stands in `ready` */
#define HORON_MUX_SEND_WAITS 128u   /* send: counted in sends_waiting */
#define HORON_MUX_RECV_FETCHES 256u /* receive: stands in `fetches` */
#define HORON_MUX_TAKEN_DUE 512u    /* receive: it was read, and TAKEN is queued in `notes` */

#define HORON_MUX_OF_RECV                                                                          \
    (HORON_MUX_RECV_CREDITED | HORON_MUX_CREDIT_DUE | HORON_MUX_RECV_FETCHES | HORON_MUX_TAKEN_DUE)

/* What may befall a transfer. */
enum horon_mux_move {
    HORON_MUX_OWE_CREDIT,   /* receive: CREDIT is to be said */
    HORON_MUX_GIVE_CREDIT,  /* is said */
    HORON_MUX_BEGIN_FETCH,  /* receive: it is lent, and will be read */
    HORON_MUX_END_FETCH,    /* it was, or could not be */
    HORON_MUX_OWE_TAKEN,    /* that is to be said */
    HORON_MUX_SAY_TAKEN,    /* is said */
    HORON_MUX_TAKE_ROOM,    /* send: eager room is taken for it */
    HORON_MUX_RETURN_ROOM,  /* and given back before the peer knows */
    HORON_MUX_AWAIT_CREDIT, /* without which it cannot end */
    HORON_MUX_END_WAIT,     /* credit comes, or the send is withdrawn */
    HORON_MUX_OWE_WANT,     /* WANT, or LOAN, is to be said */
    HORON_MUX_SAY_WANT,     /* is said */
    HORON_MUX_GET_CREDIT,   /* with the post, or later */
    HORON_MUX_ENQUEUE,      /* there is data that may go */
    HORON_MUX_DEQUEUE       /* a frame was made of the last of it */
};
#define HORON_MUX_MOVE_COUNT (HORON_MUX_DEQUEUE + 1)

/* A move is legal for a transfer whose state has all bits of `has`, at least one of `one_of` (if
 * any is named there), and none of `lacks`. It clears the bits of `goes`, and sets those of
 * `comes`. */
struct horon_mux_rule {
    uint32_t has, one_of, lacks, goes, comes;
};

static inline struct horon_mux_rule horon_mux_rule_of(enum horon_mux_move move)
{
    static const struct horon_mux_rule legal[] = {
        [HORON_MUX_OWE_CREDIT] = {.lacks = UINT32_MAX, .comes = HORON_MUX_CREDIT_DUE},
        [HORON_MUX_GIVE_CREDIT] = {.has = HORON_MUX_CREDIT_DUE,
                                   .lacks = ~HORON_MUX_CREDIT_DUE,
                                   .goes = HORON_MUX_CREDIT_DUE,
                                   .comes = HORON_MUX_RECV_CREDITED},
        [HORON_MUX_BEGIN_FETCH] = {.lacks = UINT32_MAX, .comes = HORON_MUX_RECV_FETCHES},
        [HORON_MUX_END_FETCH] = {.has = HORON_MUX_RECV_FETCHES,
                                 .lacks = ~HORON_MUX_RECV_FETCHES,
                                 .goes = HORON_MUX_RECV_FETCHES},
        [HORON_MUX_OWE_TAKEN] = {.lacks = UINT32_MAX, .comes = HORON_MUX_TAKEN_DUE},
        [HORON_MUX_SAY_TAKEN] = {.has = HORON_MUX_TAKEN_DUE,
                                 .lacks = ~HORON_MUX_TAKEN_DUE,
                                 .goes = HORON_MUX_TAKEN_DUE},
        [HORON_MUX_TAKE_ROOM] = {.lacks = UINT32_MAX, .comes = HORON_MUX_SEND_EAGER},
        [HORON_MUX_RETURN_ROOM] = {.has = HORON_MUX_SEND_EAGER | HORON_MUX_SEND_QUEUED,
                                   .lacks = HORON_MUX_OF_RECV | HORON_MUX_SEND_CREDITED,
                                   .goes = HORON_MUX_SEND_EAGER},
        [HORON_MUX_AWAIT_CREDIT] = {.lacks = ~(HORON_MUX_SEND_EAGER | HORON_MUX_SEND_QUEUED),
                                    .comes = HORON_MUX_SEND_WAITS},
        [HORON_MUX_END_WAIT] = {.has = HORON_MUX_SEND_WAITS,
                                .lacks = HORON_MUX_OF_RECV | HORON_MUX_SEND_CREDITED,
                                .goes = HORON_MUX_SEND_WAITS},
        [HORON_MUX_OWE_WANT] = {.has = HORON_MUX_SEND_WAITS,
                                .lacks = ~HORON_MUX_SEND_WAITS,
                                .comes = HORON_MUX_SEND_WANT_DUE},
        [HORON_MUX_SAY_WANT] = {.has = HORON_MUX_SEND_WANT_DUE | HORON_MUX_SEND_WAITS,
                                .lacks = ~(HORON_MUX_SEND_WANT_DUE | HORON_MUX_SEND_WAITS),
                                .goes = HORON_MUX_SEND_WANT_DUE,
                                .comes = HORON_MUX_SEND_WANTED},
        [HORON_MUX_GET_CREDIT] = {.lacks = HORON_MUX_OF_RECV | HORON_MUX_SEND_CREDITED |
                                           HORON_MUX_SEND_WAITS | HORON_MUX_SEND_WANT_DUE,
                                  .comes = HORON_MUX_SEND_CREDITED},
        [HORON_MUX_ENQUEUE] = {.one_of = HORON_MUX_SEND_EAGER | HORON_MUX_SEND_CREDITED,
                               .lacks = HORON_MUX_OF_RECV | HORON_MUX_SEND_QUEUED,
                               .comes = HORON_MUX_SEND_QUEUED},
        [HORON_MUX_DEQUEUE] = {.has = HORON_MUX_SEND_QUEUED,
                               .one_of = HORON_MUX_SEND_EAGER | HORON_MUX_SEND_CREDITED,
                               .lacks = HORON_MUX_OF_RECV,
                               .goes = HORON_MUX_SEND_QUEUED}};
    return legal[move];
}

static inline bool horon_mux_may_move(uint32_t state, enum horon_mux_move move)
{
    const struct horon_mux_rule rule = horon_mux_rule_of(move);
    return (state & rule.has) == rule.has && (!rule.one_of || (state & rule.one_of)) &&
           !(state & rule.lacks);
}

/* The only function that changes the bits of a posted transfer. */
static inline void horon_mux_move_transfer(struct horon_transfer *transfer,
                                           enum horon_mux_move move)
{
    const struct horon_mux_rule rule = horon_mux_rule_of(move);
    assert(horon_mux_may_move(transfer->state, move));
    transfer->state = (transfer->state & ~rule.goes) | rule.comes;
}

#endif
