/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of torch until 2.0 find in the store once this one is connected with them. */
#undef NDEBUG
#include "boot/gloo/c10d_group.h"

#include "alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct horon_error error;
static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};
static char folder[] = "/tmp/horon-test-group-XXXXXX";

static struct horon_gloo_store *opened(const char *scheme, const char *prefix)
{
    char url[80];
    struct horon_gloo_store *store = NULL;
    snprintf(url, sizeof url, "%s%s%s", scheme, folder, scheme[0] == 'c' ? "/meet" : "");
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = prefix, .rank = 0, .size = 1, .wait = no_limit};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
    return store;
}

/* @return whether it is there, with these bytes */
static bool has(struct horon_gloo_store *store, const char *key, const void *bytes, size_t count)
{
    struct horon_gloo_value got;
    const horon_status_t status = store->ops->get(store, key, &got, &no_limit, &error);
    if (status != HORON_OK) {
        assert_int_equal(status, HORON_AGAIN);
        return false;
    }
    assert_int_equal(got.count, count);
    assert_memory_equal(got.bytes, bytes, count);
    horon_free(got.bytes);
    return true;
}

static bool meets(const char *prefix, const char *sequence_key, const char *count_key)
{
    struct horon_gloo_store *store = opened("c10d-file:", prefix);
    assert_int_equal(horon_gloo_c10d_group_meet(store, 1, &no_limit, &error), HORON_OK);
    assert_false(has(store, sequence_key, "", 0));
    const bool met = has(store, count_key, "1", 1);
    assert_int_equal(horon_gloo_c10d_group_meet(store, 0, &no_limit, &error), HORON_OK);
    assert_int_equal(has(store, sequence_key, "\0\0\0\0\0\0\0", 8), met);
    assert_int_equal(has(store, count_key, "2", 1), met);
    horon_gloo_store_destroy(store); /* which removes the file */
    return met;
}

static void test_c10d_group_is_met_by_torchs_keys(void **state)
{
    (void)state;
    assert_true(meets("default_pg/0/0", "default_pg/0/SEQ_NUM_STORE_KEY",
                      "default_pg/store_based_barrier_key:1"));
    assert_true(meets("default_pg/0//cpu//0", "default_pg/0//cpu//SEQ_NUM_STORE_KEY",
                      "default_pg/store_based_barrier_key:1"));
    assert_true(meets("default_pg/12/0", "default_pg/12/SEQ_NUM_STORE_KEY",
                      "default_pg/store_based_barrier_key:13"));
}

static void test_c10d_group_of_another_prefix_has_none(void **state)
{
    static const char *const prefixes[] = {"",
                                           "0",
                                           "a/0/0",
                                           "default_pg",
                                           "default_pg/0",
                                           "default_pg/x/0",
                                           "default_pg//0/0",
                                           "default_pg/-1/0",
                                           "default_pg/2147483647/0",
                                           "default_pg/0/1"};
    (void)state;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        assert_false(meets(prefixes[i], "default_pg/0/SEQ_NUM_STORE_KEY",
                           "default_pg/store_based_barrier_key:1"));
}

static void test_c10d_group_is_not_met_in_gloos_own_store(void **state)
{
    struct horon_gloo_store *store = opened("file:", "default_pg/0/0");
    (void)state;
    assert_int_equal(horon_gloo_c10d_group_meet(store, 0, &no_limit, &error), HORON_OK);
    assert_false(has(store, "default_pg/0/SEQ_NUM_STORE_KEY", "", 0));
    horon_gloo_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c10d_group_is_met_by_torchs_keys),
        cmocka_unit_test(test_c10d_group_of_another_prefix_has_none),
        cmocka_unit_test(test_c10d_group_is_not_met_in_gloos_own_store),
    };
    if (!mkdtemp(folder))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(folder) == 0 ? failed : 1;
}
