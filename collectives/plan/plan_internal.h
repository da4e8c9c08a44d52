/* SPDX-License-Identifier: Apache-2.0 */
/* Inside plan/: the table of plans, and what several of them draw with. */
#ifndef HORON_PLAN_INTERNAL_H
#define HORON_PLAN_INTERNAL_H

#include "plan/plan.h"

/** One plan. Called with size >= 2. */
struct horon_plan_ops {
    const char *name; /* by which it is wanted; plans of different ways may share it */
    int (*stages)(const struct horon_plan_args *args);
    uint64_t (*scratch)(const struct horon_plan_args *args);
    void (*limits)(const struct horon_plan_args *args, uint32_t *moves_out, uint32_t *combines_out);
    struct horon_plan_stage (*stage)(const struct horon_plan_args *args, int stage,
                                     struct horon_plan_move *moves,
                                     struct horon_plan_combine *combines);
};

extern const struct horon_plan_ops horon_plan_flat;
extern const struct horon_plan_ops horon_plan_doubling;
extern const struct horon_plan_ops horon_plan_direct;
extern const struct horon_plan_ops horon_plan_halving;
extern const struct horon_plan_ops horon_plan_broadcast;
extern const struct horon_plan_ops horon_plan_broadcast_chain;
extern const struct horon_plan_ops horon_plan_reduce_flat;
extern const struct horon_plan_ops horon_plan_reduce_doubling;
extern const struct horon_plan_ops horon_plan_reduce_direct;

/** A piece of memory: where an operand lies. */
struct horon_plan_place {
    uint8_t region;
    uint64_t offset;
};

struct horon_plan_range {
    uint64_t begin, count;
};

/** Part @p index of @p count elements cut into @p parts as equal as can be, longer ones first. */
struct horon_plan_range horon_plan_part(uint64_t count, int parts, int index);

/** Into how many pieces a chain of @p size participants cuts a vector. */
int horon_plan_chain_pieces(int size);

/** The largest power of two that divides @p size. */
int horon_plan_block(int size);
/** The logarithm of that. */
int horon_plan_levels(int size);

/** Element @p offset of the vector. */
struct horon_plan_place horon_plan_work(uint64_t offset);

/** Appends a move. */
void horon_plan_add_move(struct horon_plan_stage *stage, struct horon_plan_move *moves, int number,
                         int peer, bool is_send, struct horon_plan_place place, uint64_t count);

/** Where the leaves of an exchange lie, each of `count` elements: this participant's own at `own`,
 * the others one after the other in SCRATCH from `scratch`, in order. */
struct horon_plan_leaves {
    int own_leaf;
    struct horon_plan_place own;
    uint64_t scratch, count;
};
struct horon_plan_place horon_plan_leaf(const struct horon_plan_leaves *leaves, int leaf);

/** Appends the combines of the canonical tree over @p leaves, @p number of them, 2 or more. Partial
 * results lie where others' leaves came, never over this participant's own; the last one goes to
 * @p result. */
void horon_plan_add_tree(struct horon_plan_stage *stage, struct horon_plan_combine *combines,
                         int number, struct horon_plan_place result,
                         const struct horon_plan_leaves *leaves);

#endif
