/* SPDX-License-Identifier: Apache-2.0 */
/* The maximum of words, as any operation of the channel. */
#include "backend/words.h"

#include "alloc.h"

horon_status_t horon_words_clear(struct horon_words *words, size_t count)
{
    assert(!words->flying);
    if (words->limit < count) {
        horon_free(words->words);
        words->words = horon_zalloc(count, sizeof *words->words);
        words->limit = words->words ? count : 0;
    }
    if (!words->words)
        return HORON_ERR_MEMORY;
    memset(words->words, 0, count * sizeof *words->words);
    return HORON_OK;
}

size_t horon_words_put_rows(struct horon_words *words, const struct horon_operation *op,
                            const struct horon_team *team)
{
    const size_t size = (size_t)team->size, rank = (size_t)team->rank;
    const size_t each = horon_verb_ahead_words(horon_verb_of(&op->agreed), team->size);
    if (horon_words_clear(words, size * each) != HORON_OK)
        return 0;
    memcpy(words->words + rank * each, op->ahead, each * sizeof *op->ahead);
    return size * each;
}

void horon_words_begin(struct horon_words *words, size_t count, const struct horon_operation *op,
                       uint64_t check)
{
    assert(!words->flying);
    assert(count <= words->limit);
    words->part = (struct horon_part){.src = words->words, .dst = words->words, .count = count};
    words->op = (struct horon_operation){
        .agreed = {.prescale = 1,
                   .postscale = 1,
                   .verb = (uint8_t)horon_verb_of_words,
                   .dtype = HORON_UINT64,
                   .redop = HORON_MAX,
                   .memory = HORON_MEMORY_HOST,
                   .ndim = 1,
                   .shape = {count}},
        .check = op ? op->check : check,
        .ahead_of = op,
        .count = count,
        .parts = &words->part,
        .part_count = 1,
    };
    words->flying = true;
    words->channel->backend->begin(words->channel, &words->op);
}

horon_status_t horon_words_advance(struct horon_words *words, bool *moved_out,
                                   struct horon_error *error)
{
    assert(words->flying);
    const horon_status_t status =
        words->channel->backend->advance(words->channel, moved_out, error);
    if (status == HORON_OK)
        words->flying = false;
    return status;
}

bool horon_words_wait_for(const struct horon_words *words, int rank)
{
    return words->flying && words->channel->backend->waits_for(words->channel, rank);
}

void horon_words_abort(struct horon_words *words)
{
    if (words->flying)
        words->channel->backend->abort(words->channel);
    words->flying = false;
}

void horon_words_deinit(struct horon_words *words)
{
    horon_free(words->words);
    *words = (struct horon_words){0};
}
