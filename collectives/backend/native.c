/* SPDX-License-Identifier: Apache-2.0 */
/* This library's own backend: channels over shared memory and links (channel.h), behind the table.
 */
#include "backend/backend.h"

#include "alloc.h"

#include <assert.h>

struct native {
    struct horon_backend_channel base;
    struct horon_channel *channel;
};

static horon_status_t native_open(const struct horon_backend *backend,
                                  const struct horon_backend_settings *settings,
                                  const struct horon_log *log,
                                  struct horon_backend_context **context_out,
                                  struct horon_error *error)
{
    struct horon_backend_context *context = horon_zalloc(1, sizeof *context);
    (void)settings, (void)log, (void)error;
    if (!context)
        return HORON_ERR_MEMORY;
    *context = (struct horon_backend_context){.backend = backend, .version = 1};
    *context_out = context;
    return HORON_OK;
}

/* The table may be a copy, as tests make. */
static struct horon_channel *channel_of(const struct horon_backend_channel *base)
{
    assert(base->backend->open == native_open);
    return ((const struct native *)(const void *)base)->channel;
}

static void native_close(struct horon_backend_context *context)
{
    horon_free(context);
}

static bool native_usable(const struct horon_backend_context *context,
                          const struct horon_team *team, char *why, size_t why_bytes)
{
    (void)context, (void)team, (void)why, (void)why_bytes;
    return true;
}

static bool native_has(const struct horon_backend *backend, uint32_t version,
                       const struct horon_signature *agreed)
{
    (void)backend, (void)version;
    return horon_channel_has((horon_verb_t)agreed->verb) && horon_backend_fits_host(agreed);
}

static void native_destroy(struct horon_backend_channel *base)
{
    if (!base)
        return;
    horon_channel_destroy(channel_of(base));
    horon_free(base);
}

static horon_status_t native_create(struct horon_backend_context *context,
                                    const struct horon_channel_options *options,
                                    const struct horon_team *team, struct horon_host *host,
                                    int device, uint64_t *address,
                                    struct horon_backend_channel **channel_out)
{
    struct native *native = horon_zalloc(1, sizeof *native);
    (void)device, (void)address;
    if (!native)
        return HORON_ERR_MEMORY;
    native->base.backend = context->backend;
    horon_status_t status = horon_channel_create(options, team, host, &native->channel);
    if (status == HORON_OK)
        *channel_out = &native->base;
    else
        native_destroy(&native->base);
    return status;
}

static horon_status_t native_connect(struct horon_backend_channel *base, const uint64_t *addresses,
                                     bool *moved_out, struct horon_error *error)
{
    (void)base, (void)addresses, (void)moved_out, (void)error;
    return HORON_OK;
}

static void native_begin(struct horon_backend_channel *base, const struct horon_operation *op)
{
    horon_channel_begin(channel_of(base), op);
}

static horon_status_t native_advance(struct horon_backend_channel *base, bool *moved_out,
                                     struct horon_error *error)
{
    return horon_channel_advance(channel_of(base), moved_out, error);
}

/* Peers of this host may be reading its inputs (exec/lent.h), and links its inputs and outputs:
 * both are ended here. */
static void native_abort(struct horon_backend_channel *base)
{
    horon_channel_abort(channel_of(base));
}

static bool native_waits_for(struct horon_backend_channel *base, int rank)
{
    return horon_channel_waits_for(channel_of(base), rank);
}

static void native_explain(const struct horon_backend_channel *base, char *text, size_t text_bytes)
{
    horon_channel_explain(channel_of(base), text, text_bytes);
}

static bool native_keeps_inputs(const struct horon_backend_channel *base)
{
    return horon_channel_keeps_inputs(channel_of(base));
}

static int native_descriptor(const struct horon_backend_channel *base)
{
    (void)base;
    return -1;
}

static uint64_t native_interval_ns(const struct horon_backend_channel *base)
{
    (void)base;
    return 0;
}

const struct horon_backend horon_backend_native = {
    .name = "native",
    .caps = HORON_BACKEND_KEEPS_TREE | HORON_BACKEND_ANY_THREAD | HORON_BACKEND_EVERYWHERE,
    .launched_max = 1,
    .open = native_open,
    .close = native_close,
    .usable = native_usable,
    .has = native_has,
    .create = native_create,
    .connect = native_connect,
    .begin = native_begin,
    .advance = native_advance,
    .abort = native_abort,
    .waits_for = native_waits_for,
    .explain = native_explain,
    .keeps_inputs = native_keeps_inputs,
    .descriptor = native_descriptor,
    .interval_ns = native_interval_ns,
    .destroy = native_destroy,
};
