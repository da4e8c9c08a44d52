/* SPDX-License-Identifier: Apache-2.0 */
/* Passes descriptors over a proven unix stream socket, each with a note of fixed size. */
#ifndef HORON_BOOT_PASS_H
#define HORON_BOOT_PASS_H

#include "status.h"

#include <stddef.h>
#include <stdint.h>

#define HORON_PASS_FDS_MAX 4
#define HORON_NOTE_BYTES 20

/** Comes with a rank's arena and doorbell; from the leader also with the rank's pidfd, and, if it
 * is about the leader itself, with the host's control segment. */
struct horon_note {
    uint32_t local_rank; /* whose */
    uint64_t bytes;      /* of the arena */
};

/** Gathers one note and its descriptors; all zero is empty. */
struct horon_pass_inbox {
    uint8_t raw[HORON_NOTE_BYTES];
    size_t raw_bytes;
    int fds[HORON_PASS_FDS_MAX]; /* -1: somebody else's by now */
    int fd_count;
};

/** @return OK, all is on its way; the descriptors stay the caller's | AGAIN, the socket is full |
 * IN_PROGRESS, too many descriptors are on their way: try again soon | ERR_PEER_LOST */
horon_status_t horon_pass_send(int socket, const struct horon_note *note, const int *fds,
                               int fd_count, struct horon_error *error);

/** @return OK, note and inbox->fds are whole, until horon_pass_inbox_deinit() | AGAIN |
 * ERR_PEER_LOST, it hung up | ERR_PROTO, no note | ERR_SYSTEM, out of descriptors */
horon_status_t horon_pass_receive(int socket, struct horon_pass_inbox *inbox,
                                  struct horon_note *note, struct horon_error *error);

/** Closes what the inbox holds. */
void horon_pass_inbox_deinit(struct horon_pass_inbox *inbox);

#endif
