/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend carries what: a function of what all ranks know. */
#undef NDEBUG
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#define TREE HORON_BACKEND_KEEPS_TREE
#define REDUCE (1u << HORON_ALLREDUCE)
#define CAST (1u << HORON_BROADCAST)
#define GATHER (1u << HORON_ALLGATHER)
#define BARRIER (1u << HORON_BARRIER)

/* Two backends, and what is expected of the choice between them. */
static const struct {
    horon_verb_t verb;
    uint32_t caps[2], lacks[2], usable;
    bool deterministic, in_order;
    int expected;
    bool composed;
    uint32_t passed_over;
} cases[] = {
    /* the first that has it */
    {HORON_ALLREDUCE, {TREE, TREE}, {0, 0}, 3, false, false, 0, false, 0},
    {HORON_ALLREDUCE, {TREE, TREE}, {REDUCE, 0}, 3, false, false, 1, false, 1},
    {HORON_ALLREDUCE, {TREE, TREE}, {REDUCE, REDUCE}, 3, false, false, -1, false, 3},
    /* one that is not usable was told of before */
    {HORON_ALLREDUCE, {TREE, TREE}, {0, 0}, 2, false, false, 1, false, 0},
    {HORON_ALLREDUCE, {TREE, TREE}, {0, 0}, 0, false, false, -1, false, 0},
    /* without the tree it gets no sums, and everything else */
    {HORON_ALLREDUCE, {0, TREE}, {0, 0}, 3, true, false, 1, false, 1},
    {HORON_ALLREDUCE, {0, 0}, {0, 0}, 3, true, false, -1, false, 3},
    {HORON_BROADCAST, {0, TREE}, {0, 0}, 3, true, false, 0, false, 0},
    {HORON_BARRIER, {0, TREE}, {0, 0}, 3, true, false, 0, false, 0},
    {HORON_ALLREDUCE, {0, TREE}, {0, 0}, 3, false, false, 0, false, 0},
    /* a sum of bytes has the same bits in any order */
    {HORON_BROADCAST, {0, TREE}, {CAST, 0}, 3, true, false, 0, true, 0},
    /* composed before the next is asked */
    {HORON_BROADCAST, {TREE, TREE}, {CAST, 0}, 3, false, false, 0, true, 0},
    {HORON_BROADCAST, {TREE, TREE}, {CAST | REDUCE, 0}, 3, false, false, 1, false, 1},
    {HORON_BARRIER, {TREE, TREE}, {BARRIER, 0}, 3, false, false, 0, true, 0},
    {HORON_ALLGATHER, {0, TREE}, {GATHER, 0}, 3, true, false, 0, true, 0},
    {HORON_ALLGATHER, {TREE, TREE}, {GATHER | CAST, 0}, 3, false, false, 1, false, 1},
    /* what takes no negotiated batches */
    {HORON_ALLREDUCE,
     {TREE | HORON_BACKEND_IN_ORDER_ONLY, TREE},
     {0, 0},
     3,
     false,
     false,
     1,
     false,
     1},
    {HORON_ALLREDUCE,
     {TREE | HORON_BACKEND_IN_ORDER_ONLY, TREE},
     {0, 0},
     3,
     false,
     true,
     0,
     false,
     0},
};

static void test_choose_takes_the_first_that_can_and_may(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake fakes[2];
        const struct horon_backend *backends[2];
        for (int k = 0; k < 2; k++) {
            fake_init(&fakes[k], k ? "second" : "first", cases[i].caps[k]);
            fakes[k].lacks = cases[i].lacks[k];
            backends[k] = &fakes[k].base;
        }
        const struct horon_backend_terms terms = {
            .backends = backends,
            .count = 2,
            .versions = {cases[i].usable & 1, cases[i].usable >> 1},
            .deterministic = cases[i].deterministic,
            .in_order = cases[i].in_order};
        struct horon_signature agreed = {.verb = (uint8_t)cases[i].verb, .dtype = HORON_FLOAT32};
        horon_signature_make_canonical(&agreed);
        const struct horon_backend_choice choice = horon_backend_choose(&terms, &agreed, 0);
        if (choice.backend != cases[i].expected || choice.composed != cases[i].composed ||
            choice.passed_over != cases[i].passed_over)
            fail_msg("case %zu: backend %d, composed %d, passed over %x", i, choice.backend,
                     choice.composed, choice.passed_over);
    }
}

/* Two backends that keep the tree, the first one before the second. */
static struct horon_backend_terms terms_of_two(struct fake fakes[2],
                                               const struct horon_backend *backends[2])
{
    for (int k = 0; k < 2; k++) {
        fake_init(&fakes[k], k ? "second" : "first", TREE);
        backends[k] = &fakes[k].base;
    }
    return (struct horon_backend_terms){.backends = backends, .count = 2, .versions = {1, 1}};
}

static void test_choose_passes_over_what_does_not_carry_this_memory(void **state)
{
    struct fake fakes[2];
    const struct horon_backend *backends[2];
    const struct horon_backend_terms terms = terms_of_two(fakes, backends);
    (void)state;
    fakes[0].lacks_memory = 1u << HORON_MEMORY_HOST;
    fakes[1].lacks_memory = 1u << HORON_MEMORY_CUDA;
    for (uint8_t verb = 0; verb < HORON_VERB_COUNT; verb++)
        for (int on_host = 0; on_host < 2; on_host++) {
            struct horon_signature agreed = {.verb = verb,
                                             .dtype = HORON_FLOAT32,
                                             .memory =
                                                 on_host ? HORON_MEMORY_HOST : HORON_MEMORY_CUDA};
            horon_signature_make_canonical(&agreed);
            const struct horon_backend_choice choice = horon_backend_choose(&terms, &agreed, 0);
            if (!horon_verb_moves(&horon_verb_rows[verb]) || horon_verb_rows[verb].paired)
                continue;
            const bool has = !(fakes[on_host].lacks >> verb & 1);
            const bool carried = has || on_host; /* composed by the host, in its memory */
            assert_int_equal(choice.backend, carried ? on_host : -1);
            assert_int_equal(choice.passed_over, carried ? on_host : 3);
            assert_int_equal(choice.composed, carried && !has);
        }
    fakes[1].lacks_memory |= 1u << HORON_MEMORY_HOST;
    const struct horon_signature of_host = {
        .verb = HORON_ALLREDUCE, .dtype = HORON_FLOAT32, .memory = HORON_MEMORY_HOST};
    assert_int_equal(horon_backend_choose(&terms, &of_host, 0).backend, -1);
}

static void test_choose_passes_over_what_does_not_carry_this_type(void **state)
{
    struct fake fakes[2];
    const struct horon_backend *backends[2];
    const struct horon_backend_terms terms = terms_of_two(fakes, backends);
    (void)state;
    fakes[0].lacks_dtype = 1u << HORON_BFLOAT16;
    for (uint8_t dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        const struct horon_signature agreed = {.verb = HORON_ALLREDUCE, .dtype = dtype};
        assert_int_equal(horon_backend_choose(&terms, &agreed, 0).backend, dtype == HORON_BFLOAT16);
    }
}

/* The second goes first from some size on, if it has what is wanted. */
static void test_choose_goes_by_size_before_order(void **state)
{
    static const struct {
        horon_verb_t verb;
        uint32_t lacks[2];
        uint64_t bytes;
        int expected;
        uint32_t passed_over;
    } sizes[] = {
        {HORON_ALLREDUCE, {0, 0}, 99, 0, 0},
        {HORON_ALLREDUCE, {0, 0}, 100, 1, 0},
        {HORON_ALLREDUCE, {0, REDUCE}, 100, 0, 0}, /* of one behind it nothing is told */
        {HORON_ALLREDUCE, {REDUCE, 0}, 100, 1, 1},
        {HORON_BROADCAST, {0, CAST}, 100, 1, 0}, /* composed or not */
        {HORON_ALLREDUCE, {REDUCE, REDUCE}, 100, -1, 3},
    };
    struct fake fakes[2];
    const struct horon_backend *backends[2] = {&fakes[0].base, &fakes[1].base};
    const struct horon_backend_terms terms = {.backends = backends, .count = 2, .versions = {1, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct horon_signature agreed = {.verb = (uint8_t)sizes[i].verb, .dtype = HORON_FLOAT32};
        for (int k = 0; k < 2; k++) {
            fake_init(&fakes[k], k ? "second" : "first", TREE);
            fakes[k].lacks = sizes[i].lacks[k];
        }
        fakes[1].prefers_from = 100;
        horon_signature_make_canonical(&agreed);
        const struct horon_backend_choice choice =
            horon_backend_choose(&terms, &agreed, sizes[i].bytes);
        assert_int_equal(choice.backend, sizes[i].expected);
        assert_int_equal(choice.passed_over, sizes[i].passed_over);
    }
}

static void expect_claims(const struct horon_signature *agreed, bool expected)
{
    static const struct horon_backend *const ours[] = {&horon_backend_native, &horon_backend_mpi,
                                                       &horon_backend_gloo};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (ours[i]->has(ours[i], 1, agreed) != expected)
            fail_msg("%s, %s in memory %d: expected %d", ours[i]->name, horon_verb_of(agreed)->name,
                     agreed->memory, expected);
}

static void test_choose_has_what_the_kernels_have_in_host_memory(void **state)
{
    (void)state;
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++)
        for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++)
            for (int redop = 0; redop < HORON_REDOP_COUNT; redop++) {
                const struct horon_verb_row *row = &horon_verb_rows[verb];
                const bool kernel =
                    horon_reduce_supported((horon_dtype_t)dtype, (horon_redop_t)redop);
                const bool claimed = !row->paired && (!horon_verb_reduces(row) || kernel);
                struct horon_signature agreed = {.verb = (uint8_t)verb,
                                                 .dtype = (uint8_t)dtype,
                                                 .redop = (uint8_t)redop,
                                                 .memory = HORON_MEMORY_HOST};
                horon_signature_make_canonical(&agreed);
                expect_claims(&agreed, claimed);
                agreed.memory = HORON_MEMORY_CUDA;
                horon_signature_make_canonical(&agreed);
                expect_claims(&agreed, claimed && !horon_verb_moves(row));
            }
}

static void expect_carried(const struct horon_backend_terms *terms, horon_memory_t memory,
                           const char *expected)
{
    char text[600];
    horon_backends_carry(terms, memory, text, sizeof text);
    assert_string_equal(text, expected);
}

/* The fakes have an allreduce, a broadcast and a barrier; of these others are made. */
static void test_choose_is_told_for_all_verbs_by_backend(void **state)
{
    struct fake fakes[2];
    const struct horon_backend *backends[2];
    struct horon_backend_terms terms = terms_of_two(fakes, backends);
    (void)state;
    expect_carried(&terms, HORON_MEMORY_HOST,
                   "first: allreduce broadcast allgather barrier alltoall gather scatter "
                   "reducescatter reduce");
    fakes[0].lacks_memory = 1u << HORON_MEMORY_CUDA;
    fakes[1].lacks |= REDUCE;
    expect_carried(&terms, HORON_MEMORY_CUDA,
                   "second: broadcast\n"
                   "nothing: allreduce allgather alltoall gather scatter reducescatter reduce");
    fakes[0].lacks_memory = 0;
    fakes[1].lacks = fakes[0].lacks;
    fakes[0].lacks |= BARRIER;
    fakes[1].prefers_from = 1000;
    expect_carried(&terms, HORON_MEMORY_HOST,
                   "first: allreduce (below 1024 bytes) broadcast (below 1024 bytes) allgather "
                   "barrier alltoall gather scatter reducescatter (below 1024 "
                   "bytes) reduce (below 1024 bytes)\n"
                   "second: allreduce (from 1024 bytes) broadcast (from 1024 bytes) "
                   "reducescatter (from 1024 bytes) reduce (from 1024 bytes)");
    terms.versions[0] = terms.versions[1] = 0;
    fakes[1].prefers_from = 0;
    expect_carried(&terms, HORON_MEMORY_CUDA,
                   "nothing: allreduce broadcast allgather alltoall gather scatter reducescatter "
                   "reduce");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose_takes_the_first_that_can_and_may),
        cmocka_unit_test(test_choose_passes_over_what_does_not_carry_this_memory),
        cmocka_unit_test(test_choose_passes_over_what_does_not_carry_this_type),
        cmocka_unit_test(test_choose_goes_by_size_before_order),
        cmocka_unit_test(test_choose_is_told_for_all_verbs_by_backend),
        cmocka_unit_test(test_choose_has_what_the_kernels_have_in_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
