/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of a library that is a guest in somebody's process: all signals are blocked in them, so
 * that handlers run in the threads where the program expects them, and a signal about one of them
 * (SIGPIPE, SIGXFSZ) ends nothing.
 */
#ifndef HORON_BASE_THREAD_H
#define HORON_BASE_THREAD_H

#include <pthread.h>

/** @param thread_out to be joined by the caller; NULL: it is detached, and frees what it has
 * @return 0, or errno's number of what pthread_create() failed with: there is none */
int horon_thread_start(pthread_t *thread_out, void *(*run)(void *arg), void *arg);

#endif
