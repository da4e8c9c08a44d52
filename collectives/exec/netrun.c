/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's stage is posted (receives first, so that credit leaves as early as it can), waited for,
 * and combined. The receives of the next stage are posted along with it, which plans allow: a peer
 * that is ahead finds its credit waiting and sends into place. So are its sends, if this stage does
 * nothing but send. At most two stages are posted at a time; each has one of two slots, by parity.
 *
 * Combines of one stage go block by block through all of them, so that a partial sum is still in
 * cache when the next leaf is added to it.
 */
#include "exec/netrun.h"

#include "alloc.h"
#include "reduce/reduce.h"

#include <assert.h>
#include <string.h>

/* Bytes of one operand that are combined before the next block. */
#define COMBINE_BLOCK_BYTES ((size_t)16 << 10)

static uint8_t *region_memory(const struct horon_netrun *run, uint8_t region, uint64_t element)
{
    uint8_t *base = region == HORON_PLAN_WORK ? run->args.work : run->args.scratch;
    const size_t offset = (size_t)element * horon_dtype_bytes(run->args.dtype);
    return base ? base + offset : NULL; /* nothing at all: no arithmetic on it */
}

/* Makes both slots point into one allocation that is large enough. */
static horon_status_t reserve(struct horon_netrun *run, uint32_t moves, uint32_t combines)
{
    const size_t transfers_bytes = moves * sizeof(struct horon_transfer);
    const size_t moves_bytes = moves * sizeof(struct horon_plan_move);
    const size_t combines_bytes = combines * sizeof(struct horon_plan_combine);
    const size_t slot_bytes = transfers_bytes + moves_bytes + combines_bytes;
    if (2 * slot_bytes > run->memory_bytes) {
        void *memory = horon_alloc(2 * slot_bytes);
        if (!memory)
            return HORON_ERR_MEMORY;
        horon_free(run->memory);
        run->memory = memory;
        run->memory_bytes = 2 * slot_bytes;
    }
    for (size_t i = 0; slot_bytes && i < 2; i++) {
        uint8_t *memory = (uint8_t *)run->memory + i * slot_bytes;
        run->slots[i].transfers = (struct horon_transfer *)(void *)memory;
        run->slots[i].moves = (struct horon_plan_move *)(void *)(memory + transfers_bytes);
        run->slots[i].combines =
            (struct horon_plan_combine *)(void *)(memory + transfers_bytes + moves_bytes);
    }
    return HORON_OK;
}

horon_status_t horon_netrun_begin(struct horon_netrun *run, const struct horon_netrun_args *args)
{
    uint32_t moves = 0, combines = 0;
    horon_plan_limits(&args->plan, &moves, &combines);
    horon_status_t status = reserve(run, moves, combines);
    if (status)
        return status;
    run->args = *args;
    run->stage = 0;
    run->stages = horon_plan_stages(&args->plan);
    run->sends_posted = run->recvs_posted = 0;
    return HORON_OK;
}

static horon_status_t not_connected(const char *peer_name, struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_PEER_LOST, "%s is not connected", peer_name);
}

horon_status_t horon_netrun_post(struct horon_mux *mux, struct horon_transfer *transfer,
                                 bool is_send, const char *peer_name, struct horon_error *error)
{
    if (!mux)
        return not_connected(peer_name, error);
    return is_send ? horon_mux_post_send(mux, transfer, error)
                   : horon_mux_post_recv(mux, transfer, error);
}

horon_status_t horon_netrun_still_moves(const struct horon_mux *mux,
                                        const struct horon_transfer *transfer,
                                        const char *peer_name, struct horon_error *error)
{
    assert(!transfer->done);
    if (!mux)
        return not_connected(peer_name, error);
    if (transfer->status)
        return horon_mux_transfer_error(mux, transfer, error);
    const horon_status_t failed = horon_mux_failure(mux, error);
    return failed ? failed : HORON_IN_PROGRESS;
}

static horon_status_t post_move(struct horon_netrun *run, const struct horon_plan_move *move,
                                struct horon_transfer *transfer, struct horon_error *error)
{
    const int rank = run->args.ranks[move->peer];
    *transfer = (struct horon_transfer){
        .id = {.channel = run->args.channel,
               .sequence = run->args.sequence,
               .tag = run->args.tag | move->stage},
        .data = region_memory(run, move->region, move->offset),
        .bytes = (size_t)move->count * horon_dtype_bytes(run->args.dtype),
        .check = run->args.check,
    };
    return horon_netrun_post(run->args.mux_of[rank], transfer, move->is_send,
                             run->args.rank_names[rank], error);
}

static horon_status_t post_moves(struct horon_netrun *run, struct horon_netrun_stage *slot,
                                 bool sends, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    for (uint32_t i = 0; !status && i < slot->move_count; i++) {
        if (slot->moves[i].is_send == sends)
            status = post_move(run, &slot->moves[i], &slot->transfers[i], error);
    }
    return status;
}

/* Posts the receives of the running stage and of the next one, as far as they are not yet. */
static horon_status_t post_recvs(struct horon_netrun *run, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    while (!status && run->recvs_posted < run->stages && run->recvs_posted <= run->stage + 1) {
        struct horon_netrun_stage *slot = &run->slots[run->recvs_posted & 1];
        const struct horon_plan_stage drawn =
            horon_plan_stage(&run->args.plan, run->recvs_posted, slot->moves, slot->combines);
        slot->move_count = drawn.move_count;
        slot->combine_count = drawn.combine_count;
        slot->first_pending = 0;
        status = post_moves(run, slot, false, error);
        run->recvs_posted++;
    }
    return status;
}

/* What is short goes out in the order of the plan, before this rank looks at anything else: in a
 * broadcast to the largest part of the tree first. What is long is left to turns. */
static void push_moves(const struct horon_netrun *run, const struct horon_netrun_stage *slot)
{
    for (uint32_t i = 0; i < slot->move_count; i++) {
        struct horon_mux *mux = run->args.mux_of[run->args.ranks[slot->moves[i].peer]];
        if (slot->moves[i].is_send && slot->transfers[i].bytes <= horon_mux_eager_bytes(mux))
            horon_mux_push(mux);
    }
}

static bool only_sends(const struct horon_netrun_stage *slot)
{
    bool only = slot->combine_count == 0;
    for (uint32_t i = 0; i < slot->move_count; i++)
        only &= slot->moves[i].is_send;
    return only;
}

/* Posts the sends of the running stage and of the next one, if there is nothing that it could be
 * behind: a broadcast's root says all that it has to say in one turn. */
static horon_status_t post_sends(struct horon_netrun *run, struct horon_error *error)
{
    const int ahead = only_sends(&run->slots[run->stage & 1]) ? 1 : 0;
    horon_status_t status = HORON_OK;
    while (!status && run->sends_posted < run->recvs_posted &&
           run->sends_posted <= run->stage + ahead) {
        struct horon_netrun_stage *slot = &run->slots[run->sends_posted & 1];
        status = post_moves(run, slot, true, error);
        if (!status)
            push_moves(run, slot);
        run->sends_posted++;
    }
    return status;
}

static horon_status_t stage_moved(struct horon_netrun *run, struct horon_netrun_stage *slot,
                                  struct horon_error *error)
{
    while (slot->first_pending < slot->move_count && slot->transfers[slot->first_pending].done)
        slot->first_pending++;
    if (slot->first_pending == slot->move_count)
        return HORON_OK;
    for (uint32_t i = slot->first_pending; i < slot->move_count; i++) {
        if (slot->transfers[i].done)
            continue; /* its peer may have gone */
        const int rank = run->args.ranks[slot->moves[i].peer];
        const horon_status_t status = horon_netrun_still_moves(
            run->args.mux_of[rank], &slot->transfers[i], run->args.rank_names[rank], error);
        if (status < 0)
            return status;
    }
    return HORON_IN_PROGRESS;
}

static void combine_block(const struct horon_netrun *run, const struct horon_plan_combine *combine,
                          uint64_t begin, uint64_t count)
{
    horon_reduce_combine(run->args.dtype, run->args.op,
                         region_memory(run, combine->left_region, combine->left + begin),
                         region_memory(run, combine->right_region, combine->right + begin),
                         region_memory(run, combine->result_region, combine->result + begin),
                         (size_t)count);
}

static void combine_stage(const struct horon_netrun *run, const struct horon_netrun_stage *slot)
{
    if (slot->combine_count == 0)
        return;
    const uint64_t block = COMBINE_BLOCK_BYTES / horon_dtype_bytes(run->args.dtype);
    const uint64_t total = slot->combines[0].count; /* one count for all combines of a stage */
    for (uint64_t begin = 0; begin < total; begin += block) {
        const uint64_t count = total - begin < block ? total - begin : block;
        for (uint32_t i = 0; i < slot->combine_count; i++)
            combine_block(run, &slot->combines[i], begin, count);
    }
}

horon_status_t horon_netrun_advance(struct horon_netrun *run, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    while (!status && run->stage < run->stages) {
        struct horon_netrun_stage *slot = &run->slots[run->stage & 1];
        status = post_recvs(run, error);
        if (!status)
            status = post_sends(run, error);
        if (!status)
            status = stage_moved(run, slot, error);
        if (!status) {
            combine_stage(run, slot);
            run->stage++;
        }
    }
    return status;
}

bool horon_netrun_waits_for(const struct horon_netrun *run, int rank)
{
    const struct horon_netrun_stage *slot = &run->slots[run->stage & 1];
    if (run->stage == run->stages || run->sends_posted <= run->stage)
        return false; /* over, or not begun to move */
    for (uint32_t i = 0; i < slot->move_count; i++)
        if (run->args.ranks[slot->moves[i].peer] == rank && !slot->transfers[i].done)
            return true;
    return false;
}

void horon_netrun_deinit(struct horon_netrun *run)
{
    horon_free(run->memory);
    memset(run, 0, sizeof *run);
}
