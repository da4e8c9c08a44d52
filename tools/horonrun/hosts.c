/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts as users write them. Everything that is not understood is an error which names the place; a
 * host that stands twice is one too, as it is more often a slip than a wish. Which host is this
 * machine is in local.c.
 */
#include "hosts.h"

#include "alloc.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)16 << 20)

static const char *find_twice(const struct horonrun_hosts *hosts, const char *name, size_t bytes)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (strlen(hosts->at[i].name) == bytes && strncmp(hosts->at[i].name, name, bytes) == 0)
            return hosts->at[i].name;
    return NULL;
}

/* Letters that an address, a host name and a user name may have; a leading - would be an option. */
static bool name_is_sane(const char *name, size_t bytes)
{
    if (!bytes || name[0] == '-')
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-._:@%", name[i]))
            return false;
    return true;
}

static horon_status_t add(struct horonrun_hosts *hosts, const char *place, const char *name,
                          size_t bytes, int slots, struct horon_error *error)
{
    if (!name_is_sane(name, bytes))
        return horon_error_set(error, HORON_ERR_CONFIG, "%s: '%.*s' is not a host name", place,
                               (int)bytes, name);
    if (find_twice(hosts, name, bytes))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s: host %.*s is there twice; give it once, with all its slots",
                               place, (int)bytes, name);
    char *copy = horon_zalloc(bytes + 1, 1);
    struct horonrun_host *at =
        copy ? horon_realloc(hosts->at, (hosts->count + 1) * sizeof *at) : NULL;
    if (!at) {
        horon_free(copy);
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    }
    memcpy(copy, name, bytes);
    hosts->at = at;
    hosts->at[hosts->count++] = (struct horonrun_host){.name = copy, .slots = slots};
    return HORON_OK;
}

/* @return slots, or 0 if the text is none */
static int parse_slots(const char *text, size_t bytes)
{
    int slots = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i]) || slots > HORONRUN_SLOTS_MAX)
            return 0;
        slots = slots * 10 + (text[i] - '0');
    }
    return slots > HORONRUN_SLOTS_MAX ? 0 : slots;
}

/* "host", "host:slots", "[v6]", "[v6]:slots", or a bare IPv6 address. */
static horon_status_t add_word(struct horonrun_hosts *hosts, const char *place, const char *word,
                               size_t bytes, int slots, struct horon_error *error)
{
    const char *name = word;
    size_t name_bytes = bytes;
    const char *colon = memchr(word, ':', bytes);
    if (bytes && word[0] == '[') {
        const char *bracket = memchr(word, ']', bytes);
        if (!bracket)
            return horon_error_set(error, HORON_ERR_CONFIG, "%s: '%.*s' lacks a ]", place,
                                   (int)bytes, word);
        name = word + 1;
        name_bytes = (size_t)(bracket - name);
        colon = bracket + 1 < word + bytes ? bracket + 1 : NULL;
    } else if (colon && memchr(colon + 1, ':', (size_t)(word + bytes - colon - 1))) {
        colon = NULL; /* two colons: an IPv6 address as it is */
    } else if (colon) {
        name_bytes = (size_t)(colon - word);
    }
    if (colon) {
        size_t digits = (size_t)(word + bytes - colon - 1);
        slots = *colon == ':' ? parse_slots(colon + 1, digits) : 0;
        if (slots == 0)
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "%s: '%.*s' must be HOST:SLOTS with 1..%d slots", place,
                                   (int)bytes, word, HORONRUN_SLOTS_MAX);
    }
    return add(hosts, place, name, name_bytes, slots, error);
}

horon_status_t horonrun_hosts_parse(struct horonrun_hosts *hosts, const char *text,
                                    struct horon_error *error)
{
    for (const char *word = text;; word++) {
        size_t bytes = strcspn(word, ",");
        horon_status_t status = add_word(hosts, "-H", word, bytes, 1, error);
        if (status != HORON_OK)
            return status;
        word += bytes;
        if (!*word)
            return HORON_OK;
    }
}

/* @return the next word of the line and its length, or NULL */
static const char *next_word(const char *line, size_t *bytes_out)
{
    line += strspn(line, " \t\r");
    *bytes_out = strcspn(line, " \t\r");
    return *bytes_out ? line : NULL;
}

static bool has_key(const char *word, size_t bytes, const char *key)
{
    return bytes > strlen(key) && strncmp(word, key, strlen(key)) == 0;
}

static horon_status_t parse_line(struct horonrun_hosts *hosts, const char *place, const char *line,
                                 struct horon_error *error)
{
    size_t host_bytes, bytes;
    const char *host = next_word(line, &host_bytes);
    if (!host)
        return HORON_OK;
    int slots = 1;
    for (const char *word = host + host_bytes; (word = next_word(word, &bytes)); word += bytes) {
        bool is_limit = has_key(word, bytes, "max_slots=") || has_key(word, bytes, "max-slots=");
        const char *digits = memchr(word, '=', bytes);
        int number = digits ? parse_slots(digits + 1, (size_t)(word + bytes - digits - 1)) : 0;
        if ((!is_limit && !has_key(word, bytes, "slots=")) || number == 0)
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "%s: '%.*s' is not understood; a line is HOST slots=N", place,
                                   (int)bytes, word);
        if (!is_limit)
            slots = number;
    }
    return add_word(hosts, place, host, host_bytes, slots, error);
}

horon_status_t horonrun_hosts_parse_file_text(struct horonrun_hosts *hosts, const char *file,
                                              const char *text, struct horon_error *error)
{
    char place[512], line[1024];
    for (int number = 1; *text; number++) {
        size_t bytes = strcspn(text, "\n");
        size_t kept = strcspn(text, "#\n");
        snprintf(place, sizeof place, "%s:%d", file, number);
        if (kept >= sizeof line)
            return horon_error_set(error, HORON_ERR_CONFIG, "%s: the line is too long", place);
        memcpy(line, text, kept);
        line[kept] = 0;
        horon_status_t status = parse_line(hosts, place, line, error);
        if (status != HORON_OK)
            return status;
        text += bytes + (text[bytes] == '\n');
    }
    return HORON_OK;
}

horon_status_t horonrun_hosts_read_file(struct horonrun_hosts *hosts, const char *file,
                                        struct horon_error *error)
{
    horon_status_t status = HORON_ERR_MEMORY;
    size_t bytes = 0, limit = 64 << 10;
    char *text = horon_alloc(limit);
    FILE *in = fopen(file, "re");
    if (!in) {
        status =
            horon_error_set_errno(error, HORON_ERR_CONFIG, errno, "cannot read host file %s", file);
        goto done;
    }
    while (text) {
        bytes += fread(text + bytes, 1, limit - bytes - 1, in);
        if (bytes < limit - 1)
            break;
        if (limit > FILE_BYTES_MAX) {
            status = horon_error_set(error, HORON_ERR_CONFIG, "host file %s is too large", file);
            goto done;
        }
        char *larger = horon_realloc(text, limit * 2);
        if (!larger)
            goto done;
        text = larger;
        limit *= 2;
    }
    if (!text)
        goto done;
    if (ferror(in)) { /* a directory, for one, which opens like a file */
        status =
            horon_error_set_errno(error, HORON_ERR_CONFIG, errno, "cannot read host file %s", file);
        goto done;
    }
    text[bytes] = 0;
    status = strlen(text) == bytes
                 ? horonrun_hosts_parse_file_text(hosts, file, text, error)
                 : horon_error_set(error, HORON_ERR_CONFIG, "host file %s is not text", file);
    if (status == HORON_OK && hosts->count == 0)
        status = horon_error_set(error, HORON_ERR_CONFIG, "host file %s names no host", file);
done:
    if (in)
        fclose(in);
    horon_free(text);
    return status;
}

horon_status_t horonrun_hosts_only_local(struct horonrun_hosts *hosts, int slots,
                                         struct horon_error *error)
{
    return add(hosts, "", "localhost", strlen("localhost"), slots, error);
}

horon_status_t horonrun_hosts_deal(struct horonrun_hosts *hosts, int np, struct horon_error *error)
{
    int slots = 0;
    for (size_t i = 0; i < hosts->count && slots <= HORONRUN_RANKS_MAX; i++)
        slots += hosts->at[i].slots;
    if (np > slots || slots > HORONRUN_RANKS_MAX)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "-np %d is more than the %d slots of the %zu host%s given; a host "
                               "has 1 slot unless it is written as HOST:SLOTS",
                               np, slots, hosts->count, hosts->count == 1 ? "" : "s");
    int left = np > 0 ? np : slots;
    int next = 0;
    for (size_t i = 0; i < hosts->count; i++) {
        struct horonrun_host *host = &hosts->at[i];
        host->first_rank = next;
        host->ranks = left < host->slots ? left : host->slots;
        next += host->ranks;
        left -= host->ranks;
    }
    while (hosts->count && hosts->at[hosts->count - 1].ranks == 0)
        horon_free(hosts->at[--hosts->count].name);
    return HORON_OK;
}

void horonrun_hosts_deinit(struct horonrun_hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++)
        horon_free(hosts->at[i].name);
    horon_free(hosts->at);
    *hosts = (struct horonrun_hosts){0};
}
