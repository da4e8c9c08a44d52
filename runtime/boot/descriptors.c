/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what /proc shows; without a descriptor for that, what can be asked about. */
#include "boot/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <sys/resource.h>

#define ASKED_MAX 65536

static rlim_t count_used(rlim_t limit)
{
    rlim_t used = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (directory) {
        while (readdir(directory))
            used++;
        closedir(directory);
        return used > 3 ? used - 3 : 0; /* ".", "..", and its own */
    }
    for (int fd = 0; (rlim_t)fd < limit && fd < ASKED_MAX; fd++)
        used += fcntl(fd, F_GETFD) >= 0;
    return used;
}

horon_status_t horon_descriptors_need(int count, const char *purpose, struct horon_error *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return HORON_OK;
    const rlim_t used = count_used(limit.rlim_cur), need = used + (rlim_t)count;
    if (need <= limit.rlim_cur)
        return HORON_OK;
    const struct rlimit raised = {need < limit.rlim_max ? need : limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0 && need <= raised.rlim_cur)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_SYSTEM,
                           "this process may have %" PRIu64 " descriptors at most (ulimit -Hn), "
                           "%" PRIu64 " are in use, and %s needs %d more",
                           (uint64_t)limit.rlim_max, (uint64_t)used, purpose, count);
}
