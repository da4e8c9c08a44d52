/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever befalls a transfer in an order that the table allows, its bits make sense. */
#undef NDEBUG
#include "link/mux_moves.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { STATES = 1024 };

static uint32_t after(uint32_t state, enum horon_mux_move move)
{
    struct horon_transfer transfer = {.state = state};
    horon_mux_move_transfer(&transfer, move);
    return transfer.state;
}

/* Marks what can be reached from @p state. */
static void reach(bool *reached, uint32_t state)
{
    assert_true(state < STATES);
    if (reached[state])
        return;
    reached[state] = true;
    for (int move = 0; move < HORON_MUX_MOVE_COUNT; move++)
        if (horon_mux_may_move(state, (enum horon_mux_move)move))
            reach(reached, after(state, (enum horon_mux_move)move));
}

static void expect_not_both(uint32_t state, uint32_t one, uint32_t other)
{
    assert_false((state & one) && (state & other));
}

static void test_mux_moves_lead_to_states_that_make_sense(void **state_out)
{
    const uint32_t wants = HORON_MUX_SEND_WANT_DUE | HORON_MUX_SEND_WANTED;
    bool reached[STATES] = {false};
    (void)state_out;
    reach(reached, 0);
    for (uint32_t state = 0; state < STATES; state++) {
        if (!reached[state])
            continue;
        expect_not_both(state, HORON_MUX_OF_RECV, ~HORON_MUX_OF_RECV);
        expect_not_both(state, HORON_MUX_CREDIT_DUE, HORON_MUX_RECV_CREDITED);
        expect_not_both(state, HORON_MUX_RECV_FETCHES, ~HORON_MUX_RECV_FETCHES);
        expect_not_both(state, HORON_MUX_TAKEN_DUE, ~HORON_MUX_TAKEN_DUE);
        expect_not_both(state, HORON_MUX_SEND_WANT_DUE, HORON_MUX_SEND_WANTED);
        expect_not_both(state, HORON_MUX_SEND_WAITS, HORON_MUX_SEND_CREDITED);
        expect_not_both(state, HORON_MUX_SEND_EAGER, wants);
    }
    assert_true(reached[HORON_MUX_RECV_CREDITED]);
    assert_true(reached[HORON_MUX_TAKEN_DUE]);
    assert_true(reached[HORON_MUX_SEND_EAGER]);
    assert_true(reached[HORON_MUX_SEND_EAGER | HORON_MUX_SEND_CREDITED]);
    assert_true(reached[HORON_MUX_SEND_WANTED | HORON_MUX_SEND_CREDITED]);
}

/* Each happens once, and nothing happens to what is credited and gone but to be done. */
static void test_mux_moves_happen_once(void **state_out)
{
    (void)state_out;
    for (int i = 0; i < HORON_MUX_MOVE_COUNT; i++) {
        const enum horon_mux_move move = (enum horon_mux_move)i;
        for (uint32_t state = 0; state < STATES; state++)
            if (horon_mux_may_move(state, move))
                assert_false(horon_mux_may_move(after(state, move), move));
        assert_false(horon_mux_may_move(HORON_MUX_RECV_CREDITED, move));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_moves_lead_to_states_that_make_sense),
        cmocka_unit_test(test_mux_moves_happen_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
