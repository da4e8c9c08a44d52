/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor holds the text alone, and nobody can write it any more: all ranks of a host read
 * the same one, from its begin, again for each context. */
#include "key.h"

#include "alloc.h"
#include "environment.h"
#include "host/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* As text. */
static horon_status_t make(char key[HORON_KEY_TEXT_BYTES], struct horon_error *error)
{
    unsigned char raw[32];
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no random bytes for a key");
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(key + 2 * i, 3, "%02x", raw[i]);
    explicit_bzero(raw, sizeof raw);
    return HORON_OK;
}

horon_status_t horonrun_key_find(const struct horon_config *config, char key[HORON_KEY_TEXT_BYTES],
                                 struct horon_error *error)
{
    const struct horon_log log = {.level = HORON_LOG_WARN, .rank = -1};
    const bool handed = !config->job_key[0] && strncmp(config->job_key_file, "fd:", 3) == 0;
    key[0] = 0;
    horon_status_t status = handed ? HORON_OK : horon_key_read(config, &log, key, error);
    return status == HORON_OK && !key[0] ? make(key, error) : status;
}

void horonrun_key_leave_environment(void)
{
    char *key = getenv("HORON_JOB_KEY"); /* where execve() has put it */
    if (key)
        explicit_bzero(key, strlen(key));
    unsetenv("HORON_JOB_KEY");
}

/* @return a descriptor, or -1 with errno */
static int seal(const char *key)
{
    const size_t bytes = strlen(key);
    int fd = horon_memory_fd("horon-job-key");
    if (fd < 0)
        return -1;
    const ssize_t put = write(fd, key, bytes);
    if (put == (ssize_t)bytes && fchmod(fd, 0400) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    const int why = put >= 0 && put < (ssize_t)bytes ? ENOSPC : errno;
    close(fd);
    errno = why;
    return -1;
}

horon_status_t horonrun_key_hand_over(char ***environment, int *fd_out, struct horon_error *error)
{
    char file[32];
    const char *key = horonrun_environment_find(*environment, "HORON_JOB_KEY");
    *fd_out = -1;
    if (!key)
        return HORON_OK;
    const int fd = seal(key);
    if (fd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "the job key cannot be handed over");
    horonrun_environment_remove(*environment, "HORON_JOB_KEY");
    snprintf(file, sizeof file, "fd:%d", fd);
    if (!horonrun_environment_set(environment, "HORON_JOB_KEY_FILE", file)) {
        close(fd);
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    }
    *fd_out = fd;
    return HORON_OK;
}
