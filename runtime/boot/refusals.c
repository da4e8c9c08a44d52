/* SPDX-License-Identifier: Apache-2.0 */
/* A short list, searched from its beginning: connections that are refused are few, or strangers
 * fill it. */
#include "boot/refusals.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void copy_host(const char *from, char *host, size_t host_bytes)
{
    const char *colon = strrchr(from, ':');
    const bool port = colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == 0;
    snprintf(host, host_bytes, "%.*s", port ? (int)(colon - from) : (int)strlen(from), from);
}

bool horon_refusals_note(struct horon_refusals *refusals, int rank, bool proven, const char *from,
                         const char *why)
{
    struct horon_refusal one = {.rank = rank, .proven = proven, .times = 1};
    copy_host(from, one.from, sizeof one.from);
    snprintf(one.why, sizeof one.why, "%s", why);
    for (int i = 0; i < refusals->count; i++) {
        struct horon_refusal *item = &refusals->items[i];
        if (item->rank != rank || item->proven != proven || strcmp(item->from, one.from) != 0 ||
            strcmp(item->why, one.why) != 0)
            continue;
        item->times++;
        return false;
    }
    const bool tell = !refusals->full;
    refusals->full = refusals->count == HORON_REFUSALS_MAX;
    if (!refusals->full)
        refusals->items[refusals->count++] = one;
    else
        refusals->beyond++;
    return tell;
}

void horon_refusals_name(int rank, bool proven, const char *from, char *text, size_t text_bytes)
{
    if (rank == HORON_REFUSALS_NOBODY)
        snprintf(text, text_bytes, "%s", from);
    else if (proven)
        snprintf(text, text_bytes, "rank %d at %s", rank, from);
    else
        snprintf(text, text_bytes, "%s, which says that it is rank %d,", from, rank);
}

uint64_t horon_refusals_times(const struct horon_refusals *refusals)
{
    uint64_t times = refusals->beyond;
    for (int i = 0; i < refusals->count; i++)
        times += refusals->items[i].times;
    return times;
}

void horon_refusals_describe(const struct horon_refusals *refusals, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < refusals->count && used < text_bytes; i++) {
        const struct horon_refusal *item = &refusals->items[i];
        char who[HORON_REFUSALS_WHO_BYTES], times[32] = "";
        horon_refusals_name(item->rank, item->proven, item->from, who, sizeof who);
        if (item->times > 1)
            snprintf(times, sizeof times, " %" PRIu64 " times", item->times);
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s was turned away%s: %s",
                                 used ? "; " : "", who, times, item->why);
    }
}
