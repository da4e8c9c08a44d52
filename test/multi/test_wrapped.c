/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole job, three ranks in one process that count as three hosts, over links that encipher: each
 * connection is wrapped with the secrets that its own handshake gave to both ends, from the first
 * byte to the store to the last one between ranks.
 */
#undef NDEBUG
#include "../collectives/wrapped_link.h"
#include "context_state.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RANKS = 3, ELEMENTS = 40000, ROUNDS = 2 };

struct rank {
    int number;
    const char *const *settings;
    pthread_t thread;
    float data[ELEMENTS];
    horon_status_t status;
    char text[HORON_ERROR_TEXT_BYTES];
};

static struct rank ranks[RANKS];
static _Atomic int wrapped;

static struct horon_link *wrap(struct horon_link *inside, const struct horon_proven *proven)
{
    wrapped++;
    return wrapped_link_create_with(inside, proven->send_secret, proven->receive_secret);
}

static horon_status_t sum(struct rank *rank, horon_context_t *ctx, const char *name, size_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.count = count;
    desc.src = desc.dst = rank->data;
    if (!name)
        desc.flags = HORON_IN_ORDER;
    for (size_t i = 0; i < count; i++)
        rank->data[i] = (float)(rank->number + 1);
    horon_status_t status = horon_run(ctx, &desc, 60000, rank->text, sizeof rank->text);
    for (size_t i = 0; i < count && status == HORON_OK; i++)
        if (rank->data[i] != 6.0f)
            status = HORON_ERR_PROTO;
    return status;
}

static void *work(void *arg)
{
    struct rank *rank = arg;
    struct horon_error error = {0};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    options.rank = rank->number;
    options.size = RANKS;
    options.settings = rank->settings;
    rank->status = horon_context_create_wrapped(&options, wrap, &ctx, &error);
    horon_error_copy_text(&error, rank->text, sizeof rank->text);
    for (int round = 0; round < ROUNDS && rank->status == HORON_OK; round++) {
        rank->status = sum(rank, ctx, "named", ELEMENTS);
        if (rank->status == HORON_OK)
            rank->status = sum(rank, ctx, NULL, 2);
        if (rank->status == HORON_OK)
            rank->status = sum(rank, ctx, NULL, ELEMENTS);
    }
    horon_context_destroy(ctx);
    return NULL;
}

static void test_wrapped_job_sums_over_enciphered_links(void **state)
{
    char folder[] = "/tmp/horon-test-XXXXXX", store[64], command[64];
    const char *const settings[] = {store, "JOB_KEY=a key for this test alone", "SHM=0", NULL};
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(store, sizeof store, "STORE=file:%s", folder);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].number = i;
        ranks[i].settings = settings;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].status != HORON_OK)
            fail_msg("rank %d: status %d: %s", i, ranks[i].status, ranks[i].text);
    }
    /* both ends of a session of each rank with the store, and of a link of each rank at least */
    assert_true(wrapped >= 2 * RANKS + 2 * (RANKS - 1));
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapped_job_sums_over_enciphered_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
