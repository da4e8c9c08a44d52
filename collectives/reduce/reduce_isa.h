/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside the room: the kernels of one instruction set, and the list of sets this build has.
 *
 * kernels_template.h is compiled once a set and makes one const table each; a test runs every table
 * the CPU supports and compares bits. All kernels take [count] elements, allow outputs that equal
 * an input, need the alignment of the element, and expect the floating-point mode of
 * horon_reduce_fp_enter().
 */
#ifndef HORON_REDUCE_REDUCE_ISA_H
#define HORON_REDUCE_REDUCE_ISA_H

#include "reduce/reduce.h"

#include <fenv.h>

/** What is copied beside a tree. A kernel does so for whole groups of vectors; its caller, the
 * rest. */
struct horon_reduce_beside {
    const struct horon_reduce_copy *copies;
    int n;
    size_t times;     /* bytes of each copy for a byte of an output */
    size_t due, done; /* bytes of each copy, so far */
};

/** One tree over all of count elements. An output may be an input, and then equals no other output.
 */
struct horon_reduce_call {
    const void *const *in; /* [n] */
    void *const *out;      /* [n_out] */
    int n, n_out;
    size_t count;
    double divisor;                     /* of sums of floats; else ignored */
    struct horon_reduce_beside *beside; /* NULL: none */
};

typedef void (*horon_reduce_tree_fn)(const struct horon_reduce_call *call);
typedef void (*horon_reduce_scale_fn)(double scale, const void *in, void *out, size_t count);
typedef void (*horon_reduce_divide_fn)(double divisor, const void *in, void *out, size_t count);

/** The kernels of one dtype; all NULL and bytes 0 if it does not reduce. */
struct horon_reduce_type {
    size_t bytes;  /* of an element */
    bool is_float; /* tree[HORON_SUM] divides, too; every tree makes NaN canonical */
    horon_reduce_tree_fn tree[HORON_REDOP_COUNT]; /* n >= 2, bool n >= 1; [HORON_AVERAGE] is NULL */
    horon_reduce_scale_fn scale;
    horon_reduce_divide_fn divide;
};

struct horon_reduce_kernels {
    struct horon_reduce_type type[HORON_DTYPE_COUNT];
};

struct horon_reduce_isa {
    const char *name;
    bool (*usable)(void); /* asks the CPU; cheap enough for every call */
    const struct horon_reduce_kernels *kernels;
};

/** Every set of this build, best first; the last one is always usable. */
extern const struct horon_reduce_isa horon_reduce_isas[];
extern const size_t horon_reduce_isas_count;

extern const struct horon_reduce_kernels horon_reduce_kernels_generic;
extern const struct horon_reduce_kernels horon_reduce_kernels_avx2;
extern const struct horon_reduce_kernels horon_reduce_kernels_avx512;

/** @return the kernels of the best usable set. */
const struct horon_reduce_kernels *horon_reduce_select(void);

/** The caller's floating-point mode, while it is not in force. */
struct horon_reduce_fp {
    bool changed;      /* false: the mode was ours already, nothing is kept */
    unsigned int word; /* x86: MXCSR */
    fenv_t env;        /* elsewhere */
};

/** Sets round to nearest, subnormals, no traps; a read and a compare if that is so already. */
void horon_reduce_fp_enter(struct horon_reduce_fp *saved);
/** Puts the caller's mode back, with the exception flags it had. */
void horon_reduce_fp_leave(const struct horon_reduce_fp *saved);

/** horon_reduce_tree() with given kernels, inside fp_enter and fp_leave. @param beside  NULL: none
 */
void horon_reduce_tree_on(const struct horon_reduce_kernels *kernels, horon_dtype_t dtype,
                          horon_redop_t op, const void *const *in, int n, double prescale,
                          void *const *out, int n_out, size_t count,
                          const struct horon_reduce_finish *finish,
                          struct horon_reduce_beside *beside);

#endif
