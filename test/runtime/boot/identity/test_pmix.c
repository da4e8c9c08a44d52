/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked of a PMIx library, and how ranks meet by it. A fake answers under the true one's
 * name; real jobs are in test/tools.
 */
#undef NDEBUG
#include "boot/gloo/job.h"
#include "boot/identity/meeting.h"
#include "clock.h"
#include "environments.h"
#include "fake_pmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define INVITATION "1,-,127.0.0.1:5" /* rank 0 has a key */

enum { RANKS = 2 };

struct asker {
    struct horon_space space;
    struct horon_error error;
};

static void open_asker(struct asker *asker, int rank, int64_t limit_ms)
{
    *asker =
        (struct asker){.space = {.calls = &horon_space_pmix,
                                 .rank = rank,
                                 .deadline_ns = horon_clock_deadline(horon_clock_ns(), limit_ms)}};
}

static horon_status_t hold(struct asker *asker, int rank, const char *port_range, int64_t limit_ms)
{
    struct horon_config config = {0};
    struct horon_identity id = {.rank = rank, .size = RANKS, .local_size = RANKS};
    char key[HORON_KEY_TEXT_BYTES] = "given";
    open_asker(asker, rank, limit_ms);
    snprintf(config.port_range, sizeof config.port_range, "%s", port_range);
    return horon_meeting_hold(&id, &config, &asker->space, key, &asker->error);
}

static void test_pmix_out_of_reach_says_what_to_set(void **state)
{
    struct asker asker;
    (void)state;
    fake_pmix = (struct fake_pmix){.init_code = PMIX_ERR_UNREACH};
    open_asker(&asker, 1, 10000);
    assert_int_equal(horon_space_pmix.open(&asker.space, &asker.error), HORON_ERR_CONFIG);
    assert_non_null(strstr(asker.error.text, "(UNREACHABLE): set MASTER_ADDR"));
    assert_string_equal(asker.space.name, ""); /* so other ways are tried */
    assert_int_equal(fake_pmix.users, 0);
}

/* Of a call that waits no more. */
static void __attribute__((noinline)) overwrite_stack(void)
{
    volatile char bytes[65536];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = 'x';
}

static void test_pmix_that_answers_late_can_read_what_it_was_asked(void **state)
{
    struct asker asker;
    char key[] = "mark", value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    fake_pmix = (struct fake_pmix){.rank = 1, .silent = 1};
    open_asker(&asker, 1, 0);
    assert_int_equal(horon_space_pmix.open(&asker.space, &asker.error), HORON_OK);
    assert_int_equal(horon_space_pmix.get(&asker.space, 1, key, value, &asker.error),
                     HORON_ERR_TIMEOUT);
    memset(key, 'x', strlen(key));
    overwrite_stack();
    assert_string_equal(fake_pmix.proc->nspace, "space");
    assert_int_equal(fake_pmix.proc->rank, 1);
    assert_string_equal(fake_pmix.key, "mark");
    assert_string_equal(fake_pmix.info->key, "pmix.optional");
    fake_pmix.got(PMIX_NOT_FOUND, NULL, fake_pmix.arg);
    horon_space_pmix.close(&asker.space);
    assert_int_equal(fake_pmix.users, 0);
}

/* It has left its mark, and rank 0 nothing: a time limit has passed. */
static void test_pmix_rank_that_meets_again_waits_for_rank_0(void **state)
{
    struct asker asker;
    (void)state;
    fake_pmix = (struct fake_pmix){.rank = 1, .invitation = INVITATION};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hold(&asker, 1, "", 60), HORON_ERR_TIMEOUT);
        assert_non_null(strstr(asker.error.text, "not all of the 2 processes"));
    }
    fake_pmix.comes = fake_pmix.asked + 3;
    assert_int_equal(hold(&asker, 1, "", 10000), HORON_OK);
    assert_int_equal(fake_pmix.asked, fake_pmix.comes);
    assert_int_equal(hold(&asker, 1, "", 10000), HORON_OK);
    assert_int_equal(fake_pmix.asked, fake_pmix.comes); /* nobody is waited for */
    assert_int_equal(fake_pmix.puts, 1);
    assert_int_equal(fake_pmix.users, 1); /* until this process exits */
}

static void exit_with_users(void)
{
    _exit(fake_pmix.users);
}

/* In a process that catches errors, and ends well. */
static void expect_ended(horon_status_t status, const char *port_range, int64_t limit_ms)
{
    int ended = 0;
    struct asker asker;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        atexit(exit_with_users); /* behind all others */
        const horon_status_t first = hold(&asker, 0, port_range, limit_ms);
        const horon_status_t again = hold(&asker, 0, port_range, limit_ms);
        if (first != status || again != status || fake_pmix.users == 0)
            _exit(100);
        exit(0);
    }
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
}

static void test_pmix_is_ended_where_a_meeting_failed(void **state)
{
    (void)state;
    fake_pmix = (struct fake_pmix){.rank = 0};
    expect_ended(HORON_ERR_CONFIG, "no range", 10000);
    fake_pmix = (struct fake_pmix){.rank = 0, .silent = 2};
    expect_ended(HORON_ERR_TIMEOUT, "", 0);
    fake_pmix = (struct fake_pmix){.rank = 1}; /* the variables say 0 */
    expect_ended(HORON_ERR_CONFIG, "", 10000);
}

#define PRTERUN "PMIX_RANK=1", "PMIX_NAMESPACE=n", "PRTE_LAUNCHED=1"

/* Only where it is all that lacks: a size that was told goes behind every variable. */
static void test_pmix_is_asked_for_a_size_that_no_variable_says(void **state)
{
    const struct {
        const char *variables[7];
        bool lacks;
        int size; /* if 5 was told; 0: it is no identity */
    } cases[] = {
        {{"PMIX_RANK=1", "PMIX_NAMESPACE=n"}, true, 5},
        {{"PMIX_RANK=1", "PMIX_NAMESPACE=n", "PMIX_SIZE=3"}, false, 3},
        {{"PMIX_RANK=9", "PMIX_NAMESPACE=n"}, true, 0},
        {{"PMIX_RANK=x", "PMIX_NAMESPACE=n"}, false, 0},
        {{"PMIX_RANK=1"}, false, 5},
        {{"PMIX_NAMESPACE=n"}, false, 1},
        {{"PMIX_RANK=1", "PMIX_NAMESPACE=n", "RANK=0", "WORLD_SIZE=2"}, false, 2},
        {{"OMPI_COMM_WORLD_RANK=0", "PMIX_NAMESPACE=n", "PMIX_RANK=1"}, false, 0},
        /* in a batch script of Slurm's, whose variables are of one process; and srun's own */
        {{PRTERUN, "SLURM_PROCID=0", "SLURM_NTASKS=4"}, true, 5},
        {{PRTERUN, "SLURM_PROCID=0", "SLURM_NTASKS=4", "PMIX_SIZE=3"}, false, 3},
        {{"PMIX_RANK=1", "PMIX_NAMESPACE=n", "SLURM_PROCID=1", "SLURM_NTASKS=4"}, false, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horon_identity identity;
        struct horon_error error = {0};
        int rank = -1;
        print_message("case %zu\n", i);
        environment = cases[i].variables;
        assert_int_equal(horon_identity_lacks_size(find, &rank), cases[i].lacks);
        const horon_status_t status =
            horon_identity_find(&identity, -1, -1, "file:/x", 5, find, &error);
        assert_int_equal(status, cases[i].size ? HORON_OK : HORON_ERR_CONFIG);
        if (cases[i].size)
            assert_int_equal(identity.size, cases[i].size);
    }
}

static horon_status_t find_place(struct horon_identity *id, int64_t limit_ms,
                                 struct horon_error *error)
{
    static const char *const variables[] = {"PMIX_RANK=1", "PMIX_NAMESPACE=space", NULL};
    *error = (struct horon_error){0};
    environment = variables;
    return horon_identity_ask(id, -1, -1, "file:/x", limit_ms, find, error);
}

/* As under prterun: by PMIx alone, as often as the process joins. */
static void test_pmix_tells_the_size_that_no_variable_does(void **state)
{
    struct horon_identity id;
    struct horon_error error;
    (void)state;
    fake_pmix = (struct fake_pmix){.rank = 1, .size = 3};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(find_place(&id, 10000, &error), HORON_OK);
        assert_int_equal(id.rank, 1);
        assert_int_equal(id.size, 3);
        assert_string_equal(id.origin, "rank 1 from PMIX_RANK, 3 ranks from PMIx");
        assert_int_equal(fake_pmix.users, 1); /* until this process exits */
    }
    assert_int_equal(fake_pmix.asked, 0); /* each knows it from its begin on */
}

static void test_pmix_that_does_not_tell_the_size_says_what_to_set(void **state)
{
    static const struct {
        struct fake_pmix fake;
        horon_status_t status;
        const char *why;
        int users;
    } cases[] = {
        {{.init_code = PMIX_ERR_UNREACH}, HORON_ERR_CONFIG, "out of reach (UNREACHABLE): ", 0},
        {{.rank = 1}, HORON_ERR_PROTO, "gives nothing as pmix.job.size: ", 1},
        {{.rank = 1, .size = 100000}, HORON_ERR_PROTO, "gives 100000 as pmix.job.size: ", 1},
        {{.rank = 2, .size = 3}, HORON_ERR_CONFIG, "as rank 2, and its variables as rank 1: ", 1},
    };
    struct horon_identity id;
    struct horon_error error;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_pmix = cases[i].fake;
        assert_int_equal(find_place(&id, 10000, &error), cases[i].status);
        const char *why = strstr(error.text, cases[i].why);
        assert_non_null(why);
        assert_non_null(strstr(why, ": give PMIX_SIZE to all ranks, as prterun does with -x"));
        assert_int_equal(fake_pmix.users, cases[i].users);
    }
}

/* The last question, which the library has kept. */
static void give_up_question(void)
{
    fake_pmix.got(PMIX_NOT_FOUND, NULL, fake_pmix.arg);
}

static void test_pmix_that_withholds_the_size_says_what_to_set(void **state)
{
    struct horon_identity id;
    struct horon_error error;
    (void)state;
    fake_pmix = (struct fake_pmix){.rank = 1, .withheld = "pmix.job.size"};
    assert_int_equal(find_place(&id, 0, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "the launcher does not answer (PMIx)"));
    assert_non_null(strstr(error.text, ": give PMIX_SIZE to all ranks, as prterun does with -x"));
    give_up_question();
}

/* Among Gloo's ranks, too, where it is asked before the rank joins a job. */
static void test_pmix_that_withholds_the_size_from_gloos_ranks_names_the_limit(void **state)
{
    struct horon_boot boot;
    const struct horon_config config = {.gloo_store = "file:/x"};
    const struct horon_boot_caller caller = {0};
    struct horon_log log = {0};
    struct horon_error error = {0};
    (void)state;
    fake_pmix = (struct fake_pmix){.rank = 1, .withheld = "pmix.job.size"};
    clearenv();
    setenv("PMIX_RANK", "1", 1);
    setenv("PMIX_NAMESPACE", "space", 1);
    assert_int_equal(horon_gloo_boot(&boot, -1, -1, &config, &caller, &log, &error),
                     HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "; HORON_START_TIMEOUT is how long joining may take"));
    give_up_question();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pmix_out_of_reach_says_what_to_set),
        cmocka_unit_test(test_pmix_that_answers_late_can_read_what_it_was_asked),
        cmocka_unit_test(test_pmix_rank_that_meets_again_waits_for_rank_0),
        cmocka_unit_test(test_pmix_is_asked_for_a_size_that_no_variable_says),
        cmocka_unit_test(test_pmix_tells_the_size_that_no_variable_does),
        cmocka_unit_test(test_pmix_that_does_not_tell_the_size_says_what_to_set),
        cmocka_unit_test(test_pmix_that_withholds_the_size_says_what_to_set),
        cmocka_unit_test(test_pmix_that_withholds_the_size_from_gloos_ranks_names_the_limit),
        cmocka_unit_test(test_pmix_is_ended_where_a_meeting_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
