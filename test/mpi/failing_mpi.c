/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An MPI that misses a rank before horon does: MPICH's, but the process that is written in the
 * file that FAILING_MPI names adds nothing to its next MPI_Iallreduce(), and stands still after
 * some looks for its end: all have agreed on that sum by then, and the others wait for it in MPI.
 * From then on (there is the file .still) their MPI_Testall() fails; another file, .told, says so.
 * It fails as MPI's own calls do, by the handlers of that communicator and of the world: where one
 * of them is MPI's usual one, the process ends.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <mpi.h>

/* Looks, after which nothing that horon has written waits for a wake any more. */
#define LOOKS 100

/* Of the process that is asked: its looks for the end of the sum that it adds nothing to. */
static int looks;
/* Of the last sum. */
static MPI_Comm summed_by = MPI_COMM_NULL;

#define EXPORT __attribute__((visibility("default")))

static void path_of(char *path, size_t size, const char *suffix)
{
    const char *asked = getenv("FAILING_MPI");
    snprintf(path, size, "%s%s", asked ? asked : "", suffix);
}

static void leave(const char *suffix)
{
    char path[512];
    path_of(path, sizeof path, suffix);
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

static int is_asked(void)
{
    char path[512];
    long pid = 0;
    path_of(path, sizeof path, "");
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    const int read = fscanf(file, "%ld", &pid);
    fclose(file);
    return read == 1 && pid == getpid();
}

EXPORT int MPI_Iallreduce(const void *src, void *dst, int count, MPI_Datatype type, MPI_Op op,
                          MPI_Comm comm, MPI_Request *request)
{
    static int nothing;
    int self;
    summed_by = comm;
    if (is_asked() && PMPI_Comm_rank(comm, &self) == MPI_SUCCESS) {
        looks = 1;
        return PMPI_Irecv(&nothing, 1, MPI_INT, self, 0, comm, request);
    }
    return PMPI_Iallreduce(src, dst, count, type, op, comm, request);
}

EXPORT int MPI_Testall(int count, MPI_Request requests[], int *through, MPI_Status statuses[])
{
    char still[512];
    const int code = PMPI_Testall(count, requests, through, statuses);
    if (looks > 0 && looks++ == LOOKS) {
        leave(".still");
        raise(SIGSTOP);
    }
    path_of(still, sizeof still, ".still");
    if (*through || access(still, F_OK) != 0)
        return code;
    leave(".told");
    if (summed_by != MPI_COMM_NULL)
        PMPI_Comm_call_errhandler(summed_by, MPI_ERR_OTHER);
    PMPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}
