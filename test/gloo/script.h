/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of these tests does, step by step, and the values that go in: the same of every kind
 * of rank (Gloo's C++, torch's through ctypes, horon's), so that what comes out can be compared.
 */
#ifndef HORON_TEST_GLOO_SCRIPT_H
#define HORON_TEST_GLOO_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SCRIPT_RANKS_MAX = 64 };

/**
 * A line: "[+] [xN] VERB DTYPE OP COUNT ROOT [TO SLOT]", the same file on all ranks. Words that a
 * verb does not need are "-", or 0. A line that begins with # is nothing.
 *   barrier broadcast reduce allreduce allgather allgatherv gather gatherv scatter alltoall
 *   alltoallv reducescatter: the nth of them has tag n; in "v" counts differ, see script_rows()
 *   send recv: a message of ROOT to TO, of which one rank does one and one does the other
 *   die: rank ROOT kills itself; wait: ends what was begun before; others are of one kind of rank
 * "+": begun, and what follows is begun beside it until "wait"; "xN": N times one after another.
 */
struct script_step {
    int line;
    bool later;
    long times; /* 0: once, and its output is told; else what one of them takes is told */
    char verb[16];
    char dtype[8]; /* "f32" and the like, "c64" of two of them, "bool"; "f32!": infinities, NaN, -0
                      and the smallest, too */
    char op[8];
    size_t count;
    int root, to;
    uint64_t slot;
};

/** @return 1 a step, 0 the end; ends the program if a line is none */
int script_next(FILE *file, int *line, struct script_step *step_out);

bool script_is(const struct script_step *step, const char *verb);
/** @return whether it is a collective, which has a tag */
bool script_is_collective(const struct script_step *step);

/** @return bytes of an element of the step; 0: no such type */
size_t script_element(const struct script_step *step);
/** @return elements that @p from gives to @p to in the v verbs; to is 0 where it gives all alike */
size_t script_rows(size_t count, int from, int to);
/** @return elements that @p rank gives; what it gets */
size_t script_inputs(const struct script_step *step, int rank, int size);
size_t script_outputs(const struct script_step *step, int rank, int size);

/** Fills @p data with the input of @p rank in the step. */
void script_fill(const struct script_step *step, int rank, void *data, size_t count);
/** Likewise, for callers that know no step. */
void script_fill_values(const char *dtype, uint64_t seed, void *data, size_t count);
uint64_t script_seed(int line, int rank);
uint64_t script_hash(const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
