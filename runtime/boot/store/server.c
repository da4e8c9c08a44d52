/* SPDX-License-Identifier: Apache-2.0 */
/* An acceptor proves which rank connects; then each connection is one member of the core, or of a
 * selection's. */
#include "boot/store/server.h"

#include "alloc.h"
#include "boot/connect/acceptor.h"
#include "boot/connect/listen.h"
#include "boot/identity/identity.h"
#include "clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define GUEST_PATIENCE_NS 10000000000u
/* Lists of ranks in one launch; they are kept, for ranks may join again. So many may be in any, and
 * in a larger one as many as it has ranks: each two may be a job, and be parted anew once. */
#define SELECTIONS_LEAST 256

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
    horon_store_server_dismiss(second, &why);
    horon_error_set(&why, HORON_ERR_CONFIG, "rank %d came twice, before from %s", rank, first_from);
    horon_acceptor_note(server->acceptor, rank, true,
                        horon_address_host_text(&second->from, second_from), why.text);
}

static void slow_due(void *arg)
{
    const struct horon_store_server *server = arg;
    char missing[HORON_ERROR_TEXT_BYTES];
    if (horon_store_server_awaits(arg, missing, sizeof missing))
        HORON_LOG_WARN(server->options.self.log,
                       "still waiting for ranks to join, the last came %d s ago: %s",
                       (int)(server->options.slow_ns / 1000000000u), missing);
}

/* As long as ranks come it is of no use to say that others have not. */
static void watch_the_rest(struct horon_store_server *server)
{
    server->slow.due = slow_due;
    server->slow.arg = server;
    if (server->options.slow_ns)
        horon_pump_timer(server->options.self.pump, &server->slow,
                         horon_clock_ns() + server->options.slow_ns);
}

/* A server of one session after another cannot tell a second process of a rank from a rank that
 * joins once more; a server of one can, as long as that one lacks somebody. */
static void arrived(void *arg, const struct horon_proven *proven)
{
    struct horon_store_server *server = arg;
    const bool launcher = server->options.self.hello.rank < 0;
    const int rank = proven->theirs.rank;
    struct horon_store_server *selection = horon_store_server_select(server, &proven->theirs);
    struct horon_store_member *member;
    const struct horon_store_member *first =
        launcher ? NULL : horon_store_server_find(server, rank);
    if (!selection || horon_store_server_join(selection, rank, &member) != HORON_OK) {
        HORON_LOG_WARN(server->options.self.log,
                       "the store refused rank %d: no memory, or too many %s", rank,
                       selection ? "joins are unfinished" : "lists of ranks have been jobs");
        close(proven->fd);
        return;
    }
    HORON_LOG_DEBUG(server->options.self.log, "rank %d has come to the store", rank);
    member->from.bytes = sizeof member->from.local;
    if (getpeername(proven->fd, &member->from.any, &member->from.bytes) != 0)
        member->from.bytes = 0;
    if (horon_store_stream_open(&member->stream, proven, server->options.wrap, NULL) != HORON_OK)
        horon_store_server_leave(member);
    else if (first)
        refuse_second(server, member, first);
    watch_the_rest(selection);
    if (!launcher && server->full_sessions > 0)
        horon_acceptor_stop(server->acceptor); /* a rank that comes now wants the next server */
}

static horon_status_t check(const struct horon_store_server *server,
                            const struct horon_addresses *addresses, struct horon_error *error)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    if (server->size < 1 || server->size > HORON_BOOT_SIZE_MAX)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "a job of %d ranks cannot be served: 1..%d ranks can", server->size,
                               HORON_BOOT_SIZE_MAX);
    for (int i = 0; i < addresses->count && !server->options.self.key->given; i++)
        if (!horon_address_is_loopback(&addresses->items[i]))
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "without a job key the store serves loopback only, not %s",
                                   horon_address_host_text(&addresses->items[i], text));
    return HORON_OK;
}

static horon_status_t say_not_listening(const struct horon_address *address, int first, int last,
                                        struct horon_error *error)
{
    const int why = errno;
    char text[HORON_ADDRESS_TEXT_BYTES], ports[32] = "any port";
    if (first)
        snprintf(ports, sizeof ports, last > first ? "ports %d-%d" : "port %d", first, last);
    horon_error_set_errno(error, HORON_ERR_SYSTEM, why, "the store cannot listen at %s, %s",
                          horon_address_host_text(address, text), ports);
    errno = why;
    return HORON_ERR_SYSTEM;
}

struct horon_store_server *horon_store_server_create(
    const struct horon_store_server_options *options)
{
    struct horon_store_server *server =
        horon_zalloc(1, sizeof *server + options->self.hello.size * sizeof server->ranks[0]);
    if (!server)
        return NULL;
    server->options = *options;
    server->size = (int)options->self.hello.size;
    return server;
}

struct horon_store_server *horon_store_server_select(struct horon_store_server *server,
                                                     const struct horon_hello *hello)
{
    const int most = server->size > SELECTIONS_LEAST ? server->size : SELECTIONS_LEAST;
    struct horon_store_server_options options = server->options;
    struct horon_store_server *selection = server->selections;
    if (server->options.self.hello.rank >= 0 || hello->job == 0)
        return server;
    while (selection &&
           (selection->options.self.hello.job != hello->job || selection->size != (int)hello->size))
        selection = selection->next;
    if (selection || server->selection_count == most)
        return selection;
    options.self.hello.size = hello->size;
    options.self.hello.job = hello->job;
    options.host_of = NULL; /* it knows ranks by the launch's numbers */
    selection = horon_store_server_create(&options);
    if (!selection)
        return NULL;
    selection->launch = server;
    selection->next = server->selections;
    server->selections = selection;
    server->selection_count++;
    return selection;
}

horon_status_t horon_store_server_listen(struct horon_store_server *server,
                                         const struct horon_addresses *addresses, int first,
                                         int last, struct horon_error *error)
{
    const struct horon_self *self = &server->options.self;
    const struct horon_acceptor_options accepting = {.self = *self,
                                                     .patience_ns = GUEST_PATIENCE_NS,
                                                     .name = "the store",
                                                     .arrived = arrived,
                                                     .arg = server};
    struct horon_listeners listeners = {.noted = self->pump->fds, .named = server->options.named};
    horon_status_t status = check(server, addresses, error);
    if (status != HORON_OK)
        return status;
    server->wanted_port = first;
    server->port = horon_listeners_add(addresses, first, last, 0, &listeners);
    if (server->port < 0)
        return say_not_listening(&addresses->items[0], first, last, error);
    status = horon_acceptor_create(&accepting, &listeners, &server->acceptor, error);
    horon_listeners_close(&listeners, 0);
    return status;
}
