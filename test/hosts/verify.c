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
 *  - joining LAYOUT DIR: likewise, of three ranks or more, which join one after another (works.h).
 *  - expect-joining LAYOUT: prints digests of what must come out then; expect-given with
 *    JOIN_AVERAGE=given.
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
 * With HORON_GLOO_STORE set, in order, it says all that Gloo's ranks must be told.
 * With VERIFY_WHOLE set all numbers are small and whole, so that sums are exact in any order.
 *
 * A failure prints "failed NANOSECONDS STATUS TEXT", the clock being CLOCK_MONOTONIC, and exits
 * with 1.
 */
#include "failed.h"
#include "own_mpi.h"
#include "works.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEETINGS 5

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

static bool is_whole(void)
{
    return getenv("VERIFY_WHOLE") != NULL;
}

static int run_cases(horon_context_t *ctx, const char *mode, const char *folder)
{
    if (meet(ctx, folder, strcmp(mode, "in-order") == 0) != 0)
        return 1;
    if (strcmp(mode, "joining") == 0)
        return works_run_and_join(ctx, set, is_whole());
    return works_run(ctx, set, mode, is_whole());
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

/* ---- Until something fails ------------------------------------------------------------------ */

static int sum(horon_context_t *ctx, uint64_t count, long rounds)
{
    float *data = works_memory(count, HORON_FLOAT32);
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
    float *src = works_memory(count * ranks, HORON_FLOAT32),
          *dst = works_memory(count * ranks, HORON_FLOAT32);
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
    float *data = works_memory(desc.count, desc.dtype);
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
    if (strncmp(word[1], "expect", strlen("expect")) == 0 && words == 3) {
        const bool given = strcmp(word[1], "expect-given") == 0;
        if (given || strcmp(word[1], "expect-joining") == 0)
            works_expect_and_join(&layout, is_whole(), given);
        else
            works_expect(&layout, is_whole());
        return 0;
    }
    if (own_mpi("MPI_Init") != 0)
        return 1;
    horon_status_t status = horon_context_create(NULL, &ctx, why, sizeof why);
    if (status != HORON_OK)
        return failed(status, why);
    int code = work(ctx, words, word, &layout);
    horon_context_destroy(ctx);
    return code ? code : own_mpi("MPI_Finalize");
}
