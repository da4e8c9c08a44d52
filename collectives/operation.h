/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation, from the checked descriptor to the backend: one struct that everybody on the way
 * takes a pointer to. Its first member is what all ranks must agree on, in one canonical form:
 * whatever does not count for the verb has a fixed value. So two ranks agree exactly if the bytes
 * of their signatures are equal, and a left-over root of an allreduce is no mismatch. The words
 * used here and below, batch, part, segment and so on, are those of docs/glossary.md.
 *
 * Some fields have copies elsewhere: the head of a slot (exec/host.h) and what coordinators and
 * messages offer each other are forms that other processes read, so they hold only what their
 * readers compare, and this struct may change without them. A request keeps verb, team and hash of
 * the name once more in its first cache lines, as its start, its end and their events would
 * otherwise touch the lines of the operation, too. It also keeps the whole descriptor that it was
 * made of (`said`, engine/request.h), to find out whether a later descriptor says the same.
 */
#ifndef HORON_OPERATION_H
#define HORON_OPERATION_H

#include "verbs.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/** What all ranks must agree on besides the name. No padding: compared and hashed as bytes. */
struct horon_signature {
    /* the kind: operations of one kind may be fused (horon_signature_same_kind) */
    double prescale, postscale;
    uint8_t verb, dtype, redop, memory; /* horon_verb_t and so on */
    int32_t root; /* of a verb that agrees on splits a hash of them; 0: as equal as can be */
    int32_t team; /* the descriptor's process set */
    /* not part of the kind */
    uint32_t ndim;
    uint64_t shape[HORON_NDIM_MAX]; /* 0 from ndim on; [0] is 0 where rows may differ */
    /* A group becomes ready as one: a hash of its members' names in order, how many they are, and
     * this one's place. 0, 0, 0: none. */
    uint64_t group_hash;
    uint32_t group_size, group_index;
};
static_assert(sizeof(struct horon_signature) == 112, "has no padding");
static_assert(offsetof(struct horon_signature, root) == offsetof(struct horon_signature, verb) + 4,
              "what a backend is chosen by lies together");

/** A piece of the vector. An operation over several tensors is one over their concatenation. */
struct horon_part {
    const void *src;
    void *dst; /* equal to src or disjoint from it, but for what horon.h says of rows that stay at
                  their place; NULL: filled by output() */
    uint64_t count;
};

struct horon_operation {
    struct horon_signature agreed;
    uint64_t hash;  /* of the signature and the name */
    uint64_t check; /* what the first data of each rank shows; made of the hash by its lane */
    uint64_t count; /* elements of this rank's input: the sum over parts */
    const struct horon_part *parts; /* [part_count]; they outlive the operation */
    size_t part_count;
    bool drops; /* the parts' outputs are one piece of memory, which other operations write, too:
                   nobody reads it */
    uint32_t givers; /* ranks by which an average is divided; 0: all */
    /* Ahead of that one ranks tell each other words by this one: texts name that. NULL: none */
    const struct horon_operation *ahead_of;
    /* What this rank tells the others ahead of the data, if the verb's row says that it does: its
     * rows, or those for each rank, of `row_elements` each and count in all. Once all are known
     * output() is asked; @p rows [size] that it gets of each rank, @p total elements of the output.
     * @return memory for total elements (dst, if given and large enough), or NULL: nothing is
     * written then, and it goes well for the other ranks */
    const uint64_t *ahead; /* [horon_verb_ahead_words()]; they outlive the operation */
    uint64_t row_elements;
    void *(*output)(void *arg, const uint64_t *rows, uint64_t total);
    void *output_arg;
    /* Of a verb that agrees on splits: rows of the output of each rank, of `row_elements` each, or
     * NULL: as equal as can be. See horon_operation_rows(). */
    const uint64_t *splits; /* [size]; they outlive the operation */
    /* Not empty, and kept by the maker of the operation; or NULL: in order without a name. */
    const char *name;
    uint64_t name_hash;
    uint32_t name_bytes;
    int32_t device; /* where the memory lies; of host memory 0. Ranks may differ */
    void *stream;   /* that produces the inputs and uses the outputs; NULL: the device's default */
};

static inline const struct horon_verb_row *horon_verb_of(const struct horon_signature *signature)
{
    assert(signature->verb < HORON_VERB_COUNT);
    return &horon_verb_rows[signature->verb];
}

/** Rows for @p rank of @p size where no splits are given: the first ranks get one more, if need be.
 */
static inline uint64_t horon_rows_even(uint64_t rows, int rank, int size)
{
    assert(rank >= 0 && rank < size);
    return rows / (uint64_t)size + ((uint64_t)rank < rows % (uint64_t)size);
}

/** Rows of the output of @p rank of @p size, of a verb that agrees on splits. */
static inline uint64_t horon_operation_rows(const struct horon_operation *op, int rank, int size)
{
    assert(rank >= 0 && rank < size);
    return op->splits ? op->splits[rank] : horon_rows_even(op->agreed.shape[0], rank, size);
}

/** Elements of the output of @p rank, as far as they are known before the ranks have met. */
uint64_t horon_operation_output(const struct horon_operation *op, int rank, int size);

/** Bytes of each rank's input, as a backend is chosen by; 0 where ranks' may differ. */
static inline uint64_t horon_operation_bytes(const struct horon_operation *op)
{
    const struct horon_verb_row *row = horon_verb_of(&op->agreed);
    return horon_verb_moves(row) && !horon_verb_rows_differ(row)
               ? op->count * horon_dtype_bytes((horon_dtype_t)op->agreed.dtype)
               : 0;
}

/** What stands for @p splits [size] in a signature. */
int32_t horon_splits_hash(const uint64_t *splits, int size);

/** @return false: no such verb, dtype, reduction or memory, or too many dimensions */
bool horon_signature_is_valid(const struct horon_signature *signature);

/** Sets what does not count for the verb to its fixed value. It must be valid, and its shape 0
 * from ndim on. */
void horon_signature_make_canonical(struct horon_signature *signature);

/** Payload of one rank, as far as the signature tells; UINT64_MAX if that does not fit 64 bits. */
uint64_t horon_signature_bytes(const struct horon_signature *signature);

/** Of a signature and, unless @p name_hash is 0, a name. Groups do not count. */
uint64_t horon_signature_hash(const struct horon_signature *signature, uint64_t name_hash);

/** Lies a byte of what a rank gives in what it gets? If so, its rows are in the way of others', or
 * these of its own. */
static inline bool horon_rows_lie_in(const void *own, uint64_t own_bytes, const void *out,
                                     uint64_t out_bytes)
{
    const uintptr_t at = (uintptr_t)own, to = (uintptr_t)out;
    return at <= to ? to - at < own_bytes && out_bytes : at - to < out_bytes && own_bytes;
}

static inline bool horon_signature_equal(const struct horon_signature *a,
                                         const struct horon_signature *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static inline bool horon_signature_same_kind(const struct horon_signature *a,
                                             const struct horon_signature *b)
{
    return memcmp(a, b, offsetof(struct horon_signature, ndim)) == 0;
}

/** The hash of a sequence, from that of all but the last and the last. */
static inline uint64_t horon_hash_next(uint64_t hash, uint64_t last)
{
    return ((hash << 7 | hash >> 57) ^ last) * 0x9e3779b97f4a7c15u;
}

/** The hash by which names are found, everywhere. */
uint64_t horon_name_hash(const char *name, size_t name_bytes);

#endif
