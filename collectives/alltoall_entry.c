/* SPDX-License-Identifier: Apache-2.0 */
/* The entry of an all-to-all: what a rank tells those of its host when it begins. Its words: the
 * most rows that it gives one of the host, and the sums of its rows for the first of them, the
 * first two, and so on; behind them lie the rows, or the offer of them (exec/lent.h). In the line
 * of the head a word has 4 bytes, so that a few rows of a few ranks fit there, too, and in an area
 * 8. */
#include "alltoall_state.h"

#include <string.h>

static size_t words_bytes(const struct horon_channel *channel, bool narrow)
{
    const size_t words = 1 + (size_t)channel->team->local_size;
    return narrow ? (words + 1) / 2 * sizeof(uint64_t) : words * sizeof(uint64_t);
}

struct horon_alltoall_entry horon_alltoall_entry_of(const struct horon_channel *channel,
                                                    struct horon_slot_head *head, int local)
{
    const bool narrow = head->area == 0;
    const uint8_t *data = horon_entry_data(channel, head, local);
    return (struct horon_alltoall_entry){.narrow =
                                             narrow ? (const uint32_t *)(const void *)data : NULL,
                                         .wide = (const uint64_t *)(const void *)data,
                                         .rows = data + words_bytes(channel, narrow)};
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
    assert(!narrow || sum <= UINT32_MAX);
    if (narrow)
        narrow_out[0] = (uint32_t)most;
    else
        wide_out[0] = most;
}

bool horon_alltoall_offers(const struct horon_channel *channel)
{
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    return channel->lends && (row->writes == HORON_RANKS_ALL || channel->team->size == 2);
}

void horon_alltoall_enter(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    const struct horon_alltoall *state = horon_alltoall_of(channel);
    size_t bytes = (size_t)state->give_at[team->size] * channel->element_bytes;
    const bool offers = horon_alltoall_offers(channel) && bytes > channel->host->shape.small_bytes;
    if (team->host_count > 1 || bytes > channel->host->shape.small_bytes)
        bytes = offers ? sizeof(struct horon_lent_input) : 0;
    const bool narrow =
        words_bytes(channel, true) + bytes <= HORON_SLOT_DATA_BYTES && state->given <= UINT32_MAX;
    const size_t words = words_bytes(channel, narrow);
    uint8_t *place = narrow ? horon_phase_place(channel, words + bytes)
                            : horon_phase_place_in_area(channel, words + bytes);
    fill_words(channel, narrow, place);
    if (offers) {
        const struct horon_lent_input offer = horon_lent_offer(channel, state->own);
        memcpy(place + words, &offer, sizeof offer);
    } else if (bytes) {
        horon_stream_copy(&channel->stream, place + words, state->own, bytes);
    }
}
