/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs repeat after PERIOD elements, a prime that no chunk or slice is a multiple of: so a large
 * result is known from its first PERIOD elements, and one that lies in a wrong place shows all the
 * same. The arithmetic of an element is that of test/collectives/reduce/reference.c; here is the
 * tree above it: the ranks of a host pairwise, then hosts in blocks of a power of two, then the
 * blocks in order.
 */
#include "cases.h"

#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PERIOD 4093
#define PRIME 8191    /* several of the smallest chunks */
#define LARGE 1000003 /* of a vector, or of the blocks of all ranks together */
#define CASES_MAX 1024

int layout_parse(const char *text, struct layout *layout)
{
    memset(layout, 0, sizeof *layout);
    while (*text && layout->size < CASE_RANKS_MAX) {
        char *end = NULL;
        long host = strtol(text, &end, 10);
        if (end == text || host < 0 || host > layout->host_count)
            return -1; /* hosts appear in the order of their numbers */
        layout->host_count += host == layout->host_count;
        layout->host_of[layout->size++] = (int)host;
        text = *end == ',' ? end + 1 : end;
    }
    return *text || layout->size == 0 ? -1 : 0;
}

/* ---- The list ------------------------------------------------------------------------------- */

struct list {
    struct one_case *items;
    int count;
};

static struct one_case *add(struct list *list, horon_verb_t verb, horon_dtype_t dtype,
                            uint64_t count)
{
    if (list->count == CASES_MAX)
        abort();
    struct one_case *one = &list->items[list->count];
    *one = (struct one_case){.number = list->count++,
                             .verb = verb,
                             .dtype = dtype,
                             .count = count,
                             .prescale = 1,
                             .postscale = 1};
    snprintf(one->name, sizeof one->name, "%s.%s.%llu", horon_verb_name(verb),
             horon_dtype_name(dtype), (unsigned long long)count);
    return one;
}

static struct one_case *add_reduction(struct list *list, horon_verb_t verb, horon_dtype_t dtype,
                                      horon_redop_t redop, uint64_t count)
{
    struct one_case *one = add(list, verb, dtype, count);
    size_t used = strlen(one->name);
    one->redop = redop;
    snprintf(one->name + used, sizeof one->name - used, ".%s", horon_redop_name(redop));
    return one;
}

static void add_rooted(struct list *list, horon_verb_t verb, horon_dtype_t dtype, int root,
                       uint64_t count)
{
    struct one_case *one = add(list, verb, dtype, count);
    size_t used = strlen(one->name);
    one->root = root;
    snprintf(one->name + used, sizeof one->name - used, ".root%d", root);
}

static void add_message(struct list *list, int from, int to, uint64_t count)
{
    struct one_case *one = add(list, HORON_SEND, HORON_FLOAT64, count);
    size_t used = strlen(one->name);
    one->root = from;
    one->receiver = to;
    snprintf(one->name + used, sizeof one->name - used, ".from%d.to%d", from, to);
}

static void add_scaled(struct list *list, horon_verb_t verb, horon_dtype_t dtype,
                       horon_redop_t redop)
{
    struct one_case *one = add_reduction(list, verb, dtype, redop, PRIME);
    size_t used = strlen(one->name);
    one->prescale = 0.3;
    one->postscale = 7;
    snprintf(one->name + used, sizeof one->name - used, ".scaled");
}

static bool has(int dtype, int redop)
{
    if (redop >= HORON_BIT_AND)
        return dtype < HORON_FLOAT16 || dtype == HORON_BOOL;
    return dtype != HORON_BOOL || redop != HORON_AVERAGE;
}

static uint64_t large_rows(int size)
{
    return LARGE / CASE_ROW_ELEMENTS / (uint64_t)size;
}

/* One of each verb of which ranks have unlike parts. */
static void add_parts(struct list *list, horon_dtype_t dtype, int size, uint64_t count)
{
    const uint64_t rows = count == LARGE ? large_rows(size) : count;
    if (dtype <= HORON_BOOL) {
        add_rooted(list, HORON_REDUCE, dtype, (list->count + 1) % size, count);
        add(list, HORON_REDUCESCATTER, dtype, count);
    }
    add_rooted(list, HORON_GATHER, dtype, list->count % size, rows);
    add_rooted(list, HORON_SCATTER, dtype, list->count % size, rows);
}

/* In one dtype each; sums in all of them are add_parts()'s. */
static void add_reductions(struct list *list, int size)
{
    for (int redop = HORON_SUM + 1; redop < HORON_REDOP_COUNT; redop++) {
        const horon_dtype_t dtype = redop >= HORON_BIT_AND ? HORON_INT32 : HORON_FLOAT32;
        struct one_case *one =
            add_reduction(list, HORON_REDUCE, dtype, (horon_redop_t)redop, PRIME);
        one->root = one->number % size;
        add_reduction(list, HORON_REDUCESCATTER, dtype, (horon_redop_t)redop, PRIME);
    }
    add_scaled(list, HORON_REDUCE, HORON_FLOAT32, HORON_AVERAGE);
    add_scaled(list, HORON_REDUCESCATTER, HORON_FLOAT16, HORON_AVERAGE);
}

/* What needs data of a rank that has joined fails, and a message is none of its business. */
static bool goes_on(const struct one_case *one)
{
    const bool rooted = one->verb == HORON_BROADCAST || one->verb == HORON_REDUCE ||
                        one->verb == HORON_GATHER || one->verb == HORON_SCATTER;
    return !one->joined ||
           (!case_is_message(one) && !(rooted && one->joined & 1u << (unsigned)one->root));
}

struct one_case *cases_make(int size, bool whole, uint32_t joined, int *count_out)
{
    static const uint64_t counts[] = {0, 1, PRIME};
    struct list list = {.items = calloc(CASES_MAX, sizeof *list.items)};
    if (!list.items)
        abort();
    for (int c = 0; c < 3; c++) {
        for (int dtype = 0; dtype <= HORON_BOOL; dtype++)
            for (int redop = 0; redop < HORON_REDOP_COUNT; redop++)
                if (has(dtype, redop))
                    add_reduction(&list, HORON_ALLREDUCE, (horon_dtype_t)dtype,
                                  (horon_redop_t)redop, counts[c]);
        for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++)
            add(&list, HORON_ALLGATHER, (horon_dtype_t)dtype, counts[c]);
        for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++)
            add(&list, HORON_ALLTOALL, (horon_dtype_t)dtype, counts[c]);
        for (int root = 0; root < size; root++)
            add_rooted(&list, HORON_BROADCAST, HORON_FLOAT64, root, counts[c]);
    }
    for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++)
        add_rooted(&list, HORON_BROADCAST, (horon_dtype_t)dtype, dtype % size, PERIOD);
    for (int dtype = 0; dtype < HORON_BOOL; dtype++)
        add_scaled(&list, HORON_ALLREDUCE, (horon_dtype_t)dtype, HORON_SUM);
    add_reduction(&list, HORON_ALLREDUCE, HORON_FLOAT32, HORON_SUM, LARGE);
    add_reduction(&list, HORON_ALLREDUCE, HORON_FLOAT16, HORON_SUM, LARGE);
    add_reduction(&list, HORON_ALLREDUCE, HORON_FLOAT64, HORON_AVERAGE, LARGE);
    add_reduction(&list, HORON_ALLREDUCE, HORON_UINT8, HORON_MAX, LARGE);
    add_rooted(&list, HORON_BROADCAST, HORON_FLOAT32, size - 1, LARGE);
    add(&list, HORON_ALLGATHER, HORON_FLOAT32, large_rows(size));
    add(&list, HORON_ALLTOALL, HORON_FLOAT32, large_rows(size));
    for (int c = 0; c < 3; c++)
        for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++)
            if (dtype == HORON_FLOAT32 || counts[c] == PRIME)
                add_parts(&list, (horon_dtype_t)dtype, size, counts[c]);
    add_parts(&list, HORON_FLOAT32, size, LARGE);
    add_reductions(&list, size);
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++)
            if (from != to)
                add_message(&list, from, to, counts[(from + to) % 3]);
    for (int from = 0; from < size && size > 1; from++)
        add_message(&list, from, (from + 1) % size, LARGE);
    for (int i = 0; whole && i < list.count; i++) {
        list.items[i].whole = true;
        if (list.items[i].prescale != 1)
            list.items[i].prescale = 0.5;
    }
    *count_out = 0;
    for (int i = 0; i < list.count; i++) {
        list.items[i].joined = joined;
        list.items[i].divisor = size;
        if (goes_on(&list.items[i]))
            list.items[(*count_out)++] = list.items[i];
    }
    return list.items;
}

/* ---- Inputs --------------------------------------------------------------------------------- */

bool case_reduces(const struct one_case *one)
{
    return one->verb == HORON_ALLREDUCE || one->verb == HORON_REDUCE ||
           one->verb == HORON_REDUCESCATTER;
}

bool case_has_rows(const struct one_case *one)
{
    return one->verb == HORON_ALLGATHER || one->verb == HORON_ALLTOALL ||
           one->verb == HORON_GATHER || one->verb == HORON_SCATTER;
}

bool case_is_message(const struct one_case *one)
{
    return one->verb == HORON_SEND;
}

bool case_has_splits(const struct one_case *one)
{
    return one->number % 3 == 0 && !one->joined;
}

static bool has_joined(const struct one_case *one, int rank)
{
    return one->joined & 1u << (unsigned)rank;
}

/* Rows differ by rank, and some ranks give none. A root that scatters knows nothing of joins. */
uint64_t case_count(const struct one_case *one, int rank)
{
    if (!case_has_rows(one))
        return one->count;
    if (has_joined(one, rank) && one->verb != HORON_SCATTER)
        return 0;
    if (one->count < 2)
        return rank % 2 == one->number % 2 ? one->count * CASE_ROW_ELEMENTS : 0;
    if (rank == 1 && one->number % 2)
        return 0;
    return (one->count - 37 * (uint64_t)rank) * CASE_ROW_ELEMENTS;
}

static uint64_t all_blocks(const struct one_case *one, int size)
{
    uint64_t count = 0;
    for (int rank = 0; rank < size; rank++)
        count += case_count(one, rank);
    return count;
}

uint64_t case_input_count(const struct one_case *one, int rank, int size)
{
    if (one->verb == HORON_ALLTOALL)
        return case_count(one, rank) * (uint64_t)size;
    if (one->verb == HORON_SCATTER)
        return rank == one->root ? all_blocks(one, size) : 0;
    if (one->verb == HORON_BROADCAST || case_is_message(one))
        return rank == one->root ? one->count : 0;
    return case_count(one, rank);
}

/* Every third has splits: the ranks in the middle get nothing. */
uint64_t case_share(const struct one_case *one, int rank, int size, uint64_t *first_out)
{
    const uint64_t ranks = (uint64_t)size, self = (uint64_t)rank, more = one->count % ranks;
    if (case_has_splits(one)) {
        const uint64_t of_first = size > 1 ? one->count / 4 : 0;
        *first_out = rank ? of_first : 0;
        if (rank == size - 1)
            return one->count - of_first;
        return rank ? 0 : of_first;
    }
    *first_out = one->count / ranks * self + (self < more ? self : more);
    return one->count / ranks + (self < more);
}

uint64_t case_result_count(const struct one_case *one, int rank, int size)
{
    uint64_t first;
    if (one->verb == HORON_SCATTER)
        return case_count(one, rank);
    if (one->verb == HORON_REDUCESCATTER)
        return case_share(one, rank, size, &first);
    if (one->verb == HORON_GATHER || one->verb == HORON_REDUCE)
        if (rank != one->root)
            return 0;
    if (case_is_message(one))
        return rank == one->receiver ? one->count : 0;
    return case_has_rows(one) ? all_blocks(one, size) : one->count;
}

/* The finisher of splitmix64: bits that depend on all bits of @p x. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* Of both signs, around 1, with all bits of the mantissa: sums depend on their order. */
static double number_of(uint64_t bits)
{
    double value = 1 + (double)(bits >> 11) * 0x1p-53;
    value *= (double)(1u << (bits & 7)) / 16;
    return bits & 8 ? -value : value;
}

/* Products of up to 14 of them are exact in 16 bits, too. */
static double whole_number_of(uint64_t bits)
{
    return (bits & 1 ? 2 : 1) * (bits & 2 ? -1.0 : 1.0);
}

static void put_moved(const struct one_case *one, uint64_t bits, uint8_t *at)
{
    size_t bytes = horon_dtype_bytes(one->dtype);
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(bits >> (i % 8 * 8) ^ i / 8);
}

static double neutral_number(horon_redop_t op)
{
    if (op == HORON_MIN || op == HORON_MAX)
        return op == HORON_MIN ? INFINITY : -INFINITY;
    return op == HORON_PRODUCT ? 1 : 0;
}

/* Of what is no float. */
static uint64_t neutral_bits(const struct one_case *one)
{
    const unsigned width = 8 * (unsigned)horon_dtype_bytes(one->dtype);
    const bool is_signed = one->dtype == HORON_INT8 || one->dtype == HORON_INT16 ||
                           one->dtype == HORON_INT32 || one->dtype == HORON_INT64;
    const uint64_t sign = UINT64_C(1) << (width - 1);
    if (one->dtype == HORON_BOOL)
        return one->redop == HORON_PRODUCT || one->redop == HORON_MIN ||
               one->redop == HORON_BIT_AND;
    if (one->redop == HORON_MIN)
        return is_signed ? sign - 1 : UINT64_MAX;
    if (one->redop == HORON_MAX)
        return is_signed ? sign : 0;
    if (one->redop == HORON_BIT_AND)
        return UINT64_MAX;
    return one->redop == HORON_PRODUCT ? 1 : 0;
}

static void put(const struct one_case *one, bool neutral, uint64_t random, void *data, size_t i)
{
    const double drawn = one->whole ? whole_number_of(random) : number_of(random);
    const double number = neutral ? neutral_number(one->redop) : drawn;
    const uint64_t bits = neutral ? neutral_bits(one) : random;
    const float single = (float)number;
    if (!case_reduces(one))
        put_moved(one, bits, (uint8_t *)data + i * horon_dtype_bytes(one->dtype));
    else if (one->dtype == HORON_FLOAT64)
        memcpy((double *)data + i, &number, sizeof number);
    else if (one->dtype == HORON_FLOAT32)
        memcpy((float *)data + i, &single, sizeof single);
    else if (one->dtype == HORON_FLOAT16 || one->dtype == HORON_BFLOAT16)
        reference_set(one->dtype, data, i, reference_narrow(one->dtype, single));
    else
        reference_set(one->dtype, data, i, one->dtype == HORON_BOOL ? bits & 3 : bits);
}

/* Repeats the first @p known elements. */
static void repeat(const struct one_case *one, void *data, uint64_t known, uint64_t count)
{
    size_t bytes = horon_dtype_bytes(one->dtype);
    for (uint64_t at = known; at < count; at += known)
        memcpy((uint8_t *)data + at * bytes, data,
               (size_t)(count - at < known ? count - at : known) * bytes);
}

void case_fill(const struct one_case *one, int rank, void *data)
{
    uint64_t count = case_count(one, rank);
    uint64_t seed = mix((uint64_t)one->number << 8 | (uint64_t)rank);
    const bool neutral = case_reduces(one) && has_joined(one, rank);
    for (uint64_t i = 0; i < count && i < PERIOD; i++)
        put(one, neutral, mix(seed + i), data, i);
    repeat(one, data, PERIOD, count);
}

/* The blocks of all ranks, one behind the other. */
static void fill_blocks(const struct one_case *one, int size, void *data)
{
    uint8_t *at = data;
    for (int rank = 0; rank < size; rank++) {
        case_fill(one, rank, at);
        at += case_count(one, rank) * horon_dtype_bytes(one->dtype);
    }
}

void case_fill_input(const struct one_case *one, int rank, int size, void *data)
{
    const size_t bytes = (size_t)case_count(one, rank) * horon_dtype_bytes(one->dtype);
    if (case_input_count(one, rank, size) == 0)
        return;
    if (one->verb == HORON_SCATTER) {
        fill_blocks(one, size, data);
        return;
    }
    case_fill(one, rank, data);
    for (int to = 1; one->verb == HORON_ALLTOALL && to < size; to++)
        memcpy((uint8_t *)data + (size_t)to * bytes, data, bytes);
}

/* ---- What must come out --------------------------------------------------------------------- */

static uint64_t host_node(const struct one_case *one, horon_redop_t op, const struct layout *layout,
                          int host, const uint64_t *inputs,
                          const struct horon_reduce_finish *finish)
{
    uint64_t leaves[CASE_RANKS_MAX];
    int n = 0;
    for (int rank = 0; rank < layout->size; rank++)
        if (layout->host_of[rank] == host)
            leaves[n++] = inputs[rank];
    return reference_tree(one->dtype, op, leaves, n, one->prescale, finish);
}

static uint64_t two(const struct one_case *one, horon_redop_t op, uint64_t left, uint64_t right)
{
    const uint64_t leaves[2] = {left, right};
    return reference_tree(one->dtype, op, leaves, 2, 1, NULL);
}

static uint64_t element(const struct one_case *one, const struct layout *layout,
                        const uint64_t *inputs)
{
    const bool average = one->redop == HORON_AVERAGE;
    const horon_redop_t op = average ? HORON_SUM : one->redop;
    const double ranks = average ? one->divisor : 1;
    struct horon_reduce_finish whole = {.divisor = ranks, .postscale = one->postscale};
    struct horon_reduce_finish partial = {.divisor = 1, .postscale = 1};
    uint64_t hosts[CASE_RANKS_MAX] = {0};
    int count = layout->host_count;
    if (count == 1) /* no sum is rounded but the whole one */
        return host_node(one, op, layout, 0, inputs, &whole);
    /* float16: a power of two first, so that no sum of hosts can overflow */
    while (one->dtype == HORON_FLOAT16 && partial.divisor < ranks)
        partial.divisor *= 2;
    for (int host = 0; host < count; host++)
        hosts[host] = host_node(one, op, layout, host, inputs, &partial);
    for (; count % 2 == 0; count /= 2)
        for (int host = 0; host < count / 2; host++)
            hosts[host] = two(one, op, hosts[2 * host], hosts[2 * host + 1]);
    for (int host = 1; host < count; host++)
        hosts[0] = two(one, op, hosts[0], hosts[host]);
    const double left = ranks / partial.divisor;
    const uint64_t divided = average ? reference_divide(one->dtype, hosts[0], left) : hosts[0];
    return reference_scale(one->dtype, divided, one->postscale);
}

static void expect_allreduce(const struct one_case *one, const struct layout *layout, void *data)
{
    struct one_case part = *one;
    void *inputs[CASE_RANKS_MAX];
    part.count = one->count < PERIOD ? one->count : PERIOD;
    for (int rank = 0; rank < layout->size; rank++) {
        inputs[rank] = malloc((size_t)part.count * horon_dtype_bytes(one->dtype) + 1);
        if (!inputs[rank])
            abort();
        case_fill(&part, rank, inputs[rank]);
    }
    for (uint64_t i = 0; i < part.count; i++) {
        uint64_t bits[CASE_RANKS_MAX];
        for (int rank = 0; rank < layout->size; rank++)
            bits[rank] = reference_get(one->dtype, inputs[rank], (size_t)i);
        reference_set(one->dtype, data, (size_t)i, element(one, layout, bits));
    }
    repeat(one, data, PERIOD, one->count);
    for (int rank = 0; rank < layout->size; rank++)
        free(inputs[rank]);
}

static void expect_share(const struct one_case *one, const struct layout *layout, int rank,
                         void *data)
{
    const size_t bytes = horon_dtype_bytes(one->dtype);
    uint64_t first;
    const uint64_t share = case_share(one, rank, layout->size, &first);
    uint8_t *whole = malloc((size_t)one->count * bytes + 1);
    if (!whole)
        abort();
    expect_allreduce(one, layout, whole);
    memcpy(data, whole + first * bytes, (size_t)share * bytes);
    free(whole);
}

void case_expect(const struct one_case *one, const struct layout *layout, int rank, void *data)
{
    if (case_result_count(one, rank, layout->size) == 0)
        return;
    if (one->verb == HORON_REDUCESCATTER)
        expect_share(one, layout, rank, data);
    else if (case_reduces(one))
        expect_allreduce(one, layout, data);
    else if (one->verb == HORON_BROADCAST || case_is_message(one))
        case_fill(one, one->root, data);
    else if (one->verb == HORON_SCATTER)
        case_fill(one, rank, data);
    else
        fill_blocks(one, layout->size, data);
}

const char *case_digest(const struct one_case *one, const void *data, uint64_t count,
                        char digest[CASE_DIGEST_BYTES])
{
    const XXH128_hash_t hash = XXH3_128bits(data, (size_t)count * horon_dtype_bytes(one->dtype));
    snprintf(digest, CASE_DIGEST_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return digest;
}
