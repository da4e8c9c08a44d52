/* SPDX-License-Identifier: Apache-2.0 */
/* A request is what its descriptor says, its place in its team, and where its buffers lie: one that
 * agrees in the first two is as good as new. */
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
