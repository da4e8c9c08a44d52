/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does in a collective as Gloo carries it out: a sequence of steps, each of which sends
 * a piece, or receives one, or both. Pure: a function of what all ranks know, and the same messages
 * in the same order as Gloo's own ranks exchange, so that any rank may be one. Sources: gloo's
 * barrier, broadcast, reduce, allreduce (ring), allgather, allgatherv, gather(v), scatter and
 * alltoall(v), unchanged from 2022 to 2026.
 *
 * Costs, of n ranks and T bytes: the ring 2(n - 1)/n T each way, in 2(n - 1) hops; the others as
 * their names say.
 */
#ifndef HORON_BACKEND_GLOO_PLAN_H
#define HORON_BACKEND_GLOO_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum horon_gloo_kind {
    HORON_GLOO_BARRIER,    /* dissemination */
    HORON_GLOO_BROADCAST,  /* binomial */
    HORON_GLOO_ALLREDUCE,  /* ring: reduce-scatter, allgather */
    HORON_GLOO_REDUCE,     /* ring: reduce-scatter, then to root */
    HORON_GLOO_ALLGATHER,  /* ring, each rank's in two halves */
    HORON_GLOO_ALLGATHERV, /* ring */
    HORON_GLOO_GATHER,     /* to root; scatter and alltoall likewise go from rank to rank */
    HORON_GLOO_SCATTER,
    HORON_GLOO_ALLTOALL
};

struct horon_gloo_plan {
    enum horon_gloo_kind kind;
    int rank, size, root;
    uint64_t bytes; /* of the vector, or of each rank's input of an allgather */
    /* What goes between ranks where they differ, by rank: where this rank's pieces for others begin
     * in its input, and others' in its output; [size + 1]. */
    const uint64_t *give_at, *take_at;
    /* set by horon_gloo_plan_init() */
    uint64_t steps;
    uint64_t segment, segments, reduce_steps;
};

struct horon_gloo_step {
    int to, from;     /* ranks; -1: none */
    bool sends_input; /* what goes lies in the input; else in the output */
    bool combines;    /* what comes is combined with what stands there: output op received */
    uint64_t send_at, send_bytes, take_at, take_bytes;
    uint64_t after; /* so many steps must be over before this one begins */
};

/** What is before `steps` is set. @param element_bytes of a vector that is reduced; else 1 */
void horon_gloo_plan_init(struct horon_gloo_plan *plan, size_t element_bytes);
void horon_gloo_plan_step(const struct horon_gloo_plan *plan, uint64_t index,
                          struct horon_gloo_step *step);
/** Where the messages of a collective match. @param tag of the call, the same on all ranks */
uint64_t horon_gloo_plan_slot(enum horon_gloo_kind kind, uint32_t tag);

#endif
