/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI_Finalize() that returns or does not, beside processes that end or do not: it is given up only
 * where one has ended and it does not return.
 */
#undef NDEBUG
#include "backend/mpi_finalize.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT_MS = 60000, NO_MS = 1 };

static pid_t child; /* that waits to be killed; 0: there is none */
static int never;   /* an eventfd that nobody writes to */

static pid_t start_child(void)
{
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    assert_true(child > 0);
    return child;
}

static void end_child(void)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static int return_at_once(void)
{
    return HORON_MPI_SUCCESS;
}

static int return_after_child(void)
{
    end_child();
    return HORON_MPI_SUCCESS;
}

static int stay(void)
{
    eventfd_t ignored;
    eventfd_read(never, &ignored);
    return HORON_MPI_SUCCESS;
}

static int stay_after_child(void)
{
    end_child();
    return stay();
}

static bool finalize(int (*call)(void), pid_t first, pid_t second, int limit_ms)
{
    const struct horon_mpi_library library = {.mpi.finalize = call};
    const pid_t peers[] = {first, second};
    return horon_mpi_finalize(&library, peers, 2, limit_ms);
}

static void test_mpi_finalize_beside_ranks_that_live_is_waited_for(void **state)
{
    (void)state;
    assert_true(finalize(return_at_once, start_child(), HORON_MPI_PEER_UNKNOWN, NO_MS));
    end_child();
}

static void test_mpi_finalize_beside_unknown_ranks_is_waited_for(void **state)
{
    (void)state;
    assert_true(finalize(return_at_once, HORON_MPI_PEER_UNKNOWN, HORON_MPI_PEER_UNKNOWN, NO_MS));
}

static void test_mpi_finalize_that_returns_soon_after_a_rank_is_through(void **state)
{
    (void)state;
    assert_true(finalize(return_after_child, start_child(), HORON_MPI_PEER_UNKNOWN, LIMIT_MS));
    assert_true(finalize(return_at_once, HORON_MPI_PEER_ENDED, getpid(), LIMIT_MS));
}

static void test_mpi_finalize_that_stays_when_a_rank_ends_is_left(void **state)
{
    (void)state;
    assert_false(finalize(stay_after_child, getpid(), start_child(), NO_MS));
}

static void test_mpi_finalize_that_stays_after_a_rank_has_ended_is_left(void **state)
{
    (void)state;
    assert_false(finalize(stay, HORON_MPI_PEER_ENDED, HORON_MPI_PEER_UNKNOWN, NO_MS));
    start_child();
    end_child();
    assert_false(finalize(stay, HORON_MPI_PEER_UNKNOWN, child, NO_MS)); /* nobody's number now */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mpi_finalize_beside_ranks_that_live_is_waited_for),
        cmocka_unit_test(test_mpi_finalize_beside_unknown_ranks_is_waited_for),
        cmocka_unit_test(test_mpi_finalize_that_returns_soon_after_a_rank_is_through),
        cmocka_unit_test(test_mpi_finalize_that_stays_when_a_rank_ends_is_left),
        cmocka_unit_test(test_mpi_finalize_that_stays_after_a_rank_has_ended_is_left),
    };
    never = eventfd(0, EFD_CLOEXEC);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
