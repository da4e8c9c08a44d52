/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wake word between a rank that rings and one that wakes and sleeps anew meanwhile; and the
 * reason to stop, of a rank that loses its core in the midst of writing it. These moments are made:
 * some memory cannot be changed, or read, and that fault gives the other rank its turn. How rings
 * are put off: test_owed_ring.c.
 */
#include "exec/host.h"

#include "../worlds.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BOTH (HORON_WAKE_ASLEEP | HORON_WAKE_CONTROL)

struct scene {
    struct horon_host ringer, sleeper; /* local ranks 0 and 1 */
    uint8_t *control;
    size_t bytes;
    struct horon_error *why; /* the first rank's, and what is heard in the midst of it */
    struct horon_error heard[2];
    bool hears[2]; /* rank 1, and then rank 0 */
    int rings, turns;
    uint32_t anew; /* what the sleeper is to be rung for when it sleeps anew */
};

static struct scene scene; /* a signal handler knows no other */

static void count_rings(void *arg, int process)
{
    (void)arg;
    scene.rings += process == 1;
}

static void on_change(int signal)
{
    (void)signal;
    if (mprotect(scene.control, scene.bytes, PROT_READ | PROT_WRITE) != 0 || scene.turns++ > 0)
        _exit(1); /* it would fault for ever */
    horon_host_awake(&scene.sleeper);
    horon_host_sleep(&scene.sleeper, scene.anew);
}

static uint32_t word(void)
{
    return atomic_load(&horon_host_line(&scene.sleeper, 1)->wake);
}

static void begin_scene(void)
{
    scene = (struct scene){0};
    scene.ringer.shape =
        (struct horon_host_shape){.local_size = 2, .small_bytes = 64, .chunk_bytes = 64};
    scene.ringer.doorbell = count_rings;
    scene.sleeper = scene.ringer;
    scene.bytes = horon_host_control_bytes(&scene.ringer.shape);
    scene.control =
        mmap(NULL, scene.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(scene.control, MAP_FAILED);
    horon_host_see_control(&scene.ringer, scene.control, 0);
    horon_host_see_control(&scene.sleeper, scene.control, 1);
}

/* The ringer finds the rank asleep, waiting for messages; before it takes the word, the rank has
 * looked, and sleeps anew. */
static void ring_beside_sleeper(uint32_t anew)
{
    const struct sigaction act = {.sa_handler = on_change};
    struct sigaction before;
    begin_scene();
    scene.anew = anew;
    horon_host_sleep(&scene.sleeper, BOTH);
    assert_int_equal(sigaction(SIGSEGV, &act, &before), 0);
    assert_int_equal(mprotect(scene.control, scene.bytes, PROT_READ), 0);
    horon_host_wake(&scene.ringer, 1, HORON_WAKE_CONTROL);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(scene.turns, 1);
}

static void test_host_sleeper_that_is_not_rung_keeps_its_word(void **state)
{
    (void)state;
    ring_beside_sleeper(HORON_WAKE_ASLEEP);
    assert_int_equal(scene.rings, 0);
    assert_int_equal(word(), HORON_WAKE_ASLEEP); /* 0: this rank's own posts would ring nobody */
    munmap(scene.control, scene.bytes);
}

static void test_host_sleeper_that_waits_anew_is_rung(void **state)
{
    (void)state;
    ring_beside_sleeper(BOTH);
    assert_int_equal(scene.rings, 1);
    assert_int_equal(word(), 0);
    munmap(scene.control, scene.bytes);
}

static void on_read(int signal)
{
    struct horon_error other;
    (void)signal;
    if (mprotect(scene.why, sizeof *scene.why, PROT_READ | PROT_WRITE) != 0 || scene.turns++ > 0)
        _exit(1);
    horon_error_set(&other, HORON_ERR_PEER_LOST, "rank 1 is exiting");
    horon_host_post_abort(&scene.sleeper, &other);
    scene.hears[0] = horon_host_aborted(&scene.sleeper, 2, &scene.heard[0]);
    scene.hears[1] = horon_host_aborted(&scene.ringer, 2, &scene.heard[1]);
}

/* Once a rank has said why it stops its process may end, and where no reason is to be found then,
 * the others say that it ended without leaving: a rank that has only begun to say something must
 * not be in the way. */
static void test_host_reason_is_there_although_another_rank_writes_one(void **state)
{
    const struct sigaction act = {.sa_handler = on_read};
    struct sigaction before;
    (void)state;
    begin_scene();
    scene.why =
        mmap(NULL, sizeof *scene.why, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(scene.why, MAP_FAILED);
    horon_error_set(scene.why, HORON_ERR_SYSTEM, "the reason of rank 0");
    assert_int_equal(sigaction(SIGSEGV, &act, &before), 0);
    assert_int_equal(mprotect(scene.why, sizeof *scene.why, PROT_NONE), 0);
    horon_host_post_abort(&scene.ringer, scene.why);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(scene.turns, 1);
    for (int i = 0; i < 2; i++) {
        assert_true(scene.hears[i]);
        assert_int_equal(scene.heard[i].status, HORON_ERR_PEER_LOST);
        assert_string_equal(scene.heard[i].text, "rank 1 is exiting");
    }
    assert_true(horon_host_aborted(&scene.ringer, 2, &scene.heard[0])); /* that is still the one */
    assert_string_equal(scene.heard[0].text, "rank 1 is exiting");
    munmap(scene.why, sizeof *scene.why);
    munmap(scene.control, scene.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_sleeper_that_is_not_rung_keeps_its_word),
        cmocka_unit_test(test_host_sleeper_that_waits_anew_is_rung),
        cmocka_unit_test(test_host_reason_is_there_although_another_rank_writes_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
