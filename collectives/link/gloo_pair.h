/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a pair, shared by gloo_wire.c, gloo_out.c and gloo_notes.c: lists of messages,
 * announcements, credits and payloads that came early. There are as many as messages in flight.
 */
#ifndef HORON_LINK_GLOO_PAIR_H
#define HORON_LINK_GLOO_PAIR_H

#include "link/gloo_wire.h"

#define HORON_GLOO_IN_BYTES 4096

struct horon_gloo_list {
    struct horon_gloo_message *first, **last;
};

/* Announced: a message that is to come. Or a credit. */
struct horon_gloo_note {
    struct horon_gloo_note *next;
    uint64_t slot;
    uint64_t length;
    bool matched;
    bool by_grant; /* announced by ASK, so what lets it come is GRANT */
};

/* A payload that came before anybody awaited it. */
struct horon_gloo_early {
    struct horon_gloo_early *next;
    uint64_t slot;
    size_t bytes;
    uint8_t data[];
};

struct horon_gloo_pair {
    struct horon_link *link;
    bool peer_is_horon;     /* the other end has said HELLO, and this one had */
    bool native;            /* this end says HELLO */
    bool heard;             /* a frame has come: a horon's first is HELLO */
    struct horon_error end; /* of the connection; no status: it is there */
    /* Nothing goes out any more, and what had come before is still to be read. */
    struct horon_error broken;
    /* out */
    struct horon_gloo_list waiting; /* for a credit */
    struct horon_gloo_list ready;
    size_t eager; /* of those that are ready: go without a credit */
    struct horon_gloo_note *credits;
    uint8_t *control;
    size_t control_used, control_sent, control_limit;
    uint64_t said; /* bytes of frames, ever */
    size_t window; /* eager bytes that the receiver has, or will have */
    /* in */
    struct horon_gloo_list awaited;
    struct horon_gloo_note *announced;
    struct horon_gloo_early *early, **early_last; /* a peer may be far ahead: there may be many */
    size_t note_count, early_bytes, to_take;
    uint8_t in[HORON_GLOO_IN_BYTES];
    size_t in_at, in_end;
    struct horon_gloo_message *into;     /* a payload comes into this, or ... */
    struct horon_gloo_early *into_early; /* ... into that */
    uint8_t *payload;
    size_t payload_left;
};

/** Puts a frame behind the others. @return OK | ERR_MEMORY */
horon_status_t horon_gloo_say(struct horon_gloo_pair *pair, uint64_t code, uint64_t slot,
                              uint64_t length);
/** A message that may go, as a frame of this kind. */
void horon_gloo_make_ready(struct horon_gloo_pair *pair, struct horon_gloo_message *message,
                           uint64_t code);
/** As much as the connection takes. @return OK | what it failed with */
horon_status_t horon_gloo_write_out(struct horon_gloo_pair *pair, bool *moved_out,
                                    struct horon_error *error);

void horon_gloo_append(struct horon_gloo_list *list, struct horon_gloo_message *message);
/** @return the first on a slot with this by_grant, taken out of the list; NULL: there is none */
struct horon_gloo_message *horon_gloo_take(struct horon_gloo_list *list, uint64_t slot,
                                           bool by_grant);
bool horon_gloo_has(const struct horon_gloo_list *list, uint64_t slot);

/** Behind the others. @return OK | ERR_MEMORY | ERR_PROTO, there are too many */
horon_status_t horon_gloo_note(struct horon_gloo_pair *pair, struct horon_gloo_note **list,
                               const struct horon_gloo_frame *frame, bool by_grant);
/** @return false: there was none of that slot */
bool horon_gloo_drop_note(struct horon_gloo_pair *pair, struct horon_gloo_note **list,
                          uint64_t slot);
void horon_gloo_drop_notes(struct horon_gloo_pair *pair, struct horon_gloo_note **list);

/** What has not moved of a piece, behind the others. @return how many they are */
static inline int horon_gloo_add_piece(struct iovec *vector, int count, const void *from,
                                       size_t bytes, size_t moved)
{
    if (moved >= bytes)
        return count;
    vector[count] = (struct iovec){(uint8_t *)(uintptr_t)from + moved, bytes - moved};
    return count + 1;
}

#endif
