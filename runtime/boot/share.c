/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a host follows from their profiles. The lowest one, the leader, is a hub: it
 * has one proven unix socket to each other, the members. A member sends one note (its arena, its
 * doorbell and its pidfd) and receives one about each other rank of the host; the leader adds the
 * control segment to the one about itself. Memory is mapped when its note comes, and a member
 * closes its descriptor then: it never holds more than a few at a time.
 *
 * Each rank opens its own pidfd, which any kernel and any pid namespace allows. Nobody checks it: a
 * process that has proven the key and lies about itself could as well never answer.
 *
 * A rank that fails hangs up. The others see that, fail as well, and learn the reason in the next
 * round of the store. When all went well the sockets stay open, and tell of a rank that calls
 * exec(). Any two ranks of a host can connect later, too: all of them go on listening.
 */
#include "boot/share.h"

#include "alloc.h"
#include "clock.h"
#include "host/memory.h"
#include "host/note.h"
#include "host/process.h"

#include <assert.h>
#include <errno.h>
#include <sys/eventfd.h>

#define PAUSE_NS 1000000u /* when too many descriptors are on their way */

enum end_state {
    END_UNMET, /* there is no socket yet; between two members, and to oneself, never */
    END_TALKS,
    END_DONE, /* all has gone over it and come */
    END_HUNG_UP
};

/* The other end of a socket: a member, seen by the leader; or the leader. */
struct end {
    struct horon_share *share;
    int local_rank;
    enum end_state state;
    struct horon_watch watch; /* its fd is the boot's socket, while it talks and when it is done */
    int next_note;            /* to send: the leader's next one is about this local rank */
};

/* Until it is destroyed, the leader's boot keeps the descriptors of all memory open. */
struct horon_share {
    struct horon_share_options options;
    struct horon_boot *boot;
    const struct horon_topology *topology;
    int local_rank, host_size; /* ours */
    int awaited;               /* notes that have to come */
    struct horon_timer timer;
    struct horon_error error;
    struct end ends[]; /* [host_size] */
};

static bool leads(const struct horon_share *share)
{
    return share->local_rank == 0;
}

/* A member tells of itself, the leader of all but the one that it tells. */
static int note_count(const struct horon_share *share)
{
    return leads(share) ? share->host_size : 1;
}

static int rank_of(const struct end *end)
{
    return horon_topology_rank_here(end->share->topology, end->local_rank);
}

static void move(struct end *end, enum end_state to)
{
    static const unsigned legal[] = {
        [END_UNMET] = 1u << END_TALKS | 1u << END_HUNG_UP,
        [END_TALKS] = 1u << END_DONE | 1u << END_HUNG_UP,
        [END_DONE] = 1u << END_HUNG_UP,
        [END_HUNG_UP] = 1u << END_HUNG_UP}; /* it connects when the share has failed */
    const struct horon_share *share = end->share;
    assert(legal[end->state] & 1u << to);
    assert((to == END_HUNG_UP) == (share->error.status != HORON_OK));
    assert((to == END_HUNG_UP) == (end->watch.fd < 0));
    assert(to != END_DONE || (share->awaited == 0 && end->next_note == note_count(share)));
    assert(!end->watch.active);
    end->state = to;
}

static void hang_up(struct end *end)
{
    horon_pump_unwatch(end->share->options.pump, &end->watch);
    horon_fd_close(&end->share->boot->local[end->local_rank].socket);
    end->watch.fd = -1;
    move(end, END_HUNG_UP);
}

/* Memory was refused: says whose it is, and what its user can do. */
static void advise(const struct horon_topology *topology, struct horon_error *error)
{
    if (error->status == HORON_ERR_MEMORY)
        horon_text_add(error->text, sizeof error->text, "",
                       " (rank %d on %s; allow more memory, lower HORON_SHM_CHUNK_BYTES, or run "
                       "fewer ranks there)",
                       topology->rank, topology->host_name[topology->host_of[topology->rank]]);
}

static void share_failed(const struct end *at, const struct horon_error *why)
{
    struct horon_share *share = at->share;
    const struct horon_topology *topology = share->topology;
    if (share->error.status == HORON_OK) {
        horon_error_set(&share->error, why->status, "sharing memory with rank %d (%s) failed: %s",
                        rank_of(at), topology->host_name[topology->host_of[topology->rank]],
                        why->text);
        share->error.blame = why->blame;
        if (why->status == HORON_ERR_PEER_LOST || why->status == HORON_ERR_PROTO)
            share->error.blame.rank = rank_of(at);
        advise(topology, &share->error);
    }
    for (int i = 0; i < share->host_size; i++)
        hang_up(&share->ends[i]);
}

/* ---- Sending ---- */

/* Memory, doorbell and pidfd; with those of the leader also the control segment. */
static int fd_count_about(uint32_t local_rank)
{
    return local_rank ? 3 : 4;
}

static horon_status_t send_note(const struct end *to, int about, struct horon_error *error)
{
    const struct horon_share *share = to->share;
    const struct horon_local_peer *peer = &share->boot->local[about];
    const struct horon_note note = {
        .local_rank = (uint32_t)about,
        .bytes = share->options.arena_bytes,
        .fds = {peer->arena.fd, peer->doorbell, peer->pidfd, share->boot->control.fd},
        .fd_count = fd_count_about((uint32_t)about)};
    return horon_note_send(to->watch.fd, &note, error);
}

/* Sends what can be sent; on failure everything has been hung up. Once all has gone over a socket
 * it is not watched: one that hangs up then is no reason to hang up on the others, and the one that
 * watches it after joining sees it closed, and names the rank. */
static void flush(struct end *end)
{
    struct horon_share *share = end->share;
    struct horon_pump *pump = share->options.pump;
    struct horon_error error = {0};
    horon_status_t status = HORON_OK;
    assert(end->state == END_TALKS);
    assert(end->next_note >= 0 && end->next_note <= note_count(share));
    for (; end->next_note < note_count(share); end->next_note++) {
        const int about = leads(share) ? end->next_note : share->local_rank;
        if (about == end->local_rank)
            continue;
        if (share->boot->local[about].arena.fd < 0)
            break; /* when it comes, all ends are flushed again */
        status = send_note(end, about, &error);
        if (status != HORON_OK)
            break;
    }
    if (status == HORON_IN_PROGRESS)
        horon_pump_timer(pump, &share->timer, horon_clock_ns() + PAUSE_NS);
    if (share->awaited == 0 && end->next_note == note_count(share)) {
        horon_pump_unwatch(pump, &end->watch);
        move(end, END_DONE);
    } else if (status >= 0) /* what comes when all is here is not for this one, but for a team */
        status = horon_pump_watch(
            pump, &end->watch,
            (share->awaited > 0 ? EPOLLIN : 0) | (status == HORON_AGAIN ? EPOLLOUT : 0), &error);
    if (status < 0)
        share_failed(end, &error);
}

static void flush_all(void *arg)
{
    struct horon_share *share = arg;
    for (int i = 0; i < share->host_size; i++)
        if (share->ends[i].state == END_TALKS)
            flush(&share->ends[i]);
}

/* ---- Receiving ---- */

static bool is_in_turn(const struct end *end, const struct horon_note *note)
{
    const struct horon_share *share = end->share;
    const uint32_t about = note->local_rank;
    if (about >= (uint32_t)share->host_size || share->boot->local[about].doorbell >= 0)
        return false;
    if (leads(share) && about != (uint32_t)end->local_rank)
        return false;
    return note->team == 0 && note->fd_count == fd_count_about(about) &&
           note->bytes == share->options.arena_bytes;
}

/* Maps what a note brought, and takes of its descriptors what is kept. */
static horon_status_t take_note(struct end *end, struct horon_note *note, struct horon_error *error)
{
    struct horon_share *share = end->share;
    assert(share->awaited > 0); /* else it is not read */
    if (!is_in_turn(end, note))
        return horon_error_set(error, HORON_ERR_PROTO, "it sends a note out of turn");
    struct horon_local_peer *peer = &share->boot->local[note->local_rank];
    horon_status_t status =
        horon_memory_map(note->fds[0], share->options.arena_bytes, &peer->arena, error);
    if (status == HORON_OK && note->local_rank == 0)
        status = horon_memory_map(note->fds[3], share->options.control_bytes, &share->boot->control,
                                  error);
    if (status != HORON_OK)
        return status;
    peer->doorbell = note->fds[1];
    peer->pidfd = note->fds[2];
    note->fds[1] = note->fds[2] = -1;
    if (leads(share)) { /* which sends it on */
        peer->arena.fd = note->fds[0];
        note->fds[0] = -1;
    }
    share->awaited--;
    return HORON_OK;
}

static void end_ready(void *arg, uint32_t events)
{
    struct end *end = arg;
    struct horon_error error = {0};
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && end->share->awaited > 0) {
        struct horon_note note;
        status = horon_note_receive(end->watch.fd, &note, &error);
        if (status != HORON_OK)
            break;
        status = take_note(end, &note, &error);
        horon_note_close(&note);
    }
    if (status >= 0)
        flush_all(end->share);
    if (status >= 0 && end->state == END_TALKS && events & (EPOLLHUP | EPOLLERR))
        status = horon_error_set(&error, HORON_ERR_PEER_LOST, "it hung up");
    if (status < 0)
        share_failed(end, &error);
}

/* ---- Beginning and end ---- */

static horon_status_t make_memory(const struct horon_share *share, struct horon_error *error)
{
    const struct horon_share_options *options = &share->options;
    struct horon_memory_room room;
    const uint64_t arena = options->arena_bytes, control = options->control_bytes;
    horon_memory_look(&room, "");
    horon_status_t status =
        horon_memory_check(&room, arena * (uint64_t)share->host_size + control,
                           arena * (uint64_t)options->group_ranks + control, error);
    if (status == HORON_OK)
        status = horon_memory_make("horon-arena", options->arena_bytes,
                                   &share->boot->local[share->local_rank].arena, error);
    if (status == HORON_OK && leads(share))
        status = horon_memory_make("horon-control", options->control_bytes, &share->boot->control,
                                   error);
    if (status != HORON_OK)
        advise(share->topology, error);
    return status;
}

static horon_status_t make_descriptors(struct horon_share *share, struct horon_error *error)
{
    struct horon_local_peer *own = &share->boot->local[share->local_rank];
    own->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (own->doorbell < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no doorbell");
    if (share->host_size == 1)
        return HORON_OK;
    own->pidfd = horon_process_open_self();
    if (own->pidfd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no pidfd");
    return HORON_OK;
}

horon_status_t horon_share_create(const struct horon_share_options *options,
                                  struct horon_share **share_out, struct horon_error *error)
{
    struct horon_boot *boot = options->boot;
    const struct horon_topology *topology = &boot->topology;
    const int host_size = horon_topology_host_size(topology, topology->host_of[topology->rank]);
    struct horon_share *share =
        horon_zalloc(1, sizeof *share + (size_t)host_size * sizeof share->ends[0]);
    boot->local = horon_zalloc((size_t)host_size, sizeof *boot->local);
    if (!share || !boot->local) {
        horon_free(share);
        horon_free(boot->local);
        boot->local = NULL;
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    }
    share->options = *options;
    boot->local_count = host_size;
    share->boot = boot;
    share->topology = topology;
    share->local_rank = topology->local_rank_of[topology->rank];
    share->host_size = host_size;
    share->awaited = host_size - 1;
    share->timer = (struct horon_timer){.due = flush_all, .arg = share};
    for (int i = 0; i < host_size; i++) {
        boot->local[i] =
            (struct horon_local_peer){.pidfd = -1, .socket = -1, .doorbell = -1, .arena.fd = -1};
        share->ends[i] = (struct end){.share = share, .local_rank = i, .watch.fd = -1};
    }
    horon_status_t status = make_memory(share, error);
    if (status == HORON_OK)
        status = make_descriptors(share, error);
    if (status != HORON_OK) {
        horon_share_destroy(share);
        return status;
    }
    *share_out = share;
    return HORON_OK;
}

void horon_share_connected(struct horon_share *share, int rank)
{
    const int local_rank = share ? share->topology->local_rank_of[rank] : 0;
    if (!share || leads(share) == (local_rank == 0))
        return;
    struct end *end = &share->ends[local_rank];
    assert(horon_topology_is_here(share->topology, rank));
    if (share->error.status != HORON_OK) {
        hang_up(end);
        return;
    }
    end->watch = (struct horon_watch){
        .ready = end_ready, .arg = end, .fd = share->boot->local[local_rank].socket};
    move(end, END_TALKS);
    flush(end);
}

int horon_share_awaited(const struct horon_share *share)
{
    int i = 0;
    while (leads(share) && i < share->host_size - 1 && share->boot->local[i].doorbell >= 0)
        i++;
    return rank_of(&share->ends[i]);
}

horon_status_t horon_share_state(const struct horon_share *share, struct horon_error *error)
{
    if (share->error.status != HORON_OK) {
        *error = share->error;
        return error->status;
    }
    bool over = share->awaited == 0;
    assert(share->awaited >= 0 && share->awaited < share->host_size);
    for (int i = 0; i < share->host_size && over; i++)
        over = share->ends[i].state != END_TALKS;
    return over ? HORON_OK : HORON_AGAIN;
}

void horon_share_destroy(struct horon_share *share)
{
    if (!share)
        return;
    horon_pump_untimer(share->options.pump, &share->timer);
    for (int i = 0; i < share->host_size; i++) {
        horon_pump_unwatch(share->options.pump, &share->ends[i].watch);
        horon_fd_close(&share->boot->local[i].arena.fd);
    }
    horon_fd_close(&share->boot->local[share->local_rank].pidfd); /* ours was for the others */
    horon_fd_close(&share->boot->control.fd);
    horon_free(share);
}
