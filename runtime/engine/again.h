/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that are used again instead of made anew. A caller mostly asks for what it asked for
 * before, with the same buffers or others: then what was checked, filled and hashed for that still
 * holds. A team keeps such requests for run.c (kept.h), the pool keeps them for all other callers.
 *
 * Thread: of a request that nobody else has, any.
 */
#ifndef HORON_ENGINE_AGAIN_H
#define HORON_ENGINE_AGAIN_H

#include "engine/request.h"

/** Was @p request made of a descriptor that says the same as @p desc, perhaps with buffers that lie
 * elsewhere, and for the rank and the size that @p team has? @p team is of the same engine, and
 * @p desc can be read as far as its struct_bytes. */
bool horon_request_says(const struct horon_request *request, const struct horon_engine_team *team,
                        const horon_descriptor_t *desc);
/** Can this request, which is not in flight, be used again after horon_request_deinit()? Not if it
 * ended badly, left a text or memory of its own, is persistent, or has a callback; nor if it has a
 * name, which is gone then, or a descriptor that points to more than buffers. */
bool horon_request_lasts(const struct horon_request *request);
/** Does the same as horon_request_init() with @p desc, but checks only the buffers. To be called if
 * horon_request_lasts() was true before the deinit, and horon_request_says() is true.
 * @return OK | ERR_INVALID: the request is as it was */
horon_status_t horon_request_make_again(struct horon_request *request,
                                        const horon_descriptor_t *desc,
                                        struct horon_engine_team *team, struct horon_error *error);

#endif
