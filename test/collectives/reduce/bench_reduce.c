/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what the kernels do on this machine, one thread, best of several rounds: bytes read and
 * written a second, for the shapes that matter (two and four inputs, with as many outputs, one of
 * which is an input), and the time of a call for a few elements. A tool to look with; nothing is
 * asserted.
 *
 *     bench_reduce [ISA]      generic, avx2 or avx512 instead of the best
 */
#include "reduce/reduce_isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUFFERS = 16, ROUNDS = 9, BUFFER_BYTES = 32 << 20 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct shape {
    const char *name;
    int n, n_out;
    int first_out; /* buffer of the first output; inputs are buffers 0..n-1 */
};

/* Seconds of one call: the best round, each long enough to measure. */
static double best_s(const struct horon_reduce_kernels *kernels, horon_dtype_t dtype,
                     horon_redop_t op, const struct shape *shape, void *const *buffers,
                     size_t bytes, const struct horon_reduce_finish *finish)
{
    size_t count = bytes / kernels->type[dtype].bytes;
    int calls = (int)(1 + 4000000 / (bytes * (size_t)shape->n + 400));
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_s();
        for (int i = 0; i < calls; i++)
            horon_reduce_tree_on(kernels, dtype, op, (const void *const *)buffers, shape->n, 1.0,
                                 buffers + shape->first_out, shape->n_out, count, finish, NULL);
        double spent = (now_s() - start) / calls;
        best = spent < best ? spent : best;
    }
    return best;
}

static const struct horon_reduce_kernels *kernels_named(const char *name)
{
    for (size_t i = 0; i < horon_reduce_isas_count; i++)
        if (strcmp(horon_reduce_isas[i].name, name) == 0 && horon_reduce_isas[i].usable())
            return horon_reduce_isas[i].kernels;
    fprintf(stderr, "no such instruction set here: %s\n", name);
    exit(1);
}

static void print_bandwidth(const struct horon_reduce_kernels *kernels, void *const *buffers)
{
    static const struct shape shapes[] = {
        {"2 -> 1 own", 2, 1, 2},      {"2 -> 1 in place", 2, 1, 1}, {"2 -> 2", 2, 2, 1},
        {"3 -> 3 in place", 3, 3, 0}, {"4 -> 1 in place", 4, 1, 3}, {"4 -> 4 in place", 4, 4, 0},
        {"8 -> 1 in place", 8, 1, 0}, {"8 -> 8 in place", 8, 8, 0}, {"15 -> 1 own", 15, 1, 15}};
    static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, BUFFER_BYTES};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        printf("float32 sum %-16s", shapes[s].name);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            double t =
                best_s(kernels, HORON_FLOAT32, HORON_SUM, &shapes[s], buffers, sizes[i], NULL);
            double moved = (double)sizes[i] * (shapes[s].n + shapes[s].n_out);
            printf("  %6zu KiB %6.1f GB/s", sizes[i] >> 10, moved / t / 1e9);
        }
        printf("\n");
    }
}

static void print_elements(const struct horon_reduce_kernels *kernels, void *const *buffers)
{
    static const char *const names[] = {"uint8",   "int8",    "uint16", "int16",   "uint32",
                                        "int32",   "uint64",  "int64",  "float16", "bfloat16",
                                        "float32", "float64", "bool"};
    static const struct shape shapes[] = {{"2", 2, 1, 1}, {"4", 4, 1, 3}};
    const struct horon_reduce_finish average = {.postscale = 1.0, .divisor = 3};
    const struct horon_reduce_finish scaled = {.postscale = 0.3, .divisor = 1};
    enum { COUNT = 16384 };
    printf("picoseconds an element, %d elements: sum 2, sum 4, product 2, min 2, sum 4 and "
           "average, sum 4 and scale\n",
           (int)COUNT);
    for (horon_dtype_t d = 0; d <= HORON_BOOL; d++) {
        size_t bytes = COUNT * kernels->type[d].bytes;
        const double t[] = {best_s(kernels, d, HORON_SUM, &shapes[0], buffers, bytes, NULL),
                            best_s(kernels, d, HORON_SUM, &shapes[1], buffers, bytes, NULL),
                            best_s(kernels, d, HORON_PRODUCT, &shapes[0], buffers, bytes, NULL),
                            best_s(kernels, d, HORON_MIN, &shapes[0], buffers, bytes, NULL),
                            best_s(kernels, d, HORON_SUM, &shapes[1], buffers, bytes, &average),
                            best_s(kernels, d, HORON_SUM, &shapes[1], buffers, bytes, &scaled)};
        printf("%-9s", names[d]);
        for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
            printf(" %7.0f", t[i] / COUNT * 1e12);
        printf("\n");
    }
}

/* Nanoseconds of one public call: the best of many short rounds, as the machine may be shared. */
static double call_ns(void *const *buffers, horon_dtype_t dtype, int n_out, size_t count)
{
    enum { CALLS = 2000, SHORT_ROUNDS = 100 };
    double best = 1e9;
    for (int round = 0; round < SHORT_ROUNDS; round++) {
        double start = now_s();
        for (int i = 0; i < CALLS; i++)
            horon_reduce_tree(dtype, HORON_SUM, (const void *const *)buffers, 2, 1.0, buffers + 2,
                              n_out, count, NULL);
        double spent = (now_s() - start) / CALLS * 1e9;
        best = spent < best ? spent : best;
    }
    return best;
}

static void print_small(void *const *buffers)
{
    static const horon_dtype_t dtypes[] = {HORON_FLOAT32, HORON_BFLOAT16, HORON_INT64};
    static const char *const names[] = {"float32", "bfloat16", "int64"};
    static const size_t counts[] = {1, 2, 7, 16, 64, 256};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (int n_out = 1; n_out <= 2; n_out++) {
            printf("%-8s 2 -> %d, public call:", names[d], n_out);
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                printf("  %zu: %.1f ns", counts[c], call_ns(buffers, dtypes[d], n_out, counts[c]));
            printf("\n");
        }
}

int main(int argc, char **argv)
{
    const struct horon_reduce_kernels *kernels =
        argc > 1 ? kernels_named(argv[1]) : horon_reduce_select();
    void *buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i] = aligned_alloc(4096, BUFFER_BYTES);
        if (buffers[i] == NULL)
            return 1;
        memset(buffers[i], 0, BUFFER_BYTES);
    }
    print_bandwidth(kernels, buffers);
    print_elements(kernels, buffers);
    print_small(buffers);
    for (int i = 0; i < BUFFERS; i++)
        free(buffers[i]);
    return 0;
}
