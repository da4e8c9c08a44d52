/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI as the measured library: the blocking call for one operation, the non-blocking ones and one
 * MPI_Waitall for several. Types and reductions are looked up when the job is prepared. A broadcast
 * out of place copies the root's bytes first, as horon's contract has it; the copy is timed.
 */
#include "peer.h"

#include "mpi_library.h"
#include "names.h"

#include <stdlib.h>
#include <string.h>

struct mpi_peer {
    struct perf_peer base;
    struct mpi_library mpi;
    const struct perf_options *options;
};

struct perf_job {
    struct mpi_peer *peer;
    size_t n;
    struct perf_operation *operations; /* [n] */
    unsigned char *requests;           /* [n], or [2 n] of messages, of mpi.request_bytes */
    mpi_handle_t type, op;
    int *counts, *starts; /* [size] elements of an operation for each rank */
};

/* Only reached where the communicator's error handler returns; the default one aborts. */
static int checked(struct mpi_peer *peer, const char *what, int code)
{
    if (code == 0) {
        return 0;
    }
    snprintf(peer->base.error, sizeof peer->base.error, "%s failed with code %d", what, code);
    return -1;
}

static void mpi_job_release(struct perf_job *job)
{
    if (job == NULL) {
        return;
    }
    free(job->operations);
    free(job->requests);
    free(job->counts);
    free(job->starts);
    free(job);
}

static int handles_find(struct mpi_peer *peer, struct perf_job *job)
{
    const struct perf_options *const options = peer->options;
    if (mpi_library_type(&peer->mpi, options->dtype, &job->type) != 0 ||
        (perf_verb_reduces(options->verb) &&
         mpi_library_op(&peer->mpi, options->dtype, options->redop, &job->op) != 0)) {
        snprintf(peer->base.error, sizeof peer->base.error, "%s cannot reduce %s with %s",
                 peer->mpi.family, perf_dtype_word(options->dtype),
                 perf_redop_word(options->redop));
        return -1;
    }
    return 0;
}

static int mpi_peer_admit(struct perf_peer *base, size_t n)
{
    (void)base; /* MPI tells no limit */
    (void)n;
    return 0;
}

static int mpi_peer_divide(struct perf_peer *base, const int32_t *ranks, size_t n, int32_t *set_out)
{
    (void)ranks;
    (void)n;
    (void)set_out;
    snprintf(base->error, sizeof base->error, "--sets: horon's process sets, which MPI has not");
    return -1;
}

static int mpi_job_prepare(struct perf_peer *base, const struct perf_operation *operations,
                           size_t n, struct perf_job **job_out)
{
    struct mpi_peer *const peer = (struct mpi_peer *)base;
    struct perf_job *job = calloc(1, sizeof *job);
    int result = -1;
    if (job != NULL) {
        job->peer = peer;
        job->n = n;
        job->operations = calloc(n, sizeof *job->operations);
        job->requests = calloc(2 * n, peer->mpi.request_bytes);
        job->counts = calloc((size_t)base->size, sizeof *job->counts);
        job->starts = calloc((size_t)base->size, sizeof *job->starts);
    }
    if (job == NULL || job->operations == NULL || job->requests == NULL || job->counts == NULL ||
        job->starts == NULL) {
        snprintf(base->error, sizeof base->error, "out of memory for %zu operations", n);
        goto done;
    }
    if (handles_find(peer, job) != 0) {
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        job->operations[i] = operations[i];
        if (operations[i].count > INT32_MAX) {
            snprintf(base->error, sizeof base->error, "MPI counts end at 2^31 - 1 elements");
            goto done;
        }
    }
    for (int rank = 0; rank < base->size; rank++) { /* operations are alike */
        job->counts[rank] = (int)(operations[0].count / (uint64_t)base->size);
        job->starts[rank] = rank * job->counts[rank];
    }
    *job_out = job;
    job = NULL;
    result = 0;
done:
    mpi_job_release(job);
    return result;
}

static void copy_at_root(const struct mpi_peer *peer, const struct perf_operation *operation)
{
    if (operation->src != operation->dst && peer->base.rank == peer->options->root) {
        memcpy(operation->dst, operation->src,
               operation->count * perf_dtype_bytes(peer->options->dtype));
    }
}

/* What MPI is told to read: in place only root of a reduce or gather says so. A reducescatter in
 * place has its output at the front of its input there, and is not measured. */
static const void *input_of(const struct mpi_peer *peer, const struct perf_operation *operation)
{
    const bool gets =
        !perf_verb_rooted(peer->options->verb) || peer->base.rank == peer->options->root;
    return operation->in_place && gets ? peer->mpi.in_place : operation->src;
}

/* What it is told to write of a scatter, of which root alone is ever in place. */
static void *share_of(const struct mpi_peer *peer, const struct perf_operation *operation)
{
    return operation->in_place ? peer->mpi.in_place : operation->dst;
}

/* The rank that is so many after this one, counted round. */
static int rank_after(const struct mpi_peer *peer, int distance)
{
    return (peer->base.rank + peer->base.size + distance) % peer->base.size;
}

static int run_one(struct perf_job *job)
{
    const struct mpi_library *const mpi = &job->peer->mpi;
    const struct perf_operation *const o = &job->operations[0];
    const int count = (int)o->count, size = job->peer->base.size, root = job->peer->options->root;
    switch (job->peer->options->verb) {
    case HORON_ALLREDUCE:
        return mpi->allreduce(input_of(job->peer, o), o->dst, count, job->type, job->op,
                              mpi->comm_world);
    case HORON_BROADCAST:
        copy_at_root(job->peer, o);
        return mpi->bcast(o->dst, count, job->type, root, mpi->comm_world);
    case HORON_ALLGATHER:
        return mpi->allgather(input_of(job->peer, o), count, job->type, o->dst, count, job->type,
                              mpi->comm_world);
    case HORON_ALLTOALL:
        return mpi->alltoallv(o->src, job->counts, job->starts, job->type, o->dst, job->counts,
                              job->starts, job->type, mpi->comm_world);
    case HORON_GATHER:
        return mpi->gather(input_of(job->peer, o), count, job->type, o->dst, count, job->type, root,
                           mpi->comm_world);
    case HORON_SCATTER:
        return mpi->scatter(o->src, count / size, job->type, share_of(job->peer, o), count / size,
                            job->type, root, mpi->comm_world);
    case HORON_REDUCESCATTER:
        return mpi->reduce_scatter(o->src, o->dst, job->counts, job->type, job->op,
                                   mpi->comm_world);
    case HORON_REDUCE:
        return mpi->reduce(input_of(job->peer, o), o->dst, count, job->type, job->op,
                           job->peer->options->root, mpi->comm_world);
    case HORON_BARRIER:
        return mpi->barrier(mpi->comm_world);
    case HORON_SEND:
        return mpi->sendrecv(o->src, count, job->type, rank_after(job->peer, 1), 0, o->dst, count,
                             job->type, rank_after(job->peer, -1), 0, mpi->comm_world,
                             mpi->statuses_ignore);
    case HORON_RECV:
        break; /* a part of the above */
    }
    return 0;
}

/* A send and a receive: two requests. */
static int start_messages(struct perf_job *job, const struct perf_operation *o, void *request)
{
    const struct mpi_library *const mpi = &job->peer->mpi;
    const int count = (int)o->count, tag = (int)o->index;
    const int code = mpi->irecv(o->dst, count, job->type, rank_after(job->peer, -1), tag,
                                mpi->comm_world, request);
    if (code != 0) {
        return code;
    }
    return mpi->isend(o->src, count, job->type, rank_after(job->peer, 1), tag, mpi->comm_world,
                      (unsigned char *)request + mpi->request_bytes);
}

static int start_one(struct perf_job *job, const struct perf_operation *o, void *request)
{
    const struct mpi_library *const mpi = &job->peer->mpi;
    const int count = (int)o->count, size = job->peer->base.size, root = job->peer->options->root;
    switch (job->peer->options->verb) {
    case HORON_ALLREDUCE:
        return mpi->iallreduce(input_of(job->peer, o), o->dst, count, job->type, job->op,
                               mpi->comm_world, request);
    case HORON_BROADCAST:
        copy_at_root(job->peer, o);
        return mpi->ibcast(o->dst, count, job->type, root, mpi->comm_world, request);
    case HORON_ALLGATHER:
        return mpi->iallgather(input_of(job->peer, o), count, job->type, o->dst, count, job->type,
                               mpi->comm_world, request);
    case HORON_ALLTOALL:
        return mpi->ialltoallv(o->src, job->counts, job->starts, job->type, o->dst, job->counts,
                               job->starts, job->type, mpi->comm_world, request);
    case HORON_GATHER:
        return mpi->igather(input_of(job->peer, o), count, job->type, o->dst, count, job->type,
                            root, mpi->comm_world, request);
    case HORON_SCATTER:
        return mpi->iscatter(o->src, count / size, job->type, share_of(job->peer, o), count / size,
                             job->type, root, mpi->comm_world, request);
    case HORON_REDUCESCATTER:
        return mpi->ireduce_scatter(o->src, o->dst, job->counts, job->type, job->op,
                                    mpi->comm_world, request);
    case HORON_REDUCE:
        return mpi->ireduce(input_of(job->peer, o), o->dst, count, job->type, job->op,
                            job->peer->options->root, mpi->comm_world, request);
    case HORON_SEND:
        return start_messages(job, o, request);
    case HORON_BARRIER:
        return mpi->ibarrier(mpi->comm_world, request);
    case HORON_RECV:
        break;
    }
    return 0;
}

static int run_polled(struct perf_job *job)
{
    const struct mpi_library *const mpi = &job->peer->mpi;
    const int requests = job->peer->options->verb == HORON_SEND ? 2 : 1;
    int done = 0;
    int code = start_one(job, &job->operations[0], job->requests);
    while (code == 0 && !done) {
        code = mpi->testall(requests, job->requests, &done, mpi->statuses_ignore);
    }
    return checked(job->peer, "MPI_Testall", code);
}

static int mpi_job_run(struct perf_job *job)
{
    const struct mpi_library *const mpi = &job->peer->mpi;
    const size_t each = job->peer->options->verb == HORON_SEND ? 2 : 1; /* requests */
    if (job->peer->options->polled && job->n == 1) {
        return run_polled(job);
    }
    if (job->n == 1) {
        return checked(job->peer, perf_verb_word(job->peer->options->verb), run_one(job));
    }
    for (size_t i = 0; i < job->n; i++) {
        void *const request = job->requests + i * each * mpi->request_bytes;
        const int code = start_one(job, &job->operations[i], request);
        if (checked(job->peer, "starting an operation", code) != 0) {
            return -1;
        }
    }
    return checked(job->peer, "MPI_Waitall",
                   mpi->waitall((int)(job->n * each), job->requests, mpi->statuses_ignore));
}

static int mpi_peer_barrier(struct perf_peer *base, int32_t set)
{
    (void)set; /* it has none */
    struct mpi_peer *const peer = (struct mpi_peer *)base;
    return checked(peer, "MPI_Barrier", peer->mpi.barrier(peer->mpi.comm_world));
}

static int mpi_peer_share(struct perf_peer *base, void *data, size_t bytes)
{
    struct mpi_peer *const peer = (struct mpi_peer *)base;
    mpi_handle_t type = 0;
    if (bytes > INT32_MAX || mpi_library_type(&peer->mpi, HORON_UINT8, &type) != 0) {
        return checked(peer, "sharing rank 0's bytes", -1);
    }
    return checked(peer, "MPI_Bcast",
                   peer->mpi.bcast(data, (int)bytes, type, 0, peer->mpi.comm_world));
}

static int mpi_peer_maximum(struct perf_peer *base, double *values, size_t n)
{
    struct mpi_peer *const peer = (struct mpi_peer *)base;
    mpi_handle_t type = 0;
    mpi_handle_t op = 0;
    if (n > INT32_MAX || mpi_library_type(&peer->mpi, HORON_FLOAT64, &type) != 0 ||
        mpi_library_op(&peer->mpi, HORON_FLOAT64, HORON_MAX, &op) != 0) {
        return checked(peer, "collecting the times", -1);
    }
    return checked(
        peer, "MPI_Allreduce",
        peer->mpi.allreduce(peer->mpi.in_place, values, (int)n, type, op, peer->mpi.comm_world));
}

static void mpi_peer_close(struct perf_peer *base, bool failed)
{
    struct mpi_peer *const peer = (struct mpi_peer *)base;
    if (peer == NULL) {
        return;
    }
    if (failed) {
        peer->mpi.abort(peer->mpi.comm_world, 2); /* others may wait for this rank */
    }
    peer->mpi.finalize();
    free(peer);
}

/* MPI itself does. */
static const char *mpi_peer_carrier(const struct perf_peer *base, uint64_t count)
{
    (void)base;
    (void)count;
    return NULL;
}

static const struct perf_peer_ops mpi_peer_ops = {
    .name = "mpi",
    .shares_in_place = false,
    .admit = mpi_peer_admit,
    .divide = mpi_peer_divide,
    .carrier = mpi_peer_carrier,
    .prepare = mpi_job_prepare,
    .run = mpi_job_run,
    .release = mpi_job_release,
    .barrier = mpi_peer_barrier,
    .share = mpi_peer_share,
    .maximum = mpi_peer_maximum,
    .close = mpi_peer_close,
};

static int places_find(struct mpi_peer *peer)
{
    const struct mpi_library *const mpi = &peer->mpi;
    mpi_handle_t host = 0;
    if (checked(peer, "MPI_Comm_rank", mpi->comm_rank(mpi->comm_world, &peer->base.rank)) != 0 ||
        checked(peer, "MPI_Comm_size", mpi->comm_size(mpi->comm_world, &peer->base.size)) != 0 ||
        checked(peer, "MPI_Comm_split_type",
                mpi->comm_split_type(mpi->comm_world, mpi->comm_type_shared, peer->base.rank,
                                     mpi->info_null, &host)) != 0 ||
        checked(peer, "MPI_Comm_rank", mpi->comm_rank(host, &peer->base.local_rank)) != 0 ||
        checked(peer, "MPI_Comm_size", mpi->comm_size(host, &peer->base.local_size)) != 0) {
        return -1;
    }
    return checked(peer, "MPI_Comm_free", mpi->comm_free(&host));
}

/* The first line of the library's version text. */
static void version_find(struct mpi_peer *peer)
{
    char *const text = calloc(1, 8192); /* MPICH writes up to this much */
    int length = 0;
    if (text != NULL && peer->mpi.get_library_version(text, &length) == 0) {
        text[strcspn(text, ",\n")] = '\0';
        snprintf(peer->base.version, sizeof peer->base.version, "%.63s", text);
    }
    for (char *at = peer->base.version; *at != '\0'; at++) {
        if (*at == '\t') {
            *at = ' ';
        }
    }
    free(text);
}

/* horonrun's ranks, and those of another MPI's launcher, are worlds of one to MPI: each would
 * measure itself, and say so with success. */
static int started_apart(const struct mpi_peer *peer, char *why)
{
    static const struct {
        const char *variable, *launcher, *remedy;
    } rows[] = {{"HORON_SIZE", "horonrun", "start it with mpirun"},
                {"OMPI_COMM_WORLD_SIZE", "Open MPI", "name its library with --mpi-library"},
                {"PMI_SIZE", "MPICH's mpiexec or the like (PMI)",
                 "name the launcher's library with --mpi-library"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const text = getenv(rows[i].variable);
        const long size = text != NULL ? strtol(text, NULL, 10) : 1;
        if (size <= 1 || peer->base.size > 1) {
            continue;
        }
        snprintf(why, PERF_TEXT_BYTES, "--peer mpi: MPI sees one rank, %s started %ld: %s",
                 rows[i].launcher, size, rows[i].remedy);
        return -1;
    }
    return 0;
}

/* @return what the call does */
static int begin_mpi(const struct mpi_peer *peer, bool multiple)
{
    enum { MPI_THREAD_MULTIPLE = 3 }; /* in both families */
    int level = 0;
    return multiple ? peer->mpi.init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level)
                    : peer->mpi.init(NULL, NULL);
}

int perf_peer_mpi_open(const struct perf_options *options, struct perf_peer **peer_out, char *why)
{
    struct mpi_peer *peer = calloc(1, sizeof *peer);
    int result = -1;
    if (peer == NULL) {
        snprintf(why, PERF_TEXT_BYTES, "out of memory");
        goto done;
    }
    if (mpi_library_open(&peer->mpi, options->mpi_library, why, PERF_TEXT_BYTES) != 0) {
        goto done;
    }
    if (checked(peer, "MPI_Init", begin_mpi(peer, options->mpi_multiple)) != 0 ||
        places_find(peer) != 0) {
        snprintf(why, PERF_TEXT_BYTES, "%.1000s", peer->base.error);
        goto done;
    }
    if (started_apart(peer, why) != 0) {
        peer->mpi.finalize();
        goto done;
    }
    version_find(peer);
    peer->options = options;
    peer->base.ops = &mpi_peer_ops;
    *peer_out = &peer->base;
    peer = NULL;
    result = 0;
done:
    free(peer);
    return result;
}
