/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of horon-perf: one struct, filled once, then read only. Every flag is one row of
 * the table in options.c, which also prints the help.
 */
#ifndef HORON_PERF_OPTIONS_H
#define HORON_PERF_OPTIONS_H

#include <horon/horon.h>

#include <stdbool.h>
#include <stdio.h>

#define PERF_TEXT_BYTES HORON_ERROR_TEXT_BYTES
#define PERF_TENSORS_MAX 1000000u
#define PERF_SETS_MAX 1000u
#define PERF_ITERATIONS_MAX 1000000u

/** Which of the two buffer layouts are measured; a mask. */
enum perf_place { PERF_OUT_OF_PLACE = 1, PERF_IN_PLACE = 2, PERF_BOTH_PLACES = 3 };

enum perf_peer_kind { PERF_PEER_HORON = 0, PERF_PEER_MPI = 1 };

struct perf_options {
    horon_verb_t verb;
    horon_dtype_t dtype;
    horon_redop_t redop;
    uint64_t begin_bytes; /* first size, of one tensor */
    uint64_t end_bytes;   /* last size, inclusive */
    uint64_t step_bytes;  /* added to get the next size; 0: the factor is used */
    uint64_t factor;      /* multiplied to get the next size; >= 2 */
    uint64_t iterations;  /* timed calls a cell */
    uint64_t warmup;      /* calls before them */
    uint64_t checks;      /* calls after them whose results are checked; 0: none */
    uint64_t tensors;     /* operations a call, of each process set; each of the size */
    uint64_t sets;        /* process sets that work at once; 0: all ranks, as one */
    int32_t root;         /* of a broadcast */
    bool named;           /* negotiated by name; else in order */
    bool persistent;      /* prepared once, started each time */
    bool group;           /* a call's operations on a process set are submitted as one group */
    bool pin;             /* rank to core local_rank % cores */
    enum perf_place places;
    enum perf_peer_kind peer;
    const char *json_path;   /* NULL: none. Of the caller's argv, as the next one */
    const char *mpi_library; /* NULL: the usual names */
    bool polled;             /* one operation of MPI's is a nonblocking call, and polled */
    bool mpi_multiple;       /* MPI is begun for calls of several threads */
    const char *backend;     /* NULL: as the setting says */
};

/** What the caller does next. */
enum perf_parse { PERF_PARSE_RUN, PERF_PARSE_HELP, PERF_PARSE_WRONG };

/**
 * Reads the command line, strictly.
 * @param options_out set on RUN only
 * @param why [PERF_TEXT_BYTES] set on WRONG: the flag, the value and what is allowed
 * @return RUN | HELP, the user asked for it | WRONG
 * Thread: setup; getopt's state is reset, so it may be called again.
 */
enum perf_parse perf_options_parse(int argc, char **argv, struct perf_options *options_out,
                                   char *why);

/** Prints how to use the program. */
void perf_options_help(FILE *to);

/** Reads "8", "64K", "1M", "2G" (powers of 1024). @return 0 | -1, not a size */
int perf_size_parse(const char *text, uint64_t *bytes_out);

/** @return the smallest size above 0 that is measured, or 0 if there is none. */
uint64_t perf_size_smallest(const struct perf_options *options);

/** @return the size after @p bytes, or 0 when that was the last one. */
uint64_t perf_size_next(const struct perf_options *options, uint64_t bytes);

#endif
