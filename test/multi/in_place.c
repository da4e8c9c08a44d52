/* SPDX-License-Identifier: Apache-2.0 */
#undef NDEBUG
#include "multi/in_place.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 8, ROOT = 1, BASE_MAX = 100000, LIMIT_MS = 60000 };

static int ranks;
static bool in_order_alone; /* nothing goes by a name */

/* Rank 1 has none of the first ones. */
static uint64_t count_of(int rank, uint64_t base)
{
    return rank == 1 && base == 1 ? 0 : base * (uint64_t)(rank + 1) + (uint64_t)rank;
}

static uint64_t start_of(int rank, uint64_t base)
{
    return rank == 0 ? 0 : start_of(rank - 1, base) + count_of(rank - 1, base);
}

static int32_t value_at(uint64_t i)
{
    return (int32_t)(i * 7 + 3);
}

static bool holds(const int32_t *data, uint64_t from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (data[i] != value_at(from + i))
            return false;
    return true;
}

static void put(int32_t *data, uint64_t from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        data[i] = value_at(from + i);
}

static horon_descriptor_t describe(horon_verb_t verb, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_INT32;
    desc.root = verb == HORON_GATHER || verb == HORON_SCATTER ? ROOT : 0;
    desc.count = count;
    return desc;
}

/* Begun in order, and prepared by name. */
static horon_status_t run(horon_context_t *ctx, const horon_descriptor_t *desc, bool prepared)
{
    horon_request_t *request = NULL;
    horon_descriptor_t named = *desc;
    if (!prepared || in_order_alone)
        return horon_run(ctx, desc, LIMIT_MS, NULL, 0);
    named.flags = 0;
    named.name = "here";
    horon_status_t status = horon_prepare(ctx, &named, &request);
    if (status == HORON_OK)
        status = horon_start(request);
    if (status == HORON_OK)
        status = horon_wait(request, HORON_HOST_DONE, LIMIT_MS);
    horon_release(request);
    return status;
}

/* @param at_end whether the rows lie at the end of dst, or where they come to be */
static void join_rows(horon_context_t *ctx, horon_verb_t verb, uint64_t base, bool at_end,
                      struct job_report *report)
{
    const int rank = horon_rank(ctx);
    const uint64_t own = count_of(rank, base), start = start_of(rank, base);
    const uint64_t total = start_of(ranks, base), room = total + 2;
    uint64_t rows[RANKS_MAX];
    int32_t *dst = calloc(room, sizeof *dst);
    int32_t *src = dst + (at_end ? room - own : start);
    horon_descriptor_t desc = describe(verb, own);
    desc.src = src;
    desc.dst = dst;
    desc.dst_count = room;
    for (int other = 0; other < ranks; other++)
        rows[other] = count_of(other, base);
    desc.splits = in_order_alone ? rows : NULL; /* which Gloo's ranks do not tell each other */
    for (int twice = 0; twice < 2; twice++) {
        memset(dst, 0, room * sizeof *dst);
        put(src, start, own);
        RANK_MUST(run(ctx, &desc, twice) == HORON_OK);
        if (verb == HORON_ALLGATHER || rank == ROOT)
            RANK_MUST(holds(dst, 0, total));
        else
            RANK_MUST(holds(src, start, own));
    }
    free(dst);
}

static void share_rows(horon_context_t *ctx, uint64_t base, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    const uint64_t own = count_of(rank, base), start = start_of(rank, base);
    const uint64_t total = start_of(ranks, base);
    uint64_t splits[RANKS_MAX];
    int32_t *all = calloc(total, sizeof *all);
    for (int other = 0; other < ranks; other++)
        splits[other] = count_of(other, base);
    horon_descriptor_t desc = describe(HORON_SCATTER, total);
    desc.src = all;
    desc.dst = all + start;
    desc.dst_count = own ? own : 1;
    desc.splits = splits;
    for (int twice = 0; twice < 2; twice++) {
        memset(all, 0, total * sizeof *all);
        if (rank == ROOT)
            put(all, 0, total);
        RANK_MUST(run(ctx, &desc, twice) == HORON_OK);
        RANK_MUST(holds(all + start, start, own));
        RANK_MUST(rank != ROOT || holds(all, 0, total));
    }
    desc.verb = HORON_REDUCESCATTER;
    desc.redop = HORON_MAX;
    desc.root = 0;
    put(all, 0, total);
    RANK_MUST(run(ctx, &desc, false) == HORON_OK);
    RANK_MUST(holds(all, 0, total));
    free(all);
}

/* What would have no right place is refused, on this rank and before it begins. */
static void refusals(horon_context_t *ctx, struct job_report *report)
{
    int32_t data[3 * RANKS_MAX + 3] = {0};
    horon_descriptor_t desc = describe(HORON_ALLGATHER, 4);
    desc.src = data + 5;
    desc.dst = data;
    desc.dst_count = 8;
    RANK_MUST(horon_run(ctx, &desc, LIMIT_MS, NULL, 0) == HORON_ERR_INVALID);
    RANK_MUST(strstr(horon_last_error(ctx), "src within the dst_count elements of dst") != NULL);
    desc = describe(HORON_SCATTER, 3 * (uint64_t)ranks);
    desc.root = horon_rank(ctx);
    desc.src = data;
    desc.dst = data + 3 * horon_rank(ctx) + 1;
    desc.dst_count = 3;
    RANK_MUST(horon_run(ctx, &desc, LIMIT_MS, NULL, 0) == HORON_ERR_INVALID);
    RANK_MUST(strstr(horon_last_error(ctx), "dst where this rank's rows lie in src") != NULL);
}

void in_place_work(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const uint64_t bases[] = {1, 9, 700, BASE_MAX};
    in_order_alone = arg != NULL;
    ranks = horon_size(ctx);
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        for (int at_end = 0; at_end < 2 && report->status == HORON_OK; at_end++) {
            join_rows(ctx, HORON_ALLGATHER, bases[i], at_end, report);
            if (report->status == HORON_OK)
                join_rows(ctx, HORON_GATHER, bases[i], at_end, report);
        }
        if (report->status == HORON_OK)
            share_rows(ctx, bases[i], report);
    }
    if (report->status == HORON_OK)
        refusals(ctx, report);
}
