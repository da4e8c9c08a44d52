/* SPDX-License-Identifier: Apache-2.0 */
/* What a build can do, asked by name. */
#undef NDEBUG
#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void test_features_are_had_or_not(void **state)
{
    static const char *const has[] = {"persistent", "in_order", "process_sets", "join", "shm",
                                      "tcp",        "native",   "mpi",          "gloo", NULL};
    static const char *const has_not[] = {"cuda", "nccl",       "",       "shm ",
                                          "SHM",  "allreduce2", "allred", NULL};
    (void)state;
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++)
        assert_int_equal(horon_feature(horon_verb_name((horon_verb_t)verb)), 1);
    for (int i = 0; has[i]; i++)
        assert_int_equal(horon_feature(has[i]), 1);
    for (int i = 0; has_not[i]; i++)
        assert_int_equal(horon_feature(has_not[i]), 0);
    assert_int_equal(horon_feature(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_are_had_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
