/* SPDX-License-Identifier: Apache-2.0 */
/* Net runs of a channel: [slot][index of the segment], each with scratch of its own. The first of
 * all serves small exchanges, too: a small operation has no chunks. */
#include "exec/exchange.h"

#include "alloc.h"
#include "exec/walk.h"

#include <assert.h>

static void *scratch(struct horon_channel *channel, int run, size_t bytes)
{
    struct horon_exchange_memory *memory = &channel->exchange_memory[run];
    if (memory->bytes && memory->limit >= bytes)
        return memory->bytes;
    horon_free(memory->bytes);
    memory->limit = 0;
    memory->bytes = horon_alloc_lines(bytes);
    if (memory->bytes)
        memory->limit = bytes;
    return memory->bytes;
}

static horon_status_t begin(struct horon_channel *channel, const struct horon_exchange *exchange,
                            int run, const int *ranks, uint64_t tag, void *work, uint64_t count)
{
    const struct horon_team *team = channel->team;
    struct horon_netrun_args args = {
        .plan = {.kind = exchange->kind,
                 .rank = team->host,
                 .size = team->host_count,
                 .root = exchange->root,
                 .count = count},
        .ranks = ranks,
        .mux_of = team->mux_of,
        .rank_names = team->rank_names,
        .dtype = exchange->dtype,
        .op = exchange->op,
        .work = work,
        .channel = (uint32_t)channel->options.channel,
        .sequence = channel->ended,
        .tag = tag,
        .check = channel->op->check,
    };
    assert(team->host_count > 1);
    assert(run >= 0);
    assert(run < HORON_SLOTS * channel->carried);
    args.scratch = scratch(channel, run,
                           (size_t)horon_plan_scratch(&args.plan) * horon_dtype_bytes(args.dtype));
    if (!args.scratch)
        return HORON_ERR_MEMORY;
    return horon_netrun_begin(&channel->nets[run], &args);
}

enum horon_plan_kind horon_exchange_choose(const struct horon_channel *channel,
                                           enum horon_plan_way way, uint64_t count)
{
    return horon_plan_choose(channel->options.net_algorithm, way, channel->team->host_count,
                             count * channel->element_bytes, channel->team->crowded);
}

horon_status_t horon_exchange_begin_small(struct horon_channel *channel,
                                          const struct horon_exchange *exchange, void *work,
                                          uint64_t count)
{
    horon_phase_move(channel, HORON_PHASE_EXCHANGE);
    const horon_status_t status = begin(channel, exchange, 0, channel->leaders, 0, work, count);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

horon_status_t horon_exchange_begin_slice(struct horon_channel *channel,
                                          const struct horon_exchange *exchange, uint64_t chunk,
                                          int index, uint8_t *memory)
{
    const int segment = horon_exchange_segment(channel, index);
    const struct horon_slice slice =
        horon_slice_of(channel, horon_pipeline_elements(channel, chunk), segment);
    const uint64_t tag = horon_pipeline_tag(channel, chunk) | (uint64_t)segment
                                                                  << HORON_NETRUN_TAG_BITS;
    assert(index < channel->carried);
    return begin(channel, exchange, horon_pipeline_slot(channel, chunk) * channel->carried + index,
                 channel->carriers + segment * channel->team->host_count, tag,
                 memory + slice.from * channel->element_bytes, slice.to - slice.from);
}

static struct horon_netrun *runs_of(const struct horon_channel *channel, uint64_t chunk)
{
    return channel->nets + horon_pipeline_slot(channel, chunk) * channel->carried;
}

horon_status_t horon_exchange_advance(struct horon_channel *channel, uint64_t chunk, uint64_t end,
                                      struct horon_error *error)
{
    horon_status_t first = HORON_OK;
    assert(chunk < end);
    assert(end <= chunk + HORON_SLOTS);
    for (uint64_t c = chunk; c < end; c++) {
        for (int index = 0; index < channel->carried; index++) {
            const horon_status_t status = horon_netrun_advance(&runs_of(channel, c)[index], error);
            if (status < 0)
                return status;
            if (status != HORON_OK && c == chunk)
                first = HORON_IN_PROGRESS;
        }
    }
    return first;
}

bool horon_exchange_waits_for(const struct horon_channel *channel, uint64_t end, int rank)
{
    for (uint64_t c = channel->pipeline.next[HORON_STAGE_EXCHANGE]; c < end; c++)
        for (int index = 0; index < channel->carried; index++)
            if (horon_netrun_waits_for(&runs_of(channel, c)[index], rank))
                return true;
    return false;
}
