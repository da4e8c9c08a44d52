/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining as the ABI's caller sees it: interrupted, in a process that forks meanwhile, and what a
 * caller of an older ABI gets.
 */
#undef NDEBUG
#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Rank 1 of 2, and nobody else: it looks for rank 0 where nobody listens. */
static const char *const alone[] = {"STORE=tcp://127.0.0.1:9", "JOB_KEY=a secret",
                                    "START_TIMEOUT=300ms", NULL};
static const char *const alone_for_long[] = {"STORE=tcp://127.0.0.1:9", "JOB_KEY=a secret", NULL};

static int count_fds(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static horon_options_t options_alone(const char *const *settings)
{
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = 1;
    options.size = 2;
    options.settings = settings;
    return options;
}

static int stop_at_the_third(void *arg)
{
    return ++*(int *)arg == 3;
}

static void test_joining_interrupted_ends_with_nothing_left(void **state)
{
    horon_options_t options = options_alone(alone_for_long);
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx = NULL;
    int asked = 0;
    (void)state;
    const int fds = count_fds();
    options.interrupted = stop_at_the_third;
    options.interrupted_arg = &asked;
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_CANCELLED);
    assert_null(ctx);
    assert_int_equal(asked, 3);
    assert_string_equal(why, "joining was interrupted while meeting the other ranks");
    assert_int_equal(count_fds(), fds);
    options.rank = 0;
    options.size = 1;
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_OK);
    horon_context_destroy(ctx);
    assert_int_equal(asked, 3); /* never when it need not wait, nor after it */
    assert_int_equal(count_fds(), fds);
}

static int must_not_be_called(void *arg)
{
    (void)arg;
    abort();
}

/* Its struct ends before the callback; what lies behind is not ours. */
static void test_joining_by_an_older_caller_asks_nobody(void **state)
{
    horon_options_t options = options_alone(alone);
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx = NULL;
    (void)state;
    options.interrupted = must_not_be_called;
    options.struct_bytes = offsetof(horon_options_t, interrupted);
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_TIMEOUT);
    options.struct_bytes--; /* older than the first */
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_INVALID);
    assert_non_null(strstr(why, "struct_bytes"));
    options.struct_bytes = sizeof options * 4 + 1;
    assert_int_equal(horon_context_create(&options, &ctx, why, sizeof why), HORON_ERR_INVALID);
}

/* ---- A process that forks while contexts of it join ---- */

#define FORKS_MAX 300

static int count_sockets(void)
{
    int count = 0;
    struct dirent *entry;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && (entry = readdir(directory))) {
        char path[300], what[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t bytes = readlink(path, what, sizeof what - 1);
        count += bytes > 0 && strncmp(what, "socket:", 7) == 0;
    }
    if (directory)
        closedir(directory);
    return count;
}

/* One rank that joins; all of them are threads of this process. */
struct joiner {
    pthread_t thread;
    horon_options_t options;
    horon_context_t *ctx;
    horon_status_t status;
    char why[HORON_ERROR_TEXT_BYTES];
    atomic_int *joined;
};

static void *join(void *arg)
{
    struct joiner *joiner = arg;
    joiner->status =
        horon_context_create(&joiner->options, &joiner->ctx, joiner->why, sizeof joiner->why);
    atomic_fetch_add(joiner->joined, 1);
    return NULL;
}

/* @return how many sockets a child has that is forked now */
static int sockets_of_a_child(void)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(count_sockets());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

/* The last rank starts only after some children, so that the others are met while they wait. */
static void fork_while_joining(const char *shm)
{
    enum { SIZE = 3, EARLY = 20 };
    struct joiner joiners[SIZE];
    char store[64];
    atomic_int joined = 0;
    int held_here = 0;
    snprintf(store, sizeof store, "STORE=tcp://127.0.0.1:%d", free_port());
    const char *const settings[] = {store, shm, "JOB_KEY=a secret", NULL};
    for (int r = 0; r < SIZE; r++) {
        joiners[r] = (struct joiner){.options = HORON_OPTIONS_INIT, .joined = &joined};
        joiners[r].options.rank = r;
        joiners[r].options.size = SIZE;
        joiners[r].options.settings = settings;
    }
    for (int r = 0; r < SIZE - 1; r++)
        assert_int_equal(pthread_create(&joiners[r].thread, NULL, join, &joiners[r]), 0);
    for (int i = 0; i < FORKS_MAX && joined < SIZE; i++) {
        if (i == EARLY)
            assert_int_equal(
                pthread_create(&joiners[SIZE - 1].thread, NULL, join, &joiners[SIZE - 1]), 0);
        held_here += count_sockets() > 0;
        assert_int_equal(sockets_of_a_child(), 0);
    }
    assert_true(held_here > 0); /* else nothing was tested */
    for (int r = 0; r < SIZE; r++) {
        pthread_join(joiners[r].thread, NULL);
        if (joiners[r].status != HORON_OK)
            fail_msg("rank %d: %s", r, joiners[r].why);
    }
    assert_int_equal(sockets_of_a_child(), 0);
    for (int r = 0; r < SIZE; r++)
        horon_context_destroy(joiners[r].ctx);
    assert_int_equal(count_sockets(), 0);
}

static void test_joining_leaves_no_socket_to_a_child_forked_meanwhile(void **state)
{
    (void)state;
    fork_while_joining("SHM=1");
    fork_while_joining("SHM=0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joining_interrupted_ends_with_nothing_left),
        cmocka_unit_test(test_joining_by_an_older_caller_asks_nobody),
        cmocka_unit_test(test_joining_leaves_no_socket_to_a_child_forked_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
