/* SPDX-License-Identifier: Apache-2.0 */
/* An environment of a test: a list of "NAME=value" with NULL behind it. */
#ifndef HORON_TEST_ENVIRONMENTS_H
#define HORON_TEST_ENVIRONMENTS_H

#include <stdint.h>
#include <string.h>

static const char *const *environment; /* of the test that runs */

/* As horon_environment_fn. */
static inline char *find(const char *name)
{
    const size_t bytes = strlen(name);
    for (const char *const *list = environment; *list; list++)
        if (strncmp(*list, name, bytes) == 0 && (*list)[bytes] == '=')
            return (char *)(uintptr_t)(*list + bytes + 1);
    return NULL;
}

#endif
