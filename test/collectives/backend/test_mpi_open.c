/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the files that a process has loaded is its MPI. What is loaded stays, so each test
 * stands on those before it.
 */
#undef NDEBUG
#include "backend/mpi_open.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void load(const char *variable)
{
    const char *file = getenv(variable);
    assert_non_null(file);
    if (!dlopen(file, RTLD_LAZY))
        fail_msg("%s", dlerror());
}

static void test_mpi_open_without_a_library_sees_none(void **state)
{
    (void)state;
    assert_false(horon_mpi_is_here());
    assert_false(horon_mpi_says("MPI_Initialized"));
}

static void test_mpi_open_a_stub_is_no_mpi(void **state)
{
    (void)state;
    load("MPI_STUB");
    assert_false(horon_mpi_is_here());
}

/* It comes last: behind the stub, and behind what needs it. */
static void test_mpi_open_a_library_of_another_name_is_seen(void **state)
{
    char file[HORON_MPI_FILE_BYTES] = "";
    struct horon_error error;
    void *image = NULL;
    (void)state;
    load("MPI_ABOVE");
    assert_true(horon_mpi_is_here());
    assert_true(horon_mpi_says("MPI_Initialized"));
    assert_false(horon_mpi_is_open_mpi());
    assert_int_equal(horon_mpi_open("", "PMI", file, &image, &error), HORON_OK);
    assert_non_null(strstr(file, "/libmpi_vendor_91."));
    dlclose(image);
}

static void test_mpi_open_a_second_library_is_refused(void **state)
{
    char file[HORON_MPI_FILE_BYTES] = "";
    struct horon_error error;
    void *image = NULL;
    (void)state;
    assert_int_equal(horon_mpi_open("libmpich.so.0", "PMI", file, &image, &error),
                     HORON_ERR_CONFIG);
    assert_null(image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mpi_open_without_a_library_sees_none),
        cmocka_unit_test(test_mpi_open_a_stub_is_no_mpi),
        cmocka_unit_test(test_mpi_open_a_library_of_another_name_is_seen),
        cmocka_unit_test(test_mpi_open_a_second_library_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
