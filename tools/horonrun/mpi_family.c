/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which mpirun is it? The name says nothing: on Debian mpirun and mpiexec lead to the one or the
 * other. So the program is asked, and what it says of its version decides: Open MPI 4's calls
 * itself OpenRTE where its name is another than mpirun. A third family is an error: it would take
 * options for a command, or start each rank as a job of its own.
 */
#include "mpi.h"

#include "environment.h"
#include "found.h"
#include "tree.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of what a program that was asked has left, a millisecond each. */
#define LOOKS_MAX 2000

/* A folder may be "executed", too, by which its files are reached. */
static bool is_program(const char *path)
{
    struct stat is;
    return stat(path, &is) == 0 && S_ISREG(is.st_mode) && access(path, X_OK) == 0;
}

bool horonrun_mpi_path(const char *name, char path[PATH_MAX])
{
    const char *folders = horonrun_environment_find(environ, "PATH");
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        return is_program(path);
    }
    while (folders && *folders) {
        const size_t bytes = strcspn(folders, ":");
        const int used = snprintf(path, PATH_MAX, "%.*s/%s", (int)bytes, folders, name);
        if (bytes && used < PATH_MAX && is_program(path))
            return true;
        folders += bytes + (folders[bytes] == ':');
    }
    return false;
}

/* The number that follows @p mark, as text. @return false: the mark is not there */
static bool version_after(const char *text, const char *mark, char *version, size_t bytes)
{
    const char *found = strstr(text, mark);
    if (!found)
        return false;
    found += strlen(mark);
    found += strcspn(found, "0123456789\n");
    snprintf(version, bytes, "%.*s", (int)strspn(found, "0123456789.abcr"), found);
    return true;
}

/* A script may have started what stays. A process that was killed is there for a moment yet. */
static void end_what_stays(void)
{
    static const struct timespec moment = {.tv_nsec = 1000000};
    for (int looks = 0; looks < LOOKS_MAX && horonrun_tree_signal(SIGKILL, NULL, 0, NULL, 0) > 0;
         looks++)
        nanosleep(&moment, NULL);
}

static horon_status_t recognise(struct horonrun_mpi *mpi, struct horon_error *error)
{
    struct horon_found said;
    char version[32];
    const char *slash = strrchr(mpi->program, '/'), *family;
    horonrun_tree_adopt();
    horon_found_version(&said, mpi->program);
    end_what_stays();
    mpi->interrupt = SIGINT;
    mpi->terminate = SIGTERM;
    if (version_after(said.text, "(Open MPI)", version, sizeof version) ||
        version_after(said.text, "(OpenRTE)", version, sizeof version)) {
        family = "Open MPI";
        mpi->interrupt =
            SIGALRM; /* by SIGINT and SIGTERM it ends ranks as it likes, and no longer */
        mpi->terminate = SIGABRT; /* shows what they say; these it passes on */
        mpi->family = atoi(version) < 5 ? HORONRUN_MPI_OPEN : HORONRUN_MPI_OPEN_5;
    } else if (strstr(said.text, "HYDRA") &&
               version_after(said.text, "Version:", version, sizeof version)) {
        family = "MPICH's hydra";
        mpi->family = HORONRUN_MPI_HYDRA;
    } else {
        said.text[strcspn(said.text, "\n")] = 0;
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s is neither Open MPI's nor MPICH's launcher: asked for its "
                               "version it says \"%.200s\"; --mpirun PROGRAM names another",
                               mpi->program, said.text);
    }
    snprintf(mpi->title, sizeof mpi->title, "%.64s (%s %s)", slash ? slash + 1 : mpi->program,
             family, version);
    return HORON_OK;
}

horon_status_t horonrun_mpi_find(struct horonrun_mpi *mpi, const char *program,
                                 struct horon_error *error)
{
    static const char *const names[] = {"mpirun", "mpiexec", "mpiexec.hydra"};
    mpi->how = "by --mpirun";
    if (program && horonrun_mpi_path(program, mpi->program))
        return recognise(mpi, error);
    if (program)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "--mpirun %s: no such program%s; Open MPI's is mpirun, MPICH's "
                               "mpiexec.hydra",
                               program, strchr(program, '/') ? "" : " in PATH");
    mpi->how = "the first in PATH; --mpirun names another";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (horonrun_mpi_path(names[i], mpi->program))
            return recognise(mpi, error);
    return horon_error_set(
        error, HORON_ERR_CONFIG,
        "--mpi: neither mpirun nor mpiexec nor mpiexec.hydra is in PATH (Debian: "
        "openmpi-bin or mpich); --mpirun PROGRAM names one, and without --mpi "
        "horonrun starts the ranks itself");
}
