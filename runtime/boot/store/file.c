/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three lines: what the file is, the addresses, and which process wrote it. It is written in one
 * piece after it was emptied, so a reader sees nothing, or all, or (on a file system that cuts
 * writes) a part without its last line end, which counts as nothing. Where there is no room for it,
 * it is one byte long, a hole: that takes no room, and tells the others.
 *
 * The lock belongs to the open file (F_OFD_SETLK): it ends with the process, however that ends, and
 * asking for it (F_OFD_GETLK) takes nothing, so a reader never stands in a writer's way. Where a
 * file system has no locks every file counts as alive.
 */
#include "boot/store/file.h"

#include "fds.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "horon.store"
#define FIRST_LINE "horon store 1\n"
#define NO_ROOM "no room" /* what is read of one that could not be written */
#define MODES_OF_OTHERS (S_IWGRP | S_IWOTH)
#define SAFE (O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
#define CLAIMS_MAX 100 /* of a file that is removed each time, before it is locked */

static int open_noted(const struct horon_store_file *file, int flags)
{
    horon_fds_hold(file->fds);
    return horon_fds_note(file->fds, openat(file->directory, NAME, flags | SAFE, 0600));
}

static horon_status_t check_directory(const struct stat *about, const char *path,
                                      struct horon_error *error)
{
    if (about->st_uid != geteuid() && about->st_uid != 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the store's directory '%s' belongs to another user (%u), who could "
                               "lead the ranks elsewhere: make one of your own",
                               path, (unsigned)about->st_uid);
    if (about->st_mode & MODES_OF_OTHERS)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "other users may write in the store's directory '%s' (mode %03o), "
                               "and could lead the ranks elsewhere: chmod go-w it, or make another "
                               "with mktemp -d",
                               path, (unsigned)about->st_mode & 07777u);
    return HORON_OK;
}

horon_status_t horon_store_file_open(struct horon_store_file *file, const char *directory,
                                     struct horon_fds *fds, struct horon_error *error)
{
    struct stat about;
    *file = (struct horon_store_file){.fds = fds, .directory = -1, .fd = -1};
    if (!directory[0])
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_STORE=file: names no directory: file:DIR");
    const int bytes = snprintf(file->path, sizeof file->path, "%s/" NAME, directory);
    if (bytes < 0 || (size_t)bytes >= sizeof file->path)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the store's directory has a name of more than %zu bytes",
                               sizeof file->path - sizeof NAME - 1);
    file->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->directory < 0 || fstat(file->directory, &about) != 0)
        return horon_error_set(
            error, HORON_ERR_CONFIG, "the store's directory '%s' cannot be used: %s%s", directory,
            strerrordesc_np(errno), errno == ENOENT ? "; make it before the ranks start" : "");
    return check_directory(&about, directory, error);
}

void horon_store_file_close(struct horon_store_file *file)
{
    horon_store_file_remove(file);
    horon_fd_close(&file->directory);
}

/* Cuts the text of a file. @return false: it is not whole, or not ours */
static bool cut(char *text, char **addresses_out, char **writer_out)
{
    char *addresses = text + sizeof FIRST_LINE - 1;
    if (strncmp(text, FIRST_LINE, sizeof FIRST_LINE - 1) != 0)
        return false;
    char *writer = strchr(addresses, '\n');
    char *end = writer ? strchr(writer + 1, '\n') : NULL;
    if (!end)
        return false;
    *writer = *end = 0;
    *addresses_out = addresses;
    *writer_out = writer + 1;
    return true;
}

/* Reads an open file, of any owner, and checks that it is one of ours: whole, empty, or a begin.
 * @return OK | AGAIN, it has been removed meanwhile | ERR_CONFIG | ERR_SYSTEM */
static horon_status_t read_ours(int fd, const char *path, char text[HORON_STORE_FILE_BYTES_MAX],
                                struct horon_error *error)
{
    struct stat about;
    const size_t begin = sizeof FIRST_LINE - 1;
    ssize_t got;
    if (fstat(fd, &about) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "%s cannot be read", path);
    if (about.st_nlink == 0)
        return HORON_AGAIN;
    const bool fits =
        S_ISREG(about.st_mode) && about.st_nlink == 1 && about.st_size < HORON_STORE_FILE_BYTES_MAX;
    do
        got = fits ? pread(fd, text, HORON_STORE_FILE_BYTES_MAX - 1, 0) : 0;
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "%s cannot be read", path);
    text[got] = 0;
    const size_t bytes = (size_t)got < begin ? (size_t)got : begin;
    if (fits && got == 1 && text[0] == 0) {
        strcpy(text, NO_ROOM);
        return HORON_OK;
    }
    if (fits && memcmp(text, FIRST_LINE, bytes) == 0)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "%s is no file of a store, and is left alone: use another directory",
                           path);
}

static horon_status_t cannot_open(const char *path, int why, struct horon_error *error)
{
    if (why == ELOOP)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s is a symbolic link, and is not followed: use another directory",
                               path);
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, why, "%s cannot be opened", path);
}

/* ---- Rank 0 ---- */

static horon_status_t say_occupied(const struct horon_store_file *file, char *text,
                                   struct horon_error *error)
{
    char *addresses, *writer = NULL;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "another job's rank 0 (%s) meets its ranks at %s just now: each job "
                           "needs a directory of its own",
                           cut(text, &addresses, &writer) ? writer : "unknown", file->path);
}

/* OK: it is locked, if that can be | AGAIN: it was removed before it was locked */
static horon_status_t lock(const struct horon_store_file *file, struct horon_error *error)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char text[HORON_STORE_FILE_BYTES_MAX];
    horon_status_t status = read_ours(file->fd, file->path, text, error);
    if (status != HORON_OK)
        return status;
    if (fcntl(file->fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES))
        return say_occupied(file, text, error);
    return read_ours(file->fd, file->path, text, error); /* it may have been removed meanwhile */
}

static horon_status_t claim(struct horon_store_file *file, struct horon_error *error)
{
    for (int i = 0; i < CLAIMS_MAX; i++) {
        /* one that lies there is ours, or is refused; O_EXCL: a new one is nobody else's */
        file->fd = open_noted(file, O_RDWR | O_CREAT | O_EXCL);
        if (file->fd < 0 && errno == EEXIST)
            file->fd = open_noted(file, O_RDWR);
        if (file->fd < 0 && errno == ENOENT)
            continue;
        if (file->fd < 0)
            return cannot_open(file->path, errno, error);
        const horon_status_t status = lock(file, error);
        if (status == HORON_OK)
            return HORON_OK;
        horon_fds_close(file->fds, file->fd);
        file->fd = -1;
        if (status != HORON_AGAIN)
            return status;
    }
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "%s comes and goes: each job needs a directory of its own", file->path);
}

horon_status_t horon_store_file_write(struct horon_store_file *file, const char *addresses,
                                      const char *writer, struct horon_error *error)
{
    char text[HORON_STORE_FILE_BYTES_MAX];
    const int bytes = snprintf(text, sizeof text, FIRST_LINE "%s\n%s\n", addresses, writer);
    assert(bytes > 0 && (size_t)bytes < sizeof text);
    assert(file->fd < 0);
    horon_status_t status = claim(file, error);
    if (status != HORON_OK)
        return status;
    ssize_t put = -1;
    if (ftruncate(file->fd, 0) == 0)
        do
            put = pwrite(file->fd, text, (size_t)bytes, 0);
        while (put < 0 && errno == EINTR);
    if (put == bytes)
        return HORON_OK;
    const int why = put < 0 ? errno : ENOSPC;
    (void)(ftruncate(file->fd, 0) == 0 && ftruncate(file->fd, 1) == 0);
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, why, "%s cannot be written", file->path);
}

/* Unlocked before it is closed: the child of a fork may have a copy of the descriptor. */
void horon_store_file_remove(struct horon_store_file *file)
{
    struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    struct stat ours, there;
    if (file->fd < 0)
        return;
    if (fstat(file->fd, &ours) == 0 &&
        fstatat(file->directory, NAME, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
        unlinkat(file->directory, NAME, 0);
    (void)fcntl(file->fd, F_OFD_SETLK, &none);
    horon_fds_close(file->fds, file->fd);
    file->fd = -1;
}

/* ---- The others ---- */

static bool is_left(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
}

horon_status_t horon_store_file_read(struct horon_store_file *file,
                                     char addresses[HORON_STORE_FILE_BYTES_MAX],
                                     struct horon_error *error)
{
    char *text = addresses, *first = NULL, *writer = NULL;
    const int fd = openat(file->directory, NAME, O_RDONLY | SAFE);
    if (fd < 0)
        return errno == ENOENT ? HORON_AGAIN : cannot_open(file->path, errno, error);
    /* whether it is left is asked first: what is read then is its writer's, or a later one's */
    const bool left = is_left(fd);
    horon_status_t status = read_ours(fd, file->path, text, error);
    close(fd);
    if (status != HORON_OK)
        return status;
    if (!left && strcmp(text, NO_ROOM) == 0)
        return horon_error_set(error, HORON_ERR_SYSTEM,
                               "rank 0 could not write %s: is there no room?", file->path);
    if (!cut(text, &first, &writer))
        return HORON_AGAIN;
    snprintf(file->writer, sizeof file->writer, "%s", writer);
    file->left = left;
    memmove(addresses, first, strlen(first) + 1);
    return left ? HORON_AGAIN : HORON_OK;
}
