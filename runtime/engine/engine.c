/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: assembles membership and teams of one rank, and turns them. A turn takes what was
 * posted, moves messages, and gives each team its turn: its coordinator decides, its lanes advance;
 * each part is bounded. It never waits; the context's threads do that around it.
 */
#include "engine/messages.h"

#include "alloc.h"
#include "engine/backends.h"

#include <stdio.h>
#include <string.h>

static void free_pool(struct horon_engine *engine)
{
    while (engine->pool) {
        struct horon_work *work = engine->pool;
        engine->pool = work->next;
        horon_work_free(work);
    }
}

void horon_engine_free_early(struct horon_engine *engine)
{
    while (engine->early) {
        struct horon_early *early = engine->early;
        engine->early = early->next;
        horon_free(early);
    }
    engine->early_tail = &engine->early;
    engine->early_bytes = 0;
}

void horon_engine_free_team(struct horon_engine *engine, struct horon_engine_team *team)
{
    struct horon_engine_team **link = &engine->job;
    assert(team != engine->job);
    while (*link != team)
        link = &(*link)->next;
    *link = team->next;
    horon_team_destroy(team);
}

/* Also where a rank left that another one waits for. */
static bool is_in_peace(const struct horon_engine_team *job)
{
    const struct horon_error *failure = job ? horon_team_failure(job) : NULL;
    return !failure || failure->blame.cause == HORON_CAUSE_LEFT;
}

void horon_engine_close(struct horon_engine *engine)
{
    if (!engine)
        return;
    if (engine->job && engine->job->coordinator)
        horon_engine_close_mailbox(engine);
    while (engine->job && engine->job->next) {
        horon_team_end_removed(engine->job->next);
        horon_engine_free_team(engine, engine->job->next);
    }
    if (engine->job)
        horon_team_unbind(engine->job); /* its failure can still be asked for */
    horon_membership_destroy(engine->membership);
    engine->membership = NULL;
    free_pool(engine);
    horon_engine_free_neutrals(engine);
    horon_events_destroy(engine->events);
    engine->events = NULL;
    horon_engine_free_early(engine);
    horon_free(engine->message);
    engine->message = NULL;
    const bool in_peace = is_in_peace(engine->job) && !engine->heard_gave_up;
    horon_backends_leave(&engine->backends, in_peace); /* requests keep memory */
}

void horon_engine_destroy(struct horon_engine *engine)
{
    if (!engine)
        return;
    horon_engine_close(engine);
    horon_team_destroy(engine->job);
    horon_names_deinit(&engine->names);
    /* a submitting thread may ask them until now */
    horon_backends_close(&engine->backends, true);
    horon_free(engine);
}

horon_status_t horon_engine_create_membership(struct horon_engine *engine,
                                              struct horon_membership **membership_out,
                                              struct horon_error *error)
{
    const struct horon_membership_options membership = {
        .topology = engine->options.topology,
        .links = engine->options.links,
        .poller = engine->options.poller,
        .generation = engine->options.generation,
        .config = engine->options.config,
        .owner = engine->options.owner,
        .on_control = horon_engine_on_control,
        .on_announced = horon_engine_on_announced,
        .is_over = horon_engine_channel_is_over,
        .arg = engine,
    };
    return horon_membership_create(&membership, membership_out, error);
}

static void drop_links(const struct horon_engine_options *options)
{
    for (int rank = 0; rank < options->topology->size; rank++) {
        if (options->links[rank])
            options->links[rank]->ops->destroy(options->links[rank]);
        options->links[rank] = NULL;
    }
}

void horon_engine_say_linked(struct horon_engine *engine)
{
    const struct horon_membership *membership = engine->membership;
    for (int i = 0; i < membership->peer_count; i++)
        if (!membership->mutual[membership->peers[i]])
            horon_engine_send_linked(engine, membership->peers[i]);
}

horon_status_t horon_engine_create(const struct horon_engine_options *options,
                                   struct horon_engine **engine_out, struct horon_error *error)
{
    horon_status_t status = HORON_ERR_MEMORY;
    struct horon_engine *engine = horon_zalloc(1, sizeof *engine);
    if (!engine)
        goto done;
    engine->options = *options;
    engine->early_tail = &engine->early;
    engine->events = horon_events_create(options->now_ns, options->now_arg);
    engine->message = horon_alloc(HORON_CONTROL_BYTES_MAX);
    engine->job = horon_team_create(engine, 0, NULL);
    if (!engine->events || !engine->message || !engine->job)
        goto done;
    status = horon_names_init(&engine->names, (size_t)options->config->cache_entries);
    if (status == HORON_OK)
        status = horon_engine_open_backends(engine, error);
    if (status == HORON_OK)
        status = horon_engine_create_membership(engine, &engine->membership, error);
    if (status == HORON_OK)
        status =
            horon_team_bind(engine->job, NULL, options->topology->size, options->host, NULL, error);
    if (status != HORON_OK)
        goto done;
    horon_engine_say_linked(engine);
    *engine_out = engine;
    engine = NULL;
done:
    if (status != HORON_OK && error && !error->text[0])
        horon_error_set(error, status, "no memory for the engine");
    horon_engine_destroy(engine);
    drop_links(options);
    return status;
}

/* ---- teams ---------------------------------------------------------------------------------- */

struct horon_engine_team *horon_engine_job(const struct horon_engine *engine)
{
    return engine->job;
}

struct horon_engine_team *horon_engine_find_team(const struct horon_engine *engine, uint32_t id)
{
    struct horon_engine_team *team = engine->job;
    while (team && team->id != id)
        team = team->next;
    return team;
}

/* ---- links ---------------------------------------------------------------------------------- */

static const char process_ended[] = "is gone: its process ended";

bool horon_engine_may_link(const struct horon_engine *engine, int rank)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return !engine->leaving && horon_membership_may_link(engine->membership, rank);
}

horon_status_t horon_engine_connect(struct horon_engine *engine, int rank,
                                    struct horon_error *error)
{
    struct horon_membership *membership = engine->membership;
    const char *name = membership->rank_names[rank];
    const enum horon_peer_state state = membership->states[rank];
    HORON_ASSERT_OWNER(engine->options.owner);
    assert(rank != membership->topology->rank);
    if (state == HORON_PEER_LINKED)
        return HORON_OK;
    if (state == HORON_PEER_CONNECTING)
        return HORON_AGAIN;
    if (state == HORON_PEER_UNREACHED)
        return horon_membership_take_failure(membership, rank, error);
    if (!horon_engine_may_link(engine, rank) || membership->left[rank])
        return horon_error_set(error, HORON_ERR_PEER_LOST, "%s is gone", name);
    if (!engine->options.connect)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED, "no link to %s can be made", name);
    const horon_status_t status = engine->options.connect(engine->options.arg, rank, error);
    if (status == HORON_OK)
        horon_membership_expect_link(membership, rank);
    return status == HORON_OK ? HORON_AGAIN : status;
}

void horon_engine_not_connected(struct horon_engine *engine, int rank,
                                const struct horon_error *why)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    horon_membership_lack_link(engine->membership, rank, why);
}

horon_status_t horon_engine_add_link(struct horon_engine *engine, int rank, struct horon_link *link,
                                     struct horon_error *error)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    const horon_status_t status = horon_membership_add_link(engine->membership, rank, link, error);
    if (status == HORON_OK)
        horon_engine_send_linked(engine, rank);
    for (struct horon_engine_team *team = engine->job; status == HORON_OK && team;
         team = team->next)
        horon_team_on_new_link(team, rank);
    if (status == HORON_OK && engine->membership->gone[rank]) /* a ring does not say so itself */
        horon_mux_peer_gone(engine->membership->mux_of[rank], process_ended);
    return status;
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* Was the link closed before its other side had it? That rank left the job, or gave up its own try
 * to connect, and need not have told this rank: what needs the link tries again. */
static bool was_never_taken(const struct horon_membership *membership, int peer,
                            const struct horon_error *error)
{
    return !membership->mutual[peer] && !membership->left[peer] && !membership->gone[peer] &&
           error->blame.cause == HORON_CAUSE_DIED;
}

/* A try that has failed, for all that counted on it. */
HORON_SELDOM static void drop_link(struct horon_engine *engine, int peer)
{
    struct horon_membership *membership = engine->membership;
    struct horon_mux *mux = horon_membership_take_link(membership, peer);
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_PEER_LOST,
                    "cannot connect to %s, tried a connection, which it closed: it is gone, or "
                    "leaves the job",
                    membership->rank_names[peer]);
    horon_error_blame_both(&why, why.blame.cause, membership->topology->rank, peer);
    HORON_LOG_DEBUG(engine->options.log, "%s", why.text);
    for (struct horon_engine_team *team = engine->job; team; team = team->next)
        if (horon_team_uses_link(team, peer))
            horon_team_lose_rank(team, peer, &why);
    horon_mux_destroy(mux);
}

static void mux_failed(struct horon_engine *engine, int peer, const struct horon_error *error)
{
    engine->heard = true;
    if (was_never_taken(engine->membership, peer, error)) {
        drop_link(engine, peer);
        return;
    }
    horon_membership_lose_link(engine->membership, peer);
    for (struct horon_engine_team *team = engine->job; team; team = team->next) {
        if (!engine->leaving && horon_team_is_bound(team))
            horon_team_hear_host(team); /* where that rank may have said why */
        horon_team_lose_rank(team, peer, error);
    }
}

/* Apart from the loop, which needs no room for an error where no link has anything to do. */
__attribute__((noinline)) bool horon_engine_move_link(struct horon_engine *engine, int peer)
{
    bool moved = false;
    struct horon_error error; /* set if it fails */
    horon_error_clear(&error);
    if (horon_mux_progress(engine->membership->mux_of[peer], &moved, &error) >= 0)
        return moved;
    mux_failed(engine, peer, &error);
    return true;
}

bool horon_engine_move_links(struct horon_engine *engine)
{
    const struct horon_membership *membership = engine->membership;
    bool moved = false;
    if (engine->options.poller)
        horon_poller_look(engine->options.poller);
    for (int i = 0; i < membership->peer_count; i++) {
        int peer = membership->peers[i];
        struct horon_mux *mux = membership->mux_of[peer];
        if (mux && horon_mux_wants_turn(mux))
            moved |= horon_engine_move_link(engine, peer);
    }
    for (struct horon_engine_team *team = engine->job->next; team; team = team->next)
        moved |= horon_team_move_rings(team);
    return moved;
}

/* What came in when a team's turn was over may be for others to hear, too. */
static bool has_unsaid(const struct horon_engine_team *team)
{
    return team->coordinator_dirty && !team->failed && !team->engine->leaving;
}

bool horon_engine_has_unsent(const struct horon_engine *engine)
{
    const struct horon_membership *membership = engine->membership;
    HORON_ASSERT_OWNER(engine->options.owner);
    for (int i = 0; i < membership->peer_count; i++) {
        const struct horon_mux *mux = membership->mux_of[membership->peers[i]];
        if (mux && horon_mux_has_unsent(mux))
            return true;
    }
    for (struct horon_engine_team *team = engine->job; team; team = team->next)
        if (has_unsaid(team) || horon_team_rings_unsent(team, false))
            return true;
    return false;
}

/* A program that waits for nothing may make the last call of a library itself: no turns then. */
static void settle(struct horon_engine *engine)
{
    const bool waits = horon_engine_in_flight(engine) > 0;
    if (engine->backends.count < 2)
        return; /* ours alone, which keeps nothing: a turn may have hundreds of teams */
    for (struct horon_engine_team *team = engine->job; team; team = team->next)
        for (int i = 0; i < HORON_LANE_COUNT && !team->failed; i++)
            horon_route_settle(&team->lanes[i].route, waits);
}

bool horon_engine_progress(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    horon_events_turn(engine->events);
    const uint64_t changes = engine->membership->changes;
    bool moved = horon_engine_take_posts(engine);
    moved |= horon_engine_move_links(engine);
    /* a rank that leaves has ended its requests: what is decided about them concerns nobody here */
    for (struct horon_engine_team *team = engine->job; team && !engine->leaving; team = team->next)
        moved |= horon_team_progress(team);
    settle(engine);
    moved |= engine->membership->changes != changes; /* a message may have waited for it */
    if (horon_log_wants(engine->options.log, HORON_LOG_TRACE))
        horon_engine_trace(engine);
    return moved || horon_engine_has_unsent(engine);
}

horon_status_t horon_engine_run_now(struct horon_engine *engine, struct horon_request *request)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    const struct horon_engine_team *team = request->team;
    if (team->lanes[HORON_LANE_ORDERED].head || team->failed || engine->leaving ||
        team->departures.any || team->joining || horon_engine_has_post(engine))
        return HORON_AGAIN;
    return horon_team_run_ordered(request->team, request);
}

bool horon_engine_runs_by_flags(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return engine->membership->topology->host_count == 1 && engine->backends.count == 1;
}

uint32_t horon_engine_wants(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    uint32_t bits = HORON_WAKE_ASLEEP;
    for (const struct horon_engine_team *team = engine->job; team; team = team->next)
        bits |= horon_team_wants(team);
    return bits;
}

uint64_t horon_engine_interval_ns(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    uint64_t least = 0;
    for (const struct horon_engine_team *team = engine->job; team; team = team->next) {
        const uint64_t interval = horon_team_interval_ns(team);
        if (interval && (!least || interval < least))
            least = interval;
    }
    return least;
}

bool horon_engine_needs_thread(const struct horon_engine *engine)
{
    return horon_backends_need_thread(&engine->backends);
}

bool horon_engine_is_mixed(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return horon_backends_are_mixed(&engine->backends);
}

size_t horon_engine_in_flight(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return atomic_load_explicit(&engine->in_flight, memory_order_relaxed);
}

/* Has the poller found what no turn has taken yet? A thread that falls asleep on it is not told
 * again. */
static bool has_input(const struct horon_mux *mux)
{
    const struct horon_link *link = horon_mux_link(mux);
    return link->ops->descriptor(link) >= 0 && link->ops->ready(link);
}

bool horon_engine_leaves_work(const struct horon_engine *engine, bool even_if_full)
{
    const struct horon_membership *membership = engine->membership;
    HORON_ASSERT_OWNER(engine->options.owner);
    for (int i = 0; i < membership->peer_count; i++) {
        const struct horon_mux *mux = membership->mux_of[membership->peers[i]];
        if (mux && (horon_mux_leaves_work(mux, even_if_full) || has_input(mux)))
            return true;
    }
    for (const struct horon_engine_team *team = engine->job; team; team = team->next)
        if (has_unsaid(team) || horon_team_rings_unsent(team, even_if_full))
            return true;
    return false;
}

/* ---- failures and the end ------------------------------------------------------------------- */

void horon_engine_exit(struct horon_engine *engine, const char *reason)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    const struct horon_membership *membership = engine->membership;
    const int self = membership->topology->rank;
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_PEER_LOST, "%.200s is exiting: %.700s",
                    membership->rank_names[self], reason);
    horon_text_clean(why.text, "\n\t"); /* an exception's text may hold anything */
    horon_error_blame(&why, HORON_CAUSE_EXITING, self, -1);
    horon_engine_fail(engine, &why);
}

bool horon_engine_is_linked(const struct horon_engine *engine, int rank)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return engine->membership->mux_of[rank] != NULL;
}

bool horon_engine_has_left(const struct horon_engine *engine, int rank)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    return engine->membership->left[rank];
}

bool horon_engine_misses_rank(const struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    const struct horon_membership *membership = engine->membership;
    const struct horon_topology *topology = membership->topology;
    const int *host_of = topology->host_of;
    bool gone = engine->saw_end;
    for (int rank = 0; rank < topology->size && !gone; rank++)
        gone = host_of[rank] != host_of[topology->rank] &&
               (membership->left[rank] || membership->gone[rank]);
    return gone;
}

/* What a rank of this host said before it failed came over its link, and may lie there: a death is
 * told before the links have their turn. */
static void hear_what_failed(struct horon_engine *engine)
{
    for (struct horon_engine_team *team = engine->job; team; team = team->next) {
        if (!horon_team_is_bound(team) ||
            !atomic_load_explicit(&horon_host_aborts(team->host)->claimed, memory_order_acquire))
            continue;
        horon_engine_move_links(engine);
        return;
    }
}

void horon_engine_local_death(struct horon_engine *engine, int local_rank, bool ended,
                              const char *how)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    engine->saw_end |= ended;
    if (!engine->leaving)
        hear_what_failed(engine);
    const struct horon_membership *membership = engine->membership;
    const int rank = horon_topology_rank_here(membership->topology, local_rank);
    membership->gone[rank] = true;
    if (membership->mux_of[rank]) /* also for one that leaves: nobody reads its goodbye there */
        horon_mux_peer_gone(membership->mux_of[rank], process_ended);
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_PEER_LOST, "%s is gone: %s", membership->rank_names[rank], how);
    horon_error_blame(&why, HORON_CAUSE_DIED, rank, -1);
    for (struct horon_engine_team *team = engine->job; team; team = team->next) {
        if (!horon_team_is_bound(team) || team->member_of[rank] < 0)
            continue;
        if (team->ring_of[team->member_of[rank]])
            horon_mux_peer_gone(team->ring_of[team->member_of[rank]], process_ended);
        horon_team_check_left(team);
        if (team == engine->job && !membership->left[rank])
            horon_events_add(engine->events, HORON_EVENT_DEPARTED, 0, 0, 0, 0, rank);
        horon_team_lose_rank(team, rank, &why);
    }
}

void horon_engine_fail(struct horon_engine *engine, const struct horon_error *why)
{
    for (struct horon_engine_team *team = engine->job; team; team = team->next)
        horon_team_fail(team, why);
}

const struct horon_error *horon_engine_failure(const struct horon_engine *engine)
{
    return horon_team_failure(engine->job);
}

void horon_engine_end_requests(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    if (engine->leaving)
        return;
    horon_engine_take_posts(engine);
    engine->leaving = true;
    for (struct horon_engine_team *team = engine->job; team; team = team->next)
        horon_team_end_requests(team);
}

void horon_engine_leave(struct horon_engine *engine)
{
    horon_engine_end_requests(engine);
    if (engine->said_goodbye)
        return;
    engine->said_goodbye = true;
    horon_engine_say_gave_up(engine);
    /* the job last: its goodbye is the end of a link */
    for (struct horon_engine_team *team = engine->job->next; team; team = team->next)
        horon_team_leave(team, true);
    horon_team_leave(engine->job, true);
}

bool horon_engine_flushed(const struct horon_engine *engine)
{
    const struct horon_membership *membership = engine->membership;
    HORON_ASSERT_OWNER(engine->options.owner);
    for (int i = 0; i < membership->peer_count; i++) {
        const struct horon_mux *mux = membership->mux_of[membership->peers[i]];
        if (mux && horon_mux_wants_write(mux))
            return false;
    }
    for (const struct horon_engine_team *team = engine->job->next; team; team = team->next)
        if (horon_team_rings_unsent(team, true))
            return false;
    return true;
}

size_t horon_engine_undelivered(const struct horon_engine *engine)
{
    const struct horon_membership *membership = engine->membership;
    HORON_ASSERT_OWNER(engine->options.owner);
    size_t bytes = !horon_engine_flushed(engine); /* rings of teams count, too */
    for (int i = 0; i < membership->peer_count; i++)
        bytes += horon_mux_undelivered(membership->mux_of[membership->peers[i]]);
    return bytes + horon_backends_undelivered(&engine->backends);
}

void horon_engine_check_links(struct horon_engine *engine)
{
    const struct horon_membership *membership = engine->membership;
    HORON_ASSERT_OWNER(engine->options.owner);
    for (int i = 0; i < membership->peer_count; i++)
        horon_mux_check(membership->mux_of[membership->peers[i]]);
    horon_backends_check(&engine->backends);
}

struct horon_events *horon_engine_events(const struct horon_engine *engine)
{
    return engine->events;
}

const char *const *horon_engine_rank_names(const struct horon_engine *engine)
{
    return engine->membership->rank_names;
}

struct horon_names *horon_engine_names(struct horon_engine *engine)
{
    return &engine->names;
}
