/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the backend that stands on MPI: mpi.c is its table, with the life of contexts and
 * channels; mpi_making.c makes a communicator; mpi_run.c carries operations out, by mpi_vector.c
 * and mpi_rows.c; mpi_looks.c says when to look at them; mpi_library.h is MPI itself.
 */
#ifndef HORON_BACKEND_MPI_STATE_H
#define HORON_BACKEND_MPI_STATE_H

#include "backend/backend.h"
#include "backend/mpi_begin.h"

struct horon_mpi_channel;

/* Channels of the job: their numbers are below this. */
#define HORON_MPI_SERIALIZED_CHANNELS 2

struct horon_mpi_context {
    struct horon_backend_context base;
    const struct horon_mpi_library *library;
    const struct horon_log *log;
    struct horon_mpi_channel *channels; /* all of them, in no order */
    /* MPI allows one thread at a time, and the program keeps out: all communicators are made at
     * once, and while a thread makes them no other makes a call. So only the job, whose channels
     * are the first ones, is carried. Else a communicator is its channel's. So it is, too, where
     * MPI allows the main thread alone (base.is_bound), with copies of the world. */
    bool serialized;
    bool keeps_out; /* the program, which says so: of what has failed, too, for ever */
    struct horon_mpi_making *making;
    horon_mpi_handle comms[HORON_MPI_SERIALIZED_CHANNELS]; /* by channel, until close(); or 0 */
    int direct;       /* of these have MPI at work on their operation's own memory */
    bool awaited;     /* a new channel waits until there are none: no more of them begin */
    bool left_making; /* to a thread, which may be in a call of MPI for ever, and move all data: no
                         more channels are made */
};

/* ---- making a communicator, in mpi_making.c ---- */

/** Under way in a thread of its own; owner: that thread and the one that asked, together. */
struct horon_mpi_making;

/**
 * Begins to make @p count communicators, each of the same @p size ranks of the world, all of which
 * do so.
 * @param ranks [size] in the world; copied
 * @param tag   tells it from others that any of these ranks make meanwhile; the next ones' follow
 * @return OK | ERR_MEMORY | ERR_SYSTEM, no thread
 */
horon_status_t horon_mpi_making_begin(const struct horon_mpi_library *library, const int *ranks,
                                      int size, int tag, int count,
                                      struct horon_mpi_making **making_out,
                                      struct horon_error *error);
/** Begins to copy the world @p count times, as all its ranks do, in one order with whatever else is
 * collective in it. Thread: the one that may call MPI, as all below.
 * @return OK | ERR_MEMORY | ERR_SYSTEM, MPI refused it */
horon_status_t horon_mpi_copying_begin(const struct horon_mpi_library *library, int count,
                                       struct horon_mpi_making **making_out,
                                       struct horon_error *error);
/** @param comms_out [count]
 * @return OK, it is made, and @p making is gone | IN_PROGRESS | ERR_SYSTEM, likewise gone */
horon_status_t horon_mpi_making_end(struct horon_mpi_making **making, horon_mpi_handle *comms_out,
                                    struct horon_error *error);
/** Leaves it to its thread, or to MPI, which may wait for ranks that are gone. NULL is a no-op.
 * @return is it still under way? */
bool horon_mpi_making_leave(struct horon_mpi_making *making);

/* ---- a channel ---- */

enum horon_mpi_step {
    HORON_MPI_IDLE,
    HORON_MPI_BEGUN, /* nothing of the operation is launched */
    HORON_MPI_LAST,  /* what is in flight is all of it */
    HORON_MPI_PIECE, /* a piece of a vector is in flight */
    HORON_MPI_ROWS,  /* ranks tell each other their rows */
    HORON_MPI_RUNS   /* a round of runs is in flight */
};

/** Memory of a channel's own, which MPI may be using. */
struct horon_mpi_memory {
    char *at;
    size_t bytes; /* that there is room for */
};

/** When to look; mpi_looks.c. */
struct horon_mpi_looks {
    uint64_t work_ns;  /* that may last, from the next look on; 0: that was */
    uint64_t due_ns;   /* until then what is in flight is surely at work */
    uint64_t moved_ns; /* when that was said last */
};

struct horon_mpi_channel {
    struct horon_backend_channel base;
    struct horon_mpi_context *context;
    struct horon_mpi_channel *next; /* of the context's */
    const struct horon_team *team;
    int tag;
    struct horon_mpi_making *making; /* while it connects */
    horon_mpi_handle comm;
    bool connected, given_up;
    bool direct;        /* MPI works on the operation's own memory, see mpi.c */
    uint64_t failed_ns; /* when a call of MPI's failed, for `failure`; 0: none has */
    struct horon_error failure;
    struct horon_mpi_looks looks;
    bool settles;      /* an operation has ended, and none has begun since */
    uint64_t ended_ns; /* when that was noticed; 0: it is not yet */

    const struct horon_operation *op; /* in flight */
    enum horon_mpi_step step;
    size_t element_bytes;
    horon_mpi_handle type;
    int flying;     /* requests in flight */
    char *requests; /* [2 * size], each of a handle */
    uint64_t at;    /* elements that are through, or rounds */
    /* What MPI reads and writes: the operation's memory, or `work` and `scratch`. */
    const char *in;
    char *out;
    char *dst; /* of an operation that is asked for it: where its output goes, or NULL */
    struct horon_mpi_memory work, scratch;
    struct horon_reduce_finish finish;
    uint64_t *words; /* [2 * size] rows that this rank tells, and those that it is told */
    uint64_t *give_at, *take_at; /* [size + 1] first elements by rank, and the end */
    int *counts, *starts;        /* [size] for MPI */
};

/** The only function that changes the step; asserts that the move is a legal one. */
void horon_mpi_move(struct horon_mpi_channel *channel, enum horon_mpi_step to);

static inline const struct horon_mpi_calls *horon_mpi_calls_of(
    const struct horon_mpi_channel *channel)
{
    return &channel->context->library->mpi;
}

/** May the calling thread call MPI? */
static inline bool horon_mpi_may_call(const struct horon_mpi_context *context)
{
    return !context->base.is_bound || pthread_equal(context->base.thread, pthread_self());
}

/** Where the next request goes. */
static inline void *horon_mpi_request(struct horon_mpi_channel *channel)
{
    assert(channel->flying < 2 * channel->team->size);
    return channel->requests +
           (size_t)channel->flying * channel->context->library->family->handle_bytes;
}

/* ---- an operation of a channel; mpi_run.c ---- */

void horon_mpi_start(struct horon_mpi_channel *channel, const struct horon_operation *op);
/** As advance() of backend.h. Thread: one that may call MPI. */
horon_status_t horon_mpi_advance(struct horon_mpi_channel *channel, bool *moved_out,
                                 struct horon_error *error);
/** A call of MPI's has failed. @return IN_PROGRESS, until it is known whether a rank is gone */
horon_status_t horon_mpi_hold_back(struct horon_mpi_channel *channel, struct horon_error *error);
/** One has, and no other is made. @return likewise; then what it failed with */
horon_status_t horon_mpi_held_back(const struct horon_mpi_channel *channel,
                                   struct horon_error *error);

/** All ranks have begun the operation, of which a rank gives or gets @p elements; mpi_looks.c. */
void horon_mpi_expect(struct horon_mpi_channel *channel, uint64_t elements);
/** A turn of looks at what is in flight; *moved_out is set if it may not be slept over.
 * @return OK: it is through | IN_PROGRESS | ERR_SYSTEM */
horon_status_t horon_mpi_look(struct horon_mpi_channel *channel, bool *moved_out,
                              struct horon_error *error);
/** @return nanoseconds until the next turn of a thread that sleeps until then */
uint64_t horon_mpi_pause(const struct horon_mpi_channel *channel);

/** After a call that launches. @return OK, it is in flight | ERR_SYSTEM */
horon_status_t horon_mpi_launched(struct horon_mpi_channel *channel, const char *call, int code,
                                  struct horon_error *error);
/** Makes room. @return OK | ERR_MEMORY */
horon_status_t horon_mpi_make_room(struct horon_mpi_memory *memory, uint64_t elements,
                                   size_t element_bytes, struct horon_error *error);
/** Elements that one call moves at most: its counts are ints. A function, as a test has less. */
uint64_t horon_mpi_count_max(void);
static inline int horon_mpi_piece_of(uint64_t left)
{
    const uint64_t most = horon_mpi_count_max();
    return (int)(left < most ? left : most);
}

/* Each begins or goes on, once what it launched last is through.
 * @return OK: that was all | IN_PROGRESS: more is in flight | ERR_MEMORY | ERR_SYSTEM | ERR_PROTO
 */
/** Where the input is as long as the output, or is cut as agreed; mpi_vector.c. */
horon_status_t horon_mpi_go_on_with_vector(struct horon_mpi_channel *channel,
                                           struct horon_error *error);
/** The rows of all ranks, as in the channel's base: they need not tell them; mpi_rows.c. */
void horon_mpi_take_rows(struct horon_mpi_channel *channel, const uint64_t *rows);
/** Where ranks tell each other their rows first; mpi_rows.c. */
horon_status_t horon_mpi_go_on_with_rows(struct horon_mpi_channel *channel,
                                         struct horon_error *error);

#endif
