/* SPDX-License-Identifier: Apache-2.0 */
/* --check-build. */
#ifndef HORONRUN_BUILD_H
#define HORONRUN_BUILD_H

#include <stdio.h>

/** Prints what this horon can use, laid out as horovodrun does. Loads libraries to find out. */
void horonrun_build_print(FILE *to);

#endif
