/* SPDX-License-Identifier: Apache-2.0 */
/* What the buffers hold: a right result is right for every type, and every wrong element is
 * counted. */
#undef NDEBUG
#include "names.h"
#include "values.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 3

static void test_values_written_pattern_is_found_right(void **state)
{
    (void)state;
    static const uint64_t counts[] = {0, 1, 4091, PERF_TILE, PERF_TILE + 1, 3 * PERF_TILE + 7};
    for (int type = 0; type < HORON_DTYPE_COUNT; type++) {
        const size_t one = perf_dtype_bytes((horon_dtype_t)type);
        struct perf_tile tile;
        assert_int_equal(perf_tile_input(&tile, (horon_dtype_t)type, HORON_SUM, 1), 0);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            unsigned char *const data = malloc(counts[i] * one + 1);
            assert_non_null(data);
            data[counts[i] * one] = 0x77;
            perf_tile_write(&tile, 5 * i, data, counts[i]);
            assert_int_equal(perf_tile_wrong(&tile, 5 * i, data, counts[i]), 0);
            assert_int_equal(data[counts[i] * one], 0x77); /* nothing behind the end */
            free(data);
        }
        perf_tile_deinit(&tile);
    }
}

static void test_values_wrong_elements_are_counted(void **state)
{
    (void)state;
    enum { COUNT = PERF_TILE + 100 };
    struct perf_tile tile;
    float *const data = malloc(COUNT * sizeof *data);
    assert_non_null(data);
    assert_int_equal(perf_tile_input(&tile, HORON_FLOAT32, HORON_SUM, 0), 0);
    perf_tile_write(&tile, 3, data, COUNT);
    data[0] += 1.0f;
    data[PERF_TILE] += 1.0f;
    data[COUNT - 1] = NAN;
    assert_int_equal(perf_tile_wrong(&tile, 3, data, COUNT), 3);
    perf_tile_write(&tile, 3, data, COUNT);
    assert_true(perf_tile_wrong(&tile, 4, data, COUNT) > COUNT / 2); /* the call before's */
    perf_tile_deinit(&tile);
    free(data);
}

static void test_values_ranks_give_different_patterns(void **state)
{
    (void)state;
    struct perf_tile tiles[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(perf_tile_input(&tiles[rank], HORON_INT32, HORON_SUM, rank), 0);
    }
    assert_true(perf_tile_wrong(&tiles[0], 0, tiles[1].bytes, PERF_TILE) == PERF_TILE);
    assert_true(perf_tile_wrong(&tiles[1], 0, tiles[2].bytes, PERF_TILE) == PERF_TILE);
    for (int rank = 0; rank < RANKS; rank++) {
        perf_tile_deinit(&tiles[rank]);
    }
}

/* Reduces the ranks' patterns here, in the plainest way, and compares. */
static void check_float(horon_redop_t redop)
{
    struct perf_tile inputs[RANKS];
    struct perf_tile want;
    float *const got = malloc(PERF_TILE * sizeof *got);
    assert_non_null(got);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(perf_tile_input(&inputs[rank], HORON_FLOAT32, redop, rank), 0);
    }
    for (size_t i = 0; i < PERF_TILE; i++) {
        float value = ((const float *)(const void *)inputs[0].bytes)[i];
        for (int rank = 1; rank < RANKS; rank++) {
            const float other = ((const float *)(const void *)inputs[rank].bytes)[i];
            value = redop == HORON_MIN       ? fminf(value, other)
                    : redop == HORON_MAX     ? fmaxf(value, other)
                    : redop == HORON_PRODUCT ? value * other
                                             : value + other;
        }
        got[i] = redop == HORON_AVERAGE ? value / RANKS : value;
    }
    assert_int_equal(perf_tile_reduced(&want, HORON_FLOAT32, redop, RANKS), 0);
    assert_int_equal(perf_tile_wrong(&want, 0, got, PERF_TILE), 0);
    perf_tile_deinit(&want);
    for (int rank = 0; rank < RANKS; rank++) {
        perf_tile_deinit(&inputs[rank]);
    }
    free(got);
}

static void check_bits(horon_redop_t redop)
{
    struct perf_tile inputs[RANKS];
    struct perf_tile want;
    uint16_t got[PERF_TILE];
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(perf_tile_input(&inputs[rank], HORON_INT16, redop, rank), 0);
    }
    for (size_t i = 0; i < PERF_TILE; i++) {
        got[i] = ((const uint16_t *)(const void *)inputs[0].bytes)[i];
        for (int rank = 1; rank < RANKS; rank++) {
            const uint16_t other = ((const uint16_t *)(const void *)inputs[rank].bytes)[i];
            got[i] = (uint16_t)(redop == HORON_BIT_AND  ? got[i] & other
                                : redop == HORON_BIT_OR ? got[i] | other
                                                        : got[i] ^ other);
        }
    }
    assert_int_equal(perf_tile_reduced(&want, HORON_INT16, redop, RANKS), 0);
    assert_int_equal(perf_tile_wrong(&want, 0, got, PERF_TILE), 0);
    perf_tile_deinit(&want);
    for (int rank = 0; rank < RANKS; rank++) {
        perf_tile_deinit(&inputs[rank]);
    }
}

static void test_values_reduction_is_that_of_the_inputs(void **state)
{
    (void)state;
    for (int redop = 0; redop < HORON_REDOP_COUNT; redop++) {
        if (perf_dtype_has(HORON_FLOAT32, (horon_redop_t)redop)) {
            check_float((horon_redop_t)redop);
        } else {
            check_bits((horon_redop_t)redop);
        }
    }
}

static void test_values_bytes_wrap_as_horon_says(void **state)
{
    (void)state;
    struct perf_tile inputs[64];
    struct perf_tile want;
    assert_int_equal(perf_tile_reduced(&want, HORON_UINT8, HORON_SUM, 64), 0);
    uint8_t sums[PERF_TILE];
    memset(sums, 0, sizeof sums);
    for (int rank = 0; rank < 64; rank++) {
        assert_int_equal(perf_tile_input(&inputs[rank], HORON_UINT8, HORON_SUM, rank), 0);
        for (size_t i = 0; i < PERF_TILE; i++) {
            sums[i] = (uint8_t)(sums[i] + inputs[rank].bytes[i]);
        }
        perf_tile_deinit(&inputs[rank]);
    }
    assert_int_equal(perf_tile_wrong(&want, 0, sums, PERF_TILE), 0);
    perf_tile_deinit(&want);
}

static void test_values_half_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7c00; bits++) {
        assert_int_equal(perf_half_encode(perf_half_decode((uint16_t)bits)), bits);
        assert_int_equal(perf_half_encode(-perf_half_decode((uint16_t)bits)), bits | 0x8000);
    }
    assert_int_equal(perf_half_encode(1.0), 0x3c00);
    assert_int_equal(perf_half_encode(2049.0), 0x6800);  /* a tie goes to the even 2048 */
    assert_int_equal(perf_half_encode(2051.0), 0x6802);  /* and here up to 2052 */
    assert_int_equal(perf_half_encode(65520.0), 0x7c00); /* infinity */
    assert_int_equal(perf_half_encode((double)NAN), 0x7e00);
}

static void test_values_bfloat_rounds_to_even(void **state)
{
    (void)state;
    assert_int_equal(perf_bfloat_encode(1.0), 0x3f80);
    assert_int_equal(perf_bfloat_encode(256.0), 0x4380);
    assert_int_equal(perf_bfloat_encode(257.0), 0x4380); /* a tie */
    assert_int_equal(perf_bfloat_encode(259.0), 0x4382);
    assert_true(perf_bfloat_decode(0xc380) == -256.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_written_pattern_is_found_right),
        cmocka_unit_test(test_values_wrong_elements_are_counted),
        cmocka_unit_test(test_values_ranks_give_different_patterns),
        cmocka_unit_test(test_values_reduction_is_that_of_the_inputs),
        cmocka_unit_test(test_values_bytes_wrap_as_horon_says),
        cmocka_unit_test(test_values_half_survives_a_round_trip),
        cmocka_unit_test(test_values_bfloat_rounds_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
