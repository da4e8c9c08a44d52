/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environments as data. Ranks get horonrun's whole environment, on other hosts too (over the
 * agent's own), as horovodrun's do, so that PATH, PYTHONPATH and NCCL_* are alike everywhere; left
 * out is what would be wrong on another machine.
 */
#include "environment.h"

#include "alloc.h"
#include "config.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

static const char *const not_for_others[] = {
    "BASH_FUNC_*", "CUDA_VISIBLE_DEVICES",
    "DBUS_*",      "DISPLAY",
    "HOME",        "HOSTNAME",
    "KRB5CCNAME",  "LOGNAME",
    "MAIL",        "NVIDIA_VISIBLE_DEVICES",
    "OLDPWD",      "PWD",
    "SHELL",       "SHLVL",
    "SSH_*",       "TERM",
    "TMPDIR",      "TMUX*",
    "USER",        "XAUTHORITY",
    "XDG_*",       "_",
    NULL,
};

static size_t count_of(char *const *list)
{
    size_t count = 0;
    while (list[count])
        count++;
    return count;
}

/* @param name "NAME" or "NAME=value" */
static bool is_named(const char *entry, const char *name)
{
    size_t bytes = strcspn(name, "=");
    return strncmp(entry, name, bytes) == 0 && entry[bytes] == '=';
}

static char **find_entry(char *const *list, const char *name)
{
    for (char **entry = (char **)list; *entry; entry++)
        if (is_named(*entry, name))
            return entry;
    return NULL;
}

const char *horonrun_environment_find(char *const *list, const char *name)
{
    char **entry = find_entry(list, name);
    return entry ? *entry + strlen(name) + 1 : NULL;
}

static bool append(char ***list, char *entry)
{
    size_t count = count_of(*list);
    char **grown = entry ? horon_realloc(*list, (count + 2) * sizeof *grown) : NULL;
    if (!grown)
        return false;
    grown[count] = entry;
    grown[count + 1] = NULL;
    *list = grown;
    return true;
}

bool horonrun_environment_set(char ***list, const char *name, const char *value)
{
    size_t bytes = strlen(name) + strlen(value) + 2;
    char *text = horon_alloc(bytes);
    if (!text)
        return false;
    snprintf(text, bytes, "%s=%s", name, value);
    char **entry = find_entry(*list, name);
    if (entry) {
        horon_free(*entry);
        *entry = text;
        return true;
    }
    if (append(list, text))
        return true;
    horon_free(text);
    return false;
}

void horonrun_environment_remove(char **list, const char *name)
{
    char **entry = find_entry(list, name);
    if (entry)
        horonrun_environment_remove_at(entry);
}

void horonrun_environment_remove_at(char **entry)
{
    explicit_bzero(*entry, strlen(*entry)); /* it may be a secret */
    horon_free(*entry);
    do
        entry[0] = entry[1];
    while (*entry++);
}

bool horonrun_environment_matches(const char *entry, const char *const *names)
{
    for (; *names; names++) {
        const size_t bytes = strlen(*names);
        if ((*names)[bytes - 1] == '*' ? strncmp(entry, *names, bytes - 1) == 0
                                       : is_named(entry, *names))
            return true;
    }
    return false;
}

static char **copy_some(char *const *list, bool for_remote)
{
    char **copy = horon_zalloc(count_of(list) + 1, sizeof *copy);
    size_t count = 0;
    for (size_t i = 0; copy && list[i]; i++) {
        if (for_remote && horonrun_environment_matches(list[i], not_for_others))
            continue;
        copy[count] = horon_strdup(list[i]);
        if (!copy[count++]) {
            horonrun_strings_free(copy);
            return NULL;
        }
    }
    return copy;
}

char **horonrun_environment_copy(char *const *list)
{
    return copy_some(list, false);
}

char **horonrun_environment_copy_for_remote(char *const *list)
{
    return copy_some(list, true);
}

bool horonrun_environment_add_own(char ***list)
{
    for (char **own = environ; own && *own; own++) {
        if (find_entry(*list, *own))
            continue;
        char *copy = horon_strdup(*own);
        if (!append(list, copy)) {
            horon_free(copy);
            return false;
        }
    }
    return true;
}

/* What ranks get of their own: places[] in its order and, last, the descriptor. */
static const char *const own_names[] = {
    "HORON_RANK",         "HORON_SIZE",         "HORON_LOCAL_RANK",   "HORON_LOCAL_SIZE",
    "HOROVOD_RANK",       "HOROVOD_SIZE",       "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HORON_FAILURE_FILE",
};
#define OWN_COUNT (sizeof own_names / sizeof own_names[0])
#define OWN_BYTES 48

/* @param text "NAME" or "NAME=value" */
static bool is_own(const char *text)
{
    const size_t bytes = strcspn(text, "=");
    bool own = false;
    for (size_t i = 0; i < OWN_COUNT && !own; i++)
        own = strlen(own_names[i]) == bytes && strncmp(own_names[i], text, bytes) == 0;
    return own;
}

bool horonrun_environment_is_reserved(const char *text)
{
    const size_t bytes = strcspn(text, "=");
    const struct horon_config_row *row =
        strncmp(text, "HORON_", 6) == 0 ? horon_config_find(text + 6, bytes - 6) : NULL;
    return (row && row->from_launcher) || is_own(text);
}

/* Of the first @p hosts, those that have a rank of this local number. */
static int count_with(const struct horonrun_work *work, int hosts, int index)
{
    int count = 0;
    for (int i = 0; i < hosts; i++)
        count += work->host_ranks[i] > index;
    return count;
}

char **horonrun_environment_of_rank(const struct horonrun_work *work, int index, int failure_fd)
{
    const int rank = work->first_rank + index;
    const int places[OWN_COUNT - 1] = {rank,
                                       work->size,
                                       index,
                                       work->ranks,
                                       rank,
                                       work->size,
                                       index,
                                       work->ranks,
                                       count_with(work, work->host, index),
                                       count_with(work, work->hosts, index)};
    const size_t count = count_of(work->environment), room = count + OWN_COUNT + 1;
    char **list = horon_alloc(room * sizeof *list + OWN_COUNT * OWN_BYTES);
    if (!list)
        return NULL;
    char *text = (char *)(list + room);
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (!is_own(work->environment[i]))
            list[used++] = work->environment[i];
    for (size_t i = 0; i < OWN_COUNT - 1; i++, text += OWN_BYTES) {
        snprintf(text, OWN_BYTES, "%s=%d", own_names[i], places[i]);
        list[used++] = text;
    }
    if (failure_fd >= 0) {
        snprintf(text, OWN_BYTES, "%s=fd:%d", own_names[OWN_COUNT - 1], failure_fd);
        list[used++] = text;
    }
    list[used] = NULL;
    return list;
}
