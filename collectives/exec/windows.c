/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of all ranks' data; see windows.h. */
#include "exec/windows.h"

#include <assert.h>
#include <string.h>

static int host_size(const struct horon_team *team, int host)
{
    return team->host_first[host + 1] - team->host_first[host];
}

/* How many ranks of @p from_host send to the one with local rank @p local of a host of @p
 * local_size. */
static int senders(const struct horon_team *team, int from_host, int local_size, int local)
{
    return (host_size(team, from_host) - local + local_size - 1) / local_size;
}

/* Regions of a slot: the most any rank of the job needs. */
static int regions(const struct horon_team *team)
{
    int most = 0;
    for (int host = 0; host < team->host_count; host++) {
        int needed = 0;
        for (int other = 0; other < team->host_count; other++)
            if (other != host)
                needed += senders(team, other, host_size(team, host), 0);
        most = needed > most ? needed : most;
    }
    return 1 + most;
}

/* A rank that fetches for this host has them in rank order by host. @param next  [local_size] */
static void number_regions(struct horon_windows *windows, const struct horon_team *team,
                           uint64_t *next)
{
    for (int local = 0; local < team->local_size; local++)
        next[local] = 1;
    for (int i = 0; i < team->size; i++) {
        const int rank = team->host_ranks[i];
        if (team->host_of[rank] != team->host)
            windows->region_of[rank] = (int)next[team->local_rank_of[rank] % team->local_size]++;
    }
}

/* Of one slot: a send to each other host, and a receive from each rank that sends here. */
static size_t transfer_max(const struct horon_team *team)
{
    return team->host_count == 1 ? 0 : (size_t)(team->host_count + team->size);
}

size_t horon_windows_tables_bytes(const struct horon_team *team)
{
    return horon_transfers_bytes(transfer_max(team)) +
           (size_t)team->size * (2 * sizeof(uint64_t) + sizeof(int));
}

void horon_windows_init(struct horon_windows *windows, const struct horon_team *team, void *tables)
{
    const size_t max = transfer_max(team);
    uint64_t *counts = (uint64_t *)(void *)((uint8_t *)tables + horon_transfers_bytes(max));
    *windows = (struct horon_windows){
        .counts = counts,
        .starts = counts + team->size,
        .region_of = (int *)(void *)(counts + 2 * (size_t)team->size),
        .regions = regions(team),
    };
    horon_transfers_init(&windows->transfers, max, tables);
    number_regions(windows, team, windows->starts);
}

static struct horon_windows *windows_of(const struct horon_channel *channel)
{
    return channel->pipeline.arg;
}

/* Elements of the window @p chunk of @p rank. */
static uint64_t window_count(const struct horon_channel *channel, int rank, uint64_t chunk)
{
    const uint64_t count = windows_of(channel)->counts[rank];
    const uint64_t full = channel->pipeline.chunk_count, first = chunk * full;
    if (count <= first)
        return 0;
    return count - first < full ? count - first : full;
}

static uint8_t *region_at(const struct horon_channel *channel, uint64_t chunk, int local_rank,
                          int region)
{
    const struct horon_windows *windows = windows_of(channel);
    assert(region < windows->regions);
    return horon_pipeline_slots(channel, chunk)[local_rank] +
           (size_t)region * (size_t)channel->pipeline.chunk_count * windows->element_bytes;
}

/* Begins one window's journey between this rank and @p peer; @p sender's it is. */
static horon_status_t begin_transfer(struct horon_channel *channel, uint64_t chunk, int sender,
                                     int peer, void *data, struct horon_error *error)
{
    struct horon_windows *windows = windows_of(channel);
    const size_t bytes = (size_t)window_count(channel, sender, chunk) * windows->element_bytes;
    return horon_transfers_begin(&windows->transfers, channel, chunk, sender, peer, data, bytes,
                                 error);
}

static horon_status_t post_sends(struct horon_channel *channel, uint64_t chunk,
                                 struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    if (window_count(channel, team->rank, chunk) == 0)
        return HORON_OK;
    for (int i = 1; i < team->host_count; i++) {
        const int host = (team->host + i) % team->host_count;
        const int receiver = team->local_rank % host_size(team, host);
        const int rank = team->host_ranks[team->host_first[host] + receiver];
        const horon_status_t status =
            begin_transfer(channel, chunk, team->rank, rank,
                           region_at(channel, chunk, team->local_rank, 0), error);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

static horon_status_t post_recvs(struct horon_channel *channel, uint64_t chunk,
                                 struct horon_error *error)
{
    const struct horon_windows *windows = windows_of(channel);
    const struct horon_team *team = channel->team;
    for (int rank = 0; rank < team->size; rank++) {
        if (team->host_of[rank] == team->host ||
            team->local_rank_of[rank] % team->local_size != team->local_rank ||
            window_count(channel, rank, chunk) == 0)
            continue;
        uint8_t *region = region_at(channel, chunk, team->local_rank, windows->region_of[rank]);
        const horon_status_t status = begin_transfer(channel, chunk, rank, rank, region, error);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

static horon_status_t post(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    struct horon_windows *windows = windows_of(channel);
    const struct horon_team *team = channel->team;
    const size_t element = windows->element_bytes;
    const uint64_t count = window_count(channel, team->rank, chunk);
    horon_transfers_clear(&windows->transfers, channel, chunk);
    const horon_status_t status = post_recvs(channel, chunk, error);
    if (status != HORON_OK)
        return status;
    if (count)
        horon_stream_copy(&channel->stream, region_at(channel, chunk, team->local_rank, 0),
                          windows->own + (size_t)chunk * channel->pipeline.chunk_count * element,
                          count * element);
    return post_sends(channel, chunk, error);
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    const horon_status_t status =
        horon_transfers_done(&windows_of(channel)->transfers, channel, chunk, error);
    if (status == HORON_OK)
        horon_pipeline_say_posted(channel, chunk);
    return status;
}

static horon_status_t out(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    (void)error;
    const struct horon_windows *windows = windows_of(channel);
    const struct horon_team *team = channel->team;
    const size_t element = windows->element_bytes;
    if (!horon_pipeline_all_posted(channel, chunk))
        return HORON_IN_PROGRESS;
    for (int rank = 0; windows->out && rank < team->size; rank++) {
        const bool here = team->host_of[rank] == team->host;
        const int local = team->local_rank_of[rank];
        const uint64_t first = chunk * channel->pipeline.chunk_count;
        const uint64_t count = window_count(channel, rank, chunk);
        char *to = windows->out + (windows->starts[rank] + first) * element;
        const void *from = region_at(channel, chunk, here ? local : local % team->local_size,
                                     here ? 0 : windows->region_of[rank]);
        if (count == 0) /* of a rank without rows there may be no address to count from */
            continue;
        if (rank == team->rank) /* in place it is there */
            from = windows->own + first * element;
        if (from != to)
            memcpy(to, from, count * element);
    }
    horon_pipeline_say_reduced(channel, chunk);
    return HORON_OK;
}

static bool waits_for(const struct horon_channel *channel, int rank)
{
    const struct horon_team *team = channel->team;
    const uint64_t *next = channel->pipeline.next;
    if (team->host_of[rank] == team->host)
        return horon_pipeline_is_last(channel, team->local_rank_of[rank]);
    return next[HORON_STAGE_EXCHANGE] != next[HORON_STAGE_POST] &&
           horon_transfers_wait_for(&windows_of(channel)->transfers, channel,
                                    next[HORON_STAGE_EXCHANGE], rank);
}

static const struct horon_pipeline_ops pipeline = {
    .turn = horon_pipeline_turn,
    .step =
        {
            [HORON_STAGE_POST] = post,
            [HORON_STAGE_REDUCE] = horon_pipeline_pass,
            [HORON_STAGE_EXCHANGE] = exchange,
            [HORON_STAGE_OUT] = out,
        },
    .waits_for = waits_for,
};

horon_status_t horon_windows_begin(struct horon_channel *channel, struct horon_windows *windows)
{
    const size_t bytes = channel->host->shape.chunk_bytes / (size_t)windows->regions /
                         HORON_LINE_BYTES * HORON_LINE_BYTES;
    uint64_t most = 0;
    for (int rank = 0; rank < channel->team->size; rank++)
        most = windows->counts[rank] > most ? windows->counts[rank] : most;
    assert(bytes >= HORON_LINE_BYTES);
    channel->pipeline.arg = windows;
    return horon_pipeline_begin(channel, &pipeline, most, windows->element_bytes, bytes);
}

horon_status_t horon_windows_begin_table(struct horon_channel *channel,
                                         struct horon_windows *windows, const void *own,
                                         uint64_t words, void *table)
{
    windows->own = own;
    windows->out = table;
    windows->element_bytes = sizeof(uint64_t);
    for (int rank = 0; rank < channel->team->size; rank++) {
        windows->counts[rank] = words;
        windows->starts[rank] = (uint64_t)rank * words;
    }
    return horon_windows_begin(channel, windows);
}
