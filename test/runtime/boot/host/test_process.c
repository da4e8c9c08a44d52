/* SPDX-License-Identifier: Apache-2.0 */
/* A process is running, then has ended, then its parent has asked how. */
#undef NDEBUG
#include "boot/host/process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_process_awaits_its_parent_from_its_end_until_it_asks(void **state)
{
    int ends[2];
    siginfo_t info;
    (void)state;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 0 ? 3 : 1);
    }
    assert_true(child > 0);
    const int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(pidfd >= 0);
    assert_false(horon_process_awaits_parent(pidfd));
    close(ends[1]);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_true(horon_process_awaits_parent(pidfd));
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED), 0);
    assert_int_equal(info.si_status, 3);
    assert_false(horon_process_awaits_parent(pidfd));
    close(pidfd);
    close(ends[0]);
}

static void test_process_that_there_is_none_of_awaits_nobody(void **state)
{
    (void)state;
    assert_false(horon_process_awaits_parent(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_process_awaits_its_parent_from_its_end_until_it_asks),
        cmocka_unit_test(test_process_that_there_is_none_of_awaits_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
