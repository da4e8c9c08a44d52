/* SPDX-License-Identifier: Apache-2.0 */
/* How a horon of rank 0 ends serving torch's TCPStore. */
#undef NDEBUG
#include "boot/gloo/store.h"

#include "../../../free_port.h"
#include "alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static struct horon_error error;
static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

static struct horon_gloo_store *opened(int port, int rank)
{
    char url[64];
    struct horon_gloo_store *store = NULL;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = "", .rank = rank, .size = 2, .serve = rank == 0, .wait = no_limit};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
    return store;
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
    struct horon_gloo_value got;
    pthread_t leaving;
    (void)state;
    assert_int_equal(horon_gloo_store_set(served, "0", "at", 2, &no_limit, &error), HORON_OK);
    while (horon_gloo_store_get(slow, "0", &got, &no_limit, &error) == HORON_AGAIN)
        ; /* a set is not answered */
    horon_free(got.bytes);
    served->of_horons = true;
    horon_gloo_store_end_meeting(served);
    assert_int_equal(pthread_create(&leaving, NULL, destroy, served), 0);
    await_refusal(port);
    assert_int_equal(horon_gloo_store_get(slow, "0", &got, &no_limit, &error), HORON_OK);
    horon_free(got.bytes);
    horon_gloo_store_end_meeting(slow); /* else that one waits for it */
    assert_int_equal(pthread_join(leaving, NULL), 0);
    horon_gloo_store_destroy(slow);
}

/* Which waits for what this one is to say there, perhaps, and this one for it. */
static void test_c10d_server_that_leaves_sends_ranks_of_the_next_job_away(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0), *slow = opened(port, 1);
    struct horon_gloo_store *next = opened(port, 2);
    struct horon_gloo_value got;
    horon_status_t status;
    pthread_t leaving;
    (void)state;
    assert_int_equal(horon_gloo_store_set(served, "0", "at", 2, &no_limit, &error), HORON_OK);
    served->of_horons = true;
    horon_gloo_store_end_meeting(served);
    assert_int_equal(pthread_create(&leaving, NULL, destroy, served), 0);
    while ((status = horon_gloo_store_get(next, "next/0", &got, &no_limit, &error)) == HORON_AGAIN)
        ; /* until that one leaves */
    assert_int_equal(status, HORON_ERR_PEER_LOST);
    assert_int_equal(horon_gloo_store_get(slow, "0", &got, &no_limit, &error), HORON_OK);
    horon_free(got.bytes);
    horon_gloo_store_destroy(slow);
    assert_int_equal(pthread_join(leaving, NULL), 0);
    horon_gloo_store_destroy(next);
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
    struct horon_gloo_value got;
    (void)state;
    served->of_horons = true;
    horon_gloo_store_end_meeting(served);
    await_refusal(port);
    struct horon_gloo_store *next = opened(port, 0), *other = opened(port, 1);
    assert_int_equal(horon_gloo_store_set(next, "0", "of the next", 11, &no_limit, &error),
                     HORON_OK);
    while (horon_gloo_store_get(other, "0", &got, &no_limit, &error) == HORON_AGAIN)
        ;
    horon_free(got.bytes);
    assert_int_equal(horon_gloo_store_get(slow, "0", &got, &no_limit, &error), HORON_AGAIN);
    horon_gloo_store_destroy(slow);
    horon_gloo_store_destroy(served);
    horon_gloo_store_destroy(other);
    horon_gloo_store_destroy(next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c10d_server_that_leaves_answers_those_that_are_slow),
        cmocka_unit_test(test_c10d_server_that_leaves_sends_ranks_of_the_next_job_away),
        cmocka_unit_test(test_c10d_server_does_not_wait_for_those_that_are_silent),
        cmocka_unit_test(test_c10d_server_of_horons_alone_gives_the_next_one_the_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
