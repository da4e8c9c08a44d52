/* SPDX-License-Identifier: Apache-2.0 */
/* A process is running, then has ended, then its parent has asked how. */
#undef NDEBUG
#include "host/note.h"
#include "host/process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
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

/* In a namespace of its own if that can be had: says 2 over the socket; else 1; waits to be told.
 */
static void open_self_and_pass(int socket)
{
    struct horon_error error;
    char byte;
    const bool alone = unshare(CLONE_NEWPID) == 0;
    const pid_t child = fork(); /* the first process there */
    if (child != 0)
        _exit(waitpid(child, NULL, 0) != child);
    const int pidfd = horon_process_open_self();
    const struct horon_note note = {.team = 1, .bytes = alone, .fds = {pidfd}, .fd_count = 1};
    if (horon_note_send(socket, &note, &error) == HORON_OK)
        _exit(read(socket, &byte, 1) != 1);
    _exit(1);
}

static void test_process_in_another_pid_namespace_is_seen_to_end(void **state)
{
    int ends[2];
    struct horon_note note;
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    if (child == 0)
        open_self_and_pass(ends[1]);
    close(ends[1]);
    struct pollfd come = {.fd = ends[0], .events = POLLIN};
    assert_int_equal(poll(&come, 1, -1), 1);
    assert_int_equal(horon_note_receive(ends[0], &note, &error), HORON_OK);
    assert_int_equal(note.fd_count, 1);
    struct pollfd end = {.fd = note.fds[0], .events = POLLIN};
    assert_int_equal(poll(&end, 1, 0), 0); /* it runs */
    assert_int_equal(write(ends[0], "", 1), 1);
    assert_int_equal(poll(&end, 1, -1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    horon_note_close(&note);
    close(ends[0]);
    if (!note.bytes) {
        print_message("skip: no pid namespace can be had; needs root\n");
        skip();
    }
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
        cmocka_unit_test(test_process_in_another_pid_namespace_is_seen_to_end),
        cmocka_unit_test(test_process_that_there_is_none_of_awaits_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
