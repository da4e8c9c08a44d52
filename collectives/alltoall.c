/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-to-all: every rank gives each rank a run of its rows, and gets what all give it, joined in
 * rank order. Gather is the same where only root gets anything, scatter where only root gives; the
 * rows of the verbs say so.
 *
 * On one host each rank's entry says how many rows it gives to each rank, and what fits into the
 * small slots lies there, too: one meeting. What is long is read where it lies, if that serves
 * (exec/lent.h). Else the runs move in windows. A chunk slot is cut in
 * as many regions as the host has ranks; three of them:
 *
 *     slot of rank 0 | to 0 | to 1 | to 2 |        POST  a window of each run -> its region
 *     slot of rank 1 | to 0 | to 1 | to 2 |        OUT   this rank's region of every slot -> output
 *     slot of rank 2 | to 0 | to 1 | to 2 |
 *
 * Between hosts runs go straight from the input of one rank to the output of the other, in rounds:
 * alltoall_runs.c.
 *
 * An output is written once all that give to this rank have entered; on one host root of a small
 * scatter waits for nobody. Of a rank as many rows are taken as it has said: on this host its entry
 * is read once, and a link refuses data of another length.
 *
 * Of a gather on one host a rank has done its part when its rows lie in its small slot: it leaves,
 * and where others' windows follow it is absent from them. How many there were it must know, since
 * chunks are counted for the life of the channel; it finds that out before it enters the next
 * operation ("settles"), when all that gave root anything must have entered this one. So it may be
 * one ahead of those, and further ahead of root, which keeps its own rows out of slots and windows.
 */
#include "alltoall_state.h"

#include <string.h>

/* Of a run in several windows, and of each of these. */
enum { LONG_RUN_BYTES = 256 << 10, EARLY_BYTES_MIN = 64 << 10 };

static size_t peer_count(const struct horon_team *team)
{
    return (size_t)(team->size - team->local_size);
}

/* Of one round: a part of a run to each and from each. */
static size_t transfer_max(const struct horon_team *team)
{
    return 2 * peer_count(team);
}

static size_t state_bytes(const struct horon_team *team)
{
    return sizeof(struct horon_alltoall) + peer_count(team) * sizeof(struct horon_alltoall_peer) +
           horon_transfers_bytes(transfer_max(team)) + horon_lent_table_bytes(team) +
           horon_alltoall_words_bytes(team) + (4 * (size_t)team->size + 2) * sizeof(uint64_t) +
           (size_t)team->local_size * (sizeof(const uint8_t *) + sizeof(bool));
}

static void init(void *memory, const struct horon_team *team)
{
    struct horon_alltoall *state = memory;
    state->peers = (struct horon_alltoall_peer *)(void *)(state + 1);
    for (int i = 1; i < team->size; i++) {
        const int rank = (team->rank + i) % team->size;
        if (team->host_of[rank] != team->host)
            state->peers[state->peer_count++].rank = rank;
    }
    assert((size_t)state->peer_count == peer_count(team));
    void *tables = state->peers + state->peer_count;
    horon_transfers_init(&state->rounds.transfers, transfer_max(team), tables);
    state->lent.parts =
        (struct horon_lent_part *)(void *)((char *)tables +
                                           horon_transfers_bytes(transfer_max(team)));
    void *words = state->lent.parts + team->local_size;
    horon_alltoall_init_words(state, team, words);
    state->give_at = (uint64_t *)(void *)((char *)words + horon_alltoall_words_bytes(team));
    state->take_at = state->give_at + team->size + 1;
    state->rows = state->take_at + team->size + 1;
    state->give_rows = state->rows + team->size;
    state->from = (const uint8_t **)(void *)(state->give_rows + team->size);
    state->absent = (bool *)(void *)(state->from + team->local_size);
}

/* ---- which rank gives what to which ---------------------------------------------------------- */

/* What this rank gives each: rows, and where they begin. */
static void count_given(const struct horon_channel *channel, struct horon_alltoall *state)
{
    const struct horon_operation *op = channel->op;
    const struct horon_team *team = channel->team;
    const bool by_splits = horon_verb_of(&op->agreed)->ahead == HORON_AHEAD_SPLITS;
    uint64_t end = 0, given = 0;
    for (int rank = 0; rank < team->size; rank++) {
        const bool to = horon_alltoall_gives(channel, team->rank, rank);
        const uint64_t rows = to ? op->ahead[by_splits ? rank : 0] : 0;
        state->give_rows[rank] = rows;
        state->give_at[rank] = end;
        end += rows * op->row_elements;
        given += team->host_of[rank] == team->host ? rows : 0;
    }
    state->give_at[team->size] = end;
    state->given = given;
    assert(end <= op->count);
}

void horon_alltoall_move(struct horon_alltoall *state, enum horon_alltoall_reached to)
{
    static const unsigned legal[] = {
        [HORON_ALLTOALL_BEGUN] = 1u << HORON_ALLTOALL_BEGUN | /* it had left the one before */
                                 1u << HORON_ALLTOALL_LINKED | 1u << HORON_ALLTOALL_PLACED,
        [HORON_ALLTOALL_LINKED] = 1u << HORON_ALLTOALL_PLACED,
        [HORON_ALLTOALL_PLACED] = 1u << HORON_ALLTOALL_BEGUN};
    const bool between_hosts = state->peer_count > 0;
    assert(legal[state->reached] & 1u << to);
    assert(to != HORON_ALLTOALL_LINKED || between_hosts);
    assert(to != HORON_ALLTOALL_PLACED ||
           between_hosts == (state->reached == HORON_ALLTOALL_LINKED));
    assert(to == HORON_ALLTOALL_BEGUN || state->rounds.begun == 0);
    state->reached = to;
}

static void begin(struct horon_channel *channel)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_operation *op = channel->op;
    const struct horon_verb_row *row = horon_verb_of(&op->agreed);
    assert(op->part_count == 1);
    state->giver = row->reads == HORON_RANKS_ROOT ? op->agreed.root : HORON_ALLTOALL_EACH;
    state->taker = row->writes == HORON_RANKS_ROOT ? op->agreed.root : HORON_ALLTOALL_EACH;
    state->own = op->parts[0].src;
    state->unit =
        (struct horon_alltoall_unit){.row_elements = op->row_elements,
                                     .element_bytes = channel->element_bytes,
                                     .shift = (unsigned)__builtin_ctzll(channel->element_bytes)};
    assert((size_t)1 << state->unit.shift == channel->element_bytes);
    count_given(channel, state);
    horon_alltoall_move(state, HORON_ALLTOALL_BEGUN);
    state->most = 0;
    state->small = channel->team->host_count == 1;
    for (int i = 0; i < state->peer_count; i++) {
        struct horon_alltoall_peer *peer = &state->peers[i];
        peer->give.announced.done = peer->take.announced.done = true;
    }
    state->rounds.begun = state->rounds.ended = state->rounds.count = 0;
}

/* ---- what the entries say -------------------------------------------------------------------- */

/* Where root alone gets, on one host: no other rank awaits anything. */
static bool may_leave(const struct horon_channel *channel, int rank)
{
    const int taker = horon_alltoall_of(channel)->taker;
    return taker != HORON_ALLTOALL_EACH && rank != taker && channel->team->host_count == 1;
}

/* The rank gets nothing. Beside root alone, it need not know of windows: there are none. */
static horon_status_t leave(struct horon_channel *channel)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_operation *op = channel->op;
    memset(state->rows, 0, (size_t)channel->team->size * sizeof *state->rows);
    if (op->output)
        op->output(op->output_arg, state->rows, 0);
    if (channel->team->local_size == 2)
        return HORON_OK;
    state->owed = state->unit;
    state->owed_check = horon_slot_check(channel->team->generation, op->check);
    return horon_phase_owe(channel, channel->team->local_rank_of[op->agreed.root]);
}

/* Where root alone gives, its entry says all, and it needs nobody's. */
static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    const bool root_gives = state->giver != HORON_ALLTOALL_EACH && team->host_count == 1;
    if (may_leave(channel, team->rank) &&
        horon_alltoall_fits_slot(channel, &state->unit, state->given))
        return leave(channel);
    return horon_phase_meet(channel,
                            root_gives ? team->local_rank_of[state->giver] : HORON_MEET_ALL);
}

/* On one host a long run has several, so that its reader begins early.
 * @param most_bytes of the longest run of this host */
static size_t window_bytes(const struct horon_channel *channel, uint64_t most_bytes)
{
    const size_t whole = channel->host->shape.chunk_bytes / (size_t)channel->team->local_size /
                         HORON_LINE_BYTES * HORON_LINE_BYTES;
    if (channel->team->host_count > 1 || most_bytes < LONG_RUN_BYTES)
        return whole;
    return horon_pipeline_early_chunk(most_bytes, EARLY_BYTES_MIN, whole);
}

/* What differs between the ranks is found by the operation that comes now: its check stands for
 * those before it, too. */
static bool settle(struct horon_channel *channel, void *memory)
{
    const struct horon_alltoall *state = memory;
    uint64_t most = 0;
    bool small = true;
    if (!horon_phase_all_behind(channel))
        return false;
    for (int local = 0; local < channel->team->local_size; local++) {
        if (local == channel->owing_spares)
            continue; /* root, which gives nobody anything */
        struct horon_slot_head *head = horon_phase_behind(channel, local);
        const struct horon_alltoall_entry entry = horon_alltoall_entry_of(channel, head, local);
        const uint64_t elements =
            horon_alltoall_elements(&state->owed, horon_alltoall_word_of(&entry, 0));
        if (head->check != state->owed_check || elements == UINT64_MAX)
            return true;
        most = elements > most ? elements : most;
        small = small &&
                horon_alltoall_fits_slot(channel, &state->owed,
                                         horon_alltoall_word_of(&entry, channel->team->local_size));
    }
    if (!small)
        horon_pipeline_skip(channel, most, state->owed.element_bytes,
                            window_bytes(channel, most * state->owed.element_bytes));
    return true;
}

/* The longest run of this host. Of several windows, root takes one while others bring the next. */
static bool may_be_read(const struct horon_channel *channel, uint64_t most_bytes)
{
    const bool by_root = horon_alltoall_of(channel)->taker != HORON_ALLTOALL_EACH;
    return horon_lent_serves(channel, most_bytes) && !(by_root && most_bytes >= LONG_RUN_BYTES);
}

/* Read once, as what the words say. */
static void note_offer(struct horon_alltoall *state, int local,
                       const struct horon_alltoall_entry *entry, uint64_t rows_before)
{
    struct horon_lent_part *part = &state->lent.parts[local];
    *part = (struct horon_lent_part){0};
    memcpy(&part->offer, entry->rows, sizeof part->offer);
    part->from = horon_alltoall_elements(&state->unit, rows_before) * state->unit.element_bytes;
}

/* What lies in small slots is not offered, nor need a rank have entered that gives others nothing:
 * its line is not touched. Each word is read once. @return false: they make no sense */
static bool read_entries(struct horon_channel *channel)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    const size_t row_bytes = state->unit.row_elements << state->unit.shift;
    state->reads = horon_alltoall_offers(channel);
    for (int local = 0; local < team->local_size; local++) {
        const int rank = horon_alltoall_rank_here(team, local);
        state->rows[rank] = rank == team->rank ? state->give_rows[rank] : 0;
        state->absent[local] = false;
        if (!horon_alltoall_gives_others(channel, rank))
            continue;
        const struct horon_alltoall_entry entry = horon_alltoall_entry_of(
            channel, channel->small[horon_channel_slot(channel)][local], local);
        const uint64_t most =
            horon_alltoall_elements(&state->unit, horon_alltoall_word_of(&entry, 0));
        const uint64_t before =
            team->local_rank ? horon_alltoall_word_of(&entry, team->local_rank) : 0;
        const uint64_t end = horon_alltoall_word_of(&entry, 1 + team->local_rank);
        const uint64_t all = horon_alltoall_word_of(&entry, team->local_size);
        const bool in_slot = horon_alltoall_fits_slot(channel, &state->unit, all);
        if (in_slot && (before > end || end > all))
            return false;
        state->rows[rank] = end - before;
        state->from[local] = in_slot ? entry.rows + before * row_bytes : NULL;
        state->most = most > state->most ? most : state->most;
        state->small = state->small && in_slot;
        state->absent[local] = in_slot && may_leave(channel, rank);
        state->reads = state->reads && !in_slot;
        if (state->reads)
            note_offer(state, local, &entry, before);
    }
    state->reads = state->reads && may_be_read(channel, state->most * channel->element_bytes);
    return true;
}

/* ---- the output ------------------------------------------------------------------------------ */

/* Does this rank write where it reads? Not if it reads nothing, or writes nothing. */
static bool is_in_place(const struct horon_channel *channel, const struct horon_alltoall *state)
{
    const struct horon_team *team = channel->team;
    const size_t element = channel->element_bytes;
    return state->out && horon_alltoall_gives(channel, team->rank, team->rank) &&
           horon_rows_lie_in(state->own, state->give_at[team->size] * element, state->out,
                             state->take_at[team->size] * element);
}

/* What this rank gives itself goes last, if it is in the way of what it gives others. */
static bool keeps_own_for_last(const struct horon_channel *channel)
{
    return horon_alltoall_of(channel)->giver != HORON_ALLTOALL_EACH;
}

static void move_own(const struct horon_channel *channel, struct horon_alltoall *state)
{
    const int rank = channel->team->rank;
    const size_t element = channel->element_bytes;
    const uint64_t count = horon_alltoall_take_count(state, rank);
    if (count == 0) /* and perhaps no input */
        return;
    const char *own = state->own + state->give_at[rank] * element;
    char *place = state->out + state->take_at[rank] * element;
    if (own != place)
        memmove(place, own, count * element);
}

/* All rows are known. @return OK | ERR_PROTO */
static horon_status_t place(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    const struct horon_operation *op = channel->op;
    const bool writes = horon_alltoall_gives(channel, op->agreed.root, team->rank);
    uint64_t total = 0;
    for (int rank = 0; rank < team->size; rank++) {
        state->take_at[rank] = total;
        const uint64_t elements = horon_alltoall_elements(&state->unit, state->rows[rank]);
        if (elements == UINT64_MAX || __builtin_add_overflow(total, elements, &total) ||
            total > (uint64_t)INT64_MAX >> state->unit.shift)
            return horon_error_set(error, HORON_ERR_PROTO,
                                   "what %s gets of all ranks is more than memory can hold",
                                   team->rank_names[team->rank]);
    }
    state->take_at[team->size] = total;
    if (horon_alltoall_take_count(state, team->rank) !=
        horon_alltoall_give_count(state, team->rank))
        return horon_channel_damaged(channel, error);
    state->out = writes ? op->parts[0].dst : NULL;
    if (op->output)
        state->out = op->output(op->output_arg, state->rows, total);
    if (!writes || total == 0)
        state->out = NULL;
    if (!state->small && !keeps_own_for_last(channel) && is_in_place(channel, state))
        move_own(channel, state);
    horon_alltoall_move(state, HORON_ALLTOALL_PLACED);
    return HORON_OK;
}

/* ---- small, on one host ---------------------------------------------------------------------- */

/* Of all ranks, or of those that are absent from the windows. What is in no slot goes first: its
 * place may be where others' rows come. */
static void copy_small(const struct horon_channel *channel)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const int size = channel->team->size;
    const unsigned shift = state->unit.shift;
    if (state->small && !horon_alltoall_gives_others(channel, channel->team->rank))
        move_own(channel, state);
    for (int rank = 0; rank < size; rank++) {
        const uint64_t count = horon_alltoall_take_count(state, rank);
        if (count > 0 && (state->small || state->absent[rank]) &&
            horon_alltoall_gives_others(channel, rank))
            memcpy(state->out + (state->take_at[rank] << shift), state->from[rank], count << shift);
    }
}

/* ---- what is read where it lies, on one host ------------------------------------------------- */

/* Does this rank write where others read? Where it gets its own rows alone, they may lie at their
 * place; where it alone gets anything, nobody reads of it. Else an output that alloc placed there
 * takes slots. */
static bool writes_where_others_read(const struct horon_channel *channel,
                                     const struct horon_alltoall *state)
{
    const int rank = channel->team->rank;
    if (!is_in_place(channel, state) || state->taker != HORON_ALLTOALL_EACH)
        return false;
    return !keeps_own_for_last(channel) ||
           state->own + state->give_at[rank] * channel->element_bytes !=
               state->out + state->take_at[rank] * channel->element_bytes;
}

static horon_status_t begin_to_read(struct horon_channel *channel)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    const size_t element = channel->element_bytes;
    for (int local = 0; local < team->local_size; local++) {
        const int rank = horon_alltoall_rank_here(team, local);
        struct horon_lent_part *part = &state->lent.parts[local];
        const bool there = rank == team->rank && is_in_place(channel, state);
        if (!state->out || !horon_alltoall_takes_of(channel, rank) || there) {
            *part = (struct horon_lent_part){0};
            continue;
        }
        if (rank == team->rank)
            *part = (struct horon_lent_part){.offer.at = (uintptr_t)state->own,
                                             .from = (uint64_t)state->give_at[rank] * element};
        part->bytes = horon_alltoall_take_count(state, rank) * element;
        part->to = state->out + state->take_at[rank] * element;
    }
    return horon_lent_begin(channel, &state->lent, writes_where_others_read(channel, state));
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

/* Likewise of what a rank gives itself, which goes past the slots. Where it is longer than what
 * others give, the last window takes the rest. */
static uint64_t own_count(const struct horon_channel *channel, uint64_t count, uint64_t chunk)
{
    const uint64_t first = chunk * channel->pipeline.chunk_count;
    const bool is_last = chunk + 1 == channel->pipeline.chunks;
    return is_last && count > first ? count - first : window_count(channel, count, chunk);
}

/* Where the run of local rank @p from to local rank @p to lies. */
static uint8_t *region_at(const struct horon_channel *channel, uint64_t chunk, int from, int to)
{
    return horon_pipeline_slots(channel, chunk)[from] +
           (size_t)to * (size_t)channel->pipeline.chunk_count * channel->element_bytes;
}

static void copy_in(struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    for (int local = 0; local < team->local_size; local++) {
        const int rank = horon_alltoall_rank_here(team, local);
        const uint64_t count = window_count(channel, horon_alltoall_give_count(state, rank), chunk);
        const uint64_t first = state->give_at[rank] + chunk * channel->pipeline.chunk_count;
        if (count && rank != team->rank)
            horon_stream_copy(&channel->stream, region_at(channel, chunk, team->local_rank, local),
                              state->own + first * channel->element_bytes,
                              count * channel->element_bytes);
    }
}

static void copy_out(const struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    const size_t element = channel->element_bytes;
    const bool in_place = is_in_place(channel, state); /* moved before, or last */
    for (int local = 0; local < team->local_size; local++) {
        const int rank = horon_alltoall_rank_here(team, local);
        const uint64_t first = chunk * channel->pipeline.chunk_count;
        const uint64_t taken = horon_alltoall_take_count(state, rank);
        const uint64_t count = rank == team->rank ? own_count(channel, taken, chunk)
                                                  : window_count(channel, taken, chunk);
        const void *from = region_at(channel, chunk, local, team->local_rank);
        if (state->absent[local])
            continue;
        if (rank == team->rank && count)
            from = state->own + (state->give_at[rank] + first) * element;
        if (count && !(rank == team->rank && in_place))
            memcpy(state->out + (state->take_at[rank] + first) * element, from, count * element);
    }
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

/* Rounds go on also while no chunk can: others of this host may be late. */
static horon_status_t turn(struct horon_channel *channel, bool *moved_out,
                           struct horon_error *error)
{
    const struct horon_alltoall_rounds *rounds = &horon_alltoall_of(channel)->rounds;
    horon_status_t status = HORON_OK;
    if (rounds->ended < rounds->count)
        status = horon_alltoall_move_runs(channel, error);
    return status < 0 ? status : horon_pipeline_turn(channel, moved_out, error);
}

static horon_status_t post(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    if (horon_alltoall_of(channel)->reached == HORON_ALLTOALL_BEGUN) {
        const horon_status_t status = horon_alltoall_begin_runs(channel, error);
        if (status != HORON_OK)
            return status;
    }
    copy_in(channel, chunk);
    horon_pipeline_say_posted(channel, chunk);
    return HORON_OK;
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    const bool is_last = chunk + 1 == channel->pipeline.chunks;
    horon_status_t status = HORON_OK;
    if (horon_alltoall_of(channel)->reached != HORON_ALLTOALL_PLACED) {
        status = horon_alltoall_learn_rows(channel, error);
        if (status == HORON_OK)
            status = place(channel, error);
        if (status == HORON_OK)
            horon_alltoall_count_rounds(channel);
    }
    return status == HORON_OK && is_last ? horon_alltoall_move_runs(channel, error) : status;
}

static horon_status_t out(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
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
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    if (team->host_of[rank] == team->host)
        return !state->absent[team->local_rank_of[rank]] &&
               horon_pipeline_is_last(channel, team->local_rank_of[rank]);
    for (int i = 0; i < state->peer_count; i++) {
        const struct horon_alltoall_peer *peer = &state->peers[i];
        if (peer->rank == rank && state->reached == HORON_ALLTOALL_BEGUN)
            return horon_alltoall_meets(channel, rank) && !team->mux_of[rank];
        if (peer->rank == rank && state->reached == HORON_ALLTOALL_LINKED)
            return !peer->take.announced.done; /* others take nothing either before they know */
        if (peer->rank == rank)
            return !peer->give.announced.done || horon_alltoall_waits_in_rounds(channel, rank);
    }
    return false;
}

static const struct horon_pipeline_ops pipeline = {
    .turn = turn,
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
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    const size_t bytes = window_bytes(channel, state->most * channel->element_bytes);
    assert(bytes >= HORON_LINE_BYTES);
    const horon_status_t status = horon_pipeline_begin(
        channel, &pipeline, state->most ? state->most : 1, channel->element_bytes, bytes);
    if (channel->team->host_count == 1)
        horon_pipeline_excuse(channel, state->absent);
    return status;
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    if (!read_entries(channel))
        return horon_channel_damaged(channel, error);
    if (state->most > INT64_MAX / channel->element_bytes)
        return horon_channel_damaged(channel, error); /* nobody here can have entered so */
    if (channel->team->host_count > 1)
        return begin_pipeline(channel);
    const horon_status_t status = place(channel, error);
    if (status != HORON_OK)
        return status;
    if (state->out)
        copy_small(channel);
    if (state->small)
        return HORON_OK;
    return state->reads ? begin_to_read(channel) : begin_pipeline(channel);
}

static horon_status_t piped(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    (void)error;
    if (!state->reads || !state->lent.refused)
        return HORON_OK;
    state->reads = false;
    return begin_pipeline(channel);
}

const struct horon_verb_ops horon_alltoall_ops = {
    .state_bytes = state_bytes,
    .init = init,
    .begin = begin,
    .enter = horon_alltoall_enter,
    .entered = entered,
    .met = met,
    .exchanged = horon_phase_unreachable,
    .published = horon_phase_unreachable,
    .piped = piped,
    .settle = settle,
    .reach = HORON_LINKS_REACH_OUTPUTS,
};
