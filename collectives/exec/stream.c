/* SPDX-License-Identifier: Apache-2.0 */
/* Which way a copy takes; see stream.h. A time that a switch of tasks has spoilt is soon corrected,
 * as both ways are measured again and again. */
#include "exec/stream.h"

#include "clock.h"

#include <assert.h>
#include <string.h>

/* Shorter copies are plain: their lines are soon asked for, and to read a clock takes time, too. */
enum { STREAM_BYTES_MIN = 8192 };

/* One copy in so many takes the other way for its first bytes. */
enum { TRIES = 16, TRY_BYTES = 4096 };

/* That a streamed copy is worth it a plain one must take so many times as long: its readers take
 * about twice as long as it does to find in memory what else is in a cache. */
enum { READERS_TOO = 3 };

enum horon_stream_way horon_stream_better(const struct horon_stream *seen)
{
    const uint64_t plain = seen->ps_per_byte[HORON_STREAM_PLAIN];
    const uint64_t streamed = seen->ps_per_byte[HORON_STREAM_STREAMED];
    return streamed > 0 && plain > READERS_TOO * streamed ? HORON_STREAM_STREAMED
                                                          : HORON_STREAM_PLAIN;
}

void horon_stream_add(struct horon_stream *seen, enum horon_stream_way way, size_t bytes,
                      uint64_t ns)
{
    assert(way < HORON_STREAM_WAYS);
    assert(bytes > 0);
    seen->ps_per_byte[way] = ns * 1000 / bytes + 1;
}

static void copy(struct horon_stream *seen, enum horon_stream_way way, void *to, const void *from,
                 size_t bytes)
{
    const uint64_t begin = horon_clock_ns();
    if (way == HORON_STREAM_STREAMED)
        horon_stream_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
    horon_stream_add(seen, way, bytes, horon_clock_ns() - begin);
}

void horon_stream_copy(struct horon_stream *seen, void *to, const void *from, size_t bytes)
{
    if (bytes < STREAM_BYTES_MIN) {
        memcpy(to, from, bytes);
        return;
    }
    const enum horon_stream_way better = horon_stream_better(seen);
    const bool tries = seen->copies++ % TRIES == 0;
    const size_t tried = tries ? TRY_BYTES : 0;
    if (tries)
        copy(seen, better == HORON_STREAM_PLAIN ? HORON_STREAM_STREAMED : HORON_STREAM_PLAIN, to,
             from, tried);
    copy(seen, better, (char *)to + tried, (const char *)from + tried, bytes - tried);
}
