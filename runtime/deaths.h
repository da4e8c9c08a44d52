/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes of this host are gone, or write a core file. */
#ifndef HORON_DEATHS_H
#define HORON_DEATHS_H

#include <stdint.h>

struct horon_context;

/** The socket to a process of this host was closed. Thread: one with the token. */
void horon_deaths_lost(struct horon_context *ctx, int local_rank);
/** Watches the processes of this host; first of all that the loop watches. */
void horon_deaths_watch(struct horon_context *ctx);
/** With the token: tells the engine whose process on this host has ended since it was last told. */
void horon_deaths_report(struct horon_context *ctx);
/** With the token: looks for processes that write a core file, if it is time to. Thread: the
 * progress thread, whose it is when it looks. */
void horon_deaths_look(struct horon_context *ctx);
/** Tells MPI, which may end with the process, what it knows of those of this host. */
void horon_deaths_tell_mpi(const struct horon_context *ctx);
/** As horon_loop_sleep(), and looks in time; what is found ends the sleep. Thread: likewise,
 * without the token. */
void horon_deaths_sleep(struct horon_context *ctx, int64_t timeout_ns);

#endif
