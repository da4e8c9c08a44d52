/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest is a connection that has not passed the handshake. Guests are few (guests_max) and
 * short-lived (patience_ns), whatever strangers do, and cost no more than the handshake's fixed
 * buffers. A quarter of the descriptors is for them; and as all ranks may come at once from one
 * host, each rank has a place besides, within another quarter. A rank proves itself within
 * milliseconds, so when there are too many, the oldest is a stranger, and leaves for the newest; a
 * stranger that fills the house from one address finds only half of what is not the ranks' open.
 * When the process is out of descriptors accepting pauses; the kernel's queue holds the rest.
 *
 * While operations run, a handshake costs them some 0.1 to 0.3 ms, spent before the guest has shown
 * anything. So guests come one an interval: each moves paid_ns on by an interval, and accepting
 * pauses while paid_ns lies ahead of the clock. After a quiet time a few may come at once, and one
 * that proves the key costs nothing. The others wait in the kernel's queue, which is short then, so
 * that a rank in it is soon let in.
 */
#include "boot/connect/acceptor.h"

#include "alloc.h"
#include "clock.h"
#include "fds.h"
#include "host/process.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAUSE_NS 10000000u     /* of accepting, when descriptors have run out */
#define SILENCE_NS 1000000000u /* then a guest as old as this makes room */
#define GUESTS_MAX 1024
#define GUESTS_MIN 8
#define DESCRIPTORS_A_GUEST 4 /* of all that the process may have, and again for ranks */
#define PACED_BACKLOG 256     /* half a second's guests */
#define SOURCE_BITS 64        /* a network of IPv6 is one source: nobody can count its addresses */
#define REFUSALS_MAX 16       /* that are told of, whatever strangers do */

struct guest {
    struct horon_acceptor *acceptor;
    struct guest *next;
    struct horon_prover prover;
    struct horon_address from;
    struct horon_timer leave;
};

struct listener {
    struct horon_acceptor *acceptor;
    struct horon_watch watch;
};

/* A process that is refused tries again many times a second: that is one incident. What it claims
 * without a proof is reported as a claim. */
struct refusal {
    char peer[112]; /* "rank 1 at 10.1.0.3", or "10.1.0.3 (which says that it is rank 1)" */
    char why[192];
    uint64_t times;
};

struct horon_acceptor {
    struct horon_acceptor_options options;
    struct guest *guests;       /* oldest first: that is the next to run out of time */
    int guests_max, source_max; /* in all, of one address */
    struct horon_timer resume;  /* while paused, for want of descriptors or by its pace */
    bool paced;
    uint64_t paid_ns; /* until then the guests that came are paid for */
    bool warned;      /* that they are wanting */
    int refusal_count;
    struct refusal refusals[REFUSALS_MAX + 1]; /* the last: all there is no room for */
    int sign;                                  /* of their port; -1: it has none */
    int listener_count;
    struct listener listeners[HORON_ADDRESSES_MAX + 1];
};

static void set_paused(struct horon_acceptor *acceptor, bool paused)
{
    for (int i = 0; i < acceptor->listener_count; i++) {
        struct horon_watch *watch = &acceptor->listeners[i].watch;
        if (paused)
            horon_pump_unwatch(acceptor->options.self.pump, watch);
        else
            horon_pump_watch(acceptor->options.self.pump, watch, EPOLLIN, NULL);
    }
}

static void pause_until(struct horon_acceptor *acceptor, uint64_t resume_ns)
{
    set_paused(acceptor, true);
    horon_pump_timer(acceptor->options.self.pump, &acceptor->resume, resume_ns);
}

static void resume_due(void *arg)
{
    set_paused(arg, false);
}

/* One more guest has come. */
static void pay(struct horon_acceptor *acceptor)
{
    const uint64_t now = horon_clock_ns();
    const uint64_t unused_ns = (uint64_t)HORON_ACCEPTOR_BURST * HORON_ACCEPTOR_INTERVAL_NS;
    if (acceptor->paid_ns + unused_ns < now)
        acceptor->paid_ns = now - unused_ns;
    acceptor->paid_ns += HORON_ACCEPTOR_INTERVAL_NS;
    assert(acceptor->paid_ns > now - unused_ns); /* nobody saves up more than a burst */
    if (acceptor->paced && acceptor->paid_ns > now && !acceptor->resume.active)
        pause_until(acceptor, acceptor->paid_ns);
}

/* Closes, unlinks and frees a guest. */
static void end_guest(struct guest *guest)
{
    struct horon_acceptor *acceptor = guest->acceptor;
    struct guest **at = &acceptor->guests;
    while (*at != guest) {
        assert(*at); /* it is one of them */
        at = &(*at)->next;
    }
    *at = guest->next;
    horon_pump_untimer(acceptor->options.self.pump, &guest->leave);
    horon_prover_end(&guest->prover);
    horon_free(guest);
}

/* "10.1.0.3": its port is another at each try; a process of this machine has but its number. */
static void name_peer(int fd, const struct horon_address *from, char text[HORON_ADDRESS_TEXT_BYTES])
{
    if (from->any.sa_family == AF_UNIX)
        horon_process_name(fd, text, HORON_ADDRESS_TEXT_BYTES);
    else
        horon_address_host_text(from, text);
}

void horon_acceptor_note(struct horon_acceptor *acceptor, int rank, bool proven, const char *from,
                         const char *why)
{
    struct refusal one = {.times = 1}, *at = acceptor->refusals;
    if (rank == HORON_ACCEPTOR_NOBODY)
        snprintf(one.peer, sizeof one.peer, "%s", from);
    else if (proven)
        snprintf(one.peer, sizeof one.peer, "rank %d at %s", rank, from);
    else
        snprintf(one.peer, sizeof one.peer, "%s (which says that it is rank %d)", from, rank);
    snprintf(one.why, sizeof one.why, "%s", why);
    while (at < acceptor->refusals + acceptor->refusal_count &&
           (strcmp(at->peer, one.peer) != 0 || strcmp(at->why, one.why) != 0))
        at++;
    if (at->times++)
        return;
    assert(at == acceptor->refusals + acceptor->refusal_count); /* the first that is free */
    *at = one;
    acceptor->refusal_count += acceptor->refusal_count < REFUSALS_MAX;
    assert(acceptor->refusal_count <= REFUSALS_MAX);
    HORON_LOG_WARN(acceptor->options.self.log, "%s refused %s: %s", acceptor->options.name,
                   one.peer, one.why);
}

void horon_acceptor_explain(const struct horon_acceptor *acceptor, char *text, size_t text_bytes)
{
    text[0] = 0;
    for (int i = 0; i < acceptor->refusal_count; i++) {
        const struct refusal *one = &acceptor->refusals[i];
        horon_text_add(text, text_bytes, "; ", "%s was refused", one->peer);
        if (one->times > 1)
            horon_text_add(text, text_bytes, "", " %" PRIu64 " times", one->times);
        horon_text_add(text, text_bytes, "", ": %s", one->why);
    }
}

/* One that hangs up before it has proven the key is no news. */
static void refuse(struct guest *guest, horon_status_t status, const char *why)
{
    const struct horon_handshake *handshake = &guest->prover.handshake;
    const int rank =
        handshake->theirs.protocol_max ? handshake->theirs.rank : HORON_ACCEPTOR_NOBODY;
    char from[HORON_ADDRESS_TEXT_BYTES];
    name_peer(guest->prover.watch.fd, &guest->from, from);
    if (status != HORON_ERR_CLOSED && status != HORON_ERR_SYSTEM)
        horon_acceptor_note(guest->acceptor, rank, handshake->state == HORON_HANDSHAKE_PROVEN, from,
                            why);
    end_guest(guest);
}

static void prove(void *arg, uint32_t events)
{
    struct guest *guest = arg;
    struct horon_acceptor *acceptor = guest->acceptor;
    const struct horon_acceptor_options options = acceptor->options;
    struct horon_error error = {0};
    (void)events;
    horon_status_t status = horon_prover_turn(&guest->prover, &error);
    if (status == HORON_AGAIN)
        return;
    if (status != HORON_OK) {
        refuse(guest, status, error.text);
        return;
    }
    assert(guest->prover.handshake.state == HORON_HANDSHAKE_PROVEN);
    struct horon_proven proven = horon_prover_take(&guest->prover);
    acceptor->paid_ns -= HORON_ACCEPTOR_INTERVAL_NS;
    end_guest(guest);
    options.arrived(options.arg, &proven);
    explicit_bzero(&proven, sizeof proven);
}

/* May this connection be a guest at all? */
static horon_status_t check_origin(const struct horon_acceptor *acceptor, int fd,
                                   const struct horon_address *from, struct horon_error *error)
{
    if (!acceptor->options.self.key->given && !horon_address_is_loopback(from))
        return horon_error_set(error, HORON_ERR_AUTH,
                               "without a job key only loopback is accepted");
    if (from->any.sa_family == AF_UNIX && !horon_process_is_our_user(fd))
        return horon_error_set(error, HORON_ERR_AUTH, "another user's process");
    return HORON_OK;
}

static void guest_late(void *arg)
{
    refuse(arg, HORON_ERR_TIMEOUT, "it did not prove the job key in time");
}

static void evict(struct guest *guest)
{
    refuse(guest, HORON_ERR_TIMEOUT, "it was silent, and others wanted its place");
}

/* Before one more comes. */
static void make_room(struct horon_acceptor *acceptor, const struct horon_address *from)
{
    struct guest *oldest_of_source = NULL;
    int all = 0, of_source = 0;
    for (struct guest *guest = acceptor->guests; guest; guest = guest->next) {
        all++;
        if (horon_address_agrees(&guest->from, from, SOURCE_BITS) && of_source++ == 0)
            oldest_of_source = guest;
    }
    assert(all <= acceptor->guests_max);
    if (of_source >= acceptor->source_max)
        evict(oldest_of_source);
    else if (all >= acceptor->guests_max)
        evict(acceptor->guests);
}

static horon_status_t admit(struct horon_acceptor *acceptor, int fd,
                            const struct horon_address *from, struct horon_error *error)
{
    const struct horon_acceptor_options *options = &acceptor->options;
    struct guest **at = &acceptor->guests;
    if (check_origin(acceptor, fd, from, error) != HORON_OK)
        return error->status;
    make_room(acceptor, from);
    struct guest *guest = horon_zalloc(1, sizeof *guest);
    if (!guest)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for another connection");
    *guest = (struct guest){.acceptor = acceptor, .from = *from};
    guest->prover.self = &options->self;
    guest->prover.watch = (struct horon_watch){.ready = prove, .arg = guest, .fd = fd};
    guest->leave = (struct horon_timer){.due = guest_late, .arg = guest};
    horon_status_t status = horon_prover_begin(&guest->prover, HORON_SIDE_ACCEPTOR, error);
    if (status != HORON_OK) {
        horon_free(guest);
        return status;
    }
    while (*at)
        at = &(*at)->next;
    *at = guest;
    horon_pump_timer(options->self.pump, &guest->leave, horon_clock_ns() + options->patience_ns);
    prove(guest, 0);
    return HORON_OK;
}

static void pause_for_want(struct horon_acceptor *acceptor, int why)
{
    const uint64_t now = horon_clock_ns();
    struct guest *oldest = acceptor->guests;
    if (oldest && oldest->leave.at_ns - acceptor->options.patience_ns + SILENCE_NS <= now)
        evict(oldest);
    pause_until(acceptor, now + PAUSE_NS);
    if (!acceptor->warned)
        HORON_LOG_WARN(acceptor->options.self.log,
                       "%s lets further connections wait: %s (see ulimit -n)",
                       acceptor->options.name, strerrordesc_np(why));
    acceptor->warned = true;
}

/* One connection a call: the pump comes back while there are more. */
static void listener_ready(void *arg, uint32_t events)
{
    struct listener *listener = arg;
    struct horon_acceptor *acceptor = listener->acceptor;
    struct horon_fds *fds = acceptor->options.self.pump->fds;
    struct horon_address from = {.bytes = sizeof from.local};
    struct horon_error error = {0};
    char text[HORON_ADDRESS_TEXT_BYTES];
    (void)events;
    horon_fds_hold(fds);
    int fd = accept4(listener->watch.fd, &from.any, &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    fd = horon_fds_note(fds, fd);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_for_want(acceptor, errno);
        return;
    }
    pay(acceptor);
    if (admit(acceptor, fd, &from, &error) == HORON_OK)
        return;
    name_peer(fd, &from, text);
    horon_acceptor_note(acceptor, HORON_ACCEPTOR_NOBODY, false, text, error.text);
    close(fd);
}

static void count_places(struct horon_acceptor *acceptor)
{
    struct rlimit limit;
    int places = GUESTS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur < (rlim_t)GUESTS_MAX * DESCRIPTORS_A_GUEST)
        places = (int)limit.rlim_cur / DESCRIPTORS_A_GUEST;
    places = places > GUESTS_MIN ? places : GUESTS_MIN;
    const uint32_t ranks = acceptor->options.self.hello.size;
    const int of_ranks = ranks < (uint32_t)places ? (int)ranks : places;
    acceptor->guests_max = of_ranks + places;
    acceptor->source_max = of_ranks + places / 2;
}

horon_status_t horon_acceptor_create(const struct horon_acceptor_options *options,
                                     struct horon_listeners *listeners,
                                     struct horon_acceptor **acceptor_out,
                                     struct horon_error *error)
{
    struct horon_acceptor *acceptor = horon_zalloc(1, sizeof *acceptor);
    if (!acceptor)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to listen");
    acceptor->options = *options;
    acceptor->resume = (struct horon_timer){.due = resume_due, .arg = acceptor};
    count_places(acceptor);
    for (int i = 0; i < listeners->count; i++) {
        struct listener *listener = &acceptor->listeners[i];
        listener->acceptor = acceptor;
        listener->watch =
            (struct horon_watch){.ready = listener_ready, .arg = listener, .fd = listeners->fds[i]};
        horon_status_t status =
            horon_pump_watch(options->self.pump, &listener->watch, EPOLLIN, error);
        if (status != HORON_OK) {
            set_paused(acceptor, true); /* unwatches those before */
            horon_free(acceptor);
            return status;
        }
        acceptor->listener_count++;
    }
    acceptor->sign = listeners->has_sign ? listeners->sign : -1;
    listeners->has_sign = false;
    listeners->count = 0;
    *acceptor_out = acceptor;
    return HORON_OK;
}

void horon_acceptor_pace(struct horon_acceptor *acceptor)
{
    acceptor->paced = true;
    acceptor->paid_ns = horon_clock_ns();
    for (int i = 0; i < acceptor->listener_count; i++)
        (void)listen(acceptor->listeners[i].watch.fd, PACED_BACKLOG);
}

void horon_acceptor_stop(struct horon_acceptor *acceptor)
{
    set_paused(acceptor, true);
    for (int i = 0; i < acceptor->listener_count; i++)
        close(acceptor->listeners[i].watch.fd);
    acceptor->listener_count = 0;
    horon_fd_close(&acceptor->sign);
    horon_pump_untimer(acceptor->options.self.pump, &acceptor->resume);
    while (acceptor->guests)
        end_guest(acceptor->guests);
}

void horon_acceptor_destroy(struct horon_acceptor *acceptor)
{
    if (!acceptor)
        return;
    uint64_t times = 0;
    for (int i = 0; i <= REFUSALS_MAX; i++)
        times += acceptor->refusals[i].times;
    if (acceptor->options.self.hello.rank < 0 && times > (uint64_t)acceptor->refusal_count)
        HORON_LOG_WARN(acceptor->options.self.log, "%s refused %" PRIu64 " connections in all",
                       acceptor->options.name, times);
    horon_acceptor_stop(acceptor);
    horon_free(acceptor);
}
