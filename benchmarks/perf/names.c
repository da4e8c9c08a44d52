/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of words. A row gives the word of nccl-tests, horon's own word and what it stands for;
 * both words are understood and the first is printed. What is not here: what a type's bytes mean
 * (values.c) and its handle in MPI (mpi_library.c).
 */
#include "names.h"

#include <string.h>

struct verb_row {
    const char *word;
    horon_verb_t verb;
    int reduces;
    int rooted;
};

/* By verb; messages are measured both ways at once, as the last one. */
static const struct verb_row verb_rows[PERF_VERB_COUNT] = {
    {.word = "allreduce", .verb = HORON_ALLREDUCE, .reduces = 1},
    {.word = "broadcast", .verb = HORON_BROADCAST, .rooted = 1},
    {.word = "allgather", .verb = HORON_ALLGATHER},
    {.word = "barrier", .verb = HORON_BARRIER},
    {.word = "alltoall", .verb = HORON_ALLTOALL},
    {.word = "gather", .verb = HORON_GATHER, .rooted = 1},
    {.word = "scatter", .verb = HORON_SCATTER, .rooted = 1},
    {.word = "reducescatter", .verb = HORON_REDUCESCATTER, .reduces = 1},
    {.word = "reduce", .verb = HORON_REDUCE, .reduces = 1, .rooted = 1},
    {.word = "sendrecv", .verb = HORON_SEND},
};

struct dtype_row {
    const char *word;
    const char *alias;
    size_t bytes;
    int reduces;
};

/* Indexed by horon_dtype_t. */
static const struct dtype_row dtype_rows[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {.word = "uint8", .alias = "u8", .bytes = 1, .reduces = 1},
    [HORON_INT8] = {.word = "int8", .alias = "i8", .bytes = 1, .reduces = 1},
    [HORON_UINT16] = {.word = "uint16", .alias = "u16", .bytes = 2, .reduces = 1},
    [HORON_INT16] = {.word = "int16", .alias = "i16", .bytes = 2, .reduces = 1},
    [HORON_UINT32] = {.word = "uint32", .alias = "u32", .bytes = 4, .reduces = 1},
    [HORON_INT32] = {.word = "int32", .alias = "i32", .bytes = 4, .reduces = 1},
    [HORON_UINT64] = {.word = "uint64", .alias = "u64", .bytes = 8, .reduces = 1},
    [HORON_INT64] = {.word = "int64", .alias = "i64", .bytes = 8, .reduces = 1},
    [HORON_FLOAT16] = {.word = "half", .alias = "float16", .bytes = 2, .reduces = 1},
    [HORON_BFLOAT16] = {.word = "bfloat16", .alias = "bf16", .bytes = 2, .reduces = 1},
    [HORON_FLOAT32] = {.word = "float", .alias = "float32", .bytes = 4, .reduces = 1},
    [HORON_FLOAT64] = {.word = "double", .alias = "float64", .bytes = 8, .reduces = 1},
    [HORON_BOOL] = {.word = "bool", .alias = "boolean", .bytes = 1, .reduces = 1},
    [HORON_COMPLEX64] = {.word = "complex64", .alias = "c64", .bytes = 8, .reduces = 0},
    [HORON_COMPLEX128] = {.word = "complex128", .alias = "c128", .bytes = 16, .reduces = 0},
    [HORON_FLOAT8_E4M3] = {.word = "f8e4m3", .alias = "float8_e4m3", .bytes = 1, .reduces = 0},
    [HORON_FLOAT8_E5M2] = {.word = "f8e5m2", .alias = "float8_e5m2", .bytes = 1, .reduces = 0},
};

struct redop_row {
    const char *word;
    const char *alias;
};

/* Indexed by horon_redop_t. */
static const struct redop_row redop_rows[HORON_REDOP_COUNT] = {
    [HORON_SUM] = {.word = "sum", .alias = "add"},
    [HORON_AVERAGE] = {.word = "avg", .alias = "average"},
    [HORON_MIN] = {.word = "min", .alias = "minimum"},
    [HORON_MAX] = {.word = "max", .alias = "maximum"},
    [HORON_PRODUCT] = {.word = "prod", .alias = "product"},
    [HORON_BIT_AND] = {.word = "band", .alias = "bit_and"},
    [HORON_BIT_OR] = {.word = "bor", .alias = "bit_or"},
    [HORON_BIT_XOR] = {.word = "bxor", .alias = "bit_xor"},
};

int perf_verb_find(const char *word, horon_verb_t *verb_out)
{
    for (size_t i = 0; i < PERF_VERB_COUNT; i++) {
        if (strcmp(word, verb_rows[i].word) == 0) {
            *verb_out = verb_rows[i].verb;
            return 0;
        }
    }
    return -1;
}

int perf_dtype_find(const char *word, horon_dtype_t *dtype_out)
{
    for (size_t i = 0; i < HORON_DTYPE_COUNT; i++) {
        if (strcmp(word, dtype_rows[i].word) == 0 || strcmp(word, dtype_rows[i].alias) == 0) {
            *dtype_out = (horon_dtype_t)i;
            return 0;
        }
    }
    return -1;
}

int perf_redop_find(const char *word, horon_redop_t *redop_out)
{
    for (size_t i = 0; i < HORON_REDOP_COUNT; i++) {
        if (strcmp(word, redop_rows[i].word) == 0 || strcmp(word, redop_rows[i].alias) == 0) {
            *redop_out = (horon_redop_t)i;
            return 0;
        }
    }
    return -1;
}

const char *perf_verb_word(horon_verb_t verb)
{
    return verb_rows[verb].word;
}

int perf_verb_reduces(horon_verb_t verb)
{
    return verb_rows[verb].reduces;
}

int perf_verb_rooted(horon_verb_t verb)
{
    return verb_rows[verb].rooted;
}

const char *perf_dtype_word(horon_dtype_t dtype)
{
    return dtype_rows[dtype].word;
}

const char *perf_redop_word(horon_redop_t redop)
{
    return redop_rows[redop].word;
}

const char *perf_verb_words(void)
{
    return "allreduce broadcast allgather barrier alltoall gather scatter reducescatter reduce "
           "sendrecv";
}

const char *perf_dtype_words(void)
{
    return "uint8 int8 uint16 int16 uint32 int32 uint64 int64 half bfloat16 float double bool "
           "complex64 complex128 f8e4m3 f8e5m2";
}

const char *perf_redop_words(void)
{
    return "sum avg min max prod band bor bxor";
}

size_t perf_dtype_bytes(horon_dtype_t dtype)
{
    return dtype_rows[dtype].bytes;
}

int perf_dtype_reduces(horon_dtype_t dtype)
{
    return dtype_rows[dtype].reduces;
}

int perf_dtype_has(horon_dtype_t dtype, horon_redop_t redop)
{
    if (redop == HORON_AVERAGE && dtype == HORON_BOOL) {
        return 0;
    }
    const int is_float = dtype >= HORON_FLOAT16 && dtype <= HORON_FLOAT64;
    return dtype_rows[dtype].reduces && !(is_float && redop >= HORON_BIT_AND);
}

double perf_busbw_factor(horon_verb_t verb, int size)
{
    const double n = size;
    switch (verb) {
    case HORON_ALLREDUCE:
        return 2.0 * (n - 1.0) / n;
    case HORON_ALLGATHER:
    case HORON_ALLTOALL:
    case HORON_GATHER:
    case HORON_SCATTER:
    case HORON_REDUCESCATTER:
        return (n - 1.0) / n;
    case HORON_BROADCAST:
    case HORON_REDUCE:
    case HORON_SEND:
        return 1.0;
    case HORON_RECV:
    case HORON_BARRIER:
        break;
    }
    return 0.0;
}
