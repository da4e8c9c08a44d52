/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank for launcher tests: joins, sums COUNT floats ROUNDS times (1), checks them, and tells its
 * place. `sum_once COUNT [ROUNDS [CHILD]]`; a negative ROUNDS goes on until something fails; CHILD
 * is a command that it starts at the end, while it is still in the job, and whose failure is its
 * own. Its sums have a name, but among Gloo's ranks, where none have.
 */
#include <horon/horon.h>

#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static int sum(horon_context_t *ctx, float *data, uint64_t count)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    if (getenv("HORON_GLOO_STORE"))
        desc.flags = HORON_IN_ORDER;
    else
        desc.name = "sum_once";
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = data;
    desc.count = count;
    for (uint64_t i = 0; i < count; i++)
        data[i] = (float)(horon_rank(ctx) + 1);
    if (horon_run(ctx, &desc, -1, why, sizeof why) != HORON_OK)
        return fail("sum", why);
    const int size = horon_size(ctx);
    for (uint64_t i = 0; i < count; i++)
        if (data[i] != (float)(size * (size + 1) / 2))
            return fail("sum", "a wrong value");
    return 0;
}

int main(int argc, char **argv)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx = NULL;
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const long rounds = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
    float *data = malloc(count * sizeof *data + 1);
    int code = data ? 0 : fail("malloc", "out of memory");
    if (code == 0 && horon_context_create(NULL, &ctx, why, sizeof why) != HORON_OK)
        code = fail("join", why);
    if (code == 0)
        printf("rank %d of %d, local %d of %d, hosts %d\n", horon_rank(ctx), horon_size(ctx),
               horon_local_rank(ctx), horon_local_size(ctx), horon_host_count(ctx));
    fflush(stdout);
    for (long round = 0; code == 0 && round != rounds; round++)
        code = sum(ctx, data, count);
    if (code == 0 && argc > 3)
        code = system(argv[3]) != 0;
    horon_context_destroy(ctx);
    free(data);
    return code;
}
