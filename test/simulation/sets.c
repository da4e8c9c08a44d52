/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process sets: what process_sets.c and teams.c of the runtime do with threads that wait, done in
 * steps. All ranks of the job go through the same list of changes, each in its own time, beside
 * its operations: they propose one to each other, the members of a set make its team, and all tell
 * each other whether they could. The table of sets, the proposals and the engine are the product's.
 *
 * Of some changes one rank thinks otherwise: it refuses, proposes another, or cannot make the team.
 * Then all ranks fail alike, and go on with the next. Some sets are removed when their operations
 * are through, others with whatever is in flight. Once the job has failed nothing changes any more,
 * and what was being added is dropped; the sets that are there work on.
 */
#undef NDEBUG
#include "simulation/sets.h"
#include "simulation/teams.h"

#include "alloc.h"
#include "coordinator/sets.h"
#include "engine/engine_state.h"
#include "link/mux_internal.h"
#include "verbs.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As PEER_TIMEOUT: what a rank does with its own alone takes less. */
#define WAIT_MAX (60000 * SIM_MS)
#define LOOK_MIN UINT64_C(50000)
#define LOOK_MAX (100 * SIM_MS)

enum stage { STAGE_IDLE, STAGE_AGREEING, STAGE_MAKING, STAGE_CONFIRMING, STAGE_REMOVING };

struct sim_sets {
    struct horon_sets known;
    int next; /* change */
    enum stage stage;
    bool waits;                /* for its operations, before it removes their set */
    bool over;                 /* nothing can be changed any more */
    bool tried[SIM_TEAMS_MAX]; /* has it begun to make the team? */
    struct horon_error refusal;
    enum sim_life life[SIM_TEAMS_MAX];
    struct horon_set *set; /* that is being added, or removed */
    struct horon_request *meeting;
    uint8_t *proposal, *answers;
    size_t proposal_bytes;
    uint64_t since, pause; /* of what it looks for again and again */
};

/* ---- meeting -------------------------------------------------------------------------------- */

static void go_on_later(const struct sim_rank *rank, uint64_t within)
{
    struct simulation *sim = rank->sim;
    sim_event(sim, sim->now + sim_below(sim, within), SIM_EVENT_CHANGE, rank->rank, 0);
}

/* Tells all ranks what this one proposes. */
static void meet(struct sim_rank *rank, const char *name)
{
    struct sim_sets *sets = rank->sets;
    struct horon_error error = {0};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    assert(!sets->meeting);
    desc.verb = horon_verb_of_meetings;
    desc.name = name;
    desc.dtype = HORON_UINT8;
    desc.src = sets->proposal;
    desc.count = sets->proposal_bytes;
    desc.dst = sets->answers;
    desc.dst_count = horon_proposal_bytes_max(rank->sim->size) * (size_t)rank->sim->size;
    memset(sets->answers, 0, desc.dst_count);
    const horon_status_t status =
        horon_request_create(&rank->ctx.pool, &desc, horon_engine_job(rank->ctx.engine),
                             horon_engine_names(rank->ctx.engine), &sets->meeting, &error);
    assert(status == HORON_OK);
    sets->meeting->context = &rank->ctx;
    atomic_store(&sets->meeting->name->in_flight, true);
    atomic_fetch_add(&sets->meeting->refs, 1);
    atomic_store(&sets->meeting->state, HORON_REQUEST_FLYING);
    const bool posted = horon_engine_post(rank->ctx.engine, &sets->meeting->start);
    assert(posted);
    horon_context_notify(&rank->ctx);
    sim_trace(rank->sim, 'M', (uint64_t)rank->rank, (uint64_t)sets->next);
}

bool sim_sets_ended(struct sim_rank *rank, const struct horon_request *request)
{
    if (!rank->sets || rank->sets->meeting != request)
        return false;
    if (!rank->leaving)
        go_on_later(rank, rank->sim->think_max);
    return true;
}

/* @return false: it is still in flight */
static bool meeting_is_over(const struct sim_sets *sets)
{
    return atomic_load(&sets->meeting->state) == HORON_REQUEST_ENDED;
}

static void drop_meeting(struct sim_rank *rank)
{
    if (rank->sets->meeting)
        horon_request_destroy(&rank->ctx.pool, rank->sets->meeting,
                              horon_engine_names(rank->ctx.engine));
    rank->sets->meeting = NULL;
}

/* What the ranks decide, or why they could not. */
static horon_status_t decide(struct sim_rank *rank, uint32_t *newest, struct horon_error *error)
{
    struct sim_sets *sets = rank->sets;
    const size_t bytes = horon_proposal_bytes_max(rank->sim->size) * (size_t)rank->sim->size;
    horon_status_t status = sets->meeting->status;
    if (status == HORON_OK)
        status = horon_proposals_decide(&sets->known, sets->answers, bytes,
                                        horon_engine_rank_names(rank->ctx.engine), newest, error);
    else
        horon_error_set(error, status, "%.900s", sets->meeting->error_text);
    drop_meeting(rank);
    sim_trace(rank->sim, 'D', (uint64_t)rank->rank, (uint64_t)(uint32_t)status);
    return status;
}

static struct horon_writer begin_proposal(struct sim_sets *sets, const struct simulation *sim)
{
    return horon_writer_over(sets->proposal, horon_proposal_bytes_max(sim->size));
}

/* ---- one change ----------------------------------------------------------------------------- */

static const struct sim_change *change_of(const struct sim_rank *rank)
{
    return &rank->sim->changes[rank->sets->next];
}

static void end_change(struct sim_rank *rank)
{
    struct sim_sets *sets = rank->sets;
    sets->stage = STAGE_IDLE;
    sets->set = NULL;
    sets->next++;
    sets->refusal = (struct horon_error){0};
    if (sets->next < rank->sim->change_count) /* when some operations have begun, perhaps */
        go_on_later(rank, rank->sim->think_max * (1 + sim_below(rank->sim, 8)));
    sim_workload_look(rank);
}

/* The job has failed here. */
static void end_changes(struct sim_rank *rank)
{
    rank->sets->over = true;
    rank->sets->stage = STAGE_IDLE;
    for (int team = 1; team < rank->sim->team_count; team++)
        if (rank->sets->life[team] == SIM_LIFE_COMES)
            rank->sets->life[team] = SIM_LIFE_OVER;
    sim_workload_look(rank);
}

/* It did not go as all wanted: is that as drawn? */
static void check_failure(struct sim_rank *rank, const struct horon_error *error)
{
    static const horon_status_t expected[] = {[SIM_ILL_NOT] = HORON_OK,
                                              [SIM_ILL_REFUSES] = HORON_ERR_SYSTEM,
                                              [SIM_ILL_DIFFERS] = HORON_ERR_MISMATCH,
                                              [SIM_ILL_LACKS] = HORON_ERR_MEMORY,
                                              [SIM_ILL_FOR_ALL] = HORON_ERR_INVALID};
    const enum sim_ill ill = change_of(rank)->ill;
    rank->sim->outcome.sets_failed++;
    if (!horon_engine_failure(rank->ctx.engine) &&
        (ill == SIM_ILL_NOT || error->status != expected[ill]))
        sim_fail(rank->sim, "rank %d: change %d of process sets failed: %s: %s", rank->rank,
                 rank->sets->next, horon_status_text(error->status), error->text);
}

/* Another set of so many ranks: only what all of its bytes say tells it from the first. */
static void take_another(int32_t *ranks, size_t count)
{
    int32_t other = 0;
    while (other < (int32_t)count && ranks[other] == other)
        other++;
    ranks[count - 1] = other;
}

static void propose(struct sim_rank *rank)
{
    const struct sim_change *change = change_of(rank);
    struct sim_sets *sets = rank->sets;
    struct horon_writer out = begin_proposal(sets, rank->sim);
    struct horon_error refusal = {0};
    int32_t ranks[SIM_RANKS_MAX];
    const bool odd = change->odd == rank->rank;
    memcpy(ranks, change->ranks, sizeof ranks);
    if (odd && change->ill == SIM_ILL_REFUSES)
        horon_error_set(&refusal, HORON_ERR_SYSTEM, "it does not want to");
    else if (!change->removes &&
             horon_sets_check(&sets->known, ranks, change->count, &refusal) == HORON_OK)
        sets->set = horon_sets_make(&sets->known, ranks, change->count);
    else if (change->removes)
        sets->set = horon_sets_find(&sets->known, change->id);
    if (refusal.status != HORON_OK)
        horon_proposal_refuse(&out, &sets->known, &refusal);
    else if (change->removes && odd && change->ill == SIM_ILL_DIFFERS)
        horon_proposal_add(&out, &sets->known, &(int32_t){0}, 1, "");
    else if (change->removes)
        horon_proposal_remove(&out, &sets->known, change->id);
    else {
        if (odd && change->ill == SIM_ILL_DIFFERS)
            take_another(ranks, change->count);
        horon_proposal_add(&out, &sets->known, ranks, change->count, "");
    }
    sets->proposal_bytes = out.used;
    sets->stage = STAGE_AGREEING;
    meet(rank, "horon.process_set");
}

static void begin_change(struct sim_rank *rank)
{
    struct sim_sets *sets = rank->sets;
    if (sets->over || sets->next == rank->sim->change_count)
        return;
    const struct sim_change *change = change_of(rank);
    if (horon_engine_failure(rank->ctx.engine)) {
        end_changes(rank);
        return;
    }
    sets->waits = change->removes && change->patient && !sim_workload_through(rank, change->team);
    if (!sets->waits)
        propose(rank);
}

static void confirm(struct sim_rank *rank)
{
    struct sim_sets *sets = rank->sets;
    struct horon_writer out = begin_proposal(sets, rank->sim);
    if (sets->refusal.status == HORON_OK)
        horon_proposal_made(&out, &sets->known);
    else
        horon_proposal_refuse(&out, &sets->known, &sets->refusal);
    sets->proposal_bytes = out.used;
    sets->stage = STAGE_CONFIRMING;
    meet(rank, "horon.process_set.made");
}

/* ---- making a team -------------------------------------------------------------------------- */

static void begin_wait(struct sim_rank *rank)
{
    rank->sets->since = rank->sim->now;
    rank->sets->pause = LOOK_MIN;
}

/* @return false: it has waited for longer than anything takes */
static bool wait_on(struct sim_rank *rank)
{
    struct sim_sets *sets = rank->sets;
    if (rank->sim->now > sets->since + WAIT_MAX)
        return false;
    sets->pause = sets->pause < LOOK_MAX ? 2 * sets->pause : LOOK_MAX;
    go_on_later(rank, sets->pause);
    return true;
}

/* Of the one that makes the memory of the team on this host. @return AGAIN: it has not yet */
static horon_status_t ask_leader(const struct sim_rank *rank, int team, struct horon_error *error)
{
    const struct horon_topology *topology = sim_team_topology(rank->sim, team);
    const int member = sim_team_member(rank->sim, team, rank->rank);
    const int leader = horon_topology_rank_at(topology, topology->host_of[member], 0);
    const struct sim_rank *other = &rank->sim->ranks[sim_team_rank(rank->sim, team, leader)];
    if (!other->sets->tried[team])
        return HORON_AGAIN;
    if (other->sets->stage == STAGE_MAKING || other->sets->refusal.status == HORON_OK ||
        other->sets->next != rank->sets->next)
        return HORON_OK;
    *error = other->sets->refusal; /* which it says by a socket */
    return error->status;
}

/* @return has this rank what it needs of the others? AGAIN: not yet | why not */
static horon_status_t ask(struct sim_rank *rank, int team, struct horon_error *error)
{
    const struct horon_error *failure = horon_engine_failure(rank->ctx.engine);
    horon_status_t status = HORON_OK;
    if (failure)
        *error = *failure;
    if (failure || horon_engine_is_refused(rank->ctx.engine, (uint32_t)team, error))
        return error->status;
    for (int i = 0; i < sim_team_size(rank->sim, team); i++) {
        const int peer = sim_team_rank(rank->sim, team, i);
        horon_status_t one = HORON_OK;
        if (peer == rank->rank)
            continue;
        if (horon_engine_has_left(rank->ctx.engine, peer))
            return horon_error_set(error, HORON_ERR_CLOSED, "rank %d has left", peer);
        if (sim_team_links(rank->sim, team, rank->rank, peer))
            one = horon_engine_connect(rank->ctx.engine, peer, error);
        if (one < 0)
            return one;
        if (one != HORON_OK)
            status = one;
    }
    const horon_status_t memory = ask_leader(rank, team, error);
    return memory == HORON_OK ? status : memory;
}

static void make(struct sim_rank *rank)
{
    const struct sim_change *change = change_of(rank);
    struct sim_sets *sets = rank->sets;
    struct horon_error *refusal = &sets->refusal;
    horon_status_t status;
    if (change->ill == SIM_ILL_LACKS && change->odd == rank->rank)
        status = horon_error_set(refusal, HORON_ERR_MEMORY, "rank %d lacks memory for a team",
                                 rank->rank);
    else
        status = ask(rank, change->team, refusal);
    sets->tried[change->team] = true;
    if (status == HORON_AGAIN) {
        if (!wait_on(rank))
            sim_fail(rank->sim, "rank %d: a team cannot be made, and nobody says why", rank->rank);
        return;
    }
    if (status == HORON_OK)
        sim_team_add(rank, change->team);
    else
        horon_engine_refuse_team(rank->ctx.engine, (uint32_t)change->team,
                                 rank->sim->teams[change->team]->ranks,
                                 rank->sim->teams[change->team]->size, refusal);
    confirm(rank);
}

/* ---- removing one --------------------------------------------------------------------------- */

static void remove_team(struct sim_rank *rank, int number)
{
    struct simulation *sim = rank->sim;
    const bool unsent = horon_team_rings_unsent(rank->teams[number], true);
    if (unsent && wait_on(rank))
        return;
    if (unsent && change_of(rank)->removes) /* else it was made in vain, and has no readers */
        sim_fail(sim, "rank %d: nobody takes what it says to a team that it leaves", rank->rank);
    horon_engine_remove_team(rank->ctx.engine, rank->teams[number]);
    rank->teams[number] = NULL;
    sim_trace(sim, 'x', (uint64_t)rank->rank, (uint64_t)number);
    sim->outcome.removed++;
    if (horon_engine_failure(rank->ctx.engine))
        end_changes(rank);
    else
        end_change(rank);
}

/* Out of the table, and what this rank has of it. */
static void drop(struct sim_rank *rank)
{
    const struct sim_change *change = change_of(rank);
    struct sim_sets *sets = rank->sets;
    horon_sets_remove(&sets->known, sets->set);
    horon_free(sets->set);
    sets->set = NULL;
    sets->life[change->team] = SIM_LIFE_OVER;
    sets->stage = STAGE_REMOVING;
    begin_wait(rank);
    if (rank->teams[change->team]) {
        horon_engine_leave_team(rank->ctx.engine, rank->teams[change->team]);
        if (!rank->sim->over && rank->state != SIM_DEAD)
            go_on_later(rank, LOOK_MIN);
    } else if (horon_engine_failure(rank->ctx.engine)) {
        end_changes(rank);
    } else {
        end_change(rank);
    }
}

/* ---- the steps ------------------------------------------------------------------------------ */

static void note_agreed(struct sim_rank *rank)
{
    const struct sim_change *change = change_of(rank);
    struct sim_sets *sets = rank->sets;
    struct horon_error error = {0};
    uint32_t newest = 0;
    if (decide(rank, &newest, &error) != HORON_OK) {
        check_failure(rank, &error);
        if (!change->removes)
            horon_free(sets->set);
        sets->set = NULL;
        if (horon_engine_failure(rank->ctx.engine))
            end_changes(rank);
        else
            end_change(rank);
        return;
    }
    sets->known.newest_team = newest + 1;
    if (change->ill != SIM_ILL_NOT && change->ill != SIM_ILL_LACKS)
        sim_fail(rank->sim, "rank %d: all agree on change %d, but rank %d does not", rank->rank,
                 sets->next, change->odd);
    if (change->removes) {
        drop(rank);
        return;
    }
    horon_sets_enter(&sets->known, sets->set);
    if (sets->set->id != change->id)
        sim_fail(rank->sim, "rank %d: a set has id %d instead of %d", rank->rank, sets->set->id,
                 change->id);
    sets->stage = STAGE_MAKING;
    begin_wait(rank);
    if (horon_set_find_rank(sets->set, rank->rank) >= 0)
        make(rank);
    else
        confirm(rank);
}

static void note_confirmed(struct sim_rank *rank)
{
    const struct sim_change *change = change_of(rank);
    struct horon_error error = {0};
    uint32_t newest = 0;
    if (decide(rank, &newest, &error) != HORON_OK) {
        check_failure(rank, &error);
        drop(rank);
        return;
    }
    if (change->ill != SIM_ILL_NOT)
        sim_fail(rank->sim, "rank %d: all have made the team of change %d, but rank %d has not",
                 rank->rank, rank->sets->next, change->odd);
    rank->sets->life[change->team] = SIM_LIFE_HERE;
    rank->sim->outcome.sets++;
    end_change(rank);
}

void sim_sets_go_on(struct sim_rank *rank)
{
    struct sim_sets *sets = rank->sets;
    switch (sets->stage) {
    case STAGE_IDLE:
        begin_change(rank);
        break;
    case STAGE_AGREEING:
        if (meeting_is_over(sets))
            note_agreed(rank);
        break;
    case STAGE_MAKING:
        make(rank);
        break;
    case STAGE_CONFIRMING:
        if (meeting_is_over(sets))
            note_confirmed(rank);
        break;
    case STAGE_REMOVING:
        remove_team(rank, change_of(rank)->team);
        break;
    }
}

void sim_sets_look(struct sim_rank *rank)
{
    if (!rank->sets || !rank->sets->waits || !sim_workload_through(rank, change_of(rank)->team))
        return;
    rank->sets->waits = false;
    go_on_later(rank, rank->sim->think_max);
}

bool sim_sets_done(const struct sim_rank *rank)
{
    const struct sim_sets *sets = rank->sets;
    return !sets || sets->over ||
           (sets->stage == STAGE_IDLE && sets->next == rank->sim->change_count);
}

bool sim_sets_is_making(const struct sim_rank *rank)
{
    return rank->sets && rank->sets->stage == STAGE_MAKING;
}

enum sim_life sim_team_life(const struct sim_rank *rank, int team)
{
    if (team && rank->sets)
        return rank->sets->life[team];
    return sim_team_of(rank, team) ? SIM_LIFE_HERE : SIM_LIFE_COMES;
}

void sim_sets_describe(const struct sim_rank *rank, char *text, size_t text_bytes)
{
    static const char *const stages[] = {[STAGE_IDLE] = "not begun",
                                         [STAGE_AGREEING] = "being agreed on",
                                         [STAGE_MAKING] = "being made",
                                         [STAGE_CONFIRMING] = "being confirmed",
                                         [STAGE_REMOVING] = "being removed"};
    text[0] = 0;
    if (rank->sets && !sim_sets_done(rank))
        snprintf(text, text_bytes, ", change %d of %d is %s", rank->sets->next,
                 rank->sim->change_count, stages[rank->sets->stage]);
}

/* ---- beginning and end ---------------------------------------------------------------------- */

void sim_sets_begin(struct simulation *sim)
{
    const size_t bytes = horon_proposal_bytes_max(sim->size);
    for (int i = 0; i < sim->size; i++) {
        struct sim_sets *sets = calloc(1, sizeof *sets);
        assert(sets);
        const horon_status_t status = horon_sets_init(&sets->known, sim->size);
        assert(status == HORON_OK);
        sets->proposal = malloc(bytes);
        sets->answers = malloc(bytes * (size_t)sim->size);
        assert(sets->proposal);
        assert(sets->answers);
        sim->ranks[i].sets = sets;
        go_on_later(&sim->ranks[i], sim->think_max);
    }
}

void sim_sets_end(struct simulation *sim)
{
    for (int i = 0; i < sim->size; i++) {
        struct sim_rank *rank = &sim->ranks[i];
        if (!rank->sets)
            continue;
        drop_meeting(rank);
        if (rank->sets->set && rank->sets->set->id < 0) /* else it lies in the table */
            horon_free(rank->sets->set);
        horon_sets_deinit(&rank->sets->known);
        free(rank->sets->proposal);
        free(rank->sets->answers);
        free(rank->sets);
    }
}

void sim_sets_check_rest(struct sim_rank *rank)
{
    const struct horon_engine *engine = rank->ctx.engine;
    if (engine->early)
        sim_fail(rank->sim, "rank %d keeps a message for team %u", rank->rank, engine->early->team);
    for (int team = 1; team < rank->sim->team_count; team++)
        if (rank->sets && rank->sets->life[team] == SIM_LIFE_OVER && rank->teams[team])
            sim_fail(rank->sim, "rank %d has team %d, which was removed", rank->rank, team);
    for (int peer = 0; peer < rank->sim->size; peer++) {
        const struct horon_mux *mux = engine->membership->mux_of[peer];
        if (mux && (mux->rx.buffered_transfers || mux->rx.wants || mux->rx.credits ||
                    mux->tx.sends_waiting))
            sim_fail(rank->sim,
                     "rank %d keeps something of rank %d: %u arrivals, %u wants, %u credits",
                     rank->rank, peer, mux->rx.buffered_transfers, mux->rx.wants, mux->rx.credits);
    }
}
