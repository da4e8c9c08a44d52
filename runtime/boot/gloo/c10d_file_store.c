/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's FileStore: one file, to which records are appended under flock(): u32 length and bytes of
 * a key, likewise of its value. The last record of a key counts; "-" before a key takes it away.
 * Keys of users have a "/" in front, which torch's own counts have not: how many use the file now,
 * and how many have ended, so that the last removes it.
 *
 * What has been read is kept, as records never change; a get looks at what is new. A record that is
 * cut is that of a writer that died, or nonsense: there is nothing behind it. No rank joins there,
 * and no byte is added: the path may be a wrong one, of a file that means something to its user.
 */
#include "alloc.h"
#include "boot/gloo/store.h"
#include "clock.h"
#include "codec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define LOCK_PAUSE_MS 1
#define DESTROY_MS 1000

struct c10d_file_store {
    struct horon_gloo_store base;
    int size;
    uint8_t *bytes; /* of the file */
    size_t count;
    uint64_t inode; /* whose bytes these are */
    char path[];
};

static horon_status_t failed(const struct c10d_file_store *store, const char *what,
                             struct horon_error *error)
{
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "the Gloo store c10d-file:%s: %s",
                                 store->path, what);
}

static horon_status_t wait_for_lock(const struct c10d_file_store *store,
                                    const struct horon_gloo_wait *wait, struct horon_error *error)
{
    char subject[256] = ""; /* cut to fit */
    horon_text_add(subject, sizeof subject, "", "the Gloo store c10d-file:%s", store->path);
    const struct horon_gloo_wait told =
        horon_gloo_wait_told(wait, subject, "another process keeps the file locked");
    return horon_gloo_wait_for(&told, NULL, 0, LOCK_PAUSE_MS, error);
}

/* @return a locked descriptor in *fd_out; AGAIN: there is no file, and none was to be made */
static horon_status_t open_locked(const struct c10d_file_store *store, bool write,
                                  const struct horon_gloo_wait *wait, int *fd_out,
                                  struct horon_error *error)
{
    const int flags = (write ? O_RDWR | O_CREAT : O_RDONLY) | O_NONBLOCK | O_CLOEXEC;
    horon_status_t status = HORON_AGAIN;
    int fd = open(store->path, flags, 0644);
    if (fd < 0)
        return errno == ENOENT && !write ? HORON_AGAIN : failed(store, "open", error);
    while (status == HORON_AGAIN) {
        if (flock(fd, (write ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) {
            *fd_out = fd;
            return HORON_OK;
        }
        status = errno == EWOULDBLOCK || errno == EINTR ? wait_for_lock(store, wait, error)
                                                        : failed(store, "lock", error);
    }
    horon_fd_close(&fd);
    assert(status < 0);
    if (status == HORON_ERR_TIMEOUT)
        horon_error_set(error, status, "the Gloo store c10d-file:%s stays locked by another rank",
                        store->path);
    return status;
}

/* Reads what is new in the file. */
static horon_status_t refresh(struct c10d_file_store *store, int fd, struct horon_error *error)
{
    struct stat about;
    if (fstat(fd, &about) != 0)
        return failed(store, "look", error);
    if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size > FILE_BYTES_MAX)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the Gloo store c10d-file:%s is no file of at most %zu bytes",
                               store->path, FILE_BYTES_MAX);
    const size_t bytes = (size_t)about.st_size;
    if (about.st_ino != store->inode || bytes < store->count)
        store->count = 0; /* another file */
    store->inode = about.st_ino;
    assert(store->count <= bytes); /* the rest is new */
    if (bytes == store->count)
        return HORON_OK;
    uint8_t *grown = horon_realloc(store->bytes, bytes);
    if (!grown)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a Gloo store");
    store->bytes = grown;
    while (store->count < bytes) {
        const ssize_t got =
            pread(fd, grown + store->count, bytes - store->count, (off_t)store->count);
        if (got <= 0)
            return got == 0 ? HORON_OK : failed(store, "read", error);
        store->count += (size_t)got;
    }
    assert(store->count == bytes); /* not what came since we looked, of which there is no room */
    return HORON_OK;
}

static bool key_is(const uint8_t *bytes, size_t count, const char *before, const char *key)
{
    const size_t first = strlen(before), second = strlen(key);
    return count == first + second && memcmp(bytes, before, first) == 0 &&
           memcmp(bytes + first, key, second) == 0;
}

struct record {
    const uint8_t *key, *value; /* views */
    uint32_t key_bytes, count;
};

/* @return false: there is none behind, or it is cut, which in->ok tells. torch has no empty key,
 * and a file of zeros would be full of them */
static bool next_record(struct horon_reader *in, struct record *record_out)
{
    if (!in->ok || in->used == in->limit)
        return false;
    record_out->key_bytes = horon_read_u32(in);
    record_out->key = horon_read_view(in, record_out->key_bytes);
    record_out->count = horon_read_u32(in);
    record_out->value = horon_read_view(in, record_out->count);
    in->ok = in->ok && record_out->key_bytes > 0;
    return in->ok;
}

/* @return a view of the value; NULL: there is none */
static const uint8_t *find(const struct c10d_file_store *store, const char *before, const char *key,
                           size_t *count_out)
{
    struct horon_reader in = horon_reader_over(store->bytes, store->count);
    const uint8_t *found = NULL;
    struct record record;
    while (next_record(&in, &record)) {
        if (key_is(record.key, record.key_bytes, before, key)) {
            found = record.value;
            *count_out = record.count;
        } else if (record.key[0] == '-' &&
                   key_is(record.key + 1, record.key_bytes - 1, before, key)) {
            found = NULL;
        }
    }
    return found;
}

/* What is appended behind a cut record would be lost on all that read. */
static horon_status_t check_whole(const struct c10d_file_store *store, struct horon_error *error)
{
    struct horon_reader in = horon_reader_over(store->bytes, store->count);
    struct record record;
    while (next_record(&in, &record))
        ;
    if (in.ok)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_PROTO,
                           "the Gloo store c10d-file:%s is no store of torch's, or was cut when a "
                           "process died: give a new path",
                           store->path);
}

/* With the file locked. What was written in part is cut off again: others read up to it only. */
static horon_status_t append(const struct c10d_file_store *store, int fd, const char *before,
                             const char *key, const void *bytes, size_t count,
                             struct horon_error *error)
{
    const size_t key_bytes = strlen(before) + strlen(key), room = 8 + key_bytes + count;
    const off_t end = lseek(fd, 0, SEEK_END);
    assert(key_bytes <= UINT32_MAX);
    assert(count <= UINT32_MAX);
    assert(before[0] != '-'); /* which would take a key away */
    uint8_t *record = horon_alloc(room);
    if (!record)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for key '%s'", key);
    struct horon_writer out = horon_writer_over(record, room);
    horon_write_u32(&out, (uint32_t)key_bytes);
    horon_write_bytes(&out, before, strlen(before));
    horon_write_bytes(&out, key, strlen(key));
    horon_write_u32(&out, (uint32_t)count);
    horon_write_bytes(&out, bytes, count);
    assert(out.ok);
    assert(out.used == room);
    const ssize_t done = end < 0 ? -1 : write(fd, record, room);
    horon_status_t status = HORON_OK;
    if (done != (ssize_t)room) {
        errno = done >= 0 ? ENOSPC : errno;
        status = failed(store, "write", error);
        if (end >= 0 && ftruncate(fd, end) != 0)
            status = failed(store, "write", error);
    }
    horon_free(record);
    return status;
}

static horon_status_t set(struct horon_gloo_store *base, const char *key, const void *bytes,
                          size_t count, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct c10d_file_store *store = (struct c10d_file_store *)base;
    int fd = -1;
    horon_status_t status = open_locked(store, true, wait, &fd, error);
    if (status == HORON_OK)
        status = append(store, fd, "/", key, bytes, count, error);
    horon_fd_close(&fd);
    return status;
}

static horon_status_t get(struct horon_gloo_store *base, const char *key,
                          struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct c10d_file_store *store = (struct c10d_file_store *)base;
    int fd = -1;
    size_t count = 0;
    horon_status_t status = open_locked(store, false, wait, &fd, error);
    if (status == HORON_OK)
        status = refresh(store, fd, error);
    horon_fd_close(&fd);
    if (status != HORON_OK)
        return status;
    const uint8_t *value = find(store, "/", key, &count);
    return value ? horon_gloo_value_copy(value_out, value, count, error) : HORON_AGAIN;
}

/* Adds to one of torch's counts, which are decimal. @param before what stands before the key
 * @return OK, and what it is now | ERR_PROTO, it is as large as none can be, or is in no store */
static horon_status_t add_to(struct c10d_file_store *store, const char *before, const char *key,
                             int more, long *now_out, const struct horon_gloo_wait *wait,
                             struct horon_error *error)
{
    int fd = -1;
    size_t count = 0;
    char text[24] = "";
    horon_status_t status = open_locked(store, true, wait, &fd, error);
    if (status == HORON_OK)
        status = refresh(store, fd, error);
    if (status == HORON_OK)
        status = check_whole(store, error);
    if (status == HORON_OK) {
        const uint8_t *value = find(store, before, key, &count);
        if (value && count < sizeof text)
            memcpy(text, value, count);
        if (__builtin_add_overflow(strtol(text, NULL, 10), more, now_out))
            status = horon_error_set(error, HORON_ERR_PROTO,
                                     "the Gloo store c10d-file:%s has %s under '%s', which is no "
                                     "count of ranks",
                                     store->path, text, key);
    }
    if (status == HORON_OK) {
        snprintf(text, sizeof text, "%ld", *now_out);
        status = append(store, fd, before, key, text, strlen(text), error);
    }
    horon_fd_close(&fd);
    return status;
}

static horon_status_t add(struct horon_gloo_store *base, const char *key, int more,
                          const struct horon_gloo_wait *wait, struct horon_error *error)
{
    long now;
    return add_to((struct c10d_file_store *)base, "/", key, more, &now, wait, error);
}

static void destroy(struct horon_gloo_store *base)
{
    struct c10d_file_store *store = (struct c10d_file_store *)base;
    const struct horon_gloo_wait wait = {.deadline_ns =
                                             horon_clock_deadline(horon_clock_ns(), DESTROY_MS)};
    long ended = 0, users = 1;
    /* not made anew where another has removed it */
    if (access(store->path, F_OK) == 0 &&
        add_to(store, "", "cleanup/", 1, &ended, &wait, NULL) == HORON_OK &&
        add_to(store, "", "refcount/", -1, &users, &wait, NULL) == HORON_OK && users == 0 &&
        ended >= store->size)
        unlink(store->path);
    horon_free(store->bytes);
    horon_free(store);
}

static const struct horon_gloo_store_ops ops = {
    .name = "c10d-file",
    .overwrites = true,
    .set = set,
    .get = get,
    .add = add,
    .destroy = destroy,
};

horon_status_t horon_gloo_c10d_file_store_open(const char *at,
                                               const struct horon_gloo_store_options *options,
                                               struct horon_gloo_store **store_out,
                                               struct horon_error *error)
{
    const size_t bytes = strlen(at) + 1;
    struct c10d_file_store *store = horon_zalloc(1, sizeof *store + bytes);
    long users;
    assert(options->size >= 1);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a Gloo store");
    store->base.ops = &ops;
    store->size = options->size;
    memcpy(store->path, at, bytes);
    const horon_status_t status = add_to(store, "", "refcount/", 1, &users, &options->wait, error);
    if (status == HORON_OK) {
        *store_out = &store->base;
        return HORON_OK;
    }
    horon_free(store->bytes);
    horon_free(store);
    return status;
}
