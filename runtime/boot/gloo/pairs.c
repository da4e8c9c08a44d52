/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners, connections on their way, and those that have come, each in one state of a few. In
 * era 3 a connection says in its first 8 bytes which rank it is, and is a guest until then: it may
 * be a stranger that says nothing, and keeps nobody waiting. In era 1 it says nothing; what tells
 * ranks apart is the port, and a stranger at it can only be guessed from where it comes: so a port
 * is listened at to the end, and the rank's own host displaces another. In era 3 a rank may come
 * before anything is known of it.
 */
#include "boot/gloo/pairs.h"

#include "alloc.h"
#include "clock.h"
#include "link/gloo_frame.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

/* How long the others may take once one has closed that was connected and said nothing: it may have
 * left, and they are under way. And in era 1, how long it may take itself to come if that was a
 * stranger, once all have published: each of Gloo's ranks then connects with the next as soon as it
 * is connected with the one before. As long as a rank of horon's may be silent by default. */
#define PATIENCE_MS 10000
/* Guests there may be besides the ranks, which say at once which they are. */
#define STRANGERS_MAX 64

static bool by_port(const struct horon_gloo_pairs *pairs)
{
    return pairs->options->era == HORON_GLOO_ERA_1;
}

/* @return the place of @p rank among the others of this rank */
static int place_of(const struct horon_gloo_pairs *pairs, int rank)
{
    return rank > pairs->options->rank ? rank - 1 : rank;
}

static int rank_at(const struct horon_gloo_pairs *pairs, int place)
{
    return place >= pairs->options->rank ? place + 1 : place;
}

/* @return the listener that is there for @p rank */
static int listener_of(const struct horon_gloo_pairs *pairs, int rank)
{
    return by_port(pairs) ? place_of(pairs, rank) : 0;
}

static horon_status_t choose_address(const char *interfaces, struct horon_address *address,
                                     struct horon_error *error)
{
    struct horon_addresses all;
    if (!interfaces || !interfaces[0]) {
        horon_address_parse("127.0.0.1", 0, address);
        return HORON_OK;
    }
    const horon_status_t status = horon_addresses_of_machine(interfaces, false, &all, error);
    if (status != HORON_OK)
        return status;
    *address = all.items[0];
    for (int i = all.count - 1; i >= 0; i--)
        if (all.items[i].any.sa_family == AF_INET)
            *address = all.items[i]; /* what Gloo takes first */
    return HORON_OK;
}

static horon_status_t listen_all(struct horon_gloo_pairs *pairs, struct horon_error *error)
{
    struct horon_address address;
    horon_status_t status = choose_address(pairs->options->interfaces, &address, error);
    for (int i = 0; status == HORON_OK && i < pairs->listener_count; i++) {
        char text[HORON_ADDRESS_TEXT_BYTES];
        pairs->at[i] = address;
        horon_fds_hold(pairs->options->fds);
        pairs->listeners[i] =
            horon_fds_note(pairs->options->fds, horon_address_listen(&pairs->at[i]));
        if (pairs->listeners[i] < 0)
            status = horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                           "this rank cannot listen at %s for ranks of Gloo",
                                           horon_address_host_text(&address, text));
    }
    return status;
}

horon_status_t horon_gloo_pairs_init(struct horon_gloo_pairs *pairs,
                                     const struct horon_gloo_mesh_options *options,
                                     struct horon_error *error)
{
    const size_t size = (size_t)options->size;
    memset(pairs, 0, sizeof *pairs);
    pairs->options = options;
    pairs->listener_count = by_port(pairs) ? options->size - 1 : 1;
    pairs->guests_max = options->size + STRANGERS_MAX;
    const size_t listeners = (size_t)pairs->listener_count, guests = (size_t)pairs->guests_max;
    pairs->listeners = horon_zalloc(listeners, sizeof *pairs->listeners);
    pairs->at = horon_zalloc(listeners, sizeof *pairs->at);
    pairs->items = horon_zalloc(size, sizeof *pairs->items);
    pairs->guests = horon_zalloc(guests, sizeof *pairs->guests);
    pairs->polls = horon_zalloc(listeners + size + guests, sizeof *pairs->polls);
    for (size_t i = 0; pairs->listeners && i < listeners; i++)
        pairs->listeners[i] = -1;
    for (size_t i = 0; pairs->items && i < size; i++)
        pairs->items[i].fd = -1;
    if (!pairs->listeners || !pairs->at || !pairs->items || !pairs->guests || !pairs->polls)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to connect with %d ranks",
                               options->size - 1);
    pairs->items[options->rank].state = HORON_GLOO_PAIR_DONE;
    const horon_status_t status = horon_descriptors_need(pairs->listener_count + pairs->guests_max,
                                                         "connecting with ranks of Gloo", error);
    return status == HORON_OK ? listen_all(pairs, error) : status;
}

void horon_gloo_pairs_deinit(struct horon_gloo_pairs *pairs)
{
    for (int i = 0; pairs->listeners && i < pairs->listener_count; i++)
        horon_fd_close(&pairs->listeners[i]);
    for (int i = 0; pairs->items && i < pairs->options->size; i++)
        horon_fd_close(&pairs->items[i].fd);
    for (int i = 0; i < pairs->guest_count; i++)
        horon_fd_close(&pairs->guests[i].fd);
    horon_free(pairs->listeners);
    horon_free(pairs->at);
    horon_free(pairs->items);
    horon_free(pairs->guests);
    horon_free(pairs->polls);
}

/* @return the other side has closed it; what it sent stays there */
static bool is_closed(int fd)
{
    struct pollfd ended = {.fd = fd, .events = POLLRDHUP};
    return poll(&ended, 1, 0) > 0;
}

static void set_no_delay(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static horon_status_t lost(int rank, struct horon_error *error)
{
    horon_error_blame(error, HORON_CAUSE_DIED, rank, -1);
    return HORON_ERR_PEER_LOST;
}

bool horon_gloo_peer_is_elsewhere(const struct horon_gloo_peer *peer)
{
    char own[HORON_GLOO_HOST_BYTES] = "";
    if (!horon_address_is_loopback(&peer->address.at) && !horon_address_is_here(&peer->address.at))
        return true;
    gethostname(own, sizeof own - 1);
    return peer->host[0] && strcmp(peer->host, own) != 0;
}

/* It listens at its loopback, and what is at that port here is something else. It was tried all the
 * same, since two names may be of one machine. */
static horon_status_t out_of_reach(const struct horon_gloo_peer *peer, int rank,
                                   struct horon_error *error)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    horon_error_set(error, HORON_ERR_CONFIG,
                    "rank %d is on host %s and published %s, which only that host reaches: choose "
                    "its network there, with %s",
                    rank, peer->host, horon_address_text(&peer->address.at, text),
                    peer->address.of_horon ? "HORON_INTERFACES" : "GLOO_SOCKET_IFNAME");
    horon_error_blame(error, HORON_CAUSE_SETTING, rank, -1);
    return HORON_ERR_CONFIG;
}

static horon_status_t refused(const struct horon_gloo_meeting_pair *pair, int rank, int why,
                              struct horon_error *error)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    const bool loopback = horon_address_is_loopback(&pair->peer.address.at);
    if (loopback && horon_gloo_peer_is_elsewhere(&pair->peer))
        return out_of_reach(&pair->peer, rank, error);
    horon_address_text(&pair->peer.address.at, text);
    if (why == ECONNREFUSED)
        horon_error_set(
            error, HORON_ERR_PEER_LOST,
            "rank %d published %s, where nothing listens: its process has ended, or the "
            "store still has what an earlier job published (give each job a new store "
            "or prefix)%s",
            rank, text,
            loopback ? ", or it is on another host, where HORON_INTERFACES is to be set" : "");
    else
        horon_error_set_errno(error, HORON_ERR_PEER_LOST, why,
                              "rank %d published %s, which cannot be connected (choose the network "
                              "with HORON_INTERFACES here, GLOO_SOCKET_IFNAME there)",
                              rank, text);
    return lost(rank, error);
}

static horon_status_t connect_to(struct horon_gloo_pairs *pairs, int rank,
                                 struct horon_error *error)
{
    struct horon_gloo_meeting_pair *pair = &pairs->items[rank];
    const struct horon_address *to = &pair->peer.address.at;
    horon_fds_hold(pairs->options->fds);
    const int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    pair->fd = horon_fds_note(pairs->options->fds, socket(to->any.sa_family, kind, 0));
    if (pair->fd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no socket for rank %d", rank);
    set_no_delay(pair->fd);
    pair->state = HORON_GLOO_PAIR_CONNECTING;
    if (connect(pair->fd, &to->any, to->bytes) != 0 && errno != EINPROGRESS)
        return refused(pair, rank, errno, error);
    return HORON_OK;
}

static horon_status_t connected(struct horon_gloo_pairs *pairs, int rank, struct horon_error *error)
{
    struct horon_gloo_meeting_pair *pair = &pairs->items[rank];
    int why = 0;
    socklen_t bytes = sizeof why;
    getsockopt(pair->fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    if (why == 0 && horon_address_is_to_itself(pair->fd))
        why = ECONNREFUSED;
    if (why != 0)
        return refused(pair, rank, why, error);
    /* Gloo reads it in one piece; a new connection has room for it */
    const uint64_t sequence = htole64((uint64_t)pair->peer.sequence);
    if (!by_port(pairs) &&
        send(pair->fd, &sequence, sizeof sequence, MSG_NOSIGNAL) != (ssize_t)sizeof sequence)
        return refused(pair, rank, errno, error);
    pair->state = HORON_GLOO_PAIR_DONE;
    return HORON_OK;
}

static void refuse(struct horon_gloo_pairs *pairs, int *fd, const struct horon_address *from,
                   const char *why)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    if (pairs->refused++ == 0)
        HORON_LOG_WARN(pairs->options->log,
                       "refused a connection from %s, which should be a rank of Gloo: it %s",
                       horon_address_text(from, text), why);
    pairs->refused_last = *from;
    horon_fd_close(fd);
}

/* @return does the pair's connection come from the host that its rank published? */
static bool comes_from_there(const struct horon_gloo_meeting_pair *pair,
                             const struct horon_address *from)
{
    return horon_address_same_host(from, &pair->peer.address.at);
}

/* A rank says a first frame once it is connected with all others, as a horon, which greets then. It
 * may leave next. A stranger that closes has said none. In era 1 what has come counts from its
 * rank's host alone; what this rank has connected with is there. */
static bool has_spoken(const struct horon_gloo_pairs *pairs,
                       const struct horon_gloo_meeting_pair *pair)
{
    uint8_t head[HORON_GLOO_FRAME_BYTES];
    struct horon_gloo_frame frame;
    return recv(pair->fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)sizeof head &&
           horon_gloo_frame_decode(head, &frame) &&
           (!by_port(pairs) || !pair->came || comes_from_there(pair, &pair->from));
}

static bool may_come(const struct horon_gloo_meeting_pair *pair)
{
    return pair->state != HORON_GLOO_PAIR_CONNECTING &&
           (pair->state != HORON_GLOO_PAIR_DONE || pair->came);
}

/* A connection that was there has closed. In era 1 it may have been a stranger's. A rank that has
 * done all that it had to may have left; what it sent lies in the socket. */
static void closed(struct horon_gloo_pairs *pairs, int rank)
{
    struct horon_gloo_meeting_pair *pair = &pairs->items[rank];
    pair->left = has_spoken(pairs, pair);
    const bool perhaps = pair->came && by_port(pairs) && !pair->left;
    if (perhaps) {
        refuse(pairs, &pair->fd, &pair->from, "closed at once");
        pair->state = HORON_GLOO_PAIR_WAITING;
    }
    pair->closed = !perhaps || comes_from_there(pair, &pair->from);
    if (pair->closed && !pair->left && pairs->closed_ns == 0)
        pairs->closed_ns = horon_clock_ns();
}

/* A connection is that of @p rank, as far as can be told. */
static void arrived(struct horon_gloo_pairs *pairs, int rank, int *fd,
                    const struct horon_address *from)
{
    struct horon_gloo_meeting_pair *pair = &pairs->items[rank];
    if (rank == pairs->options->rank || !may_come(pair)) {
        refuse(pairs, fd, from, "came for a rank that this one connects to itself");
        return;
    }
    const bool known = pair->state != HORON_GLOO_PAIR_LOOKING;
    const bool better = pair->fd >= 0 && by_port(pairs) && known && comes_from_there(pair, from) &&
                        !comes_from_there(pair, &pair->from);
    if (pair->fd >= 0 && !better && (!is_closed(pair->fd) || has_spoken(pairs, pair))) {
        refuse(pairs, fd, from, "came for a rank that is there already");
        return;
    }
    if (pair->fd >= 0)
        refuse(pairs, &pair->fd, &pair->from, "was followed by a better one");
    set_no_delay(*fd);
    pair->fd = *fd;
    pair->closed = pair->left = false;
    pair->from = *from;
    pair->came = true;
    *fd = -1;
    if (pair->state != HORON_GLOO_PAIR_LOOKING)
        pair->state = HORON_GLOO_PAIR_DONE;
    if (by_port(pairs) && is_closed(pair->fd))
        closed(pairs, rank);
}

horon_status_t horon_gloo_pairs_found(struct horon_gloo_pairs *pairs, int rank,
                                      const struct horon_gloo_peer *peer, struct horon_error *error)
{
    char here[HORON_ADDRESS_TEXT_BYTES], there[HORON_ADDRESS_TEXT_BYTES];
    struct horon_gloo_meeting_pair *pair = &pairs->items[rank];
    const struct horon_address *own = &pairs->at[listener_of(pairs, rank)];
    const int order = horon_gloo_connects(own, &peer->address.at);
    assert(pair->state == HORON_GLOO_PAIR_LOOKING);
    pair->peer = *peer;
    if (order < 0) {
        pair->state = pair->fd >= 0 ? HORON_GLOO_PAIR_DONE : HORON_GLOO_PAIR_WAITING;
        return HORON_OK;
    }
    if (order > 0) {
        if (pair->fd >= 0)
            refuse(pairs, &pair->fd, &pair->from, "came for a rank that this one connects to");
        pair->came = false;
        return connect_to(pairs, rank, error);
    }
    horon_error_set(error, HORON_ERR_CONFIG,
                    "rank %d published %s, and this rank listens at %s: they must be of one family "
                    "and differ (choose with HORON_INTERFACES here, GLOO_SOCKET_IFNAME there)",
                    rank, horon_address_text(&peer->address.at, there),
                    horon_address_text(own, here));
    horon_error_blame(error, HORON_CAUSE_SETTING, rank, -1);
    return HORON_ERR_CONFIG;
}

static void drop_guest(struct horon_gloo_pairs *pairs, int i)
{
    assert(pairs->guests[i].fd == -1);
    pairs->guest_count--;
    memmove(&pairs->guests[i], &pairs->guests[i + 1],
            (size_t)(pairs->guest_count - i) * sizeof *pairs->guests);
}

static void receive_guest(struct horon_gloo_pairs *pairs, const struct horon_gloo_guest *guest)
{
    if (pairs->guest_count == pairs->guests_max) {
        struct horon_gloo_guest *oldest = &pairs->guests[0];
        refuse(pairs, &oldest->fd, &oldest->from, "has not said which it is");
        drop_guest(pairs, 0);
    }
    pairs->guests[pairs->guest_count++] = *guest;
}

/* Takes what the listener has; another that comes meanwhile is of the next turn. */
static void accept_some(struct horon_gloo_pairs *pairs, int listener)
{
    for (int i = 0; i < pairs->guests_max; i++) {
        struct horon_gloo_guest guest = {.poll_at = -1};
        guest.from.bytes = sizeof guest.from.local;
        horon_fds_hold(pairs->options->fds);
        const int flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
        guest.fd =
            horon_fds_note(pairs->options->fds, accept4(pairs->listeners[listener], &guest.from.any,
                                                        &guest.from.bytes, flags));
        if (guest.fd < 0)
            return;
        if (by_port(pairs))
            arrived(pairs, rank_at(pairs, listener), &guest.fd, &guest.from);
        else
            receive_guest(pairs, &guest);
    }
}

/* @return false: it is gone from the list */
static bool hear_guest(struct horon_gloo_pairs *pairs, int i)
{
    struct horon_gloo_guest *guest = &pairs->guests[i];
    uint64_t sequence;
    const ssize_t got =
        recv(guest->fd, guest->sequence + guest->got, sizeof guest->sequence - guest->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    guest->got += got > 0 ? (size_t)got : 0;
    if (got > 0 && guest->got < sizeof guest->sequence)
        return true;
    memcpy(&sequence, guest->sequence, sizeof sequence);
    sequence = le64toh(sequence);
    if (got <= 0)
        refuse(pairs, &guest->fd, &guest->from, "closed before it said which it is");
    else if (sequence >= (uint64_t)pairs->options->size)
        refuse(pairs, &guest->fd, &guest->from, "has a sequence number that no rank was given");
    else
        arrived(pairs, (int)sequence, &guest->fd, &guest->from);
    drop_guest(pairs, i);
    return false;
}

/* @return the first rank that has closed, not come again, and was not seen to have met all; -1:
 * none has */
static int first_closed(const struct horon_gloo_pairs *pairs)
{
    for (int i = 0; i < pairs->options->size; i++)
        if (pairs->items[i].closed && !pairs->items[i].left)
            return i;
    return -1;
}

/* @return may one that closed come again, and be waiting for others until then? */
static bool may_come_late(const struct horon_gloo_pairs *pairs)
{
    bool perhaps = false, all = true;
    for (int i = 0; i < pairs->options->size; i++) {
        const struct horon_gloo_meeting_pair *pair = &pairs->items[i];
        perhaps = perhaps || (pair->closed && pair->state == HORON_GLOO_PAIR_WAITING);
        all = all && pair->state != HORON_GLOO_PAIR_LOOKING;
    }
    return perhaps && !all;
}

/* It closed, and the others are not there: it has not left, but failed. */
static horon_status_t look_at_closed(struct horon_gloo_pairs *pairs, struct horon_error *error)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    const int64_t patience_ms = pairs->options->patience_ms;
    const uint64_t now_ns = horon_clock_ns();
    const int rank = first_closed(pairs);
    if (rank < 0)
        pairs->closed_ns = 0; /* or it came once more */
    if (rank < 0 || horon_gloo_pairs_done(pairs))
        return HORON_OK;
    if (may_come_late(pairs))
        pairs->closed_ns = now_ns;
    if (now_ns < horon_clock_deadline(pairs->closed_ns, patience_ms ? patience_ms : PATIENCE_MS))
        return HORON_OK;
    const struct horon_gloo_meeting_pair *pair = &pairs->items[rank];
    horon_error_set(error, HORON_ERR_PEER_LOST,
                    "rank %d closed the connection with %s before all ranks were connected: its "
                    "process has ended, or could not connect itself; look at what it says",
                    rank, horon_address_text(&pair->peer.address.at, text));
    return lost(rank, error);
}

static int add_poll(struct horon_gloo_pairs *pairs, int *count, int fd, short events)
{
    pairs->polls[*count] = (struct pollfd){.fd = fd, .events = events};
    return (*count)++;
}

/* @return how many there are */
static int fill_polls(struct horon_gloo_pairs *pairs)
{
    int count = 0;
    for (int i = 0; i < pairs->listener_count; i++) {
        /* in era 1 a connection is judged by what its rank published, which it did before */
        const bool soon =
            by_port(pairs) && pairs->items[rank_at(pairs, i)].state == HORON_GLOO_PAIR_LOOKING;
        add_poll(pairs, &count, pairs->listeners[i], soon ? 0 : POLLIN);
    }
    for (int i = 0; i < pairs->options->size; i++) {
        struct horon_gloo_meeting_pair *pair = &pairs->items[i];
        const bool done = pair->state == HORON_GLOO_PAIR_DONE;
        pair->poll_at = -1;
        if (pair->fd >= 0 && !pair->closed && (done || pair->state == HORON_GLOO_PAIR_CONNECTING))
            pair->poll_at = add_poll(pairs, &count, pair->fd, done ? POLLRDHUP : POLLOUT);
    }
    for (int i = 0; i < pairs->guest_count; i++)
        pairs->guests[i].poll_at = add_poll(pairs, &count, pairs->guests[i].fd, POLLIN);
    return count;
}

static bool is_ready(const struct horon_gloo_pairs *pairs, int poll_at)
{
    return poll_at >= 0 && pairs->polls[poll_at].revents != 0;
}

horon_status_t horon_gloo_pairs_turn(struct horon_gloo_pairs *pairs,
                                     const struct horon_gloo_wait *wait, int pause_ms,
                                     struct horon_error *error)
{
    const int count = fill_polls(pairs);
    horon_status_t status = horon_gloo_wait_for(wait, pairs->polls, (size_t)count, pause_ms, error);
    if (status == HORON_AGAIN)
        return look_at_closed(pairs, error);
    if (status != HORON_OK)
        return status;
    for (int i = 0; status == HORON_OK && i < pairs->options->size; i++) {
        if (!is_ready(pairs, pairs->items[i].poll_at))
            continue;
        if (pairs->items[i].state == HORON_GLOO_PAIR_DONE)
            closed(pairs, i);
        else
            status = connected(pairs, i, error);
    }
    for (int i = 0; i < pairs->guest_count;)
        i += !is_ready(pairs, pairs->guests[i].poll_at) || hear_guest(pairs, i);
    for (int i = 0; i < pairs->listener_count; i++)
        if (is_ready(pairs, i))
            accept_some(pairs, i);
    return status == HORON_OK ? look_at_closed(pairs, error) : status;
}

bool horon_gloo_pairs_done(const struct horon_gloo_pairs *pairs)
{
    for (int i = 0; i < pairs->options->size; i++)
        if (pairs->items[i].state != HORON_GLOO_PAIR_DONE)
            return false;
    return true;
}

void horon_gloo_pairs_take(struct horon_gloo_pairs *pairs, int *sockets_out)
{
    for (int i = 0; i < pairs->options->size; i++) {
        sockets_out[i] = pairs->items[i].fd;
        pairs->items[i].fd = -1;
    }
}
