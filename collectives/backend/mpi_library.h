/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI, found at run time, without its headers. Its functions have the same names in all libraries;
 * handles and constants differ, and there are three families of them here: Open MPI, where a handle
 * is the address of an object that the library exports, MPICH (Intel MPI, MVAPICH and Cray
 * likewise), where it is an int with a fixed value, and the ABI of the standard since MPI 5, where
 * it is a pointer with a fixed value. A handle is carried as a word here. To pass one
 * where the callee reads an int is right on x86-64 and AArch64, whose calls pass both in one
 * register; where the callee writes one, the rest of the word is 0 before.
 *
 * A process has one MPI: so what is here is the process's, not a context's. It is loaded for the
 * first context that asks for it, and stays. mpi_begin.h says which one that is, and when it
 * begins.
 */
#ifndef HORON_BACKEND_MPI_LIBRARY_H
#define HORON_BACKEND_MPI_LIBRARY_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t horon_mpi_handle;

/* Levels of thread support. */
enum { HORON_MPI_SINGLE, HORON_MPI_FUNNELED, HORON_MPI_SERIALIZED, HORON_MPI_MULTIPLE };

/* Of MPI's calls: it went well. */
#define HORON_MPI_SUCCESS 0

/** What a family of libraries has instead of a header. */
struct horon_mpi_family {
    const char *name;
    int levels[HORON_MPI_MULTIPLE + 1]; /* its numbers of them */
    size_t handle_bytes;
    void *in_place;
    int ring_ranks; /* from so many on it sums in a ring what is long and not in place; 0: never */
    void *statuses_ignore; /* of one, too */
};

/* Of MPI 3, as the standard has them; a handle for each of its opaque types, a pointer to one where
 * it writes it. */
struct horon_mpi_calls {
    int (*initialized)(int *flag);
    int (*finalized)(int *flag);
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*query_thread)(int *provided);
    int (*is_thread_main)(int *flag);
    int (*finalize)(void);
    int (*get_library_version)(char *text, int *length);
    int (*error_string)(int code, char *text, int *length);
    int (*comm_rank)(horon_mpi_handle comm, int *rank);
    int (*comm_size)(horon_mpi_handle comm, int *size);
    int (*comm_group)(horon_mpi_handle comm, horon_mpi_handle *group);
    int (*comm_idup)(horon_mpi_handle comm, horon_mpi_handle *made, void *request);
    int (*comm_create_group)(horon_mpi_handle comm, horon_mpi_handle group, int tag,
                             horon_mpi_handle *made);
    int (*comm_set_errhandler)(horon_mpi_handle comm, horon_mpi_handle handler);
    int (*comm_test_inter)(horon_mpi_handle comm, int *flag);
    int (*comm_free)(horon_mpi_handle *comm);
    int (*comm_create_keyval)(int (*copies)(horon_mpi_handle comm, int key, void *extra,
                                            void *value, void *copy, int *flag),
                              int (*ends)(horon_mpi_handle comm, int key, void *value, void *extra),
                              int *key, void *extra);
    int (*comm_set_attr)(horon_mpi_handle comm, int key, void *value);
    int (*group_incl)(horon_mpi_handle group, int n, const int *ranks, horon_mpi_handle *made);
    int (*group_free)(horon_mpi_handle *group);
    int (*group_translate_ranks)(horon_mpi_handle from, int n, const int *ranks,
                                 horon_mpi_handle to, int *found);
    int (*op_create)(void (*combine)(void *in, void *inout, int *count, void *type), int commutes,
                     horon_mpi_handle *op);
    int (*op_free)(horon_mpi_handle *op);
    int (*type_contiguous)(int count, horon_mpi_handle type, horon_mpi_handle *made);
    int (*type_commit)(horon_mpi_handle *type);
    int (*type_free)(horon_mpi_handle *type);
    int (*ibarrier)(horon_mpi_handle comm, void *request);
    int (*ibcast)(void *data, int count, horon_mpi_handle type, int root, horon_mpi_handle comm,
                  void *request);
    int (*iallreduce)(const void *src, void *dst, int count, horon_mpi_handle type,
                      horon_mpi_handle op, horon_mpi_handle comm, void *request);
    int (*ireduce)(const void *src, void *dst, int count, horon_mpi_handle type,
                   horon_mpi_handle op, int root, horon_mpi_handle comm, void *request);
    int (*ireduce_scatter)(const void *src, void *dst, const int *counts, horon_mpi_handle type,
                           horon_mpi_handle op, horon_mpi_handle comm, void *request);
    int (*iallgather)(const void *src, int src_count, horon_mpi_handle src_type, void *dst,
                      int dst_count, horon_mpi_handle dst_type, horon_mpi_handle comm,
                      void *request);
    int (*iallgatherv)(const void *src, int src_count, horon_mpi_handle src_type, void *dst,
                       const int *counts, const int *starts, horon_mpi_handle dst_type,
                       horon_mpi_handle comm, void *request);
    int (*ialltoall)(const void *src, int src_count, horon_mpi_handle src_type, void *dst,
                     int dst_count, horon_mpi_handle dst_type, horon_mpi_handle comm,
                     void *request);
    int (*isend)(const void *src, int count, horon_mpi_handle type, int to, int tag,
                 horon_mpi_handle comm, void *request);
    int (*irecv)(void *dst, int count, horon_mpi_handle type, int from, int tag,
                 horon_mpi_handle comm, void *request);
    int (*iprobe)(int from, int tag, horon_mpi_handle comm, int *flag, void *status);
    int (*testall)(int n, void *requests, int *flag, void *statuses);
};

/** The process's MPI; read only, but for what its functions say. */
struct horon_mpi_library {
    const struct horon_mpi_family *family;
    const char *file;           /* what was opened */
    char version[96];           /* as it says: "Open MPI v4.1.4, ..." */
    void *image;                /* of dlopen() */
    struct horon_mpi_calls mpi; /* all of them are there */
    horon_mpi_handle world, self, comm_null, errors_return;
    bool began; /* by horon, which ends it at the end of the process */
    bool moves; /* data without a call, for all that is known: by a thread of its own, or as other
                   ranks write to this one's memory */
    bool of_program; /* which had it before horon looked for one, and may make calls */
    int level;       /* HORON_MPI_SINGLE and so on */
    int rank, size;  /* in its world */
};

/** Finds the library, once a process, and begins nothing. Under the lock of mpi_begin.c, which
 * alone writes to what it gets: it lives until the process ends.
 * @param file      as in mpi_begin.h
 * @param launcher  whose library goes first; NULL: any
 * @return OK | ERR_UNSUPPORTED, it is not there, or lacks a call | ERR_CONFIG, the process has
 * another one. Blocks: no. */
horon_status_t horon_mpi_load(const char *file, const char *launcher,
                              struct horon_mpi_library **library_out, struct horon_error *error);
/** Has it ended? Then it must not be called any more. Thread: any. */
bool horon_mpi_has_ended(const struct horon_mpi_library *library);

/** Makes those of the handles below that are not MPI's, once it has begun, unless they are there;
 * and frees them, if they are. Either frees the communicators that were kept. Thread: one that may
 * call MPI. */
horon_status_t horon_mpi_make_handles(const struct horon_mpi_library *library,
                                      struct horon_error *error);
void horon_mpi_free_handles(const struct horon_mpi_library *library);
enum { HORON_MPI_KEPT_MAX = 2 };
/** Those of a context that ends, in a thread that perhaps may not free them. Thread: any, of the
 * context that has MPI.
 * @param comms [count] at most HORON_MPI_KEPT_MAX; 0: none */
void horon_mpi_keep_comms(const struct horon_mpi_library *library, const horon_mpi_handle *comms,
                          int count);
/** All dtypes have one. */
horon_mpi_handle horon_mpi_type(const struct horon_mpi_library *library, horon_dtype_t dtype);
/** Of one that reduces (horon_reduce_supported()) and is no average. */
horon_mpi_handle horon_mpi_op(const struct horon_mpi_library *library, horon_dtype_t dtype,
                              horon_redop_t redop);

/** Which calls it takes, once it has begun. These questions any thread may ask.
 * @param main_out is the calling thread the one that began it?
 * @return HORON_MPI_SINGLE and so on */
int horon_mpi_see_level(const struct horon_mpi_library *library, bool *main_out);
/** This process's place in a communicator. @return OK | ERR_SYSTEM */
horon_status_t horon_mpi_see_place(const struct horon_mpi_library *library, horon_mpi_handle comm,
                                   int *rank_out, int *size_out, struct horon_error *error);

/** Of the calls that horon makes, one that an image of dlopen() lacks; NULL: none. */
const char *horon_mpi_lacks(void *image);
/** What a call that failed has to say. */
horon_status_t horon_mpi_failed(const struct horon_mpi_library *library, const char *call, int code,
                                struct horon_error *error);

#endif
