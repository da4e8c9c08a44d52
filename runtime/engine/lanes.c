/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: the operations of one channel in their order, one at a time on the channel. A batch that
 * the coordinator decided is one operation over the concatenation of its tensors.
 */
#include "engine/engine_state.h"

#include "alloc.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void horon_lane_push(struct horon_lane *lane, struct horon_work *work)
{
    work->next = NULL;
    *lane->tail = work;
    lane->tail = &work->next;
    lane->length++;
}

void horon_engine_push_ordered(struct horon_engine *engine, struct horon_request *request)
{
    horon_request_make_work(request);
    const uint64_t turned = engine->ordered_check << 7 | engine->ordered_check >> 57;
    engine->ordered_check = (turned ^ request->op.check) * 0x9e3779b97f4a7c15u;
    request->work.op.check = engine->ordered_check;
    horon_lane_push(&engine->lanes[HORON_CHANNEL_ORDERED], &request->work);
}

/* In-order work lies in its request; that of batches comes from the pool. */
void horon_work_recycle(struct horon_engine *engine, struct horon_work *work)
{
    if (work->limit == 0)
        return;
    work->next = engine->pool;
    engine->pool = work;
}

static bool make_room(struct horon_work *work, size_t count)
{
    if (work->limit >= count)
        return true;
    size_t limit = count < 64 ? 64 : count + count / 2;
    struct horon_part *parts = horon_realloc(work->parts, limit * sizeof *parts);
    if (parts)
        work->parts = parts;
    struct horon_request **requests = horon_realloc(work->requests, limit * sizeof *requests);
    if (requests)
        work->requests = requests;
    if (!parts || !requests)
        return false;
    work->limit = limit;
    return true;
}

static struct horon_work *take_work(struct horon_engine *engine, size_t count)
{
    struct horon_work *work = engine->pool;
    if (work)
        engine->pool = work->next;
    else
        work = horon_zalloc(1, sizeof *work);
    if (work && !make_room(work, count)) {
        work->next = engine->pool; /* keeps its old arrays; freed with the pool */
        engine->pool = work;
        return NULL;
    }
    return work;
}

/* Elements of the requests' tensors as parts of one vector. */
static void fill_work(struct horon_work *work, const struct horon_batch *batch)
{
    uint64_t count = 0;
    for (size_t i = 0; i < batch->count; i++) {
        struct horon_request *request = (struct horon_request *)(uintptr_t)batch->tokens[i];
        work->requests[i] = request;
        work->parts[i] = (struct horon_part){
            .src = request->src, .dst = request->dst, .count = request->op.count};
        count += request->op.count;
        request->begun = true;
    }
    work->count = batch->count;
    work->op = work->requests[0]->op;
    work->op.parts = work->parts;
    work->op.part_count = batch->count;
    work->op.count = count;
    uint64_t agreed[2] = {batch->sequence, batch->count};
    work->op.check = XXH3_64bits_withSeed(agreed, sizeof agreed, work->requests[0]->op.check);
}

static void fail_batch(struct horon_engine *engine, const struct horon_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        struct horon_request *request = (struct horon_request *)(uintptr_t)batch->tokens[i];
        if (batch->sequence == HORON_SEQUENCE_LOCAL)
            horon_engine_uncount(engine, request);
        if (engine->failed)
            return; /* with all that was in flight */
        horon_engine_end(engine, request, batch->status, batch->text);
    }
}

bool horon_engine_take_batches(struct horon_engine *engine)
{
    struct horon_batch batch;
    bool moved = false;
    while (!engine->failed && horon_coordinator_next_batch(engine->coordinator, &batch)) {
        moved = true;
        if (batch.status != HORON_OK) {
            fail_batch(engine, &batch);
            continue;
        }
        struct horon_work *work = take_work(engine, batch.count);
        if (!work) {
            horon_engine_fail_here(engine, HORON_ERR_MEMORY, "no memory for a batch of tensors");
            break;
        }
        fill_work(work, &batch);
        HORON_LOG_TRACE(engine->options.log, "batch %llu: %s of %zu tensor%s, %llu elements of %s",
                        (unsigned long long)batch.sequence,
                        horon_verb_name((horon_verb_t)work->op.verb), batch.count,
                        batch.count == 1 ? "" : "s", (unsigned long long)work->op.count,
                        horon_dtype_name((horon_dtype_t)work->op.dtype));
        horon_lane_push(&engine->lanes[HORON_CHANNEL_NAMED], work);
    }
    return moved;
}

/* The operation ended well; but this rank may have had no memory for what it gave. */
static void end_well(struct horon_engine *engine, struct horon_request *request)
{
    char text[256];
    if (!request->output_refused) {
        horon_engine_end(engine, request, HORON_OK, NULL);
        return;
    }
    const char *self = engine->rank_names[engine->topology->rank];
    const unsigned long long elements = request->output_count, room = request->dst_count;
    if (request->dst)
        snprintf(text, sizeof text, "%s has room for %llu elements, and its output has %llu", self,
                 room, elements);
    else
        snprintf(text, sizeof text, "%s has no memory for the %llu elements of its output", self,
                 elements);
    request->output_count = 0;
    horon_engine_end(engine, request, HORON_ERR_MEMORY, text);
}

static void end_work(struct horon_engine *engine, struct horon_lane *lane)
{
    struct horon_work *work = lane->head;
    lane->head = work->next;
    if (!lane->head)
        lane->tail = &lane->head;
    lane->length--;
    lane->running = false;
    engine->coordinator_dirty |= engine->held_back;
    /* in-order work lies in its request: gone with it */
    bool pooled = work->limit != 0;
    size_t count = work->count;
    struct horon_request **requests = work->requests;
    struct horon_request *only = requests[0];
    if (!pooled) {
        end_well(engine, only);
        return;
    }
    for (size_t i = 0; i < count; i++)
        end_well(engine, requests[i]);
    horon_work_recycle(engine, work);
}

/* A rank that left never does its part of an operation that it had not completed. To say so here
 * would fail everything, and an operation on the other lane may end yet. */
static bool lacks_one_that_left(const struct horon_engine *engine, const struct horon_lane *lane,
                                horon_status_t status)
{
    const ptrdiff_t channel = lane - engine->lanes;
    return status == HORON_ERR_PEER_LOST && engine->departures.any &&
           horon_channel_ended(lane->channel) >= engine->departures.sequence[channel];
}

bool horon_lane_advance(struct horon_engine *engine, struct horon_lane *lane)
{
    bool moved = false;
    if (!lane->head || lane->stuck)
        return false;
    if (!lane->running) {
        horon_channel_begin(lane->channel, &lane->head->op);
        lane->running = true;
        moved = true;
    }
    struct horon_error error = {0};
    horon_status_t status = horon_channel_advance(lane->channel, &moved, &error);
    lane->moves += moved;
    if (status == HORON_OK)
        end_work(engine, lane);
    else if (lacks_one_that_left(engine, lane, status))
        lane->stuck = true;
    else if (status < 0)
        horon_engine_fail_here(engine, status,
                               error.text[0] ? error.text : horon_status_text(status));
    return moved;
}
