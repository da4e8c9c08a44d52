/* SPDX-License-Identifier: Apache-2.0 */
/* Serves torch's TCPStore, with a thread of its own, for as long as it is there: torch's ranks come
 * back to it whenever they make a group. Ranks that are slow to join ask it for what the others
 * have said when all these have joined, and perhaps ended. */
#ifndef HORON_BOOT_GLOO_C10D_SERVER_H
#define HORON_BOOT_GLOO_C10D_SERVER_H

#include "address.h"
#include "fds.h"
#include "log.h"
#include "status.h"

struct horon_c10d_server;

/**
 * Listens at those of @p at that are this machine's, all at @p port, and starts to serve.
 * @param fds where sockets are noted, or NULL; as long as the server
 * @return OK | ERR_SYSTEM, the port is taken, or no address is this machine's | ERR_MEMORY
 */
horon_status_t horon_c10d_server_start(const struct horon_addresses *at, int port,
                                       struct horon_fds *fds, const struct horon_log *log,
                                       struct horon_c10d_server **server_out,
                                       struct horon_error *error);
/** Takes no more clients: its ranks are all horon's and have come, and its address is another
 * server's. NULL is a no-op. Blocks: no. */
void horon_c10d_server_shut(struct horon_c10d_server *server);
/** Ends the thread, and closes all. NULL is a no-op.
 * @param patient serves until its clients have gone; or, if not all are horon's, have asked nothing
 * for a second, but for three at most; if all are, for ten at most. Else it ends at once. Blocks:
 * so long */
void horon_c10d_server_stop(struct horon_c10d_server *server, bool patient);

#endif
