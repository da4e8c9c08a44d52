/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors of a rank. How many there may be: each step of joining asks before it begins, so
 * that a rank which cannot go on says what is lacking, and the others hear it.
 *
 * Which sockets, locked files and descriptors of its launcher a rank has, for the child of a fork
 * to close: its copy would keep a connection open after this process has died, or a port taken, or
 * a file locked, or could speak for the rank. Another thread may fork at any moment, so what makes
 * one holds forks off until it stands here.
 *
 * Code that closes a socket need not say so: an entry counts while the descriptor is still that
 * socket, by its inode. Inodes of files are used again, so a file is closed by horon_fds_close().
 */
#ifndef HORON_BASE_FDS_H
#define HORON_BASE_FDS_H

#include "status.h"

#include <stdint.h>

/** Closes *fd unless it is -1, which it is then. Async-signal-safe. */
void horon_fd_close(int *fd);

/** @return N of "fd:N", as a launcher names a descriptor that it hands over; -1: that is none */
int horon_fd_of_name(const char *name);

/** All zero is empty, and nobody forks. */
struct horon_fds {
    void (*hold)(void);    /* from here on fork() waits ... */
    void (*release)(void); /* ... until here; both NULL: nobody forks */
    struct horon_fds_entry {
        int fd;
        uint64_t device, inode;
    } * items;
    int count, room;
};

/* In all of these NULL is nobody's list: nothing is noted. */

void horon_fds_hold(const struct horon_fds *fds);
void horon_fds_release(const struct horon_fds *fds);

/**
 * Notes a socket or file that was made since horon_fds_hold(), and releases. @p fd may be -1, for
 * "errno says why". @return @p fd; or -1 with errno: there is no memory, and it is closed
 */
int horon_fds_note(struct horon_fds *fds, int fd);

/** Closes a file that was noted, and forgets it. */
void horon_fds_close(struct horon_fds *fds, int fd);

/** Closes all that are still what was noted. Async-signal-safe. */
void horon_fds_close_in_child(const struct horon_fds *fds);

void horon_fds_deinit(struct horon_fds *fds);

/**
 * Sees to it that this process can open @p count more: raises the soft limit as far as that needs
 * and the hard limit lets it, and no further, as select() of some other part of the program knows
 * only those below 1024.
 * @param purpose what they are for, as in "sharing memory with 7 ranks"
 * @return OK, or it cannot be known | ERR_SYSTEM, saying the limit, what is in use, what is needed
 */
horon_status_t horon_descriptors_need(int count, const char *purpose, struct horon_error *error);

#endif
