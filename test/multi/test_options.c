/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the option table that only whole contexts heed: two ranks in one process, made by a
 * thread each and then used by the test alone, so that what one of them does is known while the
 * other does nothing. And what contexts say of themselves: hosts, versions of their structs.
 */
#undef NDEBUG
#include <horon/horon.h>

#include "context_state.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
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

#define SETTINGS_MAX 6
#define DEADLINE_S 30 /* of what must happen; only a failure reaches it */

/* Lines of the log of both ranks. */
struct heard {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t more;
    int lines;
    horon_log_level_t worst; /* the least important level that came */
    char all[8192];
};

struct duo {
    horon_context_t *ctx[2];
    struct heard heard;
    const char *settings[SETTINGS_MAX + 4];
    char folder[32], store[64];
    struct maker {
        struct duo *duo;
        int rank;
        pthread_t thread;
        horon_status_t status;
        char text[HORON_ERROR_TEXT_BYTES];
    } makers[2];
};

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct heard *heard = arg;
    pthread_mutex_lock(&heard->lock);
    heard->lines++;
    if (level > heard->worst)
        heard->worst = level;
    size_t used = strlen(heard->all);
    snprintf(heard->all + used, sizeof heard->all - used, "%s\n", text);
    pthread_cond_broadcast(&heard->more);
    pthread_mutex_unlock(&heard->lock);
}

static struct timespec deadline_from_now(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += DEADLINE_S;
    return end;
}

/* Waits until a line with @p word has come. */
static void wait_to_hear(struct heard *heard, const char *word)
{
    struct timespec end = deadline_from_now();
    int late = 0;
    pthread_mutex_lock(&heard->lock);
    while (!strstr(heard->all, word) && !late)
        late = pthread_cond_timedwait(&heard->more, &heard->lock, &end);
    pthread_mutex_unlock(&heard->lock);
    if (late)
        fail_msg("'%s' was not logged, but: %s", word, heard->all);
}

static void *make_one(void *arg)
{
    struct maker *maker = arg;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = maker->rank;
    options.size = 2;
    options.settings = maker->duo->settings;
    options.log_fn = hear;
    options.log_arg = &maker->duo->heard;
    maker->status = horon_context_create(&options, &maker->duo->ctx[maker->rank], maker->text,
                                         sizeof maker->text);
    return NULL;
}

/* @param settings NULL-ended; may be NULL */
static void make_duo(struct duo *duo, const char *const *settings)
{
    int count = 0;
    memset(duo, 0, sizeof *duo);
    pthread_mutex_init(&duo->heard.lock, NULL);
    pthread_cond_init(&duo->heard.more, NULL);
    snprintf(duo->folder, sizeof duo->folder, "/tmp/horon-test-XXXXXX");
    assert_non_null(mkdtemp(duo->folder));
    snprintf(duo->store, sizeof duo->store, "STORE=file:%s", duo->folder);
    duo->settings[count++] = duo->store;
    duo->settings[count++] = "JOB_KEY=a key for this test";
    for (; settings && *settings; settings++) {
        assert_true(count < SETTINGS_MAX + 2);
        duo->settings[count++] = *settings;
    }
    for (int rank = 0; rank < 2; rank++) {
        duo->makers[rank].duo = duo;
        duo->makers[rank].rank = rank;
        assert_int_equal(
            pthread_create(&duo->makers[rank].thread, NULL, make_one, &duo->makers[rank]), 0);
    }
    for (int rank = 0; rank < 2; rank++) {
        pthread_join(duo->makers[rank].thread, NULL);
        if (duo->makers[rank].status != HORON_OK)
            fail_msg("rank %d: %s", rank, duo->makers[rank].text);
    }
}

static void end_duo(struct duo *duo)
{
    char command[64];
    for (int rank = 0; rank < 2; rank++)
        horon_context_destroy(duo->ctx[rank]);
    snprintf(command, sizeof command, "rm -rf %s", duo->folder);
    assert_int_equal(system(command), 0);
    pthread_mutex_destroy(&duo->heard.lock);
    pthread_cond_destroy(&duo->heard.more);
}

static horon_descriptor_t sum(const char *name, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    desc.src = desc.dst = data;
    return desc;
}

static horon_request_t *submit(horon_context_t *ctx, const char *name, float *data)
{
    horon_request_t *request = NULL;
    horon_descriptor_t desc = sum(name, data);
    if (horon_submit(ctx, &desc, &request) != HORON_OK)
        fail_msg("%s", horon_last_error(ctx));
    return request;
}

static void expect_end(horon_request_t *request, horon_status_t status)
{
    assert_int_equal(horon_wait(request, HORON_HOST_DONE, DEADLINE_S * 1000), status);
    horon_release(request);
}

/* ---- INFLIGHT_MAX --------------------------------------------------------------------------- */

static void expect_refused(horon_context_t *ctx, horon_status_t status)
{
    assert_int_equal(status, HORON_ERR_MEMORY);
    if (!strstr(horon_last_error(ctx), "INFLIGHT_MAX is 3"))
        fail_msg("%s", horon_last_error(ctx));
}

static void test_options_inflight_max_refuses_one_more(void **state)
{
    static const char *const settings[] = {"INFLIGHT_MAX=3", NULL};
    static const char *const names[] = {"a", "b", "c"};
    struct duo duo;
    float x[2][5] = {{0}};
    horon_request_t *requests[2][3], *more = NULL, *prepared, *group[4];
    (void)state;
    make_duo(&duo, settings);
    horon_context_t *ctx = duo.ctx[0];
    horon_descriptor_t desc = sum("d", &x[0][3]), descs[4];
    assert_int_equal(horon_prepare(ctx, &desc, &prepared), HORON_OK); /* not in flight yet */
    for (int i = 0; i < 3; i++)
        requests[0][i] = submit(ctx, names[i], &x[0][i]);
    desc = sum("e", &x[0][4]);
    expect_refused(ctx, horon_submit(ctx, &desc, &more));
    assert_null(more);
    expect_refused(ctx, horon_start(prepared));
    assert_int_equal(horon_test(prepared, HORON_HOST_DONE), HORON_ERR_INVALID);
    expect_refused(ctx, horon_submit_group(ctx, &desc, 1, group));
    for (int i = 0; i < 3; i++)
        requests[1][i] = submit(duo.ctx[1], names[i], &x[1][i]); /* which counts for itself */
    for (int i = 0; i < 3; i++) {
        expect_end(requests[0][i], HORON_OK);
        expect_end(requests[1][i], HORON_OK);
    }
    for (int i = 0; i < 4; i++)
        descs[i] = sum(i < 3 ? names[i] : "d", &x[0][i]);
    expect_refused(ctx, horon_submit_group(ctx, descs, 4, group));        /* whole or not at all */
    assert_int_equal(horon_submit_group(ctx, descs, 3, group), HORON_OK); /* there is room again */
    for (int i = 0; i < 3; i++)
        horon_release(group[i]); /* in flight: it is the engine's now */
    horon_release(prepared);
    end_duo(&duo);
}

/* ---- STALL_WARN, LOG_LEVEL ------------------------------------------------------------------ */

/* The second pair warns several times while the first, which began before it, says nothing. */
static void test_options_stall_warn_is_when_and_whom_or_never(void **state)
{
    static const char *const never[] = {"STALL_WARN=0", NULL};
    static const char *const soon[] = {"STALL_WARN=20ms", NULL};
    static const char *const names[] = {"conv1", "conv2", "conv3"};
    struct duo silent, warning;
    float x = 0, y[3] = {0};
    horon_request_t *requests[3];
    (void)state;
    make_duo(&silent, never);
    make_duo(&warning, soon);
    horon_request_t *request = submit(silent.ctx[0], "quiet", &x);
    for (int i = 0; i < 3; i++) {
        char word[64];
        int rank = i % 2;
        requests[i] = submit(warning.ctx[rank], names[i], &y[i]);
        snprintf(word, sizeof word, "'%s': waiting for rank %d (", names[i], 1 - rank);
        wait_to_hear(&warning.heard, word);
        snprintf(word, sizeof word, "allreduce '%s' has waited for", names[i]);
        wait_to_hear(&warning.heard, word);
    }
    assert_int_equal(warning.heard.lines, 3); /* one each */
    assert_string_equal(silent.heard.all, "");
    for (int i = 0; i < 3; i++)
        horon_release(requests[i]);
    horon_release(request);
    end_duo(&silent);
    end_duo(&warning);
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
        make_duo(&duo, settings);
        horon_request_t *waiting = submit(duo.ctx[0], "x", &x[0]);
        horon_context_destroy(duo.ctx[1]);
        duo.ctx[1] = NULL;
        expect_end(waiting, HORON_ERR_CLOSED);
        if (level == HORON_LOG_INFO)
            wait_to_hear(&duo.heard, "info: the job failed: rank 1 (");
        else
            assert_string_equal(duo.heard.all, "");
        end_duo(&duo);
        assert_true(duo.heard.worst <= (horon_log_level_t)level);
    }
}

/* ---- SPIN_US, YIELD_US ---------------------------------------------------------------------- */

/* The library's yields come here: this program is linked before the C library. */
static _Thread_local uint64_t yields;

int sched_yield(void)
{
    yields++;
    return (int)syscall(SYS_sched_yield);
}

struct waiter {
    horon_request_t *request;
    pthread_t thread;
    uint64_t yields;
    horon_status_t status;
};

static void *wait_for_it(void *arg)
{
    struct waiter *waiter = arg;
    waiter->status = horon_wait(waiter->request, HORON_HOST_DONE, -1);
    waiter->yields = yields;
    return NULL;
}

static bool sleeps(const struct waiter *waiter)
{
    return atomic_load(&waiter->request->state) & HORON_REQUEST_WAITED;
}

/* Waits until the waiter sleeps, or has used 30 ms of a core: with any but a huge limit it would
 * sleep by then. */
static void watch(const struct waiter *waiter)
{
    clockid_t clock;
    struct timespec used = {0}, end = deadline_from_now(), now;
    assert_int_equal(pthread_getcpuclockid(waiter->thread, &clock), 0);
    do {
        usleep(500); /* leaves it the core; nothing depends on how long */
        assert_int_equal(clock_gettime(clock, &used), 0);
        clock_gettime(CLOCK_REALTIME, &now);
        assert_true(now.tv_sec < end.tv_sec);
    } while (!sleeps(waiter) && used.tv_sec == 0 && used.tv_nsec < 30000000);
}

/* Rank 0 waits for a late rank 1. @return true if it went to sleep, before it had used 30 ms */
static bool wait_with(const char *spin, const char *yield, uint64_t *yields_out)
{
    const char *const settings[] = {spin, yield, NULL};
    struct duo duo;
    float x[2] = {0};
    make_duo(&duo, settings);
    struct waiter waiter = {.request = submit(duo.ctx[0], "x", &x[0])};
    assert_int_equal(pthread_create(&waiter.thread, NULL, wait_for_it, &waiter), 0);
    watch(&waiter);
    bool slept = sleeps(&waiter);
    expect_end(submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    pthread_join(waiter.thread, NULL);
    assert_int_equal(waiter.status, HORON_OK);
    horon_release(waiter.request);
    end_duo(&duo);
    *yields_out = waiter.yields;
    return slept;
}

static void test_options_spin_and_yield_us_come_before_sleep(void **state)
{
    uint64_t count;
    (void)state;
    assert_true(wait_with("SPIN_US=0", "YIELD_US=0", &count));
    assert_int_equal(count, 0);
    assert_false(wait_with("SPIN_US=0", "YIELD_US=10000000", &count));
    assert_true(count > 100);
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        print_message("SPIN_US is not tested: it needs a core for each of two ranks\n");
        return;
    }
    assert_false(wait_with("SPIN_US=1000000", "YIELD_US=0", &count));
    assert_true(count < 10); /* while it looks on, before it drives */
}

/* ---- SHM, SHM_CHUNK_BYTES, and hosts -------------------------------------------------------- */

static void test_options_shm_off_makes_every_rank_a_host(void **state)
{
    static const char *const settings[][2] = {{"SHM=1", NULL}, {"SHM=0", NULL}};
    (void)state;
    for (int off = 0; off < 2; off++) {
        struct duo duo;
        char name[256] = "";
        make_duo(&duo, settings[off]);
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
        end_duo(&duo);
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
    struct horon_flag *posted = horon_host_posted(&duo->ctx[0]->host, HORON_CHANNEL_ORDERED, 0);
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
        expect_end(requests[rank], HORON_OK);
    free(data);
    return atomic_load(&posted->value) - before;
}

static void test_options_shm_bytes_are_those_of_the_arenas(void **state)
{
    static const char *const settings[] = {"SHM_CHUNK_BYTES=20k", "SHM_SMALL_BYTES=4k", NULL};
    struct duo duo;
    (void)state;
    make_duo(&duo, settings);
    uint64_t small = duo.ctx[0]->host.crowded ? 4096 : 4096 / 8;
    assert_int_equal(chunks_of(&duo, small), 0);
    assert_int_equal(chunks_of(&duo, small + 1), 1);
    assert_int_equal(chunks_of(&duo, 100 << 10), 5);
    assert_in_range(duo.ctx[0]->boot.local[0].arena.bytes, 4 * (20 << 10), 1 << 20);
    end_duo(&duo);
}

/* ---- PEER_TIMEOUT --------------------------------------------------------------------------- */

static int option_of(int socket, int level, int option)
{
    int value = -1;
    socklen_t bytes = sizeof value;
    assert_int_equal(getsockopt(socket, level, option, &value, &bytes), 0);
    return value;
}

/* The kernel keeps the time; that it does, and whom the failure names, is tested between hosts. */
static void test_options_peer_timeout_is_given_to_connections(void **state)
{
    static const char *const settings[] = {"SHM=0", "PEER_TIMEOUT=4500ms", NULL};
    struct duo duo;
    (void)state;
    make_duo(&duo, settings);
    for (int rank = 0; rank < 2; rank++) {
        int socket = horon_engine_socket(duo.ctx[rank]->engine, 1 - rank);
        assert_true(socket >= 0);
        assert_int_equal(option_of(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 4500);
        assert_int_equal(option_of(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
        assert_true(option_of(socket, IPPROTO_TCP, TCP_KEEPIDLE) <= 4);
    }
    end_duo(&duo);
}

/* ---- cancel through the ABI ----------------------------------------------------------------- */

static void test_options_cancel_in_each_state(void **state)
{
    struct duo duo;
    float x[2] = {1, 2};
    horon_request_t *prepared;
    (void)state;
    make_duo(&duo, NULL);
    horon_context_t *ctx = duo.ctx[0];
    assert_int_equal(horon_cancel(NULL), HORON_ERR_INVALID);
    horon_descriptor_t desc = sum("x", &x[0]);
    assert_int_equal(horon_prepare(ctx, &desc, &prepared), HORON_OK);
    assert_int_equal(horon_cancel(prepared), HORON_ERR_INVALID); /* never started */
    assert_int_equal(horon_start(prepared), HORON_OK);
    assert_int_equal(horon_start(prepared), HORON_ERR_INVALID); /* it runs */
    assert_int_equal(horon_cancel(prepared), HORON_OK);
    horon_status_t again = horon_cancel(prepared); /* or it has ended by now */
    assert_true(again == HORON_OK || again == HORON_ERR_INVALID);
    assert_int_equal(horon_wait(prepared, HORON_HOST_DONE, DEADLINE_S * 1000), HORON_ERR_CANCELLED);
    assert_non_null(strstr(horon_request_error(prepared), "'x'"));
    assert_int_equal(horon_cancel(prepared), HORON_ERR_INVALID); /* it has ended */
    assert_int_equal(horon_start(prepared), HORON_OK);           /* and can run again */
    assert_string_equal(horon_request_error(prepared), "");
    expect_end(submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    assert_int_equal(horon_wait(prepared, HORON_HOST_DONE, DEADLINE_S * 1000), HORON_OK);
    assert_true(x[0] == 3 && x[1] == 3);
    assert_int_equal(horon_cancel(prepared), HORON_ERR_INVALID);
    horon_release(prepared);
    end_duo(&duo);
}

/* ---- structs of other versions -------------------------------------------------------------- */

/* A struct smaller than the first version's is nobody's; one that ends there is an older caller's,
 * and a larger one a newer caller's, of whose fields nothing is known here. */
static void test_options_struct_of_another_version_is_taken_or_refused(void **state)
{
    const size_t first = offsetof(horon_options_t, log_arg) + sizeof(void *);
    struct {
        horon_options_t known;
        unsigned char later[4 * sizeof(horon_options_t)];
    } newer;
    (void)state;
    for (size_t bytes = sizeof(size_t); bytes <= sizeof newer; bytes += 8) {
        const horon_options_t fresh = HORON_OPTIONS_INIT;
        horon_options_t *exact = malloc(bytes); /* for the address sanitizer */
        horon_context_t *ctx = NULL;
        char text[HORON_ERROR_TEXT_BYTES] = "";
        memset(&newer, 0xff, sizeof newer);
        newer.known = fresh;
        newer.known.struct_bytes = bytes;
        newer.known.rank = 0;
        newer.known.size = 1;
        memcpy(exact, &newer, bytes);
        horon_status_t status = horon_context_create(exact, &ctx, text, sizeof text);
        if (bytes < first || bytes > 4 * sizeof fresh) {
            assert_int_equal(status, HORON_ERR_INVALID);
            assert_non_null(strstr(text, "struct_bytes"));
            assert_null(ctx);
        } else {
            assert_int_equal(status, HORON_OK);
            assert_int_equal(horon_size(ctx), 1);
        }
        horon_context_destroy(ctx);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_inflight_max_refuses_one_more),
        cmocka_unit_test(test_options_stall_warn_is_when_and_whom_or_never),
        cmocka_unit_test(test_options_log_level_passes_what_is_as_important),
        cmocka_unit_test(test_options_spin_and_yield_us_come_before_sleep),
        cmocka_unit_test(test_options_shm_off_makes_every_rank_a_host),
        cmocka_unit_test(test_options_shm_bytes_are_those_of_the_arenas),
        cmocka_unit_test(test_options_peer_timeout_is_given_to_connections),
        cmocka_unit_test(test_options_cancel_in_each_state),
        cmocka_unit_test(test_options_struct_of_another_version_is_taken_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
