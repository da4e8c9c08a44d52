/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and their texts, made from one map in the public header so that they cannot drift. */
#include "status.h"

#include "codec.h"

#include <stdio.h>
#include <string.h>

static_assert(HORON_ERROR_WIRE_BYTES_MAX >= 4 + 1 + 4 + 4 + 2 + HORON_ERROR_TEXT_BYTES - 1,
              "status, cause, two ranks, the length of the text and the text");

/* A row of either map; values are those of the enum, so they are distinct (the compiler sees it).
 */
#define TEXT_CASE(name, value, text)                                                               \
    case value:                                                                                    \
        return text;

const char *horon_status_text(horon_status_t status)
{
    switch ((int)status) {
        HORON_STATUS_MAP(TEXT_CASE)
    default:
        return "unknown status";
    }
}

const char *horon_cause_text(horon_cause_t cause)
{
    switch ((int)cause) {
        HORON_CAUSE_MAP(TEXT_CASE)
    default:
        return "unknown cause";
    }
}

static horon_cause_t usual_cause(horon_status_t status)
{
    switch (status) {
    case HORON_OK:
    case HORON_IN_PROGRESS:
    case HORON_AGAIN:
        return HORON_CAUSE_NONE;
    case HORON_ERR_INVALID:
    case HORON_ERR_DUPLICATE:
    case HORON_ERR_UNSUPPORTED:
    case HORON_ERR_FORKED:
        return HORON_CAUSE_ARGUMENT;
    case HORON_ERR_MEMORY:
    case HORON_ERR_SYSTEM:
        return HORON_CAUSE_RESOURCE;
    case HORON_ERR_PROTO:
        return HORON_CAUSE_PROTOCOL;
    case HORON_ERR_MISMATCH:
        return HORON_CAUSE_DESCRIPTION;
    case HORON_ERR_PEER_LOST:
        return HORON_CAUSE_SILENT;
    case HORON_ERR_TIMEOUT:
        return HORON_CAUSE_TIME_LIMIT;
    case HORON_ERR_CANCELLED:
        return HORON_CAUSE_CANCELLED;
    case HORON_ERR_CLOSED:
        return HORON_CAUSE_CLOSED;
    case HORON_ERR_AUTH:
        return HORON_CAUSE_KEY;
    case HORON_ERR_CONFIG:
        return HORON_CAUSE_SETTING;
    }
    return HORON_CAUSE_NONE;
}

struct horon_blame horon_blame_from_status(horon_status_t status)
{
    return (struct horon_blame){.cause = usual_cause(status), .rank = -1, .other_rank = -1};
}

void horon_error_blame(struct horon_error *error, horon_cause_t cause, int rank, int other_rank)
{
    if (error)
        error->blame = (struct horon_blame){.cause = cause, .rank = rank, .other_rank = other_rank};
}

void horon_error_blame_both(struct horon_error *error, horon_cause_t cause, int rank,
                            int other_rank)
{
    const bool sorted = rank < other_rank;
    horon_error_blame(error, cause, sorted ? rank : other_rank, sorted ? other_rank : rank);
}

horon_status_t horon_status_from_peer(uint32_t number)
{
    const horon_status_t status = (horon_status_t)(int32_t)number;
    switch (status) {
#define KNOWN_CASE(name, value, text) case HORON_##name:
        HORON_STATUS_MAP(KNOWN_CASE)
#undef KNOWN_CASE
        return status < 0 ? status : HORON_ERR_PROTO;
    }
    return HORON_ERR_PROTO;
}

static horon_cause_t cause_from_peer(horon_status_t status, uint32_t number)
{
    const horon_cause_t cause = (horon_cause_t)number;
    switch (cause) {
#define KNOWN_CASE(name, value, text) case HORON_CAUSE_##name:
        HORON_CAUSE_MAP(KNOWN_CASE)
#undef KNOWN_CASE
        return cause == HORON_CAUSE_NONE ? usual_cause(status) : cause;
    }
    return usual_cause(status);
}

struct horon_blame horon_blame_from_peer(horon_status_t status, uint32_t cause, uint32_t rank,
                                         uint32_t other_rank, int size)
{
    assert(size > 0);
    return (struct horon_blame){
        .cause = cause_from_peer(status, cause),
        .rank = rank < (uint32_t)size ? (int32_t)rank : -1,
        .other_rank = other_rank < (uint32_t)size ? (int32_t)other_rank : -1,
    };
}

void horon_error_write(struct horon_writer *out, const struct horon_error *error)
{
    assert(error->status < 0);
    horon_write_u32(out, (uint32_t)error->status);
    horon_write_u8(out, (uint8_t)error->blame.cause);
    horon_write_u32(out, (uint32_t)error->blame.rank);
    horon_write_u32(out, (uint32_t)error->blame.other_rank);
    horon_write_string(out, error->text);
}

void horon_error_read(struct horon_reader *in, int size, struct horon_error *error)
{
    error->status = horon_status_from_peer(horon_read_u32(in));
    const uint32_t cause = horon_read_u8(in), rank = horon_read_u32(in);
    const uint32_t other_rank = horon_read_u32(in);
    error->blame = horon_blame_from_peer(error->status, cause, rank, other_rank, size);
    horon_read_string(in, error->text, sizeof error->text);
    horon_text_clean(error->text, "\n\t"); /* an exception may have several lines */
    in->ok &= error->text[0] != 0;         /* nobody can do anything without a reason */
}

horon_status_t horon_error_set(struct horon_error *error, horon_status_t status, const char *format,
                               ...)
{
    if (!error)
        return status;
    va_list args;
    va_start(args, format);
    error->status = status;
    error->blame = horon_blame_from_status(status);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return status;
}

horon_status_t horon_error_set_errno(struct horon_error *error, horon_status_t status,
                                     int errno_value, const char *format, ...)
{
    if (!error)
        return status;
    va_list args;
    va_start(args, format);
    error->status = status;
    error->blame = horon_blame_from_status(status);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    size_t used = strlen(error->text);
    char reason[128];
    /* GNU strerror_r: the text may lie elsewhere than in `reason` */
    const char *text = strerror_r(errno_value, reason, sizeof reason);
    snprintf(error->text + used, sizeof error->text - used, ": %s", text);
    return status;
}

/* Is it one of U+0080 .. U+009F, of two bytes, which terminals obey as they do those below 0x20? */
static bool is_wide_control(const char *text)
{
    const unsigned char *byte = (const unsigned char *)text;
    return byte[0] == 0xc2 && byte[1] >= 0x80 && byte[1] < 0xa0;
}

void horon_text_clean(char *text, const char *kept)
{
    for (; *text; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (is_wide_control(text))
            text[0] = text[1] = '?';
        else if ((byte < ' ' || byte == 0x7f) && !strchr(kept, *text))
            *text = '?';
    }
}

const char *horon_name_show(const char *name, char *text, size_t text_bytes)
{
    size_t used = 0;
    for (; *name; name++) {
        char shown[8] = {*name};
        const bool is_wide = is_wide_control(name);
        name += is_wide; /* the second byte is its number */
        const unsigned char byte = (unsigned char)*name;
        if (byte == '\n' || byte == '\t')
            snprintf(shown, sizeof shown, "\\%c", byte == '\n' ? 'n' : 't');
        else if (is_wide || byte < ' ' || byte == 0x7f)
            snprintf(shown, sizeof shown, "\\x%02x", byte);
        const size_t bytes = strlen(shown);
        if (used + bytes >= text_bytes)
            break;
        memcpy(text + used, shown, bytes);
        used += bytes;
    }
    text[used] = 0;
    return text;
}

void horon_text_add(char *text, size_t text_bytes, const char *separator, const char *format, ...)
{
    const char *before = text[0] ? separator : "";
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    assert(used < text_bytes);
    snprintf(text + used, text_bytes - used, "%s", before);
    used += strlen(text + used);
    vsnprintf(text + used, text_bytes - used, format, args);
    va_end(args);
}

void horon_error_copy_text(const struct horon_error *error, char *text, size_t text_bytes)
{
    if (!text || text_bytes == 0)
        return;
    size_t bytes = strnlen(error->text, sizeof error->text - 1);
    bytes = bytes < text_bytes ? bytes : text_bytes - 1;
    memcpy(text, error->text, bytes);
    text[bytes] = 0;
}
