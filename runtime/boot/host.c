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

#define GUEST_PATIENCE_NS 60000000000u /* as long as joining usually may take */
#define TRIES 12                       /* of the leader's socket; it exists, so one is enough */

#define PEER_PIDFD 77 /* SO_PEERPIDFD of Linux 6.5, which older headers lack */

struct horon_host_meeting {
    struct horon_host_meeting_options options;
    struct horon_greeter *greeter;
    struct horon_dial *dial;
    bool settled; /* our leader is known */
    int leader;
    struct horon_turned turned;
    char objection[128];
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
    struct horon_host_meeting *meeting = arg;
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != geteuid())
        return "another user's process";
    int pidfd = peer_pidfd(socket);
    if (pidfd < 0) {
        snprintf(meeting->objection, sizeof meeting->objection, "it cannot be watched: %s%s",
                 strerrordesc_np(errno), errno == EMFILE ? " (see ulimit -n)" : "");
        return meeting->objection;
    }
    close(pidfd);
    return NULL;
}

static void reached(void *arg, horon_status_t status, const struct horon_proven *proven,
                    const struct horon_error *error)
{
    struct horon_host_meeting *meeting = arg;
    horon_dial_destroy(meeting->dial);
    meeting->dial = NULL;
    meeting->settled = true;
    if (status == HORON_OK) {
        meeting->leader = proven->theirs.rank;
        horon_share_add(meeting->options.share, proven->theirs.rank, proven->fd, -1);
        return;
    }
    HORON_LOG_WARN(meeting->options.log, "no shared memory with rank %d: %s",
                   meeting->options.leader, error->text);
}

/* The member counts on us from here on: what goes wrong now is a failure. */
static void arrived(void *arg, const struct horon_proven *proven)
{
    struct horon_host_meeting *meeting = arg;
    horon_share_add(meeting->options.share, proven->theirs.rank, proven->fd,
                    peer_pidfd(proven->fd));
}

static void refused(void *arg, int rank, bool proven, const char *from,
                    const struct horon_error *error)
{
    struct horon_host_meeting *meeting = arg;
    if ((proven || error->status == HORON_ERR_AUTH || error->status == HORON_ERR_MEMORY) &&
        horon_turned_note(&meeting->turned, rank, from, error->text))
        HORON_LOG_WARN(meeting->options.log, "sharing memory: turned %s away: %s", from,
                       error->text);
}

static horon_status_t start_leading(struct horon_host_meeting *meeting, int listener,
                                    struct horon_error *error)
{
    const struct horon_host_meeting_options *options = &meeting->options;
    const struct horon_greeter_options greeting = {.pump = options->pump,
                                                   .key = options->key,
                                                   .hello = options->hello,
                                                   .objection = object_to,
                                                   .patience_ns = GUEST_PATIENCE_NS,
                                                   .arrived = arrived,
                                                   .refused = refused,
                                                   .arg = meeting};
    meeting->settled = true;
    if (listener < 0)
        return HORON_OK; /* a host of its own, as everybody knows from its card */
    horon_status_t status = horon_greeter_create(&greeting, &listener, 1, &meeting->greeter, error);
    if (status != HORON_OK)
        close(listener);
    return status;
}

static horon_status_t start_following(struct horon_host_meeting *meeting, int listener,
                                      struct horon_error *error)
{
    const struct horon_host_meeting_options *options = &meeting->options;
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
                                                .arg = meeting};
    return horon_dial_create(&dialling, &meeting->dial, error);
}

horon_status_t horon_host_meeting_create(const struct horon_host_meeting_options *options,
                                         int listener, struct horon_host_meeting **meeting_out,
                                         struct horon_error *error)
{
    struct horon_host_meeting *meeting = horon_zalloc(1, sizeof *meeting);
    if (!meeting) {
        if (listener >= 0)
            close(listener);
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    }
    meeting->options = *options;
    meeting->leader = options->hello.rank;
    const bool leads = options->leader == options->hello.rank;
    horon_status_t status =
        leads ? start_leading(meeting, listener, error) : start_following(meeting, listener, error);
    if (status != HORON_OK) {
        horon_host_meeting_destroy(meeting);
        return status;
    }
    *meeting_out = meeting;
    return HORON_OK;
}

horon_status_t horon_host_meeting_leader(const struct horon_host_meeting *meeting, int *leader_out)
{
    if (!meeting->settled)
        return HORON_AGAIN;
    *leader_out = meeting->leader;
    return HORON_OK;
}

void horon_host_meeting_destroy(struct horon_host_meeting *meeting)
{
    if (!meeting)
        return;
    horon_dial_destroy(meeting->dial);
    horon_greeter_destroy(meeting->greeter);
    horon_free(meeting);
}
