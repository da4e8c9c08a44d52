/* SPDX-License-Identifier: Apache-2.0 */
/* A short list, searched from its beginning: connections that are refused are few, or strangers
 * fill it. */
#include "boot/connect/refusals.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Without the port, which is another at each try. */
static int host_bytes(const char *from)
{
    const char *colon = strrchr(from, ':');
    const bool port = colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == 0;
    return port ? (int)(colon - from) : (int)strlen(from);
}

static void name(struct horon_refusal *item, int rank, bool proven, const char *from)
{
    if (rank == HORON_REFUSALS_NOBODY)
        snprintf(item->peer, sizeof item->peer, "%.*s", host_bytes(from), from);
    else if (proven)
        snprintf(item->peer, sizeof item->peer, "rank %d at %.*s", rank, host_bytes(from), from);
    else
        snprintf(item->peer, sizeof item->peer, "%.*s (which says that it is rank %d)",
                 host_bytes(from), from, rank);
}

const struct horon_refusal *horon_refusals_note(struct horon_refusals *refusals, int rank,
                                                bool proven, const char *from, const char *why)
{
    struct horon_refusal one = {.times = 1};
    int i = 0;
    name(&one, rank, proven, from);
    snprintf(one.why, sizeof one.why, "%s", why);
    while (i < refusals->count && (strcmp(refusals->items[i].peer, one.peer) != 0 ||
                                   strcmp(refusals->items[i].why, one.why) != 0))
        i++;
    assert(i <= HORON_REFUSALS_MAX);
    struct horon_refusal *item = &refusals->items[i];
    if (item->times++)
        return NULL;
    *item = one;
    refusals->count += i < HORON_REFUSALS_MAX;
    return item;
}

uint64_t horon_refusals_times(const struct horon_refusals *refusals)
{
    uint64_t times = 0;
    for (int i = 0; i <= HORON_REFUSALS_MAX; i++)
        times += refusals->items[i].times;
    return times;
}

void horon_refusals_describe(const struct horon_refusals *refusals, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < refusals->count && used < text_bytes; i++) {
        const struct horon_refusal *item = &refusals->items[i];
        char times[32] = "";
        if (item->times > 1)
            snprintf(times, sizeof times, " %" PRIu64 " times", item->times);
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s was refused%s: %s",
                                 used ? "; " : "", item->peer, times, item->why);
    }
}
