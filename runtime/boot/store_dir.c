/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is drafted under another name and linked to its own: that fails if there is one, and
 * nobody sees half of it. The lock is flock()'s, of the open file: it ends with the process,
 * however that ends.
 */
#include "boot/store_dir.h"

#include "alloc.h"
#include "boot/store_frame.h"
#include "codec.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 352
#define JOB_DIGITS 16
#define HEAD_BYTES (HORON_PROOF_BYTES + 4 + 8 + 2 + HORON_STORE_DIR_WHO_BYTES)
/* A card, and a number of each rank. */
#define FILE_BYTES_MAX (HEAD_BYTES + HORON_STORE_BLOB_BYTES_MAX + 8 * HORON_BOOT_SIZE_MAX)

static void name_path(const struct horon_store_dir *dir, uint64_t job, const char *what,
                      char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%016" PRIx64 ".%s", dir->path, job, what);
}

/* The digest covers which file it is, so that none can stand in for another. */
static horon_status_t digest(const struct horon_store_dir *dir, uint64_t job, const char *what,
                             const uint8_t *bytes, size_t byte_count, uint8_t *mac,
                             struct horon_error *error)
{
    char label[128];
    snprintf(label, sizeof label, "horon file store 2 %016" PRIx64 ".%s", job, what);
    return horon_auth_digest(dir->key, label, bytes, byte_count, mac, error);
}

static bool write_all(int fd, const uint8_t *at, size_t byte_count)
{
    while (byte_count) {
        ssize_t done = write(fd, at, byte_count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        byte_count -= (size_t)done;
    }
    return true;
}

static horon_status_t encode(const struct horon_store_dir *dir, uint64_t job, const char *what,
                             const struct horon_store_file *file, uint8_t *bytes, size_t *bytes_out,
                             struct horon_error *error)
{
    struct horon_writer out = horon_writer_over(bytes + HORON_PROOF_BYTES,
                                                HEAD_BYTES - HORON_PROOF_BYTES + file->body_bytes);
    horon_write_u32(&out, file->size);
    horon_write_u64(&out, file->nonce);
    horon_write_string(&out, file->who);
    horon_write_bytes(&out, file->body, file->body_bytes);
    *bytes_out = HORON_PROOF_BYTES + out.used;
    return digest(dir, job, what, bytes + HORON_PROOF_BYTES, out.used, bytes, error);
}

/* @return a descriptor of the draft, or -1 with errno */
static int write_draft(const char *draft, const uint8_t *bytes, size_t byte_count, bool lock)
{
    int fd = open(draft, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    if (lock) /* who looks at it holds it for a moment only; without locks it goes on */
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
            ;
    if (write_all(fd, bytes, byte_count))
        return fd;
    int why = errno;
    close(fd);
    unlink(draft);
    errno = why;
    return -1;
}

horon_status_t horon_store_dir_write(const struct horon_store_dir *dir, uint64_t job,
                                     const char *what, const struct horon_store_file *file,
                                     int *lock_out, struct horon_error *error)
{
    char draft[PATH_BYTES], path[PATH_BYTES], draft_name[HORON_STORE_DIR_NAME_BYTES];
    size_t byte_count = 0;
    uint8_t *bytes = horon_alloc(HEAD_BYTES + file->body_bytes);
    if (!bytes)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a file of the store");
    snprintf(draft_name, sizeof draft_name, "draft.%016" PRIx64, file->nonce);
    name_path(dir, job, draft_name, draft);
    name_path(dir, job, what, path);
    horon_status_t status = encode(dir, job, what, file, bytes, &byte_count, error);
    int fd = status == HORON_OK ? write_draft(draft, bytes, byte_count, lock_out != NULL) : -1;
    horon_free(bytes);
    if (status != HORON_OK)
        return status;
    const bool linked = fd >= 0 && link(draft, path) == 0;
    const int why = errno;
    if (fd >= 0)
        unlink(draft);
    if (linked && lock_out)
        *lock_out = fd;
    else if (fd >= 0)
        close(fd);
    if (linked)
        return HORON_OK;
    return why == EEXIST ? HORON_AGAIN
                         : horon_error_set_errno(error, HORON_ERR_SYSTEM, why,
                                                 "the store's file %s cannot be written", path);
}

/* @return how many bytes were read, -1: errno */
static ssize_t read_all(int fd, uint8_t *bytes, size_t byte_count)
{
    size_t got = 0;
    while (got < byte_count) {
        ssize_t part = read(fd, bytes + got, byte_count - got);
        if (part < 0 && errno != EINTR)
            return -1;
        if (part == 0)
            break;
        got += part > 0 ? (size_t)part : 0;
    }
    return (ssize_t)got;
}

static bool decode(struct horon_store_file *file, size_t byte_count)
{
    struct horon_reader in =
        horon_reader_over(file->memory + HORON_PROOF_BYTES, byte_count - HORON_PROOF_BYTES);
    file->size = horon_read_u32(&in);
    file->nonce = horon_read_u64(&in);
    horon_read_string(&in, file->who, sizeof file->who);
    file->body_bytes = in.limit - in.used;
    file->body = horon_read_view(&in, file->body_bytes);
    return in.ok;
}

horon_status_t horon_store_dir_read(const struct horon_store_dir *dir, uint64_t job,
                                    const char *what, struct horon_store_file *file_out,
                                    struct horon_error *error)
{
    uint8_t mac[HORON_PROOF_BYTES];
    char path[PATH_BYTES];
    struct stat about;
    name_path(dir, job, what, path);
    memset(file_out, 0, sizeof *file_out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return HORON_AGAIN;
    const size_t limit = fd >= 0 && fstat(fd, &about) == 0 && about.st_size <= FILE_BYTES_MAX
                             ? (size_t)about.st_size
                             : 0;
    file_out->memory = limit > 0 ? horon_alloc(limit) : NULL;
    const ssize_t got = file_out->memory ? read_all(fd, file_out->memory, limit) : -1;
    const int why = errno;
    if (fd >= 0)
        close(fd);
    if (limit > 0 && !file_out->memory)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store's file %s", path);
    if (fd < 0 || (limit > 0 && got < 0)) {
        horon_free(file_out->memory);
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, why,
                                     "the store's file %s cannot be read", path);
    }
    if (got >= HORON_PROOF_BYTES && decode(file_out, (size_t)got) &&
        digest(dir, job, what, file_out->memory + HORON_PROOF_BYTES,
               (size_t)got - HORON_PROOF_BYTES, mac, error) == HORON_OK &&
        horon_auth_equal(mac, file_out->memory))
        return HORON_OK;
    horon_free(file_out->memory);
    file_out->memory = NULL;
    return horon_error_set(error, HORON_ERR_AUTH,
                           "the store's file %s was not written with our job key", path);
}

bool horon_store_dir_has(const struct horon_store_dir *dir, uint64_t job, const char *what)
{
    char path[PATH_BYTES];
    name_path(dir, job, what, path);
    return access(path, F_OK) == 0;
}

/* Unlocked before it is closed: a child of a fork may have a copy of it. */
void horon_store_dir_let_go(int *lock)
{
    if (*lock < 0)
        return;
    (void)flock(*lock, LOCK_UN);
    close(*lock);
    *lock = -1;
}

static enum horon_store_life look(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? HORON_STORE_DEAD : HORON_STORE_UNKNOWN;
    /* shared: two who look do not take each other for the writer */
    const int locked = flock(fd, LOCK_SH | LOCK_NB);
    const int why = errno;
    horon_store_dir_let_go(&fd);
    if (locked == 0)
        return HORON_STORE_DEAD;
    return why == EWOULDBLOCK ? HORON_STORE_ALIVE : HORON_STORE_UNKNOWN;
}

enum horon_store_life horon_store_dir_life(const struct horon_store_dir *dir, uint64_t job,
                                           const char *what)
{
    char path[PATH_BYTES];
    name_path(dir, job, what, path);
    return look(path);
}

void horon_store_dir_remove(const struct horon_store_dir *dir, uint64_t job, const char *what)
{
    char path[PATH_BYTES];
    name_path(dir, job, what, path);
    unlink(path);
}

/* @return what stands behind the job in a file's name; NULL: it is no file of ours */
static const char *cut_name(const char *name, uint64_t *job_out)
{
    char digits[JOB_DIGITS + 1];
    if (strspn(name, "0123456789abcdef") != JOB_DIGITS || name[JOB_DIGITS] != '.')
        return NULL;
    memcpy(digits, name, JOB_DIGITS);
    digits[JOB_DIGITS] = 0;
    *job_out = strtoull(digits, NULL, 16);
    return name + JOB_DIGITS + 1;
}

void horon_store_dir_clear(const struct horon_store_dir *dir, uint64_t job)
{
    for (int removing = 0; removing < 2; removing++) {
        DIR *stream = opendir(dir->path);
        bool alive = !stream;
        for (const struct dirent *entry; !alive && (entry = readdir(stream));) {
            uint64_t of = 0;
            const char *what = cut_name(entry->d_name, &of);
            if (!what || of != job)
                continue;
            if (removing)
                horon_store_dir_remove(dir, job, what);
            else
                alive = horon_store_dir_life(dir, job, what) != HORON_STORE_DEAD;
        }
        if (stream)
            closedir(stream);
        if (alive)
            return;
    }
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int horon_store_dir_list(const struct horon_store_dir *dir, const char *what, uint64_t **jobs_out)
{
    uint64_t *jobs = NULL;
    int count = 0, room = 0, unique = 0;
    DIR *stream = opendir(dir->path);
    for (const struct dirent *entry; stream && (entry = readdir(stream));) {
        uint64_t job = 0;
        const char *rest = cut_name(entry->d_name, &job);
        if (!rest || (what && strcmp(rest, what) != 0))
            continue;
        if (count == room) {
            uint64_t *more = horon_realloc(jobs, (size_t)(room + 64) * sizeof *jobs);
            if (!more)
                break;
            jobs = more;
            room += 64;
        }
        jobs[count++] = job;
    }
    if (stream)
        closedir(stream);
    if (count)
        qsort(jobs, (size_t)count, sizeof *jobs, compare);
    for (int i = 0; i < count; i++)
        if (unique == 0 || jobs[unique - 1] != jobs[i])
            jobs[unique++] = jobs[i];
    *jobs_out = jobs;
    return unique;
}
