/* SPDX-License-Identifier: Apache-2.0 */
/* A place in a job that an ancestor has taken is found; one that anybody else has is not. */
#undef NDEBUG
#include "boot/identity/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct horon_identity place(int rank, const char *store)
{
    struct horon_identity id = {.rank = rank, .size = 4, .job = 7, .source = "torchrun"};
    snprintf(id.store, sizeof id.store, "%s", store);
    return id;
}

/* The descriptor of a parent that joined is not the child's; the fork handlers close it. */
static horon_status_t asked_after(int forks, int said, const struct horon_identity *id)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct horon_error error = {0};
        close(said);
        if (forks > 1)
            _exit(-(int)asked_after(forks - 1, -1, id));
        const horon_status_t found = horon_joined_before(id, NULL, &error);
        const bool named = strstr(error.text, "rank 1 has joined already: process ") != NULL &&
                           strstr(error.text, "torchrun") != NULL;
        _exit(found == HORON_OK || named ? -(int)found : 100);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return (horon_status_t)-WEXITSTATUS(status);
}

static int listen_at(const struct sockaddr_un *name, socklen_t name_bytes)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return bind(fd, (const struct sockaddr *)name, name_bytes) == 0 && listen(fd, 1) == 0 ? fd : -1;
}

static void test_joined_ancestor_is_found(void **state)
{
    const struct horon_identity id = place(1, "tcp://127.0.0.1:29500");
    (void)state;
    assert_int_equal(asked_after(1, -1, &id), HORON_OK);
    const int said = horon_joined_say(&id);
    assert_true(said >= 0);
    assert_int_equal(asked_after(1, said, &id), HORON_ERR_CONFIG);
    assert_int_equal(asked_after(3, said, &id), HORON_ERR_CONFIG);
    close(said);
    assert_int_equal(asked_after(1, -1, &id), HORON_OK);
}

static void test_joined_ancestor_of_another_place_is_not(void **state)
{
    const struct horon_identity id = place(1, "tcp://127.0.0.1:29500");
    struct horon_identity others[] = {place(2, "tcp://127.0.0.1:29500"),
                                      place(1, "tcp://127.0.0.1:29501"), id, id};
    (void)state;
    const int said = horon_joined_say(&id);
    assert_true(said >= 0);
    others[2].size = 8;
    others[3].job = 8;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(asked_after(1, said, &others[i]), HORON_OK);
    close(said);
}

/* Joins again after it has left, or in another thread: that is none of an ancestor. */
static void test_joined_process_itself_is_not(void **state)
{
    const struct horon_identity id = place(1, "file:/tmp/x");
    struct horon_error error = {0};
    (void)state;
    const int said = horon_joined_say(&id);
    assert_true(said >= 0);
    assert_int_equal(horon_joined_before(&id, NULL, &error), HORON_OK);
    assert_int_equal(horon_joined_say(&id), -1); /* twice at once; nobody minds */
    close(said);
}

/* A child says that it has joined, in its own name or, if that is given, in its parent's: neither
 * this process nor another child of it takes that for an ancestor's. */
static void expect_unheard(const struct horon_identity *id, const struct sockaddr_un *name,
                           socklen_t name_bytes)
{
    int ready[2], over[2], status;
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(over), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int said = name ? listen_at(name, name_bytes) : horon_joined_say(id);
        close(over[1]);
        if (said < 0 || write(ready[1], &byte, 1) != 1)
            _exit(1);
        _exit(read(over[0], &byte, 1) != 0); /* until the test has looked */
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct horon_error error = {0};
    assert_int_equal(horon_joined_before(id, NULL, &error), HORON_OK);
    assert_int_equal(asked_after(1, over[1], id), HORON_OK);
    close(over[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ready[0]);
    close(over[0]);
}

static void test_joined_child_is_not(void **state)
{
    const struct horon_identity id = place(1, "file:/tmp/x");
    (void)state;
    expect_unheard(&id, NULL, 0);
}

/* Anybody may take the name that an ancestor would have. */
static void test_joined_impostor_is_not(void **state)
{
    const struct horon_identity id = place(1, "file:/tmp/x");
    struct sockaddr_un name;
    socklen_t name_bytes = sizeof name;
    (void)state;
    const int said = horon_joined_say(&id);
    assert_true(said >= 0);
    assert_int_equal(getsockname(said, (struct sockaddr *)&name, &name_bytes), 0);
    close(said);
    expect_unheard(&id, &name, name_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_ancestor_is_found),
        cmocka_unit_test(test_joined_ancestor_of_another_place_is_not),
        cmocka_unit_test(test_joined_process_itself_is_not),
        cmocka_unit_test(test_joined_child_is_not),
        cmocka_unit_test(test_joined_impostor_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
