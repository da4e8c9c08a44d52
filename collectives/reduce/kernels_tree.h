/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree over n inputs in registers, part of kernels_template.h: every input is loaded once,
 * every output stored once, a few vectors at a time.
 *
 * The canonical tree is a binary counter of perfect subtrees. Four leaves are pushed as one; then,
 * for each trailing one in the number of fours before them, the two topmost are combined. A pair
 * and a single leaf may remain; in the end all that is left is combined from the right:
 *
 *     n = 15:   push 0-3 | push 4-7, join | push 8-11 | push 12-13 | 14 | join from the right
 *     stack:    0-3        0-7              0-7 8-11    0-7 8-11 12-13    ((12-13 14) ...
 *
 * Two and four inputs, the ranks of many hosts, are written out. The elements after the last whole
 * vector go through the same operations in padded copies, so that nothing outside the caller's
 * memory is touched and there is one way to compute an element.
 */
#ifndef HORON_REDUCE_KERNELS_TREE_H
#define HORON_REDUCE_KERNELS_TREE_H

#include "reduce/reduce_isa.h"

#include <assert.h>

enum {
    UNROLLED = 4,   /* vectors in flight */
    TREE_DEPTH = 9, /* of HORON_REDUCE_INPUTS_MAX leaves */
    /* Bytes by which lines of the first output are asked for before they are written. No input may
     * have fetched them, and a store waits for its line. Past the end it does no harm. */
    FETCH_AHEAD = 1024
};

static_assert(HORON_REDUCE_INPUTS_MAX <= 1 << (TREE_DEPTH - 1), "the stack must hold the tree");

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* What a sum is divided by, or multiplied: for a power of two the inverse gives the same bits. */
struct quotient {
    enum { UNDIVIDED, MULTIPLIED, DIVIDED } kind;
    double by;
};

static inline struct quotient quotient_of(double divisor)
{
    const uint64_t whole = (uint64_t)divisor;
    if (divisor == 1)
        return (struct quotient){UNDIVIDED, 1};
    if ((whole & (whole - 1)) == 0)
        return (struct quotient){MULTIPLIED, 1 / divisor};
    return (struct quotient){DIVIDED, divisor};
}

/* Of 16-bit floats in float32, as they were summed. */
#define DIVIDE_SUM(name, vector, scalar)                                                           \
    ALWAYS_INLINE vector name(vector sum, struct quotient q)                                       \
    {                                                                                              \
        if (q.kind == MULTIPLIED)                                                                  \
            return sum * (scalar)q.by;                                                             \
        return q.kind == DIVIDED ? sum / (scalar)q.by : sum;                                       \
    }

#define KEEP(value, quotient) ((void)(quotient), (value))

/*
 * The parts of a kernel `name` on elements el_`t`, `lanes` of which a `vector` holds.
 *  load(const el_t *), store(el_t *, vector)
 *  op(left, right)  of vectors
 *  divide(vector, struct quotient), or KEEP
 * Each part does whole vectors from an offset, and returns where it ends.
 */
typedef size_t (*part_fn)(const struct horon_reduce_call *call, struct quotient q, size_t at);

/* The vth of some vectors at an offset. */
#define IN(t, lanes, pointer) ((const el_##t *)(pointer) + at + v * lanes)

/* What is due beside @p bytes more of an output, in whole vectors: a copy that ran ahead might
 * overwrite what another has yet to read. */
ALWAYS_INLINE void copy_beside(struct horon_reduce_beside *beside, size_t bytes)
{
    const size_t begin = beside->done;
    beside->due += bytes * beside->times;
    const size_t end = begin + (beside->due - begin) / VECTOR_BYTES * VECTOR_BYTES;
    for (int i = 0; i < beside->n; i++) {
        unsigned char *const to = beside->copies[i].to;
        const unsigned char *const from = beside->copies[i].from;
        for (size_t at = begin; at < end; at += VECTOR_BYTES)
            store_u8(to + at, load_u8(from + at));
    }
    beside->done = end;
}

/* Any number of inputs, some vectors at a time. */
#define TREE_ANY(name, t, vector, lanes, load, store, op, divide, vectors)                         \
    static size_t name(const struct horon_reduce_call *call, struct quotient q, size_t at)         \
    {                                                                                              \
        vector stack[TREE_DEPTH][vectors];                                                         \
        for (; call->count - at >= vectors * lanes; at += vectors * lanes) {                       \
            const void *const *in = call->in, *const *end = in + call->n;                          \
            int top = 0;                                                                           \
            for (unsigned int fours = 0; end - in >= 4; in += 4, fours++, top++) {                 \
                for (size_t v = 0; v < vectors; v++)                                               \
                    stack[top][v] = op(op(load(IN(t, lanes, in[0])), load(IN(t, lanes, in[1]))),   \
                                       op(load(IN(t, lanes, in[2])), load(IN(t, lanes, in[3]))));  \
                for (unsigned int ones = fours; (ones & 1) != 0; ones >>= 1, top--)                \
                    for (size_t v = 0; v < vectors; v++)                                           \
                        stack[top - 1][v] = op(stack[top - 1][v], stack[top][v]);                  \
            }                                                                                      \
            if (end - in >= 2) {                                                                   \
                for (size_t v = 0; v < vectors; v++)                                               \
                    stack[top][v] = op(load(IN(t, lanes, in[0])), load(IN(t, lanes, in[1])));      \
                in += 2;                                                                           \
                top++;                                                                             \
            }                                                                                      \
            vector root[vectors]; /* the last leaf, or the topmost subtree */                      \
            top -= in == end;                                                                      \
            for (size_t v = 0; v < vectors; v++)                                                   \
                root[v] = in < end ? load(IN(t, lanes, in[0])) : stack[top][v];                    \
            while (--top >= 0)                                                                     \
                for (size_t v = 0; v < vectors; v++)                                               \
                    root[v] = op(stack[top][v], root[v]);                                          \
            for (size_t v = 0; v < vectors; v++)                                                   \
                root[v] = divide(root[v], q);                                                      \
            for (int j = 0; j < call->n_out; j++)                                                  \
                for (size_t v = 0; v < vectors; v++)                                               \
                    store((el_##t *)call->out[j] + at + v * lanes, root[v]);                       \
            if (call->beside)                                                                      \
                copy_beside(call->beside, vectors *lanes * sizeof(el_##t));                        \
        }                                                                                          \
        return at;                                                                                 \
    }

/* UNROLLED vectors at a time; `node` is an expression of an offset `i`. */
#define TREE_GROUPS(name, t, vector, lanes, store, divide, declarations, node)                     \
    ALWAYS_INLINE size_t name(const struct horon_reduce_call *call, struct quotient q, size_t at)  \
    {                                                                                              \
        declarations;                                                                              \
        void *const *const out = call->out;                                                        \
        el_##t *const first = out[0];                                                              \
        const int n_out = call->n_out;                                                             \
        const size_t count = call->count;                                                          \
        for (; count - at >= UNROLLED * lanes; at += UNROLLED * lanes) {                           \
            vector root[UNROLLED];                                                                 \
            for (size_t v = 0; v < UNROLLED; v++) {                                                \
                const size_t i = at + v * lanes;                                                   \
                __builtin_prefetch((const char *)(first + i) + FETCH_AHEAD, 1, 3);                 \
                root[v] = divide(node, q);                                                         \
            }                                                                                      \
            for (size_t v = 0; v < UNROLLED; v++)                                                  \
                store(first + at + v * lanes, root[v]);                                            \
            for (int j = 1; j < n_out; j++) {                                                      \
                el_##t *const other = out[j];                                                      \
                for (size_t v = 0; v < UNROLLED; v++)                                              \
                    store(other + at + v * lanes, root[v]);                                        \
            }                                                                                      \
            if (call->beside)                                                                      \
                copy_beside(call->beside, UNROLLED *lanes * sizeof(el_##t));                       \
        }                                                                                          \
        return at;                                                                                 \
    }

#define TREE_TWO(name, t, vector, lanes, load, store, op, divide)                                  \
    TREE_GROUPS(name##_two, t, vector, lanes, store, divide, const el_##t *a = call->in[0];        \
                const el_##t *b = call->in[1], op(load(a + i), load(b + i)))

#define TREE_FOUR(name, t, vector, lanes, load, store, op, divide)                                 \
    TREE_GROUPS(name##_four, t, vector, lanes, store, divide, const el_##t *a = call->in[0];       \
                const el_##t *b = call->in[1]; const el_##t *c = call->in[2];                      \
                const el_##t *d = call->in[3],                                                     \
                op(op(load(a + i), load(b + i)), op(load(c + i), load(d + i))))

/* The elements after the last whole vector of many inputs: any() of padded copies. */
static void tree_tail(const struct horon_reduce_call *call, struct quotient q, size_t at,
                      size_t element_bytes, size_t lanes, part_fn any)
{
    unsigned char padded[HORON_REDUCE_INPUTS_MAX][VECTOR_BYTES]
        __attribute__((aligned(VECTOR_BYTES)));
    unsigned char root[VECTOR_BYTES] __attribute__((aligned(VECTOR_BYTES)));
    const void *in[HORON_REDUCE_INPUTS_MAX];
    void *out = root;
    size_t offset = at * element_bytes, bytes = (call->count - at) * element_bytes;
    for (int i = 0; i < call->n; i++) {
        copy_in(padded[i], (const unsigned char *)call->in[i] + offset, bytes);
        in[i] = padded[i];
    }
    const struct horon_reduce_call whole = {
        .in = in, .out = &out, .n = call->n, .n_out = 1, .count = lanes};
    any(&whole, q, 0);
    for (int j = 0; j < call->n_out; j++)
        copy_out((unsigned char *)call->out[j] + offset, root, bytes);
}

/* The same of two to four inputs, in registers: many reductions are no more than this. */
#define TREE_TAIL(name, t, vector, lanes, load, store, op, divide)                                 \
    ALWAYS_INLINE vector name##_part(const void *in, size_t at, size_t elements)                   \
    {                                                                                              \
        unsigned char padded[VECTOR_BYTES] __attribute__((aligned(VECTOR_BYTES)));                 \
        copy_in(padded, (const el_##t *)in + at, elements * sizeof(el_##t));                       \
        return load((const el_##t *)(const void *)padded);                                         \
    }                                                                                              \
    static void name##_tail(const struct horon_reduce_call *call, struct quotient q, size_t at)    \
    {                                                                                              \
        unsigned char padded[VECTOR_BYTES] __attribute__((aligned(VECTOR_BYTES)));                 \
        const void *const *in = call->in;                                                          \
        const int n = call->n, n_out = call->n_out;                                                \
        const size_t rest = call->count - at;                                                      \
        if (n < 2 || n > 4) {                                                                      \
            tree_tail(call, q, at, sizeof(el_##t), lanes, name##_any);                             \
            return;                                                                                \
        }                                                                                          \
        vector root = op(name##_part(in[0], at, rest), name##_part(in[1], at, rest));              \
        if (n > 2) {                                                                               \
            vector right = name##_part(in[2], at, rest);                                           \
            root = op(root, n == 3 ? right : op(right, name##_part(in[3], at, rest)));             \
        }                                                                                          \
        store((el_##t *)(void *)padded, divide(root, q));                                          \
        for (int j = 0; j < n_out; j++)                                                            \
            copy_out((el_##t *)call->out[j] + at, padded, rest * sizeof(el_##t));                  \
    }

/* A kernel for an operation that is rare: two inputs are fast. */
#define TREE(name, t, vector, lanes, load, store, op)                                              \
    TREE_ANY(name##_any, t, vector, lanes, load, store, op, KEEP, 1)                               \
    TREE_TWO(name, t, vector, lanes, load, store, op, KEEP)                                        \
    TREE_TAIL(name, t, vector, lanes, load, store, op, KEEP)                                       \
    static void name(const struct horon_reduce_call *call)                                         \
    {                                                                                              \
        const struct quotient q = {.kind = UNDIVIDED};                                             \
        size_t at = call->n == 2 ? name##_two(call, q, 0) : 0;                                     \
        if (call->count - at >= (lanes))                                                           \
            at = name##_any(call, q, at);                                                          \
        if (at < call->count)                                                                      \
            name##_tail(call, q, at);                                                              \
    }

/* A kernel for sums, which most reductions are: four are fast, too, and some divide. */
#define TREE_SUM(name, t, vector, lanes, load, store, divide, kinds)                               \
    TREE_ANY(name##_any, t, vector, lanes, load, store, PLUS, divide, 1)                           \
    TREE_ANY(name##_groups, t, vector, lanes, load, store, PLUS, divide, UNROLLED)                 \
    TREE_TWO(name, t, vector, lanes, load, store, PLUS, divide)                                    \
    TREE_FOUR(name, t, vector, lanes, load, store, PLUS, divide)                                   \
    TREE_TAIL(name, t, vector, lanes, load, store, PLUS, divide)                                   \
    static void name(const struct horon_reduce_call *call)                                         \
    {                                                                                              \
        const struct quotient q = quotient_of(call->divisor);                                      \
        size_t at = 0;                                                                             \
        if (call->n == 2)                                                                          \
            at = kinds(name##_two, call, q);                                                       \
        else if (call->n == 4)                                                                     \
            at = kinds(name##_four, call, q);                                                      \
        else                                                                                       \
            at = name##_groups(call, q, 0);                                                        \
        if (call->count - at >= (lanes))                                                           \
            at = name##_any(call, q, at);                                                          \
        if (at < call->count)                                                                      \
            name##_tail(call, q, at);                                                              \
    }

/* One loop for each kind of quotient, in which the kind is a constant; or one loop, undivided. */
#define EACH_KIND(groups, call, q)                                                                 \
    (q.kind == UNDIVIDED    ? groups(call, (struct quotient){UNDIVIDED, 1}, 0)                     \
     : q.kind == MULTIPLIED ? groups(call, (struct quotient){MULTIPLIED, q.by}, 0)                 \
                            : groups(call, (struct quotient){DIVIDED, q.by}, 0))
#define ONE_KIND(groups, call, q) groups(call, q, 0)

#define PLUS(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#define OR(a, b) ((a) | (b))
#define AND(a, b) ((a) & (b))
#define XOR(a, b) ((a) ^ (b))

#endif
