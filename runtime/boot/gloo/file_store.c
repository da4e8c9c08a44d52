/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gloo's FileStore: a directory that all ranks see, with a file a key, whose name is a hash of the
 * key. A value is written beside and renamed, so that a file is whole once it is there. Nothing is
 * ever removed, so a directory is good for one job.
 */
#include "alloc.h"
#include "boot/gloo/store.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_store {
    struct horon_gloo_store base;
    int directory;
    char path[]; /* for texts */
};

/* ".18446744073709551615", final 0 included */
#define NAME_BYTES 24

static uint64_t mix(uint64_t value)
{
    return value ^ (value >> 47);
}

static uint64_t load(const char *from, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, from, bytes);
    return le64toh(value);
}

/* MurmurHash64A with libstdc++'s seed. */
uint64_t horon_gloo_file_hash(const char *key, size_t bytes)
{
    const uint64_t factor = UINT64_C(0xc6a4a7935bd1e995);
    uint64_t hash = UINT64_C(0xc70f6907) ^ (bytes * factor);
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8)
        hash = (hash ^ (mix(load(key + at, 8) * factor) * factor)) * factor;
    if (at < bytes)
        hash = (hash ^ load(key + at, bytes - at)) * factor;
    return mix(mix(hash) * factor);
}

/* @param name [NAME_BYTES] of the file of the value; behind a dot it is the one that is written */
static const char *name_of(const char *key, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, ".%" PRIu64, horon_gloo_file_hash(key, strlen(key)));
    return name + 1;
}

/* @return false, with errno */
static bool write_all(int fd, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t done = write(fd, bytes, count);
        if (done < 0 && errno != EINTR)
            return false;
        bytes += done > 0 ? done : 0;
        count -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

static horon_status_t set(struct horon_gloo_store *base, const char *key, const void *bytes,
                          size_t count, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    const struct file_store *store = (const struct file_store *)base;
    char written[NAME_BYTES];
    const char *name = name_of(key, written);
    (void)wait;
    if (faccessat(store->directory, name, F_OK, 0) == 0)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "the Gloo store %s has key '%s' already (file %s): another job met "
                               "there; give each job a new directory, or another prefix",
                               store->path, key, name);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(store->directory, written, flags, 0644);
    bool done = fd >= 0 && write_all(fd, bytes, count);
    int why = errno;
    if (done && renameat(store->directory, written, store->directory, name) != 0) {
        why = errno;
        done = false;
    }
    if (fd >= 0 && !done) /* on a full disk it would hold what is left of it */
        unlinkat(store->directory, written, 0);
    horon_fd_close(&fd);
    if (done)
        return HORON_OK;
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, why,
                                 "key '%s' cannot be written to the Gloo store %s", key,
                                 store->path);
}

static horon_status_t unreadable(const struct file_store *store, const char *key,
                                 struct horon_error *error)
{
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                 "key '%s' of the Gloo store %s cannot be read", key, store->path);
}

/* @return OK, the file is one that may be read, of so many bytes */
static horon_status_t look_at(const struct file_store *store, const char *key, int fd,
                              size_t *bytes_out, struct horon_error *error)
{
    struct stat about;
    if (fstat(fd, &about) != 0)
        return unreadable(store, key, error);
    if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size > HORON_GLOO_VALUE_BYTES_MAX)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "key '%s' of the Gloo store %s is no file of at most %zu bytes", key,
                               store->path, HORON_GLOO_VALUE_BYTES_MAX);
    *bytes_out = (size_t)about.st_size;
    return HORON_OK;
}

static horon_status_t read_value(const struct file_store *store, const char *key, int fd,
                                 struct horon_gloo_value *value_out, struct horon_error *error)
{
    size_t bytes = 0, got = 0;
    horon_status_t status = look_at(store, key, fd, &bytes, error);
    if (status != HORON_OK)
        return status;
    uint8_t *value = horon_alloc(bytes);
    if (!value)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for key '%s'", key);
    ssize_t more = 1;
    while (got < bytes && more > 0) {
        more = read(fd, value + got, bytes - got);
        got += more > 0 ? (size_t)more : 0;
    }
    if (more < 0) {
        status = unreadable(store, key, error);
        horon_free(value);
        return status;
    }
    *value_out = (struct horon_gloo_value){value, got};
    return HORON_OK;
}

static horon_status_t get(struct horon_gloo_store *base, const char *key,
                          struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    const struct file_store *store = (const struct file_store *)base;
    char name[NAME_BYTES];
    (void)wait;
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = openat(store->directory, name_of(key, name), flags);
    if (fd < 0)
        return errno == ENOENT ? HORON_AGAIN : unreadable(store, key, error);
    const horon_status_t status = read_value(store, key, fd, value_out, error);
    horon_fd_close(&fd);
    return status;
}

static void destroy(struct horon_gloo_store *base)
{
    struct file_store *store = (struct file_store *)base;
    horon_fd_close(&store->directory);
    horon_free(store);
}

static const struct horon_gloo_store_ops ops = {
    .name = "file",
    .set = set,
    .get = get,
    .destroy = destroy,
};

horon_status_t horon_gloo_file_store_open(const char *at,
                                          const struct horon_gloo_store_options *options,
                                          struct horon_gloo_store **store_out,
                                          struct horon_error *error)
{
    const size_t bytes = strlen(at) + 1;
    struct file_store *store = horon_zalloc(1, sizeof *store + bytes);
    (void)options;
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a Gloo store");
    memcpy(store->path, at, bytes);
    store->base.ops = &ops;
    store->directory = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->directory < 0) {
        horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "the Gloo store file:%s", at);
        horon_free(store);
        return HORON_ERR_SYSTEM;
    }
    *store_out = &store->base;
    return HORON_OK;
}
