/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a thread that waits for a request, and looks by itself now and then, is idle meanwhile:
 * it sleeps, looks once, and sleeps again. One that spent its patience at each look would yield its
 * core, and one that handed over to the progress thread would ring. A program that asks is linked
 * with idle_waits_link_args of meson.build, and sets SPIN_US=0, as a look that spins need not
 * come to yield.
 */
#ifndef HORON_TEST_IDLE_WAITS_H
#define HORON_TEST_IDLE_WAITS_H

/** From now on, for the calling thread: once it has @p wanted times slept and looked without a
 * yield or a ring in between, @p enough is called, once, on this thread, which is about to sleep.
 */
void idle_waits_count(int wanted, void (*enough)(void *arg), void *arg);

#endif
