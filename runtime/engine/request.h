/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation as its submitter and the engine see it. A caller's thread makes and fills a
 * request, posts it to the engine's mailbox, and from then on only reads its state; all else
 * belongs to the thread that holds the progress token, until the state says that it ended. Two
 * references keep it: the user's, until horon_release(), and the engine's, while it is in flight.
 */
#ifndef HORON_ENGINE_REQUEST_H
#define HORON_ENGINE_REQUEST_H

#include "coordinator/coordinator.h"
#include "engine/message.h"
#include "engine/names.h"
#include "operation.h"
#include "status.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

/* State word; also what waiters sleep on. Above the bits stands the number of the run, one more at
 * each start of a prepared request: by it a thread that waits sees that its run has ended, even if
 * it never saw the state, and it never sees one of the two without the other. */
#define HORON_REQUEST_IDLE 0u   /* prepared, not in flight, never ended */
#define HORON_REQUEST_FLYING 1u /* posted; the engine's */
#define HORON_REQUEST_ENDED 2u  /* status and outputs are readable (acquire) */
#define HORON_REQUEST_STATE_MASK 3u
#define HORON_REQUEST_WAITED 4u /* somebody sleeps on the word */
#define HORON_REQUEST_RUN 8u    /* one run */

/** May a request's state change so? One that was taken for a run which cannot be started goes back
 * to what it was. */
static inline bool horon_request_may_go(uint32_t from, uint32_t to)
{
    static const uint32_t legal_from[] = {[HORON_REQUEST_IDLE] = 1u << HORON_REQUEST_FLYING,
                                          [HORON_REQUEST_FLYING] =
                                              1u << HORON_REQUEST_IDLE | 1u << HORON_REQUEST_ENDED,
                                          [HORON_REQUEST_ENDED] = 1u << HORON_REQUEST_FLYING};
    assert((to & HORON_REQUEST_STATE_MASK) <= HORON_REQUEST_ENDED);
    return legal_from[to & HORON_REQUEST_STATE_MASK] >> (from & HORON_REQUEST_STATE_MASK) & 1;
}

/** What a post in the mailbox asks for. */
enum horon_post_kind { HORON_POST_START, HORON_POST_CANCEL, HORON_POST_DROP };

struct horon_post {
    struct horon_post *next;
    struct horon_request *request;
    enum horon_post_kind kind;
};

/** Operations that run as one: a batch of named ones, or one in order. */
struct horon_work {
    struct horon_work *next;
    struct horon_operation *op;      /* the only request's, or the batch's own */
    struct horon_request **requests; /* [count] */
    size_t count;
    bool pooled; /* a struct horon_batch_work (lanes.c); else it lies in its request */
};

/* A step may start and end thousands, so what a start and an end touch lies in the first three
 * cache lines; requests made on the heap begin on a line. */
struct horon_request {
    _Atomic uint32_t state;
    _Atomic uint32_t refs;
    _Atomic bool released; /* by its submitter: it cannot be started again */
    bool persistent, in_order;
    bool paired;         /* a message; then it is not in order */
    bool interned;       /* `handle` is one of the coordinator */
    bool linked;         /* in the list of all in flight */
    bool begun;          /* named: decided; message: under way; join: told. Never set in order */
    bool cancelled;      /* it is asked to be taken back */
    bool held;           /* it has no name, and the coordinator does not know it yet */
    bool asked;          /* ranks were asked whether they lack it, for a warning */
    bool warned;         /* a warning named it: its end is worth a line, too */
    bool dropping;       /* released while in flight: its handle goes when it ends */
    bool nobodys;        /* of run.c: nobody has a handle of it */
    bool own;            /* horon's: INFLIGHT_MAX ignores it; it goes before a join not begun */
    bool joins;          /* it is no operation: this rank joins */
    bool output_refused; /* there was no memory for what it gave */
    bool is_plain : 1;   /* its output is dst, and as long as its input */
    bool is_grouped : 1; /* it becomes ready with others */
    bool is_marked;      /* its run left what few do: error_text, owned_output, output_refused,
                          * warned_ns, joined or op.givers */
    uint8_t verb;
    uint32_t handle, interned_in;  /* the latter: the generation it is one of */
    _Atomic horon_status_t status; /* how it ended last */
    uint32_t set, taken; /* id of its process set; as state was at the last start that was taken */
    struct horon_engine_team *team;      /* whose operation it is; referenced */
    struct horon_context *context;       /* referenced */
    struct horon_name *name;             /* named: its in-flight mark; referenced */
    struct horon_request *older, *newer; /* list of all in flight */

    uint64_t since_ns;
    struct horon_post start;
    horon_callback_fn_t callback;
    void *output;
    uint64_t output_count;
    char *error_text; /* owned, or NULL */

    void *owned_output; /* memory of an output that is neither dst nor of alloc */
    struct horon_part part;
    uint64_t subject; /* the operation's name_hash, for events, as `verb` and `set` are */

    struct horon_operation op; /* the descriptor, checked; of the one part */

    /* seldom touched */
    uint64_t rows;         /* of the input, if ranks tell each other */
    uint64_t *output_rows; /* [size] if ranks give different numbers of them, else NULL */
    uint64_t *rows_room;   /* [2 * rows_limit] or NULL: memory for them, and for splits. The pool
                            * frees it, or kept.c */
    int rows_limit;        /* of a team that used the request before, perhaps */
    int rank, size;        /* of this one, in its team, and ranks */
    uint64_t dst_count;    /* elements dst has room for, if their number is learned */
    horon_alloc_fn_t alloc;
    void *alloc_arg;
    void *callback_arg;
    struct horon_blame blame; /* once it has failed; and the host of the rank */
    char blamed_host[64];
    int32_t joined;     /* ranks that had joined when it was begun; of a join: the last rank */
    uint64_t warned_ns; /* how long it had waited when it was last warned of; 0: never */
    struct horon_request *next_to_finish; /* list of those whose callback is due */
    _Atomic uint64_t ends; /* how its last runs ended, if it has a callback, which may start it */
    _Atomic uint32_t cancel_run; /* to be taken back, as state was then; IDLE: none is posted */
    struct horon_post cancel, drop;
    struct horon_work work; /* of this one alone */
    struct horon_request *self;
    struct horon_message message;
    char number_name[HORON_VERB_UNNAMED_BYTES_MAX]; /* made for one without a name */
    horon_descriptor_t said; /* that it is made of; struct_bytes 0: and of what pointers name */
};

/**
 * Checks a descriptor and makes a request of it to @p team, the process set that it says; IDLE,
 * with one reference, and one to the team. Does not touch engine state. The memory is all zero, or
 * was left so by a former use but for its room for rows.
 * @return OK | ERR_INVALID | ERR_UNSUPPORTED | ERR_MEMORY; the text says what is wrong
 */
horon_status_t horon_request_init(struct horon_request *request, const horon_descriptor_t *desc,
                                  struct horon_engine_team *team, struct horon_names *names,
                                  struct horon_error *error);
/** It is one of @p team, with its submitter's reference, and one to the team. */
void horon_request_belong(struct horon_request *request, struct horon_engine_team *team);
/** Its buffers lie where @p desc says from the next run on, which says else what it was made of.
 * @return OK | ERR_INVALID: they lie where they did */
horon_status_t horon_request_move(struct horon_request *request, const horon_descriptor_t *desc,
                                  struct horon_error *error);
/** Frees what it holds but its room for rows; again is a no-op. */
void horon_request_deinit(struct horon_request *request, struct horon_names *names);

/** Sets what a former run left to its submitter back, before a new one; but its status, which may
 * yet be asked, and the engine's notes, which end with the run (finish.c). */
void horon_request_reset(struct horon_request *request);

/** Keeps how the run that is under way ends, before its state says so: a callback may start the
 * next one, which may end, too, before a thread that waits has looked. Of the last twelve. */
void horon_request_keep_end(struct horon_request *request, horon_status_t status);
/** @return the number of the run that it is in, or has ended; 0: it was not started, or is none
 * that can be started again, or this is the run number 2^29, or a multiple */
static inline uint32_t horon_request_run_number(const struct horon_request *request)
{
    return atomic_load_explicit(&request->state, memory_order_acquire) / HORON_REQUEST_RUN;
}

/** @return how the run number @p run ended, which is known to be over; one that is long past: as
 * the oldest that is kept */
horon_status_t horon_request_end_of(const struct horon_request *request, uint32_t run);

/** "allreduce 'conv1.weight'", "allreduce of 4 float32 (in order)" or "send of 4 float32 to rank 3,
 * tag 7". */
void horon_request_describe(const struct horon_request *request, char *text, size_t text_bytes);

/** Gives an operation without a name its number, and a name made of that. */
void horon_request_number_unnamed(struct horon_request *request, uint64_t number);
/** Likewise a name for texts, until it gets a number. */
void horon_request_hold_unnamed(struct horon_request *request);

/** horon_operation.output for a request: finds memory, keeps the rows. */
void *horon_request_take_output(void *request, const uint64_t *rows, uint64_t total);

#endif
