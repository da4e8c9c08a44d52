/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts one stream of a rank into lines, however it was written in pieces. No I/O. */
#ifndef HORONRUN_LINES_H
#define HORONRUN_LINES_H

#include "bytes.h"

/** A longer line is handed on in pieces of this size, so that memory stays bounded. */
#define HORONRUN_LINE_BYTES_MAX ((size_t)64 << 10)

/** Gets one line without its end. @p text lives during the call only and may hold any byte. */
typedef void (*horonrun_line_fn)(void *arg, const char *text, size_t bytes);

/** Embedded; all zero is the beginning of a stream. */
struct horonrun_lines {
    struct horonrun_bytes partial;
    bool after_return; /* a line has just ended, by \r or its length: a \n now adds none */
};

/**
 * Takes the next bytes and hands on each line that they end. A line ends at \n, \r\n, or \r, so
 * that progress bars show; a \r after an empty line ends nothing.
 */
void horonrun_lines_feed(struct horonrun_lines *lines, const char *bytes, size_t count,
                         horonrun_line_fn emit, void *arg);

/** The stream has ended: hands on what has no end. */
void horonrun_lines_flush(struct horonrun_lines *lines, horonrun_line_fn emit, void *arg);

void horonrun_lines_deinit(struct horonrun_lines *lines);

#endif
