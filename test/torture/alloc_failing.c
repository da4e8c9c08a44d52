/* SPDX-License-Identifier: Apache-2.0 */
/* The allocation hook over the C library, as runtime/base/alloc.c, but for the counting. */
#include "alloc_failing.h"

#include "alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static atomic_long counted, failing_at, live, failed;
static atomic_int failing_for_good;

void alloc_fail_at(long nth, int for_good)
{
    counted = 0;
    failing_at = nth;
    failing_for_good = for_good;
}

long alloc_count(void)
{
    return counted;
}

long alloc_failures(void)
{
    return failed;
}

long alloc_live(void)
{
    return live;
}

/* Counts one; true if it is to fail. */
static int fails(void)
{
    const long number = atomic_fetch_add(&counted, 1) + 1;
    const long at = failing_at;
    const int here = at > 0 && (number == at || (failing_for_good && number > at));
    failed += here;
    return here;
}

static void *lives(void *memory)
{
    if (memory)
        atomic_fetch_add(&live, 1);
    return memory;
}

void *horon_alloc(size_t bytes)
{
    return fails() ? NULL : lives(malloc(bytes ? bytes : 1));
}

void *horon_zalloc(size_t count, size_t item_bytes)
{
    return fails() ? NULL : lives(calloc(count ? count : 1, item_bytes ? item_bytes : 1));
}

void *horon_realloc(void *old, size_t bytes)
{
    if (fails())
        return NULL;
    void *memory = realloc(old, bytes ? bytes : 1);
    return old ? memory : lives(memory);
}

void *horon_alloc_lines(size_t bytes)
{
    if (fails() || bytes > SIZE_MAX - 64)
        return NULL;
    return lives(aligned_alloc(64, (bytes + 64) & ~(size_t)63));
}

char *horon_strdup(const char *text)
{
    return fails() ? NULL : lives(strdup(text));
}

void horon_free(void *memory)
{
    if (memory)
        atomic_fetch_sub(&live, 1);
    free(memory);
}
