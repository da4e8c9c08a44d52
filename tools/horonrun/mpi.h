/* SPDX-License-Identifier: Apache-2.0 */
/* --mpi: ranks that an mpirun starts, with horonrun above it and beside each rank. */
#ifndef HORONRUN_MPI_H
#define HORONRUN_MPI_H

#include "hosts.h"
#include "options.h"

#include <limits.h>

enum horonrun_mpi_family { HORONRUN_MPI_OPEN, HORONRUN_MPI_OPEN_5, HORONRUN_MPI_HYDRA };

/** One launcher of MPI's, and what is asked of it. */
struct horonrun_mpi {
    enum horonrun_mpi_family family;
    char program[PATH_MAX];
    char title[128];          /* for people: "mpirun (Open MPI 4.1.4)" */
    const char *how;          /* it was found so */
    int interrupt, terminate; /* what it passes on: ranks hear SIGINT and SIGTERM */
    int size;
    const struct horonrun_options *asked;
    const struct horonrun_hosts *hosts; /* NULL: none was given */
    struct horonrun_options own; /* what of the options horonrun does itself; views of asked */
};

/**
 * Finds the launcher, and which family's it is: it is run once, with --version.
 * @return OK | ERR_CONFIG, there is none, or it is neither Open MPI's nor a hydra
 */
horon_status_t horonrun_mpi_find(struct horonrun_mpi *mpi, const char *program,
                                 struct horon_error *error);

/** @return true: @p path is where PATH has @p name, or @p name itself if it has a slash */
bool horonrun_mpi_path(const char *name, char path[PATH_MAX]);

/**
 * Checks what is asked for. @p options and @p hosts outlive @p mpi.
 * @return OK | ERR_CONFIG, an option that means nothing with this launcher, with the reason, or as
 *         horonrun_mpi_find()
 */
horon_status_t horonrun_mpi_prepare(struct horonrun_mpi *mpi,
                                    const struct horonrun_options *options,
                                    const struct horonrun_hosts *hosts, struct horon_error *error);

/**
 * The launcher's command line, without a value of a variable, which may be a secret.
 * @param environment_io  of the launcher: what told another job's places is taken out, and what is
 *        told by variables only is added
 * @param remote          that for other hosts, whose names go along
 * @param command_out     NULL-ended; free with horonrun_strings_free()
 * @return OK | ERR_MEMORY
 */
horon_status_t horonrun_mpi_command(const struct horonrun_mpi *mpi, char ***environment_io,
                                    char *const *remote, char ***command_out,
                                    struct horon_error *error);

/** The word by which a launcher starts horonrun beside each rank, and another one that may follow:
 * no rank ends the others. Then the command. */
#define HORONRUN_MPI_RANK "--rank-of-mpi"
#define HORONRUN_MPI_ALONE "--alone"

/** Wherever it stands, launchers take ":" for the end of a program's words. It goes to horonrun as
 * "\:" therefore, and so does that, with another backslash: each takes one off. */
bool horonrun_mpi_is_colon(const char *word);

/** Is that horonrun. @param words what follows. @return the exit status */
int horonrun_mpi_rank_main(char **words);

#endif
