/* SPDX-License-Identifier: Apache-2.0 */
/* The list of sockets, which the child of a fork reads at any moment. */
#undef NDEBUG
#include "fds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/socket.h>
#include <unistd.h>

static struct horon_fds fds;            /* the two below take no argument */
static int held_with = -1, let_go = -1; /* entries, when last called; -1: never */

static void hold(void)
{
    held_with = fds.count;
}

static void release(void)
{
    let_go = fds.count;
}

static void test_fds_list_is_freed_while_no_fork_can_happen(void **state)
{
    (void)state;
    const int fd = horon_fds_note(&fds, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    assert_true(fd >= 0);
    fds.hold = hold;
    fds.release = release;
    horon_fds_deinit(&fds);
    assert_int_equal(held_with, 1);
    assert_int_equal(let_go, 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fds_list_is_freed_while_no_fork_can_happen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
