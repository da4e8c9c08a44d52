/* SPDX-License-Identifier: Apache-2.0 */
/* What started this process: found by boot/identity, and asked for by what begins an MPI. */
#ifndef HORON_BASE_LAUNCHER_H
#define HORON_BASE_LAUNCHER_H

#include <stdbool.h>

struct horon_launcher {
    const char *name; /* "Open MPI", "Slurm", ...: whose variables said which rank this is; static;
                         NULL: none */
    const char *srun; /* what its --mpi is, as far as variables tell: "none", "pmi2" (which stands
                         for any of PMI's) or "pmix"; static; NULL: no srun started it */
    bool ends_all;    /* it ends all ranks once one is gone, perhaps at once, and names none that
                         horon misses, as horonrun does */
    bool mpi_moves;   /* by its variables MPI writes to this process's memory without a call of
                         this process's */
};

#endif
