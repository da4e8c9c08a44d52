/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the process that writes some memory shared with others is the one that it was. One of its
 * threads holds a lock there as long as the process is to be asked; the system takes the lock away
 * from a process that ends, or that becomes another program, before anybody else can get its
 * number. So what was read of the process with that number, before the lock was found held, was
 * its own. To look takes some nanoseconds, and no system call.
 */
#ifndef HORON_ALIVE_H
#define HORON_ALIVE_H

#include <pthread.h>
#include <stdbool.h>

/** In memory that processes share. All zero: nobody holds it. */
struct horon_alive {
    pthread_mutex_t lock; /* robust */
};

/** The calling thread holds it from here on, and is to let go of it before it ends or the memory is
 * unmapped. What was there before does not matter. @return false: the system has no such locks */
bool horon_alive_hold(struct horon_alive *alive);
/** By the same thread. */
void horon_alive_let_go(struct horon_alive *alive);
/** Is it held by a process that lives? Thread: any, of any process. */
bool horon_alive_is_held(struct horon_alive *alive);

#endif
