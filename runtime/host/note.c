/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sendmsg() a note: the kernel keeps descriptors with the first byte they came with and never
 * joins two messages that carry some, so a reader that asks for one note's bytes gets that note's
 * descriptors. A note is so small that a stream socket takes it, and gives it, whole or not at all.
 */
#include "host/note.h"

#include "codec.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NOTE_MAGIC 0x45544f4eu /* "NOTE" */

/* Only a socket that is closed tells that the process at its other end is gone. */
static horon_status_t status_of(int why)
{
    switch (why) {
    case EAGAIN:
        return HORON_AGAIN;
    case ETOOMANYREFS:
    case ENOBUFS: /* the system has no memory for it just now */
    case ENOMEM:
        return HORON_IN_PROGRESS;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return HORON_ERR_PEER_LOST;
    default:
        return HORON_ERR_SYSTEM;
    }
}

horon_status_t horon_note_send(int socket, const struct horon_note *note, struct horon_error *error)
{
    uint8_t raw[HORON_NOTE_BYTES];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof note->fds)] = {0};
    struct horon_writer out = horon_writer_over(raw, sizeof raw);
    assert(note->fd_count >= 0);
    assert(note->fd_count <= HORON_NOTE_FDS_MAX);
    horon_write_u32(&out, NOTE_MAGIC);
    horon_write_u32(&out, note->team);
    horon_write_u32(&out, note->local_rank);
    horon_write_u32(&out, (uint32_t)note->fd_count);
    horon_write_u64(&out, note->bytes);
    struct iovec vector = {.iov_base = raw, .iov_len = sizeof raw};
    const size_t fd_bytes = (size_t)note->fd_count * sizeof note->fds[0];
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (note->fd_count) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(rights), note->fds, fd_bytes);
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == (ssize_t)sizeof raw)
        return HORON_OK;
    const int why = sent < 0 ? errno : EPIPE;
    const horon_status_t status = status_of(why);
    return status > 0 ? status
                      : horon_error_set_errno(error, status, why, "descriptors cannot be passed");
}

/* The kernel drops what there is no room for, and says so by MSG_CTRUNC. */
static void take_rights(struct horon_note *note, struct msghdr *message)
{
    const struct cmsghdr *rights = CMSG_FIRSTHDR(message);
    if (!rights || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS)
        return;
    const size_t bytes = rights->cmsg_len - CMSG_LEN(0);
    assert(bytes <= sizeof note->fds);
    memcpy(note->fds, CMSG_DATA(rights), bytes);
    note->fd_count = (int)(bytes / sizeof note->fds[0]);
}

static const char no_room[] = "this process is out of descriptors (see ulimit -n)";

static horon_status_t judge(const uint8_t *raw, ssize_t got, int flags, struct horon_note *note,
                            struct horon_error *error)
{
    struct horon_reader in = horon_reader_over(raw, (size_t)got);
    if (got == 0)
        return horon_error_set(error, HORON_ERR_PEER_LOST, "it hung up");
    const uint32_t magic = horon_read_u32(&in);
    note->team = horon_read_u32(&in);
    note->local_rank = horon_read_u32(&in);
    const uint32_t fd_count = horon_read_u32(&in);
    note->bytes = horon_read_u64(&in);
    const bool cut = flags & MSG_CTRUNC, well = horon_reader_finished(&in) && magic == NOTE_MAGIC;
    if (cut && (!well || note->team == 0))
        return horon_error_set(error, HORON_ERR_SYSTEM, "%s", no_room);
    if (cut)
        horon_note_close(note); /* the rest, which is of no use alone */
    note->lack = cut ? no_room : fd_count ? "it cannot be mapped" : "it could not make its part";
    if (!well || (!cut && (int)fd_count != note->fd_count))
        return horon_error_set(error, HORON_ERR_PROTO, "what came with descriptors is no note");
    return HORON_OK;
}

horon_status_t horon_note_receive(int socket, struct horon_note *note, struct horon_error *error)
{
    uint8_t raw[HORON_NOTE_BYTES];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof note->fds)];
    struct iovec vector = {.iov_base = raw, .iov_len = sizeof raw};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return HORON_AGAIN;
    if (got < 0)
        return horon_error_set_errno(error, HORON_ERR_PEER_LOST, errno, "the connection broke");
    *note = (struct horon_note){0};
    take_rights(note, &message);
    horon_status_t status = judge(raw, got, message.msg_flags, note, error);
    if (status != HORON_OK)
        horon_note_close(note);
    return status;
}

void horon_note_close(struct horon_note *note)
{
    for (int i = 0; i < note->fd_count; i++)
        if (note->fds[i] >= 0)
            close(note->fds[i]);
    note->fd_count = 0;
}
