/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases, carried out by a rank: it fills inputs, begins operations in one of several ways, and
 * prints digests of what comes out. Where ranks join, it goes through all cases once for each of
 * the stages before its own: without one rank, without several, and alone but for those that have
 * joined. Only by name, as nothing in order goes on then.
 */
#include "works.h"

#include "failed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP 16

enum { STAGES = 3 };

/* One rank of those that carry cases out. */
struct crew {
    horon_context_t *ctx;
    int32_t set;
    int rank, size; /* in it */
};

struct work {
    const struct one_case *one;
    uint64_t shape[2], splits[CASE_RANKS_MAX]; /* of rows */
    void *src, *dst, *result;
    horon_request_t *request; /* NULL: this rank has no part in it */
};

void *works_memory(uint64_t elements, horon_dtype_t dtype)
{
    void *data = calloc((size_t)elements + 1, horon_dtype_bytes(dtype));
    if (!data)
        abort();
    return data;
}

static bool takes_part(const struct one_case *one, int rank)
{
    return !case_is_message(one) || rank == one->root || rank == one->receiver;
}

static void add_shape(struct work *work, int rank, int size, horon_descriptor_t *desc)
{
    const struct one_case *one = work->one;
    const bool scatters = one->verb == HORON_SCATTER;
    /* Gloo's ranks do not tell each other how much they give: the caller does. */
    const bool gathers = one->verb == HORON_ALLGATHER && getenv("HORON_GLOO_STORE");
    for (int i = 0; i < size; i++)
        work->splits[i] = case_count(one, scatters || gathers ? i : rank) / CASE_ROW_ELEMENTS;
    work->shape[0] = case_input_count(one, rank, size) / CASE_ROW_ELEMENTS;
    work->shape[1] = CASE_ROW_ELEMENTS;
    desc->shape = work->shape;
    desc->ndim = 2;
    if (one->verb == HORON_ALLTOALL || gathers || (scatters && rank == one->root))
        desc->splits = work->splits;
}

/* In place its share begins where it lies in the input. */
static void add_share(struct work *work, int rank, int size, horon_descriptor_t *desc)
{
    const struct one_case *one = work->one;
    uint64_t first;
    for (int i = 0; i < size; i++)
        work->splits[i] = case_share(one, i, size, &first);
    if (case_has_splits(one))
        desc->splits = work->splits;
    desc->dst_count = case_share(one, rank, size, &first);
    if (!work->dst)
        desc->dst = (char *)work->src + first * horon_dtype_bytes(one->dtype);
}

/* Whether it is in place differs from rank to rank. */
static horon_descriptor_t begin_work(const struct crew *crew, struct work *work)
{
    const struct one_case *one = work->one;
    const int rank = crew->rank, size = crew->size;
    const bool in_place = !case_has_rows(one) && !case_is_message(one) && (one->number + rank) % 2;
    const uint64_t gives = case_input_count(one, rank, size);
    const uint64_t gets = case_result_count(one, rank, size);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    work->src = works_memory(in_place ? one->count : gives, one->dtype);
    if (!in_place)
        work->dst = works_memory(gets, one->dtype);
    case_fill_input(one, rank, size, work->src);
    desc.verb = one->verb;
    desc.dtype = one->dtype;
    desc.redop = one->redop;
    desc.root = one->root;
    desc.process_set = crew->set;
    desc.name = one->name;
    desc.src = work->src;
    desc.dst = in_place ? work->src : work->dst;
    desc.prescale = one->prescale;
    desc.postscale = one->postscale;
    desc.count = one->count;
    desc.dst_count = gets + 1; /* as works_memory() gives: never none */
    if (case_has_rows(one))
        add_shape(work, rank, size, &desc);
    if (one->verb == HORON_REDUCESCATTER)
        add_share(work, rank, size, &desc);
    if (case_is_message(one)) {
        desc.verb = rank == one->root ? HORON_SEND : HORON_RECV;
        desc.root = rank == one->root ? one->receiver : one->root;
        desc.tag = (uint64_t)one->number;
        desc.name = NULL;
    }
    work->result = desc.dst;
    return desc;
}

static void end_work(const struct crew *crew, struct work *work)
{
    char digest[CASE_DIGEST_BYTES];
    const uint64_t count = case_result_count(work->one, crew->rank, crew->size);
    printf("%s %s\n", work->one->name, case_digest(work->one, work->result, count, digest));
    free(work->src);
    free(work->dst);
}

static int run_in_order(const struct crew *crew, struct work *works, int count)
{
    char why[HORON_ERROR_TEXT_BYTES];
    for (int i = 0; i < count; i++) {
        if (!takes_part(works[i].one, crew->rank))
            continue;
        horon_descriptor_t desc = begin_work(crew, &works[i]);
        desc.flags = case_is_message(works[i].one) ? 0 : HORON_IN_ORDER;
        desc.name = NULL;
        horon_status_t status = horon_run(crew->ctx, &desc, -1, why, sizeof why);
        if (status != HORON_OK) {
            fprintf(stderr, "%s\n", works[i].one->name);
            return failed(status, why);
        }
    }
    return 0;
}

/* Messages are in no group. */
static int submit(const struct crew *crew, struct work *works, int first, int count)
{
    struct work *grouped[GROUP];
    horon_descriptor_t descs[GROUP];
    horon_request_t *requests[GROUP];
    horon_status_t status = HORON_OK;
    size_t n = 0;
    for (int i = first; i < first + count && status == HORON_OK; i++) {
        if (!takes_part(works[i].one, crew->rank))
            continue;
        descs[n] = begin_work(crew, &works[i]);
        if (case_is_message(works[i].one) || count == 1)
            status = horon_submit(crew->ctx, &descs[n], &works[i].request);
        else
            grouped[n++] = &works[i];
    }
    if (status == HORON_OK && n > 0)
        status = horon_submit_group(crew->ctx, descs, n, requests);
    if (status != HORON_OK)
        return failed(status, horon_last_error(crew->ctx));
    for (size_t i = 0; i < n; i++)
        grouped[i]->request = requests[i];
    return 0;
}

/* All blocks of @p group cases, begun with a block that depends on the rank, in steps that meet
 * each block once because they have no divisor in common with their number. */
static int run_named(const struct crew *crew, struct work *works, int count, int group)
{
    const int blocks = (count + group - 1) / group;
    const int rank = crew->rank;
    int step = 1 + rank * 7 % blocks;
    for (int divisor = 2; divisor <= step; divisor++)
        if (step % divisor == 0 && blocks % divisor == 0) {
            step--;
            divisor = 1;
        }
    for (int i = 0; i < blocks; i++) {
        const int first = (rank * 31 + i * step) % blocks * group;
        const int size = count - first < group ? count - first : group;
        if (submit(crew, works, first, size) != 0)
            return 1;
    }
    for (int i = 0; i < count; i++) {
        if (!works[i].request)
            continue;
        horon_status_t status = horon_wait(works[i].request, HORON_HOST_DONE, -1);
        if (status != HORON_OK)
            return failed(status, horon_request_error(works[i].request));
        horon_release(works[i].request);
    }
    return 0;
}

static struct crew crew_of(horon_context_t *ctx, int32_t set)
{
    return (struct crew){.ctx = ctx,
                         .set = set,
                         .rank = horon_process_set_rank(ctx, set),
                         .size = horon_process_set_size(ctx, set)};
}

/* Of a stage, whose names begin anew. */
static int run_cases(const struct crew *crew, const char *mode, bool whole, uint32_t joined)
{
    int count = 0;
    struct one_case *cases = cases_make(crew->size, whole, joined, &count);
    struct work *works = calloc((size_t)count, sizeof *works);
    int code;
    if (!works)
        abort();
    for (int i = 0; i < count; i++)
        works[i].one = &cases[i];
    if (strcmp(mode, "in-order") == 0)
        code = run_in_order(crew, works, count);
    else
        code = run_named(crew, works, count, strcmp(mode, "grouped") == 0 ? GROUP : 1);
    for (int i = 0; code == 0 && i < count; i++)
        end_work(crew, &works[i]);
    free(works);
    free(cases);
    return code;
}

int works_run(horon_context_t *ctx, int32_t set, const char *mode, bool whole)
{
    const struct crew crew = crew_of(ctx, set);
    return run_cases(&crew, mode, whole, 0);
}

/* @return those of @p size ranks that have joined: rank 1; that and the last but one; all but the
 * last */
static uint32_t joined_at(int stage, int size)
{
    if (stage == 0)
        return 2;
    return stage == 1 ? 2 | 1u << (size - 2) : (1u << (size - 1)) - 1;
}

int works_run_and_join(horon_context_t *ctx, int32_t set, bool whole)
{
    const struct crew crew = crew_of(ctx, set);
    char why[HORON_ERROR_TEXT_BYTES];
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    horon_request_t *request = NULL;
    for (int stage = 0; stage < STAGES && !(joined_at(stage, crew.size) & 1u << crew.rank); stage++)
        if (run_cases(&crew, stage == 1 ? "grouped" : "named", whole,
                      joined_at(stage, crew.size)) != 0)
            return 1;
    if (horon_join(ctx, set, &request) != HORON_OK)
        return failed(0, horon_last_error(ctx));
    horon_status_t status = horon_wait(request, HORON_HOST_DONE, -1);
    if (status != HORON_OK)
        return failed(status, horon_request_error(request));
    printf("rank %d joined last\n", horon_join_last(request));
    horon_release(request);
    barrier.verb = HORON_BARRIER;
    barrier.flags = HORON_IN_ORDER; /* as it may be again */
    barrier.process_set = set;
    status = horon_run(ctx, &barrier, -1, why, sizeof why);
    return status == HORON_OK ? 0 : failed(status, why);
}

/* ---- What must come out --------------------------------------------------------------------- */

static void expect_case(const struct one_case *one, const struct layout *layout)
{
    char digest[CASE_DIGEST_BYTES] = "";
    for (int rank = 0; rank < layout->size; rank++) {
        if (one->joined & 1u << rank)
            continue;
        if (!digest[0] || one->verb != HORON_ALLREDUCE) { /* which gives all ranks the same */
            const uint64_t elements = case_result_count(one, rank, layout->size);
            void *data = works_memory(elements, one->dtype);
            case_expect(one, layout, rank, data);
            case_digest(one, data, elements, digest);
            free(data);
        }
        printf("%d %s %s\n", rank, one->name, digest);
    }
}

/* @param divisor  of averages */
static void expect_cases(const struct layout *layout, bool whole, uint32_t joined, int divisor)
{
    int count = 0;
    struct one_case *cases = cases_make(layout->size, whole, joined, &count);
    for (int i = 0; i < count; i++) {
        cases[i].divisor = divisor;
        expect_case(&cases[i], layout);
    }
    free(cases);
}

void works_expect(const struct layout *layout, bool whole)
{
    expect_cases(layout, whole, 0, layout->size);
}

void works_expect_and_join(const struct layout *layout, bool whole, bool given)
{
    for (int stage = 0; stage < STAGES; stage++) {
        const uint32_t joined = joined_at(stage, layout->size);
        const int left = layout->size - __builtin_popcount(joined);
        expect_cases(layout, whole, joined, given ? left : layout->size);
    }
    for (int rank = 0; rank < layout->size; rank++)
        printf("%d rank %d joined last\n", rank, layout->size - 1);
}
