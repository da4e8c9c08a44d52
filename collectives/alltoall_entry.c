/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry of an all-to-all: what a rank tells those of its host when it begins. Its words: the
 * most rows that it gives one of the host, and the sums of its rows for the first of them, the
 * first two, and so on. They lie in the line of the head, with 4 bytes each, if the host has few
 * ranks. What goes with them, the rows or the offer of them (exec/lent.h), lies behind them if
 * there is room, or in an area, where rows begin on a line: a reader of few has one more line to
 * fetch. Else words of 8 bytes begin the area, and the first one of 4 bytes says so.
 */
#include "alltoall_state.h"

#include <string.h>

/* The first word in the line of the head: the words are in the area. More rows than any such entry
 * has. */
#define IN_AREA UINT32_MAX

static size_t near_bytes(const struct horon_channel *channel)
{
    const size_t words = 1 + (size_t)channel->team->local_size;
    return (words + 1) / 2 * sizeof(uint64_t);
}

static size_t far_bytes(const struct horon_channel *channel)
{
    return (1 + (size_t)channel->team->local_size) * sizeof(uint64_t);
}

struct horon_alltoall_entry horon_alltoall_entry_of(const struct horon_channel *channel,
                                                    struct horon_slot_head *head, int local)
{
    const uint32_t *near = (const uint32_t *)(const void *)horon_slot_data(head);
    const uint8_t *data = horon_entry_data(channel, head, local);
    if (near_bytes(channel) > HORON_SLOT_DATA_BYTES || near[0] == IN_AREA)
        return (struct horon_alltoall_entry){.wide = (const uint64_t *)(const void *)data,
                                             .rows = data + far_bytes(channel)};
    const bool behind = data == (const uint8_t *)near;
    return (struct horon_alltoall_entry){.narrow = near,
                                         .rows = behind ? data + near_bytes(channel) : data};
}

uint64_t horon_alltoall_elements(const struct horon_alltoall_unit *unit, uint64_t rows)
{
    uint64_t elements = 0;
    if (__builtin_mul_overflow(rows, unit->row_elements, &elements) ||
        elements > (uint64_t)INT64_MAX >> unit->shift)
        return UINT64_MAX;
    return elements;
}

bool horon_alltoall_fits_slot(const struct horon_channel *channel,
                              const struct horon_alltoall_unit *unit, uint64_t rows)
{
    return horon_alltoall_elements(unit, rows) <= channel->host->shape.small_bytes >> unit->shift;
}

/* @param words_out [1 + local size] */
static void fill_words(const struct horon_channel *channel, bool narrow, void *words_out)
{
    const struct horon_team *team = channel->team;
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    uint32_t *narrow_out = words_out;
    uint64_t *wide_out = words_out, sum = 0, most = 0;
    for (int local = 0; local < team->local_size; local++) {
        const uint64_t rows = state->give_rows[horon_alltoall_rank_here(team, local)];
        most = rows > most ? rows : most;
        sum += rows;
        if (narrow)
            narrow_out[1 + local] = (uint32_t)sum;
        else
            wide_out[1 + local] = sum;
    }
    assert(sum == state->given);
    assert(!narrow || sum < IN_AREA);
    if (narrow)
        narrow_out[0] = (uint32_t)most;
    else
        wide_out[0] = most;
}

/* @return where @p bytes of data go with them */
static uint8_t *place_words(struct horon_channel *channel, size_t bytes)
{
    uint8_t *near = horon_slot_data(horon_channel_own(channel));
    const size_t words = near_bytes(channel);
    const bool fits = words <= HORON_SLOT_DATA_BYTES;
    if (fits && horon_alltoall_of(channel)->given < IN_AREA) {
        fill_words(channel, true, near);
        return words + bytes <= HORON_SLOT_DATA_BYTES ? near + words
                                                      : horon_phase_place_in_area(channel, bytes);
    }
    uint8_t *far = horon_phase_place_in_area(channel, far_bytes(channel) + bytes);
    if (fits)
        memcpy(near, &(uint32_t){IN_AREA}, sizeof(uint32_t));
    fill_words(channel, false, far);
    return far + far_bytes(channel);
}

bool horon_alltoall_offers(const struct horon_channel *channel)
{
    const bool all_read = horon_alltoall_of(channel)->taker == HORON_ALLTOALL_EACH;
    return channel->lends && (all_read || channel->team->size == 2);
}

void horon_alltoall_enter(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    size_t bytes = (size_t)state->give_at[team->size] * channel->element_bytes;
    const bool offers = horon_alltoall_offers(channel) && bytes > channel->host->shape.small_bytes;
    if (team->host_count > 1 || bytes > channel->host->shape.small_bytes)
        bytes = offers ? sizeof(struct horon_lent_input) : 0;
    if (!horon_alltoall_gives_others(channel, team->rank))
        bytes = 0;
    uint8_t *place = place_words(channel, bytes);
    if (offers && bytes) {
        const struct horon_lent_input offer = horon_lent_offer(channel, state->own);
        memcpy(place, &offer, sizeof offer);
    } else if (bytes) {
        horon_stream_copy(&channel->stream, place, state->own, bytes);
    }
}
