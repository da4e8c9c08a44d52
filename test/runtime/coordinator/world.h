/* SPDX-License-Identifier: Apache-2.0 */
/* One random world of test_coordinator_world.c, and what its ranks say. */
#ifndef HORON_TEST_WORLD_H
#define HORON_TEST_WORLD_H

#include "tree.h"

#define RANKS_MAX 17
#define TENSORS_MAX 24
#define BATCHES_MAX 4096

enum mismatch { NONE, VERB, DTYPE, SHAPE, REDOP, SCALE, GROUP, MISMATCH_COUNT };

/* What one rank does with one tensor. */
struct use {
    int round; /* the one in flight, or to be submitted next */
    bool in_flight, cancelling;
    uint64_t token;
    bool has_handle;
    uint32_t handle;
    int handle_round; /* the description that the handle has is of this round */
    uint64_t asked_token;
    int asks; /* about it */
};

/* A batch as the first rank saw it. */
struct seen {
    horon_status_t status;
    char text[200];
    int count;
    int tensor[TENSORS_MAX], round[TENSORS_MAX];
};

struct world {
    uint64_t seed, random;
    struct tree tree;
    int size, tensors, rounds;
    uint64_t fusion_bytes;
    int group_of[TENSORS_MAX];     /* first tensor of its group, or -1 */
    int change_every[TENSORS_MAX]; /* rounds with one description */
    bool cancels, duplicates, handles, mismatches;
    struct use uses[RANKS_MAX][TENSORS_MAX];
    int failed_round[RANKS_MAX]
                    [TENSORS_MAX]; /* by first tensor of a group: last round that failed */
    uint64_t next_token;
    uint64_t next_sequence[RANKS_MAX];
    struct seen batches[BATCHES_MAX];
    size_t batch_count, failed_count, cancelled_count;
};

/** Is there a mismatch about a tensor in this round, and of which kind? */
enum mismatch world_mismatch(const struct world *w, int tensor, int round);
/** Does it fail in this round, itself or with its group? */
bool world_fails(const struct world *w, int tensor, int round);
/** What @p rank says of tensor @p number in a round. */
struct horon_operation world_describe(const struct world *w, int rank, int number, int round);

#endif
