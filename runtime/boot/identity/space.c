/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a launcher, before there is a pump to turn: in slices, so that the caller is asked
 * whether to go on. Not here: how any of them is spoken to. */
#include "boot/identity/space.h"

#include "clock.h"

#include <errno.h>
#include <poll.h>

horon_status_t horon_space_may_wait(const struct horon_space *space, struct horon_error *error)
{
    if (space->goes_on && !space->goes_on(space->arg))
        return horon_error_set(error, HORON_ERR_CANCELLED,
                               "interrupted while waiting for the launcher (%s)",
                               space->calls->name);
    if (horon_clock_ns() >= space->deadline_ns)
        return horon_error_set(error, HORON_ERR_TIMEOUT, "the launcher does not answer (%s)",
                               space->calls->name);
    return HORON_OK;
}

horon_status_t horon_space_wait(const struct horon_space *space, int fd, short events,
                                struct horon_error *error)
{
    struct pollfd polled = {.fd = fd, .events = events};
    for (;;) {
        const uint64_t now = horon_clock_ns();
        const uint64_t left = now < space->deadline_ns ? space->deadline_ns - now : 0;
        const uint64_t slice = left < HORON_SPACE_SLICE_NS ? left : HORON_SPACE_SLICE_NS;
        const struct timespec timeout = {.tv_nsec = (long)slice};
        const int ready = ppoll(&polled, 1, &timeout, NULL);
        if (ready > 0)
            return HORON_OK;
        if (ready < 0 && errno != EINTR)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                         "the launcher's socket (%s)", space->calls->name);
        const horon_status_t status = horon_space_may_wait(space, error);
        if (status != HORON_OK)
            return status;
    }
}
