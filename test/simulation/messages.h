/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from rank to rank in a run: operations with two ends, of which each rank has one. */
#ifndef HORON_TEST_SIMULATION_MESSAGES_H
#define HORON_TEST_SIMULATION_MESSAGES_H

#include "simulation/simulation.h"

/** The most that a run has. */
#define SIM_MESSAGES_MAX 24
/** Bytes of memory that nobody writes, of an end that has begun. */
#define SIM_MESSAGE_UNTOUCHED 0xa5

/** Has a run any? */
bool sim_has_messages(const struct simulation *sim);
/** Draws those of a run that has any, behind its other operations or instead of them. */
void sim_messages_draw(struct simulation *sim);
/** Which are received only when all have joined, although they are sent before; in a run that
 * joins. */
void sim_messages_draw_late(struct simulation *sim);
/** A rank's plan, in any order: what has one has it again. */
void sim_messages_sort(const struct simulation *sim, int *plan, int count);
/** Bytes of memory of each end: more than either says. */
static inline size_t sim_message_memory(const struct sim_op *op)
{
    return ((size_t)op->count + 2) * 16 + 64;
}
/** Is the rank at one of its ends? */
bool sim_message_is_of(const struct sim_op *op, int rank);
/** Is it begun when all have joined its team? */
bool sim_is_afterwards(const struct sim_op *op, const struct sim_rank *rank);
/** Memory for it, if there is none yet, and what is in it when it is begun. */
void sim_message_load(struct sim_rank *rank, struct sim_op *op, struct sim_use *use);
void sim_message_describe(const struct sim_rank *rank, const struct sim_op *op,
                          const struct sim_use *use, horon_descriptor_t *desc, uint64_t shape[2]);

/* ---- check_message.c ---- */
/** Judges how one end ended, and takes its memory back. */
void sim_message_check(struct sim_rank *rank, struct sim_op *op, struct sim_use *use);
/** Memory that was given back was not written any more. */
void sim_message_check_memory(const struct sim_rank *rank, const struct sim_op *op,
                              const struct sim_use *use);
/** In a run that goes well, and in which all ranks are done: is anything left of messages? */
void sim_messages_check_rest(const struct sim_rank *rank);

#endif
