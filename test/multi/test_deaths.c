/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When ranks look whether others of their host write a core file, and that they go on to look where
 * one look could not be made. That such a rank is named: test_kill.c.
 */
#undef NDEBUG
#include "clock.h"
#include "context_state.h"
#include "deaths.h"
#include "engine/request.h"
#include "multi/duo.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LOOK_NS UINT64_C(700000000)

/* When it looks next, and what it looks at, is the progress thread's: so the tests run there, as
 * the callback of an operation. */
struct scene {
    struct horon_context *ctx;
    void (*play)(struct scene *scene);
    horon_request_t *late; /* in flight, for the other rank does not give it; or NULL */
    sem_t played;
};

static void call_back(void *arg, horon_request_t *request, horon_status_t status)
{
    struct scene *scene = arg;
    (void)request;
    assert_int_equal(status, HORON_OK);
    horon_token_take(scene->ctx);
    (void)horon_token_look(scene->ctx); /* what was submitted is taken from the mailbox */
    scene->play(scene);
    horon_token_release(scene->ctx);
    sem_post(&scene->played);
}

static void play(void (*what)(struct scene *scene), bool late)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    float x = 1, y[2] = {0};
    struct duo duo;
    duo_make(&duo, settings);
    struct scene scene = {.ctx = duo.ctx[0], .play = what};
    sem_init(&scene.played, 0, 0);
    if (late)
        scene.late = duo_submit(duo.ctx[0], "late", &x);
    horon_request_t *go[2];
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = duo_sum("go", &y[rank]);
        desc.callback = rank == 0 ? call_back : NULL;
        desc.callback_arg = &scene;
        assert_int_equal(horon_submit(duo.ctx[rank], &desc, &go[rank]), HORON_OK);
    }
    while (sem_wait(&scene.played) != 0)
        continue;
    for (int rank = 0; rank < 2; rank++)
        duo_expect_end(go[rank], HORON_OK);
    if (late) {
        assert_int_equal(horon_cancel(scene.late), HORON_OK);
        duo_expect_end(scene.late, HORON_ERR_CANCELLED);
    }
    duo_end(&duo);
    sem_destroy(&scene.played);
}

static void find_nothing_in_flight(struct scene *scene)
{
    horon_deaths_look(scene->ctx);
    assert_true(scene->ctx->deaths_look_ns == UINT64_MAX);
}

static void find_what_is_late(struct scene *scene)
{
    struct horon_context *ctx = scene->ctx;
    horon_deaths_look(ctx);
    const uint64_t since_ns = scene->late->since_ns, looked_ns = ctx->deaths_looked_ns;
    assert_true(since_ns > 0);
    assert_true(ctx->deaths_look_ns == (since_ns > looked_ns ? since_ns : looked_ns) + LOOK_NS);
    scene->late->since_ns = 1;
    ctx->deaths_looked_ns = 1;
    horon_deaths_look(ctx);
    assert_true(ctx->deaths_looked_ns > since_ns);
    assert_true(ctx->deaths_look_ns == ctx->deaths_looked_ns + LOOK_NS);
}

static void test_deaths_look_is_due_when_the_oldest_operation_is_late(void **state)
{
    (void)state;
    play(find_nothing_in_flight, false);
    play(find_what_is_late, true);
}

/* No descriptor is left for it; later one is. */
static void look_twice(struct scene *scene)
{
    struct horon_context *ctx = scene->ctx;
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 3;
    scene->late->since_ns = 1;
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
}

static void test_deaths_look_that_could_not_be_made_is_made_again(void **state)
{
    (void)state;
    play(look_twice, true);
}

/* The operation that was late has ended, and the thread that waited for it has seen that. */
static void sleep_when_it_is_over(struct scene *scene)
{
    struct horon_context *ctx = scene->ctx;
    ctx->deaths_look_ns = horon_clock_ns();
    horon_token_release(ctx);
    horon_deaths_sleep(ctx, -1); /* until there is something to do: to find that nothing is late */
    horon_token_take(ctx);
    horon_deaths_look(ctx);
    assert_true(ctx->deaths_look_ns == UINT64_MAX);
}

static void test_deaths_are_not_looked_for_when_all_is_over(void **state)
{
    (void)state;
    play(sleep_when_it_is_over, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deaths_look_is_due_when_the_oldest_operation_is_late),
        cmocka_unit_test(test_deaths_look_that_could_not_be_made_is_made_again),
        cmocka_unit_test(test_deaths_are_not_looked_for_when_all_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
