/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank for tests over several hosts. What it found out goes to standard output, for the test that
 * started it to compare. `verify MODE ...`:
 *
 *  - expect LAYOUT: prints digests of what must come out of all cases, each behind the number of
 *    its rank, without a job.
 *  - in-order LAYOUT DIR: joins, checks which rank is where, meets in DIR, and runs all cases,
 *    one after another; prints digests of what came out.
 *  - named LAYOUT DIR: likewise, all at once by name, each rank in an order of its own.
 *  - grouped LAYOUT DIR: likewise, in groups.
 *  - place: prints which rank is where.
 *  - sum COUNT ROUNDS: allreduces; with negative ROUNDS until one fails.
 *  - move VERB COUNT ROUNDS ROOT: runs a verb with COUNT elements from or for each rank; for
 *    messages each rank sends to the next one.
 *  - idle: waits for what no other rank does.
 *  - last: rank 0 comes last to an operation, with another size, and then calls nothing more.
 *  - aside ROUNDS: broadcasts much that nobody waits for, beside small sums.
 *
 * With VERIFY_SET set all cases run in a process set of all ranks of the job but the first, which
 * LAYOUT is of then, and what it names is the set's backend.
 * With VERIFY_MPI set it begins the MPI of that file itself, and ends it (own_mpi.h).
 * With VERIFY_WHOLE set all numbers are small and whole, so that sums are exact in any order.
 *
 * A failure prints "failed NANOSECONDS STATUS TEXT", the clock being CLOCK_MONOTONIC, and exits
 * with 1.
 */
#include "cases.h"
#include "failed.h"
#include "own_mpi.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GROUP 16
#define MEETINGS 5

struct work {
    const struct one_case *one;
    uint64_t shape[2], splits[CASE_RANKS_MAX]; /* of rows */
    void *src, *dst, *result;
    horon_request_t *request; /* NULL: this rank has no part in it */
};

static char why[HORON_ERROR_TEXT_BYTES];
static int32_t set; /* in which all cases run; 0: the job */

static int rank_of(const horon_context_t *ctx)
{
    return horon_process_set_rank(ctx, set);
}

static int size_of(const horon_context_t *ctx)
{
    return horon_process_set_size(ctx, set);
}

static void *memory(uint64_t elements, horon_dtype_t dtype)
{
    void *data = calloc((size_t)elements + 1, horon_dtype_bytes(dtype));
    if (!data)
        abort();
    return data;
}

/* ---- Places --------------------------------------------------------------------------------- */

static int wrong(const char *what, int rank, int is, int must_be)
{
    char text[128];
    snprintf(text, sizeof text, "%s of rank %d is %d, not %d", what, rank, is, must_be);
    return failed(0, text);
}

/* How many of the ranks below @p end (of @p host, or of any other with -1) have this local rank? */
static int local_rank_of(const struct layout *layout, int rank)
{
    int before = 0;
    for (int other = 0; other < rank; other++)
        before += layout->host_of[other] == layout->host_of[rank];
    return before;
}

static int check_place(horon_context_t *ctx, const struct layout *layout)
{
    const int rank = horon_rank(ctx), host = layout->host_of[rank];
    const int local_rank = local_rank_of(layout, rank);
    int local_size = 0, cross_rank = 0, cross_size = 0;
    for (int other = 0; other < layout->size; other++) {
        const int is = horon_host_of(ctx, other);
        if (is != layout->host_of[other])
            return wrong("host", other, is, layout->host_of[other]);
        local_size += layout->host_of[other] == host;
        if (local_rank_of(layout, other) == local_rank) {
            cross_size++;
            cross_rank += layout->host_of[other] < host;
        }
    }
    const int found[][2] = {
        {horon_size(ctx), layout->size},     {horon_host_count(ctx), layout->host_count},
        {horon_local_rank(ctx), local_rank}, {horon_local_size(ctx), local_size},
        {horon_cross_rank(ctx), cross_rank}, {horon_cross_size(ctx), cross_size}};
    static const char *const names[] = {"size",       "host count", "local rank",
                                        "local size", "cross rank", "cross size"};
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
        if (found[i][0] != found[i][1])
            return wrong(names[i], rank, found[i][0], found[i][1]);
    return 0;
}

static int print_place(horon_context_t *ctx)
{
    printf("rank %d of %d, local %d of %d, cross %d of %d, hosts", horon_rank(ctx), horon_size(ctx),
           horon_local_rank(ctx), horon_local_size(ctx), horon_cross_rank(ctx),
           horon_cross_size(ctx));
    for (int rank = 0; rank < horon_size(ctx); rank++)
        printf("%c%d", rank ? ',' : ' ', horon_host_of(ctx, rank));
    printf("\n");
    return 0;
}

/* ---- Barriers ------------------------------------------------------------------------------- */

static bool note(const char *folder, int meeting, int rank, bool make)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%d.%d", folder, meeting, rank);
    if (!make)
        return access(path, F_OK) == 0;
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Behind a barrier, everybody's note from before it is there. */
static int meet(horon_context_t *ctx, const char *folder, bool in_order)
{
    for (int meeting = 0; meeting < MEETINGS; meeting++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_BARRIER;
        desc.flags = in_order ? HORON_IN_ORDER : 0;
        desc.process_set = set;
        if (!note(folder, meeting, rank_of(ctx), true))
            return failed(0, "a note cannot be made");
        horon_status_t status = horon_run(ctx, &desc, -1, why, sizeof why);
        if (status != HORON_OK)
            return failed(status, why);
        for (int rank = 0; rank < size_of(ctx); rank++)
            if (!note(folder, meeting, rank, false))
                return wrong("the note behind the barrier", rank, 0, 1);
    }
    return 0;
}

/* ---- All cases ------------------------------------------------------------------------------ */

static bool takes_part(const struct one_case *one, int rank)
{
    return !case_is_message(one) || rank == one->root || rank == one->receiver;
}

static void add_shape(struct work *work, int rank, int size, horon_descriptor_t *desc)
{
    const struct one_case *one = work->one;
    const bool scatters = one->verb == HORON_SCATTER;
    for (int i = 0; i < size; i++)
        work->splits[i] = case_count(one, scatters ? i : rank) / CASE_ROW_ELEMENTS;
    work->shape[0] = case_input_count(one, rank, size) / CASE_ROW_ELEMENTS;
    work->shape[1] = CASE_ROW_ELEMENTS;
    desc->shape = work->shape;
    desc->ndim = 2;
    if (one->verb == HORON_ALLTOALL || (scatters && rank == one->root))
        desc->splits = work->splits;
}

/* In place its share begins where it lies in the input. */
static void add_share(struct work *work, int rank, int size, horon_descriptor_t *desc)
{
    const struct one_case *one = work->one;
    uint64_t first;
    for (int i = 0; i < size; i++)
        work->splits[i] = case_share(one, i, size, &first);
    if (one->number % 3 == 0)
        desc->splits = work->splits;
    desc->dst_count = case_share(one, rank, size, &first);
    if (!work->dst)
        desc->dst = (char *)work->src + first * horon_dtype_bytes(one->dtype);
}

/* Whether it is in place differs from rank to rank. */
static horon_descriptor_t begin_work(struct work *work, int rank, int size)
{
    const struct one_case *one = work->one;
    const bool in_place = !case_has_rows(one) && !case_is_message(one) && (one->number + rank) % 2;
    const uint64_t gives = case_input_count(one, rank, size);
    const uint64_t gets = case_result_count(one, rank, size);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    work->src = memory(in_place ? one->count : gives, one->dtype);
    if (!in_place)
        work->dst = memory(gets, one->dtype);
    case_fill_input(one, rank, size, work->src);
    desc.verb = one->verb;
    desc.dtype = one->dtype;
    desc.redop = one->redop;
    desc.root = one->root;
    desc.process_set = set;
    desc.name = one->name;
    desc.src = work->src;
    desc.dst = in_place ? work->src : work->dst;
    desc.prescale = one->prescale;
    desc.postscale = one->postscale;
    desc.count = one->count;
    desc.dst_count = gets + 1; /* as memory() gives: never none */
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

static void end_work(struct work *work, int rank, int size)
{
    char digest[CASE_DIGEST_BYTES];
    const uint64_t count = case_result_count(work->one, rank, size);
    printf("%s %s\n", work->one->name, case_digest(work->one, work->result, count, digest));
    free(work->src);
    free(work->dst);
}

static int run_in_order(horon_context_t *ctx, struct work *works, int count)
{
    const int rank = rank_of(ctx), size = size_of(ctx);
    for (int i = 0; i < count; i++) {
        if (!takes_part(works[i].one, rank))
            continue;
        horon_descriptor_t desc = begin_work(&works[i], rank, size);
        desc.flags = case_is_message(works[i].one) ? 0 : HORON_IN_ORDER;
        desc.name = NULL;
        horon_status_t status = horon_run(ctx, &desc, -1, why, sizeof why);
        if (status != HORON_OK) {
            fprintf(stderr, "%s\n", works[i].one->name);
            return failed(status, why);
        }
    }
    return 0;
}

/* Messages are in no group. */
static int submit(horon_context_t *ctx, struct work *works, int first, int count)
{
    const int rank = rank_of(ctx), size = size_of(ctx);
    struct work *grouped[GROUP];
    horon_descriptor_t descs[GROUP];
    horon_request_t *requests[GROUP];
    horon_status_t status = HORON_OK;
    size_t n = 0;
    for (int i = first; i < first + count && status == HORON_OK; i++) {
        if (!takes_part(works[i].one, rank))
            continue;
        descs[n] = begin_work(&works[i], rank, size);
        if (case_is_message(works[i].one) || count == 1)
            status = horon_submit(ctx, &descs[n], &works[i].request);
        else
            grouped[n++] = &works[i];
    }
    if (status == HORON_OK && n > 0)
        status = horon_submit_group(ctx, descs, n, requests);
    if (status != HORON_OK)
        return failed(status, horon_last_error(ctx));
    for (size_t i = 0; i < n; i++)
        grouped[i]->request = requests[i];
    return 0;
}

/* All blocks of @p group cases, begun with a block that depends on the rank, in steps that meet
 * each block once because they have no divisor in common with their number. */
static int run_named(horon_context_t *ctx, struct work *works, int count, int group)
{
    const int blocks = (count + group - 1) / group;
    const int rank = rank_of(ctx);
    int step = 1 + rank * 7 % blocks;
    for (int divisor = 2; divisor <= step; divisor++)
        if (step % divisor == 0 && blocks % divisor == 0) {
            step--;
            divisor = 1;
        }
    for (int i = 0; i < blocks; i++) {
        const int first = (rank * 31 + i * step) % blocks * group;
        const int size = count - first < group ? count - first : group;
        if (submit(ctx, works, first, size) != 0)
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

static bool is_whole(void)
{
    return getenv("VERIFY_WHOLE") != NULL;
}

static int run_cases(horon_context_t *ctx, const char *mode, const char *folder)
{
    int count = 0;
    struct one_case *cases = cases_make(size_of(ctx), is_whole(), &count);
    struct work *works = calloc((size_t)count, sizeof *works);
    const bool in_order = strcmp(mode, "in-order") == 0;
    if (!works)
        abort();
    for (int i = 0; i < count; i++)
        works[i].one = &cases[i];
    int code = meet(ctx, folder, in_order);
    if (code == 0 && in_order)
        code = run_in_order(ctx, works, count);
    else if (code == 0)
        code = run_named(ctx, works, count, strcmp(mode, "grouped") == 0 ? GROUP : 1);
    for (int i = 0; code == 0 && i < count; i++)
        end_work(&works[i], rank_of(ctx), size_of(ctx));
    free(works);
    free(cases);
    return code;
}

/* Rank 0 is outside of it. @return OK, also there */
static horon_status_t make_set(horon_context_t *ctx, const char *backend)
{
    int32_t ranks[CASE_RANKS_MAX];
    const int32_t count = horon_size(ctx) - 1;
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    for (int32_t i = 0; i < count; i++)
        ranks[i] = i + 1;
    options.backend = backend;
    return horon_process_set_add_with(ctx, ranks, (size_t)count, &options, -1, &set);
}

static void expect_case(const struct one_case *one, const struct layout *layout)
{
    char digest[CASE_DIGEST_BYTES];
    for (int rank = 0; rank < layout->size; rank++) {
        if (rank == 0 || one->verb != HORON_ALLREDUCE) { /* which gives all ranks the same */
            const uint64_t elements = case_result_count(one, rank, layout->size);
            void *data = memory(elements, one->dtype);
            case_expect(one, layout, rank, data);
            case_digest(one, data, elements, digest);
            free(data);
        }
        printf("%d %s %s\n", rank, one->name, digest);
    }
}

static int expect_cases(const struct layout *layout)
{
    int count = 0;
    struct one_case *cases = cases_make(layout->size, is_whole(), &count);
    for (int i = 0; i < count; i++)
        expect_case(&cases[i], layout);
    free(cases);
    return 0;
}

/* ---- Until something fails ------------------------------------------------------------------ */

static int sum(horon_context_t *ctx, uint64_t count, long rounds)
{
    float *data = memory(count, HORON_FLOAT32);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    horon_status_t status = HORON_OK;
    desc.verb = HORON_ALLREDUCE;
    if (getenv("HORON_GLOO_STORE")) /* whose ranks know no names */
        desc.flags = HORON_IN_ORDER;
    else
        desc.name = "sum";
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = count;
    for (long round = 0; status == HORON_OK && round != rounds; round++) {
        status = horon_run(ctx, &desc, -1, why, sizeof why);
        if (status == HORON_OK && round == 0) {
            printf("summed\n");
            fflush(stdout);
        }
    }
    free(data);
    return status == HORON_OK ? 0 : failed(status, why);
}

/* @return -1: there is no such verb */
static int verb_of(const char *name)
{
    static const char *const names[] = {
        [HORON_ALLREDUCE] = "allreduce", [HORON_BROADCAST] = "broadcast",
        [HORON_ALLGATHER] = "allgather", [HORON_ALLTOALL] = "alltoall",
        [HORON_GATHER] = "gather",       [HORON_SCATTER] = "scatter",
        [HORON_REDUCE] = "reduce",       [HORON_REDUCESCATTER] = "reducescatter"};
    for (int verb = 0; verb < (int)(sizeof names / sizeof names[0]); verb++)
        if (names[verb] && strcmp(names[verb], name) == 0)
            return verb;
    return -1;
}

static horon_status_t pass_on(horon_context_t *ctx, uint64_t count, float *src, float *dst)
{
    const int rank = horon_rank(ctx), size = horon_size(ctx);
    horon_request_t *requests[2];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_RECV;
    desc.dtype = HORON_FLOAT32;
    desc.root = (rank + size - 1) % size;
    desc.dst = dst;
    desc.count = desc.dst_count = count;
    horon_status_t status = horon_submit(ctx, &desc, &requests[0]);
    if (status != HORON_OK)
        return status;
    desc.verb = HORON_SEND;
    desc.root = (rank + 1) % size;
    desc.src = src;
    status = horon_submit(ctx, &desc, &requests[1]);
    if (status == HORON_OK) {
        status = horon_wait_all(requests, 2, HORON_HOST_DONE, -1);
        horon_release(requests[1]);
    }
    horon_release(requests[0]);
    return status;
}

static int move(horon_context_t *ctx, char **word)
{
    const bool passes = strcmp(word[2], "messages") == 0;
    const int verb = verb_of(word[2]);
    const uint64_t ranks = (uint64_t)horon_size(ctx), count = strtoull(word[3], NULL, 10);
    const bool for_each =
        verb == HORON_ALLTOALL || verb == HORON_SCATTER || verb == HORON_REDUCESCATTER;
    horon_status_t status = HORON_OK;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    if (verb < 0 && !passes)
        return failed(0, "no such verb");
    float *src = memory(count * ranks, HORON_FLOAT32), *dst = memory(count * ranks, HORON_FLOAT32);
    desc.verb = (uint32_t)verb;
    desc.name = "moved";
    desc.dtype = HORON_FLOAT32;
    desc.root = (int32_t)strtol(word[5], NULL, 10);
    desc.src = src;
    desc.dst = dst;
    desc.count = for_each ? count * ranks : count;
    desc.dst_count = count * ranks;
    for (long rounds = strtol(word[4], NULL, 10); status == HORON_OK && rounds > 0; rounds--)
        status =
            passes ? pass_on(ctx, count, src, dst) : horon_run(ctx, &desc, -1, why, sizeof why);
    free(src);
    free(dst);
    return status == HORON_OK ? 0 : failed(status, why);
}

static int idle(horon_context_t *ctx)
{
    float value = 1;
    char name[32];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    snprintf(name, sizeof name, "mine%d", horon_rank(ctx));
    desc.verb = HORON_ALLREDUCE;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = &value;
    desc.count = 1;
    if (sum(ctx, 1, 1) != 0)
        return 1;
    return failed(horon_run(ctx, &desc, -1, why, sizeof why), why);
}

/* Rank 0 decides that it fails, and is gone from the library before it can be driven further. */
static int last(horon_context_t *ctx)
{
    float value[2] = {1, 1};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.name = "uneven";
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = value;
    desc.count = horon_rank(ctx) == 0 ? 2 : 1;
    if (sum(ctx, 1, 1) != 0)
        return 1;
    if (horon_rank(ctx) == 0)
        usleep(300000); /* the others are asleep by then, as a rule */
    int code = failed(horon_run(ctx, &desc, -1, why, sizeof why), why);
    if (horon_rank(ctx) == 0)
        pause();
    return code;
}

static horon_status_t sum_beside(horon_context_t *ctx, long sums)
{
    float value = 0;
    horon_status_t status = HORON_OK;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = &value;
    desc.count = 1;
    for (long i = 0; status == HORON_OK && i < sums; i++)
        status = horon_run(ctx, &desc, -1, why, sizeof why);
    return status;
}

/* The thread that ran the sums drove the broadcast too, and left it as it was. */
static int aside(horon_context_t *ctx, long rounds)
{
    horon_status_t status = HORON_OK;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.name = "much";
    desc.dtype = HORON_FLOAT32;
    desc.count = 4000037;
    float *data = memory(desc.count, desc.dtype);
    desc.src = desc.dst = data;
    for (long round = 0; status == HORON_OK && round < rounds; round++) {
        horon_request_t *request = NULL;
        desc.root = (int32_t)(round % horon_size(ctx));
        status = horon_submit(ctx, &desc, &request);
        if (status == HORON_OK)
            status = sum_beside(ctx, round * 7 % 40);
        if (status == HORON_OK)
            do
                usleep(200); /* horon_test() makes no progress */
            while ((status = horon_test(request, HORON_HOST_DONE)) == HORON_IN_PROGRESS);
        horon_release(request);
    }
    free(data);
    return status == HORON_OK ? 0 : failed(status, why);
}

static int work(horon_context_t *ctx, int words, char **word, const struct layout *layout)
{
    if (strcmp(word[1], "place") == 0)
        return print_place(ctx);
    if (strcmp(word[1], "sum") == 0 && words == 4)
        return sum(ctx, strtoull(word[2], NULL, 10), strtol(word[3], NULL, 10));
    if (strcmp(word[1], "move") == 0 && words == 6)
        return move(ctx, word);
    if (strcmp(word[1], "idle") == 0)
        return idle(ctx);
    if (strcmp(word[1], "last") == 0)
        return last(ctx);
    if (strcmp(word[1], "aside") == 0 && words == 3)
        return aside(ctx, strtol(word[2], NULL, 10));
    const char *backend = getenv("VERIFY_SET");
    if (words != 4 || (!backend && check_place(ctx, layout) != 0))
        return 1;
    if (backend && make_set(ctx, backend) != HORON_OK)
        return failed(0, horon_last_error(ctx));
    if (rank_of(ctx) < 0)
        return 0;
    return run_cases(ctx, word[1], word[3]);
}

int main(int words, char **word)
{
    struct layout layout = {0};
    horon_context_t *ctx = NULL;
    const bool has_layout = words > 2 && strcmp(word[1], "sum") != 0 &&
                            strcmp(word[1], "aside") != 0 && strcmp(word[1], "move") != 0;
    if (words < 2 || (has_layout && layout_parse(word[2], &layout) != 0)) {
        fprintf(stderr, "usage: see the source\n");
        return 2;
    }
    if (strcmp(word[1], "expect") == 0 && words == 3)
        return expect_cases(&layout);
    if (own_mpi("MPI_Init") != 0)
        return 1;
    horon_status_t status = horon_context_create(NULL, &ctx, why, sizeof why);
    if (status != HORON_OK)
        return failed(status, why);
    int code = work(ctx, words, word, &layout);
    horon_context_destroy(ctx);
    return code ? code : own_mpi("MPI_Finalize");
}
