/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horon as the measured library. Three ways through it:
 *   - in order, one operation: horon_run(), what a caller that blocks would use;
 *   - in order or by name, submitted: horon_submit() for each, or horon_submit_group() for all of
 *     a process set, then one wait for all;
 *   - persistent: prepared with the job, and a timed call is horon_start_all() and a wait for all.
 * A message is two operations, as every rank sends to the next one and receives from the one
 * before. The descriptors are made once with the job; the timed call only hands them over.
 * Housekeeping of the benchmark (barrier, share, maximum) is in order.
 */
#include "peer.h"

#include "names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 32
#define SETTING_BYTES 128

struct horon_peer {
    struct perf_peer base;
    horon_context_t *context;
    const struct perf_options *options;
};

struct perf_job {
    struct horon_peer *peer;
    size_t n;
    horon_descriptor_t *descriptors; /* [n] */
    horon_request_t **requests;      /* [n] */
    char (*names)[NAME_BYTES];       /* [n] */
    size_t prepared;                 /* requests that horon_prepare() made */
};

static int refused(struct horon_peer *peer, const char *what, horon_status_t status,
                   const char *text)
{
    snprintf(peer->base.error, sizeof peer->base.error, "%s: %s (%.900s)", what,
             horon_status_text(status),
             text != NULL && text[0] != '\0' ? text : "no more is known");
    return -1;
}

static horon_descriptor_t descriptor(const struct perf_options *options,
                                     const struct perf_operation *operation)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = (uint32_t)options->verb;
    desc.flags = options->named ? 0 : HORON_IN_ORDER;
    desc.process_set = operation->set;
    if (options->verb == HORON_BARRIER) {
        return desc;
    }
    desc.dtype = (uint32_t)options->dtype;
    desc.redop = perf_verb_reduces(options->verb) ? (uint32_t)options->redop : 0;
    desc.root = perf_verb_rooted(options->verb) ? options->root : 0;
    desc.src = operation->src;
    desc.dst = operation->dst;
    desc.count = operation->count;
    desc.dst_count = operation->count; /* where the ranks' parts decide */
    if (options->verb == HORON_ALLGATHER || options->verb == HORON_GATHER) {
        desc.dst_count *= (uint64_t)operation->size;
    }
    if (desc.dst_count == 0) {
        desc.dst_count = 1; /* of the gap behind each: a dst without room is refused */
    }
    if (options->verb == HORON_SEND) {
        desc.flags = 0;
        desc.root = (operation->rank + 1) % operation->size;
        desc.tag = operation->index;
    }
    return desc;
}

/* The one before each tensor's send: it is received from the rank before. */
static horon_descriptor_t receipt(const struct perf_operation *operation,
                                  const horon_descriptor_t *sent)
{
    horon_descriptor_t desc = *sent;
    desc.verb = HORON_RECV;
    desc.root = (operation->rank + operation->size - 1) % operation->size;
    return desc;
}

static void job_release(struct perf_job *job)
{
    if (job == NULL) {
        return;
    }
    for (size_t i = 0; i < job->prepared; i++) {
        horon_release(job->requests[i]);
    }
    free(job->descriptors);
    free(job->requests);
    free(job->names);
    free(job);
}

static int job_prepare(struct perf_job *job)
{
    for (; job->prepared < job->n; job->prepared++) {
        const horon_status_t status = horon_prepare(
            job->peer->context, &job->descriptors[job->prepared], &job->requests[job->prepared]);
        if (status != HORON_OK) {
            return refused(job->peer, "horon_prepare", status,
                           horon_last_error(job->peer->context));
        }
    }
    return 0;
}

/* A group is counted before it is looked at: one of no descriptors is told, and starts nothing. */
static int horon_peer_admit(struct perf_peer *base, size_t n)
{
    struct horon_peer *const peer = (struct horon_peer *)base;
    horon_descriptor_t *const none = calloc(n, sizeof *none);
    horon_request_t **const requests = calloc(n, sizeof(horon_request_t *));
    horon_status_t status = HORON_ERR_MEMORY;
    const char *text = NULL;
    if (none != NULL && requests != NULL) {
        status = horon_submit_group(peer->context, none, n, requests);
        text = horon_last_error(peer->context);
    }
    free(none);
    free(requests);
    return status == HORON_ERR_MEMORY ? refused(peer, "--tensors", status, text) : 0;
}

static int horon_peer_divide(struct perf_peer *base, const int32_t *ranks, size_t n,
                             int32_t *set_out)
{
    struct horon_peer *const peer = (struct horon_peer *)base;
    const horon_status_t status = horon_process_set_add(peer->context, ranks, n, -1, set_out);
    return status == HORON_OK ? 0
                              : refused(peer, "--sets", status, horon_last_error(peer->context));
}

static const char *horon_peer_carrier(const struct perf_peer *base, uint64_t count)
{
    const struct horon_peer *const peer = (const struct horon_peer *)base;
    const struct perf_operation operation = {.count = count, .size = base->size};
    const horon_descriptor_t desc = descriptor(peer->options, &operation);
    return horon_carrier(peer->context, &desc);
}

static int horon_job_prepare(struct perf_peer *base, const struct perf_operation *operations,
                             size_t n, struct perf_job **job_out)
{
    struct horon_peer *const peer = (struct horon_peer *)base;
    struct perf_job *job = calloc(1, sizeof *job);
    int result = -1;
    if (job == NULL) {
        goto done;
    }
    const size_t tensors = n;
    const bool paired = peer->options->verb == HORON_SEND;
    n *= paired ? 2 : 1;
    job->peer = peer;
    job->n = n;
    job->descriptors = calloc(n + 1, sizeof *job->descriptors); /* none is no failure */
    job->requests = calloc(n + 1, sizeof(horon_request_t *));
    job->names = calloc(n + 1, sizeof *job->names);
    if (job->descriptors == NULL || job->requests == NULL || job->names == NULL) {
        goto done;
    }
    for (size_t i = 0; paired && i < tensors; i++) {
        job->descriptors[2 * i + 1] = descriptor(peer->options, &operations[i]);
        job->descriptors[2 * i] = receipt(&operations[i], &job->descriptors[2 * i + 1]);
    }
    for (size_t i = 0; !paired && i < tensors; i++) {
        job->descriptors[i] = descriptor(peer->options, &operations[i]);
        snprintf(job->names[i], NAME_BYTES, "tensor.%" PRIu64, operations[i].index);
        if (peer->options->named) {
            job->descriptors[i].name = job->names[i];
        }
    }
    if (peer->options->persistent && job_prepare(job) != 0) {
        job_release(job);
        return -1;
    }
    *job_out = job;
    job = NULL;
    result = 0;
done:
    if (result != 0) {
        refused(peer, "preparing the operations", HORON_ERR_MEMORY, NULL);
    }
    job_release(job);
    return result;
}

static int run_persistent(struct perf_job *job)
{
    horon_status_t status = horon_start_all(job->requests, job->n, NULL);
    if (status != HORON_OK) {
        return refused(job->peer, "horon_start_all", status, horon_last_error(job->peer->context));
    }
    status = horon_wait_all(job->requests, job->n, HORON_HOST_DONE, -1);
    if (status != HORON_OK) {
        return refused(job->peer, "horon_wait_all", status, horon_request_error(job->requests[0]));
    }
    return 0;
}

static int run_submitted(struct perf_job *job)
{
    horon_context_t *const context = job->peer->context;
    const bool grouped = job->peer->options->group;
    const size_t step = grouped ? job->peer->options->tensors : 1; /* of one process set */
    size_t submitted = 0;
    horon_status_t status = HORON_OK;
    int result = 0;
    for (; submitted < job->n; submitted += step) {
        const horon_descriptor_t *const descriptors = &job->descriptors[submitted];
        horon_request_t **const requests = &job->requests[submitted];
        status = grouped ? horon_submit_group(context, descriptors, step, requests)
                         : horon_submit(context, descriptors, requests);
        if (status != HORON_OK) {
            result = refused(job->peer, grouped ? "horon_submit_group" : "horon_submit", status,
                             horon_last_error(context));
            break;
        }
    }
    if (result == 0) {
        status = job->n == 1 ? horon_wait(job->requests[0], HORON_HOST_DONE, -1)
                             : horon_wait_all(job->requests, job->n, HORON_HOST_DONE, -1);
        if (status != HORON_OK) {
            result =
                refused(job->peer, "horon_wait", status, horon_request_error(job->requests[0]));
        }
    }
    for (size_t i = 0; i < submitted; i++) {
        horon_release(job->requests[i]);
    }
    return result;
}

static int run_blocking(struct perf_job *job)
{
    char why[HORON_ERROR_TEXT_BYTES];
    const horon_status_t status =
        horon_run(job->peer->context, &job->descriptors[0], -1, why, sizeof why);
    return status == HORON_OK ? 0 : refused(job->peer, "horon_run", status, why);
}

static int run_messages(struct perf_job *job)
{
    char why[HORON_ERROR_TEXT_BYTES];
    const horon_status_t status =
        horon_run_messages(job->peer->context, job->descriptors, job->n, -1, why, sizeof why);
    return status == HORON_OK ? 0 : refused(job->peer, "horon_run_messages", status, why);
}

static int horon_job_run(struct perf_job *job)
{
    if (job->n == 0) {
        return 0;
    }
    if (job->peer->options->persistent) {
        return run_persistent(job);
    }
    const struct perf_options *const options = job->peer->options;
    if (options->verb == HORON_SEND && options->sets == 0) { /* all of one set */
        return run_messages(job);
    }
    return options->named || options->group || job->n > 1 ? run_submitted(job) : run_blocking(job);
}

/* Housekeeping: one in-order operation. */
static int keep(struct perf_peer *base, horon_descriptor_t *desc, const char *what)
{
    struct horon_peer *const peer = (struct horon_peer *)base;
    char why[HORON_ERROR_TEXT_BYTES];
    desc->flags = HORON_IN_ORDER;
    const horon_status_t status = horon_run(peer->context, desc, -1, why, sizeof why);
    return status == HORON_OK ? 0 : refused(peer, what, status, why);
}

static int horon_peer_barrier(struct perf_peer *base, int32_t set)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BARRIER;
    desc.process_set = set;
    return keep(base, &desc, "the barrier before a call");
}

static int horon_peer_share(struct perf_peer *base, void *data, size_t bytes)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.dtype = HORON_UINT8;
    desc.src = desc.dst = data;
    desc.count = bytes;
    return keep(base, &desc, "sharing rank 0's bytes");
}

static int horon_peer_maximum(struct perf_peer *base, double *values, size_t n)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT64;
    desc.redop = HORON_MAX;
    desc.src = desc.dst = values;
    desc.count = n;
    return keep(base, &desc, "collecting the times");
}

static void horon_peer_close(struct perf_peer *base, bool failed)
{
    (void)failed; /* horon tells the others by itself */
    struct horon_peer *const peer = (struct horon_peer *)base;
    if (peer == NULL) {
        return;
    }
    horon_context_destroy(peer->context);
    free(peer);
}

static const struct perf_peer_ops horon_peer_ops = {
    .name = "horon",
    .shares_in_place = true,
    .admit = horon_peer_admit,
    .divide = horon_peer_divide,
    .carrier = horon_peer_carrier,
    .prepare = horon_job_prepare,
    .run = horon_job_run,
    .release = job_release,
    .barrier = horon_peer_barrier,
    .share = horon_peer_share,
    .maximum = horon_peer_maximum,
    .close = horon_peer_close,
};

int perf_peer_horon_open(const struct perf_options *options, struct perf_peer **peer_out, char *why)
{
    struct horon_peer *const peer = calloc(1, sizeof *peer);
    if (peer == NULL) {
        snprintf(why, PERF_TEXT_BYTES, "out of memory");
        return -1;
    }
    char text[HORON_ERROR_TEXT_BYTES] = "", backend[SETTING_BYTES] = "";
    const char *const settings[] = {options->backend != NULL ? backend : NULL, NULL};
    horon_options_t wanted = HORON_OPTIONS_INIT;
    snprintf(backend, sizeof backend, "BACKEND=%s",
             options->backend != NULL ? options->backend : "");
    wanted.settings = settings;
    const horon_status_t status = horon_context_create(&wanted, &peer->context, text, sizeof text);
    if (status != HORON_OK) {
        snprintf(why, PERF_TEXT_BYTES, "cannot join: %s (%.900s)", horon_status_text(status), text);
        free(peer);
        return -1;
    }
    peer->options = options;
    peer->base.ops = &horon_peer_ops;
    peer->base.rank = horon_rank(peer->context);
    peer->base.size = horon_size(peer->context);
    peer->base.local_rank = horon_local_rank(peer->context);
    peer->base.local_size = horon_local_size(peer->context);
    horon_setting(peer->context, "GLOO_STORE", backend, sizeof backend);
    const bool among_gloo = backend[0] != '\0';
    horon_setting(peer->context, "BACKEND", backend, sizeof backend);
    /* what is asked for, another line says what carries each size */
    snprintf(peer->base.version, sizeof peer->base.version, "horon %s, %s%.32s", horon_version(),
             among_gloo ? "HORON_GLOO_STORE" : "HORON_BACKEND=", among_gloo ? "" : backend);
    *peer_out = &peer->base;
    return 0;
}
