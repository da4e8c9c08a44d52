/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that a rank starts inherits the variables of its launcher. If it joined by them it
 * would wait for ranks that have all joined already, until START_TIMEOUT. So a rank that has joined
 * listens at an abstract name that is made of its process, its rank and the job's store, and
 * accepts nobody; a process that is about to join looks whether one of its ancestors does.
 *
 * Another job may use the same store meanwhile, and anybody may take a name: only an ancestor
 * counts, and the kernel says which process listens. One of another pid namespace is not found;
 * then the time limit names the rank that is missing.
 */
#include "boot/identity/identity.h"

#include "address.h"
#include "fds.h"
#include "file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define ANCESTORS_MAX 64 /* no more are looked at */

static void name_place(const struct horon_identity *id, pid_t process,
                       struct horon_address *address)
{
    char name[96];
    const char *at =
        id->space && id->job ? "" : id->store; /* told or not yet: the job's name does */
    const uint64_t store = XXH3_64bits_withSeed(at, strlen(at), id->job);
    snprintf(name, sizeof name, "horon.joined.%d.%d.%d.%016llx", (int)process, id->rank, id->size,
             (unsigned long long)store);
    horon_address_abstract(name, address);
}

int horon_joined_say(const struct horon_identity *id)
{
    struct horon_address address;
    name_place(id, getpid(), &address);
    return horon_address_listen(&address);
}

/* @return 0 or less: it has none that can be seen from here */
static pid_t parent_of(pid_t process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)process);
    return (pid_t)horon_file_read_number(path, "\nPPid:\t");
}

static bool has_joined(const struct horon_identity *id, const struct horon_fds *fds, pid_t process)
{
    struct horon_address address;
    struct ucred listener = {0};
    socklen_t bytes = sizeof listener;
    name_place(id, process, &address);
    horon_fds_hold(fds);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool there = fd >= 0 && connect(fd, &address.any, address.bytes) == 0 &&
                       getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listener, &bytes) == 0;
    horon_fd_close(&fd);
    horon_fds_release(fds);
    return there && listener.pid == process;
}

horon_status_t horon_joined_before(const struct horon_identity *id, const struct horon_fds *fds,
                                   struct horon_error *error)
{
    pid_t process = parent_of(getpid());
    for (int i = 0; i < ANCESTORS_MAX && process > 0; i++, process = parent_of(process))
        if (has_joined(id, fds, process))
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "rank %d has joined already: process %d, which started this "
                                   "program. A program that a rank starts inherits %s's variables "
                                   "and cannot join in its place: start it without them",
                                   id->rank, (int)process, id->source);
    return HORON_OK;
}
