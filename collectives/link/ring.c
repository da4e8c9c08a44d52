/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link over two byte rings, one a direction, in memory that both sides map.
 *
 * A ring has two counters that only grow: bytes ever written and bytes ever read. Each is stored by
 * one side only, with release after the bytes were copied, and loaded by the other with acquire.
 * Each side works on its own copy of its counter and remembers the last value seen of the other's,
 * so that a line moves between cores only when the remembered value no longer suffices.
 *
 * What is written at a time and is short stands beside the counter, too, so that a reader that has
 * seen the counter mostly has it, and waits for one line more at most. It is that while `short_at`
 * says where the reader is, and `rest_at` if there are words on the second line: the writer changes
 * each of the two before the words of its line, and `written` after all; the reader looks at
 * `written`, takes the words, and then looks where they were from. A reader that waits looks at the
 * first line again and again and each time takes it away from its writer, which therefore writes
 * there last, all at once. Each time it asks for the second line, too: when it sees the first one
 * changed, it mostly has both.
 *
 * Waiting for room: a writer that cannot place all its bytes stores writer_waits, then looks at
 * `read` again. A reader stores `read`, then looks at writer_waits. These four are sequentially
 * consistent, so one of the two sees the other and no wake-up is lost. The writer alone takes the
 * mark back, once all its bytes are placed: it may have filled room that was made after the mark,
 * and wait for more. Waiting for bytes needs no flag here: the `written` hook is called after every
 * publication and knows whether the peer sleeps.
 *
 * The peer's counter is not trusted: a distance greater than the ring is an error, never an index.
 */
#include "link/link.h"

#include "alive.h"
#include "alloc.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static_assert(offsetof(struct horon_ring, read) == 128, "short words fill the writer's lines");
static_assert(offsetof(struct horon_ring, short_words[HORON_RING_FIRST_WORDS]) == 64, "the second");

struct ring_link {
    struct horon_link base;
    struct horon_ring *out, *in;
    size_t data_bytes;
    uint64_t out_written;      /* our copy of out->written */
    uint64_t out_read;         /* last seen out->read */
    uint64_t in_read;          /* our copy of in->read */
    uint64_t in_written;       /* last seen in->written */
    bool out_full;             /* the last send took less than it was given */
    bool out_waits;            /* writer_waits is set */
    pid_t peer;                /* whose memory is fetched; <= 0: that is not possible */
    struct horon_alive *alive; /* the peer's */
    struct horon_ring_wake wake;
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static horon_status_t ring_damaged(struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_PEER_LOST, "damaged the memory of its ring");
}

/* By words, where few bytes were stored by words a moment ago: a processor passes a load what is on
 * its way to memory if one store holds all of it, and else waits until it is there. */
static void copy_words(void *to, const void *from, size_t bytes)
{
    const uint8_t *in = from;
    uint8_t *out = to;
    for (uint64_t word; bytes >= sizeof word; bytes -= sizeof word) {
        memcpy(&word, in, sizeof word);
        __asm__("" : "+r"(word)); /* else the compiler makes longer ones of two */
        memcpy(out, &word, sizeof word);
        in += sizeof word;
        out += sizeof word;
    }
    if (bytes)
        memcpy(out, in, bytes);
}

/* Copies into the ring at stream position `at`; at most two pieces, as the ring wraps once. */
static void ring_put(struct ring_link *ring, uint64_t at, const void *from, size_t bytes)
{
    assert(bytes <= ring->data_bytes);
    size_t index = (size_t)(at & (ring->data_bytes - 1));
    size_t first = smaller(bytes, ring->data_bytes - index);
    memcpy(ring->out->data + index, from, first);
    if (bytes > first)
        memcpy(ring->out->data, (const uint8_t *)from + first, bytes - first);
}

static void ring_put_all(struct ring_link *ring, uint64_t at, const struct iovec *vector,
                         size_t bytes)
{
    for (size_t left = bytes, piece; left > 0; left -= piece, at += piece, vector++) {
        piece = smaller(left, vector->iov_len);
        if (piece)
            ring_put(ring, at, vector->iov_base, piece);
    }
}

/* Likewise all that is published now, twice: where the reader looks, and where it is if the reader
 * does not look before more is written. */
static void ring_put_short(struct ring_link *ring, uint64_t at, const struct iovec *vector,
                           size_t bytes)
{
    uint64_t words[HORON_RING_SHORT_WORDS];
    uint8_t *to = (uint8_t *)words;
    assert(bytes > 0 && bytes <= sizeof words);
    const size_t count = (bytes + sizeof words[0] - 1) / sizeof words[0];
    words[count - 1] = 0;
    for (size_t left = bytes, piece; left > 0; left -= piece, vector++) {
        piece = smaller(left, vector->iov_len);
        copy_words(to, vector->iov_base, piece);
        to += piece;
    }
    const size_t index = (size_t)(at & (ring->data_bytes - 1));
    if (bytes <= ring->data_bytes - index)
        copy_words(ring->out->data + index, words, bytes);
    else
        ring_put(ring, at, words, bytes);
    if (count > HORON_RING_FIRST_WORDS)
        atomic_store_explicit(&ring->out->rest_at, at, memory_order_relaxed);
    for (size_t i = HORON_RING_FIRST_WORDS; i < count; i++)
        atomic_store_explicit(&ring->out->short_words[i], words[i], memory_order_release);
    atomic_store_explicit(&ring->out->short_at, at, memory_order_relaxed);
    for (size_t i = 0; i < HORON_RING_FIRST_WORDS && i < count; i++)
        atomic_store_explicit(&ring->out->short_words[i], words[i], memory_order_release);
}

/* @return are these all bytes that are there, from where the reader is? */
static bool ring_get_short(const struct ring_link *ring, size_t there,
                           uint64_t words[HORON_RING_SHORT_WORDS])
{
    if (there > HORON_RING_SHORT_BYTES)
        return false;
    for (size_t i = 0; i * sizeof words[0] < there; i++)
        words[i] = atomic_load_explicit(&ring->in->short_words[i], memory_order_acquire);
    if (there > HORON_RING_FIRST_WORDS * sizeof words[0] &&
        atomic_load_explicit(&ring->in->rest_at, memory_order_relaxed) != ring->in_read)
        return false;
    return atomic_load_explicit(&ring->in->short_at, memory_order_relaxed) == ring->in_read;
}

static void ring_get(struct ring_link *ring, uint64_t at, void *to, size_t bytes)
{
    assert(bytes <= ring->data_bytes);
    size_t index = (size_t)(at & (ring->data_bytes - 1));
    size_t first = smaller(bytes, ring->data_bytes - index);
    memcpy(to, ring->in->data + index, first);
    if (bytes > first)
        memcpy((uint8_t *)to + first, ring->in->data, bytes - first);
}

/* Room for `wanted` bytes as far as one can tell without waiting; ERR_PEER_LOST if it is absurd. */
static horon_status_t ring_room(struct ring_link *ring, size_t wanted, size_t *room_out,
                                struct horon_error *error)
{
    size_t used = (size_t)(ring->out_written - ring->out_read);
    if (ring->data_bytes - used < wanted) {
        ring->out_read = atomic_load_explicit(&ring->out->read, memory_order_seq_cst);
        if (ring->out_written - ring->out_read > ring->data_bytes)
            return ring_damaged(error);
        used = (size_t)(ring->out_written - ring->out_read);
    }
    *room_out = ring->data_bytes - used;
    return HORON_OK;
}

/* Says that we wait for room, then looks once more. */
static horon_status_t ring_room_or_wait(struct ring_link *ring, size_t wanted, size_t *room_out,
                                        struct horon_error *error)
{
    horon_status_t status = ring_room(ring, wanted, room_out, error);
    if (status || *room_out >= wanted)
        return status;
    ring->out_waits = true;
    atomic_store_explicit(&ring->out->writer_waits, 1, memory_order_seq_cst);
    return ring_room(ring, wanted, room_out, error);
}

static horon_status_t ring_send(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *sent_bytes_out, struct horon_error *error)
{
    struct ring_link *ring = (struct ring_link *)link;
    const size_t wanted = horon_link_vector_bytes(vector, count);
    size_t room = 0;
    horon_status_t status = ring_room_or_wait(ring, wanted, &room, error);
    if (status)
        return status;
    ring->out_full = room < wanted;
    if (ring->out_waits && !ring->out_full) {
        atomic_store_explicit(&ring->out->writer_waits, 0, memory_order_relaxed);
        ring->out_waits = false;
    }
    if (room == 0)
        return HORON_AGAIN;
    const size_t sent = smaller(room, wanted);
    if (sent <= HORON_RING_SHORT_BYTES)
        ring_put_short(ring, ring->out_written, vector, sent);
    else
        ring_put_all(ring, ring->out_written, vector, sent);
    ring->out_written += sent;
    atomic_store_explicit(&ring->out->written, ring->out_written, memory_order_release);
    void (*tell)(void *arg) =
        ring->out_full && ring->wake.full ? ring->wake.full : ring->wake.written;
    if (tell)
        tell(ring->wake.arg);
    *sent_bytes_out = sent;
    return HORON_OK;
}

/* Bytes that can be read now; looks at the peer's counter only if the remembered one is short. */
static horon_status_t ring_there(struct ring_link *ring, size_t wanted, size_t *there_out,
                                 struct horon_error *error)
{
    if (ring->in_written - ring->in_read < wanted) {
        /* the mark is looked at first: bytes written before it are then seen, too */
        uint32_t closed = atomic_load_explicit(&ring->in->writer_closed, memory_order_acquire);
        ring->in_written = atomic_load_explicit(&ring->in->written, memory_order_acquire);
        if (ring->in_written - ring->in_read > ring->data_bytes)
            return ring_damaged(error);
        if (closed && ring->in_written == ring->in_read)
            return horon_link_ended("closed", error);
    }
    *there_out = (size_t)(ring->in_written - ring->in_read);
    return HORON_OK;
}

static void ring_made_room(struct ring_link *ring)
{
    atomic_store_explicit(&ring->in->read, ring->in_read, memory_order_seq_cst);
    if (!atomic_load_explicit(&ring->in->writer_waits, memory_order_seq_cst))
        return;
    if (ring->wake.room)
        ring->wake.room(ring->wake.arg);
}

static horon_status_t ring_recv(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *got_bytes_out, struct horon_error *error)
{
    struct ring_link *ring = (struct ring_link *)link;
    const size_t wanted = horon_link_vector_bytes(vector, count);
    size_t there = 0;
    horon_status_t status = ring_there(ring, wanted, &there, error);
    if (status)
        return status;
    if (there == 0)
        return HORON_AGAIN;
    const size_t got = smaller(there, wanted);
    size_t left = got;
    uint64_t words[HORON_RING_SHORT_WORDS];
    const bool is_short = ring_get_short(ring, there, words);
    const uint8_t *from = (const uint8_t *)words;
    for (int i = 0; left > 0; i++) {
        size_t bytes = smaller(left, vector[i].iov_len);
        if (is_short)
            copy_words(vector[i].iov_base, from, bytes);
        else if (bytes)
            ring_get(ring, ring->in_read, vector[i].iov_base, bytes);
        from += is_short ? bytes : 0;
        ring->in_read += bytes;
        left -= bytes;
    }
    ring_made_room(ring);
    *got_bytes_out = got;
    return HORON_OK;
}

static void ring_destroy(struct horon_link *link)
{
    struct ring_link *ring = (struct ring_link *)link;
    atomic_store_explicit(&ring->out->writer_closed, 1, memory_order_release);
    horon_free(ring);
}

static bool ring_ready(const struct horon_link *link)
{
    const struct ring_link *ring = (const struct ring_link *)link;
    __builtin_prefetch((const void *)&ring->in->short_words[HORON_RING_FIRST_WORDS]);
    if (atomic_load_explicit(&ring->in->written, memory_order_acquire) != ring->in_read)
        return true;
    if (atomic_load_explicit(&ring->in->writer_closed, memory_order_acquire))
        return true;
    if (!ring->out_full)
        return false;
    return ring->out_written - atomic_load_explicit(&ring->out->read, memory_order_acquire) <
           ring->data_bytes;
}

/* What the system refuses once (another namespace of pids, ptrace_scope, seccomp) it always
 * refuses: it is asked no more. */
static horon_status_t ring_fetch(struct horon_link *link, void *to, uint64_t at, size_t bytes)
{
    struct ring_link *ring = (struct ring_link *)link;
    const struct iovec into = {.iov_base = to, .iov_len = bytes};
    const struct iovec from = {.iov_base = (void *)(uintptr_t)at, .iov_len = bytes};
    if (ring->peer <= 0)
        return HORON_ERR_UNSUPPORTED;
    const ssize_t got = process_vm_readv(ring->peer, &into, 1, &from, 1, 0);
    if (got < 0 && errno != EFAULT && errno != ENOMEM)
        ring->peer = 0;
    const bool all = got >= 0 && (size_t)got == bytes;
    return all && horon_alive_is_held(ring->alive) ? HORON_OK : HORON_ERR_UNSUPPORTED;
}

static const struct horon_link_ops ring_ops = {
    .name = "ring",
    .send = ring_send,
    .recv = ring_recv,
    .descriptor = horon_link_no_descriptor,
    .interest = horon_link_plain_interest,
    .ready = ring_ready,
    .found = horon_link_finds_nothing,
    .undelivered = horon_link_nothing_undelivered,
    .check = horon_link_always_answers,
    .fetch = ring_fetch,
    .destroy = ring_destroy,
};

size_t horon_ring_bytes(size_t data_bytes)
{
    return sizeof(struct horon_ring) + data_bytes;
}

horon_status_t horon_link_ring_create(struct horon_ring *out, struct horon_ring *in,
                                      size_t data_bytes, const struct horon_ring_wake *wake,
                                      struct horon_link **link_out)
{
    if (data_bytes == 0 || (data_bytes & (data_bytes - 1)) != 0)
        return HORON_ERR_INVALID;
    struct ring_link *ring = horon_zalloc(1, sizeof *ring);
    if (!ring)
        return HORON_ERR_MEMORY;
    ring->base.ops = &ring_ops;
    ring->out = out;
    ring->in = in;
    ring->data_bytes = data_bytes;
    /* the counters may not be 0: memory that was used before by a link of the same two sides */
    ring->out_written = atomic_load_explicit(&out->written, memory_order_relaxed);
    ring->out_read = atomic_load_explicit(&out->read, memory_order_acquire);
    ring->in_read = atomic_load_explicit(&in->read, memory_order_relaxed);
    ring->in_written = ring->in_read;
    if (wake)
        ring->wake = *wake;
    *link_out = &ring->base;
    return HORON_OK;
}

void horon_link_ring_lend(struct horon_link *link, pid_t pid, struct horon_alive *alive)
{
    struct ring_link *ring = (struct ring_link *)link;
    assert(link->ops == &ring_ops);
    ring->peer = pid;
    ring->alive = alive;
    link->lends = true;
    link->own_stamp = &ring->out->stamp;
    link->peer_stamp = &ring->in->stamp;
}
