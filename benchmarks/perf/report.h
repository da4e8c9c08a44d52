/* SPDX-License-Identifier: Apache-2.0 */
/* The table on standard output and the lines of the JSON file. Only rank 0 has a report. */
#ifndef HORON_PERF_REPORT_H
#define HORON_PERF_REPORT_H

#include "loop.h"

struct perf_report {
    const struct perf_options *options;
    const struct perf_peer *peer;
    FILE *json; /* NULL: none */
};

/** Opens the JSON file. @return 0 | -1, @p why [PERF_TEXT_BYTES] tells */
int perf_report_open(struct perf_report *report, const struct perf_options *options,
                     const struct perf_peer *peer, char *why);

/** Prints what is measured and how, and the heads of the columns. */
void perf_report_head(const struct perf_report *report, bool aligned);

/** Prints one size: a line of the table, and one object for each measured cell [2]. */
void perf_report_row(const struct perf_report *report, const struct perf_cell *cells);

/** @return 0 | -1, the JSON file could not be written; @p why [PERF_TEXT_BYTES] tells */
int perf_report_close(struct perf_report *report, char *why);

#endif
