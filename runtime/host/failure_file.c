/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank may be killed while it writes, and something else may write at once: the record says last
 * that it is whole, and its reader believes no number. It is mapped for a moment only, and not
 * written to as a file, for which a limit on files (ulimit -f) would kill the process.
 *
 * The descriptor is looked at anew each time: the program may have closed it meanwhile, and its
 * number may be that of a file of the program's own.
 */
#include "host/failure_file.h"

#include <assert.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>

enum { WHOLE = 1 }; /* the version of the record */

static const char magic[8] = "horonwhy"; /* no 0 behind it */

/* What lies at the begin of the page. */
struct record {
    char magic[sizeof magic];
    _Atomic uint32_t whole; /* 0: nothing is told, or not yet all */
    _Atomic uint32_t status, cause, rank, other_rank;
};

horon_status_t horon_failure_file_make(struct horon_map *map_out, struct horon_error *error)
{
    const horon_status_t status =
        horon_memory_make("horon-failure", sizeof(struct record), map_out, error);
    if (status == HORON_OK)
        memcpy(map_out->base, magic, sizeof magic);
    return status;
}

bool horon_failure_file_read(const struct horon_map *map, int size, struct horon_error *why_out)
{
    const struct record *record = map->base;
    if (!record || record->whole != WHOLE)
        return false;
    const horon_status_t status = horon_status_from_peer(record->status);
    *why_out = (struct horon_error){.status = status};
    why_out->blame =
        horon_blame_from_peer(status, record->cause, record->rank, record->other_rank, size);
    return true;
}

/* @return the descriptor, with the page mapped; or -1 */
static int open_page(const char *name, struct horon_map *map_out)
{
    const int fd = horon_fd_of_name(name);
    if (fd < 0 || horon_memory_map(fd, sizeof(struct record), map_out, NULL) != HORON_OK)
        return -1;
    const struct record *record = map_out->base;
    if (memcmp(record->magic, magic, sizeof magic) == 0)
        return fd;
    horon_memory_unmap(map_out);
    return -1;
}

void horon_failure_file_keep(const char *name, struct horon_fds *fds)
{
    struct horon_map map;
    const int fd = open_page(name, &map);
    if (fd < 0)
        return;
    horon_memory_unmap(&map);
    horon_fds_hold(fds);
    (void)horon_fds_note(fds, fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1);
}

void horon_failure_file_write(const char *name, const struct horon_error *why)
{
    struct horon_map map;
    assert(why->status < 0);
    if (open_page(name, &map) < 0)
        return;
    struct record *record = map.base;
    record->whole = 0;
    record->status = (uint32_t)why->status;
    record->cause = (uint32_t)why->blame.cause;
    record->rank = (uint32_t)why->blame.rank;
    record->other_rank = (uint32_t)why->blame.other_rank;
    record->whole = WHOLE;
    horon_memory_unmap(&map);
}
