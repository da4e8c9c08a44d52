/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which sockets, locked files and descriptors of its launcher a rank has, for the child of a fork
 * to close: its copy would keep a connection open after this process has died, or a port taken, or
 * a file locked, or could speak for the rank. Another thread may fork at any moment, so what makes
 * one holds forks off until it stands here.
 *
 * Code that closes a socket need not say so: an entry counts while the descriptor is still that
 * socket, by its inode. Inodes of files are used again, so a file is closed by horon_fds_close().
 */
#ifndef HORON_BOOT_FDS_H
#define HORON_BOOT_FDS_H

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
 * Notes a socket or file, between hold and release. @p fd may be -1, for "errno says why".
 * @return @p fd; or -1 with errno: there is no memory, and it is closed
 */
int horon_fds_note(struct horon_fds *fds, int fd);

/** Closes a file that was noted, and forgets it. */
void horon_fds_close(struct horon_fds *fds, int fd);

/** Closes all that are still what was noted. Async-signal-safe. */
void horon_fds_close_in_child(const struct horon_fds *fds);

void horon_fds_deinit(struct horon_fds *fds);

#endif
