/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forms in place of MPI and NCCL through the C ABI: of allgather and gather a rank's rows lie
 * in dst where they come to be, or at its end; of scatter and reducescatter dst is where they lie
 * in src.
 */
#ifndef HORON_TEST_MULTI_IN_PLACE_H
#define HORON_TEST_MULTI_IN_PLACE_H

#include "multi/job.h"

/** The work of a rank of two to eight. @param in_order_alone  not NULL: nothing goes by a name, and
 * all know the rows of all, as among Gloo's ranks */
void in_place_work(horon_context_t *ctx, void *in_order_alone, struct job_report *report);

#endif
