/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian bytes. A writer or reader that overruns stays at its end and remembers it, so that
 * a message is checked once, at the end, and no value read is used before `ok` was looked at.
 */
#ifndef HORON_BASE_CODEC_H
#define HORON_BASE_CODEC_H

#include <assert.h>
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct horon_writer {
    uint8_t *bytes;
    size_t used;
    size_t limit;
    bool ok; /* false: something did not fit and was left out */
};

struct horon_reader {
    const uint8_t *bytes;
    size_t used;
    size_t limit;
    bool ok; /* false: something was missing or out of bounds, and read as 0 */
};

static inline struct horon_writer horon_writer_over(void *bytes, size_t limit)
{
    return (struct horon_writer){.bytes = bytes, .limit = limit, .ok = true};
}

static inline struct horon_reader horon_reader_over(const void *bytes, size_t limit)
{
    return (struct horon_reader){.bytes = bytes, .limit = limit, .ok = true};
}

static inline void horon_write_bytes(struct horon_writer *out, const void *from, size_t bytes)
{
    assert(out->used <= out->limit);
    if (!out->ok || bytes > out->limit - out->used) {
        out->ok = false;
        return;
    }
    if (bytes)
        memcpy(out->bytes + out->used, from, bytes);
    out->used += bytes;
}

/** @return a view of the next @p bytes bytes, or NULL. */
static inline const void *horon_read_view(struct horon_reader *in, size_t bytes)
{
    assert(in->used <= in->limit);
    if (!in->ok || bytes > in->limit - in->used) {
        in->ok = false;
        return NULL;
    }
    const void *view = in->bytes + in->used;
    in->used += bytes;
    return view;
}

static inline void horon_write_uint(struct horon_writer *out, uint64_t value, size_t bytes)
{
    uint8_t raw[8];
    assert(bytes <= sizeof raw);
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(value >> (8 * i));
    horon_write_bytes(out, raw, bytes);
}

static inline uint64_t horon_read_uint(struct horon_reader *in, size_t bytes)
{
    const void *raw = horon_read_view(in, bytes);
    uint64_t value = 0;
    assert(bytes <= sizeof value);
    if (raw)
        memcpy(&value, raw, bytes); /* into the low bytes, as they are sent */
    return le64toh(value);
}

static inline void horon_write_u8(struct horon_writer *out, uint8_t value)
{
    horon_write_uint(out, value, 1);
}
static inline void horon_write_u16(struct horon_writer *out, uint16_t value)
{
    horon_write_uint(out, value, 2);
}
static inline void horon_write_u32(struct horon_writer *out, uint32_t value)
{
    horon_write_uint(out, value, 4);
}
static inline void horon_write_u64(struct horon_writer *out, uint64_t value)
{
    horon_write_uint(out, value, 8);
}
static inline uint8_t horon_read_u8(struct horon_reader *in)
{
    return (uint8_t)horon_read_uint(in, 1);
}
static inline uint16_t horon_read_u16(struct horon_reader *in)
{
    return (uint16_t)horon_read_uint(in, 2);
}
static inline uint32_t horon_read_u32(struct horon_reader *in)
{
    return (uint32_t)horon_read_uint(in, 4);
}
static inline uint64_t horon_read_u64(struct horon_reader *in)
{
    return horon_read_uint(in, 8);
}

static inline void horon_write_double(struct horon_writer *out, double value)
{
    uint64_t raw;
    memcpy(&raw, &value, sizeof raw);
    horon_write_u64(out, raw);
}

static inline double horon_read_double(struct horon_reader *in)
{
    uint64_t raw = horon_read_u64(in);
    double value;
    memcpy(&value, &raw, sizeof value);
    return value;
}

/** LEB128: 7 bits a byte, low first; at most 10 bytes. */
static inline void horon_write_varint(struct horon_writer *out, uint64_t value)
{
    while (value >= 0x80) {
        horon_write_u8(out, (uint8_t)(value | 0x80));
        value >>= 7;
    }
    horon_write_u8(out, (uint8_t)value);
}

static inline uint64_t horon_read_varint(struct horon_reader *in)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = horon_read_u8(in);
        if (shift == 63 && byte > 1)
            break; /* would not fit 64 bits */
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return in->ok ? value : 0;
    }
    in->ok = false;
    return 0;
}

/** A length (varint) and the bytes, no final 0. */
static inline void horon_write_string(struct horon_writer *out, const char *text)
{
    size_t bytes = strlen(text);
    horon_write_varint(out, bytes);
    horon_write_bytes(out, text, bytes);
}

/** Copies a string of at most @p text_bytes - 1 bytes with no 0 inside; else the reader fails. */
static inline void horon_read_string(struct horon_reader *in, char *text, size_t text_bytes)
{
    assert(text_bytes > 0);
    text[0] = 0;
    uint64_t bytes = horon_read_varint(in);
    if (!in->ok || bytes >= text_bytes) {
        in->ok = false;
        return;
    }
    const void *view = horon_read_view(in, (size_t)bytes);
    if (!view || memchr(view, 0, (size_t)bytes)) {
        in->ok = false;
        return;
    }
    memcpy(text, view, (size_t)bytes);
    text[bytes] = 0;
}

/** True if all was read well and nothing is left over. */
static inline bool horon_reader_finished(const struct horon_reader *in)
{
    return in->ok && in->used == in->limit;
}

#endif
