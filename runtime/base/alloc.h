/* SPDX-License-Identifier: Apache-2.0 */
/* The one hook all heap memory passes, so that a test can make the nth allocation fail (it links
 * test/torture/alloc_failing.c instead of alloc.c). */
#ifndef HORON_BASE_ALLOC_H
#define HORON_BASE_ALLOC_H

#include <stddef.h>

/** @return @p bytes bytes (at least 1), aligned for any type, or NULL. Free with horon_free(). */
void *horon_alloc(size_t bytes) __attribute__((malloc, warn_unused_result));
/** Zeroed array of @p count items; NULL also if the product overflows. */
void *horon_zalloc(size_t count, size_t item_bytes) __attribute__((malloc, warn_unused_result));
/** Grows or shrinks as realloc(); on NULL the old memory stays. */
void *horon_realloc(void *old, size_t bytes) __attribute__((warn_unused_result));
/** Memory aligned to 64 bytes (a cache line). Free with horon_free(). */
void *horon_alloc_lines(size_t bytes) __attribute__((malloc, warn_unused_result));
char *horon_strdup(const char *text) __attribute__((warn_unused_result));
/** NULL is a no-op. */
void horon_free(void *memory);

#endif
