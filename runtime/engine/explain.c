/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why requests wait, in words: for warnings about stalls and for the texts of time limits. What has
 * begun asks its channel, which sees the host's ranks and its own links; what is still negotiated
 * asks the coordinator. A message says itself how far it is. And why its two ends do not fit
 * together, for the text of its failure.
 */
#include "engine/messages.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define RANKS_NAMED_MAX 8
#define STALLS_TOLD_MAX 3           /* at a time */
#define STALLS_ASKED_MAX 16         /* of a team, of what ranks may lack, at a time */
#define STALL_LIMITS_BETWEEN_MAX 16 /* limits that pass between two warnings of one, at most */

static struct horon_lane *lane_of(const struct horon_request *request)
{
    return &request->team->lanes[request->in_order ? HORON_LANE_ORDERED : HORON_LANE_NAMED];
}

uint64_t horon_engine_moves(const struct horon_engine *engine, const struct horon_request *request)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    if (request->paired)
        return request->team->messages.moves;
    return lane_of(request)->moves;
}

static bool is_of(const struct horon_work *work, const struct horon_request *request)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->requests[i] == request)
            return true;
    return false;
}

/* A rank makes its part of the team's memory when its first operation is about to begin. */
static bool lacks_arena_of(const struct horon_engine_team *team, int rank)
{
    if (rank == team->view.rank || team->topology.host_of[rank] != team->view.host)
        return false;
    const struct horon_team_line *line =
        horon_host_team_line(team->host, team->topology.local_rank_of[rank]);
    return !atomic_load_explicit(&line->made, memory_order_relaxed);
}

static bool waits_for(const struct horon_engine_team *team, struct horon_lane *lane, int rank)
{
    return team->state == HORON_TEAM_ASKING ? lacks_arena_of(team, rank)
                                            : horon_route_waits_for(&lane->route, rank);
}

/* @return characters written; less than @p text_bytes */
static size_t name_awaited(const struct horon_engine_team *team, struct horon_lane *lane,
                           char *text, size_t text_bytes)
{
    size_t used = 0;
    int named = 0, more = 0;
    for (int rank = 0; rank < team->view.size; rank++) {
        if (!waits_for(team, lane, rank))
            continue;
        if (named == RANKS_NAMED_MAX) {
            more++;
            continue;
        }
        snprintf(text + used, text_bytes - used, "%s%s", named ? ", " : "", team->rank_names[rank]);
        used += strlen(text + used);
        named++;
    }
    if (more)
        snprintf(text + used, text_bytes - used, " and %d more", more);
    return used + strlen(text + used);
}

/* No operation of the team has begun here yet. */
static void explain_asking(const struct horon_request *request, char *text, size_t text_bytes)
{
    char names[HORON_ERROR_TEXT_BYTES / 4];
    if (name_awaited(request->team, lane_of(request), names, sizeof names) > 0)
        snprintf(text, text_bytes, "waiting for %s to begin the first operation of the team",
                 names);
    else
        snprintf(text, text_bytes, "waiting for memory that the team's ranks of this host make");
}

static void explain_begun(const struct horon_request *request, char *text, size_t text_bytes)
{
    struct horon_lane *lane = lane_of(request);
    char doing[160] = "";
    if (!lane->head) {
        snprintf(text, text_bytes, "about to begin");
        return;
    }
    if (request->team->state == HORON_TEAM_ASKING) {
        explain_asking(request, text, text_bytes);
        return;
    }
    const char *begins = "begun; ";
    if (!lane->running)
        begins = "about to begin; ";
    else if (!is_of(lane->head, request))
        begins = "queued behind another operation, which has begun; ";
    snprintf(text, text_bytes, "%swaiting for ", begins);
    size_t used = strlen(text);
    if (name_awaited(request->team, lane, text + used, text_bytes - used) == 0)
        snprintf(text, text_bytes, "%snot finished", begins); /* it moves, or is about to */
    horon_route_explain(&lane->route, doing, sizeof doing);
    used = strlen(text);
    if (doing[0])
        snprintf(text + used, text_bytes - used, "; %s", doing);
}

/* @return what has to end first: for one without a name the one before it, for a join the oldest of
 * what was submitted before it; else the request itself */
static const struct horon_request *first_of(const struct horon_request *request)
{
    const struct horon_engine_team *team = request->team;
    if (request->held && team->unnamed)
        return team->unnamed;
    return request->joins && !request->begun ? team->oldest : request;
}

/* @return characters written; less than @p text_bytes */
static size_t say_first(const struct horon_request *request, const struct horon_request *first,
                        char *text, size_t text_bytes)
{
    char what[128 + HORON_NAME_BYTES_MAX];
    text[0] = 0;
    horon_request_describe(first, what, sizeof what);
    if (first != request && request->joins)
        snprintf(text, text_bytes,
                 "behind what was submitted here before, first of all %s; that: ", what);
    else if (first != request)
        snprintf(text, text_bytes,
                 "behind another %s; that one: ", horon_verb_of(&first->op.agreed)->name);
    return strlen(text);
}

/* Why a message waits; @return the rank of the team that it waits for */
static int explain_message(const struct horon_request *request, char *text, size_t text_bytes)
{
    const struct horon_engine_team *team = request->team;
    const struct horon_transfer *transfer = &request->message.transfer;
    const int peer = request->op.agreed.root;
    const char *name = team->rank_names[peer];
    if (request->message.state == HORON_MESSAGE_NEW)
        snprintf(text, text_bytes, "waiting for a link to %s", name);
    else if (request->message.state == HORON_MESSAGE_WAITS ||
             (request->message.state == HORON_MESSAGE_CARRIED && !horon_message_sends(request)))
        snprintf(text, text_bytes, "waiting for %s to send it", name);
    else if (request->message.state == HORON_MESSAGE_CARRIED)
        snprintf(text, text_bytes, "waiting for %s to receive it", name);
    else if (horon_verb_of(&request->op.agreed)->reads != HORON_RANKS_NONE)
        snprintf(text, text_bytes, "waiting for %s to receive it; %zu of %zu bytes have gone", name,
                 transfer->moved_bytes, transfer->bytes);
    else
        snprintf(text, text_bytes, "waiting for %s; %zu of %zu bytes have come", name,
                 transfer->moved_bytes, transfer->bytes);
    return peer;
}

void horon_engine_explain(struct horon_engine *engine, const struct horon_request *request,
                          char *text, size_t text_bytes)
{
    struct horon_engine_team *team = request->team;
    const struct horon_request *first = first_of(request);
    HORON_ASSERT_OWNER(engine->options.owner);
    const size_t used = say_first(request, first, text, text_bytes);
    text += used;
    text_bytes -= used;
    request = first;
    if (request->joins && team->join.state == HORON_JOIN_OVER)
        snprintf(text, text_bytes, "all have joined; this rank has yet to do its part");
    else if (request->joins && request->begun)
        horon_coordinator_explain_join(team->coordinator, text, text_bytes);
    else if (request->joins)
        snprintf(text, text_bytes, "about to join");
    else if (request->paired)
        (void)explain_message(request, text, text_bytes);
    else if (request->in_order || request->begun ||
             !horon_coordinator_explain(team->coordinator, (uint64_t)(uintptr_t)request, text,
                                        text_bytes))
        explain_begun(request, text, text_bytes);
}

int horon_engine_awaited(struct horon_engine *engine, const struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    int rank = -1;
    HORON_ASSERT_OWNER(engine->options.owner);
    request = first_of(request);
    struct horon_lane *lane = lane_of(request);
    if (request->joins)
        rank = request->begun ? horon_coordinator_awaited_join(team->coordinator) : -1;
    else if (request->paired)
        rank = request->op.agreed.root;
    else if (!request->in_order && !request->begun)
        rank = horon_coordinator_awaited(team->coordinator, (uint64_t)(uintptr_t)request);
    else
        for (int i = team->view.size - 1; i >= 0; i--)
            if (waits_for(team, lane, i))
                rank = i;
    return rank < 0 ? -1 : team->ranks[rank];
}

/* Does the coordinator still negotiate the request? Only then may other ranks lack it. */
static bool is_negotiated(const struct horon_request *request)
{
    return !request->in_order && !request->begun && !request->held && !request->joins &&
           !request->paired;
}

bool horon_engine_ask(struct horon_engine *engine, const struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    HORON_ASSERT_OWNER(engine->options.owner);
    request = first_of(request);
    if (team->failed || !is_negotiated(request))
        return false;
    horon_coordinator_ask(team->coordinator, (uint64_t)(uintptr_t)request);
    team->coordinator_dirty = team->urgent = true;
    return true;
}

static const char *write_time(uint64_t ns, char *text, size_t text_bytes)
{
    const bool seconds = ns >= 1000000000u;
    snprintf(text, text_bytes, "%llu %s",
             (unsigned long long)(ns / (seconds ? 1000000000u : 1000000u)), seconds ? "s" : "ms");
    return text;
}

/* When did an operation last end here? It tells a rank that is stuck from one that is slow. */
static void say_last(const struct horon_engine *engine, uint32_t team, char *text,
                     size_t text_bytes)
{
    struct horon_event ended;
    char ago[32];
    const uint64_t now = engine->options.now_ns(engine->options.now_arg);
    text[0] = 0;
    if (horon_events_last(engine->events, HORON_EVENT_ENDED, team, &ended) && ended.time_ns < now)
        snprintf(text, text_bytes, "; the last operation here ended %s ago",
                 write_time(now - ended.time_ns, ago, sizeof ago));
}

static void warn_of(struct horon_engine *engine, const struct horon_request *request,
                    uint64_t waited_ns)
{
    char what[128 + HORON_NAME_BYTES_MAX], why[HORON_ERROR_TEXT_BYTES / 2], waited[32], last[96];
    horon_request_describe(request, what, sizeof what);
    horon_engine_explain(engine, request, why, sizeof why);
    say_last(engine, (uint32_t)request->op.agreed.team, last, sizeof last);
    horon_engine_add_event(engine, HORON_EVENT_STALLED, &request->op, waited_ns / 1000000u, 0);
    HORON_LOG_WARN(engine->options.log, "%s has waited for %s: %s%s", what,
                   write_time(waited_ns, waited, sizeof waited), why, last);
}

/* When to warn of it again, counted from its start: after twice the time, until that gets long. */
static uint64_t warn_next(const struct horon_request *request, uint64_t limit_ns)
{
    const uint64_t longest_ns = limit_ns * STALL_LIMITS_BETWEEN_MAX, last_ns = request->warned_ns;
    if (last_ns == 0)
        return limit_ns;
    return last_ns + (last_ns < longest_ns ? last_ns : longest_ns);
}

void horon_engine_stall_over(const struct horon_engine *engine, const struct horon_request *request)
{
    const uint64_t now = engine->options.now_ns(engine->options.now_arg);
    char what[128 + HORON_NAME_BYTES_MAX], after[32];
    horon_request_describe(request, what, sizeof what);
    HORON_LOG_WARN(engine->options.log, "%s waits no more: it has ended after %s", what,
                   write_time(now - request->since_ns, after, sizeof after));
}

static void note_begin(struct horon_engine_team *team, uint64_t now)
{
    for (struct horon_request *request = team->oldest; request; request = request->newer)
        if (!request->since_ns)
            request->since_ns = now;
}

/* Of one team: those that have waited for longest are named, of all teams so many. */
static void warn_stalls(struct horon_engine_team *team, uint64_t now, uint64_t limit_ns,
                        size_t *seen, size_t *more)
{
    for (struct horon_request *request = team->oldest; request; request = request->newer) {
        const uint64_t waited_ns = now - request->since_ns;
        const uint64_t next_ns = warn_next(request, limit_ns);
        const bool told = (*seen)++ < STALLS_TOLD_MAX;
        if (told && waited_ns + limit_ns / 2 >= next_ns && !request->asked) {
            /* So that the warning knows which ranks it waits for; and however late this look is,
             * the answer comes before the next one. */
            (void)horon_engine_ask(team->engine, request);
            request->asked = true;
            continue;
        }
        if (waited_ns < next_ns)
            continue;
        if (told)
            warn_of(team->engine, request, waited_ns);
        else
            (*more)++;
        request->warned_ns = waited_ns;
        request->is_marked = true;
        request->warned |= told;
        request->asked = false;
    }
}

/* @return the first of @p request and those behind it that ranks may lack, if it has waited for
 * half of the limit. A rank that joins may be early. */
static struct horon_request *late_one(struct horon_request *request, uint64_t now,
                                      uint64_t limit_ns)
{
    while (request && !is_negotiated(request))
        request = request->newer;
    return request && now - request->since_ns >= limit_ns / 2 ? request : NULL;
}

/* What ranks lack, and has waited for so long. Others wait for their turn behind batches that are
 * under way, and that may take as long as they like. Where none is, nothing ends any more, and yet
 * no rank says which one lacks it, one of its group is, or the rank that knows is stopped. */
static const struct horon_request *find_lacking(struct horon_engine_team *team, uint64_t now,
                                                uint64_t limit_ns)
{
    struct horon_engine *engine = team->engine;
    const bool quiet =
        now - engine->ends_seen_ns >= limit_ns && !team->lanes[HORON_LANE_NAMED].head;
    struct horon_request *request = late_one(team->oldest, now, limit_ns);
    for (int i = 0; i < STALLS_ASKED_MAX && request; i++) {
        if (request->asked && now - request->since_ns >= limit_ns &&
            (quiet || horon_engine_awaited(engine, request) >= 0))
            return request;
        request = late_one(request->newer, now, limit_ns);
    }
    return NULL;
}

/* For the next look. Those of which nothing was heard are asked for anew. */
static void ask_for_late(struct horon_engine_team *team, uint64_t now, uint64_t limit_ns)
{
    struct horon_request *request = late_one(team->oldest, now, limit_ns);
    for (int i = 0; i < STALLS_ASKED_MAX && request; i++) {
        if (!request->asked || horon_engine_awaited(team->engine, request) < 0)
            request->asked = horon_engine_ask(team->engine, request);
        request = late_one(request->newer, now, limit_ns);
    }
}

static void end_stalled(struct horon_engine *engine, const struct horon_request *request,
                        uint64_t waited_ns)
{
    char what[128 + HORON_NAME_BYTES_MAX], why[HORON_ERROR_TEXT_BYTES / 2], waited[32];
    const struct horon_membership *membership = engine->membership;
    const int self = membership->topology->rank;
    struct horon_error error;
    horon_request_describe(request, what, sizeof what);
    horon_engine_explain(engine, request, why, sizeof why);
    horon_error_set(&error, HORON_ERR_TIMEOUT,
                    "%s ends the job, as HORON_STALL_SHUTDOWN_TIME says: %s has waited for %s: %s",
                    membership->rank_names[self], what,
                    write_time(waited_ns, waited, sizeof waited), why);
    horon_error_blame(&error, HORON_CAUSE_TIME_LIMIT, self, horon_engine_awaited(engine, request));
    horon_engine_fail(engine, &error);
}

/* Each becomes the oldest of its team, if those before it end. */
uint64_t horon_engine_oldest_ns(struct horon_engine *engine)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    const uint64_t now = engine->options.now_ns(engine->options.now_arg);
    uint64_t oldest_ns = 0;
    for (struct horon_engine_team *team = engine->job; team; team = team->next) {
        struct horon_request *request = team->oldest;
        if (request && !request->since_ns)
            request->since_ns = now;
        if (request && (!oldest_ns || request->since_ns < oldest_ns))
            oldest_ns = request->since_ns;
    }
    return oldest_ns;
}

/* A late rank may hold up thousands: the oldest are told one by one, the rest by their number. */
void horon_engine_watch_stalls(struct horon_engine *engine, uint64_t warn_ns, uint64_t end_ns)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    const uint64_t now = engine->options.now_ns(engine->options.now_arg);
    const struct horon_request *lacking = NULL;
    size_t seen = 0, more = 0;
    if (engine->ends != engine->ends_seen)
        engine->ends_seen_ns = now;
    engine->ends_seen = engine->ends;
    for (struct horon_engine_team *team = engine->job; team; team = team->next) {
        note_begin(team, now);
        if (end_ns && !lacking)
            lacking = find_lacking(team, now, end_ns);
        if (warn_ns && !lacking)
            warn_stalls(team, now, warn_ns, &seen, &more);
        if (end_ns && !lacking)
            ask_for_late(team, now, end_ns);
    }
    if (more)
        HORON_LOG_WARN(engine->options.log, "%zu more operations have waited that long", more);
    if (lacking)
        end_stalled(engine, lacking, now - lacking->since_ns);
}

/* ---- messages ------------------------------------------------------------------------------- */

void horon_message_explain_difference(const struct horon_request *own, uint64_t their_count,
                                      uint8_t their_dtype, struct horon_error *why)
{
    const struct horon_engine_team *team = own->team;
    const struct horon_operation *op = &own->op;
    const int peer = op->agreed.root, self = team->view.rank;
    const bool sent_here = horon_message_sends(own);
    const struct {
        const char *rank;
        uint64_t count;
        uint8_t dtype;
    } here = {team->rank_names[self], op->count, op->agreed.dtype},
      there = {team->rank_names[peer], their_count, their_dtype},
      *from = sent_here ? &here : &there, *to = sent_here ? &there : &here;
    horon_error_set(why, HORON_ERR_MISMATCH,
                    "%s sends %llu %s with tag %llu, and %s receives %llu %s", from->rank,
                    (unsigned long long)from->count, horon_dtype_name((horon_dtype_t)from->dtype),
                    (unsigned long long)own->message.tag, to->rank, (unsigned long long)to->count,
                    horon_dtype_name((horon_dtype_t)to->dtype));
    horon_error_blame_both(why, HORON_CAUSE_DESCRIPTION, team->ranks[self], team->ranks[peer]);
}

void horon_message_explain_lack(const struct horon_request *own, struct horon_error *why)
{
    const struct horon_engine_team *team = own->team;
    const int peer = own->op.agreed.root;
    horon_error_set(why, HORON_ERR_MEMORY, "%s has no memory to receive it",
                    team->rank_names[peer]);
    why->blame.rank = team->ranks[peer];
}

/* Have others passed on that it leaves the job? Of several that do, hosts without a link to them
 * hear which has done the least. Another one, whose system takes no connection any more, has most
 * likely left, too; if it was lost, its neighbours say so soon, and the job fails. */
static bool is_said_to_leave(const struct horon_departures *heard, int rank)
{
    bool said = false;
    for (int i = 0; heard->any && i < HORON_LEFT_COUNT; i++)
        said |= heard->culprit[i] == (uint32_t)rank;
    return said;
}

void horon_message_explain_unlinked(const struct horon_engine *engine, int rank,
                                    struct horon_error *why)
{
    const struct horon_departures *heard = &engine->job->departures;
    const char *name = engine->membership->rank_names[rank];
    char told[HORON_ERROR_TEXT_BYTES];
    const bool elsewhere = !horon_topology_is_here(engine->membership->topology, rank);
    snprintf(told, sizeof told, "%s", why->text);
    if (is_said_to_leave(heard, rank))
        horon_error_set(why, HORON_ERR_CLOSED, "%s has shut down its context", name);
    else if (heard->any && elsewhere && why->status == HORON_ERR_SYSTEM)
        horon_error_set(why, HORON_ERR_CLOSED, "%s has shut down its context, as others have: %s",
                        name, told);
    if (why->status == HORON_ERR_CLOSED)
        horon_error_blame(why, HORON_CAUSE_LEFT, rank, -1);
}
