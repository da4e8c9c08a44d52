/* SPDX-License-Identifier: Apache-2.0 */
/* A test in a process of its own, with a network of its own: others see nothing of it. */
#ifndef HORON_TEST_OWN_NETWORK_H
#define HORON_TEST_OWN_NETWORK_H

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/** What @p run returns if it may not have a network of its own: skips the test, and says why. */
#define NO_OWN_NETWORK 77

/** Fails unless @p run returns 0, or NO_OWN_NETWORK. */
static inline void run_apart(int (*run)(void))
{
    int how = 0;
    const pid_t child = fork();
    if (child == 0)
        _exit(run());
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == NO_OWN_NETWORK) {
        print_message("SKIP: no network of our own; needs root\n");
        skip();
    }
    assert_int_equal(how, 0);
}

#endif
