/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of two ranks that move more than 2^31 elements by each verb: what MPI's calls count is an
 * int. Elements are bytes, so that two buffers of a rank are all that it takes, with what MPI needs
 * for a piece.
 */
#include <horon/horon.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HALF (((uint64_t)1 << 30) + 4)
#define WHOLE (2 * HALF)

static uint8_t byte_at(uint64_t at)
{
    return (uint8_t)((at * 0x9e3779b97f4a7c15u) >> 56);
}

/* What a rank gets: of its output from `to` on so many bytes, made of the input from `from` on. */
struct piece {
    uint64_t to, bytes, from;
    int times, plus;
};

struct task {
    horon_verb_t verb;
    int32_t root;
    uint64_t count;         /* of each rank's input */
    bool gets[2];           /* by rank */
    struct piece pieces[2]; /* of rank 0; */
    uint64_t further;       /* of rank 1 `from` is so much more */
};

static const struct task tasks[] = {
    {HORON_ALLREDUCE, 0, WHOLE, {true, true}, {{0, WHOLE, 0, 2, 1}}, 0},
    {HORON_REDUCE, 1, WHOLE, {false, true}, {{0, WHOLE, 0, 2, 1}}, 0},
    {HORON_BROADCAST, 0, WHOLE, {true, true}, {{0, WHOLE, 0, 1, 0}}, 0},
    {HORON_ALLGATHER, 0, HALF, {true, true}, {{0, HALF, 0, 1, 0}, {HALF, HALF, 0, 1, 1}}, 0},
    {HORON_GATHER, 1, HALF, {false, true}, {{0, HALF, 0, 1, 0}, {HALF, HALF, 0, 1, 1}}, 0},
    {HORON_SCATTER, 0, WHOLE, {true, true}, {{0, HALF, 0, 1, 0}}, HALF},
    {HORON_ALLTOALL, 0, WHOLE, {true, true}, {{0, HALF, 0, 1, 0}, {HALF, HALF, 0, 1, 1}}, HALF},
    {HORON_REDUCESCATTER, 0, WHOLE, {true, true}, {{0, HALF, 0, 2, 1}}, HALF},
};

static bool is_right(const struct task *task, const uint8_t *out, int rank)
{
    for (int i = 0; i < 2; i++) {
        const struct piece *piece = &task->pieces[i];
        const uint64_t from = piece->from + (rank ? task->further : 0);
        for (uint64_t at = 0; at < piece->bytes; at++)
            if (out[piece->to + at] != (uint8_t)(byte_at(from + at) * piece->times + piece->plus))
                return false;
    }
    return true;
}

static int run(horon_context_t *ctx, const struct task *task, uint8_t *in, uint8_t *out)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    char why[HORON_ERROR_TEXT_BYTES];
    const int rank = horon_rank(ctx);
    for (uint64_t at = 0; at < task->count; at++)
        in[at] = (uint8_t)(byte_at(at) + rank);
    memset(out, 0, WHOLE);
    desc.verb = task->verb;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_UINT8;
    desc.root = task->root;
    desc.src = in;
    desc.dst = out;
    desc.count = task->count;
    desc.dst_count = WHOLE;
    const char *name = horon_verb_name(task->verb);
    if (horon_run(ctx, &desc, -1, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, why);
        return 1;
    }
    const bool right = !task->gets[rank] || is_right(task, out, rank);
    printf("rank %d: %s by %s is %s\n", rank, name, horon_carrier(ctx, &desc),
           right ? "right" : "wrong");
    return !right;
}

int main(void)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    int failed = 0;
    if (horon_context_create(NULL, &ctx, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    uint8_t *in = malloc(WHOLE), *out = malloc(WHOLE);
    if (!in || !out || horon_size(ctx) != 2)
        return 1;
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0] && !failed; i++)
        failed = run(ctx, &tasks[i], in, out);
    horon_context_destroy(ctx);
    free(in);
    free(out);
    return failed;
}
