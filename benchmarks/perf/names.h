/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of the command line and of the report for verbs, types and reductions: those of
 * nccl-tests where it has one ("float", "half", "prod"), with horon's own ("float32") also
 * understood.
 */
#ifndef HORON_PERF_NAMES_H
#define HORON_PERF_NAMES_H

#include <horon/horon.h>

/** Verbs that can be measured; messages both ways at once, as HORON_SEND. */
#define PERF_VERB_COUNT (HORON_SEND + 1)

/** Finds what a word means. @return 0 | -1, no such word; the output is then untouched */
int perf_verb_find(const char *word, horon_verb_t *verb_out);
int perf_dtype_find(const char *word, horon_dtype_t *dtype_out);
int perf_redop_find(const char *word, horon_redop_t *redop_out);

/** @return the word that the report prints. Static. */
const char *perf_verb_word(horon_verb_t verb);
const char *perf_dtype_word(horon_dtype_t dtype);
const char *perf_redop_word(horon_redop_t redop);

/** @return 1 if the verb has a reduction, or a root, else 0. */
int perf_verb_reduces(horon_verb_t verb);
int perf_verb_rooted(horon_verb_t verb);

/** @return all words, separated by blanks, for messages. Static. */
const char *perf_verb_words(void);
const char *perf_dtype_words(void);
const char *perf_redop_words(void);

/** @return bytes of one element. Our own table: the MPI peer runs without libhoron's help. */
size_t perf_dtype_bytes(horon_dtype_t dtype);

/** @return 1 if this type can be reduced, else 0: it only moves. */
int perf_dtype_reduces(horon_dtype_t dtype);

/** @return 1 if the type reduces in this way, else 0. */
int perf_dtype_has(horon_dtype_t dtype, horon_redop_t redop);

/** @return what algbw is multiplied with to get busbw, as nccl-tests defines it. */
double perf_busbw_factor(horon_verb_t verb, int size);

#endif
