/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that runs one named operation after another drives itself. If each of them left the bell
 * set, as for work that is left behind, its progress thread would wake all the time, and take the
 * core from a rank that works.
 */
#undef NDEBUG
#include "context_state.h"
#include "multi/duo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { OPERATIONS = 300 };

static void *run_sums(void *ctx)
{
    float x = 1;
    const horon_descriptor_t sum = duo_sum("x", &x);
    for (int i = 0; i < OPERATIONS; i++)
        assert_int_equal(horon_run(ctx, &sum, -1, NULL, 0), HORON_OK);
    return NULL;
}

/* Rank 0 tells the decision with the mark of what cannot wait. */
static void test_late_bell_is_not_set_for_a_decision_that_was_awaited(void **state)
{
    struct duo duo;
    pthread_t other;
    float x = 1;
    int set = 0;
    (void)state;
    duo_make(&duo, NULL);
    const horon_descriptor_t sum = duo_sum("x", &x);
    assert_int_equal(pthread_create(&other, NULL, run_sums, duo.ctx[0]), 0);
    for (int i = 0; i < OPERATIONS; i++) {
        /* a progress thread that gets no core meanwhile does not take one mark back: it is one */
        atomic_store(&duo.ctx[1]->late_bell.set, HORON_LATE_BELL_OFF);
        assert_int_equal(horon_run(duo.ctx[1], &sum, -1, NULL, 0), HORON_OK);
        set += atomic_load(&duo.ctx[1]->late_bell.set) == HORON_LATE_BELL_SOON;
    }
    pthread_join(other, NULL);
    duo_end(&duo);
    assert_in_range(set, 0, OPERATIONS / 10);
}

static horon_status_t exchange(horon_context_t *ctx)
{
    int32_t values[2] = {0};
    horon_descriptor_t both[2];
    for (int i = 0; i < 2; i++) {
        both[i] = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
        both[i].verb = i ? HORON_RECV : HORON_SEND;
        both[i].dtype = HORON_INT32;
        both[i].root = 1 - horon_rank(ctx);
        both[i].src = both[i].dst = &values[i];
        both[i].count = 1;
    }
    return horon_run_messages(ctx, both, 2, -1, NULL, 0);
}

static void *exchange_all(void *ctx)
{
    for (int i = 0; i < OPERATIONS; i++)
        assert_int_equal(exchange(ctx), HORON_OK);
    return NULL;
}

/* A rank whose messages come at once turns everything now and then, and where it is marked. It may
 * have been done for it: the progress thread has the token at times. */
static void test_late_bell_is_not_what_messages_alone_wait_for(void **state)
{
    struct duo duo;
    pthread_t other;
    int looked = 0, unmarked = 0;
    (void)state;
    duo_make(&duo, NULL);
    struct horon_context *ctx = duo.ctx[1];
    _Atomic bool *urgent = &horon_host_line(&ctx->host, ctx->host.local_rank)->urgent;
    assert_int_equal(pthread_create(&other, NULL, exchange_all, duo.ctx[0]), 0);
    for (int i = 0; i < OPERATIONS; i++) {
        const bool marked = i >= OPERATIONS / 2;
        atomic_store(urgent, marked);
        assert_int_equal(exchange(ctx), HORON_OK);
        looked += marked && ctx->unlooked == 0;
        unmarked += !marked && ctx->unlooked == 0;
    }
    pthread_join(other, NULL);
    duo_end(&duo);
    assert_in_range(looked, OPERATIONS / 4, OPERATIONS / 2);
    assert_in_range(unmarked, 1, OPERATIONS / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_bell_is_not_set_for_a_decision_that_was_awaited),
        cmocka_unit_test(test_late_bell_is_not_what_messages_alone_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
