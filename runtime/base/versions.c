/* SPDX-License-Identifier: Apache-2.0 */
/* See versions.h. Every version's size is a multiple of a pointer's, so that no field lies in what
 * was padding before. */
#include "versions.h"

#include <assert.h>
#include <string.h>

/* Larger than this many times ours is no size, but memory that nobody has set. */
#define NEWER_TIMES_MAX 4

static horon_status_t read_size(const char *what, const void *given, size_t first_bytes,
                                size_t own_bytes, size_t *bytes_out, struct horon_error *error)
{
    size_t bytes = 0;
    assert(first_bytes >= sizeof bytes && first_bytes <= own_bytes);
    assert(first_bytes % sizeof(void *) == 0 && own_bytes % sizeof(void *) == 0);
    memcpy(&bytes, given, sizeof bytes);
    if (bytes < first_bytes || bytes > own_bytes * NEWER_TIMES_MAX || bytes % sizeof(void *) != 0)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "%s.struct_bytes is %zu, no size of it; begin with its _INIT", what,
                               bytes);
    *bytes_out = bytes;
    return HORON_OK;
}

horon_status_t horon_struct_take(const char *what, const void *given, size_t first_bytes, void *own,
                                 size_t own_bytes, struct horon_error *error)
{
    size_t bytes = 0;
    horon_status_t status = read_size(what, given, first_bytes, own_bytes, &bytes, error);
    if (status != HORON_OK)
        return status;
    for (size_t i = own_bytes; i < bytes; i++)
        if (((const unsigned char *)given)[i] != 0)
            return horon_error_set(error, HORON_ERR_INVALID,
                                   "byte %zu of the %s is set; the program knows %zu bytes of it, "
                                   "horon %s only %zu: it is older than the program",
                                   i, what, bytes, horon_version(), own_bytes);
    memcpy(own, given, bytes < own_bytes ? bytes : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return HORON_OK;
}

horon_status_t horon_struct_give(const char *what, void *given, size_t first_bytes, const void *own,
                                 size_t own_bytes, struct horon_error *error)
{
    size_t bytes = 0;
    horon_status_t status = read_size(what, given, first_bytes, own_bytes, &bytes, error);
    if (status != HORON_OK)
        return status;
    memset(given, 0, bytes);
    memcpy(given, own, bytes < own_bytes ? bytes : own_bytes);
    memcpy(given, &bytes, sizeof bytes);
    return HORON_OK;
}
