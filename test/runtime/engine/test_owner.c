/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine whose token nobody holds: every function that is the owner's only says so at its head,
 * of the engine and of what it moves bytes with. Each is called in a process of its own, which must
 * abort with these words.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void run_now(struct horon_engine *engine, struct horon_request *request)
{
    horon_engine_run_now(engine, request);
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

static void oldest_ns(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_oldest_ns(engine);
}

static void leaves_work(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_leaves_work(engine, true);
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

static void watch_stalls(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_engine_watch_stalls(engine, 1000, 0);
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

/* ---- what the engine moves bytes with: links, routes of its lanes, and their channels ---- */

static struct horon_mux *mux_of(const struct horon_engine *engine)
{
    return engine->membership->mux_of[1];
}

static void mux_control(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_mux_post_control(mux_of(engine), "x", 1);
}

static void mux_send(struct horon_engine *engine, struct horon_request *request)
{
    struct horon_transfer transfer = {.id = {.channel = 99}};
    (void)request;
    horon_mux_post_send(mux_of(engine), &transfer, NULL);
}

static void mux_recv(struct horon_engine *engine, struct horon_request *request)
{
    struct horon_transfer transfer = {.id = {.channel = 99}};
    (void)request;
    horon_mux_post_recv(mux_of(engine), &transfer, NULL);
}

static void mux_forget(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_mux_forget(mux_of(engine), 99, 0);
}

static void mux_forget_channel(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_mux_forget_channel(mux_of(engine), 99);
}

static void mux_progress(struct horon_engine *engine, struct horon_request *request)
{
    bool moved = false;
    (void)request;
    horon_mux_progress(mux_of(engine), &moved, NULL);
}

static void mux_gone(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_mux_peer_gone(mux_of(engine), "is gone");
}

static void mux_check(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_mux_check(mux_of(engine));
}

static struct horon_route *route_of(struct horon_engine *engine)
{
    return &horon_engine_job(engine)->lanes[0].route;
}

static void route_prepare(struct horon_engine *engine, struct horon_request *request)
{
    bool moved = false;
    horon_route_prepare(route_of(engine), &request->op, &moved, NULL);
}

static void route_begin(struct horon_engine *engine, struct horon_request *request)
{
    horon_route_begin(route_of(engine), &request->op);
}

static void route_advance(struct horon_engine *engine, struct horon_request *request)
{
    bool moved = false;
    (void)request;
    horon_route_advance(route_of(engine), &moved, NULL);
}

static void route_forgo(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_route_forgo_ticket(route_of(engine));
}

static void route_abort(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_route_abort(route_of(engine));
}

static void route_waits(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_route_waits_for(route_of(engine), 1);
}

static void route_interval(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    horon_route_interval_ns(route_of(engine));
}

static struct horon_backend_channel *channel_of(struct horon_engine *engine)
{
    return route_of(engine)->channels[0];
}

static void channel_begin(struct horon_engine *engine, struct horon_request *request)
{
    channel_of(engine)->backend->begin(channel_of(engine), &request->op);
}

static void channel_advance(struct horon_engine *engine, struct horon_request *request)
{
    bool moved = false;
    (void)request;
    channel_of(engine)->backend->advance(channel_of(engine), &moved, NULL);
}

static void channel_abort(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    channel_of(engine)->backend->abort(channel_of(engine));
}

static void channel_waits(struct horon_engine *engine, struct horon_request *request)
{
    (void)request;
    channel_of(engine)->backend->waits_for(channel_of(engine), 1);
}

struct call {
    const char *function; /* that must say it */
    void (*make)(struct horon_engine *engine, struct horon_request *request);
};

static const struct call calls[] = {
    {"horon_engine_run_now", run_now},
    {"horon_engine_progress", progress},
    {"horon_engine_advance", advance_ordered},
    {"horon_engine_wants", wants},
    {"horon_engine_in_flight", in_flight},
    {"horon_engine_oldest_ns", oldest_ns},
    {"horon_engine_leaves_work", leaves_work},
    {"horon_engine_local_death", local_death},
    {"horon_team_fail", fail_it},
    {"horon_engine_ask", ask},
    {"horon_engine_explain", explain},
    {"horon_engine_watch_stalls", watch_stalls},
    {"horon_engine_end_requests", leave},
    {"horon_engine_flushed", flushed},
    {"horon_mux_post_control", mux_control},
    {"horon_mux_post_send", mux_send},
    {"horon_mux_post_recv", mux_recv},
    {"horon_mux_forget", mux_forget},
    {"horon_mux_forget_channel", mux_forget_channel},
    {"horon_mux_progress", mux_progress},
    {"horon_mux_peer_gone", mux_gone},
    {"horon_mux_check", mux_check},
    {"horon_route_prepare", route_prepare},
    {"horon_route_begin", route_begin},
    {"horon_route_advance", route_advance},
    {"horon_route_forgo_ticket", route_forgo},
    {"horon_route_abort", route_abort},
    {"horon_route_waits_for", route_waits},
    {"horon_route_interval_ns", route_interval},
    {"horon_channel_begin", channel_begin},
    {"horon_channel_advance", channel_advance},
    {"horon_channel_abort", channel_abort},
    {"horon_channel_waits_for", channel_waits},
};

/* Makes a call in a process of its own. @param said [said_bytes] its last words */
static int signal_of(const struct call *call, struct horon_engine *engine,
                     struct horon_request *request, char *said, size_t said_bytes)
{
    int words[2], status = 0;
    size_t used = 0;
    assert_int_equal(pipe(words), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        dup2(words[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        call->make(engine, request);
        _exit(0);
    }
    close(words[1]);
    for (ssize_t got = 1; got > 0; used += (size_t)got) {
        got = read(words[0], said + used, said_bytes - 1 - used);
        assert_true(got >= 0);
    }
    said[used] = 0;
    close(words[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void expect_abort(const struct call *call, struct horon_engine *engine,
                         struct horon_request *request)
{
    char said[1024], head[64];
    const int signal = signal_of(call, engine, request, said, sizeof said);
    snprintf(head, sizeof head, " %s", call->function);
    const char *found = strstr(said, head); /* gcc tells the name, clang the prototype */
    if (signal != SIGABRT || !found || !strchr(":(", found[strlen(head)]) ||
        !strstr(said, "horon_owner_is_mine"))
        fail_msg("%s ended with signal %d: %s", call->function, signal, said);
}

static void test_owner_alone_may_call_the_engine(void **state)
{
    static const int hosts[] = {1, 1};
    float data[2] = {0};
    (void)state;
    if (!HORON_OWNERS_CHECKED) {
        print_message("skipped: this build does not check owners; those under sanitizers do\n");
        skip();
    }
    struct world *world = world_create(hosts, 2, NULL, 1);
    struct horon_engine *engine = world->ranks[0].engine;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = "x";
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    struct horon_request *requests[2];
    for (int rank = 0; rank < 2; rank++) {
        desc.src = desc.dst = &data[rank];
        requests[rank] = world_submit(world, rank, &desc);
    }
    horon_owner_give(&world->ranks[0].owner);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        expect_abort(&calls[i], engine, requests[0]);
    horon_owner_take(&world->ranks[0].owner); /* now it is ours */
    assert_true(world_turn_until(world, requests, 2));
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(requests[rank]->status, HORON_OK);
        world_release(requests[rank]);
    }
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_alone_may_call_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
