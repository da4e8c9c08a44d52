/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where horonrun learns why a rank failed, as data: a page of memory that it hands to the rank as a
 * descriptor, HORON_FAILURE_FILE=fd:N, and reads once the rank's process has ended. Only the last
 * failure of a process counts; a context that leaves well clears nothing.
 */
#ifndef HORON_HOST_FAILURE_FILE_H
#define HORON_HOST_FAILURE_FILE_H

#include "fds.h"
#include "host/memory.h"
#include "status.h"

#include <stdbool.h>

/* ---- In horonrun ---- */

/**
 * Makes one, in which nothing is said yet.
 * @param map_out map_out->fd, close-on-exec, is the caller's to close once the rank has it; ended
 * with horon_memory_unmap()
 * @return OK | ERR_MEMORY | ERR_SYSTEM
 */
horon_status_t horon_failure_file_make(struct horon_map *map_out, struct horon_error *error);

/**
 * @param size ranks of the job: any process that was given the descriptor may have written, so a
 * rank that there is not is taken for none (horon_blame_from_peer())
 * @param why_out status and blame; no text
 * @return false: no failure is told there
 */
bool horon_failure_file_read(const struct horon_map *map, int size, struct horon_error *why_out);

/* ---- In a rank; @p name is that of the option. A descriptor that is closed or something else is
 * not there: whatever stands between horonrun and a rank may close it or use its number. ---- */

/** Keeps it from programs that this process starts, and from children by @p fds. */
void horon_failure_file_keep(const char *name, struct horon_fds *fds);

/** Tells status and blame. */
void horon_failure_file_write(const char *name, const struct horon_error *why);

#endif
