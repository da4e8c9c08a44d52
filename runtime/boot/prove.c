/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads exactly what the handshake wants next, so that the bytes behind it stay in the socket for
 * the next owner of the connection. A refusal is sent before the connection is given up: the kernel
 * takes its one byte without waiting, or nothing can be done.
 */
#include "boot/prove.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static horon_status_t send_some(int fd, struct horon_auth *auth, struct horon_error *error)
{
    size_t bytes;
    for (const uint8_t *out; (out = horon_auth_out(auth, &bytes));) {
        ssize_t sent = send(fd, out, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            horon_auth_sent(auth, (size_t)sent);
        else if (errno == EAGAIN)
            return HORON_AGAIN;
        else if (errno != EINTR)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "the connection broke");
    }
    return HORON_OK;
}

/* OK: some bytes were taken. */
static horon_status_t receive_some(int fd, struct horon_auth *auth, struct horon_error *error)
{
    uint8_t in[HORON_HELLO_BYTES_MAX];
    for (;;) {
        ssize_t got = recv(fd, in, horon_auth_want(auth), MSG_DONTWAIT);
        if (got > 0) {
            horon_status_t status = horon_auth_feed(auth, in, (size_t)got);
            if (status < 0)
                *error = auth->error;
            return status < 0 ? status : HORON_OK;
        }
        if (got == 0)
            return horon_error_set(error, HORON_ERR_CLOSED, "it hung up");
        if (errno == EAGAIN)
            return HORON_AGAIN;
        if (errno != EINTR)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "the connection broke");
    }
}

horon_status_t horon_prove_turn(int fd, struct horon_auth *auth, uint32_t *events_out,
                                struct horon_error *error)
{
    struct horon_error ignored;
    *events_out = EPOLLIN;
    if (auth->state == HORON_AUTH_FAILED) { /* before it began */
        *error = auth->error;
        return error->status;
    }
    for (;;) {
        horon_status_t sent = send_some(fd, auth, error);
        if (sent < 0)
            return sent;
        if (auth->state == HORON_AUTH_PROVEN && sent == HORON_OK)
            return HORON_OK;
        if (sent == HORON_AGAIN)
            *events_out = EPOLLOUT | EPOLLIN;
        if (horon_auth_want(auth) == 0) /* proven, but not all is sent */
            return HORON_AGAIN;
        horon_status_t got = receive_some(fd, auth, error);
        if (got < 0)
            send_some(fd, auth, &ignored);
        if (got != HORON_OK)
            return got;
    }
}
