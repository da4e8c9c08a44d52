/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An MPI that misses a rank before horon does: MPICH's, but MPI_Testall() fails where it finds
 * nothing once there is the file that FAILING_MPI names; another one, .told, says that it has.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OTHER_ERROR 15 /* MPI_ERR_OTHER */

typedef int (*testall_fn_t)(int count, void *requests, int *through, void *statuses);

__attribute__((visibility("default"))) int MPI_Testall(int count, void *requests, int *through,
                                                       void *statuses);
int MPI_Testall(int count, void *requests, int *through, void *statuses)
{
    const char *asked = getenv("FAILING_MPI");
    void *real = dlsym(RTLD_NEXT, "MPI_Testall");
    char told[512];
    const int code = ((testall_fn_t)(uintptr_t)real)(count, requests, through, statuses);
    if (*through || !asked || access(asked, F_OK) != 0)
        return code;
    snprintf(told, sizeof told, "%s.told", asked);
    const int fd = open(told, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return OTHER_ERROR;
}
