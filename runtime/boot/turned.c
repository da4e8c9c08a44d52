/* SPDX-License-Identifier: Apache-2.0 */
/* A short list, searched from its begin: those who come are few, or strangers who fill it. */
#include "boot/turned.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void copy_host(const char *from, char *host, size_t host_bytes)
{
    const char *colon = strrchr(from, ':');
    const bool port = colon && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == 0;
    snprintf(host, host_bytes, "%.*s", port ? (int)(colon - from) : (int)strlen(from), from);
}

bool horon_turned_note(struct horon_turned *turned, int rank, const char *from, const char *why)
{
    struct horon_turned_item one = {.rank = rank, .times = 1};
    copy_host(from, one.from, sizeof one.from);
    snprintf(one.why, sizeof one.why, "%s", why);
    for (int i = 0; i < turned->count; i++) {
        struct horon_turned_item *item = &turned->items[i];
        if (item->rank != rank || strcmp(item->from, one.from) != 0 ||
            strcmp(item->why, one.why) != 0)
            continue;
        item->times++;
        return false;
    }
    const bool tell = !turned->full;
    turned->full = turned->count == HORON_TURNED_MAX;
    if (!turned->full)
        turned->items[turned->count++] = one;
    else
        turned->beyond++;
    return tell;
}

uint64_t horon_turned_times(const struct horon_turned *turned)
{
    uint64_t times = turned->beyond;
    for (int i = 0; i < turned->count; i++)
        times += turned->items[i].times;
    return times;
}

void horon_turned_describe(const struct horon_turned *turned, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < turned->count && used < text_bytes; i++) {
        const struct horon_turned_item *item = &turned->items[i];
        char who[24] = "", times[32] = "";
        if (item->rank != HORON_TURNED_NOBODY)
            snprintf(who, sizeof who, "rank %d at ", item->rank);
        if (item->times > 1)
            snprintf(times, sizeof times, " %" PRIu64 " times", item->times);
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s%s was turned away%s: %s",
                                 used ? "; " : "", who, item->from, times, item->why);
    }
}
