/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horonrun's end of boot/store_server.h: where it listens and what it tells the ranks of that. A
 * job on this machine alone listens on the loopback only. With other hosts it listens on all
 * addresses, and each host is told the one that its ssh connection came from: that way is open.
 */
#include "store.h"

#include "alloc.h"
#include "boot/address.h"
#include "boot/store_server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

struct horonrun_store {
    struct ev_loop *loop;
    struct ev_io io;
    struct horon_store_server *server;
    struct horon_addresses addresses; /* for other hosts */
};

horon_status_t horonrun_store_make_key(char key[HORONRUN_KEY_BYTES], struct horon_error *error)
{
    unsigned char raw[(HORONRUN_KEY_BYTES - 1) / 2];
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no random bytes for a key");
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(key + 2 * i, 3, "%02x", raw[i]);
    explicit_bzero(raw, sizeof raw);
    return HORON_OK;
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct horonrun_store *store = io->data;
    (void)loop;
    (void)events;
    horon_store_server_progress(store->server);
}

horon_status_t horonrun_store_create(struct horonrun_store **store_out, struct ev_loop *loop,
                                     int size, const char *key, bool remote, const char *interfaces,
                                     struct horon_error *error)
{
    const struct horon_store_server_options options = {
        .size = size,
        .key = key,
        .key_bytes = strlen(key),
        .bind_address = remote ? "*" : NULL,
        .rank = -1,
    };
    struct horonrun_store *store = horon_zalloc(1, sizeof *store);
    horon_status_t status = HORON_OK;
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    store->loop = loop;
    if (remote)
        status = horon_addresses_of_machine(interfaces, false, &store->addresses, error);
    if (status == HORON_OK)
        status = horon_store_server_create(&options, &store->server, NULL, error);
    if (status != HORON_OK) {
        horonrun_store_destroy(store);
        return status;
    }
    ev_io_init(&store->io, on_readable, horon_store_server_fd(store->server), EV_READ);
    store->io.data = store;
    ev_io_start(loop, &store->io);
    *store_out = store;
    return HORON_OK;
}

static void write_url(const struct horonrun_store *store, struct horon_address address, char *url)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    horon_address_set_port(&address, horon_store_server_port(store->server));
    snprintf(url, HORONRUN_STORE_URL_BYTES, "tcp://%.80s", horon_address_text(&address, text));
}

void horonrun_store_local_url(const struct horonrun_store *store,
                              char url[HORONRUN_STORE_URL_BYTES])
{
    struct horon_address loopback;
    horon_address_parse("127.0.0.1", 0, &loopback);
    write_url(store, loopback, url);
}

void horonrun_store_remote_url(const struct horonrun_store *store, const char *seen_as,
                               char url[HORONRUN_STORE_URL_BYTES])
{
    const struct horon_address *best = &store->addresses.items[0];
    struct horon_address seen;
    if (horon_address_parse(seen_as, 0, &seen))
        for (int i = 0; i < store->addresses.count; i++)
            if (horon_address_same_host(&seen, &store->addresses.items[i]))
                best = &store->addresses.items[i];
    write_url(store, *best, url);
}

void horonrun_store_fail(struct horonrun_store *store, const char *why)
{
    horon_store_server_fail(store->server, HORON_ERR_PEER_LOST, why);
}

void horonrun_store_destroy(struct horonrun_store *store)
{
    if (!store)
        return;
    if (store->server)
        ev_io_stop(store->loop, &store->io);
    horon_store_server_destroy(store->server);
    horon_free(store);
}
