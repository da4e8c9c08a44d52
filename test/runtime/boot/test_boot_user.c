/* SPDX-License-Identifier: Apache-2.0 */
/* A job without a key, on a machine with other users. */
#undef NDEBUG
#include "boots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a process of its own: users are a process's. @return its end */
static pid_t start_as_other_user(struct boots *world, int report)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid != 0)
        return pid;
    if (setgid(65534) != 0 || setuid(65534) != 0)
        _exit(1);
    world->ranks[0].absent = true;
    boots_join(world);
    const struct boots_rank *rank = &world->ranks[1];
    const bool told = rank->status == HORON_ERR_AUTH &&
                      strstr(rank->error.text, "only processes of one user can join");
    if (write(report, rank->error.text, sizeof rank->error.text) < 0)
        _exit(1);
    _exit(told ? 0 : 2);
}

static pid_t other_user;

static int other_user_has_gone(void *rank)
{
    siginfo_t info = {0};
    (void)rank;
    return waitid(P_PID, (id_t)other_user, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == other_user;
}

static void test_boot_another_user_without_a_key_is_refused(void **state)
{
    struct place place;
    struct boots world;
    char text[HORON_ERROR_TEXT_BYTES] = "";
    int ends[2], status = 0;
    (void)state;
    if (geteuid() != 0) {
        print_message("skip: needs root\n");
        skip();
    }
    place_tcp(&place);
    boots_init(&world, 2, place.setting);
    assert_int_equal(pipe(ends), 0);
    other_user = start_as_other_user(&world, ends[1]);
    world.ranks[1].absent = true;
    world.interrupted = other_user_has_gone;
    boots_join(&world);
    assert_int_equal(world.ranks[0].status, HORON_ERR_CANCELLED);
    assert_non_null(strstr(world.ranks[0].warning, "only processes of one user can join"));
    assert_int_equal(waitpid(other_user, &status, 0), other_user);
    close(ends[1]);
    assert_true(read(ends[0], text, sizeof text) > 0);
    close(ends[0]);
    print_message("%s\n", text);
    assert_int_equal(status, 0);
    unlink("/tmp/horon.user.65534.key");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_another_user_without_a_key_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
