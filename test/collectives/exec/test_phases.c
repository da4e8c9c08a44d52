/* SPDX-License-Identifier: Apache-2.0 */
/* Which moves between phases are legal, and that any other is found at once. */
#include "worlds.h"

#include "channel_state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_legal(enum horon_phase from, enum horon_phase to)
{
    return horon_phase_after[from] & 1u << to;
}

static void test_phases_begin_with_enter_and_never_go_back(void **state)
{
    (void)state;
    for (enum horon_phase to = 0; to < HORON_PHASE_COUNT; to++)
        assert_int_equal(is_legal(HORON_PHASE_IDLE, to), to == HORON_PHASE_ENTER);
    for (enum horon_phase from = HORON_PHASE_ENTER; from < HORON_PHASE_COUNT; from++) {
        assert_true(is_legal(from, HORON_PHASE_IDLE));
        for (enum horon_phase to = HORON_PHASE_ENTER; to <= from; to++)
            assert_int_equal(is_legal(from, to),
                             to == from && to == HORON_PHASE_PIPELINE); /* one after another */
    }
    /* a rank exchanges with other hosts, or waits for the one that does */
    assert_false(is_legal(HORON_PHASE_EXCHANGE, HORON_PHASE_PUBLISH));
}

/* In a process of its own, since it dies of it. */
static int status_of_move(enum horon_phase from, enum horon_phase to)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct horon_channel channel = {.phase = from};
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        horon_phase_move(&channel, to);
        _exit(channel.phase == to ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_phases_illegal_move_is_found_at_once(void **state)
{
    (void)state;
    for (enum horon_phase from = 0; from < HORON_PHASE_COUNT; from++)
        for (enum horon_phase to = 0; to < HORON_PHASE_COUNT; to++) {
            const int status = status_of_move(from, to);
            if (is_legal(from, to))
                assert_int_equal(status, 0);
            else
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases_begin_with_enter_and_never_go_back),
        cmocka_unit_test(test_phases_illegal_move_is_found_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
