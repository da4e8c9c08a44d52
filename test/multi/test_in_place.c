/* SPDX-License-Identifier: Apache-2.0 */
/* The forms in place (in_place.h) in real processes. */
#undef NDEBUG
#include "multi/in_place.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_rows_in_place_come_right_in_processes(void **state)
{
    static const char *const apart[] = {"SHM=0", NULL};
    (void)state;
    job_run(3, NULL, in_place_work, NULL);
    job_run(3, apart, in_place_work, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_in_place_come_right_in_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
