/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context is asked for and has known since it joined: ranks, hosts, settings. Nothing is
 * waited for, and nothing changes.
 */
#include "context_state.h"

#include <string.h>

int32_t horon_rank(const horon_context_t *ctx)
{
    return ctx ? ctx->boot.topology.rank : -1;
}

int32_t horon_size(const horon_context_t *ctx)
{
    return ctx ? ctx->boot.topology.size : -1;
}

int32_t horon_local_rank(const horon_context_t *ctx)
{
    return ctx ? ctx->host.local_rank : -1;
}

int32_t horon_local_size(const horon_context_t *ctx)
{
    return ctx ? ctx->host.shape.local_size : -1;
}

static int32_t hosts_with_local_rank(const horon_context_t *ctx, int host_limit)
{
    int32_t count = 0;
    for (int host = 0; host < host_limit; host++)
        count += horon_topology_host_size(&ctx->boot.topology, host) > ctx->host.local_rank;
    return count;
}

int32_t horon_cross_rank(const horon_context_t *ctx)
{
    if (!ctx)
        return -1;
    const struct horon_topology *topology = &ctx->boot.topology;
    return hosts_with_local_rank(ctx, topology->host_of[topology->rank]);
}

int32_t horon_cross_size(const horon_context_t *ctx)
{
    return ctx ? hosts_with_local_rank(ctx, ctx->boot.topology.host_count) : -1;
}

int32_t horon_host_count(const horon_context_t *ctx)
{
    return ctx ? ctx->boot.topology.host_count : -1;
}

int32_t horon_host_of(const horon_context_t *ctx, int32_t rank)
{
    if (!ctx || rank < 0 || rank >= ctx->boot.topology.size)
        return -1;
    return ctx->boot.topology.host_of[rank];
}

const char *horon_host_name(const horon_context_t *ctx, int32_t host)
{
    if (!ctx || host < 0 || host >= ctx->boot.topology.host_count)
        return NULL;
    return ctx->boot.topology.host_name[host];
}

horon_status_t horon_setting(const horon_context_t *ctx, const char *name, char *text,
                             size_t text_bytes)
{
    const struct horon_config_row *row = name ? horon_config_find(name, strlen(name)) : NULL;
    if (!ctx || !row || !text || text_bytes == 0)
        return HORON_ERR_INVALID;
    horon_config_format(&ctx->config, row, text, text_bytes);
    return HORON_OK;
}
