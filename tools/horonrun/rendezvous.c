/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request a connection: read until scopes.c has an answer, write that, close. A connection has
 * SLOW_SECONDS for all of it. There are so many at most; the oldest leaves for the newest, so that
 * idle ones keep no worker out.
 *
 * No library: what is asked fits base/http.h, and libmicrohttpd brings threads or an epoll of its
 * own, and GnuTLS, to a program that has a loop.
 */
#include "rendezvous.h"

#include "alloc.h"
#include "boot/connect/listen.h"

#include <assert.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define SLOW_SECONDS 10.
#define RETRY_SECONDS 0.1 /* then connections are taken again, if there was no descriptor */
#define READ_BYTES 16384

struct guest {
    struct horonrun_rendezvous *rendezvous;
    struct guest *next, **link; /* the oldest first */
    int fd;
    struct ev_io io;
    struct ev_timer slow;
    struct horonrun_bytes in, out;
};

struct horonrun_rendezvous {
    struct ev_loop *loop;
    struct horonrun_scopes *scopes;
    struct horon_listeners listeners;
    struct ev_io ios[HORON_ADDRESSES_MAX + 1];
    struct ev_timer retry;
    struct horon_addresses addresses;
    struct guest *guests, **guests_end;
    int count, limit;
};

static void dismiss(struct guest *guest)
{
    struct horonrun_rendezvous *rendezvous = guest->rendezvous;
    ev_io_stop(rendezvous->loop, &guest->io);
    ev_timer_stop(rendezvous->loop, &guest->slow);
    *guest->link = guest->next;
    if (guest->next)
        guest->next->link = guest->link;
    else
        rendezvous->guests_end = guest->link;
    rendezvous->count--;
    close(guest->fd);
    horonrun_bytes_deinit(&guest->in);
    horonrun_bytes_deinit(&guest->out);
    horon_free(guest);
}

static void answer(struct guest *guest)
{
    const ssize_t put =
        send(guest->fd, guest->out.data, guest->out.used, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0)
        horonrun_bytes_consume(&guest->out, (size_t)put);
    if (guest->out.used == 0 || (put < 0 && errno != EAGAIN && errno != EINTR)) {
        dismiss(guest);
        return;
    }
    ev_io_stop(guest->rendezvous->loop, &guest->io);
    ev_io_set(&guest->io, guest->fd, EV_WRITE);
    ev_io_start(guest->rendezvous->loop, &guest->io);
}

static void hear(struct guest *guest)
{
    ssize_t got = -1;
    if (horonrun_bytes_reserve(&guest->in, READ_BYTES))
        got = recv(guest->fd, guest->in.data + guest->in.used, READ_BYTES, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        dismiss(guest);
        return;
    }
    guest->in.used += (size_t)got;
    const horon_status_t status =
        horonrun_scopes_ask(guest->rendezvous->scopes, guest->in.data, guest->in.used, &guest->out);
    if (status == HORON_OK)
        answer(guest);
    else if (status != HORON_AGAIN)
        dismiss(guest);
}

static void on_ready(struct ev_loop *loop, struct ev_io *io, int events)
{
    (void)loop;
    if (events & EV_WRITE)
        answer(io->data);
    else
        hear(io->data);
}

static void on_slow(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct guest *guest = timer->data;
    (void)loop;
    (void)events;
    if (guest->out.used == 0 && horonrun_scopes_too_slow(&guest->out))
        (void)send(guest->fd, guest->out.data, guest->out.used, MSG_NOSIGNAL | MSG_DONTWAIT);
    dismiss(guest);
}

static void welcome(struct horonrun_rendezvous *rendezvous, int fd)
{
    struct guest *guest = horon_zalloc(1, sizeof *guest);
    if (!guest) {
        close(fd);
        return;
    }
    if (rendezvous->count == rendezvous->limit)
        dismiss(rendezvous->guests);
    guest->rendezvous = rendezvous;
    guest->fd = fd;
    guest->link = rendezvous->guests_end;
    *guest->link = guest;
    rendezvous->guests_end = &guest->next;
    rendezvous->count++;
    ev_io_init(&guest->io, on_ready, fd, EV_READ);
    ev_timer_init(&guest->slow, on_slow, SLOW_SECONDS, 0.);
    guest->io.data = guest->slow.data = guest;
    ev_io_start(rendezvous->loop, &guest->io);
    ev_timer_start(rendezvous->loop, &guest->slow);
}

static void listen_again(struct horonrun_rendezvous *rendezvous, bool again)
{
    for (int i = 0; i < rendezvous->listeners.count; i++)
        if (again)
            ev_io_start(rendezvous->loop, &rendezvous->ios[i]);
        else
            ev_io_stop(rendezvous->loop, &rendezvous->ios[i]);
}

static void on_retry(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    listen_again(timer->data, true);
}

/* One a turn: the rest of horonrun has its turns, too. */
static void on_guest(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct horonrun_rendezvous *rendezvous = io->data;
    const int fd = accept4(io->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    (void)events;
    if (fd >= 0) {
        welcome(rendezvous, fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        listen_again(rendezvous, false);
        ev_timer_set(&rendezvous->retry, RETRY_SECONDS, 0.);
        ev_timer_start(loop, &rendezvous->retry);
    }
}

horon_status_t horonrun_rendezvous_create(struct horonrun_rendezvous **rendezvous_out,
                                          struct ev_loop *loop, struct horonrun_scopes *scopes,
                                          int size, bool remote, const struct horon_config *config,
                                          struct horon_error *error)
{
    char told[HORON_ADDRESSES_TEXT_BYTES];
    struct horonrun_rendezvous *rendezvous = horon_zalloc(1, sizeof *rendezvous);
    if (!rendezvous) {
        horonrun_scopes_destroy(scopes);
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    }
    rendezvous->loop = loop;
    rendezvous->scopes = scopes;
    rendezvous->guests_end = &rendezvous->guests;
    rendezvous->limit = HORONRUN_RENDEZVOUS_CONNECTIONS(size);
    ev_timer_init(&rendezvous->retry, on_retry, RETRY_SECONDS, 0.);
    rendezvous->retry.data = rendezvous;
    struct horon_config where = *config;
    if (!remote)
        where.interfaces[0] = 0;
    const horon_status_t status =
        horon_listeners_open(&rendezvous->listeners, &where, remote, 0, told, error);
    if (status != HORON_OK) {
        horonrun_rendezvous_destroy(rendezvous);
        return status;
    }
    const bool read = horon_addresses_read(told, &rendezvous->addresses);
    assert(read && rendezvous->addresses.count > 0);
    (void)read;
    for (int i = 0; i < rendezvous->listeners.count; i++) {
        ev_io_init(&rendezvous->ios[i], on_guest, rendezvous->listeners.fds[i], EV_READ);
        rendezvous->ios[i].data = rendezvous;
        ev_io_start(loop, &rendezvous->ios[i]);
    }
    *rendezvous_out = rendezvous;
    return HORON_OK;
}

/* IPv4 goes before IPv6, which Horovod's client was not written for. */
int horonrun_rendezvous_address(const struct horonrun_rendezvous *rendezvous, const char *seen_as,
                                char address[HORON_ADDRESS_TEXT_BYTES])
{
    const struct horon_addresses *all = &rendezvous->addresses;
    const struct horon_address *best = &all->items[0];
    struct horon_address seen = {0};
    const bool known = horon_address_parse(seen_as, 0, &seen);
    for (int i = all->count; i-- > 0;)
        if (all->items[i].any.sa_family == AF_INET)
            best = &all->items[i];
    for (int i = 0; i < all->count; i++)
        if (known && horon_address_same_host(&seen, &all->items[i]))
            best = &all->items[i];
    horon_address_host_text(best, address);
    return horon_address_port(best);
}

void horonrun_rendezvous_destroy(struct horonrun_rendezvous *rendezvous)
{
    if (!rendezvous)
        return;
    while (rendezvous->guests)
        dismiss(rendezvous->guests);
    listen_again(rendezvous, false);
    ev_timer_stop(rendezvous->loop, &rendezvous->retry);
    horon_listeners_close(&rendezvous->listeners, 0);
    horonrun_scopes_destroy(rendezvous->scopes);
    horon_free(rendezvous);
}
