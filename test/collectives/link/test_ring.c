/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: bytes come out as they went in, whatever the sizes; full and empty are said once and
 * exactly; no wake-up is lost between two threads (run it under the thread sanitizer).
 */
#include "../worlds.h"

#include "alive.h"
#include "link/link.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct pair {
    struct horon_ring *ring[2];
    struct horon_link *link[2]; /* [0] writes ring[0] and reads ring[1]; [1] the other way */
    int written, room;          /* how often [0]'s hooks were called */
};

static void count_written(void *arg)
{
    ((struct pair *)arg)->written++;
}

static void count_room(void *arg)
{
    ((struct pair *)arg)->room++;
}

static struct horon_ring *ring_of(size_t data_bytes)
{
    struct horon_ring *ring = aligned_alloc(64, (horon_ring_bytes(data_bytes) + 63) & ~63ul);
    assert_non_null(ring);
    memset(ring, 0, horon_ring_bytes(data_bytes));
    return ring;
}

static void pair_open(struct pair *pair, size_t data_bytes)
{
    *pair = (struct pair){.ring = {ring_of(data_bytes), ring_of(data_bytes)}};
    const struct horon_ring_wake wake = {.written = count_written, .room = count_room, .arg = pair};
    assert_int_equal(
        horon_link_ring_create(pair->ring[0], pair->ring[1], data_bytes, &wake, &pair->link[0]),
        HORON_OK);
    assert_int_equal(
        horon_link_ring_create(pair->ring[1], pair->ring[0], data_bytes, NULL, &pair->link[1]),
        HORON_OK);
}

static void pair_close(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        if (pair->link[i])
            pair->link[i]->ops->destroy(pair->link[i]);
        free(pair->ring[i]);
    }
}

static horon_status_t send_bytes(struct horon_link *link, const void *bytes, size_t count,
                                 size_t *sent)
{
    const struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    return link->ops->send(link, &vector, 1, sent, NULL);
}

static horon_status_t recv_bytes(struct horon_link *link, void *bytes, size_t count, size_t *got)
{
    const struct iovec vector = {.iov_base = bytes, .iov_len = count};
    return link->ops->recv(link, &vector, 1, got, NULL);
}

static bool ring_ready(const struct horon_link *link)
{
    return link->ops->ready(link);
}

static void test_ring_size_that_is_no_power_of_two_is_refused(void **state)
{
    (void)state;
    struct horon_ring *ring = ring_of(64);
    struct horon_link *link = NULL;
    assert_int_equal(horon_link_ring_create(ring, ring, 0, NULL, &link), HORON_ERR_INVALID);
    assert_int_equal(horon_link_ring_create(ring, ring, 48, NULL, &link), HORON_ERR_INVALID);
    assert_null(link);
    free(ring);
}

static void test_ring_bytes_come_out_as_they_went_in(void **state)
{
    (void)state;
    struct seeded random = seeded_from(1);
    for (size_t data_bytes = 1; data_bytes <= 4096; data_bytes *= 2) {
        struct pair pair;
        uint8_t in_next = 0, out_next = 0;
        pair_open(&pair, data_bytes);
        for (int i = 0; i < 3000; i++) {
            uint8_t bytes[2][700];
            struct iovec vector[3];
            size_t moved = 0;
            const bool sends = seeded_below(&random, 2);
            for (int v = 0; v < 3; v++)
                vector[v] = (struct iovec){.iov_base = bytes[sends] + 200 * v,
                                           .iov_len = seeded_below(&random, 200) + (v == 2)};
            for (size_t b = 0, v = 0; sends && v < 3; b = 0, v++) {
                for (; b < vector[v].iov_len; b++)
                    ((uint8_t *)vector[v].iov_base)[b] = in_next++;
            }
            struct horon_link *link = pair.link[!sends];
            const size_t asked = vector[0].iov_len + vector[1].iov_len + vector[2].iov_len;
            const horon_status_t status = sends ? link->ops->send(link, vector, 3, &moved, NULL)
                                                : link->ops->recv(link, vector, 3, &moved, NULL);
            assert_true(status == HORON_OK ? moved > 0 : status == HORON_AGAIN && moved == 0);
            if (sends)
                in_next = (uint8_t)(in_next - (asked - moved));
            for (size_t b = 0, v = 0; !sends && v < 3; b = 0, v++) {
                for (; b < vector[v].iov_len && moved > 0; b++, moved--)
                    assert_int_equal(((uint8_t *)vector[v].iov_base)[b], out_next++);
            }
        }
        pair_close(&pair);
    }
}

/* Each byte lies in the ring, and those of a short write beside the counter, too. What the reader
 * must not take is spoilt. */
static void test_ring_short_write_is_read_beside_the_counter(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 7, 8, 9, 39, 40, 41, 89, HORON_RING_SHORT_BYTES};
    enum { DATA = 256 };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct pair pair;
        uint8_t from[DATA], to[DATA];
        size_t moved = 0;
        pair_open(&pair, DATA);
        for (size_t round = 0; round < 7; round++) { /* around the end of the ring, too */
            for (size_t i = 0; i < sizes[s]; i++)
                from[i] = (uint8_t)(1 + i + round);
            const size_t first = sizes[s] / 2;
            const struct iovec vector[] = {{from, first}, {from + first, sizes[s] - first}};
            memset(to, 0, sizeof to);
            assert_int_equal(pair.link[0]->ops->send(pair.link[0], vector, 2, &moved, NULL),
                             HORON_OK);
            memset(pair.ring[0]->data, 0, DATA);
            assert_int_equal(recv_bytes(pair.link[1], to, DATA, &moved), HORON_OK);
            assert_int_equal(moved, sizes[s]);
            assert_memory_equal(to, from, sizes[s]);
        }
        pair_close(&pair);
    }
}

static void test_ring_what_is_not_the_last_short_write_is_read_in_the_ring(void **state)
{
    (void)state;
    enum { DATA = 256, LONG = HORON_RING_SHORT_BYTES + 1 };
    struct pair pair;
    uint8_t from[DATA], to[DATA];
    size_t moved = 0;
    pair_open(&pair, DATA);
    for (size_t i = 0; i < DATA; i++)
        from[i] = (uint8_t)(i + 1);
    const size_t writes[][2] = {{LONG, 0}, {8, 8}, {LONG, 8}, {8, LONG}};
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        const size_t all = writes[i][0] + writes[i][1];
        assert_int_equal(send_bytes(pair.link[0], from, writes[i][0], &moved), HORON_OK);
        if (writes[i][1] > 0)
            assert_int_equal(send_bytes(pair.link[0], from + writes[i][0], writes[i][1], &moved),
                             HORON_OK);
        memset((void *)pair.ring[0]->short_words, 0, HORON_RING_SHORT_BYTES);
        assert_int_equal(recv_bytes(pair.link[1], to, DATA, &moved), HORON_OK);
        assert_int_equal(moved, all);
        assert_memory_equal(to, from, all);
    }
    /* the rest of one of which a part was taken */
    assert_int_equal(send_bytes(pair.link[0], from, 8, &moved), HORON_OK);
    assert_int_equal(recv_bytes(pair.link[1], to, 3, &moved), HORON_OK);
    assert_memory_equal(to, from, 3);
    memset((void *)pair.ring[0]->short_words, 0, HORON_RING_SHORT_BYTES);
    assert_int_equal(recv_bytes(pair.link[1], to, 8, &moved), HORON_OK);
    assert_int_equal(moved, 5);
    assert_memory_equal(to, from + 3, 5);
    pair_close(&pair);
}

static void test_ring_full_and_empty_are_said(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t bytes[100] = {0};
    size_t moved = 0;
    pair_open(&pair, 64);
    assert_false(ring_ready(pair.link[0]));
    assert_false(ring_ready(pair.link[1]));
    assert_int_equal(recv_bytes(pair.link[1], bytes, 1, &moved), HORON_AGAIN);
    assert_int_equal(send_bytes(pair.link[0], bytes, 100, &moved), HORON_OK);
    assert_int_equal(moved, 64);
    assert_true(ring_ready(pair.link[1]));
    assert_false(ring_ready(pair.link[0])); /* still full */
    assert_int_equal(send_bytes(pair.link[0], bytes, 1, &moved), HORON_AGAIN);
    assert_int_equal(recv_bytes(pair.link[1], bytes, 1, &moved), HORON_OK);
    assert_true(ring_ready(pair.link[0]));
    assert_int_equal(send_bytes(pair.link[0], bytes, 1, &moved), HORON_OK);
    assert_false(ring_ready(pair.link[0])); /* it took all it was given */
    pair_close(&pair);
}

static void test_ring_wakes_the_reader_always_and_the_writer_that_waits(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t bytes[100] = {0};
    size_t moved = 0;
    pair_open(&pair, 64);
    assert_int_equal(send_bytes(pair.link[0], bytes, 10, &moved), HORON_OK);
    assert_int_equal(send_bytes(pair.link[0], bytes, 10, &moved), HORON_OK);
    assert_int_equal(pair.written, 2);
    /* the other direction: link[0] reads; its peer is woken for room only if it waits */
    assert_int_equal(send_bytes(pair.link[1], bytes, 64, &moved), HORON_OK);
    assert_int_equal(recv_bytes(pair.link[0], bytes, 10, &moved), HORON_OK);
    assert_int_equal(pair.room, 0);
    assert_int_equal(send_bytes(pair.link[1], bytes, 11, &moved), HORON_OK);
    assert_int_equal(moved, 10);
    assert_int_equal(recv_bytes(pair.link[0], bytes, 10, &moved), HORON_OK);
    assert_int_equal(pair.room, 1);
    /* until it has placed all: it may have filled that room already, and wait for more */
    assert_int_equal(recv_bytes(pair.link[0], bytes, 10, &moved), HORON_OK);
    assert_int_equal(pair.room, 2);
    assert_int_equal(send_bytes(pair.link[1], bytes, 1, &moved), HORON_OK);
    assert_int_equal(recv_bytes(pair.link[0], bytes, 10, &moved), HORON_OK);
    assert_int_equal(pair.room, 2);
    pair_close(&pair);
}

static void test_ring_of_a_peer_that_closed_ends_after_its_bytes(void **state)
{
    (void)state;
    struct pair pair;
    struct horon_error error = {0};
    uint8_t bytes[8] = {0};
    size_t moved = 0;
    pair_open(&pair, 64);
    assert_int_equal(send_bytes(pair.link[1], "last", 4, &moved), HORON_OK);
    pair.link[1]->ops->destroy(pair.link[1]);
    pair.link[1] = NULL;
    assert_true(ring_ready(pair.link[0]));
    assert_int_equal(recv_bytes(pair.link[0], bytes, 8, &moved), HORON_OK);
    assert_memory_equal(bytes, "last", 4);
    const struct iovec vector = {.iov_base = bytes, .iov_len = 8};
    assert_int_equal(pair.link[0]->ops->recv(pair.link[0], &vector, 1, &moved, &error),
                     HORON_ERR_PEER_LOST);
    assert_string_equal(
        error.text,
        "closed the connection without leaving the job (killed, crashed, or it exited)");
    pair_close(&pair);
}

static void test_ring_with_an_absurd_counter_is_an_error(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t bytes[200] = {0};
    size_t moved = 0;
    pair_open(&pair, 64);
    atomic_store(&pair.ring[1]->written, 65);
    assert_int_equal(recv_bytes(pair.link[0], bytes, 200, &moved), HORON_ERR_PEER_LOST);
    atomic_store(&pair.ring[0]->read, 1);
    assert_int_equal(send_bytes(pair.link[0], bytes, 200, &moved), HORON_ERR_PEER_LOST);
    pair_close(&pair);
}

/*
 * Two threads, each waiting for the other's hook whenever the ring has nothing for it; a lost
 * wake-up never ends. They wait by looking at a word, not asleep, so that the moments that matter
 * come often. The writer is told as a rank is (exec/host.c): only while its word says that it
 * sleeps, and it looks once more after it has said so.
 */
struct stream {
    struct pair pair;
    _Alignas(64) atomic_uint reader;
    _Alignas(64) atomic_uint writer; /* 1: asleep */
    size_t total;
};

static void wake_reader(void *arg)
{
    atomic_store(&((struct stream *)arg)->reader, 1);
}

static void wake_writer(void *arg)
{
    atomic_store(&((struct stream *)arg)->writer, 0);
}

static void sleep_of_writer(struct stream *stream)
{
    atomic_store(&stream->writer, 1);
    if (ring_ready(stream->pair.link[0]))
        atomic_store(&stream->writer, 0);
    for (int i = 0; atomic_load(&stream->writer); i++) {
        if (i > 100)
            sched_yield();
    }
}

static void wait_for(atomic_uint *word)
{
    for (int i = 0; !atomic_exchange(word, 0); i++) {
        if (i > 100)
            sched_yield();
    }
}

static void *write_stream(void *arg)
{
    struct stream *stream = arg;
    struct seeded random = seeded_from(2);
    uint8_t bytes[97];
    for (size_t at = 0; at < stream->total;) {
        size_t count = 1 + (size_t)seeded_below(&random, sizeof bytes), sent = 0;
        if (count > stream->total - at)
            count = stream->total - at;
        for (size_t i = 0; i < count; i++)
            bytes[i] = (uint8_t)((at + i) * 7);
        if (send_bytes(stream->pair.link[0], bytes, count, &sent) == HORON_OK)
            at += sent;
        if (sent < count)
            sleep_of_writer(stream);
    }
    return NULL;
}

static void test_ring_between_two_threads_loses_no_byte_and_no_wake_up(void **state)
{
    (void)state;
    for (size_t data_bytes = 1; data_bytes <= 64; data_bytes *= 4) {
        struct stream stream = {.total = 40000 * data_bytes};
        const struct horon_ring_wake written = {.written = wake_reader, .arg = &stream};
        const struct horon_ring_wake room = {.room = wake_writer, .arg = &stream};
        struct pair *pair = &stream.pair;
        pthread_t writer;
        pair->ring[0] = ring_of(data_bytes);
        pair->ring[1] = ring_of(data_bytes);
        assert_int_equal(horon_link_ring_create(pair->ring[0], pair->ring[1], data_bytes, &written,
                                                &pair->link[0]),
                         HORON_OK);
        assert_int_equal(
            horon_link_ring_create(pair->ring[1], pair->ring[0], data_bytes, &room, &pair->link[1]),
            HORON_OK);
        assert_int_equal(pthread_create(&writer, NULL, write_stream, &stream), 0);
        for (size_t at = 0; at < stream.total;) {
            uint8_t bytes[50];
            size_t got = 0;
            if (recv_bytes(pair->link[1], bytes, sizeof bytes, &got) == HORON_AGAIN)
                wait_for(&stream.reader);
            for (size_t i = 0; i < got; i++, at++) {
                if (bytes[i] != (uint8_t)(at * 7))
                    fail_msg("byte %zu is %u", at, bytes[i]);
            }
        }
        pthread_join(writer, NULL);
        pair_close(pair);
    }
}

/* ---- what lies in the peer's memory ---- */

static void test_ring_fetches_all_or_nothing(void **state)
{
    (void)state;
    struct pair pair;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *from =
        mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *to = calloc(1, 2 * page);
    struct horon_alive alive = {0};
    assert_ptr_not_equal(from, MAP_FAILED);
    assert_non_null(to);
    memset(from, 5, 2 * page);
    pair_open(&pair, 64);
    assert_false(pair.link[0]->lends);
    struct horon_link *link = pair.link[0];
    horon_link_ring_lend(link, getpid(), &alive);
    assert_true(link->lends);
    assert_true(horon_alive_hold(&alive));
    assert_int_equal(link->ops->fetch(link, to, (uintptr_t)from, 2 * page), HORON_OK);
    assert_memory_equal(to, from, 2 * page);
    assert_int_equal(munmap(from + page, page), 0);
    assert_int_equal(link->ops->fetch(link, to, (uintptr_t)from, 2 * page), HORON_ERR_UNSUPPORTED);
    assert_int_equal(link->ops->fetch(link, to, (uintptr_t)from, page), HORON_OK);
    horon_alive_let_go(&alive); /* the process of that number is another one, perhaps */
    assert_int_equal(link->ops->fetch(link, to, (uintptr_t)from, page), HORON_ERR_UNSUPPORTED);
    munmap(from, page);
    pair_close(&pair);
    free(to);
}

static void test_ring_whose_peer_is_unknown_or_gone_fetches_nothing(void **state)
{
    (void)state;
    const pid_t gone = fork();
    if (gone == 0)
        _exit(0);
    assert_int_equal(waitpid(gone, NULL, 0), gone);
    const pid_t pids[] = {0, -1, gone};
    for (int i = 0; i < 3; i++) {
        struct pair pair;
        uint8_t word = 7, got = 0;
        struct horon_alive alive = {0};
        pair_open(&pair, 64);
        assert_true(horon_alive_hold(&alive));
        horon_link_ring_lend(pair.link[0], pids[i], &alive);
        for (int twice = 0; twice < 2; twice++)
            assert_int_equal(pair.link[0]->ops->fetch(pair.link[0], &got, (uintptr_t)&word, 1),
                             HORON_ERR_UNSUPPORTED);
        horon_alive_let_go(&alive);
        assert_int_equal(got, 0);
        pair_close(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_size_that_is_no_power_of_two_is_refused),
        cmocka_unit_test(test_ring_bytes_come_out_as_they_went_in),
        cmocka_unit_test(test_ring_short_write_is_read_beside_the_counter),
        cmocka_unit_test(test_ring_what_is_not_the_last_short_write_is_read_in_the_ring),
        cmocka_unit_test(test_ring_full_and_empty_are_said),
        cmocka_unit_test(test_ring_wakes_the_reader_always_and_the_writer_that_waits),
        cmocka_unit_test(test_ring_of_a_peer_that_closed_ends_after_its_bytes),
        cmocka_unit_test(test_ring_with_an_absurd_counter_is_an_error),
        cmocka_unit_test(test_ring_between_two_threads_loses_no_byte_and_no_wake_up),
        cmocka_unit_test(test_ring_fetches_all_or_nothing),
        cmocka_unit_test(test_ring_whose_peer_is_unknown_or_gone_fetches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
