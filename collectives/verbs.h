/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of verbs: what counts for each of them, read wherever one must know. A new verb is a
 * value in horon.h, a row here, a file with its algorithm and an entry in the table of each backend
 * that has code for it; no other file names a verb (test/drift/test_verbs.py).
 */
#ifndef HORON_VERBS_H
#define HORON_VERBS_H

#include <horon/horon.h>

#include <stdbool.h>

/* What all ranks must agree on, besides name, verb, team and group; bits. */
#define HORON_AGREES_DTYPE 1u     /* and the kind of memory: it moves data */
#define HORON_AGREES_ROWS 2u      /* the first dimension */
#define HORON_AGREES_SHAPE 4u     /* the others */
#define HORON_AGREES_REDUCTION 8u /* reduction and scales */
#define HORON_AGREES_ROOT 16u
/* How many rows of the output each rank gets: an output is not as large as the input. */
#define HORON_AGREES_SPLITS 32u

/** Which ranks read their src, or write their dst. */
enum horon_ranks { HORON_RANKS_NONE, HORON_RANKS_ROOT, HORON_RANKS_ALL };

/** What ranks tell each other before the data moves; the output's size depends on it. Ranks of one
 * host read it in each other's entry. Between hosts an allgather sends a table of it in windows
 * (exec/windows.h), and an all-to-all one word ahead of each run (alltoall_runs.c). */
enum horon_ahead {
    HORON_AHEAD_NOTHING, /* the output is as large as the input */
    HORON_AHEAD_ROWS,    /* how many rows each rank gives */
    HORON_AHEAD_SPLITS   /* how many rows each rank gives to each; 0 from one that reads no src */
};

/** What a rank gives that has joined (Horovod's join: it has run out of data, and so has none of
 * its own); runtime/coordinator/join.c. */
enum horon_joined {
    HORON_JOINED_NOTHING, /* its presence; if it is root, the operation fails */
    HORON_JOINED_NEUTRAL, /* the neutral element of the reduction */
    HORON_JOINED_NO_ROWS
};

/** How a backend that lacks the verb makes it of one that it has (backend/compose.c). */
enum horon_recipe {
    HORON_RECIPE_NONE,
    HORON_RECIPE_NOTHING, /* the other verb, of nothing */
    HORON_RECIPE_BYTES,   /* a sum of bytes, of which all ranks but root give zeros */
    HORON_RECIPE_ROUNDS,  /* the other verb's root gives its bytes, and each rank is root in turn */
    HORON_RECIPE_WHOLE    /* the other verb, of the same: a rank keeps of it what it should get */
};

struct horon_verb_row {
    const char *name;
    uint32_t agrees; /* HORON_AGREES_* */
    enum horon_ranks reads, writes;
    enum horon_ahead ahead;
    enum horon_joined joined;
    enum horon_recipe recipe;
    horon_verb_t made_of; /* by that recipe */
    bool fusable;         /* several are the same as one of their concatenation */
    bool apart;           /* it has no form in place: src and dst must be disjoint */
    bool uneven; /* rows that no splits are given for: the first ranks get one more, if need be */
    /* A message between two ranks, of which root is the other one: it goes by its tag, stands in no
     * lane, and is never negotiated. What it reads and writes, this rank does. */
    bool paired;
    /* It may lack a name also where no order is promised: it goes by this and its count then, and
     * no user's name may begin so. NULL: it may not. */
    const char *unnamed;
};

/** By horon_verb_t. */
extern const struct horon_verb_row horon_verb_rows[HORON_VERB_COUNT];

/** Longest `unnamed` of a row, and a number behind it. */
#define HORON_VERB_UNNAMED_BYTES_MAX 40
/** @return the row with whose `unnamed` @p name begins, or NULL */
const struct horon_verb_row *horon_verb_reserves(const char *name);

/** By which ranks tell each other words of their own: it reduces. */
extern const horon_verb_t horon_verb_of_words;
/** By which the ranks of the job tell each other what becomes of a process set. */
extern const horon_verb_t horon_verb_of_meetings;

static inline bool horon_verb_moves(const struct horon_verb_row *row)
{
    return row->agrees & HORON_AGREES_DTYPE;
}

static inline bool horon_verb_reduces(const struct horon_verb_row *row)
{
    return row->agrees & HORON_AGREES_REDUCTION;
}

static inline bool horon_verb_is_rooted(const struct horon_verb_row *row)
{
    return row->agrees & HORON_AGREES_ROOT;
}

static inline bool horon_verb_splits(const struct horon_verb_row *row)
{
    return row->agrees & HORON_AGREES_SPLITS;
}

/** Words of 8 bytes that each of @p size ranks tells. */
static inline size_t horon_verb_ahead_words(const struct horon_verb_row *row, int size)
{
    return row->ahead == HORON_AHEAD_SPLITS ? (size_t)size : row->ahead == HORON_AHEAD_ROWS;
}

/** May ranks give different numbers of rows? */
static inline bool horon_verb_rows_differ(const struct horon_verb_row *row)
{
    return horon_verb_moves(row) && !(row->agrees & HORON_AGREES_ROWS);
}

/** Is @p rank one of @p ranks in an operation with this root? */
static inline bool horon_ranks_include(enum horon_ranks ranks, int root, int rank)
{
    return ranks == HORON_RANKS_ALL || (ranks == HORON_RANKS_ROOT && root == rank);
}

#endif
