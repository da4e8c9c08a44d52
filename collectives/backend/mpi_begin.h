/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's MPI from its begin to its end. Both happen once, so it serves one context at a
 * time: two could not tell their communicators apart while these are made.
 */
#ifndef HORON_BACKEND_MPI_BEGIN_H
#define HORON_BACKEND_MPI_BEGIN_H

#include "backend/mpi_library.h"
#include "launcher.h"
#include "log.h"

#include <sys/types.h>

/** What is asked for. */
struct horon_mpi_wanted {
    const char *file; /* the library; "": the one that the process has, else the launcher's, else
                         the first one found */
    struct horon_launcher launcher; /* that started this process */
    int size;                       /* ranks that it started */
    bool serialized;                /* the program says that it keeps out of MPI: MPI_SERIALIZED */
};

/**
 * While ranks join: finds the library, and has a thread begin MPI unless that has been done. A
 * process that was not started as one of MPI's ranks begins nothing: it would be alone in its
 * world. Asked again by the same context until it says something else than IN_PROGRESS.
 * @param context  of the one that asks: an address of its own
 * Blocks: no. Thread: any, one at a time for a context.
 * @return OK, MPI has begun | IN_PROGRESS, @p error says what is waited for | ERR_UNSUPPORTED, it
 * is of no use for this context, as horon_mpi_take() says | ERR_CONFIG, a launcher of one family
 * and a library of the other, none where the launcher's other ranks would wait for this one in
 * MPI_Init(), or as of horon_mpi_open() | ERR_SYSTEM, MPI_Init_thread() failed, or there is no
 * thread: the others would wait
 */
horon_status_t horon_mpi_begin(const struct horon_mpi_wanted *wanted, const void *context,
                               struct horon_error *error);

/** Is a thread of horon's in MPI_Init_thread() or MPI_Finalize()? Then it talks with the launcher,
 * perhaps for ever, and what it is answered is nobody else's. Thread: any. Blocks: no. */
bool horon_mpi_is_under_way(void);

/** That context has failed. What is under way goes on, or never ends, and no other context gets
 * it; what horon has begun does not end with the process, unless its world has one rank. Nothing if
 * it did not ask, or MPI is the program's. Thread: any. Blocks: no.
 * @return MPI_Finalize() will be left out */
bool horon_mpi_give_up(const void *context);

/**
 * MPI for a context that has joined, which has it until horon_mpi_end().
 * @param context  as of horon_mpi_begin()
 * Thread: any, one at a time. Blocks: no.
 * @return OK, *library_out lives until the process ends | ERR_UNSUPPORTED, there is none, or it has
 * ended or not begun, another context has it or gave it up, it lets another thread alone make
 * calls, or it is that of the process of which this one is a fork: @p error says which |
 * ERR_CONFIG, ERR_SYSTEM as above
 */
horon_status_t horon_mpi_take(const struct horon_mpi_wanted *wanted, const void *context,
                              const struct horon_mpi_library **library_out,
                              struct horon_error *error);

/** Finds the library for a caller that has MPI already, and begins nothing.
 * @return OK | as of horon_mpi_open() | ERR_INVALID, MPI has not begun, or has ended
 * | ERR_UNSUPPORTED, this process is a fork of the one that began it, or what a context gave up is
 * still in MPI's hands.
 * Thread: any. Blocks: no. */
horon_status_t horon_mpi_find(const char *file, const struct horon_mpi_library **library_out,
                              struct horon_error *error);
/** For such a caller, whose MPI may know nothing of what started the process.
 * @return OK | ERR_CONFIG, several ranks were started, and its world has one | ERR_SYSTEM.
 * Thread: any. Blocks: no. */
horon_status_t horon_mpi_check_world(const struct horon_mpi_wanted *wanted,
                                     const struct horon_mpi_library *library,
                                     struct horon_error *error);

/** The context that has it is done with it. What horon began ends with the process, if that is so,
 * unless @p stays: ranks might wait for ever, or it is shut. Thread: any, one at a time.
 * Blocks: no. */
void horon_mpi_end(bool stays);

/** That context, which has joined, ends: has it MPI, which horon has begun, and which ends with the
 * process, then? If it has not, what it asked for in vain is forgotten. Thread: any. Blocks: no. */
bool horon_mpi_ends_after(const void *context);
/** It says, before it ends, which processes of this host are ranks of its job: none of them ends
 * before MPI does. They are added to those that contexts before it have named. Nothing if it is
 * another one's, or if the launcher of MPI's world did not say which ranks the job has: there may
 * be some of another world among them.
 * @param peers    [count] as of horon_mpi_finalize(); copied, like @p log
 * Thread: any. Blocks: no. */
void horon_mpi_know_peers(const void *context, const pid_t *peers, int count,
                          const struct horon_log *log);

/** In an exit handler, before what MPI_Finalize() needs is closed: ends what horon has begun,
 * unless a context has it or it stays. A later handler finds that done. Blocks: until all ranks
 * have come to their end, or one of this host has ended before: that is logged. */
void horon_mpi_end_with_process(void);

/** @return the ranks of MPI's world, if the program has begun it and not ended it; else 0. Of
 * several its MPI_Finalize() waits for all, in whatever else they are. Thread: any. Blocks: no. */
int horon_mpi_world(void);

/** A job of this process has failed, with MPI among its backends or without: a rank of the world
 * may be gone, and so it stays. Thread: any. Blocks: no. */
void horon_mpi_doubt(void);
/** Has one, or is what was given up in MPI's hands? Then a call that needs all ranks of the world
 * might wait for ever, or end the process. Thread: any. Blocks: no. */
bool horon_mpi_is_doubted(void);
/** Around fork(): in its child the lock of what is kept here is nobody's, a library is loaded or
 * not, and MPI that had begun is the parent's, unless that could not be seen. Blocks: while another
 * thread asks, which may load the library. Thread: any. */
void horon_mpi_fork_hold(void);
void horon_mpi_fork_release(void);

#endif
