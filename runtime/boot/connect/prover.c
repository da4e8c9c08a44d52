/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads exactly what the handshake wants next, so that the bytes behind it stay in the socket for
 * the next owner of the connection. A refusal is sent before the connection is given up: the kernel
 * takes its one byte without waiting, or nothing can be done.
 */
#include "boot/connect/prover.h"

#include "fds.h"
#include "link/link.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A call that does not wait is not interrupted either. */
static horon_status_t not_now(struct horon_error *error)
{
    return errno == EAGAIN
               ? HORON_AGAIN
               : horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "the connection broke");
}

static horon_status_t send_some(int fd, struct horon_handshake *handshake,
                                struct horon_error *error)
{
    size_t bytes;
    for (const uint8_t *out; (out = horon_handshake_out(handshake, &bytes));) {
        ssize_t sent = send(fd, out, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            horon_handshake_sent(handshake, (size_t)sent);
        else
            return not_now(error);
    }
    return HORON_OK;
}

/* OK: some bytes were taken. */
static horon_status_t receive_some(int fd, struct horon_handshake *handshake,
                                   struct horon_error *error)
{
    uint8_t in[HORON_HELLO_BYTES_MAX];
    const ssize_t got = recv(fd, in, horon_handshake_want(handshake), MSG_DONTWAIT);
    if (got < 0)
        return not_now(error);
    if (got == 0)
        return horon_error_set(error, HORON_ERR_CLOSED, "it hung up");
    const horon_status_t status = horon_handshake_feed(handshake, in, (size_t)got);
    if (status < 0)
        *error = handshake->error;
    return status < 0 ? status : HORON_OK;
}

horon_status_t horon_prover_begin(struct horon_prover *prover, enum horon_side side,
                                  struct horon_error *error)
{
    const struct horon_self *self = prover->self;
    uint8_t random[HORON_HANDSHAKE_RANDOM_BYTES];
    assert(prover->watch.fd >= 0);
    horon_status_t status = horon_random(random, sizeof random, error);
    if (status != HORON_OK)
        return status;
    status = horon_handshake_init(&prover->handshake, side, self->key, &self->hello, random);
    explicit_bzero(random, sizeof random);
    if (status != HORON_OK)
        *error = prover->handshake.error;
    return status;
}

/* Our proof is sent to nobody else than the process that we want: an acceptor counts the connection
 * as kept once it has that. */
horon_status_t horon_prover_turn(struct horon_prover *prover, struct horon_error *error)
{
    struct horon_handshake *handshake = &prover->handshake;
    const struct horon_hello *theirs = &handshake->theirs;
    const int fd = prover->watch.fd;
    struct horon_error ignored;
    horon_status_t sent, got = HORON_OK;
    while (got == HORON_OK) {
        const bool proven = handshake->state == HORON_HANDSHAKE_PROVEN;
        if (proven && prover->expect_member &&
            memcmp(prover->expect_member, theirs->member, sizeof theirs->member) != 0)
            return horon_error_set(error, HORON_ERR_PROTO, "another process answers as rank %d",
                                   theirs->rank);
        sent = send_some(fd, handshake, error);
        if (sent < 0)
            return sent;
        if (proven && sent == HORON_OK)
            return horon_hello_check(&handshake->mine, theirs, error);
        got = proven ? HORON_AGAIN : receive_some(fd, handshake, error);
    }
    if (got == HORON_AGAIN)
        got = horon_pump_watch(prover->self->pump, &prover->watch,
                               sent == HORON_AGAIN ? EPOLLOUT | EPOLLIN : EPOLLIN, error);
    else
        send_some(fd, handshake, &ignored); /* the refusal */
    return got == HORON_OK ? HORON_AGAIN : got;
}

struct horon_proven horon_prover_take(struct horon_prover *prover)
{
    const int on = 1;
    const struct horon_proven proven = horon_handshake_take(&prover->handshake, prover->watch.fd);
    horon_pump_unwatch(prover->self->pump, &prover->watch);
    prover->watch.fd = -1;
    setsockopt(proven.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* unix sockets have none */
    return proven;
}

void horon_prover_end(struct horon_prover *prover)
{
    horon_pump_unwatch(prover->self->pump, &prover->watch);
    horon_fd_close(&prover->watch.fd);
    horon_handshake_deinit(&prover->handshake);
}

horon_status_t horon_proven_open_link(const struct horon_proven *proven, int64_t peer_timeout_ms,
                                      horon_link_wrap_fn_t wrap, struct horon_link **link_out,
                                      struct horon_error *error)
{
    struct horon_link *link = NULL;
    horon_status_t status = horon_link_tcp_create(proven->fd, peer_timeout_ms, &link, error);
    if (status != HORON_OK) {
        close(proven->fd);
        return status;
    }
    *link_out = wrap ? wrap(link, proven) : link;
    if (*link_out)
        return HORON_OK;
    link->ops->destroy(link);
    return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a connection");
}
