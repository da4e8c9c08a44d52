/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks of users run on the context's own thread and nowhere else: never inside somebody's
 * wait, never with the progress token in hand. The thread that ends a request with a callback
 * leaves it here; the progress thread ends it for its submitter, then calls.
 *
 * Invariant: a request in this list is over for the engine and still in flight for its submitter,
 * so it cannot be started again, or leave a stack, before it was taken out.
 */
#include "context_state.h"

bool horon_context_on_progress_thread(const struct horon_context *ctx)
{
    return horon_life_has_thread(&ctx->life) && pthread_equal(ctx->thread, pthread_self());
}

void horon_callback_push(void *arg, struct horon_request *request)
{
    struct horon_context *ctx = arg;
    struct horon_request *head = atomic_load_explicit(&ctx->to_finish, memory_order_relaxed);
    do
        request->next_to_finish = head;
    while (!atomic_compare_exchange_weak(&ctx->to_finish, &head, request));
    if (!horon_context_on_progress_thread(ctx))
        horon_doorbell_ring(ctx->doorbell);
}

bool horon_callbacks_run(struct horon_context *ctx)
{
    if (!atomic_load_explicit(&ctx->to_finish, memory_order_relaxed))
        return false;
    struct horon_request *newest = atomic_exchange(&ctx->to_finish, NULL), *oldest = NULL;
    while (newest) {
        struct horon_request *next = newest->next_to_finish;
        newest->next_to_finish = oldest;
        oldest = newest;
        newest = next;
    }
    atomic_store_explicit(&ctx->calling_back, true, memory_order_relaxed);
    while (oldest) {
        struct horon_request *next = oldest->next_to_finish; /* it may be gone then */
        horon_engine_finish_request(ctx->engine, oldest);
        oldest = next;
    }
    atomic_store_explicit(&ctx->calling_back, false, memory_order_relaxed);
    return true;
}
