/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank whose MPI is held_mpi.c: it tells whether it has joined, and what carries a sum. If it has
 * not, it goes on alone, where MPI is of no use any more; and it ends as any program does.
 */
#include <horon/horon.h>

#include <stdio.h>

static void sum(horon_context_t *ctx)
{
    char why[HORON_ERROR_TEXT_BYTES];
    float value = 1;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = &value;
    desc.count = 1;
    desc.flags = HORON_IN_ORDER;
    const horon_status_t status = horon_run(ctx, &desc, -1, why, sizeof why);
    printf("sum %g by %s\n", (double)value, status == HORON_OK ? horon_carrier(ctx, &desc) : why);
}

int main(void)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    horon_options_t alone = HORON_OPTIONS_INIT;
    alone.rank = 0;
    alone.size = 1;
    horon_status_t status = horon_context_create(NULL, &ctx, why, sizeof why);
    if (status != HORON_OK) {
        printf("failed %d %s\n", status, why);
        status = horon_context_create(&alone, &ctx, why, sizeof why);
    }
    if (status == HORON_OK)
        sum(ctx);
    horon_context_destroy(ctx);
    return status != HORON_OK;
}
