/* SPDX-License-Identifier: Apache-2.0 */
/* The allocation hook of tests: counts, and fails where it is told to. Link alloc_failing.c in
 * place of runtime/base/alloc.c. Thread: any. */
#ifndef HORON_TEST_TORTURE_ALLOC_FAILING_H
#define HORON_TEST_TORTURE_ALLOC_FAILING_H

/** Makes the @p nth allocation from now fail, 1 being the next, and all after it if @p for_good; 0:
 * none. Begins to count anew. */
void alloc_fail_at(long nth, int for_good);
/** @return allocations since alloc_fail_at(), failed ones included. */
long alloc_count(void);
/** @return allocations that ever failed. */
long alloc_failures(void);
/** @return allocations that live. */
long alloc_live(void);

#endif
