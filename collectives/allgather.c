/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgather: every rank gets all inputs, joined in rank order; inputs may differ in length.
 *
 * First the lengths. On one host each rank's is in its entry, and what fits into small slots lies
 * behind it. With several hosts the lengths travel ahead, as a table (exec/windows.h), each with
 * room for data: as much as the longest input took in each of the two gathers before, which all
 * ranks know. So a gather of few bytes, or like those before it, takes one exchange, as if lengths
 * were known; and one of few that comes before each long one is not made long. What is not there
 * yet when all lengths are, moves in windows; but two ranks of a host read what is long where it
 * lies (exec/lent.h).
 */
#include "exec/alike.h"
#include "exec/lent.h"
#include "exec/walk.h"
#include "exec/windows.h"

#include <string.h>

/* What a rank tells the other hosts first: its rows, and all of its input, if that fits into the
 * room for it (exec/alike.h): at most so many bytes. */
enum { AHEAD_MAX_BYTES = 32 << 10 };

struct allgather {
    struct horon_windows windows;
    /* with several hosts */
    uint64_t *own_ahead;        /* [1 + ahead_max / 8] rows, and data */
    uint64_t *ahead;            /* [size] such entries by rank, each as long as `ahead_bytes` say */
    size_t ahead_max;           /* bytes of data that an entry may have room for */
    size_t ahead_bytes;         /* that it has, in this operation, ... */
    struct horon_alike longest; /* inputs */
    uint64_t *rows;             /* [size] by rank */
    struct horon_lent lent;     /* on one host */
    bool lengths_known;
    bool reads; /* what is long is read where it lies */
};

static struct allgather *state_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_allgather_ops);
    return channel->state;
}

static size_t words_of(size_t ahead_bytes)
{
    return 1 + (ahead_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

/* Of all entries, and this rank's. */
static size_t ahead_words(const struct horon_team *team)
{
    return team->host_count == 1
               ? 0
               : (1 + (size_t)team->size) * words_of(horon_alike_max(team->size, AHEAD_MAX_BYTES));
}

static size_t state_bytes(const struct horon_team *team)
{
    return sizeof(struct allgather) + horon_windows_tables_bytes(team) +
           horon_lent_table_bytes(team) +
           ((size_t)team->size + ahead_words(team)) * sizeof(uint64_t);
}

static void init(void *memory, const struct horon_team *team)
{
    struct allgather *state = memory;
    state->lent.parts = (struct horon_lent_part *)(void *)(state + 1);
    state->rows = (uint64_t *)(void *)(state->lent.parts + team->local_size);
    state->own_ahead = state->rows + team->size;
    state->ahead_max = horon_alike_max(team->size, AHEAD_MAX_BYTES);
    state->ahead = state->own_ahead + (team->host_count == 1 ? 0 : words_of(state->ahead_max));
    horon_windows_init(&state->windows, team, state->rows + team->size + ahead_words(team));
}

static void begin(struct horon_channel *channel)
{
    struct allgather *state = state_of(channel);
    state->lengths_known = state->reads = false;
    state->ahead_bytes = horon_alike_room(&state->longest, state->ahead_max);
    assert(state->ahead_bytes >= HORON_ALIKE_MIN_BYTES);
    assert(state->ahead_bytes <= state->ahead_max);
}

static const uint64_t *ahead_of(const struct allgather *state, int rank)
{
    return state->ahead + (size_t)rank * words_of(state->ahead_bytes);
}

/* Of more than two, each would copy what comes of all others, where by way of slots that lies in
 * caches once its owner has put it there. */
static bool may_lend(const struct horon_channel *channel)
{
    return channel->lends && channel->team->size == 2;
}

/* Would so much of each rank be there as soon as the lengths are? */
static bool fits_small(const struct horon_channel *channel, uint64_t count)
{
    const size_t limit = channel->team->host_count == 1 ? channel->host->shape.small_bytes
                                                        : state_of(channel)->ahead_bytes;
    return count * channel->element_bytes <= limit;
}

static void copy_own(struct horon_channel *channel, uint8_t *to)
{
    struct horon_cursor cursor = {0};
    horon_cursor_copy_in(channel, &cursor, 0, channel->count, to);
}

static void enter(struct horon_channel *channel)
{
    if (channel->team->host_count == 1 && fits_small(channel, channel->count)) {
        copy_own(channel, horon_phase_place(channel, channel->count * channel->element_bytes));
    } else if (may_lend(channel)) {
        const struct horon_lent_input offer = horon_lent_offer(channel, channel->op->parts[0].src);
        memcpy(horon_phase_place(channel, sizeof offer), &offer, sizeof offer);
    }
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

static horon_status_t copy_small(const struct horon_channel *channel, const struct allgather *state)
{
    const bool ahead = channel->team->host_count > 1;
    const int size = channel->team->size;
    char *out = state->windows.out;
    for (int rank = 0; out && rank < size; rank++)
        out = mempcpy(out,
                      ahead ? (const void *)(ahead_of(state, rank) + 1)
                            : horon_channel_data(channel, rank),
                      state->windows.counts[rank] * channel->element_bytes);
    return HORON_OK;
}

/* In place the input lies somewhere in the output, and windows of other ranks would overwrite what
 * of it is not sent yet. At its own place in the output nothing else is written. */
static void move_to_place(const struct horon_channel *channel, struct horon_windows *windows,
                          uint64_t total)
{
    const int rank = channel->team->rank;
    const size_t element = channel->element_bytes, bytes = windows->counts[rank] * element;
    if (!windows->out || !horon_rows_lie_in(windows->own, bytes, windows->out, total * element))
        return;
    char *place = windows->out + windows->starts[rank] * element;
    if (windows->own != place)
        memmove(place, windows->own, bytes);
    windows->own = place;
}

/* Through slots. */
static horon_status_t begin_windows(struct horon_channel *channel, struct allgather *state)
{
    const struct horon_windows *windows = &state->windows;
    const int last = channel->team->size - 1;
    move_to_place(channel, &state->windows, windows->starts[last] + windows->counts[last]);
    return horon_windows_begin(channel, &state->windows);
}

/* What lies in small slots is not offered. */
static bool may_read(const struct horon_channel *channel, const struct allgather *state,
                     uint64_t most)
{
    bool all = may_lend(channel) && horon_lent_serves(channel, most * channel->element_bytes);
    for (int rank = 0; all && rank < channel->team->size; rank++)
        all = state->windows.counts[rank] == 0 || !fits_small(channel, state->windows.counts[rank]);
    return all;
}

/* Where it lies. In place the input may lie where another rank's rows come, while that rank or
 * others read it: then it goes through slots. */
static horon_status_t begin_to_read(struct horon_channel *channel, struct allgather *state)
{
    const struct horon_windows *windows = &state->windows;
    const int self = channel->team->rank, size = channel->team->size;
    const size_t element = channel->element_bytes;
    const uint64_t total = windows->starts[size - 1] + windows->counts[size - 1];
    for (int rank = 0; rank < size; rank++) {
        struct horon_lent_part *part = &state->lent.parts[rank];
        *part = (struct horon_lent_part){0};
        if (!windows->out || windows->counts[rank] == 0)
            continue;
        memcpy(&part->offer, horon_channel_data(channel, rank), sizeof part->offer);
        part->bytes = windows->counts[rank] * element;
        part->to = windows->out + windows->starts[rank] * element;
        if (rank == self)
            part->offer.at = (uintptr_t)windows->own;
    }
    const bool apart = !windows->out || windows->own == state->lent.parts[self].to ||
                       !horon_rows_lie_in(windows->own, windows->counts[self] * element,
                                          windows->out, total * element);
    state->reads = true;
    return horon_lent_begin(channel, &state->lent, !apart);
}

/* @return OK: it is done | IN_PROGRESS: a pipeline follows | ERR_PROTO */
static horon_status_t lengths_known(struct horon_channel *channel, struct horon_error *error)
{
    struct allgather *state = state_of(channel);
    struct horon_windows *windows = &state->windows;
    uint64_t most = 0;
    const uint64_t total = place_inputs(channel, state, &most);
    if (total > INT64_MAX / channel->element_bytes)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the inputs of an allgather add up to more than memory can hold");
    if (windows->counts[channel->team->rank] != channel->count)
        return horon_channel_damaged(channel, error);
    horon_alike_note(&state->longest, most * channel->element_bytes);
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
        return copy_small(channel, state);
    return may_read(channel, state, most) ? begin_to_read(channel, state)
                                          : begin_windows(channel, state);
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    struct allgather *state = state_of(channel);
    if (channel->team->host_count > 1) {
        state->own_ahead[0] = *channel->op->ahead;
        if (fits_small(channel, channel->count))
            copy_own(channel, (uint8_t *)(state->own_ahead + 1));
        return horon_windows_begin_table(channel, &state->windows, state->own_ahead,
                                         words_of(state->ahead_bytes), state->ahead);
    }
    struct horon_slot_head **heads = channel->small[horon_channel_slot(channel)];
    const int size = channel->team->size;
    uint64_t *rows = state->rows;
    for (int rank = 0; rank < size; rank++)
        rows[rank] = heads[rank]->count;
    return lengths_known(channel, error);
}

static horon_status_t piped(struct horon_channel *channel, struct horon_error *error)
{
    struct allgather *state = state_of(channel);
    if (state->reads && state->lent.refused) {
        state->reads = false;
        return begin_windows(channel, state);
    }
    if (state->lengths_known)
        return HORON_OK;
    for (int rank = 0; rank < channel->team->size; rank++)
        state->rows[rank] = *ahead_of(state, rank);
    return lengths_known(channel, error);
}

const struct horon_verb_ops horon_allgather_ops = {
    .state_bytes = state_bytes,
    .init = init,
    .begin = begin,
    .enter = enter,
    .entered = entered,
    .met = met,
    .exchanged = horon_phase_unreachable,
    .published = horon_phase_unreachable,
    .piped = piped,
    .settle = horon_phase_settled,
};
