/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and their texts, made from one map in the public header so that they cannot drift. */
#include "status.h"

#include <stdio.h>
#include <string.h>

const char *horon_status_text(horon_status_t status)
{
    switch (status) {
#define TEXT_CASE(name, value, text)                                                               \
    case HORON_##name:                                                                             \
        return text;
        HORON_STATUS_MAP(TEXT_CASE)
#undef TEXT_CASE
    }
    return "unknown status";
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

horon_status_t horon_error_set(struct horon_error *error, horon_status_t status, const char *format,
                               ...)
{
    if (!error)
        return status;
    va_list args;
    va_start(args, format);
    error->status = status;
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
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    size_t used = strlen(error->text);
    char reason[128];
    /* GNU strerror_r: the text may lie elsewhere than in `reason` */
    const char *text = strerror_r(errno_value, reason, sizeof reason);
    snprintf(error->text + used, sizeof error->text - used, ": %s", text);
    return status;
}

const char *horon_name_show(const char *name, char *text, size_t text_bytes)
{
    size_t used = 0;
    for (; *name; name++) {
        char shown[8] = {*name};
        const unsigned char byte = (unsigned char)*name;
        if (byte == '\n' || byte == '\t')
            snprintf(shown, sizeof shown, "\\%c", byte == '\n' ? 'n' : 't');
        else if (byte < ' ' || byte == 0x7f)
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

void horon_error_copy_text(const struct horon_error *error, char *text, size_t text_bytes)
{
    if (!text || text_bytes == 0)
        return;
    size_t bytes = strnlen(error->text, sizeof error->text - 1);
    bytes = bytes < text_bytes ? bytes : text_bytes - 1;
    memcpy(text, error->text, bytes);
    text[bytes] = 0;
}
