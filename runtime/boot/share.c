/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader is a hub: one proven socket to each member. A member sends one note (its arena and its
 * doorbell) and receives one for the control segment and one for each other rank; the leader, who
 * knows the processes from their sockets, adds a pidfd to each. Memory is mapped when its note
 * comes, and a member closes its descriptor then: it never holds more than a few at a time.
 *
 * Whoever fails hangs up. The others see that, fail as well, and learn the reason in the next round
 * of the store.
 */
#include "boot/share.h"

#include "alloc.h"
#include "boot/memory.h"
#include "boot/pass.h"
#include "clock.h"

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAUSE_NS 1000000u /* when too many descriptors are on their way */

/* The other end of a socket: a member, seen by the leader; or the leader. */
struct end {
    struct horon_share *share;
    int local_rank;
    struct horon_watch watch; /* its fd is the socket, -1 if there is none */
    struct horon_pass_inbox inbox;
    int next_note; /* to send: [0] control, [1 + l] the things of local rank l; or [0] ours */
    bool sent;     /* everything */
};

/* What the leader passes on about a rank; the doorbell and pidfd are the boot's, or end up there.
 */
struct things {
    int arena_fd; /* -1: has not come */
    int pidfd;
};

struct horon_share {
    struct horon_share_options options;
    struct horon_boot *boot;
    int me, host_size; /* local rank */
    int control_fd;    /* leader */
    int awaited;       /* notes that have to come */
    struct horon_timer timer;
    struct horon_error error;
    struct things *things; /* [host_size] */
    struct end ends[];     /* [host_size] */
};

static void hang_up(struct end *end)
{
    horon_pump_unwatch(end->share->options.pump, &end->watch);
    horon_pass_inbox_deinit(&end->inbox);
    if (end->watch.fd >= 0)
        close(end->watch.fd);
    end->watch.fd = -1;
}

/* Memory was refused: says whose it is, and what its user can do. */
static void advise(const struct horon_share *share, struct horon_error *error)
{
    const struct horon_topology *topology = share->options.topology;
    char text[HORON_ERROR_TEXT_BYTES];
    if (error->status != HORON_ERR_MEMORY)
        return;
    snprintf(
        text, sizeof text,
        "%.600s (rank %d on %s; allow more memory, lower HORON_SHM_CHUNK_BYTES, or run fewer ranks "
        "there)",
        error->text, topology->rank, topology->host_name[topology->host_of[topology->rank]]);
    horon_error_set(error, HORON_ERR_MEMORY, "%s", text);
}

static void share_failed(struct end *at, const struct horon_error *why)
{
    struct horon_share *share = at->share;
    const struct horon_topology *topology = share->options.topology;
    if (share->error.status == HORON_OK) {
        horon_error_set(
            &share->error, why->status, "sharing memory with rank %d failed: %s",
            horon_topology_rank_at(topology, topology->host_of[topology->rank], at->local_rank),
            why->text);
        advise(share, &share->error);
    }
    for (int i = 0; i < share->host_size; i++)
        hang_up(&share->ends[i]);
}

/* ---- Sending ---- */

/* OK: the note was sent, or is not for this end. AGAIN: not yet. IN_PROGRESS: after a pause. */
static horon_status_t leader_sends(struct end *to, struct horon_error *error)
{
    struct horon_share *share = to->share;
    const int about = to->next_note - 1;
    if (about < 0) {
        const struct horon_note note = {.kind = HORON_NOTE_CONTROL,
                                        .bytes = share->options.control_bytes};
        return horon_pass_send(to->watch.fd, &note, &share->control_fd, 1, error);
    }
    if (about == to->local_rank)
        return HORON_OK;
    if (share->things[about].arena_fd < 0)
        return HORON_AGAIN; /* when it comes, all ends are flushed again */
    const struct horon_note note = {.kind = HORON_NOTE_PEER,
                                    .local_rank = (uint32_t)about,
                                    .bytes = share->options.arena_bytes};
    const int fds[] = {share->things[about].arena_fd, share->boot->local[about].doorbell,
                       share->things[about].pidfd};
    return horon_pass_send(to->watch.fd, &note, fds, 3, error);
}

static horon_status_t member_sends(struct end *to, struct horon_error *error)
{
    struct horon_share *share = to->share;
    const struct horon_note note = {.kind = HORON_NOTE_GIVE,
                                    .local_rank = (uint32_t)share->me,
                                    .bytes = share->options.arena_bytes};
    const int fds[] = {share->things[share->me].arena_fd, share->boot->local[share->me].doorbell};
    return horon_pass_send(to->watch.fd, &note, fds, 2, error);
}

/* Sends what can be sent; on failure everything has been hung up. */
static void flush(struct end *end)
{
    struct horon_share *share = end->share;
    struct horon_error error = {0};
    const int notes = share->me == 0 ? share->host_size + 1 : 1;
    horon_status_t status = HORON_OK;
    while (end->next_note < notes && status == HORON_OK) {
        status = share->me == 0 ? leader_sends(end, &error) : member_sends(end, &error);
        end->next_note += status == HORON_OK;
    }
    end->sent = end->next_note == notes;
    if (status == HORON_IN_PROGRESS)
        horon_pump_timer(share->options.pump, &share->timer, horon_clock_ns() + PAUSE_NS);
    if (status >= 0)
        status = horon_pump_watch(share->options.pump, &end->watch,
                                  status == HORON_AGAIN ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN,
                                  &error);
    if (status < 0)
        share_failed(end, &error);
}

static void flush_all(void *arg)
{
    struct horon_share *share = arg;
    for (int i = 0; i < share->host_size; i++)
        if (share->ends[i].watch.fd >= 0)
            flush(&share->ends[i]);
}

/* ---- Receiving ---- */

/* Maps an arena and keeps the rank's doorbell and pidfd; the inbox is empty then. */
static horon_status_t keep_peer(struct horon_share *share, int local_rank, uint64_t bytes,
                                int arena_fd, int doorbell, int pidfd, struct horon_error *error)
{
    struct horon_local_peer *peer = &share->boot->local[local_rank];
    if (peer->doorbell >= 0 || local_rank == share->me || bytes != share->options.arena_bytes)
        return horon_error_set(error, HORON_ERR_PROTO, "an arena came twice or of another size");
    horon_status_t status =
        horon_memory_map(arena_fd, share->options.arena_bytes, &peer->arena, error);
    if (status != HORON_OK)
        return status;
    peer->doorbell = doorbell;
    peer->pidfd = pidfd;
    share->awaited--;
    return HORON_OK;
}

static horon_status_t member_takes(struct horon_share *share, const struct horon_note *note,
                                   struct horon_pass_inbox *inbox, struct horon_error *error)
{
    horon_status_t status = HORON_ERR_PROTO;
    if (note->kind == HORON_NOTE_PEER && inbox->fd_count == 3 &&
        note->local_rank < (uint32_t)share->host_size) {
        status = keep_peer(share, (int)note->local_rank, note->bytes, inbox->fds[0], inbox->fds[1],
                           inbox->fds[2], error);
        if (status == HORON_OK)
            inbox->fd_count = 1; /* the arena's is closed below */
    } else if (note->kind == HORON_NOTE_CONTROL && inbox->fd_count == 1 &&
               !share->boot->control.base && note->bytes == share->options.control_bytes) {
        status = horon_memory_map(inbox->fds[0], share->options.control_bytes,
                                  &share->boot->control, error);
        share->awaited -= status == HORON_OK;
    } else {
        horon_error_set(error, status, "the leader sends a note out of turn");
    }
    horon_pass_inbox_deinit(inbox);
    return status;
}

static horon_status_t leader_takes(struct horon_share *share, int from,
                                   const struct horon_note *note, struct horon_pass_inbox *inbox,
                                   struct horon_error *error)
{
    struct things *things = &share->things[from];
    if (note->kind != HORON_NOTE_GIVE || inbox->fd_count != 2)
        return horon_error_set(error, HORON_ERR_PROTO, "it sends a note out of turn");
    horon_status_t status =
        keep_peer(share, from, note->bytes, inbox->fds[0], inbox->fds[1], things->pidfd, error);
    if (status != HORON_OK)
        return status;
    things->arena_fd = inbox->fds[0];
    inbox->fd_count = 0;
    return HORON_OK;
}

/* OK: perhaps more | AGAIN */
static horon_status_t take_one(struct end *end, struct horon_error *error)
{
    struct horon_share *share = end->share;
    struct horon_note note;
    horon_status_t status = horon_pass_receive(end->watch.fd, &end->inbox, &note, error);
    if (status != HORON_OK)
        return status;
    if (share->me != 0)
        return member_takes(share, &note, &end->inbox, error);
    status = leader_takes(share, end->local_rank, &note, &end->inbox, error);
    if (status == HORON_OK)
        flush_all(share);
    return status;
}

static void end_ready(void *arg, uint32_t events)
{
    struct end *end = arg;
    struct horon_error error = {0};
    horon_status_t status = HORON_OK;
    if (events & EPOLLOUT)
        flush(end);
    while (end->watch.fd >= 0 && status == HORON_OK)
        status = take_one(end, &error);
    /* a leader that is done hangs up; a member that has everything does not mind */
    const bool over = status == HORON_ERR_PEER_LOST && end->share->me != 0 &&
                      end->share->awaited == 0 && end->sent;
    if (over)
        hang_up(end);
    else if (status < 0)
        share_failed(end, &error);
}

/* ---- Beginning and end ---- */

static horon_status_t make_memory(struct horon_share *share, struct horon_error *error)
{
    const struct horon_share_options *options = &share->options;
    struct horon_memory_room room;
    struct horon_local_peer *self = &share->boot->local[share->me];
    const uint64_t machine =
        (uint64_t)options->arena_bytes * (uint64_t)share->host_size + options->control_bytes;
    const uint64_t group =
        (uint64_t)options->arena_bytes * (uint64_t)options->group_ranks + options->control_bytes;
    horon_memory_look(&room, "");
    horon_status_t status = horon_memory_check(&room, machine, group, error);
    if (status == HORON_OK)
        status = horon_memory_create("horon-arena", options->arena_bytes,
                                     &share->things[share->me].arena_fd, error);
    if (status == HORON_OK)
        status = horon_memory_map(share->things[share->me].arena_fd, options->arena_bytes,
                                  &self->arena, error);
    if (status == HORON_OK && share->me == 0)
        status =
            horon_memory_create("horon-control", options->control_bytes, &share->control_fd, error);
    if (status == HORON_OK && share->me == 0)
        status = horon_memory_map(share->control_fd, options->control_bytes, &share->boot->control,
                                  error);
    if (status != HORON_OK)
        return status;
    self->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->doorbell < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no doorbell");
    return HORON_OK;
}

/* The leader's own pidfd is for the others; its boot has none of itself. */
static horon_status_t begin(struct horon_share *share, struct horon_error *error)
{
    horon_status_t status = make_memory(share, error);
    if (status != HORON_OK) {
        advise(share, error);
        return status;
    }
    if (share->me == 0 && share->host_size > 1) {
        share->things[0].pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
        if (share->things[0].pidfd < 0)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no pidfd");
    }
    share->awaited = share->me == 0 ? share->host_size - 1 : share->host_size;
    flush_all(share);
    if (share->error.status != HORON_OK)
        *error = share->error;
    return share->error.status;
}

horon_status_t horon_share_create(const struct horon_share_options *options,
                                  const struct horon_share_peer *peers, struct horon_boot *boot,
                                  struct horon_share **share_out, struct horon_error *error)
{
    const struct horon_topology *topology = options->topology;
    const int host_size = horon_topology_host_size(topology, topology->host_of[topology->rank]);
    struct horon_share *share =
        horon_zalloc(1, sizeof *share + (size_t)host_size * sizeof share->ends[0]);
    struct things *things = horon_zalloc((size_t)host_size, sizeof *things);
    boot->local = horon_zalloc((size_t)host_size, sizeof *boot->local);
    if (!share || !things || !boot->local) {
        for (int i = 0; i < host_size; i++) {
            if (peers[i].socket >= 0)
                close(peers[i].socket);
            if (peers[i].pidfd >= 0)
                close(peers[i].pidfd);
        }
        horon_free(things);
        horon_free(share);
        horon_free(boot->local);
        boot->local = NULL;
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    }
    share->options = *options;
    share->boot = boot;
    share->me = topology->local_rank_of[topology->rank];
    share->host_size = host_size;
    share->control_fd = -1;
    share->things = things;
    share->timer = (struct horon_timer){.due = flush_all, .arg = share};
    for (int i = 0; i < host_size; i++) {
        struct end *end = &share->ends[i];
        things[i] = (struct things){.arena_fd = -1, .pidfd = peers[i].pidfd};
        boot->local[i] = (struct horon_local_peer){.pidfd = -1, .doorbell = -1, .arena.fd = -1};
        end->share = share;
        end->local_rank = i;
        end->watch = (struct horon_watch){.ready = end_ready, .arg = end, .fd = peers[i].socket};
    }
    horon_status_t status = begin(share, error);
    if (status != HORON_OK) {
        horon_share_destroy(share);
        return status;
    }
    *share_out = share;
    return HORON_OK;
}

horon_status_t horon_share_state(const struct horon_share *share, struct horon_error *error)
{
    if (share->error.status != HORON_OK) {
        *error = share->error;
        return error->status;
    }
    for (int i = 0; i < share->host_size; i++)
        if (share->ends[i].watch.fd >= 0 && !share->ends[i].sent)
            return HORON_AGAIN;
    return share->awaited == 0 ? HORON_OK : HORON_AGAIN;
}

void horon_share_destroy(struct horon_share *share)
{
    if (!share)
        return;
    horon_pump_untimer(share->options.pump, &share->timer);
    for (int i = 0; i < share->host_size; i++) {
        struct things *things = &share->things[i];
        hang_up(&share->ends[i]);
        if (things->arena_fd >= 0)
            close(things->arena_fd);
        if (things->pidfd >= 0 && things->pidfd != share->boot->local[i].pidfd)
            close(things->pidfd);
    }
    if (share->control_fd >= 0)
        close(share->control_fd);
    horon_free(share->things);
    horon_free(share);
}
