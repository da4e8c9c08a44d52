/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-to-all: every rank gives each rank a run of its rows, and gets what all give it, joined in
 * rank order. Gather is the same where only root gets anything, scatter where only root gives; the
 * rows of the verbs say so.
 *
 * On one host each rank's entry says how many rows it gives to whom, and what fits into the small
 * slots lies there, too: one meeting. Else the runs move in windows. A chunk slot is cut in as many
 * regions as the host has ranks; three of them:
 *
 *     slot of rank 0 | to 0 | to 1 | to 2 |        POST  a window of each run -> its region
 *     slot of rank 1 | to 0 | to 1 | to 2 |        OUT   this rank's region of every slot -> output
 *     slot of rank 2 | to 0 | to 1 | to 2 |
 *
 * Between hosts runs go straight from the input of one rank to the output of the other: each byte
 * crosses the network once, and is copied nowhere. A short message goes ahead of each run with its
 * length, and with its data if that is short. Links that are missing are made by the first such
 * operation.
 *
 * An output is written once all that give to this rank have entered; on one host root of a small
 * scatter waits for nobody. What a rank says that it gives is what is taken of it: on this host it
 * is read once, and a link refuses data of another length.
 */
#include "channel_state.h"
#include "exec/netrun.h"

#include <string.h>

enum { AHEAD_DATA_BYTES = 256 };

/* What a rank tells one on another host first. */
struct ahead {
    uint64_t rows;
    uint8_t data[AHEAD_DATA_BYTES]; /* all of the run, if that fits */
};

/* Of a run between this rank and one on another host: what goes ahead, and all that did not fit. */
struct run {
    struct ahead ahead;
    struct horon_transfer announced, data;
};

struct peer {
    int rank;
    struct run give, take;
};

struct alltoall {
    const char *own;             /* what this rank gives */
    char *out;                   /* NULL: it has no room, and plays its part for the others */
    uint64_t *give_at, *take_at; /* [size + 1] first elements by rank, and the end */
    uint64_t *rows;              /* [size] that this rank gets of each */
    uint64_t most;               /* elements that a rank of this host gives another there at most */
    bool small;                  /* all that the ranks of the host give is in their small slots */
    bool linked;                 /* to all with whom there is a run */
    bool placed;                 /* rows and take_at are known, and the output is there */
    struct peer *peers;          /* [peer_count] by rank: those on other hosts */
    int peer_count;
};

static struct alltoall *state_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_alltoall_ops);
    return channel->state;
}

static size_t peer_count(const struct horon_team *team)
{
    return (size_t)(team->size - team->local_size);
}

static size_t state_bytes(const struct horon_team *team)
{
    return sizeof(struct alltoall) + peer_count(team) * sizeof(struct peer) +
           (3 * (size_t)team->size + 2) * sizeof(uint64_t);
}

static void init(void *memory, const struct horon_team *team)
{
    struct alltoall *state = memory;
    state->peers = (struct peer *)(void *)(state + 1);
    for (int rank = 0; rank < team->size; rank++)
        if (team->host_of[rank] != team->host)
            state->peers[state->peer_count++].rank = rank;
    assert((size_t)state->peer_count == peer_count(team));
    state->give_at = (uint64_t *)(void *)(state->peers + state->peer_count);
    state->take_at = state->give_at + team->size + 1;
    state->rows = state->take_at + team->size + 1;
}

/* ---- which rank gives what to which ---------------------------------------------------------- */

/* Does the verb take anything of that rank? */
static bool is_giver(const struct horon_channel *channel, int rank)
{
    const struct horon_signature *agreed = &channel->op->agreed;
    return horon_ranks_include(horon_verb_of(agreed)->reads, agreed->root, rank);
}

/* Does a run go from one to the other, be it of no rows? */
static bool gives(const struct horon_channel *channel, int from, int to)
{
    const struct horon_signature *agreed = &channel->op->agreed;
    return is_giver(channel, from) &&
           horon_ranks_include(horon_verb_of(agreed)->writes, agreed->root, to);
}

static uint64_t rows_for(const struct horon_channel *channel, int rank)
{
    const struct horon_operation *op = channel->op;
    if (!gives(channel, channel->team->rank, rank))
        return 0;
    return horon_verb_of(&op->agreed)->ahead == HORON_AHEAD_SPLITS ? op->ahead[rank] : *op->ahead;
}

static int local_rank_at(const struct horon_team *team, int local)
{
    return team->host_ranks[team->host_first[team->host] + local];
}

static uint64_t give_count(const struct alltoall *state, int rank)
{
    return state->give_at[rank + 1] - state->give_at[rank];
}

static uint64_t take_count(const struct alltoall *state, int rank)
{
    return state->take_at[rank + 1] - state->take_at[rank];
}

static void begin(struct horon_channel *channel)
{
    struct alltoall *state = state_of(channel);
    const struct horon_operation *op = channel->op;
    assert(op->part_count == 1);
    state->own = op->parts[0].src;
    state->give_at[0] = 0;
    for (int rank = 0; rank < channel->team->size; rank++)
        state->give_at[rank + 1] =
            state->give_at[rank] + rows_for(channel, rank) * op->row_elements;
    assert(state->give_at[channel->team->size] <= op->count);
    state->linked = state->placed = false;
    state->most = 0;
    state->small = channel->team->host_count == 1;
    for (int i = 0; i < state->peer_count; i++) {
        struct peer *peer = &state->peers[i];
        peer->give.announced.done = peer->give.data.done = true;
        peer->take.announced.done = peer->take.data.done = true;
    }
}

/* ---- the entry: the most rows that this rank gives one of its host, and the sums of its rows for
 * the first of them, the first two, and so on ------------------------------------------------- */

static void enter(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    struct horon_slot_head *head = horon_channel_own(channel);
    uint64_t *words = horon_slot_words(channel, head), sum = 0, most = 0;
    for (int local = 0; local < team->local_size; local++) {
        const uint64_t rows = rows_for(channel, local_rank_at(team, local));
        most = rows > most ? rows : most;
        words[1 + local] = sum += rows;
    }
    words[0] = most;
    const size_t bytes = (size_t)(sum * channel->op->row_elements) * channel->element_bytes;
    if (team->host_count == 1 && bytes && bytes <= channel->host->shape.small_bytes)
        memcpy(horon_slot_data(head), state_of(channel)->own, bytes);
}

/* Where root alone gives, its entry says all, and it needs nobody's. */
static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    const struct horon_team *team = channel->team;
    const struct horon_signature *agreed = &channel->op->agreed;
    const bool root_gives =
        horon_verb_of(agreed)->reads == HORON_RANKS_ROOT && team->host_count == 1;
    return horon_phase_meet(channel,
                            root_gives ? team->local_rank_of[agreed->root] : HORON_MEET_ALL);
}

/* Elements of so many rows that somebody says; UINT64_MAX: more than memory can hold. */
static uint64_t elements_of(const struct horon_channel *channel, uint64_t rows)
{
    uint64_t elements = 0;
    if (__builtin_mul_overflow(rows, channel->op->row_elements, &elements) ||
        elements > INT64_MAX / channel->element_bytes)
        return UINT64_MAX;
    return elements;
}

static void read_entries(struct horon_channel *channel)
{
    struct alltoall *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const size_t small_elements = channel->host->shape.small_bytes / channel->element_bytes;
    for (int local = 0; local < team->local_size; local++) {
        const int rank = local_rank_at(team, local);
        const uint64_t *words =
            horon_slot_words(channel, channel->small[horon_channel_slot(channel)][local]);
        state->rows[rank] = 0;
        if (!is_giver(channel, rank)) /* nor need it have entered */
            continue;
        const uint64_t most = elements_of(channel, words[0]);
        const uint64_t before = team->local_rank ? words[team->local_rank] : 0;
        state->rows[rank] = words[1 + team->local_rank] - before;
        state->most = most > state->most ? most : state->most;
        if (elements_of(channel, words[team->local_size]) > small_elements)
            state->small = false;
    }
}

/* ---- the output ------------------------------------------------------------------------------ */

/* Does this rank write where it reads? Not if it reads nothing, or writes nothing. */
static bool is_in_place(const struct horon_channel *channel, const struct alltoall *state)
{
    return state->out && state->out == state->own &&
           gives(channel, channel->team->rank, channel->team->rank);
}

/* What this rank gives itself goes last, if it is in the way of what it gives others. */
static bool keeps_own_for_last(const struct horon_channel *channel)
{
    return horon_verb_of(&channel->op->agreed)->reads == HORON_RANKS_ROOT;
}

static void move_own(const struct horon_channel *channel, struct alltoall *state)
{
    const int rank = channel->team->rank;
    const size_t element = channel->element_bytes;
    char *place = state->out + state->take_at[rank] * element;
    memmove(place, state->own + state->give_at[rank] * element, take_count(state, rank) * element);
}

/* All rows are known. @return OK | ERR_PROTO */
static horon_status_t place(struct horon_channel *channel, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const struct horon_operation *op = channel->op;
    const bool writes = gives(channel, op->agreed.root, team->rank);
    uint64_t total = 0;
    for (int rank = 0; rank < team->size; rank++) {
        state->take_at[rank] = total;
        const uint64_t elements = elements_of(channel, state->rows[rank]);
        if (elements == UINT64_MAX || __builtin_add_overflow(total, elements, &total) ||
            total > INT64_MAX / channel->element_bytes)
            return horon_error_set(error, HORON_ERR_PROTO,
                                   "what %s gets of all ranks is more than memory can hold",
                                   team->rank_names[team->rank]);
    }
    state->take_at[team->size] = total;
    if (take_count(state, team->rank) != give_count(state, team->rank))
        return horon_channel_damaged(channel, error);
    state->out = writes ? op->parts[0].dst : NULL;
    if (op->output)
        state->out = op->output(op->output_arg, state->rows, total);
    if (!writes || total == 0)
        state->out = NULL;
    if (is_in_place(channel, state) && !state->small && !keeps_own_for_last(channel))
        move_own(channel, state);
    state->placed = true;
    return HORON_OK;
}

/* ---- small, on one host ---------------------------------------------------------------------- */

static horon_status_t copy_small(const struct horon_channel *channel, struct horon_error *error)
{
    const struct alltoall *state = state_of(channel);
    const int size = channel->team->size;
    for (int rank = 0; state->out && rank < size; rank++) {
        const uint64_t count = take_count(state, rank);
        struct horon_slot_head *head = channel->small[horon_channel_slot(channel)][rank];
        const uint64_t *words = horon_slot_words(channel, head);
        const uint64_t end = elements_of(channel, words[1 + channel->team->rank]);
        if (count == 0)
            continue;
        if (end < count || end > channel->host->shape.small_bytes / channel->element_bytes)
            return horon_channel_damaged(channel, error);
        memcpy(state->out + state->take_at[rank] * channel->element_bytes,
               horon_slot_data(head) + (end - count) * channel->element_bytes,
               count * channel->element_bytes);
    }
    return HORON_OK;
}

/* ---- windows, on a host ---------------------------------------------------------------------- */

/* Elements of the window @p chunk of a run of @p count. */
static uint64_t window_count(const struct horon_channel *channel, uint64_t count, uint64_t chunk)
{
    const uint64_t full = channel->pipeline.chunk_count, first = chunk * full;
    if (count <= first)
        return 0;
    return count - first < full ? count - first : full;
}

/* Where the run of local rank @p from to local rank @p to lies. */
static uint8_t *region_at(const struct horon_channel *channel, uint64_t chunk, int from, int to)
{
    return horon_pipeline_slots(channel, chunk)[from] +
           (size_t)to * (size_t)channel->pipeline.chunk_count * channel->element_bytes;
}

static void copy_in(const struct horon_channel *channel, uint64_t chunk)
{
    const struct alltoall *state = state_of(channel);
    const struct horon_team *team = channel->team;
    for (int local = 0; local < team->local_size; local++) {
        const int rank = local_rank_at(team, local);
        const uint64_t count = window_count(channel, give_count(state, rank), chunk);
        const uint64_t first = state->give_at[rank] + chunk * channel->pipeline.chunk_count;
        if (count && rank != team->rank)
            memcpy(region_at(channel, chunk, team->local_rank, local),
                   state->own + first * channel->element_bytes, count * channel->element_bytes);
    }
}

static void copy_out(const struct horon_channel *channel, uint64_t chunk)
{
    const struct alltoall *state = state_of(channel);
    const struct horon_team *team = channel->team;
    const size_t element = channel->element_bytes;
    for (int local = 0; local < team->local_size; local++) {
        const int rank = local_rank_at(team, local);
        const uint64_t first = chunk * channel->pipeline.chunk_count;
        const uint64_t count = window_count(channel, take_count(state, rank), chunk);
        const void *from = region_at(channel, chunk, local, team->local_rank);
        if (rank == team->rank && count)
            from = state->own + (state->give_at[rank] + first) * element;
        if (count && !(rank == team->rank && is_in_place(channel, state)))
            memcpy(state->out + (state->take_at[rank] + first) * element, from, count * element);
    }
}

/* ---- runs between hosts ---------------------------------------------------------------------- */

/* @param data  NULL of a run to this rank: it is dropped */
static horon_status_t begin_transfer(struct horon_channel *channel, struct horon_transfer *transfer,
                                     bool is_send, int peer, uint64_t tag, void *data, size_t bytes,
                                     struct horon_error *error)
{
    *transfer = (struct horon_transfer){
        .id = {(uint32_t)channel->options.channel, channel->ended, tag},
        .data = data,
        .bytes = bytes,
        .check = channel->op->check,
    };
    return horon_netrun_post(channel->team->mux_of[peer], transfer, is_send,
                             channel->team->rank_names[peer], error);
}

/* Is there a run between this rank and @p peer? */
static bool meets(const struct horon_channel *channel, int peer)
{
    const int self = channel->team->rank;
    return gives(channel, self, peer) || gives(channel, peer, self);
}

/* @return OK: there is a link to each of them | IN_PROGRESS | an error */
static horon_status_t link_peers(const struct horon_channel *channel, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    const struct horon_team *team = channel->team;
    horon_status_t all = HORON_OK;
    for (int i = 0; !state->linked && i < state->peer_count; i++) {
        const int peer = state->peers[i].rank;
        if (team->mux_of[peer] || !meets(channel, peer))
            continue;
        const horon_status_t status = team->connect(team->connect_arg, peer, error);
        if (status < 0)
            return status;
        if (status == HORON_AGAIN)
            all = HORON_IN_PROGRESS;
    }
    state->linked = all == HORON_OK;
    return all;
}

enum { TAG_AHEAD, TAG_DATA };

static horon_status_t announce(struct horon_channel *channel, struct peer *peer,
                               struct horon_error *error)
{
    const struct alltoall *state = state_of(channel);
    struct run *run = &peer->give;
    const uint64_t count = give_count(state, peer->rank);
    run->ahead.rows = rows_for(channel, peer->rank);
    if (count && count * channel->element_bytes <= AHEAD_DATA_BYTES)
        memcpy(run->ahead.data, state->own + state->give_at[peer->rank] * channel->element_bytes,
               count * channel->element_bytes);
    return begin_transfer(channel, &run->announced, true, peer->rank, TAG_AHEAD, &run->ahead,
                          sizeof run->ahead, error);
}

/* What the peer must ask for goes late, once this rank has said itself what it takes: that word
 * would stand on the link behind all of the run, and the peer would send nothing meanwhile. */
static horon_status_t give(struct horon_channel *channel, bool late, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    horon_status_t status = HORON_OK;
    for (int i = 0; i < state->peer_count && status == HORON_OK; i++) {
        struct peer *peer = &state->peers[i];
        const size_t element = channel->element_bytes, at = state->give_at[peer->rank] * element;
        const size_t bytes = give_count(state, peer->rank) * element;
        if (bytes > AHEAD_DATA_BYTES &&
            late == (bytes > horon_mux_eager_bytes(channel->team->mux_of[peer->rank])))
            status = begin_transfer(channel, &peer->give.data, true, peer->rank, TAG_DATA,
                                    (char *)(uintptr_t)state->own + at, bytes, error);
    }
    return status;
}

static horon_status_t begin_runs(struct horon_channel *channel, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    const int self = channel->team->rank;
    horon_status_t status = HORON_OK;
    for (int i = 0; i < state->peer_count && status == HORON_OK; i++) {
        struct peer *peer = &state->peers[i];
        struct run *run = &peer->take;
        if (gives(channel, peer->rank, self))
            status = begin_transfer(channel, &run->announced, false, peer->rank, TAG_AHEAD,
                                    &run->ahead, sizeof run->ahead, error);
        if (status == HORON_OK && gives(channel, self, peer->rank))
            status = announce(channel, peer, error);
    }
    return status == HORON_OK ? give(channel, false, error) : status;
}

/* All that give to this rank have told how much. */
static horon_status_t take_runs(struct horon_channel *channel, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    for (int i = 0; i < state->peer_count; i++) {
        const struct peer *peer = &state->peers[i];
        const bool any = gives(channel, peer->rank, channel->team->rank);
        state->rows[peer->rank] = any ? peer->take.ahead.rows : 0;
    }
    horon_status_t status = place(channel, error);
    for (int i = 0; i < state->peer_count && status == HORON_OK; i++) {
        struct peer *peer = &state->peers[i];
        const uint64_t count = take_count(state, peer->rank);
        char *out = state->out;
        if (out)
            out += state->take_at[peer->rank] * channel->element_bytes;
        if (count * channel->element_bytes > AHEAD_DATA_BYTES)
            status = begin_transfer(channel, &peer->take.data, false, peer->rank, TAG_DATA, out,
                                    (size_t)count * channel->element_bytes, error);
        else if (out && count)
            memcpy(out, peer->take.ahead.data, count * channel->element_bytes);
    }
    return status == HORON_OK ? give(channel, true, error) : status;
}

static horon_status_t still_moves(const struct horon_channel *channel,
                                  const struct horon_transfer *transfer, int peer,
                                  struct horon_error *error)
{
    if (transfer->done)
        return HORON_OK;
    return horon_netrun_still_moves(channel->team->mux_of[peer], transfer,
                                    channel->team->rank_names[peer], error);
}

/* @return OK: all rows are known (or, if @p all, all is here and gone) | IN_PROGRESS | an error */
static horon_status_t see_runs(const struct horon_channel *channel, bool all,
                               struct horon_error *error)
{
    const struct alltoall *state = state_of(channel);
    horon_status_t seen = HORON_OK;
    for (int i = 0; i < state->peer_count && seen >= 0; i++) {
        const struct peer *peer = &state->peers[i];
        const struct horon_transfer *transfers[] = {&peer->take.announced, &peer->take.data,
                                                    &peer->give.announced, &peer->give.data};
        for (int t = 0; t < (all ? 4 : 1) && seen >= 0; t++) {
            const horon_status_t status = still_moves(channel, transfers[t], peer->rank, error);
            seen = status == HORON_OK ? seen : status;
        }
    }
    return seen;
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

static horon_status_t post(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    horon_status_t status = link_peers(channel, error);
    if (status == HORON_OK && chunk == 0)
        status = begin_runs(channel, error);
    if (status != HORON_OK)
        return status;
    copy_in(channel, chunk);
    horon_pipeline_say_posted(channel, chunk);
    return HORON_OK;
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    const struct alltoall *state = state_of(channel);
    const bool is_last = chunk + 1 == channel->pipeline.chunks;
    horon_status_t status = HORON_OK;
    if (!state->placed)
        status = see_runs(channel, false, error);
    if (status == HORON_OK && !state->placed)
        status = take_runs(channel, error);
    if (status == HORON_OK && is_last)
        status = see_runs(channel, true, error);
    return status;
}

static horon_status_t out(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    const bool is_last = chunk + 1 == channel->pipeline.chunks;
    (void)error;
    if (!horon_pipeline_all_posted(channel, chunk))
        return HORON_IN_PROGRESS;
    if (state->out)
        copy_out(channel, chunk);
    if (is_last && is_in_place(channel, state) && keeps_own_for_last(channel))
        move_own(channel, state);
    horon_pipeline_say_reduced(channel, chunk);
    return HORON_OK;
}

static bool waits_for(const struct horon_channel *channel, int rank)
{
    const struct alltoall *state = state_of(channel);
    const struct horon_team *team = channel->team;
    if (team->host_of[rank] == team->host)
        return horon_pipeline_is_last(channel, team->local_rank_of[rank]);
    for (int i = 0; i < state->peer_count; i++) {
        const struct peer *peer = &state->peers[i];
        if (peer->rank == rank && !state->linked)
            return meets(channel, rank) && !team->mux_of[rank];
        if (peer->rank == rank && !state->placed) /* others take nothing either before they know */
            return !peer->take.announced.done;
        if (peer->rank == rank)
            return !peer->take.announced.done || !peer->take.data.done ||
                   !peer->give.announced.done || !peer->give.data.done;
    }
    return false;
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

/* With several hosts there is one chunk at least: it waits for the runs between them. */
static horon_status_t begin_pipeline(struct horon_channel *channel)
{
    const struct alltoall *state = state_of(channel);
    const size_t bytes = channel->host->shape.chunk_bytes / (size_t)channel->team->local_size /
                         HORON_LINE_BYTES * HORON_LINE_BYTES;
    assert(bytes >= HORON_LINE_BYTES);
    return horon_pipeline_begin(channel, &pipeline, state->most ? state->most : 1,
                                channel->element_bytes, bytes);
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    struct alltoall *state = state_of(channel);
    read_entries(channel);
    if (state->most > INT64_MAX / channel->element_bytes)
        return horon_channel_damaged(channel, error); /* nobody here can have entered so */
    if (channel->team->host_count > 1)
        return begin_pipeline(channel);
    const horon_status_t status = place(channel, error);
    if (status != HORON_OK)
        return status;
    return state->small ? copy_small(channel, error) : begin_pipeline(channel);
}

const struct horon_verb_ops horon_alltoall_ops = {
    .state_bytes = state_bytes,
    .init = init,
    .begin = begin,
    .enter = enter,
    .entered = entered,
    .met = met,
    .exchanged = horon_phase_never,
    .published = horon_phase_never,
    .piped = horon_phase_done,
    .reach = HORON_LINKS_REACH_OUTPUTS,
};
