/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher's folder of the launch: when there is one, and what it must be for the key to lie in
 * it. */
#undef NDEBUG
#include "boot/identity/identity.h"
#include "environments.h"
#include "key_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define VARIABLE "PMIX_SERVER_TMPDIR="

static void expect_noted(const char *const *variables, int rank, int size, const char *noted)
{
    static const char *const stores[] = {"", "tcp://b:3"};
    environment = variables;
    for (size_t i = 0; i < 2; i++) {
        struct horon_identity identity;
        struct horon_error error = {0};
        if (rank >= 0 && !stores[i][0])
            continue;
        assert_int_equal(horon_identity_find(&identity, rank, size, stores[i], 0, find, &error),
                         HORON_OK);
        assert_string_equal(identity.folder, noted);
    }
}

/* Where all ranks are on one host, whatever tells them where to meet. */
static void test_folder_of_the_launch_is_noted(void **state)
{
#define MPIRUN "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=n"
#define HERE "OMPI_COMM_WORLD_LOCAL_SIZE=4"
#define SRUN "SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_JOB_ID=9", "SLURM_NODELIST=a"
#define FOLDER VARIABLE "/tmp/of/launch"
    static const struct {
        const char *variables[8];
        const char *folder;
    } cases[] = {
        {{MPIRUN, HERE, FOLDER}, "/tmp/of/launch"},
        {{MPIRUN, HERE, FOLDER, "MASTER_ADDR=a"}, "/tmp/of/launch"},
        {{SRUN, "SLURM_STEP_NUM_NODES=1", FOLDER}, "/tmp/of/launch"},
        {{"PMIX_RANK=1", "PMIX_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=n", FOLDER},
         "/tmp/of/launch"},
        {{MPIRUN, HERE}, ""},
        {{MPIRUN, HERE, VARIABLE}, ""},
        {{MPIRUN, HERE, VARIABLE "of/launch"}, ""},
        {{MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE=2", "MASTER_ADDR=a", FOLDER}, ""},
        {{MPIRUN, "MASTER_ADDR=a", FOLDER}, ""},
        {{SRUN, FOLDER}, ""},
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
          FOLDER},
         ""},
        {{"HORON_RANK=1", "HORON_SIZE=2", "HORON_LOCAL_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1",
          FOLDER},
         ""},
        {{"RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_PORT=1", FOLDER}, ""},
        {{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=2", "PMI_JOBID=1", FOLDER}, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        print_message("case %zu\n", i);
        expect_noted(cases[i].variables, -1, -1, cases[i].folder);
    }
    expect_noted(cases[0].variables, 1, 4, ""); /* the caller says, and nobody else */
}

static void test_folder_with_a_name_too_long_is_none(void **state)
{
    static char longest[sizeof VARIABLE + HORON_KEY_FOLDER_BYTES] = VARIABLE "/";
    static const char *const variables[] = {MPIRUN, HERE, longest, NULL};
    (void)state;
    memset(longest + strlen(longest), 'a', sizeof longest - 1 - strlen(longest));
    expect_noted(variables, -1, -1, "");
    longest[sizeof longest - 2] = 0;
    expect_noted(variables, -1, -1, longest + strlen(VARIABLE));
#undef FOLDER
#undef SRUN
#undef HERE
#undef MPIRUN
}

/* ---- the key in it ---- */

/* @return is it the launch's? Else it is the user's. */
static bool has_own_key(const char *where, struct horon_job_key *key)
{
    struct horon_error error = {0};
    memset(key, 0, sizeof *key);
    assert_int_equal(horon_job_key_init(key, "", 0, where, &error), HORON_OK);
    return key->given;
}

static void expect_users(const char *where)
{
    struct horon_job_key users, key;
    assert_false(has_own_key("", &users));
    assert_false(has_own_key(where, &key));
    assert_memory_equal(key.bytes, users.bytes, sizeof key.bytes);
}

static void test_folder_holds_one_key_for_all(void **state)
{
    struct horon_job_key first, second, users;
    char with_slash[40];
    struct stat about;
    (void)state;
    assert_false(has_own_key("", &users));
    assert_true(has_own_key(folder, &first));
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    snprintf(with_slash, sizeof with_slash, "%s/", folder); /* as Slurm says it */
    assert_true(has_own_key(with_slash, &second));
    assert_memory_equal(first.bytes, second.bytes, sizeof first.bytes);
    assert_memory_not_equal(first.bytes, users.bytes, sizeof first.bytes);
    unlink(path); /* another launch has another one */
    assert_true(has_own_key(folder, &second));
    assert_memory_not_equal(first.bytes, second.bytes, sizeof first.bytes);
}

/* As below a TMPDIR of a site's: of as many bytes as are noted. */
static void test_folder_with_a_long_name_holds_the_key(void **state)
{
    char longest[HORON_KEY_FOLDER_BYTES], file[HORON_KEY_FOLDER_BYTES + 32];
    struct horon_job_key key;
    (void)state;
    int used = snprintf(longest, sizeof longest, "%s/%0254d", folder, 0);
    assert_int_equal(mkdir(longest, 0700), 0);
    const int outer = used;
    used += snprintf(longest + used, sizeof longest - (size_t)used, "/%0*d",
                     HORON_KEY_FOLDER_BYTES - 2 - used, 0);
    assert_int_equal(used, HORON_KEY_FOLDER_BYTES - 1);
    const int made = mkdir(longest, 0700);
    const bool is_own = made == 0 && has_own_key(longest, &key);
    snprintf(file, sizeof file, "%s/horon.user.%u.key", longest, (unsigned)geteuid());
    const int removed = unlink(file);
    rmdir(longest);
    longest[outer] = 0;
    rmdir(longest);
    assert_int_equal(made, 0);
    assert_true(is_own);
    assert_int_equal(removed, 0);
}

static void test_folder_is_not_looked_at_by_a_job_with_a_key(void **state)
{
    struct horon_job_key key;
    struct horon_error error = {0};
    static const char text[] = "a key for this test alone";
    (void)state;
    assert_int_equal(horon_job_key_init(&key, text, strlen(text), folder, &error), HORON_OK);
    assert_true(key.given);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_folder_that_others_can_write_is_not_used(void **state)
{
    static const mode_t modes[] = {0770, 0707, 01777};
    struct horon_job_key key;
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        assert_int_equal(chmod(folder, modes[i]), 0);
        expect_users(folder);
    }
    assert_int_equal(chmod(folder, 0755), 0); /* what lies there is for one user alone */
    assert_true(has_own_key(folder, &key));
}

static void test_folder_of_another_user_is_not_used(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skip: needs root\n");
        skip();
    }
    assert_int_equal(chown(folder, 65534, 65534), 0);
    expect_users(folder);
}

static void test_folder_that_is_none_is_not_used(void **state)
{
    (void)state;
    expect_users("/tmp/nothing-is-here");
    expect_users("/dev/null");
}

/* Not even by root, which gives up its right to write everywhere. */
static void test_folder_that_cannot_be_written_is_not_used(void **state)
{
    struct __user_cap_header_struct self = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    int status;
    (void)state;
    assert_int_equal(chmod(folder, 0500), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct horon_job_key key;
        _exit(syscall(SYS_capset, &self, none) == 0 && !has_own_key(folder, &key) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_of_the_launch_is_noted),
        cmocka_unit_test(test_folder_with_a_name_too_long_is_none),
        TEST(test_folder_holds_one_key_for_all),
        TEST(test_folder_with_a_long_name_holds_the_key),
        TEST(test_folder_is_not_looked_at_by_a_job_with_a_key),
        TEST(test_folder_that_others_can_write_is_not_used),
        TEST(test_folder_of_another_user_is_not_used),
        TEST(test_folder_that_is_none_is_not_used),
        TEST(test_folder_that_cannot_be_written_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
