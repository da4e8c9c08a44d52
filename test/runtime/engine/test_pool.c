/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to use again: what stays of one is its memory, and nothing else. */
#undef NDEBUG
#include "engine/pool.h"
#include "engine/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define RANK 1
#define SIZE 3

struct bed {
    struct horon_engine_team team; /* its place and backends alone */
    struct horon_backends backends;
    struct horon_names names;
    struct horon_request_pool pool;
    struct horon_error error;
};

static struct horon_request *make(struct bed *bed, horon_verb_t verb, uint64_t count,
                                  horon_status_t expected)
{
    static float data[8];
    struct horon_request *request = NULL;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.name = "x";
    desc.dtype = HORON_FLOAT32;
    desc.count = count;
    desc.src = data;
    desc.dst = verb == HORON_ALLGATHER ? NULL : data;
    assert_int_equal(
        horon_request_create(&bed->pool, &desc, &bed->team, &bed->names, &request, &bed->error),
        expected);
    return request;
}

static void test_pool_keeps_memory_and_nothing_else(void **state)
{
    static const uint64_t rows[SIZE] = {4, 0, 3};
    struct bed bed;
    (void)state;
    assert_int_equal(horon_names_init(&bed.names, 0), HORON_OK);
    horon_request_pool_init(&bed.pool);
    bed.team =
        (struct horon_engine_team){.backends = &bed.backends, .view = {.rank = RANK, .size = SIZE}};
    assert_int_equal(horon_backends_open(&bed.backends, horon_backends, 1, NULL, NULL, NULL),
                     HORON_OK);
    bed.pool.limit = 1;
    struct horon_request *first = make(&bed, HORON_ALLGATHER, 4, HORON_OK);
    struct horon_request *second = make(&bed, HORON_ALLGATHER, 4, HORON_OK);
    assert_non_null(horon_request_take_output(first, rows, 7));
    first->status = HORON_ERR_TIMEOUT;
    first->persistent = first->warned = true;
    horon_request_destroy(&bed.pool, first, &bed.names);
    horon_request_destroy(&bed.pool, second, &bed.names); /* one too many */
    assert_int_equal(bed.pool.count, 1);
    assert_null(make(&bed, HORON_ALLREDUCE, UINT64_MAX, HORON_ERR_INVALID));
    assert_int_equal(bed.pool.count, 1); /* what is refused goes back */
    struct horon_request *again = make(&bed, HORON_ALLREDUCE, 8, HORON_OK);
    assert_ptr_equal(again, first);
    assert_int_equal(bed.pool.count, 0);
    assert_null(again->output_rows); /* though there is room for them */
    assert_null(again->owned_output);
    assert_false(again->persistent || again->warned);
    assert_int_equal(again->status, HORON_OK);
    horon_request_destroy(&bed.pool, again, &bed.names);
    horon_request_pool_deinit(&bed.pool);
    assert_int_equal(bed.names.entry_count, 0);
    horon_names_deinit(&bed.names);
    horon_backends_close(&bed.backends, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_keeps_memory_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
