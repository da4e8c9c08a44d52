/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs here do about a failure: they say it, and end. */
#ifndef HORON_TEST_MPI_MUST_H
#define HORON_TEST_MPI_MUST_H

#include <horon/horon.h>

#include <stdio.h>
#include <stdlib.h>

/** @param what  was to be done @param text  why not */
static inline void must(horon_status_t status, const char *what, const char *text)
{
    if (status == HORON_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, horon_status_text(status), text);
    exit(1);
}

#endif
