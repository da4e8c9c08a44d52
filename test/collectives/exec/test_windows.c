/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels ahead of the data, as a verb of its own that this file brings: every rank gives some
 * words, and gets those of all, piece by piece through the smallest slots. N ranks in one thread,
 * joined by rings between hosts.
 */
#include "mesh.h"

#include "exec/windows.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 4096, WORDS_MAX = 3000, RANKS_MAX = 7 };

struct table {
    struct horon_windows windows;
    uint64_t words;
    uint64_t own[WORDS_MAX];
    uint64_t all[RANKS_MAX * WORDS_MAX];
    uint64_t pieces;
};

struct rank {
    struct horon_team team;
    struct horon_host host;
    struct horon_mux *mux_of[RANKS_MAX];
    struct horon_channel *channel;
    struct table *table;
    bool ended;
};

struct scene {
    int size, hosts;
    int host_of[RANKS_MAX], local_of[RANKS_MAX], first[RANKS_MAX + 1], order[RANKS_MAX];
    const char *names[RANKS_MAX];
    struct mesh mesh;
    uint8_t *control[RANKS_MAX], *arenas[RANKS_MAX]; /* by host; by rank */
    struct rank ranks[RANKS_MAX];
};

static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    return horon_phase_meet(channel, HORON_MEET_ALL);
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    struct table *table = channel->state;
    return horon_windows_begin_table(channel, &table->windows, table->own, table->words,
                                     table->all);
}

static horon_status_t piped(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    ((struct table *)channel->state)->pieces = channel->pipeline.chunks;
    return HORON_OK;
}

static void enter(struct horon_channel *channel)
{
    (void)channel;
}

/* Put in the place of a verb that has begun. */
static const struct horon_verb_ops table_ops = {
    .enter = enter,
    .entered = entered,
    .met = met,
    .exchanged = horon_phase_unreachable,
    .published = horon_phase_unreachable,
    .piped = piped,
};

static void no_doorbell(void *arg, int process)
{
    (void)arg;
    (void)process;
}

static uint8_t *zeros(size_t bytes)
{
    uint8_t *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

static void make_rank(struct scene *scene, int r, int segments)
{
    struct rank *rank = &scene->ranks[r];
    const int h = scene->host_of[r], local_size = scene->first[h + 1] - scene->first[h];
    rank->host.shape = (struct horon_host_shape){
        .local_size = local_size, .small_bytes = 64, .chunk_bytes = CHUNK_BYTES};
    rank->host.arenas = scene->arenas + scene->first[h];
    rank->host.doorbell = no_doorbell;
    if (!scene->control[h])
        scene->control[h] = zeros(horon_host_control_bytes(&rank->host.shape));
    horon_host_see_control(&rank->host, scene->control[h], scene->local_of[r]);
    scene->arenas[r] = zeros(horon_host_channel_bytes(&rank->host.shape));
    for (int peer = 0; peer < scene->size; peer++)
        rank->mux_of[peer] = scene->host_of[peer] == h ? NULL : scene->mesh.mux[r][peer];
    rank->team = (struct horon_team){.rank = r,
                                     .size = scene->size,
                                     .host_count = scene->hosts,
                                     .host = h,
                                     .local_rank = scene->local_of[r],
                                     .local_size = local_size,
                                     .segments = segments,
                                     .host_of = scene->host_of,
                                     .local_rank_of = scene->local_of,
                                     .host_first = scene->first,
                                     .host_ranks = scene->order,
                                     .rank_names = scene->names,
                                     .mux_of = rank->mux_of};
}

static void scene_begin(struct scene *scene, const int *host_sizes, int hosts)
{
    const struct horon_mux_options options = mesh_options(64, 512);
    const struct horon_channel_options channel = {.channel = 1, .net_chunk_bytes = 1 << 20};
    int segments = 0;
    memset(scene, 0, sizeof *scene);
    scene->hosts = hosts;
    for (int h = 0; h < hosts; h++) {
        for (int i = 0; i < host_sizes[h]; i++) {
            const int r = scene->size++;
            scene->host_of[r] = h;
            scene->local_of[r] = i;
            scene->order[r] = r;
            scene->names[r] = scene->mesh.names[r];
        }
        scene->first[h + 1] = scene->size;
        segments = host_sizes[h] > segments ? host_sizes[h] : segments;
    }
    mesh_create_rings(&scene->mesh, scene->size, 1024, &options);
    for (int r = 0; r < scene->size; r++)
        make_rank(scene, r, segments);
    for (int r = 0; r < scene->size; r++) {
        struct rank *rank = &scene->ranks[r];
        assert_int_equal(horon_channel_create(&channel, &rank->team, &rank->host, &rank->channel),
                         HORON_OK);
        rank->table = calloc(1, sizeof *rank->table + horon_windows_tables_bytes(&rank->team));
        horon_windows_init(&rank->table->windows, &rank->team, rank->table + 1);
    }
}

static void scene_end(struct scene *scene)
{
    for (int r = 0; r < scene->size; r++) {
        horon_channel_destroy(scene->ranks[r].channel);
        free(scene->ranks[r].table);
        free(scene->arenas[r]);
    }
    for (int h = 0; h < scene->hosts; h++)
        free(scene->control[h]);
    mesh_destroy(&scene->mesh);
}

static void run(struct scene *scene, struct seeded *seeded, uint64_t words)
{
    const struct horon_operation op = {.check = 99};
    int left = scene->size;
    for (int r = 0; r < scene->size; r++) {
        struct rank *rank = &scene->ranks[r];
        rank->table->words = words;
        memset(rank->table->all, 0xee, sizeof rank->table->all);
        rank->ended = false;
        horon_channel_begin(rank->channel, &op);
        rank->channel->verb = &table_ops;
        rank->channel->state = rank->table;
    }
    for (uint64_t turn = 0; left > 0; turn++) {
        struct rank *rank = &scene->ranks[seeded_below(seeded, (uint64_t)scene->size)];
        struct horon_error error = {0};
        bool moved = false;
        assert_true(turn < 10000000);
        mesh_progress_any(&scene->mesh, seeded);
        if (rank->ended)
            continue;
        const horon_status_t status = horon_channel_advance(rank->channel, &moved, &error);
        assert_true(status >= 0);
        rank->ended = status == HORON_OK;
        left -= rank->ended;
    }
    mesh_settle(&scene->mesh);
}

static void check(const struct scene *scene, uint64_t words, uint64_t pieces)
{
    for (int r = 0; r < scene->size; r++) {
        const struct table *table = scene->ranks[r].table;
        assert_int_equal(table->pieces, pieces);
        for (int from = 0; from < scene->size; from++)
            for (uint64_t w = 0; w < words; w++)
                assert_int_equal(table->all[(uint64_t)from * words + w],
                                 (uint64_t)(from + 1) << 32 | w);
        assert_int_equal(table->all[(uint64_t)scene->size * words] == 0xeeeeeeeeeeeeeeee,
                         words < WORDS_MAX);
    }
}

static void test_windows_table_of_any_length_travels_piecewise(void **state)
{
    (void)state;
    static const struct {
        int hosts[4], count;
        uint64_t words_a_piece; /* a slot's share */
    } layouts[] = {{{3}, 1, 512}, {{1, 1}, 2, 256}, {{2, 2}, 2, 256}, {{1, 2, 3}, 3, 80}};
    static const uint64_t words[] = {1, 8, 79, 81, 1021, 2999};
    static struct scene scene;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        struct seeded seeded = seeded_from(l);
        scene_begin(&scene, layouts[l].hosts, layouts[l].count);
        for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
            const uint64_t piece = layouts[l].words_a_piece;
            for (int r = 0; r < scene.size; r++)
                for (uint64_t i = 0; i < words[w]; i++)
                    scene.ranks[r].table->own[i] = (uint64_t)(r + 1) << 32 | i;
            run(&scene, &seeded, words[w]);
            check(&scene, words[w], (words[w] + piece - 1) / piece);
        }
        scene_end(&scene);
    }
}

/* Of a verb whose row says so: N words of each of N ranks, of which each reads its column. */
static void test_windows_table_of_splits_tells_each_rank_what_it_gets(void **state)
{
    static const struct horon_verb_row row = {.ahead = HORON_AHEAD_SPLITS};
    static struct scene scene;
    struct seeded seeded = seeded_from(7);
    (void)state;
    scene_begin(&scene, (const int[]){1, 2, 3}, 3);
    const uint64_t words = horon_verb_ahead_words(&row, scene.size);
    assert_int_equal(words, scene.size);
    for (int r = 0; r < scene.size; r++)
        for (uint64_t to = 0; to < words; to++)
            scene.ranks[r].table->own[to] = 100 * (uint64_t)r + to;
    run(&scene, &seeded, words);
    for (int r = 0; r < scene.size; r++)
        for (int from = 0; from < scene.size; from++)
            assert_int_equal(scene.ranks[r].table->all[(uint64_t)from * words + (uint64_t)r],
                             100 * from + r);
    scene_end(&scene);
}

static void test_windows_wait_for_the_rank_that_does_not_move(void **state)
{
    (void)state;
    static struct scene scene;
    const struct horon_operation op = {.check = 99};
    scene_begin(&scene, (const int[]){2, 1}, 2);
    for (int r = 0; r < scene.size; r++) {
        struct rank *rank = &scene.ranks[r];
        rank->table->words = 5;
        horon_channel_begin(rank->channel, &op);
        rank->channel->verb = &table_ops;
        rank->channel->state = rank->table;
    }
    for (int turn = 0; turn < 1000; turn++) { /* rank 2, alone on its host, never has a turn */
        struct horon_error error = {0};
        bool moved = false;
        mesh_progress(&scene.mesh);
        assert_int_equal(horon_channel_advance(scene.ranks[turn % 2].channel, &moved, &error),
                         HORON_IN_PROGRESS);
    }
    assert_true(horon_channel_waits_for(scene.ranks[0].channel, 2));
    assert_false(horon_channel_waits_for(scene.ranks[0].channel, 1));
    assert_true(horon_channel_waits_for(scene.ranks[1].channel, 0)); /* which fetches for both */
    assert_false(horon_channel_waits_for(scene.ranks[1].channel, 1));
    scene_end(&scene);
}

/* Rank 1 never comes; rank 2 carries out something else, which is told nevertheless. */
static void test_windows_find_another_operation_behind_a_rank_that_is_late(void **state)
{
    (void)state;
    static struct scene scene;
    const struct horon_operation ops[] = {{.check = 99}, {.check = 98}};
    horon_status_t status = HORON_IN_PROGRESS;
    struct horon_error error = {0};
    scene_begin(&scene, (const int[]){1, 1, 1}, 3);
    for (int r = 0; r < scene.size; r += 2) {
        struct rank *rank = &scene.ranks[r];
        rank->table->words = 5;
        horon_channel_begin(rank->channel, &ops[r / 2]);
        rank->channel->verb = &table_ops;
        rank->channel->state = rank->table;
    }
    for (int turn = 0; turn < 1000 && status == HORON_IN_PROGRESS; turn++) {
        bool moved = false;
        if (turn > 10) /* both have posted all */
            mesh_progress(&scene.mesh);
        else
            horon_channel_advance(scene.ranks[2].channel, &moved, &error);
        status = horon_channel_advance(scene.ranks[0].channel, &moved, &error);
    }
    assert_int_equal(status, HORON_ERR_MISMATCH);
    assert_non_null(strstr(error.text, scene.names[2]));
    scene_end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_table_of_any_length_travels_piecewise),
        cmocka_unit_test(test_windows_table_of_splits_tells_each_rank_what_it_gets),
        cmocka_unit_test(test_windows_wait_for_the_rank_that_does_not_move),
        cmocka_unit_test(test_windows_find_another_operation_behind_a_rank_that_is_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
