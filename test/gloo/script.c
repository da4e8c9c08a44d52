/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps and values. Floats are made as bits, of which no rounding of ours can be part: random
 * signs and mantissas, exponents of -2 to 1, so that the order of additions shows in the last bits
 * and no product of some ranks overflows. The only NaN is that which x86 makes, so that it does
 * not matter which of two NaNs goes on.
 */
#include "script.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct type {
    const char *name;
    size_t bytes;       /* of a number */
    int exponent_bits;  /* 0: no float */
    unsigned bits_kept; /* of other numbers, a mask; 0: any bits will do */
    size_t numbers;     /* of an element */
};

static const struct type types[] = {
    {"u8", 1, 0, 0, 1},   {"i8", 1, 0, 0, 1},   {"u16", 2, 0, 0, 1}, {"i16", 2, 0, 0, 1},
    {"u32", 4, 0, 0, 1},  {"i32", 4, 0, 0, 1},  {"u64", 8, 0, 0, 1}, {"i64", 8, 0, 0, 1},
    {"f16", 2, 5, 0, 1},  {"bf16", 2, 8, 0, 1}, {"f32", 4, 8, 0, 1}, {"f64", 8, 11, 0, 1},
    {"bool", 1, 0, 1, 1}, {"c32", 2, 5, 0, 2},  {"c64", 4, 8, 0, 2}, {"c128", 8, 11, 0, 2},
};

static const struct type *type_of(const char *dtype)
{
    const size_t n = strcspn(dtype, "!");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == n && strncmp(dtype, types[i].name, n) == 0)
            return &types[i];
    return NULL;
}

static void must(bool right, int line, const char *text)
{
    if (right)
        return;
    fprintf(stderr, "script, line %d: no step: %s\n", line, text);
    exit(2);
}

static char *word(char **rest)
{
    char *found = strtok_r(NULL, " \n", rest);
    return found ? found : (char *)"0";
}

static bool copy(char *to, size_t bytes, const char *from)
{
    return (size_t)snprintf(to, bytes, "%s", from) < bytes;
}

int script_next(FILE *file, int *line, struct script_step *step_out)
{
    char text[256], whole[256];
    struct script_step step = {0};
    do {
        if (!fgets(text, sizeof text, file))
            return 0;
        ++*line;
    } while (text[0] == '#');
    copy(whole, sizeof whole, text);
    step.line = *line;
    char *rest = NULL;
    char *first = strtok_r(text, " \n", &rest);
    must(first, *line, whole);
    step.later = strcmp(first, "+") == 0;
    if (step.later)
        first = word(&rest);
    if (first[0] == 'x') {
        step.times = strtol(first + 1, NULL, 10);
        must(step.times > 0, *line, whole);
        first = word(&rest);
    }
    must(copy(step.verb, sizeof step.verb, first), *line, whole);
    must(copy(step.dtype, sizeof step.dtype, word(&rest)), *line, whole);
    must(copy(step.op, sizeof step.op, word(&rest)), *line, whole);
    step.count = strtoul(word(&rest), NULL, 10);
    step.root = atoi(word(&rest));
    step.to = atoi(word(&rest));
    step.slot = strtoull(word(&rest), NULL, 10);
    *step_out = step;
    return 1;
}

bool script_is(const struct script_step *step, const char *verb)
{
    return strcmp(step->verb, verb) == 0;
}

bool script_is_collective(const struct script_step *step)
{
    static const char *const verbs[] = {"barrier",   "broadcast",  "reduce",    "allreduce",
                                        "allgather", "allgatherv", "gather",    "gatherv",
                                        "scatter",   "alltoall",   "alltoallv", "reducescatter"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (script_is(step, verbs[i]))
            return true;
    return false;
}

size_t script_element(const struct script_step *step)
{
    const struct type *type = type_of(step->dtype);
    return type ? type->bytes * type->numbers : 0;
}

size_t script_rows(size_t count, int from, int to)
{
    return count * (size_t)((from + 2 * to + 1) % 3);
}

/* Of all ranks to one, or of one to all. */
static size_t sum_of(const struct script_step *step, int from, int to, int size)
{
    size_t sum = 0;
    for (int i = 0; i < size; i++)
        sum += script_rows(step->count, from < 0 ? i : from, to < 0 ? i : to);
    return sum;
}

size_t script_inputs(const struct script_step *step, int rank, int size)
{
    if (script_is(step, "barrier") || script_is(step, "recv"))
        return 0;
    if (script_is(step, "broadcast"))
        return rank == step->root ? step->count : 0;
    if (script_is(step, "scatter"))
        return rank == step->root ? step->count * (size_t)size : 0;
    if (script_is(step, "alltoall") || script_is(step, "reducescatter"))
        return step->count * (size_t)size;
    if (script_is(step, "alltoallv"))
        return sum_of(step, rank, -1, size);
    if (script_is(step, "allgatherv") || script_is(step, "gatherv"))
        return script_rows(step->count, rank, 0);
    return step->count;
}

size_t script_outputs(const struct script_step *step, int rank, int size)
{
    const bool rooted =
        script_is(step, "gather") || script_is(step, "gatherv") || script_is(step, "reduce");
    if (script_is(step, "barrier") || script_is(step, "send") || (rooted && rank != step->root))
        return 0;
    if (script_is(step, "allgather") || script_is(step, "gather") || script_is(step, "alltoall"))
        return step->count * (size_t)size;
    if (script_is(step, "alltoallv"))
        return sum_of(step, -1, rank, size);
    if (script_is(step, "allgatherv") || script_is(step, "gatherv"))
        return sum_of(step, -1, 0, size);
    return step->count;
}

/* Splitmix64: the nth number of a seed. */
static uint64_t random_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t float_of(uint64_t bits, const struct type *type, bool any)
{
    const int width = (int)type->bytes * 8;
    const int mantissa_bits = width - 1 - type->exponent_bits;
    const uint64_t top = ((uint64_t)1 << type->exponent_bits) - 1;
    const uint64_t sign = bits >> 63 << (width - 1);
    const uint64_t mantissa = bits & (((uint64_t)1 << mantissa_bits) - 1);
    const uint64_t drawn = (bits >> 52) & top;
    if (!any)
        return sign | ((top / 2 - 2 + drawn % 4) << mantissa_bits) | mantissa;
    if (drawn % 32 == 1)
        return sign; /* a zero */
    if (drawn % 32 == 2)
        return sign | top << mantissa_bits; /* an infinity */
    if (drawn % 32 == 3)
        return sign | mantissa; /* too small for a whole mantissa */
    if (drawn == top)           /* the NaN */
        return (uint64_t)1 << (width - 1) | top << mantissa_bits |
               (uint64_t)1 << (mantissa_bits - 1);
    return sign | drawn << mantissa_bits | mantissa;
}

void script_fill_values(const char *dtype, uint64_t seed, void *data, size_t count)
{
    const struct type *type = type_of(dtype);
    const bool any = strchr(dtype, '!') != NULL;
    const size_t numbers = type ? count * type->numbers : 0; /* none of a barrier */
    char *to = (char *)data;
    for (size_t i = 0; i < numbers; i++, to += type->bytes) {
        uint64_t bits = random_of(seed, i);
        if (type->bits_kept)
            bits &= type->bits_kept;
        if (type->exponent_bits > 0)
            bits = float_of(bits, type, any);
        memcpy(to, &bits, type->bytes); /* the low bytes first */
    }
}

uint64_t script_seed(int line, int rank)
{
    return (uint64_t)line << 32 | (uint64_t)rank << 8;
}

void script_fill(const struct script_step *step, int rank, void *data, size_t count)
{
    script_fill_values(step->dtype, script_seed(step->line, rank), data, count);
}

uint64_t script_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
