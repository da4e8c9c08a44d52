/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell of the progress thread that rings a little later. */
#ifndef HORON_LATE_BELL_H
#define HORON_LATE_BELL_H

#include "context_state.h"

/** Before the progress thread starts. @return OK | ERR_SYSTEM */
horon_status_t horon_late_bell_begin(struct horon_context *ctx, struct horon_error *error);
/** Also in the child of a fork. */
void horon_late_bell_close(struct horon_context *ctx);
/** The progress thread looks at everything soon. Thread: any. */
void horon_late_bell_set(struct horon_context *ctx);
/** Like horon_context_notify(), but soon: the caller is likely to wait, and so to drive, itself. */
void horon_context_notify_later(struct horon_context *ctx);

#endif
