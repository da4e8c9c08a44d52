/* SPDX-License-Identifier: Apache-2.0 */
#include "own_mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int own_mpi(const char *call)
{
    const char *file = getenv("VERIFY_MPI");
    void *library = file ? dlopen(file, RTLD_NOW | RTLD_GLOBAL) : NULL;
    void *address = library ? dlsym(library, call) : NULL;
    int (*init)(int *, char ***), (*finalize)(void);
    if (!file)
        return 0;
    if (!address) {
        fprintf(stderr, "%s of %s: %s\n", call, file, dlerror());
        return 1;
    }
    memcpy(&init, &address, sizeof address);
    memcpy(&finalize, &address, sizeof address);
    return strcmp(call, "MPI_Init") == 0 ? init(NULL, NULL) : finalize();
}
