/* SPDX-License-Identifier: Apache-2.0 */
/* How a horon of rank 0 ends serving torch's TCPStore. */
#undef NDEBUG
#include "boot/gloo/store.h"

#include "../../../free_port.h"
#include "alloc.h"
#include "boot/gloo/c10d_wire.h"
#include "clock.h"
#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The clock, for all: so many times as slow, that a limit is over late, or never. 0: as it is. */
static _Atomic int64_t slow_since_ns, times_slower = 1;

int __real_clock_gettime(clockid_t id, struct timespec *time);
int __wrap_clock_gettime(clockid_t id, struct timespec *time);
int __wrap_clock_gettime(clockid_t id, struct timespec *time)
{
    const int64_t second = 1000000000, since_ns = slow_since_ns;
    const int status = __real_clock_gettime(id, time);
    const int64_t now_ns = time->tv_sec * second + time->tv_nsec;
    const int64_t slow_ns = since_ns + (now_ns - since_ns) / times_slower;
    if (since_ns)
        *time = (struct timespec){.tv_sec = slow_ns / second, .tv_nsec = slow_ns % second};
    return status;
}

static void slow_down(int times)
{
    times_slower = times;
    slow_since_ns = (int64_t)horon_clock_ns();
}

/* A listener that is closed within the next connect() to it, as it is, or what it has taken first.
 */
static struct pollfd *closes_within;
static bool takes_it;

int __real_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    const int status = __real_connect(fd, address, bytes), why = errno;
    if (closes_within) {
        assert_int_equal(poll(closes_within, 1, -1), 1); /* it is connected */
        const int taken = takes_it ? accept(closes_within->fd, NULL, NULL) : -1;
        const struct linger at_once = {1, 0}; /* a reset, behind the end of what it sends */
        if (taken >= 0 && shutdown(taken, SHUT_WR) == 0 &&
            setsockopt(taken, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0)
            close(taken);
        close(closes_within->fd);
        closes_within = NULL;
    }
    errno = why;
    return status;
}

static struct horon_error error;
static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

static horon_status_t open_in(const char *job, int port, int rank, uint64_t deadline_ns,
                              struct horon_gloo_store **store_out)
{
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    const struct horon_gloo_store_options options = {.url = url,
                                                     .prefix = job,
                                                     .rank = rank,
                                                     .size = 2,
                                                     .serve = rank == 0,
                                                     .wait = {.deadline_ns = deadline_ns}};
    return horon_gloo_store_open(&options, store_out, &error);
}

static struct horon_gloo_store *opened_in(const char *job, int port, int rank)
{
    struct horon_gloo_store *store = NULL;
    if (open_in(job, port, rank, UINT64_MAX, &store) != HORON_OK)
        fail_msg("rank %d: %s", rank, error.text);
    return store;
}

static struct horon_gloo_store *opened(int port, int rank)
{
    return opened_in("", port, rank);
}

static void set(struct horon_gloo_store *store, const char *key, const char *value)
{
    assert_int_equal(horon_gloo_store_set(store, key, value, strlen(value), &no_limit, &error),
                     HORON_OK);
}

/* Once it is there: a set is not answered. */
static void expect(struct horon_gloo_store *store, const char *key, const char *value)
{
    struct horon_gloo_value got;
    horon_status_t status;
    while ((status = horon_gloo_store_get(store, key, &got, &no_limit, &error)) == HORON_AGAIN)
        ;
    if (status != HORON_OK)
        fail_msg("%s: %s", key, error.text);
    assert_int_equal(got.count, strlen(value));
    assert_memory_equal(got.bytes, value, got.count);
    horon_free(got.bytes);
}

static void end_meeting_of_horons(struct horon_gloo_store *store)
{
    store->of_horons = true;
    horon_gloo_store_end_meeting(store);
}

/* @return once nobody can connect with it any more */
static void await_refusal(int port)
{
    struct horon_address address;
    int fd, why = 0;
    assert_true(horon_address_parse("127.0.0.1", port, &address));
    while (why == 0) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(fd >= 0);
        why = connect(fd, &address.any, address.bytes) == 0 ? 0 : errno;
        close(fd);
    }
    assert_true(why == ECONNREFUSED || why == ECONNRESET);
}

static void *destroy(void *store)
{
    horon_gloo_store_destroy(store);
    return NULL;
}

/* Rank 0 leaves once it has met the others, of which rank 1 has not read all yet. */
static void test_c10d_server_that_leaves_answers_those_that_are_slow(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0), *slow = opened(port, 1);
    pthread_t leaving;
    (void)state;
    set(served, "0", "at");
    expect(slow, "0", "at");
    end_meeting_of_horons(served);
    assert_int_equal(pthread_create(&leaving, NULL, destroy, served), 0);
    await_refusal(port);
    expect(slow, "0", "at");
    horon_gloo_store_end_meeting(slow); /* else that one waits for it */
    assert_int_equal(pthread_join(leaving, NULL), 0);
    horon_gloo_store_destroy(slow);
}

struct coming {
    const char *job;
    int port, rank;
    struct horon_gloo_store *store;
};

static void *come_and_say(void *arg)
{
    struct coming *coming = arg;
    coming->store = opened_in(coming->job, coming->port, coming->rank);
    set(coming->store, "1", "at last");
    return NULL;
}

/* Its rank 0 comes first, or last, while ranks of the one before still join. */
static void test_c10d_server_of_a_job_is_waited_out_by_the_next_one(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct coming coming = {"next", free_port(), first, NULL};
        struct horon_gloo_store *served = opened_in("last", coming.port, 0);
        struct horon_gloo_store *slow = opened_in("last", coming.port, 1);
        pthread_t early;
        set(served, "0", "at");
        assert_int_equal(pthread_create(&early, NULL, come_and_say, &coming), 0);
        end_meeting_of_horons(served);
        struct horon_gloo_store *next = opened_in("next", coming.port, !first);
        expect(next, "1", "at last");
        assert_int_equal(pthread_join(early, NULL), 0);
        expect(slow, "0", "at");
        horon_gloo_store_destroy(slow);
        horon_gloo_store_destroy(served);
        horon_gloo_store_destroy(first ? coming.store : next);
        horon_gloo_store_destroy(first ? next : coming.store);
    }
}

/* 99 bytes. */
#define LONG_JOB                                                                                   \
    "a job's prefix that is longer than what of it is shown to "                                   \
    "the ranks of another one, 99 bytes long::"

static void test_c10d_server_of_a_job_that_has_not_met_is_told(void **state)
{
    /* Text is cut before the character that would be cut itself. */
    static const char *const jobs[][2] = {
        {"a", " serves another job, 'a', whose ranks have not all "},
        {LONG_JOB "\u00e9 and on", " serves another job, '" LONG_JOB "...', whose"}};
    struct horon_gloo_store *none = NULL;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const int port = free_port();
        struct horon_gloo_store *served = opened_in(jobs[i][0], port, 0);
        slow_down(20); /* it has time to ask */
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(open_in("b", port, rank, horon_clock_ns() + 50000000, &none),
                             HORON_ERR_TIMEOUT);
            assert_non_null(strstr(error.text, jobs[i][1]));
        }
        slow_since_ns = 0;
        horon_gloo_store_destroy(served);
    }
}

/* Whose ranks make groups there, of which horons are, too. */
static void test_c10d_server_of_torch_is_everybodys_once_they_have_met(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened_in("first", port, 0);
    struct horon_gloo_store *torch = opened_in("first", port, 1);
    (void)state;
    horon_gloo_store_end_meeting(served);
    struct horon_gloo_store *next = opened_in("second", port, 0);
    struct horon_gloo_store *other = opened_in("second", port, 1);
    set(next, "0", "at");
    expect(other, "0", "at");
    horon_gloo_store_destroy(torch);
    horon_gloo_store_destroy(other);
    horon_gloo_store_destroy(next);
    horon_gloo_store_destroy(served);
}

/* @return connected, and has said nothing */
static int connect_to(int port)
{
    struct horon_address address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(horon_address_parse("127.0.0.1", port, &address));
    assert_int_equal(connect(fd, &address.any, address.bytes), 0);
    return fd;
}

/* A rank of another job, or what is to become one. */
static void test_c10d_server_answers_what_had_connected_as_it_ends(void **state)
{
    uint8_t bytes[16];
    uint32_t answer = 0;
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0);
    pthread_t ending;
    (void)state;
    horon_c10d_write_op(&out, HORON_C10D_SINCE_2_3, HORON_C10D_VALIDATE);
    horon_write_u32(&out, HORON_C10D_MAGIC);
    horon_c10d_write_op(&out, HORON_C10D_SINCE_2_3, HORON_C10D_PING);
    horon_write_u32(&out, 7);
    const int fd = connect_to(port);
    horon_gloo_store_destroy(opened(port, 1));
    slow_down(1000); /* it has time to ask */
    end_meeting_of_horons(served);
    assert_int_equal(pthread_create(&ending, NULL, destroy, served), 0);
    sched_yield();
    assert_int_equal(send(fd, bytes, out.used, MSG_NOSIGNAL), out.used);
    assert_int_equal(recv(fd, &answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_int_equal(le32toh(answer), 7);
    close(fd);
    assert_int_equal(pthread_join(ending, NULL), 0);
    slow_since_ns = 0;
}

/* Which is no rank, and may stay as long as it likes. */
static void test_c10d_server_does_not_wait_for_a_stranger(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0);
    const int fd = connect_to(port);
    (void)state;
    horon_gloo_store_destroy(opened(port, 1)); /* it has taken that one, too */
    end_meeting_of_horons(served);
    slow_down(20); /* no limit of seconds ends it */
    horon_gloo_store_destroy(served);
    slow_since_ns = 0;
    close(fd);
}

/* @return a listener of another program, which takes no connection */
static struct pollfd listen_at(int port)
{
    struct pollfd other = {.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
    struct horon_address address;
    const int on = 1;
    assert_true(horon_address_parse("127.0.0.1", port, &address));
    setsockopt(other.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(other.fd, &address.any, address.bytes), 0);
    assert_int_equal(listen(other.fd, 8), 0);
    return other;
}

/* It had not taken the connection, and the next one is not there yet. */
static void test_c10d_server_that_has_closed_is_looked_for_again(void **state)
{
    struct coming coming = {"", free_port(), 1, NULL};
    struct pollfd ending = listen_at(coming.port);
    pthread_t other;
    (void)state;
    slow_down(20); /* the next one may come late */
    assert_int_equal(pthread_create(&other, NULL, come_and_say, &coming), 0);
    assert_int_equal(poll(&ending, 1, -1), 1);
    close(ending.fd);
    struct horon_gloo_store *next = opened(coming.port, 0);
    expect(next, "1", "at last");
    assert_int_equal(pthread_join(other, NULL), 0);
    slow_since_ns = 0;
    horon_gloo_store_destroy(coming.store);
    horon_gloo_store_destroy(next);
}

/* It had the address when rank 0 came. */
static void test_c10d_server_that_has_closed_is_followed_by_rank_0(void **state)
{
    struct coming coming = {"", free_port(), 0, NULL};
    struct pollfd ending = listen_at(coming.port);
    pthread_t other;
    (void)state;
    assert_int_equal(pthread_create(&other, NULL, come_and_say, &coming), 0);
    assert_int_equal(poll(&ending, 1, -1), 1);
    close(ending.fd);
    struct horon_gloo_store *next = opened(coming.port, 1);
    expect(next, "1", "at last");
    assert_int_equal(pthread_join(other, NULL), 0);
    horon_gloo_store_destroy(next);
    horon_gloo_store_destroy(coming.store);
}

static void *close_soon(void *arg)
{
    struct pollfd *ending = arg;
    assert_int_equal(poll(ending, 1, -1), 1);
    close(ending->fd);
    return NULL;
}

/* As a rank 0 that is killed. */
static void test_c10d_server_that_has_closed_and_has_no_next_is_lost(void **state)
{
    const int port = free_port();
    struct pollfd ending = listen_at(port);
    struct horon_gloo_store *store = NULL;
    pthread_t other;
    (void)state;
    assert_int_equal(pthread_create(&other, NULL, close_soon, &ending), 0);
    assert_int_equal(open_in("", port, 1, UINT64_MAX, &store), HORON_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "closed the connection, once it was asked"));
    assert_int_equal(pthread_join(other, NULL), 0);
}

/* Before the rank that was on its way has seen that it is connected. */
static void test_c10d_server_that_has_closed_at_once_is_lost(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const int port = free_port();
        struct pollfd ending = listen_at(port);
        struct horon_gloo_store *store = NULL;
        closes_within = &ending;
        takes_it = i > 0;
        assert_int_equal(open_in("", port, 1, UINT64_MAX, &store), HORON_ERR_PEER_LOST);
        assert_null(closes_within);
        assert_non_null(strstr(error.text, "closed the connection, once it was asked"));
    }
}

/* torch's ranks stay as long as their processes, and say nothing. */
static void test_c10d_server_does_not_wait_for_those_that_are_silent(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0), *silent = opened(port, 1);
    (void)state;
    horon_gloo_store_end_meeting(served);
    horon_gloo_store_destroy(served);
    horon_gloo_store_destroy(silent);
}

/* The next job's, or this rank's next context's. */
static void test_c10d_server_of_horons_alone_gives_the_next_one_the_address(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0), *slow = opened(port, 1);
    (void)state;
    set(served, "1", "of the last");
    expect(slow, "1", "of the last");
    end_meeting_of_horons(served);
    await_refusal(port);
    struct horon_gloo_store *next = opened(port, 0), *other = opened(port, 1);
    set(next, "0", "of the next");
    expect(other, "0", "of the next");
    expect(slow, "1", "of the last");
    horon_gloo_store_destroy(slow);
    horon_gloo_store_destroy(served);
    horon_gloo_store_destroy(other);
    horon_gloo_store_destroy(next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c10d_server_that_leaves_answers_those_that_are_slow),
        cmocka_unit_test(test_c10d_server_of_a_job_is_waited_out_by_the_next_one),
        cmocka_unit_test(test_c10d_server_of_a_job_that_has_not_met_is_told),
        cmocka_unit_test(test_c10d_server_of_torch_is_everybodys_once_they_have_met),
        cmocka_unit_test(test_c10d_server_answers_what_had_connected_as_it_ends),
        cmocka_unit_test(test_c10d_server_does_not_wait_for_a_stranger),
        cmocka_unit_test(test_c10d_server_that_has_closed_is_looked_for_again),
        cmocka_unit_test(test_c10d_server_that_has_closed_is_followed_by_rank_0),
        cmocka_unit_test(test_c10d_server_that_has_closed_and_has_no_next_is_lost),
        cmocka_unit_test(test_c10d_server_that_has_closed_at_once_is_lost),
        cmocka_unit_test(test_c10d_server_does_not_wait_for_those_that_are_silent),
        cmocka_unit_test(test_c10d_server_of_horons_alone_gives_the_next_one_the_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
