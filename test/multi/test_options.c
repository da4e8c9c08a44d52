/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the option table that only whole contexts heed, each by what changes with it; and what a
 * context says of hosts.
 */
#undef NDEBUG
#include "context_state.h"
#include "multi/duo.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- INFLIGHT_MAX --------------------------------------------------------------------------- */

static void expect_refused(horon_context_t *ctx, horon_status_t status)
{
    assert_int_equal(status, HORON_ERR_MEMORY);
    if (!strstr(horon_last_error(ctx), "HORON_INFLIGHT_MAX is 3"))
        fail_msg("%s", horon_last_error(ctx));
}

struct next {
    horon_context_t *ctx;
    float x;
    horon_status_t submitted;
    horon_request_t *request;
    sem_t called;
};

static void submit_next(void *arg, horon_request_t *request, horon_status_t status)
{
    struct next *next = arg;
    const horon_descriptor_t desc = duo_sum("next", &next->x);
    (void)request;
    (void)status;
    next->submitted = horon_submit(next->ctx, &desc, &next->request);
    sem_post(&next->called);
}

static void test_options_inflight_max_counts_none_that_has_ended(void **state)
{
    static const char *const settings[] = {"INFLIGHT_MAX=1", NULL};
    struct duo duo;
    float x[2] = {0}, y = 0;
    horon_request_t *first;
    (void)state;
    duo_make(&duo, settings);
    struct next next = {.ctx = duo.ctx[0]};
    sem_init(&next.called, 0, 0);
    horon_descriptor_t desc = duo_sum("first", &x[0]);
    desc.callback = submit_next;
    desc.callback_arg = &next;
    assert_int_equal(horon_submit(duo.ctx[0], &desc, &first), HORON_OK);
    duo_expect_end(duo_submit(duo.ctx[1], "first", &x[1]), HORON_OK);
    while (sem_wait(&next.called) != 0) {}
    assert_int_equal(next.submitted, HORON_OK);
    duo_expect_end(duo_submit(duo.ctx[1], "next", &y), HORON_OK);
    duo_expect_end(next.request, HORON_OK);
    duo_expect_end(first, HORON_OK);
    sem_destroy(&next.called);
    duo_end(&duo);
}

static void test_options_inflight_max_refuses_one_more(void **state)
{
    static const char *const settings[] = {"INFLIGHT_MAX=3", NULL};
    static const char *const names[] = {"a", "b", "c"};
    struct duo duo;
    float x[2][5] = {{0}};
    horon_request_t *requests[2][3], *more = NULL, *prepared, *group[4];
    (void)state;
    duo_make(&duo, settings);
    horon_context_t *ctx = duo.ctx[0];
    horon_descriptor_t desc = duo_sum("d", &x[0][3]), descs[4];
    assert_int_equal(horon_prepare(ctx, &desc, &prepared), HORON_OK); /* not in flight yet */
    for (int i = 0; i < 3; i++)
        requests[0][i] = duo_submit(ctx, names[i], &x[0][i]);
    desc = duo_sum("e", &x[0][4]);
    expect_refused(ctx, horon_submit(ctx, &desc, &more));
    assert_null(more);
    expect_refused(ctx, horon_start(prepared));
    assert_int_equal(horon_test(prepared, HORON_HOST_DONE), HORON_ERR_INVALID);
    expect_refused(ctx, horon_submit_group(ctx, &desc, 1, group));
    for (int i = 0; i < 3; i++)
        requests[1][i] = duo_submit(duo.ctx[1], names[i], &x[1][i]); /* which counts for itself */
    for (int i = 0; i < 3; i++) {
        duo_expect_end(requests[0][i], HORON_OK);
        duo_expect_end(requests[1][i], HORON_OK);
    }
    for (int i = 0; i < 4; i++)
        descs[i] = duo_sum(i < 3 ? names[i] : "d", &x[0][i]);
    expect_refused(ctx, horon_submit_group(ctx, descs, 4, group)); /* whole or not at all */
    if (!strstr(horon_last_error(ctx), "0 requests are in flight, 4 more would begin together"))
        fail_msg("%s", horon_last_error(ctx));
    assert_int_equal(horon_submit_group(ctx, descs, 3, group), HORON_OK); /* there is room again */
    for (int i = 0; i < 3; i++)
        horon_release(group[i]); /* in flight: it is the engine's now */
    horon_release(prepared);
    duo_end(&duo);
}

/* ---- STALL_WARN, STALL_SHUTDOWN_TIME, LOG_LEVEL --------------------------------------------- */

/* The second pair warns several times while the first, which began before it, says nothing. */
static void test_options_stall_warn_is_when_and_for_which_rank_or_never(void **state)
{
    static const char *const never[] = {"STALL_WARN=0", NULL};
    static const char *const soon[] = {"STALL_WARN=20ms", NULL};
    static const char *const names[] = {"conv1", "conv2", "conv3"};
    struct duo silent, warning;
    float x = 0, y[3] = {0};
    horon_request_t *requests[3];
    (void)state;
    duo_make(&silent, never);
    duo_make(&warning, soon);
    horon_request_t *request = duo_submit(silent.ctx[0], "quiet", &x);
    for (int i = 0; i < 3; i++) {
        char word[64];
        requests[i] = duo_submit(warning.ctx[0], names[i], &y[i]); /* which knows by itself */
        snprintf(word, sizeof word, "'%s': waiting for rank 1 (", names[i]);
        duo_wait_to_hear(&warning, word);
        snprintf(word, sizeof word, "allreduce '%s' has waited for", names[i]);
        duo_wait_to_hear(&warning, word);
    }
    assert_true(warning.heard.lines >= 3); /* one each, and again later */
    assert_string_equal(silent.heard.all, "");
    for (int i = 0; i < 3; i++)
        horon_release(requests[i]);
    horon_release(request);
    duo_end(&silent);
    duo_end(&warning);
}

/* The first pair began to wait before the second one, whose job has ended. */
static void test_options_stall_shutdown_time_ends_the_job_or_never(void **state)
{
    static const char *const soon[] = {"STALL_SHUTDOWN_TIME=40ms", "STALL_WARN=0", NULL};
    struct duo patient, hasty;
    float x = 0, y[2] = {0};
    char text[HORON_ERROR_TEXT_BYTES];
    (void)state;
    duo_make(&patient, NULL);
    duo_make(&hasty, soon);
    horon_request_t *kept = duo_submit(patient.ctx[0], "conv1", &x);
    horon_request_t *ended = duo_submit(hasty.ctx[0], "conv1", &y[0]);
    assert_int_equal(horon_wait(ended, HORON_HOST_DONE, -1), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(horon_request_error(ended), "allreduce 'conv1' has waited for "));
    assert_non_null(strstr(horon_request_error(ended), ": waiting for rank 1 ("));
    const horon_descriptor_t desc = duo_sum("conv1", &y[1]);
    assert_int_equal(horon_run(hasty.ctx[1], &desc, -1, text, sizeof text), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(text, "ends the job, as HORON_STALL_SHUTDOWN_TIME says"));
    assert_int_equal(horon_test(kept, HORON_HOST_DONE), HORON_IN_PROGRESS);
    horon_release(ended);
    horon_release(kept);
    duo_end(&hasty);
    duo_end(&patient);
}

static void *run_in_order(void *ctx)
{
    float x = 0;
    horon_descriptor_t desc = duo_sum(NULL, &x);
    struct timespec began, now;
    horon_status_t status;
    desc.flags = HORON_IN_ORDER;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        status = horon_run(ctx, &desc, DUO_DEADLINE_S * (int64_t)1000, NULL, 0);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (status == HORON_OK && now.tv_sec - began.tv_sec < 8);
    return (void *)(intptr_t)status;
}

/* A thread that is always at work leaves the token to nobody. */
static void test_options_stall_shutdown_time_ends_a_busy_job_too(void **state)
{
    static const char *const settings[] = {"STALL_SHUTDOWN_TIME=100ms", NULL};
    struct duo duo;
    float x = 0;
    pthread_t threads[2];
    void *status;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *request = duo_submit(duo.ctx[0], "conv1", &x);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, run_in_order, duo.ctx[rank]), 0);
    for (int rank = 0; rank < 2; rank++) {
        pthread_join(threads[rank], &status);
        assert_int_equal((intptr_t)status, HORON_ERR_TIMEOUT);
    }
    duo_expect_end(request, HORON_ERR_TIMEOUT);
    duo_end(&duo);
}

/* A failed job is told of at info, and only there. */
static void test_options_log_level_passes_what_is_as_important(void **state)
{
    static const char *const levels[] = {"LOG_LEVEL=error", "LOG_LEVEL=warn", "LOG_LEVEL=info"};
    (void)state;
    for (int level = 0; level < 3; level++) {
        const char *const settings[] = {levels[level], NULL};
        struct duo duo;
        float x[2] = {0};
        duo_make(&duo, settings);
        horon_request_t *waiting = duo_submit(duo.ctx[0], "x", &x[0]);
        horon_context_destroy(duo.ctx[1]);
        duo.ctx[1] = NULL;
        duo_expect_end(waiting, HORON_ERR_CLOSED);
        if (level == HORON_LOG_INFO)
            duo_wait_to_hear(&duo, "info: the job failed: rank 1 (");
        else
            assert_string_equal(duo.heard.all, "");
        duo_end(&duo);
        assert_true(duo.heard.worst <= (horon_log_level_t)level);
    }
}

/* A rank that exits by an exception says so itself, also where the launcher names none: the others
 * warn of ranks alone that could not. */
static void test_options_a_rank_that_exits_is_no_warning(void **state)
{
    static const char *const settings[] = {"LOG_LEVEL=info", NULL};
    struct duo duo;
    float x = 0;
    (void)state;
    assert_int_equal(setenv("PMI_RANK", "0", 1) | setenv("PMI_SIZE", "2", 1), 0);
    duo_make(&duo, settings);
    horon_request_t *waiting = duo_submit(duo.ctx[0], "x", &x);
    assert_int_equal(horon_context_exit(duo.ctx[1], "an exception"), HORON_OK);
    duo_expect_end(waiting, HORON_ERR_PEER_LOST);
    duo_wait_to_hear(&duo, ": the job failed: rank 1 (");
    duo_end(&duo);
    unsetenv("PMI_RANK");
    unsetenv("PMI_SIZE");
    assert_null(strstr(duo.heard.all, "warn: the job failed"));
}

/* ---- SPIN_US, YIELD_US ---------------------------------------------------------------------- */

/*
 * The library's yields and its clock come here, since this program is linked before the C library.
 * For the thread that waits the clock stands still until the test moves it, and the test sees that
 * it goes on looking: so nothing depends on how fast anybody runs.
 */
static _Thread_local bool steered;
static _Atomic uint64_t clock_ns, looks, yields, yield_ns; /* yield_ns: what each yield takes */

int sched_yield(void)
{
    if (steered) {
        atomic_fetch_add(&yields, 1);
        atomic_fetch_add(&clock_ns, atomic_load(&yield_ns));
    }
    return (int)syscall(SYS_sched_yield);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!steered || clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, time);
    atomic_fetch_add(&looks, 1);
    uint64_t now = atomic_load(&clock_ns);
    time->tv_sec = (time_t)(now / 1000000000u);
    time->tv_nsec = (long)(now % 1000000000u);
    return 0;
}

static void *wait_for_it(void *request)
{
    steered = true;
    horon_status_t status = horon_wait(request, HORON_HOST_DONE, -1);
    return (void *)(intptr_t)status;
}

/* Waits until the waiter has looked at the clock some times more. @return false: it sleeps */
static bool looks_on(horon_request_t *request)
{
    uint64_t until = atomic_load(&looks) + 20;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (atomic_load(&looks) < until) {
        if (atomic_load(&request->state) & HORON_REQUEST_WAITED)
            return false;
        syscall(SYS_sched_yield);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begun.tv_sec > DUO_DEADLINE_S)
            fail_msg("the waiter neither looks nor sleeps");
    }
    return true;
}

static void advance_us(uint64_t us)
{
    atomic_fetch_add(&clock_ns, us * 1000);
}

/* What rank 0 does while rank 1 is late, as the clock is moved. It may have begun to wait anew once
 * on the way, when it got to drive; then its limits count from there. */
static void expect_patience(horon_request_t *request, uint64_t spin_us, uint64_t yield_us)
{
    if (spin_us) {
        assert_true(looks_on(request));
        advance_us(spin_us - 1);
        assert_true(looks_on(request));
        assert_int_equal(atomic_load(&yields), 0);
    }
    uint64_t passed = spin_us ? spin_us - 1 : 0;
    for (; yield_us && atomic_load(&yields) == 0 && passed < spin_us + yield_us / 2;
         passed += spin_us + 1) {
        advance_us(spin_us + 1);
        assert_true(looks_on(request));
    }
    assert_int_equal(atomic_load(&yields) > 0, yield_us > 0);
    if (yield_us) {
        advance_us(spin_us + yield_us - 1 - passed);
        assert_true(looks_on(request));
    }
    for (int i = 0; looks_on(request); i++) {
        assert_true(i < 5);
        advance_us(spin_us + yield_us);
    }
}

static void wait_with(uint64_t spin_us, uint64_t yield_us)
{
    char spin[32], yield[32];
    const char *const settings[] = {spin, yield, NULL};
    struct duo duo;
    float x[2] = {0};
    pthread_t waiter;
    void *status;
    snprintf(spin, sizeof spin, "SPIN_US=%d", (int)spin_us);
    snprintf(yield, sizeof yield, "YIELD_US=%d", (int)yield_us);
    duo_make(&duo, settings);
    if (duo.ctx[0]->crowded) {
        print_message("SPIN_US is not tested: it needs a core for each of two ranks\n");
        spin_us = 0;
    }
    atomic_store(&yields, 0);
    atomic_store(&clock_ns, 1000000000);
    horon_request_t *request = duo_submit(duo.ctx[0], "x", &x[0]);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_it, request), 0);
    expect_patience(request, spin_us, yield_us);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    pthread_join(waiter, &status);
    assert_int_equal((intptr_t)status, HORON_OK);
    horon_release(request);
    duo_end(&duo);
}

static void test_options_spin_and_yield_us_come_before_sleep(void **state)
{
    (void)state;
    wait_with(0, 0);
    wait_with(0, 10000);
    wait_with(100, 10000);
    wait_with(50000, 0);
}

/* A rank of a crowded job waits, each of whose yields takes so long. @return how many in a row have
 * come back at once */
static uint32_t quick_yields_of(uint64_t each_ns)
{
    static const char *const settings[] = {"YIELD_US=1000000", NULL};
    struct duo duo;
    float x[2] = {0};
    pthread_t waiter;
    duo_make(&duo, settings);
    horon_token_take(duo.ctx[0]); /* its own thread looks at it with the token in hand */
    duo.ctx[0]->crowded = true;
    horon_token_release(duo.ctx[0]);
    atomic_store(&clock_ns, 1000000000);
    atomic_store(&yield_ns, each_ns);
    horon_request_t *request = duo_submit(duo.ctx[0], "x", &x[0]);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_it, request), 0);
    for (int i = 0; i < HORON_YIELDS_ALONE; i++) /* each time several turns */
        assert_true(looks_on(request));
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    pthread_join(waiter, NULL);
    atomic_store(&yield_ns, 0);
    const uint32_t quick = duo.ctx[0]->yields.quick;
    horon_release(request);
    duo_end(&duo);
    return quick;
}

static void test_options_crowded_waiter_learns_how_long_yields_take(void **state)
{
    (void)state;
    assert_int_equal(quick_yields_of(HORON_YIELD_TAKEN_NS - 1), HORON_YIELDS_ALONE);
    assert_int_equal(quick_yields_of(HORON_YIELD_TAKEN_NS), 0);
}

/* ---- SHM, SHM_CHUNK_BYTES, and hosts -------------------------------------------------------- */

static void test_options_shm_off_makes_every_rank_a_host(void **state)
{
    static const char *const settings[][2] = {{"SHM=1", NULL}, {"SHM=0", NULL}};
    (void)state;
    for (int off = 0; off < 2; off++) {
        struct duo duo;
        char name[256] = "";
        duo_make(&duo, settings[off]);
        gethostname(name, sizeof name - 1);
        for (int rank = 0; rank < 2; rank++) {
            horon_context_t *ctx = duo.ctx[rank];
            assert_int_equal(horon_rank(ctx), rank);
            assert_int_equal(horon_size(ctx), 2);
            assert_int_equal(horon_host_count(ctx), off ? 2 : 1);
            assert_int_equal(horon_local_rank(ctx), off ? 0 : rank);
            assert_int_equal(horon_local_size(ctx), off ? 1 : 2);
            assert_int_equal(horon_cross_rank(ctx), off ? rank : 0);
            assert_int_equal(horon_cross_size(ctx), off ? 2 : 1);
            for (int i = 0; i < 2; i++)
                assert_int_equal(horon_host_of(ctx, i), off ? i : 0);
            assert_int_equal(horon_host_of(ctx, -1), -1);
            assert_int_equal(horon_host_of(ctx, 2), -1);
            for (int host = 0; host < (off ? 2 : 1); host++)
                assert_int_equal(strncmp(horon_host_name(ctx, host), name, 63), 0);
            assert_null(horon_host_name(ctx, -1));
            assert_null(horon_host_name(ctx, off ? 2 : 1));
        }
        duo_end(&duo);
    }
    assert_int_equal(horon_rank(NULL), -1);
    assert_int_equal(horon_size(NULL), -1);
    assert_int_equal(horon_local_rank(NULL), -1);
    assert_int_equal(horon_local_size(NULL), -1);
    assert_int_equal(horon_cross_rank(NULL), -1);
    assert_int_equal(horon_cross_size(NULL), -1);
    assert_int_equal(horon_host_count(NULL), -1);
    assert_int_equal(horon_host_of(NULL, 0), -1);
    assert_null(horon_host_name(NULL, 0));
}

/* Sums @p bytes bytes. @return chunks that rank 0 posted in shared memory for it; 0: it was small
 */
static uint64_t chunks_of(const struct duo *duo, uint64_t bytes)
{
    horon_request_t *requests[2];
    uint8_t *data = calloc(2, bytes);
    const struct horon_host *host = &duo->ctx[0]->host;
    struct horon_flag *posted =
        horon_host_posted(host, horon_engine_arena_at(&host->shape, HORON_LANE_ORDERED), 0);
    uint64_t before = atomic_load(&posted->value);
    assert_non_null(data);
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.flags = HORON_IN_ORDER;
        desc.src = desc.dst = data + (size_t)rank * bytes;
        desc.count = bytes;
        assert_int_equal(horon_submit(duo->ctx[rank], &desc, &requests[rank]), HORON_OK);
    }
    for (int rank = 0; rank < 2; rank++)
        duo_expect_end(requests[rank], HORON_OK);
    free(data);
    return atomic_load(&posted->value) - before;
}

static void test_options_shm_bytes_are_those_of_the_arenas(void **state)
{
    static const char *const settings[] = {"SHM_CHUNK_BYTES=20k", "SHM_SMALL_BYTES=4k", NULL};
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    const bool crowded = duo.ctx[0]->crowded;
    const uint64_t small = crowded ? 4096 : 4096 / 8;
    assert_int_equal(chunks_of(&duo, small), 0);
    assert_int_equal(chunks_of(&duo, small + 1), 1);
    assert_int_equal(chunks_of(&duo, 100 << 10), 5 * (crowded ? 8 : 4)); /* parts of a slot */
    assert_in_range(duo.ctx[0]->boot.local[0].arena.bytes, 4 * (20 << 10), 1 << 20);
    duo_end(&duo);
}

/* ---- PEER_TIMEOUT --------------------------------------------------------------------------- */

static int option_of(int socket, int level, int option)
{
    int value = -1;
    socklen_t bytes = sizeof value;
    assert_int_equal(getsockopt(socket, level, option, &value, &bytes), 0);
    return value;
}

/* That it is kept, and which rank the failure names, is tested between hosts. */
static void test_options_peer_timeout_is_given_to_connections(void **state)
{
    static const char *const settings[] = {"SHM=0", "PEER_TIMEOUT=4500ms", NULL};
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    for (int rank = 0; rank < 2; rank++) {
        int socket = duo_socket(duo.ctx[rank], 1 - rank);
        assert_true(socket >= 0);
        assert_int_equal(option_of(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
        assert_int_equal(option_of(socket, IPPROTO_TCP, TCP_KEEPIDLE), 1);
        assert_int_equal(option_of(socket, IPPROTO_TCP, TCP_KEEPCNT), 4);
    }
    duo_end(&duo);
}

/* ---- TIMELINE, TIMELINE_CYCLES -------------------------------------------------------------- */

static void read_whole(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

static void test_options_timeline_is_written_from_the_beginning(void **state)
{
    char folder[] = "/tmp/horon-test-XXXXXX", setting[64], path[64], text[8192], command[64];
    float x[2] = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int cycles = 0; cycles < 2; cycles++) {
        struct duo duo;
        snprintf(setting, sizeof setting, "TIMELINE=%s/%%r", folder);
        const char *const settings[] = {setting, cycles ? "TIMELINE_CYCLES=1" : NULL, NULL};
        duo_make(&duo, settings);
        horon_request_t *request = duo_submit(duo.ctx[0], "first", &x[0]);
        duo_expect_end(duo_submit(duo.ctx[1], "first", &x[1]), HORON_OK);
        duo_expect_end(request, HORON_OK);
        duo_end(&duo);
        snprintf(path, sizeof path, "%s/1", folder);
        read_whole(path, text, sizeof text);
        assert_non_null(strstr(text, "\"first\""));
        assert_int_equal(strstr(text, "CYCLE_START") != NULL, cycles);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_options_timeline_that_cannot_be_written_ends_the_start(void **state)
{
    static const char *const bad[] = {"TIMELINE=/dev/full", NULL};
    static const char *const later[] = {"TIMELINE=DYNAMIC", NULL};
    char text[HORON_ERROR_TEXT_BYTES];
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    (void)state;
    options.rank = 0;
    options.size = 1;
    options.settings = bad;
    assert_int_equal(horon_context_create(&options, &ctx, text, sizeof text), HORON_ERR_SYSTEM);
    assert_non_null(strstr(text, "/dev/full cannot be written: No space left"));
    options.settings = later;
    assert_int_equal(horon_context_create(&options, &ctx, text, sizeof text), HORON_OK);
    horon_context_destroy(ctx);
    assert_int_equal(access("DYNAMIC", F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_inflight_max_counts_none_that_has_ended),
        cmocka_unit_test(test_options_inflight_max_refuses_one_more),
        cmocka_unit_test(test_options_stall_warn_is_when_and_for_which_rank_or_never),
        cmocka_unit_test(test_options_stall_shutdown_time_ends_the_job_or_never),
        cmocka_unit_test(test_options_stall_shutdown_time_ends_a_busy_job_too),
        cmocka_unit_test(test_options_log_level_passes_what_is_as_important),
        cmocka_unit_test(test_options_a_rank_that_exits_is_no_warning),
        cmocka_unit_test(test_options_spin_and_yield_us_come_before_sleep),
        cmocka_unit_test(test_options_crowded_waiter_learns_how_long_yields_take),
        cmocka_unit_test(test_options_shm_off_makes_every_rank_a_host),
        cmocka_unit_test(test_options_shm_bytes_are_those_of_the_arenas),
        cmocka_unit_test(test_options_peer_timeout_is_given_to_connections),
        cmocka_unit_test(test_options_timeline_is_written_from_the_beginning),
        cmocka_unit_test(test_options_timeline_that_cannot_be_written_ends_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
