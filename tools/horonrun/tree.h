/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All processes below this one. With PR_SET_CHILD_SUBREAPER set, a descendant cannot leave the
 * tree: not by setsid, not by a double fork, not by its parent's death.
 */
#ifndef HORONRUN_TREE_H
#define HORONRUN_TREE_H

#include <stddef.h>
#include <sys/types.h>

/** Makes this process adopt the orphans among its descendants. */
void horonrun_tree_adopt(void);

/**
 * Sends @p signo to every descendant of the calling process that is not dead already, but not to
 * @p spared and what is below those.
 * @param pids  NULL, or [limit] which got it
 * @return how many got it; new processes may appear meanwhile, so repeat until none is left
 * Blocks: reads /proc once.
 */
int horonrun_tree_signal(int signo, const pid_t *spared, size_t spared_count, pid_t *pids,
                         size_t limit);

#endif
