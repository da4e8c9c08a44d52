/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a thread sleeps until something happens: a doorbell, and descriptors it watches. The loop
 * only sleeps and calls back; it moves no data. One thread owns it; anybody may ring its doorbell.
 */
#ifndef HORON_BASE_LOOP_H
#define HORON_BASE_LOOP_H

#include "status.h"

#include <stdbool.h>
#include <stdint.h>

struct horon_loop;

#define HORON_LOOP_READ 1
#define HORON_LOOP_WRITE 2

/** @param doorbell an eventfd; not owned. @param watches_max descriptors at most
 * @return OK | ERR_MEMORY | ERR_SYSTEM */
horon_status_t horon_loop_create(int doorbell, int watches_max, struct horon_loop **loop_out,
                                 struct horon_error *error);
void horon_loop_destroy(struct horon_loop *loop);
/** For the child of a fork: closes the loop's own descriptor, frees nothing. The parent's loop goes
 * on. NULL is a no-op. */
void horon_loop_close_in_child(struct horon_loop *loop);

/** The calling thread owns the loop from here on; at first the one that created it does. */
void horon_loop_own(struct horon_loop *loop);

/** Adds a descriptor, not watched yet. @return its number, 0.. in order of adding. Thread:
 * owner. */
int horon_loop_add(struct horon_loop *loop, int fd, void (*on_ready)(void *arg, int fd, int events),
                   void *arg);
/** Watches for @p events (0: for none). Thread: owner. */
void horon_loop_watch(struct horon_loop *loop, int number, int events);

/** Sleeps until the doorbell rings, a watched descriptor is ready (its callback is called), or
 * @p timeout_ns passed (< 0: never). The doorbell is cleared. It may wake earlier for nothing.
 * @return has anything but the time ended it? Thread: owner. */
bool horon_loop_sleep(struct horon_loop *loop, int64_t timeout_ns);

/** Rings an eventfd. Thread: any. */
void horon_doorbell_ring(int doorbell);

#endif
