/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of a pair: messages, and what a peer has announced or given credit for. */
#include "link/gloo_pair.h"

#include "alloc.h"

/* What a peer may announce, or give credit for, beyond what this rank has begun. */
#define NOTES_MAX 65536

void horon_gloo_append(struct horon_gloo_list *list, struct horon_gloo_message *message)
{
    message->next = NULL;
    *list->last = message;
    list->last = &message->next;
}

struct horon_gloo_message *horon_gloo_take(struct horon_gloo_list *list, uint64_t slot,
                                           bool by_grant)
{
    for (struct horon_gloo_message **at = &list->first; *at; at = &(*at)->next) {
        struct horon_gloo_message *message = *at;
        if (message->slot != slot || message->by_grant != by_grant)
            continue;
        *at = message->next;
        if (!*at)
            list->last = at;
        return message;
    }
    return NULL;
}

bool horon_gloo_has(const struct horon_gloo_list *list, uint64_t slot)
{
    const struct horon_gloo_message *message = list->first;
    while (message && message->slot != slot)
        message = message->next;
    return message != NULL;
}

horon_status_t horon_gloo_note(struct horon_gloo_pair *pair, struct horon_gloo_note **list,
                               const struct horon_gloo_frame *frame, bool by_grant)
{
    struct horon_gloo_note **at = list;
    while (*at)
        at = &(*at)->next;
    *at = horon_zalloc(1, sizeof **at);
    if (!*at)
        return HORON_ERR_MEMORY;
    **at = (struct horon_gloo_note){
        .slot = frame->slot, .length = frame->length, .by_grant = by_grant};
    pair->note_count++;
    return pair->note_count <= NOTES_MAX ? HORON_OK : HORON_ERR_PROTO;
}

bool horon_gloo_drop_note(struct horon_gloo_pair *pair, struct horon_gloo_note **list,
                          uint64_t slot)
{
    while (*list && (*list)->slot != slot)
        list = &(*list)->next;
    struct horon_gloo_note *note = *list;
    if (!note)
        return false;
    *list = note->next;
    horon_free(note);
    pair->note_count--;
    return true;
}

void horon_gloo_drop_notes(struct horon_gloo_pair *pair, struct horon_gloo_note **list)
{
    while (*list)
        (void)horon_gloo_drop_note(pair, list, (*list)->slot);
}
