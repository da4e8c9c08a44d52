/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of a mesh: listen, publish, and then, side by side, look for what others published and
 * turn the pairs, until all are done. Gloo's ranks take the others one after the other, ascending,
 * and wait for each, so a rank that did the same could be waited for; one that does all at once
 * cannot.
 */
#include "boot/gloo/mesh.h"

#include "alloc.h"
#include "boot/gloo/pairs.h"
#include "clock.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Between looks at the store: Gloo's own is 10 ms, which a long wait need not be. */
#define LOOK_MS_MIN 5
#define LOOK_MS_MAX 50
#define SILENT_NS 1000000000u /* a store that does not answer so long is not just busy */

struct mesh {
    const struct horon_gloo_mesh_options *options;
    struct horon_gloo_watch watch;   /* of the ranks that are waited for */
    struct horon_gloo_watch calling; /* of one call of the store, which may last as well */
    struct horon_gloo_wait wait;
    struct horon_gloo_pairs pairs;
};

/* @return for one call of the store, from now on: while a rank is late each of them is short, and
 * none of them is what is waited for */
static const struct horon_gloo_wait *calling(struct mesh *mesh)
{
    horon_gloo_watch_renew(&mesh->calling);
    return &mesh->wait;
}

/* Reads what @p rank published, if it has. @return OK | AGAIN | ... */
static horon_status_t read_peer(struct mesh *mesh, int rank, struct horon_gloo_peer *peer_out,
                                struct horon_error *error)
{
    const struct horon_gloo_mesh_options *options = mesh->options;
    char key[16];
    struct horon_gloo_value value = {NULL, 0};
    snprintf(key, sizeof key, "%d", rank);
    horon_status_t status = horon_gloo_store_get(options->store, key, &value, calling(mesh), error);
    if (status == HORON_OK)
        status = horon_gloo_peer_read(options->era, value.bytes, value.count, options->size,
                                      options->rank, rank, peer_out, error);
    horon_free(value.bytes);
    return status;
}

/* What is published for another era makes ranks of Gloo crash. So before anything is: if another
 * rank has published already, is it ours? */
static horon_status_t look_at_era(struct mesh *mesh, struct horon_error *error)
{
    struct horon_gloo_peer peer;
    if (mesh->options->size == 1)
        return HORON_OK;
    const horon_status_t status = read_peer(mesh, mesh->options->rank == 0, &peer, error);
    return status == HORON_AGAIN ? HORON_OK : status;
}

/* Two processes of one rank would each be found by some of the others, and what a job has left
 * leads them nowhere. Two that come at the same time are not noticed. */
static horon_status_t look_for_own(struct mesh *mesh, struct horon_error *error)
{
    const int rank = mesh->options->rank;
    struct horon_gloo_store *store = mesh->options->store;
    struct horon_gloo_value value;
    char key[32];
    if (!store->ops->overwrites)
        return HORON_OK;
    snprintf(key, sizeof key, "%d", rank);
    const horon_status_t status = horon_gloo_store_get(store, key, &value, calling(mesh), error);
    if (status != HORON_OK)
        return status == HORON_AGAIN ? HORON_OK : status;
    horon_free(value.bytes);
    horon_error_set(error, HORON_ERR_INVALID,
                    "the Gloo store has a rank %d already: two processes have that rank, or "
                    "another job met there; give each job a store, or a prefix, of its own",
                    rank);
    horon_error_blame(error, HORON_CAUSE_SETTING, rank, -1);
    return HORON_ERR_INVALID;
}

static horon_status_t publish(struct mesh *mesh, struct horon_error *error)
{
    const struct horon_gloo_mesh_options *options = mesh->options;
    const size_t room = horon_gloo_published_bytes(options->era, options->size);
    horon_status_t status = HORON_OK;
    char host[256] = "", key[32];
    gethostname(host, sizeof host - 1);
    uint8_t *bytes = horon_alloc(room);
    if (!bytes)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to publish %zu bytes", room);
    struct horon_writer out = horon_writer_over(bytes, room);
    horon_gloo_publish(&out, options->era, options->size, host, mesh->pairs.at);
    assert(out.ok);
    snprintf(key, sizeof key, "rank_%d", options->rank);
    if (options->era == HORON_GLOO_ERA_1) /* others read it, to count those of their host */
        status =
            horon_gloo_store_set(options->store, key, host, strlen(host), calling(mesh), error);
    if (status == HORON_OK)
        status = horon_gloo_store_set(options->store, strchr(key, '_') + 1, bytes, out.used,
                                      calling(mesh), error);
    horon_free(bytes);
    return status;
}

/* @return how many were found; -1 with the error */
static int look(struct mesh *mesh, struct horon_error *error)
{
    int found = 0;
    for (int i = 0; i < mesh->options->size; i++) {
        struct horon_gloo_peer peer;
        if (mesh->pairs.items[i].state != HORON_GLOO_PAIR_LOOKING)
            continue;
        horon_status_t status = read_peer(mesh, i, &peer, error);
        if (status == HORON_AGAIN)
            continue;
        if (status == HORON_OK)
            status = horon_gloo_pairs_found(&mesh->pairs, i, &peer, error);
        if (status != HORON_OK)
            return -1;
        found++;
    }
    return found;
}

/* The default is the loopback. Era 1 does not tell here which host a rank is on. */
static void name_loopback(const struct mesh *mesh, char *text, size_t text_bytes)
{
    char at[HORON_ADDRESS_TEXT_BYTES];
    bool elsewhere = false;
    for (int i = 0; i < mesh->options->size; i++) {
        const struct horon_gloo_meeting_pair *pair = &mesh->pairs.items[i];
        if (pair->state == HORON_GLOO_PAIR_WAITING)
            elsewhere =
                elsewhere || !pair->peer.host[0] || horon_gloo_peer_is_elsewhere(&pair->peer);
    }
    if (elsewhere && horon_address_is_loopback(&mesh->pairs.at[0]))
        horon_text_add(text, text_bytes, "; ",
                       "rank %d listens at %s, which no other host reaches: where ranks are on "
                       "several, choose a network with HORON_INTERFACES",
                       mesh->options->rank, horon_address_host_text(&mesh->pairs.at[0], at));
}

/* What may be the reason. */
static void name_reasons(const struct mesh *mesh, char *text, size_t text_bytes)
{
    char from[HORON_ADDRESS_TEXT_BYTES];
    bool lazy = false;
    for (int i = 0; i < mesh->options->size; i++)
        lazy = lazy || (mesh->pairs.items[i].state == HORON_GLOO_PAIR_WAITING &&
                        mesh->pairs.items[i].peer.no_ids);
    if (lazy)
        horon_text_add(text, text_bytes, "; ",
                       "torch's ranks with TORCH_GLOO_LAZY_INIT connect with those only that they "
                       "need, so unset it there");
    name_loopback(mesh, text, text_bytes);
    if (mesh->pairs.refused > 0)
        horon_text_add(text, text_bytes, "; ", "%d connections of others were refused, last of %s",
                       mesh->pairs.refused, horon_address_text(&mesh->pairs.refused_last, from));
}

/* One line about those that lack, or may have failed, behind the reasons: where many lack it is
 * cut. */
static void name_missing(const struct mesh *mesh, char *text, size_t text_bytes)
{
    name_reasons(mesh, text, text_bytes);
    for (int i = 0; i < mesh->options->size; i++) {
        const struct horon_gloo_meeting_pair *pair = &mesh->pairs.items[i];
        char at[HORON_ADDRESS_TEXT_BYTES];
        horon_address_text(&pair->peer.address.at, at);
        if (pair->state == HORON_GLOO_PAIR_LOOKING)
            horon_text_add(text, text_bytes, "; ", "rank %d has published nothing", i);
        if (pair->state == HORON_GLOO_PAIR_CONNECTING)
            horon_text_add(text, text_bytes, "; ", "rank %d at %s does not answer", i, at);
        if (pair->closed && !pair->left)
            horon_text_add(text, text_bytes, "; ", "rank %d at %s has closed its connection", i,
                           at);
        else if (pair->state == HORON_GLOO_PAIR_WAITING)
            horon_text_add(text, text_bytes, "; ", "rank %d at %s has not connected", i, at);
    }
}

static void look_at_watch(struct mesh *mesh)
{
    char subject[HORON_GLOO_KEY_BYTES + 64];
    char text[HORON_ERROR_TEXT_BYTES] = "";
    if (horon_clock_ns() < mesh->watch.slow_ns)
        return;
    name_missing(mesh, text, sizeof text);
    snprintf(subject, sizeof subject, "Gloo's ranks, under '%s' in the store",
             mesh->options->store->prefix);
    horon_gloo_watch_look(&mesh->watch, subject, text);
}

static horon_status_t timed_out(const struct mesh *mesh, struct horon_error *error)
{
    char text[HORON_ERROR_TEXT_BYTES] = "";
    int missing = 0;
    assert(!horon_gloo_pairs_done(&mesh->pairs));
    while (mesh->pairs.items[missing].state == HORON_GLOO_PAIR_DONE)
        missing++;
    name_missing(mesh, text, sizeof text);
    horon_error_set(error, HORON_ERR_TIMEOUT,
                    "no mesh with Gloo's ranks in time, under '%s' in the store (the same store, "
                    "prefix and era everywhere?): %s",
                    mesh->options->store->prefix, text);
    horon_error_blame(error, HORON_CAUSE_ABSENT, missing, -1);
    return HORON_ERR_TIMEOUT;
}

/* The time was over in a call of the store. One that is short was under way just then; of another
 * one the store has said what it waited for in vain, and which ranks lack is not known. */
static horon_status_t failed_to_look(const struct mesh *mesh, struct horon_error *error)
{
    const bool silent = horon_clock_ns() - mesh->calling.begun_ns >= SILENT_NS;
    return error->status == HORON_ERR_TIMEOUT && !silent ? timed_out(mesh, error) : error->status;
}

static horon_status_t connect_all(struct mesh *mesh, struct horon_error *error)
{
    uint64_t look_ns = 0;
    int pause_ms = LOOK_MS_MIN;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && !horon_gloo_pairs_done(&mesh->pairs)) {
        const uint64_t now_ns = horon_clock_ns();
        if (now_ns >= look_ns) {
            const int found = look(mesh, error);
            if (found < 0)
                return failed_to_look(mesh, error);
            pause_ms = found > 0 ? LOOK_MS_MIN : pause_ms * 2;
            pause_ms = pause_ms < LOOK_MS_MAX ? pause_ms : LOOK_MS_MAX;
            look_ns = horon_clock_deadline(horon_clock_ns(), pause_ms);
        }
        if (horon_gloo_pairs_done(&mesh->pairs)) /* the last one had come; no time may be left */
            break;
        status = horon_gloo_pairs_turn(&mesh->pairs, &mesh->wait, pause_ms, error);
        if (!horon_gloo_pairs_done(&mesh->pairs))
            look_at_watch(mesh);
    }
    return status == HORON_ERR_TIMEOUT ? timed_out(mesh, error) : status;
}

/* A rank may have closed because it waited in vain for one that lacks here, too. */
static horon_status_t lost(const struct mesh *mesh, struct horon_error *error)
{
    for (int i = 0; i < mesh->options->size; i++)
        if (mesh->pairs.items[i].state == HORON_GLOO_PAIR_LOOKING)
            horon_text_add(error->text, sizeof error->text, "; ",
                           "nothing of rank %d has been read yet", i);
    return HORON_ERR_PEER_LOST;
}

/* @return where rank @p rank listened for the others */
static const struct horon_address *place_of(const struct mesh *mesh, int rank)
{
    return rank == mesh->options->rank ? &mesh->pairs.at[0]
                                       : &mesh->pairs.items[rank].peer.address.at;
}

static bool is_horon(const struct mesh *mesh, int rank)
{
    assert(rank >= 0 && rank < mesh->options->size);
    assert(mesh->pairs.items[rank].state == HORON_GLOO_PAIR_DONE);
    return rank == mesh->options->rank || mesh->pairs.items[rank].peer.address.of_horon;
}

/* Of the connections of a job one rank warns, whichever of its ranks are horon's: the lowest of
 * these, which each knows from what the others have published. (An older horon says nothing of
 * itself there, and warns besides.) It tells of an address that others than the users of its
 * machine reach, if there is one. */
static void warn_once(const struct mesh *mesh)
{
    const struct horon_gloo_mesh_options *options = mesh->options;
    char at[HORON_ADDRESS_TEXT_BYTES];
    int rank = options->rank;
    for (int i = 0; i < options->rank; i++)
        if (is_horon(mesh, i))
            return;
    if (options->size == 1) /* there is none */
        return;
    for (int i = 0; i < options->size && horon_address_is_loopback(place_of(mesh, rank)); i++)
        if (!horon_address_is_loopback(place_of(mesh, i)))
            rank = i;
    HORON_LOG_WARN(options->log,
                   "rank %d is linked with ranks of Gloo at %s, %s: nobody has proven anything "
                   "there, and nothing is protected",
                   rank, horon_address_host_text(place_of(mesh, rank), at),
                   horon_address_is_loopback(place_of(mesh, rank))
                       ? "which all users of this machine reach"
                       : "where whatever reaches it may have taken a rank's place");
}

static void tell_where(const struct mesh *mesh)
{
    char at[HORON_ADDRESS_TEXT_BYTES];
    if (mesh->pairs.listener_count > 0) /* else it is alone, in era 1 */
        HORON_LOG_INFO(mesh->options->log, "rank %d listens for ranks of Gloo at %s",
                       mesh->options->rank, horon_address_host_text(&mesh->pairs.at[0], at));
}

static horon_status_t run(struct mesh *mesh, int *sockets_out, struct horon_error *error)
{
    horon_status_t status = horon_gloo_pairs_init(&mesh->pairs, mesh->options, error);
    if (status == HORON_OK) {
        tell_where(mesh);
        status = look_at_era(mesh, error);
    }
    if (status == HORON_OK)
        status = look_for_own(mesh, error);
    if (status == HORON_OK)
        status = publish(mesh, error);
    if (status == HORON_OK) {
        status = connect_all(mesh, error);
        if (status == HORON_ERR_PEER_LOST)
            status = lost(mesh, error);
    }
    if (status == HORON_OK) {
        warn_once(mesh);
        mesh->options->store->of_horons = true;
        for (int i = 0; i < mesh->options->size; i++)
            mesh->options->store->of_horons &= is_horon(mesh, i);
        horon_gloo_pairs_take(&mesh->pairs, sockets_out);
    }
    return status;
}

horon_status_t horon_gloo_mesh_connect(const struct horon_gloo_mesh_options *options,
                                       int *sockets_out, struct horon_error *error)
{
    struct mesh mesh = {.options = options};
    struct horon_error unheard; /* what is passed on here is read, too */
    if (!error)
        error = &unheard;
    if (options->size < 1 || options->size > HORON_GLOO_RANKS_MAX || options->rank < 0 ||
        options->rank >= options->size ||
        (options->era != HORON_GLOO_ERA_1 && options->era != HORON_GLOO_ERA_3))
        return horon_error_set(error, HORON_ERR_INVALID,
                               "rank %d of %d in era %d is none of a Gloo mesh", options->rank,
                               options->size, (int)options->era);
    horon_gloo_watch_begin(&mesh.watch, options->slow_ns, options->log);
    horon_gloo_watch_begin(&mesh.calling, options->slow_ns, options->log);
    mesh.wait = (struct horon_gloo_wait){
        .deadline_ns = options->deadline_ns,
        .interrupted = options->interrupted,
        .arg = options->interrupted_arg,
        .watch = &mesh.calling,
    };
    const horon_status_t status = run(&mesh, sockets_out, error);
    horon_gloo_pairs_deinit(&mesh.pairs);
    return status;
}
