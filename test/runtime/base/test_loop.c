/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping: what ends a sleep, and what does not. A sleep that should not end would hang, and one
 * that ends for nothing shows in what was called back; no test measures time.
 */
#undef NDEBUG
#include "loop.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WATCHES 3

struct bed {
    int doorbell;
    struct horon_loop *loop;
    int ends[WATCHES][2]; /* [0] is watched */
    int calls[WATCHES], events[WATCHES];
    int unwatch; /* what on_ready() stops watching, -1: nothing */
};

static void on_ready(void *arg, int fd, int events)
{
    struct bed *bed = arg;
    for (int i = 0; i < WATCHES; i++) {
        if (bed->ends[i][0] != fd)
            continue;
        bed->calls[i]++;
        bed->events[i] = events;
        if (bed->unwatch == i)
            horon_loop_watch(bed->loop, i, 0);
    }
}

static void make(struct bed *bed)
{
    struct horon_error error = {0};
    *bed = (struct bed){.unwatch = -1};
    bed->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(horon_loop_create(bed->doorbell, WATCHES, &bed->loop, &error), HORON_OK);
    for (int i = 0; i < WATCHES; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bed->ends[i]), 0);
        assert_int_equal(horon_loop_add(bed->loop, bed->ends[i][0], on_ready, bed), i);
    }
}

static void end(struct bed *bed)
{
    horon_loop_destroy(bed->loop);
    for (int i = 0; i < WATCHES; i++) {
        close(bed->ends[i][0]);
        close(bed->ends[i][1]);
    }
    assert_int_equal(close(bed->doorbell), 0); /* it was not the loop's */
}

static bool is_rung(const struct bed *bed)
{
    uint64_t rings;
    ssize_t got = read(bed->doorbell, &rings, sizeof rings);
    assert_true(got == sizeof rings || errno == EAGAIN);
    return got == sizeof rings;
}

static void forget(struct bed *bed)
{
    memset(bed->calls, 0, sizeof bed->calls);
    memset(bed->events, 0, sizeof bed->events);
}

static void test_loop_rung_before_does_not_sleep_and_all_rings_are_one(void **state)
{
    struct bed bed;
    (void)state;
    make(&bed);
    for (int rings = 1; rings < 5; rings++) {
        for (int i = 0; i < rings; i++)
            horon_doorbell_ring(bed.doorbell);
        horon_loop_sleep(bed.loop, -1);
        assert_false(is_rung(&bed));
    }
    end(&bed);
}

static void test_loop_sleep_ends_when_its_time_has_passed(void **state)
{
    struct bed bed;
    (void)state;
    make(&bed);
    assert_false(horon_loop_sleep(bed.loop, 0));
    assert_false(horon_loop_sleep(bed.loop, 1000000));
    assert_false(horon_loop_sleep(bed.loop, 10000000));
    /* the timer of a sleep that a ring ended is gone: the next one has its own, or none */
    horon_doorbell_ring(bed.doorbell);
    assert_true(horon_loop_sleep(bed.loop, INT64_MAX));
    assert_false(horon_loop_sleep(bed.loop, 1000000));
    horon_doorbell_ring(bed.doorbell);
    assert_true(horon_loop_sleep(bed.loop, -1));
    assert_false(is_rung(&bed));
    end(&bed);
}

/* What the kernel was asked to wait, in nanoseconds; libev would not wait less than a millisecond.
 */
static long asked_ns;
int __real_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                 const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                 const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                 const sigset_t *mask)
{
    asked_ns = timeout->tv_nsec;
    return __real_ppoll(fds, count, timeout, mask);
}

static void test_loop_short_sleep_hears_all_that_a_long_one_does(void **state)
{
    struct bed bed;
    (void)state;
    make(&bed);
    horon_loop_sleep(bed.loop, 0);
    asked_ns = 0;
    horon_loop_sleep(bed.loop, 50000);
    assert_int_equal(asked_ns, 50000);
    horon_doorbell_ring(bed.doorbell);
    horon_loop_sleep(bed.loop, 999999);
    assert_false(is_rung(&bed));
    /* what the kernel does not know yet is told to it, without a sleep */
    asked_ns = 0;
    assert_int_equal(write(bed.ends[0][1], "x", 1), 1);
    horon_loop_watch(bed.loop, 0, HORON_LOOP_READ);
    assert_true(horon_loop_sleep(bed.loop, 999999));
    assert_int_equal(asked_ns, 0);
    assert_int_equal(bed.calls[0], 1);
    horon_loop_sleep(bed.loop, 999999); /* still readable */
    assert_int_equal(asked_ns, 999999);
    assert_int_equal(bed.calls[0], 2);
    end(&bed);
}

struct ringer {
    struct bed *bed;
    atomic_int asked, rung;
};

/* Rings once for each time that it is asked to. */
static void *ring_when_asked(void *arg)
{
    struct ringer *ringer = arg;
    for (int i = 1; i <= 1000; i++) {
        while (atomic_load(&ringer->asked) < i)
            sched_yield();
        atomic_store(&ringer->rung, i);
        horon_doorbell_ring(ringer->bed->doorbell);
    }
    return NULL;
}

static void test_loop_is_woken_by_another_thread_every_time(void **state)
{
    struct bed bed;
    pthread_t thread;
    (void)state;
    make(&bed);
    struct ringer ringer = {.bed = &bed};
    assert_int_equal(pthread_create(&thread, NULL, ring_when_asked, &ringer), 0);
    for (int i = 1; i <= 1000; i++) {
        atomic_store(&ringer.asked, i);
        while (atomic_load(&ringer.rung) < i)
            horon_loop_sleep(bed.loop, -1); /* for ever, if a ring were lost */
    }
    pthread_join(thread, NULL);
    end(&bed);
}

static void test_loop_calls_back_for_what_is_ready_and_watched(void **state)
{
    struct bed bed;
    (void)state;
    make(&bed);
    assert_int_equal(write(bed.ends[0][1], "x", 1), 1);
    assert_int_equal(write(bed.ends[2][1], "x", 1), 1);
    horon_loop_sleep(bed.loop, 0);
    assert_int_equal(bed.calls[0] + bed.calls[1] + bed.calls[2], 0); /* added, not watched */
    horon_loop_watch(bed.loop, 0, HORON_LOOP_READ);
    horon_loop_watch(bed.loop, 1, HORON_LOOP_READ);
    horon_loop_sleep(bed.loop, -1);
    assert_int_equal(bed.calls[0], 1);
    assert_int_equal(bed.events[0], HORON_LOOP_READ);
    assert_int_equal(bed.calls[1] + bed.calls[2], 0);
    horon_loop_watch(bed.loop, 2, HORON_LOOP_READ | HORON_LOOP_WRITE);
    horon_loop_sleep(bed.loop, -1); /* still readable: it moves no data itself */
    assert_int_equal(bed.calls[0], 2);
    assert_int_equal(bed.events[2], HORON_LOOP_READ | HORON_LOOP_WRITE);
    end(&bed);
}

static void test_loop_watch_can_be_changed_and_ended(void **state)
{
    struct bed bed;
    (void)state;
    make(&bed);
    assert_int_equal(write(bed.ends[1][1], "x", 1), 1);
    horon_loop_watch(bed.loop, 1, HORON_LOOP_WRITE);
    horon_loop_sleep(bed.loop, -1);
    assert_int_equal(bed.events[1], HORON_LOOP_WRITE);
    horon_loop_watch(bed.loop, 1, HORON_LOOP_READ);
    horon_loop_watch(bed.loop, 1, HORON_LOOP_READ); /* again: nothing changes */
    horon_loop_sleep(bed.loop, -1);
    assert_int_equal(bed.events[1], HORON_LOOP_READ);
    horon_loop_watch(bed.loop, 1, 0);
    forget(&bed);
    horon_loop_sleep(bed.loop, 0);
    assert_int_equal(bed.calls[1], 0);
    horon_loop_watch(bed.loop, 1, HORON_LOOP_READ);
    horon_loop_sleep(bed.loop, -1);
    assert_int_equal(bed.calls[1], 1);
    end(&bed);
}

/* As for a process that has ended: its descriptor stays readable for good. */
static void test_loop_callback_may_end_its_own_watch(void **state)
{
    struct bed bed;
    (void)state;
    make(&bed);
    bed.unwatch = 1;
    for (int i = 0; i < WATCHES; i++)
        horon_loop_watch(bed.loop, i, HORON_LOOP_READ);
    close(bed.ends[1][1]);
    bed.ends[1][1] = -1;
    horon_loop_sleep(bed.loop, -1);
    assert_int_equal(bed.calls[1], 1); /* the other side is gone: that is readable */
    horon_loop_sleep(bed.loop, 0);
    assert_int_equal(bed.calls[1], 1);
    end(&bed);
}

static void test_loop_ring_on_a_full_doorbell_returns(void **state)
{
    struct bed bed;
    uint64_t full = UINT64_MAX - 1;
    (void)state;
    make(&bed);
    assert_int_equal(write(bed.doorbell, &full, sizeof full), sizeof full);
    horon_doorbell_ring(bed.doorbell);
    horon_loop_sleep(bed.loop, -1);
    assert_false(is_rung(&bed));
    end(&bed);
}

/* Open descriptors that are event polls. */
static int count_polls(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char path[300], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) > 0)
            count += strcmp(target, "anon_inode:[eventpoll]") == 0;
    }
    if (folder)
        closedir(folder);
    return count;
}

static void test_loop_in_a_forked_child_is_closed(void **state)
{
    struct bed bed, other;
    int status = 0;
    (void)state;
    make(&other);
    make(&bed);
    horon_loop_watch(bed.loop, 1, HORON_LOOP_READ);
    horon_loop_sleep(bed.loop, 0);
    int before = count_polls();
    assert_in_range(before, 2, 100);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        horon_loop_close_in_child(bed.loop);
        _exit(count_polls() == before - 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(count_polls(), before);
    assert_int_equal(write(bed.ends[1][1], "x", 1), 1); /* the parent's goes on */
    horon_loop_sleep(bed.loop, -1);
    assert_int_equal(bed.calls[1], 1);
    horon_doorbell_ring(bed.doorbell);
    horon_loop_watch(bed.loop, 1, 0);
    horon_loop_sleep(bed.loop, -1);
    assert_false(is_rung(&bed));
    horon_loop_close_in_child(NULL);
    end(&bed);
    end(&other);
}

static void test_loop_destroy_of_none_is_nothing(void **state)
{
    (void)state;
    horon_loop_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loop_rung_before_does_not_sleep_and_all_rings_are_one),
        cmocka_unit_test(test_loop_sleep_ends_when_its_time_has_passed),
        cmocka_unit_test(test_loop_short_sleep_hears_all_that_a_long_one_does),
        cmocka_unit_test(test_loop_is_woken_by_another_thread_every_time),
        cmocka_unit_test(test_loop_calls_back_for_what_is_ready_and_watched),
        cmocka_unit_test(test_loop_watch_can_be_changed_and_ended),
        cmocka_unit_test(test_loop_callback_may_end_its_own_watch),
        cmocka_unit_test(test_loop_ring_on_a_full_doorbell_returns),
        cmocka_unit_test(test_loop_in_a_forked_child_is_closed),
        cmocka_unit_test(test_loop_destroy_of_none_is_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
