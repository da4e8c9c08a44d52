/* SPDX-License-Identifier: Apache-2.0 */
/* What a request has that is a message, and what a team has of them; messages.c, carried.c. */
#ifndef HORON_ENGINE_MESSAGE_H
#define HORON_ENGINE_MESSAGE_H

#include "backend/messages.h"
#include "engine/matching.h"
#include "link/mux.h"

struct horon_request;

/** How far a message is. Which moves are legal says a table in messages.c. */
enum horon_message_state {
    HORON_MESSAGE_NEW,      /* a send whose link is not there yet */
    HORON_MESSAGE_WAITS,    /* a receive that was not announced yet */
    HORON_MESSAGE_UNDERWAY, /* posted to the link */
    HORON_MESSAGE_CARRIED   /* a backend has it; carried.c */
};

/** Of a request that is one. */
struct horon_message {
    enum horon_message_state state;
    bool unlinked;                    /* counted as a send whose link is not there yet */
    struct horon_request *next, **at; /* of the team's messages in flight; where it is linked */
    int peer; /* the rank at its other end, of the job; -1: not looked up yet */
    uint64_t tag;
    struct horon_expected expected; /* of a receive */
    union {
        struct horon_transfer transfer; /* once it is under way */
        struct horon_backend_message carried;
    };
};

/** Of a team. */
struct horon_team_messages {
    struct horon_matching *matching;     /* NULL: there were none yet */
    struct horon_request *first, **last; /* in flight, in the order of their submission */
    struct horon_mux_ends ends;          /* of the transfers of those under way */
    uint64_t seen, moves;                /* the membership's changes; messages begun and ended */
    size_t unlinked;                     /* sends whose link is not there yet */
    struct horon_request *awaited;       /* a receive that is in no list, or NULL; express.c */
    struct horon_request *coming;        /* likewise, whose data is read */
    uint32_t turns;                      /* for it, in vain */
    /* Of the lane in order, if a backend carries them instead of links, else NULL; carried.c. */
    struct horon_backend_channel *carrier;
};

#endif
