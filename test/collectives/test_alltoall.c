/* SPDX-License-Identifier: Apache-2.0 */
/* How far an all-to-all is: which moves are legal on one host and between hosts, and that any other
 * is found at once. */
#include "worlds.h"

#include "alltoall_state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a process of its own, since it dies of it. */
static bool is_taken(struct horon_alltoall state, enum horon_alltoall_reached to)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0};
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        horon_alltoall_move(&state, to);
        _exit(state.reached == to ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
    return status == 0;
}

static void test_alltoall_illegal_move_is_found_at_once(void **state)
{
    /* from: BEGUN, LINKED, PLACED; to: the same */
    static const bool on_one_host[3][3] = {{1, 0, 1}, {0, 0, 0}, {1, 0, 0}};
    static const bool between[3][3] = {{1, 1, 0}, {0, 0, 1}, {1, 0, 0}};
    (void)state;
    for (enum horon_alltoall_reached from = 0; from <= HORON_ALLTOALL_PLACED; from++)
        for (enum horon_alltoall_reached to = 0; to <= HORON_ALLTOALL_PLACED; to++) {
            const struct horon_alltoall one_host = {.reached = from};
            const struct horon_alltoall hosts = {.reached = from, .peer_count = 2};
            assert_int_equal(is_taken(one_host, to), on_one_host[from][to]);
            assert_int_equal(is_taken(hosts, to), between[from][to]);
        }
}

static void test_alltoall_places_before_any_round_begins(void **state)
{
    struct horon_alltoall late = {.reached = HORON_ALLTOALL_LINKED, .peer_count = 2};
    (void)state;
    assert_true(is_taken(late, HORON_ALLTOALL_PLACED));
    late.rounds.begun = 1;
    assert_false(is_taken(late, HORON_ALLTOALL_PLACED));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alltoall_illegal_move_is_found_at_once),
        cmocka_unit_test(test_alltoall_places_before_any_round_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
