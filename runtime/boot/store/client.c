/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's side of the store; on rank 0 perhaps with the server inside, which turns with the same
 * pump: while this rank waits for anything, it serves the others.
 *
 * Which process serves is found out by trying to listen: horonrun listens before it starts a rank,
 * so rank 0 fails to take its port and becomes a client like the rest. Where the address came from
 * another launcher's variables (torchrun's MASTER_PORT belongs to torch's own store, as a rule),
 * rank 0 takes the first free port from there on, and the others ask at all of them at once: a
 * connector sends nothing until horon's hello was seen, so no stranger's server is disturbed.
 *
 * With file:DIR rank 0 always serves. The others look at the file again and again until they are
 * connected: what an earlier job has left gives way to what this job's rank 0 writes.
 */
#include "boot/store/store.h"

#include "alloc.h"
#include "boot/connect/connector.h"
#include "boot/store/file.h"
#include "boot/store/place.h"
#include "boot/store/server.h"
#include "boot/store/stream.h"
#include "clock.h"
#include "codec.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Of several addresses one has refused us; the others lead to other machines, or answer by then. */
#define REFUSED_PATIENCE_NS 1500000000u
#define LOOK_FIRST_NS 500000u  /* first pause between looks at a file; doubles ... */
#define LOOK_LAST_NS 32000000u /* ... up to this */
#define ANSWER_NS 1000000000u  /* for the server to say which ranks are missing */
#define WHERE_BYTES 150        /* of a long list of addresses as much as fits a text */

enum client_state {
    CLIENT_NEW,
    CLIENT_LOOKING,    /* at the file of file:DIR: it has no address to try */
    CLIENT_CONNECTING, /* has a connector; with file:DIR all but rank 0 look on */
    CLIENT_CONNECTED,  /* the stream has a link */
    CLIENT_FAILED      /* the error says why */
};

enum round_state {
    ROUND_IDLE,
    ROUND_ASKED,   /* this rank's blob was given */
    ROUND_ANSWERED /* all blobs are here, until they are got */
};

struct horon_store {
    struct horon_store_options options;
    enum client_state state;
    char where[WHERE_BYTES + 8];    /* the address, for texts */
    struct horon_store_place place; /* of file:DIR: of the addresses that were found there */
    int size;
    struct horon_store_server *server; /* on a rank 0 that serves */
    struct horon_store_file file;      /* of file:DIR; else closed */
    struct horon_timer look;           /* at it, until connected */
    uint64_t pause_ns;
    char found[HORON_STORE_FILE_BYTES_MAX]; /* the addresses that are tried, as they stood
                                               there */
    struct horon_connector *connector;      /* while connecting */
    bool taken; /* rank 0 could not serve: what listens there should be a launcher */
    bool launcher_serves;
    struct horon_store_stream stream; /* what is put before it has a link waits */
    uint32_t round;                   /* its number; one more once its answer is here */
    enum round_state round_state;
    struct horon_timer late;   /* while asked */
    uint64_t asked_ns;         /* when the server was asked which ranks are missing; 0: not yet */
    struct horon_blobs answer; /* while answered */
    bool whole;                /* error.text says it all */
    struct horon_error error;
};

static void move(struct horon_store *store, enum client_state to)
{
    static const unsigned legal[] = {
        [CLIENT_NEW] = 1u << CLIENT_LOOKING | 1u << CLIENT_CONNECTING | 1u << CLIENT_FAILED,
        [CLIENT_LOOKING] = 1u << CLIENT_CONNECTING | 1u << CLIENT_FAILED,
        [CLIENT_CONNECTING] = 1u << CLIENT_LOOKING | 1u << CLIENT_CONNECTED | 1u << CLIENT_FAILED,
        [CLIENT_CONNECTED] = 1u << CLIENT_FAILED,
        [CLIENT_FAILED] = 1u << CLIENT_FAILED}; /* abort() may come after a failure */
    assert(legal[store->state] & 1u << to);
    assert((to == CLIENT_CONNECTING) == (store->connector != NULL));
    assert((to == CLIENT_CONNECTED) == (store->stream.link != NULL));
    assert((to == CLIENT_FAILED) == (store->error.status != HORON_OK));
    store->state = to;
}

static void move_round(struct horon_store *store, enum round_state to)
{
    static const unsigned legal[] = {[ROUND_IDLE] = 1u << ROUND_ASKED,
                                     [ROUND_ASKED] = 1u << ROUND_ANSWERED,
                                     [ROUND_ANSWERED] = 1u << ROUND_IDLE};
    assert(legal[store->round_state] & 1u << to);
    assert((to == ROUND_ANSWERED) == (store->answer.memory != NULL));
    assert(to == ROUND_ASKED || !store->late.active);
    store->round_state = to;
}

/* With store->error. */
static void store_failed(struct horon_store *store)
{
    horon_pump_untimer(store->options.self.pump, &store->look);
    horon_pump_untimer(store->options.self.pump, &store->late);
    horon_connector_destroy(store->connector);
    store->connector = NULL;
    horon_store_stream_close(&store->stream);
    move(store, CLIENT_FAILED);
}

/* The connection ended. If rank 0 served, so did rank 0. */
static void say_server_is_gone(struct horon_store *store)
{
    const struct horon_store_options *options = &store->options;
    const char *host = options->host_of ? options->host_of(options->host_arg, 0) : NULL;
    char where[160] = "";
    if (store->launcher_serves) {
        horon_error_set(&store->error, HORON_ERR_PEER_LOST,
                        "the store at %s closed the connection while ranks were joining",
                        store->where);
        return;
    }
    if (host || store->file.writer[0])
        snprintf(where, sizeof where, host ? " on %s" : " (%s)", host ? host : store->file.writer);
    horon_error_set(&store->error, HORON_ERR_PEER_LOST,
                    "rank 0%s left while joining: it served the store at %s", where, store->where);
    horon_error_blame(&store->error, HORON_CAUSE_ABSENT, 0, -1);
}

static void stream_ended(void *arg, horon_status_t why)
{
    struct horon_store *store = arg;
    if (why == HORON_ERR_PEER_LOST)
        say_server_is_gone(store);
    else
        horon_error_set(&store->error, why, "what the store at %s sends cannot be taken",
                        store->where);
    store_failed(store);
}

static horon_status_t take_frame(void *arg, uint8_t type, struct horon_reader *body)
{
    struct horon_store *store = arg;
    if (type == HORON_STORE_FAIL &&
        horon_store_failure_read(body, store->size, &store->error, &store->whole)) {
        store_failed(store);
        return HORON_OK;
    }
    if (type != HORON_STORE_ALL || store->round_state != ROUND_ASKED ||
        horon_read_u32(body) != store->round || !horon_blobs_are_whole(*body, store->size))
        return HORON_ERR_PROTO;
    store->answer = (struct horon_blobs){horon_store_inbox_take(&store->stream.inbox), *body};
    horon_pump_untimer(store->options.self.pump, &store->late);
    move_round(store, ROUND_ANSWERED);
    store->round++;
    return HORON_OK;
}

/* What was not even tried, and what else may be the matter. */
static void add_more(const struct horon_store *store, struct horon_error *why)
{
    if (store->place.unusable[0])
        horon_text_add(why->text, sizeof why->text, "; ", "%s", store->place.unusable);
    if (store->taken)
        horon_text_add(why->text, sizeof why->text, "; ",
                       "rank 0 found the port taken when it wanted to serve the store: if another "
                       "program has it, choose another port");
}

/* The rank 0 that served at these addresses is gone, or serves at others now. */
static bool is_outdated(struct horon_store *store)
{
    char addresses[HORON_STORE_FILE_BYTES_MAX];
    return store->found[0] && (horon_store_file_read(&store->file, addresses, NULL) != HORON_OK ||
                               strcmp(addresses, store->found) != 0);
}

static void connector_ended(void *arg, horon_status_t status, const struct horon_proven *proven,
                            const struct horon_error *error)
{
    struct horon_store *store = arg;
    char text[HORON_ADDRESS_TEXT_BYTES];
    assert(store->state == CLIENT_CONNECTING);
    horon_connector_destroy(store->connector);
    store->connector = NULL;
    if (status != HORON_OK && is_outdated(store)) {
        store->found[0] = 0;
        move(store, CLIENT_LOOKING);
        return; /* the next look finds where it is now */
    }
    if (status != HORON_OK) {
        horon_error_set(&store->error, status, "the store at %s cannot be used: %s", store->where,
                        error->text);
        add_more(store, &store->error);
        store_failed(store);
        return;
    }
    horon_pump_untimer(store->options.self.pump, &store->look);
    store->launcher_serves = proven->theirs.rank < 0;
    HORON_LOG_DEBUG(store->options.self.log, "reached the store at %s, which %s serves",
                    horon_address_end_text(proven->fd, true, text),
                    store->launcher_serves ? "the launcher" : "rank 0");
    if (horon_store_stream_open(&store->stream, proven, store->options.wrap, &store->error) !=
        HORON_OK)
        store_failed(store);
    else
        move(store, CLIENT_CONNECTED);
}

/* @param letter NULL: there was no memory for it. @return false: it is not sent */
static bool send_letter(struct horon_store *store, struct horon_store_letter *letter)
{
    const bool sent = letter && horon_store_stream_send(&store->stream, letter);
    horon_store_letter_drop(letter);
    return sent;
}

static bool send_frame(struct horon_store *store, enum horon_store_frame type, const void *body,
                       size_t bytes)
{
    struct horon_writer out;
    struct horon_store_letter *letter = horon_store_letter_create(type, bytes, &out);
    if (letter)
        horon_write_bytes(&out, body, bytes);
    return send_letter(store, letter);
}

static void late_due(void *arg)
{
    struct horon_store *store = arg;
    send_frame(store, HORON_STORE_LATE, NULL, 0);
    store->asked_ns = horon_clock_ns();
}

horon_status_t horon_store_put(struct horon_store *store, enum horon_store_put put,
                               const void *blob, size_t bytes, uint64_t deadline_ns,
                               struct horon_error *error)
{
    struct horon_writer out;
    struct horon_store_letter *letter =
        horon_store_letter_create(HORON_STORE_PUT, HORON_STORE_PUT_BYTES - 1 + bytes, &out);
    assert(store->round_state == ROUND_IDLE);
    assert(bytes <= HORON_STORE_BLOB_BYTES_MAX);
    if (!letter)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a profile of %zu bytes",
                               bytes);
    horon_write_u8(&out, (uint8_t)put);
    horon_write_u32(&out, store->round);
    horon_write_bytes(&out, blob, bytes);
    assert(out.ok);
    send_letter(store, letter);
    move_round(store, ROUND_ASKED);
    store->asked_ns = 0;
    if (deadline_ns != UINT64_MAX && store->state != CLIENT_FAILED)
        horon_pump_timer(store->options.self.pump, &store->late, deadline_ns);
    return HORON_OK;
}

uint64_t horon_store_answer_due_ns(const struct horon_store *store)
{
    if (!store->asked_ns)
        return UINT64_MAX;
    const bool reached = store->stream.link || store->server;
    return store->asked_ns + (reached ? ANSWER_NS : 0);
}

horon_status_t horon_store_failed(const struct horon_store *store, bool *whole_out,
                                  struct horon_error *error)
{
    if (store->state != CLIENT_FAILED || store->round_state == ROUND_ANSWERED)
        return HORON_OK;
    *whole_out = store->whole;
    *error = store->error;
    return error->status;
}

bool horon_store_abort(struct horon_store *store, const struct horon_error *why)
{
    if (store->server) {
        horon_store_server_tell(store->server, -1, why);
        store->error = *why;
        store->whole = true;
        store_failed(store);
        return true;
    }
    send_letter(store, horon_store_failure_letter(why, true));
    return store->stream.link;
}

bool horon_store_get(struct horon_store *store, struct horon_blobs *blobs_out)
{
    if (store->round_state != ROUND_ANSWERED)
        return false;
    *blobs_out = store->answer;
    store->answer = (struct horon_blobs){0};
    move_round(store, ROUND_IDLE);
    horon_store_file_remove(&store->file); /* on rank 0: all have come */
    return true;
}

/* There is no rank 0 to connect to. */
static void explain_file(const struct horon_store *store, bool over, struct horon_error *why)
{
    const struct horon_store_file *file = &store->file;
    const char *absent = over ? "never came" : "has not come yet";
    if (file->left)
        horon_error_set(why, HORON_ERR_TIMEOUT,
                        "of %d ranks, rank 0 %s, or is gone: %s was left by %s, which has ended",
                        store->size, absent, file->path, file->writer);
    else
        horon_error_set(why, HORON_ERR_TIMEOUT, "of %d ranks, rank 0 %s: there is no %s",
                        store->size, absent, file->path);
    horon_error_blame(why, HORON_CAUSE_ABSENT, 0, -1);
}

void horon_store_explain(const struct horon_store *store, bool over, struct horon_error *why)
{
    char tried[HORON_ERROR_TEXT_BYTES / 2];
    if (store->state == CLIENT_LOOKING || (store->state == CLIENT_CONNECTING && store->file.left)) {
        explain_file(store, over, why);
    } else if (store->state != CLIENT_CONNECTING) {
        horon_error_set(why, HORON_ERR_TIMEOUT, "the store at %s does not answer", store->where);
    } else {
        horon_connector_describe(store->connector, tried, sizeof tried);
        horon_error_set(why, horon_connector_verdict(store->connector, HORON_ERR_TIMEOUT),
                        "the store at %s was not reached (%s", store->where, tried);
        add_more(store, why);
        horon_text_add(why->text, sizeof why->text, "", ")");
    }
}

bool horon_store_is_sought(const struct horon_store *store)
{
    return store->state == CLIENT_LOOKING || store->state == CLIENT_CONNECTING;
}

const struct horon_store_server *horon_store_served(const struct horon_store *store)
{
    return store ? store->server : NULL;
}

void horon_store_destroy(struct horon_store *store)
{
    if (!store)
        return;
    horon_store_file_close(&store->file);
    horon_pump_untimer(store->options.self.pump, &store->look);
    horon_pump_untimer(store->options.self.pump, &store->late);
    horon_connector_destroy(store->connector);
    horon_store_stream_close(&store->stream);
    horon_store_server_destroy(store->server);
    horon_blobs_deinit(&store->answer);
    horon_free(store);
}

/* Rank 0: serves if it can, and then only asks itself. */
static horon_status_t serve(struct horon_store *store, struct horon_error *error)
{
    const struct horon_store_options *options = &store->options;
    struct horon_store_place *place = &store->place;
    char text[HORON_ADDRESS_TEXT_BYTES];
    const struct horon_store_server_options serving = {.self = options->self,
                                                       .host_of = options->host_of,
                                                       .host_arg = options->host_arg,
                                                       .named = options->port_scan > 0,
                                                       .slow_ns = options->slow_ns,
                                                       .wrap = options->wrap};
    store->server = horon_store_server_create(&serving);
    if (!store->server)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    horon_status_t status = horon_store_server_listen(store->server, &place->listen, place->port,
                                                      place->port_last, error);
    if (status != HORON_OK) {
        store->taken = status == HORON_ERR_SYSTEM && errno == EADDRINUSE && !options->port_scan &&
                       store->file.directory < 0;
        horon_store_server_destroy(store->server);
        store->server = NULL;
        return store->taken ? HORON_OK : status; /* somebody serves */
    }
    place->port = store->server->port;
    HORON_LOG_DEBUG(options->self.log, "serves the store at %s, port %d",
                    horon_address_host_text(&place->listen.items[0], text), place->port);
    return HORON_OK;
}

static horon_status_t seek(struct horon_store *store, struct horon_error *error)
{
    const struct horon_store_options *options = &store->options;
    struct horon_store_place *place = &store->place;
    const bool ours = store->server;
    for (int i = 0; i < place->listen.count && ours; i++)
        horon_address_set_port(&place->listen.items[i], place->port);
    const struct horon_connector_options connecting = {
        .self = options->self,
        .addresses = ours ? &place->listen : &place->addresses,
        .scan = !ours && options->port_scan > 0,
        .patience_ns = place->several && !ours ? REFUSED_PATIENCE_NS : 0,
        .silence_ns = store->taken ? options->silence_ns : 0,
        .done = connector_ended,
        .arg = store};
    const horon_status_t status = horon_connector_create(&connecting, &store->connector, error);
    if (status == HORON_OK)
        move(store, CLIENT_CONNECTING);
    return status;
}

/* One look at the file of file:DIR: connects to the address in it, unless it does so already. */
static horon_status_t look(struct horon_store *store, struct horon_error *error)
{
    char addresses[HORON_STORE_FILE_BYTES_MAX];
    horon_status_t status = horon_store_file_read(&store->file, addresses, error);
    if (status < 0 || status == HORON_AGAIN || strcmp(addresses, store->found) == 0)
        return status;
    if (store->state == CLIENT_CONNECTING) {
        horon_connector_destroy(store->connector);
        store->connector = NULL;
        move(store, CLIENT_LOOKING);
    }
    memcpy(store->found, addresses, sizeof store->found);
    status = horon_store_place_find(&store->place, addresses, store->options.self.key->given, 0,
                                    NULL, error);
    return status == HORON_OK ? seek(store, error) : status;
}

static void look_due(void *arg)
{
    struct horon_store *store = arg;
    if (look(store, &store->error) < 0) {
        store_failed(store);
        return;
    }
    horon_pump_timer(store->options.self.pump, &store->look, horon_clock_ns() + store->pause_ns);
    store->pause_ns = store->pause_ns * 2 > LOOK_LAST_NS ? LOOK_LAST_NS : store->pause_ns * 2;
}

/* Writes into the file of file:DIR where we serve. Where it cannot be written this rank lets
 * joining fail in a while, as the others may yet read that there. */
static horon_status_t publish(struct horon_store *store, struct horon_error *error)
{
    char addresses[HORON_ADDRESSES_TEXT_BYTES];
    const struct horon_store_options *options = &store->options;
    for (int i = 0; i < store->place.addresses.count; i++)
        horon_address_set_port(&store->place.addresses.items[i], store->place.port);
    horon_addresses_write(&store->place.addresses, addresses, sizeof addresses);
    const horon_status_t status = horon_store_file_write(
        &store->file, addresses, options->process ? options->process : "one", error);
    if (status != HORON_ERR_SYSTEM)
        return status;
    horon_store_abort(store, error);
    return HORON_OK;
}

/* A rank 0 that can serve does; then this rank connects to the server. */
static horon_status_t start(struct horon_store *store, struct horon_error *error)
{
    const struct horon_store_options *options = &store->options;
    struct horon_store_place *place = &store->place;
    const bool in_file = store->file.directory >= 0;
    horon_status_t status =
        in_file ? horon_store_place_here(place, options->self.key->given, options->interfaces,
                                         options->port_range, error)
                : horon_store_place_find(place, options->address, options->self.key->given,
                                         options->port_scan, options->resolve, error);
    if (status == HORON_OK && place->unusable[0])
        HORON_LOG_DEBUG(options->self.log, "addresses of the store are passed over: %s",
                        place->unusable);
    if (status == HORON_OK && options->self.hello.rank == 0 && place->listen.count > 0)
        status = serve(store, error);
    if (status == HORON_OK && in_file)
        status = publish(store, error);
    return status == HORON_OK && store->state != CLIENT_FAILED ? seek(store, error) : status;
}

horon_status_t horon_store_open(const struct horon_store_options *options,
                                struct horon_store **store_out, struct horon_error *error)
{
    const bool in_file = strncmp(options->address, "file:", strlen("file:")) == 0;
    if (!in_file && strncmp(options->address, "tcp://", strlen("tcp://")) != 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_STORE=%s is neither tcp://HOST:PORT nor file:DIR",
                               options->address);
    struct horon_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the store");
    store->options = *options;
    store->size = (int)options->self.hello.size;
    snprintf(store->where, sizeof store->where, "%.*s%s", WHERE_BYTES, options->address,
             strlen(options->address) > WHERE_BYTES ? "..." : "");
    store->file.directory = store->file.fd = -1;
    store->pause_ns = LOOK_FIRST_NS;
    store->look = (struct horon_timer){.due = look_due, .arg = store};
    store->late = (struct horon_timer){.due = late_due, .arg = store};
    store->stream =
        (struct horon_store_stream){.pump = options->self.pump,
                                    .take = take_frame,
                                    .ended = stream_ended,
                                    .arg = store,
                                    .inbox.limit = horon_store_frame_bytes_max(store->size)};
    horon_status_t status = HORON_OK;
    const char *ranks = options->ranks ? options->ranks : "";
    if (ranks[0] && !send_frame(store, HORON_STORE_RANKS, ranks, strlen(ranks) + 1))
        status = horon_error_set(error, HORON_ERR_MEMORY, "no memory for the list of ranks");
    if (status == HORON_OK && in_file)
        status = horon_store_file_open(&store->file, options->address + strlen("file:"),
                                       options->self.pump->fds, error);
    if (status == HORON_OK && in_file && options->self.hello.rank != 0) {
        move(store, CLIENT_LOOKING);
        horon_pump_timer(options->self.pump, &store->look, horon_clock_ns());
    } else if (status == HORON_OK)
        status = start(store, error);
    if (status != HORON_OK) {
        horon_store_destroy(store);
        return status;
    }
    *store_out = store;
    return HORON_OK;
}

/* ---- The answer of a round ---- */

bool horon_blobs_are_whole(struct horon_reader in, int size)
{
    for (int r = 0; r < size; r++)
        horon_read_view(&in, horon_read_u32(&in));
    return horon_reader_finished(&in);
}

struct horon_reader horon_blobs_next(struct horon_blobs *blobs)
{
    const uint32_t bytes = horon_read_u32(&blobs->in);
    assert(blobs->in.ok);
    return horon_reader_over(horon_read_view(&blobs->in, bytes), bytes);
}

void horon_blobs_deinit(struct horon_blobs *blobs)
{
    horon_free(blobs->memory);
    *blobs = (struct horon_blobs){0};
}
