/* SPDX-License-Identifier: Apache-2.0 */
/* What a run of a request leaves behind until the next one begins: how it ended, and its output.
 * Ends outlive their run, as a thread that waits may look later than a callback starts anew. */
#include "engine/request.h"

#include "alloc.h"

#include <assert.h>
#include <string.h>

void horon_request_reset(struct horon_request *request)
{
    request->output = NULL;
    request->output_count = 0;
    assert(!request->begun && !request->cancelled && !request->asked && !request->warned);
    if (!request->is_marked)
        return;
    horon_free(request->error_text);
    horon_free(request->owned_output);
    request->error_text = NULL;
    request->owned_output = NULL;
    request->is_marked = request->output_refused = false;
    request->warned_ns = 0;
    request->blame = (struct horon_blame){0};
    request->joined = 0;
    request->op.givers = 0;
}

/* In `ends`: the number of the newest run, and above it how that one ended, the one before it, and
 * so on. One word, so that a reader sees all of it as it was at one time. */
enum { NUMBER_BITS = 16, END_BITS = 4, ENDS_KEPT = (64 - NUMBER_BITS) / END_BITS };

void horon_request_keep_end(struct horon_request *request, horon_status_t status)
{
    const uint64_t run = horon_request_run_number(request);
    const uint64_t before = atomic_load_explicit(&request->ends, memory_order_relaxed);
    const uint64_t end = (uint64_t)-status;
    assert(end < 1u << END_BITS);
    const uint64_t kept = (before >> NUMBER_BITS << END_BITS | end) << NUMBER_BITS;
    atomic_store_explicit(&request->ends, kept | (run & UINT16_MAX), memory_order_relaxed);
}

horon_status_t horon_request_end_of(const struct horon_request *request, uint32_t run)
{
    if (!request->callback) /* no run has begun behind it */
        return atomic_load_explicit(&request->status, memory_order_relaxed);
    const uint64_t ends = atomic_load_explicit(&request->ends, memory_order_relaxed);
    const int newer = (int16_t)(ends - run); /* below 0: of a start that was refused */
    const int at = newer < 0 ? 0 : newer < ENDS_KEPT ? newer : ENDS_KEPT - 1;
    const uint64_t end = ends >> (NUMBER_BITS + END_BITS * at) & ((1u << END_BITS) - 1);
    return (horon_status_t)(-(int)end);
}

/* For @p total elements; with the caller's function, or owned. */
static void *make_output(struct horon_request *request, uint64_t total)
{
    const size_t element = horon_dtype_bytes((horon_dtype_t)request->op.agreed.dtype);
    uint64_t rows = 0;
    size_t bytes;
    if (__builtin_mul_overflow((size_t)total, element, &bytes))
        bytes = SIZE_MAX;
    for (int i = 0; i < request->size; i++)
        rows += request->output_rows[i];
    if (request->alloc)
        return request->alloc(request->alloc_arg, rows, bytes);
    request->owned_output = horon_alloc_lines(bytes);
    request->is_marked = true;
    return request->owned_output;
}

void *horon_request_take_output(void *arg, const uint64_t *rows, uint64_t total)
{
    struct horon_request *request = arg;
    void *dst = request->part.dst;
    assert(request->output_rows && request->rows_limit >= request->size);
    assert(!request->owned_output); /* the run before it was reset */
    memcpy(request->output_rows, rows, (size_t)request->size * sizeof *rows);
    request->output_count = total;
    request->output_refused = dst && total > request->dst_count;
    if (request->output_refused)
        dst = NULL;
    else if (!dst && total > 0) {
        dst = make_output(request, total);
        request->output_refused = !dst;
    }
    request->is_marked |= request->output_refused;
    request->output = dst;
    return dst;
}
