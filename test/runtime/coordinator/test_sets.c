/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of process sets, what ranks propose to change in it, and what all decide from the
 * proposals of all: each alone, with the bytes of peers as they may come, cut and bent.
 */
#undef NDEBUG
#include "alloc.h"
#include "coordinator/sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 5, BYTES = RANKS * 2048 };

static const char *const names[RANKS] = {"rank 0 (a)", "rank 1 (a)", "rank 2 (b)", "rank 3 (b)",
                                         "rank 4 (c)"};

static int32_t add(struct horon_sets *sets, int32_t a, int32_t b)
{
    int32_t ranks[] = {a, b};
    struct horon_error error = {0};
    assert_int_equal(horon_sets_check(sets, ranks, 2, &error), HORON_OK);
    struct horon_set *set = horon_sets_make(sets, ranks, 2);
    assert_non_null(set);
    horon_sets_enter(sets, set);
    assert_ptr_equal(horon_sets_find(sets, set->id), set);
    return set->id;
}

static void take_away(struct horon_sets *sets, int32_t id)
{
    struct horon_set *set = horon_sets_find(sets, id);
    horon_sets_remove(sets, set);
    horon_free(set);
    assert_null(horon_sets_find(sets, id));
}

static void test_sets_use_the_id_again_that_was_free_for_longest(void **state)
{
    struct horon_sets sets;
    (void)state;
    assert_int_equal(horon_sets_init(&sets, RANKS), HORON_OK);
    assert_int_equal(horon_sets_find(&sets, 0)->size, RANKS);
    assert_int_equal(add(&sets, 0, 1), 1);
    assert_int_equal(add(&sets, 0, 2), 2);
    assert_int_equal(add(&sets, 0, 3), 3);
    take_away(&sets, 3);
    take_away(&sets, 1);
    assert_int_equal(add(&sets, 1, 2), 3);
    take_away(&sets, 2);
    assert_int_equal(add(&sets, 1, 3), 1);
    assert_int_equal(add(&sets, 1, 4), 2);
    assert_int_equal(add(&sets, 2, 4), 4);
    assert_int_equal(sets.count, 5);
    assert_null(horon_sets_find(&sets, -1));
    assert_null(horon_sets_find(&sets, 1000));
    horon_sets_deinit(&sets);
}

static void test_sets_number_ranks_in_the_order_of_the_job(void **state)
{
    struct horon_sets sets;
    (void)state;
    assert_int_equal(horon_sets_init(&sets, RANKS), HORON_OK);
    const struct horon_set *set = horon_sets_find(&sets, add(&sets, 4, 1));
    assert_int_equal(horon_set_find_rank(set, 1), 0);
    assert_int_equal(horon_set_find_rank(set, 4), 1);
    assert_int_equal(horon_set_find_rank(set, 2), -1);
    horon_sets_deinit(&sets);
}

static void expect_refused(const struct horon_sets *sets, const int32_t *ranks, size_t count,
                           const char *text)
{
    int32_t copy[8] = {0};
    struct horon_error error = {0};
    if (count)
        memcpy(copy, ranks, count * sizeof *ranks);
    assert_int_equal(horon_sets_check(sets, copy, count, &error), HORON_ERR_INVALID);
    assert_string_equal(error.text, text);
}

static void test_sets_that_cannot_be_are_refused(void **state)
{
    struct horon_sets sets;
    (void)state;
    assert_int_equal(horon_sets_init(&sets, RANKS), HORON_OK);
    add(&sets, 3, 1);
    expect_refused(&sets, NULL, 0, "a process set has one rank at least");
    expect_refused(&sets, (int32_t[]){1, 5}, 2, "5 is no rank of 0..4");
    expect_refused(&sets, (int32_t[]){1, -1}, 2, "-1 is no rank of 0..4");
    expect_refused(&sets, (int32_t[]){2, 0, 2}, 3, "rank 2 is twice in the process set");
    expect_refused(&sets, (int32_t[]){1, 3}, 2, "process set 1 has the same ranks already");
    expect_refused(&sets, (int32_t[]){4, 3, 2, 1, 0}, 5,
                   "process set 0 has the same ranks already");
    horon_sets_deinit(&sets);
}

/* ---- proposals ------------------------------------------------------------------------------ */

struct meeting {
    struct horon_sets sets;
    uint8_t bytes[BYTES];
    size_t used;
    const char *backends;
};

/* What a rank proposes: a bit for each rank to add, the id to remove below 0, or why it refuses. */
static void propose(struct meeting *meeting, uint32_t newest, int what, const char *refusal)
{
    struct horon_writer out =
        horon_writer_over(meeting->bytes + meeting->used, horon_proposal_bytes_max(RANKS));
    int32_t ranks[RANKS];
    size_t count = 0;
    struct horon_error why;
    meeting->sets.newest_team = newest;
    for (int32_t rank = 0; rank < RANKS; rank++)
        if (what > 0 && what & 1 << rank)
            ranks[count++] = rank;
    horon_error_set(&why, HORON_ERR_INVALID, "%s", refusal ? refusal : "");
    if (refusal)
        horon_proposal_refuse(&out, &meeting->sets, &why);
    else if (what > 0)
        horon_proposal_add(&out, &meeting->sets, ranks, count,
                           meeting->backends ? meeting->backends : "");
    else if (what < 0)
        horon_proposal_remove(&out, &meeting->sets, -what);
    else
        horon_proposal_made(&out, &meeting->sets);
    meeting->used += out.used;
}

static void expect(const int what[RANKS], int refuses, horon_status_t status, const char *text)
{
    static struct meeting meeting;
    struct horon_error error = {0};
    uint32_t newest = 0;
    meeting.used = 0;
    assert_int_equal(horon_sets_init(&meeting.sets, RANKS), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++)
        propose(&meeting, rank == 3 ? 41 : 7, what[rank], rank >= refuses ? "no" : NULL);
    assert_int_equal(
        horon_proposals_decide(&meeting.sets, meeting.bytes, meeting.used, names, &newest, &error),
        status);
    if (status == HORON_OK)
        assert_int_equal(newest, 41);
    else
        assert_string_equal(error.text, text);
    horon_sets_deinit(&meeting.sets);
}

static void test_sets_are_changed_if_all_propose_the_same(void **state)
{
    (void)state;
    expect((int[]){6, 6, 6, 6, 6}, RANKS, HORON_OK, "");
    expect((int[]){-3, -3, -3, -3, -3}, RANKS, HORON_OK, "");
    expect((int[]){0, 0, 0, 0, 0}, RANKS, HORON_OK, "");
}

/* Ranks may say differently whether the set is settled, say: what one does not say, they do not. */
static void test_sets_are_said_of_what_all_ranks_say(void **state)
{
    struct horon_sets sets;
    uint8_t bytes[RANKS * 32];
    (void)state;
    assert_int_equal(horon_sets_init(&sets, RANKS), HORON_OK);
    for (int other = 0; other <= RANKS; other++) {
        struct horon_error error = {0};
        size_t used = 0;
        uint32_t newest;
        for (int rank = 0; rank < RANKS; rank++) {
            struct horon_writer out = horon_writer_over(bytes + used, sizeof bytes - used);
            horon_proposal_parted(&out, &sets, rank == other ? 2 : 3);
            used += out.used;
        }
        assert_int_equal(horon_proposals_decide(&sets, bytes, used, names, &newest, &error),
                         HORON_OK);
        assert_int_equal(horon_proposals_said(bytes, used), other == RANKS ? 3 : 2);
    }
    assert_int_equal(horon_proposals_said(bytes, 0), 0);
    horon_sets_deinit(&sets);
}

static void test_sets_have_an_end(void **state)
{
    static struct meeting meeting;
    struct horon_error error = {0};
    uint32_t newest = 0;
    (void)state;
    assert_int_equal(horon_sets_init(&meeting.sets, RANKS), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++)
        propose(&meeting, rank == 2 ? UINT32_MAX : 0, 6, NULL);
    assert_int_equal(
        horon_proposals_decide(&meeting.sets, meeting.bytes, meeting.used, names, &newest, &error),
        HORON_ERR_UNSUPPORTED);
    assert_int_equal(newest, 0);
    horon_sets_deinit(&meeting.sets);
}

static void test_sets_that_ranks_propose_differently_are_named(void **state)
{
    (void)state;
    expect((int[]){6, 6, 22, 6, 7}, RANKS, HORON_ERR_MISMATCH,
           "rank 0 (a) adds a process set of ranks 1, 2, and rank 2 (b) adds a process set of "
           "ranks 1, 2, 4");
    expect((int[]){-3, -2, -3, -3, -3}, RANKS, HORON_ERR_MISMATCH,
           "rank 0 (a) removes process set 3, and rank 1 (a) removes process set 2");
    expect((int[]){1, 1, 1, 1, -1}, RANKS, HORON_ERR_MISMATCH,
           "rank 0 (a) adds a process set of ranks 0, and rank 4 (c) removes process set 1");
}

static void test_sets_that_ranks_leave_to_different_backends_are_named(void **state)
{
    static struct meeting meeting;
    struct horon_error error = {0};
    uint32_t newest = 0;
    (void)state;
    assert_int_equal(horon_sets_init(&meeting.sets, RANKS), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        meeting.backends = rank == 3 ? "mpi,native" : "";
        propose(&meeting, 7, 6, NULL);
    }
    assert_int_equal(
        horon_proposals_decide(&meeting.sets, meeting.bytes, meeting.used, names, &newest, &error),
        HORON_ERR_MISMATCH);
    assert_string_equal(error.text, "rank 0 (a) adds a process set of ranks 1, 2, and rank 3 (b) "
                                    "adds a process set by mpi,native of ranks 1, 2");
    horon_sets_deinit(&meeting.sets);
}

static void test_sets_that_a_rank_refuses_are_refused_by_all(void **state)
{
    (void)state;
    for (int first = 0; first < RANKS; first++) {
        char text[64];
        snprintf(text, sizeof text, "%s: no", names[first]);
        expect((int[]){6, 6, 6, 6, 6}, first, HORON_ERR_INVALID, text);
        expect((int[]){6, 22, 6, -2, 6}, first, HORON_ERR_INVALID, text);
    }
}

static void test_sets_of_two_meetings_make_no_sense(void **state)
{
    (void)state;
    expect((int[]){6, 6, 0, 6, 6}, RANKS, HORON_ERR_PROTO,
           "rank 2 (b) proposes no change of process sets that makes sense");
    expect((int[]){0, 0, 0, -3, 0}, RANKS, HORON_ERR_PROTO,
           "rank 3 (b) proposes no change of process sets that makes sense");
    expect((int[]){-3, 0, -3, -3, -3}, RANKS, HORON_ERR_PROTO,
           "rank 1 (a) proposes no change of process sets that makes sense");
}

/* All alike, but none that there is. */
static void test_sets_of_an_unknown_proposal_make_no_sense(void **state)
{
    static struct meeting meeting;
    (void)state;
    assert_int_equal(horon_sets_init(&meeting.sets, RANKS), HORON_OK);
    for (unsigned kind = 0; kind < 256; kind += kind == 0 ? 5 : 1) {
        struct horon_error error = {0};
        uint32_t newest = 0;
        meeting.used = 0;
        for (int rank = 0; rank < RANKS; rank++) {
            propose(&meeting, 1, 0, NULL);
            meeting.bytes[meeting.used - 1] = (uint8_t)kind;
        }
        assert_int_equal(horon_proposals_decide(&meeting.sets, meeting.bytes, meeting.used, names,
                                                &newest, &error),
                         HORON_ERR_PROTO);
    }
    horon_sets_deinit(&meeting.sets);
}

/* A list that no text has room for. */
static void test_sets_of_many_ranks_are_told_as_far_as_there_is_room(void **state)
{
    enum { MANY = 600 };
    static uint8_t bytes[MANY * (MANY + 4) * 4];
    static const char *many_names[MANY];
    static int32_t ranks[MANY];
    struct horon_sets sets;
    struct horon_error error = {0};
    size_t used = 0;
    uint32_t newest;
    (void)state;
    assert_int_equal(horon_sets_init(&sets, MANY), HORON_OK);
    for (int32_t rank = 0; rank < MANY; rank++) {
        struct horon_writer out = horon_writer_over(bytes + used, horon_proposal_bytes_max(MANY));
        ranks[rank] = rank;
        many_names[rank] = "rank";
        for (int32_t i = 0; i < MANY; i++)
            ranks[i] = i;
        horon_proposal_add(&out, &sets, ranks, (size_t)(MANY - rank % 2), "");
        used += out.used;
    }
    assert_int_equal(horon_proposals_decide(&sets, bytes, used, many_names, &newest, &error),
                     HORON_ERR_MISMATCH);
    assert_non_null(strstr(error.text, "0, 1, 2"));
    assert_non_null(strstr(error.text, ", ..., and rank adds"));
    horon_sets_deinit(&sets);
}

/* Those that have joined give no rows to the meeting, so that whose the others are is not known. */
static void without_joined(const char *refusal)
{
    static struct meeting meeting;
    struct horon_error error = {0};
    uint32_t newest = 0;
    meeting.used = 0;
    assert_int_equal(horon_sets_init(&meeting.sets, RANKS), HORON_OK);
    for (int rank = 0; rank < RANKS - 2; rank++)
        propose(&meeting, 1, 6, rank == 1 ? refusal : NULL);
    assert_int_equal(
        horon_proposals_decide(&meeting.sets, meeting.bytes, meeting.used, names, &newest, &error),
        HORON_ERR_MISMATCH);
    char text[100];
    snprintf(text, sizeof text, "2 of the %d ranks have joined", RANKS);
    assert_non_null(strstr(error.text, text));
    assert_int_equal(error.blame.cause, HORON_CAUSE_JOINED);
    assert_int_equal(error.blame.rank, -1);
    horon_sets_deinit(&meeting.sets);
}

static void test_sets_are_not_changed_without_ranks_that_joined(void **state)
{
    (void)state;
    without_joined(NULL);
    without_joined("because");
}

/* Whatever the bytes are, a decision comes of them, and nothing beyond them is read. */
static void test_sets_are_not_changed_by_what_makes_no_sense(void **state)
{
    static struct meeting meeting;
    uint32_t newest = 0;
    (void)state;
    assert_int_equal(horon_sets_init(&meeting.sets, RANKS), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++)
        propose(&meeting, 1, 6, rank == 4 ? "because" : NULL);
    for (size_t bytes = 0; bytes < meeting.used; bytes++) {
        uint8_t *cut = horon_alloc(bytes);
        struct horon_error error = {0};
        memcpy(cut, meeting.bytes, bytes);
        const horon_status_t status =
            horon_proposals_decide(&meeting.sets, cut, bytes, names, &newest, &error);
        if (status == HORON_ERR_MISMATCH) /* it ends behind a proposal */
            assert_non_null(strstr(error.text, "have joined"));
        else
            assert_int_equal(status, HORON_ERR_PROTO);
        horon_free(cut);
    }
    for (size_t at = 0; at < meeting.used; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            struct horon_error error = {0};
            meeting.bytes[at] ^= (uint8_t)(1u << bit);
            const horon_status_t status = horon_proposals_decide(
                &meeting.sets, meeting.bytes, meeting.used, names, &newest, &error);
            assert_true(status < 0);
            assert_true(error.text[0]);
            meeting.bytes[at] ^= (uint8_t)(1u << bit);
        }
    horon_sets_deinit(&meeting.sets);
}

/* ---- the option ----------------------------------------------------------------------------- */

static void test_sets_of_the_option_are_read(void **state)
{
    static const struct {
        const char *text;
        int members; /* by bits; -1: it is wrong */
        size_t left; /* characters behind it */
        const char *backends;
    } cases[] = {
        {"0", 1, 0, ""},
        {"4,0", 17, 0, ""},
        {"1-3", 14, 0, ""},
        {"0,2-3;1", 13, 1, ""},
        {"3-3;", 8, 0, ""},
        {"", -1, 0, ""},
        {";", -1, 0, ""},
        {"1,", -1, 0, ""},
        {",1", -1, 0, ""},
        {"5", -1, 0, ""},
        {"3-1", -1, 0, ""},
        {"-1", -1, 0, ""},
        {"0-9", -1, 0, ""},
        {"1 2", -1, 0, ""},
        {"x", -1, 0, ""},
        {"1-", -1, 0, ""},
        {"1--2", -1, 0, ""},
        {"99999999999999999999", -1, 0, ""},
        {"0,2@mpi", 5, 0, "mpi"},
        {"1@mpi,native;3", 2, 1, "mpi,native"},
        {"1@", -1, 0, ""},
        {"@mpi", -1, 0, ""},
        {"1@;2", -1, 0, ""},
        {"1@a234567890123456789012345678901234567890123456789012345678901234", -1, 0, ""},
        {"1@a23456789012345678901234567890123456789012345678901234567890123", 2, 0,
         "a23456789012345678901234567890123456789012345678901234567890123"},
    };
    struct horon_sets sets;
    (void)state;
    assert_int_equal(horon_sets_init(&sets, RANKS), HORON_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *at = cases[i].text;
        struct horon_error error = {0};
        int32_t ranks[RANKS];
        size_t count = 0;
        int members = 0;
        char backends[HORON_SETS_BACKENDS_BYTES];
        const horon_status_t status = horon_sets_parse(&sets, &at, ranks, &count, backends, &error);
        for (size_t j = 0; j < count; j++)
            members |= 1 << ranks[j];
        assert_int_equal(status, cases[i].members < 0 ? HORON_ERR_CONFIG : HORON_OK);
        if (status == HORON_OK) {
            assert_int_equal(members, cases[i].members);
            assert_int_equal(strlen(at), cases[i].left);
            assert_string_equal(backends, cases[i].backends);
        }
    }
    horon_sets_deinit(&sets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets_use_the_id_again_that_was_free_for_longest),
        cmocka_unit_test(test_sets_number_ranks_in_the_order_of_the_job),
        cmocka_unit_test(test_sets_that_cannot_be_are_refused),
        cmocka_unit_test(test_sets_are_said_of_what_all_ranks_say),
        cmocka_unit_test(test_sets_are_changed_if_all_propose_the_same),
        cmocka_unit_test(test_sets_have_an_end),
        cmocka_unit_test(test_sets_that_ranks_propose_differently_are_named),
        cmocka_unit_test(test_sets_that_ranks_leave_to_different_backends_are_named),
        cmocka_unit_test(test_sets_that_a_rank_refuses_are_refused_by_all),
        cmocka_unit_test(test_sets_of_two_meetings_make_no_sense),
        cmocka_unit_test(test_sets_of_an_unknown_proposal_make_no_sense),
        cmocka_unit_test(test_sets_of_many_ranks_are_told_as_far_as_there_is_room),
        cmocka_unit_test(test_sets_are_not_changed_without_ranks_that_joined),
        cmocka_unit_test(test_sets_are_not_changed_by_what_makes_no_sense),
        cmocka_unit_test(test_sets_of_the_option_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
