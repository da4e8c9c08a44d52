/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables that a user has set in vain: of horon's own names those that mean nothing, which may be
 * slips, or that need another one, and of Horovod's those that horon has no option for, or that
 * tell another place than this rank has. Values are not shown: one may be a secret.
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

int horon_config_without_gloo(const struct horon_config *config, char *text, size_t text_bytes)
{
    const struct {
        const char *name;
        bool set;
    } rows[] = {
        {"HORON_GLOO_PREFIX", config->gloo_prefix[0] != 0},
        {"HORON_GLOO_ERA", config->gloo_era != HORON_GLOO_AUTO},
        {"HORON_GLOO_NATIVE", !config->gloo_native},
    };
    int count = 0;
    text[0] = 0;
    for (size_t i = 0; !config->gloo_store[0] && i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].set)
            continue;
        horon_text_add(text, text_bytes, ", ", "%s", rows[i].name);
        count++;
    }
    return count;
}

void horon_config_warn_without_gloo(const struct horon_config *config, const struct horon_log *log)
{
    char names[128];
    if (horon_config_without_gloo(config, names, sizeof names) > 0)
        HORON_LOG_WARN(log, "set, but ignored, as HORON_GLOO_STORE is not: %s", names);
}

/* HOROVOD_* that are no alias. A rank's place, as horovodrun and horonrun tell it, in the order of
 * HORON_CONFIG_PLACES; and what asks for nothing: a host's name, and where a rank meets the others
 * (boot/identity/identity.c). What Horovod's launcher sets besides, of itself, asks for nothing
 * either where it has started this rank. */
static const char *const places[HORON_CONFIG_PLACES] = {
    "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
};
static const char *const silent[] = {
    "HOSTNAME",
    "GLOO_RENDEZVOUS_ADDR",
    "GLOO_RENDEZVOUS_PORT",
};
static const char *const silent_of_launcher[] = {"CONTROLLER", "GLOO_IFACE"};

/* @return the row of which it is an alias; NULL: none */
static const struct horon_config_row *row_of_alias(const char *name, size_t name_bytes)
{
    size_t row_count;
    const struct horon_config_row *rows = horon_config_rows(&row_count);
    for (size_t i = 0; i < row_count; i++)
        if ((rows[i].alias && is_called(rows[i].alias, name, name_bytes)) ||
            (rows[i].alias_too && is_called(rows[i].alias_too, name, name_bytes)) ||
            (rows[i].alias_off && is_called(rows[i].alias_off, name, name_bytes)))
            return &rows[i];
    return NULL;
}

/* @return what nothing here does, of an alias's; NULL: it is no such word */
static const char *lacking_word(const struct horon_config_row *row, const char *value)
{
    const struct horon_config_word *word = row ? horon_config_alias_word(row, value) : NULL;
    return word && !word->ours ? word->theirs : NULL;
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

static bool is_one_of(const char *const *names, size_t count, const char *text, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (is_called(names[i], text, bytes))
            return true;
    return false;
}

/* @param name [name_bytes] with HOROVOD_, no alias */
static bool is_silent(const char *name, size_t name_bytes)
{
    const char *rest = name + strlen("HOROVOD_");
    const size_t bytes = name_bytes - strlen("HOROVOD_");
    return is_one_of(silent, sizeof silent / sizeof silent[0], rest, bytes) ||
           (is_set("HOROVOD_GLOO_RENDEZVOUS_ADDR") &&
            is_one_of(silent_of_launcher, sizeof silent_of_launcher / sizeof silent_of_launcher[0],
                      rest, bytes));
}

/* Is @p entry, "NAME=VALUE", what was found? */
static bool agrees(const char *entry, int found)
{
    const char *value = strchr(entry, '=');
    int told = 0;
    return !value || !value[1] ||
           (horon_number_parse(value + 1, 0, INT_MAX, &told) && told == found);
}

/* Is @p entry, "NAME=VALUE" of Horovod's, not heeded? @param shown what to show of it then */
static bool is_in_vain(const char *entry, const int *found, char *shown, size_t shown_bytes)
{
    const size_t bytes = strcspn(entry, "=");
    const int place = place_of(entry, bytes);
    const struct horon_config_row *row = row_of_alias(entry, bytes);
    const char *lacks = lacking_word(row, entry[bytes] ? entry + bytes + 1 : "");
    char name[128];
    if (place >= 0 ? !found || found[place] < 0 || agrees(entry, found[place])
                   : (row && !lacks) || is_silent(entry, bytes))
        return false;
    snprintf(name, sizeof name, "%.*s", (int)bytes, entry);
    horon_name_show(name, shown, shown_bytes);
    if (place >= 0)
        horon_text_add(shown, shown_bytes, "", " (found: %d)", found[place]);
    if (lacks)
        horon_text_add(shown, shown_bytes, "", "=%s", lacks);
    return true;
}

#define MORE_BYTES 24 /* of what stands between two names, or behind the last one */

int horon_config_unheeded(const int *found, char *text, size_t text_bytes)
{
    int unheeded = 0, left_out = 0;
    text[0] = 0;
    if (is_set("HORON_RANK")) /* horonrun sets them, of hosts as it was told of them */
        found = NULL;
    for (char **entry = environ; entry && *entry; entry++) {
        char shown[128];
        if (strncmp(*entry, "HOROVOD_", strlen("HOROVOD_")) != 0 ||
            !is_in_vain(*entry, found, shown, sizeof shown))
            continue;
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
