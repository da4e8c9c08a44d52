/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a failure says of the input (horon_failure_t.input_lost): a rank fails somewhere on the way,
 * and each operation in place that has failed and does not say that its input may be lost has it as
 * it was. What is not in place, or has not begun, never says so.
 */
#undef NDEBUG
#include "world/layouts.h"

enum { RANKS_MAX = 17, OPS = 3, SEEDS = 2 };

/* Of the output, to the input. */
enum where { APART, IN_PLACE, AT_FRONT, AT_FRONT_BY_ALLOC, WHERES };

struct use {
    float *memory, *before; /* [elements] of input and output in place, and a copy */
    float *other;           /* the output, if it is elsewhere */
    uint64_t elements, from, count;
    struct horon_request *request;
};

struct scene {
    struct world *world;
    horon_verb_t verb;
    uint64_t count; /* elements that a rank gives */
    enum where where;
    struct use uses[RANKS_MAX][OPS];
};

static int lost, kept;

static void *give(void *arg, uint64_t rows, uint64_t bytes)
{
    const struct use *use = arg;
    (void)rows;
    assert_true(bytes <= use->elements * sizeof *use->memory);
    return use->memory;
}

static bool gathers(const struct scene *scene)
{
    return scene->verb == HORON_ALLGATHER || scene->verb == HORON_GATHER;
}

static void submit(struct scene *scene, int rank, int number)
{
    struct use *use = &scene->uses[rank][number];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    const uint64_t size = (uint64_t)scene->world->size;
    const char *const names[OPS] = {"x", NULL, "y"};
    use->count = scene->count;
    use->elements = gathers(scene) ? size * scene->count : scene->count;
    use->from = gathers(scene) && scene->where == IN_PLACE ? (uint64_t)rank * scene->count : 0;
    use->memory = malloc(use->elements * sizeof *use->memory);
    use->before = malloc(use->elements * sizeof *use->before);
    use->other = malloc(use->elements * sizeof *use->other);
    assert_true(use->memory && use->before && use->other);
    for (uint64_t i = 0; i < use->elements; i++)
        use->memory[i] = use->before[i] = (float)(world_random(scene->world) % 1000);
    desc.verb = scene->verb;
    desc.name = names[number];
    desc.flags = names[number] ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.count = scene->count;
    desc.root = (int)(size - 1);
    desc.src = use->memory + use->from;
    desc.dst = scene->where == APART ? use->other : use->memory;
    desc.dst_count = use->elements;
    if (scene->where == AT_FRONT_BY_ALLOC) {
        desc.dst = NULL;
        desc.dst_count = 0;
        desc.alloc = give;
        desc.alloc_arg = use;
    }
    use->request = world_submit(scene->world, rank, &desc);
}

static void check(const struct scene *scene, int rank, int number)
{
    const struct use *use = &scene->uses[rank][number];
    const bool says_lost = use->request->blame.input_lost;
    const bool reads =
        horon_ranks_include(horon_verb_rows[scene->verb].reads, scene->world->size - 1, rank);
    if (use->request->status == HORON_OK) {
        assert_false(says_lost);
        return;
    }
    if (says_lost)
        assert_true(scene->where != APART && scene->verb != HORON_BROADCAST);
    else if (reads && memcmp(use->memory + use->from, use->before + use->from,
                             use->count * sizeof *use->memory) != 0)
        fail_msg(
            "%s of %llu, rank %d of %d on %d hosts, operation %d: \"%s\", and its input is not "
            "as it was",
            horon_verb_name(scene->verb), (unsigned long long)use->count, rank, scene->world->size,
            scene->world->host_count, number, use->request->error_text);
    lost += says_lost;
    kept += !says_lost;
}

static void play(const struct layout *layout, const char *const *with, struct scene *scene,
                 uint64_t seed)
{
    struct world *world = world_create(layout->hosts, layout->count, with, seed);
    struct horon_request *requests[RANKS_MAX * OPS];
    const int size = world->size;
    assert_in_range(size, 1, RANKS_MAX);
    scene->world = world;
    for (int rank = 0; rank < size; rank++)
        for (int number = 0; number < OPS; number++)
            submit(scene, rank, number);
    for (unsigned turns = (unsigned)(world_random(world) % (unsigned)(60 * size)); turns > 0;
         turns--)
        horon_engine_progress(world->ranks[world_random(world) % (unsigned)size].engine);
    world_fail(world->ranks[world_random(world) % (unsigned)size].engine, HORON_ERR_SYSTEM,
               "enough");
    for (int rank = 0; rank < size; rank++)
        for (int number = 0; number < OPS; number++)
            requests[rank * OPS + number] = scene->uses[rank][number].request;
    assert_true(world_turn_until(world, requests, (size_t)(size * OPS)));
    for (int rank = 0; rank < size; rank++)
        for (int number = 0; number < OPS; number++) {
            struct use *use = &scene->uses[rank][number];
            check(scene, rank, number);
            world_release(use->request);
            free(use->memory);
            free(use->before);
            free(use->other);
        }
    world_destroy(world);
}

static void play_all(enum where where)
{
    enum { GATHERING = 4 };
    static const horon_verb_t verbs[] = {HORON_ALLREDUCE, HORON_REDUCE,    HORON_REDUCESCATTER,
                                         HORON_BROADCAST, HORON_ALLGATHER, HORON_GATHER};
    static const uint64_t sizes[] = {7, 4097, 12289};
    const size_t first = where >= AT_FRONT ? GATHERING : 0; /* only there its place is free */
    for (size_t verb = first; verb < sizeof verbs / sizeof *verbs; verb++)
        for (size_t layout = 0; layout < LAYOUTS; layout++)
            for (size_t count = 0; count < sizeof sizes / sizeof *sizes; count++)
                for (uint64_t seed = 1; seed <= SEEDS; seed++) {
                    struct scene scene = {
                        .verb = verbs[verb], .count = sizes[count], .where = where};
                    play(&layouts[layout], settings[(seed + layout) % SETTINGS], &scene,
                         1000 * seed + count);
                }
}

static void test_input_that_is_not_said_to_be_lost_is_as_it_was(void **state)
{
    (void)state;
    lost = kept = 0;
    for (enum where where = IN_PLACE; where < WHERES; where++)
        play_all(where);
    assert_true(lost > 100);
    assert_true(kept > 1000);
    print_message("%d inputs may be lost, %d are as they were\n", lost, kept);
}

static void test_input_out_of_place_is_never_lost(void **state)
{
    (void)state;
    lost = kept = 0;
    play_all(APART);
    assert_int_equal(lost, 0);
    assert_true(kept > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input_that_is_not_said_to_be_lost_is_as_it_was),
        cmocka_unit_test(test_input_out_of_place_is_never_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
