/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend that stands on MPI: nonblocking collectives on a communicator of each lane, advanced
 * by the thread that holds the progress token. It is used where the setting BACKEND names it, and
 * MPI lets any thread make calls: at any time (MPI_THREAD_MULTIPLE), or one of them, and the
 * program keeps out of it (SERIALIZED; mpi_state.h says how). With less, only the thread that
 * began MPI may call it, and does while it is inside horon: what is in flight stands still while
 * that one computes, whatever other threads wait for. It cannot wait for ranks that make a
 * communicator, so there are copies of the world: it carries a job that is all of it, in its order.
 *
 * mpi_run.c carries an operation out, and says where MPI works on it. Nothing wakes a thread for
 * MPI: mpi_looks.c says when to look.
 */
#include "backend/mpi_gate.h"
#include "backend/mpi_shut.h"
#include "backend/mpi_state.h"

#include "alloc.h"
#include "clock.h"
#include "log.h"

#include <stdio.h>
#include <string.h>

/* Between two turns where nothing is in flight here. */
#define SETTLE_MIN_NS UINT64_C(20000)
#define SETTLE_MAX_NS UINT64_C(1000000000)
/* The least that an MPI must take as a tag. */
#define TAG_MAX 32767

static struct horon_mpi_channel *channel_of(struct horon_backend_channel *base)
{
    return (struct horon_mpi_channel *)(void *)base;
}

/* ---- of a context ---------------------------------------------------------------------------- */

static void say_left_out(const struct horon_log *log)
{
    HORON_LOG_WARN(log, "MPI_Finalize() is left out, as ranks might wait there");
}

/* What the program has begun it ends itself, or mpi4py as Python exits. */
static void say_how_it_ends(const struct horon_mpi_context *context)
{
    if (context->library->began)
        say_left_out(context->log);
    else if (context->library->size > 1)
        HORON_LOG_WARN(context->log, "the program's MPI_Finalize() may wait for ever, as ranks may "
                                     "be gone, or at what this one has given up: end without it");
}

static struct horon_mpi_wanted wanted_by(const struct horon_backend_settings *settings)
{
    return (struct horon_mpi_wanted){.file = settings->mpi_library,
                                     .launcher = settings->launcher,
                                     .size = settings->launched,
                                     .serialized = settings->mpi_serialized};
}

/* What it cannot use it does without, if open() finds it so, too. */
static horon_status_t mpi_prepare(const struct horon_backend_settings *settings,
                                  struct horon_error *error)
{
    const struct horon_mpi_wanted wanted = wanted_by(settings);
    const horon_status_t status = horon_mpi_begin(&wanted, settings->context, error);
    return status == HORON_ERR_UNSUPPORTED ? HORON_OK : status;
}

static void mpi_give_up(const void *context, const struct horon_log *log)
{
    if (horon_mpi_give_up(context))
        say_left_out(log);
}

static horon_status_t mpi_open(const struct horon_backend *backend,
                               const struct horon_backend_settings *settings,
                               const struct horon_log *log,
                               struct horon_backend_context **context_out,
                               struct horon_error *error)
{
    const struct horon_mpi_wanted wanted = wanted_by(settings);
    struct horon_mpi_context *context = horon_zalloc(1, sizeof *context);
    if (!context)
        return HORON_ERR_MEMORY;
    const horon_status_t status =
        horon_mpi_take(&wanted, settings->context, &context->library, error);
    if (status != HORON_OK) {
        horon_free(context);
        return status;
    }
    context->base = (struct horon_backend_context){.backend = backend, .version = 1};
    context->log = log;
    context->base.is_bound = context->library->level < HORON_MPI_SERIALIZED;
    context->base.thread = pthread_self(); /* the main one, if it matters */
    context->serialized = context->library->level <= HORON_MPI_SERIALIZED;
    context->keeps_out = settings->mpi_serialized;
    if (!context->base.is_bound) /* else nobody moves anything while the main thread ends MPI */
        horon_mpi_gate_await(settings->posted, settings->landed, settings->in_flight, log);
    *context_out = &context->base;
    HORON_LOG_INFO(log, "MPI: %s (%s), rank %d of %d, %s", context->library->version,
                   context->library->file, context->library->rank, context->library->size,
                   context->library->began ? "begun by horon" : "begun by the program");
    return HORON_OK;
}

static void leave_making(struct horon_mpi_context *context, struct horon_mpi_making **making)
{
    context->base.gave_up |= *making != NULL;
    context->left_making |= horon_mpi_making_leave(*making);
    *making = NULL;
}

/* MPI serves one context at a time, and ends with the process if none has it. */
static void mpi_leave(struct horon_backend_context *base, bool in_peace)
{
    struct horon_mpi_context *context = (struct horon_mpi_context *)(void *)base;
    assert(!context->channels);
    horon_mpi_gate_await(NULL, NULL, NULL, NULL);
    leave_making(context, &context->making);
    const bool stays = context->base.gave_up || !in_peace;
    if (!stays)
        horon_mpi_keep_comms(context->library, context->comms, HORON_MPI_SERIALIZED_CHANNELS);
    if (stays && !horon_mpi_has_ended(context->library))
        say_how_it_ends(context);
    if (context->left_making) /* the next context's communicators would meet that thread's */
        horon_mpi_shut();
    horon_mpi_end(stays);
}

static void mpi_close(struct horon_backend_context *base)
{
    horon_free(base);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static bool mpi_usable(const struct horon_backend_context *base, const struct horon_team *team,
                       char *why, size_t why_bytes)
{
    const struct horon_mpi_context *context = (const struct horon_mpi_context *)(const void *)base;
    const struct horon_mpi_library *library = context->library;
    if (library->level == HORON_MPI_SERIALIZED && !context->keeps_out)
        snprintf(why, why_bytes,
                 "MPI was begun for calls of one thread at a time (MPI_THREAD_SERIALIZED): set "
                 "HORON_MPI_SERIALIZED=1 if the program makes none meanwhile, or begin it with "
                 "MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)");
    else if (context->serialized && team->ranks)
        snprintf(why, why_bytes, "with MPI_THREAD_%s it carries no process set's operations",
                 context->base.is_bound ? "SINGLE or FUNNELED" : "SERIALIZED");
    else if (context->base.is_bound && (library->size != team->size || library->rank != team->rank))
        snprintf(why, why_bytes,
                 "with MPI_THREAD_SINGLE or FUNNELED it carries a job of all ranks of MPI alone, "
                 "in their order");
    else if (library->size < team->size)
        snprintf(why, why_bytes, "MPI has %d ranks, and the team %d", library->size, team->size);
    else if (horon_mpi_has_ended(library))
        snprintf(why, why_bytes, "MPI has ended");
    else
        return true;
    return false;
}

/* Of which mpi_run.c has code. */
static const bool verbs[HORON_VERB_COUNT] = {
    [HORON_ALLREDUCE] = true, [HORON_BROADCAST] = true,     [HORON_ALLGATHER] = true,
    [HORON_BARRIER] = true,   [HORON_ALLTOALL] = true,      [HORON_GATHER] = true,
    [HORON_SCATTER] = true,   [HORON_REDUCESCATTER] = true, [HORON_REDUCE] = true};

static bool mpi_has(const struct horon_backend *backend, uint32_t version,
                    const struct horon_signature *agreed)
{
    (void)backend, (void)version;
    return verbs[agreed->verb] && horon_backend_fits_host(agreed);
}

/* ---- of a lane ------------------------------------------------------------------------------- */

static void unlist(struct horon_mpi_channel *channel)
{
    struct horon_mpi_channel **at = &channel->context->channels;
    while (*at && *at != channel)
        at = &(*at)->next;
    if (*at)
        *at = channel->next;
}

/* What MPI may be using when the channel is given up is never freed. */
static void free_memory(struct horon_mpi_channel *channel)
{
    horon_free(channel->requests);
    horon_free(channel->words);
    horon_free(channel->counts);
    horon_free(channel->work.at);
    horon_free(channel->scratch.at);
}

/* MPI tells what is in flight on a communicator by a number, which it uses again once the ranks
 * have freed it: what other ranks have in flight would meet what is made then. */
static void mpi_destroy(struct horon_backend_channel *base)
{
    struct horon_mpi_channel *channel = base ? channel_of(base) : NULL;
    if (!channel)
        return;
    struct horon_mpi_context *context = channel->context;
    leave_making(context, &channel->making);
    if (!channel->given_up) {
        const bool own = channel->connected && !context->serialized && !base->unsettled;
        if (own && !horon_mpi_is_shut() && horon_mpi_gate_enter()) {
            horon_mpi_calls_of(channel)->comm_free(&channel->comm);
            horon_mpi_gate_leave();
        }
        free_memory(channel);
    }
    unlist(channel);
    horon_free(channel->give_at);
    horon_free(channel);
}

static horon_status_t mpi_create(struct horon_backend_context *base,
                                 const struct horon_channel_options *options,
                                 const struct horon_team *team, struct horon_host *host, int device,
                                 uint64_t *address, struct horon_backend_channel **channel_out)
{
    struct horon_mpi_context *context = (struct horon_mpi_context *)(void *)base;
    const size_t size = (size_t)team->size;
    struct horon_mpi_channel *channel = horon_zalloc(1, sizeof *channel);
    (void)host, (void)device;
    if (!channel)
        return HORON_ERR_MEMORY;
    /* All ranks have begun what MPI works on, so it ends; or it is given up, and MPI is shut. */
    const bool busy = context->direct > 0;
    context->awaited = busy;
    const uint32_t last = context->serialized ? HORON_MPI_SERIALIZED_CHANNELS - 1 : TAG_MAX;
    /* What a thread may be making for ever Open MPI makes before all that comes behind it. */
    const bool over =
        horon_mpi_is_shut() || context->left_making || horon_mpi_has_ended(context->library);
    if (over || busy || options->channel > last) {
        horon_free(channel);
        return busy && !over ? HORON_IN_PROGRESS : HORON_ERR_UNSUPPORTED;
    }
    channel->base.backend = base->backend;
    channel->context = context;
    channel->team = team;
    channel->tag = (int)options->channel;
    channel->looks.due_ns = horon_clock_ns();
    channel->requests = horon_zalloc(2 * size, context->library->family->handle_bytes);
    channel->words = horon_zalloc(2 * size, sizeof *channel->words);
    channel->give_at = horon_zalloc(2 * (size + 1), sizeof *channel->give_at);
    channel->counts = horon_zalloc(2 * size, sizeof *channel->counts);
    if (!channel->requests || !channel->words || !channel->give_at || !channel->counts) {
        mpi_destroy(&channel->base);
        return HORON_ERR_MEMORY;
    }
    channel->take_at = channel->give_at + size + 1;
    channel->starts = channel->counts + size;
    channel->next = context->channels;
    context->channels = channel;
    address[0] = 1 + (uint64_t)context->library->rank;
    *channel_out = &channel->base;
    return HORON_OK;
}

/* Their ranks in the world, each of which is there once. */
static horon_status_t begin_to_connect(struct horon_mpi_channel *channel, const uint64_t *addresses,
                                       struct horon_error *error)
{
    const struct horon_mpi_library *library = channel->context->library;
    const int size = channel->team->size;
    for (int rank = 0; rank < size; rank++) {
        bool known = addresses[rank] >= 1 && addresses[rank] <= (uint64_t)library->size;
        for (int other = 0; other < rank && known; other++)
            known = addresses[other] != addresses[rank];
        if (!known)
            return horon_error_set(error, HORON_ERR_SYSTEM, "%s is no other rank of this MPI job",
                                   channel->team->rank_names[rank]);
        channel->counts[rank] = (int)(addresses[rank] - 1);
    }
    if (channel->context->base.is_bound)
        return horon_mpi_copying_begin(library, HORON_MPI_SERIALIZED_CHANNELS,
                                       &channel->context->making, error);
    if (channel->context->serialized)
        return horon_mpi_making_begin(library, channel->counts, size, 0,
                                      HORON_MPI_SERIALIZED_CHANNELS, &channel->context->making,
                                      error);
    return horon_mpi_making_begin(library, channel->counts, size, channel->tag, 1, &channel->making,
                                  error);
}

/* Two that connect in another order on another rank begin to make the same ones there. */
static horon_status_t take_comm(struct horon_mpi_channel *channel, struct horon_error *error)
{
    struct horon_mpi_context *context = channel->context;
    if (!context->serialized)
        return horon_mpi_making_end(&channel->making, &channel->comm, error);
    horon_status_t status = HORON_OK;
    if (!context->comms[channel->tag])
        status = horon_mpi_making_end(&context->making, context->comms, error);
    channel->comm = context->comms[channel->tag];
    return status;
}

static horon_status_t say_ended(struct horon_error *error)
{
    return horon_error_set(
        error, HORON_ERR_CLOSED,
        "MPI was ended by the program, and this context takes nothing more: call "
        "MPI_Finalize() after horon_context_destroy(), or make a new context");
}

static horon_status_t mpi_connect(struct horon_backend_channel *base, const uint64_t *addresses,
                                  bool *moved_out, struct horon_error *error)
{
    struct horon_mpi_channel *channel = channel_of(base);
    horon_status_t status = HORON_OK;
    if (channel->failed_ns)
        return horon_mpi_held_back(channel, error);
    if (!horon_mpi_may_call(channel->context))
        return HORON_IN_PROGRESS;
    if (!horon_mpi_gate_enter()) /* since create(), perhaps */
        return say_ended(error);
    const bool made = channel->context->serialized && channel->context->comms[channel->tag];
    if (!channel->making && !channel->context->making && !made)
        status = begin_to_connect(channel, addresses, error);
    if (status == HORON_OK)
        status = take_comm(channel, error);
    horon_mpi_gate_leave();
    if (status != HORON_OK)
        return status == HORON_ERR_SYSTEM ? horon_mpi_hold_back(channel, error) : status;
    HORON_LOG_INFO(channel->context->log, "backend mpi is connected, among %d ranks",
                   channel->team->size);
    channel->connected = *moved_out = true;
    return HORON_OK;
}

static void mpi_begin(struct horon_backend_channel *base, const struct horon_operation *op)
{
    horon_mpi_start(channel_of(base), op);
}

static horon_status_t mpi_advance(struct horon_backend_channel *base, bool *moved_out,
                                  struct horon_error *error)
{
    struct horon_mpi_channel *channel = channel_of(base);
    const struct horon_mpi_context *context = channel->context;
    assert(channel->step != HORON_MPI_IDLE);
    assert(!context->making); /* all are made before the first of them is used */
    horon_status_t status = HORON_IN_PROGRESS;
    if (!horon_mpi_gate_enter())
        return say_ended(error);
    if (channel->failed_ns)
        status = horon_mpi_held_back(channel, error);
    else if (horon_mpi_may_call(context))
        status = horon_mpi_advance(channel, moved_out, error);
    horon_mpi_gate_leave();
    return status;
}

/* Is MPI at work on memory of the operation's? Rows it is told in the channel's own. */
static bool has_tensors(const struct horon_mpi_channel *channel)
{
    return channel->direct && channel->flying > 0 && channel->step != HORON_MPI_ROWS &&
           !horon_mpi_gate_is_closed();
}

static void mpi_abort(struct horon_backend_channel *base)
{
    struct horon_mpi_channel *channel = channel_of(base);
    assert(!channel->given_up);
    struct horon_mpi_context *context = channel->context;
    leave_making(context, &channel->making);
    channel->given_up = true;
    context->base.gave_up = true;
    if (has_tensors(channel))
        horon_mpi_shut();
}

/* MPI does not say which ranks it waits for. */
static bool mpi_waits_for(struct horon_backend_channel *base, int rank)
{
    return rank != channel_of(base)->team->rank;
}

static void mpi_explain(const struct horon_backend_channel *base, char *text, size_t text_bytes)
{
    const struct horon_mpi_channel *channel = (const struct horon_mpi_channel *)(const void *)base;
    const char *what = channel->making                   ? "MPI makes a communicator"
                       : channel->step == HORON_MPI_ROWS ? "ranks tell each other their rows by MPI"
                       : channel->step == HORON_MPI_IDLE ? ""
                                                         : "it is in flight in MPI";
    const bool bound = *what && channel->context->base.is_bound;
    snprintf(text, text_bytes, "%s%s", what,
             bound ? ", which its main thread alone may call, inside horon" : "");
}

/* In place MPI writes over them, unless it writes to memory of the channel's; and the end of the
 * operation does, in the step that ends it. */
static bool mpi_keeps_inputs(const struct horon_backend_channel *base)
{
    const struct horon_mpi_channel *channel = (const struct horon_mpi_channel *)(const void *)base;
    const char *out = channel->out;
    return channel->step == HORON_MPI_IDLE || channel->step == HORON_MPI_BEGUN ||
           channel->step == HORON_MPI_ROWS || !out || out == channel->work.at ||
           out == channel->scratch.at;
}

static int mpi_descriptor(const struct horon_backend_channel *base)
{
    (void)base;
    return -1;
}

static uint64_t mpi_interval_ns(const struct horon_backend_channel *base)
{
    const struct horon_mpi_channel *channel = (const struct horon_mpi_channel *)(const void *)base;
    if (!horon_mpi_may_call(channel->context) && !channel->failed_ns)
        return 0; /* the thread that may looks by itself, if it waits */
    return horon_mpi_pause(channel);
}

/* A send may have ended whose bytes MPI keeps, as the network takes no more, and MPI moves nothing
 * unless somebody makes a call: this one, for a message that nobody sends. Once another operation
 * begins here all ranks have ended the last one. */
static uint64_t mpi_settle(struct horon_backend_channel *base)
{
    struct horon_mpi_channel *channel = channel_of(base);
    const struct horon_mpi_context *context = channel->context;
    int found = 0;
    if (!channel->settles || channel->given_up || horon_mpi_is_shut() ||
        !horon_mpi_may_call(context) || (context->serialized && context->making) ||
        !horon_mpi_gate_enter())
        return 0;
    horon_mpi_calls_of(channel)->iprobe(channel->team->rank, 0, channel->comm, &found,
                                        context->library->family->statuses_ignore);
    horon_mpi_gate_leave();
    const uint64_t now_ns = horon_clock_ns();
    if (!channel->ended_ns)
        channel->ended_ns = now_ns;
    const uint64_t since_ns = now_ns - channel->ended_ns;
    return since_ns < SETTLE_MIN_NS   ? SETTLE_MIN_NS
           : since_ns < SETTLE_MAX_NS ? since_ns
                                      : SETTLE_MAX_NS;
}

const struct horon_backend horon_backend_mpi = {
    .name = "mpi",
    .caps = HORON_BACKEND_ANY_THREAD | HORON_BACKEND_UNCHECKED,
    .launched_max = 1,
    .address_words = 1,
    .prepare = mpi_prepare,
    .give_up = mpi_give_up,
    .open = mpi_open,
    .leave = mpi_leave,
    .close = mpi_close,
    .usable = mpi_usable,
    .has = mpi_has,
    .create = mpi_create,
    .connect = mpi_connect,
    .begin = mpi_begin,
    .advance = mpi_advance,
    .abort = mpi_abort,
    .waits_for = mpi_waits_for,
    .explain = mpi_explain,
    .keeps_inputs = mpi_keeps_inputs,
    .descriptor = mpi_descriptor,
    .interval_ns = mpi_interval_ns,
    .settle = mpi_settle,
    .destroy = mpi_destroy,
};
