/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a plan's sends go out: with their stage, before any turn of a link, and in the order of the
 * plan; unless they are long. The links note what they take, and nobody is at their other ends.
 */
#include "../mesh.h"

#include "exec/netrun.h"
#include "link/mux.h"

#include <string.h>

enum { RANKS = 4, EAGER = 100 };

struct notes {
    int to[8], count;
};

struct noting {
    struct horon_link base;
    struct notes *notes;
    int peer;
};

static horon_status_t note(struct horon_link *link, const struct iovec *vector, int count,
                           size_t *sent_bytes_out, struct horon_error *error)
{
    const struct noting *noting = (const struct noting *)link;
    (void)error;
    assert_true(noting->notes->count < 8);
    noting->notes->to[noting->notes->count++] = noting->peer;
    *sent_bytes_out = horon_link_vector_bytes(vector, count);
    return HORON_OK;
}

static horon_status_t get_nothing(struct horon_link *link, const struct iovec *vector, int count,
                                  size_t *got_bytes_out, struct horon_error *error)
{
    (void)link, (void)vector, (void)count, (void)got_bytes_out, (void)error;
    return HORON_AGAIN;
}

static void leave(struct horon_link *link)
{
    (void)link;
}

static const struct horon_link_ops noting_ops = {
    .name = "noting",
    .send = note,
    .recv = get_nothing,
    .descriptor = horon_link_no_descriptor,
    .interest = horon_link_plain_interest,
    .ready = horon_link_always_ready,
    .found = horon_link_finds_nothing,
    .undelivered = horon_link_nothing_undelivered,
    .check = horon_link_always_answers,
    .destroy = leave,
};

/* One advance of a broadcast's root. @return its status */
static horon_status_t advance_root(uint64_t bytes, struct notes *notes)
{
    static const char *const names[RANKS] = {"rank 0", "rank 1", "rank 2", "rank 3"};
    static const int ranks[RANKS] = {0, 1, 2, 3};
    static uint8_t work[EAGER + 1];
    const struct horon_mux_options options = {.eager_bytes = EAGER,
                                              .eager_total_bytes = 10 * EAGER,
                                              .control_bytes_max = 100,
                                              .peer_name = "a peer"};
    struct noting links[RANKS];
    struct horon_mux *muxes[RANKS] = {NULL};
    struct horon_netrun run = {0};
    struct horon_error error = {0};
    *notes = (struct notes){.count = 0};
    for (int peer = 1; peer < RANKS; peer++) {
        links[peer] = (struct noting){{.ops = &noting_ops}, notes, peer};
        assert_int_equal(horon_mux_create(&links[peer].base, &options, &muxes[peer]), HORON_OK);
    }
    const struct horon_netrun_args args = {
        .plan = {.kind = HORON_PLAN_BROADCAST, .rank = 0, .size = RANKS, .count = bytes},
        .ranks = ranks,
        .mux_of = muxes,
        .rank_names = names,
        .dtype = HORON_UINT8,
        .op = HORON_SUM,
        .work = work,
    };
    assert_int_equal(horon_netrun_begin(&run, &args), HORON_OK);
    const horon_status_t status = horon_netrun_advance(&run, &error);
    horon_netrun_deinit(&run);
    for (int peer = 1; peer < RANKS; peer++)
        horon_mux_destroy(muxes[peer]);
    return status;
}

/* Rank 1 has rank 3 to send to, and rank 2 nobody. */
static void test_netrun_order_of_a_broadcast_begins_with_the_largest_part(void **state)
{
    (void)state;
    struct notes notes;
    assert_int_equal(advance_root(8, &notes), HORON_OK);
    assert_int_equal(notes.count, 2);
    assert_int_equal(notes.to[0], 1);
    assert_int_equal(notes.to[1], 2);
}

static void test_netrun_order_leaves_what_is_long_to_turns(void **state)
{
    (void)state;
    struct notes notes;
    assert_int_equal(advance_root(EAGER + 1, &notes), HORON_IN_PROGRESS);
    assert_int_equal(notes.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_netrun_order_of_a_broadcast_begins_with_the_largest_part),
        cmocka_unit_test(test_netrun_order_leaves_what_is_long_to_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
