/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of a context that were released, kept for the next submissions: a steady cycle allocates
 * nothing. Of each verb the last one in order, or message, stays as it was made, since a caller
 * mostly submits what it submitted before, with the same buffers or others: then it is made again
 * instead of anew. (What run.c carries out past the mailbox is kept by its team: kept.h.)
 */
#ifndef HORON_ENGINE_POOL_H
#define HORON_ENGINE_POOL_H

#include "engine/request.h"

struct horon_request_pool {
    pthread_mutex_t lock; /* guards the list and its count */
    struct horon_request *free;
    size_t count;
    size_t limit; /* requests that are kept at most; set by the maker of the pool */
    /* By verb, or NULL: released, and as it was made but for its team, to which it has no
     * reference. It is its taker's alone. */
    struct horon_request *_Atomic last[HORON_VERB_COUNT];
};

void horon_request_pool_init(struct horon_request_pool *pool);
void horon_request_pool_deinit(struct horon_request_pool *pool);

/** A request from the pool or the heap, made as horon_request_init() does, which says the rest.
 * Thread: any. */
horon_status_t horon_request_create(struct horon_request_pool *pool, const horon_descriptor_t *desc,
                                    struct horon_engine_team *team, struct horon_names *names,
                                    struct horon_request **request_out, struct horon_error *error);
/** Thread: any. */
void horon_request_destroy(struct horon_request_pool *pool, struct horon_request *request,
                           struct horon_names *names);

/** The memory of one, all zero. @return NULL: there is none */
struct horon_request *horon_request_alloc(void);
/** All zero again, but for the room for rows, and nothing held. */
void horon_request_clean(struct horon_request *request, struct horon_names *names);
/** Of one that holds nothing. */
void horon_request_free(struct horon_request *request);

#endif
