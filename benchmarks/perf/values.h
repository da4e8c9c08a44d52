/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the buffers hold and what the results must be. Every rank's input is a short pattern of
 * small whole numbers, repeated, and shifted by a phase that changes from call to call: so a result
 * can be computed by everybody, sums are exact, a block at the wrong place or left from the call
 * before is noticed, and rewriting a buffer costs a memcpy.
 */
#ifndef HORON_PERF_VALUES_H
#define HORON_PERF_VALUES_H

#include <horon/horon.h>

/* Elements of the pattern: a prime, so that no block of a collective has the same content twice. */
#define PERF_TILE 4093u

/* Twice the pattern, so that it can be read from any phase without a seam. */
struct perf_tile {
    horon_dtype_t dtype;
    unsigned char *bytes; /* [2 * PERF_TILE] elements */
};

/** Makes the pattern that @p rank gives to @p redop (HORON_SUM where nothing is reduced).
 * @return 0 | -1, no memory */
int perf_tile_input(struct perf_tile *tile, horon_dtype_t dtype, horon_redop_t redop, int rank);

/** Makes the pattern of the reduction over @p size ranks. @return 0 | -1, no memory */
int perf_tile_reduced(struct perf_tile *tile, horon_dtype_t dtype, horon_redop_t redop, int size);

/** Frees what the tile holds. */
void perf_tile_deinit(struct perf_tile *tile);

/** Writes the pattern. @param dst [count] elements, any alignment of the type */
void perf_tile_write(const struct perf_tile *tile, uint64_t phase, void *dst, uint64_t count);

/**
 * Compares memory with the pattern; floats may be off by a few units in the last place of the type.
 * @return how many of the [count] elements of @p got are wrong
 */
uint64_t perf_tile_wrong(const struct perf_tile *tile, uint64_t phase, const void *got,
                         uint64_t count);

/** Converts between numbers and one element of 16-bit float. Rounds to nearest, ties to even. */
uint16_t perf_half_encode(double value);
double perf_half_decode(uint16_t bits);
uint16_t perf_bfloat_encode(double value);
double perf_bfloat_decode(uint16_t bits);

#endif
