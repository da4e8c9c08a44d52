/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which of many links have something, at a price that does not depend on how many have
 * nothing. Links learn it by their `found`; the engine that turns them asks each link, which costs
 * no system call.
 *
 * Thread: one at a time, the owner's. Any thread may sleep until the descriptor is readable.
 */
#ifndef HORON_LINK_POLLER_H
#define HORON_LINK_POLLER_H

#include "link/link.h"
#include "owner.h"

struct horon_poller;

/** @param owner the thread that may ask, for HORON_ASSERT_OWNER(); NULL: any
 * @return OK | ERR_MEMORY | ERR_SYSTEM */
horon_status_t horon_poller_create(const struct horon_owner *owner,
                                   struct horon_poller **poller_out, struct horon_error *error);
/** The links must have been removed. NULL is a no-op. */
void horon_poller_destroy(struct horon_poller *poller);
/** For the child of a fork: closes the descriptor, frees nothing. NULL is a no-op. */
void horon_poller_close_in_child(struct horon_poller *poller);

/** Watches a link from here on. One without a descriptor is not: that tells by itself.
 * @return OK | ERR_SYSTEM */
horon_status_t horon_poller_add(struct horon_poller *poller, struct horon_link *link,
                                struct horon_error *error);
/** To be called before the link is destroyed. */
void horon_poller_remove(struct horon_poller *poller, struct horon_link *link);

/** Likewise a descriptor of something that is no link, and is asked at each turn anyway: it wakes
 * a thread that sleeps, once for each time that it becomes readable. */
horon_status_t horon_poller_add_descriptor(struct horon_poller *poller, int descriptor,
                                           struct horon_error *error);
void horon_poller_remove_descriptor(struct horon_poller *poller, int descriptor);

/** At each turn. If one link alone is watched, and has had something before, it is taken to have
 * something again: that costs no system call here. Else as horon_poller_collect(). */
void horon_poller_look(struct horon_poller *poller);

/** Asks for all links: one system call, and one more after each 32 that had something. To be
 * called before going to sleep. @return true if any had something */
bool horon_poller_collect(struct horon_poller *poller);

/** Readable once a link has something that was not collected. */
int horon_poller_descriptor(const struct horon_poller *poller);

#endif
