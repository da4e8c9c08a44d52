/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank is this process: each launcher's variables as a table, a list of "NAME=value" for an
 * environment. */
#undef NDEBUG
#include "boot/identity/identity.h"
#include "boot/identity/space.h"
#include "environments.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define VARIABLES_MAX 12

static horon_status_t ask(const char *const *variables, const char *store,
                          struct horon_identity *identity, struct horon_error *error)
{
    memset(identity, 0, sizeof *identity);
    memset(error, 0, sizeof *error);
    environment = variables;
    return horon_identity_find(identity, -1, -1, store, 0, find, error);
}

/* In a row of a table of cases. */
static void expect_found(size_t row, const char *const *variables, const char *store,
                         struct horon_identity *identity_out)
{
    struct horon_error error;
    print_message("case %zu\n", row);
    assert_int_equal(ask(variables, store, identity_out, &error), HORON_OK);
}

struct good {
    const char *variables[VARIABLES_MAX];
    const char *row; /* STORE */
    int rank, size, local_rank, local_size;
    const char *source;
    const char *store; /* a final * stands for a derived port */
    bool derived;
};

static const struct good goods[] = {
    {{NULL}, "", 0, 1, -1, -1, "nothing", "", false},
    {{"HORON_RANK=2", "HORON_SIZE=4", "HORON_LOCAL_RANK=0", "HORON_LOCAL_SIZE=2"},
     "tcp://10.0.0.1:4000",
     2,
     4,
     0,
     2,
     "horonrun",
     "tcp://10.0.0.1:4000",
     false},
    {{"HORON_RANK=0", "HORON_SIZE=1"}, "", 0, 1, -1, -1, "horonrun", "", false},
    {{"HORON_RANK=1", "HORON_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=5"},
     "",
     1,
     2,
     -1,
     -1,
     "horonrun",
     "tcp://a:5",
     true},
    {{"HORON_RANK=1", "HORON_SIZE=2", "RANK=7", "WORLD_SIZE=9"},
     "file:/d",
     1,
     2,
     -1,
     -1,
     "horonrun",
     "file:/d",
     false},
    {{"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node7",
      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none"},
     "",
     3,
     8,
     1,
     2,
     "torchrun",
     "tcp://node7:29500",
     true},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=fd00::7", "MASTER_PORT=29500"},
     "",
     0,
     2,
     -1,
     -1,
     "torchrun",
     "tcp://[fd00::7]:29500",
     true},
    {{"RANK=0", "WORLD_SIZE=1"}, "", 0, 1, -1, -1, "torchrun", "", false},
    {{"RANK=3", "WORLD_SIZE=8", "MASTER_ADDR=a", "MASTER_PORT=1"},
     "tcp://b:2",
     3,
     8,
     -1,
     -1,
     "torchrun",
     "tcp://b:2",
     false},
    {{"SLURM_PROCID=5", "SLURM_NTASKS=6", "SLURM_LOCALID=2", "SLURM_JOB_ID=77", "SLURM_STEP_ID=0",
      "SLURM_STEP_NODELIST=gpu[07-09,12]"},
     "",
     5,
     6,
     2,
     -1,
     "Slurm",
     "tcp://gpu07:*",
     true},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=9", "SLURM_STEP_NUM_TASKS=3", "SLURM_JOB_ID=77",
      "SLURM_JOB_NODELIST=a-1,b-[2-3]"},
     "",
     0,
     3,
     -1,
     -1,
     "Slurm",
     "tcp://a-1:*",
     true},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=1", "SLURM_JOB_ID=77",
      "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_NODELIST=gpu07"},
     "",
     1,
     2,
     1,
     2,
     "Slurm",
     "tcp://127.0.0.1:*",
     true},
    /* srun --mpi=pmi2 */
    {{"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=7", "PMI_JOBID=7.0", "SLURM_STEP_NUM_NODES=2",
      "SLURM_STEP_NODELIST=n[1-2]"},
     "",
     1,
     2,
     -1,
     -1,
     "PMI",
     "tcp://n1:*",
     true},
    {{"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=7", "PMI_JOBID=7.0", "SLURM_STEP_NUM_NODES=1",
      "SLURM_STEP_NODELIST=n2"},
     "",
     1,
     2,
     -1,
     2,
     "PMI",
     "tcp://127.0.0.1:*",
     true},
    /* mpiexec over several hosts in a step of one */
    {{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=1", "PMI_JOBID=3", "SLURM_STEP_NUM_NODES=1",
      "SLURM_STEP_NODELIST=n2"},
     "",
     1,
     2,
     -1,
     1,
     "PMI",
     "tcp://n2:*",
     true},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=77", "MASTER_ADDR=m", "MASTER_PORT=7"},
     "",
     0,
     2,
     -1,
     -1,
     "Slurm",
     "tcp://m:7",
     true},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=77", "SLURM_NODELIST=rack[1-2]-ib"},
     "",
     0,
     2,
     -1,
     -1,
     "Slurm",
     "tcp://rack1-ib:*",
     true},
    /* a shell or batch script of an allocation: no step, so no rank */
    {{"SLURM_NTASKS=4", "SLURM_JOB_ID=77"}, "", 0, 1, -1, -1, "nothing", "", false},
    {{"SLURM_PROCID=0", "SLURM_JOB_ID=77"}, "", 0, 1, -1, -1, "nothing", "", false},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=1234@1", "PMIX_RANK=1"},
     "",
     1,
     4,
     1,
     4,
     "Open MPI",
     "tcp://127.0.0.1:*",
     true},
    /* mpirun starts its daemons as a Slurm step, whose variables the ranks inherit */
    {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_NODELIST=x[3-4]",
      "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
      "PMIX_NAMESPACE=9"},
     "",
     3,
     4,
     -1,
     2,
     "Open MPI",
     "tcp://x3:*",
     true},
    {{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2", "PMI_JOBID=3"},
     "",
     1,
     2,
     1,
     2,
     "PMI",
     "tcp://127.0.0.1:*",
     true},
    /* srun --mpi=pmi2 sets Slurm's, too, and PMI-2's own do not count */
    {{"PMI_RANK=2", "PMI_SIZE=4", "PMI_FD=7", "PMI_JOBID=9.1", "PMI2_RANK=0", "SLURM_PROCID=2",
      "SLURM_NTASKS=8", "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NODELIST=n[3-4]"},
     "",
     2,
     4,
     -1,
     -1,
     "PMI",
     "tcp://n3:*",
     true},
    {{"PMIX_RANK=1", "PMIX_SIZE=2", "PMIX_NAMESPACE=z", "MASTER_ADDR=q"},
     "",
     1,
     2,
     -1,
     -1,
     "PMIx",
     "tcp://q:*",
     true},
    /* left by an MPI_Init of Open MPI without a launcher */
    {{"PMIX_RANK=0", "OMPI_MCA_orte_ess_num_procs=1", "PMIX_NAMESPACE=7"},
     "",
     0,
     1,
     -1,
     -1,
     "PMIx",
     "",
     false},
    {{"SLURM_PROCID=4", "SLURM_NTASKS=5", "PMIX_RANK=4", "PMIX_NAMESPACE=z", "SLURM_JOB_ID=9",
      "SLURM_NODELIST=n1"},
     "",
     4,
     5,
     -1,
     -1,
     "Slurm",
     "tcp://n1:*",
     true},
    {{"HOROVOD_RANK=1", "HOROVOD_SIZE=3", "HOROVOD_LOCAL_RANK=1", "HOROVOD_LOCAL_SIZE=3",
      "HOROVOD_GLOO_RENDEZVOUS_ADDR=10.1.2.3", "HOROVOD_GLOO_RENDEZVOUS_PORT=4321"},
     "",
     1,
     3,
     1,
     3,
     "Horovod",
     "", /* its server tells it */
     false},
    {{"HOROVOD_RANK=1", "HOROVOD_SIZE=3", "HOROVOD_GLOO_RENDEZVOUS_ADDR=10.1.2.3",
      "HOROVOD_GLOO_RENDEZVOUS_PORT=4321", "MASTER_ADDR=m", "MASTER_PORT=7"},
     "",
     1,
     3,
     -1,
     -1,
     "Horovod",
     "tcp://m:7",
     true},
    /* half of one launcher's variables, all of another's */
    {{"WORLD_SIZE=4", "SLURM_PROCID=1", "SLURM_NTASKS=4", "MASTER_ADDR=m", "MASTER_PORT=7"},
     "",
     1,
     4,
     -1,
     -1,
     "Slurm",
     "tcp://m:7",
     true},
    /* set to nothing is not set */
    {{"RANK=", "WORLD_SIZE="}, "", 0, 1, -1, -1, "nothing", "", false},
};

static void check_store(const char *store, const char *want)
{
    const char *star = strchr(want, '*');
    if (!star) {
        assert_string_equal(store, want);
        return;
    }
    const size_t prefix = (size_t)(star - want);
    assert_int_equal(strncmp(store, want, prefix), 0);
    assert_int_equal(strspn(store + prefix, "0123456789"), 5);
    assert_int_equal(strlen(store + prefix), 5);
}

static void test_identity_launchers_are_recognised(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goods / sizeof goods[0]; i++) {
        struct horon_identity identity;
        struct horon_error error;
        const struct good *good = &goods[i];
        print_message("row %zu, %s\n", i, good->source);
        assert_int_equal(ask(good->variables, good->row, &identity, &error), HORON_OK);
        assert_int_equal(identity.rank, good->rank);
        assert_int_equal(identity.size, good->size);
        assert_int_equal(identity.local_rank, good->local_rank);
        assert_int_equal(identity.local_size, good->local_size);
        assert_string_equal(identity.source, good->source);
        assert_int_equal(identity.port_scan > 0, good->derived);
        check_store(identity.store, good->store);
        const bool is_ours = strcmp(good->source, "horonrun") == 0;
        const bool is_none = strcmp(good->source, "nothing") == 0;
        assert_int_equal(horon_identity_has_launcher(find), !is_ours && !is_none);
    }
}

struct bad {
    const char *variables[VARIABLES_MAX];
    const char *text; /* what the message must name */
    bool placeless;   /* MPI's world may tell where they meet */
};

static const struct bad bads[] = {
    {{"HORON_RANK=1"}, "HORON_SIZE", false},
    {{"HORON_SIZE=2"}, "HORON_RANK", false},
    {{"HORON_SIZE=2", "RANK=0", "WORLD_SIZE=1"}, "HORON_RANK", false},
    {{"HORON_RANK=x", "HORON_SIZE=2"}, "HORON_RANK=x", false},
    {{"HORON_RANK=2", "HORON_SIZE=2"}, "HORON_RANK=2", false},
    {{"HORON_RANK=-1", "HORON_SIZE=2"}, "HORON_RANK=-1", false},
    {{"HORON_RANK=0", "HORON_SIZE=0"}, "HORON_SIZE=0", false},
    {{"HORON_RANK=0", "HORON_SIZE=99999999999999999999"}, "HORON_SIZE=99999999999999999999", false},
    {{"HORON_RANK=0", "HORON_SIZE=2 "}, "HORON_SIZE=2 ", false},
    {{"HORON_RANK=0", "HORON_SIZE=2"}, "HORON_STORE", false},
    {{"HORON_RANK=0", "HORON_SIZE=2", "HORON_LOCAL_RANK=2"}, "HORON_LOCAL_RANK=2", false},
    {{"HORON_RANK=0", "HORON_SIZE=2", "HORON_LOCAL_SIZE=3"}, "HORON_LOCAL_SIZE=3", false},
    {{"RANK=0"}, "WORLD_SIZE", false},
    {{"WORLD_SIZE=2"}, "RANK", false},
    {{"RANK=0", "WORLD_SIZE=2"}, "MASTER_ADDR", true},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a"}, "MASTER_PORT", false},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=70000"}, "MASTER_PORT=70000", false},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=abc"}, "MASTER_PORT=abc", false},
    {{"PMI_RANK=0"}, "PMI_SIZE", false},
    {{"PMI_ID=1", "PMI_PORT=a:34835", "MPI_LOCALNRANKS=2"}, "without mpiexec's -pmi-port", false},
    {{"PMIX_RANK=0"}, "but PMIX_SIZE is not: its launcher need not tell it", false},
    /* as prterun sets them: it tells the size through PMIx only */
    {{"PMIX_RANK=1", "PMIX_NAMESPACE=prterun-a-1@1", "PRTE_LAUNCHED=1"}, "-x PMIX_SIZE=N", false},
    {{"PMI_RANK=0", "PMI_SIZE=2", "PMI_JOBID=1"}, "MASTER_ADDR", true},
    {{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALNRANKS=2"}, "MASTER_PORT", true},
    {{"OMPI_COMM_WORLD_RANK=0"}, "OMPI_COMM_WORLD_SIZE", false},
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=1"},
     "HORON_STORE",
     true},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1"}, "MASTER_ADDR", true},
    {{"HOROVOD_RANK=0"}, "HOROVOD_SIZE", false},
    {{"HOROVOD_RANK=0", "HOROVOD_SIZE=2", "HOROVOD_GLOO_RENDEZVOUS_ADDR=a"},
     "HOROVOD_GLOO_RENDEZVOUS_PORT",
     false},
    {{"HOROVOD_RANK=0", "HOROVOD_SIZE=2", "HOROVOD_GLOO_RENDEZVOUS_ADDR=a",
      "HOROVOD_GLOO_RENDEZVOUS_PORT=x"},
     "HOROVOD_GLOO_RENDEZVOUS_PORT=x",
     false},
    {{"HOROVOD_RANK=0", "HOROVOD_SIZE=2"}, "MASTER_ADDR", true},
};

static void test_identity_half_or_absurd_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        struct horon_identity identity;
        struct horon_error error;
        print_message("row %zu, %s\n", i, bads[i].text);
        assert_int_equal(ask(bads[i].variables, "", &identity, &error),
                         bads[i].placeless ? HORON_AGAIN : HORON_ERR_CONFIG);
        assert_int_equal(error.status, HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, bads[i].text));
        assert_int_equal(identity.size, bads[i].placeless ? 2 : 0);
    }
}

/* A rank that has local peers only has no need of it, nor one that was told an address. */
static void test_identity_space_of_the_launcher_is_noted(void **state)
{
#define MPIRUN "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=n", "PMIX_RANK=1"
#define HOROVODRUN                                                                                 \
    "HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HOROVOD_GLOO_RENDEZVOUS_ADDR=a",                          \
        "HOROVOD_GLOO_RENDEZVOUS_PORT=7"
#define SRUN "SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_JOB_ID=9", "SLURM_NODELIST=a[1-2]"
    static const struct {
        const char *variables[VARIABLES_MAX];
        const struct horon_space_calls *space;
        bool named; /* is the job, without a word from rank 0? */
    } cases[] = {
        {{MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE=2"}, &horon_space_pmix, true},
        {{MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE=4"}, NULL, true},
        {{MPIRUN, "MASTER_ADDR=a"}, NULL, true},
        {{SRUN, "PMIX_NAMESPACE=n", "PMIX_RANK=1"}, &horon_space_pmix, true},
        {{SRUN, "PMIX_NAMESPACE=n"}, NULL, true},
        {{SRUN, "PMIX_NAMESPACE=n", "PMIX_RANK=1", "SLURM_STEP_NUM_NODES=1"}, NULL, true},
        {{"PMIX_RANK=1", "PMIX_SIZE=2", "PMIX_NAMESPACE=n"}, &horon_space_pmix, true},
        {{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1", "PMIX_NAMESPACE=n",
          "PMIX_RANK=1"},
         NULL,
         false},
        {{"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=7"}, &horon_space_pmi, false},
        {{"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=7", "PMI_JOBID=7.0", "SLURM_NODELIST=a"}, NULL, true},
        {{"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=7", "MASTER_ADDR=a", "MASTER_PORT=1"}, NULL, false},
        {{HOROVODRUN}, &horon_space_horovod, true},
        {{HOROVODRUN, "HOROVOD_LOCAL_SIZE=2"}, &horon_space_horovod, true},
        {{HOROVODRUN, "MASTER_ADDR=a", "MASTER_PORT=1"}, NULL, true},
    };
#undef HOROVODRUN
#undef MPIRUN
#undef SRUN
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horon_identity identity;
        expect_found(i, cases[i].variables, "", &identity);
        assert_ptr_equal(identity.space, cases[i].space);
        assert_int_equal(identity.job != 0, cases[i].named);
        expect_found(i, cases[i].variables, "tcp://b:3", &identity);
        assert_null(identity.space);
    }
}

static void test_identity_server_of_horovod_is_told_with_its_port(void **state)
{
    static const char *const cases[][2] = {{"HOROVOD_GLOO_RENDEZVOUS_ADDR=10.1.2.3", "10.1.2.3:7"},
                                           {"HOROVOD_GLOO_RENDEZVOUS_ADDR=fe80::1", "[fe80::1]:7"},
                                           {"HOROVOD_GLOO_RENDEZVOUS_ADDR=[::1]", "[::1]:7"}};
    static char longest[300] = "HOROVOD_GLOO_RENDEZVOUS_ADDR=";
    struct horon_identity identity;
    struct horon_error error;
    const char *variables[] = {"HOROVOD_RANK=1", "HOROVOD_SIZE=2", NULL,
                               "HOROVOD_GLOO_RENDEZVOUS_PORT=7", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        variables[2] = cases[i][0];
        assert_int_equal(ask(variables, "", &identity, &error), HORON_OK);
        assert_string_equal(identity.server, cases[i][1]);
        assert_string_equal(identity.store, "");
    }
    const size_t used = strlen(longest);
    memset(longest + used, 'a', sizeof longest - 1 - used);
    variables[2] = longest;
    assert_int_equal(ask(variables, "", &identity, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "HOROVOD_GLOO_RENDEZVOUS_ADDR is too long"));
}

static horon_status_t tell(int rank, int size, const char *store, struct horon_identity *identity)
{
    static const char *const none[] = {"RANK=5", "WORLD_SIZE=6", NULL};
    struct horon_error error = {0};
    memset(identity, 0, sizeof *identity);
    environment = none;
    return horon_identity_find(identity, rank, size, store, 0, find, &error);
}

static void test_identity_caller_goes_before_environment(void **state)
{
    struct horon_identity identity;
    (void)state;
    assert_int_equal(tell(1, 3, "file:/x", &identity), HORON_OK);
    assert_int_equal(identity.rank, 1);
    assert_int_equal(identity.size, 3);
    assert_string_equal(identity.store, "file:/x");
    assert_int_equal(tell(0, 1, "", &identity), HORON_OK);
    assert_int_equal(identity.size, 1);
    assert_int_equal(tell(0, 2, "", &identity), HORON_ERR_CONFIG);
}

static void test_identity_half_a_caller_is_refused(void **state)
{
    struct horon_identity identity;
    (void)state;
    assert_int_equal(tell(0, -1, "file:/x", &identity), HORON_ERR_INVALID);
    assert_int_equal(tell(-1, 2, "file:/x", &identity), HORON_ERR_INVALID);
    assert_int_equal(tell(2, 2, "file:/x", &identity), HORON_ERR_INVALID);
    assert_int_equal(tell(0, 0, "file:/x", &identity), HORON_ERR_INVALID);
    assert_int_equal(tell(0, 100000, "file:/x", &identity), HORON_ERR_INVALID);
}

/* All ranks of a job derive the same port and mark; another job another mark. */
static void test_identity_jobs_of_slurm_differ(void **state)
{
    const char *first[] = {"SLURM_PROCID=0",  "SLURM_NTASKS=2",        "SLURM_JOB_ID=7",
                           "SLURM_STEP_ID=0", "SLURM_NODELIST=a[1-2]", NULL};
    const char *second[] = {"SLURM_PROCID=1",  "SLURM_NTASKS=2",        "SLURM_JOB_ID=7",
                            "SLURM_STEP_ID=0", "SLURM_NODELIST=a[1-2]", NULL};
    const char *other[] = {"SLURM_PROCID=1",  "SLURM_NTASKS=2",        "SLURM_JOB_ID=7",
                           "SLURM_STEP_ID=1", "SLURM_NODELIST=a[1-2]", NULL};
    struct horon_identity a, b, c;
    struct horon_error error;
    (void)state;
    assert_int_equal(ask(first, "", &a, &error), HORON_OK);
    assert_int_equal(ask(second, "", &b, &error), HORON_OK);
    assert_int_equal(ask(other, "", &c, &error), HORON_OK);
    assert_string_equal(a.store, b.store);
    assert_true(a.job == b.job && a.job != 0);
    assert_true(a.job != c.job);
}

/* What an MPI finds in a process of srun's. */
static void test_identity_way_of_srun_is_noted(void **state)
{
#define SRUN "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_ID=9", "SLURM_NODELIST=a"
#define PMI "PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=9.0", "SLURM_NODELIST=a"
    const struct {
        const char *variables[8];
        const char *srun;
    } cases[] = {
        {{SRUN}, "none"},
        {{SRUN, "PMIX_NAMESPACE=n"}, "pmix"},
        {{SRUN, "PMI_CONTROL_PORT=1"}, "pmi2"},
        {{SRUN, "I_MPI_PMI_LIBRARY=libpmi.so"}, "pmi2"},
        {{PMI, "PMI_FD=7", "SLURM_STEP_ID=0"}, "pmi2"},
        {{PMI, "SLURM_STEP_ID=0"}, "none"},
        {{PMI, "PMI_FD=7"}, NULL}, /* of hydra, on one host */
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMIX_NAMESPACE=n", SRUN}, NULL},
        {{"HORON_RANK=0", "HORON_SIZE=1", SRUN}, NULL},
    };
#undef SRUN
#undef PMI
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horon_identity identity;
        expect_found(i, cases[i].variables, "", &identity);
        if (cases[i].srun)
            assert_non_null(identity.srun);
        else
            assert_null(identity.srun);
        if (cases[i].srun)
            assert_string_equal(identity.srun, cases[i].srun);
    }
}

/* Where a communicator says which rank this is. */
static void test_identity_size_of_the_launch_is_told(void **state)
{
    const struct {
        const char *variables[4];
        const char *name;
        int size;
    } cases[] = {
        {{"HORON_RANK=1", "HORON_SIZE=3"}, "horonrun", 3},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}, "Open MPI", 2},
        {{"PMI_RANK=1", "PMI_SIZE=2"}, "PMI", 2},
        {{"PMI_RANK=1", "PMI_SIZE=two"}, "PMI", 1},
        {{"PMIX_RANK=1"}, "PMIx", 1},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=2"}, "Slurm", 1}, /* a batch script */
        {{"SLURM_PROCID=0", "SLURM_NTASKS=9", "SLURM_STEP_NUM_TASKS=2"}, "Slurm", 2},
    };
    int size = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        environment = cases[i].variables;
        assert_string_equal(horon_identity_launched(find, &size), cases[i].name);
        assert_int_equal(size, cases[i].size);
    }
    environment = (const char *[]){NULL};
    assert_null(horon_identity_launched(find, &size));
    assert_int_equal(size, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity_launchers_are_recognised),
        cmocka_unit_test(test_identity_half_or_absurd_is_named),
        cmocka_unit_test(test_identity_space_of_the_launcher_is_noted),
        cmocka_unit_test(test_identity_server_of_horovod_is_told_with_its_port),
        cmocka_unit_test(test_identity_caller_goes_before_environment),
        cmocka_unit_test(test_identity_half_a_caller_is_refused),
        cmocka_unit_test(test_identity_jobs_of_slurm_differ),
        cmocka_unit_test(test_identity_way_of_srun_is_noted),
        cmocka_unit_test(test_identity_size_of_the_launch_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
