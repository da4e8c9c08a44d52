/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing run of bytes. It doubles, so that appending is cheap, and moves the rest down when its
 * head is consumed, which its users do in large pieces.
 */
#include "bytes.h"

#include "alloc.h"

#include <string.h>

bool horonrun_bytes_reserve(struct horonrun_bytes *to, size_t bytes)
{
    if (bytes <= to->limit - to->used)
        return true;
    size_t limit = to->limit ? to->limit : 256;
    while (limit - to->used < bytes)
        limit *= 2;
    char *data = horon_realloc(to->data, limit);
    if (!data)
        return false;
    to->data = data;
    to->limit = limit;
    return true;
}

bool horonrun_bytes_append(struct horonrun_bytes *to, const void *from, size_t bytes)
{
    if (!bytes)
        return true;
    if (!horonrun_bytes_reserve(to, bytes))
        return false;
    memcpy(to->data + to->used, from, bytes);
    to->used += bytes;
    return true;
}

void horonrun_bytes_consume(struct horonrun_bytes *from, size_t bytes)
{
    if (!bytes)
        return;
    from->used -= bytes;
    memmove(from->data, from->data + bytes, from->used);
}

void horonrun_bytes_deinit(struct horonrun_bytes *bytes)
{
    if (bytes->data)
        explicit_bzero(bytes->data, bytes->limit); /* the job key may have gone through it */
    horon_free(bytes->data);
    *bytes = (struct horonrun_bytes){0};
}
