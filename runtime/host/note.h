/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of fixed size over a proven unix stream socket, each with descriptors. */
#ifndef HORON_HOST_NOTE_H
#define HORON_HOST_NOTE_H

#include "status.h"

#include <stdint.h>

#define HORON_NOTE_FDS_MAX 4
#define HORON_NOTE_BYTES 24

/** Of the job: comes with a rank's arena, its doorbell and its pidfd, and, if it is about the
 * leader, with the host's control segment. Of another team: comes with a member's arena or the
 * team's segment, or with nothing: there is no memory for that. Of no team: comes with a ring that
 * the sender writes, or with nothing. */
struct horon_note {
    uint32_t team;       /* 0: the job */
    uint32_t local_rank; /* whose, in the team; or HORON_NOTE_SEGMENT; of a ring, see rings.c */
    uint64_t bytes;      /* of the arena or segment */
    int fds[HORON_NOTE_FDS_MAX];
    int fd_count;
    const char *lack; /* received: why there is no memory of it, if there is none. Static */
};

#define HORON_NOTE_SEGMENT UINT32_MAX
/** As team: of none, but of the link between the two ranks. */
#define HORON_NOTE_LINK UINT32_MAX

/** @return OK, all is on its way; the descriptors stay the caller's | AGAIN, the socket is full |
 * IN_PROGRESS, too many descriptors are on their way, or the system has no room for them: try again
 * soon | ERR_PEER_LOST, it hung up | ERR_SYSTEM */
horon_status_t horon_note_send(int socket, const struct horon_note *note,
                               struct horon_error *error);

/** @return OK, until horon_note_close() | AGAIN | ERR_PEER_LOST, it hung up | ERR_PROTO, no note |
 * ERR_SYSTEM, out of descriptors, which a team's note comes without; with a failure there is
 * nothing to close */
horon_status_t horon_note_receive(int socket, struct horon_note *note, struct horon_error *error);

/** Closes its descriptors, but for those that are -1: somebody else's by now. */
void horon_note_close(struct horon_note *note);

#endif
