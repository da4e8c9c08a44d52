/* SPDX-License-Identifier: Apache-2.0 */
/* What a pending tensor waits for, in words, as far as this rank knows. */
#include "internal.h"

#include <stdio.h>

#define RANKS_NAMED_MAX 8

struct line {
    char *text;
    size_t used, limit;
};

__attribute__((format(printf, 2, 3))) static void say(struct line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wrote = vsnprintf(line->text + line->used, line->limit - line->used, format, args);
    va_end(args);
    if (wrote > 0)
        line->used += (size_t)wrote;
    if (line->used >= line->limit)
        line->used = line->limit - 1;
}

/* The ranks that are awaited, as answers say, and what the first of them waits for itself: the same
 * tensor under another name, perhaps. @return was anybody? */
static bool say_awaited(const struct horon_coordinator *c, uint32_t index, struct line *line)
{
    uint32_t count;
    const struct coord_answer *awaited = horon_coord_inquiry_awaited(c, index, &count), *odd = NULL;
    char name[96], shown[COORD_OTHER_SHOWN + 1];
    for (uint32_t i = 0; i < count; i++) {
        say(line, "%s%s", i ? ", " : "waiting for ",
            horon_coord_rank_name(c, awaited[i].rank, name));
        if (!odd && awaited[i].other[0])
            odd = &awaited[i];
    }
    if (odd)
        say(line, "; rank %d waits for '%s'", odd->rank,
            horon_name_show(odd->other, shown, sizeof shown));
    return count > 0;
}

static void say_missing(const struct horon_coordinator *c, uint32_t index, struct line *line)
{
    uint32_t named = 0, missing = 0;
    char name[96];
    say(line, "waiting for ");
    for (uint32_t seat = 1; seat < c->seat_count; seat++) {
        if (!horon_coord_seat_lacks(c, index, seat) || ++missing > RANKS_NAMED_MAX)
            continue;
        say(line, "%s%s", named ? ", " : "", horon_coord_rank_name(c, c->seats[seat].rank, name));
        named++;
    }
    if (missing > named)
        say(line, " and %u more", missing - named);
}

static void say_whole(const struct horon_coordinator *c, uint32_t index, struct line *line)
{
    uint32_t number = c->entries[index].group;
    if (number == COORD_NONE)
        say(line, "ready here, about to be %s", c->parent < 0 ? "decided" : "reported");
    else
        say(line, "ready everywhere; of its group of %u only %u are", c->groups[number].size,
            c->groups[number].whole);
}

bool horon_coordinator_explain(const struct horon_coordinator *c, uint64_t token, char *text,
                               size_t text_bytes)
{
    uint32_t index = horon_coord_find_token(c, token);
    if (index == COORD_NONE || text_bytes == 0)
        return false;
    struct line line = {.text = text, .limit = text_bytes};
    char name[96], shown[COORD_NAME_SHOWN + 1];
    say(&line, "tensor '%s': ", horon_name_show(c->cold[index].name, shown, sizeof shown));
    switch ((enum coord_state)c->entries[index].state) {
    case COORD_GATHERING:
        if (!say_awaited(c, index, &line))
            say_missing(c, index, &line);
        break;
    case COORD_WHOLE:
        say_whole(c, index, &line);
        break;
    case COORD_REPORTED:
        if (!say_awaited(c, index, &line))
            say(&line, "reported to %s; waiting for other ranks",
                horon_coord_rank_name(c, c->parent, name));
        break;
    case COORD_RECALLED:
        say(&line, "%s was asked to forget it", horon_coord_rank_name(c, c->parent, name));
        break;
    case COORD_IDLE:
        break; /* not while it is pending */
    }
    return true;
}

int horon_coordinator_awaited(const struct horon_coordinator *c, uint64_t token)
{
    const uint32_t index = horon_coord_find_token(c, token);
    uint32_t count = 0;
    if (index == COORD_NONE)
        return -1;
    const struct coord_answer *awaited = horon_coord_inquiry_awaited(c, index, &count);
    if (count)
        return awaited[0].rank;
    const bool gathers = c->entries[index].state == COORD_GATHERING;
    for (uint32_t seat = 1; gathers && seat < c->seat_count; seat++)
        if (horon_coord_seat_lacks(c, index, seat))
            return c->seats[seat].rank;
    return -1;
}

void horon_coordinator_explain_join(const struct horon_coordinator *c, char *text,
                                    size_t text_bytes)
{
    struct line line = {.text = text, .limit = text_bytes};
    int named = 0;
    char name[96];
    assert(text_bytes > 0);
    say(&line, "waiting for ");
    for (int rank = 0; rank < c->size && named < RANKS_NAMED_MAX; rank++)
        if (c->joined[rank] == COORD_JOIN_NOT)
            say(&line, "%s%s", named++ ? ", " : "", horon_coord_rank_name(c, rank, name));
    if (named == 0)
        say(&line, "all ranks to hear that all have joined");
    else if (c->size - c->joined_count > named)
        say(&line, " and more to join");
    else
        say(&line, " to join");
}

int horon_coordinator_awaited_join(const struct horon_coordinator *c)
{
    for (int rank = 0; rank < c->size; rank++)
        if (c->joined[rank] == COORD_JOIN_NOT)
            return rank;
    return -1;
}
