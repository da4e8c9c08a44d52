/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer that announces itself (horon_mux_send_now()), as its receiver hears of it. */
#ifndef HORON_LINK_MUX_ANNOUNCED_H
#define HORON_LINK_MUX_ANNOUNCED_H

#include "link/mux.h"

struct horon_mux_announced {
    struct horon_transfer_id id;
    uint64_t check, bytes;
    const void *data; /* all of it, to be read during the call; NULL: it is not here yet */
    bool taken; /* set by the receiver: it has what it wants of `data`, and will never post the
                   transfer */
};

/** Is its link no descriptor, so that nothing but a look tells what has come? No, of NULL. */
bool horon_mux_is_in_memory(const struct horon_mux *mux);

/** Has it what only a turn of this rank moves? As horon_mux_has_unsent() says, or, @p even_if_full,
 * anything to send at all. */
bool horon_mux_leaves_work(const struct horon_mux *mux, bool even_if_full);

/** As horon_mux_wants_turn(), but looks up to @p looks times at what comes. */
bool horon_mux_wants_turn_soon(const struct horon_mux *mux, int looks);

/** Reads once, and no further than a message of @p bytes reaches that announces itself: what lies
 * behind one that is awaited stays on the link, for those that await it. Of a long one only the
 * header, and the body next time, straight to where it was posted meanwhile.
 * @return false: a turn is due instead, which then reads likewise */
bool horon_mux_read_one(struct horon_mux *mux, size_t bytes);

/** Would a short send of @p bytes ask for credit, although something has come that may say that its
 * peer has room again? Then a turn comes first. */
bool horon_mux_lacks_room(const struct horon_mux *mux, size_t bytes);

#endif
