/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a started process to one with a proven connection to each rank that the topology links, and
 * with what connects any two later. Runs on the caller's thread before any other exists.
 */
#ifndef HORON_BOOT_BOOT_H
#define HORON_BOOT_BOOT_H

#include "boot/connect/links.h"
#include "config.h"
#include "fds.h"
#include "host/memory.h"
#include "launcher.h"
#include "log.h"
#include "pump.h"
#include "status.h"
#include "topology/topology.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What a rank of this host gave us. */
struct horon_local_peer {
    int pidfd;  /* readable once the process has ended; -1 for ourselves */
    long pid;   /* its number in our /proc; 0: not known yet (deaths.c), -1: not to be asked */
    int socket; /* proven; closed once the process has ended or called exec(). Memory is passed over
                   it, now or later. Between the leader and each member, else -1 at first */
    int doorbell;           /* eventfd; ours to write, for ourselves to read */
    struct horon_map arena; /* made by that rank, written by all ranks of the host */
};

/** Joining that takes longer is said to, as a user may see to what it waits for. */
#define HORON_BOOT_SLOW_NS UINT64_C(10000000000)

/** What the caller decides. */
struct horon_boot_caller {
    /* How big the shared pieces are; the engine's layout says (pure functions of host size). */
    /* bytes of the host's control segment for @p local_size ranks; zeroed when mapped */
    size_t (*control_bytes)(const struct horon_config *config, int local_size);
    /* bytes of each rank's arena; zeroed */
    size_t (*arena_bytes)(const struct horon_config *config, int local_size, int size);
    int host_ranks_max;        /* a host with more is refused */
    uint64_t slow_ns;          /* HORON_BOOT_SLOW_NS, or in tests another time; 0: never */
    horon_link_wrap_fn_t wrap; /* NULL, or wraps the links of the store's sessions, on all ranks;
                                  links between ranks are made by the caller */
    /* NULL, or asked about every 100 ms while joining waits; other than 0 ends it for all ranks */
    int (*interrupted)(void *arg);
    void *interrupted_arg;
    /* fork() in any thread waits between the two; NULL: nobody forks. Not around what may wait. */
    void (*hold_forks)(void);
    void (*release_forks)(void);
    /* NULL, or told that joining failed here when memory was shared already, before it is given
     * back: in the last moment others may take it for done, and wait for this rank */
    void (*given_up)(void *arg, horon_status_t status, const char *why);
    /* NULL, or makes ready what the caller needs of this machine, as rank @p rank, before the ranks
     * meet: if it fails, all hear why */
    horon_status_t (*get_ready)(void *arg, int rank, struct horon_error *error);
    /* NULL, or begins what all ranks of several begin together, once they are connected, or before,
     * where nothing but MPI tells them where to meet; a library
     * may wait for them there, and does so in a thread of its own. Asked again and again, about
     * every millisecond. @return OK, it is through | IN_PROGRESS, @p error says what is waited for
     * | a failure, which all hear */
    horon_status_t (*prepare)(void *arg, const struct horon_launcher *launcher, int size,
                              struct horon_error *error);
    void *arg;            /* of the three */
    const void *mpi_comm; /* NULL, or the address of a communicator, whose ranks are the job */
};

/** Everything boot gives; owner: the caller of horon_boot(). */
struct horon_boot {
    struct horon_topology topology;
    struct horon_launcher launcher;
    uint64_t job_id;          /* random, agreed; names shared things, guards against strangers */
    struct horon_map control; /* of this host */
    struct horon_local_peer *local; /* [local_count] by local rank */
    int local_count;                /* ranks of this host, once there is memory to share */
    struct horon_proven *proven;    /* [size] connections to ranks of other hosts; fd -1: none. The
                                       caller makes links of them, and wipes each then */
    struct horon_profile *profiles; /* [size] of each rank; with no name: not known yet */
    struct horon_blobs blobs;       /* of which the profiles have views */
    /* NULL, or, if there are several ranks, connections to any of them at any time: the caller
     * gives them a user and turns the pump whenever its descriptor is readable */
    struct horon_links *links;
    struct horon_pump pump;    /* of the links; its descriptors are -1 if there are none */
    struct horon_job_key *key; /* likewise; in memory for secrets */
    int joined;                /* says to programs that this process starts that it has, or -1 */
    struct horon_fds fds;      /* all sockets, of the links to come, too */
    char blamed_host[64]; /* after a failure: of the rank that its error blames; "": not known */
    int gloo_era;         /* of the others, if they are Gloo's ranks: see gloo/job.h; or 0 */
    struct horon_gloo_store *gloo_store; /* which this rank may serve as long as it is there */
    bool settled;                        /* the rest of it does not change any more */
};

/** Nothing, as horon_boot() wants it and horon_boot_deinit() leaves it: a child may close it. */
void horon_boot_init(struct horon_boot *boot);

/**
 * Joins. @p rank and @p size are -1 for "from the environment".
 * @return OK | ERR_TIMEOUT, naming the missing ranks | ERR_PEER_LOST, naming the rank that left
 * meanwhile | ERR_AUTH | ERR_CONFIG | ERR_MEMORY, shared memory was refused, saying how much was
 * asked and what the system allows | ERR_SYSTEM | ERR_PROTO, versions or settings differ, naming
 *         both | ERR_CANCELLED, interrupted() said so, here or on a rank that is named |
 *         ERR_INVALID, rank and size make no sense | ERR_UNSUPPORTED, a host has too many ranks.
 * What fails on one rank fails all. Sets the rank and host of @p log. Blocks: at most START_TIMEOUT
 * and three seconds; a rank 0 that serves the store six more, for late ranks to hear of a failure,
 * and for all to take their answers. Names are looked up besides.
 */
horon_status_t horon_boot(struct horon_boot *boot, int rank, int size,
                          const struct horon_config *config, const struct horon_boot_caller *caller,
                          struct horon_log *log, struct horon_error *error);

/** For what joins: says of a time-out which option bounds joining, at the end of a text that does
 * not yet, cut to fit. Of another failure it says nothing. */
void horon_boot_name_limit(struct horon_error *error);

/** From now on a child closes the descriptors that are no sockets, too: nobody changes them. */
void horon_boot_settle(struct horon_boot *boot);

/** Closes and unmaps all. */
void horon_boot_deinit(struct horon_boot *boot);

/** For the child of a fork, at any moment after init: closes every socket, and once settled every
 * descriptor. Shared memory is not there (horon_memory_map()). Async-signal-safe. */
void horon_boot_close_in_child(struct horon_boot *boot);

#endif
