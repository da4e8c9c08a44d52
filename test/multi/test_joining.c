/* SPDX-License-Identifier: Apache-2.0 */
/* Joining as the ABI's caller sees it: interrupted, and what a caller of an older ABI gets. */
#undef NDEBUG
#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Rank 1 of 2, and nobody else: it looks for rank 0 where nobody listens. */
static const char *const alone[] = {"STORE=tcp://127.0.0.1:9", "JOB_KEY=a secret",
                                    "START_TIMEOUT=300ms", NULL};
static const char *const alone_for_long[] = {"STORE=tcp://127.0.0.1:9", "JOB_KEY=a secret", NULL};

static int count_fds(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static horon_options_t options_alone(const char *const *settings)
{
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = 1;
    options.size = 2;
    options.settings = settings;
    return options;
}

static int stop_at_the_third(void *arg)
{
    return ++*(int *)arg == 3;
}

static void test_joining_interrupted_ends_with_nothing_left(void **state)
{
    horon_options_t options = options_alone(alone_for_long);
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx = NULL;
    int asked = 0;
    (void)state;
    const int fds = count_fds();
    options.interrupted = stop_at_the_third;
    options.interrupted_arg = &asked;
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_CANCELLED);
    assert_null(ctx);
    assert_int_equal(asked, 3);
    assert_string_equal(why, "joining was interrupted while meeting the other ranks");
    assert_int_equal(count_fds(), fds);
    options.rank = 0;
    options.size = 1;
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_OK);
    horon_context_destroy(ctx);
    assert_int_equal(asked, 3); /* never when it need not wait, nor after it */
    assert_int_equal(count_fds(), fds);
}

static int must_not_be_called(void *arg)
{
    (void)arg;
    abort();
}

/* Its struct ends before the callback; what lies behind is not ours. */
static void test_joining_by_an_older_caller_asks_nobody(void **state)
{
    horon_options_t options = options_alone(alone);
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx = NULL;
    (void)state;
    options.interrupted = must_not_be_called;
    options.struct_bytes = offsetof(horon_options_t, interrupted);
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_TIMEOUT);
    options.struct_bytes--; /* older than the first */
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_INVALID);
    assert_non_null(strstr(why, "struct_bytes"));
    options.struct_bytes = sizeof options * 4 + 1;
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joining_interrupted_ends_with_nothing_left),
        cmocka_unit_test(test_joining_by_an_older_caller_asks_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
