/* SPDX-License-Identifier: Apache-2.0 */
/* The allocation hook over the C library. */
#include "alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *horon_alloc(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

void *horon_zalloc(size_t count, size_t item_bytes)
{
    return calloc(count ? count : 1, item_bytes ? item_bytes : 1);
}

void *horon_realloc(void *old, size_t bytes)
{
    return realloc(old, bytes ? bytes : 1);
}

void *horon_alloc_lines(size_t bytes)
{
    if (bytes > SIZE_MAX - 64)
        return NULL; /* rounded up it would be a small number */
    return aligned_alloc(64, (bytes + 64) & ~(size_t)63);
}

char *horon_strdup(const char *text)
{
    return strdup(text);
}

void horon_free(void *memory)
{
    free(memory);
}
