/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that meet through a launcher's key-value space, a thread each; the launcher is a thread,
 * too, which answers as hydra does: what is put is seen behind the barrier.
 */
#undef NDEBUG
#include "boot/identity/meeting.h"
#include "clock.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, ENTRIES = 16 };

struct launcher {
    pthread_t thread;
    int ends[RANKS], theirs[RANKS];
    char keys[ENTRIES][64], values[ENTRIES][HORON_SPACE_VALUE_BYTES];
    int entries, waiting, barriers;
};

static void answer(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void get(struct launcher *launcher, int fd, const char *key)
{
    char text[HORON_SPACE_VALUE_BYTES + 64] = "cmd=get_result rc=-1 msg=not_found value=unknown\n";
    for (int i = 0; i < launcher->entries; i++)
        if (strcmp(launcher->keys[i], key) == 0)
            snprintf(text, sizeof text, "cmd=get_result rc=0 msg=success value=%s\n",
                     launcher->values[i]);
    answer(fd, text);
}

static void serve(struct launcher *launcher, int fd, const char *request)
{
    char key[64], value[HORON_SPACE_VALUE_BYTES];
    if (strcmp(request, "cmd=get_my_kvsname\n") == 0) {
        answer(fd, "cmd=my_kvsname kvsname=space\n");
    } else if (sscanf(request, "cmd=put kvsname=space key=%63s value=%1023s", key, value) == 2) {
        assert_true(launcher->entries < ENTRIES);
        strcpy(launcher->keys[launcher->entries], key);
        strcpy(launcher->values[launcher->entries++], value);
        answer(fd, "cmd=put_result rc=0 msg=success\n");
    } else if (sscanf(request, "cmd=get kvsname=space key=%63s", key) == 1) {
        get(launcher, fd, key);
    } else {
        assert_string_equal(request, "cmd=barrier_in\n");
        if (++launcher->waiting < RANKS)
            return;
        launcher->waiting = 0;
        launcher->barriers++;
        for (int i = 0; i < RANKS; i++)
            answer(launcher->ends[i], "cmd=barrier_out\n");
    }
}

/* Until all ranks have hung up. */
static void *launch(void *arg)
{
    struct launcher *launcher = arg;
    struct pollfd polled[RANKS];
    int there = RANKS;
    for (int i = 0; i < RANKS; i++)
        polled[i] = (struct pollfd){.fd = launcher->ends[i], .events = POLLIN};
    while (there > 0 && poll(polled, RANKS, 10000) > 0)
        for (int i = 0; i < RANKS; i++) {
            char request[2048];
            if (!polled[i].revents)
                continue;
            const ssize_t got = read(polled[i].fd, request, sizeof request - 1);
            if (got <= 0) {
                polled[i].fd = -1;
                there--;
                continue;
            }
            request[got] = 0;
            serve(launcher, polled[i].fd, request);
        }
    return NULL;
}

static void begin(struct launcher *launcher)
{
    *launcher = (struct launcher){0};
    for (int i = 0; i < RANKS; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        launcher->ends[i] = ends[0];
        launcher->theirs[i] = ends[1];
    }
    assert_int_equal(pthread_create(&launcher->thread, NULL, launch, launcher), 0);
}

static void end(struct launcher *launcher)
{
    for (int i = 0; i < RANKS; i++)
        close(launcher->theirs[i]);
    pthread_join(launcher->thread, NULL);
    for (int i = 0; i < RANKS; i++)
        close(launcher->ends[i]);
}

struct rank {
    pthread_t thread;
    struct launcher *launcher;
    struct horon_identity id;
    const struct horon_config *config;
    char key[HORON_KEY_TEXT_BYTES];
    int64_t limit_ms;
    horon_status_t status;
    struct horon_error error;
};

static void *hold(void *arg)
{
    struct rank *rank = arg;
    struct horon_space space = {.calls = &horon_space_pmi,
                                .fd = rank->launcher->theirs[rank->id.rank],
                                .rank = rank->id.rank,
                                .deadline_ns =
                                    horon_clock_deadline(horon_clock_ns(), rank->limit_ms)};
    rank->status = horon_meeting_hold(&rank->id, rank->config, &space, rank->key, &rank->error);
    return NULL;
}

static struct horon_config rows; /* of all ranks that meet */

/* @param keys [RANKS] that the user gave, or "" @param local how many ranks the host has */
static void meet(struct launcher *launcher, struct rank ranks[RANKS], const char *const *keys,
                 int local)
{
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.launcher = launcher, .config = &rows, .limit_ms = 10000};
        ranks[i].id = (struct horon_identity){.rank = i, .size = RANKS, .local_size = local};
        strcpy(ranks[i].key, keys[i]);
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, hold, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
}

static const char *const none[RANKS] = {"", "", ""};

static void test_meeting_tells_all_one_store_and_a_fresh_key(void **state)
{
    char first[HORON_KEY_TEXT_BYTES] = "";
    (void)state;
    for (int local = RANKS; local >= 1; local -= 2) { /* on one host, and on several */
        struct launcher launcher;
        struct rank ranks[RANKS];
        begin(&launcher);
        meet(&launcher, ranks, none, local);
        for (int i = 0; i < RANKS; i++) {
            assert_int_equal(ranks[i].status, HORON_OK);
            assert_true(ranks[i].id.told && ranks[i].id.port_scan > 0);
            assert_int_equal(strlen(ranks[i].key), 64);
            assert_string_equal(ranks[i].key, ranks[0].key);
            assert_string_equal(ranks[i].id.store, ranks[0].id.store);
        }
        assert_int_equal(launcher.barriers, 1);
        assert_true(strncmp(ranks[0].id.store, "tcp://", 6) == 0);
        if (local == RANKS)
            assert_non_null(strstr(ranks[0].id.store, "127.0.0.1:"));
        assert_string_not_equal(ranks[0].key, first);
        strcpy(first, ranks[0].key);
        end(&launcher);
    }
}

/* @return a listener at @p first + 3, when all others up to + 12 are free; -1 */
static int hold_fourth(int first)
{
    int held = -1;
    bool free = true;
    for (int i = 12; i >= 0 && free; i--) {
        struct horon_address address;
        horon_address_parse("0.0.0.0", first + i, &address);
        const int fd = horon_address_listen(&address);
        free = fd >= 0;
        if (i == 3)
            held = fd;
        else if (free)
            close(fd);
    }
    if (!free && held >= 0)
        close(held);
    return free ? held : -1;
}

/* @return where ranks meet, @p local a host, that have the port @p first and the next twelve */
static int port_met_at(int first, int local)
{
    struct launcher launcher;
    struct rank ranks[RANKS];
    snprintf(rows.port_range, sizeof rows.port_range, "%d-%d", first, first + 12);
    begin(&launcher);
    meet(&launcher, ranks, none, local);
    end(&launcher);
    rows.port_range[0] = 0;
    assert_int_equal(ranks[1].status, HORON_OK);
    return atoi(strrchr(ranks[1].id.store, ':') + 1);
}

/* Those of other hosts would connect to it: one connection to the port of hydra ends it. */
static void test_meeting_of_several_hosts_keeps_off_a_strangers_port(void **state)
{
    /* below those that the system gives to anybody; each process of this test has its own */
    int first = 10000 + getpid() % 700 * 13, held = -1;
    (void)state;
    while (held < 0 && first < 20000)
        held = hold_fourth(first += 13);
    assert_true(held >= 0);
    assert_int_equal(port_met_at(first, RANKS), first); /* they see that it is not rank 0's */
    assert_int_equal(port_met_at(first, 1), first + 4);
    close(held);
}

/* Nobody is waited for: some may not join again at all. */
static void test_meeting_again_needs_no_barrier(void **state)
{
    struct launcher launcher;
    struct rank ranks[RANKS], again[RANKS];
    (void)state;
    begin(&launcher);
    meet(&launcher, ranks, none, RANKS);
    again[1] = ranks[1];
    again[1].id = (struct horon_identity){.rank = 1, .size = RANKS, .local_size = RANKS};
    again[1].key[0] = 0;
    hold(&again[1]);
    assert_int_equal(again[1].status, HORON_OK);
    assert_string_equal(again[1].key, ranks[0].key);
    assert_string_equal(again[1].id.store, ranks[0].id.store);
    assert_int_equal(launcher.barriers, 1);
    end(&launcher);
}

static void test_meeting_of_ranks_with_a_key_tells_none(void **state)
{
    static const char *const all[RANKS] = {"given", "given", "given"};
    static const char *const some[RANKS] = {"given", "", "given"};
    struct launcher launcher;
    struct rank ranks[RANKS];
    (void)state;
    begin(&launcher);
    meet(&launcher, ranks, all, 1);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, HORON_OK);
        assert_string_equal(ranks[i].key, "given");
    }
    for (int i = 0; i < launcher.entries; i++)
        assert_null(strstr(launcher.values[i], "given"));
    end(&launcher);
    begin(&launcher);
    meet(&launcher, ranks, some, 1);
    assert_int_equal(ranks[0].status, HORON_OK);
    assert_int_equal(ranks[1].status, HORON_ERR_CONFIG);
    assert_non_null(strstr(ranks[1].error.text, "this rank has none"));
    end(&launcher);
}

static void test_meeting_that_a_process_misses_says_so(void **state)
{
    static struct horon_config config;
    struct launcher launcher;
    struct rank alone = {.launcher = &launcher,
                         .config = &config,
                         .limit_ms = 60,
                         .id = {.rank = 0, .size = RANKS, .local_size = RANKS}};
    (void)state;
    begin(&launcher);
    hold(&alone);
    assert_int_equal(alone.status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(alone.error.text, "not all of the 3 processes"));
    end(&launcher);
}

/* MPICH's begins with a barrier, which the launcher takes for the meeting's. */
static void test_meeting_that_rank_0_spends_in_mpi_init_says_what_to_do(void **state)
{
    struct launcher launcher;
    struct rank ranks[RANKS];
    char answers[64] = "";
    (void)state;
    begin(&launcher);
    answer(launcher.theirs[0], "cmd=barrier_in\n");
    for (int i = 1; i < RANKS; i++) {
        ranks[i] = (struct rank){.launcher = &launcher, .config = &rows, .limit_ms = 10000};
        ranks[i].id = (struct horon_identity){.rank = i, .size = RANKS, .local_size = RANKS};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, hold, &ranks[i]), 0);
    }
    for (int i = 1; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_int_equal(ranks[i].status, HORON_ERR_SYSTEM);
        assert_non_null(strstr(ranks[i].error.text, "rank 0 has left nothing with the launcher"));
        assert_non_null(strstr(ranks[i].error.text, "is it in its own MPI_Init()"));
        assert_non_null(strstr(ranks[i].error.text, "all begin MPI before they join, or none"));
    }
    assert_true(read(launcher.theirs[0], answers, sizeof answers - 1) > 0);
    assert_string_equal(answers, "cmd=barrier_out\n");
    end(&launcher);
}

/* Hydra would end in the midst of the barrier, in which the others may wait. */
static void test_meeting_that_failed_before_the_first_put_tells_no_end(void **state)
{
    static struct horon_config config = {.port_range = "no range"};
    struct launcher launcher = {0};
    struct rank alone = {.launcher = &launcher,
                         .config = &config,
                         .limit_ms = 10000,
                         .id = {.rank = 0, .size = RANKS, .local_size = RANKS}};
    int ends[2], ended = 0;
    char requests[1024];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    launcher.theirs[0] = ends[1];
    answer(ends[0], "cmd=my_kvsname kvsname=space\n"
                    "cmd=get_result rc=-1 msg=not_found value=unknown\n"
                    "cmd=finalize_ack\n");
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        hold(&alone);
        exit(alone.status != HORON_ERR_CONFIG);
    }
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    const ssize_t got = recv(ends[0], requests, sizeof requests - 1, MSG_DONTWAIT);
    assert_true(got > 0);
    requests[got] = 0;
    assert_string_equal(requests, "cmd=get_my_kvsname\ncmd=get kvsname=space key=horon.0\n");
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meeting_tells_all_one_store_and_a_fresh_key),
        cmocka_unit_test(test_meeting_of_several_hosts_keeps_off_a_strangers_port),
        cmocka_unit_test(test_meeting_again_needs_no_barrier),
        cmocka_unit_test(test_meeting_of_ranks_with_a_key_tells_none),
        cmocka_unit_test(test_meeting_that_a_process_misses_says_so),
        cmocka_unit_test(test_meeting_that_rank_0_spends_in_mpi_init_says_what_to_do),
        cmocka_unit_test(test_meeting_that_failed_before_the_first_put_tells_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
