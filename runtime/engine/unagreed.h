/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a job whose ranks can agree on nothing, as Gloo's. Pure. */
#ifndef HORON_ENGINE_UNAGREED_H
#define HORON_ENGINE_UNAGREED_H

#include "operation.h"
#include "status.h"

/**
 * What is asked of an operation there, besides what is asked everywhere: that it is in order, or a
 * message with a tag that is not one of Gloo's own. Takes
 * the rows that each rank gives, which nobody tells there, from the splits: the caller's.
 * @param op its rows and count are there
 * @return OK | ERR_UNSUPPORTED, it is not in order | ERR_INVALID, the splits contradict src
 */
horon_status_t horon_unagreed_take(const horon_descriptor_t *desc, struct horon_operation *op,
                                   int rank, struct horon_error *error);

#endif
