/* SPDX-License-Identifier: Apache-2.0 */
/* A place a verb. A request that finds its place taken, since another thread's was put there
 * meanwhile, is freed, and so is one with more to forget than its run does itself (finish.c). */
#include "engine/kept.h"

#include "alloc.h"
#include "engine/engine_state.h"

#include <stddef.h>
#include <string.h>

struct horon_kept {
    struct horon_request request;
    horon_descriptor_t said; /* what it is made of */
};

static struct horon_kept *kept_of(struct horon_request *request)
{
    return (struct horon_kept *)(void *)request;
}

/* Do both say the same, but perhaps for where the buffers lie? What lies behind another pointer may
 * have changed, so there must be none. */
static bool is_said_again(const horon_descriptor_t *said, const horon_descriptor_t *desc)
{
    static_assert(offsetof(horon_descriptor_t, dst) + sizeof desc->dst ==
                      offsetof(horon_descriptor_t, count),
                  "the buffers lie together");
    return memcmp(&said->count, &desc->count, sizeof *said - offsetof(horon_descriptor_t, count)) ==
               0 &&
           memcmp(said, desc, offsetof(horon_descriptor_t, src)) == 0 && !said->name &&
           !said->shape && !said->splits;
}

static struct horon_kept **place_of(struct horon_engine_team *team, uint32_t verb)
{
    assert(verb < HORON_VERB_COUNT);
    return &team->kept[verb];
}

/* All zero, but for the room for rows that a former use left. */
static struct horon_kept *clean(struct horon_kept *kept)
{
    uint64_t *rows_room = kept ? kept->request.rows_room : NULL;
    const int rows_limit = kept ? kept->request.rows_limit : 0;
    if (!kept)
        kept = horon_alloc_lines(sizeof *kept);
    if (!kept)
        return NULL;
    memset(kept, 0, sizeof *kept);
    kept->request.rows_room = rows_room;
    kept->request.rows_limit = rows_limit;
    return kept;
}

/* @param kept  NULL: there is none yet */
static horon_status_t make(struct horon_engine_team *team, const horon_descriptor_t *desc,
                           struct horon_kept *kept, struct horon_request **request_out,
                           struct horon_error *error)
{
    struct horon_names *names = &team->engine->names;
    if (kept)
        horon_request_deinit(&kept->request, names);
    kept = clean(kept);
    if (!kept)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a request");
    const horon_status_t status = horon_request_init(&kept->request, desc, team, names, error);
    if (status != HORON_OK) {
        horon_kept_free(&kept->request, names);
        return status;
    }
    if (desc->struct_bytes == sizeof *desc)
        kept->said = *desc;
    *request_out = &kept->request;
    return HORON_OK;
}

horon_status_t horon_kept_take(struct horon_engine_team *team, const horon_descriptor_t *desc,
                               struct horon_request **request_out, struct horon_error *error)
{
    struct horon_kept *kept = NULL;
    HORON_ASSERT_OWNER(team->engine->options.owner);
    if (desc->verb < HORON_VERB_COUNT) {
        kept = *place_of(team, desc->verb);
        *place_of(team, desc->verb) = NULL;
    }
    if (!kept || desc->struct_bytes != sizeof *desc || !is_said_again(&kept->said, desc))
        return make(team, desc, kept, request_out, error);
    horon_status_t status = HORON_OK;
    if (kept->said.src != desc->src || kept->said.dst != desc->dst)
        status = horon_request_move(&kept->request, desc, error);
    if (status != HORON_OK) {
        horon_kept_free(&kept->request, &team->engine->names);
        return status;
    }
    kept->said.src = desc->src;
    kept->said.dst = desc->dst;
    *request_out = &kept->request;
    return HORON_OK;
}

void horon_kept_put(struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_kept **place = place_of(team, request->verb);
    HORON_ASSERT_OWNER(team->engine->options.owner);
    assert(request->team == team && request->nobodys && !request->linked && !request->name);
    assert(atomic_load_explicit(&request->refs, memory_order_relaxed) == 1);
    request->since_ns = 0;
    if (*place || request->owned_output || request->is_marked || request->callback)
        horon_kept_free(request, &team->engine->names);
    else
        *place = kept_of(request);
}

void horon_kept_free(struct horon_request *request, struct horon_names *names)
{
    horon_request_deinit(request, names);
    horon_free(request->rows_room);
    horon_free(kept_of(request));
}

void horon_kept_drop(struct horon_engine_team *team)
{
    for (uint32_t verb = 0; verb < HORON_VERB_COUNT; verb++) {
        struct horon_kept *kept = *place_of(team, verb);
        *place_of(team, verb) = NULL;
        if (kept)
            horon_kept_free(&kept->request, &team->engine->names);
    }
}
