/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profile says what cannot be asked over a connection that does not exist yet. The settings of
 * rank 0 travel as text, so that a rank which has others can name both values.
 */
#include "boot/profile.h"

#include "file.h"
#include "host/process.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* @return 0 if it cannot be read */
static uint64_t hash_of_file(const char *path, uint64_t seed)
{
    char text[1024];
    const size_t bytes = horon_file_read_text(path, text, sizeof text);
    return bytes ? XXH3_64bits_withSeed(text, bytes, seed) : 0;
}

/* Adds what tells a namespace from others: the calling thread's, which may have left that of the
 * process's first one. @return 0 if that is not known, or @p so_far is 0 */
static uint64_t add_namespace(uint64_t so_far, const char *proc, const char *name)
{
    char path[256];
    struct stat about;
    snprintf(path, sizeof path, "%s/thread-self/ns/%s", proc, name);
    if (so_far == 0 || stat(path, &about) != 0)
        return 0;
    const uint64_t id[] = {(uint64_t)about.st_dev, (uint64_t)about.st_ino};
    return XXH3_64bits_withSeed(id, sizeof id, so_far);
}

void horon_profile_find_machine(struct horon_profile *profile, const char *proc)
{
    char path[256];
    snprintf(path, sizeof path, "%s/sys/kernel/random/boot_id", proc);
    profile->kernel = hash_of_file(path, 0);
    profile->machine = add_namespace(profile->kernel, proc, "net");
}

void horon_profile_find_host(struct horon_profile *profile, const char *proc)
{
    const uint64_t user = geteuid(), users = add_namespace(profile->machine, proc, "user");
    const bool readable = horon_process_may_read_others(proc);
    profile->host = users ? XXH3_64bits_withSeed(&user, sizeof user, users) : 0;
    profile->readers = readable ? add_namespace(profile->host, proc, "pid") : 0;
}

static horon_status_t write_settings(char settings[HORON_PROFILE_SETTINGS_BYTES],
                                     const struct horon_config *config, struct horon_error *error)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    settings[0] = 0;
    for (size_t i = 0; i < count; i++) {
        char value[HORON_CONFIG_TEXT_BYTES];
        if (!rows[i].agreed || rows[i].secret)
            continue;
        horon_config_format(config, &rows[i], value, sizeof value);
        horon_text_add(settings, HORON_PROFILE_SETTINGS_BYTES, "", "%s=%s\n", rows[i].name, value);
    }
    if (strlen(settings) == HORON_PROFILE_SETTINGS_BYTES - 1) /* perhaps cut */
        return horon_error_set(error, HORON_ERR_CONFIG, "the settings are too long");
    return HORON_OK;
}

horon_status_t horon_profile_fill(struct horon_profile *profile,
                                  char settings[HORON_PROFILE_SETTINGS_BYTES],
                                  const struct horon_config *config, struct horon_error *error)
{
    *profile = (struct horon_profile){.settings = settings, .addresses = ""};
    if (gethostname(profile->name, sizeof profile->name - 1) != 0 || !profile->name[0])
        snprintf(profile->name, sizeof profile->name, "unnamed");
    horon_text_clean(profile->name, "");
    horon_profile_find_machine(profile, "/proc");
    /* the path means something within its namespace only */
    profile->group = hash_of_file("/proc/self/cgroup", add_namespace(1, "/proc", "cgroup"));
    /* not the affinity of this thread, which is for the ranks to share out */
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    profile->cores = cores > 0 ? (uint32_t)cores : 0;
    horon_status_t status = horon_random(profile->member, sizeof profile->member, error);
    return status == HORON_OK ? write_settings(settings, config, error) : status;
}

/* With its final 0, so that it can be read where it lies. */
static void write_text(struct horon_writer *out, const char *text)
{
    horon_write_bytes(out, text, strlen(text) + 1);
}

static const char *read_text(struct horon_reader *in)
{
    const char *text = (const char *)in->bytes + in->used;
    return horon_read_view(in, strnlen(text, in->limit - in->used) + 1) ? text : "";
}

void horon_profile_encode(struct horon_writer *out, const struct horon_profile *profile,
                          bool settings)
{
    assert(memchr(profile->name, 0, sizeof profile->name));
    assert(memchr(profile->socket, 0, sizeof profile->socket));
    horon_write_bytes(out, profile->member, sizeof profile->member);
    horon_write_u64(out, profile->job);
    horon_write_string(out, profile->name);
    horon_write_u64(out, profile->kernel);
    horon_write_u64(out, profile->machine);
    horon_write_u64(out, profile->host);
    horon_write_u64(out, profile->readers);
    horon_write_u64(out, profile->group);
    horon_write_u32(out, profile->cores);
    horon_write_string(out, profile->socket);
    write_text(out, settings ? profile->settings : "");
    write_text(out, profile->addresses);
}

bool horon_profile_decode(struct horon_reader *in, struct horon_profile *profile)
{
    const void *member = horon_read_view(in, sizeof profile->member);
    if (!member)
        return false;
    memcpy(profile->member, member, sizeof profile->member);
    profile->job = horon_read_u64(in);
    horon_read_string(in, profile->name, sizeof profile->name);
    horon_text_clean(profile->name, ""); /* it goes into every text about that rank */
    profile->kernel = horon_read_u64(in);
    profile->machine = horon_read_u64(in);
    profile->host = horon_read_u64(in);
    profile->readers = horon_read_u64(in);
    profile->group = horon_read_u64(in);
    profile->cores = horon_read_u32(in);
    horon_read_string(in, profile->socket, sizeof profile->socket);
    profile->settings = read_text(in);
    profile->addresses = read_text(in);
    return horon_reader_finished(in);
}

horon_status_t horon_profile_check_settings(const struct horon_profile *first,
                                            const struct horon_profile *mine, int rank,
                                            struct horon_error *error)
{
    const char *a = first->settings, *b = mine->settings;
    assert(a && b && rank >= 0);
    size_t line = 0; /* the first that differs */
    if (strcmp(a, b) == 0)
        return HORON_OK;
    for (size_t i = 0; a[i] == b[i]; i++)
        if (a[i] == '\n')
            line = i + 1;
    a += line;
    b += line;
    if (*a && *b)
        horon_error_set(error, HORON_ERR_CONFIG,
                        "all ranks need the same settings, but HORON_%.*s on rank 0 (%s) and "
                        "HORON_%.*s on rank %d (%s)",
                        (int)strcspn(a, "\n"), a, first->name, (int)strcspn(b, "\n"), b, rank,
                        mine->name);
    else
        horon_error_set(error, HORON_ERR_CONFIG,
                        "all ranks need the same settings, but rank 0 (%s) and rank %d (%s) have "
                        "different ones: different releases of horon?",
                        first->name, rank, mine->name);
    horon_text_clean(error->text, ""); /* the other rank's line is as it came */
    horon_error_blame_both(error, HORON_CAUSE_SETTING, 0, rank);
    return HORON_ERR_CONFIG;
}
