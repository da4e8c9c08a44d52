/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the coordinator say again and again, about the one tree of a test program.
 * Tokens of rank r are 1000 * r and up. */
#ifndef HORON_TEST_EXPECT_H
#define HORON_TEST_EXPECT_H

#undef NDEBUG
#include "tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1u << 20)

static struct tree tree;

static inline void submit(int rank, const struct horon_operation *tensor, uint64_t token)
{
    assert_int_equal(tree_submit(tree.ranks[rank], tensor, token), HORON_OK);
}

static inline void submit_all(const struct horon_operation *tensor, uint64_t token)
{
    for (int rank = 0; rank < tree.size; rank++)
        submit(rank, tensor, token + 1000 * (uint64_t)rank);
}

/* The next batch of @p rank must be @p count tokens from @p first on, in order. */
static inline void expect_batch(int rank, uint64_t sequence, horon_status_t status, uint64_t first,
                                size_t count)
{
    struct horon_batch batch;
    assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
    assert_int_equal(batch.sequence, sequence);
    assert_int_equal(batch.status, status);
    assert_int_equal(batch.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(batch.tokens[i], first + i);
}

static inline void expect_no_batch(int rank)
{
    struct horon_batch batch;
    assert_false(horon_coordinator_next_batch(tree.ranks[rank], &batch));
}

/* All ranks fail token + 1000 * rank with one text. @return it */
static inline const char *expect_failure(uint64_t sequence, uint64_t token)
{
    static char text[HORON_ERROR_TEXT_BYTES];
    for (int rank = 0; rank < tree.size; rank++) {
        struct horon_batch batch;
        assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
        assert_int_equal(batch.sequence, sequence);
        assert_int_equal(batch.status, HORON_ERR_MISMATCH);
        assert_int_equal(batch.count, 1);
        assert_int_equal(batch.tokens[0], token + 1000 * (uint64_t)rank);
        if (rank == 0)
            snprintf(text, sizeof text, "%s", batch.text);
        else
            assert_string_equal(batch.text, text);
    }
    return text;
}

/* All ranks get one OK batch with the tokens from @p first (+ 1000 * rank) on. */
static inline void expect_all(uint64_t sequence, uint64_t first, size_t count)
{
    for (int rank = 0; rank < tree.size; rank++)
        expect_batch(rank, sequence, HORON_OK, first + 1000 * (uint64_t)rank, count);
}

static inline void expect_no_batches(void)
{
    for (int rank = 0; rank < tree.size; rank++)
        expect_no_batch(rank);
}

static inline void run(void)
{
    assert_int_equal(tree_run(&tree), HORON_OK);
}

#endif
