/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries the cases out, as a rank of the job or of a process set, and prints a digest of each
 * output; or says, without a job, what must be printed. Cases are made @p whole or not, as of
 * cases_make(). Ends the process if there is no memory.
 */
#ifndef HORON_TEST_HOSTS_WORKS_H
#define HORON_TEST_HOSTS_WORKS_H

#include "cases.h"

/** @return zeroed memory, of an element more; the caller frees it */
void *works_memory(uint64_t elements, horon_dtype_t dtype);

/** @param mode in-order, named or grouped
 * @return 0, or the status of a process that failed, which it has told. Blocks: yes. */
int works_run(horon_context_t *ctx, int32_t set, const char *mode, bool whole);
/** Joins after as many times of all cases as the rank has stages, of three ranks or more; the last
 * one comes last. @return likewise */
int works_run_and_join(horon_context_t *ctx, int32_t set, bool whole);

/** Prints what each rank must, behind its number. */
void works_expect(const struct layout *layout, bool whole);
/** @param given  averages are of the ranks that gave */
void works_expect_and_join(const struct layout *layout, bool whole, bool given);

#endif
