/* SPDX-License-Identifier: Apache-2.0 */
/* How many cores the library sees, of a program that is linked with told_cores_args of meson.build.
 */
#ifndef HORON_TEST_TOLD_CORES_H
#define HORON_TEST_TOLD_CORES_H

/** 0: those of the machine. Set while no context is being created. */
extern long told_cores;

#endif
