/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of the shared memory of a host, and its wake words.
 *
 * Control segment of the job:  lines of the processes | segment of the job as a team
 * Segment of a team:           lines of its members | aborts | rings (member, direction)
 * Channel in a member's arena: flags (kind) | small slots | result slots | chunk slots
 *
 * A process sleeps as a whole, so its wake word is one, whatever teams it is in; all else is a
 * team's own, and can be given to it at any time. A channel is one piece of each member's arena.
 *
 * Sleeping without losing a wake-up: a rank that stops looking stores its wake word, then a full
 * fence, then looks once more. A rank that changed something stores it, then a full fence, then
 * reads the wake word. One of the two sees the other. The word is taken before ringing, so one
 * sleep is rung once; and it is taken only to ring, or a rank that sleeps would pass for one that
 * looks. The word has a shadow, `wants`, for data and messages: peers look there after every step,
 * or a little later (owed_ring.h). A rank without an operation in flight has no flags to look at
 * once more: for what cannot wait it has the mark `urgent`.
 */
#include "exec/host.h"

#include "exec/owed_ring.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FLAGS 2 /* posted, reduced */

static size_t lines(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static size_t pages(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

static size_t count_of(const struct horon_host_shape *shape)
{
    return (size_t)shape->local_size;
}

static size_t lines_bytes(const struct horon_host_shape *shape)
{
    return count_of(shape) * sizeof(struct horon_rank_line);
}

static size_t rings_offset(const struct horon_host_shape *shape)
{
    return sizeof(struct horon_aborts) +
           count_of(shape) * (sizeof(struct horon_team_line) + sizeof(struct horon_abort_record));
}

size_t horon_host_team_bytes(const struct horon_host_shape *shape)
{
    size_t rings = (count_of(shape) - 1) * 2 * lines(horon_ring_bytes(HORON_RING_DATA_BYTES));
    return pages(rings_offset(shape) + rings);
}

size_t horon_host_control_bytes(const struct horon_host_shape *shape)
{
    return pages(lines_bytes(shape) + horon_host_team_bytes(shape));
}

size_t horon_host_chunk_bytes(size_t wanted, int job_size)
{
    const size_t least = 2 * (size_t)job_size * HORON_LINE_BYTES;
    return wanted > least ? wanted : least;
}

/* A result slot is as large, without an area. An area has room for a word, one for each rank, and
 * an offer (lent.h), besides its data. What a small operation touches is the begin of a slot: slots
 * a power of two apart would all be begun on the same few sets of a cache, so each is a part of a
 * page longer than whole pages. */
static size_t small_slot_bytes(const struct horon_host_shape *shape)
{
    const size_t part_of_page = 1536;
    const size_t bytes =
        HORON_LINE_BYTES + shape->small_bytes + (4 + count_of(shape)) * sizeof(uint64_t);
    return part_of_page + (bytes > part_of_page ? pages(bytes - part_of_page) : 0);
}

/* Whole pages, so that no slot shares one with what is before or behind it. */
static size_t chunk_slot_bytes(const struct horon_host_shape *shape)
{
    return pages(shape->chunk_bytes);
}

/* What lies before the chunk slots. */
static size_t heads_bytes(const struct horon_host_shape *shape)
{
    return pages(FLAGS * sizeof(struct horon_flag) +
                 HORON_SMALL_SLOTS * 2 * small_slot_bytes(shape));
}

size_t horon_host_channel_bytes(const struct horon_host_shape *shape)
{
    return heads_bytes(shape) + HORON_SLOTS * chunk_slot_bytes(shape);
}

void horon_host_see_control(struct horon_host *host, uint8_t *control, int local_rank)
{
    host->local_rank = local_rank;
    host->process_of = NULL;
    host->lines = (struct horon_rank_line *)(void *)control;
    host->segment = control + lines_bytes(&host->shape);
    atomic_store_explicit(&horon_host_line(host, local_rank)->process, getpid(),
                          memory_order_relaxed);
}

struct horon_rank_line *horon_host_line(const struct horon_host *host, int local_rank)
{
    assert(local_rank >= 0 && local_rank < host->shape.local_size);
    return host->lines + horon_host_process(host, local_rank);
}

static void *piece_at(const struct horon_host *host, size_t at, int local_rank)
{
    assert(at % 64 == 0);
    assert(local_rank >= 0 && local_rank < host->shape.local_size);
    return host->arenas[local_rank] + at;
}

struct horon_flag *horon_host_posted(const struct horon_host *host, size_t at, int local_rank)
{
    return piece_at(host, at, local_rank);
}

struct horon_flag *horon_host_reduced(const struct horon_host *host, size_t at, int local_rank)
{
    return (struct horon_flag *)piece_at(host, at, local_rank) + 1;
}

struct horon_slot_head *horon_host_small(const struct horon_host *host, size_t at, int local_rank,
                                         int slot)
{
    at += FLAGS * sizeof(struct horon_flag) + (size_t)slot * small_slot_bytes(&host->shape);
    return piece_at(host, at, local_rank);
}

uint8_t *horon_host_area(const struct horon_host *host, size_t at, int local_rank, int area)
{
    return (uint8_t *)horon_host_small(host, at, local_rank, area) + HORON_LINE_BYTES;
}

struct horon_slot_head *horon_host_result(const struct horon_host *host, size_t at, int local_rank,
                                          int slot)
{
    at += FLAGS * sizeof(struct horon_flag) + HORON_SMALL_SLOTS * small_slot_bytes(&host->shape) +
          (size_t)slot * small_slot_bytes(&host->shape);
    return piece_at(host, at, local_rank);
}

uint8_t *horon_host_chunk(const struct horon_host *host, size_t at, int local_rank, int slot)
{
    const struct horon_host_shape *shape = &host->shape;
    return piece_at(host, at + heads_bytes(shape) + (size_t)slot * chunk_slot_bytes(shape),
                    local_rank);
}

struct horon_ring *horon_host_ring(const struct horon_host *host, int member, bool to_leader)
{
    size_t ring_bytes = lines(horon_ring_bytes(HORON_RING_DATA_BYTES));
    size_t index = (size_t)(member - 1) * 2 + (to_leader ? 0 : 1);
    assert(member >= 1 && member < host->shape.local_size);
    return (struct horon_ring *)(void *)(host->segment + rings_offset(&host->shape) +
                                         index * ring_bytes);
}

void horon_host_sleep(const struct horon_host *host, uint32_t bits)
{
    struct horon_rank_line *line = horon_host_line(host, host->local_rank);
    atomic_store_explicit(&line->wake, bits, memory_order_relaxed);
    if (bits & ~HORON_WAKE_ASLEEP) /* a rank that sees this sees the word as well */
        atomic_store_explicit(&line->wants, bits & ~HORON_WAKE_ASLEEP, memory_order_release);
}

void horon_host_awake(const struct horon_host *host)
{
    struct horon_rank_line *line = horon_host_line(host, host->local_rank);
    atomic_store_explicit(&line->wake, 0, memory_order_relaxed);
    if (atomic_load_explicit(&line->wants, memory_order_relaxed))
        atomic_store_explicit(&line->wants, 0, memory_order_relaxed);
}

static void wake_if(const struct horon_host *host, int local_rank, uint32_t bits)
{
    struct horon_rank_line *line = host->lines + horon_host_process(host, local_rank);
    _Atomic uint32_t *wake = &line->wake;
    if (!(bits & HORON_WAKE_ASLEEP) &&
        !(atomic_load_explicit(&line->wants, memory_order_acquire) & bits))
        return;
    /* All bits go: the rung rank looks at everything, and sets them anew before it sleeps. None go
     * without a ring. The rank may have looked since, and sleep anew for something else: then it
     * has seen what was stored, and without its word nobody would ring it again. */
    uint32_t seen = atomic_load_explicit(wake, memory_order_relaxed);
    while (seen & bits)
        if (atomic_compare_exchange_weak(wake, &seen, 0)) {
            host->doorbell(host->doorbell_arg, horon_host_process(host, local_rank));
            return;
        }
}

/* Before the fence. */
static void mark_if_urgent(const struct horon_host *host, int local_rank, uint32_t bits)
{
    if (bits == HORON_WAKE_ASLEEP)
        atomic_store_explicit(&horon_host_line(host, local_rank)->urgent, true,
                              memory_order_release);
}

void horon_host_wake(const struct horon_host *host, int local_rank, uint32_t bits)
{
    mark_if_urgent(host, local_rank, bits);
    atomic_thread_fence(memory_order_seq_cst);
    wake_if(host, local_rank, bits);
}

static void wake_others(const struct horon_host *host, uint32_t bits)
{
    for (int i = 0; i < host->shape.local_size; i++)
        if (i != host->local_rank)
            wake_if(host, i, bits);
}

void horon_host_wake_all(const struct horon_host *host, uint32_t bits)
{
    if (host->shape.local_size == 1)
        return;
    for (int i = 0; i < host->shape.local_size; i++)
        if (i != host->local_rank)
            mark_if_urgent(host, i, bits);
    atomic_thread_fence(memory_order_seq_cst);
    wake_others(host, bits);
}

void horon_host_ring_sleepers(const struct horon_host *host)
{
    wake_others(host, HORON_WAKE_DATA);
}

void horon_host_write_departures(const struct horon_host *host,
                                 const struct horon_departures *departures, bool left)
{
    struct horon_team_line *line = horon_host_team_line(host, host->local_rank);
    /* even, but for a process that has written over it */
    const uint32_t version = atomic_load_explicit(&line->version, memory_order_relaxed) & ~1u;
    atomic_store_explicit(&line->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        atomic_store_explicit(&line->sequence[i], departures->sequence[i], memory_order_relaxed);
        atomic_store_explicit(&line->culprit[i], departures->culprit[i], memory_order_relaxed);
    }
    atomic_store_explicit(&line->generation, host->generation, memory_order_relaxed);
    atomic_store_explicit(&line->left, left, memory_order_relaxed);
    atomic_store_explicit(&line->version, version + 2, memory_order_release);
    horon_host_wake_all(host, HORON_WAKE_ASLEEP);
}

bool horon_host_see_departures(const struct horon_host *host, int local_rank, uint32_t *version,
                               struct horon_departures *departures_out, bool *left_out)
{
    struct horon_team_line *line = horon_host_team_line(host, local_rank);
    const uint32_t before = atomic_load_explicit(&line->version, memory_order_acquire);
    if (before == *version || before % 2 != 0)
        return false;
    departures_out->any = true;
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        departures_out->sequence[i] =
            atomic_load_explicit(&line->sequence[i], memory_order_relaxed);
        departures_out->culprit[i] = atomic_load_explicit(&line->culprit[i], memory_order_relaxed);
    }
    *left_out = atomic_load_explicit(&line->left, memory_order_relaxed);
    const uint32_t generation = atomic_load_explicit(&line->generation, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&line->version, memory_order_relaxed) != before)
        return false; /* it rings when it is whole again */
    *version = before;
    return generation == host->generation;
}

void horon_host_post_abort(const struct horon_host *host, const struct horon_error *why)
{
    struct horon_aborts *aborts = horon_host_aborts(host);
    struct horon_abort_record *record = &aborts->of[host->local_rank];
    uint32_t none = 0;
    if (atomic_load(&aborts->claimed) != 0)
        return;
    record->generation = host->generation;
    record->status = (int32_t)why->status;
    record->cause = (uint32_t)why->blame.cause;
    record->rank = why->blame.rank;
    record->other_rank = why->blame.other_rank;
    snprintf(record->text, sizeof record->text, "%s", why->text);
    if (atomic_compare_exchange_strong(&aborts->claimed, &none, 1 + (uint32_t)host->local_rank))
        horon_host_wake_all(host, HORON_WAKE_ASLEEP);
}

bool horon_host_aborted(const struct horon_host *host, int job_size, struct horon_error *error)
{
    const struct horon_aborts *aborts = horon_host_aborts(host);
    const uint32_t claimed = atomic_load_explicit(&aborts->claimed, memory_order_acquire);
    if (claimed == 0)
        return false;
    /* it stands in shared memory: a failure with a reason, whatever is there */
    const struct horon_abort_record *record =
        &aborts->of[(claimed - 1) % (uint32_t)host->shape.local_size];
    if (record->generation != host->generation)
        return false;
    const horon_status_t status = horon_status_from_peer((uint32_t)record->status);
    char text[sizeof record->text];
    memcpy(text, record->text, sizeof text);
    text[sizeof text - 1] = 0;
    horon_error_set(error, status, "%s", text[0] ? text : horon_status_text(status));
    error->blame = horon_blame_from_peer(status, record->cause, (uint32_t)record->rank,
                                         (uint32_t)record->other_rank, job_size);
    return true;
}
