/* SPDX-License-Identifier: Apache-2.0 */
/* Passes descriptors over a proven unix stream socket, each with a note of fixed size. */
#ifndef HORON_BOOT_PASS_H
#define HORON_BOOT_PASS_H

#include "status.h"

#include <stddef.h>
#include <stdint.h>

#define HORON_PASS_FDS_MAX 3
#define HORON_NOTE_BYTES 24

enum horon_note_kind {
    HORON_NOTE_GIVE = 1,    /* member to leader: its arena, its doorbell */
    HORON_NOTE_CONTROL = 2, /* leader to member: the control segment */
    HORON_NOTE_PEER = 3     /* leader to member: a rank's arena, doorbell, pidfd */
};

struct horon_note {
    uint32_t kind;
    uint32_t local_rank; /* whose */
    uint64_t bytes;      /* of the memory */
};

/** Gathers one note and its descriptors; all zero is empty. */
struct horon_pass_inbox {
    uint8_t raw[HORON_NOTE_BYTES];
    size_t raw_bytes;
    int fds[HORON_PASS_FDS_MAX];
    int fd_count;
};

/** @return OK, all is on its way; the descriptors stay the caller's | AGAIN, the socket is full |
 * IN_PROGRESS, too many descriptors are on their way: try again soon | ERR_PEER_LOST */
horon_status_t horon_pass_send(int socket, const struct horon_note *note, const int *fds,
                               int fd_count, struct horon_error *error);

/** @return OK, note and inbox->fds are whole, now the caller's (it sets fd_count to 0) | AGAIN |
 * ERR_PEER_LOST, it hung up | ERR_PROTO, no note | ERR_SYSTEM, out of descriptors */
horon_status_t horon_pass_receive(int socket, struct horon_pass_inbox *inbox,
                                  struct horon_note *note, struct horon_error *error);

/** Closes what the inbox holds. */
void horon_pass_inbox_deinit(struct horon_pass_inbox *inbox);

#endif
