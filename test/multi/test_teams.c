/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Second teams of real processes: any ranks of the job in any order, made and removed while it
 * runs. They pass their memory among themselves, leave nothing of it, go on when a rank that is not
 * in them is gone, and say which member is missing. No call of the ABI makes them yet: this looks
 * inside.
 */
#undef NDEBUG
#include "count_fds.h"
#include "engine/team.h"
#include "multi/job.h"
#include "teams.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT 5003

static char last_text[HORON_ERROR_TEXT_BYTES]; /* of the last sum that failed in this process */

/* Of this rank in one team: what it gives to a sum, and gets. */
static horon_status_t run_sum(struct horon_context_team *team, horon_context_t *ctx,
                              const char *name, float *data, uint64_t count)
{
    horon_request_t *request;
    struct horon_engine_team *engine_team = horon_context_team_of(team);
    horon_descriptor_t desc = job_sum(name, data, count, name ? 0 : HORON_IN_ORDER);
    desc.process_set = (int32_t)engine_team->id;
    horon_status_t status = horon_team_submit(ctx, engine_team, &desc, &request);
    if (status != HORON_OK)
        return status;
    status = horon_wait(request, HORON_HOST_DONE, -1);
    if (status != HORON_OK)
        snprintf(last_text, sizeof last_text, "%s", horon_request_error(request));
    horon_release(request);
    return status;
}

static bool is_in(const int *ranks, int size, int rank)
{
    for (int i = 0; i < size; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

/* Makes a team, sums by name and in order, and removes it. @return NULL, or what went wrong */
static const char *use_team(horon_context_t *ctx, uint32_t id, const int *ranks, int size)
{
    static char why[HORON_ERROR_TEXT_BYTES + 64];
    static float data[COUNT];
    struct horon_context_team *team;
    struct horon_error error = {0};
    float sum = 0;
    for (int i = 0; i < size; i++)
        sum += (float)ranks[i] + 1;
    if (horon_context_add_team(ctx, id, ranks, size, NULL, &team, &error) != HORON_OK) {
        snprintf(why, sizeof why, "team %u is not made: %s", id, error.text);
        return why;
    }
    for (int round = 0; round < 6; round++) {
        const uint64_t count = round % 3 ? COUNT : 1;
        for (uint64_t i = 0; i < count; i++)
            data[i] = (float)horon_rank(ctx) + 1;
        if (run_sum(team, ctx, round % 2 ? "x" : NULL, data, count) != HORON_OK) {
            snprintf(why, sizeof why, "team %u, round %d: %s", id, round, last_text);
            return why;
        }
        for (uint64_t i = 0; i < count; i++)
            if (data[i] != sum) {
                snprintf(why, sizeof why, "team %u, round %d: %g, not %g", id, round,
                         (double)data[i], (double)sum);
                return why;
            }
    }
    horon_context_remove_team(team);
    return NULL;
}

static horon_status_t meet(horon_context_t *ctx)
{
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    return horon_run(ctx, &barrier, -1, NULL, 0);
}

/* All in reverse, all but the first, the ends, and every single one; beside operations of the job.
 */
static void use_teams(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int size = horon_size(ctx), rank = horon_rank(ctx);
    int ranks[JOB_RANKS_MAX];
    uint32_t id = 0;
    const char *why = NULL;
    (void)arg;
    for (int i = 0; i < size; i++)
        ranks[i] = size - 1 - i;
    why = use_team(ctx, ++id, ranks, size);
    RANK_MUST(!why || !fprintf(stderr, "%s\n", why));
    id++;
    if (size > 1 && rank > 0)
        why = use_team(ctx, id, ranks, size - 1);
    RANK_MUST(!why || !fprintf(stderr, "%s\n", why));
    RANK_MUST(meet(ctx) == HORON_OK);
    ranks[1] = 0;
    id++;
    if (size > 1 && (rank == 0 || rank == size - 1))
        why = use_team(ctx, id, ranks, 2);
    RANK_MUST(!why || !fprintf(stderr, "%s\n", why));
    why = use_team(ctx, ++id, &rank, 1);
    RANK_MUST(!why || !fprintf(stderr, "%s\n", why));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_teams_of_any_ranks_sum(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    (void)state;
    for (int size = 1; size <= 5; size++) {
        job_run(size, NULL, use_teams, NULL);
        job_run(size, tcp, use_teams, NULL);
    }
}

/* Pieces of shared memory of this library that this process maps. */
static int count_maps(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:horon") != NULL;
    fclose(maps);
    return count;
}

/* The first teams make sockets between their members, which stay. */
static void make_many(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { FIRST = 12, TEAMS = 200 };
    const int size = horon_size(ctx), rank = horon_rank(ctx);
    int fds = 0, maps = 0;
    (void)arg;
    for (int i = 0; i < TEAMS; i++) {
        const int two[2] = {i % size, (i + 1 + i / size % (size - 1)) % size};
        if (i == FIRST) {
            RANK_MUST(meet(ctx) == HORON_OK);
            fds = count_fds();
            maps = count_maps();
            RANK_MUST(meet(ctx) == HORON_OK); /* else others send memory of their next team */
        }
        const char *why = NULL;
        if (is_in(two, 2, rank))
            why = use_team(ctx, (uint32_t)i + 1, two, 2);
        RANK_MUST(!why || !fprintf(stderr, "%s\n", why));
    }
    RANK_MUST(meet(ctx) == HORON_OK);
    RANK_MUST(count_fds() == fds);
    RANK_MUST(count_maps() == maps);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_teams_leave_nothing(void **state)
{
    (void)state;
    job_run(4, NULL, make_many, NULL);
}

/* Ranks 1 and 3 have made a team when rank 0 or 2 is killed, and use it for the first time then:
 * their memory needs nobody else. Rank 0 is the first of their host. */
static void lose_another(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int two[] = {3, 1};
    static float data[COUNT];
    const int lost = *(const int *)arg, rank = horon_rank(ctx);
    struct horon_context_team *team = NULL;
    struct horon_error error = {0};
    if (is_in(two, 2, rank))
        RANK_MUST(horon_context_add_team(ctx, 1, two, 2, NULL, &team, &error) == HORON_OK);
    const horon_status_t met = meet(ctx); /* of which the lost one may be done first */
    RANK_MUST(met == HORON_OK || met == HORON_ERR_PEER_LOST);
    if (rank == lost)
        raise(SIGKILL);
    RANK_MUST(meet(ctx) == HORON_ERR_PEER_LOST);
    for (int i = 0; team && i < 20; i++) {
        for (int j = 0; j < COUNT; j++)
            data[j] = 1;
        RANK_MUST(run_sum(team, ctx, i % 2 ? "x" : NULL, data, COUNT) == HORON_OK);
        RANK_MUST(data[COUNT - 1] == 2);
    }
    if (team)
        horon_context_remove_team(team);
    report->status = HORON_OK;
}

static void test_teams_without_a_lost_rank_make_their_memory(void **state)
{
    static const int lost_ranks[] = {0, 2};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job job;
        struct job_report report;
        int lost = lost_ranks[i];
        job_start(&job, 4, NULL, lose_another, &lost);
        job_wait_joined(&job);
        for (int rank = 0; rank < 4; rank++)
            if (rank != lost) {
                assert_int_equal(job_report_of(&job, rank, 60000, &report), 0);
                if (report.status != HORON_OK)
                    fail_msg("rank %d: %s", rank, report.text);
            }
        assert_int_equal(job_end(&job, 60000), 0);
    }
}

/* The others wait for its memory. The job goes on. */
static void miss_a_member(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int all[] = {0, 1, 2};
    struct horon_context_team *team;
    struct horon_error error = {0};
    (void)arg;
    if (horon_rank(ctx) != 0) {
        RANK_MUST(horon_context_add_team(ctx, 1, all, 3, NULL, &team, &error) == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(error.text, "rank 0 ("));
        RANK_MUST(error.blame.rank == 0);
    }
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_teams_name_a_member_that_does_not_make_them(void **state)
{
    static const char *const soon[] = {"PEER_TIMEOUT=1s", NULL};
    (void)state;
    job_run(3, soon, miss_a_member, NULL);
}

struct leaving {
    int order[3];
    int ends[2]; /* of a pair of sockets, for ranks 0 and 1 */
};

/* Whether it is known when the team is made, or later. The other two stay until both have heard. */
static void leave_before(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct leaving *leaving = arg;
    const int rank = horon_rank(ctx);
    struct horon_context_team *team;
    struct horon_error error = {0};
    float data = 1;
    char byte = 0;
    if (rank == 2)
        return; /* its context is destroyed now */
    horon_status_t status = horon_context_add_team(ctx, 1, leaving->order, 3, NULL, &team, &error);
    if (status == HORON_OK) {
        status = run_sum(team, ctx, NULL, &data, 1);
        memcpy(error.text, last_text, sizeof last_text);
        horon_context_remove_team(team);
    }
    RANK_MUST(write(leaving->ends[rank], &byte, 1) == 1);
    RANK_MUST(read(leaving->ends[rank], &byte, 1) == 1);
    RANK_MUST(status == HORON_ERR_CLOSED || !fprintf(stderr, "%s\n", error.text));
    RANK_MUST(strstr(error.text, "rank 2 (") || !fprintf(stderr, "%s\n", error.text));
}

static void test_teams_with_a_rank_that_left_are_refused(void **state)
{
    static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct leaving leaving;
        memcpy(leaving.order, orders[i], sizeof orders[i]);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, leaving.ends), 0);
        job_run(3, NULL, leave_before, &leaving);
        close(leaving.ends[0]);
        close(leaving.ends[1]);
    }
}

/* What was submitted and not even taken by the engine ends, too. The last team goes with the
 * context. */
static void remove_at_once(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { SOME = 4 };
    static const int all[] = {0, 1};
    static float data[SOME][COUNT];
    static const char *const names[SOME] = {NULL, "x", NULL, "y"};
    (void)arg;
    struct horon_context_team *team;
    struct horon_error error = {0};
    for (uint32_t id = 1; id <= 50; id++) {
        horon_request_t *requests[SOME];
        RANK_MUST(horon_context_add_team(ctx, id, all, 2, NULL, &team, &error) == HORON_OK);
        struct horon_engine_team *engine_team = horon_context_team_of(team);
        for (int i = 0; i < SOME; i++) {
            horon_descriptor_t desc =
                job_sum(names[i], data[i], COUNT, names[i] ? 0 : HORON_IN_ORDER);
            desc.process_set = (int32_t)id;
            RANK_MUST(horon_team_submit(ctx, engine_team, &desc, &requests[i]) == HORON_OK);
        }
        horon_context_remove_team(team);
        for (int i = 0; i < SOME; i++) {
            const horon_status_t status = horon_wait(requests[i], HORON_HOST_DONE, 0);
            RANK_MUST(status == HORON_OK || status == HORON_ERR_CLOSED);
            horon_release(requests[i]);
        }
        RANK_MUST(meet(ctx) == HORON_OK);
    }
    RANK_MUST(horon_context_add_team(ctx, 51, all, 2, NULL, &team, &error) == HORON_OK);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_teams_end_what_was_just_submitted(void **state)
{
    (void)state;
    job_run(2, NULL, remove_at_once, NULL);
}

/* Of its first thread: R, S (asleep), T (stopped), ... */
static char state_of(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    const bool read = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    const char *behind_name = strrchr(line, ')');
    return read && behind_name ? behind_name[2] : 0;
}

/* From rank 0. */
static bool submit_many(horon_context_t *ctx, struct horon_engine_team *team, float *data,
                        horon_request_t **requests, int count)
{
    horon_status_t status = HORON_OK;
    for (int i = 0; i < count && status == HORON_OK; i++) {
        char name[128];
        snprintf(name, sizeof name, "%0100d", i);
        data[i] = horon_rank(ctx) == 0 ? (float)i : -1;
        horon_descriptor_t desc = job_sum(name, &data[i], 1, 0);
        desc.verb = HORON_BROADCAST;
        desc.process_set = (int32_t)team->id;
        status = horon_team_submit(ctx, team, &desc, &requests[i]);
    }
    return status == HORON_OK;
}

/* Rank 1 is stopped while rank 0 decides more than their ring holds, and goes on when rank 0, whose
 * first tensor is out, removes the team and waits for it. */
static void decide_and_remove(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { NAMES = 1500, MEETINGS = 50 };
    static const int all[] = {0, 1};
    static horon_request_t *requests[NAMES];
    static float data[NAMES];
    const int rank = horon_rank(ctx), *ends = arg;
    struct horon_context_team *team;
    struct horon_error error = {0};
    pid_t other = getpid();
    RANK_MUST(horon_context_add_team(ctx, 1, all, 2, NULL, &team, &error) == HORON_OK);
    RANK_MUST(run_sum(team, ctx, "first", data, 1) == HORON_OK);
    struct horon_engine_team *engine_team = horon_context_team_of(team);
    if (rank == 1) {
        RANK_MUST(submit_many(ctx, engine_team, data, requests, NAMES));
        RANK_MUST(write(ends[1], &other, sizeof other) == sizeof other);
    } else {
        RANK_MUST(read(ends[0], &other, sizeof other) == sizeof other);
    }
    for (int i = 0; i < MEETINGS; i++) /* meanwhile rank 0 hears of all */
        RANK_MUST(meet(ctx) == HORON_OK);
    if (rank == 0) {
        RANK_MUST(kill(other, SIGSTOP) == 0);
        while (state_of(other) != 'T')
            sched_yield();
        horon_token_take(ctx); /* so that all are decided at once */
        RANK_MUST(submit_many(ctx, engine_team, data, requests, NAMES));
        horon_token_release(ctx);
        RANK_MUST(horon_wait(requests[0], HORON_HOST_DONE, -1) == HORON_OK);
        const pid_t self = getpid(), child = fork();
        if (child == 0) {
            while (getppid() == self && state_of(self) != 'S')
                sched_yield();
            _exit(kill(other, SIGCONT));
        }
        horon_context_remove_team(team);
        RANK_MUST(state_of(other) != 'T'); /* it had to take what rank 0 had said */
        RANK_MUST(waitpid(child, NULL, 0) == child);
    }
    for (int i = 0; i < NAMES; i++) {
        const horon_status_t status = horon_wait(requests[i], HORON_HOST_DONE, -1);
        RANK_MUST(status == HORON_OK || (i > 0 && status == HORON_ERR_CLOSED));
        RANK_MUST(status != HORON_OK || data[i] == (float)i);
        horon_release(requests[i]);
    }
    if (rank == 1)
        horon_context_remove_team(team);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_teams_hear_what_was_decided_before_a_removal(void **state)
{
    static const char *const late[] = {"PEER_TIMEOUT=60s", NULL};
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    job_run(2, late, decide_and_remove, ends);
    close(ends[0]);
    close(ends[1]);
}

/* Rank 0 makes teams and goes on; rank 1 comes later, and needs no descriptor for what it missed.
 */
static void run_ahead(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { TEAMS = 300, ROOM = 24 };
    static const int all[] = {0, 1};
    static struct horon_context_team *teams[TEAMS];
    const int *ends = arg;
    char byte = 0;
    if (horon_rank(ctx) == 1) {
        const rlim_t most = (rlim_t)count_fds() + ROOM;
        RANK_MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, most}) == 0);
        RANK_MUST(write(ends[1], &byte, 1) == 1);
        RANK_MUST(read(ends[1], &byte, 1) == 1);
    } else {
        RANK_MUST(read(ends[0], &byte, 1) == 1);
    }
    for (uint32_t i = 0; i < TEAMS; i++) {
        struct horon_error error = {0};
        RANK_MUST(horon_context_add_team(ctx, i + 1, all, 2, NULL, &teams[i], &error) == HORON_OK ||
                  !fprintf(stderr, "team %u: %s\n", i + 1, error.text));
    }
    if (horon_rank(ctx) == 0)
        RANK_MUST(write(ends[0], &byte, 1) == 1);
    RANK_MUST(meet(ctx) == HORON_OK);
    for (uint32_t i = 0; i < TEAMS; i += 10) {
        float one = 1;
        RANK_MUST(run_sum(teams[i], ctx, "x", &one, 1) == HORON_OK);
        RANK_MUST(one == 2);
    }
    for (uint32_t i = 0; i < TEAMS; i++)
        horon_context_remove_team(teams[i]);
}

static void test_teams_may_be_made_long_before_the_others_do(void **state)
{
    static const char *const soon[] = {"PEER_TIMEOUT=20s", NULL};
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    job_run(2, soon, run_ahead, ends);
    close(ends[0]);
    close(ends[1]);
}

/* A child that lives on would keep its memory. */
static void fork_between(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int all[] = {0, 1, 2};
    struct horon_context_team *team;
    struct horon_error error = {0};
    int status = -1;
    (void)arg;
    RANK_MUST(horon_context_add_team(ctx, 1, all, 3, NULL, &team, &error) == HORON_OK);
    RANK_MUST(meet(ctx) == HORON_OK);
    const pid_t child = fork();
    if (child == 0) {
        char name[32], target[64];
        for (int fd = 3; fd < 256; fd++) {
            snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
            const ssize_t got = readlink(name, target, sizeof target - 1);
            target[got > 0 ? got : 0] = 0;
            if (strstr(target, "memfd:horon"))
                _exit(1);
        }
        _exit(0);
    }
    RANK_MUST(waitpid(child, &status, 0) == child);
    RANK_MUST(status == 0);
    RANK_MUST(meet(ctx) == HORON_OK);
    horon_context_remove_team(team);
}

static void test_teams_leave_a_child_nothing(void **state)
{
    (void)state;
    job_run(3, NULL, fork_between, NULL);
}

/* Rank 1 has no descriptor for what the others send it. The job goes on. */
static void lack_descriptors(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { LIMIT = 128 };
    static const int all[] = {0, 1, 2};
    const bool lacks = horon_rank(ctx) == 1;
    struct horon_context_team *team;
    struct horon_error error = {0};
    int fds[LIMIT], count = 0;
    float one = 1;
    (void)arg;
    if (lacks)
        RANK_MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}) == 0);
    while (lacks && count < LIMIT && (fds[count] = dup(STDERR_FILENO)) >= 0)
        count++;
    RANK_MUST(meet(ctx) == HORON_OK);
    horon_status_t status = horon_context_add_team(ctx, 1, all, 3, NULL, &team, &error);
    while (count > 0)
        close(fds[--count]);
    if (status == HORON_OK) {
        status = run_sum(team, ctx, "x", &one, 1);
        memcpy(error.text, last_text, sizeof last_text);
        horon_context_remove_team(team);
    }
    RANK_MUST(status == HORON_ERR_MEMORY || !fprintf(stderr, "%d: %s\n", status, error.text));
    RANK_MUST(strstr(error.text, " to rank 1: this process is out of descriptors"));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_teams_without_descriptors_fail_alone(void **state)
{
    (void)state;
    job_run(3, NULL, lack_descriptors, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teams_of_any_ranks_sum),
        cmocka_unit_test(test_teams_leave_nothing),
        cmocka_unit_test(test_teams_without_a_lost_rank_make_their_memory),
        cmocka_unit_test(test_teams_name_a_member_that_does_not_make_them),
        cmocka_unit_test(test_teams_with_a_rank_that_left_are_refused),
        cmocka_unit_test(test_teams_end_what_was_just_submitted),
        cmocka_unit_test(test_teams_hear_what_was_decided_before_a_removal),
        cmocka_unit_test(test_teams_may_be_made_long_before_the_others_do),
        cmocka_unit_test(test_teams_leave_a_child_nothing),
        cmocka_unit_test(test_teams_without_descriptors_fail_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
