/* SPDX-License-Identifier: Apache-2.0 */
/* Which file is the process's MPI, and its dlopen(); mpi_library.h says what is in it. */
#ifndef HORON_BACKEND_MPI_OPEN_H
#define HORON_BACKEND_MPI_OPEN_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>

enum { HORON_MPI_FILE_BYTES = 256 };

/**
 * Opens the library, for as long as the process lasts.
 * @param wanted  a file; "": the one that the process has, else the launcher's, else the first one
 * @param launcher  as boot/identity names it, or NULL
 * @param file_out  [HORON_MPI_FILE_BYTES] what was opened
 * @return OK | ERR_UNSUPPORTED, there is none | ERR_CONFIG, the process has another one than is
 * wanted: nothing was opened
 */
horon_status_t horon_mpi_open(const char *wanted, const char *launcher, char *file_out,
                              void **image_out, struct horon_error *error);

/** The name of a library that is looked for where the process has none and none is wanted: the
 * @p number-th, from 0, of a process of that launcher. Static. @return NULL: there are no more */
const char *horon_mpi_usual(const char *launcher, size_t number);

/** Has the process one already? The program is linked with it, or has loaded it. Thread: any. */
bool horon_mpi_is_here(void);

/** Is that Open MPI's? It speaks PMIx, and nothing of hydra's. Thread: any. */
bool horon_mpi_is_open_mpi(void);

/** Asks the one that the process has, if any, MPI_Initialized or MPI_Finalized, by the call's name;
 * loads none. Thread: any. */
bool horon_mpi_says(const char *question);

#endif
