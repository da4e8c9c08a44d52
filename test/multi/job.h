/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of real processes: forks N ranks that meet through a file store in a fresh directory, each
 * with a pipe to the test. All are gone, and the directory too, when it ends, whatever happened.
 */
#ifndef HORON_TEST_MULTI_JOB_H
#define HORON_TEST_MULTI_JOB_H

#include <horon/horon.h>

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define JOB_RANKS_MAX 16

/** What a rank tells the test. */
struct job_report {
    int32_t status; /* of the operation that ended its work; 0: it finished */
    char text[HORON_ERROR_TEXT_BYTES];
};

struct job {
    int size;
    pid_t pids[JOB_RANKS_MAX]; /* 0: reaped */
    int pipes[JOB_RANKS_MAX];  /* reports of each rank */
    int exit_status[JOB_RANKS_MAX];
    char store[64];
    char host[64];
};

/** Runs in each rank with its context; what it fills in is sent. The context is destroyed after. */
typedef void (*job_work_fn_t)(horon_context_t *ctx, void *arg, struct job_report *report);

/** Starts the ranks. @param settings NULL-ended "NAME=value" besides the store and a key; may be
 * NULL */
void job_start(struct job *job, int size, const char *const *settings, job_work_fn_t work,
               void *arg);
/** Waits until every rank has joined. Once at most. */
void job_wait_joined(struct job *job);
/** Waits for the report of a rank. @return 0, or -1 if it ended without one or @p timeout_ms passed
 */
int job_report_of(struct job *job, int rank, int timeout_ms, struct job_report *report);
/** Likewise, with one limit for several: takes the time that it has waited from @p left_ms. Time in
 * which the machine stood still is not counted. */
int job_report_within(struct job *job, int rank, int64_t *left_ms, struct job_report *report);
/** Waits for all ranks to exit, kills those that did not in @p timeout_ms. @return how many it
 * killed */
int job_end(struct job *job, int timeout_ms);

/** Starts a job, and fails the test unless every rank's work, and its end, went well. */
void job_run(int size, const char *const *settings, job_work_fn_t work, void *arg);

/** Writes down a failure: its status, and the rest as a text. */
void job_say(const horon_failure_t *failure, struct job_report *report);

/** In a rank's work, with its `ctx` and `report`: what must hold. job_run() prints the line. */
#define RANK_MUST(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            report->status = HORON_ERR_INVALID;                                                    \
            snprintf(report->text, sizeof report->text, "line %d: %s (%s)", __LINE__, #condition,  \
                     horon_last_error(ctx));                                                       \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/** Sets up an allreduce in a descriptor. */
horon_descriptor_t job_sum(const char *name, float *data, uint64_t count, uint32_t flags);
/** Likewise a HORON_SEND to, or a HORON_RECV from @p peer. */
horon_descriptor_t job_message(horon_verb_t verb, int peer, uint64_t tag, int32_t *data,
                               uint64_t count);

#endif
