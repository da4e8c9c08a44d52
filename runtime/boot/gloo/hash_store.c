/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Like Gloo's HashStore, but no state of the process: its maker hands it to the ranks, which are
 * threads. There are a few keys a rank, so a list does.
 */
#include "alloc.h"
#include "boot/gloo/store.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

struct entry {
    struct entry *next;
    struct horon_gloo_value value;
    char key[];
};

struct horon_gloo_hash {
    pthread_mutex_t lock; /* guards what is below */
    struct entry *entries;
    int stores;
};

struct hash_store {
    struct horon_gloo_store base;
    struct horon_gloo_hash *hash;
};

struct horon_gloo_hash *horon_gloo_hash_create(void)
{
    struct horon_gloo_hash *hash = horon_zalloc(1, sizeof *hash);
    if (hash)
        pthread_mutex_init(&hash->lock, NULL);
    return hash;
}

static void free_entry(struct entry *entry)
{
    horon_free(entry->value.bytes);
    horon_free(entry);
}

void horon_gloo_hash_destroy(struct horon_gloo_hash *hash)
{
    if (!hash)
        return;
    assert(hash->stores == 0);
    while (hash->entries) {
        struct entry *entry = hash->entries;
        hash->entries = entry->next;
        free_entry(entry);
    }
    pthread_mutex_destroy(&hash->lock);
    horon_free(hash);
}

/* With the lock held. @return where the entry of @p key stands, or NULL stands at the end */
static struct entry **find(struct horon_gloo_hash *hash, const char *key)
{
    struct entry **at = &hash->entries;
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

static horon_status_t set(struct horon_gloo_store *base, const char *key, const void *bytes,
                          size_t count, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct horon_gloo_hash *hash = ((struct hash_store *)base)->hash;
    struct entry *entry = horon_zalloc(1, sizeof *entry + strlen(key) + 1);
    (void)wait;
    if (!entry)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for key '%s'", key);
    memcpy(entry->key, key, strlen(key) + 1);
    const horon_status_t status = horon_gloo_value_copy(&entry->value, bytes, count, error);
    if (status != HORON_OK) {
        horon_free(entry);
        return status;
    }
    pthread_mutex_lock(&hash->lock);
    struct entry **at = find(hash, key), *old = *at;
    entry->next = old ? old->next : NULL;
    *at = entry;
    pthread_mutex_unlock(&hash->lock);
    if (old)
        free_entry(old);
    return HORON_OK;
}

static horon_status_t get(struct horon_gloo_store *base, const char *key,
                          struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct horon_gloo_hash *hash = ((struct hash_store *)base)->hash;
    (void)wait;
    pthread_mutex_lock(&hash->lock);
    const struct entry *entry = *find(hash, key);
    const horon_status_t status =
        entry ? horon_gloo_value_copy(value_out, entry->value.bytes, entry->value.count, error)
              : HORON_AGAIN;
    pthread_mutex_unlock(&hash->lock);
    return status;
}

static void destroy(struct horon_gloo_store *base)
{
    struct horon_gloo_hash *hash = ((struct hash_store *)base)->hash;
    pthread_mutex_lock(&hash->lock);
    hash->stores--;
    pthread_mutex_unlock(&hash->lock);
    horon_free(base);
}

static const struct horon_gloo_store_ops ops = {
    .name = "hash",
    .set = set,
    .get = get,
    .destroy = destroy,
};

struct horon_gloo_store *horon_gloo_hash_store(struct horon_gloo_hash *hash)
{
    struct hash_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return NULL;
    store->base.ops = &ops;
    store->hash = hash;
    pthread_mutex_lock(&hash->lock);
    hash->stores++;
    pthread_mutex_unlock(&hash->lock);
    return &store->base;
}
