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

#include "base/file.h"
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
#define MODES_OF_OTHERS (S_IWGRP | S_IWOTH)
#define SAFE (O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
#define CLAIMS_MAX 100 /* of a file that is removed each time, before it is locked */

/* What it says. */
struct content {
    char text[HORON_STORE_FILE_BYTES_MAX];
    const char *addresses, *writer; /* lines of the text; NULL: it is not whole */
    bool no_room;                   /* the hole: it could not be written */
};

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
                               "and could lead the ranks elsewhere: make another with mktemp -d",
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

/* Reads an open file, of any owner, and checks that it may be ours: whole, empty, the hole, or a
 * part of ours from its begin on.
 * @return OK | AGAIN, it has been removed meanwhile | ERR_CONFIG | ERR_SYSTEM */
static horon_status_t read_ours(int fd, const char *path, struct content *content,
                                struct horon_error *error)
{
    struct stat about;
    ssize_t got = 0;
    const bool known = fstat(fd, &about) == 0;
    if (known && about.st_nlink == 0)
        return HORON_AGAIN;
    const bool fits = known && S_ISREG(about.st_mode) && about.st_nlink == 1 &&
                      about.st_size < HORON_STORE_FILE_BYTES_MAX;
    *content = (struct content){0};
    if (fits)
        got = horon_file_read(fd, content->text, sizeof content->text - 1);
    if (!known || got < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "%s cannot be read", path);
    const size_t line = sizeof FIRST_LINE - 1, begin = (size_t)got < line ? (size_t)got : line;
    content->no_room = got == 1 && !content->text[0];
    if (!fits || (!content->no_room && memcmp(content->text, FIRST_LINE, begin) != 0))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s is no file of a store, and is left alone: use another directory",
                               path);
    char *addresses = content->text + begin, *first = strchr(addresses, '\n');
    char *second = first ? strchr(first + 1, '\n') : NULL;
    if (second) {
        *first = *second = 0;
        content->addresses = addresses;
        content->writer = first + 1;
    }
    return HORON_OK;
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

/* Locks it, if that can be: one that lies there is ours, or is refused.
 * @return OK | AGAIN, it was removed before it was locked | ERR_CONFIG | ERR_SYSTEM */
static horon_status_t lock(const struct horon_store_file *file, struct horon_error *error)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct content content;
    const bool occupied =
        fcntl(file->fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES);
    horon_status_t status = read_ours(file->fd, file->path, &content, error);
    if (status != HORON_OK || !occupied)
        return status;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "another job's rank 0 (%s) meets its ranks at %s just now: each job "
                           "needs a directory of its own",
                           content.writer ? content.writer : "unknown", file->path);
}

/* Makes it, and only if there is none (O_EXCL). Else opens what lies there: a writer that has ended
 * may have left it, and then it is taken over. Before anything is written, read_ours() looks at
 * type, links, size and content, and refuses what cannot be ours. The owner does not count: no
 * other user may write in the directory.
 * @param gone_out  it was there, and has been removed meanwhile
 * @return -1: errno says why */
static int open_or_make(const struct horon_store_file *file, bool *gone_out)
{
    int fd = openat(file->directory, NAME, O_RDWR | O_CREAT | O_EXCL | SAFE, 0600);
    *gone_out = false;
    if (fd < 0 && errno == EEXIST) {
        fd = openat(file->directory, NAME, O_RDWR | SAFE);
        *gone_out = fd < 0 && errno == ENOENT;
    }
    return fd;
}

static horon_status_t claim(struct horon_store_file *file, struct horon_error *error)
{
    bool gone;
    for (int i = 0; i < CLAIMS_MAX; i++) {
        horon_fds_hold(file->fds);
        file->fd = horon_fds_note(file->fds, open_or_make(file, &gone));
        if (gone)
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
    struct content content;
    const int fd = openat(file->directory, NAME, O_RDONLY | SAFE);
    if (fd < 0)
        return errno == ENOENT ? HORON_AGAIN : cannot_open(file->path, errno, error);
    /* whether it is left is asked first: what is read then is its writer's, or a later one's */
    const bool left = is_left(fd);
    horon_status_t status = read_ours(fd, file->path, &content, error);
    close(fd);
    if (status != HORON_OK)
        return status;
    if (!left && content.no_room)
        return horon_error_set(error, HORON_ERR_SYSTEM,
                               "rank 0 could not write %s: is there no room?", file->path);
    if (!content.addresses)
        return HORON_AGAIN;
    snprintf(file->writer, sizeof file->writer, "%s", content.writer);
    file->left = left;
    strcpy(addresses, content.addresses);
    return left ? HORON_AGAIN : HORON_OK;
}
