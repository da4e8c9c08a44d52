/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table with chains, which doubles when full, and a list of the idle by age. */
#include "engine/names.h"

#include "alloc.h"
#include "operation.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define BUCKETS_MIN 64

horon_status_t horon_names_init(struct horon_names *names, size_t idle_max)
{
    *names = (struct horon_names){.bucket_count = BUCKETS_MIN, .idle_max = idle_max};
    names->buckets = horon_zalloc(BUCKETS_MIN, sizeof *names->buckets);
    if (!names->buckets)
        return HORON_ERR_MEMORY;
    pthread_mutex_init(&names->lock, NULL);
    return HORON_OK;
}

void horon_names_deinit(struct horon_names *names)
{
    if (!names->buckets)
        return;
    for (size_t i = 0; i < names->bucket_count; i++) {
        while (names->buckets[i]) {
            struct horon_name *name = names->buckets[i];
            names->buckets[i] = name->next;
            horon_free(name);
        }
    }
    horon_free(names->buckets);
    names->buckets = NULL;
    pthread_mutex_destroy(&names->lock);
}

static struct horon_name **bucket_of(const struct horon_names *names, uint32_t team, uint64_t hash)
{
    const uint64_t of_team = hash + team * UINT64_C(0x9e3779b97f4a7c15);
    return &names->buckets[of_team & (names->bucket_count - 1)];
}

/* Without memory it stays as it is: slower, not wrong. */
static void grow(struct horon_names *names)
{
    const size_t old_count = names->bucket_count;
    struct horon_name **old = names->buckets;
    struct horon_name **buckets = horon_zalloc(old_count * 2, sizeof *buckets);
    if (!buckets)
        return;
    names->buckets = buckets;
    names->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++) {
        while (old[i]) {
            struct horon_name *name = old[i];
            struct horon_name **bucket = bucket_of(names, name->team, name->hash);
            old[i] = name->next;
            name->next = *bucket;
            *bucket = name;
        }
    }
    horon_free(old);
}

static void leave_idle(struct horon_names *names, struct horon_name *name)
{
    *(name->older ? &name->older->newer : &names->oldest) = name->newer;
    *(name->newer ? &name->newer->older : &names->newest) = name->older;
    names->idle_count--;
}

static void enter_idle(struct horon_names *names, struct horon_name *name)
{
    name->older = names->newest;
    name->newer = NULL;
    *(names->newest ? &names->newest->newer : &names->oldest) = name;
    names->newest = name;
    names->idle_count++;
}

static struct horon_name *find_or_make(struct horon_names *names, uint32_t team, const char *text,
                                       size_t bytes, uint64_t hash)
{
    struct horon_name **bucket = bucket_of(names, team, hash);
    for (struct horon_name *name = *bucket; name; name = name->next)
        if (name->hash == hash && name->team == team && strcmp(name->text, text) == 0)
            return name;
    struct horon_name *name = horon_zalloc(1, sizeof *name + bytes + 1);
    if (!name)
        return NULL;
    name->hash = hash;
    name->team = team;
    name->bytes = (uint32_t)bytes;
    memcpy(name->text, text, bytes + 1);
    name->next = *bucket;
    *bucket = name;
    names->entry_count++;
    enter_idle(names, name);
    return name;
}

static void forget(struct horon_names *names, struct horon_name *name)
{
    struct horon_name **link = bucket_of(names, name->team, name->hash);
    while (*link != name)
        link = &(*link)->next;
    *link = name->next;
    names->entry_count--;
    horon_free(name);
}

struct horon_name *horon_names_get(struct horon_names *names, uint32_t team, const char *text)
{
    size_t bytes = strlen(text);
    uint64_t hash = horon_name_hash(text, bytes);
    pthread_mutex_lock(&names->lock);
    if (names->entry_count >= names->bucket_count)
        grow(names);
    struct horon_name *name = find_or_make(names, team, text, bytes, hash);
    if (name && name->refs++ == 0)
        leave_idle(names, name);
    pthread_mutex_unlock(&names->lock);
    return name;
}

bool horon_names_find(struct horon_names *names, uint32_t team, uint64_t hash, char *text,
                      size_t text_bytes)
{
    pthread_mutex_lock(&names->lock);
    const struct horon_name *name = *bucket_of(names, team, hash);
    while (name && (name->hash != hash || name->team != team))
        name = name->next;
    if (name)
        snprintf(text, text_bytes, "%s", name->text);
    pthread_mutex_unlock(&names->lock);
    return name != NULL;
}

void horon_names_put(struct horon_names *names, struct horon_name *name)
{
    pthread_mutex_lock(&names->lock);
    assert(name->refs > 0);
    if (--name->refs == 0)
        enter_idle(names, name);
    if (names->idle_count > names->idle_max) {
        struct horon_name *oldest = names->oldest;
        leave_idle(names, oldest);
        forget(names, oldest);
    }
    pthread_mutex_unlock(&names->lock);
}
