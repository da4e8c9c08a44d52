/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines of one context: "horon rank 3 (host-a) warn: text". */
#ifndef HORON_BASE_LOG_H
#define HORON_BASE_LOG_H

#include <horon/horon.h>

#include <stdbool.h>

/** Where a context's lines go. Set once before any thread starts, then read only. */
struct horon_log {
    horon_log_fn_t fn; /* NULL: one write() to standard error a line */
    void *arg;
    horon_log_level_t level; /* lines above it are dropped */
    int rank;                /* -1: not known yet */
    bool bare;               /* fn is given the text alone: neither the rank nor the level */
    char host[64];
};

/** Thread: any. Use the macros, which skip the formatting of dropped lines. */
void horon_log_line(const struct horon_log *log, horon_log_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline bool horon_log_wants(const struct horon_log *log, horon_log_level_t level)
{
    return log && level <= log->level;
}

#define HORON_LOG_AT(log, level_, ...)                                                             \
    do {                                                                                           \
        if (horon_log_wants((log), (level_)))                                                      \
            horon_log_line((log), (level_), __VA_ARGS__);                                          \
    } while (0)
#define HORON_LOG_WARN(log, ...) HORON_LOG_AT(log, HORON_LOG_WARN, __VA_ARGS__)
#define HORON_LOG_INFO(log, ...) HORON_LOG_AT(log, HORON_LOG_INFO, __VA_ARGS__)
#define HORON_LOG_DEBUG(log, ...) HORON_LOG_AT(log, HORON_LOG_DEBUG, __VA_ARGS__)
#define HORON_LOG_TRACE(log, ...) HORON_LOG_AT(log, HORON_LOG_TRACE, __VA_ARGS__)

#endif
