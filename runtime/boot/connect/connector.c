/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt an address. An attempt is idle until its moment, then connects, then proves; where it
 * fails it is idle again for a while, or dead. The next address starts when the one before failed
 * or has kept silent for a moment, so a filtered address costs that moment and not a time limit.
 * The first attempt that is proven ends the others before they send a proof: the peer sees one
 * connection.
 */
#include "boot/connect/connector.h"

#include "alloc.h"
#include "boot/connect/listen.h"
#include "clock.h"
#include "fds.h"
#include "host/process.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define STAGGER_NS 25000000u /* silence of one address before the next is tried as well */
#define PAUSE_NS 1000000u    /* before an address is tried again: 1, 2, 4 ... */
#define PAUSE_DOUBLINGS 6    /* ... 64 ms */

static const char no_sign[] = "it answers, but gives no sign of being horon";

enum attempt_state { ATTEMPT_IDLE, ATTEMPT_CONNECTING, ATTEMPT_PROVING, ATTEMPT_DEAD };

/* How much is known of what is at an address. */
enum evidence {
    EVIDENCE_NONE,    /* nobody listens */
    EVIDENCE_SILENCE, /* no answer, a connection that broke */
    EVIDENCE_OTHER,   /* a process that is not of our job */
    EVIDENCE_REFUSAL  /* horon, with another key or in another job's ways */
};

struct attempt {
    struct horon_connector *connector;
    enum attempt_state state;
    struct horon_address address;
    bool wants_sign; /* one of several ports of this machine */
    struct horon_prover prover;
    struct horon_timer timer; /* while idle: to try; while proving: its silence is at an end */
    int tries;
    /* What the try that showed the most has shown, the last one of those. */
    enum evidence evidence;
    struct horon_error error;
};

struct horon_connector {
    struct horon_connector_options options;
    struct horon_timer patience; /* once somebody has refused, and that is a matter */
    int count, dead;
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
    attempt->connector->dead += to == ATTEMPT_DEAD;
}

static void keep_evidence(struct attempt *attempt, enum evidence evidence, horon_status_t status,
                          const char *what)
{
    if (evidence < attempt->evidence)
        return;
    attempt->evidence = evidence;
    horon_error_set(&attempt->error, status, "%s", what);
}

static void end_all(struct horon_connector *connector)
{
    for (int i = 0; i < connector->count; i++) {
        struct attempt *attempt = &connector->attempts[i];
        horon_prover_end(&attempt->prover);
        horon_pump_untimer(connector->options.self.pump, &attempt->timer);
        if (attempt->state != ATTEMPT_DEAD)
            move(attempt, ATTEMPT_DEAD);
    }
    horon_pump_untimer(connector->options.self.pump, &connector->patience);
}

/* The first address that was not tried yet need not wait longer. */
static void hurry_next(struct horon_connector *connector)
{
    for (int i = 0; i < connector->count; i++) {
        struct attempt *next = &connector->attempts[i];
        if (next->state == ATTEMPT_IDLE && next->tries == 0) {
            horon_pump_timer(connector->options.self.pump, &next->timer, horon_clock_ns());
            return;
        }
    }
}

/* Nothing is left to be tried: tells the owner, which may free the connector. Called last. */
static void fail(void *arg)
{
    struct horon_connector *connector = arg;
    const struct horon_connector_options *options = &connector->options;
    struct horon_error error;
    char text[HORON_ERROR_TEXT_BYTES - 64];
    horon_connector_describe(connector, text, sizeof text);
    horon_error_set(&error, horon_connector_verdict(connector, HORON_ERR_SYSTEM), "%s", text);
    end_all(connector);
    options->done(options->arg, error.status, NULL, &error);
}

/* One try ended badly. May free the connector. */
static void attempt_failed(struct attempt *attempt, enum evidence evidence, horon_status_t status,
                           const char *what)
{
    struct horon_connector *connector = attempt->connector;
    const struct horon_connector_options *options = &connector->options;
    const bool refused = evidence >= EVIDENCE_OTHER && !options->scan;
    const uint64_t now = horon_clock_ns();
    const int doublings = attempt->tries < PAUSE_DOUBLINGS ? attempt->tries : PAUSE_DOUBLINGS;
    keep_evidence(attempt, evidence, status, what);
    horon_prover_end(&attempt->prover);
    attempt->tries++;
    assert(!options->tries || attempt->tries <= options->tries);
    horon_pump_untimer(options->self.pump, &attempt->timer);
    if (refused || attempt->tries == options->tries) {
        move(attempt, ATTEMPT_DEAD);
    } else {
        move(attempt, ATTEMPT_IDLE);
        horon_pump_timer(options->self.pump, &attempt->timer,
                         now + ((uint64_t)PAUSE_NS << doublings));
    }
    if ((refused && options->patience_ns == 0) || connector->dead == connector->count) {
        fail(connector);
        return;
    }
    if (refused && options->patience_ns != UINT64_MAX && !connector->patience.active)
        horon_pump_timer(options->self.pump, &connector->patience, now + options->patience_ns);
    hurry_next(connector);
}

/* Carries the handshake on. May free the connector. */
static void prove(struct attempt *attempt)
{
    struct horon_error error = {0};
    const struct horon_connector_options *options = &attempt->connector->options;
    const struct horon_handshake *handshake = &attempt->prover.handshake;
    horon_status_t status = horon_prover_turn(&attempt->prover, &error);
    if (status == HORON_AGAIN && handshake->state != HORON_HANDSHAKE_READ_HEAD) {
        horon_pump_untimer(options->self.pump, &attempt->timer);
        keep_evidence(attempt, EVIDENCE_SILENCE, HORON_ERR_TIMEOUT,
                      "it does not go on with the handshake");
    } else if (status == HORON_OK) {
        struct horon_proven proven = horon_prover_take(&attempt->prover);
        end_all(attempt->connector);
        options->done(options->arg, HORON_OK, &proven, NULL);
        explicit_bzero(&proven, sizeof proven);
    } else if (status != HORON_AGAIN) {
        const bool broke = status == HORON_ERR_CLOSED || status == HORON_ERR_SYSTEM;
        const bool known =
            status == HORON_ERR_AUTH ||
            (handshake->state == HORON_HANDSHAKE_PROVEN && status != HORON_ERR_INVALID);
        attempt_failed(attempt,
                       broke   ? EVIDENCE_SILENCE
                       : known ? EVIDENCE_REFUSAL
                               : EVIDENCE_OTHER,
                       status, error.text);
    }
}

static void connected(struct attempt *attempt)
{
    struct horon_error error;
    const struct horon_connector_options *options = &attempt->connector->options;
    if (attempt->address.any.sa_family == AF_UNIX &&
        !horon_process_is_our_user(attempt->prover.watch.fd)) {
        attempt_failed(attempt, EVIDENCE_REFUSAL, HORON_ERR_AUTH, "another user's process answers");
    } else if (horon_prover_begin(&attempt->prover, HORON_SIDE_CONNECTOR, &error) != HORON_OK) {
        attempt_failed(attempt, EVIDENCE_SILENCE, error.status, error.text);
    } else {
        move(attempt, ATTEMPT_PROVING);
        if (options->silence_ns)
            horon_pump_timer(options->self.pump, &attempt->timer,
                             horon_clock_ns() + options->silence_ns);
        keep_evidence(attempt, EVIDENCE_SILENCE, HORON_ERR_CONFIG, no_sign);
        prove(attempt);
    }
}

static void no_connection(struct attempt *attempt, int why)
{
    struct horon_error error;
    if (why == ENETUNREACH && horon_address_is_loopback(&attempt->address))
        horon_error_set(&error, HORON_ERR_SYSTEM,
                        "no connection: this machine's loopback interface is down");
    else
        horon_error_set_errno(&error, HORON_ERR_SYSTEM, why, "no connection");
    attempt_failed(attempt, why == ECONNREFUSED ? EVIDENCE_NONE : EVIDENCE_SILENCE, error.status,
                   error.text);
}

/* Asked once more, connect() tells what has come of it. */
static void connect_to(struct attempt *attempt)
{
    struct horon_watch *watch = &attempt->prover.watch;
    const struct horon_address *to = &attempt->address;
    struct horon_error error;
    assert(attempt->state == ATTEMPT_CONNECTING);
    if (watch->fd >= 0 && connect(watch->fd, &to->any, to->bytes) == 0)
        connected(attempt);
    else if (watch->fd < 0 || (errno != EINPROGRESS && errno != EALREADY))
        no_connection(attempt, errno);
    else if (horon_pump_watch(attempt->prover.self->pump, watch, EPOLLOUT, &error) != HORON_OK)
        attempt_failed(attempt, EVIDENCE_SILENCE, error.status, error.text);
}

static void attempt_ready(void *arg, uint32_t events)
{
    struct attempt *attempt = arg;
    (void)events; /* whatever it is, the call that is due will tell */
    if (attempt->state == ATTEMPT_PROVING)
        prove(attempt);
    else
        connect_to(attempt);
}

static void attempt_due(void *arg)
{
    struct attempt *attempt = arg;
    struct horon_fds *fds = attempt->prover.self->pump->fds;
    const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    if (attempt->state == ATTEMPT_PROVING) {
        attempt_failed(attempt, EVIDENCE_OTHER, HORON_ERR_CONFIG, no_sign);
        return;
    }
    move(attempt, ATTEMPT_CONNECTING);
    if (attempt->wants_sign && !horon_port_has_sign(horon_address_port(&attempt->address), fds)) {
        attempt_failed(attempt, EVIDENCE_NONE, HORON_ERR_SYSTEM,
                       "no process of horon listens in this network namespace");
        return;
    }
    assert(attempt->prover.watch.fd < 0);
    horon_fds_hold(fds);
    attempt->prover.watch.fd = horon_fds_note(fds, socket(attempt->address.any.sa_family, type, 0));
    connect_to(attempt);
}

/* Another port of one address leads to the same machine. */
static bool find_whether_here(const struct horon_connector *connector, int which)
{
    const struct horon_address *address = &connector->attempts[which].address;
    for (int i = 0; i < which; i++)
        if (horon_address_same_host(&connector->attempts[i].address, address))
            return connector->attempts[i].wants_sign;
    return horon_address_is_here(address);
}

horon_status_t horon_connector_create(const struct horon_connector_options *options,
                                      struct horon_connector **connector_out,
                                      struct horon_error *error)
{
    const int count = options->addresses->count;
    const uint64_t now = horon_clock_ns();
    assert(count > 0);
    struct horon_connector *connector =
        horon_zalloc(1, sizeof *connector + (size_t)count * sizeof connector->attempts[0]);
    if (!connector)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to connect");
    connector->options = *options;
    connector->options.addresses = NULL;
    connector->patience = (struct horon_timer){.due = fail, .arg = connector};
    connector->count = count;
    for (int i = 0; i < count; i++) {
        struct attempt *attempt = &connector->attempts[i];
        attempt->connector = connector;
        attempt->address = options->addresses->items[i];
        attempt->wants_sign = options->scan && find_whether_here(connector, i);
        attempt->prover.self = &connector->options.self;
        attempt->prover.watch =
            (struct horon_watch){.ready = attempt_ready, .arg = attempt, .fd = -1};
        attempt->prover.expect_member = options->expect_member;
        attempt->timer = (struct horon_timer){.due = attempt_due, .arg = attempt};
        horon_pump_timer(options->self.pump, &attempt->timer,
                         now + (options->scan ? 0 : (uint64_t)i * STAGGER_NS));
        horon_error_set(&attempt->error, HORON_ERR_TIMEOUT, "not tried");
    }
    *connector_out = connector;
    return HORON_OK;
}

void horon_connector_destroy(struct horon_connector *connector)
{
    if (!connector)
        return;
    end_all(connector);
    horon_free(connector);
}

bool horon_connector_is_answered(const struct horon_connector *connector)
{
    for (int i = 0; i < connector->count; i++)
        if (connector->attempts[i].state == ATTEMPT_PROVING)
            return true;
    return false;
}

void horon_connector_describe(const struct horon_connector *connector, char *text,
                              size_t text_bytes)
{
    const int first_port = horon_address_port(&connector->attempts[0].address);
    bool left_out = false;
    text[0] = 0;
    for (int i = 0; i < connector->count; i++) {
        const struct attempt *attempt = &connector->attempts[i];
        const bool nothing = attempt->evidence == EVIDENCE_NONE;
        const bool waiting = nothing && attempt->state == ATTEMPT_CONNECTING;
        const bool tried = attempt->tries > 0;
        char address[HORON_ADDRESS_TEXT_BYTES];
        if (connector->options.scan && nothing && !waiting &&
            horon_address_port(&attempt->address) != first_port) {
            left_out = true;
            continue;
        }
        horon_address_text(&attempt->address, address);
        horon_text_add(text, text_bytes, "; ", "%s: %s%s", address,
                       waiting && !tried ? "no answer" : attempt->error.text,
                       waiting && tried ? ", and now no answer" : "");
    }
    if (left_out)
        horon_text_add(text, text_bytes, "; ", "nobody listens at the other ports");
}

/* Of a scan anything but a refusal is like no answer; else the first of the worst speaks for all.
 */
horon_status_t horon_connector_verdict(const struct horon_connector *connector,
                                       horon_status_t unless_refused)
{
    horon_status_t status = unless_refused;
    const enum evidence least = connector->options.scan ? EVIDENCE_REFUSAL : EVIDENCE_OTHER;
    for (int i = 0; i < connector->count; i++) {
        const struct attempt *attempt = &connector->attempts[i];
        const horon_status_t one = attempt->error.status;
        if (attempt->evidence >= least && (one == HORON_ERR_AUTH || one == HORON_ERR_CONFIG))
            return one;
        if (attempt->evidence >= least && status == unless_refused)
            status = one;
    }
    return status;
}
