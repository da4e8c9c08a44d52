/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies into a slot what other ranks of the host read there next, in one of two ways.
 *
 * Where the last readers of a line have other cores, it lies in their caches. A plain copy has to
 * ask for it, and line by line: where the cores share no cache that takes ten times as long as the
 * copy. A *streamed* copy passes the caches by and asks nobody; but its readers find the lines in
 * memory only.
 *
 * Which is the quicker depends on where the system has put the readers, how much lies in their
 * caches, and of a virtual machine on where its cores are just now: so a rank measures both, each
 * copy by the way and the other way by a small part of one copy in several. The ranks need not
 * agree. (Chunks of an allreduce on one host are copied plainly: each rank has just read back the
 * lines that it writes, see woven.c.)
 */
#ifndef HORON_EXEC_STREAM_H
#define HORON_EXEC_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum horon_stream_way { HORON_STREAM_PLAIN, HORON_STREAM_STREAMED };
#define HORON_STREAM_WAYS 2

/** What a rank has seen of its copies; zeroed: nothing. */
struct horon_stream {
    uint64_t copies;
    uint64_t ps_per_byte[HORON_STREAM_WAYS]; /* when it was last taken; 0: never */
};

/** The way that is the quicker, readers included, as far as is known. */
enum horon_stream_way horon_stream_better(const struct horon_stream *seen);
/** A copy of @p bytes took @p ns. */
void horon_stream_add(struct horon_stream *seen, enum horon_stream_way way, size_t bytes,
                      uint64_t ns);

/** Copies @p bytes. A store with release that comes after shows them, as after memcpy(). */
void horon_stream_copy(struct horon_stream *seen, void *to, const void *from, size_t bytes);

/** One copy past the caches, in stream_x86.c; elsewhere a plain one. */
void horon_stream_past_caches(void *to, const void *from, size_t bytes);

#endif
