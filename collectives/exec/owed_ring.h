/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ringing a little later. A rank that has stored data rings the doorbells of the ranks that sleep.
 * Before it does, a full fence waits until the data has reached the other caches. Meanwhile this
 * rank could read what the others have stored. So a step that mostly ends its operation does not
 * ring: it notes that it owes a ring. The thread that turns the lane pays at the end of the turn
 * (engine/lanes.c). If the operation is over at once, it pays when it gives the token back, behind
 * the fence which that takes anyway (token.c).
 *
 * Likewise a step that writes one frame into the byte ring to another rank, and has more to do:
 * it wakes that rank when it is done (horon_host_put_off_wake()).
 */
#ifndef HORON_EXEC_OWED_RING_H
#define HORON_EXEC_OWED_RING_H

#include "exec/host.h"

/** To be called after the stores that sleepers should see. */
static inline void horon_host_owe_ring(struct horon_host *host)
{
    host->owes_ring = host->shape.local_size > 1;
}

/** Rings the ranks that sleep, if that is owed. */
static inline void horon_host_pay_ring(struct horon_host *host)
{
    if (host->owes_ring)
        horon_host_wake_all(host, HORON_WAKE_DATA);
    host->owes_ring = false;
}

/** A step begins that writes to one rank's byte ring at most; horon_host_pay_wake() ends it. */
static inline void horon_host_put_off_wake(struct horon_host *host)
{
    assert(!host->puts_off && !host->owes_wake);
    host->puts_off = true;
}

/** To be called when something was written for that rank to read. */
static inline void horon_host_wake_reader(struct horon_host *host, int local_rank)
{
    if (!host->puts_off) {
        horon_host_wake(host, local_rank, HORON_WAKE_CONTROL);
        return;
    }
    assert(!host->owes_wake || host->owes_wake == local_rank + 1);
    host->owes_wake = local_rank + 1;
}

static inline void horon_host_pay_wake(struct horon_host *host)
{
    if (host->owes_wake)
        horon_host_wake(host, host->owes_wake - 1, HORON_WAKE_CONTROL);
    host->owes_wake = 0;
    host->puts_off = false;
}

/** Rings the ranks that sleep. For a ring that was taken (below), behind a full fence. */
void horon_host_ring_sleepers(const struct horon_host *host);
/** @return is a ring owed? Then it is the caller's to pay: horon_host_ring_sleepers(). */
static inline bool horon_host_take_ring(struct horon_host *host)
{
    const bool owed = host->owes_ring;
    host->owes_ring = false;
    return owed;
}

#endif
