/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horonrun --mpi is a job of one process, mpirun, which horonrun's agent starts, watches and ends
 * like a rank. mpirun starts a horonrun beside each rank (mpi_rank.c), on all hosts:
 *
 *     horonrun - agent - mpirun - [on each host, the launcher's own] - horonrun - rank
 *
 * So ranks are interrupted, named when they fail, and told the job key as without --mpi, whatever
 * the launcher thinks of signals and of its own. Variables, the key among them, go by name: their
 * values are in mpirun's environment, and on no command line, which all users of a machine can
 * read.
 */
#include "mpi.h"

#include "alloc.h"
#include "environment.h"
#include "launch.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What tells places in a job, of this launcher's or another one's; Open MPI's own go first in all
 * that it starts, MPICH's do not. */
static const char *const places[] = {
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_*",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMIX_SERVER_*",
    "PMI_*",
    "RANK",
    "WORLD_SIZE",
    NULL,
};
/* The launchers' own: they tell their other halves themselves. */
static const char *const launchers_own[] = {"HYDRA_*", "OMPI_*",  "PMIX_*",
                                            "PRTE_*",  "SLURM_*", NULL};

#define WORD_BYTES_MAX ((size_t)128 << 10) /* that Linux takes on a command line, with its end */

/* ---- What means nothing here ---- */

static horon_status_t refuse(struct horon_error *error, const char *option, const char *reason)
{
    return horon_error_set(error, HORON_ERR_CONFIG, "%s means nothing with --mpi: %s", option,
                           reason);
}

static horon_status_t check_options(const struct horonrun_mpi *mpi,
                                    const struct horonrun_options *asked, struct horon_error *error)
{
    if (asked->gloo)
        return refuse(error, "--gloo", "give one of the two");
    if (asked->output_directory)
        return refuse(error, "--output-filename",
                      "mpirun writes such files, of other names: give its own option, as "
                      "--mpi-args=\"--output-filename DIR\" of Open MPI, or \"-outfile-pattern "
                      "FILE.%r\" of MPICH");
    if (asked->color != HORONRUN_COLOR_AUTO)
        return refuse(error, "--color", "mpirun marks the ranks' lines itself, without colour");
    if (asked->keep_survivors && mpi->family != HORONRUN_MPI_HYDRA)
        return refuse(error, "--keep-survivors",
                      "Open MPI's mpirun would call the job a success: if that may be, give "
                      "--mpi-args=--enable-recovery");
    if (asked->timestamps && mpi->family == HORONRUN_MPI_HYDRA)
        return refuse(error, "--prefix-output-with-timestamp",
                      "MPICH's launcher cannot tell the time of a line");
    return HORON_OK;
}

static horon_status_t check_hosts(const struct horonrun_hosts *hosts, struct horon_error *error)
{
    for (size_t i = 0; hosts && i < hosts->count; i++)
        if (strpbrk(hosts->at[i].name, "@:"))
            return horon_error_set(
                error, HORON_ERR_CONFIG,
                "host %s: with --mpi only a name or an IPv4 address: mpirun takes "
                "no user and no colon; ~/.ssh/config may give it a name",
                hosts->at[i].name);
    return HORON_OK;
}

horon_status_t horonrun_mpi_prepare(struct horonrun_mpi *mpi,
                                    const struct horonrun_options *options,
                                    const struct horonrun_hosts *hosts, struct horon_error *error)
{
    const bool given = options->hosts || options->host_file;
    *mpi = (struct horonrun_mpi){.asked = options, .own = *options, .hosts = given ? hosts : NULL};
    for (size_t i = 0; i < hosts->count; i++)
        mpi->size += hosts->at[i].ranks;
    horon_status_t status = horonrun_mpi_find(mpi, options->mpirun, error);
    if (status == HORON_OK)
        status = check_options(mpi, options, error);
    if (status == HORON_OK)
        status = check_hosts(mpi->hosts, error);
    mpi->own.no_prefix = true;
    mpi->own.timestamps = false;
    mpi->own.keep_survivors = false;
    return status;
}

/* ---- The command line ---- */

/* Words as they are added; nothing more is, once memory was lacking. */
struct words {
    char ***list;
    bool ok;
};

static void add(struct words *words, const char *word)
{
    words->ok = words->ok && horonrun_strings_add(words->list, word);
}

/* Of what a rank runs. */
static void add_ranks(struct words *words, const char *word)
{
    struct horonrun_bytes text = {0};
    words->ok = words->ok &&
                (!horonrun_mpi_is_colon(word) || horonrun_bytes_append(&text, "\\", 1)) &&
                horonrun_bytes_append(&text, word, strlen(word) + 1);
    if (words->ok)
        add(words, text.data);
    horonrun_bytes_deinit(&text);
}

/* Does the user say so himself? */
static bool says(const struct horonrun_mpi *mpi, const char *option)
{
    return mpi->asked->mpi_args && strstr(mpi->asked->mpi_args, option);
}

/* As both families take them: "a:2,b:1", with the ranks that fall to each. */
static void add_hosts(struct words *words, const struct horonrun_mpi *mpi)
{
    const struct horonrun_hosts *hosts = mpi->hosts;
    struct horonrun_bytes text = {0};
    for (size_t i = 0; hosts && i < hosts->count; i++) {
        char one[300];
        const int bytes = snprintf(one, sizeof one, "%s%.255s:%d", i ? "," : "", hosts->at[i].name,
                                   hosts->at[i].ranks);
        words->ok = words->ok && horonrun_bytes_append(&text, one, (size_t)bytes);
    }
    words->ok = words->ok && horonrun_bytes_append(&text, "", 1);
    if (hosts && words->ok) {
        add(words, mpi->family == HORONRUN_MPI_HYDRA ? "-hosts" : "-H");
        add(words, text.data);
    }
    horonrun_bytes_deinit(&text);
}

/* ssh as horonrun itself would call it. @return "": nothing was said of it */
static void ssh_words(const struct horonrun_options *asked, char *text, size_t bytes)
{
    const bool plain = strcmp(asked->ssh, "ssh") == 0;
    text[0] = 0;
    if (plain && !asked->ssh_port && !asked->ssh_identity)
        return;
    snprintf(text, bytes, "%s%s%s%s%s", asked->ssh, asked->ssh_port ? " -p " : "",
             asked->ssh_port ? asked->ssh_port : "", asked->ssh_identity ? " -i " : "",
             asked->ssh_identity ? asked->ssh_identity : "");
}

/* Names that a shell could set too: others are no launcher's to pass on. */
static bool is_name(const char *entry, size_t bytes)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    return bytes > 0 && strspn(entry, letters) == bytes;
}

static void add_names(struct words *words, const struct horonrun_mpi *mpi, char *const *remote)
{
    struct horonrun_bytes list = {0};
    for (; *remote; remote++) {
        char name[256];
        const size_t bytes = strcspn(*remote, "=");
        if (bytes >= sizeof name || !is_name(*remote, bytes) ||
            horonrun_environment_matches(*remote, places) ||
            horonrun_environment_matches(*remote, launchers_own))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, *remote);
        if (strcmp(name, "HORON_JOB_KEY") != 0 && horonrun_environment_is_reserved(name))
            continue;
        if (mpi->family != HORONRUN_MPI_HYDRA) {
            add(words, "-x");
            add(words, name);
        }
        words->ok = words->ok && (!list.used || horonrun_bytes_append(&list, ",", 1)) &&
                    horonrun_bytes_append(&list, name, bytes);
    }
    words->ok = words->ok && horonrun_bytes_append(&list, "", 1);
    if (words->ok && mpi->family == HORONRUN_MPI_HYDRA && list.used > WORD_BYTES_MAX) {
        add(words, "-genvall"); /* what hydra does by itself: what is of this login goes, too */
    } else if (words->ok && mpi->family == HORONRUN_MPI_HYDRA) {
        add(words, "-genvlist");
        add(words, list.data);
    }
    horonrun_bytes_deinit(&list);
}

static void add_users(struct words *words, const struct horonrun_mpi *mpi)
{
    const char *text = mpi->asked->mpi_args ? mpi->asked->mpi_args : "";
    char *word = horon_alloc(strlen(text) + 1); /* a list of hosts may be long */
    bool is_open = false;
    words->ok = words->ok && word;
    while (word && horonrun_options_take_word(&text, word, &is_open)) {
        assert(!is_open); /* it was read so */
        add(words, word);
    }
    horon_free(word);
}

static void add_open_mpi(struct words *words, const struct horonrun_mpi *mpi)
{
    const struct horonrun_options *asked = mpi->asked;
    const bool is_5 = mpi->family == HORONRUN_MPI_OPEN_5, tag = !asked->no_prefix;
    char ssh[4096];
    ssh_words(asked, ssh, sizeof ssh);
    if (!says(mpi, "map-by")) {
        add(words, "--map-by");
        add(words, is_5 && !mpi->hosts ? "slot:OVERSUBSCRIBE" : "slot");
    }
    if (!mpi->hosts && !is_5)
        add(words, "--oversubscribe"); /* so many were asked for, as without --mpi */
    if (!says(mpi, "bind-to")) {
        add(words, "--bind-to");
        add(words, "none");
    }
    if (!is_5 && tag)
        add(words, "--tag-output");
    if (!is_5 && asked->timestamps)
        add(words, "--timestamp-output");
    if (is_5 && (tag || asked->timestamps)) {
        add(words, "--output");
        add(words, !tag ? "timestamp" : asked->timestamps ? "tag,timestamp" : "tag");
    }
    if (geteuid() == 0)
        add(words, "--allow-run-as-root");
    if (ssh[0]) {
        add(words, is_5 ? "--prtemca" : "--mca");
        add(words, is_5 ? "plm_ssh_agent" : "plm_rsh_agent");
        add(words, ssh);
    }
}

static void add_hydra(struct words *words, const struct horonrun_mpi *mpi, char ***environment)
{
    char ssh[4096], agent[PATH_MAX];
    if (!mpi->asked->no_prefix)
        add(words, "-prepend-rank");
    if (mpi->asked->keep_survivors)
        add(words, "-disable-auto-cleanup");
    ssh_words(mpi->asked, ssh, sizeof ssh);
    if (!ssh[0])
        return;
    char *rest = ssh + strcspn(ssh, " ");
    const bool has_rest = *rest != 0;
    *rest = 0;
    add(words, "-launcher");
    add(words, "ssh");
    add(words, "-launcher-exec");
    add(words, horonrun_mpi_path(ssh, agent) ? agent : ssh);
    if (has_rest)
        words->ok = words->ok &&
                    horonrun_environment_set(environment, "HYDRA_LAUNCHER_EXTRA_ARGS", rest + 1);
}

/* What beside horonrun's own variables says which rank this is; and an entry without "=", which a
 * program may hand on but no shell makes: Open MPI's mpirun crashes on it. */
static void clean(char **environment)
{
    for (char **entry = environment; *entry;) {
        char name[256];
        const size_t bytes = strcspn(*entry, "=");
        snprintf(name, sizeof name, "%.*s", (int)bytes, *entry);
        const bool stale = bytes < sizeof name && strcmp(name, "HORON_JOB_KEY") != 0 &&
                           (horonrun_environment_is_reserved(name) ||
                            horonrun_environment_matches(*entry, places));
        if (stale || !(*entry)[bytes])
            horonrun_environment_remove_at(entry);
        else
            entry++;
    }
}

horon_status_t horonrun_mpi_command(const struct horonrun_mpi *mpi, char ***environment_io,
                                    char *const *remote, char ***command_out,
                                    struct horon_error *error)
{
    struct words words = {.list = command_out, .ok = true};
    char own[HORONRUN_PATH_BYTES], size[16];
    snprintf(size, sizeof size, "%d", mpi->size);
    clean(*environment_io);
    add(&words, mpi->program);
    add(&words, "-np");
    add(&words, size);
    add_hosts(&words, mpi);
    if (mpi->family == HORONRUN_MPI_HYDRA)
        add_hydra(&words, mpi, environment_io);
    else
        add_open_mpi(&words, mpi);
    add_names(&words, mpi, remote);
    add_users(&words, mpi);
    add(&words, horonrun_launch_remote_path(mpi->asked, own));
    add(&words, HORONRUN_MPI_RANK);
    if (mpi->asked->keep_survivors || says(mpi, "-disable-auto-cleanup"))
        add(&words, HORONRUN_MPI_ALONE);
    for (char **word = mpi->asked->command; *word; word++)
        add_ranks(&words, *word);
    return words.ok ? HORON_OK : horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
}
