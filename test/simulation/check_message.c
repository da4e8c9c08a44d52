/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges how each end of a message ended: its receiver has what was sent, and all of it, and
 * nothing else; or it failed as the run's fate allows, with a text that names the rank to blame.
 * What is sent tells the message and its round, so one that is lost, comes twice or overtakes
 * another of its tag shows as wrong data, or as a receive that never ends.
 *
 * The memory of an end that has ended is its user's: it is overwritten at once, and a rank that
 * still reads or writes it is seen.
 */
#undef NDEBUG
#include "simulation/messages.h"
#include "simulation/sets.h"
#include "simulation/teams.h"

#include "engine/messages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool sends(const struct sim_rank *rank, const struct sim_op *op)
{
    return op->from == rank->rank;
}

static const struct sim_rank *peer_of(const struct sim_rank *rank, const struct sim_op *op)
{
    return &rank->sim->ranks[sends(rank, op) ? op->to : op->from];
}

static const char *verb_of(const struct sim_rank *rank, const struct sim_op *op)
{
    return sends(rank, op) ? "send" : "recv";
}

static size_t bytes_of(const struct sim_op *op)
{
    return (size_t)op->count * horon_dtype_bytes(op->dtype);
}

static bool is_all(const uint8_t *memory, uint8_t value, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && memory[at] == value)
        at++;
    return at == bytes;
}

static void *memory_of(const struct sim_rank *rank, const struct sim_op *op,
                       const struct sim_use *use)
{
    return sends(rank, op) ? use->in : use->out;
}

void sim_message_check_memory(const struct sim_rank *rank, const struct sim_op *op,
                              const struct sim_use *use)
{
    if (use->given_back &&
        !is_all(memory_of(rank, op, use), SIM_GIVEN_BACK, sim_message_memory(op)))
        sim_fail(rank->sim, "rank %d: memory of %s %s was written when it had ended", rank->rank,
                 verb_of(rank, op), op->name);
}

/* Is @p memory what is sent, and @p bytes behind that untouched? */
static void check_data(const struct sim_rank *rank, const struct sim_op *op,
                       const struct sim_use *use)
{
    const uint8_t *memory = memory_of(rank, op, use);
    const size_t bytes = bytes_of(op), all = sim_message_memory(op);
    uint8_t *sent = malloc(bytes + 1);
    assert(sent);
    sim_fill(rank->sim, op, op->from, use->round, sent);
    if (memcmp(memory, sent, bytes) != 0 ||
        !is_all(memory + bytes, SIM_MESSAGE_UNTOUCHED, all - bytes))
        sim_fail(rank->sim, "rank %d: wrong data of %s %s, %zu bytes from rank %d to %d, tag %llu",
                 rank->rank, verb_of(rank, op), op->name, bytes, op->from, op->to,
                 (unsigned long long)op->tag);
    free(sent);
}

/* ---- failures ------------------------------------------------------------------------------- */

/* Is the other end there no more, although this one has not ended? */
static bool is_deserted(const struct sim_rank *rank, const struct sim_op *op)
{
    const struct sim_rank *peer = peer_of(rank, op);
    return (peer->leaving || peer->state == SIM_LEFT) &&
           (rank->sim->fate != SIM_FATE_GOOD || sim_team_life(peer, op->team) == SIM_LIFE_OVER);
}

static bool blames_deserter(const struct sim_rank *rank, const struct sim_op *op,
                            horon_status_t status, const char *text)
{
    return is_deserted(rank, op) && status == HORON_ERR_CLOSED &&
           sim_names(rank->sim, text, peer_of(rank, op)->rank) &&
           sim_ranks_named(rank->sim, text) == 1 && strstr(text, "has shut down its context");
}

/* Has the team nothing to do but messages, so that a rank that leaves it fails none of others? */
static bool is_quiet(const struct simulation *sim, int team)
{
    bool quiet = team != 0 || sim->change_count == 0;
    for (int i = 0; i < sim->op_count; i++)
        quiet &= sim->ops[i].team != team || sim->ops[i].paired;
    return quiet;
}

static bool may_fail(const struct sim_rank *rank, const struct sim_op *op,
                     const struct sim_use *use, const char *text)
{
    const struct simulation *sim = rank->sim;
    const horon_status_t status = use->request->status;
    if (op->odd >= 0 && status == HORON_ERR_MISMATCH && sim_names(sim, text, op->from) &&
        sim_names(sim, text, op->to) && sim_ranks_named(sim, text) == 2)
        return true;
    if (rank->leaving)
        return status == HORON_ERR_CLOSED;
    if (sim_is_removed(rank, op, status, text) || sim_is_unreached(sim, status, text) ||
        blames_deserter(rank, op, status, text))
        return true;
    if (sim->fate == SIM_FATE_LEAVE && is_quiet(sim, op->team) &&
        !sim_message_is_of(op, sim->victim))
        return false;
    return sim_suits_fate(sim, op, status, text);
}

/* Does what a binding reads agree with the text? Of two ranks that cannot connect either is named.
 */
static bool blames_named(const struct simulation *sim, const struct horon_request *request,
                         const char *text)
{
    const int blamed = request->blame.rank;
    return blamed < 0 || sim_names(sim, text, blamed) || strstr(text, "cannot connect to");
}

static void check_failure(const struct sim_rank *rank, const struct sim_op *op,
                          const struct sim_use *use)
{
    struct simulation *sim = rank->sim;
    const char *text = use->request->error_text ? use->request->error_text : "";
    const struct sim_rank *peer = peer_of(rank, op);
    const bool later = is_deserted(rank, op) && peer->rank != sim->victim;
    if (!may_fail(rank, op, use, text))
        sim_fail(sim, "rank %d: %s %s ended with %s: %s", rank->rank, verb_of(rank, op), op->name,
                 horon_status_text(use->request->status), text);
    else if (!rank->leaving && !blames_named(sim, use->request, text))
        sim_fail(sim, "rank %d: %s %s blames rank %d, and says: %s", rank->rank, verb_of(rank, op),
                 op->name, use->request->blame.rank, text);
    else if (!later)
        sim_check_notice(rank, op, use);
}

/* ---- either way ----------------------------------------------------------------------------- */

static void check_well(const struct sim_rank *rank, const struct sim_op *op,
                       const struct sim_use *use)
{
    struct simulation *sim = rank->sim;
    const struct horon_request *request = use->request;
    const bool is_long = request->op.count * horon_dtype_bytes(request->op.agreed.dtype) >
                         (uint64_t)sim->world->config.net_eager_bytes;
    if (op->odd >= 0 && (!sends(rank, op) || is_long))
        sim_fail(sim, "rank %d: %s %s ended well, but rank %d describes it otherwise", rank->rank,
                 verb_of(rank, op), op->name, op->odd);
    else if (!sends(rank, op) &&
             (request->output != use->out || request->output_count != op->count))
        sim_fail(sim, "rank %d: %s has %llu elements of output", rank->rank, op->name,
                 (unsigned long long)request->output_count);
    sim->outcome.sent += sends(rank, op);
    sim->outcome.received += !sends(rank, op);
    sim->outcome.received_long += !sends(rank, op) && is_long;
    sim->outcome.received_late += !sends(rank, op) && op->late;
}

void sim_message_check(struct sim_rank *rank, struct sim_op *op, struct sim_use *use)
{
    const bool well = use->request->status == HORON_OK;
    if (well)
        check_well(rank, op, use);
    else
        check_failure(rank, op, use);
    if (sends(rank, op) || (well && op->odd < 0))
        check_data(rank, op, use);
    rank->sim->outcome.messages_failed += !well;
    memset(memory_of(rank, op, use), SIM_GIVEN_BACK, sim_message_memory(op));
    use->given_back = true;
}

void sim_messages_check_rest(const struct sim_rank *rank)
{
    for (const struct horon_engine_team *team = rank->ctx.engine->job; team; team = team->next)
        if (horon_team_has_messages(team))
            sim_fail(rank->sim, "rank %d keeps messages of team %u", rank->rank, team->id);
}
