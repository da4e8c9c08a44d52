/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams of real processes at bad moments: the member that makes their memory cannot make them, the
 * socket by which memory goes is full when one is removed, and requests outlive their team.
 */
#undef NDEBUG
#include "engine/team.h"
#include "host/memory.h"
#include "multi/job.h"
#include "teams.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const int both[] = {0, 1};

static horon_status_t meet(horon_context_t *ctx)
{
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    return horon_run(ctx, &barrier, -1, NULL, 0);
}

/* Rank 1 waits for memory of rank 0 and for nobody else; they have a link as neighbours in the job.
 */
static void refuse_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    struct horon_context_team *team;
    struct horon_error error = {0};
    (void)arg;
    if (horon_rank(ctx) == 0) {
        horon_error_set(&error, HORON_ERR_MEMORY, "rank 0 has no room today");
        horon_token_take(ctx);
        horon_engine_refuse_team(ctx->engine, 1, both, 2, &error);
        horon_token_release(ctx);
    } else {
        RANK_MUST(horon_context_add_team(ctx, 1, both, 2, NULL, &team, &error) == HORON_ERR_MEMORY);
        RANK_MUST(strstr(error.text, "no room today") || !fprintf(stderr, "%s\n", error.text));
    }
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_team_faults_of_the_first_member_are_heard_at_once(void **state)
{
    static const char *const late[] = {"PEER_TIMEOUT=600s", NULL};
    (void)state;
    job_run(2, late, refuse_one, NULL);
}

/* Rank 0 passes rank 1 an arena as that of rank 1 itself, which nobody else makes. */
static void pass_own(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct horon_host_shape shape = horon_context_shape(ctx, 2);
    struct horon_note note = {.team = 1, .local_rank = 1, .fd_count = 1};
    struct horon_context_team *team;
    struct horon_map map = {.fd = -1};
    struct horon_error error = {0};
    (void)arg;
    if (horon_rank(ctx) == 0) {
        note.bytes = horon_engine_arena_at(&shape, HORON_LANE_COUNT);
        RANK_MUST(horon_memory_make("arena", (size_t)note.bytes, &map, &error) == HORON_OK);
        note.fds[0] = map.fd;
        horon_token_take(ctx);
        const horon_status_t sent = horon_note_send(ctx->boot.local[1].socket, &note, &error);
        horon_token_release(ctx);
        horon_fd_close(&map.fd);
        horon_memory_unmap(&map);
        RANK_MUST(sent == HORON_OK);
    } else {
        RANK_MUST(horon_context_add_team(ctx, 1, both, 2, NULL, &team, &error) == HORON_ERR_PROTO);
        RANK_MUST(strstr(error.text, "out of turn") || !fprintf(stderr, "%s\n", error.text));
    }
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_team_faults_of_a_foreign_arena_as_its_own_is_refused(void **state)
{
    static const char *const soon[] = {"PEER_TIMEOUT=5s", NULL};
    (void)state;
    job_run(2, soon, pass_own, NULL);
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

static horon_status_t begin_broadcast(horon_context_t *ctx, struct horon_context_team *team,
                                      float *data, horon_request_t **request)
{
    horon_descriptor_t desc = job_sum(NULL, data, 1, HORON_IN_ORDER);
    desc.verb = HORON_BROADCAST;
    desc.process_set = (int32_t)horon_context_team_of(team)->id;
    return horon_team_submit(ctx, horon_context_team_of(team), &desc, request);
}

/* With notes of a team that is over. */
static void fill_socket(horon_context_t *ctx, int process)
{
    const struct horon_note over = {.team = 1, .local_rank = HORON_NOTE_SEGMENT};
    struct horon_error error;
    horon_token_take(ctx);
    while (horon_note_send(ctx->boot.local[process].socket, &over, &error) == HORON_OK)
        continue;
    horon_token_release(ctx);
}

/* Rank 1 has given its arena when it is stopped, and goes on when rank 0, whose broadcast is out,
 * waits for it in the removal: without the arenas rank 1 could never read what was broadcast. */
static void remove_behind_a_full_socket(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { MEETINGS = 50 };
    const int rank = horon_rank(ctx), *ends = arg;
    struct horon_context_team *team;
    struct horon_error error = {0};
    horon_request_t *request = NULL;
    float data = rank == 0 ? 7 : -1;
    pid_t other = getpid(), child = 0;
    RANK_MUST(horon_context_add_team(ctx, 1, both, 2, NULL, &team, &error) == HORON_OK);
    horon_context_remove_team(team);
    RANK_MUST(horon_context_add_team(ctx, 2, both, 2, NULL, &team, &error) == HORON_OK);
    if (rank == 1) {
        RANK_MUST(begin_broadcast(ctx, team, &data, &request) == HORON_OK);
        RANK_MUST(write(ends[1], &other, sizeof other) == sizeof other);
    } else {
        RANK_MUST(read(ends[0], &other, sizeof other) == sizeof other);
    }
    for (int i = 0; i < MEETINGS; i++)
        RANK_MUST(meet(ctx) == HORON_OK);
    if (rank == 0) {
        RANK_MUST(kill(other, SIGSTOP) == 0);
        while (state_of(other) != 'T')
            sched_yield();
        fill_socket(ctx, 1);
        RANK_MUST(begin_broadcast(ctx, team, &data, &request) == HORON_OK);
        RANK_MUST(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK);
        const pid_t self = getpid();
        child = fork();
        if (child == 0) {
            while (getppid() == self && state_of(self) != 'S')
                sched_yield();
            _exit(kill(other, SIGCONT));
        }
        horon_context_remove_team(team);
        RANK_MUST(waitpid(child, NULL, 0) == child);
    }
    RANK_MUST(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK);
    RANK_MUST(data == 7);
    horon_release(request);
    if (rank == 1)
        horon_context_remove_team(team);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_team_faults_of_a_full_socket_lose_no_memory(void **state)
{
    static const char *const late[] = {"PEER_TIMEOUT=60s", NULL};
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    job_run(2, late, remove_behind_a_full_socket, ends);
    close(ends[0]);
    close(ends[1]);
}

/* A prepared request that has run, with a handle in the coordinator; one that never has; and one
 * that ended. The set's memory is gone when they are started and released. */
static void outlive(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const char *const names[] = {"used", "unused", "ended"};
    horon_request_t *requests[3];
    float data[3] = {1, 1, 1};
    int32_t set;
    (void)arg;
    RANK_MUST(horon_process_set_add(ctx, (int32_t[]){0, 1}, 2, -1, &set) == HORON_OK);
    const int count = horon_process_set_rank(ctx, set) < 0 ? 0 : 3;
    for (int i = 0; i < count; i++) {
        horon_descriptor_t desc = job_sum(names[i], &data[i], 1, 0);
        desc.process_set = set;
        RANK_MUST((i < 2 ? horon_prepare : horon_submit)(ctx, &desc, &requests[i]) == HORON_OK);
    }
    if (count) {
        RANK_MUST(horon_start(requests[0]) == HORON_OK);
        RANK_MUST(horon_wait(requests[0], HORON_HOST_DONE, -1) == HORON_OK);
        RANK_MUST(horon_wait(requests[2], HORON_HOST_DONE, -1) == HORON_OK);
    }
    RANK_MUST(horon_process_set_remove(ctx, set, -1) == HORON_OK);
    for (int i = 0; i < count && i < 2; i++) {
        RANK_MUST(horon_start(requests[i]) == HORON_ERR_CLOSED);
        RANK_MUST(strstr(horon_last_error(ctx), "process set was removed"));
    }
    for (int i = 0; i < count; i++)
        horon_release(requests[i]);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_team_faults_of_requests_that_outlive_it_are_named(void **state)
{
    (void)state;
    job_run(3, NULL, outlive, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_team_faults_of_the_first_member_are_heard_at_once),
        cmocka_unit_test(test_team_faults_of_a_foreign_arena_as_its_own_is_refused),
        cmocka_unit_test(test_team_faults_of_a_full_socket_lose_no_memory),
        cmocka_unit_test(test_team_faults_of_requests_that_outlive_it_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
