/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other besides data: negotiation, aborts, departures.
 *
 * An abort is flooded: the rank that hears of it first passes it on over all its links, so it
 * arrives on any connected set of survivors, whichever rank of the tree is gone. On a host it also
 * lies in shared memory, for ranks without a link.
 *
 * A rank that leaves says how many operations it completed and how many decisions it saw. The other
 * ranks can complete those; a later one that needs this rank never can, and fails with its name. If
 * the rank leaves because another one left before, it names that one as the cause: so all ranks
 * blame the same one, whichever they hear of first. If an operation fails on a rank because another
 * one left, and the rank has done less than all that left, it says so at once: it takes no part any
 * more, and may stay for long. In any case it says so on its links: messages end with it.
 *
 * Of departures a rank needs to know only the least that any leaver has done. So each rank keeps
 * that, and says it where it is news: a rank that leaves says it once on each of its links, which
 * end with it, and in its line in shared memory; a rank that hears it by a link tells its host
 * there, and its neighbours in the tree on other hosts that have no link with the leaver. When a
 * whole job leaves, having done the same, only the first of them is news.
 *
 * How many messages that takes, of N ranks: for the news N - 1 at most, along the tree; for the
 * ends one or two a link, of the order of N * N in all where each rank is alone on its host. Today
 * every rank has a link to every other host (a leaver reaches each of them itself), so a neighbour
 * in the tree that is gone keeps nothing from anybody.
 */
#include "engine/messages.h"

#include "alloc.h"
#include "codec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* To @p rank of the job. */
static void post_on(struct horon_engine_team *team, struct horon_mux *mux, int rank,
                    const struct horon_writer *out)
{
    assert(out->ok); /* every message has a buffer that fits it */
    horon_engine_add_message_event(team->engine, HORON_EVENT_SENT, rank, out->bytes[0], out->used);
    if (horon_mux_post_control(mux, out->bytes, out->used) == HORON_OK)
        return;
    /* the other side would wait for it for ever */
    char text[160];
    snprintf(text, sizeof text, "no memory for a message to %s",
             team->engine->membership->rank_names[rank]);
    horon_team_lacks_memory(team, text);
}

/* @p rank of the team */
static void post_to(struct horon_engine_team *team, int rank, const struct horon_writer *out)
{
    struct horon_mux *mux = horon_team_mux(team, rank);
    if (mux)
        post_on(team, mux, team->ranks[rank], out);
}

struct horon_writer horon_team_begin_message(uint32_t team, uint8_t *bytes, size_t byte_count,
                                             enum horon_control_kind kind)
{
    struct horon_writer out = horon_writer_over(bytes, byte_count);
    horon_write_u8(&out, (uint8_t)kind);
    horon_write_varint(&out, team);
    return out;
}

void horon_team_send_control(struct horon_engine_team *team, int job_rank,
                             const struct horon_writer *out)
{
    struct horon_mux *mux = team->engine->membership->mux_of[job_rank];
    if (mux)
        post_on(team, mux, job_rank, out);
}

void horon_engine_send_linked(struct horon_engine *engine, int rank)
{
    uint8_t bytes[16];
    struct horon_writer out =
        horon_team_begin_message(engine->job->id, bytes, sizeof bytes, HORON_CONTROL_LINKED);
    horon_team_send_control(engine->job, rank, &out);
}

bool horon_team_send_coordinator(struct horon_engine_team *team)
{
    bool sent = false;
    int to;
    const void *bytes;
    size_t byte_count;
    while (horon_coordinator_next_message(team->coordinator, &to, &bytes, &byte_count)) {
        struct horon_writer out = horon_team_begin_message(
            team->id, team->engine->message, HORON_CONTROL_BYTES_MAX, HORON_CONTROL_COORDINATOR);
        horon_write_bytes(&out, bytes, byte_count);
        if (!horon_team_mux(team, to))
            continue; /* that rank is gone; the failure is on its way */
        post_to(team, to, &out);
        sent = true;
    }
    return sent;
}

/* @param rank  -1: all others */
static void send_failure(struct horon_engine_team *team, int rank)
{
    uint8_t bytes[HORON_ERROR_WIRE_BYTES_MAX + 16];
    struct horon_writer out =
        horon_team_begin_message(team->id, bytes, sizeof bytes, HORON_CONTROL_ABORT);
    horon_error_write(&out, &team->failure);
    for (int other = 0; other < team->view.size; other++)
        if (other != team->view.rank && (rank < 0 || other == rank))
            post_to(team, other, &out);
}

void horon_team_flood_abort(struct horon_engine_team *team)
{
    send_failure(team, -1);
    horon_host_post_abort(team->host, &team->failure);
}

int horon_team_cause_to_leave(const struct horon_engine_team *team)
{
    const struct horon_blame *blame = &team->failure.blame;
    const bool is_known = team->failed && blame->cause == HORON_CAUSE_LEFT && blame->rank >= 0;
    const int cause = is_known ? team->member_of[blame->rank] : -1;
    return cause >= 0 ? cause : team->view.rank;
}

/* Its messages have two ends alone, and the other one may wait for this rank, whatever else can
 * still end there. */
static void send_stopped(struct horon_engine_team *team, int rank)
{
    uint8_t bytes[16];
    struct horon_writer out =
        horon_team_begin_message(team->id, bytes, sizeof bytes, HORON_CONTROL_STOPPED);
    horon_write_u32(&out, (uint32_t)horon_team_cause_to_leave(team));
    horon_team_send_control(team, team->ranks[rank], &out);
}

void horon_team_on_new_link(struct horon_engine_team *team, int job_rank)
{
    const int rank = horon_team_is_bound(team) ? team->member_of[job_rank] : -1;
    if (rank < 0 || team->failed != HORON_TEAM_FAILED)
        return;
    if (team->failure.status == HORON_ERR_CLOSED)
        send_stopped(team, rank);
    else
        send_failure(team, rank);
}

void horon_engine_refuse_team(struct horon_engine *engine, uint32_t id, const int *ranks, int size,
                              const struct horon_error *why)
{
    uint8_t bytes[HORON_ERROR_WIRE_BYTES_MAX + 16];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    HORON_ASSERT_OWNER(engine->options.owner);
    assert(!horon_engine_find_team(engine, id));
    horon_write_u8(&out, HORON_CONTROL_ABORT);
    horon_write_varint(&out, id);
    horon_error_write(&out, why);
    for (int i = 0; i < size; i++) {
        struct horon_mux *mux = engine->membership->mux_of[ranks[i]];
        if (mux) /* without memory for it they find out by themselves, when time is up */
            (void)horon_mux_post_control(mux, out.bytes, out.used);
        horon_membership_forget_try(engine->membership, ranks[i]);
    }
    if (engine->newest_team < id)
        engine->newest_team = id;
    (void)horon_engine_take_early(engine, id, NULL, NULL);
}

/* Of two ranks that did equally little the lower one is to blame, so that it matters little which
 * of them is heard first. That alone is no news: nothing new can fail for it.
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

static struct horon_writer write_departures(const struct horon_engine_team *team, uint8_t *bytes,
                                            size_t byte_count, enum horon_control_kind kind)
{
    struct horon_writer out = horon_team_begin_message(team->id, bytes, byte_count, kind);
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        horon_write_u64(&out, team->departures.sequence[i]);
        horon_write_u32(&out, team->departures.culprit[i]);
    }
    return out;
}

static bool has_left(const struct horon_engine_team *team, int rank)
{
    return team->engine->membership->left[team->ranks[rank]];
}

const char *horon_team_how_left(const struct horon_engine_team *team, int rank)
{
    return team->id == 0 || team->leaves[rank] || has_left(team, rank) ? "shut down its context"
                                                                       : "removed the team";
}

/* Passes news on along the tree, to other hosts: the ranks of this one read it in shared memory.
 * The leaver itself has told the ranks that it is linked with.
 * @param by_itself @p from is the rank that leaves */
static void pass_on(struct horon_engine_team *team, int from, bool by_itself)
{
    const struct horon_topology *topology = &team->topology;
    uint8_t bytes[64];
    struct horon_writer out = write_departures(team, bytes, sizeof bytes, HORON_CONTROL_GOODBYE);
    for (int i = 0; i < team->tree_count; i++) {
        const int peer = team->tree[i];
        if (peer == from || has_left(team, peer) || topology->host_of[peer] == team->view.host ||
            (by_itself && horon_topology_linked(topology, from, peer)))
            continue;
        post_to(team, peer, &out);
    }
}

/* Itself to all, as a rank of the tree may be gone. */
static void send_departures(struct horon_engine_team *team, bool leaves_job)
{
    uint8_t bytes[64];
    horon_host_write_departures(team->host, &team->departures, leaves_job);
    struct horon_writer out = write_departures(
        team, bytes, sizeof bytes, leaves_job ? HORON_CONTROL_END : HORON_CONTROL_GOODBYE);
    for (int rank = 0; rank < team->view.size; rank++)
        if (rank != team->view.rank && !has_left(team, rank))
            post_to(team, rank, &out);
}

void horon_team_say_goodbye(struct horon_engine_team *team, const struct horon_departures *own,
                            bool leaves_job)
{
    merge(&team->departures, own);
    send_departures(team, leaves_job);
}

void horon_team_say_stopped(struct horon_engine_team *team, const struct horon_departures *own)
{
    if (team->engine->leaving)
        return;
    if (merge(&team->departures, own))
        send_departures(team, false);
    for (int rank = 0; rank < team->view.size; rank++)
        if (rank != team->view.rank && !has_left(team, rank))
            send_stopped(team, rank);
}

/* A rank that exits because ranks describe an operation differently has heard of it as all do. So
 * what was decided comes first here, too: the operation fails everywhere for the same reason. */
static horon_status_t on_abort(struct horon_engine_team *team, struct horon_reader *in)
{
    struct horon_error why;
    horon_error_read(in, team->engine->membership->topology->size, &why);
    if (!horon_reader_finished(in))
        return HORON_ERR_PROTO;
    if (!team->failed)
        horon_team_take_decisions(team);
    horon_team_fail(team, &why);
    return HORON_OK;
}

/* Is every rank that is blamed one of the team, and not this one while it is here? */
static bool may_be_blamed(const struct horon_engine_team *team, const struct horon_departures *news)
{
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        if (news->culprit[i] >= (uint32_t)team->view.size)
            return false;
        if ((int)news->culprit[i] == team->view.rank && !team->engine->leaving &&
            team->failed != HORON_TEAM_REMOVED)
            return false;
    }
    return true;
}

/* Here and to the rest of the team. */
static void spread_departures(struct horon_engine_team *team, const struct horon_departures *news,
                              int from, bool by_itself)
{
    if (!merge(&team->departures, news))
        return;
    if (!team->engine->leaving) /* which it says in its line, with all that it knew */
        horon_host_write_departures(team->host, &team->departures, false);
    pass_on(team, from, by_itself);
}

bool horon_team_has_heard(const struct horon_engine_team *team, int rank)
{
    const bool here = team->topology.host_of[rank] == team->view.host;
    return team->heard[rank] ||
           (here && horon_host_has_news(team->host, team->topology.local_rank_of[rank], 0));
}

void horon_team_lacks_member(struct horon_engine_team *team, int job_rank)
{
    const int rank = horon_team_is_bound(team) ? team->member_of[job_rank] : -1;
    if (rank < 0 || horon_team_has_heard(team, rank))
        return; /* it says itself how far it got */
    struct horon_departures nothing = {.any = true};
    for (int i = 0; i < HORON_LEFT_COUNT; i++)
        nothing.culprit[i] = (uint32_t)rank;
    spread_departures(team, &nothing, rank, false);
}

/* @p rank of the team says itself that it leaves the job. It says so last in the job, and if it is
 * lost before that it has not left. */
static void note_left(struct horon_engine_team *team, int rank)
{
    struct horon_engine *engine = team->engine;
    const int job_rank = team->ranks[rank];
    bool *left = &engine->membership->left[job_rank];
    team->leaves[rank] = true;
    if (team->id != 0)
        return;
    if (!*left)
        horon_events_add(engine->events, HORON_EVENT_DEPARTED, 0, 0, 0, 0, job_rank);
    *left = true;
    engine->membership->changes++;
    for (struct horon_engine_team *other = engine->job->next; other; other = other->next)
        horon_team_lacks_member(other, job_rank);
}

static horon_status_t on_departures(struct horon_engine_team *team, int peer, bool by_itself,
                                    struct horon_reader *in)
{
    struct horon_departures news = {.any = true};
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        news.sequence[i] = horon_read_u64(in);
        news.culprit[i] = horon_read_u32(in);
    }
    if (!horon_reader_finished(in) || !may_be_blamed(team, &news))
        return HORON_ERR_PROTO;
    team->heard[peer] = true;
    if (by_itself && team->id == 0)
        team->engine->membership->ended[peer] = true;
    if (by_itself)
        note_left(team, peer);
    spread_departures(team, &news, peer, by_itself);
    return HORON_OK;
}

static horon_status_t on_stopped(struct horon_engine_team *team, int peer, struct horon_reader *in)
{
    const uint32_t culprit = horon_read_u32(in);
    if (!horon_reader_finished(in) || culprit >= (uint32_t)team->view.size)
        return HORON_ERR_PROTO;
    team->stopped_for[peer] = 1 + (int)culprit;
    team->engine->membership->changes++;
    return HORON_OK;
}

/* @p peer of the team; @p in is behind the team's number */
static horon_status_t on_message(struct horon_engine_team *team, enum horon_control_kind kind,
                                 int peer, struct horon_reader *in, struct horon_error *error)
{
    switch (kind) {
    case HORON_CONTROL_COORDINATOR:
        if (team->failed)
            return HORON_OK;
        team->coordinator_dirty = team->urgent = true;
        return horon_coordinator_receive(team->coordinator, peer, in->bytes + in->used,
                                         in->limit - in->used, error);
    case HORON_CONTROL_ABORT:
        return on_abort(team, in);
    case HORON_CONTROL_GOODBYE:
    case HORON_CONTROL_END:
        return on_departures(team, peer, kind == HORON_CONTROL_END, in);
    case HORON_CONTROL_LINKED:
        team->engine->membership->mutual[team->ranks[peer]] = true;
        team->engine->membership->changes++;
        return horon_reader_finished(in) ? HORON_OK : HORON_ERR_PROTO;
    case HORON_CONTROL_MESSAGE:
        return horon_team_on_offer(team, peer, in);
    case HORON_CONTROL_REFUSAL:
        return horon_team_on_refusal(team, peer, in);
    case HORON_CONTROL_STOPPED:
        return on_stopped(team, peer, in);
    case HORON_CONTROL_GAVE_UP:
        team->engine->heard_gave_up = true;
        return horon_reader_finished(in) ? HORON_OK : HORON_ERR_PROTO;
    }
    return HORON_ERR_PROTO;
}

/* @param peer of the job */
static horon_status_t to_team(struct horon_engine_team *team, int peer, const uint8_t *bytes,
                              size_t byte_count, struct horon_error *error)
{
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    const uint8_t kind = horon_read_u8(&in);
    horon_status_t status = HORON_ERR_PROTO;
    (void)horon_read_varint(&in);
    if (!horon_team_is_bound(team))
        return HORON_OK;
    if (team->member_of[peer] >= 0)
        status = on_message(team, kind, team->member_of[peer], &in, error);
    const char *what =
        status == HORON_ERR_MEMORY ? "that no memory was left for" : "that makes no sense";
    if (status != HORON_OK && error->status == HORON_OK)
        horon_error_set(error, status, "%s sent a control message %s",
                        team->engine->membership->rank_names[peer], what);
    return status;
}

/* Members make a team at about the same time, so a message for it may come before this rank has
 * made it. */
static horon_status_t keep_early(struct horon_engine *engine, uint32_t team, int peer,
                                 const void *bytes, size_t byte_count, struct horon_error *error)
{
    const char *name = engine->membership->rank_names[peer];
    const size_t kept_bytes = sizeof(struct horon_early) + byte_count;
    if (kept_bytes > HORON_EARLY_BYTES_MAX - engine->early_bytes)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "%s says too much to teams that are not here", name);
    struct horon_early *early = horon_alloc(kept_bytes);
    if (!early)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a message of %s", name);
    *early = (struct horon_early){.team = team, .peer = peer, .byte_count = byte_count};
    memcpy(early->bytes, bytes, byte_count);
    *engine->early_tail = early;
    engine->early_tail = &early->next;
    engine->early_bytes += kept_bytes;
    return HORON_OK;
}

horon_status_t horon_engine_take_early(struct horon_engine *engine, uint32_t id,
                                       struct horon_engine_team *team, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    for (struct horon_early **link = &engine->early; *link;) {
        struct horon_early *early = *link;
        if (early->team != id) {
            link = &early->next;
            continue;
        }
        *link = early->next;
        engine->early_bytes -= sizeof *early + early->byte_count;
        if (team && status == HORON_OK)
            status = to_team(team, early->peer, early->bytes, early->byte_count, error);
        horon_free(early);
    }
    engine->early_tail = &engine->early;
    while (*engine->early_tail)
        engine->early_tail = &(*engine->early_tail)->next;
    return status;
}

bool horon_engine_is_refused(const struct horon_engine *engine, uint32_t id,
                             struct horon_error *error)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    for (const struct horon_early *early = engine->early; early; early = early->next) {
        struct horon_reader in = horon_reader_over(early->bytes, early->byte_count);
        if (early->team != id || horon_read_u8(&in) != HORON_CONTROL_ABORT)
            continue;
        (void)horon_read_varint(&in);
        horon_error_read(&in, engine->membership->topology->size, error);
        if (horon_reader_finished(&in))
            return true;
    }
    return false;
}

horon_status_t horon_engine_on_control(void *arg, int peer, const void *bytes, size_t byte_count,
                                       struct horon_error *error)
{
    struct horon_engine *engine = arg;
    assert(peer >= 0 && peer < engine->membership->topology->size);
    assert(peer != engine->membership->topology->rank);
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    const uint8_t kind = horon_read_u8(&in);
    const uint64_t id = horon_read_varint(&in);
    engine->heard = true;
    horon_engine_add_message_event(engine, HORON_EVENT_HEARD, peer, kind, byte_count);
    if (!in.ok || id >= HORON_TEAMS_END || kind < HORON_CONTROL_COORDINATOR ||
        kind > HORON_CONTROL_GAVE_UP)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "%s sent a control message that makes no sense",
                               engine->membership->rank_names[peer]);
    struct horon_engine_team *team = horon_engine_find_team(engine, (uint32_t)id);
    if (team)
        return to_team(team, peer, bytes, byte_count, error);
    if (id > engine->newest_team)
        return keep_early(engine, (uint32_t)id, peer, bytes, byte_count, error);
    if (kind == HORON_CONTROL_GOODBYE) /* it is over here; and with this, over there */
        horon_engine_forget_data(engine, (uint32_t)id, peer);
    return HORON_OK;
}

/* A rank that leaves because the job failed has said why before: the reason goes first. */
HORON_SELDOM static void heed_abort(struct horon_engine_team *team)
{
    const int job_size = team->engine->membership->topology->size;
    struct horon_error error;
    if (team->failed || !horon_host_aborted(team->host, job_size, &error))
        return;
    horon_team_take_decisions(team);
    horon_team_fail(team, &error);
}

/* If one left because the job failed, peers on other hosts must hear the reason before they hear of
 * the departure, from here too. */
HORON_SELDOM static void see_departures(struct horon_engine_team *team, int local_rank)
{
    struct horon_departures news;
    bool left;
    if (!horon_host_see_departures(team->host, local_rank, &team->seen[local_rank], &news, &left))
        return;
    const int rank = horon_topology_rank_at(&team->topology, team->view.host, local_rank);
    heed_abort(team);
    if (left)
        note_left(team, rank);
    if (!may_be_blamed(team, &news)) /* it is in shared memory: trust none */
        for (int k = 0; k < HORON_LEFT_COUNT; k++)
            news.culprit[k] = (uint32_t)rank;
    if (merge(&team->departures, &news))
        pass_on(team, rank, left);
}

/* Else what the other lane still gets done could wait for a number that is never drawn. */
static void forgo_tickets(struct horon_engine_team *team)
{
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        struct horon_lane *lane = &team->lanes[i];
        if (lane->head && horon_route_ended(&lane->route) >= team->departures.sequence[i])
            horon_route_forgo_ticket(&lane->route);
    }
}

/* Has the link ended on which this rank hears of decisions? One that leaves may be unable to send
 * its last words for so long that it gives them up. */
static bool hears_no_more(const struct horon_engine_team *team)
{
    const int parent = horon_topology_parent(&team->topology, team->view.rank);
    return parent >= 0 && !horon_team_mux(team, parent);
}

/* Does something here wait for what a rank that left never did, and nothing any more for what it
 * did? To say so fails everything, so what can still end goes first.
 * @return the rank to blame, or -1: go on */
static int waits_for_left(const struct horon_engine_team *team)
{
    const struct horon_departures *left = &team->departures;
    const struct horon_coordinator *coordinator = team->coordinator;
    const bool pends = horon_coordinator_pending(coordinator) > 0;
    const bool hears = pends && !hears_no_more(team);
    int culprit = -1;
    if (horon_coordinator_has_batch(coordinator) || /* it may end what waits here */
        (hears && horon_coordinator_decisions(coordinator) < left->sequence[HORON_LEFT_DECISIONS]))
        return -1;
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        if (!team->lanes[i].head)
            continue;
        if (horon_route_ended(&team->lanes[i].route) < left->sequence[i])
            return -1;
        if (culprit < 0)
            culprit = (int)left->culprit[i];
    }
    return culprit < 0 && pends ? (int)left->culprit[HORON_LEFT_DECISIONS] : culprit;
}

HORON_SELDOM static void fail_if_waiting(struct horon_engine_team *team)
{
    const int culprit = waits_for_left(team);
    forgo_tickets(team);
    if (culprit < 0)
        return;
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_CLOSED, "%s has %s and takes part in nothing more",
                    team->rank_names[culprit], horon_team_how_left(team, culprit));
    horon_error_blame(&why, HORON_CAUSE_LEFT, team->ranks[culprit], -1);
    horon_team_fail(team, &why);
}

void horon_team_hear_host(struct horon_engine_team *team)
{
    for (int i = 0; i < team->view.local_size; i++)
        if (i != team->view.local_rank && horon_host_has_news(team->host, i, team->seen[i]))
            see_departures(team, i);
    if (atomic_load_explicit(&horon_host_aborts(team->host)->claimed, memory_order_relaxed))
        heed_abort(team);
}

void horon_team_check_left(struct horon_engine_team *team)
{
    horon_team_hear_host(team);
    if (team->departures.any && !team->failed)
        fail_if_waiting(team);
}
