/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One address after the other, and from the beginning after a pause. One of several that says
 * nothing at all, a family that no way leads to, say, gets a while only, and a longer one each time
 * round. Each call waits as its `wait` says, on sockets that do not block.
 */
#include "boot/gloo/dial.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 100
/* For one of several addresses, the first time. */
#define TRY_MS 1000
#define TRIED_BYTES 512 /* a few addresses */

/* What came of each address so far. */
struct tries {
    const struct horon_addresses *all;
    int why[HORON_ADDRESSES_MAX]; /* an errno; EINPROGRESS: nothing; 0: it was not tried yet */
    char text[TRIED_BYTES];
};

static void note(struct tries *tries, int i, int why)
{
    tries->why[i] = why;
    tries->text[0] = 0;
    for (int k = 0; k < tries->all->count; k++) {
        char at[HORON_ADDRESS_TEXT_BYTES];
        if (tries->why[k])
            horon_text_add(tries->text, sizeof tries->text, ", ", "%s: %s",
                           horon_address_text(&tries->all->items[k], at),
                           tries->why[k] == EINPROGRESS ? "no answer"
                                                        : strerrordesc_np(tries->why[k]));
    }
}

/* Tries address @p i once. @param try_ms  -1: as long as there is time
 * @return OK | AGAIN, nobody answers there | as horon_gloo_wait_for() */
static horon_status_t try_address(struct tries *tries, int i, int try_ms, struct horon_fds *fds,
                                  const struct horon_gloo_wait *wait, int *fd_out,
                                  struct horon_error *error)
{
    const struct horon_address *address = &tries->all->items[i];
    const int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, on = 1;
    horon_status_t status = HORON_OK;
    int why = 0;
    socklen_t bytes = sizeof why;
    horon_fds_hold(fds);
    int fd = horon_fds_note(fds, socket(address->any.sa_family, kind, 0));
    if (fd < 0) {
        note(tries, i, errno);
        return HORON_AGAIN;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, &address->any, address->bytes) != 0)
        why = errno;
    if (why == EINPROGRESS) {
        struct pollfd poll = {.fd = fd, .events = POLLOUT};
        note(tries, i, why);
        status = horon_gloo_wait_for(wait, &poll, 1, try_ms, error);
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    }
    if (why == ECONNRESET || why == EPIPE) /* connected, and closed since: the first use tells */
        why = 0;
    else if (status == HORON_OK && why == 0 && horon_address_is_to_itself(fd))
        why = ECONNREFUSED;
    if (status == HORON_OK && why != 0)
        status = HORON_AGAIN;
    if (why != 0)
        note(tries, i, why);
    if (status == HORON_OK)
        *fd_out = fd;
    else
        horon_fd_close(&fd);
    return status;
}

horon_status_t horon_gloo_dial(const struct horon_addresses *all, struct horon_fds *fds,
                               const struct horon_gloo_wait *wait, int *fd_out,
                               struct horon_error *error)
{
    horon_status_t status = HORON_AGAIN;
    struct tries tries = {.all = all};
    const struct horon_gloo_wait told = horon_gloo_wait_told(wait, wait->subject, tries.text);
    assert(all->count > 0);
    assert(all->count <= HORON_ADDRESSES_MAX);
    for (int try_ms = TRY_MS; status == HORON_AGAIN; try_ms *= try_ms < INT_MAX / 2 ? 2 : 1) {
        for (int i = 0; status == HORON_AGAIN && i < all->count; i++)
            status =
                try_address(&tries, i, all->count > 1 ? try_ms : -1, fds, &told, fd_out, error);
        if (status == HORON_AGAIN)
            status = horon_gloo_wait_for(&told, NULL, 0, RETRY_MS, error);
    }
    return status == HORON_ERR_TIMEOUT ? horon_error_set(error, status, "%s", tries.text) : status;
}

static horon_status_t wait_for(int fd, short events, const struct horon_gloo_wait *wait,
                               struct horon_error *error)
{
    struct pollfd poll = {.fd = fd, .events = events};
    return horon_gloo_wait_for(wait, &poll, 1, -1, error);
}

horon_status_t horon_gloo_send(int fd, const void *bytes, size_t count,
                               const struct horon_gloo_wait *wait, struct horon_error *error)
{
    const char *at = bytes;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && count > 0) {
        const ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return HORON_ERR_PEER_LOST;
        at += sent > 0 ? sent : 0;
        count -= sent > 0 ? (size_t)sent : 0;
        if (count > 0)
            status = wait_for(fd, POLLOUT, wait, error);
    }
    return status;
}

horon_status_t horon_gloo_receive(int fd, void *bytes, size_t room, size_t *got_out,
                                  const struct horon_gloo_wait *wait, struct horon_error *error)
{
    for (;;) {
        const ssize_t got = recv(fd, bytes, room, 0);
        if (got >= 0) {
            *got_out = (size_t)got;
            return HORON_OK;
        }
        if (errno != EAGAIN && errno != EINTR)
            return HORON_ERR_PEER_LOST;
        const horon_status_t status = wait_for(fd, POLLIN, wait, error);
        if (status != HORON_OK)
            return status;
    }
}
