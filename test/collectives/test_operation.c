/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures: what makes two of them equal, of one kind, or not valid at all. */
#undef NDEBUG
#include "operation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* A matrix of which every field has some value. */
static struct horon_signature full(horon_verb_t verb)
{
    return (struct horon_signature){
        .prescale = 0.5,
        .postscale = 2,
        .verb = (uint8_t)verb,
        .dtype = HORON_FLOAT32,
        .redop = HORON_MAX,
        .memory = HORON_MEMORY_HOST,
        .root = 3,
        .team = 7,
        .ndim = 2,
        .group_hash = 11,
        .group_size = 2,
        .group_index = 1,
        .shape = {4, 5},
    };
}

static void change_redop(struct horon_signature *s)
{
    s->redop = HORON_MIN;
}
static void change_prescale(struct horon_signature *s)
{
    s->prescale = 3;
}
static void change_postscale(struct horon_signature *s)
{
    s->postscale = 3;
}
static void change_root(struct horon_signature *s)
{
    s->root = 1;
}
static void change_dtype(struct horon_signature *s)
{
    s->dtype = HORON_INT8;
}
static void change_memory(struct horon_signature *s)
{
    s->memory = HORON_MEMORY_CUDA;
}
static void change_rows(struct horon_signature *s)
{
    s->shape[0] = 6;
}
static void change_columns(struct horon_signature *s)
{
    s->shape[1] = 6;
}
static void change_ndim(struct horon_signature *s)
{
    s->ndim = 3;
}
static void change_team(struct horon_signature *s)
{
    s->team = 8;
}
static void change_group(struct horon_signature *s)
{
    s->group_hash = 12;
}

#define ALLREDUCE 1u
#define BROADCAST 2u
#define ALLGATHER 4u
#define BARRIER 8u
#define ALLTOALL 16u
#define ROOTED (BROADCAST | 32u | 64u | REDUCE) /* gather and scatter */
#define REDUCESCATTER 128u                      /* its root is a hash of splits */
#define REDUCE 256u
#define MESSAGES (512u | 1024u) /* whose root is the other rank */
#define REDUCES (ALLREDUCE | REDUCESCATTER | REDUCE)
#define MOVES (REDUCES | ALLGATHER | ALLTOALL | ROOTED | MESSAGES)

static const struct {
    void (*change)(struct horon_signature *s);
    uint32_t counts_for; /* verbs */
    bool kind, hashed;   /* where it counts: operations of one kind, and of one hash, are alike */
} changes[] = {
    {change_redop, REDUCES, true, true},
    {change_prescale, REDUCES, true, true},
    {change_postscale, REDUCES, true, true},
    {change_root, ROOTED | REDUCESCATTER | MESSAGES, true, true},
    {change_dtype, MOVES, true, true},
    {change_memory, MOVES, true, true},
    {change_rows, REDUCES | BROADCAST | MESSAGES, false, true},
    {change_columns, MOVES, false, true},
    {change_ndim, MOVES, false, true},
    {change_team, MOVES | BARRIER, true, true},
    {change_group, MOVES | BARRIER, false, false},
};

static void test_operation_ranks_disagree_about_what_counts_and_nothing_else(void **state)
{
    (void)state;
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        struct horon_signature one = full((horon_verb_t)verb);
        horon_signature_make_canonical(&one);
        for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
            const bool counts = changes[i].counts_for >> verb & 1;
            struct horon_signature other = full((horon_verb_t)verb);
            changes[i].change(&other);
            horon_signature_make_canonical(&other);
            assert_int_equal(horon_signature_equal(&one, &other), !counts);
            assert_int_equal(horon_signature_same_kind(&one, &other), !(counts && changes[i].kind));
            assert_int_equal(horon_signature_hash(&one, 1) == horon_signature_hash(&other, 1),
                             !(counts && changes[i].hashed));
        }
    }
}

static void test_operation_canonical_form_stays_as_it_is(void **state)
{
    (void)state;
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        struct horon_signature once = full((horon_verb_t)verb), twice;
        horon_signature_make_canonical(&once);
        twice = once;
        horon_signature_make_canonical(&twice);
        assert_true(horon_signature_equal(&once, &twice));
        assert_true(horon_signature_is_valid(&once));
    }
}

static void test_operation_without_a_group_has_no_place_in_one(void **state)
{
    (void)state;
    struct horon_signature one = full(HORON_ALLREDUCE);
    one.group_size = 0;
    horon_signature_make_canonical(&one);
    assert_int_equal(one.group_hash, 0);
    assert_int_equal(one.group_index, 0);
}

static void test_operation_that_cannot_be_is_not_valid(void **state)
{
    (void)state;
    struct horon_signature wrong[5];
    for (int i = 0; i < 5; i++)
        wrong[i] = full(HORON_ALLREDUCE);
    assert_true(horon_signature_is_valid(&wrong[0]));
    wrong[0].verb = HORON_VERB_COUNT;
    wrong[1].dtype = HORON_DTYPE_COUNT;
    wrong[2].redop = HORON_REDOP_COUNT;
    wrong[3].ndim = HORON_NDIM_MAX + 1;
    wrong[4].memory = HORON_MEMORY_COUNT;
    for (int i = 0; i < 5; i++)
        assert_false(horon_signature_is_valid(&wrong[i]));
}

static void test_operation_bytes_are_those_of_the_shape(void **state)
{
    (void)state;
    struct horon_signature one = full(HORON_ALLREDUCE);
    horon_signature_make_canonical(&one);
    assert_int_equal(horon_signature_bytes(&one), 80);
    one.shape[0] = UINT64_MAX / 4;
    assert_true(horon_signature_bytes(&one) == UINT64_MAX);
    one.shape[1] = 0;
    assert_int_equal(horon_signature_bytes(&one), 0);
    one.ndim = 0; /* a scalar */
    assert_int_equal(horon_signature_bytes(&one), 4);
    one = full(HORON_BARRIER);
    horon_signature_make_canonical(&one);
    assert_int_equal(horon_signature_bytes(&one), 0);
}

static void test_operation_hash_differs_by_name(void **state)
{
    (void)state;
    struct horon_signature one = full(HORON_ALLREDUCE);
    horon_signature_make_canonical(&one);
    const uint64_t a = horon_name_hash("a", 1), b = horon_name_hash("b", 1);
    assert_true(horon_signature_hash(&one, a) != horon_signature_hash(&one, b));
    assert_true(horon_signature_hash(&one, a) != horon_signature_hash(&one, 0));
}

static void test_operation_hash_of_a_sequence_is_of_its_order(void **state)
{
    (void)state;
    const uint64_t ab = horon_hash_next(horon_hash_next(0, 1), 2);
    const uint64_t ba = horon_hash_next(horon_hash_next(0, 2), 1);
    assert_true(ab != ba);
    assert_true(horon_hash_next(ab, 1) != horon_hash_next(ba, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operation_ranks_disagree_about_what_counts_and_nothing_else),
        cmocka_unit_test(test_operation_canonical_form_stays_as_it_is),
        cmocka_unit_test(test_operation_without_a_group_has_no_place_in_one),
        cmocka_unit_test(test_operation_that_cannot_be_is_not_valid),
        cmocka_unit_test(test_operation_bytes_are_those_of_the_shape),
        cmocka_unit_test(test_operation_hash_differs_by_name),
        cmocka_unit_test(test_operation_hash_of_a_sequence_is_of_its_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
