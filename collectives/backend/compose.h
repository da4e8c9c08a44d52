/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A verb that a backend lacks, made of one that it has. The row of the verb says which, and how:
 * here it is done. What comes out has the same bits.
 */
#ifndef HORON_BACKEND_COMPOSE_H
#define HORON_BACKEND_COMPOSE_H

#include "operation.h"
#include "status.h"

/** An operation made of another, and what it needs; all zero at first, and used again. */
struct horon_composed {
    struct horon_operation op;
    struct horon_part *parts; /* [limit] */
    size_t limit;
    void *scratch; /* what root has no output for */
    size_t scratch_bytes;
};

/** The signature of the verb that can take the place of another. @return false: there is none */
bool horon_compose_signature(const struct horon_signature *agreed, struct horon_signature *made);

/** Makes the operation; outputs of @p op may be written from now on. @return OK | ERR_MEMORY */
horon_status_t horon_compose(struct horon_composed *composed, const struct horon_operation *op,
                             int rank);
void horon_composed_deinit(struct horon_composed *composed);

#endif
