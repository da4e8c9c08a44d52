/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages among Gloo's ranks: a tag is a slot as it stands, so that the other end may be Gloo's
 * send() or recv() of an unbound buffer, or torch's with that tag. Slots whose highest byte is not
 * 0 are those of collectives. A receive has room for as much as it expects: Gloo lets less come.
 */
#include "backend/gloo_state.h"

#include "alloc.h"

/* One in flight. */
struct horon_gloo_carried {
    struct horon_backend_message *message;
    struct horon_gloo_carried *next;
    bool fresh; /* nothing of it was written yet */
    struct horon_gloo_message wire;
};

static horon_status_t gloo_begin_message(struct horon_backend_channel *base,
                                         struct horon_backend_message *message)
{
    struct horon_gloo_channel *channel = horon_gloo_channel_of(base);
    struct horon_gloo_pair *pair = channel->context->mesh.pairs[message->peer];
    struct horon_gloo_carried *carried = horon_zalloc(1, sizeof *carried);
    if (!carried)
        return HORON_ERR_MEMORY;
    carried->message = message;
    carried->fresh = true;
    carried->wire = (struct horon_gloo_message){
        .slot = message->tag, .data = message->data, .bytes = message->bytes};
    const horon_status_t status = message->sends ? horon_gloo_pair_send(pair, &carried->wire)
                                                 : horon_gloo_pair_recv(pair, &carried->wire);
    if (status != HORON_OK) {
        horon_free(carried);
        return status;
    }
    *channel->last_carried = carried;
    channel->last_carried = &carried->next;
    return HORON_OK;
}

/* Those that are done leave the list. */
static void collect(struct horon_gloo_channel *channel, struct horon_backend_message **ended_out)
{
    struct horon_gloo_carried **at = &channel->carried, *carried;
    struct horon_backend_message **last = ended_out;
    while ((carried = *at)) {
        if (!carried->wire.done) {
            at = &carried->next;
            continue;
        }
        *at = carried->next;
        carried->message->got = carried->wire.got;
        *last = carried->message;
        last = &carried->message->next;
        horon_free(carried);
    }
    channel->last_carried = at;
    *last = NULL;
}

/* What was begun since goes at once, also into a pair that had nothing to tell. */
static horon_status_t push(struct horon_gloo_channel *channel, bool *moved_out,
                           struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    for (struct horon_gloo_carried *carried = channel->carried; carried && status == HORON_OK;
         carried = carried->next) {
        if (carried->fresh)
            status = horon_gloo_mesh_move(channel, carried->message->peer, moved_out, error);
        carried->fresh = false;
    }
    return status;
}

static horon_status_t gloo_move_messages(struct horon_backend_channel *base,
                                         struct horon_backend_message **ended_out, bool *moved_out,
                                         struct horon_error *error)
{
    struct horon_gloo_channel *channel = horon_gloo_channel_of(base);
    horon_status_t status = push(channel, moved_out, error);
    if (status == HORON_OK)
        status = horon_gloo_look(channel, moved_out, error);
    collect(channel, ended_out);
    *moved_out |= *ended_out != NULL;
    return status;
}

static void gloo_give_up_messages(struct horon_backend_channel *base,
                                  struct horon_backend_message **ended_out)
{
    struct horon_gloo_channel *channel = horon_gloo_channel_of(base);
    collect(channel, ended_out);
    if (!channel->carried)
        return;
    horon_gloo_close_mesh(&channel->context->mesh); /* pairs know them, and others hear of it */
    horon_gloo_forget_messages(channel);
}

void horon_gloo_forget_messages(struct horon_gloo_channel *channel)
{
    while (channel->carried) {
        struct horon_gloo_carried *carried = channel->carried;
        channel->carried = carried->next;
        horon_free(carried);
    }
    channel->last_carried = &channel->carried;
}

const struct horon_backend_messages horon_gloo_messages = {
    .begin = gloo_begin_message,
    .move = gloo_move_messages,
    .give_up = gloo_give_up_messages,
};
