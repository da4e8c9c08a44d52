/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many operations at once: every rank submits the same tensors in an order of its own and turns in
 * between, so that what is ready together, and hence fused, is another every time. The bits must be
 * those of each tensor summed alone, whatever its neighbours in a batch, the algorithm, the sizes
 * of batches and chunks, and the order of arrival.
 */
#undef NDEBUG
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 17
#define TENSORS 24
/* The tensors are of four kinds, which fuse among themselves, the last by its two roots; every
 * sixth is in order instead. */
#define KINDS_THAT_FUSE 5
#define IN_ORDER(tensor) ((tensor) % 6 == 5)
#define NAMED (TENSORS - TENSORS / 6)

struct layout {
    int hosts[8], count;
};
static const struct layout layouts[] = {
    {{2}, 1}, {{5}, 1}, {{1, 1}, 2}, {{1, 2, 3}, 3}, {{1, 1, 1, 1, 1}, 5}, {{4, 5, 4, 4}, 4},
};

static const char *const fused[] = {NULL};
static const char *const alone[] = {"FUSION_BYTES=0", "NET_ALGORITHM=halving", NULL};
static const char *const few[] = {
    "FUSION_BYTES=6k",     "SHM_SMALL_BYTES=64",   "SHM_CHUNK_BYTES=4096", "NET_CHUNK_BYTES=4096",
    "NET_EAGER_BYTES=100", "NET_ALGORITHM=direct", "CACHE_ENTRIES=0",      NULL};
static const char *const chunked[] = {"SHM_SMALL_BYTES=0", "SHM_CHUNK_BYTES=8k",
                                      "NET_EAGER_BYTES=1", "NET_ALGORITHM=flat", NULL};
static const char *const halved[] = {"NET_CHUNK_BYTES=4096", "SHM_SMALL_BYTES=1k",
                                     "NET_ALGORITHM=halving", NULL};
static const char *const *const settings[] = {fused, alone, few, chunked, halved};
#define SETTINGS (sizeof settings / sizeof settings[0])

static const uint64_t counts[] = {1, 17, 0, 500, 64, 1021, 3, 256, 40};

static horon_descriptor_t describe(int tensor, char *name, size_t name_bytes)
{
    static const struct {
        horon_verb_t verb;
        horon_dtype_t dtype;
        horon_redop_t redop;
        double postscale;
    } kinds[] = {{HORON_ALLREDUCE, HORON_FLOAT32, HORON_SUM, 0.3},
                 {HORON_ALLREDUCE, HORON_BFLOAT16, HORON_AVERAGE, 1.0},
                 {HORON_ALLREDUCE, HORON_FLOAT16, HORON_SUM, 1.0},
                 {HORON_REDUCE, HORON_FLOAT32, HORON_SUM, 0.3}};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    snprintf(name, name_bytes, "layer %d", tensor);
    desc.name = name;
    desc.flags = IN_ORDER(tensor) ? HORON_IN_ORDER : 0;
    desc.verb = kinds[tensor % 4].verb;
    desc.root = desc.verb == HORON_REDUCE ? tensor / 4 % 2 : 0;
    desc.dtype = kinds[tensor % 4].dtype;
    desc.redop = kinds[tensor % 4].redop;
    desc.postscale = kinds[tensor % 4].postscale;
    desc.count = counts[tensor % (int)(sizeof counts / sizeof counts[0])];
    return desc;
}

static size_t bytes_of(int tensor)
{
    char name[32];
    horon_descriptor_t desc = describe(tensor, name, sizeof name);
    return (size_t)desc.count * horon_dtype_bytes((horon_dtype_t)desc.dtype);
}

static bool gets(int rank, int tensor)
{
    char name[32];
    horon_descriptor_t desc = describe(tensor, name, sizeof name);
    return desc.verb == HORON_ALLREDUCE || desc.root == rank;
}

/* Values of many sizes, so that a sum shows the order of its additions. */
static void fill(struct world *world, int tensor, void *memory)
{
    char name[32];
    horon_descriptor_t desc = describe(tensor, name, sizeof name);
    for (uint64_t i = 0; i < desc.count; i++) {
        uint64_t random = world_random(world);
        float value = ((float)(random % 2001) - 1000.0f) * (float)(1u << (random >> 40 & 15)) / 7.f;
        if (desc.dtype == HORON_FLOAT32)
            ((float *)memory)[i] = value;
        else if (desc.dtype == HORON_FLOAT16) /* no infinity, no NaN */
            ((uint16_t *)memory)[i] = (uint16_t)((random & 0x83ff) | (8 + random % 13) << 10);
        else
            ((uint16_t *)memory)[i] = (uint16_t)((random & 0x807f) | (120 + random % 16) << 7);
    }
}

struct tensors {
    void *in[TENSORS][RANKS_MAX];
    void *expected[TENSORS];
};

static void make_tensors(struct world *world, struct tensors *tensors)
{
    for (int t = 0; t < TENSORS; t++) {
        char name[32];
        horon_descriptor_t desc = describe(t, name, sizeof name);
        for (int rank = 0; rank < world->size; rank++) {
            tensors->in[t][rank] = calloc(1, bytes_of(t) + 1);
            fill(world, t, tensors->in[t][rank]);
        }
        tensors->expected[t] = malloc(bytes_of(t) + 1);
        world_expect_allreduce(world, (horon_dtype_t)desc.dtype, (horon_redop_t)desc.redop,
                               desc.prescale, desc.postscale, (const void *const *)tensors->in[t],
                               desc.count, tensors->expected[t]);
    }
}

static void free_tensors(const struct world *world, struct tensors *tensors)
{
    for (int t = 0; t < TENSORS; t++) {
        for (int rank = 0; rank < world->size; rank++)
            free(tensors->in[t][rank]);
        free(tensors->expected[t]);
    }
}

/* An order of the tensors; those in order keep theirs. */
static void draw_order(struct world *world, int *order)
{
    for (int t = 0; t < TENSORS; t++)
        order[t] = t;
    for (int i = TENSORS - 1; i > 0; i--) {
        int k = (int)(world_random(world) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
    int next = 5; /* the first of those in order */
    for (int i = 0; i < TENSORS; i++)
        if (IN_ORDER(order[i])) {
            order[i] = next;
            next += 6;
        }
}

/* Operations that the channel of named ones has carried out: batches. */
static uint64_t batches_so_far(const struct world *world)
{
    uint64_t most = 0;
    for (int slot = 0; slot < HORON_SMALL_SLOTS; slot++) {
        const struct horon_host *host = &world->ranks[0].host;
        struct horon_slot_head *head =
            horon_host_small(host, horon_engine_arena_at(&host->shape, HORON_LANE_NAMED), 0, slot);
        uint64_t sequence = atomic_load(&head->sequence);
        most = sequence > most ? sequence : most;
    }
    return most;
}

/* All tensors once, submitted in the ranks' own orders. @return the batches it took */
static uint64_t run_all(struct world *world, const struct tensors *tensors)
{
    static struct horon_request *requests[RANKS_MAX * TENSORS];
    static void *out[RANKS_MAX][TENSORS];
    static int orders[RANKS_MAX][TENSORS], next[RANKS_MAX];
    const size_t all = (size_t)world->size * TENSORS;
    const uint64_t before = batches_so_far(world);
    const uint64_t haste = world_random(world) % 8; /* turns between two submissions */
    memset(next, 0, sizeof next);
    for (int rank = 0; rank < world->size; rank++)
        draw_order(world, orders[rank]);
    for (size_t submitted = 0; submitted < all;) {
        int rank = (int)(world_random(world) % (uint64_t)world->size);
        if (next[rank] < TENSORS) {
            char name[32];
            int t = orders[rank][next[rank]++];
            horon_descriptor_t desc = describe(t, name, sizeof name);
            out[rank][t] = malloc(bytes_of(t) + 1);
            memcpy(out[rank][t], tensors->in[t][rank], bytes_of(t));
            desc.src = (t + rank) % 3 ? out[rank][t] : tensors->in[t][rank]; /* in place, or not */
            desc.dst = gets(rank, t) ? out[rank][t] : NULL;
            requests[submitted++] = world_submit(world, rank, &desc);
        }
        for (uint64_t i = 0; i < haste; i++)
            horon_engine_progress(world->ranks[world_random(world) % (uint64_t)world->size].engine);
    }
    assert_true(world_turn_until(world, requests, all));
    for (size_t i = 0; i < all; i++) {
        if (requests[i]->status != HORON_OK)
            fail_msg("%s", requests[i]->error_text);
        world_release(requests[i]);
    }
    for (int rank = 0; rank < world->size; rank++)
        for (int t = 0; t < TENSORS; t++) {
            /* a rank that gets nothing keeps what it gave */
            const void *expected = gets(rank, t) ? tensors->expected[t] : tensors->in[t][rank];
            assert_memory_equal(out[rank][t], expected, bytes_of(t));
            free(out[rank][t]);
        }
    return batches_so_far(world) - before;
}

static void test_fusion_neighbours_and_orders_do_not_change_bits(void **state)
{
    (void)state;
    enum { ROUNDS = 12 };
    uint64_t fewest = UINT64_MAX, most = 0; /* batches of a round where fusion has no limit */
    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
        for (size_t s = 0; s < SETTINGS; s++) {
            struct tensors tensors;
            struct world *world = world_create(layouts[l].hosts, layouts[l].count, settings[s],
                                               l); /* the same inputs in each of its worlds */
            make_tensors(world, &tensors);
            world->seed = l * 100 + s;
            for (int round = 0; round < ROUNDS; round++) {
                uint64_t batches = run_all(world, &tensors);
                if (settings[s] == alone)
                    assert_int_equal(batches, NAMED);
                if (settings[s] != fused)
                    continue;
                fewest = batches < fewest ? batches : fewest;
                most = batches > most ? batches : most;
            }
            free_tensors(world, &tensors);
            world_destroy(world);
        }
    }
    /* else some kind was not fused, or always the same was */
    assert_int_equal(fewest, KINDS_THAT_FUSE);
    assert_in_range(most, fewest + 2, NAMED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fusion_neighbours_and_orders_do_not_change_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
