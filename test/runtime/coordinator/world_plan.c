/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a world say: all drawn from the seed, so that each rank can be asked at any
 * time. */
#undef NDEBUG
#include "world.h"

#include <stdlib.h>

/* A number that depends on the seed and its arguments alone. */
static uint64_t mix(const struct world *w, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = w->seed ^ a << 40 ^ b << 20 ^ c;
    return tree_random(&state);
}

/* Is there a mismatch in this round, of which kind? For a group: on which member (GROUP: on all).
 */
enum mismatch world_mismatch(const struct world *w, int tensor, int round)
{
    if (!w->mismatches || w->size < 2)
        return NONE;
    int unit = w->group_of[tensor] >= 0 ? w->group_of[tensor] : tensor;
    uint64_t draw = mix(w, 1, (uint64_t)unit, (uint64_t)round);
    if (draw % 4 != 0)
        return NONE;
    enum mismatch kind = (enum mismatch)(1 + draw / 4 % (MISMATCH_COUNT - 1));
    /* What remains of a failed group is withdrawn rank by rank, and could meet the next round. */
    if (w->group_of[tensor] >= 0 && kind == GROUP && round < w->rounds - 1)
        return NONE;
    if (w->group_of[tensor] < 0 || kind == GROUP)
        return kind;
    int members = 0, place = 0;
    for (int i = 0; i < w->tensors; i++) {
        if (w->group_of[i] != unit)
            continue;
        if (i == tensor)
            place = members;
        members++;
    }
    return place == (int)(draw / 64 % (uint64_t)members) ? kind : NONE;
}

bool world_fails(const struct world *w, int tensor, int round)
{
    for (int i = 0; i < w->tensors; i++)
        if ((i == tensor || (w->group_of[i] >= 0 && w->group_of[i] == w->group_of[tensor])) &&
            world_mismatch(w, i, round) != NONE)
            return true;
    return false;
}

/* Which ranks are on the odd side: some, never all. */
static bool is_odd(const struct world *w, int rank, int tensor, int round)
{
    uint64_t first = mix(w, 2, (uint64_t)tensor, (uint64_t)round) % (uint64_t)w->size;
    bool many = mix(w, 3, (uint64_t)tensor, (uint64_t)round) % 2;
    if ((uint64_t)rank == first)
        return true;
    return many && (uint64_t)rank != (first + 1) % (uint64_t)w->size &&
           mix(w, 4, (uint64_t)rank, (uint64_t)round) % 2;
}

static void set_group(const struct world *w, struct horon_operation *tensor, int number)
{
    int unit = w->group_of[number];
    if (unit < 0)
        return;
    tensor->agreed.group_hash = mix(w, 5, (uint64_t)unit, 0);
    for (int i = 0; i < w->tensors; i++) {
        if (w->group_of[i] != unit)
            continue;
        if (i == number)
            tensor->agreed.group_index = tensor->agreed.group_size;
        tensor->agreed.group_size++;
    }
}

static void make_odd(const struct world *w, struct horon_operation *tensor, int unit,
                     enum mismatch kind)
{
    switch (kind) {
    case NONE:
        return;
    case VERB:
        tensor->agreed.verb =
            tensor->agreed.verb == HORON_BROADCAST ? HORON_ALLGATHER : HORON_BROADCAST;
        return;
    case DTYPE:
        tensor->agreed.dtype = HORON_INT8;
        return;
    case SHAPE:
        tensor->agreed.ndim = 3;
        tensor->agreed.shape[1] = 77;
        return;
    case REDOP:
        tensor->agreed.verb = HORON_ALLREDUCE;
        tensor->agreed.redop = HORON_PRODUCT;
        return;
    case SCALE:
        tensor->agreed.verb = HORON_ALLREDUCE;
        tensor->agreed.postscale = 3;
        return;
    case GROUP:
        tensor->agreed.group_size++;
        tensor->agreed.group_hash = mix(w, 9, (uint64_t)unit, 0);
        return;
    case MISMATCH_COUNT:
        break;
    }
    abort();
}

struct horon_operation world_describe(const struct world *w, int rank, int number, int round)
{
    uint64_t draw = mix(w, 6, (uint64_t)number, 0);
    int version = round / w->change_every[number];
    struct horon_operation tensor =
        tree_tensor(1 + mix(w, 7, (uint64_t)number, (uint64_t)version) % 64, "layer.%d", number);
    tensor.agreed.verb = (uint8_t)(draw % 8 < 5    ? HORON_ALLREDUCE
                                   : draw % 8 == 5 ? HORON_BROADCAST
                                   : draw % 8 == 6 ? HORON_ALLGATHER
                                                   : HORON_BARRIER);
    tensor.agreed.dtype = draw / 8 % 4 == 0 ? HORON_FLOAT64 : HORON_FLOAT32;
    tensor.agreed.ndim = 2;
    tensor.agreed.shape[1] = 2;
    set_group(w, &tensor, number);
    enum mismatch kind = world_mismatch(w, number, round);
    if (kind != NONE && tensor.agreed.verb == HORON_BARRIER)
        tensor.agreed.verb = HORON_ALLREDUCE; /* there is not much to disagree about */
    int unit = w->group_of[number] >= 0 ? w->group_of[number] : number;
    if (kind != NONE && is_odd(w, rank, unit, round))
        make_odd(w, &tensor, unit, kind);
    if (tensor.agreed.verb == HORON_ALLGATHER)
        tensor.agreed.shape[0] = mix(w, 8, (uint64_t)number, (uint64_t)rank) % 9;
    return tensor;
}
