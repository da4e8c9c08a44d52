/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections around store/core.c: an acceptor proves which rank connects, then each connection is
 * one member of the core.
 */
#include "boot/store/server.h"

#include "alloc.h"
#include "boot/connect/acceptor.h"
#include "boot/connect/listen.h"
#include "boot/store/core.h"
#include "boot/store/stream.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GUEST_PATIENCE_NS 10000000000u

/* A rank that is connected. */
struct visitor {
    struct horon_store_server *server;
    struct visitor *next, *previous;
    struct horon_store_stream stream;
    struct horon_store_member *member;
    int rank;
    struct horon_address from;
    char host[HORON_ADDRESS_TEXT_BYTES]; /* once asked for */
};

struct horon_store_server {
    struct horon_acceptor *acceptor;
    struct horon_store_core *core;
    struct visitor *visitors;
    struct horon_store_server_options options; /* without its addresses */
    int port;
};

/* For texts: what the owner knows; of one that it does not know yet, where it came from. */
static const char *host_of(void *arg, int rank, void *user)
{
    const struct horon_store_server *server = arg;
    const struct horon_store_server_options *options = &server->options;
    const char *host = options->host_of ? options->host_of(options->host_arg, rank) : NULL;
    struct visitor *visitor = user;
    if (host || !visitor || visitor->from.bytes == 0)
        return host;
    if (horon_address_is_here(&visitor->from) &&
        gethostname(visitor->host, sizeof visitor->host - 1) == 0)
        return visitor->host;
    return horon_address_host_text(&visitor->from, visitor->host);
}

static void visitor_leave(struct visitor *visitor)
{
    struct horon_store_server *server = visitor->server;
    assert(visitor->previous ? visitor->previous->next == visitor : server->visitors == visitor);
    *(visitor->previous ? &visitor->previous->next : &server->visitors) = visitor->next;
    if (visitor->next)
        visitor->next->previous = visitor->previous;
    horon_store_stream_close(&visitor->stream);
    horon_store_core_leave(visitor->member);
    horon_free(visitor);
}

static horon_status_t visitor_take(void *arg, uint8_t type, struct horon_reader *body)
{
    return horon_store_core_take(((struct visitor *)arg)->member, type, body);
}

static void visitor_ended(void *arg, horon_status_t why)
{
    (void)why;
    visitor_leave(arg);
}

/* Two answers that a rank has not read are more than it waits for: what follows is not for it. */
static void send_to(void *user, struct horon_store_letter *letter)
{
    horon_store_stream_send(&((struct visitor *)user)->stream, letter);
}

/* Why others may not have come: they were refused, or they are at another store. */
static void explain(void *arg, char *text, size_t text_bytes)
{
    const struct horon_store_server *server = arg;
    horon_acceptor_explain(server->acceptor, text, text_bytes);
    const size_t used = strlen(text);
    if (server->options.port && server->port != server->options.port)
        snprintf(text + used, text_bytes - used,
                 "%sthe store is at port %d, as %d was taken: by another rank 0 of this job?",
                 used ? "; " : "", server->port, server->options.port);
}

/* A server of one session after another cannot tell a second process of a rank from a rank that
 * joins once more; a server of one can, as long as that one lacks somebody.
 * @return the visitor that is @p rank, if no other process can be; else NULL */
static const struct visitor *find_first(const struct horon_store_server *server, int rank)
{
    const struct visitor *visitor = server->options.launcher ? NULL : server->visitors;
    while (visitor && visitor->rank != rank)
        visitor = visitor->next;
    return visitor;
}

static void refuse_second(struct visitor *second, const struct visitor *first)
{
    char first_from[HORON_ADDRESS_TEXT_BYTES], second_from[HORON_ADDRESS_TEXT_BYTES];
    struct horon_error why;
    const int rank = second->rank;
    assert(first != second && first->rank == rank);
    horon_address_text(&first->from, first_from);
    horon_address_text(&second->from, second_from);
    horon_error_set(&why, HORON_ERR_CONFIG,
                    "rank %d came twice, from %s and from %s: each process needs a rank of its own",
                    rank, first_from, second_from);
    horon_store_core_dismiss(second->member, &why);
    horon_error_set(&why, HORON_ERR_CONFIG, "rank %d came twice, before from %s", rank, first_from);
    horon_acceptor_note(second->server->acceptor, rank, true,
                        horon_address_host_text(&second->from, second_from), why.text);
}

/* @return NULL: no memory, or too many sessions; the descriptor is still the caller's */
static struct visitor *visitor_create(struct horon_store_server *server,
                                      const struct horon_proven *proven)
{
    struct visitor *visitor = horon_zalloc(1, sizeof *visitor);
    if (!visitor)
        return NULL;
    visitor->server = server;
    visitor->rank = proven->theirs.rank;
    visitor->stream = (struct horon_store_stream){.pump = server->options.pump,
                                                  .take = visitor_take,
                                                  .ended = visitor_ended,
                                                  .arg = visitor,
                                                  .inbox.limit = HORON_STORE_PUT_BYTES +
                                                                 HORON_STORE_BLOB_BYTES_MAX};
    visitor->from.bytes = sizeof visitor->from.local;
    if (getpeername(proven->fd, &visitor->from.any, &visitor->from.bytes) != 0)
        visitor->from.bytes = 0;
    if (horon_store_core_join(server->core, visitor->rank, visitor, &visitor->member) != HORON_OK) {
        horon_free(visitor);
        return NULL;
    }
    visitor->next = server->visitors;
    assert(!visitor->next || !visitor->next->previous);
    if (visitor->next)
        visitor->next->previous = visitor;
    server->visitors = visitor;
    return visitor;
}

static void arrived(void *arg, const struct horon_proven *proven)
{
    struct horon_store_server *server = arg;
    const struct visitor *first = find_first(server, proven->theirs.rank);
    struct visitor *visitor = visitor_create(server, proven);
    if (!visitor) {
        HORON_LOG_WARN(server->options.log,
                       "the store refused rank %d: no memory, or too many joins are unfinished",
                       proven->theirs.rank);
        close(proven->fd);
        return;
    }
    HORON_LOG_DEBUG(server->options.log, "rank %d has come to the store", visitor->rank);
    if (horon_store_stream_open(&visitor->stream, proven, server->options.wrap, NULL) != HORON_OK)
        visitor_leave(visitor);
    else if (first)
        refuse_second(visitor, first);
    if (!server->options.launcher && horon_store_core_full_sessions(server->core) > 0)
        horon_acceptor_stop(server->acceptor); /* a rank that comes now wants the next server */
}

static void choose_addresses(const struct horon_store_server_options *options,
                             struct horon_addresses *addresses)
{
    addresses->count = 1;
    horon_address_parse("127.0.0.1", 0, &addresses->items[0]);
    if (options->everywhere)
        horon_listen_everywhere(addresses);
    else if (options->listen)
        *addresses = *options->listen;
}

static horon_status_t check_options(const struct horon_store_server_options *options,
                                    const struct horon_addresses *addresses,
                                    struct horon_error *error)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    if (options->size < 1 || options->size > HORON_BOOT_SIZE_MAX)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "a job of %d ranks cannot be served: 1..%d ranks can", options->size,
                               HORON_BOOT_SIZE_MAX);
    for (int i = 0; i < addresses->count && !options->key->given; i++)
        if (!horon_address_is_loopback(&addresses->items[i]))
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "without a job key the store serves loopback only, not %s",
                                   horon_address_host_text(&addresses->items[i], text));
    return HORON_OK;
}

static horon_status_t say_not_listening(const struct horon_store_server_options *options,
                                        const struct horon_address *address, int why,
                                        struct horon_error *error)
{
    char text[HORON_ADDRESS_TEXT_BYTES], ports[32] = "any port";
    if (options->port)
        snprintf(ports, sizeof ports, "port %d", options->port);
    if (options->port && options->port_last > options->port)
        snprintf(ports, sizeof ports, "ports %d-%d", options->port, options->port_last);
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, why, "the store cannot listen at %s, %s",
                                 horon_address_host_text(address, text), ports);
}

static horon_status_t start(struct horon_store_server *server,
                            const struct horon_store_server_options *options,
                            const struct horon_addresses *addresses, int *errno_out,
                            struct horon_error *error)
{
    int fds[HORON_ADDRESSES_MAX];
    const int last = options->port_last ? options->port_last : options->port;
    const int count =
        horon_listen_at(addresses, options->port, last, 0, options->pump->fds, fds, &server->port);
    assert(count <= HORON_ADDRESSES_MAX);
    if (count < 0) {
        const int why = errno;
        if (errno_out)
            *errno_out = why;
        return say_not_listening(options, &addresses->items[0], why, error);
    }
    struct horon_acceptor_options accepting = {.pump = options->pump,
                                               .key = options->key,
                                               .patience_ns = GUEST_PATIENCE_NS,
                                               .name = "the store",
                                               .log = server->options.log,
                                               .arrived = arrived,
                                               .arg = server};
    accepting.hello = (struct horon_hello){.protocol_min = HORON_PROTOCOL_MIN,
                                           .protocol_max = HORON_PROTOCOL_MAX,
                                           .role = HORON_ROLE_STORE,
                                           .rank = options->launcher ? -1 : 0,
                                           .job = options->job,
                                           .size = (uint32_t)options->size};
    horon_status_t status =
        horon_random(accepting.hello.member, sizeof accepting.hello.member, error);
    if (status == HORON_OK)
        status = horon_acceptor_create(&accepting, fds, count, &server->acceptor, error);
    for (int i = 0; i < count && status != HORON_OK; i++)
        close(fds[i]);
    return status;
}

horon_status_t horon_store_server_create(const struct horon_store_server_options *options,
                                         struct horon_store_server **server_out, int *errno_out,
                                         struct horon_error *error)
{
    struct horon_addresses addresses;
    choose_addresses(options, &addresses);
    horon_status_t status = check_options(options, &addresses, error);
    if (status != HORON_OK)
        return status;
    struct horon_store_server *server = horon_zalloc(1, sizeof *server);
    if (!server)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    server->options = *options;
    server->options.listen = NULL;
    const struct horon_store_core_options core = {.size = options->size,
                                                  .send = send_to,
                                                  .host_of = host_of,
                                                  .explain = explain,
                                                  .arg = server};
    server->core = horon_store_core_create(&core);
    if (server->core)
        status = start(server, options, &addresses, errno_out, error);
    else
        status = horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    if (status != HORON_OK) {
        horon_store_server_destroy(server);
        return status;
    }
    *server_out = server;
    return HORON_OK;
}

int horon_store_server_port(const struct horon_store_server *server)
{
    return server->port;
}

void horon_store_server_fail(struct horon_store_server *server, const struct horon_error *why)
{
    horon_store_core_fail(server->core, why);
}

void horon_store_server_ended(struct horon_store_server *server, int rank)
{
    horon_store_core_ended(server->core, rank);
}

bool horon_store_server_busy(const struct horon_store_server *server)
{
    for (const struct visitor *visitor = server->visitors; visitor; visitor = visitor->next)
        if (horon_store_stream_busy(&visitor->stream))
            return true;
    return false;
}

bool horon_store_server_has_news(const struct horon_store_server *server)
{
    return horon_store_core_has_news(server->core);
}

void horon_store_server_destroy(struct horon_store_server *server)
{
    if (!server)
        return;
    while (server->visitors) /* the failure of one says which connections the acceptor refused */
        visitor_leave(server->visitors);
    horon_acceptor_destroy(server->acceptor);
    horon_store_core_destroy(server->core);
    horon_free(server);
}
