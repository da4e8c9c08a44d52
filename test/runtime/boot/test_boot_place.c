/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds whose place to meet is not what its ranks take it for: the text says what is the matter.
 */
#undef NDEBUG
#include "boots.h"

#include "../../own_network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_boot_rank_0_at_another_port_says_so(void **state)
{
    struct boots world;
    char text[64];
    int port;
    (void)state;
    const int stranger = take_master_port(&port);
    snprintf(text, sizeof text, ", as %d was taken: by another rank 0", port);
    boots_init(&world, 2, "STORE=");
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=200ms");
    world.ranks[1].absent = true;
    boots_join(&world);
    untake_master_port(stranger);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, text);
}

/* Its list of nodes says where, and the ranks may be on several: MPI's world would tell a key. */
static void test_boot_ranks_of_slurm_meet_without_key_or_mpi(void **state)
{
    char job[16]; /* no other's that runs here */
    snprintf(job, sizeof job, "%d", (int)getpid());
    const char *const of_slurm[][2] = {{"SLURM_PROCID", "0"},
                                       {"SLURM_NTASKS", "2"},
                                       {"SLURM_JOB_ID", job},
                                       {"SLURM_STEP_NODELIST", "localhost,b"}};
    struct boots world;
    (void)state;
    boots_init(&world, 1, "STORE=");
    boots_setting(&world, "START_TIMEOUT=100ms");
    world.ranks[0].rank = world.ranks[0].size = -1;
    boots_join_told(&world, of_slurm, sizeof of_slurm / sizeof of_slurm[0]);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, "of 2 ranks, rank 1 never came");
}

static struct {
    int listener, guest;
} ssh; /* which has the port of the test below */

static int answer_as_ssh(void *arg)
{
    (void)arg;
    if (ssh.guest >= 0)
        return 0;
    ssh.guest = accept4(ssh.listener, NULL, NULL, SOCK_CLOEXEC);
    if (ssh.guest >= 0)
        send(ssh.guest, "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL);
    return 0;
}

/* Of a TCPStore rank 0 is the server. It looks whether torch serves there already. */
static void test_boot_port_of_gloo_that_another_program_has_is_told(void **state)
{
    struct boots world;
    char setting[64], text[96];
    int port;
    (void)state;
    ssh.guest = -1;
    ssh.listener = take_master_port(&port);
    snprintf(setting, sizeof setting, "GLOO_STORE=tcp://127.0.0.1:%d", port);
    boots_init(&world, 2, setting);
    world.ranks[1].absent = true;
    world.interrupted = answer_as_ssh;
    boots_join(&world);
    untake_master_port(ssh.listener);
    assert_true(ssh.guest >= 0);
    close(ssh.guest);
    boots_expect_all_fail(&world, HORON_ERR_PROTO, " answers 'SSH-2.0-x..': it is not torch's");
    snprintf(text, sizeof text, "; this rank cannot serve a TCPStore at port %d of ", port);
    boots_expect_all_fail(&world, HORON_ERR_PROTO, text);
}

/* In a network of its own, where nothing is up. @return what the process ends with */
static int join_without_loopback(void)
{
    struct boots world;
    if (unshare(CLONE_NEWNET) != 0)
        return NO_OWN_NETWORK;
    boots_init(&world, 2, "STORE=tcp://127.0.0.1:29511");
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=200ms");
    world.ranks[0].absent = true;
    boots_join(&world);
    return strstr(world.ranks[1].error.text, "loopback interface is down") ? 0 : 1;
}

static void test_boot_loopback_that_is_down_is_told(void **state)
{
    (void)state;
    run_apart(join_without_loopback);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_rank_0_at_another_port_says_so),
        cmocka_unit_test(test_boot_ranks_of_slurm_meet_without_key_or_mpi),
        cmocka_unit_test(test_boot_port_of_gloo_that_another_program_has_is_told),
        cmocka_unit_test(test_boot_loopback_that_is_down_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
