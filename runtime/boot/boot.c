/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining from its begin to its end: this rank's identity, the store, the steps (steps.c), and what
 * is closed then. On rank 0 the store's server may live in the same pump; it stays until every
 * answer has left.
 */
#include "boot/joining.h"

#include "alloc.h"
#include "boot/gloo/store.h"
#include "boot/identity/key.h"
#include "boot/identity/meeting.h"
#include "boot/store/server.h"
#include "clock.h"
#include "host/failure_file.h"
#include "host/memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SILENCE_NS_MIN 2000000000u
#define SILENCE_NS_MAX 15000000000u
#define NEWS_NS 1000000000u  /* for late ranks to hear why joining failed */
#define DRAIN_NS 5000000000u /* for a server's last answers */

/* Known of others once their profiles are here. */
static const char *host_of(void *arg, int rank)
{
    const struct horon_joining *j = arg;
    const char *name = j->boot->profiles[rank].name;
    return name[0] ? name : NULL;
}

/* A launcher says hello at once; on a crowded machine it may not get to it for a while. */
static uint64_t silence_ns(const struct horon_config *config)
{
    const uint64_t part_ns = (uint64_t)config->start_timeout_ms * 1000000u / 4;
    const uint64_t most_ns = part_ns < SILENCE_NS_MAX ? part_ns : SILENCE_NS_MAX;
    return most_ns > SILENCE_NS_MIN ? most_ns : SILENCE_NS_MIN;
}

static horon_status_t open_store(struct horon_joining *j, struct horon_error *error)
{
    const char *folder = j->id.folder;
    char process[sizeof j->mine.name + 32];
    snprintf(process, sizeof process, "process %d on %s", (int)getpid(), j->mine.name);
    const struct horon_resolve_limit resolve = {.deadline_ns = j->deadline_ns,
                                                .interrupted = j->caller->interrupted,
                                                .arg = j->caller->interrupted_arg};
    struct horon_store_options options = {.self = j->self,
                                          .address = j->id.store,
                                          .port_scan = j->id.port_scan,
                                          .silence_ns = silence_ns(j->config),
                                          .host_of = host_of,
                                          .host_arg = j,
                                          .ranks = j->config->ranks,
                                          .process = process,
                                          .interfaces = j->config->interfaces,
                                          .port_range = j->config->port_range,
                                          .resolve = &resolve,
                                          .wrap = j->caller->wrap,
                                          .slow_ns = j->caller->slow_ns};
    /* it knows of no generation; settings are compared by name and value once profiles are here */
    options.self.hello = horon_hello_of(HORON_ROLE_STORE, j->id.rank, j->id.size);
    options.self.hello.job = j->id.job;
    if (!j->boot->key->given && j->id.rank == 0)
        HORON_LOG_WARN(j->log,
                       "there is no job key: only loopback addresses are used, and any "
                       "process of this user could join; set HORON_JOB_KEY or "
                       "HORON_JOB_KEY_FILE%s%s%s",
                       folder[0] ? " (a fresh one would lie in " : "", folder,
                       folder[0] ? ", which is no folder that this user alone can write)" : "");
    horon_status_t status = horon_store_open(&options, &j->store, error);
    if (status == HORON_ERR_CONFIG && j->id.host_origin)
        horon_text_add(error->text, sizeof error->text, "", " (the host is from %s)",
                       j->id.host_origin);
    return status;
}

static horon_status_t allocate(struct horon_joining *j, struct horon_error *error)
{
    const size_t size = (size_t)j->id.size;
    j->leader_of = horon_zalloc(size, sizeof *j->leader_of);
    j->boot->proven = horon_zalloc(size, sizeof *j->boot->proven);
    j->boot->profiles = horon_zalloc(size, sizeof *j->boot->profiles);
    if (!j->leader_of || !j->boot->proven || !j->boot->profiles)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to join %d ranks", j->id.size);
    for (int r = 0; r < j->id.size; r++)
        j->boot->proven[r].fd = -1;
    return HORON_OK;
}

static bool goes_on(void *arg)
{
    struct horon_joining *j = arg;
    char lacks[64];
    snprintf(lacks, sizeof lacks, "perhaps not all %d of them have come", j->id.size);
    if (horon_clock_ns() >= j->slow_ns) /* no rank knows more yet */
        horon_joining_tell_slow(j, "waiting to be told where the ranks meet", lacks);
    j->interrupted =
        j->caller->interrupted && j->caller->interrupted(j->caller->interrupted_arg) != 0;
    return !j->interrupted;
}

/* MPI may be what they meet by: then it is begun before, and they do not hear of each other yet.
 * @param error  of a job that lacks a place to meet, if that is wrong. @return is MPI's world one?
 * Else @p error may say why it is not */
static bool take_world(struct horon_joining *j, struct horon_error *error)
{
    struct horon_error why = {0};
    const horon_status_t begun = j->mpi_may_tell ? horon_joining_begin(j, &why) : HORON_OK;
    j->others_failed = false; /* which nobody can know here */
    if (begun == HORON_OK)
        return horon_identity_by_world(&j->id, &j->comm, j->config, error);
    if (begun != HORON_ERR_TIMEOUT) {
        *error = why;
        return false;
    }
    horon_text_add(error->text, sizeof error->text, "", " (MPI was begun to tell: %s)", why.text);
    error->status = begun;
    return false;
}

static horon_status_t find_identity(struct horon_joining *j, int rank, int size,
                                    struct horon_error *error)
{
    const struct horon_config *config = j->config;
    if (j->caller->mpi_comm && (rank != -1 || size != -1 || config->ranks[0]))
        return horon_error_set(error, HORON_ERR_INVALID,
                               "mpi_comm says which ranks the job has: %s cannot, too",
                               config->ranks[0] ? "HORON_RANKS" : "rank and size");
    if (j->caller->mpi_comm)
        return horon_identity_of_communicator(&j->id, &j->comm, j->caller->mpi_comm,
                                              config->mpi_library, getenv, error);
    horon_status_t status = horon_identity_ask(&j->id, rank, size, config->store,
                                               config->start_timeout_ms, getenv, error);
    if (status == HORON_AGAIN)
        status =
            horon_identity_by_world(&j->id, &j->comm, config, error) ? HORON_OK : error->status;
    return status == HORON_OK ? horon_identity_select(&j->id, config->ranks, error) : status;
}

/* Everything that needs nobody else. */
static horon_status_t prepare(struct horon_joining *j, int rank, int size,
                              struct horon_error *error)
{
    horon_failure_file_keep(j->config->failure_file, &j->boot->fds);
    horon_status_t status = find_identity(j, rank, size, error);
    if (status != HORON_OK)
        return status;
    /* Before the first is opened. Whether they suffice is asked once the others can be told; of
     * those that rank 0 lacks to serve the store, some rank waits outside. */
    const int of_store = j->id.rank == 0 ? j->id.size : 0;
    (void)horon_descriptors_need(HORON_JOINING_DESCRIPTORS + of_store, "joining", NULL);
    status = horon_pump_init(&j->boot->pump, error);
    j->boot->pump.fds = j->listeners.noted = &j->boot->fds;
    j->boot->pump.owner = &j->owner;
    if (status == HORON_OK)
        status = allocate(j, error);
    if (status == HORON_OK)
        status = horon_profile_fill(&j->mine, j->settings, j->config, error);
    if (status == HORON_OK)
        status = horon_random(&j->mine.job, sizeof j->mine.job, error);
    if (status != HORON_OK)
        return status;
    j->deadline_ns = horon_clock_deadline(horon_clock_ns(), j->config->start_timeout_ms);
    j->log->rank = j->id.rank;
    memcpy(j->log->host, j->mine.name, sizeof j->mine.name);
    struct horon_profile *kept = &j->boot->profiles[j->id.rank]; /* a rank alone reads none */
    memcpy(kept->name, j->mine.name, sizeof kept->name);
    kept->kernel = j->mine.kernel;
    kept->cores = j->mine.cores;
    j->self = (struct horon_self){.pump = &j->boot->pump,
                                  .log = j->log,
                                  .hello = horon_hello_of(HORON_ROLE_PEER, j->id.rank, j->id.size)};
    j->self.hello.generation = HORON_GENERATION_FIRST;
    j->self.hello.settings = horon_config_agreed_hash(j->config);
    memcpy(j->self.hello.member, j->mine.member, sizeof j->mine.member);
    return HORON_OK;
}

/* On a rank that serves: sends the others' last answers, and waits a moment for ranks that have not
 * come yet, so that they hear why joining failed. */
static void drain(struct horon_joining *j)
{
    const struct horon_store_server *server = horon_store_served(j->store);
    if (!j->interrupted)
        j->deadline_ns = horon_clock_ns() + NEWS_NS;
    while (server && horon_store_server_has_news(server) && horon_clock_ns() < j->deadline_ns)
        horon_joining_turn(j, j->deadline_ns);
    j->deadline_ns = horon_clock_ns() + DRAIN_NS;
    while (server && horon_store_server_busy(server) && horon_clock_ns() < j->deadline_ns)
        horon_joining_turn(j, j->deadline_ns);
}

/* Links and what they need. */
static void end_links(struct horon_boot *boot)
{
    boot->pump.owner = NULL; /* there is one thread left */
    horon_links_destroy(boot->links);
    boot->links = NULL;
    horon_pump_deinit(&boot->pump);
    horon_memory_free_secret(boot->key, sizeof *boot->key);
    boot->key = NULL;
}

static void joining_deinit(struct horon_joining *j, bool joined)
{
    struct horon_boot *boot = j->boot;
    const struct horon_links_user nobody = {0}; /* until the context has named itself */
    assert(!joined || j->missing == 0);
    if (!joined) {
        horon_links_destroy(boot->links);
        boot->links = NULL;
    }
    horon_listeners_close(&j->listeners, 0);
    horon_share_destroy(j->share);
    j->share = NULL; /* ranks that have joined connect meanwhile */
    drain(j);
    horon_store_destroy(j->store);
    boot->pump.owner = NULL;
    if (boot->links)
        horon_links_set_user(boot->links, &nobody);
    else
        end_links(boot);
    horon_free(j->leader_of);
    horon_blobs_deinit(&j->blobs);
    horon_free(j);
}

/* Where the launcher's key-value space tells the store. Processes that it has started and that are
 * no rank of this job are not waited for there. @return AGAIN, there is no way to the space */
static horon_status_t hold_meeting(struct horon_joining *j, char *key_text,
                                   struct horon_error *error)
{
    struct horon_space space = {.calls = j->id.space,
                                .fd = j->id.pmi_fd,
                                .server = j->id.server,
                                .job = j->id.job,
                                .rank = j->id.rank,
                                .library = j->comm.library ? &j->comm : NULL,
                                .deadline_ns = j->deadline_ns,
                                .goes_on = goes_on,
                                .arg = j};
    horon_status_t status = HORON_ERR_CONFIG;
    const bool has_key = key_text[0] != 0;
    if (j->config->ranks[0] && !space.calls->tells_jobs_apart)
        horon_error_set(error, status,
                        "HORON_RANKS is set, and ranks started by %s then do not know where to "
                        "meet: set HORON_STORE=tcp://HOST:PORT with an address of rank 0",
                        j->id.source);
    else
        status = horon_meeting_hold(&j->id, j->config, &space, key_text, error);
    if (status == HORON_OK && !has_key && key_text[0] && space.calls->is_public && j->id.rank == 0)
        HORON_LOG_WARN(j->log,
                       "the job key was told to the ranks by Horovod's rendezvous server at %s, "
                       "which authenticates nobody: whatever reaches it can join this job; set "
                       "HORON_JOB_KEY_FILE",
                       space.server);
    /* an MPI that the launcher's library is part of may do, where horon finds none. Elsewhere it
     * would end the process: what does not lead horon to the launcher does not lead it there */
    j->mpi_may_tell = j->id.space == &horon_space_pmix && !space.library && !j->config->ranks[0];
    return status == HORON_ERR_CONFIG && !space.name[0] ? HORON_AGAIN : status;
}

/* Without a way to the space the store is where the variables say. Between hosts that is of no use
 * without a key: where the user gave neither, MPI's world may tell both. */
static horon_status_t meet(struct horon_joining *j, char *key_text, struct horon_error *error)
{
    struct horon_identity *id = &j->id;
    const bool far = id->local_size != id->size &&
                     !(id->host_origin && strcmp(id->host_origin, "MASTER_ADDR") == 0);
    const horon_status_t status = id->space ? hold_meeting(j, key_text, error) : HORON_AGAIN;
    if (status != HORON_AGAIN)
        return status;
    const bool lacks = !id->store[0] || (id->port_scan && far && !key_text[0]);
    if (!lacks || !take_world(j, error))
        return id->store[0] ? HORON_OK : error->status;
    const struct horon_error no_way = *error;
    const horon_status_t met = hold_meeting(j, key_text, error);
    if (met != HORON_OK && no_way.text[0]) /* which may be this rank's trouble alone */
        horon_text_add(error->text, sizeof error->text, "; ", "MPI was asked, as %s", no_way.text);
    return met;
}

static horon_status_t join(struct horon_joining *j, int rank, int size, struct horon_error *error)
{
    char key_text[HORON_KEY_TEXT_BYTES] = "";
    horon_status_t status = prepare(j, rank, size, error);
    if (status != HORON_OK)
        return status;
    j->boot->launcher = (struct horon_launcher){.name = j->id.source,
                                                .srun = j->id.srun,
                                                .ends_all = !j->config->failure_file[0] &&
                                                            horon_identity_has_launcher(getenv),
                                                .mpi_moves = horon_identity_mpi_moves(getenv)};
    if (j->id.size == 1) {
        horon_joining_report_identity(j);
        return horon_joining_run_alone(j, error);
    }
    j->self.key = j->boot->key = horon_memory_secret(sizeof *j->boot->key);
    if (!j->boot->key)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the job key");
    const bool knows_store = !j->id.space; /* which a rank before this one has joined by, */
    if (knows_store || j->id.job)          /* or by the job's name */
        status = horon_joined_before(&j->id, &j->boot->fds, error);
    if (status == HORON_OK)
        status = horon_key_read(j->config, j->id.local_rank <= 0 ? j->log : NULL, key_text, error);
    if (status == HORON_OK)
        status = meet(j, key_text, error);
    if (status == HORON_OK && (!knows_store || j->id.told))
        status = horon_joined_before(&j->id, &j->boot->fds, error);
    if (status == HORON_OK)
        status = horon_job_key_init(j->boot->key, key_text, strlen(key_text), j->id.folder, error);
    explicit_bzero(key_text, sizeof key_text);
    if (status == HORON_OK)
        horon_joining_report_identity(j);
    if (status == HORON_OK)
        status = open_store(j, error);
    if (status != HORON_OK) { /* before anybody else knows of this rank */
        error->blame.rank = j->id.rank;
        return status;
    }
    horon_joining_watch(j); /* until here it was another thing that lasted */
    status = horon_joining_run(j, error);
    if (status == HORON_OK) {
        horon_fds_hold(&j->boot->fds);
        j->boot->joined = horon_fds_note(&j->boot->fds, horon_joined_say(&j->id));
    }
    return status;
}

void horon_boot_init(struct horon_boot *boot)
{
    *boot = (struct horon_boot){
        .control.fd = -1, .joined = -1, .pump = {.epoll_fd = -1, .timer_fd = -1}};
}

void horon_boot_name_limit(struct horon_error *error)
{
    static const char told[] = "; HORON_START_TIMEOUT is how long joining may take";
    const size_t room = sizeof error->text - sizeof told, bytes = strlen(error->text);
    if (error->status == HORON_ERR_TIMEOUT && !strstr(error->text, "HORON_START_TIMEOUT"))
        memcpy(error->text + (bytes < room ? bytes : room), told, sizeof told);
}

horon_status_t horon_boot(struct horon_boot *boot, int rank, int size,
                          const struct horon_config *config, const struct horon_boot_caller *caller,
                          struct horon_log *log, struct horon_error *error)
{
    struct horon_error why = {0};
    horon_boot_init(boot);
    boot->fds.hold = caller->hold_forks;
    boot->fds.release = caller->release_forks;
    struct horon_joining *j = horon_zalloc(1, sizeof *j);
    if (!j)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to join");
    j->boot = boot;
    horon_owner_take(&j->owner);
    j->config = config;
    j->caller = caller;
    j->log = log;
    j->begun_ns = horon_clock_ns();
    j->ask_ns = j->begun_ns;
    horon_joining_watch(j);
    horon_status_t status = join(j, rank, size, &why);
    assert(status != HORON_OK || boot->topology.size == j->id.size);
    if (status == HORON_OK) {
        horon_joining_report_links(j);
        horon_joining_report_mpi(j);
    }
    joining_deinit(j, status == HORON_OK);
    if (status == HORON_OK)
        return HORON_OK;
    horon_boot_name_limit(&why);
    if (boot->control.base && caller->given_up)
        caller->given_up(caller->arg, status, why.text);
    char host[sizeof boot->blamed_host] = "";
    if (boot->profiles && why.blame.rank >= 0)
        memcpy(host, boot->profiles[why.blame.rank].name, sizeof host);
    horon_boot_deinit(boot);
    memcpy(boot->blamed_host, host, sizeof host);
    *error = why;
    return status;
}

static void close_all(struct horon_boot *boot)
{
    horon_fd_close(&boot->joined);
    horon_pump_deinit(&boot->pump);
    for (int r = 0; boot->proven && r < boot->topology.size; r++)
        horon_fd_close(&boot->proven[r].fd);
    for (int i = 0; i < boot->local_count; i++) {
        horon_fd_close(&boot->local[i].pidfd);
        horon_fd_close(&boot->local[i].socket);
        horon_fd_close(&boot->local[i].doorbell);
    }
}

void horon_boot_deinit(struct horon_boot *boot)
{
    horon_gloo_store_destroy(boot->gloo_store);
    end_links(boot);
    close_all(boot);
    horon_memory_unmap(&boot->control);
    for (int i = 0; i < boot->local_count; i++)
        horon_memory_unmap(&boot->local[i].arena);
    horon_free(boot->local);
    if (boot->proven)
        explicit_bzero(boot->proven, (size_t)boot->topology.size * sizeof *boot->proven);
    horon_free(boot->proven);
    horon_topology_deinit(&boot->topology);
    horon_free(boot->profiles);
    horon_blobs_deinit(&boot->blobs);
    horon_fds_deinit(&boot->fds);
    horon_boot_init(boot);
}

void horon_boot_settle(struct horon_boot *boot)
{
    assert(!boot->settled);
    horon_fds_hold(&boot->fds);
    boot->settled = true;
    horon_fds_release(&boot->fds);
}

void horon_boot_close_in_child(struct horon_boot *boot)
{
    horon_fds_close_in_child(&boot->fds);
    if (boot->settled)
        close_all(boot);
}
