/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job of all that the launcher started, and then, if it is one of these, of another of
 * some of them: `parts STORE RANK,RANK`. The second job meets at STORE. Then it ends as any program
 * does.
 */
#include <horon/horon.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static horon_status_t sum_in_job(const char *const *settings, int *rank_out)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx = NULL;
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    float value = 1;
    options.settings = settings;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = &value;
    desc.count = 1;
    desc.flags = HORON_IN_ORDER;
    horon_status_t status = horon_context_create(&options, &ctx, why, sizeof why);
    if (status == HORON_OK)
        status = horon_run(ctx, &desc, -1, why, sizeof why);
    if (status == HORON_OK && rank_out)
        *rank_out = horon_rank(ctx);
    if (status == HORON_OK)
        printf("sum %g by %s\n", (double)value, horon_carrier(ctx, &desc));
    else
        printf("failed: %s\n", why);
    fflush(stdout);
    horon_context_destroy(ctx);
    return status;
}

int main(int argc, char **argv)
{
    char store[300], ranks[64];
    const char *const some[] = {store, ranks, NULL};
    int rank = -1;
    if (argc != 3 || sum_in_job(NULL, &rank) != HORON_OK)
        return 1;
    char name[16];
    snprintf(name, sizeof name, "%d", rank);
    if (!strstr(argv[2], name))
        return 0;
    snprintf(store, sizeof store, "HORON_STORE=%s", argv[1]);
    snprintf(ranks, sizeof ranks, "HORON_RANKS=%s", argv[2]);
    return sum_in_job(some, NULL) != HORON_OK;
}
