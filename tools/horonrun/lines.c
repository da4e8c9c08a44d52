/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines out of a stream that comes in arbitrary pieces. A rank's write may end in the middle of a
 * line or of a character; only whole lines are handed on, so lines of several ranks never mix.
 * Invariant: partial holds no line end and fewer than HORONRUN_LINE_BYTES_MAX bytes between two
 * calls.
 */
#include "lines.h"

#include <string.h>

static size_t end_of_line(const char *bytes, size_t count)
{
    const char *newline = memchr(bytes, '\n', count);
    size_t end = newline ? (size_t)(newline - bytes) : count;
    const char *carriage = memchr(bytes, '\r', end);
    return carriage ? (size_t)(carriage - bytes) : end;
}

static void emit_partial(struct horonrun_lines *lines, horonrun_line_fn emit, void *arg)
{
    emit(arg, lines->partial.data, lines->partial.used);
    lines->partial.used = 0;
}

/* Adds to the line in the making, handing on full pieces. */
static void grow(struct horonrun_lines *lines, const char *bytes, size_t count,
                 horonrun_line_fn emit, void *arg)
{
    while (count) {
        size_t room = HORONRUN_LINE_BYTES_MAX - lines->partial.used;
        size_t piece = count < room ? count : room;
        if (!horonrun_bytes_append(&lines->partial, bytes, piece)) {
            /* Without memory lines are torn rather than lost. */
            if (lines->partial.used)
                emit_partial(lines, emit, arg);
            emit(arg, bytes, piece);
        } else if (lines->partial.used == HORONRUN_LINE_BYTES_MAX) {
            emit_partial(lines, emit, arg);
            lines->after_return = true;
        } else {
            lines->after_return = false;
        }
        bytes += piece;
        count -= piece;
    }
}

static void finish_line(struct horonrun_lines *lines, const char *bytes, size_t count, char end,
                        horonrun_line_fn emit, void *arg)
{
    bool returned = lines->after_return;
    lines->after_return = false;
    if (lines->partial.used || count > HORONRUN_LINE_BYTES_MAX) {
        grow(lines, bytes, count, emit, arg);
        if (lines->partial.used)
            emit_partial(lines, emit, arg);
    } else if (count || (end == '\n' && !returned)) {
        emit(arg, bytes, count); /* the usual case: nothing is copied */
    } else {
        lines->after_return = end == '\r' && returned;
        return;
    }
    lines->after_return = end == '\r';
}

void horonrun_lines_feed(struct horonrun_lines *lines, const char *bytes, size_t count,
                         horonrun_line_fn emit, void *arg)
{
    while (count) {
        size_t line = end_of_line(bytes, count);
        if (line == count) {
            grow(lines, bytes, count, emit, arg);
            return;
        }
        finish_line(lines, bytes, line, bytes[line], emit, arg);
        bytes += line + 1;
        count -= line + 1;
    }
}

void horonrun_lines_flush(struct horonrun_lines *lines, horonrun_line_fn emit, void *arg)
{
    if (lines->partial.used)
        emit_partial(lines, emit, arg);
    lines->after_return = false;
}

void horonrun_lines_deinit(struct horonrun_lines *lines)
{
    horonrun_bytes_deinit(&lines->partial);
}
