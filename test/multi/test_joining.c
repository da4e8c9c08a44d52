/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining as the ABI's caller sees it: interrupted, in a process that forks meanwhile, told about
 * in the log, and what a caller of an older ABI gets.
 */
#undef NDEBUG
#include "count_fds.h"
#include "free_port.h"

#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Rank 1 of 2, and nobody else: it looks for rank 0 where nobody listens. */
static const char *const alone[] = {"STORE=tcp://127.0.0.1:9", "JOB_KEY=a secret of these tests",
                                    "START_TIMEOUT=300ms", NULL};
static const char *const alone_for_long[] = {"STORE=tcp://127.0.0.1:9",
                                             "JOB_KEY=a secret of these tests", NULL};

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
#define FDS_MAX 1024 /* more than this process ever opens */

/* Not the C library's own, by which it asks the kernel for this machine's addresses. */
static bool is_socket(int fd)
{
    int domain = AF_NETLINK;
    socklen_t bytes = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain != AF_NETLINK;
}

/* Also in a forked child, which may not allocate: another thread may have held a sanitizer's lock.
 */
static int count_sockets(void)
{
    int count = 0;
    for (int fd = 0; fd < FDS_MAX; fd++)
        count += is_socket(fd);
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

static void set_up_joiners(struct joiner *joiners, int size, const char *const *settings,
                           atomic_int *joined)
{
    for (int r = 0; r < size; r++) {
        joiners[r] = (struct joiner){.options = HORON_OPTIONS_INIT, .joined = joined};
        joiners[r].options.rank = r;
        joiners[r].options.size = size;
        joiners[r].options.settings = settings;
    }
}

/* The last rank starts only after some children, so that the others are met while they wait. */
static void fork_while_joining(const char *shm)
{
    enum { SIZE = 3, EARLY = 20 };
    struct joiner joiners[SIZE];
    char store[64];
    atomic_int joined = 0;
    int held_here = 0;
    const int own = count_sockets(); /* of this test */
    snprintf(store, sizeof store, "STORE=tcp://127.0.0.1:%d", free_port());
    const char *const settings[] = {store, shm, "JOB_KEY=a secret of these tests", NULL};
    set_up_joiners(joiners, SIZE, settings, &joined);
    for (int r = 0; r < SIZE - 1; r++)
        assert_int_equal(pthread_create(&joiners[r].thread, NULL, join, &joiners[r]), 0);
    for (int i = 0; i < FORKS_MAX && joined < SIZE; i++) {
        if (i == EARLY)
            assert_int_equal(
                pthread_create(&joiners[SIZE - 1].thread, NULL, join, &joiners[SIZE - 1]), 0);
        held_here += count_sockets() > own;
        assert_int_equal(sockets_of_a_child(), own);
    }
    assert_true(held_here > 0); /* else nothing was tested */
    for (int r = 0; r < SIZE; r++) {
        pthread_join(joiners[r].thread, NULL);
        if (joiners[r].status != HORON_OK)
            fail_msg("rank %d: %s", r, joiners[r].why);
    }
    assert_int_equal(sockets_of_a_child(), own);
    for (int r = 0; r < SIZE; r++)
        horon_context_destroy(joiners[r].ctx);
    assert_int_equal(count_sockets(), own);
}

static void test_joining_leaves_no_socket_to_a_child_forked_meanwhile(void **state)
{
    (void)state;
    fork_while_joining("SHM=1");
    fork_while_joining("SHM=0");
}

/* ---- The log ---- */

#define SECRET "5ecret-of-this-test-alone"

/* All lines of both ranks, a newline behind each. */
static struct book {
    pthread_mutex_t lock; /* guards the two below */
    char text[1 << 20];
    size_t used;
} book = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void write_down(void *arg, horon_log_level_t level, const char *text)
{
    (void)arg;
    (void)level;
    pthread_mutex_lock(&book.lock);
    const int bytes = snprintf(book.text + book.used, sizeof book.text - book.used, "%s\n", text);
    book.used += (size_t)bytes;
    assert_true(book.used < sizeof book.text);
    pthread_mutex_unlock(&book.lock);
}

static void *sum_and_leave(void *arg)
{
    struct joiner *joiner = arg;
    float data[7] = {1};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.name = "a sum";
    desc.src = desc.dst = data;
    desc.count = 7;
    join(joiner);
    if (joiner->status != HORON_OK)
        return NULL;
    joiner->status = horon_run(joiner->ctx, &desc, -1, joiner->why, sizeof joiner->why);
    if (joiner->status == HORON_OK) {
        desc.verb = HORON_BROADCAST;
        desc.root = joiner->options.rank; /* the ranks disagree: it fails on both */
        horon_run(joiner->ctx, &desc, -1, NULL, 0);
    }
    horon_context_destroy(joiner->ctx);
    return NULL;
}

static void keep_book(const char *shm, const char *level)
{
    struct joiner joiners[2];
    char store[64];
    atomic_int joined = 0;
    snprintf(store, sizeof store, "STORE=tcp://127.0.0.1:%d", free_port());
    /* on a busy machine a rank may be reached at another address sooner */
    const char *const settings[] = {store, shm, "JOB_KEY=" SECRET, "INTERFACES=127.0.0.1",
                                    level, NULL};
    book.used = 0;
    book.text[0] = 0;
    set_up_joiners(joiners, 2, settings, &joined);
    for (int r = 0; r < 2; r++) {
        joiners[r].options.log_fn = write_down;
        assert_int_equal(pthread_create(&joiners[r].thread, NULL, sum_and_leave, &joiners[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(joiners[r].thread, NULL);
        if (joiners[r].status != HORON_OK)
            fail_msg("rank %d: %s", r, joiners[r].why);
    }
    assert_null(strstr(book.text, SECRET));
}

/* Every rank has a line of that level that begins so; every line names its rank. */
static void expect_line(const char *level, const char *begins)
{
    for (int r = 0; r < 2; r++) {
        char prefix[32], wanted[128];
        bool found = false;
        snprintf(wanted, sizeof wanted, "%s: %s", level, begins);
        snprintf(prefix, sizeof prefix, "horon rank %d (", r);
        for (const char *line = book.text; *line && !found; line = strchr(line, '\n') + 1) {
            const char *rest = strstr(line, ") ");
            found = rest && strncmp(line, prefix, strlen(prefix)) == 0 &&
                    strncmp(rest + 2, wanted, strlen(wanted)) == 0;
        }
        if (!found)
            fail_msg("rank %d tells no %s '%s...':\n%s", r, level, begins, book.text);
    }
}

static void expect_ranks_everywhere(void)
{
    for (const char *line = book.text; *line; line = strchr(line, '\n') + 1)
        if (strncmp(line, "horon rank ", 11) != 0)
            fail_msg("whose line is this? %.200s", line);
}

static void test_joining_at_debug_tells_of_each_object(void **state)
{
    static const char *const both[] = {
        "this is rank ",
        "ranks meet at tcp://127.0.0.1:",
        "the job key comes from HORON_JOB_KEY",
        "reached the store",
        "made an arena of ",
        "joined 2 ranks on ",
        "set up a lane",
        "the context is ready after ",
        "broadcast 'a sum' failed: ",
        "leaving the job, ",
        "the context is closed",
    };
    (void)state;
    for (int shm = 0; shm < 2; shm++) {
        keep_book(shm ? "SHM=1" : "SHM=0", "LOG_LEVEL=debug");
        expect_ranks_everywhere();
        for (size_t i = 0; i < sizeof both / sizeof both[0]; i++)
            expect_line("debug", both[i]);
        assert_non_null(strstr(book.text, "this is rank 1 of 2, as the caller says"));
        assert_non_null(strstr(book.text, "debug: serves the store at 127.0.0.1, port "));
        assert_non_null(strstr(book.text, "debug: linked to rank 0 ("));
        assert_non_null(strstr(book.text, shm ? ") by shared memory, " : ") by tcp, 127.0.0.1:"));
        assert_null(strstr(book.text, " trace: "));
    }
}

static void test_joining_at_trace_tells_of_each_message_and_batch(void **state)
{
    (void)state;
    for (int shm = 0; shm < 2; shm++) {
        keep_book(shm ? "SHM=1" : "SHM=0", "LOG_LEVEL=trace");
        expect_ranks_everywhere();
        expect_line("debug", "linked to rank ");
        expect_line("trace", "while meeting the other ranks: gave ");
        expect_line("trace", "sent negotiation: bytes ");
        expect_line("trace", "heard negotiation: bytes ");
        expect_line("trace", "decided allreduce 'a sum': batch 0, tensors 1");
        expect_line("trace", "begun allreduce 'a sum': elements 7, lane 1");
    }
}

static void test_joining_by_default_tells_nothing(void **state)
{
    (void)state;
    keep_book("SHM=1", "LOG_LEVEL=warn");
    assert_string_equal(book.text, "");
    keep_book("SHM=0", NULL);
    assert_string_equal(book.text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joining_interrupted_ends_with_nothing_left),
        cmocka_unit_test(test_joining_by_an_older_caller_asks_nobody),
        cmocka_unit_test(test_joining_leaves_no_socket_to_a_child_forked_meanwhile),
        cmocka_unit_test(test_joining_at_debug_tells_of_each_object),
        cmocka_unit_test(test_joining_at_trace_tells_of_each_message_and_batch),
        cmocka_unit_test(test_joining_by_default_tells_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
