/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a context, shared by the files of this folder: context.c (birth and death), token.c
 * and progress.c (which thread makes progress), api.c, run.c and wait.c (the calls of the ABI) */
#ifndef HORON_CONTEXT_STATE_H
#define HORON_CONTEXT_STATE_H

#include "boot/boot.h"
#include "boot/connect/prover.h"
#include "engine/engine.h"
#include "engine/pool.h"
#include "host/note.h"
#include "late_bell.h"
#include "life.h"
#include "loop.h"
#include "process_sets.h"
#include "token.h"
#include "yields.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

/** The teams besides the job; teams.c. */
struct horon_context_teams {
    struct horon_context_team *first;
    struct horon_early_note *early; /* of teams that are not here yet */
    size_t early_count;
    uint32_t newest;          /* the highest number so far */
    struct horon_timer timer; /* of notes that could not be sent at once */
};

struct horon_context {
    _Atomic uint32_t refs; /* the user's, and one a request */
    struct horon_config config;
    struct horon_log log;
    horon_link_wrap_fn_t wrap; /* NULL, or wraps each link to another host and to the store */
    struct horon_boot boot;
    struct horon_host host;
    bool of_communicator;                 /* the job is a communicator's, not the launcher's */
    bool crowded;                         /* a machine has more ranks of the job than cores */
    uint8_t **arenas;                     /* [local size] */
    struct horon_context_ring *rings;     /* [local size] by peer */
    struct horon_context_socket *sockets; /* [local size]; connect.c */
    struct horon_late_rings *late_rings;  /* NULL: none is made after joining; rings.c */
    struct horon_context_teams teams;
    struct horon_process_sets sets;
    struct horon_engine *engine;
    struct horon_request_pool pool;
    struct horon_poller *poller; /* of the links, for the holder of the token */
    struct horon_loop *loop;     /* where the progress thread sleeps */
    int poller_watch;            /* number of the loop's watch for the poller's descriptor */
    int doorbell;                /* of this rank */
    struct horon_late_bell late_bell;

    /* The progress token: the thread that exchanged it from 0 to 1 may use the engine. */
    _Alignas(64) _Atomic uint32_t token;
    struct horon_owner owner;             /* the thread that did */
    struct horon_yields yields;           /* of waiters that had it, in a crowded job */
    bool left_nothing;                    /* when one that watches no links let go last: token.c */
    uint32_t unlooked;                    /* calls that ran messages since a turn of all; run.c */
    _Atomic uint32_t takers;              /* threads that want it for a moment */
    _Atomic uint32_t waiters;             /* threads that would rather drive themselves */
    _Atomic uint32_t landed;              /* requests ended, ever; only that thread stores it */
    _Atomic bool leaves;                  /* something was in flight when it last let go */
    _Alignas(64) _Atomic uint32_t posted; /* likewise posted; those that have not landed fly */
    _Atomic uint32_t deaths;      /* local ranks whose process ended, not yet told to the engine */
    _Atomic uint8_t *dead;        /* [local size] how; deaths.c */
    _Atomic bool disarmed, minds; /* own thread: watches no links; wakes by itself to look */
    _Atomic uint8_t life;         /* enum horon_life */
    _Atomic bool calling_back; /* the progress thread is in users' callbacks, and drives nothing */
    struct horon_request *_Atomic to_finish; /* ended, callbacks not yet called; newest first */
    pthread_t thread;
    sem_t thread_begun; /* other processes can tell that this one lives */
    /* the progress thread's: when it looks for stalls, at links, for core files next; ... */
    uint64_t stall_look_ns, link_look_ns, deaths_look_ns, deaths_looked_ns;
    bool woken_by_links;            /* ... and what ended its sleep */
    pthread_mutex_t recording_lock; /* guards that timelines begin and end one after another */
    struct horon_recording *_Atomic recording; /* NULL: no timeline is written; recording.c */
    struct horon_context *fork_next;           /* list in fork.c */
};

/** Ends when the context's life says so. */
void *horon_progress_thread(void *context);

/* connect.c */
/** Watches the sockets of this host, and takes connections from now on. After
 * horon_deaths_watch(). @return OK | ERR_MEMORY | ERR_SYSTEM */
horon_status_t horon_connect_begin(struct horon_context *ctx, struct horon_error *error);
/** A socket to a process of this host: which is boot.local[].socket.
 * @return OK, there is one | AGAIN, it is being made | why it cannot be. Owner only. */
horon_status_t horon_connect_on_host(struct horon_context *ctx, int local_rank,
                                     struct horon_error *error);
/** engine_options.connect. Owner only. */
horon_status_t horon_connect_to(void *context, int rank, struct horon_error *error);
/** With the token in hand: a turn of everything, connections included, then a moment without it for
 * other threads. */
void horon_connect_turn(struct horon_context *ctx, long pause_ns);
/** Takes none any more, and ends those that are not proven. Owner only. */
void horon_connect_end(struct horon_context *ctx);
/** Watches the sockets no more. Once no other thread runs. */
void horon_connect_unwatch(struct horon_context *ctx);

/* callbacks.c */
/** Is this the context's own thread, so that waiting would wait for itself? */
bool horon_context_on_progress_thread(const struct horon_context *ctx);
/** engine_options.finish_later. Thread: any. */
void horon_callback_push(void *context, struct horon_request *request);
/** Calls back, without the token. @return false: there was nothing to. Thread: the progress thread,
 * or the one that destroys the context, after it. */
bool horon_callbacks_run(struct horon_context *ctx);

/* recording.c */
/** boot_caller.get_ready: opens the file of the timeline that the settings ask for, if they do.
 * @return OK | ERR_MEMORY | ERR_SYSTEM, it cannot be written */
horon_status_t horon_recording_open(void *context, int rank, struct horon_error *error);
/** Begins the timeline that was opened, if one was. @return likewise */
horon_status_t horon_recording_begin(struct horon_context *ctx, struct horon_error *error);
/** Ends the timeline, if there is one, with all that has happened. */
void horon_recording_end(struct horon_context *ctx);
void horon_recording_close_in_child(struct horon_context *ctx);

/** As horon_submit() once nothing is refused, to any team; api.c. */
horon_status_t horon_team_submit(struct horon_context *ctx, struct horon_engine_team *team,
                                 const horon_descriptor_t *desc, horon_request_t **req_out);

/* teams.c; see teams.h */
/** engine_options.make_arenas. Owner only. */
horon_status_t horon_teams_make_arenas(void *context, struct horon_engine_team *team,
                                       struct horon_error *error);
/** What a process of this host sent; the caller closes what is left of it. Owner only. */
void horon_teams_take_note(struct horon_context *ctx, int process, struct horon_note *note);
/** No socket to a process of this host can be made. Owner only. */
void horon_teams_lack_socket(struct horon_context *ctx, int process, const struct horon_error *why);
/** Gives back the memory of all, which the engine has no more. */
void horon_teams_deinit(struct horon_context *ctx);

/* context.c */
/** The link in shared memory between two members of a team on this host, one of which is its first
 * there. @param ring the caller's, until the link is gone */
horon_status_t horon_context_make_ring(struct horon_host *host, int peer,
                                       struct horon_context_ring *ring,
                                       struct horon_link **link_out);
/** What the arenas of a team are like that has so many members on this host. */
struct horon_host_shape horon_context_shape(const struct horon_context *ctx, int local_size);
/** horon_context_create() with links wrapped, on all ranks alike: for tests.
 * @return as horon_context_create() */
horon_status_t horon_context_create_wrapped(const horon_options_t *options,
                                            horon_link_wrap_fn_t wrap, horon_context_t **ctx_out,
                                            struct horon_error *error);
void horon_context_ref(struct horon_context *ctx);
void horon_context_unref(struct horon_context *ctx);
/** Gives one reference of a request back; the last one frees it. Thread: any. */
void horon_request_unref(struct horon_request *request);

/* wait.c */
/** What horon_last_error() tells this thread; what sets it has begun with horon_thread_forget(). */
struct horon_error *horon_thread_error(void);
/** It is about an operation of this name; NULL: of none. */
void horon_thread_error_name(const char *name);
/** It blames a rank of this host, "" if that is not known; no context knows the rank. */
void horon_thread_error_host(const char *host);
void horon_thread_forget(void);

/* fork.c: the one list of the process, because a fork knows no handle */
horon_status_t horon_fork_register(struct horon_context *ctx);
void horon_fork_unregister(struct horon_context *ctx);
/** Between the two no thread of the process forks; for moments, and nothing that waits. */
void horon_fork_hold(void);
void horon_fork_release(void);

static inline bool horon_request_ended(const struct horon_request *request)
{
    return (atomic_load_explicit(&request->state, memory_order_acquire) &
            HORON_REQUEST_STATE_MASK) == HORON_REQUEST_ENDED;
}

#endif
