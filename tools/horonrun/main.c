/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horonrun: starts the ranks of a job, here or on other hosts, and answers for them until the last
 * process is gone. This file decides what is asked; job.c does it. Order matters here: signals are
 * blocked before the first child, and the local agent is forked before the event loop exists.
 */
#include "agent.h"
#include "build.h"
#include "config.h"
#include "engine/backend_names.h"
#include "environment.h"
#include "job.h"
#include "key.h"
#include "mpi.h"
#include "rendezvous.h"
#include "spawn.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define USAGE_STATUS 2
/* Descriptors beside those of ranks and hosts: loops, signals, the store, our own three. */
#define FILES_BASE 16
#define FILES_A_RANK 3 /* of the agent, at the start: two streams and the news of exec */
#define FILES_A_HOST 3 /* the pipes to ssh */

static int refuse(const struct horon_error *error)
{
    fprintf(stderr, "horonrun: %s\n", error->text);
    return USAGE_STATUS;
}

/* A caller may have closed 0, 1 or 2; our pipes must not land there. What is opened stays open in
 * what we start, as another one's would: nor must a rank's own files. */
static void open_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

static horon_status_t find_hosts(const struct horonrun_options *options,
                                 struct horonrun_hosts *hosts, struct horon_error *error)
{
    horon_status_t status;
    if (options->hosts && options->host_file)
        return horon_error_set(error, HORON_ERR_CONFIG, "give -H or --hostfile, not both");
    if (options->hosts)
        status = horonrun_hosts_parse(hosts, options->hosts, error);
    else if (options->host_file)
        status = horonrun_hosts_read_file(hosts, options->host_file, error);
    else if (options->np)
        status = horonrun_hosts_only_local(hosts, options->np, error);
    else
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "how many ranks? -np N, or hosts with slots (-H, --hostfile)");
    if (status == HORON_OK)
        status = horonrun_hosts_deal(hosts, options->np, error);
    if (status == HORON_OK)
        horonrun_hosts_find_local(hosts);
    return status;
}

/* One agent a host: names that all mean this machine cannot each have one. And of MPI's launchers
 * Open MPI's takes them for one host, hydra for as many. */
static horon_status_t check_local(const struct horonrun_hosts *hosts, const char **local_out,
                                  struct horon_error *error)
{
    *local_out = NULL;
    for (size_t i = 0; i < hosts->count; i++) {
        if (!hosts->at[i].local)
            continue;
        if (*local_out)
            return horon_error_set(error, HORON_ERR_CONFIG,
                                   "hosts %s and %s are both this machine; give it once",
                                   *local_out, hosts->at[i].name);
        *local_out = hosts->at[i].name;
    }
    return HORON_OK;
}

static void warn_of_unknown_variables(void)
{
    struct horon_error error = {0};
    int unknown = horon_config_unknown(&error);
    if (unknown)
        fprintf(stderr, "horonrun: warning: %s%s\n", error.text,
                unknown > 1 ? " (and others)" : "");
}

static void warn_of_ignored(const struct horonrun_options *options)
{
    for (char **name = options->ignored; name && *name; name++)
        fprintf(stderr, "horonrun: warning: %s is ignored: horon needs no such setting\n", *name);
    if (options->mpi_args && !options->mpi)
        fprintf(stderr, "horonrun: warning: --mpi-args is ignored: without --mpi horonrun starts "
                        "the ranks itself\n");
}

/* -x VAR passes what is set here. */
static void warn_of_missing_exports(const struct horonrun_options *options)
{
    for (char **name = options->exports; name && *name; name++)
        if (!strchr(*name, '=') && !horonrun_environment_find(environ, *name))
            fprintf(stderr, "horonrun: warning: -x %s: no variable of that name is set here\n",
                    *name);
}

/* A rank's own environment has what another horonrun has set: that means nothing by it. Keys of the
 * user's are the job's. */
static void warn_of_overridden(void)
{
    char names[512];
    size_t used = 0;
    if (horonrun_environment_find(environ, "HORON_FAILURE_FILE"))
        return;
    for (char **entry = environ; *entry; entry++)
        if (horonrun_environment_is_reserved(*entry) &&
            strncmp(*entry, "HORON_JOB_KEY", strlen("HORON_JOB_KEY")) != 0 && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s", used ? ", " : "",
                                     (int)strcspn(*entry, "="), *entry);
    if (used)
        fprintf(stderr,
                "horonrun: warning: set here, but horonrun sets it for the ranks itself: %s\n",
                names);
}

/* Told before anything runs, as what fails half way for want of a descriptor says little. */
static horon_status_t check_files(const struct horonrun_options *options,
                                  const struct horonrun_hosts *hosts, struct horon_error *error)
{
    struct rlimit files;
    rlim_t agent = 0, own = 0;
    int size = 0;
    for (size_t i = 0; i < hosts->count; i++) {
        if (hosts->at[i].local)
            agent = FILES_A_RANK * (rlim_t)hosts->at[i].ranks;
        else
            own += FILES_A_HOST;
        size += hosts->at[i].ranks;
        if (options->output_directory)
            own += 2 * (rlim_t)hosts->at[i].ranks;
    }
    if (options->gloo)
        own += (rlim_t)HORONRUN_RENDEZVOUS_CONNECTIONS(size);
    const rlim_t wanted = FILES_BASE + (agent > own ? agent : own);
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "a process here may have %llu files open (ulimit -Hn), and this job "
                           "takes %llu of horonrun: raise that limit, or start fewer ranks here",
                           (unsigned long long)files.rlim_cur, (unsigned long long)wanted);
}

/* A reader that is gone and a file that is full by its limit are told, as a full disk is. */
static void ignore_write_signals(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static int run_job(const struct horonrun_options *options, const struct horonrun_hosts *hosts,
                   const struct horon_config *config, char **argv, bool local,
                   const struct horonrun_mpi *mpi, struct horon_error *error)
{
    struct horonrun_launched agent;
    struct rlimit files;
    sigset_t handled;
    struct horonrun_job_setup setup = {
        .options = options, .hosts = hosts, .config = config, .mpi = mpi};
    for (size_t i = 0; i < hosts->count; i++)
        setup.size += hosts->at[i].ranks;
    horonrun_tree_adopt();
    horonrun_spawn_raise_files(&files);
    if (check_files(options, hosts, error) != HORON_OK)
        return refuse(error);
    horonrun_job_signals(&handled);
    sigprocmask(SIG_BLOCK, &handled, &setup.mask);
    ignore_write_signals();
    if (local) {
        if (horonrun_launch_local(argv, &setup.mask, &files, &agent, error) != HORON_OK)
            return refuse(error);
        setup.local_agent = &agent;
    }
    return horonrun_job_run(&setup);
}

/* The job of one process, which starts the ranks: what was asked of all hosts is the launcher's. */
static int run_mpi(const struct horonrun_options *options, const struct horonrun_hosts *hosts,
                   const struct horon_config *config, char **argv, struct horon_error *error)
{
    struct horonrun_mpi mpi;
    struct horonrun_hosts here = {0};
    int code = USAGE_STATUS;
    horon_status_t status = horonrun_mpi_prepare(&mpi, options, hosts, error);
    if (status == HORON_OK)
        status = horonrun_hosts_only_local(&here, 1, error);
    if (status == HORON_OK)
        status = horonrun_hosts_deal(&here, 1, error);
    if (status == HORON_OK) {
        here.at[0].local = true;
        fprintf(stderr, "horonrun: %d rank%s by %s, %s (%s)\n", mpi.size, mpi.size == 1 ? "" : "s",
                mpi.title, mpi.program, mpi.how);
        code = run_job(&mpi.own, &here, config, argv, true, &mpi, error);
    } else {
        refuse(error);
    }
    horonrun_hosts_deinit(&here);
    return code;
}

static int prepare_and_run(const struct horonrun_options *options, char **argv)
{
    struct horon_error error = {0};
    struct horonrun_hosts hosts = {0};
    struct horon_config config;
    const char *local = NULL;
    int code;
    horon_status_t status = HORON_OK;
    if (!options->command[0])
        status = horon_error_set(&error, HORON_ERR_CONFIG, "what is to be run? (--help)");
    if (status == HORON_OK)
        status = horon_config_load(&config, (const char *const *)options->settings, NULL, &error);
    if (status == HORON_OK) /* no row's type knows which there are */
        status = horon_engine_check_names(&config, &error);
    horonrun_key_leave_environment();
    if (status == HORON_OK)
        status = find_hosts(options, &hosts, &error);
    if (status == HORON_OK && options->mpirun && !options->mpi)
        status = horon_error_set(&error, HORON_ERR_CONFIG,
                                 "--mpirun means nothing without --mpi: horonrun starts the ranks "
                                 "itself");
    if (status == HORON_OK)
        status = check_local(&hosts, &local, &error);
    if (status == HORON_OK) {
        warn_of_unknown_variables();
        warn_of_ignored(options);
        warn_of_missing_exports(options);
        warn_of_overridden();
        code = options->mpi ? run_mpi(options, &hosts, &config, argv, &error)
                            : run_job(options, &hosts, &config, argv, local != NULL, NULL, &error);
        explicit_bzero(config.job_key, sizeof config.job_key);
    } else {
        code = refuse(&error);
    }
    horonrun_hosts_deinit(&hosts);
    return code;
}

static int be_remote_agent(char **argv)
{
    sigset_t handled, mask;
    struct rlimit files;
    horonrun_spawn_raise_files(&files);
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, &mask);
    ignore_write_signals();
    return horonrun_agent_main(argv, &mask, &files);
}

int main(int argc, char **argv)
{
    struct horonrun_options options;
    struct horon_error error = {0};
    int code = 0;
    open_standard_descriptors();
    signal(SIGCHLD, SIG_DFL); /* our parent may have ignored it: no status would come */
    if (argc == 2 && strcmp(argv[1], "--agent") == 0)
        return be_remote_agent(argv);
    if (argc > 2 && strcmp(argv[1], HORONRUN_MPI_RANK) == 0)
        return horonrun_mpi_rank_main(argv + 2);
    if (horonrun_options_parse(&options, argv, &error) != HORON_OK) {
        code = refuse(&error);
    } else if (options.help) {
        horonrun_options_help(stdout);
    } else if (options.version) {
        printf("horonrun (horon) %s\n", horon_version());
    } else if (options.check_build) {
        horonrun_build_print(stdout);
    } else {
        code = prepare_and_run(&options, argv);
    }
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        fprintf(stderr, "horonrun: standard output cannot be written: %s\n",
                errno ? strerror(errno) : "a write failed");
        code = 1;
    }
    horonrun_options_deinit(&options);
    return code;
}
