/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of HTTP/1.1 as a key-value server with one request a connection needs (Horovod's
 * rendezvous): the first line, the length of the body. Either end has the bytes that have come so
 * far in one piece, and looks again when there are more: no state, no memory, no I/O.
 */
#ifndef HORON_BASE_HTTP_H
#define HORON_BASE_HTTP_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>

/** Of a head, with the empty line that ends it. */
#define HORON_HTTP_HEAD_BYTES_MAX ((size_t)8192)

/** Views into the bytes that were looked at. */
struct horon_http {
    /* the three words of the first line: "GET" "/scope/key" "HTTP/1.1", or "HTTP/1.0" "404" "Not
     * Found", whose last may be empty */
    const char *word[3];
    size_t word_bytes[3];
    size_t head_bytes; /* the body follows */
    bool has_length;   /* else an answer's body goes on until the connection ends */
    size_t length;     /* as Content-Length says: any number, the caller has a limit; or 0 */
};

/**
 * Looks at the head of what has come, which may be nothing (NULL).
 * @return OK, it is whole; the body need not be | AGAIN, want more | ERR_PROTO, this is no such
 *         head, is longer than the maximum, or has a body in pieces (Transfer-Encoding)
 */
horon_status_t horon_http_look(const char *bytes, size_t count, struct horon_http *head);

bool horon_http_word_is(const struct horon_http *head, int word, const char *text);

/** Of an answer. @return 100 to 599; 0: this is none of HTTP/1.x */
int horon_http_code(const struct horon_http *head);

/**
 * Writes a request's head; its body follows.
 * @return its bytes; 0: there is no room
 */
size_t horon_http_write_request(char *to, size_t room, const char *method, const char *path,
                                const char *host, size_t body_bytes);

/** Likewise an answer's, the last on its connection; @p code is one of those that a server here
 * gives: 200, 400, 404, 405, 408, 413, 503, 507. */
size_t horon_http_write_answer(char *to, size_t room, int code, size_t body_bytes);

#endif
