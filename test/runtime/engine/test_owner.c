/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine whose token somebody else holds: every function that is the owner's only says so at its
 * head. Each is called in a process of its own, which must abort.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void begin_now(struct horon_engine *engine, struct horon_request *request)
{
    horon_engine_begin_now(engine, request);
}

static void progress(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_progress(engine);
}

static void advance_ordered(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_advance(horon_engine_job(engine), true);
}

static void wants(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_wants(engine);
}

static void in_flight(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_in_flight(engine);
}

static void has_input(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_has_input(engine);
}

static void local_death(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_local_death(engine, 0, true, "ended");
}

static void fail_it(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    world_fail(engine, HORON_ERR_SYSTEM, "why");
}

static void ask(struct horon_engine *engine, struct horon_request *request)
{
    horon_engine_ask(engine, request);
}

static void explain(struct horon_engine *engine, struct horon_request *request)
{
    char text[64];
    horon_engine_explain(engine, request, text, sizeof text);
}

static void warn_stalls(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_warn_stalls(engine, 1000);
}

static void leave(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_leave(engine);
}

static void flushed(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_flushed(engine);
}

/* @return what ended a process that made the call: 0, or a signal */
static int signal_of(void (*call)(struct horon_engine *engine, struct horon_request *request),
                     struct horon_engine *engine, struct horon_request *request)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        close(STDERR_FILENO); /* the assertion's words are expected */
        signal(SIGABRT, SIG_DFL);
        call(engine, request);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_owner_alone_may_call_the_engine(void **state)
{
    static void (*const calls[])(struct horon_engine *, struct horon_request *) = {
        begin_now, progress, advance_ordered, wants, in_flight,   has_input, local_death,
        fail_it,   ask,      explain,         leave, warn_stalls, flushed,
    };
    static const int hosts[] = {1};
    float data = 0;
    (void)state;
    if (!HORON_OWNERS_CHECKED) {
        print_message("skipped: this build does not check owners; those under sanitizers do\n");
        skip();
    }
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct horon_engine *engine = world->ranks[0].engine;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = "x";
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = &data;
    desc.count = 1;
    struct horon_request *request = world_submit(world, 0, &desc);
    struct horon_owner nobody = {0};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        engine->options.owner = &nobody;
        int aborted = signal_of(calls[i], engine, request);
        if (aborted != SIGABRT)
            fail_msg("call %zu ended with signal %d", i, aborted);
    }
    horon_owner_take(&nobody); /* now it is ours */
    assert_true(world_turn_until(world, &request, 1));
    assert_int_equal(request->status, HORON_OK);
    world_release(request);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_alone_may_call_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
