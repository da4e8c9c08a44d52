/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries operations out: a const table. For each lane of a team a backend that is usable
 * there makes a channel, an ordered sequence of operations among the team's ranks. Which backend
 * takes an operation is a pure function of what all ranks know (choose.c); route.c asks it, and
 * lanes call that.
 *
 * Thread: the one that holds the progress token. Nothing here waits.
 */
#ifndef HORON_BACKEND_H
#define HORON_BACKEND_H

#include "channel.h"

/* What it promises, or asks for; bits. */
#define HORON_BACKEND_KEEPS_TREE 1u /* sums follow the canonical tree (design 3.8) */
/* They are intact after a failure (design 3.14). Read where another backend takes over what one
 * has failed to do, which none does yet. */
#define HORON_BACKEND_KEEPS_INPUTS 2u
#define HORON_BACKEND_ANY_THREAD 4u        /* else only the thread that made a channel drives it */
#define HORON_BACKEND_IN_ORDER_ONLY 8u     /* takes no negotiated batches */
#define HORON_BACKEND_ONE_LAUNCH_ORDER 16u /* of overlapping teams: needs tickets (design 3.15) */
#define HORON_BACKEND_EVERYWHERE 32u       /* usable on every rank of any team: nobody asks */

/** How a sleeping thread learns that an operation can go on. */
enum horon_backend_wake {
    HORON_BACKEND_WAKE_PEERS,      /* its ranks ring, or its data comes over our links */
    HORON_BACKEND_WAKE_DESCRIPTOR, /* a descriptor becomes readable */
    HORON_BACKEND_WAKE_INTERVAL    /* nothing wakes it: look again after interval_ns */
};

struct horon_backend;

/** What a backend makes for a lane; its own struct begins with it. */
struct horon_backend_channel {
    const struct horon_backend *backend;
};

struct horon_backend {
    const char *name; /* the word in settings and logs */
    uint32_t caps;    /* HORON_BACKEND_* */
    /* Operations of a channel that may be launched before the first of them has ended: they end in
     * their order, and advance() says OK once for each. 1: one at a time. */
    int launched_max;
    enum horon_backend_wake wake;
    uint64_t interval_ns;

    /** Can this rank use it for this team? It is used if all ranks can: they tell each other.
     * @return false: @p why says it */
    bool (*usable)(const struct horon_backend *backend, const struct horon_team *team, char *why,
                   size_t why_bytes);
    /** Does it carry this verb, with this reduction, on this dtype in this memory? Nothing else of
     * the signature counts. */
    bool (*has)(const struct horon_backend *backend, const struct horon_signature *agreed);
    /** Where all ranks of the team can use it. @return OK | what it failed with */
    horon_status_t (*create)(const struct horon_backend *backend,
                             const struct horon_channel_options *options,
                             const struct horon_team *team, struct horon_host *host,
                             struct horon_backend_channel **channel_out);
    /** Launches an operation, which stays as it is until it ends. What fails is told by advance().
     */
    void (*begin)(struct horon_backend_channel *channel, const struct horon_operation *op);
    /** As horon_channel_advance(), of the first that has not ended. */
    horon_status_t (*advance)(struct horon_backend_channel *channel, bool *moved_out,
                              struct horon_error *error);
    /** Gives up what is launched: when it returns nobody touches the operations' memory any more.
     * No other call but destroy() follows. */
    void (*abort)(struct horon_backend_channel *channel);
    /** Does the first that has not ended wait for @p rank? As horon_channel_waits_for(). */
    bool (*waits_for)(struct horon_backend_channel *channel, int rank);
    /** The descriptor, if that is how it wakes; else -1. */
    int (*descriptor)(const struct horon_backend_channel *channel);
    void (*destroy)(struct horon_backend_channel *channel); /* NULL is a no-op */
};

/** This library's own: shared memory inside a host, links between hosts. Usable everywhere. */
extern const struct horon_backend horon_backend_native;

/** All backends of this build, in order of preference. */
extern const struct horon_backend *const horon_backends[];
extern const size_t horon_backend_count;

/** Does any backend of this build carry an operation? As its `has`. */
bool horon_backend_is_any_for(const struct horon_signature *agreed);

/** More than anybody has; bits of a mask. */
#define HORON_BACKENDS_MAX 8

struct horon_backend_choice {
    int backend;          /* number in the array; -1: none carries it */
    bool composed;        /* from another verb of the backend: horon_compose() */
    uint32_t passed_over; /* mask of those before it that lack the verb, or may not take it */
};

/** What all ranks know besides the operation. */
struct horon_backend_terms {
    const struct horon_backend *const *backends; /* [count] in order of preference */
    size_t count;
    uint32_t usable;    /* mask; of all ranks of the team */
    bool deterministic; /* the setting: sums follow the tree, or the backend does not get them */
    bool in_order;      /* the lane is that of operations in order */
};

/** Which backend carries an operation: the first that has the verb, or that has the one of which it
 * can be composed. Pure. */
struct horon_backend_choice horon_backend_choose(const struct horon_backend_terms *terms,
                                                 const struct horon_signature *agreed);

#endif
