/* SPDX-License-Identifier: Apache-2.0 */
/* A process that finds the lock free has it for a moment: nobody waits for it, and the next one
 * finds it free, too. */
#include "alive.h"

#include <assert.h>
#include <errno.h>

bool horon_alive_hold(struct horon_alive *alive)
{
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    const bool made = pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0 &&
                      pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST) == 0 &&
                      pthread_mutex_init(&alive->lock, &shared) == 0;
    pthread_mutexattr_destroy(&shared);
    return made && pthread_mutex_lock(&alive->lock) == 0;
}

void horon_alive_let_go(struct horon_alive *alive)
{
    const int failed = pthread_mutex_unlock(&alive->lock);
    assert(!failed);
    (void)failed;
}

bool horon_alive_is_held(struct horon_alive *alive)
{
    const int status = pthread_mutex_trylock(&alive->lock);
    if (status == EOWNERDEAD)
        pthread_mutex_consistent(&alive->lock); /* glibc loses count of one that is not */
    if (status == 0 || status == EOWNERDEAD)
        pthread_mutex_unlock(&alive->lock);
    return status == EBUSY;
}
