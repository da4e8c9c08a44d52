/* SPDX-License-Identifier: Apache-2.0 */
/* A thread has the signal mask of the one that starts it. */
#include "thread.h"

#include <signal.h>
#include <stddef.h>

int horon_thread_start(pthread_t *thread_out, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    pthread_t detached;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(thread_out ? thread_out : &detached, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed && !thread_out)
        pthread_detach(detached);
    return failed;
}
