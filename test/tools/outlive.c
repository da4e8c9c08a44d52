/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank for launcher tests: joins, and makes a process set of all ranks but the last one, which
 * then kills itself. The others hear of that, sum in their set, and end well.
 */
#include <horon/horon.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static horon_status_t sum(horon_context_t *ctx, int32_t set, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = 1;
    desc.process_set = set;
    return horon_run(ctx, &desc, -1, NULL, 0);
}

static int fail(const char *what, const horon_context_t *ctx)
{
    fprintf(stderr, "%s: %s\n", what, horon_last_error(ctx));
    return 1;
}

int main(void)
{
    horon_context_t *ctx = NULL;
    horon_status_t status = HORON_OK;
    int32_t ranks[16], set;
    float one = 1;
    if (horon_context_create(NULL, &ctx, NULL, 0) != HORON_OK)
        return fail("join", NULL);
    const int32_t last = horon_size(ctx) - 1;
    for (int32_t i = 0; i < last; i++)
        ranks[i] = i;
    if (horon_process_set_add(ctx, ranks, (size_t)last, -1, &set) != HORON_OK)
        return fail("add", ctx);
    /* The add has ended on all ranks once this has ended on one. */
    if (horon_rank(ctx) == last && sum(ctx, 0, &one) == HORON_OK)
        raise(SIGKILL);
    while (status == HORON_OK)
        status = sum(ctx, 0, &one);
    if (status != HORON_ERR_PEER_LOST)
        return fail("job", ctx);
    for (int i = 0; i < 20; i++) {
        one = 1;
        if (sum(ctx, set, &one) != HORON_OK || one != (float)last)
            return fail("set", ctx);
    }
    puts("outlived it");
    horon_context_destroy(ctx);
    return 0;
}
