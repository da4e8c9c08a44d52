/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row a launcher: which variables hold rank and size, and how to find the store. The first row
 * that is complete counts; Slurm comes late, because its variables stay set in everything that a
 * step starts, so any other launcher is closer to us, PRRTE with half a row, too. A half-set row is
 * an error if nothing else is complete; but not Slurm's, whose batch scripts and shells have half
 * of them as a rule.
 *
 * Only horonrun says where the store is. For the others rank 0 serves where it says in the
 * launcher's key-value space (meeting.c), if that has one, or at an address that every rank can
 * derive: MASTER_ADDR, if it is set; else loopback if the launcher says that all ranks are on this
 * machine, or the first node of Slurm's allocation. The port is MASTER_PORT, or is made of the
 * job's name; and the next few, for it may be taken. A space of PMIx is left alone where the
 * loopback does: to begin in it took 23 ms (5 to 67; 4 ranks, Open MPI 4.1, 2 busy cores), 2 of
 * them this process's work and the rest until mpirun answers. Such a job has its key by a folder
 * that the launcher makes on the host for each launch, and removes with all that is in it: Open MPI
 * 4 and 5 and Slurm name it in a variable of PMIx, and nobody but their user can use it.
 */
#include "boot/identity/identity.h"
#include "boot/identity/space.h"

#include "numbers.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define DERIVED_PORT_FIRST 20000 /* below the kernel's own choices, which begin at 32768 */
#define DERIVED_PORTS 12000

struct variable {
    const char *name, *value; /* NULL: it is not set */
};

/* Variables in order of preference; NULL-ended. */
struct launcher {
    const char *name;
    const char *rank[2];
    const char *size[5];
    const char *local_rank[3];
    const char *local_size[3];
    const char *job[4];        /* all that are set, together, name the job */
    const char *nodes;         /* the number of its hosts: one tells local_size, if nothing does */
    const char *pmi;           /* the descriptor of its key-value space, if that is PMI's */
    const char *server, *port; /* of that space, if it is Horovod's */
    bool pmix;                 /* it may have one of PMIx, */
    bool pmix_size;            /* which tells the size where no variable does */
    bool lenient;              /* one of rank and size alone means nothing */
    const char *half;          /* what to do if one of them is not set */
};

static const struct launcher launchers[] = {
    {.name = "horonrun",
     .rank = {"HORON_RANK"},
     .size = {"HORON_SIZE"},
     .local_rank = {"HORON_LOCAL_RANK"},
     .local_size = {"HORON_LOCAL_SIZE"}},
    {.name = "Open MPI",
     .rank = {"OMPI_COMM_WORLD_RANK"},
     .size = {"OMPI_COMM_WORLD_SIZE"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     .pmix = true},
    {.name = "torchrun",
     .rank = {"RANK"},
     .size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"},
     .local_size = {"LOCAL_WORLD_SIZE"},
     .job = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {.name = "Horovod",
     .rank = {"HOROVOD_RANK"},
     .size = {"HOROVOD_SIZE"},
     .local_rank = {"HOROVOD_LOCAL_RANK"},
     .local_size = {"HOROVOD_LOCAL_SIZE"},
     .job = {"HOROVOD_GLOO_RENDEZVOUS_PORT"}, /* the address may be another on each host */
     .server = "HOROVOD_GLOO_RENDEZVOUS_ADDR",
     .port = "HOROVOD_GLOO_RENDEZVOUS_PORT"},
    {.name = "PMI",
     .rank = {"PMI_RANK", "PMI_ID"}, /* that of `mpiexec -pmi-port`, which tells no size */
     .size = {"PMI_SIZE"},
     .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
     .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
     .nodes = "SLURM_STEP_NUM_NODES", /* whose PMI tells no local_size */
     .job = {"PMI_JOBID", "PMI_KVSNAME", "PALS_APID"},
     .pmi = "PMI_FD",
     .half = ": start the ranks without mpiexec's -pmi-port, if it was given"},
    {.name = "Slurm",
     .rank = {"SLURM_PROCID"},
     .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
     .local_rank = {"SLURM_LOCALID"},
     .nodes = "SLURM_STEP_NUM_NODES",
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .pmix = true,
     .lenient = true},
    {.name = "PMIx",
     .rank = {"PMIX_RANK"},
     /* the last one is what Open MPI sets in a process that calls MPI_Init without a launcher */
     .size = {"PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "OMPI_MCA_orte_ess_num_procs"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .job = {"PMIX_NAMESPACE"},
     .pmix = true,
     .pmix_size = true,
     .half = ": its launcher need not tell it; give it to all ranks, as prterun does with "
             "-x PMIX_SIZE=N"},
};
#define LAUNCHERS (sizeof launchers / sizeof launchers[0])

static const char *look(horon_environment_fn get, const char *name)
{
    const char *value = get(name);
    return value && value[0] ? value : NULL; /* set to nothing is not set */
}

/* @return the first of @p names that is set; if none is, the first one, with NULL */
static struct variable look_any(horon_environment_fn get, const char *const *names)
{
    for (const char *const *name = names; *name; name++)
        if (look(get, *name))
            return (struct variable){*name, look(get, *name)};
    return (struct variable){names[0], NULL};
}

/* Of the first of @p names that is set. @return OK, also if none is */
static horon_status_t read_number(horon_environment_fn get, const char *const *names, int low,
                                  int high, int *value_out, struct horon_error *error)
{
    const struct variable found = look_any(get, names);
    if (found.value && !horon_number_parse(found.value, low, high, value_out))
        return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is not a number from %d to %d",
                               found.name, found.value, low, high);
    return HORON_OK;
}

/* @param told_size of the launch, by other means than variables; 0: not told */
static horon_status_t read_place(struct horon_identity *identity, const struct launcher *launcher,
                                 int told_size, horon_environment_fn get, struct horon_error *error)
{
    const struct variable rank = look_any(get, launcher->rank);
    const struct variable size = look_any(get, launcher->size);
    const struct variable set = rank.value ? rank : size;
    const bool is_told = told_size > 0 && launcher->pmix_size && !size.value;
    if (!rank.value || (!size.value && !is_told))
        return horon_error_set(error, HORON_ERR_CONFIG, "%s is set (%s) but %s is not%s", set.name,
                               set.value, rank.value ? size.name : rank.name,
                               launcher->half ? launcher->half : "");
    identity->size = is_told ? told_size : identity->size;
    horon_status_t status =
        read_number(get, launcher->size, 1, HORON_BOOT_SIZE_MAX, &identity->size, error);
    if (status == HORON_OK)
        status = read_number(get, launcher->rank, 0, identity->size - 1, &identity->rank, error);
    if (status == HORON_OK)
        status = read_number(get, launcher->local_rank, 0, identity->size - 1,
                             &identity->local_rank, error);
    if (status == HORON_OK)
        status =
            read_number(get, launcher->local_size, 1, identity->size, &identity->local_size, error);
    const char *nodes = launcher->nodes ? look(get, launcher->nodes) : NULL;
    if (status == HORON_OK && identity->local_size < 0 && nodes && strcmp(nodes, "1") == 0)
        identity->local_size = identity->size;
    if (status == HORON_OK && launcher != &launchers[0])
        snprintf(identity->origin, sizeof identity->origin, "rank %d from %s, %d ranks from %s",
                 identity->rank, rank.name, identity->size, is_told ? "PMIx" : size.name);
    return status;
}

/* @return a number made of all that names the job; 0 if nothing does */
static uint64_t job_mark(const struct launcher *launcher, horon_environment_fn get)
{
    uint64_t mark = 0;
    for (int i = 0; launcher->job[i]; i++) {
        const char *value = look(get, launcher->job[i]);
        if (value)
            mark = XXH3_64bits_withSeed(value, strlen(value), mark + 1);
    }
    return mark;
}

/* The first name of a Slurm node list: "node[03-05,9],x" is node03. @return false if there is none
 */
static bool first_node(const char *list, char *node, size_t node_bytes)
{
    size_t prefix = strcspn(list, "[,");
    const char *number = list + prefix;
    size_t number_bytes = 0;
    const char *rest = "";
    if (*number == '[') {
        number++;
        number_bytes = strcspn(number, "-,]");
        const char *bracket = strchr(number, ']');
        rest = bracket ? bracket + 1 : "";
    }
    size_t rest_bytes = strcspn(rest, ",[");
    if (prefix + number_bytes + rest_bytes == 0)
        return false;
    int used = snprintf(node, node_bytes, "%.*s%.*s%.*s", (int)prefix, list, (int)number_bytes,
                        number, (int)rest_bytes, rest);
    return used > 0 && (size_t)used < node_bytes;
}

/* Where all ranks can look for rank 0, without a word from it. */
static bool derive_host(struct horon_identity *identity, horon_environment_fn get, char *host,
                        size_t host_bytes)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST", NULL};
    const char *address = look(get, "MASTER_ADDR");
    const struct variable list = look_any(get, lists);
    if (address) {
        identity->host_origin = "MASTER_ADDR";
        return (size_t)snprintf(host, host_bytes, "%s", address) < host_bytes;
    }
    if (identity->local_size == identity->size) {
        snprintf(host, host_bytes, "127.0.0.1");
        return true;
    }
    identity->host_origin = list.name;
    return list.value && first_node(list.value, host, host_bytes);
}

static horon_status_t derive_store(struct horon_identity *identity, const struct launcher *launcher,
                                   horon_environment_fn get, struct horon_error *error)
{
    const char *const ports[] = {"MASTER_PORT", NULL};
    char host[200];
    int port = 0;
    const uint64_t mark = job_mark(launcher, get);
    const bool known = derive_host(identity, get, host, sizeof host);
    horon_status_t status = known ? read_number(get, ports, 1, 65535, &port, error) : HORON_OK;
    if (status != HORON_OK)
        return status;
    if (port == 0 && mark != 0)
        port = DERIVED_PORT_FIRST + (int)(mark % DERIVED_PORTS);
    static_assert(DERIVED_PORT_FIRST + DERIVED_PORTS + HORON_PORT_SCAN <= 32768, "see above");
    if (!known || port == 0) {
        status =
            horon_error_set(error, HORON_ERR_CONFIG,
                            "ranks started by %s do not know where to meet: set %sMASTER_PORT, "
                            "or HORON_STORE=tcp://HOST:PORT with an address of rank 0",
                            launcher == launchers ? "horonrun or by hand" : launcher->name,
                            known ? "" : "MASTER_ADDR and ");
        return launcher == launchers || look(get, "MASTER_ADDR") ? status : HORON_AGAIN;
    }
    const bool bare_v6 = strchr(host, ':') && host[0] != '[';
    snprintf(identity->store, sizeof identity->store, bare_v6 ? "tcp://[%s]:%d" : "tcp://%s:%d",
             host, port);
    identity->port_scan = HORON_PORT_SCAN;
    identity->job = mark;
    return HORON_OK;
}

/* Which may have been called in a step or a batch script of Slurm's: its ranks have that one
 * process's variables then, too. */
static bool is_started_by_prrte(horon_environment_fn get)
{
    return look(get, "PRTE_LAUNCHED") && look(get, "PMIX_RANK") && look(get, "PMIX_NAMESPACE");
}

/* @return the launcher whose variables count, perhaps with half of them; NULL: none */
static const struct launcher *find_launcher(horon_environment_fn get)
{
    const bool is_prrte = is_started_by_prrte(get);
    const struct launcher *half = NULL;
    for (size_t i = 0; i < LAUNCHERS; i++) {
        const struct launcher *launcher = &launchers[i];
        const bool rank = look_any(get, launcher->rank).value != NULL;
        const bool size = look_any(get, launcher->size).value != NULL;
        if (launcher->lenient && is_prrte)
            continue;
        if ((rank && size) || ((rank || size) && i == 0)) /* ours are never an accident */
            return launcher;
        if ((rank || size) && !launcher->lenient && !half)
            half = launcher;
    }
    return half;
}

/* Also where an address can be derived: a space tells a job key, too, and may be found closed. With
 * PMI's Slurm names the job, too. Its space wants to be begun, and MPI could not begin it again: it
 * is left to MPI. */
static void note_space(struct horon_identity *identity, const struct launcher *launcher,
                       horon_environment_fn get)
{
    const char *fd = launcher->pmi ? look(get, launcher->pmi) : NULL;
    if (look(get, "MASTER_ADDR"))
        return;
    if (fd && !look(get, "PMI_JOBID") && horon_number_parse(fd, 0, INT_MAX, &identity->pmi_fd)) {
        identity->space = &horon_space_pmi;
    } else if (launcher->pmix && identity->local_size != identity->size &&
               look(get, "PMIX_NAMESPACE") && look(get, "PMIX_RANK")) {
        identity->space = &horon_space_pmix;
        identity->job = job_mark(launcher, get);
    }
}

/* Wherever the ranks meet: all of them see the same one, and no rank of another launch does. */
static void note_folder(struct horon_identity *identity, const struct launcher *launcher,
                        horon_environment_fn get)
{
    const char *folder = launcher->pmix ? look(get, "PMIX_SERVER_TMPDIR") : NULL;
    if (folder && folder[0] == '/' && strlen(folder) < sizeof identity->folder &&
        identity->size > 1 && identity->local_size == identity->size)
        snprintf(identity->folder, sizeof identity->folder, "%s", folder);
}

/* What an MPI of a process of srun's would find: without PMI or PMIx it is alone, or aborts. Cray's
 * PMI and Intel's MPI, which is given Slurm's library, have no descriptor. mpirun's ranks inherit
 * the variables of the step of its daemons. */
static const char *find_srun(const struct launcher *launcher, horon_environment_fn get)
{
    static const char *const pmi[] = {"PMI_FD", "PMI_PORT", "PMI_CONTROL_PORT", "I_MPI_PMI_LIBRARY",
                                      NULL};
    const bool is_slurm = strcmp(launcher->name, "Slurm") == 0;
    const bool is_pmi = strcmp(launcher->name, "PMI") == 0;
    if (!is_slurm && !(is_pmi && look(get, "SLURM_STEP_ID")))
        return NULL;
    if (look(get, "PMIX_NAMESPACE"))
        return "pmix";
    return look_any(get, pmi).value ? "pmi2" : "none";
}

/* Horovod's, whose address says nothing of where rank 0 is: with it there is no other way. */
static horon_status_t note_server(struct horon_identity *identity, const struct launcher *launcher,
                                  horon_environment_fn get, struct horon_error *error)
{
    const char *host = launcher->server ? look(get, launcher->server) : NULL;
    const char *const ports[] = {launcher->port, NULL};
    int port = 0;
    if (!host || look(get, "MASTER_ADDR"))
        return HORON_OK;
    const horon_status_t status = read_number(get, ports, 1, 65535, &port, error);
    if (status != HORON_OK)
        return status;
    if (port == 0)
        return horon_error_set(error, HORON_ERR_CONFIG, "%s is set (%s) but %s is not",
                               launcher->server, host, launcher->port);
    const bool bare_v6 = strchr(host, ':') && host[0] != '[';
    const int bytes = snprintf(identity->server, sizeof identity->server,
                               bare_v6 ? "[%s]:%d" : "%s:%d", host, port);
    if (bytes < 0 || bytes >= HORON_ADDRESS_TEXT_BYTES)
        return horon_error_set(error, HORON_ERR_CONFIG, "%s is too long to be an address",
                               launcher->server);
    identity->space = &horon_space_horovod;
    identity->job = job_mark(launcher, get);
    return HORON_OK;
}

static horon_status_t take_store(struct horon_identity *identity, const struct launcher *launcher,
                                 const char *store, horon_environment_fn get,
                                 struct horon_error *error)
{
    if (identity->size == 1)
        return HORON_OK; /* nobody to meet */
    if (store[0]) {
        snprintf(identity->store, sizeof identity->store, "%s", store);
        return HORON_OK;
    }
    const horon_status_t noted = note_server(identity, launcher, get, error);
    if (noted != HORON_OK || identity->space)
        return noted;
    note_space(identity, launcher, get);
    if (launcher != &launchers[0] || look(get, "MASTER_ADDR")) {
        const horon_status_t status = derive_store(identity, launcher, get, error);
        return identity->space ? HORON_OK : status;
    }
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "HORON_STORE is not set: %d ranks need an address to meet at, "
                           "tcp://HOST:PORT of rank 0 or file:DIR",
                           identity->size);
}

bool horon_identity_lacks_size(horon_environment_fn get, int *rank_out)
{
    const struct launcher *launcher = find_launcher(get);
    const char *rank = launcher && launcher->pmix_size ? look_any(get, launcher->rank).value : NULL;
    return rank && !look_any(get, launcher->size).value && look(get, "PMIX_NAMESPACE") &&
           horon_number_parse(rank, 0, HORON_BOOT_SIZE_MAX - 1, rank_out);
}

bool horon_identity_has_launcher(horon_environment_fn get)
{
    const struct launcher *launcher = find_launcher(get);
    return launcher && launcher != &launchers[0];
}

/* Of Slurm's, a batch script has the size of all its job, where one process runs. */
const char *horon_identity_launched(horon_environment_fn get, int *size_out)
{
    const struct launcher *launcher = find_launcher(get);
    struct horon_error ignored;
    *size_out = 1;
    if (!launcher)
        return NULL;
    const char *const of_step[] = {launcher->size[0], NULL};
    (void)read_number(get, launcher->lenient ? of_step : launcher->size, 1, HORON_BOOT_SIZE_MAX,
                      size_out, &ignored);
    return launcher->name;
}

horon_status_t horon_identity_find(struct horon_identity *identity, int rank, int size,
                                   const char *store, int told_size, horon_environment_fn get,
                                   struct horon_error *error)
{
    struct horon_identity found = {.rank = 0,
                                   .size = 1,
                                   .local_rank = -1,
                                   .local_size = -1,
                                   .pmi_fd = -1,
                                   .source = "nothing"};
    const struct launcher *launcher = NULL;
    horon_status_t status = HORON_OK;
    if (rank == -1 && size == -1) {
        launcher = find_launcher(get);
        if (launcher)
            status = read_place(&found, launcher, told_size, get, error);
        found.source = launcher ? launcher->name : found.source;
        found.assumed = !launcher;
        found.srun = launcher ? find_srun(launcher, get) : NULL;
        if (launcher && status == HORON_OK)
            note_folder(&found, launcher, get);
    } else if (size < 1 || size > HORON_BOOT_SIZE_MAX || rank < 0 || rank >= size) {
        return horon_error_set(error, HORON_ERR_INVALID,
                               "rank %d of size %d: give both, 0 <= rank < size <= %d, or -1 and "
                               "-1 for what the environment says",
                               rank, size, HORON_BOOT_SIZE_MAX);
    } else {
        found.rank = rank;
        found.size = size;
        found.source = "the caller";
        launcher = &launchers[0]; /* no other has to be understood */
    }
    if (status == HORON_OK)
        status = take_store(&found, launcher, store, get, error);
    if (status < HORON_OK)
        return status;
    assert(found.rank >= 0 && found.rank < found.size);
    assert(found.size > 1 || found.store[0] == 0);
    assert((status == HORON_AGAIN) == (found.size > 1 && !found.store[0] && !found.space));
    assert(found.local_rank < found.size);
    *identity = found;
    return status;
}
