/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank among Gloo's ranks has to be told, and what it says before it joins. Ranks are
 * threads; the environment says nothing but what a test sets while there is one thread.
 */
#undef NDEBUG
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <horon/horon.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_MAX 4

struct told {
    int rank, size;
    const char *settings[SETTINGS_MAX];
    horon_status_t created;
    char why[HORON_ERROR_TEXT_BYTES];
};

/* @return as told->created: joins, and leaves at once */
static horon_status_t join(struct told *told)
{
    horon_context_t *ctx = NULL;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = told->rank;
    options.size = told->size;
    options.settings = told->settings;
    told->created = horon_context_create(&options, &ctx, told->why, sizeof told->why);
    if (told->created == HORON_OK)
        horon_context_destroy(ctx);
    return told->created;
}

static int begin_clean(void **state)
{
    static const char *const names[] = {"HORON_RANK", "HORON_SIZE"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

static void test_gloo_told_no_place_is_no_job_of_one(void **state)
{
    struct told told = {.rank = -1, .size = -1, .settings = {"GLOO_STORE=hash:nowhere"}};
    (void)state;
    assert_int_equal(join(&told), HORON_ERR_CONFIG);
    if (!strstr(told.why, "set HORON_RANK and HORON_SIZE"))
        fail_msg("%s", told.why);
    setenv("HORON_RANK", "0", 1);
    setenv("HORON_SIZE", "1", 1);
    assert_int_equal(join(&told), HORON_OK);
    begin_clean(NULL);
    told.rank = 0;
    told.size = 1;
    assert_int_equal(join(&told), HORON_OK);
    told = (struct told){.rank = -1, .size = -1};
    assert_int_equal(join(&told), HORON_OK); /* nor are there others without a store */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_gloo_told_no_place_is_no_job_of_one, begin_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
