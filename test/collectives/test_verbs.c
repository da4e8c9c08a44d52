/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the verbs: their names, and that what a row says is not at odds with itself. */
#undef NDEBUG
#include "verbs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_verbs_have_names(void **state)
{
    static const char *const names[] = {"allreduce", "broadcast", "allgather", "barrier",
                                        "alltoall",  "gather",    "scatter",   "reducescatter",
                                        "reduce",    "send",      "recv"};
    static const int none[] = {-1, HORON_VERB_COUNT, 255, INT32_MAX, INT32_MIN};
    (void)state;
    for (int i = 0; i < HORON_VERB_COUNT; i++)
        assert_string_equal(horon_verb_name((horon_verb_t)i), names[i]);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_string_equal(horon_verb_name((horon_verb_t)none[i]), "unknown");
}

static void test_verbs_rows_are_not_at_odds_with_themselves(void **state)
{
    (void)state;
    for (int i = 0; i < HORON_VERB_COUNT; i++) {
        const struct horon_verb_row *row = &horon_verb_rows[i];
        const bool moves = horon_verb_moves(row);
        assert_non_null(row->name);
        const bool reads = row->reads != HORON_RANKS_NONE;
        const bool writes = row->writes != HORON_RANKS_NONE;
        if (row->paired) /* one end reads, the other writes; the rest is of operations of a team */
            assert_true(moves && reads != writes && horon_verb_is_rooted(row) && !row->unnamed &&
                        !row->fusable && row->recipe == HORON_RECIPE_NONE);
        else
            assert_true(moves == reads && moves == writes);
        assert_true(moves || row->agrees == 0); /* of nothing there is nothing to agree on */
        assert_true(moves || !row->fusable);
        assert_true(!row->unnamed || !moves); /* its count says nothing of what it moves */
        if (row->unnamed)
            assert_true(strlen(row->unnamed) + strlen("18446744073709551615") <
                        HORON_VERB_UNNAMED_BYTES_MAX);
        assert_int_equal(horon_verb_reduces(row), row->joined == HORON_JOINED_NEUTRAL);
        assert_int_equal(horon_verb_rows_differ(row), row->ahead != HORON_AHEAD_NOTHING);
        assert_int_equal(horon_verb_rows_differ(row), row->joined == HORON_JOINED_NO_ROWS);
        assert_true(!row->fusable || !horon_verb_rows_differ(row));
        if (row->recipe != HORON_RECIPE_NONE)
            assert_int_not_equal(row->made_of, i);
        if (row->recipe == HORON_RECIPE_ROUNDS) {
            assert_true(row->ahead != HORON_AHEAD_NOTHING);
            assert_true(horon_verb_is_rooted(&horon_verb_rows[row->made_of]));
        }
        if (row->reads == HORON_RANKS_ROOT || row->writes == HORON_RANKS_ROOT)
            assert_true(horon_verb_is_rooted(row));
    }
}

static void test_verbs_say_how_much_travels_ahead(void **state)
{
    static const size_t words[][2] = {/* of one rank, and of 300 */
                                      [HORON_AHEAD_NOTHING] = {0, 0},
                                      [HORON_AHEAD_ROWS] = {1, 1},
                                      [HORON_AHEAD_SPLITS] = {1, 300}};
    (void)state;
    for (enum horon_ahead ahead = HORON_AHEAD_NOTHING; ahead <= HORON_AHEAD_SPLITS; ahead++) {
        const struct horon_verb_row row = {.ahead = ahead};
        assert_int_equal(horon_verb_ahead_words(&row, 1), words[ahead][0]);
        assert_int_equal(horon_verb_ahead_words(&row, 300), words[ahead][1]);
    }
}

static void test_verbs_have_one_for_words_that_reduces(void **state)
{
    (void)state;
    assert_true(horon_verb_reduces(&horon_verb_rows[horon_verb_of_words]));
}

static void test_verbs_say_which_ranks_read_and_write(void **state)
{
    (void)state;
    assert_false(horon_ranks_include(HORON_RANKS_NONE, 1, 1));
    assert_false(horon_ranks_include(HORON_RANKS_ROOT, 1, 0));
    assert_true(horon_ranks_include(HORON_RANKS_ROOT, 1, 1));
    assert_true(horon_ranks_include(HORON_RANKS_ALL, 1, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verbs_have_names),
        cmocka_unit_test(test_verbs_rows_are_not_at_odds_with_themselves),
        cmocka_unit_test(test_verbs_say_how_much_travels_ahead),
        cmocka_unit_test(test_verbs_have_one_for_words_that_reduces),
        cmocka_unit_test(test_verbs_say_which_ranks_read_and_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
