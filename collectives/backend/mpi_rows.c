/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of which ranks tell each other their rows first: those to all, by one collective of
 * words, or those to each; unless they have told them when they met. Then the output is placed, and
 * runs of rows go from each rank to each, as the verb's row says: of an allgather by MPI's own, if
 * it can count them; of the others from rank to rank, in rounds of as much as MPI can count.
 */
#include "backend/mpi_state.h"

#include <string.h>

/* Of a host, where each sends to each in an allgather, too. */
#define FEW_RANKS 4

static const struct horon_verb_row *row_of(const struct horon_mpi_channel *channel)
{
    return horon_verb_of(&channel->op->agreed);
}

/* Does a run go from one rank to the other, be it of no rows? */
static bool gives(const struct horon_mpi_channel *channel, int from, int to)
{
    const int root = channel->op->agreed.root;
    return horon_ranks_include(row_of(channel)->reads, root, from) &&
           horon_ranks_include(row_of(channel)->writes, root, to);
}

static uint64_t give_count(const struct horon_mpi_channel *channel, int rank)
{
    return channel->give_at[rank + 1] - channel->give_at[rank];
}

static uint64_t take_count(const struct horon_mpi_channel *channel, int rank)
{
    return channel->take_at[rank + 1] - channel->take_at[rank];
}

static bool same_to_all(const struct horon_mpi_channel *channel)
{
    return row_of(channel)->ahead == HORON_AHEAD_ROWS;
}

/* ---- rows ------------------------------------------------------------------------------------ */

void horon_mpi_take_rows(struct horon_mpi_channel *channel, const uint64_t *rows)
{
    const int size = channel->team->size, rank = channel->team->rank;
    const size_t words = horon_verb_ahead_words(row_of(channel), size);
    for (int other = 0; other < size; other++)
        channel->words[size + other] =
            rows[(size_t)other * words + (words == 1 ? 0 : (size_t)rank)];
    memcpy(channel->words, channel->op->ahead, words * sizeof *channel->words);
    horon_mpi_move(channel, HORON_MPI_ROWS);
}

static horon_status_t tell_rows(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_mpi_calls *mpi = horon_mpi_calls_of(channel);
    const int size = channel->team->size;
    const size_t words = horon_verb_ahead_words(row_of(channel), size);
    const horon_mpi_handle type = horon_mpi_type(channel->context->library, HORON_UINT64);
    uint64_t *told = channel->words + size;
    assert(words == 1 || words == (size_t)size);
    memcpy(channel->words, channel->op->ahead, words * sizeof *channel->words);
    horon_mpi_move(channel, HORON_MPI_ROWS);
    if (same_to_all(channel))
        return horon_mpi_launched(channel, "MPI_Iallgather",
                                  mpi->iallgather(channel->words, 1, type, told, 1, type,
                                                  channel->comm, horon_mpi_request(channel)),
                                  error);
    return horon_mpi_launched(channel, "MPI_Ialltoall",
                              mpi->ialltoall(channel->words, 1, type, told, 1, type, channel->comm,
                                             horon_mpi_request(channel)),
                              error);
}

/* Adds up runs. @return false: more than memory can hold */
static bool add_run(const struct horon_mpi_channel *channel, uint64_t rows, uint64_t *at)
{
    uint64_t elements = 0;
    return !__builtin_mul_overflow(rows, channel->op->row_elements, &elements) &&
           !__builtin_add_overflow(at[0], elements, &at[1]) &&
           at[1] <= INT64_MAX / channel->element_bytes;
}

/* A rank is told the rows of ranks that give it nothing, too. */
static horon_status_t learn_rows(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    uint64_t *told = channel->words + team->size;
    bool fits = true;
    channel->give_at[0] = channel->take_at[0] = 0;
    for (int rank = 0; rank < team->size && fits; rank++) {
        const uint64_t to = same_to_all(channel) ? channel->words[0] : channel->words[rank];
        if (!gives(channel, rank, team->rank))
            told[rank] = 0;
        fits =
            add_run(channel, gives(channel, team->rank, rank) ? to : 0, &channel->give_at[rank]) &&
            add_run(channel, told[rank], &channel->take_at[rank]);
    }
    return fits ? HORON_OK
                : horon_error_set(error, HORON_ERR_PROTO,
                                  "what %s gets of all ranks is more than memory can hold",
                                  team->rank_names[team->rank]);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a rank gives lies in its input once where all get the same, and else one run behind the
 * other. */
static uint64_t input_count(const struct horon_mpi_channel *channel)
{
    return same_to_all(channel) ? channel->words[0] * channel->op->row_elements
                                : channel->give_at[channel->team->size];
}

static const char *run_to(const struct horon_mpi_channel *channel, int rank)
{
    return channel->in +
           (same_to_all(channel) ? 0 : channel->give_at[rank] * channel->element_bytes);
}

static char *run_from(const struct horon_mpi_channel *channel, int rank)
{
    return channel->out + channel->take_at[rank] * channel->element_bytes;
}

static char *output_of(const struct horon_mpi_channel *channel)
{
    const struct horon_operation *op = channel->op;
    const uint64_t total = channel->take_at[channel->team->size];
    char *out = op->parts[0].dst;
    if (op->output)
        out = op->output(op->output_arg, channel->words + channel->team->size, total);
    return total ? out : NULL;
}

/* MPI gets memory of the channel's own where it may not have the operation's, where there is none,
 * and where input and output overlap. */
static horon_status_t place(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_operation *op = channel->op;
    const size_t element = channel->element_bytes;
    const uint64_t given = input_count(channel), taken = channel->take_at[channel->team->size];
    assert(op->part_count == 1);
    assert(given <= op->count || !op->parts[0].src); /* of a rank that has joined none are read */
    const bool gives_any =
        horon_ranks_include(row_of(channel)->reads, op->agreed.root, channel->team->rank) &&
        given > 0;
    char *const out = output_of(channel);
    horon_status_t status = HORON_OK;
    horon_mpi_expect(channel, given > taken ? given : taken);
    channel->in = op->parts[0].src;
    channel->out = out;
    const bool overlaps =
        gives_any && out && horon_rows_lie_in(channel->in, given * element, out, taken * element);
    if (gives_any && (!channel->direct || overlaps)) {
        status = horon_mpi_make_room(&channel->work, given, element, error);
        if (status != HORON_OK)
            return status;
        memcpy(channel->work.at, channel->in, given * element);
        channel->in = channel->work.at;
    }
    if (taken > 0 && (!channel->direct || !out)) {
        status = horon_mpi_make_room(&channel->scratch, taken, element, error);
        channel->out = channel->scratch.at;
    }
    channel->dst = out;
    return status;
}

static void copy_out(const struct horon_mpi_channel *channel)
{
    const uint64_t taken = channel->take_at[channel->team->size];
    if (channel->dst && taken && channel->dst != channel->out)
        memcpy(channel->dst, channel->out, taken * channel->element_bytes);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Of all ranks: they know the same. A few exchange their runs sooner than MPI's collective does, of
 * any length: it makes a schedule first. */
static bool gathers_at_once(const struct horon_mpi_channel *channel)
{
    const struct horon_team *team = channel->team;
    const bool are_few = team->size == 2 || (team->size <= FEW_RANKS && team->host_count == 1);
    return same_to_all(channel) && row_of(channel)->writes == HORON_RANKS_ALL && !are_few &&
           channel->take_at[team->size] <= horon_mpi_count_max();
}

static horon_status_t gather_at_once(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_mpi_channel *c = channel;
    const int given = (int)input_count(c);
    bool even = true;
    assert((uint64_t)given == take_count(c, c->team->rank));
    for (int rank = 0; rank < c->team->size; rank++) {
        c->counts[rank] = (int)take_count(c, rank);
        c->starts[rank] = (int)c->take_at[rank];
        even = even && c->counts[rank] == given;
    }
    if (even) /* for which MPI has quicker ways */
        return horon_mpi_launched(channel, "MPI_Iallgather",
                                  horon_mpi_calls_of(c)->iallgather(c->in, given, c->type, c->out,
                                                                    given, c->type, c->comm,
                                                                    horon_mpi_request(channel)),
                                  error);
    return horon_mpi_launched(
        channel, "MPI_Iallgatherv",
        horon_mpi_calls_of(c)->iallgatherv(c->in, given, c->type, c->out, c->counts, c->starts,
                                           c->type, c->comm, horon_mpi_request(channel)),
        error);
}

/* Of a run in this round. @return elements, from *first_out on */
static int part_of(const struct horon_mpi_channel *channel, uint64_t count, uint64_t *first_out)
{
    const uint64_t first = channel->at * horon_mpi_count_max();
    *first_out = first;
    return count <= first ? 0 : horon_mpi_piece_of(count - first);
}

static void keep_own(const struct horon_mpi_channel *channel)
{
    const int rank = channel->team->rank;
    const uint64_t count = take_count(channel, rank);
    assert(count == give_count(channel, rank));
    if (count)
        memmove(run_from(channel, rank), run_to(channel, rank), count * channel->element_bytes);
}

static horon_status_t launch_with(struct horon_mpi_channel *channel, int peer,
                                  struct horon_error *error)
{
    const struct horon_mpi_calls *mpi = horon_mpi_calls_of(channel);
    uint64_t first = 0;
    horon_status_t status = HORON_OK;
    const int taken = part_of(channel, take_count(channel, peer), &first);
    if (taken)
        status = horon_mpi_launched(
            channel, "MPI_Irecv",
            mpi->irecv(run_from(channel, peer) + first * channel->element_bytes, taken,
                       channel->type, peer, 0, channel->comm, horon_mpi_request(channel)),
            error);
    const int given = part_of(channel, give_count(channel, peer), &first);
    if (given && status == HORON_OK)
        status = horon_mpi_launched(
            channel, "MPI_Isend",
            mpi->isend(run_to(channel, peer) + first * channel->element_bytes, given, channel->type,
                       peer, 0, channel->comm, horon_mpi_request(channel)),
            error);
    return status;
}

/* Not all ranks begin with the same one. What stays here is copied while others hear of the rest.
 */
static horon_status_t launch_round(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    horon_status_t status = HORON_OK;
    for (int i = 1; i < team->size && status == HORON_OK; i++)
        status = launch_with(channel, (team->rank + i) % team->size, error);
    if (channel->at == 0 && status == HORON_OK)
        keep_own(channel);
    channel->at++;
    return status;
}

horon_status_t horon_mpi_go_on_with_rows(struct horon_mpi_channel *channel,
                                         struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    assert(channel->flying == 0);
    if (channel->step == HORON_MPI_BEGUN) {
        status = tell_rows(channel, error);
        return status == HORON_OK ? HORON_IN_PROGRESS : status;
    }
    if (channel->step == HORON_MPI_ROWS) {
        status = learn_rows(channel, error);
        if (status == HORON_OK)
            status = place(channel, error);
        if (status != HORON_OK)
            return status;
        horon_mpi_move(channel, HORON_MPI_RUNS);
        if (gathers_at_once(channel)) {
            channel->at = UINT64_MAX; /* no rounds follow */
            status = gather_at_once(channel, error);
            return status == HORON_OK ? HORON_IN_PROGRESS : status;
        }
    }
    if (channel->at != UINT64_MAX)
        status = launch_round(channel, error);
    if (status == HORON_OK && channel->flying > 0)
        return HORON_IN_PROGRESS;
    if (status == HORON_OK)
        copy_out(channel);
    return status;
}
