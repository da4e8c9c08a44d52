/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI that a process has before horon looks for one, and what may be asked of it at any time.
 */
#include "backend/mpi_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

struct path {
    char *text;
    size_t bytes;
};

static int see_image(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    const struct path *path = arg;
    const char *name = strrchr(info->dlpi_name, '/');
    (void)bytes;
    name = name ? name + 1 : info->dlpi_name;
    const bool is_mpi = strncmp(name, "libmpi.so", 9) == 0 ||
                        strncmp(name, "libmpich.so", 11) == 0 ||
                        strncmp(name, "libmpi_abi.so", 13) == 0;
    if (is_mpi)
        snprintf(path->text, path->bytes, "%s", info->dlpi_name);
    return is_mpi;
}

bool horon_mpi_loaded(char *file, size_t file_bytes)
{
    struct path path = {.text = file, .bytes = file_bytes};
    return dl_iterate_phdr(see_image, &path) != 0;
}

bool horon_mpi_says(const char *question)
{
    char file[PATH_MAX];
    int (*ask)(int *flag) = NULL;
    int yes = 0;
    void *image =
        horon_mpi_loaded(file, sizeof file) ? dlopen(file, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *address = image ? dlsym(image, question) : NULL;
    memcpy(&ask, &address, sizeof address);
    if (ask)
        ask(&yes);
    if (image)
        dlclose(image);
    return yes;
}
