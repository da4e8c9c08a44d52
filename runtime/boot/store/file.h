/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a store in a directory: DIR/horon.store, in which rank 0 writes where it serves, for
 * the others to read. It holds one job at a time: rank 0 keeps it locked until all have come, so
 * one that is not locked was left by a process that is gone, and the next rank 0 writes it anew.
 *
 * No other file is ever made, changed or removed, and this one only if it may be ours: a regular
 * file under this one name, short, which begins as we begin it, or is the begin of that, is empty,
 * or is the one byte that stands for "no room" (file.c). Links are not followed, and what
 * could make open() wait is not opened. A directory in which another user may write is refused:
 * that user could put another file there, and lead the ranks elsewhere.
 */
#ifndef HORON_BOOT_STORE_FILE_H
#define HORON_BOOT_STORE_FILE_H

#include "status.h"

#include <stdbool.h>

struct horon_fds;

#define HORON_STORE_FILE_BYTES_MAX 4096 /* of the whole file */

/** One rank's view of it. */
struct horon_store_file {
    struct horon_fds *fds; /* where rank 0 notes what it has locked, or NULL */
    char path[288];
    int directory;    /* -1: closed */
    int fd;           /* on rank 0: the file, perhaps locked; else -1 */
    char writer[128]; /* of the one that was read last: "process 12 on node3"; or "" */
    bool left;        /* that one's writer is gone */
};

/**
 * @param fds where a locked file is noted, as in fds.h; or NULL
 * @return OK; end it with horon_store_file_close() in any case | ERR_CONFIG, there is no such
 *         directory, or another user may write in it
 */
horon_status_t horon_store_file_open(struct horon_store_file *file, const char *directory,
                                     struct horon_fds *fds, struct horon_error *error);

/**
 * Rank 0: takes the file, and writes @p addresses for the others.
 * @param writer this process, in the words that others will use of it
 * @return OK | ERR_CONFIG, a job that lives meets here, or what lies there is not ours |
 *         ERR_SYSTEM: if there is no room for it the others can read that until it is removed
 */
horon_status_t horon_store_file_write(struct horon_store_file *file, const char *addresses,
                                      const char *writer, struct horon_error *error);

/** Rank 0: removes what it wrote. A no-op if it has not. */
void horon_store_file_remove(struct horon_store_file *file);

/**
 * The others: looks once.
 * @param addresses as rank 0 wrote them
 * @return OK | AGAIN, there is none, or its rank 0 is gone (left) | ERR_CONFIG, what lies there is
 *         not ours | ERR_SYSTEM, among others: rank 0 found no room for it
 */
horon_status_t horon_store_file_read(struct horon_store_file *file,
                                     char addresses[HORON_STORE_FILE_BYTES_MAX],
                                     struct horon_error *error);

/** Removes what was written, and closes. */
void horon_store_file_close(struct horon_store_file *file);

#endif
