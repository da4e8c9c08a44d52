/* SPDX-License-Identifier: Apache-2.0 */
/* What the progress thread looks for now and then: stalls, links that say nothing, core files. */
#ifndef HORON_LOOKS_H
#define HORON_LOOKS_H

#include <stdbool.h>
#include <stdint.h>

struct horon_context;

/** Looks for what is due, with the token. Thread: the progress thread.
 * @return nanoseconds until the next one; -1: none is due while nothing happens */
int64_t horon_looks_take(struct horon_context *ctx);

/** Is it time to look for stalls, if anything is in flight? Thread: likewise, without the token. */
bool horon_stalls_are_due(const struct horon_context *ctx);

#endif
