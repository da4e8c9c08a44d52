/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of MPI as the space through which its ranks learn where they meet: its first rank
 * tells all of them what it has put, once. Nothing is kept from one meeting to the next, so the
 * same communicator may be given again; each meeting has a number of its own, by which jobs are
 * told apart that meet at one address with the same key.
 *
 * MPI's world is such a space, too, where the job would fail otherwise: its launcher tells neither
 * where to meet nor a key, or cannot be asked. Then MPI, which all ranks have begun, or which the
 * settings ask for, is what is left. It is not asked before: a launcher answers whatever has become
 * of other ranks, where a call of MPI might wait for a lost one, or end the process. So it is not
 * asked, either, once a job of this process has failed.
 *
 * An MPI that is not the launcher's makes each process a world of its own, and a job of one of it
 * without a word. So the launcher's variables are asked how many there are; but they say nothing of
 * a communicator, which has as many ranks of the right world as the program likes.
 */
#include "boot/identity/identity.h"
#include "boot/identity/space.h"

#include "alloc.h"
#include "backend/mpi_begin.h"
#include "backend/mpi_comm.h"
#include "backend/mpi_open.h"
#include "boot/connect/handshake.h"
#include "clock.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS_MIN 20000
#define PAUSE_NS_MAX 1000000
#define ASK_NS 100000000u

/* What travels, in memory that MPI may keep for ever. */
struct word {
    horon_mpi_handle request;
    uint64_t job;
    char value[HORON_SPACE_VALUE_BYTES];
};
#define TRAVELS (sizeof(struct word) - offsetof(struct word, job))

horon_status_t horon_identity_of_communicator(struct horon_identity *identity,
                                              struct horon_mpi_comm *comm, const void *given,
                                              const char *library, horon_environment_fn get,
                                              struct horon_error *error)
{
    struct horon_mpi_wanted wanted = {.file = library};
    wanted.launcher.name = horon_identity_launched(get, &wanted.size);
    const horon_status_t status = horon_mpi_comm_see(comm, given, &wanted, error);
    if (status != HORON_OK)
        return status;
    if (comm->size > HORON_BOOT_SIZE_MAX)
        return horon_error_set(error, HORON_ERR_INVALID, "mpi_comm has %d ranks; %d are the most",
                               comm->size, HORON_BOOT_SIZE_MAX);
    *identity = (struct horon_identity){.rank = comm->rank,
                                        .size = comm->size,
                                        .local_rank = -1,
                                        .local_size = -1,
                                        .space = comm->size > 1 ? &horon_space_mpi : NULL,
                                        .pmi_fd = -1,
                                        .source = "the communicator"};
    return HORON_OK;
}

static horon_status_t see_world(const struct horon_identity *identity, struct horon_mpi_comm *comm,
                                const struct horon_config *config, struct horon_error *error)
{
    const horon_status_t status =
        horon_mpi_comm_see_world(comm, config->mpi_library, config->mpi_serialized, error);
    if (status != HORON_OK)
        return status;
    if (comm->size != identity->size || comm->rank != identity->rank)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "its world has this process as rank %d of %d, and %s as rank %d of "
                               "%d",
                               comm->rank, comm->size, identity->source, identity->rank,
                               identity->size);
    return HORON_OK;
}

bool horon_identity_by_world(struct horon_identity *identity, struct horon_mpi_comm *comm,
                             const struct horon_config *config, struct horon_error *error)
{
    struct horon_error why = {0};
    assert(identity->size > 1);
    if (config->ranks[0] || !horon_mpi_says("MPI_Initialized"))
        return false;
    if (see_world(identity, comm, config, &why) != HORON_OK) {
        *comm = (struct horon_mpi_comm){0};
        horon_text_add(error->text, sizeof error->text, "", " (MPI has begun, and cannot tell: %s)",
                       why.text);
        return false;
    }
    identity->space = &horon_space_mpi;
    identity->store[0] = 0;
    return true;
}

static horon_status_t mpi_open(struct horon_space *space, struct horon_error *error)
{
    assert(space->library);
    space->word = horon_zalloc(1, sizeof(struct word));
    if (!space->word)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to meet through MPI");
    snprintf(space->name, sizeof space->name, "a communicator");
    return HORON_OK;
}

/* The only thing to tell is what rank 0 puts first; marks are nobody's to ask for. */
static horon_status_t mpi_put(struct horon_space *space, const char *key, const char *value,
                              struct horon_error *error)
{
    struct word *word = space->word;
    (void)key;
    if (space->rank != 0 || word->value[0])
        return HORON_OK;
    assert(strlen(value) < sizeof word->value);
    snprintf(word->value, sizeof word->value, "%s", value);
    return horon_random(&word->job, sizeof word->job, error);
}

static horon_status_t mpi_get(struct horon_space *space, int rank, const char *key,
                              char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    (void)space, (void)rank, (void)key, (void)value, (void)error;
    return HORON_AGAIN;
}

static horon_status_t may_wait(const struct horon_space *space, uint64_t *ask_ns,
                               struct horon_error *error)
{
    const uint64_t now = horon_clock_ns();
    if (now >= space->deadline_ns)
        return horon_error_set(error, HORON_ERR_TIMEOUT, "not all ranks of the communicator came");
    if (now < *ask_ns)
        return HORON_OK;
    *ask_ns = now + ASK_NS;
    return !space->goes_on || space->goes_on(space->arg)
               ? HORON_OK
               : horon_error_set(error, HORON_ERR_CANCELLED,
                                 "interrupted while waiting for ranks of the communicator");
}

/* Polled, as a rank that does not come must not hold this one for ever. */
static horon_status_t wait_for_word(const struct horon_space *space, struct word *word,
                                    struct horon_error *error)
{
    struct timespec pause = {.tv_nsec = PAUSE_NS_MIN};
    uint64_t ask_ns = 0;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK) {
        status = horon_mpi_comm_told(space->library, &word->request, error);
        if (status != HORON_IN_PROGRESS)
            return status;
        status = may_wait(space, &ask_ns, error);
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < PAUSE_NS_MAX / 2 ? 2 * pause.tv_nsec : PAUSE_NS_MAX;
    }
    return status;
}

static horon_status_t mpi_await(struct horon_space *space, int rank, const char *key,
                                char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    struct word *word = space->word;
    (void)rank, (void)key;
    assert(rank == 0);
    space->word = NULL;
    horon_status_t status =
        horon_mpi_comm_tell(space->library, &word->job, (int)TRAVELS, &word->request, error);
    if (status == HORON_OK)
        status = wait_for_word(space, word, error);
    if (status != HORON_OK) { /* the word is left to MPI, whose next one would meet it */
        horon_mpi_doubt();
        return status;
    }
    memcpy(value, word->value, sizeof word->value);
    value[sizeof word->value - 1] = 0;
    space->job = word->job;
    explicit_bzero(word, sizeof *word);
    horon_free(word);
    return HORON_OK;
}

static horon_status_t mpi_end_at_exit(const struct horon_space *space, struct horon_error *error)
{
    (void)space, (void)error;
    return HORON_OK; /* it is the program's */
}

static void mpi_close(struct horon_space *space)
{
    horon_free(space->word);
    space->word = NULL;
}

const struct horon_space_calls horon_space_mpi = {
    .name = "MPI",
    .missing =
        "of the communicator (MPI_COMM_WORLD, if the program gave none) have come: each must "
        "create a context",
    .open = mpi_open,
    .put = mpi_put,
    .get = mpi_get,
    .await = mpi_await,
    .end_at_exit = mpi_end_at_exit,
    .close = mpi_close,
};
