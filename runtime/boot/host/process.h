/* SPDX-License-Identifier: Apache-2.0 */
/* The process at the other end of a connected unix socket, as the kernel knows it. */
#ifndef HORON_BOOT_HOST_PROCESS_H
#define HORON_BOOT_HOST_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

/** Does it run as our effective user? */
bool horon_process_is_our_user(int socket);

/** @return a descriptor that is readable once it has ended, the caller's; or -1 with errno */
int horon_process_open(int socket);

/** Likewise of this process. */
int horon_process_open_self(void);

/** Has the process of @p pidfd ended, and its parent not asked yet how? Of a process in another pid
 * namespace that is not known: false, as for -1. */
bool horon_process_awaits_parent(int pidfd);

/** Can processes of another pid namespace be watched, too? @param socket a unix socket, which need
 * not be connected */
bool horon_process_opens_any(int socket);

/** Writes "process 1234" or "process 1234 of user 1000". */
void horon_process_name(int socket, char *text, size_t text_bytes);

#endif
