/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation of a channel, from its begin to its end: mpi_vector.c and mpi_rows.c say what is
 * launched, and this when, and where MPI works.
 *
 * MPI cannot cancel a collective, while an operation that is given up must leave its memory alone.
 * But MPI moves nothing unless somebody makes a call here, if no variable has a thread of its own
 * do that, or other ranks write to this one's memory (boot/identity/moves.c). So it works on the
 * operation's own memory ("direct") where nobody will make one once the channel is given up: there
 * is no such variable, the program makes no calls, as horon loaded and began MPI, or as it says by
 * a setting, all channels are of one team, which fails as a whole, and no thread makes a
 * communicator, in which it may be for ever. Then MPI is shut to all contexts (mpi_shut.h). Else
 * MPI works on memory of the channel, which is left to it when that is given up. A program that
 * loads MPI later is not known of.
 *
 * MPI may notice before horon does that a rank is gone, and does not say which: a call fails. That
 * is held back for a while, in which horon names the rank.
 */
#include "backend/mpi_state.h"

#include "alloc.h"
#include "clock.h"

/* Horon knows within a second that a rank is gone. */
#define HELD_NS UINT64_C(2000000000)

#define BIT(step) (1u << HORON_MPI_##step)
void horon_mpi_move(struct horon_mpi_channel *channel, enum horon_mpi_step to)
{
    static const unsigned legal[] = {
        [HORON_MPI_IDLE] = BIT(BEGUN), [HORON_MPI_BEGUN] = BIT(LAST) | BIT(PIECE) | BIT(ROWS),
        [HORON_MPI_LAST] = BIT(IDLE),  [HORON_MPI_PIECE] = BIT(IDLE),
        [HORON_MPI_ROWS] = BIT(RUNS),  [HORON_MPI_RUNS] = BIT(IDLE),
    };
    assert(legal[channel->step] & 1u << to);
    channel->step = to;
}

/* ---- where MPI works ------------------------------------------------------------------------ */

/* Is this channel's team the only one, and does no thread make calls, of MPI's or in which it makes
 * a communicator? */
static bool may_be_direct(const struct horon_mpi_channel *channel)
{
    const struct horon_mpi_context *context = channel->context;
    const struct horon_mpi_library *library = context->library;
    const bool is_ours = context->keeps_out || (library->began && !library->of_program);
    bool may = is_ours && !library->moves && !context->awaited && !context->left_making;
    for (const struct horon_mpi_channel *other = context->channels; other; other = other->next)
        may = may && other->team == channel->team && other->connected;
    return may;
}

/* ---- failures -------------------------------------------------------------------------------- */

horon_status_t horon_mpi_hold_back(struct horon_mpi_channel *channel, struct horon_error *error)
{
    channel->failure = *error;
    horon_error_clear(error);
    channel->failed_ns = horon_clock_ns();
    return HORON_IN_PROGRESS;
}

horon_status_t horon_mpi_held_back(const struct horon_mpi_channel *channel,
                                   struct horon_error *error)
{
    if (horon_clock_ns() - channel->failed_ns < HELD_NS)
        return HORON_IN_PROGRESS;
    *error = channel->failure;
    return error->status;
}

/* ---- from begin to end ----------------------------------------------------------------------- */

void horon_mpi_start(struct horon_mpi_channel *channel, const struct horon_operation *op)
{
    assert(channel->connected && !channel->given_up);
    horon_mpi_move(channel, HORON_MPI_BEGUN);
    channel->op = op;
    channel->element_bytes = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    channel->type = horon_mpi_type(channel->context->library, (horon_dtype_t)op->agreed.dtype);
    channel->flying = 0;
    channel->settles = false;
    channel->at = 0;
    channel->in = NULL;
    channel->out = NULL;
    horon_mpi_expect(channel, op->count);
    channel->direct = !op->drops && may_be_direct(channel); /* what all drop lies in one place */
    channel->context->direct += channel->direct;
    if (channel->base.rows)
        horon_mpi_take_rows(channel, channel->base.rows);
}

uint64_t horon_mpi_count_max(void)
{
    return (uint64_t)1 << 30;
}

horon_status_t horon_mpi_launched(struct horon_mpi_channel *channel, const char *call, int code,
                                  struct horon_error *error)
{
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(channel->context->library, call, code, error);
    channel->flying++;
    return HORON_OK;
}

horon_status_t horon_mpi_make_room(struct horon_mpi_memory *memory, uint64_t elements,
                                   size_t element_bytes, struct horon_error *error)
{
    size_t bytes = 0;
    if (!__builtin_mul_overflow(elements, element_bytes, &bytes) && bytes <= memory->bytes)
        return HORON_OK;
    horon_free(memory->at);
    memory->at = bytes ? horon_alloc_lines(bytes) : NULL;
    memory->bytes = memory->at ? bytes : 0;
    return memory->at ? HORON_OK
                      : horon_error_set(error, HORON_ERR_MEMORY,
                                        "no memory of %zu bytes for what MPI works on", bytes);
}

static horon_status_t go_on(struct horon_mpi_channel *channel, struct horon_error *error)
{
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    if (row->ahead != HORON_AHEAD_NOTHING)
        return horon_mpi_go_on_with_rows(channel, error);
    if (horon_verb_moves(row))
        return horon_mpi_go_on_with_vector(channel, error);
    if (channel->step == HORON_MPI_LAST)
        return HORON_OK;
    horon_mpi_move(channel, HORON_MPI_LAST);
    const int code =
        horon_mpi_calls_of(channel)->ibarrier(channel->comm, horon_mpi_request(channel));
    const horon_status_t status = horon_mpi_launched(channel, "MPI_Ibarrier", code, error);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

horon_status_t horon_mpi_advance(struct horon_mpi_channel *channel, bool *moved_out,
                                 struct horon_error *error)
{
    for (;;) {
        horon_status_t status = HORON_OK;
        if (channel->flying > 0)
            status = horon_mpi_look(channel, moved_out, error);
        if (status == HORON_IN_PROGRESS)
            return status;
        if (status == HORON_OK) {
            *moved_out = true;
            status = go_on(channel, error);
        }
        if (status == HORON_ERR_SYSTEM)
            return horon_mpi_hold_back(channel, error);
        if (status == HORON_OK) {
            horon_mpi_move(channel, HORON_MPI_IDLE);
            channel->context->direct -= channel->direct;
            channel->settles = true;
            channel->ended_ns = 0;
        }
        if (status != HORON_IN_PROGRESS)
            return status;
    }
}
