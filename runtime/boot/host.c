/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates for one host meet at the socket of the lowest of them. A process that the leader
 * cannot watch (another user's, another pid namespace) is not let in: it would be missed only by a
 * time limit if it died. Not being let in is no failure, only a host more.
 */
#include "boot/host.h"

#include "alloc.h"
#include "boot/dial.h"
#include "boot/fds.h"
#include "boot/greet.h"
#include "boot/turned.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUESTS_MAX 1024
#define GUEST_PATIENCE_NS 60000000000u /* as long as joining usually may take */
#define TRIES 12                       /* of the leader's socket; it exists, so one is enough */

#define PEER_PIDFD 77 /* SO_PEERPIDFD of Linux 6.5, which older headers lack */

/* A rank that was met: for the leader each member, for a member its leader. */
struct friend
{
    int rank, socket, pidfd;
};

struct horon_host {
    struct horon_host_options options;
    struct horon_greeter *greeter;
    struct horon_dial *dial;
    bool settled; /* our leader is known */
    int leader;
    int friend_count, friend_limit;
    struct friend *friends;
    struct horon_turned turned;
    char objection[128];
    struct horon_error error;
};

static int open_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

horon_status_t horon_host_listen(int rank, char *name, size_t name_bytes, int *fd_out,
                                 struct horon_fds *fds, const struct horon_log *log,
                                 struct horon_error *error)
{
    uint64_t random[2];
    struct horon_address address;
    *fd_out = -1;
    name[0] = 0;
    int pidfd = open_pidfd(getpid());
    if (pidfd < 0) { /* deaths could not be seen: sharing memory would not be safe */
        HORON_LOG_WARN(log, "no shared memory: no pidfd (%s)", strerrordesc_np(errno));
        return HORON_OK;
    }
    close(pidfd);
    horon_status_t status = horon_random(random, sizeof random, error);
    if (status != HORON_OK)
        return status;
    snprintf(name, name_bytes, "horon-%d-%016" PRIx64 "%016" PRIx64, rank, random[0], random[1]);
    horon_address_abstract(name, &address);
    horon_fds_hold(fds);
    *fd_out = horon_fds_note(fds, horon_address_listen(&address));
    horon_fds_release(fds);
    if (*fd_out >= 0)
        return HORON_OK;
    HORON_LOG_WARN(log, "no shared memory: no unix socket (%s)", strerrordesc_np(errno));
    name[0] = 0;
    return HORON_OK;
}

static struct friend *find_friend(const struct horon_host *host, int rank)
{
    for (int i = 0; i < host->friend_count; i++)
        if (host->friends[i].rank == rank)
            return &host->friends[i];
    return NULL;
}

static int peer_pidfd(int socket)
{
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;
    struct ucred peer;
    if (getsockopt(socket, SOL_SOCKET, PEER_PIDFD, &pidfd, &bytes) == 0)
        return pidfd;
    bytes = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid <= 0)
        return -1;
    return open_pidfd(peer.pid);
}

/* The leader must see who is at the other end, or it would miss that process's death. */
static const char *object_to(void *arg, int socket)
{
    struct horon_host *host = arg;
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != geteuid())
        return "another user's process";
    int pidfd = peer_pidfd(socket);
    if (pidfd < 0) {
        snprintf(host->objection, sizeof host->objection, "it cannot be watched: %s%s",
                 strerrordesc_np(errno), errno == EMFILE ? " (see ulimit -n)" : "");
        return host->objection;
    }
    close(pidfd);
    return NULL;
}

static bool add_friend(struct horon_host *host, int rank, int socket, int pidfd)
{
    if (host->friend_count == host->friend_limit) {
        int limit = host->friend_limit ? host->friend_limit * 2 : 8;
        struct friend *more = horon_realloc(host->friends, (size_t)limit * sizeof *more);
        if (!more)
            return false;
        host->friends = more;
        host->friend_limit = limit;
    }
    host->friends[host->friend_count++] =
        (struct friend){.rank = rank, .socket = socket, .pidfd = pidfd};
    return true;
}

static void reached(void *arg, horon_status_t status, int fd, const struct horon_hello *theirs,
                    const struct horon_error *error)
{
    struct horon_host *host = arg;
    horon_dial_destroy(host->dial);
    host->dial = NULL;
    host->settled = true;
    if (status == HORON_OK && add_friend(host, theirs->rank, fd, -1)) {
        host->leader = theirs->rank;
        return;
    }
    if (status == HORON_OK)
        close(fd);
    HORON_LOG_WARN(host->options.log, "no shared memory with rank %d: %s", host->options.leader,
                   status == HORON_OK ? "out of memory" : error->text);
}

/* The member counts on us from here on: what goes wrong now is a failure. */
static void arrived(void *arg, int fd, const struct horon_hello *theirs)
{
    struct horon_host *host = arg;
    int pidfd = peer_pidfd(fd);
    if (pidfd >= 0 && theirs->rank > host->options.leader && !find_friend(host, theirs->rank) &&
        add_friend(host, theirs->rank, fd, pidfd))
        return;
    if (pidfd >= 0)
        close(pidfd);
    close(fd);
    horon_error_set(&host->error, HORON_ERR_SYSTEM,
                    "rank %d came to share memory, but it came twice, or there is no memory or "
                    "descriptor for it",
                    theirs->rank);
}

static void refused(void *arg, int rank, bool proven, const char *from,
                    const struct horon_error *error)
{
    struct horon_host *host = arg;
    if ((proven || error->status == HORON_ERR_AUTH || error->status == HORON_ERR_MEMORY) &&
        horon_turned_note(&host->turned, rank, from, error->text))
        HORON_LOG_WARN(host->options.log, "sharing memory: turned %s away: %s", from, error->text);
}

static horon_status_t start_leading(struct horon_host *host, int listener,
                                    struct horon_error *error)
{
    const struct horon_host_options *options = &host->options;
    const struct horon_greeter_options greeting = {.pump = options->pump,
                                                   .key = options->key,
                                                   .hello = options->hello,
                                                   .objection = object_to,
                                                   .guests_max = GUESTS_MAX,
                                                   .patience_ns = GUEST_PATIENCE_NS,
                                                   .arrived = arrived,
                                                   .refused = refused,
                                                   .arg = host};
    host->settled = true;
    if (listener < 0)
        return HORON_OK; /* a host of its own, as everybody knows from its card */
    horon_status_t status = horon_greeter_create(&greeting, &listener, 1, &host->greeter, error);
    if (status != HORON_OK)
        close(listener);
    return status;
}

static horon_status_t start_following(struct horon_host *host, int listener,
                                      struct horon_error *error)
{
    const struct horon_host_options *options = &host->options;
    struct horon_addresses addresses = {.count = 1};
    if (listener >= 0)
        close(listener);
    horon_address_abstract(options->leader_socket, &addresses.items[0]);
    const struct horon_dial_options dialling = {.pump = options->pump,
                                                .key = options->key,
                                                .hello = options->hello,
                                                .addresses = &addresses,
                                                .expect_rank = options->leader,
                                                .expect_member = options->leader_member,
                                                .tries = TRIES,
                                                .same_user = true,
                                                .done = reached,
                                                .arg = host};
    return horon_dial_create(&dialling, &host->dial, error);
}

horon_status_t horon_host_create(const struct horon_host_options *options, int listener,
                                 struct horon_host **host_out, struct horon_error *error)
{
    struct horon_host *host = horon_zalloc(1, sizeof *host);
    if (!host) {
        if (listener >= 0)
            close(listener);
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    }
    host->options = *options;
    host->leader = options->hello.rank;
    const bool leads = options->leader == options->hello.rank;
    horon_status_t status =
        leads ? start_leading(host, listener, error) : start_following(host, listener, error);
    if (status != HORON_OK) {
        horon_host_destroy(host);
        return status;
    }
    *host_out = host;
    return HORON_OK;
}

horon_status_t horon_host_leader(const struct horon_host *host, int *leader_out)
{
    if (!host->settled)
        return HORON_AGAIN;
    *leader_out = host->leader;
    return HORON_OK;
}

horon_status_t horon_host_complete(const struct horon_host *host,
                                   const struct horon_topology *topology, struct horon_error *error)
{
    const int me = topology->host_of[topology->rank];
    if (host->error.status != HORON_OK) {
        *error = host->error;
        return error->status;
    }
    if (host->leader != topology->rank)
        return HORON_OK;
    for (int i = 1; i < horon_topology_host_size(topology, me); i++)
        if (!find_friend(host, horon_topology_rank_at(topology, me, i)))
            return HORON_AGAIN;
    return HORON_OK;
}

void horon_host_take(struct horon_host *host, int rank, int *socket_out, int *pidfd_out)
{
    struct friend *friend = find_friend(host, rank);
    *socket_out = friend ? friend->socket : -1;
    *pidfd_out = friend ? friend->pidfd : -1;
    if (friend)
        friend->socket = friend->pidfd = -1;
}

void horon_host_destroy(struct horon_host *host)
{
    if (!host)
        return;
    horon_dial_destroy(host->dial);
    horon_greeter_destroy(host->greeter);
    for (int i = 0; i < host->friend_count; i++) {
        if (host->friends[i].socket >= 0)
            close(host->friends[i].socket);
        if (host->friends[i].pidfd >= 0)
            close(host->friends[i].pidfd);
    }
    horon_free(host->friends);
    horon_free(host);
}
