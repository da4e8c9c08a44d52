/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks die at any moment while they carry out all verbs, on the job and on process sets, add and
 * remove sets, and join. All ranks follow one script, drawn from a seed. When one is killed the job
 * fails on each other rank, with its name, and sets that hold it do likewise; the others go on
 * through the script with the sets that do not hold it, and get right results of them.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { ROUNDS = 12, COUNT_MAX = 20000, SETS_MAX = 6, RANKS_MAX = 4 };
/* Steps of the script that a rank goes on for when the job has failed. In the second half of them
 * others, which were further on, may have ended. */
enum { STEPS_AFTER = 120 };

struct plan {
    unsigned seed;
    int victim;
};

struct worker {
    horon_context_t *ctx;
    struct job_report *report;
    int size, rank, victim;
    unsigned random;
    uint64_t step, failed_at;
    bool failed;             /* the job; what follows concerns sets without the victim */
    bool lost[SETS_MAX + 2]; /* sets, by id, that failed because they hold the victim */
    int32_t changed;         /* the set that was added or removed last: perhaps not by all */
    float *in, *out;
};

static unsigned draw(struct worker *worker, unsigned below)
{
    return (unsigned)rand_r(&worker->random) % below;
}

/* @return false, for good: @p what is not as it must be */
static bool must(struct worker *worker, bool good, const char *what, int32_t set)
{
    if (good)
        return true;
    worker->report->status = HORON_ERR_INVALID;
    snprintf(worker->report->text, sizeof worker->report->text,
             "rank %d at step %llu, failed at %llu, set %d: %s (%.400s)", worker->rank,
             (unsigned long long)worker->step, (unsigned long long)worker->failed_at, (int)set,
             what, horon_last_error(worker->ctx));
    return false;
}

/* ---- results: rank r of a set gives r + 1, in every element ---------------------------------- */

static uint64_t rows_of(horon_verb_t verb, uint64_t count, int from, int to)
{
    if (verb == HORON_ALLGATHER || verb == HORON_GATHER)
        return count / (uint64_t)(from + 1);
    return (from + to) % 3 == 1 ? 0 : count / (uint64_t)(from + to + 1);
}

static bool all_are(const float *at, uint64_t count, float value)
{
    for (uint64_t i = 0; i < count; i++)
        if (at[i] != value)
            return false;
    return true;
}

static bool is_rooted(horon_verb_t verb)
{
    return verb == HORON_BROADCAST || verb == HORON_GATHER || verb == HORON_SCATTER ||
           verb == HORON_REDUCE;
}

/* What each rank gave @p self, one after another. */
static bool are_runs(const struct worker *worker, const horon_descriptor_t *desc, uint64_t count,
                     int size, int self)
{
    const float *at = worker->out;
    for (int from = 0; from < size; from++) {
        if (desc->verb == HORON_SCATTER && from != desc->root)
            continue;
        const uint64_t rows = rows_of((horon_verb_t)desc->verb, count, from, self);
        if (!all_are(at, rows, (float)from + 1))
            return false;
        at += rows;
    }
    return true;
}

static bool is_right(const struct worker *worker, const horon_descriptor_t *desc, uint64_t count,
                     int size, int self)
{
    const float sum = (float)(size * (size + 1) / 2);
    const uint64_t ranks = (uint64_t)size;
    switch ((horon_verb_t)desc->verb) {
    case HORON_ALLREDUCE:
        return all_are(worker->out, count, sum);
    case HORON_REDUCE:
        return self != desc->root || all_are(worker->out, count, sum);
    case HORON_REDUCESCATTER:
        return all_are(worker->out, count / ranks + ((uint64_t)self < count % ranks), sum);
    case HORON_BROADCAST:
        return all_are(worker->out, count, (float)desc->root + 1);
    case HORON_GATHER:
        return self != desc->root || are_runs(worker, desc, count, size, self);
    case HORON_ALLGATHER:
    case HORON_ALLTOALL:
    case HORON_SCATTER:
        return are_runs(worker, desc, count, size, self);
    case HORON_BARRIER:
        return true;
    case HORON_SEND:
    case HORON_RECV:
        break; /* of two ranks: see tell() */
    }
    return false;
}

static void describe(struct worker *worker, horon_descriptor_t *desc, uint64_t *splits, int size,
                     int self, uint64_t count)
{
    const bool by_splits = desc->verb == HORON_ALLTOALL || desc->verb == HORON_SCATTER;
    desc->dtype = HORON_FLOAT32;
    desc->redop = HORON_SUM;
    desc->src = worker->in;
    desc->dst = worker->out;
    desc->dst_count = COUNT_MAX * RANKS_MAX;
    desc->count = desc->verb == HORON_BARRIER ? 0 : count;
    if (desc->verb == HORON_ALLGATHER || desc->verb == HORON_GATHER)
        desc->count = rows_of((horon_verb_t)desc->verb, count, self, 0);
    if (by_splits && (desc->verb == HORON_ALLTOALL || self == desc->root)) {
        desc->count = 0;
        for (int to = 0; to < size; to++)
            desc->count += splits[to] = rows_of((horon_verb_t)desc->verb, count, self, to);
        desc->splits = splits;
    }
    for (uint64_t i = 0; i < desc->count; i++)
        worker->in[i] = (float)self + 1;
}

/* ---- how an operation may end -----------------------------------------------------------------
 */

static bool holds(const struct worker *worker, int32_t set, int rank)
{
    int32_t ranks[RANKS_MAX];
    const int32_t size = horon_process_set_ranks(worker->ctx, set, ranks, RANKS_MAX);
    for (int32_t i = 0; i < size; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

static bool names_victim(const struct worker *worker)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d (", worker->victim);
    return strstr(horon_last_error(worker->ctx), name) != NULL;
}

/* @return go on? */
static bool heed(struct worker *worker, int32_t set, horon_status_t status)
{
    if (status == HORON_OK)
        return true;
    if (set == 0 && !worker->failed) {
        worker->failed = true;
        worker->failed_at = worker->step;
    }
    if (status == HORON_ERR_CLOSED && set != 0 && !holds(worker, set, worker->victim)) {
        worker->lost[set] = true;
        return must(worker,
                    set == worker->changed ||
                        (worker->failed && worker->step > worker->failed_at + STEPS_AFTER / 2),
                    "a set has ended", set);
    }
    worker->lost[set] = true;
    return must(worker, status == HORON_ERR_PEER_LOST, "it failed otherwise", set) &&
           must(worker, names_victim(worker), "the wrong rank is named", set) &&
           must(worker, holds(worker, set, worker->victim), "the set does not hold the victim",
                set);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool operate(struct worker *worker, int32_t set)
{
    uint64_t splits[RANKS_MAX];
    char name[48];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    const int size = horon_process_set_size(worker->ctx, set);
    const int self = horon_process_set_rank(worker->ctx, set);
    /* those before it are of all ranks of a set */
    const unsigned verb = draw(worker, HORON_SEND), root = draw(worker, RANKS_MAX);
    const uint64_t count = draw(worker, 3) ? draw(worker, 300) : draw(worker, COUNT_MAX);
    const bool in_order = draw(worker, 3) == 0;
    if (self < 0 || worker->lost[set])
        return true;
    desc.verb = verb;
    desc.process_set = set;
    snprintf(name, sizeof name, "%s %u", horon_verb_name((horon_verb_t)verb), draw(worker, 3));
    desc.name = in_order || verb == HORON_BARRIER ? NULL : name;
    desc.flags = in_order ? HORON_IN_ORDER : 0;
    desc.root = is_rooted((horon_verb_t)verb) ? (int32_t)root % size : 0;
    describe(worker, &desc, splits, size, self, count);
    const horon_status_t status = horon_run(worker->ctx, &desc, -1, NULL, 0);
    if (status != HORON_OK)
        return heed(worker, set, status);
    return must(worker, is_right(worker, &desc, count, size, self), "it gave something else", set);
}

/* One rank of a set sends another something; the rest goes on at once. */
static bool tell(struct worker *worker, int32_t set)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    const int size = horon_process_set_size(worker->ctx, set);
    const int self = horon_process_set_rank(worker->ctx, set);
    const unsigned first = draw(worker, RANKS_MAX), apart = draw(worker, RANKS_MAX - 1);
    const unsigned tag = draw(worker, 3);
    const uint64_t count = draw(worker, 3) ? draw(worker, 300) : draw(worker, COUNT_MAX);
    if (self < 0 || size < 2 || worker->lost[set])
        return true;
    const int from = (int)first % size, to = (from + 1 + (int)apart % (size - 1)) % size;
    const float value = (float)(from + 1) * 8 + (float)tag;
    if (self != from && self != to)
        return true;
    for (uint64_t i = 0; i < count; i++)
        worker->in[i] = value;
    memset(worker->out, 0, (size_t)count * sizeof *worker->out);
    desc.verb = self == from ? HORON_SEND : HORON_RECV;
    desc.process_set = set;
    desc.dtype = HORON_FLOAT32;
    desc.root = self == from ? to : from;
    desc.tag = tag;
    desc.src = worker->in;
    desc.dst = worker->out;
    desc.count = count;
    const horon_status_t status = horon_run(worker->ctx, &desc, -1, NULL, 0);
    if (status != HORON_OK)
        return heed(worker, set, status);
    return must(worker, self == from || all_are(worker->out, count, value), "another message came",
                set);
}

static bool change_sets(struct worker *worker)
{
    int32_t ids[SETS_MAX + 2], ranks[RANKS_MAX], id = 0;
    const int32_t count = horon_process_set_ids(worker->ctx, ids, SETS_MAX + 2);
    const bool removes = draw(worker, 2) == 1 || count > SETS_MAX;
    const unsigned which = draw(worker, SETS_MAX),
                   members = 1 + draw(worker, (1u << worker->size) - 2);
    horon_status_t status;
    size_t n = 0;
    if (worker->failed || (removes && count == 1))
        return true;
    for (int rank = 0; rank < worker->size; rank++)
        if (members & 1u << rank)
            ranks[n++] = rank;
    if (removes) {
        id = ids[1 + which % (unsigned)(count - 1)];
        worker->changed = id;
        status = horon_process_set_remove(worker->ctx, id, -1);
    } else {
        status = horon_process_set_add(worker->ctx, ranks, n, -1, &id);
        worker->changed = status == HORON_OK ? id : worker->changed;
    }
    if (status == HORON_OK)
        worker->lost[id] = false;
    if (status == HORON_OK || status == HORON_ERR_INVALID) /* there is such a set */
        return true;
    return heed(worker, 0, status);
}

/* One rank has no more data. */
static bool join(struct worker *worker)
{
    const int first = (int)draw(worker, (unsigned)worker->size);
    horon_request_t *request;
    horon_status_t status = HORON_OK;
    if (worker->failed)
        return true;
    if (worker->rank != first) {
        horon_descriptor_t desc = job_sum("before the join", worker->in, 300, 0);
        for (int i = 0; i < 300; i++)
            worker->in[i] = 1;
        status = horon_run(worker->ctx, &desc, -1, NULL, 0);
        if (status == HORON_OK && !must(worker, all_are(worker->in, 300, (float)worker->size - 1),
                                        "a joined rank gave something", 0))
            return false;
    }
    if (status == HORON_OK)
        status = horon_join(worker->ctx, 0, &request);
    if (status != HORON_OK)
        return heed(worker, 0, status);
    status = horon_wait(request, HORON_HOST_DONE, -1);
    char name[32];
    snprintf(name, sizeof name, "rank %d (", worker->victim);
    const bool named = strstr(horon_request_error(request), name) != NULL;
    horon_release(request);
    if (status == HORON_OK)
        return true;
    worker->failed = worker->lost[0] = true;
    worker->failed_at = worker->step;
    return must(worker, status == HORON_ERR_PEER_LOST && named, "the join failed otherwise", 0);
}

/* Sets by their ids: what was being changed at the end some ranks may have, and others not. */
static bool step(struct worker *worker)
{
    const unsigned what = draw(worker, 15);
    const int32_t set = 1 + (int32_t)draw(worker, SETS_MAX);
    if (what == 0)
        return join(worker);
    if (what <= 2)
        return change_sets(worker);
    if (what >= 12)
        return tell(worker, what == 12 ? 0 : set);
    return operate(worker, what <= 5 ? 0 : set);
}

static void work(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct plan *plan = arg;
    struct worker worker = {.ctx = ctx,
                            .report = report,
                            .size = horon_size(ctx),
                            .rank = horon_rank(ctx),
                            .victim = plan->victim};
    worker.in = malloc(sizeof(float) * COUNT_MAX * RANKS_MAX);
    worker.out = malloc(sizeof(float) * COUNT_MAX * RANKS_MAX);
    bool good = worker.in && worker.out;
    while (good && (!worker.failed || worker.step < worker.failed_at + STEPS_AFTER)) {
        worker.random =
            plan->seed + 7919u * (unsigned)++worker.step; /* however long the last was */
        good = step(&worker);
    }
    if (good) {
        report->status = HORON_OK;
        snprintf(report->text, sizeof report->text, "%llu", (unsigned long long)worker.failed_at);
    }
    free(worker.in);
    free(worker.out);
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* @return steps that the ranks had come to */
static uint64_t kill_one(unsigned seed, int size, long after_ns, const char *const *settings)
{
    struct plan plan = {.seed = seed, .victim = (int)(seed % (unsigned)size)};
    const struct timespec pause = {.tv_nsec = after_ns};
    struct job job;
    uint64_t steps = 0;
    int failed = 0;
    job_start(&job, size, settings, work, &plan);
    job_wait_joined(&job);
    nanosleep(&pause, NULL); /* the random moment itself, not a synchronisation */
    kill(job.pids[plan.victim], SIGKILL);
    for (int rank = 0; rank < size; rank++) {
        struct job_report report = {.status = HORON_ERR_TIMEOUT, .text = "it says nothing"};
        if (rank == plan.victim)
            continue;
        const int got = job_report_of(&job, rank, 120000, &report);
        steps += strtoull(report.text, NULL, 10);
        if (got == 0 && report.status == HORON_OK)
            continue;
        print_error("seed %u, size %d, victim %d after %ld ns: %s\n", seed, size, plan.victim,
                    after_ns, report.text);
        failed++;
    }
    failed += job_end(&job, 60000);
    assert_int_equal(failed, 0);
    return steps;
}

static int rounds = ROUNDS; /* set before the test begins */

static void test_kill_sets_fails_those_of_the_rank_and_no_others(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    const char *given = getenv("HORON_TEST_SEED");
    unsigned seed = given ? (unsigned)atoi(given) : 1;
    uint64_t steps = 0;
    (void)state;
    for (int round = 0; round < rounds; round++) {
        const unsigned script = (unsigned)rand_r(&seed);
        const int size = 3 + (int)((unsigned)rand_r(&seed) % (RANKS_MAX - 2));
        steps += kill_one(script, size, rand_r(&seed) % 100000000, round % 4 == 3 ? tcp : NULL);
    }
    print_message("%d kills, after %llu steps\n", rounds, (unsigned long long)steps);
    assert_true(steps > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_sets_fails_those_of_the_rank_and_no_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
