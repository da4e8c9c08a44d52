/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher tells the store of a rank that has ended well: who joins without it fails, and only
 * that one. */
#undef NDEBUG
#include "boot/store/core.h"

#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void note_wake(void *user)
{
    *(int *)user += 1;
}

static const char *host_of(void *arg, int rank)
{
    (void)arg;
    return rank < 2 ? "a" : "b";
}

static struct horon_store_core *make(int size)
{
    struct horon_store_core *core = horon_store_core_create(size, note_wake);
    assert_non_null(core);
    horon_store_core_name_hosts(core, host_of, NULL);
    return core;
}

static struct horon_store_member *join(struct horon_store_core *core, int rank, int *wakes)
{
    struct horon_store_member *member = NULL;
    *wakes = 0;
    assert_int_equal(horon_store_core_join(core, rank, wakes, &member), HORON_OK);
    return member;
}

static void put_last(struct horon_store_member *member)
{
    uint8_t frame[HORON_STORE_PUT_BYTES];
    struct horon_writer out = horon_writer_over(frame, sizeof frame);
    horon_write_u32(&out, HORON_STORE_PUT_BYTES - 4);
    horon_write_u8(&out, HORON_STORE_PUT);
    horon_write_u8(&out, 1);
    horon_write_u32(&out, 0);
    horon_write_u32(&out, HORON_STORE_NO_LIMIT);
    assert_int_equal(horon_store_core_feed(member, frame, out.used, 0), HORON_OK);
}

static void expect_silence(const struct horon_store_member *member)
{
    size_t bytes;
    assert_null(horon_store_core_out(member, &bytes));
}

/* What comes is one frame: that the session has failed, with this text. */
static void expect_fail(struct horon_store_member *member, const char *text)
{
    size_t bytes;
    const uint8_t *frame = horon_store_core_out(member, &bytes);
    assert_non_null(frame);
    struct horon_reader in = horon_reader_over(frame, bytes);
    assert_int_equal(horon_read_u32(&in), bytes - 4);
    assert_int_equal(horon_read_u8(&in), HORON_STORE_FAIL);
    assert_int_equal(horon_read_u8(&in), 0);
    assert_int_equal((int32_t)horon_read_u32(&in), HORON_ERR_PEER_LOST);
    assert_int_equal(in.limit - in.used, strlen(text));
    assert_memory_equal(frame + in.used, text, strlen(text));
    horon_store_core_sent(member, bytes);
}

static void test_store_ended_rank_fails_those_who_wait_for_it(void **state)
{
    struct horon_store_core *core = make(4);
    int wakes[2];
    (void)state;
    struct horon_store_member *waiting = join(core, 0, &wakes[0]);
    struct horon_store_member *idle = join(core, 2, &wakes[1]);
    put_last(waiting);
    horon_store_core_ended(core, 3);
    assert_int_equal(wakes[0], 1);
    assert_int_equal(wakes[1], 1);
    assert_false(horon_store_core_joined(core, 3));
    expect_fail(waiting, "of 4 ranks, rank 3 on b ended with status 0 without joining");
    expect_fail(idle, "of 4 ranks, rank 3 on b ended with status 0 without joining");
    horon_store_core_leave(waiting);
    horon_store_core_leave(idle);
    horon_store_core_destroy(core);
}

/* Not only a rank that has ended: any failure is news for who comes later. */
static void test_store_late_rank_hears_at_once_why_joining_failed(void **state)
{
    struct horon_store_core *core = make(3);
    int wakes[2];
    (void)state;
    struct horon_store_member *first = join(core, 0, &wakes[0]);
    assert_false(horon_store_core_has_news(core));
    horon_store_core_leave(join(core, 1, &wakes[1]));
    expect_fail(first, "of 3 ranks, rank 1 on a left while joining; rank 2 on b never came");
    assert_true(horon_store_core_has_news(core));
    struct horon_store_member *late = join(core, 2, &wakes[1]); /* and puts nothing */
    assert_int_equal(wakes[1], 1);
    expect_fail(late, "of 3 ranks, rank 1 on a left while joining; rank 2 on b never came");
    assert_false(horon_store_core_has_news(core));
    horon_store_core_leave(late);
    horon_store_core_leave(first);
    horon_store_core_destroy(core);
}

static void test_store_ended_ranks_fail_those_who_come(void **state)
{
    struct horon_store_core *core = make(4);
    int wakes[2];
    (void)state;
    for (int rank = -1; rank <= 4; rank++)
        if (rank == -1 || rank == 1 || rank == 2 || rank == 4)
            horon_store_core_ended(core, rank); /* nobody minds yet */
    struct horon_store_member *first = join(core, 3, &wakes[0]);
    assert_int_equal(wakes[0], 1);
    expect_fail(first, "of 4 ranks, ranks 1-2 on a, b ended with status 0 without joining");
    struct horon_store_member *second = join(core, 0, &wakes[1]);
    put_last(second);
    expect_fail(second, "of 4 ranks, ranks 1-2 on a, b ended with status 0 without joining");
    horon_store_core_leave(first);
    horon_store_core_leave(second);
    horon_store_core_destroy(core);
}

static void test_store_ended_rank_harms_no_session_that_it_was_in(void **state)
{
    struct horon_store_core *core = make(2);
    int wakes[2];
    (void)state;
    struct horon_store_member *stays = join(core, 0, &wakes[0]);
    struct horon_store_member *ends = join(core, 1, &wakes[1]);
    horon_store_core_ended(core, 1); /* faster than what its connection says */
    expect_silence(stays);
    put_last(ends);
    put_last(stays);
    size_t bytes;
    const uint8_t *answer = horon_store_core_out(stays, &bytes);
    assert_non_null(answer);
    assert_int_equal(answer[4], HORON_STORE_ALL);
    horon_store_core_sent(stays, bytes);
    horon_store_core_leave(ends);
    expect_silence(stays);
    struct horon_store_member *again = join(core, 0, &wakes[1]);
    expect_silence(stays);
    expect_fail(again, "of 2 ranks, rank 1 on a ended with status 0 without joining");
    horon_store_core_leave(stays);
    horon_store_core_leave(again);
    horon_store_core_destroy(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_ended_rank_fails_those_who_wait_for_it),
        cmocka_unit_test(test_store_late_rank_hears_at_once_why_joining_failed),
        cmocka_unit_test(test_store_ended_ranks_fail_those_who_come),
        cmocka_unit_test(test_store_ended_rank_harms_no_session_that_it_was_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
