/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings that are put off: a reader that sleeps is rung once, at the end of the step that wrote, and
 * not before; outside of such a step at once.
 */
#include "exec/owed_ring.h"

#include "../worlds.h"

#include <stdlib.h>
#include <string.h>

struct scene {
    struct horon_host host; /* of local rank 0 */
    uint8_t *control;
    int rung[3];
};

static void count_rings(void *arg, int process)
{
    ((struct scene *)arg)->rung[process]++;
}

/* @param rank  sleeps, with an operation in flight */
static void fall_asleep(const struct scene *scene, int rank)
{
    struct horon_rank_line *line = horon_host_line(&scene->host, rank);
    atomic_store(&line->wake, HORON_WAKE_ASLEEP | HORON_WAKE_CONTROL);
    atomic_store(&line->wants, HORON_WAKE_CONTROL);
}

static void scene_begin(struct scene *scene)
{
    memset(scene, 0, sizeof *scene);
    scene->host.shape =
        (struct horon_host_shape){.local_size = 3, .small_bytes = 64, .chunk_bytes = 64};
    const size_t bytes = (horon_host_control_bytes(&scene->host.shape) + 4095) / 4096 * 4096;
    scene->control = aligned_alloc(4096, bytes);
    assert_non_null(scene->control);
    memset(scene->control, 0, bytes);
    horon_host_see_control(&scene->host, scene->control, 0);
    scene->host.doorbell = count_rings;
    scene->host.doorbell_arg = scene;
    for (int rank = 1; rank < 3; rank++)
        fall_asleep(scene, rank);
}

static void check_rung(const struct scene *scene, int first, int second)
{
    assert_int_equal(scene->rung[0], 0);
    assert_int_equal(scene->rung[1], first);
    assert_int_equal(scene->rung[2], second);
}

static void test_owed_ring_reader_is_rung_at_once_outside_a_step(void **state)
{
    (void)state;
    struct scene scene;
    scene_begin(&scene);
    horon_host_wake_reader(&scene.host, 2);
    check_rung(&scene, 0, 1);
    horon_host_pay_wake(&scene.host);
    check_rung(&scene, 0, 1);
    free(scene.control);
}

static void test_owed_ring_reader_is_rung_once_at_the_end_of_a_step(void **state)
{
    (void)state;
    struct scene scene;
    scene_begin(&scene);
    for (int reader = 1; reader < 3; reader++) {
        horon_host_put_off_wake(&scene.host);
        horon_host_wake_reader(&scene.host, reader);
        horon_host_wake_reader(&scene.host, reader);
        check_rung(&scene, reader - 1, 0);
        horon_host_pay_wake(&scene.host);
        check_rung(&scene, 1, reader - 1);
    }
    fall_asleep(&scene, 1);
    horon_host_wake_reader(&scene.host, 1); /* the step is over */
    check_rung(&scene, 2, 1);
    free(scene.control);
}

static void test_owed_ring_step_that_writes_nothing_rings_nobody(void **state)
{
    (void)state;
    struct scene scene;
    scene_begin(&scene);
    horon_host_put_off_wake(&scene.host);
    horon_host_pay_wake(&scene.host);
    check_rung(&scene, 0, 0);
    free(scene.control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owed_ring_reader_is_rung_at_once_outside_a_step),
        cmocka_unit_test(test_owed_ring_reader_is_rung_once_at_the_end_of_a_step),
        cmocka_unit_test(test_owed_ring_step_that_writes_nothing_rings_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
