/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Birth and death of a context: settings, joining, shared memory, links, engine, progress thread;
 * and all of it in reverse. The struct itself lives until the last request of it is released.
 */
#include "context_state.h"

#include "alloc.h"
#include "backend/mpi_begin.h"
#include "boot/gloo/job.h"
#include "clock.h"
#include "deaths.h"
#include "engine/backends.h"
#include "host/failure_file.h"
#include "reduce/reduce.h"
#include "rings.h"
#include "thread.h"
#include "versions.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long the reason of a failure may find no way to the other hosts, before a rank leaves without
 * having told them; where nothing failed, PEER_TIMEOUT says it. */
#define GOODBYE_MS 1000
/* How many times that long a rank stays at most, as one that takes a byte now and then could keep
 * it for ever. */
#define LEAVE_TIMES 10
/* Of the looks whether all has arrived: the answer of another host is not here sooner. */
#define LEAVE_PAUSE_US 50

static struct horon_host_shape shape_of(const struct horon_config *config, int local_size, int size)
{
    return (struct horon_host_shape){
        .local_size = local_size,
        .small_bytes = (size_t)config->shm_small_bytes,
        .chunk_bytes = horon_host_chunk_bytes((size_t)config->shm_chunk_bytes, size),
    };
}

struct horon_host_shape horon_context_shape(const struct horon_context *ctx, int local_size)
{
    return shape_of(&ctx->config, local_size, ctx->boot.topology.size);
}

static size_t control_bytes(const struct horon_config *config, int local_size)
{
    const struct horon_host_shape shape = {.local_size = local_size};
    (void)config; /* no data lies there */
    return horon_host_control_bytes(&shape);
}

static size_t arena_bytes(const struct horon_config *config, int local_size, int size)
{
    struct horon_host_shape shape = shape_of(config, local_size, size);
    return horon_engine_arena_at(&shape, HORON_LANE_COUNT);
}

static void ring_doorbell(void *arg, int local_rank)
{
    struct horon_context *ctx = arg;
    assert(local_rank >= 0 && local_rank < ctx->host.shape.local_size);
    horon_doorbell_ring(ctx->boot.local[local_rank].doorbell);
}

static uint64_t read_clock(void *arg)
{
    (void)arg;
    return horon_clock_ns();
}

void horon_context_ref(struct horon_context *ctx)
{
    atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
}

void horon_context_unref(struct horon_context *ctx)
{
    const uint32_t before = atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel);
    assert(before >= 1);
    if (before != 1)
        return;
    assert(!horon_life_has_thread(&ctx->life));
    horon_process_sets_deinit(ctx);
    /* In the child of a fork the links lie in memory that the parent's peers read, too. */
    if (!horon_life_is_forked(&ctx->life)) {
        horon_engine_destroy(ctx->engine);
        horon_request_pool_deinit(&ctx->pool);
    }
    horon_free(ctx);
}

/* ---- requests, as the engine lets go of them ------------------------------------------------ */

void horon_request_unref(struct horon_request *request)
{
    /* the last reference is nobody else's to count */
    uint32_t before = atomic_load_explicit(&request->refs, memory_order_acquire);
    if (before != 1)
        before = atomic_fetch_sub_explicit(&request->refs, 1, memory_order_acq_rel);
    assert(before >= 1);
    if (before != 1)
        return;
    struct horon_context *ctx = request->context;
    horon_request_destroy(&ctx->pool, request, horon_engine_names(ctx->engine));
    horon_context_unref(ctx);
}

/* The engine is done with it. One of horon_run() has no other reference but its caller's, which
 * waits until this one is gone. */
static void request_ended(struct horon_request *request)
{
    if (request->context)
        horon_request_unref(request);
    else
        atomic_store_explicit(&request->refs, 1, memory_order_release);
}

/* For the launcher, which would take this rank for the cause. In a job of some of its ranks these
 * have other numbers, and the launcher is told nothing. */
static void tell_launcher(const struct horon_context *ctx, const struct horon_error *why)
{
    if (!ctx->config.ranks[0] && !ctx->of_communicator)
        horon_failure_file_write(ctx->config.failure_file, why);
}

/* MPI's world may miss a rank then, whatever carried the job's operations; but not where a rank
 * left that another one waits for. */
static void job_failed(void *arg, const struct horon_error *why)
{
    if (why->blame.cause != HORON_CAUSE_LEFT)
        horon_mpi_doubt();
    tell_launcher(arg, why);
}

/* ---- birth ---------------------------------------------------------------------------------- */

static void set_up_log(struct horon_context *ctx, const horon_options_t *options)
{
    ctx->log.fn = options->log_fn;
    ctx->log.arg = options->log_arg;
    ctx->log.level = (horon_log_level_t)ctx->config.log_level;
    ctx->log.rank = -1;
    gethostname(ctx->log.host, sizeof ctx->log.host - 1);
}

/* Enough to tell the ranks of the host something. */
static void see_host(struct horon_context *ctx)
{
    const struct horon_topology *topology = &ctx->boot.topology;
    assert(topology->rank >= 0 && topology->rank < topology->size);
    int host = topology->host_of[topology->rank];
    ctx->host.shape = horon_context_shape(ctx, horon_topology_host_size(topology, host));
    ctx->host.generation = HORON_GENERATION_FIRST;
    horon_host_see_control(&ctx->host, ctx->boot.control.base,
                           topology->local_rank_of[topology->rank]);
    ctx->host.doorbell = ring_doorbell;
    ctx->host.doorbell_arg = ctx;
}

static horon_status_t set_up_host(struct horon_context *ctx)
{
    see_host(ctx);
    size_t local_size = (size_t)ctx->host.shape.local_size;
    ctx->arenas = horon_zalloc(local_size, sizeof *ctx->arenas);
    ctx->rings = horon_zalloc(local_size, sizeof *ctx->rings);
    ctx->dead = horon_zalloc(local_size, sizeof *ctx->dead);
    if (!ctx->arenas || !ctx->rings || !ctx->dead || horon_process_sets_init(ctx) != HORON_OK)
        return HORON_ERR_MEMORY;
    for (size_t i = 0; i < local_size; i++)
        ctx->arenas[i] = ctx->boot.local[i].arena.base;
    ctx->host.arenas = ctx->arenas;
    horon_rings_see_readable(ctx, &ctx->host);
    ctx->doorbell = ctx->boot.local[ctx->host.local_rank].doorbell;
    ctx->crowded = horon_topology_is_crowded(&ctx->boot.topology);
    return HORON_OK;
}

horon_status_t horon_context_make_ring(struct horon_host *host, int peer,
                                       struct horon_context_ring *ring,
                                       struct horon_link **link_out)
{
    const int self = host->local_rank;
    assert((peer == 0) != (self == 0)); /* the host's first has all of them */
    const int member = self == 0 ? peer : self;
    horon_rings_aim(host, peer, ring);
    return horon_link_ring_create(horon_host_ring(host, member, self != 0),
                                  horon_host_ring(host, member, self == 0), HORON_RING_DATA_BYTES,
                                  &ring->wake, link_out);
}

static horon_status_t make_links(struct horon_context *ctx, struct horon_link **links,
                                 struct horon_error *error)
{
    const struct horon_topology *topology = &ctx->boot.topology;
    horon_status_t status = HORON_OK;
    int host = topology->host_of[topology->rank];
    for (int rank = 0; rank < topology->size && status == HORON_OK; rank++) {
        struct horon_proven *proven = &ctx->boot.proven[rank];
        if (proven->fd >= 0) {
            status = horon_proven_open_link(proven, ctx->config.peer_timeout_ms, ctx->wrap,
                                            &links[rank], error);
            explicit_bzero(proven, sizeof *proven);
            proven->fd = -1; /* the link's now */
            continue;
        }
        const int local_rank = topology->local_rank_of[rank];
        bool tied = horon_topology_parent(topology, rank) == topology->rank ||
                    horon_topology_parent(topology, topology->rank) == rank;
        if (rank == topology->rank || !tied || topology->host_of[rank] != host)
            continue;
        status =
            horon_context_make_ring(&ctx->host, local_rank, &ctx->rings[local_rank], &links[rank]);
        if (status == HORON_OK)
            horon_rings_lend(ctx, local_rank, links[rank]);
    }
    return status;
}

static horon_status_t make_engine(struct horon_context *ctx, struct horon_error *error)
{
    size_t size = (size_t)ctx->boot.topology.size;
    struct horon_link **links = horon_zalloc(size, sizeof *links);
    if (!links)
        return HORON_ERR_MEMORY;
    struct horon_engine_options options = {
        .config = &ctx->config,
        .topology = &ctx->boot.topology,
        .host = &ctx->host,
        .links = links,
        .gloo_era = ctx->boot.gloo_era,
        .generation = HORON_GENERATION_FIRST,
        .owner = &ctx->owner,
        .now_ns = read_clock,
        .log = &ctx->log,
        .launcher = ctx->boot.launcher,
        .wake_waiters = horon_waiters_wake,
        .failed = job_failed,
        .posted = &ctx->posted,
        .landed = &ctx->landed,
        .ended = request_ended,
        .release = horon_request_unref,
        .finish_later = horon_callback_push,
        .connect = ctx->boot.gloo_era ? NULL : horon_connect_to,
        .make_arenas = horon_teams_make_arenas,
        .arg = ctx,
    };
    horon_status_t status = horon_poller_create(&ctx->owner, &ctx->poller, error);
    options.poller = ctx->poller;
    if (status == HORON_OK)
        status = make_links(ctx, links, error);
    if (status == HORON_OK) {
        horon_owner_take(&ctx->owner);
        status = horon_engine_create(&options, &ctx->engine, error);
        horon_owner_give(&ctx->owner);
    } else {
        for (size_t i = 0; i < size; i++)
            if (links[i])
                links[i]->ops->destroy(links[i]);
    }
    horon_free(links);
    return status;
}

static void on_links(void *arg, int fd, int events)
{
    struct horon_context *ctx = arg;
    (void)fd; /* the thread now takes the token, and the engine asks the poller which they are */
    (void)events;
    ctx->woken_by_links = true;
}

static horon_status_t make_loop(struct horon_context *ctx, struct horon_error *error)
{
    int local_size = ctx->host.shape.local_size;
    horon_status_t status = horon_loop_create(ctx->doorbell, local_size + 3, &ctx->loop, error);
    if (status != HORON_OK)
        return status;
    horon_deaths_watch(ctx);
    ctx->poller_watch =
        horon_loop_add(ctx->loop, horon_poller_descriptor(ctx->poller), on_links, ctx);
    status = horon_late_bell_begin(ctx, error);
    return status == HORON_OK ? horon_connect_begin(ctx, error) : status;
}

static horon_status_t start_thread(struct horon_context *ctx, struct horon_error *error)
{
    sem_init(&ctx->thread_begun, 0, 0);
    const int failed = horon_thread_start(&ctx->thread, horon_progress_thread, ctx);
    if (failed)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, failed,
                                     "cannot start the progress thread (is there memory for it; do "
                                     "ulimit -u and the cgroup's pids.max allow another thread?)");
    while (sem_wait(&ctx->thread_begun) != 0)
        continue;
    horon_life_move(&ctx->life, HORON_LIFE_RUNNING);
    return HORON_OK;
}

static void tear_down(struct horon_context *ctx)
{
    if (horon_life_has_thread(&ctx->life)) {
        horon_life_move(&ctx->life, HORON_LIFE_STOPPING);
        horon_doorbell_ring(ctx->doorbell);
        pthread_join(ctx->thread, NULL);
        sem_destroy(&ctx->thread_begun);
    }
    horon_life_move(&ctx->life, HORON_LIFE_OVER);
    horon_recording_end(ctx);
    horon_fork_unregister(ctx);
    horon_loop_destroy(ctx->loop);
    horon_owner_take(&ctx->owner); /* the token's thread is gone: what closes is this one's */
    horon_engine_close(ctx->engine);
    horon_poller_destroy(ctx->poller);
    ctx->poller = NULL;
    horon_teams_deinit(ctx);
    horon_rings_deinit(ctx);
    horon_connect_unwatch(ctx);
    horon_owner_give(&ctx->owner);
    horon_callbacks_run(ctx); /* of what another thread submitted while this one tore down */
    horon_late_bell_close(ctx);
    horon_boot_deinit(&ctx->boot);
    horon_free(ctx->arenas);
    horon_free(ctx->rings);
    horon_free((void *)ctx->dead);
}

/* As long as the others take what was said to them, however slow the way is: what they have not
 * taken when the links close is lost to them as soon as they send something themselves. Meanwhile
 * what they send is read, so that they can go on. */
static void leave(struct horon_context *ctx)
{
    const bool failed = horon_engine_failure(ctx->engine) != NULL;
    const int64_t patience_ms = failed ? GOODBYE_MS : ctx->config.peer_timeout_ms;
    const uint64_t last = horon_clock_deadline(horon_clock_ns(), LEAVE_TIMES * patience_ms);
    uint64_t deadline = 0;
    size_t left, least = SIZE_MAX;
    assert(patience_ms > 0);
    horon_token_take(ctx);
    horon_engine_leave(ctx->engine);
    horon_connect_end(ctx); /* a rank whose connection is closed hears why */
    while ((left = horon_engine_undelivered(ctx->engine)) > 0) {
        const uint64_t now = horon_clock_ns();
        if (left < least)
            deadline = horon_clock_deadline(now, patience_ms);
        least = left < least ? left : least;
        if (now >= deadline || now >= last)
            break;
        horon_deaths_report(ctx); /* a dead rank needs no goodbye */
        if (!horon_engine_progress(ctx->engine))
            usleep(LEAVE_PAUSE_US);
    }
    horon_token_release(ctx);
}

/* Leaves the job, and gives back what the context has of it. */
static void end(struct horon_context *ctx)
{
    if (horon_life_now(&ctx->life) != HORON_LIFE_CLOSED) /* as it is at exit */
        horon_life_move(&ctx->life, HORON_LIFE_CLOSED);
    HORON_LOG_DEBUG(&ctx->log, "leaving the job, with %u requests in flight",
                    (unsigned)(atomic_load(&ctx->posted) - atomic_load(&ctx->landed)));
    leave(ctx);
    if (horon_mpi_ends_after(ctx))
        horon_deaths_tell_mpi(ctx);
    tear_down(ctx);
    HORON_LOG_DEBUG(&ctx->log, "the context is closed");
}

static void log_ready(const struct horon_context *ctx, uint64_t begun_ns)
{
    HORON_LOG_DEBUG(&ctx->log,
                    "set up a lane for named operations, in batches of up to %lld bytes with %lld "
                    "tensors remembered, and one for those in order",
                    (long long)ctx->config.fusion_bytes, (long long)ctx->config.cache_entries);
    HORON_LOG_DEBUG(&ctx->log, "the context is ready after %.1f ms",
                    (double)(horon_clock_ns() - begun_ns) / 1e6);
}

/* The others may have joined, with this rank, and would wait for it. On other hosts they see its
 * connections close. */
static void post_failure(void *context, horon_status_t status, const char *why)
{
    struct horon_context *ctx = context;
    const struct horon_topology *topology = &ctx->boot.topology;
    struct horon_error error;
    see_host(ctx);
    horon_mpi_doubt(); /* as the others do, whose job fails */
    horon_error_set(&error, status, "rank %d (%s) could not create its context: %.800s",
                    topology->rank, topology->host_name[topology->host_of[topology->rank]],
                    why[0] ? why : horon_status_text(status));
    horon_error_blame(&error, HORON_CAUSE_ABSENT, topology->rank, -1);
    horon_host_post_abort(&ctx->host, &error);
}

static horon_status_t prepare_backends(void *context, const struct horon_launcher *launcher,
                                       int size, struct horon_error *error)
{
    const struct horon_context *ctx = context;
    struct horon_backend_settings settings =
        horon_engine_backend_settings(&ctx->config, launcher, size);
    settings.context = ctx;
    return horon_backends_prepare(horon_backends, horon_backend_count, &settings, error);
}

static void give_up_backends(const struct horon_context *ctx)
{
    horon_backends_give_up(horon_backends, horon_backend_count, ctx, &ctx->log);
}

/* If the caller has chosen ranks, the variables tell of others. Among Gloo's ranks nobody says
 * which of them share a host: none counts as doing so, and what a launcher tells of it is not
 * wrong. */
static void warn_of_unheeded(const struct horon_context *ctx, const horon_options_t *options)
{
    int found[HORON_CONFIG_PLACES] = {horon_rank(ctx),       horon_size(ctx),
                                      horon_local_rank(ctx), horon_local_size(ctx),
                                      horon_cross_rank(ctx), horon_cross_size(ctx)};
    for (int i = 2; ctx->boot.gloo_era && i < HORON_CONFIG_PLACES; i++)
        found[i] = -1;
    const bool chosen = options->rank != -1 || options->mpi_comm || ctx->config.ranks[0];
    horon_config_warn_unheeded(&ctx->log, chosen ? NULL : found);
}

/* Of a job among Gloo's ranks, before one of them meets this rank. Others hear the reason from a
 * rank that is refused while they join, and these would not. */
static horon_status_t check_backends(const struct horon_config *config, struct horon_error *error)
{
    struct horon_backends ignored;
    return config->gloo_store[0] ? horon_engine_order_backends(config, &ignored, error) : HORON_OK;
}

static horon_status_t join(struct horon_context *ctx, const horon_options_t *options,
                           struct horon_error *error)
{
    const uint64_t begun_ns = horon_clock_ns();
    const struct horon_boot_caller caller = {.control_bytes = control_bytes,
                                             .arena_bytes = arena_bytes,
                                             .host_ranks_max = HORON_REDUCE_INPUTS_MAX,
                                             .slow_ns = HORON_BOOT_SLOW_NS,
                                             .interrupted = options->interrupted,
                                             .interrupted_arg = options->interrupted_arg,
                                             .hold_forks = horon_fork_hold,
                                             .release_forks = horon_fork_release,
                                             .wrap = ctx->wrap,
                                             .get_ready = horon_recording_open,
                                             .given_up = post_failure,
                                             .prepare = prepare_backends,
                                             .arg = ctx,
                                             .mpi_comm = options->mpi_comm};
    horon_boot_init(&ctx->boot);
    horon_status_t status = horon_fork_register(ctx);
    if (status != HORON_OK)
        return status;
    status = check_backends(&ctx->config, error);
    if (status == HORON_OK)
        status = (ctx->config.gloo_store[0] ? horon_gloo_boot : horon_boot)(
            &ctx->boot, options->rank, options->size, &ctx->config, &caller, &ctx->log, error);
    explicit_bzero(ctx->config.job_key, sizeof ctx->config.job_key); /* joining alone needs it */
    horon_thread_forget(); /* only now: interrupted() may have called horon */
    if (status != HORON_OK) {
        horon_thread_error_host(ctx->boot.blamed_host);
        give_up_backends(ctx);
        horon_recording_end(ctx);
        horon_fork_unregister(ctx);
        return status;
    }
    ctx->log.rank = ctx->boot.topology.rank;
    status = set_up_host(ctx);
    if (status == HORON_OK)
        status = make_engine(ctx, error);
    if (status == HORON_OK)
        status = make_loop(ctx, error);
    horon_boot_settle(&ctx->boot); /* the sockets are the engine's */
    if (status == HORON_OK)
        status = horon_recording_begin(ctx, error);
    if (status == HORON_OK)
        status = start_thread(ctx, error);
    if (status != HORON_OK) {
        post_failure(ctx, status, error->text);
        give_up_backends(ctx);
        tear_down(ctx);
    }
    if (status == HORON_OK) {
        if (ctx->boot.topology.rank == 0) /* once a job: all ranks have much the same */
            warn_of_unheeded(ctx, options);
        log_ready(ctx, begun_ns);
    }
    return status;
}

static horon_status_t take_options(const horon_options_t *given, horon_options_t *options,
                                   struct horon_error *error)
{
    *options = (horon_options_t)HORON_OPTIONS_INIT;
    if (!given)
        return HORON_OK;
    return horon_struct_take("options", given, offsetof(horon_options_t, interrupted), options,
                             sizeof *options, error);
}

horon_status_t horon_context_create_wrapped(const horon_options_t *given, horon_link_wrap_fn_t wrap,
                                            horon_context_t **ctx_out, struct horon_error *error)
{
    horon_options_t options;
    if (!ctx_out)
        return horon_error_set(error, HORON_ERR_INVALID, "ctx_out is NULL");
    horon_status_t status = take_options(given, &options, error);
    if (status != HORON_OK)
        return status;
    struct horon_context *ctx = horon_alloc_lines(sizeof *ctx);
    if (!ctx)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a context");
    memset(ctx, 0, sizeof *ctx);
    atomic_store(&ctx->refs, 1);
    pthread_mutex_init(&ctx->recording_lock, NULL);
    ctx->wrap = wrap;
    ctx->late_bell.timer = -1;
    ctx->of_communicator = options.mpi_comm != NULL;
    horon_request_pool_init(&ctx->pool);
    status = horon_config_load(&ctx->config, options.settings, NULL, error);
    if (status == HORON_OK) {
        ctx->pool.limit = (size_t)ctx->config.inflight_max;
        set_up_log(ctx, &options);
        horon_config_warn_unknown(&ctx->log); /* joining may fail for what one did not say */
        horon_config_warn_without_gloo(&ctx->config, &ctx->log); /* likewise */
        status = join(ctx, &options, error);
    }
    if (status == HORON_OK && ctx->config.process_sets[0]) {
        status = horon_process_sets_add_static(ctx, error);
        if (status != HORON_OK)
            end(ctx);
    }
    if (status != HORON_OK) {
        if (!error->text[0])
            horon_error_set(error, status, "no memory for a context");
        tell_launcher(ctx, error);
        horon_context_unref(ctx);
        return status;
    }
    *ctx_out = ctx;
    return HORON_OK;
}

horon_status_t horon_context_create(const horon_options_t *options, horon_context_t **ctx_out,
                                    char *error_text, size_t error_bytes)
{
    struct horon_error error = {0};
    horon_thread_forget();
    horon_status_t status = horon_context_create_wrapped(options, NULL, ctx_out, &error);
    if (status == HORON_ERR_TIMEOUT || status == HORON_ERR_PEER_LOST)
        error.blame.cause = HORON_CAUSE_ABSENT;
    if (status != HORON_OK)
        *horon_thread_error() = error;
    else
        horon_error_clear(&error); /* tries that failed before it did have left their words */
    horon_error_copy_text(&error, error_text, error_bytes);
    return status;
}

/* ---- death ---------------------------------------------------------------------------------- */

void horon_context_destroy(horon_context_t *ctx)
{
    if (!ctx)
        return;
    if (!horon_life_is_forked(&ctx->life))
        end(ctx);
    horon_context_unref(ctx);
}
