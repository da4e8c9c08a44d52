/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over the slices of chunks and the parts of a vector: each element once, by its owner. */
#include "worlds.h"

#include "exec/walk.h"

#include <string.h>

enum { ELEMENTS_MAX = 5000 };

struct scene {
    struct horon_team team;
    struct horon_host host;
    struct horon_operation op;
    struct horon_part parts[4];
    struct horon_channel channel;
    uint8_t *slots[2][8];
    char src[ELEMENTS_MAX * 8], dst[ELEMENTS_MAX * 8];
    int seen[ELEMENTS_MAX];
};

static void begin(struct scene *scene, int local_size, int local_rank, int segments,
                  size_t element_bytes, uint64_t count, uint64_t chunk_count)
{
    static uint8_t slots[2][8][8192];
    memset(scene, 0, sizeof *scene);
    scene->team = (struct horon_team){
        .local_size = local_size, .local_rank = local_rank, .segments = segments};
    uint64_t at = 0;
    for (int i = 0; i < 4; i++) { /* one of them is empty */
        const uint64_t part = i == 3 ? count - at : i == 1 ? 0 : count / 3;
        scene->parts[i] = (struct horon_part){.src = scene->src + at * element_bytes,
                                              .dst = scene->dst + at * element_bytes,
                                              .count = part};
        at += part;
    }
    scene->op = (struct horon_operation){.parts = scene->parts, .part_count = 4, .count = count};
    struct horon_channel *channel = &scene->channel;
    channel->team = &scene->team;
    channel->op = &scene->op;
    channel->count = count;
    channel->element_bytes = element_bytes;
    channel->pipeline.total = count;
    channel->pipeline.chunk_count = chunk_count;
    channel->pipeline.chunks = (count + chunk_count - 1) / chunk_count;
    channel->pipeline.base = 7; /* slots by number since ever */
    for (int slot = 0; slot < HORON_SLOTS; slot++) {
        for (int i = 0; i < 8; i++)
            scene->slots[slot][i] = slots[slot][i];
        channel->chunk[slot] = scene->slots[slot];
    }
}

static void walk_all(struct scene *scene, enum horon_walk_over over)
{
    const struct horon_channel *channel = &scene->channel;
    struct horon_cursor cursor = {0};
    for (uint64_t chunk = 0; chunk < channel->pipeline.chunks; chunk++) {
        struct horon_walk walk;
        horon_walk_begin(&walk, channel, chunk, over, &cursor);
        assert_ptr_equal(walk.slots, scene->slots[(7 + chunk) % 2]);
        for (uint64_t count; (count = horon_walk_run(channel, &walk)) > 0;
             horon_walk_use(channel, &walk, count)) {
            const bool ours = horon_slice_owner(channel, walk.segment) == scene->team.local_rank;
            const uint64_t first = walk.first + horon_walk_place(&walk);
            assert_true(over == HORON_WALK_ALL || ours == (over == HORON_WALK_OURS));
            assert_ptr_equal(walk.run.src, scene->src + first * channel->element_bytes);
            assert_ptr_equal(walk.run.dst, scene->dst + first * channel->element_bytes);
            assert_int_equal(walk.offset, (first - walk.first) * channel->element_bytes);
            for (uint64_t e = first; e < first + count; e++)
                scene->seen[e]++;
        }
    }
}

static void test_walk_over_ours_and_others_meets_each_element_once(void **state)
{
    (void)state;
    static struct scene scene;
    static const uint64_t counts[] = {1, 2, 7, 64, 1021, 4097};
    for (int local_size = 1; local_size <= 5; local_size++)
        for (int segments = local_size; segments <= 7; segments++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (size_t element = 1; element <= 8; element *= 2) {
                    begin(&scene, local_size, (int)c % local_size, segments, element, counts[c],
                          4096 / element / (c % 2 ? 1 : 4));
                    walk_all(&scene, HORON_WALK_OURS);
                    walk_all(&scene, HORON_WALK_OTHERS);
                    for (uint64_t e = 0; e < counts[c]; e++)
                        assert_int_equal(scene.seen[e], 1);
                    walk_all(&scene, HORON_WALK_ALL);
                    for (uint64_t e = 0; e < counts[c]; e++)
                        assert_int_equal(scene.seen[e], 2);
                }
}

static void test_walk_slices_begin_on_lines_and_join(void **state)
{
    (void)state;
    static struct scene scene;
    for (uint64_t count = 1; count < 700; count += 9) {
        uint64_t at = 0;
        begin(&scene, 3, 0, 5, 4, count, 1024);
        for (int segment = 0; segment < 5; segment++) {
            const struct horon_slice slice = horon_slice_of(&scene.channel, count, segment);
            assert_int_equal(slice.from, at);
            assert_int_equal(slice.from * 4 % 64, 0);
            at = slice.to;
        }
        assert_int_equal(at, count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk_over_ours_and_others_meets_each_element_once),
        cmocka_unit_test(test_walk_slices_begin_on_lines_and_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
