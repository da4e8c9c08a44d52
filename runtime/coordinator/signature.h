/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures on the wire, and two sides of a disagreement in words. */
#ifndef HORON_COORDINATOR_SIGNATURE_H
#define HORON_COORDINATOR_SIGNATURE_H

#include "codec.h"
#include "coordinator/coordinator.h"

/* Of a name, in a text: the rest of the text must fit beside it. */
#define COORD_NAME_SHOWN 300

/* Of a signature on the wire, at most. */
#define COORD_SIGNATURE_BYTES_MAX 160

void horon_coord_signature_write(struct horon_writer *out, const struct horon_signature *signature);
/** What is read is valid and canonical, and its root one of @p size ranks, or the reader has
 * failed.
 */
void horon_coord_signature_read(struct horon_reader *in, int size,
                                struct horon_signature *signature);
/** "tensor 'x': rank 0 (a) has ..., rank 1 (b) has ...: dtypes differ", cut to fit.
 * @return what differs */
horon_cause_t horon_coord_conflict(char *text, size_t text_bytes, const char *name,
                                   const char *who_a, const struct horon_signature *a,
                                   const char *who_b, const struct horon_signature *b);

#endif
