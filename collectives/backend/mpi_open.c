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

/* For one of the images whose names may be an MPI's: the @p left-th, from 0. */
struct search {
    int left;
    char *path; /* [HORON_MPI_FILE_BYTES] */
};

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int see_image(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    struct search *search = arg;
    (void)bytes;
    if (strncmp(file_name(info->dlpi_name), "libmpi", 6) != 0 || search->left-- > 0)
        return 0;
    snprintf(search->path, HORON_MPI_FILE_BYTES, "%s", info->dlpi_name);
    return 1;
}

/* Its own, not of a library that it needs. */
static bool defines(const char *path, const char *symbol)
{
    void *image = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *address = image ? dlsym(image, symbol) : NULL;
    void *of_path = NULL, *of_address = NULL;
    Dl_info info;
    const bool found = address && dlinfo(image, RTLD_DI_LINKMAP, &of_path) == 0 &&
                       dladdr1(address, &info, &of_address, RTLD_DL_LINKMAP) != 0 &&
                       of_path == of_address;
    if (image)
        dlclose(image);
    return found;
}

/* Vendors name theirs as they like (libmpi_gnu_91, libmpi_ibm), and what is no MPI has such names,
 * too: libraries for Fortran or C++ need its calls, a profiler or a stub has calls that are named
 * alike. But the name by which a profiler reaches what it replaces is only an MPI's. */
static bool is_mpi(const char *path)
{
    const char *name = file_name(path);
    return strncmp(name, "libmpi.so", 9) == 0 || strncmp(name, "libmpich.so", 11) == 0 ||
           strncmp(name, "libmpi_abi.so", 13) == 0 || defines(path, "PMPI_Init_thread");
}

/* The first library of MPI that this process has. It is looked into outside of see_image(), under
 * which a lock is held that the loader takes behind another one. */
static bool find_image(char path[HORON_MPI_FILE_BYTES])
{
    for (int skip = 0;; skip++) {
        struct search search = {.left = skip, .path = path};
        if (dl_iterate_phdr(see_image, &search) == 0)
            return false;
        if (is_mpi(path))
            return true;
    }
}

bool horon_mpi_is_here(void)
{
    char path[HORON_MPI_FILE_BYTES];
    return find_image(path);
}

/* @return of the one that this process has, or NULL; it stays as long as that does */
static void *find_symbol(const char *name)
{
    char path[HORON_MPI_FILE_BYTES];
    void *image = find_image(path) ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
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
    const bool has_one = find_image(file_out);
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
