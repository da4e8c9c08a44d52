/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From MPI's begin to its end, which a process has once each. What the program has begun it ends;
 * what horon has begun ends with the process, as another context may want it. Where ranks may be
 * gone it does not end at all.
 *
 * It is begun where a launcher of that library started several ranks, all of which begin it: alone
 * a rank would wait for ever, or be alone in its world. So what speaks against it is asked before.
 * MPI_Init_thread() waits for all ranks, and hears of none that dies before it has come. So a
 * thread calls it while the ranks join, and hear of each other there. If they fail, nobody waits
 * for the thread any more: what it touches is the process's, and horon does not call this MPI
 * again.
 */
#include "backend/mpi_begin.h"

#include "alloc.h"
#include "backend/mpi_finalize.h"
#include "backend/mpi_gate.h"
#include "backend/mpi_open.h"
#include "backend/mpi_shut.h"
#include "thread.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What boot/identity calls a launcher that is one family's own. Any MPI may have the standard's. */
static const char of_open_mpi[] = "Open MPI", of_mpich[] = "PMI";

enum begin { NOT_BEGUN, UNDER_WAY, THROUGH, ENDING }; /* by horon */

/* Whose it is. From the last one nothing leads back: no context gets it any more. */
enum holder {
    FREE,  /* nobody's */
    ASKED, /* `context` has asked for what horon begins, and takes it or gives it up */
    USED,  /* a context's, until its end */
    LEFT,  /* given up while it began, which may last for ever */
    HOLDERS
};

/* What is known of the world's ranks; it only gets worse. */
enum world {
    WHOLE,   /* as far as anybody knows */
    DOUBTED, /* a job has failed: one may be gone */
    BROKEN   /* they might wait for ever in MPI_Finalize(), which is left out */
};

static struct {
    pthread_mutex_t lock; /* guards all of it but `begin`, and the loading of the library */
    struct horon_mpi_library *library; /* NULL: it is not loaded */
    _Atomic int begin;                 /* of enum begin */
    int code;                          /* of MPI_Init_thread(), once it is through */
    enum holder holder;
    const void *context; /* that has what horon has begun, or asked for it; NULL: none */
    bool of_launch;      /* the ranks of the context that has it are some of MPI's world for sure */
    enum world world;
    pid_t *peers; /* [peer_count] ranks of this host, each once, as of mpi_finalize.h */
    int peer_count;
    struct horon_log log; /* for what is left to say then */
    pid_t process;        /* that began it, or was seen to have: a fork of it has none. 0: none */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The only function that changes it; asserts that the move is a legal one. */
static void move(enum holder to)
{
    static const unsigned legal[HOLDERS] = {
        [FREE] = 1u << ASKED | 1u << USED, /* the program's MPI is taken without asking */
        [ASKED] = 1u << FREE | 1u << USED | 1u << LEFT,
        [USED] = 1u << FREE};
    assert(legal[process.holder] & 1u << to);
    process.holder = to;
}

static void lose(enum world to)
{
    process.world = to > process.world ? to : process.world;
}

/* Of the library that a program is linked with, which horon has not looked for yet; or NULL. */
extern int MPI_Initialized(int *flag) __attribute__((weak));

static void note_begun(void)
{
    int begun = 0;
    if (process.process)
        return;
    if (process.library)
        process.library->mpi.initialized(&begun);
    else if (MPI_Initialized)
        MPI_Initialized(&begun);
    if (begun)
        process.process = getpid();
}

/* Both would read from the parent's connections. And any call might move what was given up. */
static horon_status_t check_process(struct horon_error *error)
{
    if (process.process && process.process != getpid())
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "MPI was begun in process %d, of which this one is a fork",
                               (int)process.process);
    return horon_mpi_check_shut(error);
}

void horon_mpi_end_with_process(void)
{
    const struct horon_mpi_library *library = process.library;
    if (!library || !library->began || process.process != getpid() || process.holder == USED ||
        process.world == BROKEN || horon_mpi_has_ended(library))
        return;
    atomic_store(&process.begin, ENDING);
    if (horon_mpi_finalize(library, process.peers, process.peer_count, HORON_MPI_FINALIZE_MS)) {
        atomic_store(&process.begin, THROUGH);
        return;
    }
    lose(BROKEN);
    HORON_LOG_WARN(&process.log, "MPI_Finalize() is left out, as a rank of this host has ended "
                                 "before it, and ranks wait there");
}

/* What has been begun by horon is a context's that asked. */
static bool ends_after(const void *context)
{
    return process.holder == USED && process.context == context;
}

bool horon_mpi_ends_after(const void *context)
{
    pthread_mutex_lock(&process.lock);
    const bool does = ends_after(context);
    if (!does && process.context == context) /* the next one may have its address */
        process.context = NULL;
    pthread_mutex_unlock(&process.lock);
    return does;
}

/* Are they in it already? One that is known to have ended is like another. */
static bool has_peer(pid_t peer)
{
    bool has = peer == HORON_MPI_PEER_UNKNOWN;
    for (int i = 0; i < process.peer_count && !has; i++)
        has = process.peers[i] == peer;
    return has;
}

/* A job of some of the ranks comes after one of all of them, which MPI_Finalize() waits for: so
 * they are added to those of the contexts before. Without memory for them they are not watched. */
static void add_peers(const pid_t *peers, int count)
{
    const size_t most = (size_t)process.peer_count + (size_t)count;
    pid_t *known = horon_zalloc(most + 1, sizeof *known);
    if (!known)
        return;
    if (process.peers)
        memcpy(known, process.peers, (size_t)process.peer_count * sizeof *known);
    horon_free(process.peers);
    process.peers = known;
    for (int i = 0; i < count; i++)
        if (!has_peer(peers[i]))
            process.peers[process.peer_count++] = peers[i];
}

void horon_mpi_know_peers(const void *context, const pid_t *peers, int count,
                          const struct horon_log *log)
{
    pthread_mutex_lock(&process.lock);
    if (ends_after(context) && process.of_launch) {
        add_peers(peers, count);
        process.log = *log;
        process.log.fn = NULL; /* it may be gone then */
    }
    pthread_mutex_unlock(&process.lock);
}

/* One of several that a launcher of MPI's started. */
static bool has_peers(const struct horon_mpi_wanted *wanted)
{
    const char *by = wanted->launcher.name;
    return by && wanted->size > 1 &&
           (strcmp(by, of_open_mpi) == 0 || strcmp(by, of_mpich) == 0 || strcmp(by, "PMIx") == 0 ||
            strcmp(by, "Slurm") == 0);
}

/* As people know it, or NULL. */
static const char *name_of(const struct horon_launcher *launcher)
{
    if (!launcher->name || strcmp(launcher->name, of_mpich) != 0)
        return launcher->name;
    return launcher->srun ? "srun (PMI)" : "MPICH's mpiexec or the like (PMI)";
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
                           why.text, name_of(&wanted->launcher));
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

/* Each rank would be alone. A program's own library no setting can replace. */
static horon_status_t refuse_library(const struct horon_mpi_wanted *wanted,
                                     const struct horon_mpi_library *library, const char *why,
                                     struct horon_error *error)
{
    const bool own = library->of_program;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "%s started %d ranks, but %s (%s)%s %s: start them with its own mpirun, "
                           "or %s",
                           wanted->launcher.name ? name_of(&wanted->launcher) : "another launcher",
                           wanted->size, library->file, library->family->name,
                           own ? ", which the program uses," : "", why,
                           own ? "have the program use the launcher's MPI"
                               : "name the launcher's library with HORON_MPI_LIBRARY");
}

/* Open MPI needs PMIx, and knows PMI at best where it was built for it: begun below MPICH's mpiexec
 * each rank is alone, and those that have not come through yet when the first one sees that cannot
 * end it. With the program's own MPI_Init() the world is seen. */
static bool is_open_mpi_by_pmi(const struct horon_mpi_wanted *wanted)
{
    return !wanted->launcher.srun && strcmp(wanted->launcher.name, of_mpich) == 0 &&
           is_open_mpi(process.library);
}

/* @return OK: it may be begun */
static horon_status_t check_begin(const struct horon_mpi_wanted *wanted, struct horon_error *error)
{
    const horon_status_t status = check_srun(wanted->launcher.srun, error);
    if (status != HORON_OK)
        return status;
    if (has_peers(wanted))
        return is_open_mpi_by_pmi(wanted)
                   ? refuse_library(wanted, process.library, "is not its library", error)
                   : HORON_OK;
    return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                           "MPI is not begun in a process that %s started: start it with %s's "
                           "mpirun or horonrun --mpi, or call MPI_Init() before",
                           wanted->launcher.name ? name_of(&wanted->launcher) : "nobody",
                           process.library->family->name);
}

/* Two families that do not know each other. */
static horon_status_t check_launcher(const struct horon_mpi_wanted *wanted,
                                     struct horon_error *error)
{
    const struct horon_mpi_library *library = process.library;
    const bool differ = wanted->launcher.name && wanted->size > 1 && !is_open_mpi(library) &&
                        strcmp(wanted->launcher.name, of_open_mpi) == 0;
    if (!differ && (!library->size || library->size > 1 || wanted->size == 1))
        return HORON_OK;
    return refuse_library(wanted, library, library->size == 1 ? "sees one" : "is not its library",
                          error);
}

static horon_status_t see_level(struct horon_error *error)
{
    struct horon_mpi_library *library = process.library;
    bool main = false;
    library->level = horon_mpi_see_level(library, &main);
    if (library->level >= HORON_MPI_SERIALIZED || (main && !library->began))
        return HORON_OK;
    return horon_error_set(
        error, HORON_ERR_UNSUPPORTED,
        library->began
            ? "MPI lets one thread alone call it, whatever is asked for, and horon's that began it "
              "is gone: call MPI_Init() before"
            : "MPI was begun for calls of one thread, and another one makes this context: begin it "
              "with MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)");
}

/* ---- asked by one context after another; with the lock --------------------------------------- */

/* How far is what a thread of horon's begins? */
static horon_status_t see_begin(struct horon_error *error)
{
    struct horon_mpi_library *library = process.library;
    const int begin = atomic_load(&process.begin);
    if (begin == UNDER_WAY)
        return horon_error_set(error, HORON_IN_PROGRESS,
                               "MPI_Init_thread() of %s waits until all ranks have come there, or "
                               "for their launcher",
                               library->file);
    if (begin == THROUGH && process.code != HORON_MPI_SUCCESS)
        return horon_error_set(error, HORON_ERR_SYSTEM, "MPI_Init_thread() of %s failed with %d",
                               library->file, process.code);
    if (begin == THROUGH && !library->began) {
        library->began = true;
        atexit(horon_mpi_end_with_process); /* behind whatever the program's own handlers do */
    }
    return HORON_OK;
}

/* What is there of MPI for this context?
 * @return OK: it has begun | IN_PROGRESS: it has not, and may be begun | why it is of no use */
static horon_status_t look(const struct horon_mpi_wanted *wanted, const void *context,
                           struct horon_error *error)
{
    int begun = 0;
    horon_status_t status = check_process(error);
    if (status != HORON_OK)
        return status;
    if (process.holder == USED || (process.holder == ASKED && process.context != context))
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "another context of this process %s MPI, which serves one",
                               process.holder == USED ? "uses" : "has asked for");
    if (process.holder == LEFT)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "MPI_Init_thread() was given up, with a context that did not join");
    status = horon_mpi_load(wanted->file, wanted->launcher.name, &process.library, error);
    if (status == HORON_ERR_UNSUPPORTED)
        return refuse_alone(wanted, error);
    if (status == HORON_OK)
        process.library->moves |= wanted->launcher.mpi_moves;
    if (status == HORON_OK)
        status = check_launcher(wanted, error);
    if (status == HORON_OK)
        status = see_begin(error);
    if (status != HORON_OK)
        return status;
    note_begun();
    process.library->mpi.initialized(&begun);
    if (begun && horon_mpi_has_ended(process.library))
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "MPI has ended in this process, and cannot begin again");
    if (begun)
        return HORON_OK;
    status = check_begin(wanted, error);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

/* It has begun: is it one for this context? */
static horon_status_t see(const struct horon_mpi_wanted *wanted, struct horon_error *error)
{
    struct horon_mpi_library *library = process.library;
    horon_status_t status = see_level(error);
    if (status == HORON_OK)
        status =
            horon_mpi_see_place(library, library->world, &library->rank, &library->size, error);
    return status == HORON_OK ? check_launcher(wanted, error) : status;
}

static void *call_init(void *arg)
{
    const struct horon_mpi_library *library = process.library;
    int level = 0;
    (void)arg;
    process.code =
        library->mpi.init_thread(NULL, NULL, library->family->levels[HORON_MPI_MULTIPLE], &level);
    if (process.code == HORON_MPI_SUCCESS)
        library->mpi.comm_set_errhandler(library->world, library->errors_return);
    atomic_store(&process.begin, THROUGH);
    return NULL;
}

/* Nobody could begin it a second time. */
static horon_status_t start(const void *context, struct horon_error *error)
{
    process.process = getpid();
    atomic_store(&process.begin, UNDER_WAY);
    const int failed = horon_thread_start(NULL, call_init, NULL);
    if (failed) {
        atomic_store(&process.begin, NOT_BEGUN);
        process.process = 0;
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, failed, "no thread that begins MPI");
    }
    move(ASKED);
    process.context = context;
    return see_begin(error);
}

static horon_status_t begin(const struct horon_mpi_wanted *wanted, const void *context,
                            struct horon_error *error)
{
    assert(context);
    const bool is_asked_again = process.holder == ASKED && process.context == context;
    horon_status_t status = is_asked_again ? see_begin(error) : look(wanted, context, error);
    if (!is_asked_again && status == HORON_IN_PROGRESS)
        return start(context, error);
    if (!is_asked_again && status == HORON_OK && process.library->began) {
        move(ASKED);
        process.context = context;
    }
    return status == HORON_OK ? see(wanted, error) : status;
}

horon_status_t horon_mpi_begin(const struct horon_mpi_wanted *wanted, const void *context,
                               struct horon_error *error)
{
    pthread_mutex_lock(&process.lock);
    const horon_status_t status = begin(wanted, context, error);
    pthread_mutex_unlock(&process.lock);
    return status;
}

/* By the context that has asked, and may fail yet: it stays the one that has, until it ends. */
static void let_go(void)
{
    move(atomic_load(&process.begin) == UNDER_WAY ? LEFT : FREE);
}

bool horon_mpi_is_under_way(void)
{
    const int begin = atomic_load(&process.begin);
    return (begin == UNDER_WAY || begin == ENDING) && process.process == getpid();
}

bool horon_mpi_give_up(const void *context)
{
    struct horon_error ignored;
    bool left_out = false;
    pthread_mutex_lock(&process.lock);
    if (process.context && process.context == context) {
        const bool is_under_way = see_begin(&ignored) == HORON_IN_PROGRESS;
        const bool is_alone = !is_under_way && process.library->size == 1;
        left_out = is_under_way || (process.library->began && !is_alone);
        if (process.holder == ASKED)
            let_go();
        process.context = NULL;
        if (!is_alone) /* in its world, where nobody waits */
            lose(BROKEN);
    }
    pthread_mutex_unlock(&process.lock);
    return left_out;
}

static horon_status_t take(const struct horon_mpi_wanted *wanted, const void *context,
                           struct horon_error *error)
{
    horon_status_t status = look(wanted, context, error);
    if (status == HORON_IN_PROGRESS)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "MPI has not begun, which it does while ranks join");
    if (status == HORON_OK)
        status = see(wanted, error);
    /* else another thread of the program may be in a call: nothing is carried, and none is made */
    const bool calls = status == HORON_OK &&
                       (process.library->level != HORON_MPI_SERIALIZED || wanted->serialized);
    if (calls)
        status = horon_mpi_make_handles(process.library, error);
    if (calls && status == HORON_OK)
        status = horon_mpi_gate_make(process.library, error);
    if (status == HORON_OK) {
        move(USED);
        if (process.library->began)
            process.context = context;
        process.of_launch = has_peers(wanted);
    } else if (process.holder == ASKED && process.context == context)
        let_go();
    return status;
}

horon_status_t horon_mpi_take(const struct horon_mpi_wanted *wanted, const void *context,
                              const struct horon_mpi_library **library_out,
                              struct horon_error *error)
{
    pthread_mutex_lock(&process.lock);
    const horon_status_t status = take(wanted, context, error);
    pthread_mutex_unlock(&process.lock);
    if (status == HORON_OK)
        *library_out = process.library;
    return status;
}

/* A communicator of its world says nothing of the others, then. */
horon_status_t horon_mpi_check_world(const struct horon_mpi_wanted *wanted,
                                     const struct horon_mpi_library *library,
                                     struct horon_error *error)
{
    int rank = 0, size = 0;
    const horon_status_t status = horon_mpi_see_place(library, library->world, &rank, &size, error);
    if (status != HORON_OK || size > 1 || wanted->size == 1)
        return status;
    return refuse_library(wanted, library, "sees one", error);
}

horon_status_t horon_mpi_find(const char *file, const struct horon_mpi_library **library_out,
                              struct horon_error *error)
{
    int begun = 0;
    pthread_mutex_lock(&process.lock);
    horon_status_t status = check_process(error);
    if (status == HORON_OK)
        status = horon_mpi_load(file, NULL, &process.library, error);
    if (status == HORON_OK)
        note_begun();
    pthread_mutex_unlock(&process.lock);
    if (status != HORON_OK)
        return status;
    process.library->mpi.initialized(&begun);
    if (!begun || horon_mpi_has_ended(process.library))
        return horon_error_set(
            error, HORON_ERR_INVALID, "%s (%s) %s in this process, and has no communicators: %s",
            process.library->file, process.library->family->name,
            begun ? "has ended" : "has not begun",
            begun ? "make the context before MPI_Finalize()" : "call MPI_Init_thread() before");
    *library_out = process.library;
    return HORON_OK;
}

/* Nothing is loaded for the answer: the process has it, if it has begun. */
int horon_mpi_world(void)
{
    const struct horon_mpi_library *library;
    struct horon_error ignored;
    int rank = 0, size = 0;
    const bool has =
        atomic_load(&process.begin) == NOT_BEGUN && horon_mpi_says("MPI_Initialized") &&
        horon_mpi_find("", &library, &ignored) == HORON_OK &&
        horon_mpi_see_place(library, library->world, &rank, &size, &ignored) == HORON_OK;
    return has ? size : 0;
}

/* What another thread leaves the next context has, or the gate frees at the end. */
static bool may_call_here(void)
{
    const struct horon_mpi_library *library = process.library;
    int main = 0;
    if (library->level >= HORON_MPI_SERIALIZED)
        return true;
    if (!horon_mpi_has_ended(library))
        library->mpi.is_thread_main(&main);
    return main;
}

void horon_mpi_end(bool stays)
{
    pthread_mutex_lock(&process.lock);
    assert(stays || !horon_mpi_is_shut());
    move(FREE);
    process.context = NULL;
    if (stays)
        lose(BROKEN);
    if (process.world != BROKEN && horon_mpi_gate_enter()) {
        if (may_call_here())
            horon_mpi_free_handles(process.library);
        horon_mpi_gate_leave();
    }
    pthread_mutex_unlock(&process.lock);
}

void horon_mpi_doubt(void)
{
    pthread_mutex_lock(&process.lock);
    lose(DOUBTED);
    pthread_mutex_unlock(&process.lock);
}

bool horon_mpi_is_doubted(void)
{
    pthread_mutex_lock(&process.lock);
    const bool doubted = process.world != WHOLE;
    pthread_mutex_unlock(&process.lock);
    return doubted;
}

void horon_mpi_fork_hold(void)
{
    pthread_mutex_lock(&process.lock);
    note_begun();
}

void horon_mpi_fork_release(void)
{
    pthread_mutex_unlock(&process.lock);
}
