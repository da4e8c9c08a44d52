/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name may mean one address here and another elsewhere (127.0.1.1 on the machine that has it), so
 * rank 0 listens at all addresses for a name, and at the very address for a numeric one. Without a
 * job key nothing but loopback is bound or connected to. Of a list each address stands for
 * itself: one that cannot be used is noted, and the others are tried.
 */
#include "boot/store/place.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define SCHEME "tcp://"
#define PORT_MAX 65535

/* One address of the text. */
struct item {
    char host[HORON_ADDRESS_TEXT_BYTES];
    int port;
    struct horon_addresses addresses;
};

/* Without a key only loopback is safe; an address of this very machine is as good as that. */
static horon_status_t retreat_to_loopback(struct item *item, struct horon_error *error)
{
    if (horon_addresses_count(&item->addresses, horon_address_is_loopback) == item->addresses.count)
        return HORON_OK;
    if (horon_addresses_count(&item->addresses, horon_address_is_here) == 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "there is no job key, so only loopback addresses are used: set "
                               "HORON_JOB_KEY or HORON_JOB_KEY_FILE to the same secret on all "
                               "ranks");
    item->addresses.count = 1;
    horon_address_parse("127.0.0.1", item->port, &item->addresses.items[0]);
    return HORON_OK;
}

static void add_all(struct horon_addresses *all, const struct horon_addresses *more)
{
    for (int i = 0; i < more->count; i++)
        horon_addresses_add(all, &more->items[i]);
}

/* Rank 0 listens at one port: that of the first address that is this machine's. */
static void add_listen(struct horon_store_place *place, const struct item *item, bool derived)
{
    struct horon_address numeric;
    struct horon_addresses everywhere;
    const bool here = horon_addresses_count(&item->addresses, horon_address_is_here) > 0;
    const int loopbacks = horon_addresses_count(&item->addresses, horon_address_is_loopback);
    if ((!here && !derived) || (place->port && item->port != place->port))
        return;
    place->port = item->port;
    horon_addresses_everywhere(&everywhere);
    if (loopbacks < item->addresses.count &&
        !(here && horon_address_parse(item->host, 0, &numeric)))
        place->listen = everywhere;
    else if (!horon_address_same_host(&place->listen.items[0], &everywhere.items[0]))
        add_all(&place->listen, &item->addresses);
    assert(place->port > 0);
    assert(place->listen.count > 0);
}

/* @return OK, also if it is passed over | ERR_TIMEOUT, ERR_CANCELLED */
static horon_status_t take_item(struct horon_store_place *place, struct item *item, bool key_given,
                                bool derived, const struct horon_resolve_limit *limit,
                                struct horon_error *why)
{
    struct horon_error error = {0};
    horon_status_t status =
        horon_addresses_resolve_within(item->host, item->port, limit, &item->addresses, &error);
    if (status == HORON_ERR_TIMEOUT || status == HORON_ERR_CANCELLED)
        return horon_error_set(why, status, "%s", error.text);
    if (status == HORON_OK && !key_given)
        status = retreat_to_loopback(item, &error);
    if (status != HORON_OK) {
        horon_text_add(place->unusable, sizeof place->unusable, "; ", "%s:%d: %s", item->host,
                       item->port, error.text);
        return HORON_OK;
    }
    add_all(&place->addresses, &item->addresses);
    add_listen(place, item, derived);
    return HORON_OK;
}

/* The next ports at all addresses, as many as there is room for. */
static void add_ports(struct horon_store_place *place, int port_scan)
{
    struct horon_addresses *addresses = &place->addresses;
    const int per_port = addresses->count, first = horon_address_port(&addresses->items[0]);
    assert(per_port > 0 && per_port <= HORON_ADDRESSES_MAX);
    for (int port = first + 1; port <= first + port_scan && port <= PORT_MAX; port++) {
        for (int i = 0; i < per_port && addresses->count < HORON_ADDRESSES_MAX; i++) {
            struct horon_address *next = &addresses->items[addresses->count++];
            *next = addresses->items[i];
            horon_address_set_port(next, port);
        }
    }
    place->port_last = place->port + port_scan < PORT_MAX ? place->port + port_scan : PORT_MAX;
}

horon_status_t horon_store_place_find(struct horon_store_place *place, const char *text,
                                      bool key_given, int port_scan,
                                      const struct horon_resolve_limit *limit,
                                      struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    memset(place, 0, sizeof *place);
    for (const char *at = text;; at++) {
        struct item item;
        at += strspn(at, " ");
        at += strncmp(at, SCHEME, strlen(SCHEME)) == 0 ? strlen(SCHEME) : 0;
        const size_t bytes = strcspn(at, ",");
        if (!horon_address_cut(at, bytes, item.host, &item.port))
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "the store '%s' is not tcp://HOST:PORT with a port of 1-65535, "
                                   "nor a list tcp://HOST:PORT,HOST:PORT of its addresses",
                                   text);
        status = take_item(place, &item, key_given, port_scan > 0, limit, error);
        if (status != HORON_OK)
            return status;
        at += bytes;
        if (!*at)
            break;
        place->several = true;
    }
    if (place->addresses.count == 0)
        return horon_error_set(error, HORON_ERR_CONFIG, "the store cannot be used: %s",
                               place->unusable);
    add_ports(place, port_scan);
    return HORON_OK;
}

horon_status_t horon_store_place_here(struct horon_store_place *place, bool key_given,
                                      const char *interfaces, const char *port_range,
                                      struct horon_error *error)
{
    struct horon_addresses *here = &place->addresses;
    horon_status_t status = HORON_ERR_CONFIG;
    memset(place, 0, sizeof *place);
    (void)horon_port_range_parse(port_range, &place->port, &place->port_last, NULL);
    if (!key_given)
        status = horon_addresses_resolve("127.0.0.1", 0, here, error);
    else if (interfaces[0])
        status = horon_addresses_of_machine(interfaces, false, here, NULL);
    place->listen = *here;
    if (status != HORON_OK) {
        status = horon_addresses_of_machine("", false, here, error);
        horon_addresses_everywhere(&place->listen);
    }
    /* The loopback, which is last, leads another host to itself: it is told if that is all. */
    const int loopbacks = horon_addresses_count(here, horon_address_is_loopback);
    here->count -= loopbacks < here->count ? loopbacks : 0;
    return status;
}
