/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt an address. An attempt is idle until its moment, then connects, then proves; where it
 * fails it is idle again for a while, or dead. The next address starts when the one before failed
 * or has kept silent for a moment, so a filtered address costs that moment and not a time limit.
 * The first attempt that is proven is confirmed, which ends the others: the peer sees one
 * connection.
 */
#include "boot/dial.h"

#include "alloc.h"
#include "boot/fds.h"
#include "boot/prove.h"
#include "clock.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STAGGER_NS 25000000u /* silence of one address before the next is tried as well */
#define PAUSE_NS 1000000u    /* before an address is tried again: 1, 2, 4 ... */
#define PAUSE_DOUBLINGS 6    /* ... 64 ms */

enum attempt_state { ATTEMPT_IDLE, ATTEMPT_CONNECTING, ATTEMPT_PROVING, ATTEMPT_DEAD };

/* What a try has shown of who is at an address; the most telling one is kept. */
enum telling {
    TELLS_NOTHING, /* nobody listens */
    TELLS_SILENCE, /* no answer, a connection that broke */
    TELLS_OTHER,   /* somebody, but not of our job */
    TELLS_REFUSAL  /* horon, with another key or in another job's ways */
};

struct attempt {
    struct horon_dial *dial;
    enum attempt_state state;
    struct horon_address address;
    struct horon_watch watch; /* its fd is the socket, -1 if there is none */
    struct horon_auth auth;
    uint64_t start_ns; /* while idle: when to try; while proving: since when */
    int tries;
    struct horon_error error; /* of the last try */
    enum telling told;        /* by it */
    struct horon_error kept;  /* the most telling one of all */
    enum telling kept_told;
};

struct horon_dial {
    struct horon_dial_options options;
    uint8_t member[HORON_MEMBER_BYTES];
    struct horon_timer timer;
    uint64_t give_up_ns; /* 0: nobody has refused, or that is borne for ever */
    int count;
    struct attempt attempts[];
};

static void move(struct attempt *attempt, enum attempt_state to)
{
    static const unsigned legal[] = {[ATTEMPT_IDLE] = 1u << ATTEMPT_CONNECTING | 1u << ATTEMPT_DEAD,
                                     [ATTEMPT_CONNECTING] = 1u << ATTEMPT_PROVING |
                                                            1u << ATTEMPT_IDLE | 1u << ATTEMPT_DEAD,
                                     [ATTEMPT_PROVING] = 1u << ATTEMPT_IDLE | 1u << ATTEMPT_DEAD,
                                     [ATTEMPT_DEAD] = 0};
    assert(legal[attempt->state] & 1u << to);
    attempt->state = to;
}

static void close_attempt(struct attempt *attempt)
{
    horon_pump_unwatch(attempt->dial->options.pump, &attempt->watch);
    if (attempt->watch.fd >= 0)
        close(attempt->watch.fd);
    attempt->watch.fd = -1;
    horon_auth_deinit(&attempt->auth);
}

/* Ends everything and tells the owner, who may free the dial: the last thing a caller does. */
static void finish(struct horon_dial *dial, horon_status_t status,
                   const struct horon_proven *proven, const struct horon_error *error)
{
    const struct horon_error error_copy = error ? *error : (struct horon_error){0};
    for (int i = 0; i < dial->count; i++) {
        close_attempt(&dial->attempts[i]);
        if (dial->attempts[i].state != ATTEMPT_DEAD)
            move(&dial->attempts[i], ATTEMPT_DEAD);
    }
    horon_pump_untimer(dial->options.pump, &dial->timer);
    dial->options.done(dial->options.arg, status, proven, &error_copy);
}

/* @return when @p attempt is to be looked after if nothing comes from its peer */
static uint64_t due_at(const struct attempt *attempt)
{
    const uint64_t silence_ns = attempt->dial->options.silence_ns;
    if (attempt->state == ATTEMPT_IDLE)
        return attempt->start_ns;
    if (attempt->state == ATTEMPT_PROVING && attempt->auth.state == HORON_AUTH_READ_HEAD &&
        silence_ns)
        return attempt->start_ns + silence_ns;
    return UINT64_MAX;
}

/* Wakes at the earliest idle or silent attempt, or to give up. */
static void schedule(struct horon_dial *dial)
{
    uint64_t earliest = dial->give_up_ns ? dial->give_up_ns : UINT64_MAX;
    for (int i = 0; i < dial->count; i++)
        if (due_at(&dial->attempts[i]) < earliest)
            earliest = due_at(&dial->attempts[i]);
    if (earliest == UINT64_MAX)
        horon_pump_untimer(dial->options.pump, &dial->timer);
    else
        horon_pump_timer(dial->options.pump, &dial->timer, earliest);
}

/* The first address that was not tried yet need not wait longer. */
static void hurry_next(struct horon_dial *dial, uint64_t now_ns)
{
    for (int i = 0; i < dial->count; i++) {
        struct attempt *next = &dial->attempts[i];
        if (next->state == ATTEMPT_IDLE && next->tries == 0) {
            next->start_ns = now_ns < next->start_ns ? now_ns : next->start_ns;
            return;
        }
    }
}

static bool all_dead(const struct horon_dial *dial)
{
    for (int i = 0; i < dial->count; i++)
        if (dial->attempts[i].state != ATTEMPT_DEAD)
            return false;
    return true;
}

static bool is_refusal(horon_status_t status)
{
    return status == HORON_ERR_AUTH || status == HORON_ERR_PROTO || status == HORON_ERR_INVALID ||
           status == HORON_ERR_CONFIG;
}

static enum telling weigh(const struct attempt *attempt)
{
    return attempt->kept_told > attempt->told ? attempt->kept_told : attempt->told;
}

static const struct horon_error *most_telling(const struct attempt *attempt)
{
    return attempt->kept_told > attempt->told ? &attempt->kept : &attempt->error;
}

/* A refusal tells more than silence; the first of the worst speaks for all. */
static horon_status_t worst_status(const struct horon_dial *dial)
{
    horon_status_t status = HORON_ERR_SYSTEM;
    for (int i = 0; i < dial->count; i++) {
        horon_status_t one = most_telling(&dial->attempts[i])->status;
        if (one == HORON_ERR_AUTH || one == HORON_ERR_CONFIG)
            return one;
        if (is_refusal(one))
            status = HORON_ERR_PROTO;
    }
    return status;
}

/* Nothing is left to be tried. May free the dial. */
static void fail(struct horon_dial *dial, horon_status_t status)
{
    struct horon_error error;
    char text[HORON_ERROR_TEXT_BYTES - 64];
    horon_dial_describe(dial, text, sizeof text);
    horon_error_set(&error, status, "%s", text);
    finish(dial, status, NULL, &error);
}

/* One try ended badly; attempt->error says how. May free the dial. */
static void attempt_failed(struct attempt *attempt)
{
    struct horon_dial *dial = attempt->dial;
    const struct horon_dial_options *options = &dial->options;
    const bool refused = is_refusal(attempt->error.status) && !options->scan;
    const uint64_t now = horon_clock_ns();
    if (attempt->error.status == HORON_ERR_AUTH)
        attempt->told = TELLS_REFUSAL;
    else if (is_refusal(attempt->error.status) && attempt->told < TELLS_OTHER)
        attempt->told = TELLS_OTHER;
    if (attempt->told >= attempt->kept_told) {
        attempt->kept = attempt->error;
        attempt->kept_told = attempt->told;
    }
    int doublings = attempt->tries < PAUSE_DOUBLINGS ? attempt->tries : PAUSE_DOUBLINGS;
    close_attempt(attempt);
    attempt->tries++;
    attempt->start_ns = now + ((uint64_t)PAUSE_NS << doublings);
    assert(!options->tries || attempt->tries <= options->tries);
    move(attempt, refused || attempt->tries == options->tries ? ATTEMPT_DEAD : ATTEMPT_IDLE);
    if ((refused && options->one_server) || all_dead(dial)) {
        fail(dial, refused ? attempt->error.status : worst_status(dial));
        return;
    }
    if (refused && options->refused_patience_ns && !dial->give_up_ns)
        dial->give_up_ns = now + options->refused_patience_ns;
    hurry_next(dial, now);
    schedule(dial);
}

/* The peer has proven the key; is it the one we want? */
static horon_status_t check_theirs(struct attempt *attempt)
{
    const struct horon_dial *dial = attempt->dial;
    const struct horon_hello *theirs = &attempt->auth.theirs;
    horon_status_t status = horon_hello_check(&dial->options.hello, theirs, &attempt->error);
    if (status != HORON_OK && status != HORON_ERR_INVALID) /* which is another job's */
        attempt->told = TELLS_REFUSAL;
    if (status != HORON_OK)
        return status;
    const int want = dial->options.expect_rank;
    if (want != HORON_DIAL_ANYBODY && theirs->rank != want)
        return horon_error_set(&attempt->error, HORON_ERR_PROTO, "rank %d answers, not rank %d",
                               theirs->rank, want);
    if (dial->options.expect_member &&
        memcmp(dial->member, theirs->member, sizeof dial->member) != 0)
        return horon_error_set(&attempt->error, HORON_ERR_PROTO,
                               "another process answers as rank %d", theirs->rank);
    return HORON_OK;
}

static void attempt_proven(struct attempt *attempt)
{
    const int on = 1;
    struct horon_proven proven = horon_auth_take(&attempt->auth, attempt->watch.fd);
    horon_pump_unwatch(attempt->dial->options.pump, &attempt->watch);
    attempt->watch.fd = -1;
    if (attempt->address.any.sa_family != AF_UNIX)
        setsockopt(proven.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    finish(attempt->dial, HORON_OK, &proven, NULL);
    explicit_bzero(&proven, sizeof proven);
}

/* Carries the handshake on. May free the dial. */
static void prove(struct attempt *attempt)
{
    uint32_t events = 0;
    horon_status_t status =
        horon_prove_turn(attempt->watch.fd, &attempt->auth, &events, &attempt->error);
    if (status == HORON_OK && !attempt->auth.confirmed) {
        status = check_theirs(attempt);
        if (status == HORON_OK) {
            horon_auth_confirm(&attempt->auth);
            status = horon_prove_turn(attempt->watch.fd, &attempt->auth, &events, &attempt->error);
        }
    }
    if (status == HORON_AGAIN && attempt->auth.state != HORON_AUTH_READ_HEAD)
        horon_error_set(&attempt->error, HORON_ERR_TIMEOUT, "it does not go on with the handshake");
    if (status == HORON_AGAIN)
        status =
            horon_pump_watch(attempt->dial->options.pump, &attempt->watch, events, &attempt->error);
    else if (status == HORON_OK) {
        attempt_proven(attempt);
        return;
    }
    if (status < 0)
        attempt_failed(attempt);
}

static bool is_our_user(int fd, struct horon_error *error)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid())
        return true;
    horon_error_set(error, HORON_ERR_AUTH, "another user's process answers");
    return false;
}

static void connected(struct attempt *attempt)
{
    uint8_t random[HORON_AUTH_RANDOM_BYTES];
    const struct horon_dial_options *options = &attempt->dial->options;
    if ((options->same_user && !is_our_user(attempt->watch.fd, &attempt->error)) ||
        horon_random(random, sizeof random, &attempt->error) != HORON_OK) {
        attempt_failed(attempt);
        return;
    }
    move(attempt, ATTEMPT_PROVING);
    attempt->start_ns = horon_clock_ns();
    horon_auth_init(&attempt->auth, HORON_SIDE_CONNECTOR, options->key, &options->hello, random);
    explicit_bzero(random, sizeof random);
    horon_error_set(&attempt->error, HORON_ERR_CONFIG,
                    "it answers, but gives no sign of being horon");
    schedule(attempt->dial);
    prove(attempt);
}

static void no_connection(struct attempt *attempt, int why)
{
    attempt->told = why == ECONNREFUSED ? TELLS_NOTHING : TELLS_SILENCE;
    if (why == ENETUNREACH && horon_address_is_loopback(&attempt->address))
        horon_error_set(&attempt->error, HORON_ERR_SYSTEM,
                        "no connection: this machine's loopback interface is down");
    else
        horon_error_set_errno(&attempt->error, HORON_ERR_SYSTEM, why, "no connection");
    attempt_failed(attempt);
}

static void attempt_ready(void *arg, uint32_t events)
{
    struct attempt *attempt = arg;
    int why = 0;
    socklen_t bytes = sizeof why;
    (void)events; /* whatever it is, the call that is due will tell */
    if (attempt->state == ATTEMPT_PROVING) {
        prove(attempt);
        return;
    }
    getsockopt(attempt->watch.fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    if (why != 0) {
        no_connection(attempt, why);
        return;
    }
    connected(attempt);
}

static void start(struct attempt *attempt)
{
    struct horon_dial *dial = attempt->dial;
    struct horon_fds *fds = dial->options.pump->fds;
    assert(attempt->state == ATTEMPT_CONNECTING);
    assert(attempt->watch.fd < 0);
    const int family = attempt->address.any.sa_family;
    attempt->told = TELLS_SILENCE;
    horon_fds_hold(fds);
    attempt->watch.fd =
        horon_fds_note(fds, socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    horon_fds_release(fds);
    if (attempt->watch.fd >= 0 &&
        connect(attempt->watch.fd, &attempt->address.any, attempt->address.bytes) == 0) {
        connected(attempt);
        return;
    }
    if (attempt->watch.fd < 0 || errno != EINPROGRESS) {
        no_connection(attempt, errno);
        return;
    }
    horon_error_set(&attempt->error, HORON_ERR_TIMEOUT, "no answer");
    if (horon_pump_watch(dial->options.pump, &attempt->watch, EPOLLOUT, &attempt->error) !=
        HORON_OK)
        attempt_failed(attempt);
}

/* Looks after one attempt that is due; the timer comes back at once for another, since starting may
 * end the dial. */
static void timer_due(void *arg)
{
    struct horon_dial *dial = arg;
    uint64_t now = horon_clock_ns();
    struct attempt *due = NULL;
    if (dial->give_up_ns && dial->give_up_ns <= now) {
        fail(dial, worst_status(dial));
        return;
    }
    for (int i = dial->count - 1; i >= 0; i--)
        if (due_at(&dial->attempts[i]) <= now)
            due = &dial->attempts[i];
    if (due && due->state == ATTEMPT_PROVING) {
        attempt_failed(due);
        return;
    }
    if (due)
        move(due, ATTEMPT_CONNECTING);
    schedule(dial);
    if (due)
        start(due);
}

horon_status_t horon_dial_create(const struct horon_dial_options *options,
                                 struct horon_dial **dial_out, struct horon_error *error)
{
    const int count = options->addresses->count;
    const uint64_t now = horon_clock_ns();
    struct horon_dial *dial =
        horon_zalloc(1, sizeof *dial + (size_t)count * sizeof dial->attempts[0]);
    if (!dial)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to connect");
    dial->options = *options;
    dial->options.addresses = NULL;
    if (options->expect_member)
        memcpy(dial->member, options->expect_member, sizeof dial->member);
    dial->timer = (struct horon_timer){.due = timer_due, .arg = dial};
    dial->count = count;
    for (int i = 0; i < count; i++) {
        struct attempt *attempt = &dial->attempts[i];
        attempt->dial = dial;
        attempt->address = options->addresses->items[i];
        attempt->watch = (struct horon_watch){.ready = attempt_ready, .arg = attempt, .fd = -1};
        attempt->start_ns = now + (options->scan ? 0 : (uint64_t)i * STAGGER_NS);
        horon_error_set(&attempt->error, HORON_ERR_TIMEOUT, "not tried");
    }
    schedule(dial);
    *dial_out = dial;
    return HORON_OK;
}

void horon_dial_destroy(struct horon_dial *dial)
{
    if (!dial)
        return;
    for (int i = 0; i < dial->count; i++)
        close_attempt(&dial->attempts[i]);
    horon_pump_untimer(dial->options.pump, &dial->timer);
    horon_free(dial);
}

/* Of a scan the ports where nobody listens say nothing, but for the first. */
static bool is_left_out(const struct horon_dial *dial, const struct attempt *attempt, bool any)
{
    const int first_port = horon_address_port(&dial->attempts[0].address);
    return dial->options.scan && weigh(attempt) == TELLS_NOTHING &&
           (any || horon_address_port(&attempt->address) != first_port);
}

void horon_dial_describe(const struct horon_dial *dial, char *text, size_t text_bytes)
{
    size_t used = 0;
    bool any = false, left_out = false;
    text[0] = 0;
    for (int i = 0; i < dial->count; i++)
        any = any || weigh(&dial->attempts[i]) > TELLS_NOTHING;
    for (int i = 0; i < dial->count && used < text_bytes; i++) {
        const struct attempt *attempt = &dial->attempts[i];
        char address[HORON_ADDRESS_TEXT_BYTES];
        if (is_left_out(dial, attempt, any)) {
            left_out = true;
            continue;
        }
        horon_address_text(&attempt->address, address);
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s: %s", used ? "; " : "",
                                 address, most_telling(attempt)->text);
    }
    if (left_out && used < text_bytes)
        snprintf(text + used, text_bytes - used, "%s",
                 any ? "; nobody listens at the other ports" : "; nor at the ports after it");
}

horon_status_t horon_dial_verdict(const struct horon_dial *dial)
{
    for (int i = 0; i < dial->count; i++)
        if (weigh(&dial->attempts[i]) == TELLS_REFUSAL)
            return most_telling(&dial->attempts[i])->status;
    return HORON_ERR_TIMEOUT;
}
