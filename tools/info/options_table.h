/* SPDX-License-Identifier: Apache-2.0 */
/* The option table as horon-info prints it. */
#ifndef HORON_TOOLS_OPTIONS_TABLE_H
#define HORON_TOOLS_OPTIONS_TABLE_H

#include <stdio.h>

/**
 * Prints every row with its value here and where that comes from, then HORON_* variables that are
 * no row. @return 0, or 1 if a value is wrong: its row says so, and standard error
 */
int horon_info_print_options(FILE *to);

/** Prints the table for the documentation: no values of this environment. */
void horon_info_print_options_markdown(FILE *to);

#endif
