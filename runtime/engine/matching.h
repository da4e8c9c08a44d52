/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which message goes to which receive, of one team on one rank. A sender announces each message on
 * its link, before the data: its tag, count and dtype. The announcements of a rank are numbered as
 * they come, and by that number its data is told apart; so nothing is kept of a tag once no message
 * of it waits, and tags may be as many as there are messages. What came first of a rank and tag
 * meets the receive of them that was posted first. Pure: no links, no requests.
 *
 * Receives lie in their requests. Announcements that nobody has asked for yet are kept in memory
 * that is used again, and are bounded by what a link lets a peer send without being asked.
 *
 * Thread: one at a time, the owner's.
 */
#ifndef HORON_ENGINE_MATCHING_H
#define HORON_ENGINE_MATCHING_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** A receive. Owner: the poster; at the same address until it is met or withdrawn. */
struct horon_expected {
    int peer; /* rank in the team */
    uint64_t tag;
    struct horon_expected *next; /* for the table alone */
};

/** A message that was announced. */
struct horon_offer {
    int peer;
    uint8_t dtype;
    uint64_t tag, count;
    uint64_t number; /* of those of this peer, from 0; set by the table */
};

struct horon_matching;

/** @param size ranks of the team; @param waiting_max announcements of one peer that may wait.
 * @return NULL: no memory */
struct horon_matching *horon_matching_create(int size, size_t waiting_max);
/** NULL is a no-op. */
void horon_matching_destroy(struct horon_matching *matching);

/** A receive is posted. @return was the message announced? Then what it is; else the receive
 * waits. */
bool horon_matching_expect(struct horon_matching *matching, struct horon_expected *expected,
                           struct horon_offer *offer_out);
/** A receive that waits is taken back. */
void horon_matching_withdraw(struct horon_matching *matching, struct horon_expected *expected);

/**
 * A message is announced, and gets its number.
 * @param expected_out the receive that it meets, which waits no more; NULL: none is posted yet
 * @return OK | ERR_PROTO, waiting_max of this peer wait | ERR_MEMORY
 */
horon_status_t horon_matching_announce(struct horon_matching *matching, struct horon_offer *offer,
                                       struct horon_expected **expected_out);

/** @return the number of the next message that @p peer announces */
uint64_t horon_matching_next_offer(const struct horon_matching *matching, int peer);
/** @return the number of the next message that this rank sends to @p peer */
uint64_t horon_matching_next_send(const struct horon_matching *matching, int peer);
/** It is announced. */
void horon_matching_count_send(struct horon_matching *matching, int peer);
/** A message of @p peer came, and its receive was known: neither is in the table. */
void horon_matching_count_offer(struct horon_matching *matching, int peer);
/** How many announcements wait? */
size_t horon_matching_waiting(const struct horon_matching *matching);

#endif
