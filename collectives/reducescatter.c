/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reducescatter: every rank gets its rows of the reduction of all inputs.
 *
 * Small: each rank's input lies in its small slot; on one host everybody reduces its own rows of
 * everybody's. With several hosts the first ranks reduce and exchange all of it, as an allreduce
 * does, and each rank copies its rows.
 *
 * Chunked: chunk w is window w of every rank's rows, so that all ranks have something to reduce at
 * once, whatever their rows. A slot is cut in regions, one a rank. Here rank 1 of three:
 *
 *     POST      window w of the rows of 0 and 2 -> own slot     | flag "posted"
 *     REDUCE    window w of its rows, of everybody -> dst       | flag "reduced"
 *
 * One meeting a chunk, and (L-1)/L of the bytes through slots for each of L ranks.
 *
 * With several hosts a window is reduced once on each host: on that of its rank by the rank itself,
 * elsewhere by local rank l mod L, l being its rank's own local rank there. The rank that
 * reduces it posts no window of it. What comes of it goes to its rank, which adds the hosts' sums
 * along the canonical tree (design 3.8), and only then writes its output:
 *
 *     REDUCE    windows for other hosts' ranks -> own slot, and sent; its own -> own slot
 *     EXCHANGE  the hosts' sums of its own window -> dst
 *
 * (H-1)/H of the input leaves each host, which is the bound.
 *
 * In place the output may begin where the input does: window w of it covers windows up to w of the
 * other ranks' rows, which are posted by then, or not read before them.
 */
#include "exec/reduction.h"
#include "exec/transfers.h"

#include <string.h>

struct reducescatter {
    struct horon_reduction reduction;
    struct horon_transfers transfers;
    uint64_t *counts; /* [size] elements of a rank's rows */
    uint64_t *starts; /* [size] first element of them in the input */
    void **sums;      /* [host_count] of each host, for this rank's own window */
    bool small;
    bool posts_own; /* its output lies before its rows in the input, and would overwrite them */
};

static struct reducescatter *state_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_reducescatter_ops);
    return channel->state;
}

/* Of one chunk: to the ranks whose windows this rank reduces, and from each other host. */
static size_t transfer_max(const struct horon_team *team)
{
    return team->host_count == 1 ? 0 : (size_t)(team->size + team->host_count);
}

static size_t state_bytes(const struct horon_team *team)
{
    return sizeof(struct reducescatter) + horon_reduction_tables_bytes(team) +
           horon_transfers_bytes(transfer_max(team)) + 2 * (size_t)team->size * sizeof(uint64_t) +
           (size_t)team->host_count * sizeof(void *);
}

static void init(void *memory, const struct horon_team *team)
{
    struct reducescatter *state = memory;
    uint8_t *tables = (uint8_t *)(state + 1);
    horon_reduction_init(&state->reduction, team, tables);
    tables += horon_reduction_tables_bytes(team);
    horon_transfers_init(&state->transfers, transfer_max(team), tables);
    tables += horon_transfers_bytes(transfer_max(team));
    state->counts = (uint64_t *)(void *)tables;
    state->starts = state->counts + team->size;
    state->sums = (void **)(void *)(state->starts + team->size);
}

static void begin(struct horon_channel *channel)
{
    struct reducescatter *state = state_of(channel);
    const struct horon_operation *op = channel->op;
    const struct horon_team *team = channel->team;
    uint64_t start = 0;
    assert(op->part_count == 1);
    for (int rank = 0; rank < team->size; rank++) {
        state->starts[rank] = start;
        state->counts[rank] = horon_operation_rows(op, rank, team->size) * op->row_elements;
        start += state->counts[rank];
    }
    assert(start == channel->count);
    horon_reduction_begin(&state->reduction, channel);
    state->small =
        (size_t)channel->count * channel->element_bytes <= horon_channel_small_limit(channel);
    state->posts_own = op->parts[0].dst == op->parts[0].src && state->starts[team->rank] > 0;
}

/* ---- small ---------------------------------------------------------------------------------- */

static void enter(struct horon_channel *channel)
{
    struct horon_cursor cursor = {0};
    if (state_of(channel)->small)
        horon_cursor_copy_in(
            channel, &cursor, 0, channel->count,
            horon_phase_place(channel, (size_t)channel->count * channel->element_bytes));
}

static horon_status_t small_met(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    struct reducescatter *state = state_of(channel);
    const int rank = channel->team->rank;
    if (channel->team->host_count > 1)
        return horon_reduction_exchange_small(&state->reduction, channel);
    if (state->counts[rank])
        horon_reduction_of_small(&state->reduction, channel, state->starts[rank],
                                 state->counts[rank], channel->op->parts[0].dst,
                                 &state->reduction.finish);
    return HORON_OK;
}

static horon_status_t small_published(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    const struct reducescatter *state = state_of(channel);
    const int rank = channel->team->rank;
    const uint8_t *all = horon_slot_data(channel->result[horon_channel_slot(channel)]);
    if (state->counts[rank])
        memcpy(channel->op->parts[0].dst, all + state->starts[rank] * channel->element_bytes,
               state->counts[rank] * channel->element_bytes);
    return HORON_OK;
}

static horon_status_t small_exchanged(struct horon_channel *channel, struct horon_error *error)
{
    horon_reduction_finish_small(&state_of(channel)->reduction, channel);
    horon_phase_publish(channel);
    return small_published(channel, error);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Elements of the window @p chunk of @p rank. */
static uint64_t window_count(const struct horon_channel *channel, uint64_t chunk, int rank)
{
    const uint64_t count = state_of(channel)->counts[rank];
    const uint64_t full = channel->pipeline.chunk_count, first = chunk * full;
    if (count <= first)
        return 0;
    return count - first < full ? count - first : full;
}

/* Where that lies in this rank's input. */
static const char *window_at(const struct horon_channel *channel, uint64_t chunk, int rank)
{
    const uint64_t first = state_of(channel)->starts[rank] + chunk * channel->pipeline.chunk_count;
    return (const char *)channel->op->parts[0].src + first * channel->element_bytes;
}

/* Of a slot: one for each rank, and behind them one for what each other host sends. */
static int region_count(const struct horon_team *team)
{
    return team->size + team->host_count - 1;
}

static uint8_t *region_at(const struct horon_channel *channel, uint64_t chunk, int local_rank,
                          int region)
{
    assert(region >= 0 && region < region_count(channel->team));
    return horon_pipeline_slots(channel, chunk)[local_rank] +
           (size_t)region * (size_t)channel->pipeline.chunk_count * channel->element_bytes;
}

/* Where the sum of @p host of this rank's own window lies: its own is made here, others' come. */
static uint8_t *sum_at(const struct horon_channel *channel, uint64_t chunk, int host)
{
    const struct horon_team *team = channel->team;
    const int other = team->size + (host < team->host ? host : host - 1);
    return region_at(channel, chunk, team->local_rank, host == team->host ? team->rank : other);
}

/* The rank of @p host that reduces the windows of @p rank there. */
static int reducer(const struct horon_team *team, int rank, int host)
{
    const int local_size = team->host_first[host + 1] - team->host_first[host];
    if (team->host_of[rank] == host)
        return rank;
    return team->host_ranks[team->host_first[host] + team->local_rank_of[rank] % local_size];
}

static horon_status_t begin_receives(struct horon_channel *channel, uint64_t chunk,
                                     struct horon_error *error)
{
    struct horon_transfers *transfers = &state_of(channel)->transfers;
    const struct horon_team *team = channel->team;
    const size_t bytes = (size_t)window_count(channel, chunk, team->rank) * channel->element_bytes;
    horon_status_t status = HORON_OK;
    horon_transfers_clear(transfers, channel, chunk);
    for (int host = 0; bytes && status == HORON_OK && host < team->host_count; host++) {
        const int sender = reducer(team, team->rank, host);
        if (host != team->host)
            status = horon_transfers_begin(transfers, channel, chunk, sender, sender,
                                           sum_at(channel, chunk, host), bytes, error);
    }
    return status;
}

static horon_status_t post(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    const horon_status_t status = begin_receives(channel, chunk, error);
    if (status != HORON_OK)
        return status;
    for (int rank = 0; rank < team->size; rank++) {
        const uint64_t count = window_count(channel, chunk, rank);
        const bool ours = reducer(team, rank, team->host) == team->rank;
        if (count && (!ours || (rank == team->rank && state_of(channel)->posts_own)))
            horon_stream_copy(&channel->stream, region_at(channel, chunk, team->local_rank, rank),
                              window_at(channel, chunk, rank), count * channel->element_bytes);
    }
    horon_pipeline_say_posted(channel, chunk);
    return HORON_OK;
}

/* The window of @p rank, from everybody on this host, to @p out. */
static void reduce_window(struct horon_channel *channel, uint64_t chunk, int rank, void *out,
                          const struct horon_reduce_finish *finish)
{
    struct reducescatter *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const bool is_posted = rank == team->rank && state->posts_own;
    for (int local = 0; local < team->local_size; local++)
        state->reduction.inputs[local] = region_at(channel, chunk, local, rank);
    if (!is_posted)
        state->reduction.inputs[team->local_rank] = window_at(channel, chunk, rank);
    state->reduction.outputs[0] = out;
    horon_reduction_run(&state->reduction, channel, 1, window_count(channel, chunk, rank), finish);
}

/* Where window @p chunk of this rank's output lies. */
static char *output_at(const struct horon_channel *channel, uint64_t chunk)
{
    return (char *)channel->op->parts[0].dst +
           chunk * channel->pipeline.chunk_count * channel->element_bytes;
}

static horon_status_t reduce_for_hosts(struct horon_channel *channel, uint64_t chunk,
                                       struct horon_error *error)
{
    struct reducescatter *state = state_of(channel);
    const struct horon_team *team = channel->team;
    horon_status_t status = HORON_OK;
    for (int rank = 0; status == HORON_OK && rank < team->size; rank++) {
        const uint64_t count = window_count(channel, chunk, rank);
        uint8_t *sum = region_at(channel, chunk, team->local_rank, rank);
        if (!count || reducer(team, rank, team->host) != team->rank)
            continue;
        reduce_window(channel, chunk, rank, sum, &state->reduction.partial);
        if (rank != team->rank)
            status = horon_transfers_begin(&state->transfers, channel, chunk, team->rank, rank, sum,
                                           count * channel->element_bytes, error);
    }
    return status;
}

static horon_status_t reduce(struct horon_channel *channel, uint64_t chunk,
                             struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    horon_status_t status = HORON_OK;
    if (!horon_channel_has_met(channel) || !horon_pipeline_all_posted(channel, chunk))
        return HORON_IN_PROGRESS;
    if (team->host_count > 1)
        status = reduce_for_hosts(channel, chunk, error);
    else if (window_count(channel, chunk, team->rank))
        reduce_window(channel, chunk, team->rank, output_at(channel, chunk),
                      &state_of(channel)->reduction.finish);
    if (status == HORON_OK)
        horon_pipeline_say_reduced(channel, chunk); /* nobody's slot is read any more */
    return status;
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    struct reducescatter *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const uint64_t count = window_count(channel, chunk, team->rank);
    if (team->host_count == 1)
        return HORON_OK;
    const horon_status_t status = horon_transfers_done(&state->transfers, channel, chunk, error);
    if (status != HORON_OK || count == 0)
        return status;
    for (int host = 0; host < team->host_count; host++)
        state->sums[host] = sum_at(channel, chunk, host);
    horon_reduction_of_hosts(&state->reduction, state->sums, team->host_count, count,
                             output_at(channel, chunk));
    return HORON_OK;
}

static bool waits_for(const struct horon_channel *channel, int rank)
{
    const struct horon_team *team = channel->team;
    const uint64_t *next = channel->pipeline.next;
    const int local = team->local_rank_of[rank];
    if (team->host_of[rank] == team->host)
        return horon_phase_misses(channel, local) || horon_pipeline_is_last(channel, local);
    return next[HORON_STAGE_EXCHANGE] != next[HORON_STAGE_POST] &&
           horon_transfers_wait_for(&state_of(channel)->transfers, channel,
                                    next[HORON_STAGE_EXCHANGE], rank);
}

static const struct horon_pipeline_ops windows = {
    .turn = horon_pipeline_turn,
    .step =
        {
            [HORON_STAGE_POST] = post,
            [HORON_STAGE_REDUCE] = reduce,
            [HORON_STAGE_EXCHANGE] = exchange,
            [HORON_STAGE_OUT] = horon_pipeline_pass,
        },
    .waits_for = waits_for,
};

/* ---- the choice ------------------------------------------------------------------------------ */

static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    const struct reducescatter *state = state_of(channel);
    const struct horon_team *team = channel->team;
    size_t bytes = horon_reduction_chunk_bytes(channel) / (size_t)region_count(team);
    uint64_t most = 0;
    if (state->small)
        return horon_phase_meet(channel, HORON_MEET_ALL);
    for (int rank = 0; rank < team->size; rank++)
        most = state->counts[rank] > most ? state->counts[rank] : most;
    bytes =
        bytes < HORON_LINE_BYTES ? HORON_LINE_BYTES : bytes / HORON_LINE_BYTES * HORON_LINE_BYTES;
    return horon_pipeline_begin(channel, &windows, most, channel->element_bytes, bytes);
}

const struct horon_verb_ops horon_reducescatter_ops = {
    .state_bytes = state_bytes,
    .init = init,
    .begin = begin,
    .enter = enter,
    .entered = entered,
    .met = small_met,
    .exchanged = small_exchanged,
    .published = small_published,
    .piped = horon_phase_done,
    .settle = horon_phase_settled,
};
