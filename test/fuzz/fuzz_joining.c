/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank reads while it joins, from a store and from other ranks, which say anything. The
 * first byte chooses: a server's frames in pieces, the blobs of a round, or the table of leaders
 * that makes the topology. Whatever comes: what is taken is well formed, and a failure has a
 * reason.
 */
#undef NDEBUG

#include "alloc.h"
#include "boot/joining.h"
#include "boot/store/stream.h"
#include "codec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, RANKS_MAX = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The blobs of a round, if they are any. */
static void read_rounds(struct horon_blobs blobs)
{
    for (int r = 0; r < RANKS && horon_blobs_are_whole(blobs.in, RANKS - r); r++) {
        struct horon_reader in = horon_blobs_next(&blobs);
        struct horon_addresses addresses;
        struct horon_profile profile;
        if (!horon_profile_decode(&in, &profile))
            continue;
        assert(memchr(profile.name, 0, sizeof profile.name));
        if (horon_addresses_read(profile.addresses, &addresses))
            assert(addresses.count <= HORON_ADDRESSES_MAX);
    }
}

/* A whole frame: why the store fails, or the blobs of a round. */
static void take(struct horon_store_inbox *inbox)
{
    struct horon_reader in = horon_reader_over(inbox->frame + 4, inbox->used - 4);
    struct horon_error why = {0};
    bool whole;
    if (horon_read_u8(&in) == HORON_STORE_FAIL) {
        if (!horon_store_failure_read(&in, RANKS, &why, &whole))
            return;
        assert(horon_status_from_peer((uint32_t)why.status) == why.status);
        assert(why.text[0]);
        return;
    }
    horon_read_u32(&in); /* the round */
    struct horon_blobs blobs = {horon_store_inbox_take(inbox), in};
    read_rounds(blobs);
    horon_blobs_deinit(&blobs);
}

/* The first byte of the rest says in how large pieces it comes. */
static void read_server(const uint8_t *data, size_t bytes)
{
    struct horon_store_inbox inbox = {.limit = horon_store_frame_bytes_max(RANKS)};
    const size_t piece = bytes > 0 && data[0] ? data[0] : SIZE_MAX;
    for (size_t at = 1; at < bytes;) {
        size_t room = 0;
        uint8_t *to = horon_store_inbox_room(&inbox, &room);
        assert(to && room > 0);
        size_t part = bytes - at < piece ? bytes - at : piece;
        part = part < room ? part : room;
        memcpy(to, data + at, part);
        at += part;
        const horon_status_t status = horon_store_inbox_fill(&inbox, part);
        assert(inbox.capacity <= 2 * bytes + 512);
        if (status == HORON_OK)
            take(&inbox);
        else if (status != HORON_AGAIN)
            break;
    }
    horon_store_inbox_deinit(&inbox);
}

/* The frame around it is left out, so that the blobs are reached often. */
static void read_round(const uint8_t *data, size_t bytes)
{
    uint8_t *memory = malloc(bytes + 1);
    assert(memory);
    memcpy(memory, data, bytes);
    read_rounds((struct horon_blobs){memory, horon_reader_over(memory, bytes)});
    free(memory);
}

static void check_topology(const struct horon_topology *topology)
{
    int children[RANKS_MAX], ranks = 0;
    for (int host = 0; host < topology->host_count; host++) {
        assert(horon_topology_host_size(topology, host) > 0);
        ranks += horon_topology_host_size(topology, host);
    }
    assert(ranks == topology->size);
    for (int rank = 0; rank < topology->size; rank++) {
        const int parent = horon_topology_parent(topology, rank);
        const int count = horon_topology_children(topology, rank, children);
        assert(parent < rank);
        assert(count < topology->size);
        for (int peer = 0; peer < topology->size; peer++)
            assert(horon_topology_linked(topology, rank, peer) ==
                   horon_topology_linked(topology, peer, rank));
    }
}

static void read_leaders(const uint8_t *data, size_t bytes)
{
    int leader_of[RANKS_MAX];
    static const char names[RANKS_MAX][64] = {"host"};
    struct horon_topology topology;
    struct horon_error error = {0};
    const int size = bytes < RANKS_MAX ? (int)bytes : RANKS_MAX;
    for (int rank = 0; rank < size; rank++)
        leader_of[rank] = (int8_t)data[rank];
    if (size > 0 &&
        horon_topology_init(&topology, size / 2, size, leader_of, names, &error) == HORON_OK) {
        check_topology(&topology);
        horon_topology_deinit(&topology);
    } else {
        assert(size == 0 || error.text[0]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const parts[])(const uint8_t *, size_t) = {read_server, read_round, read_leaders};
    if (bytes > 0)
        parts[data[0] % (sizeof parts / sizeof parts[0])](data + 1, bytes - 1);
    return 0;
}
