/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share: created sealed and allocated, or refused with the reason. */
#ifndef HORON_HOST_MEMORY_H
#define HORON_HOST_MEMORY_H

#include "status.h"

#include <stddef.h>
#include <stdint.h>

/** A sealed memfd that is mapped here: shared memory that cannot shrink, so no SIGBUS. */
struct horon_map {
    void *base;
    size_t bytes;
    int fd; /* -1 once closed; the mapping lives on */
};

/** How much more memory may be used, and which limit says so. */
struct horon_memory_room {
    uint64_t machine_bytes; /* MemAvailable; UINT64_MAX if it cannot be known */
    uint64_t group_bytes; /* of the tightest control group of this process; UINT64_MAX: no limit */
    char group[160];      /* its path */
};

/**
 * Asks the kernel. @param root "" or a directory in front of /proc and /sys, for tests
 */
void horon_memory_look(struct horon_memory_room *room, const char *root);

/**
 * Is there room for @p machine_bytes on this machine, of which @p group_bytes are charged to this
 * process's control group? @return OK | ERR_MEMORY, saying what is asked and what there is
 */
horon_status_t horon_memory_check(const struct horon_memory_room *room, uint64_t machine_bytes,
                                  uint64_t group_bytes, struct horon_error *error);

/**
 * Opens a memfd, empty and close-on-exec, that can be sealed, and never be executed where the
 * kernel knows how to forbid that. @return a descriptor, or -1 with errno
 */
int horon_memory_fd(const char *name);

/**
 * Maps all of @p fd, which stays the caller's; map_out->fd is -1. Not for the child of a fork: it
 * has no use for it, and would keep the memory after the job has gone.
 * @return OK | ERR_PROTO, it is not @p bytes long or not sealed: using it could kill us |
 * ERR_MEMORY
 */
horon_status_t horon_memory_map(int fd, size_t bytes, struct horon_map *map_out,
                                struct horon_error *error);

/**
 * Makes and maps @p bytes bytes (rounded up to pages) of zeroed, allocated memory that can neither
 * shrink nor grow. @param name for /proc; nothing appears in a file system
 * @return OK, map_out->fd is the caller's to close, close-on-exec | ERR_MEMORY, the kernel refuses
 * | ERR_SYSTEM
 */
horon_status_t horon_memory_make(const char *name, size_t bytes, struct horon_map *map_out,
                                 struct horon_error *error);

/** Unmaps; no-op on one that is all zero. */
void horon_memory_unmap(struct horon_map *map);

/** @return zeroed memory of this process alone: the child of a fork finds zeroes there, and a core
 * file has nothing of it. NULL: there is none. */
void *horon_memory_secret(size_t bytes);
/** Wipes it, too. NULL is a no-op. */
void horon_memory_free_secret(void *secret, size_t bytes);

#endif
