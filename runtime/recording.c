/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline in a file. A thread of its own formats and writes it, as a disk may take long. Every
 * few milliseconds that thread takes the new events from the ring. Where much happens that may be
 * too late. So while a timeline runs, its clock takes the place of the events' clock: the thread
 * that writes events asks it again and again, and once half of the ring is new, moves that half
 * into a larger queue. Without a timeline none of this is there. Nobody waits for the disk: events
 * that find no room are lost, and the file says how many.
 *
 * Each write ends with the end of the array, and the next one begins where that stands, so the file
 * is whole whenever the process ends, however it does.
 */
#include "submit.h"

#include "alloc.h"
#include "clock.h"
#include "observe/timeline.h"
#include "thread.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Of what comes from the ring; events a second are a million or so at most. */
#define QUEUE_MAX ((size_t)1 << 16)
/* With the rank, of ten digits at most, in each place of "%r". */
#define PATH_BYTES_MAX ((size_t)5 * HORON_CONFIG_TEXT_BYTES)
/* Between two writes, so that a trace can be looked at while it is made. */
#define WRITE_MS 20
/* Text that is written before more is formatted. */
#define TEXT_BYTES_MAX ((size_t)1 << 20)

struct told {
    struct horon_event event;
    uint64_t missed; /* before it */
};

struct horon_recording {
    struct horon_context *ctx;
    char path[PATH_BYTES_MAX];
    _Atomic int fd;
    off_t end; /* of what stays in the file */
    struct horon_timeline timeline;
    _Atomic bool mark_cycles;

    atomic_flag reading;               /* guards the four below; nobody waits for it */
    const struct horon_events *events; /* NULL: nothing but the file is there */
    struct horon_event_reader reader;
    uint64_t missed;
    struct told *queue;                     /* [QUEUE_MAX], with one taker: the thread */
    _Alignas(64) _Atomic uint64_t put;      /* so far */
    _Alignas(64) _Atomic uint64_t taken;    /* likewise */
    _Alignas(64) _Atomic uint32_t summoned; /* the thread is to look at once */

    pthread_t thread;
    sem_t begun; /* the beginning of the file is written, or is not */
    _Atomic bool stop;
    _Atomic bool failed;
    struct horon_error error; /* why; of the beginning */
};

/* ---- From the ring to the queue ------------------------------------------------------------- */

/* Takes the events if @p least of them are there, unless another thread is at it. Thread: any. */
static void collect(struct horon_recording *recording, uint64_t least)
{
    if (atomic_flag_test_and_set_explicit(&recording->reading, memory_order_acquire))
        return;
    uint64_t put = atomic_load_explicit(&recording->put, memory_order_relaxed);
    const uint64_t taken = atomic_load_explicit(&recording->taken, memory_order_acquire);
    assert(put - taken <= QUEUE_MAX);
    if (horon_events_behind(recording->events, &recording->reader) >= least) {
        struct told *told = &recording->queue[put % QUEUE_MAX];
        while (put - taken < QUEUE_MAX && horon_events_read(recording->events, &recording->reader,
                                                            &told->event, &recording->missed)) {
            told->missed = recording->missed;
            recording->missed = 0;
            told = &recording->queue[++put % QUEUE_MAX];
        }
        atomic_store_explicit(&recording->put, put, memory_order_release);
    }
    atomic_flag_clear_explicit(&recording->reading, memory_order_release);
}

static bool is_half_full(const struct horon_recording *recording)
{
    return atomic_load_explicit(&recording->put, memory_order_relaxed) -
               atomic_load_explicit(&recording->taken, memory_order_relaxed) >=
           QUEUE_MAX / 2;
}

static void summon(struct horon_recording *recording)
{
    if (atomic_load_explicit(&recording->summoned, memory_order_relaxed) ||
        atomic_exchange(&recording->summoned, 1))
        return;
    syscall(SYS_futex, &recording->summoned, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The clock of the events, while a timeline runs. Thread: owner of the engine. */
static uint64_t look(void *arg)
{
    struct horon_recording *recording = arg;
    collect(recording, HORON_EVENTS_KEPT / 2);
    if (is_half_full(recording))
        summon(recording);
    return horon_clock_ns();
}

/* ---- From the queue to the file ------------------------------------------------------------- */

/* @return 0, or an errno */
static int write_at(int fd, off_t at, const char *text, size_t text_bytes)
{
    const size_t end_bytes = strlen(HORON_TIMELINE_END), all = text_bytes + end_bytes;
    for (size_t done = 0; done < all;) {
        const size_t of_end = done > text_bytes ? done - text_bytes : 0;
        const struct iovec pieces[] = {
            {.iov_base = (void *)(text + (done - of_end)), .iov_len = text_bytes + of_end - done},
            {.iov_base = (char *)HORON_TIMELINE_END + of_end, .iov_len = end_bytes - of_end}};
        const ssize_t written = pwritev(fd, pieces, 2, at + (off_t)done);
        if (written == 0)
            return ENOSPC;
        if (written < 0 && errno != EINTR)
            return errno;
        done += written > 0 ? (size_t)written : 0;
    }
    return 0;
}

/* What was written before stays, and is whole. */
static void fail(struct horon_recording *recording, horon_status_t status, int why)
{
    const int fd = atomic_load(&recording->fd);
    horon_error_set_errno(&recording->error, status, why, "the timeline %s cannot be written",
                          recording->path);
    if (recording->end && ftruncate(fd, recording->end) == 0)
        write_at(fd, recording->end, "", 0);
    atomic_store(&recording->failed, true);
}

static bool write_text(struct horon_recording *recording)
{
    struct horon_timeline *timeline = &recording->timeline;
    if (timeline->lacks_memory) {
        fail(recording, HORON_ERR_MEMORY, ENOMEM);
        return false;
    }
    if (timeline->text_bytes == 0)
        return true;
    const int why =
        write_at(atomic_load(&recording->fd), recording->end, timeline->text, timeline->text_bytes);
    if (why) {
        fail(recording, HORON_ERR_SYSTEM, why);
        return false;
    }
    recording->end += (off_t)timeline->text_bytes;
    timeline->text_bytes = 0;
    return true;
}

/* @return was there anything? */
static bool format_queue(struct horon_recording *recording)
{
    struct horon_timeline *timeline = &recording->timeline;
    const uint64_t put = atomic_load_explicit(&recording->put, memory_order_acquire);
    uint64_t taken = atomic_load_explicit(&recording->taken, memory_order_relaxed);
    const bool any = taken < put;
    timeline->options.mark_cycles = atomic_load(&recording->mark_cycles);
    for (; taken < put && timeline->text_bytes < TEXT_BYTES_MAX; taken++) {
        const struct told *told = &recording->queue[taken % QUEUE_MAX];
        if (told->missed)
            horon_timeline_lose(timeline, told->missed);
        horon_timeline_add(timeline, &told->event);
    }
    atomic_store_explicit(&recording->taken, taken, memory_order_release);
    return any;
}

/* All that is there. @return false: that failed */
static bool write_news(struct horon_recording *recording)
{
    collect(recording, 1);
    while (format_queue(recording)) {
        if (!write_text(recording))
            return false;
        collect(recording, 1);
    }
    return true;
}

static void sleep_a_while(struct horon_recording *recording)
{
    const struct timespec limit = {.tv_nsec = WRITE_MS * 1000000L};
    syscall(SYS_futex, &recording->summoned, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0);
    atomic_store(&recording->summoned, 0);
}

static void *recording_thread(void *arg)
{
    struct horon_recording *recording = arg;
    pthread_setname_np(pthread_self(), "horon-timeline");
    bool good = write_text(recording);
    sem_post(&recording->begun);
    if (!good)
        return NULL;
    while (good && !atomic_load(&recording->stop)) {
        sleep_a_while(recording);
        good = write_news(recording);
    }
    if (good)
        good = write_news(recording); /* what came before the clock was given back */
    if (!good)
        HORON_LOG_WARN(&recording->ctx->log, "%s; it ends here", recording->error.text);
    return NULL;
}

/* ---- Beginning and end ---------------------------------------------------------------------- */

static bool find_name(void *arg, uint32_t team, uint64_t hash, char *text, size_t text_bytes)
{
    const struct horon_context *ctx = arg;
    return horon_names_find(horon_engine_names(ctx->engine), team, hash, text, text_bytes);
}

static void destroy(struct horon_recording *recording)
{
    if (!recording)
        return;
    const int fd = atomic_load(&recording->fd);
    if (fd >= 0)
        close(fd);
    sem_destroy(&recording->begun);
    horon_timeline_deinit(&recording->timeline);
    horon_free(recording->queue);
    horon_free(recording);
}

static horon_status_t cannot_write(const struct horon_recording *recording,
                                   struct horon_error *error)
{
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                 "the timeline %s cannot be written", recording->path);
}

/* Without waiting for a reader, should it be a pipe; that, or a terminal, cannot be written at a
 * place. What is in the file stays until the timeline begins: joining may fail before. */
static horon_status_t open_file(struct horon_recording *recording, struct horon_error *error)
{
    const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    const int fd = open(recording->path, flags, 0666);
    atomic_store(&recording->fd, fd);
    return fd >= 0 && lseek(fd, 0, SEEK_CUR) >= 0 ? HORON_OK : cannot_write(recording, error);
}

/* Its file is open, and nothing of it written. */
static horon_status_t create(struct horon_context *ctx, const char *path, bool mark_cycles,
                             struct horon_recording **recording_out, struct horon_error *error)
{
    struct horon_recording *recording = horon_alloc_lines(sizeof *recording);
    if (!recording)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the timeline %s", path);
    memset(recording, 0, sizeof *recording);
    recording->ctx = ctx;
    snprintf(recording->path, sizeof recording->path, "%s", path);
    atomic_store(&recording->fd, -1);
    atomic_store(&recording->mark_cycles, mark_cycles);
    atomic_flag_clear(&recording->reading);
    sem_init(&recording->begun, 0, 0);
    recording->queue = horon_zalloc(QUEUE_MAX, sizeof *recording->queue);
    horon_status_t status = HORON_OK;
    if (!recording->queue)
        status = horon_error_set(error, HORON_ERR_MEMORY, "no memory for the timeline %s", path);
    if (status == HORON_OK)
        status = open_file(recording, error);
    if (status == HORON_OK)
        *recording_out = recording;
    else
        destroy(recording);
    return status;
}

static horon_status_t start_thread(struct horon_recording *recording, struct horon_error *error)
{
    const int failed = horon_thread_start(&recording->thread, recording_thread, recording);
    if (failed)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, failed,
                                     "cannot start a thread for the timeline");
    while (sem_wait(&recording->begun) != 0) {}
    if (!atomic_load(&recording->failed))
        return HORON_OK;
    pthread_join(recording->thread, NULL);
    *error = recording->error;
    return error->status;
}

static void set_clock(struct horon_context *ctx, struct horon_recording *recording)
{
    horon_token_take(ctx);
    horon_events_set_clock(horon_engine_events(ctx->engine), recording ? look : NULL, recording);
    horon_token_release(ctx);
}

/* With the lock. */
static void end(struct horon_context *ctx)
{
    struct horon_recording *recording = atomic_exchange(&ctx->recording, NULL);
    if (!recording)
        return;
    if (recording->events) {
        set_clock(ctx, NULL);
        atomic_store(&recording->stop, true);
        summon(recording);
        pthread_join(recording->thread, NULL);
    }
    destroy(recording);
}

/* By whatever path: two that write to one file would write over each other. A file that was removed
 * meanwhile is another one. */
static bool writes_to(const struct horon_recording *recording, const char *path)
{
    struct stat ours, file;
    return fstat(atomic_load(&recording->fd), &ours) == 0 && stat(path, &file) == 0 &&
           ours.st_dev == file.st_dev && ours.st_ino == file.st_ino;
}

/* Of the timeline itself, with what is known of its job. */
static void begin_text(struct horon_recording *recording)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    horon_timeline_init(&recording->timeline, &(struct horon_timeline_options){
                                                  .start_ns = horon_clock_ns(),
                                                  .epoch_us = (uint64_t)now.tv_sec * 1000000u +
                                                              (uint64_t)now.tv_nsec / 1000u,
                                                  .rank = recording->ctx->boot.topology.rank,
                                                  .find_name = find_name,
                                                  .arg = recording->ctx,
                                              });
}

/* With the lock. Begins @p recording, and then ends the one that runs, if there is one. If it
 * cannot be begun, it is destroyed, and the one that runs goes on. */
static horon_status_t begin(struct horon_recording *recording, struct horon_error *error)
{
    struct horon_context *ctx = recording->ctx;
    horon_status_t status = HORON_OK;
    begin_text(recording);
    if (ftruncate(atomic_load(&recording->fd), 0) != 0 && errno != EINVAL) /* a device has no end */
        status = cannot_write(recording, error);
    horon_token_take(ctx);
    recording->events = horon_engine_events(ctx->engine);
    recording->reader = horon_events_from_now(recording->events);
    horon_token_release(ctx);
    if (status == HORON_OK)
        status = start_thread(recording, error);
    if (status != HORON_OK) {
        destroy(recording);
        return status;
    }
    end(ctx);
    atomic_store(&ctx->recording, recording);
    set_clock(ctx, recording);
    return HORON_OK;
}

/* With the lock. */
static horon_status_t begin_at(struct horon_context *ctx, const char *path, bool mark_cycles,
                               struct horon_error *error)
{
    struct horon_recording *recording, *old = atomic_load(&ctx->recording);
    if (old && !atomic_load(&old->failed) && writes_to(old, path)) {
        atomic_store(&old->mark_cycles, mark_cycles);
        return HORON_OK;
    }
    const horon_status_t status = create(ctx, path, mark_cycles, &recording, error);
    return status == HORON_OK ? begin(recording, error) : status;
}

/* The path of a rank. @return false: it writes none */
static bool path_of(int rank, const char *given, char path[PATH_BYTES_MAX])
{
    size_t used = 0;
    bool any = false;
    assert(strlen(given) < HORON_CONFIG_TEXT_BYTES);
    for (; *given; given++) {
        const bool is_rank = given[0] == '%' && given[1] == 'r';
        if (is_rank)
            used += (size_t)snprintf(path + used, PATH_BYTES_MAX - used, "%d", rank);
        else
            path[used++] = *given;
        given += is_rank;
        any |= is_rank;
    }
    assert(used < PATH_BYTES_MAX);
    path[used] = 0;
    return any || rank == 0;
}

horon_status_t horon_recording_open(void *context, int rank, struct horon_error *error)
{
    struct horon_context *ctx = context;
    char path[PATH_BYTES_MAX];
    struct horon_recording *recording;
    const char *given = ctx->config.timeline;
    /* Horovod's word for one that begins later */
    if (!given[0] || strcasecmp(given, "dynamic") == 0 || !path_of(rank, given, path))
        return HORON_OK;
    const horon_status_t status = create(ctx, path, ctx->config.timeline_cycles, &recording, error);
    if (status == HORON_OK)
        atomic_store(&ctx->recording, recording);
    return status;
}

horon_status_t horon_recording_begin(struct horon_context *ctx, struct horon_error *error)
{
    pthread_mutex_lock(&ctx->recording_lock);
    struct horon_recording *opened = atomic_exchange(&ctx->recording, NULL);
    const horon_status_t status = opened ? begin(opened, error) : HORON_OK;
    pthread_mutex_unlock(&ctx->recording_lock);
    return status;
}

void horon_recording_end(struct horon_context *ctx)
{
    pthread_mutex_lock(&ctx->recording_lock);
    end(ctx);
    pthread_mutex_unlock(&ctx->recording_lock);
}

void horon_recording_close_in_child(struct horon_context *ctx)
{
    struct horon_recording *recording = atomic_load(&ctx->recording);
    if (recording)
        close(atomic_exchange(&recording->fd, -1));
}

horon_status_t horon_timeline_start(horon_context_t *ctx, const char *path, int32_t mark_cycles)
{
    const horon_status_t status = horon_context_refuse(ctx, false);
    if (status != HORON_OK)
        return status;
    if (!path || !path[0] || strlen(path) >= HORON_CONFIG_TEXT_BYTES)
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID,
                               "the path of a timeline has 1 to %d bytes",
                               HORON_CONFIG_TEXT_BYTES - 1);
    char own[PATH_BYTES_MAX];
    if (!path_of(ctx->boot.topology.rank, path, own))
        return HORON_OK;
    pthread_mutex_lock(&ctx->recording_lock);
    const horon_status_t begun = begin_at(ctx, own, mark_cycles != 0, horon_thread_error());
    pthread_mutex_unlock(&ctx->recording_lock);
    return begun;
}

horon_status_t horon_timeline_stop(horon_context_t *ctx)
{
    const horon_status_t status = horon_context_refuse(ctx, false);
    if (status == HORON_OK)
        horon_recording_end(ctx);
    return status;
}
