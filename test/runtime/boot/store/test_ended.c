/* SPDX-License-Identifier: Apache-2.0 */
/* What the core says of ranks that are missing. A launcher tells it of one that has ended well: a
 * rank that joins without it fails, and no other. */
#undef NDEBUG
#include "boot/store/server.h"

#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

struct client {
    struct horon_store_member *member;
};

enum { RANKS_MAX = 64 };

static const char *host_of(void *arg, int rank)
{
    (void)arg;
    return rank < 2 ? "a" : "b";
}

static struct horon_store_server *make(int size)
{
    const struct horon_store_server_options options = {.self.hello.size = (uint32_t)size,
                                                       .host_of = host_of};
    struct horon_store_server *core = horon_store_server_create(&options);
    assert_non_null(core);
    return core;
}

static void join(struct horon_store_server *core, int rank, struct client *client)
{
    assert_int_equal(horon_store_server_join(core, rank, &client->member), HORON_OK);
}

static void put_last(struct client *client)
{
    static const uint8_t body[] = {1, 0, 0, 0, 0};
    struct horon_reader in = horon_reader_over(body, sizeof body);
    struct horon_store_stream *stream = &client->member->stream;
    assert_int_equal(stream->take(stream->arg, HORON_STORE_PUT, &in), HORON_OK);
}

/* What comes is one frame: that the session has failed, with this text. */
static void expect_fail(struct client *client, const char *text)
{
    struct horon_store_letter **letters = client->member->stream.letters;
    const struct horon_store_letter *letter = letters[0];
    assert_non_null(letter);
    assert_null(letters[1]);
    struct horon_error why;
    bool whole;
    struct horon_reader in = horon_reader_over(letter->data, letter->bytes);
    assert_int_equal(horon_read_u32(&in), letter->bytes - 4);
    assert_int_equal(horon_read_u8(&in), HORON_STORE_FAIL);
    assert_true(horon_store_failure_read(&in, RANKS_MAX, &why, &whole));
    assert_false(whole);
    assert_int_equal(why.status, HORON_ERR_PEER_LOST);
    assert_int_equal(why.blame.cause, HORON_CAUSE_ABSENT);
    assert_string_equal(why.text, text);
    horon_store_letter_drop(letters[0]);
    letters[0] = NULL;
}

static void test_store_ended_rank_fails_ranks_that_wait_for_it(void **state)
{
    struct horon_store_server *core = make(4);
    struct client waiting, idle;
    (void)state;
    join(core, 0, &waiting);
    join(core, 2, &idle);
    put_last(&waiting);
    horon_store_server_tell(core, 3, NULL);
    expect_fail(&waiting, "of 4 ranks, rank 3 on b ended with status 0 without joining");
    expect_fail(&idle, "of 4 ranks, rank 3 on b ended with status 0 without joining");
    horon_store_server_leave(waiting.member);
    horon_store_server_leave(idle.member);
    horon_store_server_destroy(core);
}

/* Not only a rank that has ended: any failure is news for those that come later. */
static void test_store_late_rank_hears_at_once_why_joining_failed(void **state)
{
    struct horon_store_server *core = make(3);
    struct client first, left, late;
    (void)state;
    join(core, 0, &first);
    join(core, 1, &left);
    assert_false(horon_store_server_has_news(core));
    horon_store_server_leave(left.member);
    expect_fail(&first, "of 3 ranks, rank 1 on a left while joining; rank 2 on b never came");
    assert_true(horon_store_server_has_news(core));
    join(core, 2, &late); /* and puts nothing */
    expect_fail(&late, "of 3 ranks, rank 1 on a left while joining; rank 2 on b never came");
    assert_false(horon_store_server_has_news(core));
    horon_store_server_leave(late.member);
    horon_store_server_leave(first.member);
    horon_store_server_destroy(core);
}

static void expect_awaits(const struct horon_store_server *core, const char *expected)
{
    char text[HORON_ERROR_TEXT_BYTES] = "";
    assert_int_equal(horon_store_server_awaits(core, text, sizeof text), expected != NULL);
    if (expected)
        assert_string_equal(text, expected);
}

static void test_store_says_which_ranks_others_wait_for(void **state)
{
    struct horon_store_server *core = make(3);
    struct client clients[3];
    (void)state;
    expect_awaits(core, NULL);
    join(core, 0, &clients[0]);
    join(core, 1, &clients[1]);
    expect_awaits(core, NULL); /* nobody waits here */
    put_last(&clients[0]);
    expect_awaits(core, "of 3 ranks, rank 2 on b did not come yet; rank 1 on a came but went no "
                        "further");
    join(core, 2, &clients[2]);
    put_last(&clients[2]);
    expect_awaits(core, "of 3 ranks, rank 1 on a came but went no further");
    put_last(&clients[1]);
    expect_awaits(core, NULL); /* all have joined */
    for (int r = 0; r < 3; r++)
        horon_store_server_leave(clients[r].member);
    horon_store_server_destroy(core);
}

static void test_store_ended_ranks_fail_ranks_that_come(void **state)
{
    struct horon_store_server *core = make(4);
    struct client first, second;
    (void)state;
    for (int rank = -1; rank <= 4; rank++)
        if (rank == -1 || rank == 1 || rank == 2 || rank == 4)
            horon_store_server_tell(core, rank, NULL); /* nobody minds yet */
    join(core, 3, &first);
    expect_fail(&first, "of 4 ranks, ranks 1-2 on a, b ended with status 0 without joining");
    join(core, 0, &second);
    expect_fail(&second, "of 4 ranks, ranks 1-2 on a, b ended with status 0 without joining");
    horon_store_server_leave(first.member);
    horon_store_server_leave(second.member);
    horon_store_server_destroy(core);
}

static void test_store_ended_rank_harms_no_session_that_it_was_in(void **state)
{
    struct horon_store_server *core = make(2);
    struct client stays, ends, again;
    (void)state;
    join(core, 0, &stays);
    join(core, 1, &ends);
    horon_store_server_tell(core, 1, NULL); /* faster than what its connection says */
    assert_null(stays.member->stream.letters[0]);
    put_last(&ends);
    put_last(&stays);
    assert_int_equal(stays.member->stream.letters[0]->data[4], HORON_STORE_ALL);
    assert_null(stays.member->stream.letters[1]);
    horon_store_letter_drop(stays.member->stream.letters[0]);
    stays.member->stream.letters[0] = NULL;
    horon_store_server_leave(ends.member);
    join(core, 0, &again);
    assert_null(stays.member->stream.letters[0]);
    expect_fail(&again, "of 2 ranks, rank 1 on a ended with status 0 without joining");
    horon_store_server_leave(stays.member);
    horon_store_server_leave(again.member);
    horon_store_server_destroy(core);
}

/* At once, and whenever anybody joins again: it was waited for from the second time on. */
static void test_store_failed_rank_fails_all_that_come(void **state)
{
    struct horon_store_server *core = make(4);
    struct client waiting, again;
    struct horon_error why, heard;
    bool whole = false;
    (void)state;
    join(core, 0, &waiting);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "rank 3 was killed");
    horon_store_server_tell(core, 3, &why);
    struct horon_store_letter **letters = waiting.member->stream.letters;
    assert_non_null(letters[0]);
    struct horon_reader in = horon_reader_over(letters[0]->data + 5, letters[0]->bytes - 5);
    assert_true(horon_store_failure_read(&in, RANKS_MAX, &heard, &whole));
    assert_true(whole);
    assert_string_equal(heard.text, "rank 3 was killed");
    horon_store_server_leave(waiting.member);
    horon_store_server_tell(core, 1, NULL);
    join(core, 0, &again);
    expect_fail(&again, "of 4 ranks, rank 3 on b failed without joining; rank 1 on a ended with "
                        "status 0 without joining");
    horon_store_server_leave(again.member);
    horon_store_server_destroy(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_ended_rank_fails_ranks_that_wait_for_it),
        cmocka_unit_test(test_store_late_rank_hears_at_once_why_joining_failed),
        cmocka_unit_test(test_store_says_which_ranks_others_wait_for),
        cmocka_unit_test(test_store_ended_ranks_fail_ranks_that_come),
        cmocka_unit_test(test_store_ended_rank_harms_no_session_that_it_was_in),
        cmocka_unit_test(test_store_failed_rank_fails_all_that_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
