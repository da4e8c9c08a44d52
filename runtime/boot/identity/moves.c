/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each MPI has variables of its own for a thread that makes progress, and none has a call that says
 * whether there is one. MPICH takes the last of its three, and begins with no value but those that
 * it knows; Cray's has words for kinds of thread. So whatever is no plain "no" counts as yes: that
 * costs a copy at most. What a file of parameters says is not seen.
 *
 * UCX, on which both may stand, has a receiver fetch what is long, in a call of the receiver's,
 * unless it is told that the sender puts it there: then that one makes the call.
 */
#include "boot/identity/identity.h"

#include <string.h>
#include <strings.h>

static const char *const variables[] = {
    "MPICH_ASYNC_PROGRESS",
    "MPIR_PARAM_ASYNC_PROGRESS",
    "MPIR_CVAR_ASYNC_PROGRESS",
    "I_MPI_ASYNC_PROGRESS",
    "MPICH_NEMESIS_ASYNC_PROGRESS", /* Intel's, Cray's */
    "OMPI_MCA_btl_tcp_progress_thread",
};
static const char *const noes[] = {"", "0", "no", "off", "false", "disable", "disabled"};

static bool is_no(const char *value)
{
    for (size_t i = 0; i < sizeof noes / sizeof noes[0]; i++)
        if (strcasecmp(value, noes[i]) == 0)
            return true;
    return false;
}

bool horon_identity_mpi_moves(horon_environment_fn get)
{
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = get(variables[i]);
        if (value && !is_no(value))
            return true;
    }
    const char *scheme = get("UCX_RNDV_SCHEME");
    return scheme && strncmp(scheme, "put", 3) == 0;
}
