/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables that a user has set in vain: those of horon's names that mean nothing, which may be
 * slips. Values are not shown: one may be a secret.
 */
#include "config.h"

#include "nearest.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

static bool is_called(const char *name, const char *text, size_t bytes)
{
    return strlen(name) == bytes && strncmp(name, text, bytes) == 0;
}

/* HORON_* that are no rows and mean something to others: a rank's place, by horonrun for
 * boot/identity/identity.c, and the options of tools/setup. Those of tests begin with HORON_TEST_.
 */
static const char *const elsewhere[] = {
    "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "PYTHON", "TORCH_SPEC", "SKIP_DEBIAN",
};
#define ELSEWHERE (sizeof elsewhere / sizeof elsewhere[0])

/* @param name without HORON_ */
static bool is_known(const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < ELSEWHERE; i++)
        if (is_called(elsewhere[i], name, name_bytes))
            return true;
    return strncmp(name, "TEST_", 5) == 0 || horon_config_find(name, name_bytes);
}

int horon_config_unknown(struct horon_error *error)
{
    size_t row_count;
    const struct horon_config_row *rows = horon_config_rows(&row_count);
    int unknown = 0;
    for (char **entry = environ; entry && *entry; entry++) {
        size_t bytes = strcspn(*entry, "=");
        if (strncmp(*entry, "HORON_", 6) != 0 || is_known(*entry + 6, bytes - 6))
            continue;
        if (unknown++)
            continue;
        struct horon_nearest nearest = horon_nearest_to(*entry + 6, bytes - 6);
        for (size_t i = 0; i < row_count; i++)
            horon_nearest_consider(&nearest, rows[i].name, strlen(rows[i].name));
        for (size_t i = 0; i < ELSEWHERE; i++)
            horon_nearest_consider(&nearest, elsewhere[i], strlen(elsewhere[i]));
        const bool close = horon_nearest_is_close(&nearest);
        horon_error_set(error, HORON_ERR_CONFIG, "%.*s is set but means nothing; %s%s", (int)bytes,
                        *entry, close ? "the nearest is HORON_" : "horon-info --config lists all",
                        close ? nearest.name : "");
    }
    return unknown;
}
