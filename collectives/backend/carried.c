/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which backend carries what, in words for people: the choice (choose.c) is asked for each verb at
 * many sizes, and what comes out is put together by backend. Sums are asked for in float32.
 */
#include "backend/backends.h"

#include <string.h>

/* Sizes that are asked for: 0, 1, 2, 4 and so on. */
#define SIZES 42

static uint64_t size_at(int i)
{
    return i ? UINT64_C(1) << (i - 1) : 0;
}

/* @return the number of the backend; -1: none */
static int carrier(const struct horon_backend_terms *terms, horon_verb_t verb,
                   horon_memory_t memory, uint64_t bytes)
{
    struct horon_signature agreed = {.prescale = 1,
                                     .postscale = 1,
                                     .verb = (uint8_t)verb,
                                     .dtype = HORON_FLOAT32,
                                     .redop = HORON_SUM,
                                     .memory = (uint8_t)memory};
    horon_signature_make_canonical(&agreed);
    const struct horon_verb_row *row = &horon_verb_rows[verb];
    const bool known = horon_verb_moves(row) && !horon_verb_rows_differ(row);
    return horon_backend_choose(terms, &agreed, known ? bytes : 0).backend;
}

/* Appends a verb to those of a backend, with the sizes at which it is its. */
static void add_verb(const struct horon_backend_terms *terms, horon_verb_t verb,
                     horon_memory_t memory, int backend, char *text, size_t text_bytes)
{
    int first = SIZES, last = -1;
    for (int i = 0; i < SIZES; i++)
        if (carrier(terms, verb, memory, size_at(i)) == backend) {
            first = first < i ? first : i;
            last = i;
        }
    if (last < 0)
        return;
    horon_text_add(text, text_bytes, text[0] ? " " : "", "%s", horon_verb_rows[verb].name);
    if (first > 0)
        horon_text_add(text, text_bytes, "", " (from %llu bytes)",
                       (unsigned long long)size_at(first));
    else if (last < SIZES - 1)
        horon_text_add(text, text_bytes, "", " (below %llu bytes)",
                       (unsigned long long)size_at(last + 1));
}

/* Messages are no matter of backends, nor is memory one of what moves nothing. */
static bool is_asked_for(const struct horon_verb_row *row, horon_memory_t memory)
{
    return !row->paired && (horon_verb_moves(row) || memory == HORON_MEMORY_HOST);
}

void horon_backends_carry(const struct horon_backend_terms *terms, horon_memory_t memory,
                          char *text, size_t text_bytes)
{
    text[0] = 0;
    for (int backend = 0; backend <= (int)terms->count; backend++) {
        const bool none = backend == (int)terms->count;
        char verbs[512] = "";
        for (int verb = 0; verb < HORON_VERB_COUNT; verb++)
            if (is_asked_for(&horon_verb_rows[verb], memory))
                add_verb(terms, (horon_verb_t)verb, memory, none ? -1 : backend, verbs,
                         sizeof verbs);
        if (verbs[0])
            horon_text_add(text, text_bytes, text[0] ? "\n" : "", "%s: %s",
                           none ? "nothing" : terms->backends[backend]->name, verbs);
    }
}
