/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the ABI on process sets. A set is a team of its members, and a row of a table that
 * every rank of the job has alike (coordinator/sets.h). To change the table all ranks meet twice,
 * in operations of the job: they tell each other what they are asked for, and, once the members of
 * a new set have made its team, whether they could, or, once nothing begins any more in one that
 * goes, what they have begun there. So a set is there for all ranks or for none.
 *
 * `change` is held while that goes on: of two threads one comes after the other. Nor does a join of
 * this rank begin meanwhile, since the second meeting would be refused here. `lock` guards the
 * table, for moments; a thread that submits takes a reference to the team under it. One that holds
 * the progress token needs neither: the table changes, and teams go, by a thread that holds it.
 */
#include "submit.h"

#include "alloc.h"
#include "teams.h"
#include "verbs.h"
#include "versions.h"

#include <assert.h>
#include <string.h>

static_assert(HORON_SETS_TEAM_MAX < HORON_TEAMS_END, "each is a team");

horon_status_t horon_process_sets_init(struct horon_context *ctx)
{
    struct horon_process_sets *sets = &ctx->sets;
    pthread_mutex_init(&sets->change, NULL);
    pthread_mutex_init(&sets->lock, NULL);
    return horon_sets_init(&sets->known, ctx->boot.topology.size);
}

void horon_process_sets_deinit(struct horon_context *ctx)
{
    horon_sets_deinit(&ctx->sets.known);
}

/* Nobody reads the table until it is given back. */
static void take_table(struct horon_context *ctx)
{
    horon_token_take(ctx);
    pthread_mutex_lock(&ctx->sets.lock);
}

static void give_table_back(struct horon_context *ctx)
{
    pthread_mutex_unlock(&ctx->sets.lock);
    horon_token_release(ctx);
}

/* ---- meeting -------------------------------------------------------------------------------- */

/* Room for what this rank says and for what all do, so that no rank alone lacks it in between. One
 * that lacks it from the start says so at the first meeting, for which it needs no memory. */
struct meeting {
    struct horon_context *ctx;
    struct horon_error lack; /* of memory; OK: there is enough */
    struct horon_writer proposal;
    uint8_t *room;    /* of the proposal; NULL: it is a refusal, in `refusal` */
    uint8_t *answers; /* NULL: this rank refuses, and cannot read what the others say */
    size_t answer_bytes, came_bytes; /* room; what all have said */
    bool met;                        /* all have spoken, if this rank could read it or not */
    bool answered;                   /* by all that have not joined */
    uint8_t refusal[HORON_REFUSAL_BYTES_MAX];
};

static void hold_joins(struct horon_context *ctx, bool hold)
{
    horon_token_take(ctx);
    horon_team_hold_join(horon_engine_job(ctx->engine), hold);
    horon_token_release(ctx);
}

/* A change: until end(), no join of this rank begins. */
static void begin(struct meeting *meeting, struct horon_context *ctx)
{
    const size_t bytes = horon_proposal_bytes_max(ctx->boot.topology.size);
    meeting->ctx = ctx;
    horon_error_clear(&meeting->lack);
    hold_joins(ctx, true);
    meeting->answer_bytes = bytes * (size_t)ctx->boot.topology.size;
    meeting->room = horon_alloc(bytes);
    meeting->answers = horon_zalloc(meeting->answer_bytes, 1);
    if (meeting->room)
        meeting->proposal = horon_writer_over(meeting->room, bytes);
    else
        meeting->proposal = horon_writer_over(meeting->refusal, sizeof meeting->refusal);
    if (!meeting->room || !meeting->answers)
        horon_error_set(&meeting->lack, HORON_ERR_MEMORY, "no memory to agree on process sets");
}

static void end(struct meeting *meeting)
{
    hold_joins(meeting->ctx, false);
    horon_free(meeting->room);
    horon_free(meeting->answers);
}

static void *take_answers(void *arg, uint64_t rows, uint64_t bytes)
{
    struct meeting *meeting = arg;
    (void)rows;
    meeting->met = true;
    meeting->came_bytes = bytes;
    return bytes <= meeting->answer_bytes ? meeting->answers : NULL;
}

/* Tells all ranks of the job what this one proposes, and decides as all do. */
static horon_status_t meet(struct meeting *meeting, const char *name, int64_t timeout_ms,
                           uint32_t *newest_out, struct horon_error *error)
{
    struct horon_context *ctx = meeting->ctx;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    assert(meeting->proposal.ok); /* it has room for whatever is proposed */
    assert(meeting->proposal.used > 0);
    desc.verb = horon_verb_of_meetings;
    desc.name = name;
    desc.dtype = HORON_UINT8;
    desc.src = meeting->proposal.bytes;
    desc.count = meeting->proposal.used;
    desc.alloc = take_answers;
    desc.alloc_arg = meeting;
    meeting->met = false;
    const horon_status_t status =
        horon_team_run(ctx, horon_engine_job(ctx->engine), &desc, true, timeout_ms, error);
    meeting->proposal.used = 0;
    meeting->answered = status == HORON_OK;
    if (status != HORON_OK)
        return status;
    return horon_proposals_decide(&ctx->sets.known, meeting->answers, meeting->came_bytes,
                                  horon_engine_rank_names(ctx->engine), newest_out, error);
}

/* The others wait for what this rank cannot say. */
static void fail_job(struct horon_context *ctx, const struct horon_error *why)
{
    if (horon_engine_failure(ctx->engine))
        return;
    horon_token_take(ctx);
    horon_team_fail_here(horon_engine_job(ctx->engine), why);
    horon_token_release(ctx);
}

/* What all ranks are asked for. */
static horon_status_t agree(struct meeting *meeting, const struct horon_error *refusal,
                            int64_t timeout_ms, struct horon_error *error)
{
    struct horon_sets *known = &meeting->ctx->sets.known;
    uint32_t newest = 0;
    if (refusal->status != HORON_OK)
        horon_proposal_refuse(&meeting->proposal, known, refusal);
    const horon_status_t status = meet(meeting, "horon.process_set", timeout_ms, &newest, error);
    if (status == HORON_ERR_MEMORY && !meeting->met)
        fail_job(meeting->ctx, error);
    if (refusal->status != HORON_OK && status != HORON_OK)
        *error = *refusal; /* in its own words */
    if (status == HORON_OK) {
        assert(newest >= known->newest_team); /* which this rank has proposed */
        known->newest_team = newest + 1;
    }
    return status == HORON_OK ? HORON_OK : error->status;
}

/* Whether all could do it. */
static horon_status_t confirm(struct meeting *meeting, const struct horon_error *refusal,
                              struct horon_error *error)
{
    struct horon_context *ctx = meeting->ctx;
    uint32_t newest;
    assert(meeting->proposal.used == 0);
    if (refusal->status == HORON_OK)
        horon_proposal_made(&meeting->proposal, &ctx->sets.known);
    else
        horon_proposal_refuse(&meeting->proposal, &ctx->sets.known, refusal);
    const horon_status_t status = meet(meeting, "horon.process_set.made", -1, &newest, error);
    if (status != HORON_OK && !meeting->answered)
        fail_job(ctx, error);
    return status;
}

/* ---- adding --------------------------------------------------------------------------------- */

/* Out of the table, and what this rank has of it. */
static void drop(struct horon_context *ctx, struct horon_set *set)
{
    assert(set->id > 0); /* the job stays */
    take_table(ctx);
    horon_sets_remove(&ctx->sets.known, set);
    give_table_back(ctx);
    if (set->team)
        horon_context_remove_team(set->team);
    horon_free(set);
}

/* This rank's part of a set that all have agreed on. */
static void make(struct horon_context *ctx, struct horon_set *set,
                 const struct horon_backends *backends, struct horon_error *error)
{
    struct horon_context_team *team = NULL;
    assert(!set->team);
    take_table(ctx);
    horon_sets_enter(&ctx->sets.known, set);
    give_table_back(ctx);
    if (horon_set_find_rank(set, ctx->boot.topology.rank) < 0 ||
        horon_context_add_team(ctx, ctx->sets.known.newest_team, set->ranks, set->size, backends,
                               &team, error) != HORON_OK)
        return;
    take_table(ctx);
    set->team = team;
    give_table_back(ctx);
}

/* What may fail here alone does so before all agree: else the tables would differ. @return NULL: it
 * is refused */
static struct horon_set *prepare(struct horon_context *ctx, int32_t *ranks, size_t count,
                                 struct horon_error *refusal)
{
    struct horon_set *set = NULL;
    take_table(ctx);
    if (horon_sets_check(&ctx->sets.known, ranks, count, refusal) == HORON_OK)
        set = horon_sets_make(&ctx->sets.known, ranks, count);
    give_table_back(ctx);
    if (!set && refusal->status == HORON_OK)
        horon_error_set(refusal, HORON_ERR_MEMORY, "no memory for a process set");
    return set;
}

/* What of the job's backends may carry a set's operations. @param names "" if it is all, in the
 * same order: the same on all ranks then, however they say it */
static horon_status_t pick(struct horon_context *ctx, const char *order,
                           struct horon_backends *picked, char *names, size_t name_bytes,
                           struct horon_error *error)
{
    const struct horon_backends *job = horon_engine_job(ctx->engine)->backends;
    char all[HORON_SETS_BACKENDS_BYTES];
    const horon_status_t status = horon_backends_pick(job, order, picked, error);
    if (status != HORON_OK)
        return status;
    horon_backends_name(job, all, sizeof all);
    horon_backends_name(picked, names, name_bytes);
    if (strcmp(names, all) == 0)
        names[0] = 0;
    return HORON_OK;
}

/* @p ranks may be written; not read if the meeting lacks memory
 * @param order of the backends; NULL: the job's */
static horon_status_t add(struct meeting *meeting, int32_t *ranks, size_t count, const char *order,
                          int64_t timeout_ms, int32_t *id_out, struct horon_error *error)
{
    struct horon_context *ctx = meeting->ctx;
    struct horon_error refusal = meeting->lack;
    struct horon_set *set = NULL;
    struct horon_backends backends;
    char names[HORON_SETS_BACKENDS_BYTES] = "";
    if (refusal.status == HORON_OK &&
        pick(ctx, order, &backends, names, sizeof names, &refusal) == HORON_OK)
        set = prepare(ctx, ranks, count, &refusal);
    if (set)
        horon_proposal_add(&meeting->proposal, &ctx->sets.known, set->ranks, count, names);
    horon_status_t status = agree(meeting, &refusal, timeout_ms, error);
    const bool agreed = status == HORON_OK;
    if (agreed) {
        make(ctx, set, order ? &backends : NULL, &refusal);
        status = confirm(meeting, &refusal, error);
    }
    if (status == HORON_OK)
        *id_out = set->id;
    else if (agreed)
        drop(ctx, set);
    else
        horon_free(set);
    return status;
}

/* ---- the calls ------------------------------------------------------------------------------ */

/* May process sets be changed by this call? Else the other ranks are not told of it. */
static horon_status_t refuse(struct horon_context *ctx, struct horon_error *error)
{
    const struct horon_error *failure;
    if (!ctx->config.dynamic_process_sets)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "process sets are neither added nor removed after joining: "
                               "HORON_DYNAMIC_PROCESS_SETS is 0");
    failure = horon_engine_failure(ctx->engine);
    if (!failure)
        return HORON_OK;
    horon_error_set(error, failure->status,
                    "process sets are neither added nor removed any more: %.900s", failure->text);
    error->blame = failure->blame;
    return error->status;
}

static horon_status_t add_copied(struct horon_context *ctx, const int32_t *ranks, size_t count,
                                 const char *order, int64_t timeout_ms, int32_t *id_out,
                                 struct horon_error *error)
{
    const size_t job_size = (size_t)ctx->boot.topology.size;
    const size_t kept = count <= job_size ? count : job_size + 1; /* one is twice then, or none */
    int32_t *copy = horon_zalloc(kept + 1, sizeof *copy);
    struct meeting meeting;
    begin(&meeting, ctx);
    if (!copy)
        horon_error_set(&meeting.lack, HORON_ERR_MEMORY, "no memory for a process set");
    if (copy && kept)
        memcpy(copy, ranks, kept * sizeof *ranks);
    const horon_status_t status = add(&meeting, copy, kept, order, timeout_ms, id_out, error);
    end(&meeting);
    horon_free(copy);
    return status;
}

/* @param given NULL: as by default */
static horon_status_t take_options(const horon_process_set_options_t *given,
                                   horon_process_set_options_t *options, struct horon_error *error)
{
    *options = (horon_process_set_options_t)HORON_PROCESS_SET_OPTIONS_INIT;
    return given ? horon_struct_take("process set's options", given, sizeof *options, options,
                                     sizeof *options, error)
                 : HORON_OK;
}

horon_status_t horon_process_set_add_with(horon_context_t *ctx, const int32_t *ranks, size_t n,
                                          const horon_process_set_options_t *given,
                                          int64_t timeout_ms, int32_t *id_out)
{
    horon_status_t status = horon_context_refuse(ctx, true);
    struct horon_error *error = horon_thread_error();
    horon_process_set_options_t options;
    if (status == HORON_OK)
        status = take_options(given, &options, error);
    if (status == HORON_OK && ((n && !ranks) || !id_out))
        status = horon_error_set(error, HORON_ERR_INVALID, "ranks or id_out is NULL");
    if (status != HORON_OK)
        return status;
    pthread_mutex_lock(&ctx->sets.change);
    status = refuse(ctx, error);
    if (status == HORON_OK)
        status = add_copied(ctx, ranks, n, options.backend, timeout_ms, id_out, error);
    pthread_mutex_unlock(&ctx->sets.change);
    return status;
}

horon_status_t horon_process_set_add(horon_context_t *ctx, const int32_t *ranks, size_t n,
                                     int64_t timeout_ms, int32_t *id_out)
{
    return horon_process_set_add_with(ctx, ranks, n, NULL, timeout_ms, id_out);
}

/* What a library makes of all ranks at once, a communicator, each of them waits for, and for ever,
 * if one removes the set before: so those that all have begun are made. And what is in flight on
 * one rank, another one has no part in any more: what they share is freed if nothing is on any. All
 * of that holds until the end, as nothing begins once a rank has said it. */
static void part(struct meeting *meeting, struct horon_set *set)
{
    struct horon_sets *known = &meeting->ctx->sets.known;
    struct horon_error error;
    uint32_t newest;
    const uint8_t said = set->team ? horon_context_team_part(set->team) : UINT8_MAX;
    horon_error_clear(&error);
    horon_proposal_parted(&meeting->proposal, known, said);
    const horon_status_t status = meet(meeting, "horon.process_set.parted", -1, &newest, &error);
    if (status == HORON_ERR_MEMORY && !meeting->met)
        fail_job(meeting->ctx, &error);
    if (status == HORON_OK && set->team)
        horon_context_team_end_opening(set->team,
                                       horon_proposals_said(meeting->answers, meeting->came_bytes));
}

static horon_status_t remove_set(struct horon_context *ctx, int32_t id, int64_t timeout_ms,
                                 struct horon_error *error)
{
    struct horon_set *set = horon_sets_find(&ctx->sets.known, id);
    struct meeting meeting;
    begin(&meeting, ctx);
    struct horon_error refusal = meeting.lack;
    if (!set)
        horon_error_set(&refusal, HORON_ERR_INVALID, "process set %d does not exist", (int)id);
    else if (id == 0)
        horon_error_set(&refusal, HORON_ERR_INVALID, "process set 0 is the job, and stays");
    else if (refusal.status == HORON_OK)
        horon_proposal_remove(&meeting.proposal, &ctx->sets.known, id);
    const horon_status_t status = agree(&meeting, &refusal, timeout_ms, error);
    if (status == HORON_OK)
        part(&meeting, set);
    end(&meeting);
    if (status == HORON_OK)
        drop(ctx, set);
    return status;
}

horon_status_t horon_process_set_remove(horon_context_t *ctx, int32_t id, int64_t timeout_ms)
{
    horon_status_t status = horon_context_refuse(ctx, true);
    if (status != HORON_OK)
        return status;
    pthread_mutex_lock(&ctx->sets.change);
    status = refuse(ctx, horon_thread_error());
    if (status == HORON_OK)
        status = remove_set(ctx, id, timeout_ms, horon_thread_error());
    pthread_mutex_unlock(&ctx->sets.change);
    return status;
}

horon_status_t horon_process_sets_add_static(struct horon_context *ctx, struct horon_error *error)
{
    const char *at = ctx->config.process_sets;
    int32_t id, *ranks = horon_zalloc((size_t)ctx->boot.topology.size, sizeof *ranks);
    char order[HORON_SETS_BACKENDS_BYTES];
    size_t count = 0;
    struct meeting meeting;
    horon_status_t status = HORON_OK;
    begin(&meeting, ctx);
    if (!ranks)
        horon_error_set(&meeting.lack, HORON_ERR_MEMORY, "no memory for process sets");
    while (*at && status == HORON_OK) {
        struct horon_error why = {0};
        if (meeting.lack.status == HORON_OK)
            status = horon_sets_parse(&ctx->sets.known, &at, ranks, &count, order, &why);
        if (status == HORON_OK)
            status = add(&meeting, ranks, count, order[0] ? order : NULL,
                         ctx->config.start_timeout_ms, &id, &why);
        if (status == HORON_OK)
            continue;
        const bool wrong = status == HORON_ERR_INVALID || status == HORON_ERR_CONFIG;
        status = horon_error_set(error, wrong ? HORON_ERR_CONFIG : status,
                                 "HORON_PROCESS_SETS=%.200s: %.700s", ctx->config.process_sets,
                                 why.text);
        if (!wrong)
            error->blame = why.blame;
    }
    end(&meeting);
    horon_free(ranks);
    return status;
}

/* ---- questions ------------------------------------------------------------------------------ */

horon_status_t horon_process_set_take(struct horon_context *ctx, int32_t id,
                                      struct horon_engine_team **team_out,
                                      struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    pthread_mutex_lock(&ctx->sets.lock);
    const struct horon_set *set = horon_sets_find(&ctx->sets.known, id);
    struct horon_context_team *team = set ? set->team : NULL;
    if (!set)
        status =
            horon_error_set(error, HORON_ERR_INVALID, "process set %d does not exist", (int)id);
    else if (!team)
        status = horon_error_set(error, HORON_ERR_INVALID, "rank %d is no member of process set %d",
                                 ctx->boot.topology.rank, (int)id);
    if (team) {
        *team_out = horon_context_team_of(team);
        horon_team_ref(*team_out);
    }
    pthread_mutex_unlock(&ctx->sets.lock);
    return status;
}

struct horon_engine_team *horon_process_set_look(const struct horon_context *ctx, int32_t id)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    const struct horon_set *set = horon_sets_find(&ctx->sets.known, id);
    return set && set->team ? horon_context_team_of(set->team) : NULL;
}

/* Under the lock, which these questions take although they change nothing. */
static const struct horon_set *look_up(const horon_context_t *ctx, int32_t id)
{
    pthread_mutex_lock((pthread_mutex_t *)&ctx->sets.lock);
    return horon_sets_find(&ctx->sets.known, id);
}

static void looked(const horon_context_t *ctx)
{
    pthread_mutex_unlock((pthread_mutex_t *)&ctx->sets.lock);
}

/* In the child of a fork the lock may be that of a thread that is not there. */
static bool is_gone(const horon_context_t *ctx)
{
    return !ctx || horon_life_is_forked(&ctx->life);
}

int32_t horon_process_set_rank(const horon_context_t *ctx, int32_t id)
{
    if (is_gone(ctx))
        return -1;
    const struct horon_set *set = look_up(ctx, id);
    const int32_t rank = set ? horon_set_find_rank(set, ctx->boot.topology.rank) : -1;
    looked(ctx);
    return rank;
}

int32_t horon_process_set_ranks(const horon_context_t *ctx, int32_t id, int32_t *ranks, int32_t n)
{
    if (is_gone(ctx))
        return -1;
    const struct horon_set *set = look_up(ctx, id);
    const int32_t size = set ? set->size : -1;
    for (int32_t i = 0; ranks && i < size && i < n; i++)
        ranks[i] = set->ranks[i];
    looked(ctx);
    return size;
}

int32_t horon_process_set_size(const horon_context_t *ctx, int32_t id)
{
    return horon_process_set_ranks(ctx, id, NULL, 0);
}

int32_t horon_process_set_ids(const horon_context_t *ctx, int32_t *ids, int32_t n)
{
    int32_t found = 0;
    if (is_gone(ctx))
        return -1;
    (void)look_up(ctx, 0);
    for (int32_t id = 0; id < ctx->sets.known.limit; id++) {
        if (!ctx->sets.known.table[id])
            continue;
        if (ids && found < n)
            ids[found] = id;
        found++;
    }
    looked(ctx);
    return found;
}
