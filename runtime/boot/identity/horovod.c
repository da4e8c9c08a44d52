/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key-value space of horovodrun: the HTTP server at which Horovod's own workers find each
 * other. Each request is a connection of its own; what is not there yet is answered 404, and asked
 * for again. horon's keys are in a scope of their own, one a job, and never leave it: so Horovod's
 * scopes, and when it clears them, stay as they are.
 *
 * The server authenticates nobody. What that means for the key is said in meeting.c.
 *
 * A connection that is refused, or breaks, and an answer that is no answer are tried again, as
 * often as Horovod's workers do: hundreds of ranks ask one small server at the same time. Silence
 * is waited out.
 *
 * Source: Horovod 0.28, horovod/runner/http/http_server.py and horovod/common/gloo/http_store.cc
 * (the requests and their order; no code).
 */
#include "boot/identity/space.h"

#include "clock.h"
#include "http.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRIES 4
#define RETRY_NS_MIN 50000000u /* before the next try; then twice as long each time */
#define PAUSE_NS_MIN 5000000u  /* before a key is asked for again; then twice as long each time */
#define PAUSE_NS_MAX 200000000u
#define ANSWER_BYTES (HORON_HTTP_HEAD_BYTES_MAX + HORON_SPACE_VALUE_BYTES)

/* One request, and what has come of its answer. */
struct exchange {
    const struct horon_space *space;
    int fd;
    char request[512 + HORON_SPACE_VALUE_BYTES], answer[ANSWER_BYTES];
    size_t request_bytes, answer_bytes;
    struct horon_http head;
};

static horon_status_t pause_for(const struct horon_space *space, uint64_t ns,
                                struct horon_error *error)
{
    const uint64_t until = horon_clock_ns() + ns;
    horon_status_t status = horon_space_may_wait(space, error);
    for (uint64_t now; status == HORON_OK && (now = horon_clock_ns()) < until;) {
        const uint64_t left = until - now;
        const struct timespec slice = {
            .tv_nsec = (long)(left < HORON_SPACE_SLICE_NS ? left : HORON_SPACE_SLICE_NS)};
        nanosleep(&slice, NULL);
        status = horon_space_may_wait(space, error);
    }
    return status;
}

/* ---- One exchange ---------------------------------------------------------------------------- */

static horon_status_t connect_to(struct exchange *x, const struct horon_address *address,
                                 struct horon_error *error)
{
    int why = 0;
    socklen_t bytes = sizeof why;
    x->fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (x->fd < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no socket can be made");
    if (connect(x->fd, &address->any, address->bytes) == 0)
        return HORON_OK;
    if (errno != EINPROGRESS)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "it cannot be reached");
    const horon_status_t status = horon_space_wait(x->space, x->fd, POLLOUT, error);
    if (status == HORON_OK && getsockopt(x->fd, SOL_SOCKET, SO_ERROR, &why, &bytes) == 0 && why)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, why, "it cannot be reached");
    return status;
}

static horon_status_t send_request(struct exchange *x, struct horon_error *error)
{
    for (size_t sent = 0; sent < x->request_bytes;) {
        const horon_status_t status = horon_space_wait(x->space, x->fd, POLLOUT, error);
        if (status != HORON_OK)
            return status;
        const ssize_t put =
            send(x->fd, x->request + sent, x->request_bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno != EAGAIN && errno != EINTR)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "it takes no request");
        sent += put > 0 ? (size_t)put : 0;
    }
    return HORON_OK;
}

/* @param ended the connection has
 * @return OK, the answer is whole | AGAIN | ERR_PROTO, it is none | ERR_SYSTEM, only a part came */
static horon_status_t look_at_answer(struct exchange *x, bool ended, struct horon_error *error)
{
    const struct horon_http *head = &x->head;
    const horon_status_t status = horon_http_look(x->answer, x->answer_bytes, &x->head);
    if (status == HORON_ERR_PROTO || (status == HORON_OK && !horon_http_code(head)))
        return horon_error_set(error, HORON_ERR_PROTO, "what it answers is not HTTP");
    if (status == HORON_OK && head->length >= HORON_SPACE_VALUE_BYTES)
        return horon_error_set(error, HORON_ERR_PROTO, "it answers with %zu bytes", head->length);
    if (status == HORON_OK && (head->has_length ? x->answer_bytes - head->head_bytes >= head->length
                                                : ended || horon_http_code(head) != 200))
        return HORON_OK;
    if (ended)
        return horon_error_set(error, HORON_ERR_SYSTEM, "it closed the connection before %s",
                               x->answer_bytes ? "its answer was whole" : "it answered");
    if (x->answer_bytes == sizeof x->answer)
        return horon_error_set(error, HORON_ERR_PROTO, "it answers without end");
    return HORON_AGAIN;
}

static horon_status_t read_answer(struct exchange *x, struct horon_error *error)
{
    horon_status_t status = HORON_AGAIN;
    x->answer_bytes = 0;
    while (status == HORON_AGAIN) {
        status = horon_space_wait(x->space, x->fd, POLLIN, error);
        if (status != HORON_OK)
            return status;
        const ssize_t got = recv(x->fd, x->answer + x->answer_bytes,
                                 sizeof x->answer - x->answer_bytes, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "its answer broke off");
        x->answer_bytes += got > 0 ? (size_t)got : 0;
        status = look_at_answer(x, got == 0, error);
    }
    return status;
}

/* @return OK, with the answer | ERR_SYSTEM, ERR_PROTO: may be tried again | ERR_TIMEOUT,
 *         ERR_CANCELLED */
static horon_status_t exchange_once(struct exchange *x, struct horon_error *error)
{
    const struct horon_addresses *addresses = &x->space->addresses;
    horon_status_t status = HORON_ERR_SYSTEM;
    for (int i = 0; i < addresses->count && status == HORON_ERR_SYSTEM; i++) {
        status = connect_to(x, &addresses->items[i], error);
        if (status == HORON_OK)
            break;
        if (x->fd >= 0)
            close(x->fd);
        x->fd = -1;
    }
    if (status == HORON_OK)
        status = send_request(x, error);
    if (status == HORON_OK)
        status = read_answer(x, error);
    if (x->fd >= 0)
        close(x->fd);
    const int code = status == HORON_OK ? horon_http_code(&x->head) : 0;
    if (status == HORON_OK && code != 200 && code != 404)
        return horon_error_set(error, HORON_ERR_SYSTEM, "it answers with the error %d", code);
    return status;
}

static horon_status_t exchange(struct exchange *x, struct horon_error *error)
{
    horon_status_t status = exchange_once(x, error);
    uint64_t ns = RETRY_NS_MIN;
    for (int i = 1; i < TRIES && (status == HORON_ERR_SYSTEM || status == HORON_ERR_PROTO); i++) {
        struct horon_error over;
        const horon_status_t paused = pause_for(x->space, ns, &over);
        ns *= 2;
        if (paused == HORON_ERR_CANCELLED)
            *error = over;
        if (paused != HORON_OK)
            return error->status;
        status = exchange_once(x, error);
    }
    return status;
}

/* Says of which server what went wrong is told. */
static horon_status_t blame(const struct horon_space *space, horon_status_t status,
                            struct horon_error *error)
{
    const struct horon_error why = *error;
    if (status == HORON_OK || status == HORON_AGAIN || status == HORON_ERR_CANCELLED)
        return status;
    return horon_error_set(
        error, status,
        "Horovod's rendezvous server at %s (HOROVOD_GLOO_RENDEZVOUS_ADDR and "
        "_PORT), where ranks learn where to meet: %s. Does horovodrun still run, "
        "and can it be reached from here? HORON_STORE=tcp://HOST:PORT with an "
        "address of rank 0 does without it",
        space->server, why.text);
}

/* ---- The calls ------------------------------------------------------------------------------- */

static void begin(struct exchange *x, const struct horon_space *space, const char *method,
                  const char *key, const char *value)
{
    char path[96];
    const size_t value_bytes = strlen(value);
    *x = (struct exchange){.space = space, .fd = -1};
    const int bytes = snprintf(path, sizeof path, "/horon.%016" PRIx64 "/%s", space->job, key);
    assert(bytes > 0 && (size_t)bytes < sizeof path);
    assert(value_bytes < HORON_SPACE_VALUE_BYTES);
    x->request_bytes = horon_http_write_request(x->request, sizeof x->request, method, path,
                                                space->server, value_bytes);
    assert(x->request_bytes > 0);
    assert(x->request_bytes + value_bytes <= sizeof x->request);
    memcpy(x->request + x->request_bytes, value, value_bytes);
    x->request_bytes += value_bytes;
}

static horon_status_t open_server(struct horon_space *space, struct horon_error *error)
{
    char host[HORON_ADDRESS_TEXT_BYTES];
    int port = 0;
    snprintf(space->name, sizeof space->name, "%s", space->server);
    horon_status_t status = HORON_ERR_CONFIG;
    if (horon_address_cut(space->server, strlen(space->server), host, &port))
        status = horon_addresses_resolve(host, port, &space->addresses, error);
    else
        horon_error_set(error, status, "this is no HOST:PORT");
    return blame(space, status, error);
}

static horon_status_t put(struct horon_space *space, const char *key, const char *value,
                          struct horon_error *error)
{
    struct exchange x;
    begin(&x, space, "PUT", key, value);
    horon_status_t status = exchange(&x, error);
    if (status == HORON_OK && horon_http_code(&x.head) != 200)
        status = horon_error_set(error, HORON_ERR_SYSTEM, "it does not take %s", key);
    explicit_bzero(&x, sizeof x);
    return blame(space, status, error);
}

static horon_status_t get(struct horon_space *space, int rank, const char *key,
                          char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    struct exchange x;
    (void)rank; /* all keys are in one scope */
    begin(&x, space, "GET", key, "");
    horon_status_t status = exchange(&x, error);
    const struct horon_http *head = &x.head;
    if (status == HORON_OK && horon_http_code(head) == 404)
        status = HORON_AGAIN;
    if (status == HORON_OK) {
        const char *body = x.answer + head->head_bytes;
        const size_t bytes = head->has_length ? head->length : x.answer_bytes - head->head_bytes;
        if (bytes >= HORON_SPACE_VALUE_BYTES || memchr(body, 0, bytes)) {
            status = horon_error_set(error, HORON_ERR_PROTO, "it has no text as %s", key);
        } else {
            memcpy(value, body, bytes);
            value[bytes] = 0;
        }
    }
    explicit_bzero(&x, sizeof x);
    return blame(space, status, error);
}

static horon_status_t await(struct horon_space *space, int rank, const char *key,
                            char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    for (uint64_t ns = PAUSE_NS_MIN;; ns = ns < PAUSE_NS_MAX / 2 ? 2 * ns : PAUSE_NS_MAX) {
        horon_status_t status = get(space, rank, key, value, error);
        if (status != HORON_AGAIN)
            return status;
        status = pause_for(space, ns, error);
        if (status == HORON_ERR_TIMEOUT)
            return horon_error_set(error, status,
                                   "rank %d has not said where to meet at Horovod's rendezvous "
                                   "server, %s: did it fail, or does it not create a context, or "
                                   "has it a HORON_STORE or MASTER_ADDR that this rank lacks?",
                                   rank, space->server);
        if (status != HORON_OK)
            return status;
    }
}

/* horovodrun minds exit statuses alone. */
static horon_status_t end_at_exit(const struct horon_space *space, struct horon_error *error)
{
    (void)space;
    (void)error;
    return HORON_OK;
}

static void close_server(struct horon_space *space)
{
    (void)space;
}

const struct horon_space_calls horon_space_horovod = {
    .name = "Horovod's rendezvous",
    .waits_for_one = true,
    .is_public = true,
    .tells_jobs_apart = true,
    .open = open_server,
    .put = put,
    .get = get,
    .await = await,
    .end_at_exit = end_at_exit,
    .close = close_server,
};
