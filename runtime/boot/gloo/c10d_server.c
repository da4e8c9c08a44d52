/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread, which polls its listeners and clients: what they say is answered from a table of keys
 * (c10d_wire.c). A client whose WAIT is not over is asked again whenever a key has changed. One
 * that says what the protocol forbids, or does not fetch its answers, is closed. It ends when its
 * rank has no more use for it, and those that are slow have none any more, either: they go, or, as
 * torch's, stay and are silent.
 */
#include "boot/gloo/c10d_server.h"

#include "alloc.h"
#include "boot/connect/listen.h"
#include "boot/gloo/c10d_wire.h"
#include "clock.h"
#include "thread.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CLIENTS_MAX 65536
#define LISTENERS_MAX (HORON_ADDRESSES_MAX + 1)
#define READ_BYTES 65536
#define QUEUED_MAX 4096 /* at a listener: no kernel queues more unless it is told to */
#define RETRY_MS 100    /* then connections are taken again, if there was no descriptor */
/* A rank of torch's that joins asks at once for what is there, and stays once it has joined. */
#define SILENT_MS 1000
#define PATIENCE_MS 3000
/* With a rank of horon's, which goes once it has joined, and may have been stopped until then. */
#define PATIENCE_OF_HORONS_MS 10000
/* What had connected by the time that it took no more may be a rank that is about to ask whose
 * server this is: one that is closed unheard gives up, if nobody serves there soon. */
#define UNHEARD_MS 100

/* How far its end is: all ranks have met, and are to leave soon, or it leaves at once. */
enum end { SERVE, MET, DRAIN, STOP };

struct client {
    int fd;
    enum horon_c10d_dialect dialect;
    bool waits; /* has a request that is not over */
    struct horon_c10d_buffer heard, answer;
};

struct horon_c10d_server {
    pthread_t thread;
    int told_fd;     /* `end` has changed */
    _Atomic int end; /* of enum end */
    bool of_horons;
    sem_t closed;                /* its listeners have been */
    uint64_t heard_ns, limit_ns; /* a client, last; of DRAIN */
    uint64_t closed_ns;
    struct horon_listeners listeners;
    const struct horon_log *log;
    struct horon_c10d_table *table;
    struct client *clients;
    struct pollfd *polls; /* told_fd, listeners, clients */
    int count, room;      /* of clients */
    int refused;
    bool pauses; /* no connection can be taken now, and one may stand there for ever */
    uint8_t bytes[READ_BYTES];
};

static_assert(sizeof((struct horon_listeners){0}.fds) == LISTENERS_MAX * sizeof(int),
              "there is a poll for each");

static void close_client(struct client *client)
{
    horon_fd_close(&client->fd);
    horon_c10d_buffer_deinit(&client->heard);
    horon_c10d_buffer_deinit(&client->answer);
}

static void refuse(struct horon_c10d_server *server, struct client *client)
{
    char text[HORON_ADDRESS_TEXT_BYTES];
    if (server->refused++ == 0)
        HORON_LOG_WARN(server->log,
                       "the TCPStore closes the connection of %s, which says what a client of "
                       "torch does not, or what is not served",
                       horon_address_end_text(client->fd, true, text));
    close_client(client);
}

/* Sends what can be sent now. @return false: it is gone */
static bool send_answers(struct client *client)
{
    while (client->answer.used > 0) {
        const ssize_t sent =
            send(client->fd, client->answer.bytes, client->answer.used, MSG_NOSIGNAL);
        if (sent < 0)
            return errno == EAGAIN || errno == EINTR;
        assert(sent > 0);
        horon_c10d_buffer_cut(&client->answer, (size_t)sent);
    }
    return true;
}

static void answer(struct horon_c10d_server *server, struct client *client)
{
    assert(client->fd >= 0);
    const horon_status_t status =
        horon_c10d_serve_all(server->table, &client->dialect, &client->heard, &client->answer);
    if (status != HORON_OK)
        refuse(server, client);
    else if (!send_answers(client))
        close_client(client);
    else
        client->waits = client->heard.used > 0;
}

static void hear(struct horon_c10d_server *server, struct client *client)
{
    assert(client->fd >= 0);
    const ssize_t got = recv(client->fd, server->bytes, sizeof server->bytes, 0);
    server->heard_ns = horon_clock_ns();
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        close_client(client);
    else if (!horon_c10d_buffer_add(&client->heard, server->bytes, (size_t)got))
        refuse(server, client);
    else
        answer(server, client);
}

/* @return false: no memory for more */
static bool make_room(struct horon_c10d_server *server)
{
    assert(server->count <= server->room);
    if (server->count < server->room)
        return true;
    const int room = server->room ? server->room * 2 : 64;
    if (room > CLIENTS_MAX)
        return false;
    struct client *clients = horon_realloc(server->clients, (size_t)room * sizeof *clients);
    server->clients = clients ? clients : server->clients;
    const size_t polls = 1 + LISTENERS_MAX + (size_t)room;
    struct pollfd *grown = horon_realloc(server->polls, polls * sizeof *grown);
    server->polls = grown ? grown : server->polls;
    if (clients && grown)
        server->room = room;
    return clients && grown;
}

/* @return was there one? */
static bool accept_one(struct horon_c10d_server *server, int listener)
{
    const int on = 1;
    struct horon_fds *fds = server->listeners.noted;
    horon_fds_hold(fds);
    int fd = horon_fds_note(fds, accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            server->pauses = true;
        return false;
    }
    if (!make_room(server)) {
        horon_fd_close(&fd);
        return true;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    assert(server->count < server->room);
    server->clients[server->count++] = (struct client){.fd = fd};
    return true;
}

/* Takes what has come by then, which the kernel would reset. */
static void end_listening(struct horon_c10d_server *server)
{
    if (server->listeners.count == 0)
        return;
    for (int i = 0; i < server->listeners.count; i++)
        for (int more = QUEUED_MAX; more > 0; more--)
            if (!accept_one(server, server->listeners.fds[i]))
                break;
    horon_listeners_close(&server->listeners, 0);
    server->closed_ns = horon_clock_ns();
    sem_post(&server->closed);
}

static int fill_polls(struct horon_c10d_server *server)
{
    int count = 0;
    assert(server->count <= server->room);
    server->polls[count++] = (struct pollfd){.fd = server->told_fd, .events = POLLIN};
    for (int i = 0; i < server->listeners.count; i++)
        server->polls[count++] =
            (struct pollfd){.fd = server->listeners.fds[i], .events = server->pauses ? 0 : POLLIN};
    for (int i = 0; i < server->count; i++) {
        const struct client *client = &server->clients[i];
        const short out = client->answer.used ? POLLOUT : 0;
        assert(client->fd >= 0); /* those that were closed were swept away */
        server->polls[count++] = (struct pollfd){client->fd, (short)(POLLIN | out), 0};
    }
    assert(count <= 1 + LISTENERS_MAX + server->room);
    return count;
}

/* Those that wait may find their keys now; what they say then may be what others wait for. */
static void wake(struct horon_c10d_server *server)
{
    uint64_t seen;
    do {
        seen = horon_c10d_table_changes(server->table);
        for (int i = 0; i < server->count; i++)
            if (server->clients[i].fd >= 0 && server->clients[i].waits) {
                assert(server->clients[i].heard.used > 0);
                answer(server, &server->clients[i]);
            }
    } while (seen != horon_c10d_table_changes(server->table));
}

static void sweep(struct horon_c10d_server *server)
{
    int kept = 0;
    for (int i = 0; i < server->count; i++)
        if (server->clients[i].fd >= 0)
            server->clients[kept++] = server->clients[i];
    server->count = kept;
}

/* Those that have said nothing are no ranks: all of these are known. */
static int count_ranks(const struct horon_c10d_server *server)
{
    int count = 0;
    for (int i = 0; i < server->count; i++)
        count += server->clients[i].dialect != HORON_C10D_UNHEARD;
    return count;
}

static int ms_until(uint64_t ns)
{
    const uint64_t now_ns = horon_clock_ns();
    return ns <= now_ns ? 0 : 1 + (int)((ns - now_ns) / 1000000);
}

/* @return milliseconds that it serves yet; -1: nothing ends it, 0: it ends */
static int time_left(const struct horon_c10d_server *server)
{
    const int end = atomic_load(&server->end);
    if (end < DRAIN)
        return -1;
    if (end == STOP || server->count == 0)
        return 0;
    if (count_ranks(server) == 0)
        return ms_until(horon_clock_deadline(server->closed_ns, UNHEARD_MS));
    const uint64_t silent_ns = horon_clock_deadline(server->heard_ns, SILENT_MS);
    return ms_until(!server->of_horons && silent_ns < server->limit_ns ? silent_ns
                                                                       : server->limit_ns);
}

static void *run(void *arg)
{
    struct horon_c10d_server *server = arg;
    for (;;) {
        const int end = atomic_load(&server->end);
        if (end >= DRAIN || (end == MET && server->of_horons))
            end_listening(server);
        else if (end == MET)
            horon_c10d_table_name(server->table, NULL);
        const int left_ms = time_left(server);
        if (left_ms == 0)
            return NULL;
        const int count = fill_polls(server), clients = server->count;
        const int first = 1 + server->listeners.count;
        const uint64_t before = horon_c10d_table_changes(server->table);
        if (poll(server->polls, (nfds_t)count, server->pauses ? RETRY_MS : left_ms) < 0)
            continue; /* EINTR cannot be, and no memory may be there again */
        server->pauses = false;
        uint64_t told;
        if (server->polls[0].revents && read(server->told_fd, &told, sizeof told) < 0)
            assert(errno == EAGAIN || errno == EINTR);
        for (int i = 0; i < clients; i++) {
            struct client *client = &server->clients[i];
            const short events = server->polls[first + i].revents;
            if (events & POLLOUT && !send_answers(client))
                close_client(client);
            else if (events & ~POLLOUT)
                hear(server, client);
        }
        for (int i = 1; i < first; i++)
            if (server->polls[i].revents)
                accept_one(server, server->listeners.fds[i - 1]);
        if (before != horon_c10d_table_changes(server->table))
            wake(server);
        sweep(server);
    }
}

static horon_status_t start_thread(struct horon_c10d_server *server, struct horon_error *error)
{
    const int why = horon_thread_start(&server->thread, run, server);
    return why == 0 ? HORON_OK
                    : horon_error_set_errno(error, HORON_ERR_SYSTEM, why,
                                            "no thread to serve a TCPStore with");
}

/* Its thread has ended, or never was. */
static void free_server(struct horon_c10d_server *server)
{
    for (int i = 0; i < server->count; i++)
        close_client(&server->clients[i]);
    horon_listeners_close(&server->listeners, 0);
    horon_fd_close(&server->told_fd);
    sem_destroy(&server->closed);
    horon_c10d_table_destroy(server->table);
    horon_free(server->clients);
    horon_free(server->polls);
    horon_free(server);
}

horon_status_t horon_c10d_server_start(const struct horon_addresses *at, int port, const char *job,
                                       struct horon_fds *fds, const struct horon_log *log,
                                       struct horon_c10d_server **server_out,
                                       struct horon_error *error)
{
    assert(at->count > 0);
    struct horon_c10d_server *server = horon_zalloc(1, sizeof *server);
    if (!server)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a TCPStore");
    server->log = log;
    sem_init(&server->closed, 0, 0);
    server->listeners.noted = fds;
    server->table = horon_c10d_table_create();
    horon_fds_hold(fds);
    server->told_fd = horon_fds_note(fds, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    horon_status_t status = HORON_OK;
    if (server->told_fd < 0)
        status = horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                       "no descriptor to serve a TCPStore with");
    else if (!server->table || !horon_c10d_table_name(server->table, job) || !make_room(server))
        status = horon_error_set(error, HORON_ERR_MEMORY, "no memory for a TCPStore");
    if (status == HORON_OK && horon_listeners_add(at, port, port, 0, &server->listeners) < 0)
        status = horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                       "this rank cannot serve a TCPStore at port %d of the "
                                       "address that it was given",
                                       port);
    if (status == HORON_OK)
        status = start_thread(server, error);
    if (status == HORON_OK)
        *server_out = server;
    else
        free_server(server);
    return status;
}

static void tell(struct horon_c10d_server *server, enum end end)
{
    const uint64_t one = 1;
    atomic_store(&server->end, end);
    while (write(server->told_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void horon_c10d_server_end_meeting(struct horon_c10d_server *server, bool of_horons)
{
    if (!server)
        return;
    server->of_horons = of_horons; /* read after `end` */
    tell(server, MET);
    while (of_horons && sem_wait(&server->closed) < 0) /* another server may be there next */
        assert(errno == EINTR);
}

void horon_c10d_server_stop(struct horon_c10d_server *server, bool patient)
{
    if (!server)
        return;
    server->limit_ns = /* read after `end` */
        horon_clock_deadline(horon_clock_ns(),
                             server->of_horons ? PATIENCE_OF_HORONS_MS : PATIENCE_MS);
    tell(server, patient ? DRAIN : STOP);
    pthread_join(server->thread, NULL);
    free_server(server);
}
