/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of the ABI grow at their end: a version is known by its size, which the struct begins
 * with. A caller may be older than the library, or newer.
 */
#ifndef HORON_BASE_VERSIONS_H
#define HORON_BASE_VERSIONS_H

#include "status.h"

#include <stddef.h>

/**
 * Takes a struct that a caller made, whatever its version. Fields that the caller does not have
 * keep their defaults; of fields that this library does not have, only 0 is borne, the default of
 * all that is added.
 * @param what        what it is, for texts
 * @param given       begins with its size; read no further than that says
 * @param first_bytes the first version's size, the least that is taken
 * @param own         [own_bytes] holds the defaults; set on OK, with the size of the library's
 * @return OK | ERR_INVALID, the size is none of a version, or an unknown field is set: where
 * Thread: any.
 */
horon_status_t horon_struct_take(const char *what, const void *given, size_t first_bytes, void *own,
                                 size_t own_bytes, struct horon_error *error);

/**
 * Fills a struct that the caller gave room for, as far as the caller knows it; what the caller
 * knows besides becomes 0.
 * @param given begins with its size, which stays. Errors as above.
 */
horon_status_t horon_struct_give(const char *what, void *given, size_t first_bytes, const void *own,
                                 size_t own_bytes, struct horon_error *error);

#endif
