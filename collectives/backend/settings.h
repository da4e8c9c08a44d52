/* SPDX-License-Identifier: Apache-2.0 */
/* What a context tells its backends when they open. The runtime makes it of the options. */
#ifndef HORON_BACKEND_SETTINGS_H
#define HORON_BACKEND_SETTINGS_H

#include "launcher.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct horon_link;

/** What a context wants of its backends. */
struct horon_backend_settings {
    /* Their names in order of preference, comma separated; NULL: all, as they stand. One that is
     * usable everywhere is always there, behind those that are named. */
    const char *order;
    const char *mpi_library; /* a file; "": one that is found */
    bool mpi_serialized;     /* the program calls no MPI beside it, nor once it has failed */
    struct horon_launcher launcher;
    int launched; /* ranks that it started */
    /* Operations that the program has submitted, and those of them that have ended, ever: NULL, or
     * as long as the context */
    const _Atomic uint32_t *posted, *landed;
    const _Atomic uint32_t *in_flight; /* likewise those at work, also what nobody has counted */
    const void *context;               /* an address of its own, by which it is known again */
    /* [launched] links to Gloo's ranks, NULL for this one: the backend gloo takes them, and leaves
     * NULL; what it has not taken is the caller's. NULL: there are none */
    struct horon_link **gloo_links;
    bool gloo_native; /* two horons speak better than Gloo to each other (link/gloo_wire.h) */
    bool gloo_e1;     /* its ranks are of Gloo's first era: their float16 is not torch's */
};

#endif
