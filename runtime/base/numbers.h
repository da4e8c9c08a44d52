/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in texts of users, and lists of them, as of ranks: "0,2,4-7", or "0-98:2" for each second
 * one. */
#ifndef HORON_BASE_NUMBERS_H
#define HORON_BASE_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>

/** Reads all of @p text. @return false: it is no number, or none from @p low to @p high */
bool horon_number_parse(const char *text, int low, int high, int *value_out);

/**
 * Reads the list of @p bytes at @p text.
 * @param places [limit] of each number below @p limit its place in the list; -1: it is not there
 * @return how many there are; -1: this is no such list, or has a number twice or one too large
 */
int horon_numbers_parse(const char *text, size_t bytes, int limit, int *places);

#endif
