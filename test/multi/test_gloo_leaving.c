/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank among Gloo's that exits since another one is gone does not wait for the end of that one's
 * process, of which it would hear nothing. And that one is gone as it leaves, though it keeps a
 * request. A rank that left may join the next job before others have left. Ranks are threads: the
 * other one's process goes on.
 */
#undef NDEBUG
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "context_state.h"
#include "free_port.h"

#include <assert.h>
#include <horon/horon.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char *const settings[] = {"GLOO_STORE=hash:leaving", NULL};

/* In which a thread that exits waits for others. */
static int turns;

void __real_horon_connect_turn(struct horon_context *ctx, long pause_ns);
void __wrap_horon_connect_turn(struct horon_context *ctx, long pause_ns);
void __wrap_horon_connect_turn(struct horon_context *ctx, long pause_ns)
{
    turns++;
    __real_horon_connect_turn(ctx, pause_ns);
}

static horon_context_t *join(int rank)
{
    char why[HORON_ERROR_TEXT_BYTES];
    horon_context_t *ctx = NULL;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = rank;
    options.size = 2;
    options.settings = settings;
    if (horon_context_create(&options, &ctx, why, sizeof why) != HORON_OK)
        fail_msg("rank %d: %s", rank, why);
    return ctx;
}

static horon_descriptor_t sum_of(float *value)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.flags = HORON_IN_ORDER;
    desc.src = desc.dst = value;
    desc.count = 1;
    return desc;
}

/* @param kept_out  NULL, or where a request stays that has ended */
static void *come_and_go(void *kept_out)
{
    static float value = 1;
    horon_request_t **kept = kept_out;
    horon_context_t *ctx = join(1);
    const horon_descriptor_t desc = sum_of(&value);
    if (kept) {
        assert_int_equal(horon_submit(ctx, &desc, kept), HORON_OK);
        assert_int_equal(horon_wait(*kept, HORON_HOST_DONE, -1), HORON_OK);
    }
    horon_context_destroy(ctx);
    return NULL;
}

static void test_gloo_leaving_ends_connections_though_a_request_is_kept(void **state)
{
    char why[HORON_ERROR_TEXT_BYTES];
    float value = 1;
    pthread_t other;
    horon_request_t *kept = NULL;
    const horon_descriptor_t desc = sum_of(&value);
    (void)state;
    assert_int_equal(pthread_create(&other, NULL, come_and_go, &kept), 0);
    horon_context_t *ctx = join(0);
    assert_int_equal(horon_run(ctx, &desc, -1, why, sizeof why), HORON_OK);
    pthread_join(other, NULL);
    assert_int_equal(horon_run(ctx, &desc, -1, why, sizeof why), HORON_ERR_PEER_LOST);
    horon_context_destroy(ctx);
    horon_release(kept);
}

static void test_gloo_leaving_waits_for_no_process(void **state)
{
    char why[HORON_ERROR_TEXT_BYTES];
    float value = 1;
    pthread_t other;
    const horon_descriptor_t desc = sum_of(&value);
    (void)state;
    assert_int_equal(pthread_create(&other, NULL, come_and_go, NULL), 0);
    horon_context_t *ctx = join(0);
    pthread_join(other, NULL);
    assert_int_equal(horon_run(ctx, &desc, -1, why, sizeof why), HORON_ERR_PEER_LOST);
    if (!strstr(why, "rank 1") || !strstr(why, "has left the job, exited, or was killed"))
        fail_msg("%s", why); /* that rank has left, which the wire does not tell */
    turns = 0;
    assert_int_equal(horon_context_exit(ctx, "no rank 1"), HORON_OK);
    assert_int_equal(turns, 0);
    horon_context_destroy(ctx);
}

enum { NEXT_RANKS = 4, NEXT_JOBS = 10 };

struct next {
    int rank;
    const char *store;
};

/* Joins jobs one after another, and leaves each at once. */
static void *join_often(void *arg)
{
    const struct next *next = arg;
    for (int i = 0; i < NEXT_JOBS; i++) {
        char why[HORON_ERROR_TEXT_BYTES], prefix[32];
        horon_context_t *ctx = NULL;
        horon_options_t options = HORON_OPTIONS_INIT;
        const char *const of_job[] = {next->store, prefix, NULL};
        snprintf(prefix, sizeof prefix, "GLOO_PREFIX=job%d", i);
        options.rank = next->rank;
        options.size = NEXT_RANKS;
        options.settings = of_job;
        if (horon_context_create(&options, &ctx, why, sizeof why) != HORON_OK)
            fail_msg("rank %d, job %d: %s", next->rank, i, why);
        horon_context_destroy(ctx);
    }
    return NULL;
}

/* Nothing tells a rank that the others have joined the job that it leaves. */
static void test_gloo_jobs_follow_each_other_at_one_address(void **state)
{
    char store[64];
    pthread_t threads[NEXT_RANKS];
    struct next nexts[NEXT_RANKS];
    (void)state;
    snprintf(store, sizeof store, "GLOO_STORE=tcp://127.0.0.1:%d", free_port());
    for (int i = 0; i < NEXT_RANKS; i++) {
        nexts[i] = (struct next){.rank = i, .store = store};
        assert_int_equal(pthread_create(&threads[i], NULL, join_often, &nexts[i]), 0);
    }
    for (int i = 0; i < NEXT_RANKS; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_leaving_ends_connections_though_a_request_is_kept),
        cmocka_unit_test(test_gloo_leaving_waits_for_no_process),
        cmocka_unit_test(test_gloo_jobs_follow_each_other_at_one_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
