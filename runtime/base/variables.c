/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables that a user has set in vain: of horon's own names those that mean nothing, which may be
 * slips, and of Horovod's those that horon has no option for, or that tell another place than this
 * rank has. Values are not shown: one may be a secret.
 */
#include "config.h"

#include "log.h"
#include "nearest.h"
#include "numbers.h"

#include <limits.h>
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

void horon_config_warn_unknown(const struct horon_log *log)
{
    struct horon_error error = {0};
    const int unknown = horon_config_unknown(&error);
    if (unknown > 1)
        HORON_LOG_WARN(log, "%s; %d more mean nothing either", error.text, unknown - 1);
    else if (unknown)
        HORON_LOG_WARN(log, "%s", error.text);
}

/* HOROVOD_* that are no alias. A rank's place, as horovodrun and horonrun tell it, in the order of
 * HORON_CONFIG_PLACES; and what asks for nothing: a host's name, and where a rank meets the others
 * (boot/identity/identity.c). */
static const char *const places[HORON_CONFIG_PLACES] = {
    "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
};
static const char *const silent[] = {
    "HOSTNAME",
    "GLOO_RENDEZVOUS_ADDR",
    "GLOO_RENDEZVOUS_PORT",
};

/* What horovodrun sets for all ranks, asked to or not: a user means nothing by it, while the
 * variable of its server tells that it did. */
static const char *const from_horovodrun[] = {
    "CONTROLLER",
    "CPU_OPERATIONS",
    "GLOO_IFACE",
};

/* Set to nothing is not set; likewise below. */
static bool is_set(const char *name)
{
    for (char **entry = environ; entry && *entry; entry++) {
        const size_t bytes = strcspn(*entry, "=");
        if (is_called(name, *entry, bytes))
            return (*entry)[bytes] && (*entry)[bytes + 1];
    }
    return false;
}

/* @param name [name_bytes] with HOROVOD_ */
static bool is_heeded(const char *name, size_t name_bytes)
{
    const size_t before = strlen("HOROVOD_");
    size_t row_count;
    const struct horon_config_row *rows = horon_config_rows(&row_count);
    bool heeded = false;
    for (size_t i = 0; i < row_count && !heeded; i++)
        heeded = rows[i].alias && is_called(rows[i].alias, name, name_bytes);
    for (size_t i = 0; i < sizeof silent / sizeof silent[0] && !heeded; i++)
        heeded = is_called(silent[i], name + before, name_bytes - before);
    for (size_t i = 0; i < sizeof from_horovodrun / sizeof from_horovodrun[0] && !heeded; i++)
        heeded = is_called(from_horovodrun[i], name + before, name_bytes - before) &&
                 is_set("HOROVOD_GLOO_RENDEZVOUS_ADDR");
    return heeded;
}

/* @return which of the places @p name [name_bytes] tells; -1: none */
static int place_of(const char *name, size_t name_bytes)
{
    const size_t before = strlen("HOROVOD_");
    for (int i = 0; i < HORON_CONFIG_PLACES; i++)
        if (is_called(places[i], name + before, name_bytes - before))
            return i;
    return -1;
}

/* Is @p entry, "NAME=VALUE", what was found? */
static bool agrees(const char *entry, int found)
{
    const char *value = strchr(entry, '=');
    int told = 0;
    return !value || !value[1] ||
           (horon_number_parse(value + 1, 0, INT_MAX, &told) && told == found);
}

#define MORE_BYTES 24 /* of what stands between two names, or behind the last one */

int horon_config_unheeded(const int *found, char *text, size_t text_bytes)
{
    int unheeded = 0, left_out = 0;
    text[0] = 0;
    if (is_set("HORON_RANK")) /* horonrun sets them, of hosts as it was told of them */
        found = NULL;
    for (char **entry = environ; entry && *entry; entry++) {
        const size_t bytes = strcspn(*entry, "=");
        char name[128], shown[128];
        if (strncmp(*entry, "HOROVOD_", strlen("HOROVOD_")) != 0)
            continue;
        const int place = place_of(*entry, bytes);
        if (place < 0 ? is_heeded(*entry, bytes) : !found || agrees(*entry, found[place]))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, *entry);
        horon_name_show(name, shown, sizeof shown);
        if (place >= 0)
            horon_text_add(shown, sizeof shown, "", " (found: %d)", found[place]);
        unheeded++;
        if (strlen(text) + strlen(shown) + MORE_BYTES < text_bytes)
            horon_text_add(text, text_bytes, ", ", "%s", shown);
        else
            left_out++;
    }
    if (left_out)
        horon_text_add(text, text_bytes, "", " and %d more", left_out);
    return unheeded;
}

void horon_config_warn_unheeded(const struct horon_log *log, const int *found)
{
    char names[800]; /* a line of the log has room for so many */
    if (horon_config_unheeded(found, names, sizeof names) > 0)
        HORON_LOG_WARN(log, "set, but not heeded by horon: %s (horon-info --config lists what is)",
                       names);
}
