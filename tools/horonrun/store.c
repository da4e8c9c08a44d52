/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horonrun's end of boot/store/server.h: where it listens and what it tells the ranks of that. A
 * job on this machine alone listens on the loopback only. With other hosts it listens on all
 * addresses, or on those of the chosen interfaces, and each host is told all of them: first the one
 * that its ssh connection came from, as that way is open.
 */
#include "store.h"

#include "address.h"
#include "alloc.h"
#include "boot/boot.h"
#include "boot/identity/key.h"
#include "boot/store/server.h"

#include <stdio.h>
#include <string.h>

#define TURNS_AT_ONCE 16 /* so that a busy store does not hold up the loop */

struct horonrun_store {
    struct ev_loop *loop;
    struct ev_io io;
    struct horon_pump pump; /* of the server */
    struct horon_store_server *server;
    struct horon_job_key key;
    struct horon_log log;
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
    struct horon_addresses addresses; /* of this machine, for other hosts; loopback last */
};

static void on_warning(void *arg, horon_log_level_t level, const char *text)
{
    struct horonrun_store *store = arg;
    (void)level;
    store->warn(store->warn_arg, text);
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct horonrun_store *store = io->data;
    (void)loop;
    (void)events;
    for (int i = 0; i < TURNS_AT_ONCE; i++)
        if (horon_pump_turn(&store->pump, 0) != HORON_OK)
            return;
}

/* Local ranks come over the loopback in any case. */
static void add_loopback(struct horon_addresses *addresses)
{
    struct horon_address loopback;
    horon_address_parse("127.0.0.1", 0, &loopback);
    addresses->count -= addresses->count == HORON_ADDRESSES_MAX; /* the last, a loopback perhaps */
    horon_addresses_add(addresses, &loopback);
}

static horon_status_t serve(struct horonrun_store *store, const struct horonrun_store_setup *setup,
                            struct horon_error *error)
{
    const struct horon_store_server_options options = {
        .self = {.pump = &store->pump,
                 .key = &store->key,
                 .hello = horon_hello_of(HORON_ROLE_STORE, -1, setup->size),
                 .log = &store->log},
        .host_of = setup->host_of,
        .host_arg = setup->host_arg,
        .slow_ns = HORON_BOOT_SLOW_NS,
    };
    struct horon_addresses listen = {0};
    int first, last;
    horon_status_t status = horon_port_range_parse(setup->port_range, &first, &last, error);
    if (status == HORON_OK && setup->remote) {
        status = horon_addresses_of_machine(setup->interfaces, false, &store->addresses, error);
        add_loopback(&store->addresses);
        listen = store->addresses;
    } else {
        add_loopback(&listen);
    }
    if (setup->remote && !setup->interfaces[0])
        horon_addresses_everywhere(&listen);
    if (status == HORON_OK)
        status = horon_job_key_init(&store->key, setup->key, strlen(setup->key), "", error);
    if (status != HORON_OK)
        return status;
    struct horon_error why = {0};
    store->server = horon_store_server_create(&options);
    if (!store->server)
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    status = horon_store_server_listen(store->server, &listen, first, last, &why);
    if (status != HORON_OK)
        return horon_error_set(error, status, "%s%s", why.text,
                               first ? " (HORON_PORT_RANGE says where it may)" : "");
    return HORON_OK;
}

horon_status_t horonrun_store_create(struct horonrun_store **store_out, struct ev_loop *loop,
                                     const struct horonrun_store_setup *setup,
                                     struct horon_error *error)
{
    struct horonrun_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    store->loop = loop;
    store->warn = setup->warn;
    store->warn_arg = setup->warn_arg;
    store->log = (struct horon_log){
        .fn = on_warning, .arg = store, .level = HORON_LOG_WARN, .rank = -1, .bare = true};
    horon_status_t status = horon_pump_init(&store->pump, error);
    if (status == HORON_OK)
        status = serve(store, setup, error);
    if (status != HORON_OK) {
        horonrun_store_destroy(store);
        return status;
    }
    ev_io_init(&store->io, on_readable, store->pump.epoll_fd, EV_READ);
    store->io.data = store;
    ev_io_start(loop, &store->io);
    *store_out = store;
    return HORON_OK;
}

/* Appends one address; left out if there is no room: a rank tries those that there are. */
static void append_url(const struct horonrun_store *store, struct horon_address address,
                       char url[HORONRUN_STORE_URL_BYTES])
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    const size_t used = strlen(url);
    horon_address_set_port(&address, store->server->port);
    horon_address_text(&address, text);
    if (used + strlen("tcp://") + strlen(text) < HORONRUN_STORE_URL_BYTES)
        snprintf(url + used, HORONRUN_STORE_URL_BYTES - used, "%s%s", used ? "," : "tcp://", text);
}

void horonrun_store_local_url(const struct horonrun_store *store,
                              char url[HORONRUN_STORE_URL_BYTES])
{
    struct horon_address loopback;
    horon_address_parse("127.0.0.1", 0, &loopback);
    url[0] = 0;
    append_url(store, loopback, url);
}

void horonrun_store_remote_url(const struct horonrun_store *store, const char *seen_as,
                               char url[HORONRUN_STORE_URL_BYTES])
{
    struct horon_address seen = {0};
    const bool known = horon_address_parse(seen_as, 0, &seen);
    url[0] = 0;
    for (int first = 1; first >= 0; first--) {
        for (int i = 0; i < store->addresses.count; i++) {
            const struct horon_address *address = &store->addresses.items[i];
            const bool is_first = known && horon_address_same_host(&seen, address);
            if (is_first == (first == 1) && (is_first || !horon_address_is_loopback(address)))
                append_url(store, *address, url);
        }
    }
    if (!url[0]) /* this machine has nothing else; another one may yet be a namespace of it */
        horonrun_store_local_url(store, url);
}

static struct horon_error lost(int rank, const char *why)
{
    struct horon_error error;
    horon_error_set(&error, HORON_ERR_PEER_LOST, "%s", why);
    error.blame.rank = rank;
    return error;
}

void horonrun_store_fail(struct horonrun_store *store, int rank, const char *why)
{
    const struct horon_error error = lost(rank, why);
    if (store) /* else the job is over */
        horon_store_server_tell(store->server, -1, &error);
}

void horonrun_store_ended(struct horonrun_store *store, int rank, const char *why)
{
    const struct horon_error error = lost(rank, why ? why : "");
    if (store)
        horon_store_server_tell(store->server, rank, why ? &error : NULL);
}

void horonrun_store_destroy(struct horonrun_store *store)
{
    if (!store)
        return;
    if (store->server)
        ev_io_stop(store->loop, &store->io);
    horon_store_server_destroy(store->server);
    horon_pump_deinit(&store->pump);
    explicit_bzero(&store->key, sizeof store->key);
    horon_free(store);
}
