/* SPDX-License-Identifier: Apache-2.0 */
/* What the progress thread looks for at intervals: stalls, silent links, core files. */
#ifndef HORON_LOOKS_H
#define HORON_LOOKS_H

#include <stdint.h>

struct horon_context;

/** Looks for what is due, with the token. Thread: the progress thread.
 * @return nanoseconds until the next one that needs it; -1: none while nothing happens */
int64_t horon_looks_take(struct horon_context *ctx);

#endif
