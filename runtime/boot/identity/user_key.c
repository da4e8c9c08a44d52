/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loopback is open to every user of the machine. So ranks that were started without a job key, by
 * hand or by a launcher that makes none, prove a key that lies in a file of their user: nobody else
 * can read it, and a process that connects without it is refused by the handshake. Where their
 * launcher has a folder of the launch, the file lies there and the key is theirs alone. What the
 * folder is like all of them see alike, so they all take it or none does.
 *
 * Many processes may come first at once. The file appears whole or not at all: each writes one of
 * its own and links it to the common name, where only the first succeeds. What
 * others put there before is not followed, not waited for and not believed.
 */
#include "boot/identity/key.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/tmp"
#define PATH_BYTES (HORON_KEY_FOLDER_BYTES + 48) /* of the file's name in it */

static horon_status_t refuse(const char *path, const char *why, struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "there is no job key, and %s, which would hold this user's, %s: remove "
                           "it, or set HORON_JOB_KEY or HORON_JOB_KEY_FILE",
                           path, why);
}

static horon_status_t cannot(const char *what, const char *path, struct horon_error *error)
{
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                 "there is no job key, and this user's cannot be %s %s (set "
                                 "HORON_JOB_KEY or HORON_JOB_KEY_FILE)",
                                 what, path);
}

/* OK, or AGAIN: there is none. */
static horon_status_t read_it(const char *path, uint8_t bytes[HORON_USER_KEY_BYTES],
                              struct horon_error *error)
{
    struct stat about;
    uint8_t in[HORON_USER_KEY_BYTES + 1];
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return HORON_AGAIN;
    if (fd < 0 && errno != ELOOP && errno != EACCES)
        return cannot("read from", path, error);
    const bool own = fd >= 0 && fstat(fd, &about) == 0 && about.st_uid == geteuid();
    const bool alone = own && S_ISREG(about.st_mode) && (about.st_mode & 077) == 0;
    const ssize_t got = alone ? read(fd, in, sizeof in) : 0;
    if (fd >= 0)
        close(fd);
    if (!own)
        return refuse(path, "is not this user's", error);
    if (!alone)
        return refuse(path, "can be used by others", error);
    if (got != HORON_USER_KEY_BYTES)
        return refuse(path, "is damaged", error);
    memcpy(bytes, in, HORON_USER_KEY_BYTES);
    explicit_bzero(in, sizeof in);
    return HORON_OK;
}

/* OK: there is one now, ours or another process's. */
static horon_status_t make_it(const char *path, struct horon_error *error)
{
    uint8_t bytes[HORON_USER_KEY_BYTES];
    char own[PATH_BYTES + 8];
    horon_status_t status = horon_random(bytes, sizeof bytes, error);
    if (status != HORON_OK)
        return status;
    snprintf(own, sizeof own, "%s.XXXXXX", path);
    const int fd = mkostemp(own, O_CLOEXEC); /* of mode 600, unless a umask takes more away */
    if (fd < 0)
        return cannot("kept in", path, error);
    const bool written = fchmod(fd, 0600) == 0 && write(fd, bytes, sizeof bytes) == sizeof bytes;
    explicit_bzero(bytes, sizeof bytes);
    if (!written || (link(own, path) != 0 && errno != EEXIST))
        status = cannot("kept in", path, error);
    close(fd);
    unlink(own);
    return status;
}

horon_status_t horon_user_key_read(const char *folder, uint8_t bytes[HORON_USER_KEY_BYTES],
                                   struct horon_error *error)
{
    char path[PATH_BYTES];
    assert(strlen(folder) < HORON_KEY_FOLDER_BYTES);
    snprintf(path, sizeof path, "%s/horon.user.%u.key", folder, (unsigned)geteuid());
    horon_status_t status = read_it(path, bytes, error);
    if (status != HORON_AGAIN)
        return status;
    status = make_it(path, error);
    if (status == HORON_OK)
        status = read_it(path, bytes, error);
    return status == HORON_AGAIN ? refuse(path, "comes and goes", error) : status;
}

/* This process can make a file there, and nobody else can. */
static bool is_own_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
           (about.st_mode & 022) == 0 && faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0;
}

horon_status_t horon_job_key_init(struct horon_job_key *key, const void *text, size_t bytes,
                                  const char *folder, struct horon_error *error)
{
    uint8_t own[HORON_USER_KEY_BYTES];
    if (bytes)
        return horon_job_key_from_text(key, text, bytes, error);
    const bool of_launch = folder[0] && is_own_folder(folder);
    horon_status_t status = horon_user_key_read(of_launch ? folder : FOLDER, own, error);
    if (status == HORON_OK)
        status = horon_job_key_from_text(key, own, sizeof own, error);
    explicit_bzero(own, sizeof own);
    key->given = of_launch;
    return status;
}
