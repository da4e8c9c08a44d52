/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread and the one that waits for it share what is looked up; whichever comes last frees it.
 * So nothing of the caller's is touched after it has left. Without a thread the caller waits as
 * long as the resolver does.
 */
#include "resolve.h"

#include "alloc.h"
#include "clock.h"
#include "thread.h"

#include <pthread.h>
#include <stdio.h>

#define SLICE_MS 100

struct lookup {
    pthread_mutex_t lock;  /* guards `through` and `left` */
    pthread_cond_t change; /* by the clock of deadlines */
    bool through, left;    /* the thread is; the caller has */
    char host[HORON_ADDRESS_TEXT_BYTES];
    int port;
    horon_status_t status;
    struct horon_addresses addresses;
    struct horon_error error;
};

static struct lookup *create(const char *host, int port)
{
    pthread_condattr_t monotonic;
    struct lookup *lookup = horon_zalloc(1, sizeof *lookup);
    if (!lookup)
        return NULL;
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    lookup->port = port;
    pthread_mutex_init(&lookup->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&lookup->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return lookup;
}

static void destroy(struct lookup *lookup)
{
    pthread_cond_destroy(&lookup->change);
    pthread_mutex_destroy(&lookup->lock);
    horon_free(lookup);
}

static void *run(void *arg)
{
    struct lookup *lookup = arg;
    lookup->status =
        horon_addresses_resolve(lookup->host, lookup->port, &lookup->addresses, &lookup->error);
    pthread_mutex_lock(&lookup->lock);
    const bool left = lookup->left;
    lookup->through = true;
    pthread_cond_signal(&lookup->change);
    pthread_mutex_unlock(&lookup->lock);
    if (left)
        destroy(lookup);
    return NULL;
}

/* One slice at most. @return is it through? */
static bool wait_for(struct lookup *lookup, uint64_t deadline_ns)
{
    const uint64_t slice_ns = horon_clock_deadline(horon_clock_ns(), SLICE_MS);
    const uint64_t until_ns = slice_ns < deadline_ns ? slice_ns : deadline_ns;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    int failed = 0;
    pthread_mutex_lock(&lookup->lock);
    while (!lookup->through && !failed)
        failed = pthread_cond_timedwait(&lookup->change, &lookup->lock, &until);
    const bool through = lookup->through;
    pthread_mutex_unlock(&lookup->lock);
    return through;
}

/* @return whether the thread will free it; else the caller does */
static bool leave(struct lookup *lookup)
{
    pthread_mutex_lock(&lookup->lock);
    lookup->left = true;
    const bool through = lookup->through;
    pthread_mutex_unlock(&lookup->lock);
    return !through;
}

static horon_status_t give_up(const char *host, bool interrupted, struct horon_error *error)
{
    if (interrupted)
        return horon_error_set(error, HORON_ERR_CANCELLED, "interrupted");
    return horon_error_set(error, HORON_ERR_TIMEOUT,
                           "the host name '%s' was not found in time: the resolver of this machine "
                           "does not answer (/etc/resolv.conf; a numeric address needs none)",
                           host);
}

horon_status_t horon_addresses_resolve_within(const char *host, int port,
                                              const struct horon_resolve_limit *limit,
                                              struct horon_addresses *addresses,
                                              struct horon_error *error)
{
    struct horon_address numeric;
    if (!limit || horon_address_parse(host, port, &numeric) ||
        strlen(host) >= HORON_ADDRESS_TEXT_BYTES)
        return horon_addresses_resolve(host, port, addresses, error);
    struct lookup *lookup = create(host, port);
    if (!lookup)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to look up '%s'", host);
    if (horon_thread_start(NULL, run, lookup) != 0)
        run(lookup);
    bool through = false, interrupted = false;
    while (!through && !interrupted) {
        interrupted = limit->interrupted && limit->interrupted(limit->arg);
        through = !interrupted && wait_for(lookup, limit->deadline_ns);
        if (!through && horon_clock_ns() >= limit->deadline_ns)
            break;
    }
    horon_status_t status;
    if (through) {
        status = lookup->status;
        *addresses = lookup->addresses;
        if (status != HORON_OK && error)
            *error = lookup->error;
    } else {
        status = give_up(host, interrupted, error);
    }
    if (!leave(lookup))
        destroy(lookup);
    return status;
}
