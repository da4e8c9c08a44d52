/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell of the progress thread that rings a little later. */
#ifndef HORON_LATE_BELL_H
#define HORON_LATE_BELL_H

#include "error.h"

#include <stdint.h>

struct horon_context;

/* Whether the timer runs, or its end was not looked at yet, and how soon it rings. */
enum horon_late_bell_set {
    HORON_LATE_BELL_OFF,
    HORON_LATE_BELL_LATER, /* as long after a submission as showed to be right */
    HORON_LATE_BELL_SOON
};

struct horon_late_bell {
    int timer;                 /* -1: none */
    _Atomic int set;           /* enum horon_late_bell_set */
    _Atomic uint32_t later_ns; /* after a submission; the progress thread sets it */
};

/** Before the progress thread starts. @return OK | ERR_SYSTEM */
horon_status_t horon_late_bell_begin(struct horon_context *ctx, struct horon_error *error);
/** Also in the child of a fork. */
void horon_late_bell_close(struct horon_context *ctx);
/** The progress thread looks at everything within 50 us. Thread: any. */
void horon_late_bell_set(struct horon_context *ctx);
/** Likewise, as late as it may ring. */
void horon_late_bell_set_later(struct horon_context *ctx);
/** Like horon_context_notify(), but within a millisecond, and mostly within 50 us: the caller is
 * likely to wait, and so to drive, itself. */
void horon_context_notify_later(struct horon_context *ctx);

#endif
