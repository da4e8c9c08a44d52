/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all stores have in common: the prefix before keys, and the words of urls. A prefix is kept
 * with its last "/", so that a key is put behind it as it is.
 */
#include "boot/gloo/store.h"

#include "alloc.h"

#include <stdio.h>
#include <string.h>

/* Of all prefixes, without the last "/". */
#define PREFIX_BYTES_MAX ((size_t)(HORON_GLOO_KEY_BYTES - HORON_GLOO_KEY_REST_BYTES - 1))

/* @param there what stands before it already. @return OK | ERR_CONFIG */
static horon_status_t check_prefix(const char *there, const char *prefix, struct horon_error *error)
{
    const size_t bytes = strlen(there) + strlen(prefix);
    if (bytes <= PREFIX_BYTES_MAX)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "the prefix of keys in a Gloo store has %zu bytes, and may have %zu: "
                           "%s%s",
                           bytes, PREFIX_BYTES_MAX, there, prefix);
}

horon_status_t horon_gloo_store_nest(struct horon_gloo_store *store, const char *prefix,
                                     struct horon_error *error)
{
    const size_t there = strlen(store->prefix);
    if (!prefix[0])
        return HORON_OK;
    const horon_status_t status = check_prefix(store->prefix, prefix, error);
    if (status == HORON_OK)
        snprintf(store->prefix + there, sizeof store->prefix - there, "%s/", prefix);
    return status;
}

/* @return false: the key is too long to stand behind the prefix; ours are not */
static bool whole_key(const struct horon_gloo_store *store, const char *key,
                      char whole[HORON_GLOO_KEY_BYTES], struct horon_error *error)
{
    const int bytes = snprintf(whole, HORON_GLOO_KEY_BYTES, "%s%s", store->prefix, key);
    if (bytes < HORON_GLOO_KEY_BYTES)
        return true;
    horon_error_set(error, HORON_ERR_INVALID, "the key %s of a Gloo store is too long", key);
    return false;
}

horon_status_t horon_gloo_store_set(struct horon_gloo_store *store, const char *key,
                                    const void *bytes, size_t count,
                                    const struct horon_gloo_wait *wait, struct horon_error *error)
{
    char whole[HORON_GLOO_KEY_BYTES];
    if (!whole_key(store, key, whole, error))
        return HORON_ERR_INVALID;
    return store->ops->set(store, whole, bytes, count, wait, error);
}

horon_status_t horon_gloo_store_get(struct horon_gloo_store *store, const char *key,
                                    struct horon_gloo_value *value_out,
                                    const struct horon_gloo_wait *wait, struct horon_error *error)
{
    char whole[HORON_GLOO_KEY_BYTES];
    if (!whole_key(store, key, whole, error))
        return HORON_ERR_INVALID;
    return store->ops->get(store, whole, value_out, wait, error);
}

void horon_gloo_store_end_meeting(struct horon_gloo_store *store)
{
    if (store->ops->end_meeting)
        store->ops->end_meeting(store);
}

void horon_gloo_store_destroy(struct horon_gloo_store *store)
{
    if (store)
        store->ops->destroy(store);
}

horon_status_t horon_gloo_value_copy(struct horon_gloo_value *value_out, const void *bytes,
                                     size_t count, struct horon_error *error)
{
    uint8_t *copy = horon_alloc(count);
    if (!copy)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a value of a Gloo store");
    if (count)
        memcpy(copy, bytes, count);
    *value_out = (struct horon_gloo_value){copy, count};
    return HORON_OK;
}

static const struct scheme {
    const char *word;
    horon_status_t (*open)(const char *at, const struct horon_gloo_store_options *options,
                           struct horon_gloo_store **store_out, struct horon_error *error);
} schemes[] = {
    {"file:", horon_gloo_file_store_open},      {"c10d-file:", horon_gloo_c10d_file_store_open},
    {"tcp://", horon_gloo_c10d_tcp_store_open}, {"http://", horon_gloo_http_store_open},
    {"hash:", horon_gloo_hash_store_open},
};

static const struct scheme *scheme_of(const char *url)
{
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (strncmp(url, schemes[i].word, strlen(schemes[i].word)) == 0)
            return &schemes[i];
    return NULL;
}

horon_status_t horon_gloo_store_open(const struct horon_gloo_store_options *options,
                                     struct horon_gloo_store **store_out, struct horon_error *error)
{
    const struct scheme *scheme = scheme_of(options->url);
    struct horon_gloo_store *store = NULL;
    if (!scheme) {
        char list[128] = "";
        for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
            horon_text_add(list, sizeof list, ", ", "%s", schemes[i].word);
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "'%s' is no Gloo store; it begins with one of %s", options->url,
                               list);
    }
    /* each rank finds that itself: else those that rank 0 was to serve would wait for it */
    horon_status_t status = check_prefix("", options->prefix, error);
    if (status == HORON_OK)
        status = scheme->open(options->url + strlen(scheme->word), options, &store, error);
    if (status == HORON_OK)
        status = horon_gloo_store_nest(store, options->prefix, error);
    if (status == HORON_OK)
        *store_out = store;
    else
        horon_gloo_store_destroy(store);
    return status;
}
