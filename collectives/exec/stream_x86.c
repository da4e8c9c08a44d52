/* SPDX-License-Identifier: Apache-2.0 */
/* x86-64: whole lines by non-temporal stores. A release does not order these; the fence does. */
#include "exec/stream.h"

#include <emmintrin.h>
#include <string.h>

/* The stores of a line are combined on their way. */
enum { LINE_BYTES = 64, STORE_BYTES = sizeof(__m128i) };

void horon_stream_past_caches(void *to, const void *from, size_t bytes)
{
    const size_t before_line = -(uintptr_t)to % LINE_BYTES;
    const size_t head = before_line < bytes ? before_line : bytes;
    const char *source = (const char *)from + head;
    char *at = mempcpy(to, from, head);
    for (bytes -= head; bytes >= LINE_BYTES; bytes -= LINE_BYTES)
        for (int i = 0; i < LINE_BYTES / STORE_BYTES; i++) {
            const __m128i part = _mm_loadu_si128((const __m128i *)(const void *)source);
            _mm_stream_si128((__m128i *)(void *)at, part);
            source += STORE_BYTES;
            at += STORE_BYTES;
        }
    memcpy(at, source, bytes);
    _mm_sfence();
}
