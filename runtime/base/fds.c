/* SPDX-License-Identifier: Apache-2.0 */
/* An entry a descriptor number: what was there before is closed, or the number would not be free.
 */
#include "fds.h"

#include "alloc.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

void horon_fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int horon_fd_of_name(const char *name)
{
    char *end = NULL;
    if (strncmp(name, "fd:", 3) != 0 || !isdigit((unsigned char)name[3]))
        return -1;
    errno = 0;
    const long fd = strtol(name + 3, &end, 10);
    return errno == 0 && !*end && fd <= INT_MAX ? (int)fd : -1;
}

void horon_fds_hold(const struct horon_fds *fds)
{
    if (fds && fds->hold)
        fds->hold();
}

void horon_fds_release(const struct horon_fds *fds)
{
    if (fds && fds->release)
        fds->release();
}

static struct horon_fds_entry *find_place(struct horon_fds *fds, int fd)
{
    for (int i = 0; i < fds->count; i++)
        if (fds->items[i].fd == fd)
            return &fds->items[i];
    if (fds->count == fds->room) {
        const int room = fds->room ? 2 * fds->room : 32;
        struct horon_fds_entry *more = horon_realloc(fds->items, (size_t)room * sizeof *fds->items);
        if (!more)
            return NULL;
        fds->items = more;
        fds->room = room;
    }
    return &fds->items[fds->count++];
}

int horon_fds_note(struct horon_fds *fds, int fd)
{
    struct stat about;
    int why = errno;
    if (fds && fd >= 0) {
        struct horon_fds_entry *entry = fstat(fd, &about) == 0 ? find_place(fds, fd) : NULL;
        assert(fds->count <= fds->room);
        if (entry) {
            *entry =
                (struct horon_fds_entry){.fd = fd, .device = about.st_dev, .inode = about.st_ino};
        } else {
            horon_fd_close(&fd);
            why = ENOMEM;
        }
    }
    horon_fds_release(fds);
    errno = why;
    return fd;
}

void horon_fds_close(struct horon_fds *fds, int fd)
{
    horon_fds_hold(fds);
    for (int i = 0; fds && i < fds->count; i++)
        if (fds->items[i].fd == fd)
            fds->items[i].inode = 0; /* which nothing has */
    close(fd);
    horon_fds_release(fds);
}

static bool is_still(const struct horon_fds_entry *entry)
{
    struct stat about;
    return fstat(entry->fd, &about) == 0 && about.st_dev == entry->device &&
           about.st_ino == entry->inode;
}

void horon_fds_close_in_child(const struct horon_fds *fds)
{
    for (int i = 0; fds && i < fds->count; i++)
        if (is_still(&fds->items[i]))
            close(fds->items[i].fd);
}

/* Joining may have failed while another thread forks: its child reads the list. */
void horon_fds_deinit(struct horon_fds *fds)
{
    horon_fds_hold(fds);
    horon_free(fds->items);
    fds->items = NULL;
    fds->count = fds->room = 0;
    horon_fds_release(fds);
}

/* What /proc shows. That needs a descriptor: if there is none, all are used. */
static rlim_t count_used(rlim_t limit)
{
    rlim_t used = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory)
        return errno == EMFILE ? limit : 0;
    while (readdir(directory))
        used++;
    closedir(directory);
    return used > 3 ? used - 3 : 0; /* ".", "..", and its own */
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
