/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of horon_run() that a team keeps: each one taken is what a new one would be. */
#undef NDEBUG
#include "engine/engine_state.h"
#include "engine/kept.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANK 1
#define SIZE 3

struct bed {
    struct horon_engine engine; /* its names alone */
    struct horon_engine_team team;
    struct horon_backends backends;
    struct horon_error error;
    uint64_t shape[2], splits[SIZE];
    float data[2][64];
};

static int make(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    *state = bed;
    bed->team.engine = &bed->engine;
    bed->team.view.rank = RANK;
    bed->team.view.size = SIZE;
    bed->team.backends = &bed->backends;
    bed->team.state = HORON_TEAM_READY;
    if (horon_backends_open(&bed->backends, horon_backends, 1, NULL, NULL, NULL))
        return -1;
    return horon_names_init(&bed->engine.names, 0);
}

static int end(void **state)
{
    struct bed *bed = *state;
    horon_kept_drop(&bed->team);
    horon_names_deinit(&bed->engine.names);
    horon_backends_close(&bed->backends, true);
    free(bed);
    return 0;
}

static horon_descriptor_t describe(struct bed *bed, horon_verb_t verb)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = bed->data[0];
    desc.dst = bed->data[1];
    desc.count = 6;
    desc.dst_count = 64;
    return desc;
}

static struct horon_request *take(struct bed *bed, const horon_descriptor_t *desc)
{
    struct horon_request *request = NULL;
    bed->error = (struct horon_error){0};
    if (horon_kept_take(&bed->team, desc, &request, &bed->error) != HORON_OK)
        assert_null(request);
    return request;
}

/* As if it had run well. */
static void put(struct bed *bed, struct horon_request *request)
{
    request->nobodys = true;
    request->since_ns = 7;
    request->output = bed;
    horon_kept_put(&bed->team, request);
}

static void expect_new(struct bed *bed, const horon_descriptor_t *desc,
                       const struct horon_request *taken)
{
    struct horon_request *fresh = calloc(1, sizeof *fresh);
    struct horon_error error = {0};
    const horon_status_t status =
        horon_request_init(fresh, desc, &bed->team, &bed->engine.names, &error);
    assert_int_equal(taken != NULL, status == HORON_OK);
    assert_string_equal(bed->error.text, error.text);
    if (taken) {
        assert_memory_equal(&taken->op.agreed, &fresh->op.agreed, sizeof fresh->op.agreed);
        assert_memory_equal(&taken->part, &fresh->part, sizeof fresh->part);
        assert_int_equal(taken->op.hash, fresh->op.hash);
        assert_int_equal(taken->op.count, fresh->op.count);
        assert_int_equal(taken->op.row_elements, fresh->op.row_elements);
        assert_int_equal(taken->op.splits != NULL, fresh->op.splits != NULL);
        assert_int_equal(taken->rows, fresh->rows);
        assert_int_equal(taken->dst_count, fresh->dst_count);
        assert_int_equal(taken->is_plain, fresh->is_plain);
        assert_int_equal(taken->since_ns, fresh->since_ns);
        assert_ptr_equal(taken->callback, fresh->callback);
        assert_ptr_equal(taken->alloc, fresh->alloc);
        assert_false(taken->linked || taken->begun || taken->output_refused);
    }
    horon_request_deinit(fresh, &bed->engine.names);
    free(fresh->rows_room);
    free(fresh);
}

static void *give(void *arg, uint64_t rows, size_t bytes)
{
    (void)rows;
    (void)bytes;
    return arg;
}

static void called(void *arg, horon_request_t *request, horon_status_t status)
{
    (void)arg;
    (void)request;
    (void)status;
}

enum { CHANGES = 19 };

/* One thing that may differ from the run before. */
static void change(struct bed *bed, horon_descriptor_t *desc, int which)
{
    switch (which) {
    case 0:
        desc->src = bed->data[0] + 8;
        break;
    case 1:
        desc->dst = bed->data[1] + 8;
        break;
    case 2:
        desc->src = desc->dst = bed->data[0];
        break;
    case 3:
        desc->dst = bed->data[0] + 1;
        break; /* it overlaps src */
    case 4:
        desc->src = NULL;
        break;
    case 5:
        desc->dst = NULL;
        break;
    case 6:
        desc->count = 3;
        break;
    case 7:
        desc->dst_count = 1;
        break;
    case 8:
        desc->dst_count = 0;
        break;
    case 9:
        desc->dtype = HORON_INT32;
        break;
    case 10:
        desc->redop = HORON_MAX;
        break;
    case 11:
        desc->root = RANK;
        break;
    case 12:
        desc->root = SIZE;
        break; /* nobody */
    case 13:
        desc->prescale = 2;
        break;
    case 14:
        desc->name = "x";
        break;
    case 15:
        desc->shape = bed->shape;
        desc->ndim = 2;
        break;
    case 16:
        desc->splits = bed->splits;
        break;
    case 17:
        desc->alloc = give;
        break;
    default:
        desc->callback = called;
        break;
    }
}

static void test_kept_is_what_a_new_one_would_be(void **state)
{
    struct bed *bed = *state;
    memcpy(bed->shape, (uint64_t[]){3, 2}, sizeof bed->shape);
    memcpy(bed->splits, (uint64_t[]){1, 2, 3}, sizeof bed->splits);
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        if (horon_verb_rows[verb].paired)
            continue; /* it is in no order */
        for (int which = 0; which < CHANGES; which++) {
            const horon_descriptor_t before = describe(bed, (horon_verb_t)verb);
            horon_descriptor_t after = before;
            change(bed, &after, which);
            put(bed, take(bed, &before));
            for (int again = 0; again < 2; again++) {
                struct horon_request *request = take(bed, &after);
                expect_new(bed, &after, request);
                if (request)
                    put(bed, request);
            }
        }
    }
}

static void test_kept_is_used_again_wherever_its_buffers_lie(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = describe(bed, HORON_ALLREDUCE);
    struct horon_request *first = take(bed, &desc);
    put(bed, first);
    assert_ptr_equal(take(bed, &desc), first);
    put(bed, first);
    desc.dst = bed->data[0];
    assert_ptr_equal(take(bed, &desc), first);
    assert_ptr_equal(first->part.dst, bed->data[0]);
    put(bed, first);
}

static void test_kept_looks_behind_pointers_anew(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = describe(bed, HORON_REDUCESCATTER);
    desc.shape = bed->shape;
    desc.ndim = 2;
    desc.splits = bed->splits;
    memcpy(bed->shape, (uint64_t[]){6, 1}, sizeof bed->shape);
    memcpy(bed->splits, (uint64_t[]){1, 2, 3}, sizeof bed->splits);
    put(bed, take(bed, &desc));
    memcpy(bed->splits, (uint64_t[]){3, 2, 1}, sizeof bed->splits);
    struct horon_request *request = take(bed, &desc);
    assert_int_equal(request->op.splits[0], 3);
    put(bed, request);
    bed->shape[1] = 4;
    request = take(bed, &desc);
    assert_int_equal(request->op.count, 24);
    put(bed, request);
}

static void test_kept_of_two_threads_is_one(void **state)
{
    struct bed *bed = *state;
    const horon_descriptor_t desc = describe(bed, HORON_BROADCAST);
    struct horon_request *first = take(bed, &desc), *second = take(bed, &desc);
    assert_ptr_not_equal(first, second);
    put(bed, first);
    put(bed, second);
    assert_ptr_equal(take(bed, &desc), first);
    put(bed, first);
}

/* Another thread removed the set while this one was about to run on it. */
static void test_kept_of_a_team_that_was_removed_is_freed(void **state)
{
    struct bed *bed = *state;
    const horon_descriptor_t desc = describe(bed, HORON_ALLREDUCE);
    put(bed, take(bed, &desc));
    horon_kept_drop(&bed->team);
    bed->team.state = HORON_TEAM_UNBOUND;
    put(bed, take(bed, &desc));
    assert_null(bed->team.kept[HORON_ALLREDUCE]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_kept_is_what_a_new_one_would_be),
        TEST(test_kept_is_used_again_wherever_its_buffers_lie),
        TEST(test_kept_looks_behind_pointers_anew),
        TEST(test_kept_of_two_threads_is_one),
        TEST(test_kept_of_a_team_that_was_removed_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
