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

/** What a failure is about, besides its text; as in horon_failure_t. Ranks are those of the job,
 * but in a coordinator, which knows those of its team only. */
struct horon_blame {
    horon_cause_t cause;
    int32_t rank, other_rank; /* -1: none, or not known */
    bool input_lost; /* of a request: it may have written over its input; of this rank only */
};

/** Why something failed. Embed it or keep it on the stack; all zero is "no error". */
struct horon_error {
    horon_status_t status;
    struct horon_blame blame;
    char text[HORON_ERROR_TEXT_BYTES];
};

/** Nothing failed: `= {0}` where it is too much to write all of the text each time. */
static inline void horon_error_clear(struct horon_error *error)
{
    error->status = HORON_OK;
    error->blame = (struct horon_blame){0};
    error->text[0] = 0;
}

/** Fills @p error (NULL: ignored) with a printf text, cut to fit. Its cause is the status's usual
 * one, and it blames no rank. @return @p status, to return on. */
horon_status_t horon_error_set(struct horon_error *error, horon_status_t status, const char *format,
                               ...) __attribute__((format(printf, 3, 4)));

/** Likewise, and appends ": " and the text of @p errno_value. */
horon_status_t horon_error_set_errno(struct horon_error *error, horon_status_t status,
                                     int errno_value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** What a failure of @p status alone is about; no rank is blamed. */
struct horon_blame horon_blame_from_status(horon_status_t status);

/** Says more exactly what an error that is set (or NULL) is about. */
void horon_error_blame(struct horon_error *error, horon_cause_t cause, int rank, int other_rank);
/** Likewise of two ranks that differ: the lower one goes first, whichever of them finds it. */
void horon_error_blame_both(struct horon_error *error, horon_cause_t cause, int rank,
                            int other_rank);

/**
 * A failure that another process put into a message or into shared memory.
 * @param number its status, of 32 bits
 * @return the status | ERR_PROTO, there is no such failure
 */
horon_status_t horon_status_from_peer(uint32_t number);

/**
 * What such a failure is about.
 * @param size ranks there are
 * @return what makes no sense there is not known: the cause is that of @p status, a rank is -1
 */
struct horon_blame horon_blame_from_peer(horon_status_t status, uint32_t cause, uint32_t rank,
                                         uint32_t other_rank, int size);

/** An error in a message: HORON_ERROR_WIRE_BYTES_MAX at most. */
struct horon_writer;
struct horon_reader;
void horon_error_write(struct horon_writer *out, const struct horon_error *error);
/** The reader fails if there is no whole error, or no text in it, which is cleaned as below.
 * @param size as above */
void horon_error_read(struct horon_reader *in, int size, struct horon_error *error);
#define HORON_ERROR_WIRE_BYTES_MAX (HORON_ERROR_TEXT_BYTES + 16)

/** Puts '?' for control characters, also for those of two bytes in UTF-8, so that no terminal obeys
 * what others have said. @param kept those that stay, or "": then it is one line, too */
void horon_text_clean(char *text, const char *kept);

/**
 * A name as it may stand in a text: control characters as \n, \t and \x1b, so that a text stays
 * one line and no terminal obeys it. Every name that enters a text passes here.
 * @param text [text_bytes] cut to fit, but never within a character that is shown so
 * @return @p text
 */
const char *horon_name_show(const char *name, char *text, size_t text_bytes);

/** Appends a printf text, cut to fit: to a list, whose items @p separator stands between. */
void horon_text_add(char *text, size_t text_bytes, const char *separator, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Copies the text to a caller's buffer, cut to fit. NULL or 0 bytes: nothing. */
void horon_error_copy_text(const struct horon_error *error, char *text, size_t text_bytes);

#endif
