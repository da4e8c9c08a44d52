/* SPDX-License-Identifier: Apache-2.0 */
/* The table of names in use: one entry a name, alive while somebody refers to it, and for a while
 * longer. */
#undef NDEBUG
#include "engine/names.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_names_of_one_text_are_one_entry(void **state)
{
    struct horon_names names;
    (void)state;
    assert_int_equal(horon_names_init(&names, 0), HORON_OK);
    struct horon_name *a = horon_names_get(&names, 0, "a"), *b = horon_names_get(&names, 0, "b");
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
    assert_string_equal(a->text, "a");
    assert_false(atomic_load(&a->in_flight));
    atomic_store(&a->in_flight, true);
    assert_ptr_equal(horon_names_get(&names, 0, "a"), a);
    assert_int_equal(names.entry_count, 2);
    horon_names_put(&names, a);
    assert_int_equal(names.entry_count, 2); /* one refers to it still */
    assert_true(atomic_load(&horon_names_get(&names, 0, "a")->in_flight));
    horon_names_put(&names, a);
    horon_names_put(&names, a);
    assert_int_equal(names.entry_count, 1);
    a = horon_names_get(&names, 0, "a"); /* it died with its last reference, and its mark */
    assert_false(atomic_load(&a->in_flight));
    horon_names_put(&names, a);
    horon_names_put(&names, b);
    assert_int_equal(names.entry_count, 0);
    horon_names_deinit(&names);
}

static void test_names_differ_in_any_byte_and_length(void **state)
{
    static const char *const texts[] = {"x",  "xx", "xy",  "yx",       "X",
                                        " x", "x ", "x\n", "\xc3\xa4", "\xc3\xb6"};
    struct horon_names names;
    struct horon_name *all[sizeof texts / sizeof texts[0]];
    (void)state;
    assert_int_equal(horon_names_init(&names, 0), HORON_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        all[i] = horon_names_get(&names, 0, texts[i]);
        assert_string_equal(all[i]->text, texts[i]);
        for (size_t k = 0; k < i; k++)
            assert_ptr_not_equal(all[k], all[i]);
    }
    horon_names_deinit(&names); /* takes those along that nobody gave back */
}

/* Far more than there are buckets at first, given back in another order. */
static void test_names_by_the_thousand_are_found_while_the_table_grows(void **state)
{
    enum { COUNT = 5003 };
    static struct horon_name *all[COUNT];
    struct horon_names names;
    char text[32];
    (void)state;
    assert_int_equal(horon_names_init(&names, 0), HORON_OK);
    size_t buckets = names.bucket_count;
    for (int i = 0; i < COUNT; i++) {
        snprintf(text, sizeof text, "layer.%d.weight", i);
        all[i] = horon_names_get(&names, 0, text);
        assert_non_null(all[i]);
    }
    assert_true(names.bucket_count >= COUNT / 2 && names.bucket_count > buckets);
    for (int i = 0; i < COUNT; i++) {
        snprintf(text, sizeof text, "layer.%d.weight", i);
        assert_ptr_equal(horon_names_get(&names, 0, text), all[i]);
        horon_names_put(&names, all[i]);
    }
    for (int i = 0; i < COUNT; i++)
        horon_names_put(&names, all[i * 1009 % COUNT]); /* a prime: each once */
    assert_int_equal(names.entry_count, 0);
    for (size_t i = 0; i < names.bucket_count; i++)
        assert_null(names.buckets[i]);
    horon_names_deinit(&names);
}

static void *get_and_put(void *arg)
{
    struct horon_names *names = arg;
    uint64_t marked = 0;
    for (int i = 0; i < 20000; i++) {
        char text[16];
        snprintf(text, sizeof text, "n%d", i % 200);
        struct horon_name *name = horon_names_get(names, 0, text);
        if (!atomic_exchange(&name->in_flight, true)) {
            marked++;
            atomic_store(&name->in_flight, false);
        }
        horon_names_put(names, name);
    }
    return (void *)(uintptr_t)marked;
}

static void test_names_are_shared_by_threads(void **state)
{
    struct horon_names names;
    pthread_t threads[3];
    (void)state;
    assert_int_equal(horon_names_init(&names, 0), HORON_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_and_put, &names), 0);
    for (int i = 0; i < 3; i++) {
        void *marked;
        pthread_join(threads[i], &marked);
        assert_true((uintptr_t)marked > 0);
    }
    assert_int_equal(names.entry_count, 0);
    horon_names_deinit(&names);
}

/* Of the idle the one that was used the longest ago goes first. */
static void test_names_that_are_idle_are_remembered_up_to_a_limit(void **state)
{
    struct horon_names names;
    struct horon_name *a, *b, *c;
    (void)state;
    assert_int_equal(horon_names_init(&names, 2), HORON_OK);
    a = horon_names_get(&names, 0, "a");
    b = horon_names_get(&names, 0, "b");
    horon_names_put(&names, a);
    horon_names_put(&names, b);
    assert_int_equal(names.entry_count, 2);
    assert_ptr_equal(horon_names_get(&names, 0, "a"), a);
    horon_names_put(&names, a);
    c = horon_names_get(&names, 0, "c");
    assert_int_equal(names.entry_count, 3); /* two idle, and one that is used */
    horon_names_put(&names, c);
    assert_int_equal(names.entry_count, 2);
    assert_ptr_equal(horon_names_get(&names, 0, "a"), a); /* it was b that was forgotten */
    assert_ptr_equal(horon_names_get(&names, 0, "c"), c);
    assert_int_equal(names.idle_count, 0);
    horon_names_put(&names, c);
    horon_names_put(&names, a);
    horon_names_deinit(&names);
}

static void test_names_of_two_teams_are_two_entries(void **state)
{
    struct horon_names names;
    char text[8] = "";
    (void)state;
    assert_int_equal(horon_names_init(&names, 0), HORON_OK);
    struct horon_name *a = horon_names_get(&names, 0, "a"), *b = horon_names_get(&names, 7, "a");
    assert_ptr_not_equal(a, b);
    assert_true(a->hash == b->hash);
    atomic_store(&a->in_flight, true);
    assert_false(atomic_load(&b->in_flight));
    assert_ptr_equal(horon_names_get(&names, 7, "a"), b);
    horon_names_put(&names, b);
    assert_true(horon_names_find(&names, 7, b->hash, text, sizeof text));
    assert_string_equal(text, "a");
    assert_false(horon_names_find(&names, 8, b->hash, text, sizeof text));
    horon_names_put(&names, b);
    assert_false(horon_names_find(&names, 7, a->hash, text, sizeof text));
    assert_true(horon_names_find(&names, 0, a->hash, text, sizeof text));
    horon_names_put(&names, a);
    assert_int_equal(names.entry_count, 0);
    horon_names_deinit(&names);
}

static void test_names_never_made_may_be_ended(void **state)
{
    struct horon_names names = {0};
    (void)state;
    horon_names_deinit(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_one_text_are_one_entry),
        cmocka_unit_test(test_names_differ_in_any_byte_and_length),
        cmocka_unit_test(test_names_by_the_thousand_are_found_while_the_table_grows),
        cmocka_unit_test(test_names_are_shared_by_threads),
        cmocka_unit_test(test_names_that_are_idle_are_remembered_up_to_a_limit),
        cmocka_unit_test(test_names_of_two_teams_are_two_entries),
        cmocka_unit_test(test_names_never_made_may_be_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
