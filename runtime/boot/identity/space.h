/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key-value space that a launcher keeps for the processes that it has started: what one of them
 * puts there the others can get. A table for each protocol by which it is reached.
 *
 * Thread: one at a time, and no other of the process in a call of the protocol's own library.
 * Blocks, up to the deadline.
 */
#ifndef HORON_BOOT_SPACE_H
#define HORON_BOOT_SPACE_H

#include "address.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_SPACE_VALUE_BYTES 1024 /* of a value, with a final 0: hydra takes no longer ones */

struct horon_space_calls;

/* `missing` of those that a launcher keeps. */
#define HORON_SPACE_LAUNCHED_MISSING                                                               \
    "that the launcher started have come: each of them must create a context, or set HORON_RANKS " \
    "to those that do, and HORON_STORE"

/** Begins with all 0 but for the first fields. */
struct horon_space {
    const struct horon_space_calls *calls;
    int fd;                     /* PMI-1: the launcher's, of PMI_FD; stays open */
    const char *server;         /* Horovod's: HOST:PORT */
    uint64_t job;               /* keeps jobs of one launch apart; MPI: set by await() */
    int rank;                   /* of this process among those that were started */
    uint64_t deadline_ns;       /* of all that waits */
    bool (*goes_on)(void *arg); /* asked now and then while it waits; NULL: nobody is */
    void *arg;
    void *library;  /* PMIx: of dlopen(), and never closed. MPI: the struct horon_mpi_comm */
    void *word;     /* MPI: what rank 0 tells */
    char name[256]; /* set by open() */
    struct horon_addresses addresses; /* likewise, of the server */
};

/** Keys and values have no blanks. Those that wait return ERR_TIMEOUT, or ERR_CANCELLED if it is
 * not to go on; all return ERR_SYSTEM if the launcher is gone, and ERR_PROTO if its answer makes no
 * sense. */
struct horon_space_calls {
    const char *name;      /* of the protocol */
    const char *missing;   /* what to say of those that must come, if not all do */
    bool begins_at_open;   /* the launcher hears of this process then, not by the first put() */
    bool waits_for_one;    /* await() waits for its rank alone, and may be called again */
    bool is_public;        /* strangers can read it, and write: also await() says what to do if it
                              was in vain */
    bool tells_jobs_apart; /* of some of the launch's processes each */
    /** Finds the space. @return OK | ERR_CONFIG, there is no way to it; the text says what to set |
     * as above */
    horon_status_t (*open)(struct horon_space *space, struct horon_error *error);
    /** Once for a key. */
    horon_status_t (*put)(struct horon_space *space, const char *key, const char *value,
                          struct horon_error *error);
    /** What this process has put, or, after await(), @p rank has.
     * @return OK | AGAIN, there is none | as above */
    horon_status_t (*get)(struct horon_space *space, int rank, const char *key,
                          char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error);
    /** Shows what was put to the others, and waits until @p rank has put the key and done the same:
     * for all processes, where the protocol has nothing finer: then all call it, once.
     * @return as get() */
    horon_status_t (*await)(struct horon_space *space, int rank, const char *key,
                            char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error);
    /** When this process exits with status 0, tells the launcher that all is well, unless MPI has.
     * Else the launcher takes a process that it has once heard of for one that crashed, and ends
     * the others. @return OK | ERR_MEMORY */
    horon_status_t (*end_at_exit)(const struct horon_space *space, struct horon_error *error);
    /** Where nothing is left to do in it: in a process that has called end_at_exit() after an
     * earlier open(), or that has met. */
    void (*close)(struct horon_space *space);
};

/** Of a launcher that speaks PMI-1, as MPICH's hydra does. */
extern const struct horon_space_calls horon_space_pmi;
/** Of one that serves PMIx, as Open MPI's mpirun and Slurm do. */
extern const struct horon_space_calls horon_space_pmix;
/** How many processes the launcher has started with this one, which it tells each as they begin.
 * Opens the space, which needs no other process, and holds on to it until this one exits: so it may
 * be opened again. @return OK | as its open() and get() */
horon_status_t horon_space_pmix_size(struct horon_space *space, int *size_out,
                                     struct horon_error *error);
/** Of Horovod's: its rendezvous server. */
extern const struct horon_space_calls horon_space_horovod;
/** Of a communicator of the program's, in communicator.c: it gives every meeting a key of its own,
 * and has no marks. */
extern const struct horon_space_calls horon_space_mpi;

/* ---- space.c: waiting, for all of them ---- */

#define HORON_SPACE_SLICE_NS 50000000u /* between two questions whether to go on */

/** @return OK | ERR_TIMEOUT | ERR_CANCELLED */
horon_status_t horon_space_may_wait(const struct horon_space *space, struct horon_error *error);

/** @return OK, the socket has one of these events of poll() | ERR_SYSTEM | as above */
horon_status_t horon_space_wait(const struct horon_space *space, int fd, short events,
                                struct horon_error *error);

#endif
