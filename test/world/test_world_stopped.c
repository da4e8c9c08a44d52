/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank stops for good in the middle of an operation, as a process does on SIGSTOP, and the
 * others come to rest. What each then says it waits for must be true: somebody, not itself, and
 * only ranks that have stopped or wait themselves; and some rank names the one that stopped. So
 * a reader of the texts finds it. Where all lack the same rank, which never came, no other is
 * named.
 */
#undef NDEBUG
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 9
#define SEEDS 6

static const struct {
    int hosts[4], count, size;
} layouts[] = {
    {{2}, 1, 2},    {{3}, 1, 3},    {{8}, 1, 8},       {{1, 1}, 2, 2},       {{1, 1, 1}, 3, 3},
    {{2, 2}, 2, 4}, {{3, 1}, 2, 4}, {{1, 2, 3}, 3, 6}, {{1, 1, 1, 1}, 4, 4},
};

static const char *const settings[] = {"SHM_SMALL_BYTES=64", "SHM_CHUNK_BYTES=4096",
                                       "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100", NULL};

struct scene {
    struct world *world;
    int size, stopped;
    horon_verb_t verb;
    uint64_t count; /* elements a rank gives */
    bool in_order;
    struct horon_request *requests[RANKS_MAX];
    float *in[RANKS_MAX], *out[RANKS_MAX];
    bool waits_for[RANKS_MAX][RANKS_MAX];
    char text[RANKS_MAX][512];
};

static void submit(struct scene *scene, int rank)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    scene->in[rank] = calloc(scene->count + 1, sizeof(float));
    scene->out[rank] = calloc(scene->count * (uint64_t)scene->size + 1, sizeof(float));
    desc.verb = scene->verb;
    desc.name = scene->in_order ? NULL : "x";
    desc.flags = scene->in_order ? HORON_IN_ORDER : 0;
    desc.dtype = HORON_FLOAT32;
    desc.count = scene->count;
    desc.root = (int)(scene->count % (uint64_t)scene->size);
    desc.src = scene->in[rank];
    desc.dst = scene->out[rank];
    desc.dst_count = scene->count * (uint64_t)scene->size + 1;
    scene->requests[rank] = world_submit(scene->world, rank, &desc);
}

static bool is_pending(const struct scene *scene, int rank)
{
    return rank != scene->stopped &&
           atomic_load(&scene->requests[rank]->state) != HORON_REQUEST_ENDED;
}

static void read_text(struct scene *scene, int rank)
{
    char name[24];
    horon_engine_explain(scene->world->ranks[rank].engine, scene->requests[rank], scene->text[rank],
                         sizeof scene->text[rank]);
    for (int other = 0; other < scene->size; other++) {
        snprintf(name, sizeof name, "rank %d (", other);
        scene->waits_for[rank][other] = strstr(scene->text[rank], name) != NULL;
    }
}

static void tell(const struct scene *scene, int rank, const char *fault)
{
    fail_msg("%s of %llu, in order %d, %d ranks, rank %d stopped; rank %d says \"%s\": %s",
             horon_verb_name(scene->verb), (unsigned long long)scene->count, scene->in_order,
             scene->size, scene->stopped, rank, scene->text[rank], fault);
}

/* What a channel says of an operation that has begun. */
static const char *const phases[] = {
    "; the operation before is not over on all ranks of this host",
    "; the ranks of this host meet",
    "; hosts exchange their parts",
    "; hosts exchange their parts, this host's by its first rank",
    " chunks are done",
};
enum { PHASES = sizeof phases / sizeof *phases };
static int heard[PHASES];

static void check_phase(struct scene *scene, int rank)
{
    const char *text = scene->text[rank];
    int found = -1;
    for (int i = 0; i < PHASES; i++) {
        const size_t bytes = strlen(phases[i]);
        if (strlen(text) >= bytes && strcmp(text + strlen(text) - bytes, phases[i]) == 0)
            found = i;
    }
    if (found >= 0)
        heard[found]++;
    else if (strncmp(text, "begun; ", strlen("begun; ")) == 0)
        tell(scene, rank, "it does not say what it does");
}

/* @return how many wait */
static int check_texts(struct scene *scene)
{
    int pending = 0, last = -1;
    bool found = false;
    for (int rank = 0; rank < scene->size; rank++) {
        bool somebody = false;
        if (!is_pending(scene, rank))
            continue;
        read_text(scene, rank);
        for (int other = 0; other < scene->size; other++) {
            if (!scene->waits_for[rank][other])
                continue;
            somebody = true;
            found |= other == scene->stopped;
            if (other == rank)
                tell(scene, rank, "that is itself");
            if (other != scene->stopped && !is_pending(scene, other))
                tell(scene, rank, "one of them is through");
        }
        if (!somebody)
            tell(scene, rank, "that is nobody");
        check_phase(scene, rank);
        last = rank;
        pending++;
    }
    if (pending && !found)
        tell(scene, last, "nobody names the one that stopped");
    return pending;
}

static void end(struct scene *scene)
{
    for (int rank = 0; rank < scene->size; rank++)
        horon_engine_leave(scene->world->ranks[rank].engine);
    for (int rank = 0; rank < scene->size; rank++) {
        if (scene->requests[rank])
            world_release(scene->requests[rank]);
    }
    world_destroy(scene->world); /* until then some are in flight, and have their memory */
    for (int rank = 0; rank < scene->size; rank++) {
        free(scene->in[rank]);
        free(scene->out[rank]);
    }
}

static int play(int layout, horon_verb_t verb, uint64_t count, bool in_order, uint64_t seed)
{
    struct scene scene = {.size = layouts[layout].size, .verb = verb, .count = count};
    if (verb == HORON_ALLTOALL)
        scene.count *= (uint64_t)scene.size; /* a row has an element: as many for each */
    scene.in_order = in_order;
    scene.world = world_create(layouts[layout].hosts, layouts[layout].count, settings, seed);
    scene.stopped = (int)(world_random(scene.world) % (unsigned)scene.size);
    for (int rank = 0; rank < scene.size; rank++)
        submit(&scene, rank);
    unsigned turns = (unsigned)(world_random(scene.world) % (unsigned)(30 * scene.size));
    for (; turns > 0; turns--) {
        unsigned rank = (unsigned)(world_random(scene.world) % (unsigned)scene.size);
        horon_engine_progress(scene.world->ranks[rank].engine);
    }
    struct horon_request *stopped = scene.requests[scene.stopped];
    scene.world->ranks[scene.stopped].dead = true;
    scene.requests[scene.stopped] = NULL;
    world_turn_until(scene.world, scene.requests, (size_t)scene.size);
    scene.requests[scene.stopped] = stopped;
    int pending = check_texts(&scene);
    end(&scene);
    return pending;
}

static void test_stopped_rank_is_found_in_the_texts_of_all_others(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 7, 4097, 12289};
    static const horon_verb_t verbs[] = {HORON_ALLREDUCE,     HORON_BROADCAST, HORON_ALLGATHER,
                                         HORON_REDUCESCATTER, HORON_REDUCE,    HORON_ALLTOALL};
    int pending = 0;
    for (int layout = 0; layout < (int)(sizeof layouts / sizeof *layouts); layout++)
        for (size_t verb = 0; verb < sizeof verbs / sizeof *verbs; verb++)
            for (size_t count = 0; count < 4; count++)
                for (int in_order = 0; in_order < 2; in_order++)
                    for (uint64_t seed = 1; seed <= SEEDS; seed++)
                        pending +=
                            play(layout, verbs[verb], counts[count], in_order, seed * 1000 + count);
    print_message("%d requests were left waiting\n", pending);
    assert_true(pending > 1000);
    for (int i = 1; i < PHASES; i++) /* the first takes two operations */
        assert_true(heard[i] > 10);
}

/* Rank 2 submits nothing, and the text of rank 0 names it alone: those that lack it as well are no
 * reason. */
static void expect_one_awaited(int layout, horon_verb_t verb, uint64_t count)
{
    enum { ABSENT = 2 };
    struct scene scene = {.size = layouts[layout].size, .verb = verb, .count = count};
    scene.in_order = true;
    scene.stopped = ABSENT;
    scene.world = world_create(layouts[layout].hosts, layouts[layout].count, settings, 1);
    for (int rank = 0; rank < scene.size; rank++)
        if (rank != ABSENT)
            submit(&scene, rank);
    world_turn_until(scene.world, scene.requests, (size_t)scene.size);
    assert_true(is_pending(&scene, 0));
    read_text(&scene, 0);
    for (int other = 0; other < scene.size; other++)
        if (scene.waits_for[0][other] != (other == ABSENT))
            tell(&scene, 0, "that is not the rank that is missing");
    struct horon_engine *engine = scene.world->ranks[0].engine;
    assert_int_equal(horon_engine_awaited(engine, scene.requests[0]), ABSENT);
    end(&scene);
}

static void test_rank_that_never_comes_is_awaited_alone(void **state)
{
    (void)state;
    static const horon_verb_t verbs[] = {HORON_ALLREDUCE,     HORON_ALLGATHER, HORON_ALLTOALL,
                                         HORON_REDUCESCATTER, HORON_REDUCE,    HORON_GATHER};
    for (int layout = 0; layout < (int)(sizeof layouts / sizeof *layouts); layout++) {
        const bool alike =
            layouts[layout].count == 1 || layouts[layout].count == layouts[layout].size;
        for (size_t verb = 0; verb < sizeof verbs / sizeof *verbs; verb++) {
            if (layouts[layout].size < 3 || !alike)
                continue;
            expect_one_awaited(layout, verbs[verb], (uint64_t)layouts[layout].size);
            expect_one_awaited(layout, verbs[verb], 4096 * (uint64_t)layouts[layout].size);
        }
        if (layouts[layout].size >= 3 && layouts[layout].count == 1) /* of rank 1 */
            expect_one_awaited(layout, HORON_BROADCAST, 4096 * (uint64_t)layouts[layout].size + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped_rank_is_found_in_the_texts_of_all_others),
        cmocka_unit_test(test_rank_that_never_comes_is_awaited_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
