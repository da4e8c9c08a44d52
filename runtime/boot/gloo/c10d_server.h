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
 * @param job  its prefix: ranks of horon's of another one wait until it has met
 * @param fds where sockets are noted, or NULL; as long as the server
 * @return OK | ERR_SYSTEM, the port is taken, or no address is this machine's | ERR_MEMORY
 */
horon_status_t horon_c10d_server_start(const struct horon_addresses *at, int port, const char *job,
                                       struct horon_fds *fds, const struct horon_log *log,
                                       struct horon_c10d_server **server_out,
                                       struct horon_error *error);
/** Its ranks have met. If all are horon's it takes no more clients: its address is the next job's
 * server's. Else it serves whatever comes: torch's ranks make groups, of which horons may be, too.
 * NULL is a no-op. Blocks: until it takes no more, a moment. */
void horon_c10d_server_end_meeting(struct horon_c10d_server *server, bool of_horons);
/** Ends the thread, and closes all. NULL is a no-op.
 * @param patient serves until its clients have gone, those that say nothing for a tenth of a second
 * at most; or, if not all are horon's, have asked nothing for a second, but for three at most; if
 * all are, for ten at most. Else it ends at once. Blocks: so long */
void horon_c10d_server_stop(struct horon_c10d_server *server, bool patient);

#endif
