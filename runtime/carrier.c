/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which backend carries an operation, asked by a program: the choice that its lane makes, with what
 * the ranks have agreed on so far. Nothing is begun.
 */
#include "submit.h"

#include "versions.h"

#include <string.h>

/* What the choice looks at. @return false: there is no such operation */
static bool take(const horon_descriptor_t *desc, struct horon_operation *op)
{
    struct horon_signature *agreed = &op->agreed;
    *op = (struct horon_operation){.count = desc->count};
    if (desc->verb >= HORON_VERB_COUNT || desc->dtype >= HORON_DTYPE_COUNT ||
        desc->redop >= HORON_REDOP_COUNT || desc->memory >= HORON_MEMORY_COUNT)
        return false;
    *agreed = (struct horon_signature){
        .verb = (uint8_t)desc->verb,
        .dtype = (uint8_t)desc->dtype,
        .redop = (uint8_t)desc->redop,
        .memory = (uint8_t)(desc->memory ? desc->memory : HORON_MEMORY_HOST),
    };
    horon_signature_make_canonical(agreed);
    for (int i = 0; desc->shape && i < desc->ndim; i++)
        op->count = (i ? op->count : 1) * desc->shape[i];
    return agreed->memory != HORON_MEMORY_CUDA;
}

/* @return NULL: none */
static const char *choose(struct horon_context *ctx, const struct horon_engine_team *team,
                          const struct horon_operation *op, bool in_order)
{
    horon_token_take(ctx);
    if (horon_verb_of(&op->agreed)->paired) {
        const struct horon_backend_channel *carrier = team->messages.carrier;
        horon_token_release(ctx);
        return carrier ? carrier->backend->name : horon_backend_native.name; /* by its links */
    }
    const struct horon_route *route =
        &team->lanes[in_order ? HORON_LANE_ORDERED : HORON_LANE_NAMED].route;
    const struct horon_backend_choice choice =
        horon_backend_choose(&route->terms, &op->agreed, horon_operation_bytes(op));
    const char *name = choice.backend < 0 ? NULL : route->terms.backends[choice.backend]->name;
    horon_token_release(ctx);
    return name;
}

const char *horon_carrier(horon_context_t *ctx, const horon_descriptor_t *given)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    struct horon_engine_team *team = NULL;
    struct horon_operation op;
    if (!given || horon_context_refuse(ctx, true) != HORON_OK ||
        horon_struct_take("descriptor", given, offsetof(horon_descriptor_t, dst_count), &desc,
                          sizeof desc, horon_thread_error()) != HORON_OK ||
        !take(&desc, &op) || horon_context_find_team(ctx, &desc, &team) != HORON_OK)
        return NULL;
    const char *name = choose(ctx, team, &op, desc.flags & HORON_IN_ORDER);
    horon_team_unref(team);
    return name;
}
