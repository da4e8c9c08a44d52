/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a context: which moves are legal, and that another one is found at once. */
#undef NDEBUG
#include "life.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* In a process of its own, since it dies of it. */
static int status_of_move(enum horon_life from, enum horon_life to)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _Atomic uint8_t life = (uint8_t)from;
        const struct rlimit none = {0};
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        horon_life_move(&life, to);
        _exit(horon_life_now(&life) == to ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_life_dies_of_an_illegal_move(void **state)
{
    static const bool legal[][6] = {
        /* to: JOINING, RUNNING, CLOSED, STOPPING, OVER, FORKED */
        [HORON_LIFE_JOINING] = {0, 1, 0, 0, 1, 1}, [HORON_LIFE_RUNNING] = {0, 0, 1, 0, 0, 1},
        [HORON_LIFE_CLOSED] = {0, 0, 0, 1, 0, 1},  [HORON_LIFE_STOPPING] = {0, 0, 0, 0, 1, 1},
        [HORON_LIFE_OVER] = {0, 0, 0, 0, 0, 1},    [HORON_LIFE_FORKED] = {0, 0, 0, 0, 0, 0},
    };
    (void)state;
    for (enum horon_life from = 0; from <= HORON_LIFE_FORKED; from++)
        for (enum horon_life to = 0; to <= HORON_LIFE_FORKED; to++) {
            const int status = status_of_move(from, to);
            if (legal[from][to])
                assert_int_equal(status, 0);
            else
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        }
}

static void test_life_has_a_thread_from_joining_to_the_end(void **state)
{
    static const bool has[] = {0, 1, 1, 1, 0, 0}, stops[] = {0, 0, 0, 1, 1, 1};
    (void)state;
    for (enum horon_life now = 0; now <= HORON_LIFE_FORKED; now++) {
        const _Atomic uint8_t life = (uint8_t)now;
        assert_int_equal(horon_life_has_thread(&life), has[now]);
        assert_int_equal(horon_life_stops(&life), stops[now]);
        assert_int_equal(horon_life_is_forked(&life), now == HORON_LIFE_FORKED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_dies_of_an_illegal_move),
        cmocka_unit_test(test_life_has_a_thread_from_joining_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
