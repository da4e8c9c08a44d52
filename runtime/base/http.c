/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A head is lines that end with CR LF, the last of them empty. Of its fields two matter, and others
 * are passed over; what could be read in two ways is refused (a second length, a bare CR or LF, a
 * control character, a field that is folded), so that the two ends never differ on where a body
 * ends.
 *
 * Written here, since a library would be one more dependency of each rank (libmicrohttpd), or is a
 * parser that calls back for each piece (llhttp): more code around it than this is in all.
 *
 * Source: RFC 9110, RFC 9112.
 */
#include "http.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LENGTH_DIGITS_MAX 15 /* far below what a size_t holds */

static bool is_control(char c)
{
    return ((unsigned char)c < ' ' && c != '\t') || c == 127;
}

/* @return the line's bytes without its end; -1: it has none yet; -2: it is none */
static long line_bytes(const char *bytes, size_t count)
{
    size_t at = 0;
    while (at < count && !is_control(bytes[at]))
        at++;
    if (at == count || (bytes[at] == '\r' && at + 1 == count))
        return -1;
    return bytes[at] == '\r' && bytes[at + 1] == '\n' ? (long)at : -2;
}

/* Cuts it at its first two blanks. */
static bool cut_words(const char *line, size_t bytes, struct horon_http *head)
{
    const char *const end = line + bytes;
    for (int i = 0; i < 3; i++) {
        const char *blank = i < 2 ? memchr(line, ' ', (size_t)(end - line)) : NULL;
        head->word[i] = line;
        head->word_bytes[i] = (size_t)((blank ? blank : end) - line);
        line = blank ? blank + 1 : end;
    }
    return head->word_bytes[0] > 0 && head->word_bytes[1] > 0;
}

static bool read_length(const char *value, size_t bytes, struct horon_http *head)
{
    size_t length = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (value[i] < '0' || value[i] > '9')
            return false;
        length = 10 * length + (size_t)(value[i] - '0');
    }
    if (bytes == 0 || bytes > LENGTH_DIGITS_MAX || head->has_length)
        return false;
    head->has_length = true;
    head->length = length;
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool read_field(const char *line, size_t bytes, struct horon_http *head)
{
    static const char length[] = "Content-Length", coding[] = "Transfer-Encoding";
    const char *colon = memchr(line, ':', bytes);
    const size_t name = colon ? (size_t)(colon - line) : 0;
    if (name == 0 || is_blank(line[0]) || is_blank(line[name - 1]))
        return false;
    const char *value = colon + 1, *end = line + bytes;
    while (value < end && is_blank(*value))
        value++;
    while (end > value && is_blank(end[-1]))
        end--;
    if (name == sizeof coding - 1 && strncasecmp(line, coding, name) == 0)
        return false;
    if (name == sizeof length - 1 && strncasecmp(line, length, name) == 0)
        return read_length(value, (size_t)(end - value), head);
    return true;
}

horon_status_t horon_http_look(const char *bytes, size_t count, struct horon_http *head)
{
    const size_t limit = count < HORON_HTTP_HEAD_BYTES_MAX ? count : HORON_HTTP_HEAD_BYTES_MAX;
    size_t at = 0;
    *head = (struct horon_http){.has_length = false};
    if (count == 0)
        return HORON_AGAIN;
    for (;;) {
        const long line = line_bytes(bytes + at, limit - at);
        if (line == -1)
            return limit < HORON_HTTP_HEAD_BYTES_MAX ? HORON_AGAIN : HORON_ERR_PROTO;
        if (line < 0)
            return HORON_ERR_PROTO;
        const char *begin = bytes + at;
        const bool first = at == 0;
        at += (size_t)line + 2;
        if (line == 0 && !first)
            break;
        if (!(first ? cut_words : read_field)(begin, (size_t)line, head))
            return HORON_ERR_PROTO;
    }
    head->head_bytes = at;
    assert(at <= count);
    return HORON_OK;
}

bool horon_http_word_is(const struct horon_http *head, int word, const char *text)
{
    const size_t bytes = strlen(text);
    return head->word_bytes[word] == bytes && memcmp(head->word[word], text, bytes) == 0;
}

int horon_http_code(const struct horon_http *head)
{
    const char *digits = head->word[1];
    const bool ours =
        horon_http_word_is(head, 0, "HTTP/1.1") || horon_http_word_is(head, 0, "HTTP/1.0");
    if (!ours || head->word_bytes[1] != 3 || digits[0] < '1' || digits[0] > '5' ||
        digits[1] < '0' || digits[1] > '9' || digits[2] < '0' || digits[2] > '9')
        return 0;
    return 100 * (digits[0] - '0') + 10 * (digits[1] - '0') + (digits[2] - '0');
}

size_t horon_http_write_request(char *to, size_t room, const char *method, const char *path,
                                const char *host, size_t body_bytes)
{
    const int bytes = snprintf(to, room,
                               "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %zu\r\n"
                               "Connection: close\r\n\r\n",
                               method, path, host, body_bytes);
    return bytes > 0 && (size_t)bytes < room ? (size_t)bytes : 0;
}

size_t horon_http_write_answer(char *to, size_t room, int code, size_t body_bytes)
{
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {503, "Service Unavailable"},
        {507, "Insufficient Storage"},
    };
    const char *reason = NULL;
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        reason = reasons[i].code == code ? reasons[i].reason : reason;
    assert(reason);
    const int bytes = snprintf(to, room,
                               "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n"
                               "Connection: close\r\n\r\n",
                               code, reason, body_bytes);
    return bytes > 0 && (size_t)bytes < room ? (size_t)bytes : 0;
}
