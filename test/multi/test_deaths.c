/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When ranks look whether others of their host write a core file, and that they go on to look where
 * one look could not be made. That such a rank is named: test_kill.c.
 */
#undef NDEBUG
#include "context_state.h"
#include "deaths.h"
#include "engine/request.h"
#include "multi/duo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LOOK_NS UINT64_C(700000000)

/* What was submitted is taken from the mailbox first. */
static void look_with_token(struct horon_context *ctx)
{
    (void)horon_token_look(ctx);
    horon_deaths_look(ctx);
}

static void end_it(horon_request_t *request)
{
    assert_int_equal(horon_cancel(request), HORON_OK);
    assert_int_equal(horon_wait(request, HORON_HOST_DONE, DUO_DEADLINE_S * 1000),
                     HORON_ERR_CANCELLED);
    horon_release(request);
}

static void test_deaths_look_is_due_when_the_oldest_operation_is_late(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    struct duo duo;
    float x = 1;
    (void)state;
    duo_make(&duo, settings);
    struct horon_context *ctx = duo.ctx[0];
    horon_token_take(ctx);
    look_with_token(ctx);
    assert_true(ctx->deaths_look_ns == UINT64_MAX); /* nothing is in flight */
    horon_token_release(ctx);
    horon_request_t *request = duo_submit(ctx, "x", &x);
    horon_token_take(ctx);
    look_with_token(ctx);
    const uint64_t since_ns = request->since_ns, looked_ns = ctx->deaths_looked_ns;
    assert_true(since_ns > 0);
    assert_true(ctx->deaths_look_ns == (since_ns > looked_ns ? since_ns : looked_ns) + LOOK_NS);
    request->since_ns = 1;
    ctx->deaths_looked_ns = 1;
    look_with_token(ctx);
    assert_true(ctx->deaths_looked_ns > since_ns);
    assert_true(ctx->deaths_look_ns == ctx->deaths_looked_ns + LOOK_NS);
    horon_token_release(ctx);
    end_it(request);
    duo_end(&duo);
}

/* No descriptor is left for it; later one is. */
static void test_deaths_look_that_could_not_be_made_is_made_again(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    struct rlimit before, low;
    struct duo duo;
    float x = 1;
    (void)state;
    duo_make(&duo, settings);
    struct horon_context *ctx = duo.ctx[0];
    horon_request_t *request = duo_submit(ctx, "x", &x);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 3;
    horon_token_take(ctx);
    look_with_token(ctx);
    request->since_ns = 1;
    ctx->deaths_looked_ns = 1;
    ctx->boot.local[1].pid = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    horon_deaths_look(ctx);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(ctx->deaths_looked_ns > 1);
    assert_int_equal(ctx->boot.local[1].pid, 0);
    ctx->deaths_looked_ns = 1;
    horon_deaths_look(ctx);
    assert_int_equal(ctx->boot.local[1].pid, getpid()); /* that of both ranks */
    horon_token_release(ctx);
    end_it(request);
    duo_end(&duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deaths_look_is_due_when_the_oldest_operation_is_late),
        cmocka_unit_test(test_deaths_look_that_could_not_be_made_is_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
