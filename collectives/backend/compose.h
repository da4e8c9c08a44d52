/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A verb that a backend lacks, made of one that it has, in host memory. The row of the verb says
 * which, and how: here it is done. What comes out has the same bits.
 */
#ifndef HORON_BACKEND_COMPOSE_H
#define HORON_BACKEND_COMPOSE_H

#include "operation.h"
#include "status.h"

/** An operation made of others, and what it needs; all zero at first, and used again. */
struct horon_composed {
    struct horon_operation op;           /* the one that is launched now */
    const struct horon_operation *whole; /* what it is made for */
    struct horon_part *parts;            /* [limit] */
    size_t limit;
    void *scratch; /* what there is no output for, or where a part of it is taken from */
    size_t scratch_bytes;
    int rank, size, round; /* rounds begun, with those in which nothing is given */
    bool keeps_rows;       /* at the end, of the whole that lies in scratch then */
    /* in rounds */
    const uint64_t *rows; /* [size][horon_verb_ahead_words()] by rank; NULL: it is one operation */
    uint64_t *taken;      /* [limit_ranks] rows that this rank gets of each */
    int limit_ranks;
    const char *own; /* what this rank gives */
    char *out;       /* where the round's output begins; NULL: nowhere */
};

/** The signature of the verb that can take the place of another. @return false: there is none */
bool horon_signature_compose(const struct horon_signature *agreed, struct horon_signature *made);

/** Must each rank's rows be known first? */
static inline bool horon_operation_needs_rows(const struct horon_operation *op)
{
    return horon_verb_of(&op->agreed)->recipe == HORON_RECIPE_ROUNDS;
}

/** Prepares the operations that horon_composed_next() gives; outputs of @p op may be written from
 * now on.
 * @param rows as in the struct, for an operation that needs them; they stay until it ends
 * @return OK | ERR_MEMORY | ERR_PROTO, the rows add up to more than memory can hold */
horon_status_t horon_composed_init(struct horon_composed *composed,
                                   const struct horon_operation *op, int rank, int size,
                                   const uint64_t *rows);
/** Makes the next one in composed->op, the one before having ended. @return false: that was all */
bool horon_composed_next(struct horon_composed *composed);
void horon_composed_deinit(struct horon_composed *composed);

#endif
