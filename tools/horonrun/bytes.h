/* SPDX-License-Identifier: Apache-2.0 */
/* A growing run of bytes: what is not yet sent, printed, or a whole line. Embedded; all zero is
 * empty. */
#ifndef HORONRUN_BYTES_H
#define HORONRUN_BYTES_H

#include <stdbool.h>
#include <stddef.h>

struct horonrun_bytes {
    char *data;
    size_t used;
    size_t limit; /* allocated */
};

/** Makes room for @p bytes more. @return false: out of memory, nothing changed */
bool horonrun_bytes_reserve(struct horonrun_bytes *to, size_t bytes);

/** @return false: out of memory, nothing was added */
bool horonrun_bytes_append(struct horonrun_bytes *to, const void *from, size_t bytes);

/** Drops the first @p bytes (at most used). */
void horonrun_bytes_consume(struct horonrun_bytes *from, size_t bytes);

void horonrun_bytes_deinit(struct horonrun_bytes *bytes);

#endif
