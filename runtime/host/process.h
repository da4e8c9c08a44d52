/* SPDX-License-Identifier: Apache-2.0 */
/* The process at the other end of a connected unix socket, as the kernel knows it. */
#ifndef HORON_HOST_PROCESS_H
#define HORON_HOST_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/** Does it run as our effective user? */
bool horon_process_is_our_user(int socket);

/** @return its number here, if it runs as our effective user; 0: it does not, or is of another pid
 * namespace */
pid_t horon_process_number(int socket);

/** May this process read the memory of others of its user and its pid namespace, and they this
 * one's? Not if ptrace_scope or seccomp forbids it, or the process was made unreadable. @param proc
 * "/proc", or a directory like it for tests */
bool horon_process_may_read_others(const char *proc);

/** @return a descriptor that is readable once this process has ended, for others to watch, the
 * caller's; or -1 with errno */
int horon_process_open_self(void);

/** Has the process of @p pidfd ended, and its parent not asked yet how? Of a process in another pid
 * namespace that is not known: false, as for -1. */
bool horon_process_awaits_parent(int pidfd);

/** Writes "process 1234" or "process 1234 of user 1000". */
void horon_process_name(int socket, char *text, size_t text_bytes);

#endif
