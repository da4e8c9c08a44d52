/* SPDX-License-Identifier: Apache-2.0 */
/* Reading where it lies; see lent.h. */
#include "exec/lent.h"

#include <string.h>
#include <sys/uio.h>

/* Read or copied in one turn at most, so that the caller can see to others. */
#define TURN_BYTES ((uint64_t)1 << 20)

size_t horon_lent_table_bytes(const struct horon_team *team)
{
    return (size_t)team->local_size * sizeof(struct horon_lent_part);
}

bool horon_lent_serves(const struct horon_channel *channel, uint64_t most_bytes)
{
    return channel->lends && most_bytes >= channel->options.lend_bytes;
}

/* Beside the flag that a rank stores once in such an operation: those that read have the line. */
static _Atomic uint64_t *stamp_of(const struct horon_channel *channel, int local)
{
    return &channel->posted[local]->stamp;
}

struct horon_lent_input horon_lent_offer(const struct horon_channel *channel, const void *input)
{
    const _Atomic uint64_t *stamp = stamp_of(channel, channel->team->local_rank);
    return (struct horon_lent_input){
        .at = (uintptr_t)input,
        .stamp = atomic_load_explicit(stamp, memory_order_relaxed),
    };
}

void horon_lent_recall(struct horon_channel *channel)
{
    if (!channel->lends)
        return;
    atomic_fetch_add(stamp_of(channel, channel->team->local_rank), 1);
    atomic_thread_fence(memory_order_seq_cst); /* before the owner writes there */
}

/* @return was it what the offer said? */
static bool fetch(const struct horon_channel *channel, int local,
                  const struct horon_lent_part *part, uint64_t first, uint64_t bytes)
{
    struct horon_rank_line *line = horon_host_line(channel->host, local);
    const pid_t owner = atomic_load_explicit(&line->process, memory_order_relaxed);
    const uintptr_t at = part->offer.at + part->from + first;
    const struct iovec into = {.iov_base = part->to + first, .iov_len = bytes};
    const struct iovec from = {.iov_base = (void *)at, .iov_len = bytes};
    if (owner <= 0 || process_vm_readv(owner, &into, 1, &from, 1, 0) != (ssize_t)bytes)
        return false;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(stamp_of(channel, local), memory_order_relaxed) ==
               part->offer.stamp &&
           horon_alive_is_held(&line->alive);
}

/* A piece of one part. @return false: it cannot be read */
static bool read_piece(const struct horon_channel *channel, struct horon_lent *lent, int local,
                       uint64_t bytes)
{
    const struct horon_lent_part *part = &lent->parts[local];
    if (local != channel->team->local_rank)
        return fetch(channel, local, part, lent->moved, bytes);
    const char *own = (const char *)(uintptr_t)(part->offer.at + part->from);
    if (own != part->to)
        memcpy(part->to + lent->moved, own + lent->moved, bytes);
    return true;
}

/* Reads on up to the end of that part, or of the turn. @return false: it cannot be read */
static bool read_on(const struct horon_channel *channel, struct horon_lent *lent, int local,
                    uint64_t *left)
{
    const uint64_t missing = lent->parts[local].bytes - lent->moved;
    const uint64_t bytes = missing < *left ? missing : *left;
    if (bytes > 0 && !read_piece(channel, lent, local, bytes))
        return false;
    *left -= bytes;
    lent->moved += bytes;
    if (bytes == missing) {
        lent->next++;
        lent->moved = 0;
    }
    return true;
}

static int local_at(const struct horon_channel *channel, int place)
{
    const struct horon_team *team = channel->team;
    return (team->local_rank + 1 + place) % team->local_size;
}

/* A word that says so of the pipeline that is under way: its lowest bit, whether for good. */
static uint64_t mark_of(const struct horon_channel *channel)
{
    return 2 * (channel->pipeline.base + 1);
}

static void refuse(struct horon_channel *channel, struct horon_lent *lent, bool for_good)
{
    struct horon_flag *own = channel->reduced[channel->team->local_rank];
    atomic_store_explicit(&own->refused, mark_of(channel) | for_good, memory_order_relaxed);
    lent->next = channel->team->local_size; /* nothing is to be read */
}

/* Behind all flags. */
static void hear_refusals(struct horon_channel *channel, struct horon_lent *lent)
{
    for (int local = 0; local < channel->team->local_size; local++) {
        const uint64_t mark =
            atomic_load_explicit(&channel->reduced[local]->refused, memory_order_relaxed);
        lent->refused |= (mark | 1) == (mark_of(channel) | 1);
        if (mark == (mark_of(channel) | 1))
            channel->lends = false;
    }
}

/* Bytes that all ranks of the host have read on this channel, ever, as far as they have said. */
static uint64_t read_by_all(const struct horon_channel *channel)
{
    uint64_t sum = 0;
    for (int local = 0; local < channel->team->local_size; local++)
        sum += atomic_load_explicit(&channel->reduced[local]->read, memory_order_relaxed);
    return sum;
}

static void read_others(struct horon_channel *channel, struct horon_lent *lent, uint64_t *left)
{
    const int others = channel->team->local_size - 1;
    while (lent->next<others && * left> 0)
        if (!read_on(channel, lent, local_at(channel, lent->next), left))
            refuse(channel, lent, true);
}

static horon_status_t turn(struct horon_channel *channel, bool *moved_out,
                           struct horon_error *error)
{
    struct horon_lent *lent = channel->pipeline.arg;
    uint64_t *next = channel->pipeline.next, left = TURN_BYTES;
    const int size = channel->team->local_size;
    (void)error;
    if (!lent->waits) {
        read_others(channel, lent, &left);
        if (lent->next >= size - 1) {
            horon_pipeline_say_reduced(channel, 0);
            lent->waits = true;
            *moved_out = true;
        }
    }
    while (lent->waits && lent->next < size && left > 0)
        (void)read_on(channel, lent, channel->team->local_rank, &left);
    if (left < TURN_BYTES) {
        atomic_fetch_add_explicit(&channel->reduced[channel->team->local_rank]->read,
                                  TURN_BYTES - left, memory_order_relaxed);
        *moved_out = true;
    }
    if (lent->next < size || !horon_pipeline_all_reduced(channel, 0)) {
        const uint64_t sum = read_by_all(channel); /* a rank that waits sees that others go on */
        *moved_out |= sum != lent->seen;
        lent->seen = sum;
        return HORON_OK;
    }
    hear_refusals(channel, lent);
    for (int stage = 0; stage < HORON_STAGE_COUNT; stage++)
        next[stage] = 1;
    *moved_out = true;
    return HORON_OK;
}

static bool waits_for(const struct horon_channel *channel, int rank)
{
    const struct horon_lent *lent = channel->pipeline.arg;
    const int local = channel->team->local_rank_of[rank];
    return lent->waits && !horon_pipeline_has_reduced(channel, local, 0);
}

static const struct horon_pipeline_ops pipeline = {.turn = turn, .waits_for = waits_for};

horon_status_t horon_lent_begin(struct horon_channel *channel, struct horon_lent *lent,
                                bool refused)
{
    assert(channel->lends && channel->team->host_count == 1);
    lent->next = 0;
    lent->moved = 0;
    lent->waits = lent->refused = false;
    lent->seen = read_by_all(channel);
    channel->pipeline.arg = lent;
    const horon_status_t status =
        horon_pipeline_begin(channel, &pipeline, 1, HORON_LINE_BYTES, HORON_LINE_BYTES);
    if (refused)
        refuse(channel, lent, false);
    horon_pipeline_say_posted(channel, 0);
    return status;
}
