/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that a backend carries (backend/messages.h): in a job among Gloo's ranks, whose backend
 * has the links. The other end may know nothing of horon, so that nothing is announced here and no
 * types are compared: that both ends name as many bytes shows only once they have come. Nor does a
 * rank say there that it leaves: one that is gone fails the team if a message waits for it.
 */
#include "engine/carried.h"

#include "backend/messages.h"
#include "engine/messages.h"

#include <stddef.h>

static struct horon_request *request_of(struct horon_backend_message *message)
{
    const size_t at = offsetof(struct horon_request, message.carried);
    return (struct horon_request *)(void *)((char *)message - at);
}

static const struct horon_backend_messages *table_of(const struct horon_engine_team *team)
{
    return team->messages.carrier->backend->messages;
}

void horon_carried_start(struct horon_request *request)
{
    const struct horon_operation *op = &request->op;
    struct horon_backend_message *message = &request->message.carried;
    struct horon_backend_channel *channel = request->team->messages.carrier;
    const bool sends = horon_message_sends(request);
    struct horon_error why;
    *message = (struct horon_backend_message){
        .peer = op->agreed.root,
        .sends = sends,
        .tag = request->message.tag,
        .data = sends ? (void *)(uintptr_t)request->part.src : request->part.dst,
        .bytes = (size_t)op->count * horon_dtype_bytes((horon_dtype_t)op->agreed.dtype),
    };
    if (table_of(request->team)->begin(channel, message) == HORON_OK) {
        horon_message_begins(request, HORON_MESSAGE_CARRIED);
        return;
    }
    horon_error_set(&why, HORON_ERR_MEMORY, "no memory for a message");
    horon_message_end(request, &why);
}

static void explain_difference(const struct horon_request *request, struct horon_error *why)
{
    const struct horon_engine_team *team = request->team;
    const struct horon_backend_message *message = &request->message.carried;
    const int self = team->view.rank;
    horon_error_set(why, HORON_ERR_MISMATCH,
                    "%s sends %zu bytes with tag %llu, and %s receives %zu",
                    team->rank_names[message->peer], message->got, (unsigned long long)message->tag,
                    team->rank_names[self], message->bytes);
    horon_error_blame_both(why, HORON_CAUSE_DESCRIPTION, team->ranks[self],
                           team->ranks[message->peer]);
}

static void end_all(struct horon_backend_message *ended)
{
    while (ended) {
        struct horon_backend_message *next = ended->next;
        struct horon_error why;
        const bool differs = !ended->sends && ended->got != ended->bytes;
        if (differs)
            explain_difference(request_of(ended), &why);
        horon_message_end(request_of(ended), differs ? &why : NULL);
        ended = next;
    }
}

bool horon_carried_move(struct horon_engine_team *team)
{
    struct horon_backend_message *ended;
    struct horon_error error;
    bool moved = false;
    horon_error_clear(&error);
    const horon_status_t status =
        table_of(team)->move(team->messages.carrier, &ended, &moved, &error);
    end_all(ended);
    if (status != HORON_OK)
        horon_team_fail_here(team, &error);
    return moved || status != HORON_OK;
}

void horon_carried_give_up(struct horon_engine_team *team)
{
    struct horon_backend_message *ended;
    table_of(team)->give_up(team->messages.carrier, &ended);
    end_all(ended);
}
