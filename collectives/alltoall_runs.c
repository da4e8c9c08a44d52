/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runs of an all-to-all between hosts. They go straight from the input of one rank to the
 * output of the other: each byte crosses the network once, and what is long is copied nowhere. A
 * word goes ahead of each run with its length, and with its data if that is short, or like what
 * went that way in the two operations before (exec/alike.h). Links that are missing are made by the
 * first such operation.
 *
 * The runs to and from all ranks go side by side, in rounds: round w is bytes [w*R, (w+1)*R) of
 * each, and only a few rounds are under way. Else each connection would take what share of a link
 * it can get, one run would end long before another, and while the last ones are sent some links of
 * the job would lie idle. Between two hosts there is one round. Ranks begin with the rank behind
 * them, so that not all send to one first.
 */
#include "alltoall_state.h"
#include "exec/netrun.h"

#include <string.h>

/* Of the word ahead; those of rounds end in a rank. */
#define TAG_AHEAD UINT64_MAX

/* Of a word. To copy more takes as long as a transfer of its own. */
enum { ROOM_MAX_BYTES = 4 << 10 };

/* Of a run in one round; all ranks agree. A fraction of a millisecond on a fast link, and worth the
 * word that asks for it. Between two hosts there is one link, which is always busy: runs go whole.
 */
static size_t round_bytes(const struct horon_channel *channel)
{
    const size_t bytes = channel->options.net_chunk_bytes / 4;
    assert(bytes > HORON_ALIKE_MIN_BYTES);
    return channel->team->host_count > 2 ? bytes : INT64_MAX;
}

static size_t word_bytes(const struct horon_team *team)
{
    return sizeof(struct horon_alltoall_word) + horon_alike_max(team->size, ROOM_MAX_BYTES);
}

size_t horon_alltoall_words_bytes(const struct horon_team *team)
{
    return 2 * (size_t)(team->size - team->local_size) * word_bytes(team);
}

void horon_alltoall_init_words(struct horon_alltoall *state, const struct horon_team *team,
                               void *memory)
{
    char *word = memory;
    for (int i = 0; i < state->peer_count; i++, word += 2 * word_bytes(team)) {
        state->peers[i].give.ahead = (struct horon_alltoall_word *)(void *)word;
        state->peers[i].take.ahead =
            (struct horon_alltoall_word *)(void *)(word + word_bytes(team));
    }
}

/* A word that had to be asked for would take longer than its run. */
static size_t room_of(const struct horon_channel *channel, const struct horon_alltoall_run *run,
                      int peer)
{
    const size_t most = horon_alike_max(channel->team->size, ROOM_MAX_BYTES);
    const size_t eager = horon_mux_eager_bytes(channel->team->mux_of[peer]);
    const size_t rows = sizeof(struct horon_alltoall_word);
    const size_t unasked = eager > rows ? eager - rows : 0;
    return horon_alike_room(&run->alike, most < unasked ? most : unasked);
}

static horon_status_t begin_word(struct horon_channel *channel, struct horon_alltoall_run *run,
                                 bool is_send, int peer, struct horon_error *error)
{
    assert(run->room >= HORON_ALIKE_MIN_BYTES);
    assert(sizeof *run->ahead + run->room <= word_bytes(channel->team));
    run->announced = (struct horon_transfer){
        .id = {(uint32_t)channel->options.channel, channel->ended, TAG_AHEAD},
        .data = run->ahead,
        .bytes = sizeof *run->ahead + run->room,
        .check = channel->op->check,
    };
    return horon_netrun_post(channel->team->mux_of[peer], &run->announced, is_send,
                             channel->team->rank_names[peer], error);
}

bool horon_alltoall_meets(const struct horon_channel *channel, int peer)
{
    const int self = channel->team->rank;
    return horon_alltoall_gives(channel, self, peer) || horon_alltoall_gives(channel, peer, self);
}

/* @return OK: there is a link to each of them | IN_PROGRESS | an error */
static horon_status_t link_all(const struct horon_channel *channel, struct horon_error *error)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    const struct horon_team *team = channel->team;
    horon_status_t all = HORON_OK;
    for (int i = 0; i < state->peer_count; i++) {
        const int peer = state->peers[i].rank;
        if (team->mux_of[peer] || !horon_alltoall_meets(channel, peer))
            continue;
        const horon_status_t status = team->connect(team->connect_arg, peer, error);
        if (status < 0)
            return status;
        if (status == HORON_AGAIN)
            all = HORON_IN_PROGRESS;
    }
    return all;
}

static horon_status_t announce(struct horon_channel *channel, struct horon_alltoall_peer *peer,
                               struct horon_error *error)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    struct horon_alltoall_run *run = &peer->give;
    const size_t element = channel->element_bytes;
    const size_t bytes = (size_t)horon_alltoall_give_count(state, peer->rank) * element;
    run->room = room_of(channel, run, peer->rank);
    run->ahead->rows = state->give_rows[peer->rank];
    if (bytes && bytes <= run->room)
        memcpy(run->ahead->data, state->own + state->give_at[peer->rank] * element, bytes);
    horon_alike_note(&run->alike, bytes);
    return begin_word(channel, run, true, peer->rank, error);
}

/* Begins what @p round has of the run from @p sender, this rank or @p peer, to the other. @param
 * at its begin; NULL of one to this rank: it is dropped. @param count elements of the run */
static horon_status_t begin_part(struct horon_channel *channel, uint64_t round, int sender,
                                 const struct horon_alltoall_peer *peer, char *at, uint64_t count,
                                 struct horon_error *error)
{
    struct horon_alltoall_rounds *rounds = &horon_alltoall_of(channel)->rounds;
    const size_t most = round_bytes(channel);
    const size_t bytes = (size_t)count * channel->element_bytes, from = round * most;
    const size_t room = sender == peer->rank ? peer->take.room : peer->give.room;
    if (bytes <= room || from >= bytes)
        return HORON_OK;
    const size_t left = bytes - from;
    return horon_transfers_begin(&rounds->transfers, channel, round, sender, peer->rank,
                                 at ? at + from : NULL, left < most ? left : most, error);
}

/* What the peer must ask for goes late, once this rank has said itself what it takes: that word
 * would stand on the link behind all of the run, and the peer would send nothing meanwhile. */
static horon_status_t give(struct horon_channel *channel, uint64_t round, bool late,
                           struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const size_t element = channel->element_bytes;
    horon_status_t status = HORON_OK;
    for (int i = 0; i < state->peer_count && status == HORON_OK; i++) {
        const struct horon_alltoall_peer *peer = &state->peers[i];
        const uint64_t count = horon_alltoall_give_count(state, peer->rank);
        const bool is_late =
            round > 0 || count * element > horon_mux_eager_bytes(channel->team->mux_of[peer->rank]);
        char *at = (char *)(uintptr_t)state->own; /* NULL of one that gives nothing */
        if (count)
            at += state->give_at[peer->rank] * element;
        if (late == is_late)
            status = begin_part(channel, round, channel->team->rank, peer, at, count, error);
    }
    return status;
}

static horon_status_t take(struct horon_channel *channel, uint64_t round, struct horon_error *error)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    horon_status_t status = HORON_OK;
    for (int i = 0; i < state->peer_count && status == HORON_OK; i++) {
        const struct horon_alltoall_peer *peer = &state->peers[i];
        char *at =
            state->out ? state->out + state->take_at[peer->rank] * channel->element_bytes : NULL;
        status = begin_part(channel, round, peer->rank, peer, at,
                            horon_alltoall_take_count(state, peer->rank), error);
    }
    return status;
}

horon_status_t horon_alltoall_begin_runs(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const int self = channel->team->rank;
    horon_status_t status = link_all(channel, error);
    if (status != HORON_OK)
        return status;
    horon_alltoall_move(state, HORON_ALLTOALL_LINKED);
    horon_transfers_clear(&state->rounds.transfers, channel, 0);
    for (int i = 0; i < state->peer_count && status == HORON_OK; i++) {
        struct horon_alltoall_peer *peer = &state->peers[i];
        if (horon_alltoall_gives(channel, peer->rank, self)) {
            peer->take.room = room_of(channel, &peer->take, peer->rank);
            status = begin_word(channel, &peer->take, false, peer->rank, error);
        }
        if (status == HORON_OK && horon_alltoall_gives(channel, self, peer->rank))
            status = announce(channel, peer, error);
    }
    if (status == HORON_OK)
        status = give(channel, 0, false, error);
    for (int i = 0; i < state->peer_count; i++) /* a word and its run, in one system call */
        horon_mux_push(channel->team->mux_of[state->peers[i].rank]);
    return status;
}

/* @param bytes of a run, if that has not gone with its word */
static uint64_t rounds_of(const struct horon_channel *channel, size_t bytes)
{
    return (bytes + round_bytes(channel) - 1) / round_bytes(channel);
}

void horon_alltoall_count_rounds(struct horon_channel *channel)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    assert(state->reached == HORON_ALLTOALL_PLACED);
    assert(state->rounds.begun == 0);
    for (int i = 0; i < state->peer_count; i++) {
        struct horon_alltoall_peer *peer = &state->peers[i];
        const size_t element = channel->element_bytes;
        const size_t taken = (size_t)horon_alltoall_take_count(state, peer->rank) * element;
        const size_t given = (size_t)horon_alltoall_give_count(state, peer->rank) * element;
        const uint64_t in = taken > peer->take.room ? rounds_of(channel, taken) : 0;
        const uint64_t out = given > peer->give.room ? rounds_of(channel, given) : 0;
        const uint64_t most = in > out ? in : out;
        state->rounds.count = most > state->rounds.count ? most : state->rounds.count;
        if (state->out && taken && in == 0)
            memcpy(state->out + state->take_at[peer->rank] * element, peer->take.ahead->data,
                   taken);
        if (horon_alltoall_gives(channel, peer->rank, channel->team->rank))
            horon_alike_note(&peer->take.alike, taken);
    }
}

/* Begins rounds while there are slots for them. */
static horon_status_t begin_rounds(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall_rounds *rounds = &horon_alltoall_of(channel)->rounds;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && rounds->begun < rounds->count &&
           rounds->begun - rounds->ended < HORON_SLOTS) {
        const uint64_t round = rounds->begun++;
        if (round > 0) /* of the first, something may have begun before */
            horon_transfers_clear(&rounds->transfers, channel, round);
        status = take(channel, round, error);
        if (status == HORON_OK)
            status = give(channel, round, true, error);
    }
    return status;
}

/* @return OK: all rounds have ended | IN_PROGRESS | an error */
static horon_status_t move_rounds(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall_rounds *rounds = &horon_alltoall_of(channel)->rounds;
    horon_status_t status = begin_rounds(channel, error);
    while (status == HORON_OK && rounds->ended < rounds->count) {
        assert(rounds->ended < rounds->begun);
        status = horon_transfers_done(&rounds->transfers, channel, rounds->ended, error);
        if (status != HORON_OK)
            return status;
        rounds->ended++;
        status = begin_rounds(channel, error);
    }
    return status;
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

/* @return OK: all words of one kind have come, or gone | IN_PROGRESS | an error */
static horon_status_t see_words(const struct horon_channel *channel, bool gone,
                                struct horon_error *error)
{
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    horon_status_t seen = HORON_OK;
    for (int i = 0; i < state->peer_count && seen >= 0; i++) {
        const struct horon_alltoall_peer *peer = &state->peers[i];
        const struct horon_alltoall_run *run = gone ? &peer->give : &peer->take;
        const horon_status_t status = still_moves(channel, &run->announced, peer->rank, error);
        seen = status == HORON_OK ? seen : status;
    }
    return seen;
}

horon_status_t horon_alltoall_learn_rows(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_alltoall *state = horon_alltoall_of(channel);
    const horon_status_t status = see_words(channel, false, error);
    if (status != HORON_OK)
        return status;
    for (int i = 0; i < state->peer_count; i++) {
        const struct horon_alltoall_peer *peer = &state->peers[i];
        const bool any = horon_alltoall_gives(channel, peer->rank, channel->team->rank);
        state->rows[peer->rank] = any ? peer->take.ahead->rows : 0;
    }
    return HORON_OK;
}

horon_status_t horon_alltoall_move_runs(struct horon_channel *channel, struct horon_error *error)
{
    const horon_status_t status = move_rounds(channel, error);
    return status == HORON_OK ? see_words(channel, true, error) : status;
}

bool horon_alltoall_waits_in_rounds(const struct horon_channel *channel, int rank)
{
    const struct horon_alltoall_rounds *rounds = &horon_alltoall_of(channel)->rounds;
    for (uint64_t round = rounds->ended; round < rounds->begun; round++)
        if (horon_transfers_wait_for(&rounds->transfers, channel, round, rank))
            return true;
    return false;
}
