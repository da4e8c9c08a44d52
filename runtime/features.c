/* SPDX-License-Identifier: Apache-2.0 */
/* What this build can do, asked by name. */
#include "verbs.h"

#include <string.h>

int32_t horon_feature(const char *name)
{
    static const char *const others[] = {"persistent", "in_order", "process_sets", "join", "shm",
                                         "tcp",        "timeline", "mpi",          "gloo"};
    for (size_t i = 0; name && i < HORON_VERB_COUNT; i++)
        if (strcmp(name, horon_verb_rows[i].name) == 0)
            return 1;
    for (size_t i = 0; name && i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0)
            return 1;
    return 0;
}
