/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls of the ABI that begin operations share: api.c, run.c, process_sets.c. Thread: any;
 * what is refused stands in horon_thread_error(). */
#ifndef HORON_SUBMIT_H
#define HORON_SUBMIT_H

#include "context_state.h"
#include "engine/team.h"

#include <stddef.h>

/** NULL is not, nor what is of no version that there is. */
static inline bool horon_descriptor_is_readable(const horon_descriptor_t *desc)
{
    return desc && desc->struct_bytes >= offsetof(horon_descriptor_t, dst_count);
}

/** Begins a call: nothing has failed in this thread yet. @param waits a callback must not call it
 * @return OK | ERR_INVALID | ERR_FORKED | ERR_CLOSED */
horon_status_t horon_context_refuse(struct horon_context *ctx, bool waits);
/** The team of a descriptor's process set, with a reference; of one that cannot be read the job,
 * where it is refused. @return OK | ERR_INVALID | why the team has failed */
horon_status_t horon_context_find_team(struct horon_context *ctx, const horon_descriptor_t *desc,
                                       struct horon_engine_team **team_out);
/** Refuses an operation, for @p why, a copy: it may be the thread's own. The text says which
 * operation, as far as @p desc tells. @return the status */
horon_status_t horon_refuse_described(struct horon_error why, const horon_descriptor_t *desc);
/** A request of this context. */
horon_status_t horon_context_make_request(struct horon_context *ctx, struct horon_engine_team *team,
                                          const horon_descriptor_t *desc,
                                          struct horon_request **request_out);
/** Ready to be posted: FLYING, with the engine's reference. */
void horon_request_launch(struct horon_request *request);
/** Counts, marks and posts it; nobody is woken. @return OK | ERR_MEMORY | ERR_DUPLICATE */
horon_status_t horon_request_post(struct horon_context *ctx, struct horon_request *request);
/** Submits @p n >= 1 of one team: a group, as horon_submit_group() does, or messages, of which
 * nobody has a handle. @return OK | ERR_INVALID | ERR_MEMORY, nothing is begun */
horon_status_t horon_team_submit_all(struct horon_context *ctx, struct horon_engine_team *team,
                                     const horon_descriptor_t *descs, size_t n, bool messages,
                                     horon_request_t **reqs);
/** As horon_run() once nothing is refused, on any team, past the mailbox never. @p error is the
 * thread's. @param own  horon's: it counts as none of those that may be in flight */
horon_status_t horon_team_run(struct horon_context *ctx, struct horon_engine_team *team,
                              const horon_descriptor_t *desc, bool own, int64_t timeout_ms,
                              struct horon_error *error);

#endif
