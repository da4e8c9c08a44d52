/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of numbers, as users write those of ranks: "0,2,4-7", or "0-98:2" for each second one. */
#ifndef HORON_BASE_NUMBERS_H
#define HORON_BASE_NUMBERS_H

#include <stddef.h>

/**
 * Reads the list of @p bytes at @p text.
 * @param places [limit] of each number below @p limit its place in the list; -1: it is not there
 * @return how many there are; -1: this is no such list, or has a number twice or one too large
 */
int horon_numbers_parse(const char *text, size_t bytes, int limit, int *places);

#endif
