/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of which the input is as long as the output, or is cut as agreed: sums, and what root
 * has. A vector moves in pieces that MPI can count, one after another.
 *
 * What reduces has four steps: inputs are scaled (to `work`), MPI combines them, the whole is
 * divided, and scaled again. An average of float16 is divided by a power of two first, so that no
 * partial sum overflows. MPI may combine in any order: sums of floats differ in their last bits
 * from those of the canonical tree, and from run to run. Two ranks exchange messages instead.
 */
#include "backend/mpi_state.h"

#include <string.h>

/* Up to so many bytes two ranks exchange by messages. MPI cuts longer copies into pieces of which
 * one rank reads while the other writes the next; of what is combined it has no such way. */
#define EXCHANGE_BYTES_COPIED ((uint64_t)1 << 20)
#define EXCHANGE_BYTES_COMBINED ((uint64_t)64 << 20)
#define EXCHANGE_BYTES_COMBINED_TWICE ((uint64_t)4 << 20) /* by both */
/* Up to so many a ring of ranks is no quicker. */
#define IN_PLACE_BYTES ((uint64_t)512 << 10)

static bool is_mine(const struct horon_mpi_channel *channel, enum horon_ranks ranks)
{
    return horon_ranks_include(ranks, channel->op->agreed.root, channel->team->rank);
}

static bool reads(const struct horon_mpi_channel *channel)
{
    return is_mine(channel, horon_verb_of(&channel->op->agreed)->reads);
}

static bool writes(const struct horon_mpi_channel *channel)
{
    return is_mine(channel, horon_verb_of(&channel->op->agreed)->writes);
}

static bool reduces(const struct horon_mpi_channel *channel)
{
    return horon_verb_reduces(horon_verb_of(&channel->op->agreed));
}

/* What combines two. */
static horon_redop_t redop_of(const struct horon_mpi_channel *channel)
{
    const horon_redop_t redop = (horon_redop_t)channel->op->agreed.redop;
    return redop == HORON_AVERAGE ? HORON_SUM : redop;
}

static bool is_cut(const struct horon_mpi_channel *channel)
{
    return horon_verb_splits(horon_verb_of(&channel->op->agreed));
}

/* Does each rank get all that is combined? */
static bool for_all(const struct horon_mpi_channel *channel)
{
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    return horon_verb_reduces(row) && !horon_verb_is_rooted(row) && !horon_verb_splits(row);
}

/* A message each way, or one, and this rank combines: MPI's collectives make a schedule first, and
 * combine more slowly. Both ranks know it from what is agreed. */
static bool is_exchange(const struct horon_mpi_channel *channel)
{
    const uint64_t most = for_all(channel)   ? EXCHANGE_BYTES_COMBINED_TWICE
                          : reduces(channel) ? EXCHANGE_BYTES_COMBINED
                                             : EXCHANGE_BYTES_COPIED;
    return channel->team->size == 2 && channel->op->count <= most / channel->element_bytes;
}

/* All ranks combine in place, or none, MPI says, and Open MPI has other messages for the one than
 * for the other. Ranks do not know of each other whether their output is their input: so they all
 * combine in place, but where a ring is to be had by not doing so. */
static bool combines_apart(const struct horon_mpi_channel *channel)
{
    const int ring_ranks = channel->context->library->family->ring_ranks;
    return for_all(channel) && ring_ranks && channel->team->size >= ring_ranks &&
           channel->op->count > IN_PLACE_BYTES / channel->element_bytes;
}

static bool combines_in_place(const struct horon_mpi_channel *channel)
{
    return for_all(channel) && !combines_apart(channel) && !is_exchange(channel);
}

static uint64_t own_share(const struct horon_mpi_channel *channel)
{
    return horon_operation_output(channel->op, channel->team->rank, channel->team->size);
}

/* ---- before and after ------------------------------------------------------------------------ */

/* How inputs are made ready, and what becomes of the whole. */
static struct horon_reduce_finish begin_finish(struct horon_mpi_channel *channel)
{
    const struct horon_operation *op = channel->op;
    const bool average = reduces(channel) && op->agreed.redop == HORON_AVERAGE;
    const uint64_t givers = op->givers ? op->givers : (uint64_t)channel->team->size;
    const uint64_t ranks = average ? givers : 1;
    double divisor = 1.0;
    if (average)
        divisor = horon_reduce_partial_divisor((horon_dtype_t)op->agreed.dtype, ranks);
    channel->finish =
        (struct horon_reduce_finish){.postscale = reduces(channel) ? op->agreed.postscale : 1.0,
                                     .divisor = (double)ranks / divisor};
    return (struct horon_reduce_finish){.postscale = 1.0, .divisor = divisor};
}

static void copy_in(struct horon_mpi_channel *channel, const struct horon_reduce_finish *partial)
{
    const struct horon_operation *op = channel->op;
    char *to = channel->work.at;
    for (size_t i = 0; i < op->part_count; i++) {
        const struct horon_part *part = &op->parts[i];
        const size_t bytes = (size_t)part->count * channel->element_bytes;
        const void *const in[] = {part->src};
        void *const out[] = {to};
        if (reduces(channel))
            horon_reduce_tree((horon_dtype_t)op->agreed.dtype, HORON_SUM, in, 1,
                              op->agreed.prescale, out, 1, (size_t)part->count, partial);
        else if (bytes)
            memcpy(to, part->src, bytes);
        to += bytes;
    }
}

static void finish_part(const struct horon_mpi_channel *channel, const void *from, void *to,
                        uint64_t count)
{
    const struct horon_reduce_finish *finish = &channel->finish;
    const bool plain = finish->divisor == 1.0 && finish->postscale == 1.0;
    if (count == 0 || !to || (plain && from == to))
        return;
    if (reduces(channel))
        horon_reduce_finish((horon_dtype_t)channel->op->agreed.dtype, finish, from, to,
                            (size_t)count);
    else
        memcpy(to, from, (size_t)count * channel->element_bytes);
}

/* What MPI has left in `out`. */
static void copy_out(const struct horon_mpi_channel *channel)
{
    const struct horon_operation *op = channel->op;
    const char *from = channel->out;
    if (is_cut(channel)) {
        finish_part(channel, from, op->parts[0].dst, own_share(channel));
        return;
    }
    for (size_t i = 0; i < op->part_count; i++) {
        const struct horon_part *part = &op->parts[i];
        finish_part(channel, from, part->dst, part->count);
        from += part->count * channel->element_bytes;
    }
}

/* ---- between two ranks ----------------------------------------------------------------------- */

/* Root has what it gives to all. */
static bool gives(const struct horon_mpi_channel *channel, int from, int to)
{
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    const int root = channel->op->agreed.root;
    return horon_ranks_include(row->reads, root, from) &&
           horon_ranks_include(row->writes, root, to) && (reduces(channel) || to != root);
}

/* What a rank gets of the other one, from *first_out on: all of it, or its share. */
static uint64_t part_of(const struct horon_mpi_channel *channel, int rank, uint64_t *first_out)
{
    const uint64_t first_share = horon_operation_output(channel->op, 0, 2);
    *first_out = is_cut(channel) && rank == 1 ? first_share : 0;
    return horon_operation_output(channel->op, rank, 2);
}

static horon_status_t launch_exchange(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_mpi_calls *mpi = horon_mpi_calls_of(channel);
    const int rank = channel->team->rank, other = 1 - rank;
    uint64_t first = 0;
    horon_status_t status = HORON_OK;
    channel->at = channel->op->count;
    const int taken = (int)part_of(channel, rank, &first);
    if (taken && gives(channel, other, rank))
        status = horon_mpi_launched(
            channel, "MPI_Irecv",
            mpi->irecv(reduces(channel) ? channel->scratch.at : channel->out, taken, channel->type,
                       other, 0, channel->comm, horon_mpi_request(channel)),
            error);
    const int given = (int)part_of(channel, other, &first);
    if (status == HORON_OK && given && gives(channel, rank, other))
        status = horon_mpi_launched(channel, "MPI_Isend",
                                    mpi->isend(channel->in + first * channel->element_bytes, given,
                                               channel->type, other, 0, channel->comm,
                                               horon_mpi_request(channel)),
                                    error);
    return status;
}

/* In the order of ranks: the tree of two. */
static void combine(const struct horon_mpi_channel *channel)
{
    const struct horon_operation *op = channel->op;
    const int rank = channel->team->rank;
    uint64_t first = 0;
    const uint64_t count = part_of(channel, rank, &first);
    const void *const in[] = {channel->in + first * channel->element_bytes, channel->scratch.at};
    if (count)
        horon_reduce_combine((horon_dtype_t)op->agreed.dtype, redop_of(channel), in[rank],
                             in[1 - rank], channel->out, (size_t)count);
}

/* ---- where it lies --------------------------------------------------------------------------- */

/* Of a copy MPI makes the result in the same place; but what is long and all get, and a share, not.
 * MPICH 4.0 copies between input and share where they overlap, and stops. */
static horon_status_t place_copy(struct horon_mpi_channel *channel,
                                 const struct horon_reduce_finish *partial,
                                 struct horon_error *error)
{
    const struct horon_operation *op = channel->op;
    const size_t element = channel->element_bytes;
    const uint64_t taken = is_cut(channel) ? own_share(channel) : op->count;
    const bool apart = is_cut(channel) || combines_apart(channel);
    const bool to_dst = channel->direct && op->part_count == 1;
    horon_status_t status = horon_mpi_make_room(&channel->work, op->count, element, error);
    if (status == HORON_OK && apart && !to_dst)
        status = horon_mpi_make_room(&channel->scratch, taken, element, error);
    if (status != HORON_OK)
        return status;
    if (reads(channel))
        copy_in(channel, partial);
    channel->in = channel->out = channel->work.at;
    if (apart)
        channel->out = to_dst ? op->parts[0].dst : channel->scratch.at;
    return HORON_OK;
}

static horon_status_t place(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_operation *op = channel->op;
    const struct horon_part *only = op->part_count == 1 ? op->parts : NULL;
    const struct horon_reduce_finish partial = begin_finish(channel);
    const bool plain = !reduces(channel) || (op->agreed.prescale == 1.0 && partial.divisor == 1.0);
    const size_t bytes = (size_t)op->count * channel->element_bytes;
    assert(op->part_count >= 1);
    assert(only || !is_cut(channel)); /* whose parts would be cut apart */
    const bool lies_in = (is_cut(channel) || combines_apart(channel)) && only &&
                         horon_rows_lie_in(only->src, bytes, only->dst, bytes);
    if (op->count == 0)
        return HORON_OK;
    if (!channel->direct || !only || !plain || lies_in)
        return place_copy(channel, &partial, error);
    channel->in = reads(channel) ? only->src : only->dst;
    channel->out = writes(channel) ? only->dst : NULL;
    if (combines_in_place(channel) && channel->in != channel->out)
        channel->in = memmove(channel->out, channel->in, bytes);
    if (!reduces(channel)) /* root gives its input, and copies it in the end */
        channel->out = (char *)(uintptr_t)channel->in;
    return HORON_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static horon_status_t launch_bcast(struct horon_mpi_channel *channel, char *at, int count,
                                   struct horon_error *error)
{
    const int code =
        horon_mpi_calls_of(channel)->ibcast(at, count, channel->type, channel->op->agreed.root,
                                            channel->comm, horon_mpi_request(channel));
    return horon_mpi_launched(channel, "MPI_Ibcast", code, error);
}

static horon_mpi_handle op_of(const struct horon_mpi_channel *channel)
{
    return horon_mpi_op(channel->context->library, (horon_dtype_t)channel->op->agreed.dtype,
                        redop_of(channel));
}

/* @param root  -1: all get it */
static horon_status_t launch_reduce(struct horon_mpi_channel *channel, const void *in, void *out,
                                    int count, int root, struct horon_error *error)
{
    const struct horon_mpi_calls *mpi = horon_mpi_calls_of(channel);
    const bool gets = root < 0 || root == channel->team->rank;
    assert(count > 0);
    assert(in);
    assert(out || !gets);
    const void *from = gets && in == out ? channel->context->library->family->in_place : in;
    const horon_mpi_handle op = op_of(channel);
    assert(root >= 0 || (in == out) == combines_in_place(channel));
    if (root < 0)
        return horon_mpi_launched(channel, "MPI_Iallreduce",
                                  mpi->iallreduce(from, out, count, channel->type, op,
                                                  channel->comm, horon_mpi_request(channel)),
                                  error);
    return horon_mpi_launched(channel, "MPI_Ireduce",
                              mpi->ireduce(from, gets ? out : NULL, count, channel->type, op, root,
                                           channel->comm, horon_mpi_request(channel)),
                              error);
}

static horon_status_t launch_piece(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    assert(channel->at < channel->op->count);
    const int count = horon_mpi_piece_of(channel->op->count - channel->at);
    const size_t at = (size_t)channel->at * channel->element_bytes;
    const char *in = channel->in ? channel->in + at : NULL;
    char *out = channel->out ? channel->out + at : NULL;
    channel->at += (uint64_t)count;
    if (!horon_verb_reduces(row))
        return launch_bcast(channel, out, count, error);
    return launch_reduce(channel, in, out, count,
                         horon_verb_is_rooted(row) ? channel->op->agreed.root : -1, error);
}

/* ---- what is cut ----------------------------------------------------------------------------- */

/* @return does all of it fit a call? */
static bool count_shares(struct horon_mpi_channel *channel)
{
    const struct horon_operation *op = channel->op;
    channel->give_at[0] = 0;
    for (int rank = 0; rank < channel->team->size; rank++) {
        const uint64_t count = horon_operation_output(op, rank, channel->team->size);
        channel->give_at[rank + 1] = channel->give_at[rank] + count;
        channel->counts[rank] = count <= horon_mpi_count_max() ? (int)count : 0;
    }
    assert(channel->give_at[channel->team->size] == op->count);
    return op->count <= horon_mpi_count_max();
}

/* Piece by piece of the share of one rank after another. */
static horon_status_t launch_share(struct horon_mpi_channel *channel, struct horon_error *error)
{
    int rank = 0;
    while (channel->give_at[rank + 1] <= channel->at)
        rank++;
    const int count = horon_mpi_piece_of(channel->give_at[rank + 1] - channel->at);
    const size_t element = channel->element_bytes;
    const uint64_t inside = channel->at - channel->give_at[rank];
    const char *in = channel->in + channel->at * element;
    channel->at += (uint64_t)count;
    return launch_reduce(channel, in, channel->out + inside * element, count, rank, error);
}

static horon_status_t launch_cut(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_mpi_channel *c = channel;
    if (!count_shares(channel))
        return launch_share(channel, error);
    channel->at = channel->op->count;
    return horon_mpi_launched(channel, "MPI_Ireduce_scatter",
                              horon_mpi_calls_of(c)->ireduce_scatter(c->in, c->out, c->counts,
                                                                     c->type, op_of(c), c->comm,
                                                                     horon_mpi_request(channel)),
                              error);
}

horon_status_t horon_mpi_go_on_with_vector(struct horon_mpi_channel *channel,
                                           struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    assert(channel->step == HORON_MPI_BEGUN || channel->step == HORON_MPI_PIECE);
    assert(channel->flying == 0);
    if (channel->step == HORON_MPI_BEGUN) {
        status = place(channel, error);
        if (status == HORON_OK && is_exchange(channel) && reduces(channel))
            status = horon_mpi_make_room(&channel->scratch, own_share(channel),
                                         channel->element_bytes, error);
        if (status != HORON_OK)
            return status;
        horon_mpi_move(channel, HORON_MPI_PIECE);
    }
    if (channel->at < channel->op->count) {
        status = is_exchange(channel) ? launch_exchange(channel, error)
                 : is_cut(channel)    ? launch_cut(channel, error)
                                      : launch_piece(channel, error);
        return status == HORON_OK ? HORON_IN_PROGRESS : status;
    }
    if (writes(channel) && channel->op->count) {
        if (is_exchange(channel) && reduces(channel))
            combine(channel);
        copy_out(channel);
    }
    return HORON_OK;
}
