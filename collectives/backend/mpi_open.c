/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process has one MPI: two would share symbols, the launcher's connection and perhaps memory, and
 * end it in ways of their own. So what it has goes before what could be found, and another one that
 * is asked for by name is not opened. A file in front of the library, as of a profiler, is no
 * second one where it was loaded with it. RTLD_GLOBAL, as Open MPI's plug-ins look for the
 * library's symbols that way.
 */
#include "backend/mpi_open.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* As packages have them, of Open MPI, of MPICH and with the ABI of the standard. */
static const char *const usual_files[] = {"libmpi.so.40", "libmpich.so.12", "libmpi.so.12",
                                          "libmpi_abi.so.1", "libmpi_abi.so.0"};
#define USUAL_FILES (sizeof usual_files / sizeof usual_files[0])

/* The first library of MPI that this process has. */
static int see_image(struct dl_phdr_info *info, size_t bytes, void *path)
{
    const char *name = strrchr(info->dlpi_name, '/');
    (void)bytes;
    name = name ? name + 1 : info->dlpi_name;
    const bool is_mpi = strncmp(name, "libmpi.so", 9) == 0 ||
                        strncmp(name, "libmpich.so", 11) == 0 ||
                        strncmp(name, "libmpi_abi.so", 13) == 0;
    if (is_mpi)
        snprintf(path, HORON_MPI_FILE_BYTES, "%s", info->dlpi_name);
    return is_mpi;
}

bool horon_mpi_is_here(void)
{
    char path[HORON_MPI_FILE_BYTES];
    return dl_iterate_phdr(see_image, path) != 0;
}

/* @return of the one that this process has, or NULL; it stays as long as that does */
static void *find_symbol(const char *name)
{
    char path[HORON_MPI_FILE_BYTES];
    void *image = dl_iterate_phdr(see_image, path) ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *address = image ? dlsym(image, name) : NULL;
    if (image)
        dlclose(image);
    return address;
}

bool horon_mpi_is_open_mpi(void)
{
    return find_symbol("ompi_mpi_comm_world") != NULL;
}

bool horon_mpi_says(const char *question)
{
    int (*ask)(int *flag) = NULL;
    int yes = 0;
    void *address = find_symbol(question);
    memcpy(&ask, &address, sizeof address);
    if (ask)
        ask(&yes);
    return yes;
}

/* The loader knows a file that it has by any of its names. */
static bool is_loaded(const char *file)
{
    void *image = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    if (image)
        dlclose(image);
    return image != NULL;
}

static bool open_image(const char *file, char *file_out, void **image_out, struct horon_error *why)
{
    void *image = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (!image) {
        horon_error_set(why, HORON_ERR_UNSUPPORTED, "%s", dlerror());
        return false;
    }
    if (file != file_out)
        snprintf(file_out, HORON_MPI_FILE_BYTES, "%s", file);
    *image_out = image;
    return true;
}

/* Those of the launcher's family first. */
const char *horon_mpi_usual(const char *launcher, size_t number)
{
    const size_t first = launcher && strcmp(launcher, "PMI") == 0 ? 1 : 0;
    return number < USUAL_FILES ? usual_files[(first + number) % USUAL_FILES] : NULL;
}

static horon_status_t open_usual(const char *launcher, char *file_out, void **image_out,
                                 struct horon_error *error)
{
    struct horon_error why;
    const char *file;
    for (size_t i = 0; (file = horon_mpi_usual(launcher, i)); i++)
        if (open_image(file, file_out, image_out, &why))
            return HORON_OK;
    return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                           "no MPI library is here: neither libmpi.so.40 of Open MPI, nor "
                           "libmpich.so.12 or libmpi.so.12 of MPICH, nor libmpi_abi.so.1");
}

horon_status_t horon_mpi_open(const char *wanted, const char *launcher, char *file_out,
                              void **image_out, struct horon_error *error)
{
    const bool has_one = dl_iterate_phdr(see_image, file_out) != 0;
    if (wanted[0] && has_one && !is_loaded(wanted))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_MPI_LIBRARY names %.255s, but this process has %.255s "
                               "already, and cannot have two MPIs: name that one, or none",
                               wanted, file_out);
    if (!wanted[0] && !has_one)
        return open_usual(launcher, file_out, image_out, error);
    return open_image(wanted[0] ? wanted : file_out, file_out, image_out, error)
               ? HORON_OK
               : HORON_ERR_UNSUPPORTED;
}
