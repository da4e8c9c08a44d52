/* SPDX-License-Identifier: Apache-2.0 */
/* The counters and flags of the pipeline, and its turn. See pipeline.h. */
#include "exec/pipeline.h"

#include "channel_state.h"

#include <assert.h>

/* Turns of one advance: it does a bounded amount. */
enum { TURNS = 4 };
enum { EARLY_CHUNKS = 8 };

size_t horon_pipeline_early_chunk(uint64_t total_bytes, size_t least_bytes, size_t most_bytes)
{
    const uint64_t part = total_bytes / EARLY_CHUNKS / HORON_LINE_BYTES * HORON_LINE_BYTES;
    const uint64_t wanted = part > least_bytes ? part : least_bytes;
    return wanted < most_bytes ? (size_t)wanted : most_bytes;
}

horon_status_t horon_pipeline_begin(struct horon_channel *channel,
                                    const struct horon_pipeline_ops *ops, uint64_t total,
                                    size_t element_bytes, size_t chunk_bytes)
{
    struct horon_pipeline *pipeline = &channel->pipeline;
    const size_t net_bytes = channel->options.net_chunk_bytes;
    if (channel->team->host_count > 1 && net_bytes < chunk_bytes)
        chunk_bytes = net_bytes;
    assert(total > 0);
    assert(chunk_bytes >= element_bytes);
    assert(chunk_bytes <= channel->host->shape.chunk_bytes);
    pipeline->ops = ops;
    pipeline->total = total;
    pipeline->chunk_count = chunk_bytes / element_bytes;
    pipeline->chunks = (total + pipeline->chunk_count - 1) / pipeline->chunk_count;
    pipeline->posted_seen = pipeline->reduced_seen = 0;
    pipeline->absent = NULL;
    for (int stage = 0; stage < HORON_STAGE_COUNT; stage++)
        pipeline->next[stage] = 0;
    horon_phase_move(channel, HORON_PHASE_PIPELINE);
    return HORON_IN_PROGRESS;
}

static uint64_t value_of(const struct horon_flag *flag)
{
    return atomic_load_explicit(&flag->value, memory_order_acquire);
}

bool horon_pipeline_end(struct horon_channel *channel)
{
    const int self = channel->team->local_rank;
    struct horon_pipeline *pipeline = &channel->pipeline;
    for (int stage = 0; stage < HORON_STAGE_COUNT; stage++)
        assert(pipeline->next[stage] == pipeline->chunks);
    pipeline->base += pipeline->chunks;
    return value_of(channel->posted[self]) == pipeline->base &&
           value_of(channel->reduced[self]) == pipeline->base;
}

void horon_pipeline_excuse(struct horon_channel *channel, const bool *absent)
{
    assert(channel->phase == HORON_PHASE_PIPELINE && channel->team->host_count == 1);
    assert(!absent[channel->team->local_rank]);
    channel->pipeline.absent = absent;
}

void horon_pipeline_skip(struct horon_channel *channel, uint64_t total, size_t element_bytes,
                         size_t chunk_bytes)
{
    const uint64_t chunk_count = chunk_bytes / element_bytes;
    const int self = channel->team->local_rank;
    assert(total > 0 && channel->team->host_count == 1);
    channel->pipeline.base += (total + chunk_count - 1) / chunk_count;
    atomic_store_explicit(&channel->posted[self]->value, channel->pipeline.base,
                          memory_order_release);
    atomic_store_explicit(&channel->reduced[self]->value, channel->pipeline.base,
                          memory_order_release);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

horon_status_t horon_pipeline_advance(struct horon_channel *channel, bool *moved_out,
                                      struct horon_error *error)
{
    const struct horon_pipeline *pipeline = &channel->pipeline;
    for (int turn = 0; turn < TURNS && pipeline->next[HORON_STAGE_OUT] < pipeline->chunks; turn++) {
        bool moved = false;
        const horon_status_t status = pipeline->ops->turn(channel, &moved, error);
        if (status != HORON_OK)
            return status;
        if (!moved)
            break;
        *moved_out = true;
    }
    return pipeline->next[HORON_STAGE_OUT] == pipeline->chunks ? HORON_OK : HORON_IN_PROGRESS;
}

static horon_status_t take(struct horon_channel *channel, enum horon_stage stage, bool *moved_out,
                           struct horon_error *error)
{
    struct horon_pipeline *pipeline = &channel->pipeline;
    const uint64_t chunk = pipeline->next[stage];
    const horon_status_t status = pipeline->ops->step[stage](channel, chunk, error);
    if (status == HORON_OK) {
        pipeline->next[stage]++;
        *moved_out = true;
    }
    return status == HORON_IN_PROGRESS ? HORON_OK : status;
}

/* Later stages come first, since others wait for what they give; then this rank's next chunk. */
horon_status_t horon_pipeline_turn(struct horon_channel *channel, bool *moved_out,
                                   struct horon_error *error)
{
    struct horon_pipeline *pipeline = &channel->pipeline;
    const uint64_t *next = pipeline->next;
    horon_status_t status = HORON_OK;
    for (enum horon_stage s = HORON_STAGE_REDUCE; s <= HORON_STAGE_OUT; s++) {
        assert(next[s] <= next[s - 1]);
        if (status == HORON_OK && next[s] < next[s - 1])
            status = take(channel, s, moved_out, error);
    }
    const uint64_t chunk = next[HORON_STAGE_POST];
    if (status == HORON_OK && chunk < pipeline->chunks &&
        chunk < next[HORON_STAGE_OUT] + HORON_SLOTS && horon_pipeline_slot_free(channel, chunk))
        status = take(channel, HORON_STAGE_POST, moved_out, error);
    return status;
}

horon_status_t horon_pipeline_pass(struct horon_channel *channel, uint64_t chunk,
                                   struct horon_error *error)
{
    (void)channel;
    (void)chunk;
    (void)error;
    return HORON_OK;
}

int horon_pipeline_slot(const struct horon_channel *channel, uint64_t chunk)
{
    return (int)((channel->pipeline.base + chunk) % HORON_SLOTS);
}

uint8_t **horon_pipeline_slots(const struct horon_channel *channel, uint64_t chunk)
{
    return channel->chunk[horon_pipeline_slot(channel, chunk)];
}

uint64_t horon_pipeline_elements(const struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_pipeline *pipeline = &channel->pipeline;
    assert(chunk < pipeline->chunks);
    const uint64_t left = pipeline->total - chunk * pipeline->chunk_count;
    return left < pipeline->chunk_count ? left : pipeline->chunk_count;
}

uint64_t horon_pipeline_tag(const struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_pipeline *pipeline = &channel->pipeline;
    return (pipeline->base - pipeline->first + chunk) << 32;
}

/* The lowest of the flags, but no further than the first that is below @p wanted. */
static uint64_t lowest(const struct horon_channel *channel, struct horon_flag *const *flags,
                       uint64_t wanted)
{
    const bool *absent = channel->pipeline.absent;
    uint64_t low = UINT64_MAX;
    for (int i = 0; i < channel->team->local_size && low >= wanted; i++) {
        const uint64_t value = absent && absent[i] ? UINT64_MAX : value_of(flags[i]);
        if (value < low)
            low = value;
    }
    return low;
}

static bool reached(const struct horon_channel *channel, struct horon_flag *const *flags,
                    uint64_t *seen, uint64_t wanted)
{
    if (*seen < wanted)
        *seen = lowest(channel, flags, wanted);
    return *seen >= wanted;
}

bool horon_pipeline_all_posted(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_pipeline *pipeline = &channel->pipeline;
    return reached(channel, channel->posted, &pipeline->posted_seen, pipeline->base + chunk + 1);
}

bool horon_pipeline_all_reduced(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_pipeline *pipeline = &channel->pipeline;
    return reached(channel, channel->reduced, &pipeline->reduced_seen, pipeline->base + chunk + 1);
}

bool horon_pipeline_has_posted(const struct horon_channel *channel, int local, uint64_t chunk)
{
    return value_of(channel->posted[local]) > channel->pipeline.base + chunk;
}

bool horon_pipeline_has_reduced(const struct horon_channel *channel, int local, uint64_t chunk)
{
    return value_of(channel->reduced[local]) > channel->pipeline.base + chunk;
}

bool horon_pipeline_keeps_slot(const struct horon_channel *channel, int local, uint64_t chunk)
{
    return value_of(channel->reduced[local]) + HORON_SLOTS <= channel->pipeline.base + chunk;
}

bool horon_pipeline_slot_free(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_pipeline *pipeline = &channel->pipeline;
    const uint64_t number = pipeline->base + chunk;
    if (number < HORON_SLOTS)
        return true;
    return reached(channel, channel->reduced, &pipeline->reduced_seen, number - HORON_SLOTS + 1);
}

/* Chunks are posted and reduced one after the other. */
static void set(const struct horon_channel *channel, struct horon_flag *const *flags,
                uint64_t chunk)
{
    struct horon_flag *own = flags[channel->team->local_rank];
    const uint64_t number = channel->pipeline.base + chunk;
    assert(chunk < channel->pipeline.chunks);
    atomic_store_explicit(&own->value, number + 1, memory_order_release);
}

void horon_pipeline_set_posted(struct horon_channel *channel, uint64_t chunk)
{
    set(channel, channel->posted, chunk);
}

void horon_pipeline_set_reduced(struct horon_channel *channel, uint64_t chunk)
{
    set(channel, channel->reduced, chunk);
}

void horon_pipeline_say_posted(struct horon_channel *channel, uint64_t chunk)
{
    horon_pipeline_set_posted(channel, chunk);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

void horon_pipeline_say_reduced(struct horon_channel *channel, uint64_t chunk)
{
    horon_pipeline_set_reduced(channel, chunk);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

bool horon_pipeline_is_last(const struct horon_channel *channel, int local)
{
    const int self = channel->team->local_rank;
    const uint64_t posted = value_of(channel->posted[local]);
    const uint64_t reduced = value_of(channel->reduced[local]);
    if (posted >= value_of(channel->posted[self]) && reduced >= value_of(channel->reduced[self]))
        return false;
    for (int i = 0; i < channel->team->local_size; i++)
        if (value_of(channel->posted[i]) + value_of(channel->reduced[i]) < posted + reduced)
            return false;
    return true;
}
