/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of five whose process sets overlap, come and go: `mixed ROUNDS BACKEND`, which is that of
 * the sets. In each round it adds them; puts groups, rows and averages into all that it is in at
 * once, in an order of its own; joins each of them, after as many sums more as its number there;
 * and removes them. In the end nothing is left of them: no file, no thread, no memory.
 */
#include "mpi/must.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 5, SETS = 3, GROUP = 3, REQUESTS = GROUP + 2, COUNT = 3001, KEPT_ROUNDS = 5 };

static const int32_t members[SETS][SIZE] = {{0, 1, 2}, {3, 2, 1, 4}, {4, 0, 2}};
static const int sizes[SETS] = {3, 4, 3};
static const uint64_t counts[GROUP] = {1, 1009, COUNT};

struct use {
    float data[GROUP][COUNT], rows[SIZE], gathered[SIZE * SIZE];
    double average[3];
    horon_request_t *requests[REQUESTS];
};

static void expect(bool right, const char *what, int set)
{
    if (right)
        return;
    fprintf(stderr, "%s of set %d is wrong\n", what, set);
    exit(1);
}

static horon_descriptor_t describe(horon_verb_t verb, int32_t set, const char *name)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.process_set = set;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.name = name;
    return desc;
}

static void end(horon_request_t *request, const char *what)
{
    must(horon_wait(request, HORON_HOST_DONE, -1), what, horon_request_error(request));
    horon_release(request);
}

/* What all members of a set give in the same round. */
static void submit(horon_context_t *ctx, int32_t id, struct use *use, int self)
{
    static const char *const names[GROUP] = {"one", "two", "three"};
    horon_descriptor_t group[GROUP];
    for (int i = 0; i < GROUP; i++) {
        for (uint64_t k = 0; k < counts[i]; k++)
            use->data[i][k] = (float)(self + 1) + (float)(k % 5);
        group[i] = describe(HORON_ALLREDUCE, id, names[i]);
        group[i].src = group[i].dst = use->data[i];
        group[i].count = counts[i];
    }
    must(horon_submit_group(ctx, group, GROUP, use->requests), "group", horon_last_error(ctx));
    horon_descriptor_t rows = describe(HORON_ALLGATHER, id, "rows");
    rows.src = use->rows;
    rows.count = (uint64_t)self; /* none of the first one */
    rows.dst = use->gathered;
    rows.dst_count = SIZE * SIZE;
    for (int i = 0; i < self; i++)
        use->rows[i] = (float)self;
    must(horon_submit(ctx, &rows, &use->requests[GROUP]), "rows", horon_last_error(ctx));
    horon_descriptor_t average = describe(HORON_ALLREDUCE, id, "average");
    average.dtype = HORON_FLOAT64;
    average.redop = HORON_AVERAGE;
    average.src = average.dst = use->average;
    average.count = 3;
    for (int i = 0; i < 3; i++)
        use->average[i] = self + i;
    must(horon_submit(ctx, &average, &use->requests[GROUP + 1]), "average", horon_last_error(ctx));
}

static void check(struct use *use, int set)
{
    const int size = sizes[set], sum = size * (size + 1) / 2;
    for (int i = 0; i < REQUESTS; i++)
        end(use->requests[i], "wait");
    for (int i = 0; i < GROUP; i++)
        for (uint64_t k = 0; k < counts[i]; k++)
            expect(use->data[i][k] == (float)sum + (float)size * (float)(k % 5), "a group", set);
    int at = 0;
    for (int rank = 0; rank < size; rank++)
        for (int i = 0; i < rank; i++)
            expect(use->gathered[at++] == (float)rank, "a gather", set);
    for (int i = 0; i < 3; i++)
        expect(use->average[i] == (size - 1) / 2.0 + i, "an average", set);
}

/* The highest ranks go on when the others have joined. */
static void sum_and_join(horon_context_t *ctx, int32_t id, int set, int self)
{
    static float data[COUNT];
    horon_request_t *joined = NULL;
    for (int round = 0; round < self; round++) {
        int sum = 0;
        char name[32];
        for (int other = round + 1; other < sizes[set]; other++)
            sum += other + 1;
        snprintf(name, sizeof name, "left %d", round);
        for (int i = 0; i < COUNT; i++)
            data[i] = (float)(self + 1);
        horon_descriptor_t desc = describe(HORON_ALLREDUCE, id, name);
        char why[HORON_ERROR_TEXT_BYTES];
        desc.src = desc.dst = data;
        desc.count = COUNT;
        must(horon_run(ctx, &desc, -1, why, sizeof why), "left", why);
        for (int i = 0; i < COUNT; i++)
            expect(data[i] == (float)sum, "a sum of those that are left", set);
    }
    must(horon_join(ctx, id, &joined), "join", horon_last_error(ctx));
    end(joined, "joined");
}

static int entries(const char *path)
{
    int found = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder))
        found++;
    if (folder)
        closedir(folder);
    return found;
}

static long resident_pages(void)
{
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2)
        exit(1);
    fclose(file);
    return resident;
}

static void run_round(horon_context_t *ctx, const char *backend, int round)
{
    static struct use uses[SETS];
    int32_t ids[SETS];
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    const int rank = horon_rank(ctx);
    options.backend = backend;
    for (int set = 0; set < SETS; set++)
        must(horon_process_set_add_with(ctx, members[set], (size_t)sizes[set], &options, -1,
                                        &ids[set]),
             "add", horon_last_error(ctx));
    for (int i = 0; i < SETS; i++) {
        const int set = (i + rank + round) % SETS;
        const int self = horon_process_set_rank(ctx, ids[set]);
        if (self >= 0)
            submit(ctx, ids[set], &uses[set], self);
    }
    for (int set = 0; set < SETS; set++)
        if (horon_process_set_rank(ctx, ids[set]) >= 0)
            check(&uses[set], set);
    for (int set = 0; set < SETS; set++)
        if (horon_process_set_rank(ctx, ids[set]) >= 0)
            sum_and_join(ctx, ids[set], set, horon_process_set_rank(ctx, ids[set]));
    const horon_descriptor_t desc = describe(HORON_ALLREDUCE, ids[0], "x");
    const char *by = horon_carrier(ctx, &desc);
    expect(rank > 2 || (by && strcmp(by, backend) == 0), "the carrier", 0);
    for (int set = 0; set < SETS; set++)
        must(horon_process_set_remove(ctx, ids[set], -1), "remove", horon_last_error(ctx));
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    const int rounds = argc == 3 ? atoi(argv[1]) : 0;
    int files = 0, threads = 0;
    long pages = 0;
    must(horon_context_create(NULL, &ctx, why, sizeof why), "create", why);
    if (horon_size(ctx) != SIZE || rounds <= KEPT_ROUNDS) {
        fprintf(stderr, "mixed ROUNDS BACKEND, by five ranks\n");
        return 2;
    }
    for (int round = 0; round < rounds; round++) {
        run_round(ctx, argv[2], round);
        if (round != KEPT_ROUNDS)
            continue;
        files = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
        pages = resident_pages();
    }
    printf("rank %d is through, with %d files, %d threads and %ld KiB more\n", horon_rank(ctx),
           entries("/proc/self/fd") - files, entries("/proc/self/task") - threads,
           (resident_pages() - pages) * (sysconf(_SC_PAGESIZE) / 1024));
    horon_context_destroy(ctx);
    return 0;
}
