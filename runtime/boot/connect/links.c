/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Either of two ranks may connect, or both at once, and yet there is to be one connection. The rank
 * that was connected to answers the handshake with one byte: it keeps this connection. It hangs up
 * without a word if it wants none, because it leaves the job, say. No connection counts without
 * that byte, so neither side has one that the other knows nothing of.
 *
 * Where both have connected the higher rank's connection is kept: while that waits for the answer,
 * which the lower rank gives, the lower one's is not answered. It is what is left if the other one
 * breaks on its way. As long as the higher rank still connects, it keeps the lower one's at once.
 *
 * A connection counts when the handshake has shown the expected rank and member: the same address
 * on another machine, or another job's port, is only one more address that failed.
 */
#include "boot/connect/links.h"

#include "alloc.h"
#include "boot/connect/acceptor.h"
#include "boot/connect/connector.h"
#include "clock.h"
#include "fds.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_NS 60000000000u /* with a guest, as long as joining usually may take */
#define TRIES 12 /* of each address, over about a second, before it counts as refused */

enum call_state {
    CALL_CONNECTING,
    CALL_ASKING, /* connected: it waits for the other rank's word */
    CALL_OVER
};

/* What this rank does to reach another one. */
struct call {
    struct horon_links *links;
    struct call *next;
    int rank;
    enum call_state state;
    struct horon_connector *connector; /* while connecting */
    struct horon_proven proven;        /* from then on */
    struct horon_watch watch;
    struct horon_proven theirs; /* their connection, which waits for our word; fd -1: none */
    struct horon_timer timer;   /* when no system may have answered yet */
    int64_t silence_ms;
};

struct horon_links {
    struct horon_links_options options;
    struct horon_acceptor *acceptor;
    struct call *calls;
};

#define WORD_KEPT 'K' /* to a rank that connected */

static struct call *find_call(const struct horon_links *links, int rank)
{
    struct call *call = links->calls;
    while (call && call->rank != rank)
        call = call->next;
    return call;
}

static void move(struct call *call, enum call_state to)
{
    static const unsigned legal[] = {[CALL_CONNECTING] = 1u << CALL_ASKING | 1u << CALL_OVER,
                                     [CALL_ASKING] = 1u << CALL_OVER,
                                     [CALL_OVER] = 0};
    assert(legal[call->state] & 1u << to);
    assert(to == CALL_OVER || !call->connector);
    assert(to == CALL_OVER || call->watch.fd >= 0);
    call->state = to;
}

/* Closes what it has. NULL is a no-op. */
static void end_call(struct call *call)
{
    if (!call)
        return;
    struct horon_links *links = call->links;
    move(call, CALL_OVER);
    struct call **at = &links->calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    horon_connector_destroy(call->connector);
    horon_pump_unwatch(links->options.self.pump, &call->watch);
    horon_pump_untimer(links->options.self.pump, &call->timer);
    horon_fd_close(&call->watch.fd);
    horon_fd_close(&call->theirs.fd);
    explicit_bzero(call, sizeof *call); /* secrets */
    horon_free(call);
}

static void call_failed(struct call *call, horon_status_t status, const char *what)
{
    const struct horon_links_options *options = &call->links->options;
    const int rank = call->rank;
    struct horon_error why;
    horon_error_set(&why, status, "cannot connect to rank %d (%s), tried %s", rank,
                    options->profiles[rank].name, what);
    horon_error_blame_both(&why, why.blame.cause, options->self.hello.rank, rank);
    end_call(call);
    options->user.failed(options->user.arg, rank, &why);
}

/* @param kept  the descriptor of @p proven, which is one of the call's */
static void call_succeeded(struct call *call, struct horon_proven proven, int *kept)
{
    const struct horon_links_options *options = &call->links->options;
    const int rank = call->rank;
    assert(call->state == CALL_ASKING);
    assert(proven.fd == *kept);
    horon_pump_unwatch(options->self.pump, &call->watch);
    *kept = -1; /* the callee's */
    end_call(call);
    options->user.opened(options->user.arg, rank, &proven);
    explicit_bzero(&proven, sizeof proven);
}

/* ---- This rank connects ---- */

static bool say_kept(int fd)
{
    const char word = WORD_KEPT;
    return send(fd, &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Does the other rank still wait for our word on its connection? It says nothing before that. */
static bool waits(int fd)
{
    char none;
    return fd >= 0 && recv(fd, &none, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static void word_ready(void *arg, uint32_t events)
{
    struct call *call = arg;
    char word = 0;
    (void)events;
    HORON_ASSERT_OWNER(call->links->options.self.pump->owner);
    assert(call->state == CALL_ASKING);
    const ssize_t got = recv(call->watch.fd, &word, 1, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return;
    if (word == WORD_KEPT)
        call_succeeded(call, call->proven, &call->watch.fd);
    else if (waits(call->theirs.fd) && say_kept(call->theirs.fd))
        call_succeeded(call, call->theirs, &call->theirs.fd);
    else
        call_failed(call, HORON_ERR_PEER_LOST,
                    "a connection, which it closed: it is gone, or leaves the job");
}

static void set_limit(struct call *call)
{
    horon_pump_timer(call->links->options.self.pump, &call->timer,
                     horon_clock_deadline(horon_clock_ns(), call->silence_ms));
}

/* A process whose system has answered may be stopped, and go on later: it is waited for. */
static void limit_reached(void *arg)
{
    struct call *call = arg;
    char tried[HORON_ERROR_TEXT_BYTES - 128];
    HORON_ASSERT_OWNER(call->links->options.self.pump->owner);
    if (call->state != CALL_CONNECTING || horon_connector_is_answered(call->connector)) {
        set_limit(call);
        return;
    }
    horon_links_explain(call->links, call->rank, tried, sizeof tried);
    call_failed(call, HORON_ERR_TIMEOUT, tried);
}

static void connector_ended(void *arg, horon_status_t status, const struct horon_proven *proven,
                            const struct horon_error *error)
{
    struct call *call = arg;
    struct horon_error why;
    HORON_ASSERT_OWNER(call->links->options.self.pump->owner);
    horon_connector_destroy(call->connector);
    call->connector = NULL;
    if (status != HORON_OK) {
        call_failed(call, status, error->text);
        return;
    }
    call->proven = *proven;
    call->watch.fd = proven->fd;
    move(call, CALL_ASKING);
    if (horon_pump_watch(call->links->options.self.pump, &call->watch, EPOLLIN, &why) != HORON_OK)
        call_failed(call, why.status, why.text);
}

/* Loopback leads to the other rank only on its own machine, but there it is the best way. */
static void choose_addresses(const struct horon_links *links, int rank,
                             struct horon_addresses *chosen)
{
    const struct horon_profile *profiles = links->options.profiles, *other = &profiles[rank];
    const struct horon_profile *own = &profiles[links->options.self.hello.rank];
    const bool same_machine = own->machine && other->machine == own->machine;
    struct horon_addresses all = {0};
    chosen->count = 0;
    if (own->host && other->host == own->host)
        horon_address_abstract(other->socket, &chosen->items[chosen->count++]);
    else
        horon_addresses_read(other->addresses, &all);
    for (int loopback = 1; loopback >= 0; loopback--)
        for (int i = 0; i < all.count; i++)
            if (horon_address_is_loopback(&all.items[i]) == (loopback == 1) &&
                (!loopback || same_machine))
                chosen->items[chosen->count++] = all.items[i];
}

horon_status_t horon_links_open(struct horon_links *links, int rank, int64_t silence_ms,
                                struct horon_error *error)
{
    const struct horon_links_options *options = &links->options;
    HORON_ASSERT_OWNER(options->self.pump->owner);
    assert(rank >= 0);
    assert((uint32_t)rank < options->self.hello.size);
    assert(rank != options->self.hello.rank);
    struct horon_addresses addresses;
    struct call *call = find_call(links, rank);
    if (call) {
        call->silence_ms = silence_ms;
        set_limit(call);
        return HORON_OK;
    }
    choose_addresses(links, rank, &addresses);
    if (addresses.count == 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "rank %d (%s) has no address that rank %d (%s) could use%s", rank,
                               options->profiles[rank].name, options->self.hello.rank,
                               options->profiles[options->self.hello.rank].name,
                               options->self.key->given
                                   ? ": between hosts it needs one besides the loopback, see "
                                     "HORON_INTERFACES"
                                   : ": without a job key only loopback is used, see HORON_JOB_KEY "
                                     "and HORON_JOB_KEY_FILE");
    call = horon_zalloc(1, sizeof *call);
    if (!call)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to connect");
    *call = (struct call){.links = links,
                          .next = links->calls,
                          .rank = rank,
                          .watch = {.ready = word_ready, .arg = call, .fd = -1},
                          .theirs = {.fd = -1},
                          .timer = {.due = limit_reached, .arg = call},
                          .silence_ms = silence_ms};
    const struct horon_connector_options connecting = {.self = options->self,
                                                       .addresses = &addresses,
                                                       .expect_member =
                                                           options->profiles[rank].member,
                                                       .tries = TRIES,
                                                       .patience_ns = UINT64_MAX,
                                                       .done = connector_ended,
                                                       .arg = call};
    links->calls = call;
    horon_status_t status = horon_connector_create(&connecting, &call->connector, error);
    if (status != HORON_OK)
        end_call(call);
    else
        set_limit(call);
    return status;
}

bool horon_links_explain(const struct horon_links *links, int rank, char *text, size_t text_bytes)
{
    const struct call *call = find_call(links, rank);
    HORON_ASSERT_OWNER(links->options.self.pump->owner);
    text[0] = 0;
    if (call && call->state == CALL_CONNECTING)
        horon_connector_describe(call->connector, text, text_bytes);
    else if (call)
        snprintf(text, text_bytes, "a connection, which it has not confirmed");
    return call != NULL;
}

/* ---- Others connect ---- */

static void arrived(void *arg, const struct horon_proven *proven)
{
    struct horon_links *links = arg;
    const struct horon_links_options *options = &links->options;
    const int rank = proven->theirs.rank;
    HORON_ASSERT_OWNER(options->self.pump->owner);
    const bool known = rank >= 0 && rank != options->self.hello.rank &&
                       (uint32_t)rank < options->self.hello.size &&
                       memcmp(options->profiles[rank].member, proven->theirs.member,
                              sizeof proven->theirs.member) == 0;
    struct call *own = find_call(links, rank);
    const struct horon_links_user *user = &options->user;
    if (known && own && own->state == CALL_ASKING && options->self.hello.rank > rank) {
        horon_fd_close(&own->theirs.fd);
        own->theirs = *proven;
        return;
    }
    if (known && user->wanted && user->wanted(user->arg, rank) && say_kept(proven->fd)) {
        end_call(own);
        user->opened(user->arg, rank, proven);
        return;
    }
    HORON_LOG_DEBUG(options->self.log, "closed a connection of rank %d, which is not wanted", rank);
    close(proven->fd);
}

/* ---- Beginning and end ---- */

horon_status_t horon_links_create(const struct horon_links_options *options,
                                  struct horon_listeners *listeners, struct horon_links **links_out,
                                  struct horon_error *error)
{
    struct horon_links *links = horon_zalloc(1, sizeof *links);
    if (!links)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to connect");
    links->options = *options;
    const struct horon_acceptor_options accepting = {.self = options->self,
                                                     .patience_ns = PATIENCE_NS,
                                                     .name = "this rank",
                                                     .arrived = arrived,
                                                     .arg = links};
    horon_status_t status = horon_acceptor_create(&accepting, listeners, &links->acceptor, error);
    if (status == HORON_OK)
        *links_out = links;
    else
        horon_free(links);
    return status;
}

void horon_links_set_user(struct horon_links *links, const struct horon_links_user *user)
{
    assert(!links->calls);
    links->options.user = *user;
    horon_acceptor_pace(links->acceptor);
}

void horon_links_destroy(struct horon_links *links)
{
    if (!links)
        return;
    while (links->calls)
        end_call(links->calls);
    horon_acceptor_destroy(links->acceptor);
    horon_free(links);
}
