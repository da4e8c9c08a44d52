/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other besides data: negotiation, aborts, goodbyes. Aborts and goodbyes are
 * flooded: whoever hears one for the first time passes it on over all its links, so they arrive on
 * any connected set of survivors. On a host they also stand in shared memory, for ranks without a
 * link.
 *
 * A rank that leaves says how many operations it completed and how many decisions it saw. Those are
 * complete for everybody as far as they need that rank; anything later can never be, and fails with
 * its name. If it leaves because something here failed that way, its goodbye names the rank that
 * was the cause: whoever hears of the follower first blames the same rank as all others.
 */
#include "engine/engine_state.h"

#include "codec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *kind_name(uint8_t kind)
{
    static const char *const names[] = {[HORON_CONTROL_COORDINATOR] = "negotiation",
                                        [HORON_CONTROL_ABORT] = "an abort",
                                        [HORON_CONTROL_GOODBYE] = "a goodbye"};
    return kind < sizeof names / sizeof names[0] && names[kind] ? names[kind] : "nonsense";
}

static void post_to(struct horon_engine *engine, int peer, const struct horon_writer *out)
{
    if (!engine->mux_of[peer])
        return;
    assert(out->ok); /* every message has a buffer that fits it */
    HORON_LOG_TRACE(engine->options.log, "to %s: %s, %zu bytes", engine->rank_names[peer],
                    kind_name(out->bytes[0]), out->used);
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

/* Notes whom to blame for what can no longer be: the cause of the departure of the rank that
 * completed least, and of several the lowest, so that it matters little who is heard first. */
static void blame(struct horon_engine *engine, const uint64_t sequence[HORON_LEFT_COUNT],
                  int culprit)
{
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        const bool first = engine->left_rank < 0, same = sequence[i] == engine->left_sequence[i];
        if (!first && sequence[i] > engine->left_sequence[i])
            continue;
        if (first || !same || culprit < engine->left_culprit[i])
            engine->left_culprit[i] = culprit;
        engine->left_sequence[i] = sequence[i];
    }
}

void horon_engine_flood_goodbye(struct horon_engine *engine, int rank,
                                const uint64_t sequence[HORON_LEFT_COUNT], int culprit)
{
    if (engine->left[rank])
        return;
    engine->left[rank] = true;
    uint8_t bytes[64];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_write_u8(&out, HORON_CONTROL_GOODBYE);
    horon_write_u32(&out, (uint32_t)rank);
    for (int i = 0; i < HORON_LEFT_COUNT; i++)
        horon_write_u64(&out, sequence[i]);
    horon_write_u32(&out, (uint32_t)culprit);
    post_to_all_but(engine, rank, &out);
    horon_host_wake_all(engine->host, HORON_WAKE_ASLEEP);
    if (rank == engine->topology->rank)
        return;
    blame(engine, sequence, culprit);
    if (engine->left_rank < 0)
        engine->left_rank = rank;
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

static horon_status_t on_goodbye(struct horon_engine *engine, struct horon_reader *in)
{
    uint64_t sequence[HORON_LEFT_COUNT];
    uint32_t rank = horon_read_u32(in);
    for (int i = 0; i < HORON_LEFT_COUNT; i++)
        sequence[i] = horon_read_u64(in);
    uint32_t culprit = horon_read_u32(in), size = (uint32_t)engine->topology->size;
    if (!horon_reader_finished(in) || rank >= size || culprit >= size ||
        (int)rank == engine->topology->rank)
        return HORON_ERR_PROTO;
    horon_engine_flood_goodbye(engine, (int)rank, sequence, (int)culprit);
    return HORON_OK;
}

horon_status_t horon_engine_on_control(void *arg, int peer, const void *bytes, size_t byte_count,
                                       struct horon_error *error)
{
    struct horon_engine *engine = arg;
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    uint8_t kind = horon_read_u8(&in);
    horon_status_t status = HORON_ERR_PROTO;
    HORON_LOG_TRACE(engine->options.log, "from %s: %s, %zu bytes", engine->rank_names[peer],
                    kind_name(kind), byte_count);
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
    else if (kind == HORON_CONTROL_GOODBYE)
        status = on_goodbye(engine, &in);
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
static void see_local_goodbyes(struct horon_engine *engine)
{
    int host = engine->team.host;
    for (int i = 0; i < engine->team.local_size; i++) {
        struct horon_rank_line *line = horon_host_line(engine->host, i);
        int rank = horon_topology_rank_at(engine->topology, host, i);
        if (rank == engine->topology->rank || engine->left[rank] ||
            !atomic_load_explicit(&line->left, memory_order_acquire))
            continue;
        heed_abort(engine);
        if (!engine->failed && horon_host_abort_begun(engine->host))
            return; /* it is being written */
        uint32_t culprit = line->left_culprit;
        if (culprit >= (uint32_t)engine->topology->size) /* it is in shared memory: trust none */
            culprit = (uint32_t)rank;
        horon_engine_flood_goodbye(engine, rank, line->left_sequence, (int)culprit);
    }
}

/* Does something here wait for what a rank that left never did, and nothing any more for what it
 * did? To say so fails everything, so what can still end goes first.
 * @return whom to blame, or -1: go on */
static int waits_for_left(const struct horon_engine *engine)
{
    int culprit = -1;
    for (int i = 0; i < HORON_CHANNEL_COUNT; i++) {
        if (!engine->lanes[i].head)
            continue;
        if (horon_channel_ended(engine->lanes[i].channel) < engine->left_sequence[i])
            return -1;
        if (culprit < 0)
            culprit = engine->left_culprit[i];
    }
    if (culprit < 0 && horon_coordinator_pending(engine->coordinator) > 0 &&
        horon_coordinator_decisions(engine->coordinator) >=
            engine->left_sequence[HORON_LEFT_DECISIONS])
        culprit = engine->left_culprit[HORON_LEFT_DECISIONS];
    return culprit;
}

void horon_engine_check_left(struct horon_engine *engine)
{
    see_local_goodbyes(engine);
    heed_abort(engine);
    if (engine->left_rank < 0 || engine->failed || horon_host_abort_begun(engine->host))
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
