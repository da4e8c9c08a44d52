/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that are made again instead of anew: a caller mostly asks for what it asked for before,
 * with the same buffers or others, and what was checked, filled and hashed for that counts still.
 * What does so is kept by a team for run.c (kept.h), and by the pool for all others.
 *
 * Thread: of a request that nobody else has, any.
 */
#ifndef HORON_ENGINE_AGAIN_H
#define HORON_ENGINE_AGAIN_H

#include "engine/request.h"

/** Would one of @p desc to @p team, which is of the same engine, be the same but perhaps for where
 * the buffers lie? @p desc can be read as far as its struct_bytes. */
bool horon_request_says(const struct horon_request *request, const struct horon_engine_team *team,
                        const horon_descriptor_t *desc);
/** May it be made again after horon_request_deinit()? It does not fly. One that ended badly, or
 * with more to forget, may not; nor may a named one, whose name is gone then. */
bool horon_request_lasts(const struct horon_request *request);
/** One that lasted and says the same becomes what horon_request_init() would make of @p desc; it
 * has nothing to check but the buffers. @return OK | ERR_INVALID: it is as it was */
horon_status_t horon_request_make_again(struct horon_request *request,
                                        const horon_descriptor_t *desc,
                                        struct horon_engine_team *team, struct horon_error *error);

#endif
