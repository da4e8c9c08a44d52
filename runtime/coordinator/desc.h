/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks must agree on about a tensor, in canonical form, and what is done with it: compared,
 * sized, written, told.
 */
#ifndef HORON_COORDINATOR_DESC_H
#define HORON_COORDINATOR_DESC_H

#include "codec.h"
#include "coordinator/coordinator.h"

#include <assert.h>

/* Of a name, in a text: the rest of the text must fit beside it. */
#define COORD_NAME_SHOWN 300

/* What of a description makes two tensors fit one batch; no padding, compared as bytes. */
struct coord_key {
    uint8_t verb, dtype, redop, zero;
    int32_t root, process_set, zero_too;
    double prescale, postscale;
};
static_assert(sizeof(struct coord_key) == 32, "compared as bytes");

/* A tensor's description in canonical form: what does not count for its verb is 0 (scales: 1). */
struct coord_desc {
    struct coord_key key;
    uint64_t shape[HORON_NDIM_MAX]; /* 0 from ndim on */
    uint64_t group_hash;
    uint32_t group_size, group_index;
    uint32_t ndim, zero;
};
static_assert(sizeof(struct coord_desc) == 120, "compared as bytes");

/** @return false: no such verb, dtype, reduction, or too many dimensions */
bool horon_coord_desc_from(const struct horon_tensor *tensor, struct coord_desc *desc);
/** Payload of one rank; UINT64_MAX if that does not fit 64 bits. */
uint64_t horon_coord_desc_bytes(const struct coord_desc *desc);
void horon_coord_desc_write(struct horon_writer *out, const struct coord_desc *desc);
/** What is read is valid and canonical, or the reader has failed. */
void horon_coord_desc_read(struct horon_reader *in, struct coord_desc *desc);
/** "tensor 'x': rank 0 (a) has ..., rank 1 (b) has ...: dtypes differ", cut to fit. */
void horon_coord_desc_conflict(char *text, size_t text_bytes, const char *name, const char *who_a,
                               const struct coord_desc *a, const char *who_b,
                               const struct coord_desc *b);
static inline bool horon_coord_desc_equal(const struct coord_desc *a, const struct coord_desc *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

#endif
