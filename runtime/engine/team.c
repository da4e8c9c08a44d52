/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams: how one is bound to the membership, its turn, and its failure. The tables of a team are
 * those of its members alone, by their place in it: coordinator and channels know no other ranks.
 */
#include "engine/messages.h"

#include "alloc.h"
#include "engine/kept.h"

/* A team lives as long as its requests, and with it what it was made with. */
struct equipped_team {
    struct horon_engine_team team;
    struct horon_backends backends;
};

struct horon_engine_team *horon_team_create(struct horon_engine *engine, uint32_t id,
                                            const struct horon_backends *backends)
{
    struct equipped_team *equipped = horon_zalloc(1, sizeof *equipped);
    if (!equipped)
        return NULL;
    struct horon_engine_team *team = &equipped->team;
    team->engine = engine;
    atomic_store_explicit(&team->refs, 1, memory_order_relaxed);
    team->id = id;
    if (backends)
        equipped->backends = *backends;
    team->backends = backends ? &equipped->backends : &engine->backends;
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        team->lanes[i].tail = &team->lanes[i].head;
    team->messages.last = &team->messages.first;
    horon_mux_ends_init(&team->messages.ends);
    return team;
}

static void move(struct horon_engine_team *team, enum horon_team_state to)
{
    static const unsigned legal[] = {
        [HORON_TEAM_UNBOUND] = 1u << HORON_TEAM_BOUND,
        [HORON_TEAM_BOUND] =
            1u << HORON_TEAM_ASKING | 1u << HORON_TEAM_READY | 1u << HORON_TEAM_UNBOUND,
        [HORON_TEAM_ASKING] = 1u << HORON_TEAM_READY | 1u << HORON_TEAM_UNBOUND,
        [HORON_TEAM_READY] = 1u << HORON_TEAM_UNBOUND};
    assert(legal[team->state] & 1u << to);
    team->state = to;
}

static bool allocate(struct horon_engine_team *team, size_t size, size_t job_size)
{
    team->ranks = horon_zalloc(size, sizeof *team->ranks);
    team->member_of = horon_zalloc(job_size, sizeof *team->member_of);
    team->rank_names = horon_zalloc(size, sizeof *team->rank_names);
    team->data_of = horon_zalloc(size, sizeof *team->data_of);
    team->ring_of = horon_zalloc(size, sizeof *team->ring_of);
    team->tree = horon_zalloc(size, sizeof *team->tree);
    team->seen = horon_zalloc(size, sizeof *team->seen);
    team->heard = horon_zalloc(size, sizeof *team->heard);
    team->leaves = horon_zalloc(size, sizeof *team->leaves);
    team->stopped_for = horon_zalloc(size, sizeof *team->stopped_for);
    team->join.joined = horon_zalloc(size, sizeof *team->join.joined);
    team->join.no_rows = horon_zalloc(size, sizeof *team->join.no_rows);
    return team->ranks && team->member_of && team->rank_names && team->data_of && team->ring_of &&
           team->tree && team->seen && team->heard && team->leaves && team->stopped_for &&
           team->join.joined && team->join.no_rows;
}

/* @return this rank's place in the team */
static int list_members(struct horon_engine_team *team, const int *ranks, int size)
{
    const struct horon_membership *membership = team->engine->membership;
    const struct horon_topology *job = membership->topology;
    for (int rank = 0; rank < job->size; rank++)
        team->member_of[rank] = -1;
    for (int i = 0; i < size; i++) {
        const int rank = ranks ? ranks[i] : i;
        assert(rank >= 0 && rank < job->size);
        assert(team->member_of[rank] < 0); /* each once */
        team->ranks[i] = rank;
        team->member_of[rank] = i;
        team->rank_names[i] = membership->rank_names[rank];
    }
    return team->member_of[job->rank];
}

/* horon_team.connect. What one that left has sent before is taken from its link, also when that has
 * ended; what it has not carried out ends with its goodbye. */
static horon_status_t connect_member(void *arg, int rank, struct horon_error *error)
{
    struct horon_engine_team *team = arg;
    const struct horon_membership *membership = team->engine->membership;
    const int job_rank = team->ranks[rank];
    const bool left = membership->left[job_rank];
    horon_status_t status = HORON_AGAIN;
    if (!left)
        status = horon_engine_connect(team->engine, job_rank, error);
    else if (membership->mux_of[job_rank] || membership->dead_of[job_rank])
        status = HORON_OK;
    if (status == HORON_OK)
        team->data_of[rank] = membership->mux_of[job_rank] ? membership->mux_of[job_rank]
                                                           : membership->dead_of[job_rank];
    return status;
}

static void fill_view(struct horon_engine_team *team)
{
    const struct horon_topology *topology = &team->topology;
    const int host = topology->host_of[topology->rank];
    team->view = (struct horon_team){
        .generation = team->engine->membership->generation,
        .rank = topology->rank,
        .size = topology->size,
        .host_count = topology->host_count,
        .host = host,
        .local_rank = topology->local_rank_of[topology->rank],
        .local_size = horon_topology_host_size(topology, host),
        .crowded = horon_topology_is_crowded(topology),
        .segments = horon_topology_host_size_max(topology),
        .host_of = topology->host_of,
        .local_rank_of = topology->local_rank_of,
        .host_first = topology->host_first,
        .host_ranks = topology->host_ranks,
        .ranks = team->id == 0 ? NULL : team->ranks, /* of the job they are the same */
        .rank_names = team->rank_names,
        .mux_of = team->data_of,
        .connect = connect_member,
        .connect_arg = team,
    };
}

/* Links to other hosts are the job's, and of those only some are needed: others are found when an
 * operation asks for them. Those in shared memory are the team's own, but for the job. */
static horon_status_t find_links(struct horon_engine_team *team, struct horon_link **rings,
                                 struct horon_error *error)
{
    const struct horon_membership *membership = team->engine->membership;
    for (int rank = 0; rank < team->view.size; rank++) {
        if (horon_topology_linked(&team->topology, team->view.rank, rank))
            team->data_of[rank] = membership->mux_of[team->ranks[rank]];
        if (!rings || !rings[rank])
            continue;
        horon_status_t status = horon_membership_make_mux(membership, team->ranks[rank],
                                                          rings[rank], &team->ring_of[rank], error);
        if (status != HORON_OK)
            return status;
        rings[rank] = NULL; /* the mux's now */
    }
    return HORON_OK;
}

static horon_status_t create_coordinator(struct horon_engine_team *team)
{
    const struct horon_topology *topology = &team->topology;
    const struct horon_config *config = team->engine->options.config;
    const int parent = horon_topology_parent(topology, topology->rank);
    int *children = team->tree;
    if (parent >= 0)
        *children++ = parent;
    const int child_count = horon_topology_children(topology, topology->rank, children);
    team->tree_count = child_count + (parent >= 0);
    struct horon_coordinator_options options = {
        .rank = topology->rank,
        .size = topology->size,
        .parent = parent,
        .children = children,
        .child_count = child_count,
        .cache_entries = (size_t)config->cache_entries,
        .fusion_bytes = (uint64_t)config->fusion_bytes,
        .rank_names = team->rank_names,
    };
    return horon_coordinator_create(&options, &team->coordinator);
}

/* By it data of a lane is told apart on links, which all teams share; see horon_team_of_channel().
 */
static uint32_t channel_number(uint32_t id, int lane)
{
    return id * HORON_LANE_COUNT + (uint32_t)lane;
}

void horon_engine_forget_data(struct horon_engine *engine, uint32_t id, int peer)
{
    struct horon_mux *mux = engine->membership->mux_of[peer];
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        horon_mux_forget_channel(mux, channel_number(id, i));
    horon_mux_forget_channel(mux, horon_team_message_channel(id));
}

bool horon_engine_channel_is_over(void *arg, uint32_t channel)
{
    const struct horon_engine *engine = arg;
    const uint32_t id = horon_team_of_channel(channel);
    const struct horon_engine_team *team = horon_engine_find_team(engine, id);
    return team ? team->failed : id <= engine->newest_team; /* no number is used again */
}

/* The job's channels are used as long as its links. */
static void forget_all_data(struct horon_engine_team *team)
{
    for (int rank = 0; team->id != 0 && team->ranks && rank < team->view.size; rank++)
        horon_engine_forget_data(team->engine, team->id, team->ranks[rank]);
}

static horon_status_t create_routes(struct horon_engine_team *team)
{
    const struct horon_engine_options *engine = &team->engine->options;
    const struct horon_config *config = engine->config;
    horon_status_t status = HORON_OK;
    for (int i = 0; i < HORON_LANE_COUNT && status == HORON_OK; i++) {
        const struct horon_route_options options = {
            .backends = team->backends,
            .channel =
                {
                    .channel = channel_number(team->id, i),
                    .arena_at = horon_engine_arena_at(&team->host->shape, i),
                    .net_chunk_bytes = (size_t)config->net_chunk_bytes,
                    .net_algorithm = config->net_algorithm,
                    .lend_bytes = (size_t)config->shm_lend_bytes,
                    .owner = engine->owner,
                },
            .deterministic = config->deterministic,
            .in_order = i == HORON_LANE_ORDERED,
            .tickets = &team->engine->tickets,
            .poller = engine->poller,
            .log = engine->log,
        };
        status = horon_route_init(&team->lanes[i].route, &options, &team->view, team->host);
        team->lanes[i].stuck = false;
    }
    team->messages.carrier = horon_route_carrier(&team->lanes[HORON_LANE_ORDERED].route);
    if (status == HORON_OK)
        move(team, HORON_TEAM_READY);
    return status;
}

horon_status_t horon_team_bind(struct horon_engine_team *team, const int *ranks, int size,
                               struct horon_host *host, struct horon_link **rings,
                               struct horon_error *error)
{
    horon_status_t status = HORON_ERR_MEMORY;
    assert(!team->coordinator);
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        team->lanes[i].stuck = true;
    if (allocate(team, (size_t)size, (size_t)team->engine->membership->topology->size)) {
        const int self = list_members(team, ranks, size);
        assert(self >= 0);
        team->host = host;
        if (team->id == 0)
            team->topology = *team->engine->membership->topology;
        status = team->id == 0 ? HORON_OK
                               : horon_topology_of(team->engine->membership->topology, team->ranks,
                                                   size, &team->topology, error);
    }
    if (status == HORON_OK) {
        fill_view(team);
        host->generation = team->view.generation;
        assert(host->shape.local_size == team->view.local_size);
        assert(host->local_rank == team->view.local_rank);
        status = find_links(team, rings, error);
    }
    if (status == HORON_OK)
        status = create_coordinator(team);
    if (status == HORON_OK)
        move(team, HORON_TEAM_BOUND);
    if (status == HORON_OK && host->arenas)
        status = create_routes(team);
    if (status != HORON_OK)
        horon_team_unbind(team);
    return status;
}

void horon_team_unbind(struct horon_engine_team *team)
{
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        horon_route_deinit(&team->lanes[i].route);
        team->lanes[i].running = 0;
    }
    horon_kept_drop(team);
    horon_coordinator_destroy(team->coordinator);
    team->coordinator = NULL;
    horon_team_unbind_messages(team);
    if (team->state != HORON_TEAM_UNBOUND) /* else binding it has failed */
        move(team, HORON_TEAM_UNBOUND);
    for (int rank = 0; team->ring_of && rank < team->view.size; rank++)
        horon_mux_destroy(team->ring_of[rank]);
    forget_all_data(team);
    if (team->id != 0)
        horon_topology_deinit(&team->topology);
    horon_free(team->ranks);
    horon_free(team->member_of);
    horon_free(team->rank_names);
    horon_free(team->data_of);
    horon_free(team->ring_of);
    horon_free(team->tree);
    horon_free(team->seen);
    horon_free(team->heard);
    horon_free(team->leaves);
    horon_free(team->stopped_for);
    horon_free(team->join.joined);
    horon_free(team->join.no_rows);
    team->join.joined = NULL;
    team->join.no_rows = NULL;
    team->join.count = 0;
    team->ranks = team->member_of = team->tree = team->stopped_for = NULL;
    team->rank_names = NULL;
    team->data_of = team->ring_of = NULL;
    team->seen = NULL;
    team->heard = NULL;
    team->leaves = NULL;
    team->tree_count = 0;
}

void horon_team_destroy(struct horon_engine_team *team)
{
    if (!team)
        return;
    assert(!team->oldest);
    horon_team_unbind(team);
    if (team->id == 0)
        horon_free(team);
    else
        horon_team_unref(team);
}

/* The job's lives as long as the context, which all of its requests keep. */
void horon_team_ref(struct horon_engine_team *team)
{
    if (team->id != 0)
        atomic_fetch_add_explicit(&team->refs, 1, memory_order_relaxed);
}

void horon_team_unref(struct horon_engine_team *team)
{
    if (team->id == 0)
        return;
    const uint32_t before = atomic_fetch_sub_explicit(&team->refs, 1, memory_order_acq_rel);
    assert(before >= 1);
    if (before != 1)
        return;
    assert(!horon_team_is_bound(team));
    horon_free(team);
}

/* ---- turns ---------------------------------------------------------------------------------- */

struct horon_mux *horon_team_mux(const struct horon_engine_team *team, int rank)
{
    assert(rank >= 0 && rank < team->view.size);
    if (team->id != 0 && team->topology.host_of[rank] == team->view.host)
        return team->ring_of[rank];
    return team->engine->membership->mux_of[team->ranks[rank]];
}

bool horon_team_move_rings(struct horon_engine_team *team)
{
    bool moved = false;
    for (int i = 0; i < team->tree_count; i++) {
        const int rank = team->tree[i];
        struct horon_mux *mux = team->ring_of[rank];
        if (!mux || !horon_mux_wants_turn(mux))
            continue;
        struct horon_error error = {0};
        horon_status_t status = horon_mux_progress(mux, &moved, &error);
        if (status >= 0)
            continue;
        moved = true;
        team->ring_of[rank] = NULL;
        horon_mux_destroy(mux);
        if (!horon_team_has_heard(team, rank)) /* else it has removed the team */
            horon_team_lose_rank(team, team->ranks[rank], &error);
    }
    return moved;
}

bool horon_team_rings_unsent(const struct horon_engine_team *team, bool even_if_full)
{
    for (int i = 0; i < team->tree_count; i++) {
        const struct horon_mux *mux = team->ring_of[team->tree[i]];
        if (mux && (even_if_full ? horon_mux_wants_write(mux) : horon_mux_has_unsent(mux)))
            return true;
    }
    return false;
}

HORON_SELDOM static void want_arenas(struct horon_engine_team *team)
{
    const struct horon_engine_options *options = &team->engine->options;
    struct horon_error error = {0};
    bool wanted = false;
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        wanted |= team->lanes[i].head != NULL;
    if (!wanted || team->state != HORON_TEAM_BOUND)
        return;
    assert(options->make_arenas);
    move(team, HORON_TEAM_ASKING);
    if (options->make_arenas(options->arg, team, &error) != HORON_OK)
        horon_team_fail_here(team, &error);
}

void horon_team_give_arenas(struct horon_engine_team *team, uint8_t *const *arenas)
{
    HORON_ASSERT_OWNER(team->engine->options.owner);
    assert(team->state == HORON_TEAM_ASKING);
    if (team->failed)
        return;
    team->host->arenas = arenas;
    if (create_routes(team) != HORON_OK)
        horon_team_lacks_memory(team, "no memory for the channels of a team");
}

/* What a rank of this host said before it failed came over its link, and may lie there. */
static bool check_left(struct horon_engine_team *team)
{
    bool moved = false;
    if (atomic_load_explicit(&horon_host_aborts(team->host)->claimed, memory_order_acquire))
        moved = horon_engine_move_links(team->engine);
    horon_team_check_left(team);
    return moved;
}

bool horon_team_progress(struct horon_engine_team *team)
{
    if (team->failed)
        return false;
    bool moved = horon_team_coordinate(team);
    if (team->state != HORON_TEAM_READY)
        want_arenas(team);
    if (team->departures.any || !team->oldest)
        moved |= check_left(team); /* before an operation meets a link that is gone */
    for (int i = 0; i < HORON_LANE_COUNT && !team->failed; i++)
        moved |= horon_lane_advance(team, &team->lanes[i]);
    if (!team->failed && team->messages.first)
        moved |= horon_team_move_messages(team);
    if (!team->failed && team->oldest)
        moved |= check_left(team);
    return moved;
}

uint64_t horon_team_interval_ns(const struct horon_engine_team *team)
{
    uint64_t least = 0;
    for (int i = 0; i < HORON_LANE_COUNT && !team->failed; i++) {
        const uint64_t interval = horon_route_interval_ns(&team->lanes[i].route);
        if (interval && (!least || interval < least))
            least = interval;
    }
    return least;
}

uint32_t horon_team_wants(const struct horon_engine_team *team)
{
    uint32_t bits = 0;
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        if (team->lanes[i].head)
            bits |= HORON_WAKE_DATA;
    if (team->oldest)
        bits |= HORON_WAKE_CONTROL;
    return bits;
}

/* ---- failures and the end ------------------------------------------------------------------- */

/* The other ranks read the text as it is, so a failure of this rank must name it. If the text is
 * about a peer, or about both sides of a mismatch, it has their names already. */
void horon_team_fail_here(struct horon_engine_team *team, const struct horon_error *why)
{
    struct horon_error named;
    if (why->status != HORON_ERR_MEMORY) {
        horon_team_fail(team, why);
        return;
    }
    horon_error_set(&named, why->status, "%.200s: %.800s", team->rank_names[team->view.rank],
                    why->text);
    named.blame.rank = team->ranks[team->view.rank];
    horon_team_fail(team, &named);
}

void horon_team_lacks_memory(struct horon_engine_team *team, const char *text)
{
    struct horon_error error;
    horon_error_set(&error, HORON_ERR_MEMORY, "%s", text);
    horon_team_fail_here(team, &error);
}

/* @param why  if it has not failed yet */
static void end(struct horon_engine_team *team, enum horon_team_end how,
                const struct horon_error *why)
{
    static const unsigned legal[] = {
        [HORON_TEAM_LIVES] = 1u << HORON_TEAM_FAILED | 1u << HORON_TEAM_REMOVED,
        [HORON_TEAM_FAILED] = 1u << HORON_TEAM_REMOVED,
        [HORON_TEAM_REMOVED] = 1u << HORON_TEAM_REMOVED}; /* the engine closes before it is freed */
    assert(legal[team->failed] & 1u << how);
    if (team->failed == HORON_TEAM_LIVES) {
        assert(why->status < 0);
        assert(why->text[0]);
        team->failure = *why;
    }
    atomic_store_explicit(&team->failed, how, memory_order_release);
}

/* How far this rank got. Decisions that count below go out: ranks behind this one hear of them from
 * it alone. */
static struct horon_departures done_here(struct horon_engine_team *team)
{
    struct horon_departures own = {.any = true};
    if (horon_coordinator_flush(team->coordinator, false) == HORON_OK)
        horon_team_send_coordinator(team);
    for (int i = 0; i < HORON_LANE_COUNT; i++)
        own.sequence[i] = horon_route_ended(&team->lanes[i].route);
    own.sequence[HORON_LEFT_DECISIONS] = horon_coordinator_decisions(team->coordinator);
    for (int i = 0; i < HORON_LEFT_COUNT; i++)
        own.culprit[i] = (uint32_t)horon_team_cause_to_leave(team);
    return own;
}

void horon_team_fail(struct horon_engine_team *team, const struct horon_error *why)
{
    const struct horon_engine_options *options = &team->engine->options;
    HORON_ASSERT_OWNER(options->owner);
    if (team->failed)
        return;
    end(team, HORON_TEAM_FAILED, why);
    if (team->id == 0 && options->failed)
        options->failed(options->arg, &team->failure);
    /* before anybody else knows: there may be no time left. A rank that exits has said it itself */
    const bool is_last = why->status == HORON_ERR_PEER_LOST && options->launcher.ends_all &&
                         why->blame.cause != HORON_CAUSE_EXITING;
    if (team->id == 0)
        HORON_LOG_AT(options->log, is_last ? HORON_LOG_WARN : HORON_LOG_INFO, "the job failed: %s",
                     why->text);
    else
        HORON_LOG_INFO(options->log, "team %u failed: %s", team->id, why->text);
    horon_events_add(team->engine->events, HORON_EVENT_FAILED, team->id, 0, 0, 0, why->status);
    /* That a rank has left is known to all, and what can still end without it is to end: so others
     * need to know only how far this rank got. Another failure may be known to this rank alone. */
    if (why->status == HORON_ERR_CLOSED) {
        const struct horon_departures own = done_here(team);
        horon_team_say_stopped(team, &own);
    } else {
        horon_team_flood_abort(team);
    }
    horon_team_end_all(team, &team->failure);
}

void horon_team_end_removed(struct horon_engine_team *team)
{
    struct horon_error removed;
    horon_error_set(&removed, HORON_ERR_CLOSED, "its process set was removed");
    end(team, HORON_TEAM_REMOVED, &removed);
    horon_team_end_all(team, &removed);
    forget_all_data(team); /* a peer that has heard the goodbye takes nothing more of it */
}

void horon_team_give_up(struct horon_engine_team *team, const struct horon_error *why)
{
    assert(!horon_team_is_bound(team));
    end(team, HORON_TEAM_FAILED, why);
    horon_team_end_all(team, &team->failure);
}

bool horon_team_uses_link(const struct horon_engine_team *team, int job_rank)
{
    const int rank = horon_team_is_bound(team) ? team->member_of[job_rank] : -1;
    return rank >= 0 && team->data_of[rank];
}

void horon_team_lose_rank(struct horon_engine_team *team, int job_rank,
                          const struct horon_error *why)
{
    const struct horon_engine *engine = team->engine;
    const int rank = horon_team_is_bound(team) ? team->member_of[job_rank] : -1;
    if (rank < 0)
        return;
    assert(rank != team->view.rank);
    if (engine->membership->left[job_rank])
        return; /* what it sent before is still taken from its mux by operations that need it */
    if (!engine->membership->mux_of[job_rank])
        team->data_of[rank] = NULL;
    if (!engine->leaving)
        horon_team_fail_here(team, why);
}

void horon_team_end_requests(struct horon_engine_team *team)
{
    struct horon_error closed;
    if (!horon_team_is_bound(team))
        return;
    horon_error_set(&closed, HORON_ERR_CLOSED, "this context was shut down");
    closed.blame.rank = team->ranks[team->view.rank];
    horon_team_end_all(team, &closed);
}

void horon_team_leave(struct horon_engine_team *team, bool leaves_job)
{
    if (!horon_team_is_bound(team))
        return;
    const struct horon_departures own = done_here(team);
    horon_team_say_goodbye(team, &own, leaves_job);
}
