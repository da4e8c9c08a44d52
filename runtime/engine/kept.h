/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of run.c that their team keeps, the last one of each verb: a caller mostly runs what it
 * ran before, with the same buffers or others. What was checked, filled and hashed for that is then
 * not made anew; only the buffers are looked at again. A request that flies is not kept: it is
 * taken out, and put back once it has ended well.
 *
 * Owner: the thread that holds the progress token.
 */
#ifndef HORON_ENGINE_KEPT_H
#define HORON_ENGINE_KEPT_H

#include "engine/request.h"

/** A request, IDLE, of @p desc: as horon_request_init() makes it. It is the caller's, until it puts
 * or frees it. @param request_out likewise set on OK only */
horon_status_t horon_kept_take(struct horon_engine_team *team, const horon_descriptor_t *desc,
                               struct horon_request **request_out, struct horon_error *error);
/** Gives it back: it was not begun, or has ended well, and its submitter has seen that. It is freed
 * if its team was removed meanwhile. */
void horon_kept_put(struct horon_engine_team *team, struct horon_request *request);
/** Instead, however it ended. Thread: any. */
void horon_kept_free(struct horon_request *request, struct horon_names *names);
/** Frees all that a team keeps: it is bound to a membership no more. */
void horon_kept_drop(struct horon_engine_team *team);

#endif
