/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries operations out: a const table. A context opens each backend once. For each lane of
 * a team a backend makes a channel: an ordered sequence of operations among the team's ranks. One
 * that is usable everywhere (EVERYWHERE, below) makes it with the lane; any other, which all ranks
 * of the team must be able to use, before the first operation that it carries. What takes an
 * operation is a pure function of what all ranks know (choose.c). (docs/design.md 6, "Backend".)
 *
 * Thread: the holder of the progress token, but prepare() and give_up(): that which joins; has():
 * any, also after leave(); close(): any, that which releases the last request, and it must not call
 * a library that wants one thread. Nothing here waits.
 */
#ifndef HORON_BACKEND_H
#define HORON_BACKEND_H

#include "backend/settings.h"
#include "channel.h"

#include <pthread.h>

/* What it promises, or asks for; bits. */
#define HORON_BACKEND_KEEPS_TREE 1u       /* sums follow the canonical tree (design 3.8) */
#define HORON_BACKEND_ANY_THREAD 2u       /* else it is not used: any waiting thread drives it */
#define HORON_BACKEND_IN_ORDER_ONLY 4u    /* takes no negotiated batches */
#define HORON_BACKEND_ONE_LAUNCH_ORDER 8u /* of overlapping teams: needs tickets (design 3.15) */
/* Its data shows no check: ranks compare theirs before each operation in order (design 3.6). */
#define HORON_BACKEND_UNCHECKED 16u
/* Of the same version on every rank of any team, and needs no connecting: nobody asks. */
#define HORON_BACKEND_EVERYWHERE 32u

struct horon_backend;
struct horon_backend_messages;
struct horon_log;

/** What a backend keeps for a context, a library, say; its own struct begins with it. */
struct horon_backend_context {
    const struct horon_backend *backend;
    /* Of what it found, 1 or more. Ranks may have found different ones: the lowest counts. */
    uint32_t version;
    /* Only `thread` may call the library. Turns of other threads do nothing; where that one waits,
     * it looks every millisecond. */
    bool is_bound;
    pthread_t thread;
    bool is_mixed;  /* some of the job's ranks are none of horon's; the holder of the token's */
    char told[256]; /* why it was not used, as the log has it last; the holder of the token's */
    uint32_t passed_over; /* verbs, a bit each, that the log says it does not carry; likewise */
    bool gave_up; /* what its library still has: others' may wait at its end for this one's */
};

/** What a backend makes for a lane; its own struct begins with it. */
struct horon_backend_channel {
    const struct horon_backend *backend;
    /* [size][horon_verb_ahead_words()] by rank, of the operation that begins: what ranks tell ahead
     * of it, if they have told it already; else NULL. Valid in begin(); on all ranks the same. */
    const uint64_t *rows;
    bool unsettled; /* at destroy(): other ranks may be at operations that this one is not */
};

struct horon_backend {
    const char *name; /* the word in settings and logs */
    uint32_t caps;    /* HORON_BACKEND_* */
    /* Operations of a channel that may be launched before the first of them has ended: they end in
     * their order, and advance() says OK once for each. 1: one at a time. */
    int launched_max;
    /* Words of 8 bytes that the ranks' channels must know of each other before they can connect: an
     * address of each, or the id of a communicator, which one rank makes up. */
    uint32_t address_words;
    /* Messages from rank to rank, if it carries those, too (backend/messages.h); else NULL. */
    const struct horon_backend_messages *messages;

    /* ---- of a context ---- */

    /** While the ranks join, before any opens it: begins what a library of this one waits for other
     * ranks in, on a thread of its own. Asked again until it is through. NULL: there is nothing.
     * @return OK, also where nothing is begun: open() says why | IN_PROGRESS, @p error says what is
     * waited for | what it failed with: so does the context, on all ranks, as they would wait */
    horon_status_t (*prepare)(const struct horon_backend_settings *settings,
                              struct horon_error *error);
    /** The context that asked has failed before it was ready: what is under way is left alone, and
     * no rank is waited for. NULL with prepare(). @param context as in the settings */
    void (*give_up)(const void *context, const struct horon_log *log);
    /** @param log outlives the context
     * @return OK | ERR_MEMORY | ERR_CONFIG, it is here, and a setting is wrong: the context fails |
     * anything else: there is none here; @p error says why */
    horon_status_t (*open)(const struct horon_backend *backend,
                           const struct horon_backend_settings *settings,
                           const struct horon_log *log, struct horon_backend_context **context_out,
                           struct horon_error *error);
    /** Its channels are gone: gives back what another context of the process or another rank may
     * wait for. Its memory stays while requests of the job are kept, perhaps as long as the process
     * does. Never waits for another rank. NULL: it has nothing like that.
     * @param in_peace  the job has not failed here, and no other rank says that its one gave_up */
    void (*leave)(struct horon_backend_context *context, bool in_peace);
    /** Behind leave(). NULL is a no-op. */
    void (*close)(struct horon_backend_context *context);
    /** Of a rank that leaves, with nothing in flight: writes and reads what goes without waiting.
     * @return bytes sent that other ranks' systems do not have: close() may lose them. NULL: 0 */
    size_t (*undelivered)(struct horon_backend_context *context);
    /** Finds ranks whose system answers no more: advance() says so. To be asked as the check of
     * horon_link_ops, while something is in flight. NULL: it has no links of its own. */
    void (*check)(struct horon_backend_context *context);

    /* ---- the choice ---- */

    /** Can this rank use it for this team? It is used if all ranks can: they tell each other.
     * @return false: @p why says it */
    bool (*usable)(const struct horon_backend_context *context, const struct horon_team *team,
                   char *why, size_t why_bytes);
    /** Has it code for this verb, by a table of its own, with this reduction, on this dtype in this
     * memory? Nothing else of the signature counts. */
    bool (*has)(const struct horon_backend *backend, uint32_t version,
                const struct horon_signature *agreed);

    /** How much it is to be preferred: of those that carry an operation the highest number does,
     * of equal ones the first in order. All ranks must get the same, of what counts for has(). Of
     * operations in order a rank knows its own size alone, and ranks that break their promise may
     * choose differently: a backend that looks at the size and needs connecting says
     * HORON_BACKEND_UNCHECKED, so that they compare first. NULL: 0, the user's order counts alone.
     * @param bytes of each rank's input; 0 also where they may differ */
    int (*preference)(const struct horon_backend *backend, const struct horon_signature *agreed,
                      uint64_t bytes);

    /* ---- of a lane ---- */

    /**
     * Begins a channel on each rank of the team: with the lane, or before the first operation that
     * it carries (see above). Where any rank's fails no rank uses the backend for this lane. A rank
     * may create and connect channels of overlapping teams in another order than its peers do, and
     * several at a time: no channel may need another one to be connected first, nor the same order
     * on all ranks. What a library can do for one team at a time is a step of connect(), which says
     * IN_PROGRESS until it can be done; so may this, with the same meaning, where the backend needs
     * connecting: nothing is made then, nor told to other ranks.
     * @param device  on which this rank has that operation's memory; with the lane 0. A later one
     *                on another device fails in advance(), by name
     * @param address [address_words], all 0: what this rank's has to say; with the lane NULL
     * @return OK | IN_PROGRESS: ask again | what it failed with
     */
    horon_status_t (*create)(struct horon_backend_context *context,
                             const struct horon_channel_options *options,
                             const struct horon_team *team, struct horon_host *host, int device,
                             uint64_t *address, struct horon_backend_channel **channel_out);
    /** Connects it to the others'. @param addresses [size][address_words] by rank; always the same
     * @return OK | IN_PROGRESS: ask again | what it failed with: so does the team */
    horon_status_t (*connect)(struct horon_backend_channel *channel, const uint64_t *addresses,
                              bool *moved_out, struct horon_error *error);
    /** Launches an operation, which stays as it is until it ends. What fails is told by advance().
     * That of a rank that has joined says `drops`. Its parts, where there are several, all have one
     * src: neutral elements, or NULL where it has no rows or is not read; and all have one dst,
     * which nobody reads, or NULL where output() is asked, which gives NULL. They lie in host
     * memory, whatever kind the signature says. What the others submit says in `givers` by how many
     * an average is divided meanwhile. */
    void (*begin)(struct horon_backend_channel *channel, const struct horon_operation *op);
    /** As horon_channel_advance(), of the first that has not ended. OK means HORON_HOST_DONE, with
     * a stream, too: nothing tells yet that it is launched, and HORON_STREAM_DONE waits as long. */
    horon_status_t (*advance)(struct horon_backend_channel *channel, bool *moved_out,
                              struct horon_error *error);
    /** Gives up what is launched, or connecting: when it returns nobody touches the operations'
     * memory any more. No other call but destroy() follows. Where a library cannot cancel what it
     * has begun, the backend lets it work on memory of its own, copies in and out, and leaves that
     * memory to the library here: waiting for other ranks, which may be gone, is no way. */
    void (*abort)(struct horon_backend_channel *channel);
    /** As horon_channel_waits_for(), of the first that has not ended, or of connecting. */
    bool (*waits_for)(struct horon_backend_channel *channel, int rank);
    /** What that does just now, for people: "2 of 8 chunks are done". It stands beside the ranks
     * that it waits for, in warnings and in the texts of time limits. "": nothing to add. */
    void (*explain)(const struct horon_backend_channel *channel, char *text, size_t text_bytes);
    /** If what is launched were given up now, would each input be as it was, also where dst takes
     * its place? (docs/design.md 3.14.) In doubt false. */
    bool (*keeps_inputs)(const struct horon_backend_channel *channel);
    /** Becomes readable when it can go on; -1: there is none. The same as long as it lives. */
    int (*descriptor)(const struct horon_backend_channel *channel);
    /** Nanoseconds until it wants its next turn, while it connects or something is launched, since
     * nothing wakes a thread that sleeps. It may grow from call to call. 0: something does, which
     * is a doorbell that other ranks ring, our links by which its data comes, or the descriptor. */
    uint64_t (*interval_ns)(const struct horon_backend_channel *channel);
    /** Nothing is launched: lets the library send what it has taken over from operations that have
     * ended here. Other ranks may wait for that, and this one for them.
     * @return nanoseconds until the next such turn; 0: nothing is left. NULL: nothing ever is */
    uint64_t (*settle)(struct horon_backend_channel *channel);
    /** Never waits for another rank. NULL is a no-op. */
    void (*destroy)(struct horon_backend_channel *channel);
};

/** Is it in host memory and, if it reduces, in what our kernels reduce? For has(). Thread: any. */
bool horon_backend_fits_host(const struct horon_signature *agreed);

/** This library's own: shared memory inside a host, links between hosts. Usable everywhere. */
extern const struct horon_backend horon_backend_native;
/** MPI, found at run time. */
extern const struct horon_backend horon_backend_mpi;
/** Gloo's wire, of a job among Gloo's ranks, which has no other. */
extern const struct horon_backend horon_backend_gloo;

/** All backends of this build, in order of preference (backends.c). */
extern const struct horon_backend *const horon_backends[];
extern const size_t horon_backend_count;
/** The one of a job among Gloo's ranks. */
extern const struct horon_backend *const horon_backends_among_gloo[1];

#endif
