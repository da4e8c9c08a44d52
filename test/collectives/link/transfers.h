/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the mux share: contents to compare, posting that must work, and the check that
 * all eager room is free. */
#ifndef HORON_TEST_COLLECTIVES_TRANSFERS_H
#define HORON_TEST_COLLECTIVES_TRANSFERS_H

#include "../mesh.h"

#include <stdlib.h>
#include <string.h>

/* Contents that depend on place and seed, cut from one long noise: compared as a whole, as a loop
 * over bytes is slow under sanitizers. Filled before any thread begins. */
enum { NOISE_BYTES = 9 << 20 };
static uint8_t noise[NOISE_BYTES];

static inline int make_noise(void **state)
{
    (void)state;
    struct seeded random = seeded_from(7);
    for (size_t i = 0; i < NOISE_BYTES; i += 8) {
        const uint64_t next = seeded_next(&random);
        memcpy(noise + i, &next, 8);
    }
    return 0;
}

static inline const uint8_t *noise_of(size_t bytes, uint64_t seed)
{
    assert_true(bytes + 200000 < NOISE_BYTES);
    return noise + seed * 13 % 200000;
}

static inline void fill(uint8_t *data, size_t bytes, uint64_t seed)
{
    memcpy(data, noise_of(bytes, seed), bytes);
}

static inline void check_filled(const uint8_t *data, size_t bytes, uint64_t seed)
{
    const uint8_t *expected = noise_of(bytes, seed);
    if (bytes && memcmp(data, expected, bytes) != 0)
        fail_msg("%zu bytes of seed %llu came otherwise", bytes, (unsigned long long)seed);
}

static inline struct horon_transfer transfer_of(uint64_t sequence, uint64_t tag, void *data,
                                                size_t bytes)
{
    return (struct horon_transfer){.id = {.channel = 5, .sequence = sequence, .tag = tag},
                                   .data = data,
                                   .bytes = bytes,
                                   .check = 77 + sequence};
}

static inline void post_send(struct horon_mux *mux, struct horon_transfer *transfer)
{
    struct horon_error error = {0};
    if (horon_mux_post_send(mux, transfer, &error))
        fail_msg("%s", error.text);
}

static inline void post_recv(struct horon_mux *mux, struct horon_transfer *transfer)
{
    struct horon_error error = {0};
    if (horon_mux_post_recv(mux, transfer, &error))
        fail_msg("%s", error.text);
}

/* All eager room is free again, once what is due was carried back: as much goes unposted as at
 * first. Leaves it taken. */
static inline void check_room(struct mesh *mesh, int rank, const struct horon_mux_options *options)
{
    static uint8_t data[10000];
    static struct horon_transfer sends[HORON_MUX_EAGER_TRANSFERS_MAX];
    size_t left = options->eager_total_bytes, count = 0;
    assert_int_equal(horon_mux_post_control(mesh->mux[!rank][rank], "", 0), HORON_OK);
    mesh_settle(mesh);
    while (left > 0 && options->eager_bytes > 0 && count < HORON_MUX_EAGER_TRANSFERS_MAX) {
        const size_t bytes = left < options->eager_bytes ? left : options->eager_bytes;
        sends[count] = transfer_of(1u << 30, count, data, bytes);
        post_send(mesh->mux[rank][!rank], &sends[count++]);
        left -= bytes;
    }
    mesh_settle(mesh);
    for (size_t i = 0; i < count; i++)
        assert_true(sends[i].done);
}

#endif
