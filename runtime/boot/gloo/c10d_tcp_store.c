/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of torch's TCPStore, be it torch's rank 0 that serves, or this process itself. Keys have
 * a "/" in front, but for torch's count of the ranks that have come, "init/", for which torch's
 * rank 0 waits. Reading a key is two questions, as torch's server has no answer for one that is not
 * there. A question whose answer did not come whole leaves the connection of no use. Which dialect
 * the server speaks cannot be asked for: each takes the other's first question for nonsense.
 */
#include "alloc.h"
#include "boot/gloo/c10d_server.h"
#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/dial.h"
#include "boot/gloo/store.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NONCE UINT32_C(0x6f726f68)
#define SHOWN_BYTES 24 /* of an answer that is none: "HTTP/1.1 400 Bad Request" */

struct tcp_store {
    struct horon_gloo_store base;
    struct horon_c10d_server *server; /* or NULL */
    struct horon_fds *fds;
    int fd;     /* -1: it is of no use any more */
    bool heard; /* it has answered as a TCPStore does */
    bool met;   /* this rank has joined, and asks nothing more; others may */
    enum horon_c10d_dialect dialect;
    char text[HORON_ADDRESS_TEXT_BYTES + 16];
    char subject[HORON_ADDRESS_TEXT_BYTES + 96]; /* for what is told of waiting */
    char silent[128];                            /* likewise, once it is connected */
};

static const char *dialect_text(const struct tcp_store *store)
{
    return store->dialect == HORON_C10D_UNTIL_2_0
               ? "torch until 2.0 (since 2.3: HORON_GLOO_ERA=e3)"
               : "torch since 2.3 (until 2.0: HORON_GLOO_ERA=e1)";
}

/* What was found there is no server that this rank can ask. @param what it does */
static horon_status_t none(struct tcp_store *store, horon_status_t status, const char *what,
                           struct horon_error *error)
{
    assert(!store->heard);
    return horon_error_set(error, status,
                           "what listens at %s %s: it is not torch's TCPStore, or not one of %s",
                           store->text, what, dialect_text(store));
}

/* The connection is of no use any more, for that reason. @return it */
static horon_status_t lost(struct tcp_store *store, horon_status_t status,
                           struct horon_error *error)
{
    horon_fd_close(&store->fd);
    if (status != HORON_ERR_PEER_LOST && status != HORON_ERR_TIMEOUT)
        return status;
    const bool gone = status == HORON_ERR_PEER_LOST;
    if (!store->heard)
        return none(store, status,
                    gone ? "closed the connection, once it was asked"
                         : "takes a connection, and does not answer",
                    error);
    return horon_error_set(error, status, "the Gloo store %s %s", store->text,
                           gone ? "is lost: rank 0 has ended" : "does not answer any more");
}

/* It has answered what no TCPStore of any torch does; shows that, and what more has come.
 * @param bytes [count] of which the answer begins */
static horon_status_t answers_else(struct tcp_store *store, const uint8_t *bytes, size_t count,
                                   struct horon_error *error)
{
    char shown[SHOWN_BYTES + 1] = "", what[SHOWN_BYTES + 32];
    assert(count < SHOWN_BYTES);
    memcpy(shown, bytes, count);
    const ssize_t more = recv(store->fd, shown + count, SHOWN_BYTES - count, MSG_DONTWAIT);
    const size_t bytes_shown = count + (more > 0 ? (size_t)more : 0);
    for (size_t i = 0; i < bytes_shown; i++)
        shown[i] = shown[i] >= ' ' && shown[i] <= '~' ? shown[i] : '.';
    horon_fd_close(&store->fd);
    snprintf(what, sizeof what, "answers '%s'", shown);
    return none(store, HORON_ERR_PROTO, what, error);
}

/* @return what is told while it is waited for, connected */
static const char *silence(const struct tcp_store *store)
{
    return store->heard ? "it does not answer any more" : store->silent;
}

static horon_status_t send_all(struct tcp_store *store, const void *bytes, size_t count,
                               const struct horon_gloo_wait *wait, struct horon_error *error)
{
    const struct horon_gloo_wait told = horon_gloo_wait_told(wait, store->subject, silence(store));
    horon_status_t status = HORON_ERR_PEER_LOST;
    if (store->fd >= 0)
        status = horon_gloo_send(store->fd, bytes, count, &told, error);
    return status == HORON_OK ? status : lost(store, status, error);
}

static horon_status_t receive(struct tcp_store *store, void *into, size_t count,
                              const struct horon_gloo_wait *wait, struct horon_error *error)
{
    const struct horon_gloo_wait told = horon_gloo_wait_told(wait, store->subject, silence(store));
    uint8_t *bytes = into;
    assert(count == 0 || store->fd >= 0); /* it was asked, and that was sent */
    while (count > 0) {
        size_t got = 0;
        horon_status_t status = horon_gloo_receive(store->fd, bytes, count, &got, &told, error);
        if (status == HORON_OK && got == 0)
            status = HORON_ERR_PEER_LOST;
        if (status != HORON_OK)
            return lost(store, status, error);
        bytes += got;
        count -= got;
    }
    return HORON_OK;
}

/* Asks about a key: of CHECK it is the only one, of SET the value follows. */
static horon_status_t ask(struct tcp_store *store, enum horon_c10d_op op, const char *key,
                          const struct horon_gloo_wait *wait, struct horon_error *error)
{
    assert(op == HORON_C10D_CHECK || op == HORON_C10D_SET || op == HORON_C10D_GET);
    uint8_t bytes[32 + HORON_GLOO_KEY_BYTES];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_c10d_write_op(&out, store->dialect, op);
    if (op == HORON_C10D_CHECK)
        horon_write_u64(&out, 1);
    horon_write_u64(&out, strlen(key) + 1);
    horon_write_u8(&out, '/');
    horon_write_bytes(&out, key, strlen(key));
    assert(out.ok); /* a key with its prefix has fewer than HORON_GLOO_KEY_BYTES */
    return send_all(store, bytes, out.used, wait, error);
}

static horon_status_t set(struct horon_gloo_store *base, const char *key, const void *value,
                          size_t count, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct tcp_store *store = (struct tcp_store *)base;
    uint8_t head[8];
    assert(store->heard); /* or it was never opened */
    struct horon_writer out = horon_writer_over(head, sizeof head);
    horon_write_u64(&out, count);
    horon_status_t status = ask(store, HORON_C10D_SET, key, wait, error);
    if (status == HORON_OK)
        status = send_all(store, head, sizeof head, wait, error);
    return status == HORON_OK ? send_all(store, value, count, wait, error) : status;
}

/* @return OK | AGAIN, it is not there */
static horon_status_t check(struct tcp_store *store, const char *key,
                            const struct horon_gloo_wait *wait, struct horon_error *error)
{
    uint8_t there = HORON_C10D_NOT_READY;
    horon_status_t status = ask(store, HORON_C10D_CHECK, key, wait, error);
    if (status == HORON_OK)
        status = receive(store, &there, 1, wait, error);
    return status == HORON_OK && there != HORON_C10D_READY ? HORON_AGAIN : status;
}

static horon_status_t get(struct horon_gloo_store *base, const char *key,
                          struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct tcp_store *store = (struct tcp_store *)base;
    uint64_t raw = 0;
    assert(store->heard);
    horon_status_t status = check(store, key, wait, error);
    if (status == HORON_OK)
        status = ask(store, HORON_C10D_GET, key, wait, error);
    if (status == HORON_OK)
        status = receive(store, &raw, sizeof raw, wait, error);
    if (status != HORON_OK)
        return status;
    const uint64_t count = le64toh(raw);
    uint8_t *bytes = count <= HORON_GLOO_VALUE_BYTES_MAX ? horon_alloc((size_t)count) : NULL;
    if (!bytes) {
        horon_fd_close(&store->fd);
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the Gloo store %s has a value of %llu bytes under '%s'",
                               store->text, (unsigned long long)count, key);
    }
    status = receive(store, bytes, (size_t)count, wait, error);
    if (status == HORON_OK)
        *value_out = (struct horon_gloo_value){bytes, (size_t)count};
    else
        horon_free(bytes);
    return status;
}

/* @param before what stands before the key */
static horon_status_t add_to(struct tcp_store *store, const char *before, const char *key, int more,
                             const struct horon_gloo_wait *wait, struct horon_error *error)
{
    uint8_t bytes[32 + HORON_GLOO_KEY_BYTES];
    uint8_t now[8];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_c10d_write_op(&out, store->dialect, HORON_C10D_ADD);
    horon_write_u64(&out, strlen(before) + strlen(key));
    horon_write_bytes(&out, before, strlen(before));
    horon_write_bytes(&out, key, strlen(key));
    horon_write_u64(&out, (uint64_t)more);
    assert(out.ok);
    horon_status_t status = send_all(store, bytes, out.used, wait, error);
    if (status == HORON_OK)
        status = receive(store, now, sizeof now, wait, error);
    struct horon_reader in = horon_reader_over(now, sizeof now);
    if (status == HORON_OK && !store->heard && horon_read_u64(&in) > INT32_MAX)
        return answers_else(store, now, sizeof now, error); /* it has not counted so many ranks */
    store->heard = store->heard || status == HORON_OK;
    return status;
}

static horon_status_t add(struct horon_gloo_store *base, const char *key, int more,
                          const struct horon_gloo_wait *wait, struct horon_error *error)
{
    return add_to((struct tcp_store *)base, "/", key, more, wait, error);
}

static void destroy(struct horon_gloo_store *base)
{
    struct tcp_store *store = (struct tcp_store *)base;
    horon_fd_close(&store->fd);
    horon_c10d_server_stop(store->server, store->met);
    horon_free(store);
}

/* Where all are horon's, those that come now are of another job, and the next server's. */
static void end_meeting(struct horon_gloo_store *base)
{
    struct tcp_store *store = (struct tcp_store *)base;
    store->met = true;
    horon_fd_close(&store->fd);
    if (base->of_horons)
        horon_c10d_server_shut(store->server);
}

static const struct horon_gloo_store_ops ops = {
    .name = "tcp",
    .overwrites = true,
    .set = set,
    .get = get,
    .add = add,
    .end_meeting = end_meeting,
    .destroy = destroy,
};

/* What every client says first to a server of torch since 2.3. */
static horon_status_t greet(struct tcp_store *store, const struct horon_gloo_wait *wait,
                            struct horon_error *error)
{
    uint8_t bytes[16];
    uint8_t heard[4];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    assert(!store->heard);
    horon_c10d_write_op(&out, store->dialect, HORON_C10D_VALIDATE);
    horon_write_u32(&out, HORON_C10D_MAGIC);
    horon_c10d_write_op(&out, store->dialect, HORON_C10D_PING);
    horon_write_u32(&out, NONCE);
    assert(out.ok);
    horon_status_t status = send_all(store, bytes, out.used, wait, error);
    if (status == HORON_OK)
        status = receive(store, heard, sizeof heard, wait, error);
    struct horon_reader in = horon_reader_over(heard, sizeof heard);
    if (status == HORON_OK && horon_read_u32(&in) != NONCE)
        return answers_else(store, heard, sizeof heard, error);
    store->heard = status == HORON_OK;
    return status;
}

/* Which rank is to serve it is known by its number alone: torch's rank 0 does, and horon's. */
static void name(struct tcp_store *store, const char *at,
                 const struct horon_gloo_store_options *options)
{
    horon_text_add(store->text, sizeof store->text, "", "tcp://%s", at);
    horon_text_add(store->subject, sizeof store->subject, "", "the Gloo store %s, which %s",
                   store->text,
                   options->rank > 0 ? "rank 0, of torch or of horon, is to serve"
                   : options->serve  ? "this rank serves"
                                     : "this rank, 0, cannot serve itself");
    horon_text_add(store->silent, sizeof store->silent, "",
                   "it is connected with, and does not answer: is it a TCPStore of %s?",
                   dialect_text(store));
}

static horon_status_t dial(struct tcp_store *store, const struct horon_addresses *all,
                           const struct horon_gloo_store_options *options,
                           const struct horon_gloo_wait *wait, struct horon_error *error)
{
    struct horon_error why = {0};
    const horon_status_t status = horon_gloo_dial(all, store->fds, wait, &store->fd, &why);
    if (status == HORON_ERR_TIMEOUT)
        return horon_error_set(
            error, status, "nobody serves %s: is %sthis its MASTER_ADDR:MASTER_PORT? (%s)",
            store->subject, options->rank > 0 ? "it there, and is " : "", why.text);
    if (status != HORON_OK && error)
        *error = why;
    return status;
}

static horon_status_t begin(struct tcp_store *store, const char *host, int port,
                            const struct horon_gloo_store_options *options,
                            struct horon_error *error)
{
    const struct horon_gloo_wait wait =
        horon_gloo_wait_told(&options->wait, store->subject, "the name of its host is looked up");
    struct horon_addresses all;
    horon_status_t status = horon_gloo_resolve(host, port, &wait, &all, error);
    if (status == HORON_OK && options->serve && options->rank == 0)
        status =
            horon_c10d_server_start(&all, port, options->fds, options->log, &store->server, error);
    if (status == HORON_OK)
        status = dial(store, &all, options, &wait, error);
    if (status == HORON_OK && store->dialect == HORON_C10D_SINCE_2_3)
        status = greet(store, &wait, error);
    if (status == HORON_OK)
        status = add_to(store, "", HORON_C10D_INIT_KEY, 1, &wait, error);
    return status;
}

horon_status_t horon_gloo_c10d_tcp_store_open(const char *at,
                                              const struct horon_gloo_store_options *options,
                                              struct horon_gloo_store **store_out,
                                              struct horon_error *error)
{
    char host[HORON_ADDRESS_TEXT_BYTES];
    int port = 0;
    if (!horon_address_cut(at, strlen(at), host, &port))
        return horon_error_set(error, HORON_ERR_CONFIG, "the Gloo store tcp://%s is no HOST:PORT",
                               at);
    struct tcp_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a Gloo store");
    store->base.ops = &ops;
    store->fds = options->fds;
    store->fd = -1;
    store->dialect = options->until_torch_2_0 ? HORON_C10D_UNTIL_2_0 : HORON_C10D_SINCE_2_3;
    name(store, at, options);
    const horon_status_t status = begin(store, host, port, options, error);
    if (status == HORON_OK) {
        assert(store->fd >= 0);
        assert(store->heard);
        *store_out = &store->base;
    } else {
        destroy(&store->base);
    }
    return status;
}
