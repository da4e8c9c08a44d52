/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All is little-endian, as Gloo writes its own memory. An address is a struct sockaddr_storage as
 * it lies in memory, of which Gloo sets only the beginning, and reads over the rest. That is
 * written 0 here, but for its last 8 bytes, by which ranks of horon know each other. Gloo's rest is
 * what was in its memory, perhaps what a rank of horon has published: so they are a hash of the
 * address. Where ids are published, the id for rank j is j: so it does not matter whether that rank
 * goes by ids, or writes its own rank, as it may be told to.
 */
#include "boot/gloo/published.h"

#include <inttypes.h>
#include <stddef.h>
#include <xxhash.h>

/* Of a struct sockaddr_storage. */
#define SOCKADDR_BYTES 128
#define MARK_BYTES 8                     /* of them, the last ones */
#define MARK_SEED UINT64_C(0x6e6f726f68) /* "horon" */

static_assert(sizeof(struct sockaddr_storage) == SOCKADDR_BYTES, "as Gloo publishes it");
static_assert(sizeof(struct horon_address) >= sizeof(struct sockaddr_in6), "what is taken of it");

/* A host name is 64 bytes on Linux, but nothing says that it must be one. */
#define HOST_BYTES_MAX 1024

static uint64_t mark_of(const struct horon_address *address)
{
    return XXH3_64bits_withSeed(&address->any, address->bytes, MARK_SEED);
}

void horon_gloo_address_write(struct horon_writer *out, const struct horon_gloo_address *address)
{
    static const uint8_t zeros[SOCKADDR_BYTES] = {0};
    const size_t bytes = address->at.bytes;
    assert(bytes <= sizeof(struct sockaddr_in6));
    horon_write_bytes(out, &address->at.any, bytes);
    horon_write_bytes(out, zeros, SOCKADDR_BYTES - MARK_BYTES - bytes);
    horon_write_u64(out, address->of_horon ? mark_of(&address->at) : 0);
    horon_write_u64(out, (uint64_t)address->sequence);
}

/* @return false: it is of neither family */
static bool take_sockaddr(const uint8_t *raw, struct horon_address *address)
{
    sa_family_t family;
    memset(address, 0, sizeof *address);
    memcpy(&family, raw, sizeof family);
    if (family == AF_INET)
        address->bytes = sizeof address->v4;
    else if (family == AF_INET6)
        address->bytes = sizeof address->v6;
    else
        return false;
    memcpy(&address->any, raw, address->bytes);
    if (family == AF_INET)
        memset(address->v4.sin_zero, 0, sizeof address->v4.sin_zero);
    return true;
}

void horon_gloo_address_read(struct horon_reader *in, struct horon_gloo_address *address)
{
    const uint8_t *raw = horon_read_view(in, SOCKADDR_BYTES - MARK_BYTES);
    const uint64_t mark = horon_read_u64(in);
    address->sequence = (int64_t)horon_read_u64(in);
    if (!in->ok || !take_sockaddr(raw, &address->at) || horon_address_port(&address->at) == 0)
        in->ok = false;
    address->of_horon = in->ok && mark == mark_of(&address->at);
}

size_t horon_gloo_published_bytes(enum horon_gloo_era era, int size)
{
    const size_t others = (size_t)size - 1;
    if (era == HORON_GLOO_ERA_1)
        return others * HORON_GLOO_ADDRESS_BYTES;
    return 8 + HOST_BYTES_MAX + 8 + HORON_GLOO_ADDRESS_BYTES + 8 * (size_t)size;
}

void horon_gloo_publish(struct horon_writer *out, enum horon_gloo_era era, int size,
                        const char *host, const struct horon_address *listeners)
{
    assert(era == HORON_GLOO_ERA_1 || era == HORON_GLOO_ERA_3);
    const int count = era == HORON_GLOO_ERA_1 ? size - 1 : 1;
    if (era == HORON_GLOO_ERA_3) {
        const size_t whole = strlen(host);
        const size_t bytes = whole < HOST_BYTES_MAX ? whole : HOST_BYTES_MAX;
        horon_write_u64(out, bytes);
        horon_write_bytes(out, host, bytes);
        horon_write_u64(out, HORON_GLOO_ADDRESS_BYTES);
    }
    for (int i = 0; i < count; i++) {
        const struct horon_gloo_address address = {listeners[i], HORON_GLOO_NO_SEQUENCE, true};
        horon_gloo_address_write(out, &address);
    }
    for (int i = 0; era == HORON_GLOO_ERA_3 && i < size; i++)
        horon_write_u64(out, (uint64_t)i);
}

/* Reads the addresses of eras 1 and 2, one for each other rank, and takes the one at @p place.
 * @param ranks_out  it was published among so many
 * @return its era, or NONE */
static enum horon_gloo_era read_addresses(const void *bytes, size_t count, size_t place,
                                          struct horon_gloo_address *address_out, size_t *ranks_out)
{
    struct horon_reader in = horon_reader_over(bytes, count);
    const size_t others = count / HORON_GLOO_ADDRESS_BYTES;
    bool sequences = false;
    if (others == 0 || count % HORON_GLOO_ADDRESS_BYTES != 0)
        return HORON_GLOO_ERA_NONE;
    for (size_t i = 0; i < others; i++) {
        struct horon_gloo_address address;
        horon_gloo_address_read(&in, &address);
        sequences = sequences || address.sequence != HORON_GLOO_NO_SEQUENCE;
        if (i == place)
            *address_out = address;
    }
    if (!in.ok)
        return HORON_GLOO_ERA_NONE;
    *ranks_out = others + 1;
    return sequences ? HORON_GLOO_ERA_2 : HORON_GLOO_ERA_1;
}

/* Leaves it empty if it cannot be shown: it comes from others. */
static void take_host(const void *bytes, size_t count, char host[HORON_GLOO_HOST_BYTES])
{
    const char *name = bytes;
    host[0] = 0;
    if (count == 0 || count >= HORON_GLOO_HOST_BYTES)
        return;
    for (size_t i = 0; i < count; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return;
    memcpy(host, name, count);
    host[count] = 0;
}

/* Reads what era 3 publishes, if it is that. Behind the ids nothing stands: Gloo would read over
 * it, but no Gloo writes anything there, and its ranks read past the end of too few.
 * @param ranks_out  it has ids for so many; not set if it has none, as of any number */
static bool read_rank(const void *bytes, size_t count, int rank, struct horon_gloo_peer *peer_out,
                      size_t *ranks_out)
{
    struct horon_reader in = horon_reader_over(bytes, count);
    const uint64_t host_bytes = horon_read_u64(&in);
    if (host_bytes > HOST_BYTES_MAX)
        return false;
    const void *host = horon_read_view(&in, (size_t)host_bytes);
    if (horon_read_u64(&in) != HORON_GLOO_ADDRESS_BYTES)
        return false;
    horon_gloo_address_read(&in, &peer_out->address);
    const size_t left = in.limit - in.used;
    if (!in.ok || left % sizeof(int64_t) != 0)
        return false;
    take_host(host, (size_t)host_bytes, peer_out->host);
    peer_out->sequence = rank;
    peer_out->no_ids = left == 0; /* then ranks write their own */
    if (peer_out->no_ids)
        return true;
    *ranks_out = left / sizeof(int64_t);
    for (size_t i = 0; i < *ranks_out; i++) {
        const int64_t id = (int64_t)horon_read_u64(&in);
        if (i == (size_t)rank)
            peer_out->sequence = id;
    }
    return true;
}

/* Reads what a rank published for @p rank, whose address is at @p place in era 1.
 * @param ranks_out  among so many; not set if nothing tells */
static enum horon_gloo_era read_any(const void *bytes, size_t count, int rank, size_t place,
                                    struct horon_gloo_peer *peer_out, size_t *ranks_out)
{
    return read_rank(bytes, count, rank, peer_out, ranks_out)
               ? HORON_GLOO_ERA_3
               : read_addresses(bytes, count, place, &peer_out->address, ranks_out);
}

enum horon_gloo_era horon_gloo_era_of(const void *bytes, size_t count, int size)
{
    struct horon_gloo_peer peer;
    size_t ranks = (size_t)size;
    const enum horon_gloo_era era = read_any(bytes, count, 0, 0, &peer, &ranks);
    return ranks == (size_t)size ? era : HORON_GLOO_ERA_NONE;
}

const char *horon_gloo_era_text(enum horon_gloo_era era)
{
    static const char *const texts[] = {
        [HORON_GLOO_ERA_NONE] = "none",
        [HORON_GLOO_ERA_1] = "e1 (Gloo until May 2023, Horovod, torch up to 2.0)",
        [HORON_GLOO_ERA_2] = "e2 (torch 2.1 and 2.2)",
        [HORON_GLOO_ERA_3] = "e3 (Gloo since July 2023, torch 2.3 and later)",
    };
    return texts[era];
}

static horon_status_t other_era(enum horon_gloo_era era, enum horon_gloo_era found, int peer,
                                struct horon_error *error)
{
    if (found == HORON_GLOO_ERA_2)
        horon_error_set(error, HORON_ERR_CONFIG,
                        "rank %d speaks Gloo's era %s, which horon does not: use a Gloo or torch "
                        "older or newer than that",
                        peer, horon_gloo_era_text(found));
    else
        horon_error_set(error, HORON_ERR_CONFIG,
                        "rank %d speaks Gloo's era %s, but this rank was told %s: set "
                        "HORON_GLOO_ERA=e%d",
                        peer, horon_gloo_era_text(found), horon_gloo_era_text(era), (int)found);
    horon_error_blame(error, HORON_CAUSE_SETTING, peer, -1);
    return HORON_ERR_CONFIG;
}

horon_status_t horon_gloo_peer_read(enum horon_gloo_era era, const void *bytes, size_t count,
                                    int size, int rank, int peer, struct horon_gloo_peer *peer_out,
                                    struct horon_error *error)
{
    const size_t place = (size_t)(rank > peer ? rank - 1 : rank);
    struct horon_gloo_peer read = {.sequence = HORON_GLOO_NO_SEQUENCE};
    size_t ranks = (size_t)size;
    assert(rank != peer && size > 1 && size <= HORON_GLOO_RANKS_MAX);
    const enum horon_gloo_era found = read_any(bytes, count, rank, place, &read, &ranks);
    if (found == HORON_GLOO_ERA_NONE) {
        horon_error_set(error, HORON_ERR_PROTO,
                        "what rank %d published, %zu bytes, is nothing that a rank of Gloo "
                        "publishes among %d",
                        peer, count, size);
        horon_error_blame(error, HORON_CAUSE_PROTOCOL, peer, -1);
        return HORON_ERR_PROTO;
    }
    if (found != era)
        return other_era(era, found, peer, error);
    if (ranks != (size_t)size) {
        horon_error_set(error, HORON_ERR_CONFIG,
                        "rank %d is one of %zu ranks by what it published, and this rank was told "
                        "that there are %d: start all with the same number (HORON_SIZE here)",
                        peer, ranks, size);
        horon_error_blame(error, HORON_CAUSE_SETTING, peer, -1);
        return HORON_ERR_CONFIG;
    }
    *peer_out = read;
    return HORON_OK;
}

/* The port as Gloo compares it: of its two bytes in the network's order, as a number of here. */
static int raw_port(const struct horon_address *address)
{
    return le16toh(address->v4.sin_port);
}

int horon_gloo_connects(const struct horon_address *here, const struct horon_address *there)
{
    int order = 0;
    if (here->any.sa_family != there->any.sa_family)
        return 0;
    if (here->any.sa_family == AF_INET)
        order = memcmp(&here->v4.sin_addr, &there->v4.sin_addr, sizeof here->v4.sin_addr);
    else
        order = memcmp(&here->v6.sin6_addr, &there->v6.sin6_addr, sizeof here->v6.sin6_addr);
    return order ? order : raw_port(here) - raw_port(there);
}
