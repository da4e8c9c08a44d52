/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chain broadcast, for many bytes: the vector is cut into pieces, and each participant sends on to
 * the one behind it the piece that it received at the stage before. Numbers are relative to the
 * root; a letter is a piece.
 *
 *      N = 5, pieces a b c ...     0 -> 1   1 -> 2   2 -> 3   3 -> 4
 *                      stage 0       a
 *                            1       b        a
 *                            2       c        b        a
 *                            3       d        c        b        a
 *
 * P + N - 2 stages of P pieces. Every participant but the last sends S bytes, every one but the
 * root receives S, which is the least. With links of one rate the whole takes (P + N - 2)/P times
 * what S bytes take: there are at least as many pieces as participants, so that it is below twice
 * that, where the binomial tree (broadcast.c) takes log2 N times. A vector that the caller cuts
 * into chunks fills the chain once: the pieces of chunk k + 1 follow those of k.
 *
 * After the pipelined chain of van de Geijn and Watts.
 */
#include "plan/plan_internal.h"

/* Pieces at least. Few, since each costs every participant a message; enough that four participants
 * fill the chain with a fourth of a chunk. */
enum { PIECES = 8 };

int horon_plan_chain_pieces(int size)
{
    return size > PIECES ? size : PIECES;
}

static int chain_stages(const struct horon_plan_args *args)
{
    return horon_plan_chain_pieces(args->size) + args->size - 2;
}

static uint64_t chain_scratch(const struct horon_plan_args *args)
{
    (void)args;
    return 0;
}

static void chain_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                         uint32_t *combines_out)
{
    (void)args;
    *moves_out = 2;
    *combines_out = 0;
}

/* Piece @p piece goes to participant @p peer or comes from it, if there is such a piece. */
static void add_piece(const struct horon_plan_args *args, struct horon_plan_stage *out,
                      struct horon_plan_move *moves, int stage, int piece, int peer, bool is_send)
{
    const int pieces = horon_plan_chain_pieces(args->size);
    if (piece < 0 || piece >= pieces)
        return;
    const struct horon_plan_range range = horon_plan_part(args->count, pieces, piece);
    horon_plan_add_move(out, moves, stage, peer, is_send, horon_plan_work(range.begin),
                        range.count);
}

static struct horon_plan_stage chain_stage(const struct horon_plan_args *args, int stage,
                                           struct horon_plan_move *moves,
                                           struct horon_plan_combine *combines)
{
    (void)combines;
    struct horon_plan_stage out = {0};
    const int number = (args->rank - args->root + args->size) % args->size;
    const int before = (args->rank - 1 + args->size) % args->size;
    const int behind = (args->rank + 1) % args->size;
    if (number > 0)
        add_piece(args, &out, moves, stage, stage - number + 1, before, false);
    if (number < args->size - 1)
        add_piece(args, &out, moves, stage, stage - number, behind, true);
    return out;
}

const struct horon_plan_ops horon_plan_broadcast_chain = {
    .name = "chain",
    .stages = chain_stages,
    .scratch = chain_scratch,
    .limits = chain_limits,
    .stage = chain_stage,
};
