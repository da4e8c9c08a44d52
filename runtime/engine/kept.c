/* SPDX-License-Identifier: Apache-2.0 */
/* A place a verb. A request that finds its place taken, since another thread's was put there
 * meanwhile, is freed, and so is one with more to forget than its run does itself (finish.c), and
 * one whose team is bound to no membership any more: nothing would drop it. */
#include "engine/kept.h"

#include "engine/again.h"
#include "engine/engine_state.h"
#include "engine/pool.h"

static struct horon_request **place_of(struct horon_engine_team *team, uint32_t verb)
{
    assert(verb < HORON_VERB_COUNT);
    return &team->kept[verb];
}

/* @param request  NULL: there is none yet */
static horon_status_t make(struct horon_engine_team *team, const horon_descriptor_t *desc,
                           struct horon_request *request, struct horon_request **request_out,
                           struct horon_error *error)
{
    struct horon_names *names = &team->engine->names;
    if (request)
        horon_request_clean(request, names);
    else
        request = horon_request_alloc();
    if (!request)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a request");
    const horon_status_t status = horon_request_init(request, desc, team, names, error);
    if (status != HORON_OK) {
        horon_kept_free(request, names);
        return status;
    }
    request->nobodys = true;
    *request_out = request;
    return HORON_OK;
}

horon_status_t horon_kept_take(struct horon_engine_team *team, const horon_descriptor_t *desc,
                               struct horon_request **request_out, struct horon_error *error)
{
    struct horon_request *request = NULL;
    HORON_ASSERT_OWNER(team->engine->options.owner);
    if (desc->verb < HORON_VERB_COUNT) {
        request = *place_of(team, desc->verb);
        *place_of(team, desc->verb) = NULL;
    }
    if (!request || !horon_request_says(request, team, desc))
        return make(team, desc, request, request_out, error);
    const horon_status_t status = horon_request_move(request, desc, error);
    if (status != HORON_OK)
        horon_kept_free(request, &team->engine->names);
    else
        *request_out = request;
    return status;
}

void horon_kept_put(struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_request **place = place_of(team, request->verb);
    HORON_ASSERT_OWNER(team->engine->options.owner);
    assert(request->team == team && request->nobodys && !request->linked && !request->name);
    assert(atomic_load_explicit(&request->refs, memory_order_relaxed) == 1);
    request->since_ns = 0;
    if (*place || request->owned_output || request->is_marked || request->callback ||
        !horon_team_is_bound(team))
        horon_kept_free(request, &team->engine->names);
    else
        *place = request;
}

void horon_kept_free(struct horon_request *request, struct horon_names *names)
{
    horon_request_deinit(request, names);
    horon_request_free(request);
}

void horon_kept_drop(struct horon_engine_team *team)
{
    for (uint32_t verb = 0; verb < HORON_VERB_COUNT; verb++) {
        struct horon_request *request = *place_of(team, verb);
        *place_of(team, verb) = NULL;
        if (request)
            horon_kept_free(request, &team->engine->names);
    }
}
