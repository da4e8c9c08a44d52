/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's process is stopped (SIGSTOP, a debugger) in the middle of an operation. Nobody counts it
 * as lost, however long it takes nothing: it may go on. But a time limit holds all the same, with a
 * text that names it, on every rank; and the one that was stopped hears of it when it goes on.
 */
#undef NDEBUG
#include "multi/job.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define REPORT_MS 60000 /* only a hang reaches it */
/* More than a small slot holds: nobody has it all before rank 1 goes on. */
#define ELEMENTS 300000

static float gathered[ELEMENTS * JOB_RANKS_MAX];

struct part {
    bool stops;
    bool begun;
};

/* Called once the lengths are known: all ranks have begun. */
static void *begins_here(void *arg, uint64_t rows, uint64_t bytes)
{
    struct part *part = arg;
    (void)rows;
    if (bytes > sizeof gathered)
        return NULL;
    part->begun = true;
    if (part->stops)
        raise(SIGSTOP);
    return gathered;
}

struct scene {
    uint32_t flags;
    int stopped;
    int stays_stopped_ms; /* after the others gave up */
    bool leaves;          /* the others leave as it goes on; else once it knows */
    int failed[2];        /* a byte each of those that gave up, which stay until ... */
    int go[2];            /* ... nobody holds the end that is written to */
};

/* Whatever the job failed with ends a barrier, too. */
static void hear_of_it(horon_context_t *ctx, struct job_report *report)
{
    horon_descriptor_t next = HORON_DESCRIPTOR_INIT;
    next.verb = HORON_BARRIER;
    report->status = horon_run(ctx, &next, -1, report->text, sizeof report->text);
}

/* Says that it gave up, and leaves when it may. */
static void stay(const struct scene *scene, struct job_report *report)
{
    char byte = 0;
    if (write(scene->failed[1], &byte, 1) != 1 || read(scene->go[0], &byte, 1) != 0)
        report->status = HORON_ERR_SYSTEM;
}

static void gather(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float data[ELEMENTS];
    const struct scene *scene = arg;
    const uint32_t flags = scene->flags;
    struct part part = {.stops = horon_rank(ctx) == scene->stopped};
    horon_descriptor_t desc = job_sum(flags ? NULL : "gathered", data, ELEMENTS, flags);
    close(scene->go[1]);
    desc.verb = HORON_ALLGATHER;
    desc.dst = NULL;
    desc.alloc = begins_here;
    desc.alloc_arg = &part;
    do /* one that the limit meets before all have begun is withdrawn, if it has a name */
        report->status =
            horon_run(ctx, &desc, part.stops ? -1 : 200, report->text, sizeof report->text);
    while (report->status == HORON_ERR_TIMEOUT && !part.begun && !flags);
    if (part.stops && report->status == HORON_OK)
        hear_of_it(ctx, report); /* it had all it needed before it stopped */
    else if (!part.stops)
        stay(scene, report);
}

/* The first rank, through which all that is named goes, stops before it is asked for anything. */
static void ask_the_first(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct scene *scene = arg;
    float data[1] = {0};
    horon_descriptor_t desc = job_sum("asked", data, 1, 0);
    close(scene->go[1]);
    if (horon_rank(ctx) == scene->stopped) {
        raise(SIGSTOP);
        hear_of_it(ctx, report);
        return;
    }
    report->status = horon_run(ctx, &desc, 50, report->text, sizeof report->text);
    stay(scene, report);
}

/* Where two ranks wait for the one that is stopped, the limit of one of them may pass before the
 * other has begun, and then that one is named. */
static void hears_the_reason(struct job *job, int rank, int stopped_rank)
{
    struct job_report report = {0};
    bool named = false;
    assert_int_equal(job_report_of(job, rank, REPORT_MS, &report), 0);
    for (int awaited = 0; awaited < job->size && !named; awaited++) {
        char text[96];
        const bool stopped = awaited == stopped_rank;
        snprintf(text, sizeof text, "%srank %d (%s", stopped ? "" : "waiting for ", awaited,
                 job->host);
        named = (stopped || job->size > 2) && strstr(report.text, text);
    }
    if (report.status != HORON_ERR_TIMEOUT || !named)
        fail_msg("rank %d: status %d: %s", rank, report.status, report.text);
}

static void let_the_others_leave(struct scene *scene)
{
    close(scene->go[1]);
}

static void play(int size, const char *shm, struct scene scene, job_work_fn_t work)
{
    const char *const settings[] = {shm, "PEER_TIMEOUT=500ms", NULL};
    struct job job;
    char byte;
    assert_int_equal(pipe(scene.failed), 0);
    assert_int_equal(pipe(scene.go), 0);
    job_start(&job, size, settings, work, &scene);
    for (int left = size - 1; left > 0; left--) {
        struct pollfd ready = {.fd = scene.failed[0], .events = POLLIN};
        assert_int_equal(poll(&ready, 1, REPORT_MS), 1);
        assert_int_equal(read(scene.failed[0], &byte, 1), 1);
    }
    poll(NULL, 0, scene.stays_stopped_ms);
    kill(job.pids[scene.stopped], SIGCONT);
    if (scene.leaves)
        let_the_others_leave(&scene);
    hears_the_reason(&job, scene.stopped, scene.stopped);
    if (!scene.leaves)
        let_the_others_leave(&scene);
    for (int rank = 0; rank < size; rank++)
        if (rank != scene.stopped)
            hears_the_reason(&job, rank, scene.stopped);
    assert_int_equal(job_end(&job, 10000), 0);
    close(scene.go[0]);
    close(scene.failed[0]);
    close(scene.failed[1]);
}

static void test_stopped_rank_does_not_hold_up_the_limit_of_what_has_begun(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        for (uint32_t flags = 0; flags < 2; flags++) {
            const struct scene scene = {.flags = flags, .stopped = 1};
            play(size, "SHM=0", scene, gather);
            play(size, "SHM=1", scene, gather);
        }
    }
}

static void test_stopped_first_rank_does_not_hold_up_a_withdrawal(void **state)
{
    (void)state;
    play(2, "SHM=0", (struct scene){.stopped = 0}, ask_the_first);
    play(3, "SHM=1", (struct scene){.stopped = 0}, ask_the_first);
}

/* Longer than PEER_TIMEOUT: its connection must not end, or the reason would end with it. */
static void test_stopped_rank_hears_the_reason_however_late_it_goes_on(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < 2; flags++)
        play(2, "SHM=0", (struct scene){.flags = flags, .stopped = 1, .stays_stopped_ms = 1500},
             gather);
}

/* It had begun to send, so that a connection closed too early would be reset, and the reason lost:
 * leaving waits for as long as its system takes something. */
static void test_stopped_rank_hears_the_reason_of_those_that_left(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++)
        play(2, "SHM=0", (struct scene){.stopped = 1, .leaves = true}, gather);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped_rank_does_not_hold_up_the_limit_of_what_has_begun),
        cmocka_unit_test(test_stopped_rank_hears_the_reason_however_late_it_goes_on),
        cmocka_unit_test(test_stopped_rank_hears_the_reason_of_those_that_left),
        cmocka_unit_test(test_stopped_first_rank_does_not_hold_up_a_withdrawal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
