/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree of coordinators in one process, wired by queues: what one sends to a neighbour arrives
 * there in order, and when the test says so. The shapes are those that the control tree takes, and
 * some it does not take yet.
 */
#ifndef HORON_TEST_TREE_H
#define HORON_TEST_TREE_H

#include "coordinator/coordinator.h"

#include <stdbool.h>

#define TREE_SIZE_MAX 140

enum tree_shape { TREE_STAR, TREE_BINOMIAL, TREE_CHAIN, TREE_RANDOM };
#define TREE_SHAPE_COUNT 4

struct tree_message {
    struct tree_message *next;
    size_t bytes;
    unsigned char data[];
};

/* Messages from one rank to another: up (to its parent) or down (from its parent). */
struct tree_queue {
    struct tree_message *first, **last;
};

struct tree {
    int size;
    int parent[TREE_SIZE_MAX];
    struct horon_coordinator *ranks[TREE_SIZE_MAX];
    struct tree_queue up[TREE_SIZE_MAX], down[TREE_SIZE_MAX]; /* of the edge to the parent */
    size_t in_flight;                                         /* messages */
    int stopped; /* a rank that nothing is delivered to; 0: none */
    size_t sent_count, sent_bytes, longest_bytes;
    uint64_t random;
    char names[TREE_SIZE_MAX][32];
    const char *name_list[TREE_SIZE_MAX];
    struct horon_error error; /* of the first receive that failed */
};

uint64_t tree_random(uint64_t *state); /* splitmix64 */
static inline uint64_t tree_below(uint64_t *state, uint64_t limit)
{
    return tree_random(state) % limit;
}

/** Asserts that everything could be made. Rank names are "rank 3 (host-b)", two ranks a host. */
void tree_init(struct tree *tree, int size, enum tree_shape shape, size_t cache_entries,
               uint64_t fusion_bytes, uint64_t seed);
void tree_deinit(struct tree *tree);

/** Flushes a rank and takes its messages into the queues. */
horon_status_t tree_flush(struct tree *tree, int rank, bool decide);
/** Delivers the oldest message of the edge above @p rank. @return AGAIN: there is none | as
 * receive() */
horon_status_t tree_deliver(struct tree *tree, int rank, bool up);
/** Delivers from some edge that has a message, by chance. @param to_out the rank that got it */
horon_status_t tree_deliver_any(struct tree *tree, int *to_out);
/** Flushes and delivers until nothing moves any more. @return the first failure */
horon_status_t tree_run(struct tree *tree);

/** A name that lives as long as the program, and one operation of that name. */
void tree_name(struct horon_operation *op, const char *name);
/** As the coordinator's calls, of the canonical form of @p op. */
horon_status_t tree_submit(struct horon_coordinator *coordinator, const struct horon_operation *op,
                           uint64_t token);
horon_status_t tree_intern(struct horon_coordinator *coordinator, const struct horon_operation *op,
                           uint32_t *handle_out);

/** A float32 sum of [count], named by @p format. */
struct horon_operation tree_tensor(uint64_t count, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
