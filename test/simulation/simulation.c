/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock, the order of turns, sleeping and waking, and fate. A step runs either what is due or
 * one turn of a rank that is awake. A turn can be interrupted where the engine calls out: others
 * then run inside it, as they do on other cores; or the rank is killed there, and the rest of the
 * run takes place on top of its frozen turn.
 *
 * The token is the product's (token.c), and so are the wake words; what sleeps on a doorbell is
 * here.
 */
#undef NDEBUG
#include "simulation/simulation.h"
#include "simulation/messages.h"
#include "simulation/network.h"
#include "simulation/sets.h"
#include "simulation/teams.h"

#include "alloc.h"
#include "deaths.h"
#include "engine/engine_state.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS_MAX 10000000u
/* How long saying goodbye may take; as in context.c. */
#define GOODBYE_MS 1000
/* A death on the host is told after this at most, and then looked at. */
#define DEATH_TOLD_MAX (20 * SIM_MS)
#define GONE_KNOWN_NS (100 * SIM_MS)

uint64_t sim_random(struct simulation *sim)
{
    /* splitmix64, Steele et al., 2014 */
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sim_below(struct simulation *sim, uint64_t limit)
{
    return sim_random(sim) % limit;
}

bool sim_one_in(struct simulation *sim, unsigned n)
{
    return n && sim_below(sim, n) == 0;
}

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * 0x9fb21c651e98df25u;
    *hash ^= *hash >> 29;
}

void sim_trace(struct simulation *sim, unsigned what, uint64_t a, uint64_t b)
{
    mix(&sim->hash, sim->now);
    mix(&sim->hash, (uint64_t)what << 56 | a);
    mix(&sim->hash, b);
}

void sim_fail(struct simulation *sim, const char *format, ...)
{
    if (sim->failure[0])
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(sim->failure, sizeof sim->failure, format, args);
    va_end(args);
    sim->over = true;
}

/* ---- events: a heap ------------------------------------------------------------------------- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_event(struct simulation *sim, uint64_t at, enum sim_event_kind kind, int a, int b)
{
    if (sim->event_count == sim->event_limit) {
        sim->event_limit = sim->event_limit ? 2 * sim->event_limit : 64;
        sim->events = realloc(sim->events, sim->event_limit * sizeof *sim->events);
        assert(sim->events);
    }
    struct sim_event event = {.at = at, .order = sim->order++, .kind = kind, .a = a, .b = b};
    size_t i = sim->event_count++;
    for (; i > 0 && before(&event, &sim->events[(i - 1) / 2]); i = (i - 1) / 2)
        sim->events[i] = sim->events[(i - 1) / 2];
    sim->events[i] = event;
}

static struct sim_event take_event(struct simulation *sim)
{
    struct sim_event first = sim->events[0], last = sim->events[--sim->event_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->event_count)
            break;
        if (child + 1 < sim->event_count && before(&sim->events[child + 1], &sim->events[child]))
            child++;
        if (before(&last, &sim->events[child]))
            break;
        sim->events[i] = sim->events[child];
        i = child;
    }
    if (sim->event_count)
        sim->events[i] = last;
    return first;
}

/* ---- waking and sleeping -------------------------------------------------------------------- */

void sim_wake(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    if (rank->state != SIM_ASLEEP)
        return;
    rank->state = SIM_WAKING;
    rank->paused_until = sim->now + sim_below(sim, sim->wake_max);
    sim_event(sim, rank->paused_until, SIM_EVENT_NOTHING, rank->rank, 0);
    sim_trace(sim, 'w', (uint64_t)rank->rank, 0);
}

static void ring(struct sim_rank *rank)
{
    rank->rung = true;
    sim_wake(rank);
}

void sim_doorbell(void *arg, int local_rank)
{
    struct sim_rank *self = arg;
    const struct horon_topology *topology = &self->sim->world->ranks[self->rank].topology;
    int rank = horon_topology_rank_at(topology, topology->host_of[self->rank], local_rank);
    if (self->sim->over || self->state == SIM_DEAD)
        return;
    sim_trace(self->sim, 'b', (uint64_t)self->rank, (uint64_t)rank);
    ring(&self->sim->ranks[rank]);
    sim_interrupt(self);
}

/* token.c rings its own rank through the descriptor. */
void sim_hear_doorbell(struct sim_rank *rank)
{
    uint64_t count;
    if (read(rank->ctx.doorbell, &count, sizeof count) == sizeof count)
        ring(rank);
}

/* Around what may be interrupted. */
static void enter(struct sim_rank *rank)
{
    rank->inside = true;
    rank->sim->depth++;
}

static void come_out(struct sim_rank *rank)
{
    rank->inside = false;
    rank->sim->depth--;
}

static bool wants_write(const struct sim_rank *rank, int peer)
{
    const struct horon_mux *mux = rank->ctx.engine->membership->mux_of[peer];
    return mux && horon_mux_wants_write(mux);
}

/* Tries to fall asleep as the progress thread does: watches its sockets, gives the token back. */
static void fall_asleep(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    bool ready = false;
    for (int peer = 0; peer < sim->size; peer++)
        rank->armed[peer] = wants_write(rank, peer);
    enter(rank);
    horon_token_release_armed(&rank->ctx);
    come_out(rank);
    if (sim->over || rank->state == SIM_DEAD)
        return;
    rank->state = SIM_ASLEEP;
    for (int peer = 0; peer < sim->size; peer++) {
        if (!rank->ctx.engine->membership->mux_of[peer])
            continue; /* a link that ended is not watched any more */
        ready |= sim_network_readable(sim->network, rank->rank, peer);
        ready |= rank->armed[peer] && sim_network_writable(sim->network, rank->rank, peer);
    }
    sim_hear_doorbell(rank);
    sim_trace(sim, 's', (uint64_t)rank->rank, ready);
    if (ready || rank->rung)
        sim_wake(rank);
}

/* ---- fate ----------------------------------------------------------------------------------- */

static void announce_death(struct sim_rank *gone)
{
    struct simulation *sim = gone->sim;
    const struct horon_topology *topology = &sim->world->ranks[gone->rank].topology;
    for (int rank = 0; rank < sim->size; rank++)
        if (rank != gone->rank && topology->host_of[rank] == topology->host_of[gone->rank])
            sim_event(sim, sim->now + sim_below(sim, DEATH_TOLD_MAX), SIM_EVENT_DEATH, rank,
                      gone->rank);
}

static void kill_rank(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    rank->state = SIM_DEAD;
    sim->struck = true;
    sim->struck_at = sim->now;
    sim->struck_inside = rank->inside;
    sim_trace(sim, 'k', (uint64_t)rank->rank, rank->inside);
    sim_network_kill(sim->network, rank->rank);
    announce_death(rank);
}

static void begin_leaving(struct sim_rank *rank)
{
    if (rank->state == SIM_ASLEEP || rank->state == SIM_WAKING) {
        bool got = horon_token_try(&rank->ctx);
        assert(got);
    }
    rank->state = SIM_AWAKE;
    if (rank->sim->looks_back) {
        sim_sets_check_rest(rank);
        sim_messages_check_rest(rank);
    }
    rank->leaving = true;
    rank->leave_deadline = rank->sim->now + GOODBYE_MS * SIM_MS;
    sim_trace(rank->sim, 'g', (uint64_t)rank->rank, 0);
    enter(rank);
    horon_engine_leave(rank->ctx.engine);
    come_out(rank);
}

/* Nobody waits with a goodbye for a process that is gone, nor keeps a link to one of which it was
 * told so. */
static void check_goodbye(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    const struct horon_membership *membership = rank->ctx.engine->membership;
    const struct horon_topology *topology = &sim->world->ranks[rank->rank].topology;
    for (int peer = 0; peer < sim->size; peer++) {
        if (sim->ranks[peer].state != SIM_DEAD ||
            topology->host_of[peer] != topology->host_of[rank->rank])
            continue;
        if (sim->now > sim->struck_at + GONE_KNOWN_NS && wants_write(rank, peer))
            sim_fail(sim, "rank %d waited with its goodbye for rank %d, which was dead", rank->rank,
                     peer);
        if (membership->gone[peer] && membership->mux_of[peer])
            sim_fail(sim, "rank %d has a link to rank %d, whose process has ended", rank->rank,
                     peer);
    }
}

static void go(struct sim_rank *rank)
{
    if (rank->state == SIM_DEAD)
        return;
    check_goodbye(rank);
    enter(rank);
    horon_token_release(&rank->ctx);
    sim_hear_doorbell(rank);
    horon_engine_close(rank->ctx.engine);
    come_out(rank);
    rank->state = SIM_LEFT;
    sim_trace(rank->sim, 'l', (uint64_t)rank->rank, 0);
    sim_network_turned(rank->sim->network, rank->rank);
    announce_death(rank);
}

static void strike(struct simulation *sim)
{
    struct sim_rank *victim = &sim->ranks[sim->victim];
    if (victim->state >= SIM_LEFT || victim->leaving || victim->inside)
        return;
    if (sim->fate == SIM_FATE_LEAVE && sim->team_count > 1 && !sim->change_count &&
        !victim->teams[1] && sim_team_member(sim, 1, sim->victim) >= 0)
        return; /* a team is made by all of its members: nobody leaves instead */
    if (sim->fate == SIM_FATE_KILL)
        kill_rank(victim);
    if (sim->fate == SIM_FATE_LEAVE) {
        sim->struck = true;
        sim->struck_at = sim->now;
        victim->done = true;
        begin_leaving(victim);
    }
}

static bool steps_on(struct simulation *sim);

void sim_interrupt(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    if (sim->over || rank->state == SIM_DEAD || !rank->inside)
        return;
    if (sim->depth == 1 && sim->fate == SIM_FATE_KILL && sim->fate_inside && !sim->struck &&
        rank->rank == sim->victim && sim->steps >= sim->fate_step && !rank->leaving) {
        kill_rank(rank);
        while (steps_on(sim))
            ;
        return;
    }
    if (sim->depth > 3 || !sim_one_in(sim, sim->interrupt))
        return;
    for (uint64_t left = 1 + sim_below(sim, 8); left && steps_on(sim); left--)
        ;
}

/* ---- turns ---------------------------------------------------------------------------------- */

static void pause_rank(struct sim_rank *rank, uint64_t time_ns)
{
    rank->paused_until = rank->sim->now + time_ns;
    sim_event(rank->sim, rank->paused_until, SIM_EVENT_NOTHING, rank->rank, 0);
}

/* Of the rank's, another one at each step. */
static struct horon_engine_team *one_team(const struct sim_rank *rank)
{
    const int team = (int)(rank->sim->steps % (uint64_t)rank->sim->team_count);
    return sim_team_of(rank, rank->teams[team] ? team : 0);
}

static void turn(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    if (rank->state == SIM_WAKING) {
        bool got = horon_token_try(&rank->ctx);
        assert(got);
        rank->state = SIM_AWAKE;
        rank->rung = false;
        rank->quiet = 0;
        rank->patience = (int)sim_below(sim, sim_one_in(sim, 2) ? 2 : 12);
    } else if (rank->quiet > rank->patience && !rank->leaving) {
        fall_asleep(rank);
        return;
    }
    enter(rank);
    horon_deaths_report(&rank->ctx);
    bool moved = sim_one_in(sim, 4) && horon_engine_advance(one_team(rank), sim_one_in(sim, 2));
    if (!moved)
        moved = horon_token_look(&rank->ctx);
    come_out(rank);
    if (sim->over || rank->state == SIM_DEAD)
        return;
    rank->quiet = moved ? 0 : rank->quiet + 1;
    sim_trace(sim, 't', (uint64_t)rank->rank, moved);
    sim_network_turned(sim->network, rank->rank);
    if (rank->leaving &&
        (horon_engine_flushed(rank->ctx.engine) || sim->now > rank->leave_deadline))
        go(rank);
    else if (rank->leaving && !moved)
        pause_rank(rank, 20000);
}

/* With the token, and not in the middle of a turn, or a little later. */
static void take(struct sim_rank *rank, const struct sim_event *event)
{
    if (rank->inside) {
        sim_event(rank->sim, rank->sim->now + 1000, event->kind, event->a, event->b);
        return;
    }
    sim_take_token(rank);
    enter(rank);
    if (event->kind == SIM_EVENT_TEAM)
        sim_team_add(rank, event->b);
    else if (event->kind == SIM_EVENT_ARENAS)
        sim_team_give_arenas(rank, event->b);
    else if (event->kind == SIM_EVENT_CHANGE)
        sim_sets_go_on(rank);
    else
        sim_add_link(rank, event->b);
    come_out(rank);
    if (rank->sim->over || rank->state == SIM_DEAD)
        return;
    sim_network_turned(rank->sim->network, rank->rank);
    if (event->kind == SIM_EVENT_TEAM)
        sim_workload_look(rank); /* perhaps it has nothing to do there but to join */
}

static void do_event(struct simulation *sim, const struct sim_event *event)
{
    struct sim_rank *rank = &sim->ranks[event->a];
    if (event->kind == SIM_EVENT_DELIVER) {
        sim_network_deliver(sim->network, event->a, event->b);
        return;
    }
    if (event->kind == SIM_EVENT_LINK && rank->leaving) {
        sim_network_refuse(sim->network, event->a, event->b);
        return;
    }
    if (rank->state >= SIM_LEFT || (rank->leaving && event->kind != SIM_EVENT_DEATH))
        return;
    switch (event->kind) {
    case SIM_EVENT_DEATH:
        atomic_store(&rank->ctx.dead[sim->world->ranks[0].topology.local_rank_of[event->b]], true);
        atomic_fetch_add(&rank->ctx.deaths, 1);
        sim_wake(rank);
        break;
    case SIM_EVENT_SUBMIT:
        sim_workload_submit(rank);
        break;
    case SIM_EVENT_RESTART:
        sim_workload_restart(rank, event->b);
        break;
    case SIM_EVENT_CANCEL:
        sim_workload_cancel(rank, event->b);
        break;
    case SIM_EVENT_LEAVE:
        if (rank->inside)
            sim_event(sim, sim->now + 1000, SIM_EVENT_LEAVE, event->a, 0);
        else
            begin_leaving(rank);
        break;
    case SIM_EVENT_TEAM:
    case SIM_EVENT_ARENAS:
    case SIM_EVENT_CHANGE:
    case SIM_EVENT_LINK:
        take(rank, event);
        break;
    case SIM_EVENT_NOTHING:
    case SIM_EVENT_DELIVER:
        break;
    }
    sim_hear_doorbell(rank); /* a submission may have rung it */
}

static bool runnable(const struct simulation *sim, const struct sim_rank *rank)
{
    return (rank->state == SIM_AWAKE || rank->state == SIM_WAKING) && !rank->inside &&
           rank->paused_until <= sim->now;
}

static struct sim_rank *choose(struct simulation *sim)
{
    struct sim_rank *ready[SIM_RANKS_MAX];
    int count = 0;
    if (runnable(sim, &sim->ranks[sim->burst_rank]) && !sim_one_in(sim, sim->stick))
        return &sim->ranks[sim->burst_rank];
    for (int i = 0; i < sim->size; i++)
        if (runnable(sim, &sim->ranks[i]))
            ready[count++] = &sim->ranks[i];
    if (count == 0)
        return NULL;
    struct sim_rank *rank = ready[sim_below(sim, (uint64_t)count)];
    sim->burst_rank = rank->rank;
    if (sim_one_in(sim, sim->pause))
        pause_rank(rank, sim_below(sim, sim->pause_max));
    return rank;
}

/* One step. @return false: the run is over, or nothing can happen any more (here) */
static bool steps_on(struct simulation *sim)
{
    if (sim->over)
        return false;
    if (++sim->steps > STEPS_MAX) {
        sim_fail(sim, "no end after %u steps", STEPS_MAX);
        return false;
    }
    if (!sim->struck && sim->steps >= sim->fate_step &&
        (!sim->fate_inside || sim->steps >= sim->fate_step + 500) && sim->depth == 0)
        strike(sim);
    if (sim->replacements && sim->steps >= sim->replace_step && sim_replace(sim)) {
        sim->replacements--;
        sim->replace_step = sim->steps + 1 + sim_below(sim, 200);
    }
    if (sim->event_count && sim->events[0].at <= sim->now) {
        struct sim_event event = take_event(sim);
        do_event(sim, &event);
        return true;
    }
    struct sim_rank *rank = choose(sim);
    if (rank) {
        turn(rank);
        sim->now += 200 + sim_below(sim, 1000);
        return true;
    }
    if (sim->event_count == 0)
        return false;
    sim->now = sim->events[0].at;
    return true;
}

/* ---- a run ---------------------------------------------------------------------------------- */

void sim_describe(const struct simulation *sim, char *text, size_t text_bytes)
{
    static const char *const fates[] = {"good", "kill", "leave", "disorder"};
    const struct horon_topology *topology = &sim->world->ranks[0].topology;
    int used = snprintf(text, text_bytes, "%d teams, %d changes of sets; ranks by host",
                        sim->team_count, sim->change_count);
    for (int host = 0; host < topology->host_count; host++)
        used += snprintf(text + used, text_bytes - (size_t)used, " %d",
                         horon_topology_host_size(topology, host));
    snprintf(text + used, text_bytes - (size_t)used,
             "; %d operations; fate %s, rank %d from step %llu%s; ended at step %llu, %llu us",
             sim->op_count, fates[sim->fate], sim->victim, (unsigned long long)sim->fate_step,
             sim->struck ? "" : " (did not come)", (unsigned long long)sim->steps,
             (unsigned long long)(sim->now / 1000));
}

static void sum_up(struct simulation *sim)
{
    struct sim_outcome *outcome = &sim->outcome;
    outcome->hash = sim->hash;
    outcome->steps = sim->steps;
    outcome->size = sim->size;
    outcome->killed = sim->struck && sim->fate == SIM_FATE_KILL;
    outcome->killed_inside = outcome->killed && sim->struck_inside;
    outcome->left = sim->struck && sim->fate == SIM_FATE_LEAVE;
    outcome->disordered = sim->fate == SIM_FATE_DISORDER;
}

bool sim_run(uint64_t seed, const struct sim_kill *kill, struct sim_outcome *outcome_out, char *why,
             size_t why_bytes)
{
    struct simulation *sim = horon_alloc_lines(sizeof *sim);
    char text[400], character[200];
    assert(sim);
    memset(sim, 0, sizeof *sim);
    sim_create(sim, seed, kill);
    while (steps_on(sim))
        ;
    if (!sim_workload_ended(sim, text, sizeof text))
        sim_fail(sim, "hangs: nobody runs, nothing is on its way, and %s", text);
    sim_check_order(sim);
    sim_check_memory(sim);
    sim->over = true;
    sim_describe(sim, character, sizeof character);
    bool good = sim->failure[0] == 0;
    snprintf(why, why_bytes, "%s [%s]", sim->failure, character);
    sum_up(sim);
    *outcome_out = sim->outcome;
    sim_destroy(sim);
    horon_free(sim);
    return good;
}
