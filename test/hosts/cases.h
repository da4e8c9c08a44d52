/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a hosts test do: a list of operations that every rank and the reference know,
 * with inputs made of rank, operation and place alone, and what must come out, computed in one
 * process.
 */
#ifndef HORON_TEST_HOSTS_CASES_H
#define HORON_TEST_HOSTS_CASES_H

#include <horon/horon.h>
#include <stdbool.h>
#include <stdint.h>

#define CASE_RANKS_MAX 16
#define CASE_DIGEST_BYTES 33 /* 128 bits in hexadecimal */

/** Which rank is where: hosts numbered by their lowest rank. */
struct layout {
    int size, host_count;
    int host_of[CASE_RANKS_MAX];
};

/** Reads "0,1,1,2": the host of each rank. @return 0, or -1 if that is no layout */
int layout_parse(const char *text, struct layout *layout);

struct one_case {
    int number;
    horon_verb_t verb;
    horon_dtype_t dtype;
    horon_redop_t redop;
    int root;       /* of a message the sender */
    int receiver;   /* of a message */
    uint64_t count; /* elements, or a measure of the rows, see case_count() */
    double prescale, postscale;
    uint32_t joined; /* ranks that have, bit by bit: they give what is neutral, and get nothing */
    int divisor;     /* of an average: all ranks */
    bool whole;      /* its numbers are small and whole: no sum is rounded, whatever its order */
    char name[64];
};

/** @return all operations for a job of @p size ranks, *count_out of them; the caller frees.
 * @param whole  of small whole numbers
 * @param joined ranks that have joined, bit by bit: all that goes on without them */
struct one_case *cases_make(int size, bool whole, uint32_t joined, int *count_out);

/** Does it combine what ranks give? */
bool case_reduces(const struct one_case *one);
/** Does it move rows, of which ranks give different numbers? In an alltoall each gives the same to
 * all, so all get the same. */
bool case_has_rows(const struct one_case *one);
/** Of a reduce-scatter: are shares other than as equal as can be? */
bool case_has_splits(const struct one_case *one);
/** Is it between two ranks, while the others do nothing? */
bool case_is_message(const struct one_case *one);
/** @return elements in the block of @p rank: what it gives, or gives each; of a scatter what it
 * gets. Rows are of CASE_ROW_ELEMENTS */
uint64_t case_count(const struct one_case *one, int rank);
#define CASE_ROW_ELEMENTS 3
/** @return elements in the input of @p rank */
uint64_t case_input_count(const struct one_case *one, int rank, int size);
/** @return elements that @p rank gets */
uint64_t case_result_count(const struct one_case *one, int rank, int size);
/** Of a reduce-scatter. @return elements that @p rank gets, *first_out of them before */
uint64_t case_share(const struct one_case *one, int rank, int size, uint64_t *first_out);
/** Writes the block of @p rank. */
void case_fill(const struct one_case *one, int rank, void *data);
/** Writes the whole input of @p rank. */
void case_fill_input(const struct one_case *one, int rank, int size, void *data);
/** Writes what @p rank must get. */
void case_expect(const struct one_case *one, const struct layout *layout, int rank, void *data);

/** @return XXH3 of @p count elements, in @p digest: what goes wrong does not aim at a digest */
const char *case_digest(const struct one_case *one, const void *data, uint64_t count,
                        char digest[CASE_DIGEST_BYTES]);

#endif
