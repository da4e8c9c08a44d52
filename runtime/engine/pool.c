/* SPDX-License-Identifier: Apache-2.0 */
/* A list. What lies in it is all zero but for its link, and the room for rows, which stays. */
#include "engine/pool.h"

#include "alloc.h"

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

horon_status_t horon_request_create(struct horon_request_pool *pool, const horon_descriptor_t *desc,
                                    struct horon_engine_team *team, struct horon_names *names,
                                    struct horon_request **request_out, struct horon_error *error)
{
    struct horon_request *request = take(pool);
    if (!request)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a request");
    horon_status_t status = horon_request_init(request, desc, team, names, error);
    if (status != HORON_OK)
        horon_request_destroy(pool, request, names);
    else
        *request_out = request;
    return status;
}

void horon_request_destroy(struct horon_request_pool *pool, struct horon_request *request,
                           struct horon_names *names)
{
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
