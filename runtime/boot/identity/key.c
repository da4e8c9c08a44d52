/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key that is not what its owner thinks it is must be refused, not cut: with the first line of a
 * certificate, or what stands before a NUL byte, all jobs of a site might share one guessable key.
 * One that is too short for 128 bits is refused, too, and not stretched: that would cost each rank
 * time at each start, and a key is made once. Nobody can see whether it is random. No text here
 * holds any byte of the key.
 *
 * horonrun gives it as "fd:N", a descriptor of sealed memory. It stays open, so that a process can
 * join again, but is closed in what the process starts: a child that runs another program cannot
 * take the rank's place.
 */
#include "boot/identity/key.h"

#include "fds.h"
#include "file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEX_DIGITS_MIN 32u /* of 4 bits */
#define CHARACTERS_MIN 22u /* of 6 bits */
#define SEALED (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

static const char make_one[] = "make one with: openssl rand -hex 32";

/* @return what is wrong with it, or NULL. Line ends behind it are cut off. */
static const char *objection(char *key, size_t bytes)
{
    assert(bytes < HORON_KEY_TEXT_BYTES);
    assert(key[bytes] == 0);
    if (strlen(key) < bytes)
        return "holds a NUL byte, which no key has: is it text?";
    while (bytes && (key[bytes - 1] == '\n' || key[bytes - 1] == '\r'))
        key[--bytes] = 0;
    assert(strlen(key) == bytes);
    if (strpbrk(key, "\r\n"))
        return "holds more than one line: a key is one line, and alone";
    if (key[strspn(key, " \t")] == 0)
        return "is empty";
    const bool digits = key[strspn(key, "0123456789abcdefABCDEF")] == 0;
    if (bytes < (digits ? HEX_DIGITS_MIN : CHARACTERS_MIN))
        return "is too short to be safe: a key has 32 hexadecimal digits, or 22 other characters, "
               "at least, and is random";
    return NULL;
}

static horon_status_t refuse_file(const char *path, const char *wrong, const char *advice,
                                  struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_CONFIG, "HORON_JOB_KEY_FILE=%s %s; %s", path, wrong,
                           advice);
}

static horon_status_t take_file(int fd, const char *path, const struct horon_log *log,
                                char key[HORON_KEY_TEXT_BYTES], struct horon_error *error)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0)
        return horon_error_set_errno(error, HORON_ERR_CONFIG, errno,
                                     "HORON_JOB_KEY_FILE=%s cannot be read; name a file that this "
                                     "user may read",
                                     path);
    if (!S_ISREG(about.st_mode))
        return refuse_file(path, "is no regular file", "name one that holds the key", error);
    ssize_t got = horon_file_read(fd, key, HORON_KEY_TEXT_BYTES);
    if (got < 0)
        return horon_error_set_errno(error, HORON_ERR_CONFIG, errno,
                                     "HORON_JOB_KEY_FILE=%s cannot be read", path);
    if (got == HORON_KEY_TEXT_BYTES)
        return refuse_file(path, "is longer than 4095 bytes, which no key is", make_one, error);
    static_assert(HORON_KEY_TEXT_BYTES == 4096, "so says this text");
    key[got] = 0;
    const char *wrong = objection(key, (size_t)got);
    if (wrong)
        return refuse_file(path, wrong, make_one, error);
    if (about.st_mode & (S_IRGRP | S_IROTH | S_IWGRP | S_IWOTH))
        HORON_LOG_WARN(log,
                       "HORON_JOB_KEY_FILE=%s: other users may read or write it (mode %03o), and "
                       "every process that knows the key can join: chmod 600 it",
                       path, (unsigned)(about.st_mode & 0777));
    return HORON_OK;
}

/* What horonrun has handed over. */
static horon_status_t take_descriptor(const char *name, char key[HORON_KEY_TEXT_BYTES],
                                      struct horon_error *error)
{
    const int fd = horon_fd_of_name(name);
    assert(strncmp(name, "fd:", 3) == 0);
    if (fd < 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_JOB_KEY_FILE=%s is no descriptor: fd:N", name);
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALED) != SEALED)
        return horon_error_set(
            error, HORON_ERR_CONFIG,
            "HORON_JOB_KEY_FILE=%s: descriptor %d does not hold the job key that horonrun gave to "
            "this rank: a program between the two has closed it (Python's subprocess does without "
            "pass_fds=[%d] or close_fds=False; sudo does), or a rank that has joined already has "
            "started this program, which cannot take its place",
            name, fd, fd);
    horon_status_t status = take_file(fd, name, NULL, key, error);
    if (status == HORON_OK && fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "HORON_JOB_KEY_FILE=%s cannot be kept from children", name);
    return status;
}

horon_status_t horon_key_read(const struct horon_config *config, const struct horon_log *log,
                              char key[HORON_KEY_TEXT_BYTES], struct horon_error *error)
{
    static_assert(sizeof config->job_key <= HORON_KEY_TEXT_BYTES, "any row fits");
    assert(memchr(config->job_key, 0, sizeof config->job_key));
    memcpy(key, config->job_key, sizeof config->job_key);
    if (key[0]) {
        const char *wrong = objection(key, strlen(key));
        return wrong ? horon_error_set(error, HORON_ERR_CONFIG, "HORON_JOB_KEY %s; %s", wrong,
                                       make_one)
                     : HORON_OK;
    }
    if (!config->job_key_file[0])
        return HORON_OK;
    if (strncmp(config->job_key_file, "fd:", 3) == 0)
        return take_descriptor(config->job_key_file, key, error);
    /* a FIFO without a writer would be waited for, a terminal taken over: neither is read */
    int fd = open(config->job_key_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    horon_status_t status = take_file(fd, config->job_key_file, log, key, error);
    horon_fd_close(&fd);
    return status;
}
