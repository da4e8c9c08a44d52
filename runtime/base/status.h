/* SPDX-License-Identifier: Apache-2.0 */
/* A failure and its reason. Log once, where it is decided; callers pass it up. */
#ifndef HORON_BASE_STATUS_H
#define HORON_BASE_STATUS_H

#include <horon/horon.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/** A function for what is seldom, with texts on its stack: apart from its caller, which then needs
 * no room for them, nor a guard of that. */
#define HORON_SELDOM __attribute__((noinline, cold))

/** Why something failed. Embed it or keep it on the stack; all zero is "no error". */
struct horon_error {
    horon_status_t status;
    char text[HORON_ERROR_TEXT_BYTES];
};

/** Fills @p error (NULL: ignored) with a printf text, cut to fit. @return @p status, to return on.
 */
horon_status_t horon_error_set(struct horon_error *error, horon_status_t status, const char *format,
                               ...) __attribute__((format(printf, 3, 4)));

/** Likewise, and appends ": " and the text of @p errno_value. */
horon_status_t horon_error_set_errno(struct horon_error *error, horon_status_t status,
                                     int errno_value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/**
 * A failure that another process put into a message or into shared memory.
 * @param number its status, of 32 bits
 * @return the status | ERR_PROTO, there is no such failure
 */
horon_status_t horon_status_from_peer(uint32_t number);

/**
 * A name as it may stand in a text: control characters as \n, \t and \x1b, so that a text stays
 * one line and no terminal obeys it. Every name that enters a text passes here.
 * @param text [text_bytes] cut to fit, but never within a character that is shown so
 * @return @p text
 */
const char *horon_name_show(const char *name, char *text, size_t text_bytes);

/** Copies the text to a caller's buffer, cut to fit. NULL or 0 bytes: nothing. */
void horon_error_copy_text(const struct horon_error *error, char *text, size_t text_bytes);

#endif
