/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environments as data. Ranks get horonrun's whole environment, on other hosts too (over the
 * agent's own), as horovodrun's do, so that PATH, PYTHONPATH and NCCL_* are alike everywhere; left
 * out is what would be wrong on another machine.
 */
#include "environment.h"

#include "alloc.h"

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
};

static size_t count_of(char *const *list)
{
    size_t count = 0;
    while (list[count])
        count++;
    return count;
}

static bool is_named(const char *entry, const char *name)
{
    size_t bytes = strlen(name);
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
    if (!entry)
        return;
    explicit_bzero(*entry, strlen(*entry)); /* it may be a secret */
    horon_free(*entry);
    do
        entry[0] = entry[1];
    while (*entry++);
}

static bool stays_here(const char *entry)
{
    for (size_t i = 0; i < sizeof not_for_others / sizeof not_for_others[0]; i++) {
        const char *pattern = not_for_others[i];
        size_t bytes = strlen(pattern);
        if (pattern[bytes - 1] == '*' ? strncmp(entry, pattern, bytes - 1) == 0
                                      : is_named(entry, pattern))
            return true;
    }
    return false;
}

static char **copy_some(char *const *list, bool for_remote)
{
    char **copy = horon_zalloc(count_of(list) + 1, sizeof *copy);
    size_t count = 0;
    for (size_t i = 0; copy && list[i]; i++) {
        if (for_remote && stays_here(list[i]))
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
        char name[256];
        size_t bytes = strcspn(*own, "=");
        if (bytes >= sizeof name)
            continue;
        memcpy(name, *own, bytes);
        name[bytes] = 0;
        if (find_entry(*list, name))
            continue;
        char *copy = horon_strdup(*own);
        if (!append(list, copy)) {
            horon_free(copy);
            return false;
        }
    }
    return true;
}

char **horonrun_environment_of_rank(const struct horonrun_work *work, int index, int failure_fd)
{
    enum { OWN_COUNT = 5, OWN_BYTES = 48 };
    const struct {
        const char *name, *before;
        int value; /* below 0: there is none */
    } own[OWN_COUNT] = {
        {"HORON_RANK", "", work->first_rank + index},
        {"HORON_SIZE", "", work->size},
        {"HORON_LOCAL_RANK", "", index},
        {"HORON_LOCAL_SIZE", "", work->ranks},
        {"HORON_FAILURE_FILE", "fd:", failure_fd},
    };
    size_t count = count_of(work->environment);
    char **list = horon_alloc((count + OWN_COUNT + 1) * sizeof *list + OWN_COUNT * OWN_BYTES);
    if (!list)
        return NULL;
    char *text = (char *)(list + count + OWN_COUNT + 1);
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_own = false;
        for (int j = 0; j < OWN_COUNT && !is_own; j++)
            is_own = is_named(work->environment[i], own[j].name);
        if (!is_own)
            list[used++] = work->environment[i];
    }
    for (int j = 0; j < OWN_COUNT; j++, text += OWN_BYTES) {
        if (own[j].value < 0)
            continue;
        snprintf(text, OWN_BYTES, "%s=%s%d", own[j].name, own[j].before, own[j].value);
        list[used++] = text;
    }
    list[used] = NULL;
    return list;
}
