/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory comes from memfds: no name in a file system, so nothing is left behind, whatever is
 * killed. A page of one that is touched and cannot be had kills the process with SIGBUS (or, at a
 * control group's limit, has the kernel kill somebody): so all pages are allocated at once, after
 * asking whether there is room, and the size is sealed before anybody maps it.
 */
#include "host/memory.h"

#include "file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NOEXEC_SEAL 0x8u             /* MFD_NOEXEC_SEAL, which older headers lack */
#define NO_LIMIT (UINT64_C(1) << 60) /* version 1 groups say "none" with a number near 2^63 */

static bool parse_number(const char *text, uint64_t *value_out)
{
    char *end = NULL;
    const unsigned long long value = strtoull(text, &end, 10);
    if (end == text)
        return false;
    *value_out = value;
    return true;
}

/* The number after "@p key " or "@p key:" at the start of a line. */
static bool find_number(const char *text, const char *key, uint64_t *value_out)
{
    const size_t key_bytes = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_bytes) == 0 && strchr(": \t", line[key_bytes]))
            return parse_number(line + key_bytes + 1, value_out);
        if (!*line)
            break;
    }
    return false;
}

struct group_files {
    const char *limit, *usage, *cache_key;
};

/* Room in one group: its limit less what is used, but for file cache, which the kernel gives up. */
static uint64_t room_in_group(const char *directory, const struct group_files *files)
{
    char path[512], text[8192];
    uint64_t limit = 0, used = 0, cache = 0;
    snprintf(path, sizeof path, "%s/%s", directory, files->limit);
    if (!horon_file_read_text(path, text, sizeof text) || !parse_number(text, &limit) ||
        limit >= NO_LIMIT)
        return UINT64_MAX; /* "max", or no such file */
    snprintf(path, sizeof path, "%s/%s", directory, files->usage);
    if (!horon_file_read_text(path, text, sizeof text) || !parse_number(text, &used))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    if (horon_file_read_text(path, text, sizeof text))
        find_number(text, files->cache_key, &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* A group's limit binds all below it: asks from the process's group up to the root of the tree. */
static void look_at_groups(struct horon_memory_room *room, const char *mount, const char *group,
                           const struct group_files *files)
{
    char directory[384];
    int used = snprintf(directory, sizeof directory, "%s%s", mount, group);
    if (used < 0 || (size_t)used >= sizeof directory)
        return;
    const size_t mount_bytes = strlen(mount);
    for (;;) {
        uint64_t bytes = room_in_group(directory, files);
        assert(strncmp(directory, mount, mount_bytes) == 0); /* not above the tree's root */
        if (bytes < room->group_bytes) {
            room->group_bytes = bytes;
            snprintf(room->group, sizeof room->group, "%s",
                     directory[mount_bytes] ? directory + mount_bytes : "/");
        }
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < mount_bytes)
            return;
        *slash = 0;
    }
}

void horon_memory_look(struct horon_memory_room *room, const char *root)
{
    static const struct group_files v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                          "total_inactive_file"};
    static const struct group_files v2 = {"memory.max", "memory.current", "inactive_file"};
    char path[256], text[8192];
    uint64_t kib = 0;
    *room = (struct horon_memory_room){.machine_bytes = UINT64_MAX, .group_bytes = UINT64_MAX};
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (horon_file_read_text(path, text, sizeof text) && find_number(text, "MemAvailable", &kib))
        room->machine_bytes = kib * 1024;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!horon_file_read_text(path, text, sizeof text))
        return;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char mount[256];
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        const bool unified = controllers[1] == 0;
        if (!unified && strcmp(controllers + 1, "memory") != 0)
            continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, unified ? "" : "/memory");
        look_at_groups(room, mount, group, unified ? &v2 : &v1);
    }
}

horon_status_t horon_memory_check(const struct horon_memory_room *room, uint64_t machine_bytes,
                                  uint64_t group_bytes, struct horon_error *error)
{
    if (machine_bytes > room->machine_bytes)
        return horon_error_set(error, HORON_ERR_MEMORY,
                               "the ranks of this host ask for %" PRIu64 " bytes of shared memory, "
                               "but the machine has %" PRIu64 " bytes available",
                               machine_bytes, room->machine_bytes);
    if (group_bytes > room->group_bytes)
        return horon_error_set(error, HORON_ERR_MEMORY,
                               "the ranks of this host ask for %" PRIu64 " bytes of shared memory, "
                               "but the control group %s has %" PRIu64 " bytes left",
                               group_bytes, room->group, room->group_bytes);
    return HORON_OK;
}

static size_t whole_pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes ? (bytes + page - 1) / page * page : page;
}

/* A memfd counts as a file, and one that grows beyond the limit kills its process by SIGXFSZ. */
static horon_status_t check_file_limit(size_t bytes, struct horon_error *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= bytes)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_MEMORY,
                           "%zu bytes of shared memory are more than this process may have in one "
                           "file, %" PRIu64 " bytes: raise that limit (ulimit -f)",
                           bytes, (uint64_t)limit.rlim_cur);
}

/* With vm.memfd_noexec=2 the kernel refuses one that does not say so; before 6.3 it knows no such
 * word. */
int horon_memory_fd(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int fd = memfd_create(name, flags | NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, flags) : fd;
}

static horon_status_t cannot_allocate(size_t bytes, int why, struct horon_error *error)
{
    struct horon_memory_room room;
    horon_memory_look(&room, "");
    const uint64_t left =
        room.machine_bytes < room.group_bytes ? room.machine_bytes : room.group_bytes;
    return horon_error_set_errno(error, HORON_ERR_MEMORY, why,
                                 "the system refuses %zu bytes of shared memory; %" PRIu64
                                 " bytes are available",
                                 bytes, left);
}

static horon_status_t cannot_map(size_t bytes, int why, struct horon_error *error)
{
    struct rlimit limit;
    char allowed[80] = "";
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(allowed, sizeof allowed, "; this process may map %" PRIu64 " bytes in all",
                 (uint64_t)limit.rlim_cur);
    return horon_error_set_errno(error, HORON_ERR_MEMORY, why,
                                 "%zu bytes of shared memory cannot be mapped%s", bytes, allowed);
}

horon_status_t horon_memory_map(int fd, size_t bytes, struct horon_map *map_out,
                                struct horon_error *error)
{
    struct stat is;
    const size_t whole = whole_pages(bytes);
    const int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &is) != 0 || seals < 0 ||
        (seals & (F_SEAL_SHRINK | F_SEAL_SEAL)) != (F_SEAL_SHRINK | F_SEAL_SEAL))
        return horon_error_set(error, HORON_ERR_PROTO,
                               "a peer gave memory that it could take back");
    if ((uint64_t)is.st_size != whole)
        return horon_error_set(error, HORON_ERR_PROTO, "a peer gave %lld bytes of memory, not %zu",
                               (long long)is.st_size, whole);
    void *base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return cannot_map(whole, errno, error);
    (void)madvise(base, whole, MADV_DONTFORK);
    *map_out = (struct horon_map){.base = base, .bytes = whole, .fd = -1};
    return HORON_OK;
}

void *horon_memory_secret(size_t bytes)
{
    void *secret = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (secret == MAP_FAILED)
        return NULL;
    (void)madvise(secret, bytes, MADV_DONTDUMP);
    /* a kernel that cannot wipe it in a child leaves it out there */
    if (madvise(secret, bytes, MADV_WIPEONFORK) == 0 || madvise(secret, bytes, MADV_DONTFORK) == 0)
        return secret;
    munmap(secret, bytes);
    return NULL;
}

void horon_memory_free_secret(void *secret, size_t bytes)
{
    if (!secret)
        return;
    explicit_bzero(secret, bytes);
    munmap(secret, bytes);
}

horon_status_t horon_memory_make(const char *name, size_t bytes, struct horon_map *map_out,
                                 struct horon_error *error)
{
    const size_t whole = whole_pages(bytes);
    horon_status_t status = check_file_limit(whole, error);
    if (status != HORON_OK)
        return status;
    int fd = horon_memory_fd(name);
    if (fd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no shared memory");
    int failed;
    do
        failed = fallocate(fd, 0, 0, (off_t)whole); /* the file is empty, and grows by it */
    while (failed && errno == EINTR);
    if (failed)
        status = cannot_allocate(whole, errno, error);
    else if (fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        status =
            horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "shared memory cannot be sealed");
    else
        status = horon_memory_map(fd, bytes, map_out, error);
    if (status == HORON_OK)
        map_out->fd = fd;
    else
        close(fd);
    return status;
}

void horon_memory_unmap(struct horon_map *map)
{
    if (map->base)
        munmap(map->base, map->bytes);
    *map = (struct horon_map){.fd = -1};
}
