/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An MPI that not all ranks begin: `HELD_MPI="CASE RANK FOLDER"` says what becomes of that rank in
 * MPI_Init_thread(). It dies before it begins; or the last rank kills it, when all are in the call,
 * into which the last one does not let itself; or it is held there, or told of a failure, once the
 * others are in the call. Or it is said to take calls of fewer threads, or tells of one by the
 * wrong thread, and, when it ends, of copies of communicators that nobody has freed. Linked with
 * either family, whose header says the same of these calls.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { RANKS = 3, FUNNELED = 1, SERIALIZED = 2, FAILURE = 16 };

#define EXPORT __attribute__((visibility("default")))

EXPORT int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided);
EXPORT int MPI_Query_thread(int *provided);
int PMPI_Query_thread(int *provided);
EXPORT int MPI_Op_create(void *combine, int commutes, void *op);
int PMPI_Op_create(void *combine, int commutes, void *op);
EXPORT int MPI_Op_free(void *op);
int PMPI_Op_free(void *op);
int PMPI_Is_thread_main(int *flag);
EXPORT int MPI_Comm_idup(void *comm, void *copy, void *request);
int PMPI_Comm_idup(void *comm, void *copy, void *request);
EXPORT int MPI_Comm_free(void *comm);
int PMPI_Comm_free(void *comm);
EXPORT int MPI_Finalize(void);
int PMPI_Finalize(void);

static struct {
    char name[16], folder[256];
    int rank, self, copies;
} held;

static bool is_case(const char *name)
{
    return strcmp(held.name, name) == 0;
}

static void read_case(void)
{
    const char *text = getenv("HELD_MPI"), *self = getenv("OMPI_COMM_WORLD_RANK");
    self = self ? self : getenv("PMI_RANK");
    if (!text || !self || sscanf(text, "%15s %d %255s", held.name, &held.rank, held.folder) != 3)
        abort();
    held.self = atoi(self);
}

static void say_pid(void)
{
    char path[300], told[300];
    snprintf(path, sizeof path, "%s/.%d", held.folder, held.self);
    snprintf(told, sizeof told, "%s/%d", held.folder, held.self);
    FILE *file = fopen(path, "we");
    if (!file)
        abort();
    fprintf(file, "%d", (int)getpid());
    fclose(file);
    if (rename(path, told) != 0)
        abort();
}

/* @return once it is in its call */
static pid_t pid_of(int rank)
{
    char path[300];
    int pid = 0;
    FILE *file;
    snprintf(path, sizeof path, "%s/%d", held.folder, rank);
    while (!(file = fopen(path, "re")))
        usleep(1000);
    if (fscanf(file, "%d", &pid) != 1)
        abort();
    fclose(file);
    return pid;
}

static void stay(void)
{
    for (;;)
        pause();
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    read_case();
    const bool is_it = held.self == held.rank;
    if (is_it && is_case("before"))
        raise(SIGKILL);
    if (is_it && is_case("never"))
        stay();
    if (is_it && is_case("fails")) {
        for (int rank = 0; rank < RANKS; rank++)
            if (rank != held.rank)
                pid_of(rank);
        return FAILURE;
    }
    if (is_case("fails") || is_case("inside"))
        say_pid();
    if (!is_case("inside"))
        return PMPI_Init_thread(argc, argv, required, provided);
    if (held.self < RANKS - 1)
        return PMPI_Init_thread(argc, argv, required, provided);
    pid_t pids[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        pids[rank] = pid_of(rank);
    kill(pids[held.rank], SIGKILL);
    stay();
    return FAILURE;
}

int MPI_Query_thread(int *provided)
{
    const int code = PMPI_Query_thread(provided);
    if (is_case("funneled"))
        *provided = FUNNELED;
    if (is_case("serialized"))
        *provided = SERIALIZED;
    return code;
}

int MPI_Op_create(void *combine, int commutes, void *op)
{
    if (is_case("serialized"))
        fprintf(stderr, "an operator is made\n");
    return PMPI_Op_create(combine, commutes, op);
}

int MPI_Op_free(void *op)
{
    int level = 0, is_main = 0;
    PMPI_Query_thread(&level);
    PMPI_Is_thread_main(&is_main);
    if (level <= FUNNELED && !is_main)
        fprintf(stderr, "another thread frees an operator\n");
    return PMPI_Op_free(op);
}

int MPI_Comm_idup(void *comm, void *copy, void *request)
{
    held.copies++;
    return PMPI_Comm_idup(comm, copy, request);
}

int MPI_Comm_free(void *comm)
{
    held.copies--;
    return PMPI_Comm_free(comm);
}

int MPI_Finalize(void)
{
    const int code = PMPI_Finalize();
    if (held.copies > 0)
        fprintf(stderr, "%d copies are left\n", held.copies);
    return code;
}
