/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timed call, as every library here is timed:
 *
 *     inputs are rewritten by their owner      (a training step would have)
 *     barrier of the library, meeting in shared memory
 *     clock; the call; clock
 *     barrier of the library
 *
 * and the call's time is that of the slowest rank. The barrier after it is for ranks that share a
 * core: the first to be done would take the core for rewriting its inputs, for up to a time slice
 * of the scheduler, while the clock of another still runs. `warmup` such calls go before. Then the
 * same number of calls back to back, without rewriting, on zeros so that sums do not grow. Then
 * `checks` calls whose outputs are spoilt before and compared after: every element, and an input
 * that must not change too.
 *
 * Tensors of one call lie in one mapping, 64 bytes apart at least, so that no library can take
 * several of them for one.
 *
 * With --sets a call is the same operations on each of some process sets, all begun before one is
 * waited for. A rank gives each set the pattern of its number there, so that what a set gives is
 * the same for all of them. Times are a call's divided by the sets. A rank that is in none of them
 * waits for the end of a cell, asleep: those that are meet without it.
 */
#include "loop.h"

#include "names.h"
#include "sets.h"
#include "values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define GAP 64u /* bytes between tensors: a cache line */

/* Ranks that carry out operations together: the job, or a process set. */
struct perf_team {
    int32_t set;
    int rank;               /* -1: this rank is outside */
    struct perf_tile input; /* what this rank gives to it */
};

struct perf_loop {
    const struct perf_options *options;
    struct perf_peer *peer;
    struct perf_align align;
    unsigned char *src, *dst; /* [mapped_bytes] each */
    size_t mapped_bytes;
    size_t used_bytes;       /* of each, by the tensors of this cell */
    double *times;           /* [iterations], us */
    struct perf_team *teams; /* [team_count] */
    size_t team_count;
    int team_size;
    struct perf_operation *operations; /* [operation_count], of the teams with this rank */
    size_t operation_count;
    int32_t busy_set; /* the ranks that have operations; 0: all */
    int busy_size;
    struct perf_tile output; /* parts of several ranks are made when they are looked at */
    uint64_t phase;          /* of the inputs of this call */
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Elements of src for a size of the command line: of what all ranks together give one, or get. */
static uint64_t count_of(const struct perf_loop *loop, uint64_t bytes)
{
    const uint64_t size = (uint64_t)loop->team_size;
    const uint64_t all = bytes / perf_dtype_bytes(loop->options->dtype);
    switch (loop->options->verb) {
    case HORON_ALLREDUCE:
    case HORON_BROADCAST:
    case HORON_REDUCE:
    case HORON_SEND:
        return all;
    case HORON_ALLGATHER:
    case HORON_GATHER:
        return all / size;
    case HORON_ALLTOALL:
    case HORON_SCATTER:
    case HORON_REDUCESCATTER:
        return all / size * size;
    case HORON_RECV:
    case HORON_BARRIER:
        break;
    }
    return 0;
}

/* Elements of dst, where there is one. */
static uint64_t count_out(const struct perf_loop *loop, uint64_t count)
{
    const horon_verb_t verb = loop->options->verb;
    if (verb == HORON_SCATTER || verb == HORON_REDUCESCATTER) {
        return count / (uint64_t)loop->team_size;
    }
    return verb == HORON_ALLGATHER || verb == HORON_GATHER ? count * (uint64_t)loop->team_size
                                                           : count;
}

/* Of the longer of both. */
static size_t bytes_of(const struct perf_loop *loop, uint64_t count)
{
    const uint64_t out = count_out(loop, count);
    return (out > count ? out : count) * perf_dtype_bytes(loop->options->dtype);
}

static size_t stride_of(const struct perf_loop *loop, uint64_t count)
{
    return (bytes_of(loop, count) + GAP - 1) / GAP * GAP + GAP;
}

static unsigned char *buffer_map(size_t bytes)
{
    void *const at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at != MAP_FAILED ? at : NULL;
}

static int buffers_init(struct perf_loop *loop)
{
    const uint64_t largest = count_of(loop, loop->options->end_bytes);
    const size_t stride = stride_of(loop, largest);
    const size_t n = loop->operation_count > 0 ? loop->operation_count : 1; /* unused, if none */
    if (stride < loop->options->end_bytes || stride > SIZE_MAX / 2 / n) {
        return -1;
    }
    loop->mapped_bytes = stride * n;
    loop->src = buffer_map(loop->mapped_bytes);
    loop->dst = buffer_map(loop->mapped_bytes);
    loop->times = calloc(loop->options->iterations, sizeof *loop->times);
    loop->operations = calloc(n, sizeof *loop->operations);
    return loop->src != NULL && loop->dst != NULL && loop->times != NULL && loop->operations != NULL
               ? 0
               : -1;
}

/* The patterns of what this rank gives and of what everybody gets. */
static int tiles_init(struct perf_loop *loop)
{
    const struct perf_options *const options = loop->options;
    const bool reduces = perf_verb_reduces(options->verb);
    const horon_redop_t redop = reduces ? options->redop : HORON_SUM;
    for (size_t i = 0; i < loop->team_count; i++) {
        struct perf_team *const team = &loop->teams[i];
        if (team->rank >= 0 &&
            perf_tile_input(&team->input, options->dtype, redop, team->rank) != 0) {
            return -1;
        }
    }
    return reduces ? perf_tile_reduced(&loop->output, options->dtype, redop, loop->team_size)
                   : perf_tile_input(&loop->output, options->dtype, redop, options->root);
}

/* The ranks of all sets together are one, or become one. @p ranks [size] for use */
static int busy_set_init(struct perf_loop *loop, int32_t *ranks)
{
    struct perf_peer *const peer = loop->peer;
    const uint64_t sets = loop->options->sets;
    loop->busy_size = 0;
    for (int rank = 0; rank < peer->size; rank++) {
        bool busy = sets == 0;
        for (uint64_t set = 0; set < sets; set++) {
            busy = busy || perf_set_rank(set, peer->size, rank) >= 0;
        }
        if (busy) {
            ranks[loop->busy_size++] = rank;
        }
    }
    loop->busy_set = loop->busy_size == loop->team_size ? loop->teams[0].set : 0;
    if (loop->busy_size == loop->team_size || loop->busy_size == peer->size) {
        return 0;
    }
    return peer->ops->divide(peer, ranks, (size_t)loop->busy_size, &loop->busy_set);
}

/* The job, or --sets. */
static int teams_init(struct perf_loop *loop)
{
    struct perf_peer *const peer = loop->peer;
    const uint64_t sets = loop->options->sets;
    if (sets > perf_sets_most(peer->size)) {
        snprintf(peer->error, sizeof peer->error,
                 "--sets: %d ranks have %" PRIu64 " different sets of all but two of them",
                 peer->size, perf_sets_most(peer->size));
        return -1;
    }
    loop->team_count = sets > 0 ? sets : 1;
    loop->team_size = sets > 0 ? perf_set_size(peer->size) : peer->size;
    loop->teams = calloc(loop->team_count, sizeof *loop->teams);
    int32_t *const ranks = calloc((size_t)peer->size, sizeof *ranks);
    int result = -1;
    if (loop->teams == NULL || ranks == NULL) {
        snprintf(peer->error, sizeof peer->error, "out of memory");
        goto done;
    }
    loop->teams[0].rank = peer->rank;
    for (uint64_t set = 0; set < sets; set++) {
        struct perf_team *const team = &loop->teams[set];
        team->rank = perf_set_rank(set, peer->size, peer->rank);
        perf_set_ranks(set, peer->size, ranks);
        if (peer->ops->divide(peer, ranks, (size_t)loop->team_size, &team->set) != 0) {
            goto done;
        }
    }
    for (size_t i = 0; i < loop->team_count; i++) {
        loop->operation_count += loop->teams[i].rank >= 0 ? loop->options->tensors : 0;
    }
    result = busy_set_init(loop, ranks);
done:
    free(ranks);
    return result;
}

int perf_loop_create(const struct perf_options *options, struct perf_peer *peer,
                     struct perf_loop **loop_out)
{
    struct perf_loop *loop = calloc(1, sizeof *loop);
    int result = -1;
    if (loop == NULL) {
        snprintf(peer->error, sizeof peer->error, "out of memory");
        goto done;
    }
    loop->options = options;
    loop->peer = peer;
    loop->align.fd = -1;
    if (teams_init(loop) != 0) {
        goto done;
    }
    if (options->root >= loop->team_size) {
        snprintf(peer->error, sizeof peer->error, "--root %" PRId32 ": there are %d ranks",
                 options->root, loop->team_size);
        goto done;
    }
    if (options->verb == HORON_SEND && loop->team_size == 1) {
        snprintf(peer->error, sizeof peer->error, "sendrecv needs two ranks");
        goto done;
    }
    const uint64_t smallest = perf_size_smallest(options);
    if (smallest > 0 && count_of(loop, smallest) == 0) {
        snprintf(peer->error, sizeof peer->error,
                 "the smallest size, %" PRIu64 " bytes, is below one element of each of %d ranks: "
                 "begin with --minbytes %zu",
                 smallest, loop->team_size,
                 (size_t)loop->team_size * perf_dtype_bytes(options->dtype));
        goto done;
    }
    if (loop->operation_count > 1 && peer->ops->admit(peer, loop->operation_count) != 0) {
        goto done;
    }
    if (buffers_init(loop) != 0 || tiles_init(loop) != 0) {
        snprintf(peer->error, sizeof peer->error,
                 "no memory for %zu tensors of %" PRIu64 " bytes, twice", loop->operation_count,
                 options->end_bytes);
        goto done;
    }
    if (perf_align_open(&loop->align, peer, loop->busy_set, loop->busy_size) != 0) {
        goto done;
    }
    *loop_out = loop;
    loop = NULL;
    result = 0;
done:
    perf_loop_destroy(loop);
    return result;
}

void perf_loop_destroy(struct perf_loop *loop)
{
    if (loop == NULL) {
        return;
    }
    perf_align_close(&loop->align);
    if (loop->src != NULL) {
        munmap(loop->src, loop->mapped_bytes);
    }
    if (loop->dst != NULL) {
        munmap(loop->dst, loop->mapped_bytes);
    }
    for (size_t i = 0; loop->teams != NULL && i < loop->team_count; i++) {
        perf_tile_deinit(&loop->teams[i].input);
    }
    perf_tile_deinit(&loop->output);
    free(loop->times);
    free(loop->teams);
    free(loop->operations);
    free(loop);
}

bool perf_loop_aligned(const struct perf_loop *loop)
{
    return loop->align.shared != NULL;
}

/* Has this rank an input? Of some verbs only root has any. */
static bool gives(const struct perf_loop *loop, const struct perf_operation *operation)
{
    const horon_verb_t verb = loop->options->verb;
    return (verb != HORON_BROADCAST && verb != HORON_SCATTER) ||
           operation->rank == loop->options->root;
}

/* Has the verb such a place? Of the others src is no part of dst, and a barrier has neither. */
static bool has_place(const struct perf_loop *loop, bool in_place)
{
    switch (loop->options->verb) {
    case HORON_ALLREDUCE:
    case HORON_BROADCAST:
    case HORON_REDUCE:
    case HORON_ALLGATHER:
    case HORON_GATHER:
    case HORON_SCATTER:
        return true;
    case HORON_REDUCESCATTER:
        return !in_place || loop->peer->ops->shares_in_place;
    case HORON_ALLTOALL:
    case HORON_BARRIER:
    case HORON_SEND:
    case HORON_RECV:
        break;
    }
    return !in_place;
}

/* As nccl-tests has it: what a rank gives to an allgather or gather, and gets of a reducescatter or
 * scatter, lies at its own place among those of all ranks. A gather's and a scatter's lie together
 * on root alone: the other ranks have one buffer, as out of place. */
static void place_in(const struct perf_loop *loop, struct perf_operation *operation)
{
    const horon_verb_t verb = loop->options->verb;
    const size_t bytes = operation->count * perf_dtype_bytes(loop->options->dtype);
    if ((verb == HORON_GATHER || verb == HORON_SCATTER) && operation->rank != loop->options->root) {
        return;
    }
    operation->in_place = true;
    operation->src = operation->dst;
    if (verb == HORON_ALLGATHER || verb == HORON_GATHER) {
        operation->src = (unsigned char *)operation->dst + bytes * (size_t)operation->rank;
    } else if (verb == HORON_REDUCESCATTER || verb == HORON_SCATTER) {
        operation->dst = (unsigned char *)operation->src +
                         bytes / (size_t)operation->size * (size_t)operation->rank;
    }
}

static void operations_set(struct perf_loop *loop, uint64_t count, bool in_place)
{
    const size_t stride = stride_of(loop, count);
    const uint64_t tensors = loop->options->tensors;
    size_t n = 0;
    for (uint64_t index = 0; index < loop->team_count * tensors; index++) {
        const struct perf_team *const team = &loop->teams[index / tensors];
        if (team->rank < 0) {
            continue;
        }
        loop->operations[n] = (struct perf_operation){.src = loop->src + n * stride,
                                                      .dst = loop->dst + n * stride,
                                                      .count = count,
                                                      .index = index,
                                                      .set = team->set,
                                                      .rank = team->rank,
                                                      .size = loop->team_size};
        if (in_place) {
            place_in(loop, &loop->operations[n]);
        }
        n++;
    }
    loop->used_bytes = stride * n;
}

static const struct perf_tile *input_of(const struct perf_loop *loop,
                                        const struct perf_operation *operation)
{
    return &loop->teams[operation->index / loop->options->tensors].input;
}

/* The owner rewrites its inputs, each call with another phase. */
static void inputs_write(struct perf_loop *loop)
{
    loop->phase += 7;
    for (size_t i = 0; i < loop->operation_count; i++) {
        const struct perf_operation *const o = &loop->operations[i];
        if (gives(loop, o)) {
            perf_tile_write(input_of(loop, o), loop->phase + o->index, o->src, o->count);
        }
    }
}

/* One timed call. An idle rank has none. */
static int call_once(struct perf_loop *loop, struct perf_job *job, double *us_out)
{
    if (loop->operation_count == 0) {
        *us_out = 0.0;
        return 0;
    }
    inputs_write(loop);
    if (perf_align_meet(&loop->align) != 0) {
        return -1;
    }
    const double start = now_us();
    const int result = loop->peer->ops->run(job);
    *us_out = now_us() - start;
    return result == 0 ? loop->peer->ops->barrier(loop->peer, loop->busy_set) : result;
}

/* Replaces values [n] by their maxima over the ranks, for which the idle ones wake up. */
static int collect(struct perf_loop *loop, double *values, size_t n)
{
    if (loop->operation_count == 0) {
        perf_align_rest(&loop->align);
    } else if (loop->operations[0].rank == 0 && loop->operations[0].index == 0) {
        perf_align_end_rest(&loop->align);
    }
    return loop->peer->ops->maximum(loop->peer, values, n);
}

static int time_calls(struct perf_loop *loop, struct perf_job *job, struct perf_cell *cell)
{
    const uint64_t iterations = loop->options->iterations;
    double ignored = 0.0;
    for (uint64_t i = 0; i < loop->options->warmup; i++) {
        if (call_once(loop, job, &ignored) != 0) {
            return -1;
        }
    }
    for (uint64_t i = 0; i < iterations; i++) {
        if (call_once(loop, job, &loop->times[i]) != 0) {
            return -1;
        }
    }
    if (collect(loop, loop->times, iterations) != 0) {
        return -1;
    }
    for (uint64_t i = 0; i < iterations; i++) {
        loop->times[i] /= (double)loop->team_count;
    }
    cell->times = perf_stats_of(loop->times, iterations);
    return 0;
}

static int time_back_to_back(struct perf_loop *loop, struct perf_job *job, struct perf_cell *cell)
{
    const uint64_t iterations = loop->options->iterations;
    memset(loop->src, 0, loop->used_bytes);
    memset(loop->dst, 0, loop->used_bytes);
    if (loop->operation_count > 0 && perf_align_meet(&loop->align) != 0) {
        return -1;
    }
    const double start = now_us();
    for (uint64_t i = 0; i < iterations; i++) {
        if (loop->peer->ops->run(job) != 0) {
            return -1;
        }
    }
    cell->b2b_us = (now_us() - start) / (double)iterations / (double)loop->team_count;
    return collect(loop, &cell->b2b_us, 1);
}

/* Wrong elements of what @p rank has given. */
static int wrong_part(struct perf_loop *loop, uint64_t phase, const void *got, uint64_t count,
                      int rank, uint64_t *wrong)
{
    struct perf_tile tile;
    if (perf_tile_input(&tile, loop->options->dtype, HORON_SUM, rank) != 0) {
        snprintf(loop->peer->error, sizeof loop->peer->error, "out of memory");
        return -1;
    }
    *wrong += perf_tile_wrong(&tile, phase, got, count);
    perf_tile_deinit(&tile);
    return 0;
}

/* Wrong elements of an output to which every rank has given a part, which begins at @p first of
 * its input. */
static int wrong_parts(struct perf_loop *loop, uint64_t phase, const void *got, uint64_t part,
                       uint64_t first, uint64_t *wrong)
{
    const size_t bytes = part * perf_dtype_bytes(loop->options->dtype);
    for (int rank = 0; rank < loop->team_size; rank++) {
        const unsigned char *const of_rank = (const unsigned char *)got + bytes * (size_t)rank;
        if (wrong_part(loop, phase + first, of_rank, part, rank, wrong) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Wrong elements of one tensor's output, and of its input if it had to stay. */
static int wrong_of(struct perf_loop *loop, const struct perf_operation *o, uint64_t *wrong)
{
    const uint64_t phase = loop->phase + o->index, rank = (uint64_t)o->rank;
    const uint64_t share = o->count / (uint64_t)o->size; /* where inputs are divided */
    const bool stays = !o->in_place || loop->options->verb == HORON_SCATTER;
    if (stays && gives(loop, o)) {
        *wrong += perf_tile_wrong(input_of(loop, o), phase, o->src, o->count);
    }
    switch (loop->options->verb) {
    case HORON_ALLREDUCE:
    case HORON_BROADCAST:
        *wrong += perf_tile_wrong(&loop->output, phase, o->dst, o->count);
        break;
    case HORON_SEND:
        return wrong_part(loop, phase, o->dst, o->count, (o->rank + o->size - 1) % o->size, wrong);
    case HORON_ALLGATHER:
        return wrong_parts(loop, phase, o->dst, o->count, 0, wrong);
    case HORON_GATHER:
        return rank == (uint64_t)loop->options->root
                   ? wrong_parts(loop, phase, o->dst, o->count, 0, wrong)
                   : 0;
    case HORON_ALLTOALL:
        return wrong_parts(loop, phase, o->dst, share, rank * share, wrong);
    case HORON_SCATTER:
    case HORON_REDUCESCATTER:
        *wrong += perf_tile_wrong(&loop->output, phase + rank * share, o->dst, share);
        break;
    case HORON_REDUCE:
        if (rank == (uint64_t)loop->options->root) {
            *wrong += perf_tile_wrong(&loop->output, phase, o->dst, o->count);
        }
        break;
    case HORON_RECV:
    case HORON_BARRIER:
        break;
    }
    return 0;
}

static int check_calls(struct perf_loop *loop, struct perf_job *job, struct perf_cell *cell)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < loop->options->checks; i++) {
        double ignored = 0.0;
        memset(loop->dst, 0xa5, loop->used_bytes);
        if (call_once(loop, job, &ignored) != 0) {
            return -1;
        }
        for (size_t k = 0; cell->count > 0 && k < loop->operation_count; k++) {
            if (wrong_of(loop, &loop->operations[k], &wrong) != 0) {
                return -1;
            }
        }
    }
    double most = (double)wrong;
    if (collect(loop, &most, 1) != 0) {
        return -1;
    }
    cell->wrong = (uint64_t)most;
    return 0;
}

int perf_loop_measure(struct perf_loop *loop, uint64_t bytes, bool in_place,
                      struct perf_cell *cell_out)
{
    const struct perf_options *const options = loop->options;
    const uint64_t count = count_of(loop, bytes);
    struct perf_cell cell = {.measured = true, .in_place = in_place, .count = count};
    struct perf_job *job = NULL;
    cell.bytes = bytes_of(loop, count);
    if (!has_place(loop, in_place)) {
        cell.measured = false;
        *cell_out = cell;
        return 0;
    }
    operations_set(loop, count, in_place);
    if (loop->peer->ops->prepare(loop->peer, loop->operations, loop->operation_count, &job) != 0) {
        return -1;
    }
    const int result = time_calls(loop, job, &cell) != 0 ||
                               time_back_to_back(loop, job, &cell) != 0 ||
                               check_calls(loop, job, &cell) != 0
                           ? -1
                           : 0;
    loop->peer->ops->release(job);
    if (result == 0) {
        const double bytes_moved = (double)cell.bytes * (double)options->tensors;
        cell.algbw = cell.times.median > 0.0 ? bytes_moved / cell.times.median * 1e-3 : 0.0;
        cell.busbw = cell.algbw * perf_busbw_factor(options->verb, loop->team_size);
        *cell_out = cell;
    }
    return result;
}
