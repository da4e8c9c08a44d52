/* SPDX-License-Identifier: Apache-2.0 */
/* An acceptor proves which rank connects; then each connection is one member of the core. */
#include "boot/store/server.h"

#include "alloc.h"
#include "boot/connect/acceptor.h"
#include "boot/connect/listen.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GUEST_PATIENCE_NS 10000000000u

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

static void refuse_second(struct horon_store_server *server, struct horon_store_member *second,
                          const struct horon_store_member *first)
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
    horon_store_core_dismiss(second, &why);
    horon_error_set(&why, HORON_ERR_CONFIG, "rank %d came twice, before from %s", rank, first_from);
    horon_acceptor_note(server->acceptor, rank, true,
                        horon_address_host_text(&second->from, second_from), why.text);
}

/* A server of one session after another cannot tell a second process of a rank from a rank that
 * joins once more; a server of one can, as long as that one lacks somebody. */
static void arrived(void *arg, const struct horon_proven *proven)
{
    struct horon_store_server *server = arg;
    const bool launcher = server->options.launcher;
    const int rank = proven->theirs.rank;
    struct horon_store_member *member;
    const struct horon_store_member *first =
        launcher ? NULL : horon_store_core_find(server->core, rank);
    if (horon_store_core_join(server->core, rank, &member) != HORON_OK) {
        HORON_LOG_WARN(server->options.log,
                       "the store refused rank %d: no memory, or too many joins are unfinished",
                       rank);
        close(proven->fd);
        return;
    }
    HORON_LOG_DEBUG(server->options.log, "rank %d has come to the store", rank);
    member->from.bytes = sizeof member->from.local;
    if (getpeername(proven->fd, &member->from.any, &member->from.bytes) != 0)
        member->from.bytes = 0;
    if (horon_store_stream_open(&member->stream, proven, server->options.wrap, NULL) != HORON_OK)
        horon_store_core_leave(member);
    else if (first)
        refuse_second(server, member, first);
    if (!launcher && horon_store_core_full_sessions(server->core) > 0)
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
                                                  .pump = options->pump,
                                                  .host_of = options->host_of,
                                                  .host_arg = options->host_arg,
                                                  .explain = explain,
                                                  .explain_arg = server};
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

void horon_store_server_destroy(struct horon_store_server *server)
{
    if (!server)
        return;
    horon_acceptor_destroy(server->acceptor);
    horon_store_core_destroy(server->core);
    horon_free(server);
}
