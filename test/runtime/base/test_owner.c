/* SPDX-License-Identifier: Apache-2.0 */
/* Owners as a build that checks them has them, whatever this build does. */
#undef NDEBUG
#undef HORON_OWNERS_CHECKED
#define HORON_OWNERS_CHECKED 1
#include "owner.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void *take(void *owner)
{
    horon_owner_take(owner);
    return NULL;
}

static void take_elsewhere(struct horon_owner *owner)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take, owner), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void test_owner_is_the_thread_that_took_last(void **state)
{
    struct horon_owner owner = {0};
    (void)state;
    assert_false(horon_owner_is_mine(&owner)); /* nobody's is not mine */
    horon_owner_take(&owner);
    assert_true(horon_owner_is_mine(&owner));
    HORON_ASSERT_OWNER(&owner);
    take_elsewhere(&owner);
    assert_false(horon_owner_is_mine(&owner));
    horon_owner_take(&owner);
    horon_owner_give(&owner);
    assert_false(horon_owner_is_mine(&owner));
    assert_true(horon_owner_is_mine(NULL));
    HORON_ASSERT_OWNER(NULL);
}

static void test_owner_of_another_thread_aborts(void **state)
{
    struct horon_owner owner = {0};
    int status = 0;
    (void)state;
    take_elsewhere(&owner);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        close(STDERR_FILENO); /* the assertion's words are expected */
        signal(SIGABRT, SIG_DFL);
        HORON_ASSERT_OWNER(&owner);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_is_the_thread_that_took_last),
        cmocka_unit_test(test_owner_of_another_thread_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
