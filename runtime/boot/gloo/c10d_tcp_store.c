/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of torch's TCPStore, be it torch's rank 0 that serves, or this process itself. Keys have
 * a "/" in front, but for torch's count of the ranks that have come, "init/", for which torch's
 * rank 0 waits. Reading a key is two questions, as torch's server has no answer for one that is not
 * there. A question whose answer did not come whole leaves the connection of no use. Which dialect
 * the server speaks cannot be asked for: each takes the other's first question for nonsense.
 *
 * Jobs of horon's may meet at one address, each with its prefix. A job meets at one server, as
 * ranks that have met at one may leave before others come to the next: the server that a horon of
 * rank 0 serves says whose it is, and ranks of other jobs wait until that job has met and the
 * address is free.
 */
#include "alloc.h"
#include "boot/gloo/c10d_server.h"
#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/dial.h"
#include "boot/gloo/store.h"
#include "clock.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NONCE UINT32_C(0x6f726f68)
#define SHOWN_JOB_BYTES 100
#define SHOWN_BYTES 24 /* of an answer that is none: "HTTP/1.1 400 Bad Request" */
/* A server that ends closes connections that it has not taken yet, and the next one comes soon;
 * what closes so many, one after the other, is none. */
#define CLOSED_MAX 10
#define CLOSED_MS 3000
/* Between two tries: another job may meet there for long. */
#define PAUSE_MS_MIN 20
#define PAUSE_MS_MAX 500
/* A rank 0 that could not serve looks so long for what does; the next time twice as long, as it may
 * be far away. */
#define DIAL_MS_MIN 50
#define DIAL_MS_MAX 1600

struct tcp_store {
    struct horon_gloo_store base;
    struct horon_c10d_server *server; /* or NULL */
    int fd;                           /* -1: it is of no use any more */
    bool heard;                       /* it has answered as a TCPStore does */
    bool met;                         /* this rank has joined, and asks nothing more; others may */
    enum horon_c10d_dialect dialect;
    char text[HORON_ADDRESS_TEXT_BYTES + 16];
    char subject[HORON_ADDRESS_TEXT_BYTES + 96]; /* for what is told of waiting */
    char silent[128];                            /* likewise, once it is connected */
};

/* What opening it needs, and nothing after. */
struct opening {
    struct tcp_store *store;
    const struct horon_gloo_store_options *options;
    int port;
    struct horon_addresses all;
    bool may_serve;
    int dial_ms;            /* of the next try */
    struct horon_error why; /* it does not serve; no status: it does, or has not tried */
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
    return horon_error_set(
        error, status, "what listens at %s %s: %sit is not torch's TCPStore, or not one of %s",
        store->text, what, status == HORON_ERR_PEER_LOST ? "rank 0 has ended, or " : "",
        dialect_text(store));
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
                               "the Gloo store %s has a value of %llu bytes under '%s': is it "
                               "torch's TCPStore?",
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
    horon_c10d_server_end_meeting(store->server, base->of_horons);
}

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
static void name(const struct opening *opening)
{
    struct tcp_store *store = opening->store;
    store->subject[0] = 0;
    horon_text_add(store->subject, sizeof store->subject, "", "the Gloo store %s, which %s",
                   store->text,
                   opening->options->rank > 0 ? "rank 0, of torch or of horon, is to serve"
                   : opening->may_serve && opening->why.status == HORON_OK
                       ? "this rank serves"
                       : "this rank, 0, cannot serve itself");
}

/* @param ms  -1: no limit of its own. @return @p wait, but for so long at most */
static struct horon_gloo_wait at_most(const struct horon_gloo_wait *wait, int64_t ms)
{
    struct horon_gloo_wait shorter = *wait;
    const uint64_t until_ns = horon_clock_deadline(horon_clock_ns(), ms);
    if (ms >= 0 && until_ns < wait->deadline_ns)
        shorter.deadline_ns = until_ns;
    return shorter;
}

static horon_status_t nobody(const struct opening *opening, const char *found,
                             struct horon_error *error)
{
    horon_error_set(
        error, HORON_ERR_TIMEOUT, "nobody serves %s: is %sthis its MASTER_ADDR:MASTER_PORT? (%s)",
        opening->store->subject, opening->options->rank > 0 ? "it there, and is " : "", found);
    return HORON_ERR_TIMEOUT;
}

/* Serves, if that is this rank's to do and the address is free.
 * @return OK | ERR_MEMORY */
static horon_status_t serve(struct opening *opening, struct horon_error *error)
{
    const struct horon_gloo_store_options *options = opening->options;
    struct tcp_store *store = opening->store;
    horon_status_t status = HORON_OK;
    if (opening->may_serve && !store->server) {
        opening->why = (struct horon_error){0};
        status = horon_c10d_server_start(&opening->all, opening->port, options->prefix,
                                         options->fds, options->log, &store->server, &opening->why);
    }
    name(opening);
    return status == HORON_ERR_MEMORY ? horon_error_set(error, status, "%s", opening->why.text)
                                      : HORON_OK;
}

/* Cut where a character begins. @param text_out [SHOWN_JOB_BYTES + 4] */
static void show(const uint8_t *bytes, size_t count, char *text_out)
{
    size_t shown = count < SHOWN_JOB_BYTES ? count : SHOWN_JOB_BYTES;
    while (shown > 0 && shown < count && (bytes[shown] & 0xc0) == 0x80)
        shown--;
    memcpy(text_out, bytes, shown);
    snprintf(text_out + shown, sizeof "...", "%s", shown < count ? "..." : "");
    horon_text_clean(text_out, "");
}

/* @return OK, this rank's job meets there, as far as is said | AGAIN, another one does, with the
 * error | as get() */
static horon_status_t check_job(struct tcp_store *store, const char *own,
                                const struct horon_gloo_wait *wait, struct horon_error *error)
{
    struct horon_gloo_value job;
    horon_status_t status = get(&store->base, HORON_C10D_JOB_KEY, &job, wait, error);
    if (status != HORON_OK)
        return status == HORON_AGAIN ? HORON_OK : status;
    if (job.count != strlen(own) || (job.count && memcmp(job.bytes, own, job.count) != 0)) {
        char shown[SHOWN_JOB_BYTES + sizeof "..."];
        show(job.bytes, job.count, shown);
        horon_fd_close(&store->fd);
        horon_error_set(error, HORON_ERR_TIMEOUT,
                        "the Gloo store %s serves another job, '%s', whose ranks have not all "
                        "joined: this one, '%s', waits for that (jobs of which one waits for "
                        "another need an address each)",
                        store->text, shown, own);
        status = HORON_AGAIN;
    }
    horon_free(job.bytes);
    return status;
}

/* Becomes a client of what listens there. @param dial_ms  how long it is looked for; -1: no limit
 * @return as opening it | TIMEOUT, also if so long is over | ERR_PEER_LOST, it has closed | AGAIN,
 * another job meets there, with the error */
static horon_status_t come(const struct opening *opening, const struct horon_gloo_wait *wait,
                           int dial_ms, struct horon_error *error)
{
    const struct horon_gloo_store_options *options = opening->options;
    struct tcp_store *store = opening->store;
    struct horon_error found = {0};
    const struct horon_gloo_wait dialling = at_most(wait, dial_ms);
    store->heard = false;
    horon_status_t status =
        horon_gloo_dial(&opening->all, options->fds, &dialling, &store->fd, &found);
    if (status == HORON_ERR_TIMEOUT)
        return nobody(opening, found.text, error);
    if (status != HORON_OK && error)
        *error = found;
    if (status == HORON_OK && store->dialect == HORON_C10D_SINCE_2_3)
        status = greet(store, wait, error);
    if (status == HORON_OK)
        status = add_to(store, "", HORON_C10D_INIT_KEY, 1, wait, error);
    return status == HORON_OK ? check_job(store, options->prefix, wait, error) : status;
}

/* What the tries before have met. */
struct tries {
    int closed; /* servers that have closed, in turn; what the last one left: */
    struct horon_error closed_error;
    bool busy; /* another job's server was there, last: it may go at any time */
    struct horon_error busy_error;
};

/* It is as it was when it was last told, or the server has gone since: then that is told, too. */
static horon_status_t still_busy(const struct tries *tries, struct horon_error *error)
{
    const struct horon_error last = *error;
    *error = tries->busy_error;
    if (strcmp(last.text, error->text) != 0)
        horon_text_add(error->text, sizeof error->text, "; ", "then: %s", last.text);
    return HORON_ERR_TIMEOUT;
}

/* One try, which may last. @return OK | AGAIN, there is another one | as opening it */
static horon_status_t try_server(struct opening *opening, const struct horon_gloo_wait *wait,
                                 struct tries *tries, struct horon_error *error)
{
    struct tcp_store *store = opening->store;
    horon_status_t status = serve(opening, error);
    if (status != HORON_OK)
        return status;
    const bool waits = opening->may_serve && !store->server;
    const int dial_ms = waits ? opening->dial_ms : tries->closed > 0 ? CLOSED_MS : -1;
    status = come(opening, wait, dial_ms, error);
    const bool over = horon_clock_ns() >= wait->deadline_ns;
    if (status == HORON_ERR_TIMEOUT && !store->heard && !over && dial_ms > 0) {
        if (!waits) { /* nobody came after what has closed: it was a rank 0 that ended */
            *error = tries->closed_error;
            return HORON_ERR_PEER_LOST;
        }
        opening->dial_ms = opening->dial_ms < DIAL_MS_MAX ? 2 * opening->dial_ms : opening->dial_ms;
        tries->closed = 0;
        return HORON_AGAIN; /* perhaps this rank can serve now */
    }
    opening->dial_ms = DIAL_MS_MIN;
    if (status == HORON_AGAIN) {
        *tries = (struct tries){.busy = true, .busy_error = *error};
    } else if (status == HORON_ERR_PEER_LOST && !tries->busy) {
        tries->closed++;
        tries->closed_error = *error;
    }
    const bool again = status == HORON_ERR_PEER_LOST && tries->closed < CLOSED_MAX;
    return again ? HORON_AGAIN : status;
}

/* A rank 0 that cannot serve tries again, as what has the address may go. */
static horon_status_t meet_server(struct opening *opening, const struct horon_gloo_wait *wait,
                                  struct horon_error *error)
{
    struct tries tries = {0};
    struct horon_error unheard = {0};
    char told_before[HORON_ERROR_TEXT_BYTES] = "";
    int pause_ms = PAUSE_MS_MIN;
    error = error ? error : &unheard;
    horon_status_t status = try_server(opening, wait, &tries, error);
    while (status == HORON_AGAIN) {
        if (strcmp(told_before, error->text) !=
            0) /* jobs come and go there: this one may be next */
            pause_ms = PAUSE_MS_MIN;
        snprintf(told_before, sizeof told_before, "%s", error->text);
        const struct horon_gloo_wait told =
            horon_gloo_wait_told(wait, opening->store->subject, error->text);
        status = horon_gloo_wait_for(&told, NULL, 0, pause_ms, error);
        pause_ms = pause_ms < PAUSE_MS_MAX ? 2 * pause_ms : pause_ms;
        if (status == HORON_AGAIN)
            status = try_server(opening, wait, &tries, error);
        else if (status == HORON_ERR_TIMEOUT) /* the last try has said for what */
            status = error->status;
    }
    const bool late = status == HORON_ERR_TIMEOUT || status == HORON_ERR_PEER_LOST;
    return late && tries.busy ? still_busy(&tries, error) : status;
}

static horon_status_t begin(struct opening *opening, const char *host, struct horon_error *error)
{
    const struct horon_gloo_wait wait = horon_gloo_wait_told(
        &opening->options->wait, opening->store->subject, "the name of its host is looked up");
    const horon_status_t status =
        horon_gloo_resolve(host, opening->port, &wait, &opening->all, error);
    return status == HORON_OK ? meet_server(opening, &wait, error) : status;
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

horon_status_t horon_gloo_c10d_tcp_store_open(const char *at,
                                              const struct horon_gloo_store_options *options,
                                              struct horon_gloo_store **store_out,
                                              struct horon_error *error)
{
    char host[HORON_ADDRESS_TEXT_BYTES];
    struct opening opening = {.options = options,
                              .may_serve = options->serve && options->rank == 0,
                              .dial_ms = DIAL_MS_MIN};
    if (!horon_address_cut(at, strlen(at), host, &opening.port))
        return horon_error_set(error, HORON_ERR_CONFIG, "the Gloo store tcp://%s is no HOST:PORT",
                               at);
    struct tcp_store *store = horon_zalloc(1, sizeof *store);
    if (!store)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a Gloo store");
    opening.store = store;
    store->base.ops = &ops;
    store->fd = -1;
    store->dialect = options->until_torch_2_0 ? HORON_C10D_UNTIL_2_0 : HORON_C10D_SINCE_2_3;
    horon_text_add(store->text, sizeof store->text, "", "tcp://%s", at);
    horon_text_add(store->silent, sizeof store->silent, "",
                   "it is connected with, and does not answer: is it a TCPStore of %s?",
                   dialect_text(store));
    name(&opening);
    const horon_status_t status = begin(&opening, host, error);
    if (status == HORON_OK) {
        assert(store->fd >= 0);
        assert(store->heard);
        *store_out = &store->base;
        return HORON_OK;
    }
    const struct horon_error *why = &opening.why;
    if (error && why->status != HORON_OK && why->status != HORON_ERR_MEMORY)
        horon_text_add(error->text, sizeof error->text, "; ", "%s", why->text);
    destroy(&store->base);
    return status;
}
