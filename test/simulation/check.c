/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges how a request ended: well, with the bits of the reference; or as the run's fate allows,
 * with a text that names the rank to blame, and with its input intact if a rank never took part.
 */
#undef NDEBUG
#include "simulation/messages.h"
#include "simulation/sets.h"
#include "simulation/simulation.h"
#include "simulation/teams.h"

#include "engine/engine_state.h"
#include "reduce/reduce.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long after a death a request that was in flight may still wait. */
#define NOTICE_MAX (1000 * SIM_MS)

bool sim_has_rows(const struct sim_op *op)
{
    return horon_verb_rows_differ(&horon_verb_rows[op->verb]);
}

/* Which ranks of the job give, or get, rows. */
static bool includes(const struct simulation *sim, const struct sim_op *op, enum horon_ranks ranks,
                     int rank)
{
    return horon_ranks_include(ranks, sim_team_rank(sim, op->team, op->root), rank);
}

uint64_t sim_rows_of(const struct simulation *sim, const struct sim_op *op, int from, int to)
{
    const struct horon_verb_row *row = &horon_verb_rows[op->verb];
    if (!includes(sim, op, row->reads, from) || !includes(sim, op, row->writes, to) ||
        !sim_takes_part(op, &sim->ranks[from]))
        return 0;
    if (row->ahead == HORON_AHEAD_SPLITS)
        return (from + 2 * to) % 3 == 1 ? 0 : op->count / (uint64_t)(1 + (3 * from + to) % 7);
    return from % 3 == 1 ? 0 : op->count / (uint64_t)(from % 4 + 1);
}

uint64_t sim_count_of(const struct simulation *sim, const struct sim_op *op, int rank)
{
    const struct horon_verb_row *row = &horon_verb_rows[op->verb];
    uint64_t rows = 0;
    if (!sim_has_rows(op))
        return op->count;
    if (row->ahead == HORON_AHEAD_ROWS)
        return rank % 3 == 1 ? 0 : op->count / (uint64_t)(rank % 4 + 1) * op->row;
    for (int i = 0; i < sim_team_size(sim, op->team); i++)
        rows += sim_rows_of(sim, op, rank, sim_team_rank(sim, op->team, i));
    return rows * op->row;
}

uint64_t sim_share_of(const struct sim_op *op, int member, int size)
{
    const uint64_t rows = op->count / op->row, ranks = (uint64_t)size;
    if (op->uneven && op->odd < 0) { /* in place the last one's overlaps the rows that it keeps */
        const uint64_t first = size > 1 ? rows / 4 : 0;
        return member == size - 1 ? rows - first : member == 0 ? first : 0;
    }
    return rows / ranks + ((uint64_t)member < rows % ranks);
}

/* Values whose sums keep bits to lose: a wrong order or a missing rank shows. */
static void fill_element(uint8_t *at, horon_dtype_t dtype, uint64_t random)
{
    int value = (int)(random % 2001) - 1000;
    float f32 = (float)value / 7.0f;
    double f64 = (double)value / 7.0;
    uint16_t bf16 = (uint16_t)(0x3f80 + random % 200), f16 = (uint16_t)(0x3800 + random % 2000);
    uint8_t truth = random & 1;
    const void *bytes = &random;
    if (dtype == HORON_FLOAT32)
        bytes = &f32;
    else if (dtype == HORON_FLOAT64)
        bytes = &f64;
    else if (dtype == HORON_BFLOAT16)
        bytes = &bf16;
    else if (dtype == HORON_FLOAT16)
        bytes = &f16;
    else if (dtype == HORON_BOOL)
        bytes = &truth;
    size_t size = horon_dtype_bytes(dtype);
    memcpy(at, bytes, size < 8 ? size : 8);
    if (size > 8)
        memcpy(at + 8, &random, 8);
}

void sim_fill(const struct simulation *sim, const struct sim_op *op, int rank, int round,
              void *memory)
{
    uint64_t x = sim->seed * 0x9e3779b97f4a7c15u + (uint64_t)(op - sim->ops) * 7919u +
                 (uint64_t)rank * 104729u + (uint64_t)round * 1299709u + 1;
    size_t size = horon_dtype_bytes(op->dtype);
    uint64_t count = sim_count_of(sim, op, rank);
    uint8_t *at = memory;
    for (uint64_t i = 0; i < count; i++, at += size) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        fill_element(at, op->dtype, x);
    }
}

/* What a rank gives to an operation of the job when it has run out of data. */
static void fill_neutral(const struct sim_op *op, void *memory)
{
    const size_t size = horon_dtype_bytes(op->dtype);
    uint8_t element[HORON_REDUCE_ELEMENT_BYTES_MAX];
    if (!sim_reduces(op))
        return;
    const bool found = horon_reduce_neutral(op->dtype, op->redop, op->prescale, element);
    assert(found);
    for (uint64_t i = 0; i < op->count; i++)
        memcpy((uint8_t *)memory + i * size, element, size);
}

/* ---- the reference -------------------------------------------------------------------------- */

static void expect(struct simulation *sim, struct sim_op *op, int round)
{
    size_t size = horon_dtype_bytes(op->dtype);
    uint8_t *inputs[SIM_RANKS_MAX] = {NULL};
    if (op->expected_round == round)
        return;
    for (int i = 0; i < sim_team_size(sim, op->team); i++) {
        const int rank = sim_team_rank(sim, op->team, i);
        size_t bytes = (size_t)sim_count_of(sim, op, rank) * size;
        inputs[i] = malloc(bytes + 1);
        assert(inputs[i]);
        if (sim_takes_part(op, &sim->ranks[rank]))
            sim_fill(sim, op, rank, round, inputs[i]);
        else
            fill_neutral(op, inputs[i]);
    }
    free(op->expected);
    op->expected = malloc((size_t)op->count * size + 1);
    assert(op->expected);
    op->expected_bytes = (uint64_t)op->count * size;
    op->expected_round = round;
    if (sim_reduces(op)) {
        world_expect_over(sim_team_topology(sim, op->team), op->dtype, op->redop, op->prescale,
                          op->postscale, (const void *const *)inputs, op->count, op->expected);
    } else if (op->verb == HORON_BROADCAST) {
        memcpy(op->expected, inputs[op->root], op->expected_bytes);
    }
    for (int i = 0; i < sim->size; i++)
        free(inputs[i]);
}

/* What a rank gets of all others, of a verb of rows. @return elements that are wrong in number or
 * content? */
static bool rows_are_wrong(const struct simulation *sim, const struct sim_op *op, int rank,
                           const struct sim_use *use)
{
    const size_t bytes = (size_t)op->row * horon_dtype_bytes(op->dtype);
    const uint8_t *out = use->request->output;
    uint64_t total = 0;
    bool wrong = false;
    for (int i = 0; i < sim_team_size(sim, op->team) && !wrong; i++) {
        const int from = sim_team_rank(sim, op->team, i);
        const uint64_t rows = sim_rows_of(sim, op, from, rank);
        const bool splits = horon_verb_rows[op->verb].ahead == HORON_AHEAD_SPLITS;
        uint64_t before = 0;
        for (int k = 0; splits && sim_team_rank(sim, op->team, k) != rank; k++)
            before += sim_rows_of(sim, op, from, sim_team_rank(sim, op->team, k));
        uint8_t *given = malloc((size_t)sim_count_of(sim, op, from) * bytes + 1);
        assert(given);
        sim_fill(sim, op, from, use->round, given);
        wrong = use->request->output_rows[i] != rows ||
                (rows && memcmp(out + total * bytes, given + before * bytes, rows * bytes) != 0);
        total += rows;
        free(given);
    }
    return wrong || use->request->output_count != total * op->row;
}

static void check_output(struct sim_rank *rank, struct sim_op *op, struct sim_use *use)
{
    struct simulation *sim = rank->sim;
    const void *out = use->request->output;
    if (op->verb == HORON_BARRIER)
        return;
    if (op->verb == HORON_BROADCAST && sim_team_rank(sim, op->team, op->root) == rank->rank && !out)
        return; /* it wanted none */
    if (sim_has_rows(op)) {
        if (rows_are_wrong(sim, op, rank->rank, use))
            sim_fail(sim, "rank %d: wrong rows of %s %s, %llu elements of %s", rank->rank,
                     horon_verb_name(op->verb), op->name,
                     (unsigned long long)use->request->output_count, horon_dtype_name(op->dtype));
        return;
    }
    const int member = sim_team_member(sim, op->team, rank->rank);
    const int size = sim_team_size(sim, op->team);
    if (op->verb == HORON_REDUCE && op->root != member)
        return;
    expect(sim, op, use->round);
    const uint8_t *expected = op->expected;
    uint64_t bytes = op->expected_bytes;
    if (op->verb == HORON_REDUCESCATTER) {
        const size_t of_row = op->row * horon_dtype_bytes(op->dtype);
        bytes = sim_share_of(op, member, size) * of_row;
        for (int before = 0; before < member; before++)
            expected += sim_share_of(op, before, size) * of_row;
    }
    if (bytes && memcmp(out, expected, bytes) != 0)
        sim_fail(sim, "rank %d: wrong result of %s %s, %llu elements of %s%s", rank->rank,
                 horon_verb_name(op->verb), op->name, (unsigned long long)op->count,
                 horon_dtype_name(op->dtype), op->in_order ? ", in order" : "");
}

/* ---- failures ------------------------------------------------------------------------------- */

/* Is the input as it was? If it is also the output, only while somebody never took part. */
static void check_input(struct sim_rank *rank, struct sim_op *op, struct sim_use *use)
{
    struct simulation *sim = rank->sim;
    size_t bytes = (size_t)sim_count_of(sim, op, rank->rank) * horon_dtype_bytes(op->dtype);
    if (op->verb == HORON_BROADCAST && sim_team_rank(sim, op->team, op->root) != rank->rank)
        return;
    int number = (int)(op - sim->ops);
    const struct sim_rank *victim = &sim->ranks[sim->victim];
    bool one_missing = victim->uses[number].round < use->round && sim_takes_part(op, victim);
    if (use->in == use->out && !one_missing)
        return;
    uint8_t *before = malloc(bytes + 1);
    assert(before);
    sim_fill(sim, op, rank->rank, use->round, before);
    if (memcmp(before, use->in, bytes) != 0)
        sim_fail(sim, "rank %d: %s %s failed and its input is not what it was", rank->rank,
                 horon_verb_name(op->verb), op->name);
    free(before);
}

/* With its host, which world.c names. */
bool sim_names(const struct simulation *sim, const char *text, int rank)
{
    const int host = sim->world->ranks[rank].topology.host_of[rank];
    char wanted[48];
    snprintf(wanted, sizeof wanted, "rank %d (host-%d)", rank, host);
    return strstr(text, wanted) != NULL;
}

int sim_ranks_named(const struct simulation *sim, const char *text)
{
    int count = 0;
    for (int rank = 0; rank < sim->size; rank++)
        count += sim_names(sim, text, rank);
    return count;
}

/* Has the team ended because a member has removed it, this one or another, which is named? Once the
 * job has failed some may have dropped what others had added. */
bool sim_is_removed(const struct sim_rank *rank, const struct sim_op *op, horon_status_t status,
                    const char *text)
{
    const struct simulation *sim = rank->sim;
    if (!op->team || !sim->change_count || status != HORON_ERR_CLOSED)
        return false;
    if (sim_team_life(rank, op->team) == SIM_LIFE_OVER &&
        strstr(text, "its process set was removed"))
        return true;
    for (int i = 0; i < sim_team_size(sim, op->team); i++) {
        const struct sim_rank *other = &sim->ranks[sim_team_rank(sim, op->team, i)];
        if (sim_team_life(other, op->team) == SIM_LIFE_OVER && sim_names(sim, text, other->rank) &&
            (strstr(text, "has removed the team") || other->leaving))
            return true;
    }
    return false;
}

static bool names_one_gone(const struct simulation *sim, const char *text)
{
    bool gone = false;
    for (int rank = 0; rank < sim->size; rank++)
        gone |= sim_names(sim, text, rank) &&
                (sim->ranks[rank].leaving || sim->ranks[rank].state == SIM_DEAD);
    return gone && sim_ranks_named(sim, text) == 1;
}

/* It is told at once, perhaps before the cause is. */
bool sim_is_unreached(const struct simulation *sim, horon_status_t status, const char *text)
{
    return sim->fate != SIM_FATE_GOOD && status == HORON_ERR_PEER_LOST &&
           names_one_gone(sim, text) && strstr(text, "cannot connect to");
}

bool sim_suits_fate(const struct simulation *sim, const struct sim_op *op, horon_status_t status,
                    const char *text)
{
    const bool has_victim = sim_team_member(sim, op->team, sim->victim) >= 0;
    if (sim->fate == SIM_FATE_DISORDER ? op->team != sim->ill_team : !has_victim)
        return false;
    switch (sim->fate) {
    case SIM_FATE_GOOD:
        return false;
    case SIM_FATE_KILL:
        return sim->struck && status == HORON_ERR_PEER_LOST && sim_names(sim, text, sim->victim);
    case SIM_FATE_LEAVE:
        /* nobody else: those that give up because of it and leave are no cause */
        return sim->struck && status == HORON_ERR_CLOSED && sim_names(sim, text, sim->victim) &&
               sim_ranks_named(sim, text) == 1;
    case SIM_FATE_DISORDER:
        /* of two that carried out different operations one may have gone before anything told it */
        return status == HORON_ERR_MISMATCH && sim_ranks_named(sim, text) >= 1;
    }
    return false;
}

/* @return is this how it may end? */
static bool allowed(const struct sim_rank *rank, const struct sim_op *op, const struct sim_use *use,
                    const char *text)
{
    const struct simulation *sim = rank->sim;
    horon_status_t status = use->request->status;
    if (rank->leaving)
        return status == HORON_ERR_CLOSED;
    if (status == HORON_ERR_CANCELLED)
        return use->cancelling;
    if (sim_is_removed(rank, op, status, text) || sim_is_unreached(sim, status, text))
        return true;
    if (!op->in_order && op->odd >= 0 && status == HORON_ERR_MISMATCH &&
        sim_names(sim, text, op->odd) && sim_ranks_named(sim, text) == 2)
        return true;
    return sim_suits_fate(sim, op, status, text);
}

void sim_check_order(struct simulation *sim)
{
    bool noticed = sim->fate != SIM_FATE_DISORDER || sim->failure[0];
    for (int i = 0; i < sim->op_count; i++)
        for (int rank = 0; rank < sim->size && sim->ops[i].in_order && sim->ops[i].odd >= 0; rank++)
            noticed = noticed || (sim->ranks[rank].uses[i].request &&
                                  sim->ranks[rank].uses[i].request->status != HORON_OK);
    if (!noticed)
        sim_fail(sim, "nobody noticed that rank %d broke the promise of equal sequences",
                 sim->victim);
}

static void count(struct sim_outcome *outcome, horon_status_t status)
{
    if (status == HORON_OK)
        outcome->well++;
    else if (status == HORON_ERR_CANCELLED)
        outcome->cancelled++;
    else if (status == HORON_ERR_MISMATCH)
        outcome->mismatched++;
    else
        outcome->failed++;
}

void sim_check_notice(const struct sim_rank *rank, const struct sim_op *op,
                      const struct sim_use *use)
{
    struct simulation *sim = rank->sim;
    if (sim->struck && sim->now > sim->struck_at + NOTICE_MAX && use->posted_at < sim->struck_at)
        sim_fail(sim, "rank %d: %s failed only %llu ms after the death", rank->rank, op->name,
                 (unsigned long long)((sim->now - sim->struck_at) / SIM_MS));
}

/* What has ended on the rank that leaves was decided: the others have it, too, but for what a rank
 * ends itself, with its process set. */
static void check_decided(const struct sim_rank *rank, const struct sim_op *op,
                          const struct sim_use *use, const char *text)
{
    struct simulation *sim = rank->sim;
    const struct sim_use *leavers = &sim->ranks[sim->victim].uses[op - sim->ops];
    if (sim->fate == SIM_FATE_LEAVE && !rank->leaving && !op->in_order && !op->joins &&
        op->canceler < 0 && use->request->status == HORON_ERR_CLOSED &&
        leavers->settled >= use->round && !sim_is_removed(rank, op, use->request->status, text))
        sim_fail(sim, "rank %d: %s %s has failed, but ended on rank %d, which has left", rank->rank,
                 horon_verb_name(op->verb), op->name, sim->victim);
}

/* What a user does with the output of a failed operation: a rank that still writes it is seen. */
static void give_back(const struct sim_op *op, struct sim_use *use)
{
    if (op->persistent || op->rounds > 1 || op->canceler >= 0)
        return; /* it may be used again */
    memset(use->out, SIM_GIVEN_BACK, use->out_bytes);
    use->given_back = true;
}

static void check_given_back(const struct sim_rank *rank, const struct sim_op *op,
                             const struct sim_use *use)
{
    const uint8_t *out = use->out;
    if (use->given_back &&
        (out[0] != SIM_GIVEN_BACK || memcmp(out, out + 1, use->out_bytes - 1) != 0))
        sim_fail(rank->sim, "rank %d: the output of %s %s was written when it had failed",
                 rank->rank, horon_verb_name(op->verb), op->name);
}

void sim_check_memory(const struct simulation *sim)
{
    for (int number = 0; number < sim->size; number++) {
        const struct sim_rank *rank = &sim->ranks[number];
        for (int i = 0; i < sim->op_count && rank->state != SIM_DEAD; i++)
            if (sim->ops[i].paired)
                sim_message_check_memory(rank, &sim->ops[i], &rank->uses[i]);
            else
                check_given_back(rank, &sim->ops[i], &rank->uses[i]);
    }
}

void sim_check_ended(struct sim_rank *rank, struct sim_op *op, struct sim_use *use)
{
    struct simulation *sim = rank->sim;
    horon_status_t status = use->request->status;
    const char *text = use->request->error_text ? use->request->error_text : "";
    bool disordered = op->in_order && op->odd >= 0;
    count(&sim->outcome, status);
    sim->outcome.team_well += op->team && status == HORON_OK;
    sim->outcome.joined += op->joins && status == HORON_OK;
    sim->outcome.absent += !op->joins && status == HORON_OK && use->request->joined > 0;
    if (op->joins && status == HORON_OK &&
        sim_team_of(rank, op->team)->lanes[HORON_LANE_NAMED].head)
        sim_fail(sim, "rank %d: %s of team %d is over, but not its part of what was decided before",
                 rank->rank, op->name, op->team);
    if (op->paired) {
        sim_message_check(rank, op, use);
        return;
    }
    if (status == HORON_OK && op->odd >= 0 && !op->in_order)
        sim_fail(sim, "rank %d: %s ended well, but rank %d describes it otherwise", rank->rank,
                 op->name, op->odd);
    else if (status == HORON_OK && !disordered)
        check_output(rank, op, use);
    if (status == HORON_OK || status == HORON_ERR_MISMATCH)
        use->settled = use->round;
    if (status == HORON_OK)
        return;
    check_decided(rank, op, use, text);
    if (!allowed(rank, op, use, text))
        sim_fail(sim, "rank %d: %s %s ended with %s: %s", rank->rank, horon_verb_name(op->verb),
                 op->name, horon_status_text(status), text);
    else
        sim_check_notice(rank, op, use);
    if (op->odd < 0 && !(use->in == use->out && status == HORON_ERR_CLOSED && sim->change_count))
        check_input(rank, op, use);
    if (!op->joins)
        give_back(op, use);
}
