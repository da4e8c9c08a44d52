/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: assembles coordinator, channels and links of one rank, and turns them. A turn takes
 * what was posted, moves messages, lets the coordinator decide, and advances both lanes; each part
 * is bounded. It never waits; the context's threads do that around it.
 */
#include "engine/engine_state.h"

#include "alloc.h"

#include <stdio.h>
#include <string.h>

/* While this many batches are queued the root holds back, so that the next one can grow. */
#define BATCHES_AHEAD 2

static void free_pool(struct horon_engine *engine)
{
    while (engine->pool) {
        struct horon_work *work = engine->pool;
        engine->pool = work->next;
        horon_work_free(work);
    }
}

void horon_engine_close(struct horon_engine *engine)
{
    if (!engine)
        return;
    if (engine->coordinator)
        horon_engine_close_mailbox(engine);
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        horon_channel_destroy(engine->lanes[i].channel);
        engine->lanes[i].channel = NULL;
    }
    horon_coordinator_destroy(engine->coordinator);
    engine->coordinator = NULL;
    for (int i = 0; i < engine->peer_count; i++) {
        horon_mux_destroy(engine->mux_of[engine->peers[i]]);
        horon_mux_destroy(engine->dead_of[engine->peers[i]]);
    }
    engine->peer_count = 0;
    free_pool(engine);
    horon_events_destroy(engine->events);
    engine->events = NULL;
    horon_free(engine->mux_of);
    horon_free(engine->data_of);
    horon_free(engine->dead_of);
    horon_free(engine->peers);
    horon_free(engine->rank_name_texts);
    horon_free(engine->rank_names);
    horon_free(engine->left);
    horon_free(engine->seen);
    horon_free(engine->tree);
    horon_free(engine->message);
    engine->mux_of = engine->data_of = engine->dead_of = NULL;
    engine->peers = NULL;
    engine->rank_name_texts = NULL;
    engine->rank_names = NULL;
    engine->left = NULL;
    engine->seen = NULL;
    engine->tree = NULL;
    engine->message = NULL;
}

void horon_engine_destroy(struct horon_engine *engine)
{
    if (!engine)
        return;
    horon_engine_close(engine);
    horon_names_deinit(&engine->names);
    horon_free(engine);
}

static bool allocate(struct horon_engine *engine, size_t size)
{
    engine->mux_of = horon_zalloc(size, sizeof *engine->mux_of);
    engine->data_of = horon_zalloc(size, sizeof *engine->data_of);
    engine->dead_of = horon_zalloc(size, sizeof *engine->dead_of);
    engine->peers = horon_zalloc(size, sizeof *engine->peers);
    engine->rank_name_texts = horon_zalloc(size, sizeof *engine->rank_name_texts);
    engine->rank_names = horon_zalloc(size, sizeof *engine->rank_names);
    engine->left = horon_zalloc(size, sizeof *engine->left);
    engine->seen = horon_zalloc(size, sizeof *engine->seen);
    engine->tree = horon_zalloc(size, sizeof *engine->tree);
    engine->events = horon_events_create(engine->options.now_ns, engine->options.now_arg);
    engine->message = horon_alloc(HORON_CONTROL_BYTES_MAX);
    return engine->mux_of && engine->data_of && engine->dead_of && engine->peers &&
           engine->rank_name_texts && engine->rank_names && engine->left && engine->seen &&
           engine->tree && engine->events && engine->message;
}

static void fill_team(struct horon_engine *engine)
{
    const struct horon_topology *topology = engine->topology;
    for (int rank = 0; rank < topology->size; rank++) {
        snprintf(engine->rank_name_texts[rank], sizeof engine->rank_name_texts[rank],
                 "rank %d (%s)", rank, topology->host_name[topology->host_of[rank]]);
        engine->rank_names[rank] = engine->rank_name_texts[rank];
    }
    int host = topology->host_of[topology->rank];
    engine->team = (struct horon_team){
        .rank = topology->rank,
        .size = topology->size,
        .host_count = topology->host_count,
        .host = host,
        .local_rank = topology->local_rank_of[topology->rank],
        .local_size = horon_topology_host_size(topology, host),
        .segments = horon_topology_host_size_max(topology),
        .host_of = topology->host_of,
        .local_rank_of = topology->local_rank_of,
        .host_first = topology->host_first,
        .host_ranks = topology->host_ranks,
        .rank_names = engine->rank_names,
        .mux_of = engine->data_of,
    };
}

static horon_status_t create_muxes(struct horon_engine *engine, struct horon_error *error)
{
    const struct horon_config *config = engine->options.config;
    for (int rank = 0; rank < engine->topology->size; rank++) {
        if (!engine->options.links[rank])
            continue;
        struct horon_mux_options options = {
            .eager_bytes = (size_t)config->net_eager_bytes,
            .eager_total_bytes = (size_t)config->net_eager_bytes * 16,
            .control_bytes_max = HORON_CONTROL_BYTES_MAX,
            .generation = engine->options.generation,
            .peer = rank,
            .peer_name = engine->rank_names[rank],
            .on_control = horon_engine_on_control,
            .arg = engine,
        };
        horon_status_t status =
            horon_mux_create(engine->options.links[rank], &options, &engine->mux_of[rank]);
        if (status != HORON_OK)
            return horon_error_set(error, status, "no memory for the link to %s",
                                   engine->rank_names[rank]);
        engine->options.links[rank] = NULL;
        engine->peers[engine->peer_count++] = rank;
        if (engine->topology->host_of[rank] != engine->team.host)
            engine->data_of[rank] = engine->mux_of[rank];
    }
    return HORON_OK;
}

static horon_status_t create_coordinator(struct horon_engine *engine)
{
    const struct horon_topology *topology = engine->topology;
    const int parent = horon_topology_parent(topology, topology->rank);
    int *children = engine->tree;
    if (parent >= 0)
        *children++ = parent;
    const int child_count = horon_topology_children(topology, topology->rank, children);
    engine->tree_count = child_count + (parent >= 0);
    struct horon_coordinator_options options = {
        .rank = topology->rank,
        .size = topology->size,
        .parent = parent,
        .children = children,
        .child_count = child_count,
        .cache_entries = (size_t)engine->options.config->cache_entries,
        .fusion_bytes = (uint64_t)engine->options.config->fusion_bytes,
        .rank_names = engine->rank_names,
    };
    return horon_coordinator_create(&options, &engine->coordinator);
}

static horon_status_t create_lanes(struct horon_engine *engine)
{
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        struct horon_channel_options options = {
            .channel = (uint32_t)i,
            .arena_at = horon_engine_arena_at(&engine->host->shape, i),
            .net_chunk_bytes = (size_t)engine->options.config->net_chunk_bytes,
            .net_algorithm = engine->options.config->net_algorithm,
        };
        horon_status_t status =
            horon_channel_create(&options, &engine->team, engine->host, &engine->lanes[i].channel);
        if (status != HORON_OK)
            return status;
        engine->lanes[i].tail = &engine->lanes[i].head;
    }
    return HORON_OK;
}

static void drop_links(const struct horon_engine_options *options)
{
    for (int rank = 0; rank < options->topology->size; rank++) {
        if (options->links[rank])
            options->links[rank]->ops->destroy(options->links[rank]);
        options->links[rank] = NULL;
    }
}

horon_status_t horon_engine_create(const struct horon_engine_options *options,
                                   struct horon_engine **engine_out, struct horon_error *error)
{
    horon_status_t status = HORON_ERR_MEMORY;
    struct horon_engine *engine = horon_zalloc(1, sizeof *engine);
    if (!engine)
        goto done;
    engine->options = *options;
    engine->topology = options->topology;
    engine->host = options->host;
    engine->leaves_because_of = options->topology->rank;
    if (!allocate(engine, (size_t)options->topology->size))
        goto done;
    status = horon_names_init(&engine->names, (size_t)options->config->cache_entries);
    if (status != HORON_OK)
        goto done;
    fill_team(engine);
    status = create_muxes(engine, error);
    if (status == HORON_OK)
        status = create_coordinator(engine);
    if (status == HORON_OK)
        status = create_lanes(engine);
    if (status != HORON_OK)
        goto done;
    *engine_out = engine;
    engine = NULL;
done:
    if (status != HORON_OK && error && !error->text[0])
        horon_error_set(error, status, "no memory for the engine");
    horon_engine_destroy(engine);
    drop_links(options);
    return status;
}

/* ---- turns ---------------------------------------------------------------------------------- */

static void mux_failed(struct horon_engine *engine, int peer, const struct horon_error *error)
{
    bool said_goodbye = engine->left[peer];
    /* its socket stays open, since the progress thread may watch it, until the engine closes */
    engine->dead_of[peer] = engine->mux_of[peer];
    engine->mux_of[peer] = NULL;
    /* what a rank sent before it left is still taken from its mux by operations that need it */
    if (!said_goodbye)
        engine->data_of[peer] = NULL;
    if (!said_goodbye && !engine->leaving)
        horon_engine_fail_here(engine, error->status, error->text);
}

static bool move_links(struct horon_engine *engine)
{
    bool moved = false;
    for (int i = 0; i < engine->peer_count; i++) {
        int peer = engine->peers[i];
        struct horon_mux *mux = engine->mux_of[peer];
        if (!mux || !horon_mux_wants_turn(mux))
            continue;
        struct horon_error error = {0};
        horon_status_t status = horon_mux_progress(mux, &moved, &error);
        if (status < 0) {
            mux_failed(engine, peer, &error);
            moved = true;
        }
    }
    return moved;
}

/* Was something given to a mux after its turn? Whoever falls asleep on it would never send it. */
static bool anything_unsent(const struct horon_engine *engine)
{
    for (int i = 0; i < engine->peer_count; i++) {
        const struct horon_mux *mux = engine->mux_of[engine->peers[i]];
        if (mux && horon_mux_has_unsent(mux))
            return true;
    }
    return false;
}

static bool coordinate(struct horon_engine *engine)
{
    if (!engine->coordinator_dirty)
        return false;
    struct horon_lane *lane = &engine->lanes[HORON_LANE_NAMED];
    bool decide = lane->length < BATCHES_AHEAD;
    engine->held_back = !decide;
    engine->coordinator_dirty = false;
    if (horon_coordinator_flush(engine->coordinator, decide) != HORON_OK) {
        horon_engine_fail_here(engine, HORON_ERR_MEMORY, "no memory to negotiate");
        return true;
    }
    bool sent = horon_engine_send_coordinator(engine);
    if (sent && engine->urgent) {
        move_links(engine);
        horon_host_wake_all(engine->host, HORON_WAKE_ASLEEP);
    }
    engine->urgent = false;
    return horon_engine_take_batches(engine);
}

bool horon_engine_progress(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    horon_events_turn(engine->events);
    bool moved = horon_engine_take_posts(engine);
    moved |= move_links(engine);
    /* a rank that leaves has ended its requests: what is decided about them concerns nobody here */
    if (!engine->failed && !engine->leaving) {
        moved |= coordinate(engine);
        if (engine->departures.any || !engine->in_flight)
            horon_engine_check_left(engine); /* before an operation meets a link that is gone */
        for (int i = 0; i < HORON_LANE_COUNT && !engine->failed; i++)
            moved |= horon_lane_advance(engine, &engine->lanes[i]);
        if (!engine->failed && engine->in_flight)
            horon_engine_check_left(engine);
    }
    horon_engine_trace(engine);
    return moved || anything_unsent(engine);
}

bool horon_engine_begin_now(struct horon_engine *engine, struct horon_request *request)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    struct horon_lane *lane = &engine->lanes[HORON_LANE_ORDERED];
    if (lane->head || engine->failed || engine->leaving || engine->departures.any ||
        horon_engine_has_post(engine))
        return false;
    horon_engine_link(engine, request);
    horon_engine_push_ordered(engine, request);
    return true;
}

bool horon_engine_advance_ordered(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return !engine->failed && horon_lane_advance(engine, &engine->lanes[HORON_LANE_ORDERED]);
}

uint32_t horon_engine_wants(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    uint32_t bits = HORON_WAKE_ASLEEP;
    if (engine->failed)
        return bits;
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        if (engine->lanes[i].head)
            bits |= HORON_WAKE_DATA;
    if (engine->in_flight)
        bits |= HORON_WAKE_CONTROL;
    return bits;
}

size_t horon_engine_in_flight(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return engine->in_flight;
}

bool horon_engine_wants_write(const struct horon_engine *engine, int peer)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return engine->mux_of[peer] && horon_mux_wants_write(engine->mux_of[peer]);
}

int horon_engine_descriptor(const struct horon_engine *engine, int peer)
{
    const struct horon_link *link = horon_mux_link(engine->mux_of[peer]);
    return link ? link->ops->descriptor(link) : -1;
}

/* ---- failures and the end ------------------------------------------------------------------- */

void horon_engine_local_death(struct horon_engine *engine, int local_rank)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    int rank = horon_topology_rank_at(engine->topology, engine->team.host, local_rank);
    if (engine->mux_of[rank]) /* also for one that leaves: nobody reads its goodbye there */
        horon_mux_peer_gone(engine->mux_of[rank], "is gone: its process ended");
    horon_engine_check_left(engine);
    if (engine->left[rank] || engine->leaving || engine->failed)
        return;
    horon_events_tell(engine->events, HORON_EVENT_DEPARTED, 0, 0, 0, 0, rank);
    char text[256];
    snprintf(
        text, sizeof text,
        "%s is gone: its process ended without leaving the job (killed, crashed, or it exited)",
        engine->rank_names[rank]);
    horon_engine_fail(engine, HORON_ERR_PEER_LOST, text);
}

/* The others read the text as it is: what failed here says where that is. A peer's name, or both
 * sides of a mismatch, are in the text already. */
void horon_engine_fail_here(struct horon_engine *engine, horon_status_t status, const char *text)
{
    char named[HORON_ERROR_TEXT_BYTES];
    snprintf(named, sizeof named, "%.200s: %.800s", engine->rank_names[engine->topology->rank],
             text);
    horon_engine_fail(engine, status, status == HORON_ERR_MEMORY ? named : text);
}

void horon_engine_fail(struct horon_engine *engine, horon_status_t status, const char *text)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    if (engine->failed)
        return;
    horon_error_set(&engine->failure, status, "%s", text);
    atomic_store_explicit(&engine->failed, 1, memory_order_release);
    horon_events_tell(engine->events, HORON_EVENT_FAILED, 0, 0, 0, 0, status);
    /* what a rank left behind is known to all; other failures may be known to us alone */
    if (status != HORON_ERR_CLOSED)
        horon_engine_flood_abort(engine);
    HORON_LOG_INFO(engine->options.log, "the job failed: %s", text);
    horon_engine_end_all(engine, status, engine->failure.text);
}

horon_status_t horon_engine_failure(const struct horon_engine *engine, const char **text_out)
{
    if (!atomic_load_explicit(&engine->failed, memory_order_acquire))
        return HORON_OK;
    if (text_out)
        *text_out = engine->failure.text;
    return engine->failure.status;
}

void horon_engine_leave(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    if (engine->leaving)
        return;
    horon_engine_take_posts(engine);
    engine->leaving = true;
    struct horon_departures own = {.any = true};
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        own.sequence[i] = horon_channel_ended(engine->lanes[i].channel);
    own.sequence[HORON_LEFT_DECISIONS] = horon_coordinator_decisions(engine->coordinator);
    for (int i = 0; i < HORON_LEFT_COUNT; i++)
        own.culprit[i] = (uint32_t)engine->leaves_because_of;
    horon_engine_say_goodbye(engine, &own);
    horon_engine_end_all(engine, HORON_ERR_CLOSED, "this context was shut down");
}

bool horon_engine_flushed(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    for (int i = 0; i < engine->peer_count; i++)
        if (engine->mux_of[engine->peers[i]] &&
            horon_mux_wants_write(engine->mux_of[engine->peers[i]]))
            return false;
    return true;
}

size_t horon_engine_undelivered(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    size_t bytes = 0;
    for (int i = 0; i < engine->peer_count; i++)
        if (engine->mux_of[engine->peers[i]])
            bytes += horon_mux_undelivered(engine->mux_of[engine->peers[i]]);
    return bytes;
}

const struct horon_events *horon_engine_events(const struct horon_engine *engine)
{
    return engine->events;
}

const char *const *horon_engine_rank_names(const struct horon_engine *engine)
{
    return engine->rank_names;
}

struct horon_names *horon_engine_names(struct horon_engine *engine)
{
    return &engine->names;
}
