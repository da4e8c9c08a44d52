/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of stores with their servers, which may start later than this process. */
#ifndef HORON_BOOT_GLOO_DIAL_H
#define HORON_BOOT_GLOO_DIAL_H

#include "address.h"
#include "boot/gloo/wait.h"
#include "fds.h"

/**
 * Connects with the first of @p all that answers, as often as it takes.
 * @param fd_out non-blocking, with TCP_NODELAY; the caller's. It may have been closed by then
 * @param wait with a subject; its state is what was tried
 * @return OK | ERR_TIMEOUT, nobody answers: the text is each address and what came of it |
 *         ERR_CANCELLED | ERR_SYSTEM
 */
horon_status_t horon_gloo_dial(const struct horon_addresses *all, struct horon_fds *fds,
                               const struct horon_gloo_wait *wait, int *fd_out,
                               struct horon_error *error);

/** Sends all. @return OK | ERR_PEER_LOST, with errno and no text: it is gone | ERR_TIMEOUT, without
 * a text | ERR_CANCELLED | ERR_SYSTEM */
horon_status_t horon_gloo_send(int fd, const void *bytes, size_t count,
                               const struct horon_gloo_wait *wait, struct horon_error *error);
/** Reads some. @return likewise; OK and 0 bytes: the other side is through */
horon_status_t horon_gloo_receive(int fd, void *bytes, size_t room, size_t *got_out,
                                  const struct horon_gloo_wait *wait, struct horon_error *error);

#endif
