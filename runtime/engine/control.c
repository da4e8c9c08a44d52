/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other besides data: negotiation, aborts, departures.
 *
 * An abort is flooded: whoever hears of it first passes it on over all its links, so it arrives on
 * any connected set of survivors, whoever of the tree is gone. On a host it also lies in shared
 * memory, for ranks without a link.
 *
 * A rank that leaves says how many operations it completed and how many decisions it saw. Those are
 * complete for everybody as far as they need that rank; anything later can never be, and fails with
 * its name. If it leaves because something here failed that way, it names the rank that was the
 * cause: whoever hears of the follower first blames the same rank as all others.
 *
 * What all need to know of departures is only the least that any leaver has done. So each rank
 * keeps that, and says it where it is news: a leaver once on each of its links, which end with it,
 * and in its line in shared memory; who hears it by a link tells its host there, and its neighbours
 * in the tree on other hosts that have no link with the leaver. When a whole job leaves, having
 * done the same, only the first of them is news.
 *
 * Today every rank has a link to every other host (a leaver reaches each of them itself), so a
 * neighbour in the tree that is gone keeps nothing from anybody.
 */
#include "engine/engine_state.h"

#include "codec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void post_to(struct horon_engine *engine, int peer, const struct horon_writer *out)
{
    if (!engine->mux_of[peer])
        return;
    assert(out->ok); /* every message has a buffer that fits it */
    horon_engine_tell_message(engine, HORON_EVENT_SENT, peer, out->bytes[0], out->used);
    if (horon_mux_post_control(engine->mux_of[peer], out->bytes, out->used) == HORON_OK)
        return;
    /* the other side would wait for it for ever */
    char text[160];
    snprintf(text, sizeof text, "no memory for a message to %s", engine->rank_names[peer]);
    horon_engine_fail_here(engine, HORON_ERR_MEMORY, text);
}

static void post_to_all_but(struct horon_engine *engine, int but, const struct horon_writer *out)
{
    for (int i = 0; i < engine->peer_count; i++)
        if (engine->peers[i] != but)
            post_to(engine, engine->peers[i], out);
}

bool horon_engine_send_coordinator(struct horon_engine *engine)
{
    bool sent = false;
    int to;
    const void *bytes;
    size_t byte_count;
    while (horon_coordinator_next_message(engine->coordinator, &to, &bytes, &byte_count)) {
        struct horon_writer out = horon_writer_over(engine->message, HORON_CONTROL_BYTES_MAX);
        horon_write_u8(&out, HORON_CONTROL_COORDINATOR);
        horon_write_bytes(&out, bytes, byte_count);
        if (!engine->mux_of[to])
            continue; /* that rank is gone; the failure is on its way */
        post_to(engine, to, &out);
        sent = true;
    }
    return sent;
}

void horon_engine_flood_abort(struct horon_engine *engine)
{
    uint8_t bytes[HORON_ERROR_TEXT_BYTES + 32];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_write_u8(&out, HORON_CONTROL_ABORT);
    horon_write_u32(&out, (uint32_t)engine->failure.status);
    horon_write_string(&out, engine->failure.text);
    post_to_all_but(engine, -1, &out);
    horon_host_post_abort(engine->host, engine->failure.status, engine->failure.text);
}

/* Of two that did equally little the lower rank is to blame, so that it matters little who is heard
 * first. That alone is no news: nothing new can fail for it.
 * @return is less done now than was known? */
static bool merge(struct horon_departures *known, const struct horon_departures *news)
{
    bool less = !known->any;
    assert(news->any);
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        if (known->any && news->sequence[i] > known->sequence[i])
            continue;
        const bool lower = !known->any || news->sequence[i] < known->sequence[i];
        if (lower || news->culprit[i] < known->culprit[i])
            known->culprit[i] = news->culprit[i];
        known->sequence[i] = news->sequence[i];
        less |= lower;
    }
    known->any = true;
    return less;
}

static struct horon_writer write_departures(uint8_t *bytes, size_t byte_count,
                                            enum horon_control_kind kind,
                                            const struct horon_departures *departures)
{
    struct horon_writer out = horon_writer_over(bytes, byte_count);
    horon_write_u8(&out, (uint8_t)kind);
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        horon_write_u64(&out, departures->sequence[i]);
        horon_write_u32(&out, departures->culprit[i]);
    }
    return out;
}

/* Passes news on along the tree, to other hosts: the ranks of this one read it in shared memory.
 * Who leaves has told the ranks that it is linked with.
 * @param by_itself @p from is the rank that leaves */
static void pass_on(struct horon_engine *engine, int from, bool by_itself)
{
    const struct horon_topology *topology = engine->topology;
    uint8_t bytes[64];
    struct horon_writer out =
        write_departures(bytes, sizeof bytes, HORON_CONTROL_GOODBYE, &engine->departures);
    for (int i = 0; i < engine->tree_count; i++) {
        const int peer = engine->tree[i];
        if (peer == from || engine->left[peer] ||
            topology->host_of[peer] == topology->host_of[topology->rank] ||
            (by_itself && horon_topology_linked(topology, from, peer)))
            continue;
        post_to(engine, peer, &out);
    }
}

void horon_engine_say_goodbye(struct horon_engine *engine, const struct horon_departures *own)
{
    uint8_t bytes[64];
    merge(&engine->departures, own);
    horon_host_tell_departures(engine->host, &engine->departures, true);
    struct horon_writer out =
        write_departures(bytes, sizeof bytes, HORON_CONTROL_END, &engine->departures);
    for (int i = 0; i < engine->peer_count; i++)
        if (!engine->left[engine->peers[i]])
            post_to(engine, engine->peers[i], &out);
}

static horon_status_t on_abort(struct horon_engine *engine, struct horon_reader *in)
{
    char text[HORON_ERROR_TEXT_BYTES];
    horon_status_t status = horon_status_from_peer(horon_read_u32(in));
    horon_read_string(in, text, sizeof text);
    if (!horon_reader_finished(in) || !text[0]) /* nobody can do anything without a reason */
        return HORON_ERR_PROTO;
    horon_engine_fail(engine, status, text);
    return HORON_OK;
}

/* Is every rank that is blamed one of the job, and not this one while it is here? */
static bool may_be_blamed(const struct horon_engine *engine, const struct horon_departures *news)
{
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        if (news->culprit[i] >= (uint32_t)engine->topology->size)
            return false;
        if ((int)news->culprit[i] == engine->topology->rank && !engine->leaving)
            return false;
    }
    return true;
}

static horon_status_t on_departures(struct horon_engine *engine, int peer, bool by_itself,
                                    struct horon_reader *in)
{
    struct horon_departures news = {.any = true};
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        news.sequence[i] = horon_read_u64(in);
        news.culprit[i] = horon_read_u32(in);
    }
    if (!horon_reader_finished(in) || !may_be_blamed(engine, &news))
        return HORON_ERR_PROTO;
    if (by_itself && !engine->left[peer])
        horon_events_tell(engine->events, HORON_EVENT_DEPARTED, 0, 0, 0, 0, peer);
    engine->left[peer] |= by_itself;
    if (!merge(&engine->departures, &news))
        return HORON_OK;
    if (!engine->leaving) /* which it says in its line, with all that it knew */
        horon_host_tell_departures(engine->host, &engine->departures, false);
    pass_on(engine, peer, by_itself);
    return HORON_OK;
}

horon_status_t horon_engine_on_control(void *arg, int peer, const void *bytes, size_t byte_count,
                                       struct horon_error *error)
{
    struct horon_engine *engine = arg;
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    uint8_t kind = horon_read_u8(&in);
    horon_status_t status = HORON_ERR_PROTO;
    horon_engine_tell_message(engine, HORON_EVENT_HEARD, peer, kind, byte_count);
    if (kind == HORON_CONTROL_COORDINATOR) {
        if (engine->failed)
            return HORON_OK;
        engine->coordinator_dirty = engine->urgent = true;
        return horon_coordinator_receive(engine->coordinator, peer,
                                         (const uint8_t *)bytes + in.used, byte_count - in.used,
                                         error);
    }
    if (kind == HORON_CONTROL_ABORT)
        status = on_abort(engine, &in);
    else if (kind == HORON_CONTROL_GOODBYE || kind == HORON_CONTROL_END)
        status = on_departures(engine, peer, kind == HORON_CONTROL_END, &in);
    if (status != HORON_OK)
        horon_error_set(error, status, "%s sent a control message that makes no sense",
                        engine->rank_names[peer]);
    return status;
}

/* A rank that leaves because the job failed has said why before: the reason goes first. */
static void heed_abort(struct horon_engine *engine)
{
    struct horon_error error = {0};
    if (!engine->failed && horon_host_aborted(engine->host, &error))
        horon_engine_fail(engine, error.status, error.text);
}

/* If one left because the job failed, peers on other hosts must hear the reason before they hear of
 * the departure, from here too. */
static void see_local_departures(struct horon_engine *engine)
{
    for (int i = 0; i < engine->team.local_size; i++) {
        struct horon_departures news;
        bool left;
        const uint32_t before = engine->seen[i];
        if (i == engine->team.local_rank ||
            !horon_host_see_departures(engine->host, i, &engine->seen[i], &news, &left))
            continue;
        const int rank = horon_topology_rank_at(engine->topology, engine->team.host, i);
        heed_abort(engine);
        if (!engine->failed && horon_host_abort_begun(engine->host)) {
            engine->seen[i] = before;
            return; /* it is being written */
        }
        if (left && !engine->left[rank])
            horon_events_tell(engine->events, HORON_EVENT_DEPARTED, 0, 0, 0, 0, rank);
        engine->left[rank] |= left;
        if (!may_be_blamed(engine, &news)) /* it is in shared memory: trust none */
            for (int k = 0; k < HORON_LEFT_COUNT; k++)
                news.culprit[k] = (uint32_t)rank;
        if (merge(&engine->departures, &news))
            pass_on(engine, rank, left);
    }
}

/* Does something here wait for what a rank that left never did, and nothing any more for what it
 * did? To say so fails everything, so what can still end goes first.
 * @return whom to blame, or -1: go on */
static int waits_for_left(const struct horon_engine *engine)
{
    const struct horon_departures *left = &engine->departures;
    int culprit = -1;
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        if (!engine->lanes[i].head)
            continue;
        if (horon_channel_ended(engine->lanes[i].channel) < left->sequence[i])
            return -1;
        if (culprit < 0)
            culprit = (int)left->culprit[i];
    }
    if (culprit < 0 && horon_coordinator_pending(engine->coordinator) > 0 &&
        horon_coordinator_decisions(engine->coordinator) >= left->sequence[HORON_LEFT_DECISIONS])
        culprit = (int)left->culprit[HORON_LEFT_DECISIONS];
    return culprit;
}

void horon_engine_check_left(struct horon_engine *engine)
{
    see_local_departures(engine);
    heed_abort(engine);
    if (!engine->departures.any || engine->failed || horon_host_abort_begun(engine->host))
        return;
    int culprit = waits_for_left(engine);
    if (culprit < 0)
        return;
    char text[256];
    snprintf(text, sizeof text, "%s has shut down its context and takes part in nothing more",
             engine->rank_names[culprit]);
    engine->leaves_because_of = culprit;
    horon_engine_fail(engine, HORON_ERR_CLOSED, text);
}
