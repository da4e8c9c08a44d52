/* SPDX-License-Identifier: Apache-2.0 */
/* A process whose thread holds the lock lives; one that has ended in any way, has let go, or has
 * become another program does not, though its number is not free yet. */
#undef NDEBUG
#include "alive.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct shared {
    struct horon_alive alive;
    int told[2], asked[2]; /* pipes, of the holder and of the test */
};

static struct shared *open_shared(void)
{
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    assert_int_equal(pipe(shared->told), 0);
    assert_int_equal(pipe(shared->asked), 0);
    return shared;
}

static void close_shared(struct shared *shared)
{
    for (int i = 0; i < 2; i++) {
        close(shared->told[i]);
        close(shared->asked[i]);
    }
    munmap(shared, sizeof *shared);
}

static void tell(const int pipe[2])
{
    assert_int_equal(write(pipe[1], "x", 1), 1);
}

static void hear(const int pipe[2])
{
    char byte;
    assert_int_equal(read(pipe[0], &byte, 1), 1);
}

/* Not the first one of its process. */
static void *hold(void *arg)
{
    struct shared *shared = arg;
    assert_true(horon_alive_hold(&shared->alive));
    tell(shared->told);
    hear(shared->asked);
    horon_alive_let_go(&shared->alive);
    tell(shared->told);
    pause();
    return NULL;
}

static pid_t start_holder(struct shared *shared)
{
    const pid_t child = fork();
    pthread_t thread;
    assert_true(child >= 0);
    if (child > 0) {
        hear(shared->told);
        return child;
    }
    alarm(20);
    if (pthread_create(&thread, NULL, hold, shared) == 0)
        pthread_join(thread, NULL);
    _exit(1);
}

/* Its number is still taken. */
static void await_end(pid_t child)
{
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
}

static void test_alive_is_told_of_a_process_that_holds_it(void **state)
{
    struct shared *shared = open_shared();
    (void)state;
    assert_false(horon_alive_is_held(&shared->alive)); /* zeros */
    const pid_t child = start_holder(shared);
    for (int i = 0; i < 3; i++)
        assert_true(horon_alive_is_held(&shared->alive));
    kill(child, SIGKILL);
    await_end(child);
    for (int i = 0; i < 3; i++)
        assert_false(horon_alive_is_held(&shared->alive));
    assert_int_equal(waitpid(child, NULL, 0), child);
    close_shared(shared);
}

static void test_alive_is_not_told_once_it_was_let_go(void **state)
{
    struct shared *shared = open_shared();
    (void)state;
    const pid_t child = start_holder(shared);
    tell(shared->asked);
    hear(shared->told);
    assert_false(horon_alive_is_held(&shared->alive));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(horon_alive_hold(&shared->alive)); /* memory that was used before */
    assert_true(horon_alive_is_held(&shared->alive));
    horon_alive_let_go(&shared->alive);
    close_shared(shared);
}

/* What it execs says so by ending: it has nothing else of the memory. */
static void test_alive_is_not_told_of_what_a_process_becomes(void **state)
{
    struct shared *shared = open_shared();
    char byte;
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        dup2(ends[1], STDOUT_FILENO);
        if (horon_alive_hold(&shared->alive))
            execlp("sh", "sh", "-c", "echo; read line", NULL);
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_false(horon_alive_is_held(&shared->alive));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close_shared(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alive_is_told_of_a_process_that_holds_it),
        cmocka_unit_test(test_alive_is_not_told_once_it_was_let_go),
        cmocka_unit_test(test_alive_is_not_told_of_what_a_process_becomes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
