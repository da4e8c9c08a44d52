/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Like Gloo's HashStore: keys in memory, for ranks that are threads of one process. There are a few
 * keys a rank, so a list does. A test has such a hash at hand, and gives it to its ranks.
 *
 * Contexts have nothing in common but what their settings say, "hash:NAME", so that one thread
 * finds what another one has made there needs a list of the process: of the jobs whose ranks have a
 * store open, by its name and their prefix. This file owns the list, and nobody else sees it.
 * `lock` guards it, and all hashes; a job stands there from the first store of its ranks to the
 * last, which frees it. So nothing is left of a process's contexts when they are gone. Each rank
 * opens it once, as keys stay: another job under the name of one that is there would read what that
 * one has said.
 *
 * The lock is held across a fork, so that the child has a whole list and no thread that keeps it.
 * What stands there is the parent's: the child begins with an empty one, and frees its copy of a
 * job only if it closes all stores of it.
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
    struct entry *entries;
    int stores;
};

/* A hash that has a name, and whose ranks find it. */
struct job {
    struct job *next;
    struct horon_gloo_hash hash;
    int size;
    bool *came;         /* [size] has the rank opened it? */
    const char *prefix; /* behind the name */
    char name[];
};

struct hash_store {
    struct horon_gloo_store base;
    struct horon_gloo_hash *hash;
    struct job *job; /* NULL: the hash has no name, and is its maker's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all hashes, and those below */
static struct job *jobs;
static bool minds_forks;

struct horon_gloo_hash *horon_gloo_hash_create(void)
{
    return horon_zalloc(1, sizeof(struct horon_gloo_hash));
}

static void free_entry(struct entry *entry)
{
    horon_free(entry->value.bytes);
    horon_free(entry);
}

static void free_entries(struct horon_gloo_hash *hash)
{
    assert(hash->stores == 0);
    while (hash->entries) {
        struct entry *entry = hash->entries;
        hash->entries = entry->next;
        free_entry(entry);
    }
}

void horon_gloo_hash_destroy(struct horon_gloo_hash *hash)
{
    if (!hash)
        return;
    free_entries(hash);
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
    pthread_mutex_lock(&lock);
    struct entry **at = find(hash, key), *old = *at;
    entry->next = old ? old->next : NULL;
    *at = entry;
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    const struct entry *entry = *find(hash, key);
    const horon_status_t status =
        entry ? horon_gloo_value_copy(value_out, entry->value.bytes, entry->value.count, error)
              : HORON_AGAIN;
    pthread_mutex_unlock(&lock);
    return status;
}

static void free_job(struct job *job)
{
    if (!job)
        return;
    free_entries(&job->hash);
    horon_free(job->came);
    horon_free(job);
}

/* With the lock held. A job of before a fork is in no list of the child's. */
static void unlink_job(const struct job *job)
{
    struct job **at = &jobs;
    while (*at && *at != job)
        at = &(*at)->next;
    if (*at)
        *at = job->next;
}

static void destroy(struct horon_gloo_store *base)
{
    struct hash_store *store = (struct hash_store *)base;
    struct job *last_of = NULL;
    pthread_mutex_lock(&lock);
    assert(store->hash->stores > 0);
    if (--store->hash->stores == 0 && store->job) {
        last_of = store->job;
        unlink_job(last_of);
    }
    pthread_mutex_unlock(&lock);
    free_job(last_of);
    horon_free(store);
}

static const struct horon_gloo_store_ops ops = {
    .name = "hash",
    .set = set,
    .get = get,
    .destroy = destroy,
};

static struct hash_store *new_store(void)
{
    struct hash_store *store = horon_zalloc(1, sizeof *store);
    if (store)
        store->base.ops = &ops;
    return store;
}

/* With the lock held. */
static struct horon_gloo_store *enter(struct hash_store *store, struct horon_gloo_hash *hash)
{
    store->hash = hash;
    hash->stores++;
    return &store->base;
}

struct horon_gloo_store *horon_gloo_hash_store(struct horon_gloo_hash *hash)
{
    struct hash_store *store = new_store();
    if (!store)
        return NULL;
    pthread_mutex_lock(&lock);
    enter(store, hash);
    pthread_mutex_unlock(&lock);
    return &store->base;
}

/* ---- by name -------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    jobs = NULL;
    pthread_mutex_unlock(&lock);
}

/* With the lock held. */
static struct job *find_job(const char *name, const char *prefix)
{
    struct job *job = jobs;
    while (job && (strcmp(job->name, name) != 0 || strcmp(job->prefix, prefix) != 0))
        job = job->next;
    return job;
}

static struct job *new_job(const char *name, const char *prefix, int size)
{
    const size_t name_bytes = strlen(name) + 1, prefix_bytes = strlen(prefix) + 1;
    struct job *job = horon_zalloc(1, sizeof *job + name_bytes + prefix_bytes);
    if (!job)
        return NULL;
    memcpy(job->name, name, name_bytes);
    memcpy(job->name + name_bytes, prefix, prefix_bytes);
    job->prefix = job->name + name_bytes;
    job->size = size;
    job->came = horon_zalloc((size_t)size, sizeof *job->came);
    if (job->came)
        return job;
    free_job(job);
    return NULL;
}

/* With the lock held. @param made  one of that name; taken, and set to NULL, where there is none
 * yet.
 * @return OK | ERR_CONFIG | ERR_MEMORY */
static horon_status_t join_job(struct hash_store *store, struct job **made,
                               const struct horon_gloo_store_options *options, const char *name,
                               struct horon_error *error)
{
    struct job *job = find_job(name, options->prefix);
    if (!minds_forks && pthread_atfork(before_fork, in_parent, in_child) != 0)
        return HORON_ERR_MEMORY;
    minds_forks = true;
    if (!job) {
        job = *made;
        job->next = jobs;
        jobs = job;
        *made = NULL;
    }
    if (job->size != options->size)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the Gloo store hash:%s is of a job of %d ranks, and rank %d has "
                               "come for one of %d",
                               name, job->size, options->rank, options->size);
    if (job->came[options->rank])
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "rank %d has been in the Gloo store hash:%s, and its job is still "
                               "there: another job needs another name, or GLOO_PREFIX",
                               options->rank, name);
    job->came[options->rank] = true;
    store->job = job;
    enter(store, &job->hash);
    return HORON_OK;
}

horon_status_t horon_gloo_hash_store_open(const char *at,
                                          const struct horon_gloo_store_options *options,
                                          struct horon_gloo_store **store_out,
                                          struct horon_error *error)
{
    assert(options->rank >= 0 && options->rank < options->size);
    if (!at[0])
        return horon_error_set(error, HORON_ERR_CONFIG, "the Gloo store hash: has no name");
    struct hash_store *store = new_store();
    struct job *made = new_job(at, options->prefix, options->size); /* or in vain */
    horon_status_t status = HORON_ERR_MEMORY;
    if (store && made) {
        pthread_mutex_lock(&lock);
        status = join_job(store, &made, options, at, error);
        pthread_mutex_unlock(&lock);
    }
    if (status == HORON_ERR_MEMORY)
        horon_error_set(error, status, "no memory for a Gloo store");
    if (status == HORON_OK)
        *store_out = &store->base;
    else
        horon_free(store);
    free_job(made);
    return status;
}
