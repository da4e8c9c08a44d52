/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of the shared memory of a host, and its wake words.
 *
 * Control segment:  rank lines | abort record | flags (channel, kind, rank) | rings (member,
 * direction) Arena of a rank:  for each channel: small slots | result slots | chunk slots
 *
 * Sleeping without losing a wake-up: a rank that stops looking stores its wake word, then a full
 * fence, then looks once more. A rank that changed something stores it, then a full fence, then
 * reads the wake word. One of the two sees the other. The bit is taken before ringing, so one sleep
 * is rung once. For data the word has a shadow, `wants_data`: peers look there after every step.
 */
#include "exec/host.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

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

static size_t abort_offset(const struct horon_host_shape *shape)
{
    return count_of(shape) * sizeof(struct horon_rank_line);
}

static size_t flags_offset(const struct horon_host_shape *shape)
{
    return abort_offset(shape) + sizeof(struct horon_abort_record);
}

static size_t rings_offset(const struct horon_host_shape *shape)
{
    return flags_offset(shape) +
           HORON_CHANNEL_COUNT * 2 * count_of(shape) * sizeof(struct horon_flag);
}

size_t horon_host_control_bytes(const struct horon_host_shape *shape)
{
    size_t rings = (count_of(shape) - 1) * 2 * lines(horon_ring_bytes(HORON_RING_DATA_BYTES));
    return pages(rings_offset(shape) + rings);
}

static size_t small_slot_bytes(const struct horon_host_shape *shape)
{
    return lines(sizeof(struct horon_slot_head) + shape->small_bytes);
}

static size_t result_slot_bytes(const struct horon_host_shape *shape)
{
    size_t data = shape->small_bytes > HORON_RESULT_BYTES ? shape->small_bytes : HORON_RESULT_BYTES;
    return lines(sizeof(struct horon_slot_head) + data);
}

/* Whole pages, so that no slot shares one with what is before or behind it. */
static size_t chunk_slot_bytes(const struct horon_host_shape *shape)
{
    return pages(shape->chunk_bytes);
}

static size_t channel_bytes(const struct horon_host_shape *shape)
{
    return pages(HORON_SLOTS * (small_slot_bytes(shape) + result_slot_bytes(shape))) +
           HORON_SLOTS * chunk_slot_bytes(shape);
}

size_t horon_host_arena_bytes(const struct horon_host_shape *shape)
{
    return HORON_CHANNEL_COUNT * channel_bytes(shape);
}

struct horon_rank_line *horon_host_line(const struct horon_host *host, int local_rank)
{
    return (struct horon_rank_line *)(void *)host->control + local_rank;
}

struct horon_abort_record *horon_host_abort(const struct horon_host *host)
{
    return (struct horon_abort_record *)(void *)(host->control + abort_offset(&host->shape));
}

static struct horon_flag *flag_at(const struct horon_host *host, int channel, int kind,
                                  int local_rank)
{
    struct horon_flag *flags =
        (struct horon_flag *)(void *)(host->control + flags_offset(&host->shape));
    return flags + (channel * 2 + kind) * host->shape.local_size + local_rank;
}

struct horon_flag *horon_host_posted(const struct horon_host *host, int channel, int local_rank)
{
    return flag_at(host, channel, 0, local_rank);
}

struct horon_flag *horon_host_reduced(const struct horon_host *host, int channel, int local_rank)
{
    return flag_at(host, channel, 1, local_rank);
}

static uint8_t *channel_at(const struct horon_host *host, int channel, int local_rank)
{
    return host->arenas[local_rank] + (size_t)channel * channel_bytes(&host->shape);
}

struct horon_slot_head *horon_host_small(const struct horon_host *host, int channel, int local_rank,
                                         int slot)
{
    size_t offset = (size_t)slot * small_slot_bytes(&host->shape);
    return (struct horon_slot_head *)(void *)(channel_at(host, channel, local_rank) + offset);
}

struct horon_slot_head *horon_host_result(const struct horon_host *host, int channel,
                                          int local_rank, int slot)
{
    size_t offset = HORON_SLOTS * small_slot_bytes(&host->shape) +
                    (size_t)slot * result_slot_bytes(&host->shape);
    return (struct horon_slot_head *)(void *)(channel_at(host, channel, local_rank) + offset);
}

uint8_t *horon_host_chunk(const struct horon_host *host, int channel, int local_rank, int slot)
{
    const struct horon_host_shape *shape = &host->shape;
    size_t heads = pages(HORON_SLOTS * (small_slot_bytes(shape) + result_slot_bytes(shape)));
    return channel_at(host, channel, local_rank) + heads + (size_t)slot * chunk_slot_bytes(shape);
}

struct horon_ring *horon_host_ring(const struct horon_host *host, int member, bool to_leader)
{
    size_t ring_bytes = lines(horon_ring_bytes(HORON_RING_DATA_BYTES));
    size_t index = (size_t)(member - 1) * 2 + (to_leader ? 0 : 1);
    return (struct horon_ring *)(void *)(host->control + rings_offset(&host->shape) +
                                         index * ring_bytes);
}

void horon_host_sleep(const struct horon_host *host, uint32_t bits)
{
    struct horon_rank_line *line = horon_host_line(host, host->local_rank);
    atomic_store_explicit(&line->wake, bits, memory_order_relaxed);
    if (bits & HORON_WAKE_DATA) /* who sees this sees the word as well */
        atomic_store_explicit(&line->wants_data, true, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

void horon_host_awake(const struct horon_host *host)
{
    struct horon_rank_line *line = horon_host_line(host, host->local_rank);
    atomic_store_explicit(&line->wake, 0, memory_order_relaxed);
    if (atomic_load_explicit(&line->wants_data, memory_order_relaxed))
        atomic_store_explicit(&line->wants_data, false, memory_order_relaxed);
}

static void wake_if(const struct horon_host *host, int local_rank, uint32_t bits)
{
    struct horon_rank_line *line = horon_host_line(host, local_rank);
    _Atomic uint32_t *wake = &line->wake;
    if (bits == HORON_WAKE_DATA && !atomic_load_explicit(&line->wants_data, memory_order_acquire))
        return;
    if (!(atomic_load_explicit(wake, memory_order_relaxed) & bits))
        return;
    /* all bits go: the rung rank looks at everything, and sets them anew before it sleeps */
    if (atomic_fetch_and(wake, ~(HORON_WAKE_DATA | HORON_WAKE_CONTROL | HORON_WAKE_ASLEEP)) & bits)
        host->doorbell(host->doorbell_arg, local_rank);
}

void horon_host_wake(const struct horon_host *host, int local_rank, uint32_t bits)
{
    atomic_thread_fence(memory_order_seq_cst);
    wake_if(host, local_rank, bits);
}

void horon_host_wake_all(const struct horon_host *host, uint32_t bits)
{
    if (host->shape.local_size == 1)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < host->shape.local_size; i++)
        if (i != host->local_rank)
            wake_if(host, i, bits);
}

void horon_host_tell_departures(const struct horon_host *host,
                                const struct horon_departures *departures, bool left)
{
    struct horon_rank_line *line = horon_host_line(host, host->local_rank);
    const uint32_t version = atomic_load_explicit(&line->version, memory_order_relaxed);
    assert(version % 2 == 0);
    atomic_store_explicit(&line->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        atomic_store_explicit(&line->sequence[i], departures->sequence[i], memory_order_relaxed);
        atomic_store_explicit(&line->culprit[i], departures->culprit[i], memory_order_relaxed);
    }
    atomic_store_explicit(&line->left, left, memory_order_relaxed);
    atomic_store_explicit(&line->version, version + 2, memory_order_release);
    horon_host_wake_all(host, HORON_WAKE_ASLEEP);
}

bool horon_host_see_departures(const struct horon_host *host, int local_rank, uint32_t *version,
                               struct horon_departures *departures_out, bool *left_out)
{
    struct horon_rank_line *line = horon_host_line(host, local_rank);
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
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&line->version, memory_order_relaxed) != before)
        return false; /* it rings when it is whole again */
    *version = before;
    return true;
}

void horon_host_post_abort(const struct horon_host *host, horon_status_t status, const char *text)
{
    struct horon_abort_record *record = horon_host_abort(host);
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&record->state, &none, 1))
        return;
    record->status = (int32_t)status;
    snprintf(record->text, sizeof record->text, "%s", text);
    atomic_store_explicit(&record->state, 2, memory_order_release);
    horon_host_wake_all(host, HORON_WAKE_ASLEEP);
}

bool horon_host_abort_begun(const struct horon_host *host)
{
    return atomic_load_explicit(&horon_host_abort(host)->state, memory_order_acquire) != 0;
}

bool horon_host_aborted(const struct horon_host *host, struct horon_error *error)
{
    struct horon_abort_record *record = horon_host_abort(host);
    if (atomic_load_explicit(&record->state, memory_order_acquire) != 2)
        return false;
    /* it stands in shared memory: a failure with a reason, whatever is there */
    const horon_status_t status = horon_status_from_peer((uint32_t)record->status);
    char text[sizeof record->text];
    memcpy(text, record->text, sizeof text);
    text[sizeof text - 1] = 0;
    horon_error_set(error, status, "%s", text[0] ? text : horon_status_text(status));
    return true;
}
