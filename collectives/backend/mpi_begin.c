/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From MPI's begin to its end, which a process has once each. What the program has begun it ends;
 * what horon has begun ends with the process, as another context may want it. Where ranks may be
 * gone it does not end at all.
 *
 * It is begun where a launcher of that library started several ranks, all of which begin it: alone
 * a rank would wait for ever, or be alone in its world. So what speaks against it is asked before.
 */
#include "backend/mpi_begin.h"

#include "backend/mpi_open.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What boot/identity calls a launcher that is one family's own. Any MPI may have the standard's. */
static const char of_open_mpi[] = "Open MPI", of_mpich[] = "PMI";

static struct {
    pthread_mutex_t lock;              /* guards all of it, and the loading of the library */
    struct horon_mpi_library *library; /* NULL: it is not loaded */
    bool usable;                       /* begun by somebody, and its handles are there */
    bool used;                         /* by a context that asked, and is not done */
    bool stays, closed, failed;
    pid_t process; /* in which horon began it: a child of a fork does not end it */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Behind whatever the program's own handlers do. */
static void end_with_process(void)
{
    const struct horon_mpi_library *library = process.library;
    if (process.process != getpid() || process.used || process.stays ||
        horon_mpi_has_ended(library))
        return;
    library->mpi.finalize();
}

/* One of several that a launcher of MPI's started. */
static bool has_peers(const struct horon_mpi_wanted *wanted)
{
    const char *by = wanted->launcher.name;
    return by && wanted->size > 1 &&
           (strcmp(by, of_open_mpi) == 0 || strcmp(by, of_mpich) == 0 || strcmp(by, "PMIx") == 0 ||
            strcmp(by, "Slurm") == 0);
}

/* Where this one does without, the others would wait for it in MPI_Init() for ever. */
static horon_status_t refuse_alone(const struct horon_mpi_wanted *wanted, struct horon_error *error)
{
    const struct horon_error why = *error;
    const char *srun = wanted->launcher.srun;
    if (!has_peers(wanted) || (srun && strcmp(srun, "none") == 0) ||
        horon_mpi_says("MPI_Initialized"))
        return HORON_ERR_UNSUPPORTED;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "%.300s; the ranks that %s started begin MPI together or not at all: "
                           "name its library with HORON_MPI_LIBRARY, or leave mpi out of "
                           "HORON_BACKEND",
                           why.text, wanted->launcher.name);
}

/* Open MPI says its name whatever its ABI. */
static bool is_open_mpi(const struct horon_mpi_library *library)
{
    const char name[] = "Open MPI";
    return strncmp(library->version, name, strlen(name)) == 0;
}

/* Without what it needs each rank would be alone in MPICH, and Open MPI ends the process. An MPICH
 * that stands on Slurm's own library of PMI needs no variable. */
static horon_status_t check_srun(const char *way, struct horon_error *error)
{
    const struct horon_mpi_library *library = process.library;
    const bool is_open = is_open_mpi(library);
    if (!way || strcmp(way, "pmix") == 0 || (!is_open && strcmp(way, "pmi2") == 0))
        return HORON_OK;
    if (!is_open && (dlsym(library->image, "PMI_Init") || dlsym(library->image, "PMI2_Init")))
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                           "MPI is not begun in a process that srun --mpi=%s started: %s needs "
                           "srun --mpi=%s, or its own mpirun",
                           way, library->family->name, is_open ? "pmix" : "pmi2");
}

static horon_status_t begin(const struct horon_mpi_wanted *wanted, struct horon_error *error)
{
    struct horon_mpi_library *library = process.library;
    const horon_status_t status = check_srun(wanted->launcher.srun, error);
    if (status != HORON_OK)
        return status;
    if (!has_peers(wanted))
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "MPI is not begun in a process that %s started: start it with %s's "
                               "mpirun, or call MPI_Init() before",
                               wanted->launcher.name ? wanted->launcher.name : "nobody",
                               library->family->name);
    int level = 0;
    const int code =
        library->mpi.init_thread(NULL, NULL, library->family->levels[HORON_MPI_MULTIPLE], &level);
    if (code != HORON_MPI_SUCCESS)
        return horon_error_set(error, HORON_ERR_SYSTEM, "MPI_Init_thread() of %s failed with %d",
                               library->file, code);
    library->began = true;
    process.process = getpid();
    atexit(end_with_process);
    library->mpi.comm_set_errhandler(library->world, library->errors_return);
    return HORON_OK;
}

/* Two families that do not know each other: each rank would be alone. */
static horon_status_t check_launcher(const struct horon_mpi_wanted *wanted,
                                     struct horon_error *error)
{
    const struct horon_mpi_library *library = process.library;
    const bool differ = wanted->launcher.name && wanted->size > 1 && !is_open_mpi(library) &&
                        strcmp(wanted->launcher.name, of_open_mpi) == 0;
    if (!differ && (!library->size || library->size > 1 || wanted->size == 1))
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "%s started %d ranks, but %s (%s) %s: start them with its own mpirun, "
                           "or name the launcher's library with HORON_MPI_LIBRARY",
                           wanted->launcher.name ? wanted->launcher.name : "another launcher",
                           wanted->size, library->file, library->family->name,
                           library->size == 1 ? "sees one" : "is not its library");
}

/* These calls any thread may make. */
static horon_status_t see_level(struct horon_error *error)
{
    struct horon_mpi_library *library = process.library;
    int level = 0, main = 0;
    library->mpi.query_thread(&level);
    library->mpi.is_thread_main(&main);
    library->level = HORON_MPI_SINGLE;
    while (library->level < HORON_MPI_MULTIPLE &&
           level >= library->family->levels[library->level + 1])
        library->level++;
    if (library->level >= HORON_MPI_SERIALIZED || main)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                           "MPI was begun for calls of one thread, and another one makes this "
                           "context: begin it with MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)");
}

static horon_status_t see_world(struct horon_error *error)
{
    struct horon_mpi_library *library = process.library;
    int code = library->mpi.comm_rank(library->world, &library->rank);
    if (code == HORON_MPI_SUCCESS)
        code = library->mpi.comm_size(library->world, &library->size);
    return code == HORON_MPI_SUCCESS ? HORON_OK
                                     : horon_mpi_failed(library, "MPI_Comm_rank", code, error);
}

/* With the lock. */
static horon_status_t make_usable(const struct horon_mpi_wanted *wanted, struct horon_error *error)
{
    int begun = 0;
    if (process.used)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "another context of this process uses MPI, which serves one");
    if (process.closed)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "what was given up is still in MPI's hands");
    horon_status_t status =
        horon_mpi_load(wanted->file, wanted->launcher.name, &process.library, error);
    if (status == HORON_ERR_UNSUPPORTED)
        return refuse_alone(wanted, error);
    if (status == HORON_OK)
        status = check_launcher(wanted, error);
    if (status != HORON_OK)
        return status;
    const struct horon_mpi_library *library = process.library;
    library->mpi.initialized(&begun);
    if (begun && horon_mpi_has_ended(library))
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "MPI has ended in this process, and cannot begin again");
    if (!begun)
        status = begin(wanted, error);
    if (status == HORON_OK)
        status = see_level(error);
    if (status == HORON_OK && !process.usable)
        status = see_world(error);
    if (status == HORON_OK)
        status = check_launcher(wanted, error);
    if (status == HORON_OK && !process.usable)
        status = horon_mpi_make_handles(library, error);
    process.usable = status == HORON_OK;
    return status;
}

horon_status_t horon_mpi_begin(const struct horon_mpi_wanted *wanted,
                               const struct horon_mpi_library **library_out,
                               struct horon_error *error)
{
    pthread_mutex_lock(&process.lock);
    const horon_status_t status = make_usable(wanted, error);
    process.used |= status == HORON_OK;
    pthread_mutex_unlock(&process.lock);
    if (status == HORON_OK)
        *library_out = process.library;
    return status;
}

horon_status_t horon_mpi_find(const char *file, const struct horon_mpi_library **library_out,
                              struct horon_error *error)
{
    int begun = 0;
    pthread_mutex_lock(&process.lock);
    const horon_status_t status = horon_mpi_load(file, NULL, &process.library, error);
    pthread_mutex_unlock(&process.lock);
    if (status != HORON_OK)
        return status;
    process.library->mpi.initialized(&begun);
    if (!begun || horon_mpi_has_ended(process.library))
        return horon_error_set(error, HORON_ERR_INVALID,
                               "%s (%s) %s in this process, and has no communicators",
                               process.library->file, process.library->family->name,
                               begun ? "has ended" : "has not begun");
    *library_out = process.library;
    return HORON_OK;
}

void horon_mpi_end(bool stays, bool closed)
{
    pthread_mutex_lock(&process.lock);
    assert(process.used);
    process.used = false;
    process.stays |= stays;
    process.closed |= closed;
    if (!process.stays && !horon_mpi_has_ended(process.library)) {
        horon_mpi_free_handles(process.library);
        process.usable = false;
    }
    pthread_mutex_unlock(&process.lock);
}

void horon_mpi_doubt(void)
{
    pthread_mutex_lock(&process.lock);
    process.failed = true;
    pthread_mutex_unlock(&process.lock);
}

bool horon_mpi_is_doubted(void)
{
    pthread_mutex_lock(&process.lock);
    const bool doubted = process.failed || process.stays || process.closed;
    pthread_mutex_unlock(&process.lock);
    return doubted;
}
