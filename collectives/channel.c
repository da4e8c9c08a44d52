/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: set-up, the table of verbs, and the texts when ranks began different operations. How an
 * operation goes is in exec/phases.c and in the verb's own file.
 */
#include "channel_state.h"

#include "alloc.h"
#include "clock.h"
#include "exec/exchange.h"
#include "exec/lent.h"

#include <stdio.h>
#include <string.h>

static const struct horon_verb_ops *const verbs[HORON_VERB_COUNT] = {
    [HORON_ALLREDUCE] = &horon_allreduce_ops,
    [HORON_BROADCAST] = &horon_broadcast_ops,
    [HORON_ALLGATHER] = &horon_allgather_ops,
    [HORON_BARRIER] = &horon_allreduce_ops, /* of nothing */
    [HORON_ALLTOALL] = &horon_alltoall_ops,
    [HORON_GATHER] = &horon_alltoall_ops,  /* of which all but root get nothing */
    [HORON_SCATTER] = &horon_alltoall_ops, /* of which all but root give nothing */
    [HORON_REDUCESCATTER] = &horon_reducescatter_ops,
    [HORON_REDUCE] = &horon_reduce_ops,
};

bool horon_channel_has(horon_verb_t verb)
{
    assert(verb < HORON_VERB_COUNT);
    return verbs[verb];
}

/* Verbs with one file have one state: of one operation at a time. @return the first of them */
static int home_of(int verb)
{
    int home = 0;
    while (verbs[home] != verbs[verb])
        home++;
    return home;
}

static void *table(size_t count, size_t item_bytes, bool *ok)
{
    void *memory = horon_zalloc(count, item_bytes);
    if (!memory)
        *ok = false;
    return memory;
}

static bool make_states(struct horon_channel *channel)
{
    bool ok = true;
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        channel->states[verb] = channel->states[home_of(verb)];
        if (home_of(verb) != verb || !verbs[verb])
            continue; /* a message is no operation of a channel */
        void *state = table(1, verbs[verb]->state_bytes(channel->team), &ok);
        if (state)
            verbs[verb]->init(state, channel->team);
        channel->states[verb] = state;
    }
    return ok;
}

static bool allocate_tables(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    size_t local = (size_t)team->local_size;
    size_t hosts = (size_t)team->host_count, segments = (size_t)team->segments;
    size_t runs = HORON_SLOTS * (size_t)channel->carried;
    bool ok = true;
    for (int slot = 0; slot < HORON_SMALL_SLOTS; slot++) {
        channel->small[slot] = table(local, sizeof *channel->small[slot], &ok);
        channel->area[slot] = table(local, sizeof *channel->area[slot], &ok);
    }
    for (int slot = 0; slot < HORON_SLOTS; slot++)
        channel->chunk[slot] = table(local, sizeof *channel->chunk[slot], &ok);
    channel->posted = table(local, sizeof *channel->posted, &ok);
    channel->reduced = table(local, sizeof *channel->reduced, &ok);
    channel->nets = table(runs, sizeof *channel->nets, &ok);
    channel->exchange_memory = table(runs, sizeof *channel->exchange_memory, &ok);
    channel->carriers = table(segments * hosts, sizeof *channel->carriers, &ok);
    channel->leaders = table(hosts, sizeof *channel->leaders, &ok);
    return make_states(channel) && ok;
}

static void fill_tables(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    const struct horon_host *host = channel->host;
    const size_t at = channel->options.arena_at;
    for (int rank = 0; rank < team->local_size; rank++) {
        for (int slot = 0; slot < HORON_SMALL_SLOTS; slot++) {
            channel->small[slot][rank] = horon_host_small(host, at, rank, slot);
            channel->area[slot][rank] = horon_host_area(host, at, rank, slot);
        }
        for (int slot = 0; slot < HORON_SLOTS; slot++)
            channel->chunk[slot][rank] = horon_host_chunk(host, at, rank, slot);
        channel->posted[rank] = horon_host_posted(host, at, rank);
        channel->reduced[rank] = horon_host_reduced(host, at, rank);
    }
    for (int slot = 0; slot < HORON_SMALL_SLOTS; slot++)
        channel->result[slot] = horon_host_result(host, at, 0, slot);
    for (int h = 0; h < team->host_count; h++) {
        const int *ranks = team->host_ranks + team->host_first[h];
        int host_size = team->host_first[h + 1] - team->host_first[h];
        channel->leaders[h] = ranks[0];
        for (int segment = 0; segment < team->segments; segment++)
            channel->carriers[segment * team->host_count + h] = ranks[segment % host_size];
    }
}

horon_status_t horon_channel_create(const struct horon_channel_options *options,
                                    const struct horon_team *team, struct horon_host *host,
                                    struct horon_channel **channel_out)
{
    struct horon_channel *channel = horon_zalloc(1, sizeof *channel);
    if (!channel)
        return HORON_ERR_MEMORY;
    assert(team->local_rank < team->local_size);
    assert(team->local_size <= team->segments);
    assert(host->shape.local_size == team->local_size);
    channel->options = *options;
    channel->team = team;
    channel->host = host;
    /* segments l, l + L, l + 2L, ... below `segments` */
    channel->carried =
        (team->segments - team->local_rank + team->local_size - 1) / team->local_size;
    if (!allocate_tables(channel)) {
        horon_channel_destroy(channel);
        return HORON_ERR_MEMORY;
    }
    fill_tables(channel);
    channel->lends =
        options->lend_bytes > 0 && host->readable && team->host_count == 1 && team->local_size > 1;
    *channel_out = channel;
    return HORON_OK;
}

static void forget_transfers(struct horon_channel *channel)
{
    if (channel->phase == HORON_PHASE_IDLE)
        return;
    for (int rank = 0; rank < channel->team->size; rank++)
        if (channel->team->mux_of[rank])
            horon_mux_forget(channel->team->mux_of[rank], (uint32_t)channel->options.channel,
                             channel->ended);
}

static bool reaches_outputs(const struct horon_channel *channel)
{
    switch (channel->verb->reach) {
    case HORON_LINKS_REACH_SLOTS:
        break;
    case HORON_LINKS_REACH_OUTPUTS_ALONE:
        return channel->team->local_size == 1;
    case HORON_LINKS_REACH_OUTPUTS:
        return true;
    }
    return false;
}

/* To forget may need memory, and a link without it is dead: not where there is no need. */
void horon_channel_abort(struct horon_channel *channel)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    horon_lent_recall(channel);
    if (channel->phase == HORON_PHASE_PIPELINE && reaches_outputs(channel))
        forget_transfers(channel);
}

void horon_channel_destroy(struct horon_channel *channel)
{
    if (!channel)
        return;
    horon_lent_recall(channel);
    forget_transfers(channel);
    for (int slot = 0; slot < HORON_SMALL_SLOTS; slot++) {
        horon_free(channel->small[slot]);
        horon_free(channel->area[slot]);
    }
    for (int slot = 0; slot < HORON_SLOTS; slot++)
        horon_free(channel->chunk[slot]);
    for (int i = 0; i < HORON_SLOTS * channel->carried; i++) {
        if (channel->nets)
            horon_netrun_deinit(&channel->nets[i]);
        if (channel->exchange_memory)
            horon_free(channel->exchange_memory[i].bytes);
    }
    horon_free(channel->posted);
    horon_free(channel->reduced);
    horon_free(channel->nets);
    horon_free(channel->exchange_memory);
    horon_free(channel->carriers);
    horon_free(channel->leaders);
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++)
        if (home_of(verb) == verb)
            horon_free(channel->states[verb]);
    horon_free(channel);
}

void horon_channel_begin(struct horon_channel *channel, const struct horon_operation *op)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    assert(channel->phase == HORON_PHASE_IDLE);
    channel->op = op;
    channel->count = op->count;
    channel->element_bytes = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    channel->verb = verbs[op->agreed.verb];
    channel->state = channel->states[op->agreed.verb];
    channel->met = 0;
    channel->meet_end = channel->team->local_size;
    channel->pipeline.first = channel->pipeline.base;
    horon_phase_move(channel, HORON_PHASE_ENTER);
    channel->verb->begin(channel);
}

static void describe(const struct horon_slot_head *head, char *text, size_t text_bytes)
{
    const struct horon_verb_row *row = &horon_verb_rows[head->verb % HORON_VERB_COUNT];
    char elements[64] = "", more[32] = "";
    if (horon_verb_moves(row))
        snprintf(elements, sizeof elements, " of %llu %s", (unsigned long long)head->count,
                 horon_dtype_name((horon_dtype_t)head->dtype));
    if (horon_verb_reduces(row))
        snprintf(more, sizeof more, ", %s", horon_redop_name((horon_redop_t)head->redop));
    else if (horon_verb_is_rooted(row))
        snprintf(more, sizeof more, ", root %d", (int)head->root);
    snprintf(text, text_bytes, "%s%s%s", row->name, elements, more);
}

/* In the order that the user knows. */
static unsigned long long number_of_operation(const struct horon_channel *channel)
{
    const uint64_t *ended_before = channel->options.ended_before;
    return ended_before ? *ended_before : channel->ended;
}

/* A link names its peer and compares numbers. All ranks will read the text: this one, and what it
 * began, go before it. */
HORON_SELDOM static void name_us(const struct horon_channel *channel, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    struct horon_slot_head head = {0};
    char ours[160], said[HORON_ERROR_TEXT_BYTES];
    if (error->blame.cause == HORON_CAUSE_ORDER)
        return; /* it was found on this host: both sides are named */
    const int peer = error->blame.rank;
    horon_channel_fill_head(channel, &head);
    describe(&head, ours, sizeof ours);
    snprintf(said, sizeof said, "%s", error->text);
    horon_error_set(error, HORON_ERR_MISMATCH,
                    "operation %llu in order differs between ranks: %s began %s, but %.600s",
                    number_of_operation(channel), team->rank_names[team->rank], ours, said);
    horon_error_blame_both(error, HORON_CAUSE_ORDER, horon_team_job_rank(team, team->rank), peer);
}

horon_status_t horon_channel_advance(struct horon_channel *channel, bool *moved_out,
                                     struct horon_error *error)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    const horon_status_t status = horon_phase_advance(channel, moved_out, error);
    if (status == HORON_OK) {
        assert(horon_channel_has_met(channel) ||
               horon_verb_is_rooted(horon_verb_of(&channel->op->agreed)));
        horon_phase_move(channel, HORON_PHASE_IDLE);
        channel->ended++;
        *moved_out = true;
    }
    if (status == HORON_ERR_MISMATCH)
        name_us(channel, error);
    return status;
}

bool horon_channel_waits_for(struct horon_channel *channel, int rank)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    return horon_phase_waits_for(channel, rank);
}

/* Outputs are written only once all ranks of the host have entered; and what is small, by the step
 * that ends the operation, or finds that an entry is damaged. */
bool horon_channel_keeps_inputs(const struct horon_channel *channel)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    const bool may_write =
        channel->phase == HORON_PHASE_MEET || channel->phase == HORON_PHASE_PIPELINE;
    return !may_write || !horon_channel_has_met(channel);
}

void horon_channel_explain(const struct horon_channel *channel, char *text, size_t text_bytes)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    horon_phase_explain(channel, text, text_bytes);
}

horon_status_t horon_channel_differs(const struct horon_channel *channel, int other,
                                     struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    const int *ranks = team->host_ranks + team->host_first[team->host];
    struct horon_slot_head **heads = channel->small[horon_channel_slot(channel)];
    char ours[160], theirs[160];
    describe(heads[team->local_rank], ours, sizeof ours);
    describe(heads[other], theirs, sizeof theirs);
    const uint32_t generation = horon_slot_generation(heads[other]);
    const char *same =
        strcmp(ours, theirs) == 0
            ? " (they differ in name, shape, splits, scale, or in an operation before)"
            : "";
    if (generation != channel->team->generation)
        horon_error_set(error, HORON_ERR_MISMATCH,
                        "operation %llu in order meets another membership: %s began %s in "
                        "generation %u, %s began %s in generation %u",
                        number_of_operation(channel), team->rank_names[team->rank], ours,
                        channel->team->generation, team->rank_names[ranks[other]], theirs,
                        generation);
    else
        horon_error_set(error, HORON_ERR_MISMATCH,
                        "operation %llu in order differs between ranks: %s began %s, %s began "
                        "%s%s; all ranks must begin the same sequence",
                        number_of_operation(channel), team->rank_names[team->rank], ours,
                        team->rank_names[ranks[other]], theirs, same);
    horon_error_blame_both(error, HORON_CAUSE_ORDER, horon_team_job_rank(team, team->rank),
                           horon_team_job_rank(team, ranks[other]));
    return HORON_ERR_MISMATCH;
}

horon_status_t horon_channel_damaged(const struct horon_channel *channel, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    return horon_error_set(error, HORON_ERR_PROTO,
                           "another process of its host has written over what %s shares with it",
                           team->rank_names[team->rank]);
}

size_t horon_channel_small_limit(const struct horon_channel *channel)
{
    size_t limit = channel->host->shape.small_bytes;
    bool cores_to_spare = channel->team->host_count == 1 && !channel->team->crowded;
    return cores_to_spare ? limit / 8 : limit;
}
