/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list, and before it a place a verb. What lies in the list is all zero but for its link, and the
 * room for rows, which stays. What lies in a place says what it was made of: one that is taken out
 * for a descriptor that says something else is made anew. A request is put into its place when it
 * is free, so of several that fly at once the first one released stays.
 */
#include "engine/pool.h"

#include "alloc.h"
#include "engine/again.h"

#include <string.h>

void horon_request_pool_init(struct horon_request_pool *pool)
{
    *pool = (struct horon_request_pool){0};
    pthread_mutex_init(&pool->lock, NULL);
}

struct horon_request *horon_request_alloc(void)
{
    struct horon_request *request = horon_alloc_lines(sizeof *request);
    if (request)
        memset(request, 0, sizeof *request);
    return request;
}

void horon_request_clean(struct horon_request *request, struct horon_names *names)
{
    uint64_t *rows_room = request->rows_room;
    const int rows_limit = request->rows_limit;
    horon_request_deinit(request, names);
    memset(request, 0, sizeof *request);
    request->rows_room = rows_room;
    request->rows_limit = rows_limit;
}

void horon_request_free(struct horon_request *request)
{
    horon_free(request->rows_room);
    horon_free(request);
}

void horon_request_pool_deinit(struct horon_request_pool *pool)
{
    while (pool->free) {
        struct horon_request *request = pool->free;
        pool->free = request->older;
        horon_request_free(request);
    }
    for (uint32_t verb = 0; verb < HORON_VERB_COUNT; verb++) {
        struct horon_request *last = atomic_exchange(&pool->last[verb], NULL);
        if (last)
            horon_request_free(last);
    }
    pthread_mutex_destroy(&pool->lock);
}

static struct horon_request *take(struct horon_request_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct horon_request *request = pool->free;
    if (request) {
        pool->free = request->older;
        pool->count--;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!request)
        return horon_request_alloc();
    request->older = NULL;
    return request;
}

/* A look comes first: most verbs keep nothing. */
static struct horon_request *take_last(struct horon_request_pool *pool,
                                       const horon_descriptor_t *desc)
{
    const bool readable = desc && desc->struct_bytes == sizeof *desc;
    if (!readable || desc->verb >= HORON_VERB_COUNT)
        return NULL;
    struct horon_request *_Atomic *place = &pool->last[desc->verb];
    return atomic_load_explicit(place, memory_order_relaxed)
               ? atomic_exchange_explicit(place, NULL, memory_order_acquire)
               : NULL;
}

static bool keep_last(struct horon_request_pool *pool, struct horon_request *request)
{
    struct horon_request *_Atomic *place = &pool->last[request->verb], *none = NULL;
    assert(!request->team && request->verb < HORON_VERB_COUNT);
    return !atomic_load_explicit(place, memory_order_relaxed) &&
           atomic_compare_exchange_strong_explicit(place, &none, request, memory_order_release,
                                                   memory_order_relaxed);
}

horon_status_t horon_request_create(struct horon_request_pool *pool, const horon_descriptor_t *desc,
                                    struct horon_engine_team *team, struct horon_names *names,
                                    struct horon_request **request_out, struct horon_error *error)
{
    struct horon_request *request = take_last(pool, desc);
    const bool again = request && horon_request_says(request, team, desc);
    horon_status_t status;
    if (request && !again)
        horon_request_clean(request, names);
    else if (!request)
        request = take(pool);
    if (!request)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a request");
    if (again)
        status = horon_request_make_again(request, desc, team, error);
    else
        status = horon_request_init(request, desc, team, names, error);
    if (status != HORON_OK)
        horon_request_destroy(pool, request, names);
    else
        *request_out = request;
    return status;
}

void horon_request_destroy(struct horon_request_pool *pool, struct horon_request *request,
                           struct horon_names *names)
{
    if (horon_request_lasts(request)) {
        horon_request_deinit(request, names);
        if (keep_last(pool, request))
            return;
    }
    horon_request_clean(request, names);
    pthread_mutex_lock(&pool->lock);
    const bool kept = pool->count < pool->limit;
    if (kept) {
        request->older = pool->free;
        pool->free = request;
        pool->count++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!kept)
        horon_request_free(request);
}
