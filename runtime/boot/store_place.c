/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name may mean one address here and another elsewhere (127.0.1.1 on the machine that has it), so
 * rank 0 listens at all addresses for a name, and at the very address for a numeric one. Without a
 * job key nothing but loopback is bound or dialled.
 */
#include "boot/store_place.h"

#include <stdlib.h>
#include <string.h>

/* Cuts "tcp://HOST:PORT" or "tcp://[HOST]:PORT". */
static horon_status_t parse(const char *text, char host[HORON_ADDRESS_TEXT_BYTES], int *port_out,
                            struct horon_error *error)
{
    const char *rest = text + strlen("tcp://");
    const char *colon = strrchr(rest, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    size_t bytes = colon ? (size_t)(colon - rest) : 0;
    if (bytes == 0 || bytes >= HORON_ADDRESS_TEXT_BYTES || end == colon + 1 || *end || port < 1 ||
        port > 65535)
        return horon_error_set(error, HORON_ERR_CONFIG, "the store '%s' is not tcp://HOST:PORT",
                               text);
    memcpy(host, rest, bytes);
    host[bytes] = 0;
    *port_out = (int)port;
    return HORON_OK;
}

static bool any_here(const struct horon_addresses *addresses)
{
    for (int i = 0; i < addresses->count; i++)
        if (horon_address_is_here(&addresses->items[i]))
            return true;
    return false;
}

static bool all_loopback(const struct horon_addresses *addresses)
{
    for (int i = 0; i < addresses->count; i++)
        if (!horon_address_is_loopback(&addresses->items[i]))
            return false;
    return true;
}

/* Without a key only loopback is safe; an address of this very machine is as good as that. */
static horon_status_t retreat_to_loopback(struct horon_store_place *place, const char *text,
                                          struct horon_error *error)
{
    if (all_loopback(&place->addresses))
        return HORON_OK;
    if (!any_here(&place->addresses))
        return horon_error_set(
            error, HORON_ERR_CONFIG,
            "there is no job key, so only loopback addresses are used, but the "
            "store is at %s: set HORON_JOB_KEY or HORON_JOB_KEY_FILE to the same "
            "secret on all ranks",
            text);
    place->addresses.count = 1;
    horon_address_parse("127.0.0.1", place->port, &place->addresses.items[0]);
    return HORON_OK;
}

static void choose_bind(struct horon_store_place *place, const char *host, bool derived)
{
    struct horon_address numeric;
    const struct horon_addresses *addresses = &place->addresses;
    const struct horon_address *pick = &addresses->items[0];
    const bool here = any_here(addresses);
    for (int i = addresses->count - 1; i >= 0; i--)
        if (addresses->items[i].any.sa_family == AF_INET)
            pick = &addresses->items[i];
    place->bind_address[0] = 0;
    if (!here && !derived)
        return;
    if (all_loopback(addresses) || (here && horon_address_parse(host, 0, &numeric))) {
        horon_address_text(pick, place->bind_address);
        *strrchr(place->bind_address, ':') = 0;
    } else {
        strcpy(place->bind_address, "*");
    }
}

horon_status_t horon_store_place_find(struct horon_store_place *place, const char *text,
                                      bool key_given, bool derived, struct horon_error *error)
{
    char host[HORON_ADDRESS_TEXT_BYTES];
    horon_status_t status = parse(text, host, &place->port, error);
    if (status == HORON_OK)
        status = horon_addresses_resolve(host, place->port, &place->addresses, error);
    if (status == HORON_OK && !key_given)
        status = retreat_to_loopback(place, text, error);
    if (status == HORON_OK)
        choose_bind(place, host, derived);
    return status;
}

void horon_store_place_scan(struct horon_store_place *place, int port_scan)
{
    struct horon_addresses *addresses = &place->addresses;
    const int per_port = addresses->count;
    for (int port = place->port + 1; port <= place->port + port_scan && port <= 65535; port++) {
        for (int i = 0; i < per_port && addresses->count < HORON_ADDRESSES_MAX; i++) {
            struct horon_address *next = &addresses->items[addresses->count++];
            *next = addresses->items[i];
            horon_address_set_port(next, port);
        }
    }
}
