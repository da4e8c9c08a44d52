/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank this process is, by the variables of what started it: pure, the environment is a
 * function. And whether a process that started this one has joined already as the same rank.
 */
#ifndef HORON_BOOT_IDENTITY_H
#define HORON_BOOT_IDENTITY_H

#include "boot/identity/key.h"
#include "config.h"
#include "status.h"

#include <stdbool.h>
#include <stdint.h>

struct horon_mpi_comm;
struct horon_space_calls;

#define HORON_BOOT_SIZE_MAX 65536 /* ranks; the store's answers then stay below 2^31 bytes */
/* Further ports that ranks ask at where rank 0 takes the first free one. */
#define HORON_PORT_SCAN 7

/** As getenv(), for horon sets no variables: @return the value, or NULL; valid until the identity
 * is found. */
typedef char *(*horon_environment_fn)(const char *name);

struct horon_identity {
    int rank, size;
    int left_out;               /* started with this one, but not of the job: the row RANKS */
    int local_rank, local_size; /* what the launcher says; -1: nothing. A hint, nothing more */
    /* tcp://HOST:PORT, or several, or file:DIR; "" in a world of one, and where a space tells it */
    char store[HORON_CONFIG_TEXT_BYTES];
    int port_scan; /* the store's address was derived from the launcher's variables: further
                      ports to look at, see store/store.h; else 0 */
    const struct horon_space_calls *space; /* the launcher's, which tells it (meeting.h), or NULL */
    int pmi_fd;                            /* of that space, if it is PMI's */
    char server[HORON_CONFIG_TEXT_BYTES];  /* likewise, if it is Horovod's: HOST:PORT */
    bool told;                             /* it has; and the job key, if the user gave none */
    /* the launcher's for this launch on this host, if all ranks are here; whether it is the user's
     * alone is not known; "": none */
    char folder[HORON_KEY_FOLDER_BYTES];
    uint64_t job;       /* tells jobs at one address apart, the same on all ranks; 0: not needed */
    const char *source; /* "horonrun", "Slurm", ...; static */
    bool assumed;       /* a world of one, as neither the caller nor any variable says another */
    const char *srun;   /* as of struct horon_launcher */
    /* "rank 1 from SLURM_PROCID, 4 ranks from SLURM_NTASKS"; "" if the caller or horonrun says so
     */
    char origin[112];
    const char *host_origin; /* if the store was derived: the variable that the store's host is made
                                of; static */
};

/**
 * @param rank, size what the caller says, or -1, -1: the environment decides, and with nothing
 * found it is a world of one
 * @param store the row STORE, "" if it is not set
 * @param told_size of the launch, for where no variable says it; 0: not known
 * @return OK | AGAIN, all is found but where the ranks meet: neither the launcher nor the user says
 *         it; @p error is ERR_CONFIG and says what to set | ERR_CONFIG, a variable is missing or
 *         absurd; named | ERR_INVALID, only one of rank and size is given, or they make no sense
 */
horon_status_t horon_identity_find(struct horon_identity *identity, int rank, int size,
                                   const char *store, int told_size, horon_environment_fn get,
                                   struct horon_error *error);

/** @return do variables of PMIx say which rank this is, and none of how many?
 * @param rank_out set then */
bool horon_identity_lacks_size(horon_environment_fn get, int *rank_out);

/** @return has a launcher started this process that is not horonrun, nor whatever sets HORON_RANK?
 * Also where its variables do not decide which rank this is. */
bool horon_identity_has_launcher(horon_environment_fn get);

/** What started this process, horonrun too, whichever rank it is.
 * @param size_out ranks that it started; 1, if its variables do not tell, or are absurd
 * @return its name, static | NULL, nothing is known */
const char *horon_identity_launched(horon_environment_fn get, int *size_out);

/* ---- moves.c: what an MPI does by itself ---- */

/** @return do variables say that MPI writes to a process's memory without a call of that process's?
 * A thread of its own does, or other ranks do. Of any library, whichever it is. */
bool horon_identity_mpi_moves(horon_environment_fn get);

/* ---- size.c: of how many ranks, where no variable says it ---- */

/**
 * The same with a launcher that is asked what its variables lack, as PRRTE's prterun: by PMIx.
 * @param limit_ms  how long it is waited for at most
 * @return as horon_identity_find() | as horon_space_pmix_size()
 * Blocks: while PMIx begins, only if variables lack the size.
 */
horon_status_t horon_identity_ask(struct horon_identity *identity, int rank, int size,
                                  const char *store, int64_t limit_ms, horon_environment_fn get,
                                  struct horon_error *error);

/* ---- communicator.c: a job of the ranks of a communicator of MPI ---- */

/**
 * @param comm  set, for as long as the ranks meet
 * @param given  as of horon_mpi_comm_see()
 * @param library  the setting MPI_LIBRARY
 * @return as that | ERR_INVALID, it has too many ranks
 */
horon_status_t horon_identity_of_communicator(struct horon_identity *identity,
                                              struct horon_mpi_comm *comm, const void *given,
                                              const char *library, horon_environment_fn get,
                                              struct horon_error *error);

/**
 * Makes MPI's world the space of a launcher's job, if the program has begun MPI, this thread may
 * call it, and the world is the launch: same size and same rank.
 * @param comm   set, for as long as the ranks meet
 * @param error  of a job that lacks a place to meet; if MPI has begun, but not so, why is added
 */
bool horon_identity_by_world(struct horon_identity *identity, struct horon_mpi_comm *comm,
                             const struct horon_config *config, struct horon_error *error);

/* ---- selection.c: a job of some of the launcher's ranks ---- */

/**
 * Makes of the identity in the launch that in the job.
 * @param ranks "" for all, which changes nothing; else as in "0,2,4-7" or "0-98:2"
 * @return OK | ERR_CONFIG, this is no such list, or names a rank twice or one that there is not |
 *         ERR_INVALID, this rank is not in it | ERR_MEMORY
 */
horon_status_t horon_identity_select(struct horon_identity *identity, const char *ranks,
                                     struct horon_error *error);

/* ---- joined.c: has a process joined as this rank already? ---- */

/** Says that this process has joined as @p id, until the descriptor is closed: @return it, or -1;
 * nobody can know then. */
int horon_joined_say(const struct horon_identity *id);

/** @return OK | ERR_CONFIG, a process that started this one, directly or not, has joined as @p id.
 * @param fds NULL, or holds forks off while there is a socket. Blocks: no. */
struct horon_fds;
horon_status_t horon_joined_before(const struct horon_identity *id, const struct horon_fds *fds,
                                   struct horon_error *error);

#endif
