/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job whose ranks link after they have joined, where those of hosts a and b that are
 * neither neighbours in the control tree nor carry the same slice have no link:
 *
 *  - meet A B: ranks A and B ask for a link, A alone if B is -1 - B; then they exchange a message,
 *    while all sum. Prints "exchanged" on both.
 *  - gone A B: once all have joined ranks A and B stop. A goes on, asks for a link, and prints
 *    "asked". When B has been killed A prints "failed NANOSECONDS STATUS TEXT" with what it is
 *    told.
 *  - team A B: ranks A and B make a team, in this order, and then all ranks one in reverse order;
 *    each sums in them, and prints "summed" after each.
 *  - set A B: all add a process set of A and B, and one of all ranks but 0, both at work at once;
 *    members sum in them, and print "summed" after each. Then all remove them, and sum in the job.
 *
 * All but the last looks inside.
 */
#undef NDEBUG
#include "context_state.h"
#include "engine/engine_state.h"
#include "failed.h"
#include "teams.h"

#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 1000003

static void say(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
}

static horon_status_t sum(horon_context_t *ctx, char *why, size_t why_bytes)
{
    float data = 1;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = &data;
    desc.count = 1;
    return horon_run(ctx, &desc, -1, why, why_bytes);
}

/* @return as horon_engine_connect() said in the end; the progress thread does the work */
static horon_status_t link_to(horon_context_t *ctx, int peer, bool ask, struct horon_error *error)
{
    horon_status_t status = HORON_AGAIN;
    while (status == HORON_AGAIN) {
        horon_token_take(ctx);
        const bool linked = ctx->engine->membership->states[peer] == HORON_PEER_LINKED;
        if (ask || linked)
            status = horon_engine_connect(ctx->engine, peer, error);
        horon_token_release(ctx);
        sched_yield();
    }
    return status;
}

static int exchange(horon_context_t *ctx, int peer)
{
    struct horon_transfer transfers[2]; /* what goes and what comes */
    struct horon_error error = {0};
    uint8_t *bytes[2] = {malloc(BYTES), calloc(1, BYTES)};
    assert(bytes[0] && bytes[1]);
    bool done = false;
    memset(bytes[0], horon_rank(ctx) + 1, BYTES);
    horon_token_take(ctx);
    struct horon_mux *mux = ctx->engine->membership->mux_of[peer];
    for (int i = 0; i < 2; i++)
        transfers[i] = (struct horon_transfer){
            .id = {.channel = 1u << 31, .sequence = 1}, .data = bytes[i], .bytes = BYTES};
    horon_status_t status = horon_mux_post_recv(mux, &transfers[1], &error);
    if (status == HORON_OK)
        status = horon_mux_post_send(mux, &transfers[0], &error);
    horon_token_release(ctx);
    while (status == HORON_OK && !done) {
        horon_token_take(ctx);
        horon_engine_progress(ctx->engine);
        done = transfers[0].done && transfers[1].done;
        if (horon_engine_failure(ctx->engine))
            status = horon_engine_failure(ctx->engine)->status;
        horon_token_release(ctx);
        sched_yield();
    }
    for (int i = 0; status == HORON_OK && i < BYTES; i++)
        assert(bytes[1][i] == peer + 1);
    if (status == HORON_OK)
        say("exchanged");
    free(bytes[0]);
    free(bytes[1]);
    return status == HORON_OK ? 0 : failed(status, error.text);
}

static int meet(horon_context_t *ctx, int a, int b, bool both)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    struct horon_error error = {0};
    const int self = horon_rank(ctx), peer = self == a ? b : a;
    horon_status_t status = sum(ctx, why, sizeof why);
    if (status == HORON_OK && (self == a || self == b)) {
        assert(!horon_topology_linked(&ctx->boot.topology, a, b));
        status = link_to(ctx, peer, both || self == a, &error);
        if (status != HORON_OK)
            return failed(status, error.text);
        if (exchange(ctx, peer) != 0)
            return 1;
    }
    for (int i = 0; i < 100 && status == HORON_OK; i++)
        status = sum(ctx, why, sizeof why);
    return status == HORON_OK ? 0 : failed(status, why);
}

static int gone(horon_context_t *ctx, int a, int b)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    struct horon_error error = {0};
    horon_status_t status = sum(ctx, why, sizeof why);
    if (status != HORON_OK)
        return failed(status, why);
    if (horon_rank(ctx) == a || horon_rank(ctx) == b)
        raise(SIGSTOP); /* else the link could be made before B stops */
    if (horon_rank(ctx) != a)
        return failed(sum(ctx, why, sizeof why), why);
    horon_token_take(ctx);
    status = horon_engine_connect(ctx->engine, b, &error);
    horon_token_release(ctx);
    assert(status == HORON_AGAIN);
    say("asked");
    while (status == HORON_AGAIN) {
        horon_token_take(ctx);
        if (ctx->engine->membership->states[b] != HORON_PEER_CONNECTING)
            status = horon_engine_connect(ctx->engine, b, &error);
        horon_token_release(ctx);
        sched_yield();
    }
    return failed(status, error.text);
}

static int sum_in_team(horon_context_t *ctx, uint32_t id, const int *ranks, int size)
{
    static float data[BYTES];
    struct horon_context_team *team;
    struct horon_error error = {0};
    horon_status_t status = horon_context_add_team(ctx, id, ranks, size, NULL, &team, &error);
    if (status != HORON_OK)
        return failed(status, error.text);
    for (int round = 0; round < 4; round++) {
        horon_request_t *request;
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (int i = 0; i < BYTES; i++)
            data[i] = 1;
        desc.name = round % 2 ? "x" : NULL;
        desc.flags = round % 2 ? 0 : HORON_IN_ORDER;
        desc.dtype = HORON_FLOAT32;
        desc.src = desc.dst = data;
        desc.count = round < 2 ? 1 : BYTES;
        desc.process_set = (int32_t)id;
        status = horon_team_submit(ctx, horon_context_team_of(team), &desc, &request);
        if (status == HORON_OK)
            status = horon_wait(request, HORON_HOST_DONE, -1);
        if (status != HORON_OK)
            return failed(status, horon_request_error(request));
        horon_release(request);
        for (uint64_t i = 0; i < desc.count; i++)
            assert(data[i] == (float)size);
    }
    horon_context_remove_team(team);
    say("summed");
    return 0;
}

static int make_teams(horon_context_t *ctx, int a, int b)
{
    const int two[] = {a, b}, self = horon_rank(ctx), size = horon_size(ctx);
    char why[HORON_ERROR_TEXT_BYTES] = "";
    int all[16], code = 0;
    assert(size <= 16);
    for (int i = 0; i < size; i++)
        all[i] = size - 1 - i;
    if (self == a || self == b)
        code = sum_in_team(ctx, 1, two, 2);
    if (code == 0)
        code = sum_in_team(ctx, 2, all, size);
    const horon_status_t status = sum(ctx, why, sizeof why);
    return status == HORON_OK ? code : failed(status, why);
}

static int sum_in_set(horon_context_t *ctx, int32_t set)
{
    static float data[BYTES];
    const int32_t size = horon_process_set_size(ctx, set);
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_status_t status = HORON_OK;
    for (int round = 0; round < 4 && status == HORON_OK; round++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (int i = 0; i < BYTES; i++)
            data[i] = 1;
        desc.name = round % 2 ? "x" : NULL;
        desc.flags = round % 2 ? 0 : HORON_IN_ORDER;
        desc.dtype = HORON_FLOAT32;
        desc.src = desc.dst = data;
        desc.count = round < 2 ? 1 : BYTES;
        desc.process_set = set;
        status = horon_run(ctx, &desc, -1, why, sizeof why);
        for (uint64_t i = 0; i < desc.count && status == HORON_OK; i++)
            assert(data[i] == (float)size);
    }
    if (status == HORON_OK)
        say("summed");
    return status == HORON_OK ? 0 : failed(status, why);
}

static int use_sets(horon_context_t *ctx, int a, int b)
{
    const int32_t two[] = {a, b};
    char why[HORON_ERROR_TEXT_BYTES] = "";
    int32_t rest[16], sets[2];
    int code = 0;
    const int32_t size = horon_size(ctx);
    assert(size <= 16);
    for (int32_t i = 1; i < size; i++)
        rest[i - 1] = i;
    horon_status_t status = horon_process_set_add(ctx, two, 2, -1, &sets[0]);
    if (status == HORON_OK)
        status = horon_process_set_add(ctx, rest, (size_t)size - 1, -1, &sets[1]);
    for (int i = 0; i < 2 && status == HORON_OK && code == 0; i++)
        if (horon_process_set_rank(ctx, sets[i]) >= 0)
            code = sum_in_set(ctx, sets[i]);
    for (int i = 0; i < 2 && status == HORON_OK; i++)
        status = horon_process_set_remove(ctx, sets[i], -1);
    if (status != HORON_OK)
        return failed(status, horon_last_error(ctx));
    status = sum(ctx, why, sizeof why);
    return status == HORON_OK ? code : failed(status, why);
}

int main(int words, char **word)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES] = "";
    if (words != 4)
        return 2;
    const int a = atoi(word[2]), b = atoi(word[3]);
    horon_status_t status = horon_context_create(NULL, &ctx, why, sizeof why);
    if (status != HORON_OK)
        return failed(status, why);
    const int code = strcmp(word[1], "gone") == 0   ? gone(ctx, a, b)
                     : strcmp(word[1], "team") == 0 ? make_teams(ctx, a, b)
                     : strcmp(word[1], "set") == 0  ? use_sets(ctx, a, b)
                                                    : meet(ctx, a, b < 0 ? -1 - b : b, b >= 0);
    horon_context_destroy(ctx);
    return code;
}
