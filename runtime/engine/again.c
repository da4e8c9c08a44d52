/* SPDX-License-Identifier: Apache-2.0 */
/* A request is what its descriptor says, its place in its team, and where its buffers lie: one that
 * agrees in the first two is as good as new once it has forgotten its last run. */
#include "engine/again.h"

#include "engine/team.h"

#include <stddef.h>
#include <string.h>

/* The process set is among what is said, and stands for the team. */
bool horon_request_says(const struct horon_request *request, const struct horon_engine_team *team,
                        const horon_descriptor_t *desc)
{
    const horon_descriptor_t *said = &request->said;
    static_assert(offsetof(horon_descriptor_t, dst) + sizeof desc->dst ==
                      offsetof(horon_descriptor_t, count),
                  "the buffers lie together");
    return desc->struct_bytes == sizeof *desc &&
           memcmp(said, desc, offsetof(horon_descriptor_t, src)) == 0 &&
           memcmp(&said->count, &desc->count, sizeof *said - offsetof(horon_descriptor_t, count)) ==
               0 &&
           request->size == team->view.size && request->rank == team->view.rank;
}

bool horon_request_lasts(const struct horon_request *request)
{
    if (!request->said.struct_bytes || !(request->paired || request->in_order) ||
        request->persistent || request->callback || request->is_marked)
        return false;
    return !request->error_text && !request->owned_output && !request->output_rows &&
           request->status == HORON_OK;
}

horon_status_t horon_request_make_again(struct horon_request *request,
                                        const horon_descriptor_t *desc,
                                        struct horon_engine_team *team, struct horon_error *error)
{
    assert(!request->team && !request->linked && !request->is_grouped && !request->joins);
    const horon_status_t status = horon_request_move(request, desc, error);
    if (status != HORON_OK)
        return status;
    horon_request_reset(request);
    request->nobodys = request->own = false;
    atomic_store_explicit(&request->released, false, memory_order_relaxed);
    atomic_store_explicit(&request->state, HORON_REQUEST_IDLE, memory_order_relaxed);
    horon_request_belong(request, team);
    return HORON_OK;
}
