/* SPDX-License-Identifier: Apache-2.0 */
/* What horon-info says about this machine: cores, memory, shared memory, networks. */
#ifndef HORON_TOOLS_MACHINE_H
#define HORON_TOOLS_MACHINE_H

#include <stdio.h>

/** Label, two spaces, text: the layout of all of horon-info. Further lines of @p text are indented
 * to stand below the first. */
void horon_info_row(FILE *to, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void horon_info_print_machine(FILE *to);
void horon_info_print_networks(FILE *to);

#endif
