/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole job, its ranks in one process, over links that encipher: each connection is wrapped with
 * the secrets that its own handshake gave to both ends, from the first byte to the store to the
 * last one between ranks. Three ranks that count as three hosts are all linked when they have
 * joined. Of two ranks each on two hosts some are not, and link once they send to each other.
 */
#undef NDEBUG
#include "../collectives/wrapped_link.h"
#include "context_state.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { RANKS_MAX = 4, ELEMENTS = 40000, ROUNDS = 2 };

struct rank;

struct job {
    int size;
    const int *hosts; /* [size] which of the hosts that this test makes up */
    const char *const *settings;
    horon_status_t (*work)(struct rank *rank, horon_context_t *ctx);
    int at_joining; /* ends of connections that were wrapped when all had joined */
};

struct rank {
    struct job *job;
    int number;
    pthread_t thread;
    float data[ELEMENTS];
    horon_status_t status;
    char text[HORON_ERROR_TEXT_BYTES];
};

static struct rank ranks[RANKS_MAX];
static _Atomic int wrapped;
static _Thread_local int host_of_thread;

/* As if the thread that joins were in a container of its own: ranks of different user namespaces
 * share no memory, and count as ranks of different hosts. */
int stat(const char *restrict path, struct stat *restrict about)
{
    const int result = fstatat(AT_FDCWD, path, about, 0);
    if (result == 0 && strcmp(path, "/proc/thread-self/ns/user") == 0)
        about->st_ino += (ino_t)host_of_thread;
    return result;
}

static struct horon_link *wrap(struct horon_link *inside, const struct horon_proven *proven)
{
    wrapped++;
    return wrapped_link_create_with(inside, proven->send_secret, proven->receive_secret);
}

static horon_status_t sum(struct rank *rank, horon_context_t *ctx, const char *name, size_t count)
{
    const int size = rank->job->size;
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
        if (rank->data[i] != (float)(size * (size + 1) / 2))
            status = HORON_ERR_PROTO;
    return status;
}

static horon_status_t work_sum(struct rank *rank, horon_context_t *ctx)
{
    horon_status_t status = HORON_OK;
    for (int round = 0; round < ROUNDS && status == HORON_OK; round++) {
        status = sum(rank, ctx, "named", ELEMENTS);
        if (status == HORON_OK)
            status = sum(rank, ctx, NULL, 2);
        if (status == HORON_OK)
            status = sum(rank, ctx, NULL, ELEMENTS);
    }
    return status;
}

/* To or from the rank that this one has no link to when it has joined. */
static horon_status_t pass(struct rank *rank, horon_context_t *ctx, horon_verb_t verb, size_t count)
{
    const int peer = RANKS_MAX - 1 - rank->number;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_FLOAT32;
    desc.root = peer;
    desc.count = count;
    desc.src = desc.dst = rank->data;
    for (size_t i = 0; i < count; i++)
        rank->data[i] = verb == HORON_SEND ? (float)(rank->number + (int)i % 7) : -1.0f;
    horon_status_t status = horon_run(ctx, &desc, 60000, rank->text, sizeof rank->text);
    for (size_t i = 0; i < count && status == HORON_OK && verb == HORON_RECV; i++)
        if (rank->data[i] != (float)(peer + (int)i % 7))
            status = HORON_ERR_PROTO;
    return status;
}

static horon_status_t work_pass(struct rank *rank, horon_context_t *ctx)
{
    const bool first = rank->number < RANKS_MAX / 2;
    horon_status_t status = sum(rank, ctx, "all have joined", 2);
    if (rank->number == 0)
        rank->job->at_joining = wrapped; /* the others wait for this rank's part of the next sum */
    if (status == HORON_OK)
        status = sum(rank, ctx, "all may send", 2);
    for (size_t count = 3; count <= ELEMENTS && status == HORON_OK; count += ELEMENTS - 3) {
        status = pass(rank, ctx, first ? HORON_SEND : HORON_RECV, count);
        if (status == HORON_OK)
            status = pass(rank, ctx, first ? HORON_RECV : HORON_SEND, count);
    }
    return status == HORON_OK ? sum(rank, ctx, NULL, ELEMENTS) : status;
}

static void *work(void *arg)
{
    struct rank *rank = arg;
    struct horon_error error = {0};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    host_of_thread = rank->job->hosts[rank->number];
    options.rank = rank->number;
    options.size = rank->job->size;
    options.settings = rank->job->settings;
    rank->status = horon_context_create_wrapped(&options, wrap, &ctx, &error);
    horon_error_copy_text(&error, rank->text, sizeof rank->text);
    if (rank->status == HORON_OK)
        rank->status = rank->job->work(rank, ctx);
    horon_context_destroy(ctx);
    return NULL;
}

/* @param setting besides the store and the key, or NULL */
static void run(struct job *job, const char *setting)
{
    char folder[] = "/tmp/horon-test-XXXXXX", store[64], command[64];
    const char *const settings[] = {store, "JOB_KEY=a key for this test alone", setting, NULL};
    assert_non_null(mkdtemp(folder));
    snprintf(store, sizeof store, "STORE=file:%s", folder);
    job->settings = settings;
    wrapped = 0;
    for (int i = 0; i < job->size; i++) {
        ranks[i].job = job;
        ranks[i].number = i;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]), 0);
    }
    for (int i = 0; i < job->size; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].status != HORON_OK)
            fail_msg("rank %d: status %d: %s", i, ranks[i].status, ranks[i].text);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_wrapped_job_sums_over_enciphered_links(void **state)
{
    static const int hosts[] = {0, 1, 2};
    struct job job = {.size = 3, .hosts = hosts, .work = work_sum};
    (void)state;
    run(&job, "SHM=0");
    /* both ends of a session of each rank with the store, and of a link of each rank at least */
    assert_true(wrapped >= 2 * job.size + 2 * (job.size - 1));
}

/* 0-2 and 1-3 carry the same segments. 0-3 and 1-2 are linked by their first message, which goes
 * through what wraps it on both ends: both sides without it would understand each other, too. */
static void test_wrapped_job_passes_messages_over_enciphered_links_made_later(void **state)
{
    static const int hosts[RANKS_MAX] = {0, 0, 1, 1};
    struct job job = {.size = RANKS_MAX, .hosts = hosts, .work = work_pass};
    (void)state;
    run(&job, NULL);
    assert_int_equal(wrapped - job.at_joining, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapped_job_sums_over_enciphered_links),
        cmocka_unit_test(test_wrapped_job_passes_messages_over_enciphered_links_made_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
