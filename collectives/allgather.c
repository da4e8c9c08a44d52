/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgather: every rank gets all inputs, joined in rank order; inputs may differ in length.
 *
 * First the lengths. On one host each rank's is in its entry; with several they travel ahead, as a
 * table (exec/windows.h). Then the data: what fits into small slots lies there already, on one
 * host; else it moves in windows.
 */
#include "exec/walk.h"
#include "exec/windows.h"

#include <string.h>

struct allgather {
    struct horon_windows windows;
    uint64_t own_rows;
    uint64_t *rows; /* [size] by rank */
    bool lengths_known;
};

static struct allgather *state_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_allgather_ops);
    return channel->state;
}

static size_t state_bytes(const struct horon_team *team)
{
    return sizeof(struct allgather) + horon_windows_tables_bytes(team) +
           (size_t)team->size * sizeof(uint64_t);
}

static void init(void *memory, const struct horon_team *team)
{
    struct allgather *state = memory;
    state->rows = (uint64_t *)(void *)(state + 1);
    horon_windows_init(&state->windows, team, state->rows + team->size);
}

static void begin(struct horon_channel *channel)
{
    struct allgather *state = state_of(channel);
    state->own_rows = channel->op->rows;
    state->lengths_known = false;
}

static bool fits_small(const struct horon_channel *channel, uint64_t count)
{
    return channel->team->host_count == 1 &&
           count * channel->element_bytes <= channel->host->shape.small_bytes;
}

static void enter(struct horon_channel *channel)
{
    struct horon_cursor cursor = {0};
    if (fits_small(channel, channel->count))
        horon_cursor_copy_in(channel, &cursor, 0, channel->count,
                             horon_slot_data(horon_channel_own(channel)));
}

static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    return horon_phase_meet(channel, HORON_MEET_ALL);
}

/* Elements and places by rank. @return their sum; UINT64_MAX if it does not fit */
static uint64_t place_inputs(const struct horon_channel *channel, struct allgather *state,
                             uint64_t *most_out)
{
    uint64_t total = 0, most = 0;
    for (int rank = 0; rank < channel->team->size; rank++) {
        uint64_t *count = &state->windows.counts[rank];
        state->windows.starts[rank] = total;
        if (__builtin_mul_overflow(state->rows[rank], channel->op->row_elements, count) ||
            __builtin_add_overflow(total, *count, &total))
            return UINT64_MAX;
        most = *count > most ? *count : most;
    }
    *most_out = most;
    return total;
}

static horon_status_t copy_small(const struct horon_channel *channel,
                                 const struct horon_windows *windows)
{
    struct horon_slot_head **heads = channel->small[horon_channel_slot(channel)];
    const int size = channel->team->size;
    char *out = windows->out;
    for (int rank = 0; out && rank < size; rank++)
        out = mempcpy(out, horon_slot_data(heads[rank]),
                      windows->counts[rank] * channel->element_bytes);
    return HORON_OK;
}

/* In place the input begins where the output does, and windows of other ranks would overwrite what
 * of it is not sent yet. At its own place in the output nothing else is written. */
static void move_to_place(const struct horon_channel *channel, struct horon_windows *windows)
{
    const int rank = channel->team->rank;
    if (!windows->out || windows->own != windows->out)
        return;
    char *place = windows->out + windows->starts[rank] * channel->element_bytes;
    memmove(place, windows->own, windows->counts[rank] * channel->element_bytes);
    windows->own = place;
}

/* @return OK: it is done | IN_PROGRESS: windows follow | ERR_PROTO */
static horon_status_t lengths_known(struct horon_channel *channel, struct horon_error *error)
{
    struct allgather *state = state_of(channel);
    struct horon_windows *windows = &state->windows;
    uint64_t most = 0;
    const uint64_t total = place_inputs(channel, state, &most);
    if (total > INT64_MAX / channel->element_bytes)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the inputs of an allgather add up to more than memory can hold");
    assert(windows->counts[channel->team->rank] == channel->count);
    void *given = channel->op->parts[0].dst;
    if (channel->op->output)
        given = channel->op->output(channel->op->output_arg, state->rows, total);
    if (total == 0)
        return HORON_OK;
    state->lengths_known = true;
    windows->own = channel->op->parts[0].src;
    windows->out = given; /* NULL: this rank has no room, and plays its part for the others */
    windows->element_bytes = channel->element_bytes;
    if (fits_small(channel, most))
        return copy_small(channel, windows);
    move_to_place(channel, windows);
    return horon_windows_begin(channel, windows);
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    struct allgather *state = state_of(channel);
    if (channel->team->host_count > 1)
        return horon_windows_begin_table(channel, &state->windows, &state->own_rows, 1,
                                         state->rows);
    struct horon_slot_head **heads = channel->small[horon_channel_slot(channel)];
    for (int rank = 0; rank < channel->team->size; rank++)
        state->rows[rank] = heads[rank]->count;
    return lengths_known(channel, error);
}

static horon_status_t piped(struct horon_channel *channel, struct horon_error *error)
{
    return state_of(channel)->lengths_known ? HORON_OK : lengths_known(channel, error);
}

const struct horon_verb_ops horon_allgather_ops = {
    .state_bytes = state_bytes,
    .init = init,
    .begin = begin,
    .enter = enter,
    .entered = entered,
    .met = met,
    .exchanged = horon_phase_never,
    .published = horon_phase_never,
    .piped = piped,
};
