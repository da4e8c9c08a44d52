/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that meet through a space that strangers can read and write: a table of this process. One
 * rank after another, rank 0 first, as nobody waits for all. */
#undef NDEBUG
#include "boot/identity/meeting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, ENTRIES = 8 };

static struct {
    int count;
    char keys[ENTRIES][32], values[ENTRIES][HORON_SPACE_VALUE_BYTES];
} table;

static horon_status_t open_table(struct horon_space *space, struct horon_error *error)
{
    (void)error;
    strcpy(space->name, "table");
    return HORON_OK;
}

static horon_status_t put(struct horon_space *space, const char *key, const char *value,
                          struct horon_error *error)
{
    (void)space;
    (void)error;
    assert_true(table.count < ENTRIES);
    strcpy(table.keys[table.count], key);
    strcpy(table.values[table.count++], value);
    return HORON_OK;
}

/* What came last counts. */
static char *find(const char *key)
{
    for (int i = table.count; i-- > 0;)
        if (strcmp(table.keys[i], key) == 0)
            return table.values[i];
    return NULL;
}

static horon_status_t get(struct horon_space *space, int rank, const char *key,
                          char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    (void)space;
    (void)rank;
    (void)error;
    if (!find(key))
        return HORON_AGAIN;
    strcpy(value, find(key));
    return HORON_OK;
}

static horon_status_t await(struct horon_space *space, int rank, const char *key,
                            char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    const horon_status_t status = get(space, rank, key, value, error);
    return status == HORON_AGAIN ? horon_error_set(error, HORON_ERR_TIMEOUT, "in vain") : status;
}

static horon_status_t end_at_exit(const struct horon_space *space, struct horon_error *error)
{
    (void)space;
    (void)error;
    return HORON_OK;
}

static void close_table(struct horon_space *space)
{
    (void)space;
}

static const struct horon_space_calls public_calls = {
    .name = "table",
    .waits_for_one = true,
    .is_public = true,
    .open = open_table,
    .put = put,
    .get = get,
    .await = await,
    .end_at_exit = end_at_exit,
    .close = close_table,
};

/* @param key as the user gave it; then as it is */
static horon_status_t hold(int rank, int local, char key[HORON_KEY_TEXT_BYTES],
                           struct horon_identity *id, struct horon_error *error)
{
    static struct horon_config config;
    struct horon_space space = {.calls = &public_calls, .rank = rank};
    *id = (struct horon_identity){.rank = rank, .size = RANKS, .local_size = local};
    return horon_meeting_hold(id, &config, &space, key, error);
}

static void hold_all(int local, const char *given, char keys[RANKS][HORON_KEY_TEXT_BYTES])
{
    struct horon_error error;
    struct horon_identity ids[RANKS];
    memset(&table, 0, sizeof table);
    for (int i = 0; i < RANKS; i++) {
        strcpy(keys[i], given);
        assert_int_equal(hold(i, local, keys[i], &ids[i], &error), HORON_OK);
        assert_string_equal(ids[i].store, ids[0].store);
    }
}

static bool anybody_can_read(const char *text)
{
    bool there = false;
    for (int i = 0; i < table.count; i++)
        there = there || strstr(table.values[i], text);
    return there;
}

static char keys[RANKS][HORON_KEY_TEXT_BYTES];

static void test_meeting_in_public_tells_no_key_on_one_host(void **state)
{
    (void)state;
    hold_all(RANKS, "", keys);
    for (int i = 0; i < RANKS; i++)
        assert_string_equal(keys[i], ""); /* that of their user */
    assert_non_null(strstr(find("horon"), "1,.,127.0.0.1:"));
}

static void test_meeting_in_public_tells_a_fresh_key_on_several(void **state)
{
    (void)state;
    hold_all(1, "", keys);
    assert_int_equal(strlen(keys[0]), 64);
    for (int i = 0; i < RANKS; i++)
        assert_string_equal(keys[i], keys[0]);
    assert_true(anybody_can_read(keys[0]));
}

static void test_meeting_in_public_keeps_the_users_key(void **state)
{
    (void)state;
    for (int local = RANKS; local >= 1; local -= 2) {
        hold_all(local, "the user's", keys);
        assert_string_equal(keys[2], "the user's");
        assert_false(anybody_can_read("the user's"));
    }
}

static void test_meeting_takes_no_stranger_at_their_word(void **state)
{
    static const struct {
        int local;
        const char *left;
        horon_status_t status;
    } cases[] = {
        /* a key where ranks have their user's, and a user's key where they are on several hosts */
        {RANKS, "1,0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef,127.0.0.1:5",
         HORON_ERR_PROTO},
        {1, "1,.,127.0.0.1:5", HORON_ERR_PROTO},
        {RANKS, "1,-,127.0.0.1:5", HORON_ERR_CONFIG},
        {1, "1,,127.0.0.1:5", HORON_ERR_PROTO},
        {1, "1,short,127.0.0.1:5", HORON_ERR_PROTO},
        {1, "", HORON_ERR_PROTO},
        {1, "1", HORON_ERR_PROTO},
        {1, "1,", HORON_ERR_PROTO},
        {1, "2,.,127.0.0.1:5", HORON_ERR_PROTO},
        {RANKS, "1,.,", HORON_ERR_PROTO},
        {RANKS, "1,.,a name:5", HORON_ERR_PROTO},
        {RANKS, "1,.,127.0.0.1:99999", HORON_ERR_PROTO},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horon_error error;
        struct horon_identity id;
        memset(&table, 0, sizeof table);
        put(NULL, "horon", cases[i].left, NULL);
        keys[1][0] = 0;
        print_message("%s\n", cases[i].left);
        assert_int_equal(hold(1, cases[i].local, keys[1], &id, &error), cases[i].status);
        assert_string_equal(keys[1], "");
        assert_false(id.told);
    }
}

static void test_meeting_in_public_leaves_it_to_the_space_what_was_in_vain(void **state)
{
    struct horon_error error;
    struct horon_identity id;
    (void)state;
    memset(&table, 0, sizeof table);
    keys[1][0] = 0;
    assert_int_equal(hold(1, 1, keys[1], &id, &error), HORON_ERR_TIMEOUT);
    assert_string_equal(error.text, "in vain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meeting_in_public_tells_no_key_on_one_host),
        cmocka_unit_test(test_meeting_in_public_tells_a_fresh_key_on_several),
        cmocka_unit_test(test_meeting_in_public_keeps_the_users_key),
        cmocka_unit_test(test_meeting_takes_no_stranger_at_their_word),
        cmocka_unit_test(test_meeting_in_public_leaves_it_to_the_space_what_was_in_vain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
