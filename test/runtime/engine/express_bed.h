/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks of one host, in one thread, whose messages begin as run.c begins them. */
#ifndef TEST_EXPRESS_BED_H
#define TEST_EXPRESS_BED_H

#include "engine/engine_state.h"
#include "engine/express.h"
#include "engine/kept.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES_MAX = 300000 };

struct bed {
    struct world *world;
    uint8_t in[BYTES_MAX], out[BYTES_MAX];
};

static inline struct horon_engine *engine_of(const struct bed *bed, int rank)
{
    return bed->world->ranks[rank].engine;
}

static inline struct horon_engine_team *team_of(const struct bed *bed, int rank)
{
    return horon_engine_job(engine_of(bed, rank));
}

static horon_descriptor_t message(horon_verb_t verb, int peer, uint64_t tag, void *data,
                                  uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_UINT8;
    desc.root = peer;
    desc.tag = tag;
    desc.src = desc.dst = data;
    desc.count = count;
    return desc;
}

/* As run.c makes it. */
static inline struct horon_request *make(struct bed *bed, int rank, const horon_descriptor_t *desc)
{
    struct horon_request *request = NULL;
    struct horon_error error;
    assert_int_equal(horon_kept_take(team_of(bed, rank), desc, &request, &error), HORON_OK);
    atomic_store(&request->refs, 2);
    atomic_store(&request->state, HORON_REQUEST_FLYING);
    return request;
}

static inline struct horon_request *make_send(struct bed *bed, uint64_t tag, uint64_t count)
{
    const horon_descriptor_t desc = message(HORON_SEND, 1, tag, bed->in, count);
    return make(bed, 0, &desc);
}

static inline struct horon_request *make_recv(struct bed *bed, uint64_t tag, uint64_t count)
{
    const horon_descriptor_t desc = message(HORON_RECV, 0, tag, bed->out, count);
    return make(bed, 1, &desc);
}

/* It was never in flight, and is kept again. */
static inline void put_back(struct bed *bed, struct horon_request *request)
{
    const int rank = request->team->view.rank;
    assert_false(request->linked || request->begun);
    assert_int_equal(horon_engine_in_flight(engine_of(bed, rank)), 0);
    assert_null(request->team->messages.first);
    assert_null(request->team->messages.awaited);
    assert_int_equal(atomic_load(&request->refs), 2);
    atomic_store(&request->refs, 1);
    horon_kept_put(request->team, request);
}

/* The long way, on both ranks where both are given; as it ends on each. */
static inline void take_long_way(struct bed *bed, struct horon_request *const *requests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct horon_request *one = requests[i];
        if (!one->linked)
            horon_engine_start_now(one->team->engine, &one, 1);
    }
    assert_true(world_turn_until(bed->world, requests, n));
}

static inline void release(struct horon_request *request, horon_status_t status)
{
    struct horon_names *names = &request->team->engine->names;
    assert_int_equal(request->status, status);
    assert_int_equal(atomic_load(&request->refs), 1);
    horon_kept_free(request, names);
}

/* Each end of each message: it ends by the express or by the long way. */
static inline void exchange(struct bed *bed, uint64_t tag, uint64_t count)
{
    struct horon_request *left[2];
    size_t n = 0;
    struct horon_request *send = make_send(bed, tag, count), *recv = make_recv(bed, tag, count);
    for (uint64_t i = 0; i < count; i++)
        bed->in[i] = (uint8_t)(tag + i);
    memset(bed->out, 0xee, sizeof bed->out);
    for (int rank = 0; rank < 2; rank++)
        horon_express_begin(engine_of(bed, rank));
    if (horon_express_send(engine_of(bed, 0), send) != HORON_OK)
        left[n++] = send;
    else
        put_back(bed, send);
    horon_status_t status = horon_express_expect(engine_of(bed, 1), recv);
    if (status == HORON_IN_PROGRESS)
        status = horon_express_receive(engine_of(bed, 1), recv, true);
    if (status == HORON_IN_PROGRESS)
        horon_express_withdraw(recv);
    if (status != HORON_OK)
        left[n++] = recv;
    else
        put_back(bed, recv);
    if (n > 0)
        take_long_way(bed, left, n);
    for (size_t i = 0; i < n; i++)
        release(left[i], HORON_OK);
    assert_memory_equal(bed->in, bed->out, count);
}

static inline void receive_at_once(struct bed *bed, uint64_t tag)
{
    struct horon_request *recv = make_recv(bed, tag, 8);
    horon_status_t status = horon_express_expect(engine_of(bed, 1), recv);
    if (status == HORON_IN_PROGRESS)
        status = horon_express_receive(engine_of(bed, 1), recv, false);
    assert_int_equal(status, HORON_OK);
    put_back(bed, recv);
}

static inline int make_bed(void **state)
{
    static const int hosts[] = {2};
    struct bed *bed = calloc(1, sizeof *bed);
    *state = bed;
    bed->world = world_create(hosts, 1, NULL, 1);
    exchange(bed, 1, 8); /* the first one goes the long way */
    assert_int_equal(team_of(bed, 0)->messages.moves, 2);
    return 0;
}

static inline int end_bed(void **state)
{
    struct bed *bed = *state;
    world_destroy(bed->world);
    free(bed);
    return 0;
}

#endif
