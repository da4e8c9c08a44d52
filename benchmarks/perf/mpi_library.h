/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI found at run time, without its headers. There are two families of ABI: Open MPI, where a
 * handle is the address of an object that the library exports, and MPICH (Intel MPI, MVAPICH, Cray
 * likewise), where it is an int with a fixed value. A handle is carried as uintptr_t here; passing
 * one where the callee reads an int is right on x86-64 and AArch64, whose calls pass both in one
 * register.
 */
#ifndef HORON_PERF_MPI_LIBRARY_H
#define HORON_PERF_MPI_LIBRARY_H

#include <horon/horon.h>

typedef uintptr_t mpi_handle_t;

/** One loaded library. Lives until the process ends: MPI cannot be unloaded safely. */
struct mpi_library {
    void *image;        /* of dlopen */
    const char *file;   /* what was opened; static or the caller's */
    const char *family; /* "Open MPI" or "MPICH"; static */
    mpi_handle_t comm_world, info_null;
    int comm_type_shared;
    void *in_place;
    void *statuses_ignore; /* of one, too */
    size_t request_bytes;  /* of one MPI_Request */
    int (*init)(int *argc, char ***argv);
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*initialized)(int *flag);
    int (*finalize)(void);
    int (*abort)(mpi_handle_t comm, int code);
    int (*comm_rank)(mpi_handle_t comm, int *rank);
    int (*comm_size)(mpi_handle_t comm, int *size);
    int (*comm_split_type)(mpi_handle_t comm, int type, int key, mpi_handle_t info,
                           mpi_handle_t *comm_out);
    int (*comm_free)(mpi_handle_t *comm);
    int (*get_library_version)(char *text, int *length);
    int (*barrier)(mpi_handle_t comm);
    int (*bcast)(void *data, int count, mpi_handle_t type, int root, mpi_handle_t comm);
    int (*allreduce)(const void *src, void *dst, int count, mpi_handle_t type, mpi_handle_t op,
                     mpi_handle_t comm);
    int (*allgather)(const void *src, int src_count, mpi_handle_t src_type, void *dst,
                     int dst_count, mpi_handle_t dst_type, mpi_handle_t comm);
    int (*alltoallv)(const void *src, const int *src_counts, const int *src_starts,
                     mpi_handle_t src_type, void *dst, const int *dst_counts, const int *dst_starts,
                     mpi_handle_t dst_type, mpi_handle_t comm);
    int (*gather)(const void *src, int src_count, mpi_handle_t src_type, void *dst, int dst_count,
                  mpi_handle_t dst_type, int root, mpi_handle_t comm);
    int (*scatter)(const void *src, int src_count, mpi_handle_t src_type, void *dst, int dst_count,
                   mpi_handle_t dst_type, int root, mpi_handle_t comm);
    int (*reduce_scatter)(const void *src, void *dst, const int *counts, mpi_handle_t type,
                          mpi_handle_t op, mpi_handle_t comm);
    int (*reduce)(const void *src, void *dst, int count, mpi_handle_t type, mpi_handle_t op,
                  int root, mpi_handle_t comm);
    int (*sendrecv)(const void *src, int src_count, mpi_handle_t src_type, int to, int src_tag,
                    void *dst, int dst_count, mpi_handle_t dst_type, int from, int dst_tag,
                    mpi_handle_t comm, void *status);
    int (*isend)(const void *src, int count, mpi_handle_t type, int to, int tag, mpi_handle_t comm,
                 void *request);
    int (*irecv)(void *dst, int count, mpi_handle_t type, int from, int tag, mpi_handle_t comm,
                 void *request);
    int (*ibcast)(void *data, int count, mpi_handle_t type, int root, mpi_handle_t comm,
                  void *request);
    int (*iallreduce)(const void *src, void *dst, int count, mpi_handle_t type, mpi_handle_t op,
                      mpi_handle_t comm, void *request);
    int (*iallgather)(const void *src, int src_count, mpi_handle_t src_type, void *dst,
                      int dst_count, mpi_handle_t dst_type, mpi_handle_t comm, void *request);
    int (*ialltoallv)(const void *src, const int *src_counts, const int *src_starts,
                      mpi_handle_t src_type, void *dst, const int *dst_counts,
                      const int *dst_starts, mpi_handle_t dst_type, mpi_handle_t comm,
                      void *request);
    int (*igather)(const void *src, int src_count, mpi_handle_t src_type, void *dst, int dst_count,
                   mpi_handle_t dst_type, int root, mpi_handle_t comm, void *request);
    int (*iscatter)(const void *src, int src_count, mpi_handle_t src_type, void *dst, int dst_count,
                    mpi_handle_t dst_type, int root, mpi_handle_t comm, void *request);
    int (*ireduce_scatter)(const void *src, void *dst, const int *counts, mpi_handle_t type,
                           mpi_handle_t op, mpi_handle_t comm, void *request);
    int (*ireduce)(const void *src, void *dst, int count, mpi_handle_t type, mpi_handle_t op,
                   int root, mpi_handle_t comm, void *request);
    int (*ibarrier)(mpi_handle_t comm, void *request);
    int (*waitall)(int n, void *requests, void *statuses);
    int (*testall)(int n, void *requests, int *flag, void *statuses);
};

/**
 * Opens the library and finds every symbol.
 * @param file NULL: the usual names, in order; else this one only. Kept
 * @param why [why_bytes] set on failure: what was tried, and what is missing
 * @return 0 | -1
 */
int mpi_library_open(struct mpi_library *library, const char *file, char *why, size_t why_bytes);

/** Finds the handle of a type or reduction. @return 0 | -1, this MPI has none */
int mpi_library_type(const struct mpi_library *library, horon_dtype_t dtype, mpi_handle_t *out);
int mpi_library_op(const struct mpi_library *library, horon_dtype_t dtype, horon_redop_t redop,
                   mpi_handle_t *out);

#endif
