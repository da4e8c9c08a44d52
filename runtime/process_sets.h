/* SPDX-License-Identifier: Apache-2.0 */
/* The process sets of a context, inside of the library; process_sets.c. */
#ifndef HORON_PROCESS_SETS_H
#define HORON_PROCESS_SETS_H

#include "coordinator/sets.h"

#include <pthread.h>

struct horon_engine_team;

struct horon_process_sets {
    pthread_mutex_t change; /* guards nothing: held while a set is added or removed */
    pthread_mutex_t lock;   /* guards the table, which only the holder of `change` changes, and
                             * with the progress token: the holder of that reads without a lock */
    struct horon_sets known;
};

/** @return OK | ERR_MEMORY */
horon_status_t horon_process_sets_init(struct horon_context *ctx);
/** All zero is a no-op. */
void horon_process_sets_deinit(struct horon_context *ctx);
/** Adds those of the option PROCESS_SETS; the progress thread runs. */
horon_status_t horon_process_sets_add_static(struct horon_context *ctx, struct horon_error *error);
/** This rank's team of a process set, with a reference. @return OK | ERR_INVALID, there is no such
 * set, or this rank is no member. Thread: any. */
horon_status_t horon_process_set_take(struct horon_context *ctx, int32_t id,
                                      struct horon_engine_team **team_out,
                                      struct horon_error *error);
/** The same without a reference, for as long as the caller holds the progress token.
 * @return NULL: there is no such set, or this rank is no member */
struct horon_engine_team *horon_process_set_look(const struct horon_context *ctx, int32_t id);

#endif
