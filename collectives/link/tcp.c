/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link over a connected TCP socket. Nothing is buffered here: a send or receive is one system
 * call on the caller's vector. What a poller found is remembered until a call got less than it
 * asked for; the kernel then tells of more as something new. The end of a stream is told once only,
 * so that is never forgotten. A peer that vanished without a word is noticed in two ways: the
 * kernel probes a connection that is idle (keepalive), and tcp_check() ends one whose data its
 * peer's kernel does not acknowledge. TCP_USER_TIMEOUT would do the second, but also ends the
 * connection of a process that is only stopped: its kernel answers, but has no room for more.
 * Connecting, accepting and proving which rank is there happen before, elsewhere.
 */
#include "link/link.h"

#include "alloc.h"
#include "clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct tcp_link {
    struct horon_link base;
    int socket;
    int64_t peer_timeout_ms;
    bool watched;                 /* somebody says by tcp_found() what came */
    bool full;                    /* the last send took less than it was given */
    unsigned came;                /* HORON_LINK_* bits, until a call has found nothing more */
    uint64_t checked_ns;          /* when tcp_check() looked last */
    uint64_t unanswered_since_ns; /* when that was sent; 0: nothing lacks an answer */
};

static horon_status_t tcp_silent(const struct tcp_link *tcp, struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_PEER_LOST, "did not answer for %.1f s",
                           (double)tcp->peer_timeout_ms / 1000.0);
}

/* What a failed send or receive means. Whatever it is, the connection is of no use any more. */
static horon_status_t tcp_lost(const struct tcp_link *tcp, int reason, struct horon_error *error)
{
    if (reason == ECONNRESET || reason == EPIPE)
        return horon_link_ended("reset", error);
    if (reason == ETIMEDOUT && tcp->peer_timeout_ms > 0)
        return tcp_silent(tcp, error);
    return horon_error_set_errno(error, HORON_ERR_PEER_LOST, reason, "cannot be reached");
}

static horon_status_t tcp_send(struct horon_link *link, const struct iovec *vector, int count,
                               size_t *sent_bytes_out, struct horon_error *error)
{
    struct tcp_link *tcp = (struct tcp_link *)link;
    assert(count > 0 && count <= HORON_LINK_VECTOR_MAX);
    /* sendmsg() writes to no iovec; the cast is for its prototype alone */
    const struct msghdr message = {.msg_iov = (struct iovec *)vector, .msg_iovlen = (size_t)count};
    ssize_t sent;
    do
        sent = sendmsg(tcp->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    tcp->full = sent < 0 || (size_t)sent < horon_link_vector_bytes(vector, count);
    if (tcp->full)
        tcp->came &= ~HORON_LINK_WRITE;
    if (sent > 0) {
        assert((size_t)sent <= horon_link_vector_bytes(vector, count));
        *sent_bytes_out = (size_t)sent;
        return HORON_OK;
    }
    if (sent == 0 || errno == EAGAIN)
        return HORON_AGAIN;
    return tcp_lost(tcp, errno, error);
}

static horon_status_t tcp_recv(struct horon_link *link, const struct iovec *vector, int count,
                               size_t *got_bytes_out, struct horon_error *error)
{
    struct tcp_link *tcp = (struct tcp_link *)link;
    assert(count > 0 && count <= HORON_LINK_VECTOR_MAX);
    assert(horon_link_vector_bytes(vector, count) > 0); /* or no bytes would mean the end */
    struct msghdr message = {.msg_iov = (struct iovec *)vector, .msg_iovlen = (size_t)count};
    ssize_t got;
    do
        got = recvmsg(tcp->socket, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    const bool emptied = got < 0 || (size_t)got < horon_link_vector_bytes(vector, count);
    if (emptied && !(tcp->came & HORON_LINK_END))
        tcp->came &= ~HORON_LINK_READ;
    if (got > 0) {
        *got_bytes_out = (size_t)got;
        return HORON_OK;
    }
    if (got == 0)
        return horon_link_ended("closed", error);
    if (errno == EAGAIN)
        return HORON_AGAIN;
    return tcp_lost(tcp, errno, error);
}

/* Reads what has come, a bounded amount: a socket closed with unread bytes resets the connection,
 * which could take from the peer what was sent last, and that may be the reason why we leave. */
static void tcp_drain(int socket)
{
    char unread[4096];
    for (int i = 0; i < 256; i++) {
        if (recv(socket, unread, sizeof unread, MSG_DONTWAIT) <= 0)
            return;
    }
}

static void tcp_destroy(struct horon_link *link)
{
    struct tcp_link *tcp = (struct tcp_link *)link;
    shutdown(tcp->socket, SHUT_WR);
    tcp_drain(tcp->socket);
    close(tcp->socket);
    horon_free(tcp);
}

static int tcp_descriptor(const struct horon_link *link)
{
    return ((const struct tcp_link *)link)->socket;
}

static bool tcp_ready(const struct horon_link *link)
{
    const struct tcp_link *tcp = (const struct tcp_link *)link;
    if (!tcp->watched)
        return true;
    return (tcp->came & HORON_LINK_READ) || (tcp->full && (tcp->came & HORON_LINK_WRITE));
}

static void tcp_found(struct horon_link *link, unsigned events)
{
    struct tcp_link *tcp = (struct tcp_link *)link;
    assert(!(events & ~(HORON_LINK_READ | HORON_LINK_WRITE | HORON_LINK_END)));
    tcp->watched = true;
    tcp->came |= events;
}

static size_t tcp_undelivered(const struct horon_link *link)
{
    int left = 0;
    if (ioctl(((const struct tcp_link *)link)->socket, SIOCOUTQ, &left) != 0)
        return 0; /* nothing to wait for that one could see */
    return (size_t)left;
}

/* Was data sent after the last answer, or is it overdue to be sent again, or a second probe out? A
 * peer that has no room for long gets data and probes ever more seldom, and answers each. A host
 * that was cut off may be unable to send again. One probe may count as unanswered though it is not:
 * the kernel counts it after sending it, and within a machine the answer comes before. */
static bool tcp_lacks_answer(const struct tcp_info *info)
{
    /* the kernel waits twice as long after each try, also after one that failed */
    const uint32_t overdue_ms = info->tcpi_rto / 1000 * 5 / 4;
    return info->tcpi_probes > 1 ||
           (info->tcpi_unacked > 0 && (info->tcpi_last_data_sent < info->tcpi_last_ack_recv ||
                                       info->tcpi_last_data_sent > overdue_ms));
}

/* The last answer may be older than what is unanswered now, so what counts is the time since both.
 */
static horon_status_t tcp_check(struct horon_link *link, struct horon_error *error)
{
    struct tcp_link *tcp = (struct tcp_link *)link;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    const uint64_t now = horon_clock_ns();
    const uint64_t limit_ns = (uint64_t)tcp->peer_timeout_ms * 1000000u;
    if (tcp->peer_timeout_ms <= 0 ||
        getsockopt(tcp->socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return HORON_OK;
    const bool first = tcp->unanswered_since_ns == 0 || now - tcp->checked_ns > limit_ns;
    tcp->checked_ns = now;
    if (!tcp_lacks_answer(&info))
        tcp->unanswered_since_ns = 0;
    else if (first)
        tcp->unanswered_since_ns = now - (uint64_t)info.tcpi_last_data_sent * 1000000u;
    if (tcp->unanswered_since_ns > 0 && now - tcp->unanswered_since_ns >= limit_ns &&
        info.tcpi_last_ack_recv >= tcp->peer_timeout_ms)
        return tcp_silent(tcp, error);
    return HORON_OK;
}

static const struct horon_link_ops tcp_ops = {
    .name = "tcp",
    .send = tcp_send,
    .recv = tcp_recv,
    .descriptor = tcp_descriptor,
    .interest = horon_link_plain_interest,
    .ready = tcp_ready,
    .found = tcp_found,
    .undelivered = tcp_undelivered,
    .check = tcp_check,
    .destroy = tcp_destroy,
};

static horon_status_t tcp_option(int socket, int level, int option, int value, const char *name,
                                 struct horon_error *error)
{
    if (setsockopt(socket, level, option, &value, sizeof value) == 0)
        return HORON_OK;
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot set %s of a connection",
                                 name);
}

/* Probes go out at whole seconds, a fourth of the limit apart, and the first after as long. */
static horon_status_t tcp_limit_silence(int socket, int64_t limit_ms, struct horon_error *error)
{
    const int most_s = 24 * 3600;
    const int limit_s = limit_ms < most_s * 1000LL ? (int)((limit_ms + 999) / 1000) : most_s;
    const int interval_s = limit_s / 4 > 1 ? limit_s / 4 : 1;
    const int probes = limit_s > interval_s ? (limit_s - 1) / interval_s : 1;
    const struct {
        int level, option, value;
        const char *name;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"},
        {IPPROTO_TCP, TCP_KEEPIDLE, interval_s, "TCP_KEEPIDLE"},
        {IPPROTO_TCP, TCP_KEEPINTVL, interval_s, "TCP_KEEPINTVL"},
        {IPPROTO_TCP, TCP_KEEPCNT, probes, "TCP_KEEPCNT"},
    };
    horon_status_t status = HORON_OK;
    for (size_t i = 0; !status && i < sizeof options / sizeof *options; i++)
        status = tcp_option(socket, options[i].level, options[i].option, options[i].value,
                            options[i].name, error);
    return status;
}

horon_status_t horon_link_tcp_create(int socket, int64_t peer_timeout_ms,
                                     struct horon_link **link_out, struct horon_error *error)
{
    int flags = fcntl(socket, F_GETFL);
    if (flags < 0 || fcntl(socket, F_SETFL, flags | O_NONBLOCK) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "cannot make a connection non-blocking");
    horon_status_t status = tcp_option(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY", error);
    if (!status && peer_timeout_ms > 0)
        status = tcp_limit_silence(socket, peer_timeout_ms, error);
    if (status)
        return status;
    struct tcp_link *tcp = horon_zalloc(1, sizeof *tcp);
    if (!tcp)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a connection");
    tcp->base.ops = &tcp_ops;
    tcp->socket = socket;
    tcp->peer_timeout_ms = peer_timeout_ms;
    *link_out = &tcp->base;
    return HORON_OK;
}
