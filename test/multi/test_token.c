/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the progress thread leaves behind when a waiter calls it off. The waiter is a count in the
 * context here, so that it calls whenever the thread looks.
 */
#undef NDEBUG
#include "context_state.h"
#include "multi/duo.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static horon_request_t *submit_broadcast(horon_context_t *ctx, const char *name, float *data)
{
    horon_descriptor_t desc = duo_sum(name, data);
    horon_request_t *request;
    desc.verb = HORON_BROADCAST;
    desc.root = 0;
    assert_int_equal(horon_submit(ctx, &desc, &request), HORON_OK);
    return request;
}

/* Rank 0 decides and, as the root, has ended its own part in the same turn: nothing is in flight
 * there, and the decision has not been sent. The waiter finds its request ended, and does nothing.
 */
static void test_token_called_off_progress_thread_sends_what_it_decided(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    float x[2] = {1, 2}, y[2] = {3, 4};
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    horon_context_t *root = duo.ctx[0];
    horon_request_t *theirs = submit_broadcast(duo.ctx[1], "y", &y[1]);
    horon_request_t *behind = duo_submit(duo.ctx[1], "x", &x[1]);
    duo_expect_end(duo_submit(root, "x", &x[0]), HORON_OK); /* rank 0 has heard of "y", too */
    duo_expect_end(behind, HORON_OK);
    atomic_fetch_add(&root->waiters, 1);
    horon_request_t *ours = submit_broadcast(root, "y", &y[0]);
    while (horon_test(ours, HORON_HOST_DONE) == HORON_IN_PROGRESS || atomic_load(&root->token))
        sched_yield();
    atomic_fetch_sub(&root->waiters, 1);
    duo_expect_end(theirs, HORON_OK);
    assert_true(y[1] == 3);
    duo_expect_end(ours, HORON_OK);
    duo_end(&duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_called_off_progress_thread_sends_what_it_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
