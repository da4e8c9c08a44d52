/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting in slices short enough that the caller is asked often whether it still wants to: the
 * thread that waits here may be one that a user interrupts.
 */
#include "boot/gloo/wait.h"

#include "clock.h"

#include <errno.h>

#define SLICE_MS 100

void horon_gloo_watch_begin(struct horon_gloo_watch *watch, uint64_t slow_ns,
                            const struct horon_log *log)
{
    const uint64_t now_ns = horon_clock_ns();
    *watch = (struct horon_gloo_watch){log, now_ns, slow_ns ? now_ns + slow_ns : UINT64_MAX};
}

void horon_gloo_watch_renew(struct horon_gloo_watch *watch)
{
    const uint64_t now_ns = horon_clock_ns();
    if (watch->slow_ns != UINT64_MAX)
        watch->slow_ns += now_ns - watch->begun_ns;
    watch->begun_ns = now_ns;
}

void horon_gloo_watch_look(struct horon_gloo_watch *watch, const char *subject, const char *state)
{
    const uint64_t now_ns = horon_clock_ns();
    if (!watch || now_ns < watch->slow_ns)
        return;
    watch->slow_ns = UINT64_MAX;
    HORON_LOG_WARN(watch->log, "still waiting for %s, after %d s: %s", subject,
                   (int)((now_ns - watch->begun_ns) / 1000000000u), state);
}

struct horon_gloo_wait horon_gloo_wait_told(const struct horon_gloo_wait *wait, const char *subject,
                                            const char *state)
{
    struct horon_gloo_wait told = *wait;
    told.subject = subject;
    told.state = state;
    return told;
}

/* @return milliseconds that may be waited now, rounded up: 0, the moment has come */
static int ms_until(uint64_t moment_ns, uint64_t now_ns)
{
    const uint64_t left_ms =
        moment_ns > now_ns ? (moment_ns - now_ns - 1) / 1000000u + 1 : UINT64_C(0);
    return left_ms < SLICE_MS ? (int)left_ms : SLICE_MS;
}

horon_status_t horon_gloo_wait_for(const struct horon_gloo_wait *wait, struct pollfd *fds,
                                   size_t count, int pause_ms, struct horon_error *error)
{
    const uint64_t pause_ns = horon_clock_deadline(horon_clock_ns(), pause_ms);
    for (;;) {
        if (wait->interrupted && wait->interrupted(wait->arg))
            return horon_error_set(error, HORON_ERR_CANCELLED, "interrupted");
        const uint64_t now_ns = horon_clock_ns();
        const int pause = ms_until(pause_ns, now_ns), rest = ms_until(wait->deadline_ns, now_ns);
        const int ready = poll(fds, (nfds_t)count, pause < rest ? pause : rest);
        if (ready > 0)
            return HORON_OK;
        if (ready < 0 && errno != EINTR)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "poll() failed");
        if (rest == 0)
            return HORON_ERR_TIMEOUT;
        if (wait->subject)
            horon_gloo_watch_look(wait->watch, wait->subject, wait->state);
        if (pause == 0)
            return HORON_AGAIN;
    }
}

/* Called between slices of waiting. */
static int is_interrupted(void *arg)
{
    const struct horon_gloo_wait *wait = arg;
    if (wait->subject)
        horon_gloo_watch_look(wait->watch, wait->subject, wait->state);
    return wait->interrupted && wait->interrupted(wait->arg);
}

horon_status_t horon_gloo_resolve(const char *host, int port, const struct horon_gloo_wait *wait,
                                  struct horon_addresses *addresses, struct horon_error *error)
{
    struct horon_gloo_wait own = *wait;
    const struct horon_resolve_limit limit = {
        .deadline_ns = wait->deadline_ns, .interrupted = is_interrupted, .arg = &own};
    const horon_status_t status =
        horon_addresses_resolve_within(host, port, &limit, addresses, error);
    if (status == HORON_ERR_CONFIG && error)
        horon_text_add(error->text, sizeof error->text, "", " (the host is from HORON_GLOO_STORE)");
    return status;
}
