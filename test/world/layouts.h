/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds of many shapes, 1 to 17 ranks, and what tests of verbs do in each of them: fill inputs,
 * make room for outputs, wait. With the settings that lead to every way through the library.
 */
#ifndef HORON_TEST_LAYOUTS_H
#define HORON_TEST_LAYOUTS_H

#include "world/world.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct layout {
    int hosts[8], count;
};
static const struct layout layouts[] = {
    {{1}, 1},
    {{2}, 1},
    {{3}, 1},
    {{5}, 1},
    {{8}, 1},
    {{1, 1}, 2},
    {{2, 2}, 2},
    {{1, 1, 1}, 3},
    {{1, 2, 3}, 3},
    {{3, 1}, 2},
    {{1, 1, 1, 1}, 4},
    {{2, 1, 2}, 3},
    {{17}, 1},
    {{4, 4}, 2},
    {{1, 1, 1, 1, 1}, 5},
    {{2, 2, 2, 2, 2, 2}, 6},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])
/* The other numbers of ranks, each with one of the settings. */
static const struct layout more_layouts[] = {
    {{7}, 1},  {{3, 3, 3}, 3}, {{5, 5}, 2},          {{4, 7}, 2},
    {{13}, 1}, {{7, 7}, 2},    {{1, 2, 3, 4, 5}, 5}, {{4, 4, 4, 4}, 4},
};
#define MORE_LAYOUTS (sizeof more_layouts / sizeof more_layouts[0])

static const char *const small_slots[] = {"SHM_SMALL_BYTES=64",
                                          "SHM_CHUNK_BYTES=4096",
                                          "NET_CHUNK_BYTES=4096",
                                          "NET_EAGER_BYTES=100",
                                          "NET_ALGORITHM=doubling",
                                          "SHM_LEND_BYTES=64",
                                          NULL};
static const char *const halving[] = {"SHM_SMALL_BYTES=0",
                                      "SHM_CHUNK_BYTES=8k",
                                      "NET_CHUNK_BYTES=4096",
                                      "NET_EAGER_BYTES=1",
                                      "NET_ALGORITHM=halving",
                                      "SHM_LEND_BYTES=1",
                                      NULL};
static const char *const direct[] = {"NET_ALGORITHM=direct", "SHM_CHUNK_BYTES=16k", NULL};
static const char *const flat[] = {"NET_ALGORITHM=flat", NULL};
static const char *const chain[] = {"NET_ALGORITHM=chain", "SHM_CHUNK_BYTES=8k", NULL};
static const char *const *const settings[] = {NULL, small_slots, halving, direct, flat, chain};
#define SETTINGS (sizeof settings / sizeof settings[0])

static const uint64_t counts[] = {0, 1, 2, 7, 16, 17, 1021, 4097, 12289};
#define COUNTS (sizeof counts / sizeof counts[0])

static inline void fill(struct world *world, void *memory, uint64_t count, horon_dtype_t dtype)
{
    for (uint64_t i = 0; i < count; i++) {
        int value = (int)(world_random(world) % 2001) - 1000;
        if (dtype == HORON_FLOAT32)
            ((float *)memory)[i] = (float)value / 7.0f;
        else if (dtype == HORON_FLOAT64)
            ((double *)memory)[i] = (double)value / 7.0;
        else if (dtype == HORON_INT32)
            ((int32_t *)memory)[i] = value;
        else if (dtype == HORON_FLOAT16) /* the largest third: any two add up to infinity */
            ((uint16_t *)memory)[i] = (uint16_t)(0x7bff - (value & 0x1ff));
        else if (dtype == HORON_BFLOAT16)
            ((uint16_t *)memory)[i] = (uint16_t)(0x3f80 + value % 64);
        else
            ((uint8_t *)memory)[i] = (uint8_t)value;
    }
}

static inline void **allocate(const struct world *world, size_t bytes)
{
    void **all = calloc((size_t)world->size, sizeof *all);
    for (int i = 0; i < world->size; i++)
        all[i] = calloc(1, bytes + 1);
    return all;
}

static inline void free_all(const struct world *world, void **all)
{
    for (int i = 0; i < world->size; i++)
        free(all[i]);
    free(all);
}

static inline void settle(struct world *world, struct horon_request **requests, size_t count)
{
    bool ended = world_turn_until(world, requests, count);
    if (!ended)
        fprintf(stderr, "hung: seed %llu\n", (unsigned long long)world->seed);
    assert_true(ended);
    for (size_t i = 0; i < count; i++) {
        if (requests[i]->status != HORON_OK)
            fprintf(stderr, "%s\n", requests[i]->error_text);
        assert_int_equal(requests[i]->status, HORON_OK);
    }
}

static inline void in_world(void (*check)(struct world *world), const struct layout *layout,
                            size_t setting, uint64_t seed)
{
    struct world *world = world_create(layout->hosts, layout->count, settings[setting], seed);
    check(world);
    world_destroy(world);
}

static inline void for_all_worlds(void (*check)(struct world *world))
{
    for (size_t s = 0; s < SETTINGS; s++)
        for (size_t l = 0; l < LAYOUTS; l++)
            in_world(check, &layouts[l], s, s * 1000 + l);
    for (size_t l = 0; l < MORE_LAYOUTS; l++)
        in_world(check, &more_layouts[l], l % SETTINGS, 5000 + l);
}

#endif
