/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for requests, which drives them meanwhile (token.c). */
#ifndef HORON_WAIT_H
#define HORON_WAIT_H

#include "context_state.h"

/** How the first @p over of the requests that were waited for have ended: the first failure, or OK.
 * They may have been started again since. */
struct horon_waited {
    size_t over;
    horon_status_t status;
};

/** Waits for @p n >= 1, the first of this context, up to one that is not or was not started.
 * @param runs       [n] numbers of the runs that are waited for; NULL: of each the one that it is
 * in when those before it are over
 * @param waited_out set in any case; NULL: not asked for
 * @return OK once they ended, whatever their status | ERR_TIMEOUT */
horon_status_t horon_context_wait_runs(struct horon_context *ctx,
                                       struct horon_request *const *requests, const uint32_t *runs,
                                       size_t n, int64_t timeout_ms,
                                       struct horon_waited *waited_out);
static inline horon_status_t horon_context_wait(struct horon_context *ctx,
                                                struct horon_request *const *requests, size_t n,
                                                int64_t timeout_ms, struct horon_waited *waited_out)
{
    return horon_context_wait_runs(ctx, requests, NULL, n, timeout_ms, waited_out);
}

/** An operation in flight, and what it waits for. */
struct horon_explained {
    char what[128 + HORON_NAME_BYTES_MAX], why[HORON_ERROR_TEXT_BYTES / 2];
    char name[HORON_NAME_BYTES_MAX + 1]; /* a thread that drives may give it its number meanwhile */
    int awaited;                         /* the rank; -1: not known */
};

/** Asks the other ranks, too, which takes a moment. Thread: any but the progress thread; run.c. */
void horon_context_explain(struct horon_context *ctx, struct horon_request *request,
                           struct horon_explained *explained_out);

#endif
