/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of any job, whose rows lie in place: `in_place [alone]`, if nothing may go by a name. */
#include "multi/in_place.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    char why[HORON_ERROR_TEXT_BYTES];
    struct job_report report = {0};
    horon_context_t *ctx = NULL;
    if (horon_context_create(NULL, &ctx, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    in_place_work(ctx, argc > 1 ? argv[1] : NULL, &report);
    if (report.status)
        fprintf(stderr, "rank %d: %s\n", horon_rank(ctx), report.text);
    else
        printf("rank %d is through\n", horon_rank(ctx));
    horon_context_destroy(ctx);
    return report.status != 0;
}
