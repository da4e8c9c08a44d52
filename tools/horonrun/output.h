/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything horonrun prints: lines of ranks with their prefix, its own messages, and the files of
 * --output-filename. Lines are whole on our stdout and stderr, also if both are the same file.
 * Thread: the loop's.
 */
#ifndef HORONRUN_OUTPUT_H
#define HORONRUN_OUTPUT_H

#include "lines.h"
#include "status.h"

#include <ev.h>

/** Lines of stderr that are kept of each rank, for the report, and how much of each. */
#define HORONRUN_LAST_LINES 10
#define HORONRUN_LAST_LINE_BYTES 400

struct horonrun_output_style {
    bool color[2]; /* stdout, stderr */
    bool timestamps, no_prefix;
    const char *directory; /* NULL: no files */
};

struct horonrun_output; /* create/destroy */

/**
 * @param ranks how many there will be
 * @param on_full called with true when our stdout or stderr does not keep up, with false when it
 *         does again; rank output should not be fed meanwhile
 * @param on_broken called once for our stdout (1) or stderr (2) when it cannot be written any more
 * @return OK | ERR_MEMORY
 */
horon_status_t horonrun_output_create(struct horonrun_output **output_out, struct ev_loop *loop,
                                      int ranks, const struct horonrun_output_style *style,
                                      void (*on_full)(void *arg, bool full),
                                      void (*on_broken)(void *arg, int stream, int why), void *arg,
                                      struct horon_error *error);

/** Opens DIR/rank.N/stdout and stderr. @return OK | ERR_SYSTEM, naming the file */
horon_status_t horonrun_output_open_files(struct horonrun_output *output,
                                          struct horon_error *error);

/** Takes what @p rank printed. @param stream 1 stdout, 2 stderr */
void horonrun_output_feed(struct horonrun_output *output, int rank, int stream, const char *bytes,
                          size_t count);

/** The rank prints no more: what has no newline is printed as a line. */
void horonrun_output_flush(struct horonrun_output *output, int rank);

/** Prints "horonrun: text" and a newline on stderr, without control characters: names and reasons
 * come from ranks, agents and their hosts, and none of them may speak to the terminal. */
void horonrun_output_say(struct horonrun_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Prints the last lines that @p rank wrote to stderr, indented. */
void horonrun_output_repeat_last(struct horonrun_output *output, int rank);
/** @return the last line that @p rank wrote to stderr, of those that it repeats and that are not
 * horon's own of less than an error: a rank fails for none of these; NULL: there is none */
const char *horonrun_output_last_line(const struct horonrun_output *output, int rank);

/** @return true: one of the files could not be written to its end */
bool horonrun_output_lost_file(const struct horonrun_output *output);

/** @return bytes that our stdout and stderr have not taken yet */
size_t horonrun_output_pending(const struct horonrun_output *output);

/** Does not wait: what is pending is lost. NULL is a no-op. */
void horonrun_output_destroy(struct horonrun_output *output);

#endif
