/* SPDX-License-Identifier: Apache-2.0 */
/* What this build can do, asked by name. */
#include "backend/backend.h"

#include <string.h>

static bool is_backend(const char *name)
{
    bool is = strcmp(name, horon_backends_among_gloo[0]->name) == 0;
    for (size_t i = 0; i < horon_backend_count && !is; i++)
        is = strcmp(name, horon_backends[i]->name) == 0;
    return is;
}

int32_t horon_feature(const char *name)
{
    static const char *const others[] = {"persistent", "in_order", "process_sets", "join",
                                         "shm",        "tcp",      "timeline"};
    for (size_t i = 0; name && i < HORON_VERB_COUNT; i++)
        if (strcmp(name, horon_verb_rows[i].name) == 0)
            return 1;
    for (size_t i = 0; name && i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0)
            return 1;
    return name && is_backend(name);
}
