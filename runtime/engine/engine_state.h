/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an engine, shared by its files: engine.c, posts.c, control.c, lanes.c,
 * finish.c. */
#ifndef HORON_ENGINE_STATE_H
#define HORON_ENGINE_STATE_H

#include "engine/engine.h"
#include "observe/events.h"

/** First byte of a control message. */
enum horon_control_kind {
    HORON_CONTROL_COORDINATOR = 1, /* the rest is the coordinator's */
    HORON_CONTROL_ABORT = 2,       /* status (i32 as u32), text */
    HORON_CONTROL_GOODBYE = 3,     /* departures that the sender has heard of: u64 and u32 each */
    HORON_CONTROL_END = 4          /* likewise; the sender itself leaves, and this link ends */
};

/** Operations of one channel, in their order. */
struct horon_lane {
    struct horon_channel *channel;
    struct horon_work *head, **tail; /* the first is begun if `running` */
    bool running;
    bool stuck; /* the first needs a rank that left before it: horon_engine_check_left() says so */
    size_t length;
    uint64_t moves; /* turns that moved anything */
};

struct horon_engine {
    struct horon_engine_options options;
    const struct horon_topology *topology;
    struct horon_host *host;
    struct horon_names names;
    struct horon_events *events;
    struct horon_event_reader traced; /* events that the log has seen, if it wants a trace */
    char (*rank_name_texts)[96];
    const char **rank_names;

    struct horon_team team;
    struct horon_mux **mux_of;  /* [size] every link of this rank */
    struct horon_mux **dead_of; /* [size] those that failed */
    struct horon_mux **data_of; /* [size] those to other hosts */
    int *peers;                 /* [peer_count] ranks with a link */
    int peer_count;
    int *tree; /* [tree_count] neighbours in the control tree: parent, if any, and children */
    int tree_count;

    struct horon_coordinator *coordinator;
    bool coordinator_dirty; /* something to flush */
    /* What is sent next may be a question, a withdrawal or an answer: ranks of this host hear it
     * even if they have nothing in flight. Plain reports never wake such a rank: it could do
     * nothing. */
    bool urgent;
    bool held_back;    /* the last flush was told not to decide: flush again when a batch ends */
    uint64_t barriers; /* without a name that are over: the next one is named by this number */
    const struct horon_request *barrier; /* the one that has it; NULL: none is under way */
    size_t barriers_held;                /* in flight without a number: they wait for that one */
    uint64_t refused_group; /* hash of the group that is being posted, if one of it was refused */
    struct horon_lane lanes[HORON_LANE_COUNT];
    uint64_t ordered_check;  /* of the in-order operations so far */
    struct horon_work *pool; /* batches to use again */

    _Atomic(struct horon_post *) mailbox; /* newest first */
    struct horon_post closed_mark;        /* the mailbox's head once it is closed; never followed */
    struct horon_request *oldest, *newest; /* all in flight */
    size_t in_flight;

    _Atomic uint32_t failed; /* 1: failure is set */
    struct horon_error failure;
    bool *left; /* [size] ranks that said themselves that they leave */
    struct horon_departures departures;
    uint32_t *seen;        /* [local size] version of each line's departures that was read last */
    int leaves_because_of; /* the rank to blame for a departure from here: this one, or another */
    bool leaving;
    uint8_t *message; /* [HORON_CONTROL_BYTES_MAX] to put the kind before a coordinator's message */
};

/** Longest control message between ranks, its kind included. */
#define HORON_CONTROL_BYTES_MAX ((size_t)80 << 10)

/* control.c */
horon_status_t horon_engine_on_control(void *engine, int peer, const void *bytes, size_t byte_count,
                                       struct horon_error *error);
/** @return was there anything to send? */
bool horon_engine_send_coordinator(struct horon_engine *engine);
void horon_engine_flood_abort(struct horon_engine *engine);
/** Says on every link and on the host that this rank leaves, having done @p own. */
void horon_engine_say_goodbye(struct horon_engine *engine, const struct horon_departures *own);
/** Takes note of an abort in shared memory, and of ranks that left; fails what can no longer end.
 */
void horon_engine_check_left(struct horon_engine *engine);

/* engine.c */
/** As horon_engine_fail(), for what was found on this rank: the text then names it. */
void horon_engine_fail_here(struct horon_engine *engine, horon_status_t status, const char *text);

/* explain.c */
/** A request of which a warning spoke has ended well after all. */
void horon_engine_stall_over(const struct horon_engine *engine,
                             const struct horon_request *request);

/* posts.c */
/** Takes what was posted, in order. @return was there anything? */
bool horon_engine_take_posts(struct horon_engine *engine);
/** Before a request ends on this rank only: a barrier without a name then does not count, and the
 * next one has its number, since that is what the other ranks begin. */
void horon_engine_uncount(struct horon_engine *engine, const struct horon_request *request);
/** Takes the last posts and lets nothing more in. */
void horon_engine_close_mailbox(struct horon_engine *engine);

/* lanes.c */
void horon_lane_push(struct horon_lane *lane, struct horon_work *work);
/** Queues an in-order request. Its check stands for all operations before it, too: what differs and
 * goes unnoticed by itself, such as two roots that wait for nobody, the next operation notices. */
void horon_engine_push_ordered(struct horon_engine *engine, struct horon_request *request);
/** Advances the first operation; ends its requests. @return true if anything moved */
bool horon_lane_advance(struct horon_engine *engine, struct horon_lane *lane);
/** Turns the coordinator's decisions into work. */
bool horon_engine_take_batches(struct horon_engine *engine);
/** Work that is done, or given up: batches are kept for the next ones. */
void horon_work_recycle(struct horon_engine *engine, struct horon_work *work);
void horon_work_free(struct horon_work *work); /* one of the pool */

/* trace.c */
/** Tells what happened to an operation of this rank. */
void horon_engine_tell_of(struct horon_engine *engine, enum horon_event_kind kind,
                          const struct horon_operation *op, uint64_t value, int32_t other);
/** Tells of a control message, its kind instead of a verb. */
void horon_engine_tell_message(struct horon_engine *engine, enum horon_event_kind kind, int peer,
                               uint8_t control, size_t bytes);
/** Logs the events since the last call, a line each, if the log wants a trace. */
void horon_engine_trace(struct horon_engine *engine);

/* finish.c */
/** Ends a request: unlinks it, sets how it ended, wakes, calls back, drops the engine's reference.
 */
void horon_engine_end(struct horon_engine *engine, struct horon_request *request,
                      horon_status_t status, const char *text);
/** Ends all requests in flight. */
void horon_engine_end_all(struct horon_engine *engine, horon_status_t status, const char *text);
void horon_engine_link(struct horon_engine *engine, struct horon_request *request);
/** Lets go of a prepared request's handle, now or when it has ended, and of the post's reference.
 */
void horon_engine_drop(struct horon_engine *engine, struct horon_request *request);

#endif
