/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leader is a hub: one proven socket to each member. A member sends one note (its arena and its
 * doorbell) and receives one about each other rank of the host; the leader, who knows the processes
 * from their sockets, adds a pidfd to each, and the control segment to the one about itself. Memory
 * is mapped when its note comes, and a member closes its descriptor then: it never holds more than
 * a few at a time.
 *
 * A rank that fails hangs up. The others see that, fail as well, and learn the reason in the next
 * round of the store. When all went well the sockets stay open, and say who calls exec().
 */
#include "boot/share.h"

#include "alloc.h"
#include "boot/memory.h"
#include "boot/pass.h"
#include "boot/process.h"
#include "clock.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAUSE_NS 1000000u /* when too many descriptors are on their way */

/* The other end of a socket: a member, seen by the leader; or the leader. */
struct end {
    struct horon_share *share;
    struct end *next;
    int rank, local_rank;     /* local_rank: -1 before the start */
    struct horon_watch watch; /* its fd is the socket, -1 if there is none */
    struct horon_pass_inbox inbox;
    int next_note; /* to send: the leader's next one is about this local rank */
    bool sent;     /* everything */
};

/* Until it is destroyed, the leader's boot keeps the descriptors of all memory open. */
struct horon_share {
    struct horon_pump *pump;
    const char *host_name;
    struct horon_share_options options;
    struct horon_boot *boot;   /* NULL before the start */
    int local_rank, host_size; /* ours */
    int own_pidfd;             /* leader: for the others */
    int awaited;               /* notes that have to come */
    struct horon_timer timer;
    struct horon_error error;
    struct end *ends;
};

static bool leads(const struct horon_share *share)
{
    return share->local_rank == 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void hang_up(struct end *end)
{
    horon_pump_unwatch(end->share->pump, &end->watch);
    horon_pass_inbox_deinit(&end->inbox);
    close_fd(&end->watch.fd);
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

static void hang_up_all(struct horon_share *share)
{
    for (struct end *end = share->ends; end; end = end->next)
        hang_up(end);
}

static void share_failed(struct end *at, const struct horon_error *why)
{
    struct horon_share *share = at->share;
    if (share->error.status == HORON_OK) {
        horon_error_set(&share->error, why->status, "sharing memory with rank %d (%s) failed: %s",
                        at->rank, share->host_name, why->text);
        if (share->boot)
            advise(share, &share->error);
    }
    hang_up_all(share);
}

/* ---- Sending ---- */

/* OK: the note was sent, or is not for this end. AGAIN: not yet. IN_PROGRESS: after a pause. */
static horon_status_t send_note(const struct end *to, struct horon_error *error)
{
    const struct horon_share *share = to->share;
    const int about = leads(share) ? to->next_note : share->local_rank;
    const struct horon_local_peer *peer = &share->boot->local[about];
    assert(about >= 0);
    assert(about < share->host_size);
    const struct horon_note note = {.local_rank = (uint32_t)about,
                                    .bytes = share->options.arena_bytes};
    const int pidfd = about == 0 ? share->own_pidfd : peer->pidfd;
    const int fds[] = {peer->arena.fd, peer->doorbell, pidfd, share->boot->control.fd};
    if (about == to->local_rank)
        return HORON_OK;
    if (peer->arena.fd < 0)
        return HORON_AGAIN; /* when it comes, all ends are flushed again */
    return horon_pass_send(to->watch.fd, &note, fds, !leads(share) ? 2 : about ? 3 : 4, error);
}

/* Sends what can be sent; on failure everything has been hung up. */
static void flush(struct end *end)
{
    struct horon_share *share = end->share;
    struct horon_error error = {0};
    const int notes = leads(share) ? share->host_size : 1;
    horon_status_t status = HORON_OK;
    while (end->next_note < notes && status == HORON_OK) {
        status = send_note(end, &error);
        end->next_note += status == HORON_OK;
    }
    end->sent = end->next_note == notes;
    if (status == HORON_IN_PROGRESS)
        horon_pump_timer(share->pump, &share->timer, horon_clock_ns() + PAUSE_NS);
    if (status >= 0)
        status = horon_pump_watch(share->pump, &end->watch,
                                  status == HORON_AGAIN ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN,
                                  &error);
    if (status < 0)
        share_failed(end, &error);
}

static void flush_all(void *arg)
{
    struct horon_share *share = arg;
    for (struct end *end = share->ends; end; end = end->next)
        if (end->watch.fd >= 0)
            flush(end);
}

/* ---- Receiving ---- */

/* Maps what a note brought. The inbox keeps, and closes, what is not kept. */
static horon_status_t take_note(struct end *end, const struct horon_note *note,
                                struct horon_error *error)
{
    struct horon_share *share = end->share;
    struct horon_pass_inbox *inbox = &end->inbox;
    const uint32_t about = note->local_rank;
    const bool right_rank =
        leads(share) ? about == (uint32_t)end->local_rank
                     : about < (uint32_t)share->host_size && about != (uint32_t)share->local_rank;
    const bool with_control = about == 0;
    if (!right_rank ||
        inbox->fd_count != (leads(share)   ? 2
                            : with_control ? 4
                                           : 3) ||
        note->bytes != share->options.arena_bytes || share->boot->local[about].doorbell >= 0)
        return horon_error_set(error, HORON_ERR_PROTO, "it sends a note out of turn");
    struct horon_local_peer *peer = &share->boot->local[about];
    horon_status_t status =
        horon_memory_map(inbox->fds[0], share->options.arena_bytes, &peer->arena, error);
    if (status == HORON_OK && with_control)
        status = horon_memory_map(inbox->fds[3], share->options.control_bytes,
                                  &share->boot->control, error);
    if (status != HORON_OK)
        return status;
    peer->doorbell = inbox->fds[1];
    if (leads(share))
        peer->arena.fd = inbox->fds[0];
    else
        peer->pidfd = inbox->fds[2];
    inbox->fds[1] = inbox->fds[leads(share) ? 0 : 2] = -1;
    share->awaited--;
    assert(share->awaited >= 0);
    return HORON_OK;
}

/* OK: perhaps more | AGAIN */
static horon_status_t take_one(struct end *end, struct horon_error *error)
{
    struct horon_note note;
    horon_status_t status = horon_pass_receive(end->watch.fd, &end->inbox, &note, error);
    if (status != HORON_OK)
        return status;
    status = take_note(end, &note, error);
    horon_pass_inbox_deinit(&end->inbox);
    if (status == HORON_OK && leads(end->share))
        flush_all(end->share);
    return status;
}

static void end_ready(void *arg, uint32_t events)
{
    struct end *end = arg;
    struct horon_error error = {0}, ignored = {0};
    horon_status_t status = HORON_OK;
    if (events & EPOLLOUT)
        flush(end);
    while (end->watch.fd >= 0 && status == HORON_OK)
        status = take_one(end, &error);
    /* once everything has gone around, one that hangs up is no reason to hang up on the others */
    if (status == HORON_ERR_PEER_LOST && horon_share_state(end->share, &ignored) == HORON_OK)
        hang_up(end);
    else if (status < 0)
        share_failed(end, &error);
}

/* ---- Beginning and end ---- */

static int open_own_pidfd(void)
{
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

horon_status_t horon_share_listen(int rank, char *name, size_t name_bytes, int *fd_out,
                                  struct horon_fds *fds, const struct horon_log *log,
                                  struct horon_error *error)
{
    uint64_t random[2];
    struct horon_address address;
    *fd_out = -1;
    name[0] = 0;
    int pidfd = open_own_pidfd();
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

static horon_status_t make_map(const char *name, size_t bytes, struct horon_map *map,
                               struct horon_error *error)
{
    int fd;
    horon_status_t status = horon_memory_create(name, bytes, &fd, error);
    if (status != HORON_OK)
        return status;
    status = horon_memory_map(fd, bytes, map, error);
    if (status == HORON_OK)
        map->fd = fd;
    else
        close(fd);
    return status;
}

static horon_status_t make_memory(struct horon_share *share, struct horon_error *error)
{
    const struct horon_share_options *options = &share->options;
    struct horon_memory_room room;
    struct horon_local_peer *self = &share->boot->local[share->local_rank];
    const uint64_t arena = options->arena_bytes, control = options->control_bytes;
    horon_memory_look(&room, "");
    horon_status_t status =
        horon_memory_check(&room, arena * (uint64_t)share->host_size + control,
                           arena * (uint64_t)options->group_ranks + control, error);
    if (status == HORON_OK)
        status = make_map("horon-arena", options->arena_bytes, &self->arena, error);
    if (status == HORON_OK && leads(share))
        status = make_map("horon-control", options->control_bytes, &share->boot->control, error);
    if (status != HORON_OK) {
        advise(share, error);
        return status;
    }
    self->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->doorbell < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no doorbell");
    if (!leads(share) || share->host_size == 1)
        return HORON_OK;
    share->own_pidfd = open_own_pidfd();
    if (share->own_pidfd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no pidfd");
    return HORON_OK;
}

horon_status_t horon_share_create(struct horon_pump *pump, const char *host_name,
                                  struct horon_share **share_out, struct horon_error *error)
{
    struct horon_share *share = horon_zalloc(1, sizeof *share);
    if (!share)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    share->pump = pump;
    share->host_name = host_name;
    share->own_pidfd = -1;
    share->timer = (struct horon_timer){.due = flush_all, .arg = share};
    *share_out = share;
    return HORON_OK;
}

/* A rank that came and then decided to lead a host of its own is none of ours. */
static bool is_of_this_host(const struct horon_topology *topology, int rank)
{
    return rank >= 0 && rank < topology->size && rank != topology->rank &&
           topology->host_of[rank] == topology->host_of[topology->rank];
}

/* From here on notes come and go. */
static void open_end(struct end *end)
{
    struct horon_share *share = end->share;
    const struct horon_topology *topology = share->options.topology;
    struct horon_error error;
    if (!is_of_this_host(topology, end->rank)) {
        hang_up(end);
        return;
    }
    end->local_rank = topology->local_rank_of[end->rank];
    if (leads(share)) {
        int *pidfd = &share->boot->local[end->local_rank].pidfd;
        *pidfd = horon_process_open(end->watch.fd);
        if (*pidfd < 0) {
            horon_error_set_errno(&error, HORON_ERR_SYSTEM, errno, "its process cannot be watched");
            share_failed(end, &error);
            return;
        }
    }
    flush(end);
}

void horon_share_add(struct horon_share *share, int rank, int socket)
{
    struct end *end = horon_zalloc(1, sizeof *end), *same = share->ends;
    while (same && same->rank != rank)
        same = same->next;
    if (!end || same) {
        close(socket);
        horon_error_set(&share->error, HORON_ERR_SYSTEM,
                        "rank %d came to share memory, but it came twice, or there is no memory",
                        rank);
        horon_free(end);
        return;
    }
    *end = (struct end){.share = share,
                        .next = share->ends,
                        .rank = rank,
                        .local_rank = -1,
                        .watch = {.ready = end_ready, .arg = end, .fd = socket}};
    share->ends = end;
    if (share->boot)
        open_end(end);
}

horon_status_t horon_share_start(struct horon_share *share,
                                 const struct horon_share_options *options, struct horon_boot *boot,
                                 struct horon_error *error)
{
    const struct horon_topology *topology = options->topology;
    assert(!share->boot);
    share->options = *options;
    share->host_size = horon_topology_host_size(topology, topology->host_of[topology->rank]);
    share->local_rank = topology->local_rank_of[topology->rank];
    share->awaited = share->host_size - 1;
    boot->local = horon_zalloc((size_t)share->host_size, sizeof *boot->local);
    if (!boot->local) {
        hang_up_all(share);
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    }
    for (int i = 0; i < share->host_size; i++)
        boot->local[i] =
            (struct horon_local_peer){.pidfd = -1, .socket = -1, .doorbell = -1, .arena.fd = -1};
    share->boot = boot;
    horon_status_t status = make_memory(share, error);
    if (status != HORON_OK) {
        hang_up_all(share); /* the others need not wait */
        return status;
    }
    for (struct end *end = share->ends; end; end = end->next)
        open_end(end);
    return HORON_OK;
}

horon_status_t horon_share_state(const struct horon_share *share, struct horon_error *error)
{
    if (share->error.status != HORON_OK) {
        *error = share->error;
        return error->status;
    }
    if (!share->boot || share->awaited > 0)
        return HORON_AGAIN;
    for (const struct end *end = share->ends; end; end = end->next)
        if (end->watch.fd >= 0 && !end->sent)
            return HORON_AGAIN;
    return HORON_OK;
}

/* The other end is closed when its process ends, or calls exec(). */
static void keep_open(struct end *end)
{
    struct horon_boot *boot = end->share->boot;
    if (!boot || end->local_rank < 0 || end->watch.fd < 0)
        return;
    assert(boot->local[end->local_rank].socket < 0);
    horon_pump_unwatch(end->share->pump, &end->watch);
    boot->local[end->local_rank].socket = end->watch.fd;
    end->watch.fd = -1;
}

void horon_share_destroy(struct horon_share *share)
{
    if (!share)
        return;
    horon_pump_untimer(share->pump, &share->timer);
    for (struct end *end = share->ends, *next; end; end = next) {
        next = end->next;
        keep_open(end);
        hang_up(end);
        horon_free(end);
    }
    close_fd(&share->own_pidfd);
    if (share->boot) {
        close_fd(&share->boot->control.fd);
        for (int i = 0; i < share->host_size; i++)
            close_fd(&share->boot->local[i].arena.fd);
    }
    horon_free(share);
}
