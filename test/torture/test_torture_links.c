/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links, muxes and runs when memory ends: the nth allocation fails, for every n. Then a call says
 * so or a mux is dead with a text; nothing leaks, nothing is used after it was freed (run it under
 * the address sanitizer). And once warm, they allocate nothing.
 */
#include "../collectives/worlds.h"

#include "alloc_failing.h"
#include "exec/netrun.h"

#include <stdlib.h>
#include <string.h>

enum { RING_BYTES = 1024, ELEMENTS = 700, CONTROL_BYTES = 400 };

struct side {
    struct horon_mux *mux[2]; /* by rank; NULL at its own */
    struct horon_netrun run;
    int32_t work[ELEMENTS], scratch[2 * ELEMENTS];
    horon_status_t status;
};

struct duo {
    struct horon_ring *ring[2];
    struct side side[2];
    bool failed; /* something said that memory ended */
    int heard;
    uint64_t sequence;
    horon_status_t (*hears)(void *arg, int peer, const void *bytes, size_t byte_count,
                            struct horon_error *error); /* instead of hear(); or NULL */
};

static horon_status_t hear(void *arg, int peer, const void *bytes, size_t byte_count,
                           struct horon_error *error)
{
    (void)peer;
    (void)bytes;
    (void)error;
    assert_int_equal(byte_count, CONTROL_BYTES);
    ((struct duo *)arg)->heard++;
    return HORON_OK;
}

static void said(struct duo *duo, horon_status_t status)
{
    assert_true(status == HORON_OK || status == HORON_IN_PROGRESS || status == HORON_ERR_MEMORY);
    duo->failed = duo->failed || status == HORON_ERR_MEMORY;
}

static bool duo_open(struct duo *duo)
{
    const struct horon_mux_options options = {.eager_bytes = 300,
                                              .eager_total_bytes = 900,
                                              .control_bytes_max = CONTROL_BYTES,
                                              .peer_name = "the other",
                                              .on_control = duo->hears ? duo->hears : hear,
                                              .arg = duo};
    for (int i = 0; i < 2; i++) {
        duo->ring[i] = aligned_alloc(64, (horon_ring_bytes(RING_BYTES) + 63) & ~63ul);
        memset(duo->ring[i], 0, horon_ring_bytes(RING_BYTES));
    }
    for (int i = 0; i < 2; i++) {
        struct horon_link *link = NULL;
        horon_status_t status =
            horon_link_ring_create(duo->ring[i], duo->ring[!i], RING_BYTES, NULL, &link);
        said(duo, status);
        if (status)
            return false;
        status = horon_mux_create(link, &options, &duo->side[i].mux[!i]);
        said(duo, status);
        if (status) {
            link->ops->destroy(link); /* it was not taken */
            return false;
        }
    }
    return true;
}

static void duo_close(struct duo *duo)
{
    for (int i = 0; i < 2; i++)
        horon_mux_destroy(duo->side[i].mux[!i]);
    for (int i = 0; i < 2; i++) {
        horon_netrun_deinit(&duo->side[i].run);
        free(duo->ring[i]);
    }
}

static void progress(struct duo *duo)
{
    for (int i = 0; i < 2; i++) {
        bool moved = false;
        struct horon_error error = {0};
        horon_status_t status = horon_mux_progress(duo->side[i].mux[!i], &moved, &error);
        if (status == HORON_ERR_MEMORY)
            assert_non_null(strstr(error.text, "memory"));
        said(duo, status);
    }
}

/* An allreduce of the two with a control message on the way; side 1 comes late. */
static void one_run(struct duo *duo, enum horon_plan_kind kind, uint64_t count, bool forgets)
{
    static const int ranks[] = {0, 1};
    static const char *const names[] = {"rank 0", "rank 1"};
    static const uint8_t message[CONTROL_BYTES];
    duo->sequence++;
    for (int i = 0; i < 2 && !duo->failed; i++) {
        struct side *side = &duo->side[i];
        const struct horon_netrun_args args = {
            .plan = {.kind = kind, .rank = i, .size = 2, .count = count},
            .ranks = ranks,
            .mux_of = side->mux,
            .rank_names = names,
            .dtype = HORON_INT32,
            .op = HORON_SUM,
            .work = side->work,
            .scratch = side->scratch,
            .sequence = duo->sequence,
        };
        for (int32_t e = 0; e < ELEMENTS; e++)
            side->work[e] = e + i;
        side->status = horon_netrun_begin(&side->run, &args);
        said(duo, side->status);
        if (!side->status)
            said(duo, horon_mux_post_control(side->mux[!i], message, sizeof message));
    }
    duo->side[0].status = duo->side[1].status = HORON_IN_PROGRESS;
    for (int turn = 0; turn < 200 && !duo->failed; turn++) {
        for (int i = 0; i < 2; i++) {
            struct horon_error error = {0};
            if (i == 1 && turn < 5)
                continue;
            if (duo->side[i].status)
                duo->side[i].status = horon_netrun_advance(&duo->side[i].run, &error);
            said(duo, duo->side[i].status);
        }
        progress(duo);
        if (forgets && turn == 3)
            break;
    }
    for (int i = 0; i < 2; i++) {
        if (duo->failed || forgets)
            horon_mux_forget(duo->side[i].mux[!i], 0, duo->sequence);
        else
            assert_int_equal(duo->side[i].status, HORON_OK);
        for (int32_t e = 0; (uint64_t)e < count && !duo->failed && !forgets; e++)
            assert_int_equal(duo->side[i].work[e], 2 * e + 1);
    }
    for (int turn = 0; turn < 20; turn++)
        progress(duo);
}

static void everything(struct duo *duo)
{
    static const uint64_t counts[] = {1, 50, ELEMENTS};
    if (!duo_open(duo))
        return;
    for (int kind = HORON_PLAN_FLAT; kind <= HORON_PLAN_HALVING; kind++) {
        for (int c = 0; c < 3; c++)
            one_run(duo, (enum horon_plan_kind)kind, counts[c], false);
    }
    one_run(duo, HORON_PLAN_DIRECT, ELEMENTS, true);
    one_run(duo, HORON_PLAN_FLAT, ELEMENTS, true);
    one_run(duo, HORON_PLAN_FLAT, ELEMENTS, false);
}

static void torture(int for_good)
{
    long n = 0;
    for (bool failed = true; failed; n++) {
        struct duo *duo = calloc(1, sizeof *duo);
        const long before = alloc_live();
        alloc_fail_at(n + 1, for_good);
        everything(duo);
        /* the run ends well once n is beyond the last allocation; a message may have gone unheard
         */
        failed = alloc_count() > n;
        assert_true(!failed || duo->failed);
        assert_true(failed || !duo->failed);
        alloc_fail_at(0, 0);
        duo_close(duo);
        assert_int_equal(alloc_live(), before);
        free(duo);
    }
    assert_true(n > 8); /* it has allocated at all */
}

static void test_torture_links_each_allocation_fails_once(void **state)
{
    (void)state;
    torture(0);
}

static void test_torture_links_no_memory_from_each_allocation_on(void **state)
{
    (void)state;
    torture(1);
}

static horon_status_t forget_without_memory(void *arg, int peer, const void *bytes,
                                            size_t byte_count, struct horon_error *error)
{
    struct duo *duo = arg;
    (void)peer, (void)bytes, (void)byte_count, (void)error;
    alloc_fail_at(1, 1);
    horon_mux_forget(duo->side[1].mux[0], 0, 1); /* which notes it, and so needs memory */
    alloc_fail_at(0, 0);
    return HORON_OK;
}

/* What fails while a message is heard is not forgotten because the message itself was fine. */
static void test_torture_links_a_failure_inside_a_message_stays(void **state)
{
    (void)state;
    struct duo *duo = calloc(1, sizeof *duo);
    struct horon_error error = {0};
    bool moved = false;
    alloc_fail_at(0, 0);
    duo->hears = forget_without_memory;
    assert_true(duo_open(duo));
    assert_int_equal(horon_mux_post_control(duo->side[0].mux[1], "forget", 6), HORON_OK);
    assert_int_equal(horon_mux_progress(duo->side[0].mux[1], &moved, &error), HORON_OK);
    assert_int_equal(horon_mux_progress(duo->side[1].mux[0], &moved, &error), HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "no memory to end an operation"));
    duo_close(duo);
    free(duo);
}

static void test_torture_links_once_warm_they_allocate_nothing(void **state)
{
    (void)state;
    struct duo *duo = calloc(1, sizeof *duo);
    alloc_fail_at(0, 0);
    assert_true(duo_open(duo));
    for (int round = 0; round < 50; round++) {
        if (round == 3)
            alloc_fail_at(0, 0);
        for (int kind = HORON_PLAN_FLAT; kind <= HORON_PLAN_HALVING; kind++)
            one_run(duo, (enum horon_plan_kind)kind, ELEMENTS, false);
    }
    assert_false(duo->failed);
    assert_int_equal(alloc_count(), 0);
    assert_int_equal(duo->heard, 2 * 50 * (HORON_PLAN_HALVING + 1));
    duo_close(duo);
    free(duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_links_each_allocation_fails_once),
        cmocka_unit_test(test_torture_links_no_memory_from_each_allocation_on),
        cmocka_unit_test(test_torture_links_a_failure_inside_a_message_stays),
        cmocka_unit_test(test_torture_links_once_warm_they_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
