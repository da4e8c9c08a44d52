/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this horon, for people; carriers.c. */
#ifndef HORON_TOOLS_CARRIERS_H
#define HORON_TOOLS_CARRIERS_H

#include <stdio.h>

/** A line for each: what was found of it, which version, from where; or why it is not there. */
void horon_info_print_backends(FILE *to);
/** Which of those that were found carries what, under the settings in force. */
void horon_info_print_carriers(FILE *to);

#endif
