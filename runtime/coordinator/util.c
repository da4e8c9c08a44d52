/* SPDX-License-Identifier: Apache-2.0 */
/* Small helps of the room: arrays that grow, names on the wire, and how a rank is called in a text.
 */
#include "internal.h"

#include <stdio.h>

horon_status_t horon_coord_grow(void *array, size_t *capacity, size_t need, size_t item_bytes)
{
    size_t room = *capacity ? *capacity : 16;
    while (room < need) {
        if (room > SIZE_MAX / 2 / item_bytes)
            return HORON_ERR_MEMORY;
        room *= 2;
    }
    void *old;
    memcpy(&old, array, sizeof old); /* array is the address of a pointer of any type */
    void *grown = horon_realloc(old, room * item_bytes);
    if (!grown)
        return HORON_ERR_MEMORY;
    memcpy(array, &grown, sizeof grown);
    *capacity = room;
    return HORON_OK;
}

static struct coord_reason *keep(const struct horon_blame *blame, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    struct coord_reason *reason = horon_alloc(sizeof *reason + bytes);
    if (!reason)
        return NULL;
    reason->blame = *blame;
    memcpy(reason->text, text, bytes);
    return reason;
}

struct coord_reason *horon_coord_reason_keep(const struct horon_error *why)
{
    assert(why->status == HORON_ERR_MISMATCH);
    return keep(&why->blame, why->text);
}

struct coord_reason *horon_coord_reason_copy(const struct coord_reason *reason)
{
    return keep(&reason->blame, reason->text);
}

const char *horon_coord_rank_name(const struct horon_coordinator *c, int rank, char text[96])
{
    if (c->rank_names && c->rank_names[rank])
        snprintf(text, 96, "%s", c->rank_names[rank]);
    else
        snprintf(text, 96, "rank %d", rank);
    return text;
}

bool horon_coord_read_name(struct horon_reader *in, char name[HORON_NAME_BYTES_MAX + 1])
{
    horon_read_string(in, name, HORON_NAME_BYTES_MAX + 1);
    if (!name[0])
        in->ok = false;
    return in->ok;
}
