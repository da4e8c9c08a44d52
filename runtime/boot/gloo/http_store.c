/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the key-value server of Horovod's launcher, of one request a connection: PUT
 * /scope/key, and GET, which does not wait. As Horovod's own client does, it tries what is answered
 * by anything but 200 or 404 three times. The scope is the prefix; the server takes no key with a
 * "/" in it. DELETE, by which Horovod's ranks say that they have met, is left out: a scope of the
 * job's own would lose the key at once, which another rank may not have read yet. So what ranks of
 * horon have set stays until the launcher clears the scope, and they meet in it once.
 */
#include "alloc.h"
#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/dial.h"
#include "boot/gloo/store.h"
#include "http.h"

#include <stdio.h>
#include <string.h>

#define TRIES 3
#define PAUSE_MS 500
#define READ_BYTES 4096
#define HEAD_BYTES 1024

struct http_store {
    struct horon_gloo_store base;
    struct horon_fds *fds;
    struct horon_addresses at;
    char host[HORON_ADDRESS_TEXT_BYTES + 8];     /* with the port, as in the url */
    char subject[HORON_ADDRESS_TEXT_BYTES + 80]; /* for what is told of waiting */
};

/* What was asked and what came of it. */
struct exchange {
    const char *method, *key;
    const void *body;
    size_t count;
    struct horon_c10d_buffer heard;
    struct horon_http head;
};

static horon_status_t say(const struct http_store *store, const struct exchange *exchange, int fd,
                          const struct horon_gloo_wait *wait, struct horon_error *error)
{
    char head[HEAD_BYTES], path[HORON_GLOO_KEY_BYTES + 2];
    snprintf(path, sizeof path, "/%s", exchange->key);
    const size_t bytes = horon_http_write_request(head, sizeof head, exchange->method, path,
                                                  store->host, exchange->count);
    if (bytes == 0)
        return horon_error_set(error, HORON_ERR_INVALID, "the key %s of a Gloo store is too long",
                               exchange->key);
    const horon_status_t status = horon_gloo_send(fd, head, bytes, wait, error);
    return status == HORON_OK ? horon_gloo_send(fd, exchange->body, exchange->count, wait, error)
                              : status;
}

/* Reads the answer; one without a length ends with the connection. @return OK | ERR_PROTO | ... */
static horon_status_t hear(struct exchange *exchange, int fd, const struct horon_gloo_wait *wait,
                           struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    char bytes[READ_BYTES];
    size_t got = 1;
    while (status == HORON_OK) {
        status = horon_gloo_receive(fd, bytes, sizeof bytes, &got, wait, error);
        if (status == HORON_OK && !horon_c10d_buffer_add(&exchange->heard, bytes, got))
            status = HORON_ERR_PROTO;
        if (status != HORON_OK)
            break;
        status = horon_http_look((const char *)exchange->heard.bytes, exchange->heard.used,
                                 &exchange->head);
        if (status == HORON_OK && exchange->head.has_length &&
            exchange->heard.used - exchange->head.head_bytes >= exchange->head.length)
            return HORON_OK;
        if (got == 0) /* no more comes */
            return status == HORON_OK && !exchange->head.has_length ? HORON_OK : HORON_ERR_PROTO;
        status = status == HORON_AGAIN ? HORON_OK : status;
    }
    return status;
}

/* @param error of a time-out it is what was tried */
static horon_status_t ask_once(const struct http_store *store, struct exchange *exchange,
                               const struct horon_gloo_wait *wait, struct horon_error *error)
{
    int fd = -1;
    char silent[HORON_GLOO_KEY_BYTES + 64];
    snprintf(silent, sizeof silent, "it is connected with, and does not answer %s /%s",
             exchange->method, exchange->key);
    const struct horon_gloo_wait told = horon_gloo_wait_told(wait, store->subject, silent);
    exchange->heard.used = 0;
    horon_status_t status = horon_gloo_dial(&store->at, store->fds, &told, &fd, error);
    if (status != HORON_OK)
        return status;
    status = say(store, exchange, fd, &told, error);
    if (status == HORON_OK)
        status = hear(exchange, fd, &told, error);
    horon_fd_close(&fd);
    return status == HORON_ERR_TIMEOUT ? horon_error_set(error, status, "%s", silent) : status;
}

/* @return OK, with 200 | AGAIN, with 404 | ... */
static horon_status_t ask(const struct http_store *store, struct exchange *exchange,
                          const struct horon_gloo_wait *wait, struct horon_error *error)
{
    struct horon_error why = {0};
    int code = 0;
    horon_status_t status = HORON_OK;
    for (int i = 0; i < TRIES; i++) {
        if (i > 0 && horon_gloo_wait_for(wait, NULL, 0, PAUSE_MS, error) == HORON_ERR_CANCELLED)
            return HORON_ERR_CANCELLED;
        status = ask_once(store, exchange, wait, &why);
        code = status == HORON_OK ? horon_http_code(&exchange->head) : 0;
        if (code == 200 || code == 404)
            return code == 200 ? HORON_OK : HORON_AGAIN;
        if (status != HORON_OK && status != HORON_ERR_PROTO && status != HORON_ERR_PEER_LOST)
            break;
    }
    if (status == HORON_ERR_CANCELLED || status == HORON_ERR_INVALID)
        return horon_error_set(error, status, "%s", why.text);
    if (status == HORON_ERR_TIMEOUT)
        return horon_error_set(error, status,
                               "the Gloo store http://%s does not answer: is the launcher there? "
                               "(%s)",
                               store->host, why.text);
    return horon_error_set(error, status == HORON_OK ? HORON_ERR_PROTO : status,
                           "the Gloo store http://%s answers %s /%s with %d: is it the rendezvous "
                           "server of Horovod's launcher?",
                           store->host, exchange->method, exchange->key, code);
}

static horon_status_t set(struct horon_gloo_store *base, const char *key, const void *bytes,
                          size_t count, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct exchange exchange = {.method = "PUT", .key = key, .body = bytes, .count = count};
    horon_status_t status = ask((const struct http_store *)base, &exchange, wait, error);
    horon_c10d_buffer_deinit(&exchange.heard);
    if (status == HORON_AGAIN)
        status = horon_error_set(error, HORON_ERR_CONFIG,
                                 "the Gloo store of Horovod has no place for /%s", key);
    return status;
}

static horon_status_t get(struct horon_gloo_store *base, const char *key,
                          struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                          struct horon_error *error)
{
    struct exchange exchange = {.method = "GET", .key = key};
    horon_status_t status = ask((const struct http_store *)base, &exchange, wait, error);
    if (status == HORON_OK) {
        const size_t from = exchange.head.head_bytes, rest = exchange.heard.used - from;
        const size_t count = exchange.head.has_length ? exchange.head.length : rest;
        status = count <= HORON_GLOO_VALUE_BYTES_MAX
                     ? horon_gloo_value_copy(value_out, exchange.heard.bytes + from, count, error)
                     : horon_error_set(error, HORON_ERR_PROTO, "/%s has %zu bytes", key, count);
    }
    horon_c10d_buffer_deinit(&exchange.heard);
    return status;
}

static void destroy(struct horon_gloo_store *base)
{
    horon_free(base);
}

static const struct horon_gloo_store_ops ops = {
    .name = "http",
    .overwrites = true,
    .set = set,
    .get = get,
    .destroy = destroy,
};

horon_status_t horon_gloo_http_store_open(const char *at,
                                          const struct horon_gloo_store_options *options,
                                          struct horon_gloo_store **store_out,
                                          struct horon_error *error)
{
    char host[HORON_ADDRESS_TEXT_BYTES];
    const size_t bytes = strcspn(at, "/");
    const char *scope = at + bytes + (at[bytes] == '/');
    int port = 0;
    if (!horon_address_cut(at, bytes, host, &port))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the Gloo store http://%s is no HOST:PORT[/SCOPE]", at);
    if (strchr(scope, '/') || strchr(options->prefix, '/') || !scope[0] == !options->prefix[0])
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the Gloo store http://%s takes one scope, as prefix or behind its "
                               "address, without '/'",
                               at);
    struct http_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a Gloo store");
    store->base.ops = &ops;
    store->fds = options->fds;
    horon_text_add(store->host, sizeof store->host, "", "%.*s", (int)bytes, at);
    snprintf(store->subject, sizeof store->subject,
             "the Gloo store http://%s, which Horovod's launcher is to serve", store->host);
    const struct horon_gloo_wait wait =
        horon_gloo_wait_told(&options->wait, store->subject, "the name of its host is looked up");
    horon_status_t status = horon_gloo_resolve(host, port, &wait, &store->at, error);
    if (status == HORON_OK)
        status = horon_gloo_store_nest(&store->base, scope, error);
    if (status == HORON_OK)
        *store_out = &store->base;
    else
        horon_free(store);
    return status;
}
