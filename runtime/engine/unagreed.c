/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's ranks know neither names nor horon's way to agree on anything, and tell no rows. */
#include "engine/unagreed.h"

#define TAG_MAX ((UINT64_C(1) << 56) - 1)

horon_status_t horon_unagreed_take(const horon_descriptor_t *desc, struct horon_operation *op,
                                   int rank, struct horon_error *error)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    if (row->paired && desc->tag > TAG_MAX)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "tag %llu: among Gloo's ranks those from 2^56 on are Gloo's own",
                               (unsigned long long)desc->tag);
    if (row->paired)
        return HORON_OK;
    if (!(desc->flags & HORON_IN_ORDER))
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "among Gloo's ranks (HORON_GLOO_STORE) there are messages and "
                               "operations in order alone, of the flag HORON_IN_ORDER, in Python "
                               "horon.prepare(..., in_order=True); nothing is negotiated, so "
                               "there are no named ones, joins or process sets");
    if (row->ahead != HORON_AHEAD_ROWS || row->writes != HORON_RANKS_ALL || !desc->splits)
        return HORON_OK;
    op->splits = desc->splits; /* the caller's: the request copies them */
    if (desc->splits[rank] * op->row_elements == op->count)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_INVALID,
                           "the splits give rank %d %llu rows, and src has others", rank,
                           (unsigned long long)desc->splits[rank]);
}
