/* SPDX-License-Identifier: Apache-2.0 */
/* Formats a line on the stack and hands it on whole, so that lines of several threads never mix. */
#include "log.h"

#include "status.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void horon_log_line(const struct horon_log *log, horon_log_level_t level, const char *format, ...)
{
    char line[HORON_ERROR_TEXT_BYTES + 256];
    int used = 0;
    assert((size_t)level < sizeof level_names / sizeof level_names[0]);
    if (log->rank >= 0 && !log->bare)
        used = snprintf(line, sizeof line, "horon rank %d (%s) %s: ", log->rank, log->host,
                        level_names[level]);
    else if (!log->bare)
        used = snprintf(line, sizeof line, "horon %s: ", level_names[level]);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    /* names and peers' texts may hold anything, and a line is one line */
    horon_text_clean(line, "");
    if (log->fn) {
        log->fn(log->arg, level, line);
        return;
    }
    size_t bytes = 0;
    while (line[bytes])
        bytes++;
    line[bytes++] = '\n';
    /* standard error may be closed or full; there is nowhere left to say so */
    while (write(STDERR_FILENO, line, bytes) < 0 && errno == EINTR)
        continue;
}
