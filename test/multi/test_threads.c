/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several contexts in one process, a thread a rank: nothing is the process's. The thread sanitizer
 * sees each context's own threads here; both sides of shared memory it sees in
 * world/test_world_threads.c, as contexts map it each for itself.
 */
#undef NDEBUG
#include <horon/horon.h>

#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS_MAX 5

struct rank {
    pthread_t thread;
    int rank, size;
    const char *shm;
    char store[96];
    char failure[HORON_ERROR_TEXT_BYTES + 64]; /* empty: all went well */
};

static horon_descriptor_t sum_of(const char *name, float *data, uint64_t count, uint32_t flags)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.flags = flags;
    desc.count = count;
    desc.src = desc.dst = data;
    return desc;
}

/* Blocking, in order and named, and asynchronous ones that only the progress thread carries out. */
static horon_status_t work(horon_context_t *ctx, int rank, char *text)
{
    enum { COUNT = 70000, ASYNC = 8 };
    float *data = calloc(COUNT, sizeof *data), many[ASYNC][100] = {{0}};
    horon_status_t status = HORON_OK;
    for (int round = 0; round < 15 && status == HORON_OK; round++) {
        horon_request_t *requests[ASYNC];
        int started = 0;
        for (; started < ASYNC && status == HORON_OK; started++) {
            char name[16];
            /* every rank in an order of its own */
            int which = (started + rank * 3) % ASYNC;
            snprintf(name, sizeof name, "t%d", which);
            horon_descriptor_t desc = sum_of(name, many[which], 100, 0);
            status = horon_submit(ctx, &desc, &requests[started]);
        }
        uint64_t count = round % 3 ? 5 : COUNT;
        data[count - 1] = 1;
        horon_descriptor_t desc = sum_of(NULL, data, count, HORON_IN_ORDER);
        if (status == HORON_OK)
            status = horon_run(ctx, &desc, -1, text, HORON_ERROR_TEXT_BYTES);
        if (status == HORON_OK && data[count - 1] != (float)horon_size(ctx))
            status = HORON_ERR_PROTO;
        if (status == HORON_OK && round % 2)
            usleep(3000); /* the progress thread finishes alone; not a synchronisation */
        for (int i = 0; i < started; i++) {
            horon_status_t ended = horon_wait(requests[i], HORON_HOST_DONE, -1);
            status = status == HORON_OK ? ended : status;
            horon_release(requests[i]);
        }
    }
    free(data);
    return status;
}

static void *run_rank(void *arg)
{
    struct rank *self = arg;
    char text[HORON_ERROR_TEXT_BYTES] = "";
    const char *settings[] = {self->store, self->shm, "JOB_KEY=a key for this test alone", NULL};
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = self->rank;
    options.size = self->size;
    options.settings = settings;
    horon_context_t *ctx = NULL;
    horon_status_t status = horon_context_create(&options, &ctx, text, sizeof text);
    if (status == HORON_OK)
        status = work(ctx, self->rank, text);
    if (status != HORON_OK)
        snprintf(self->failure, sizeof self->failure, "status %d: %s", status, text);
    horon_context_destroy(ctx);
    return NULL;
}

static void run_job(int size, const char *shm)
{
    struct rank ranks[RANKS_MAX];
    char folder[] = "/tmp/horon-test-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < size; i++) {
        ranks[i].rank = i;
        ranks[i].size = size;
        ranks[i].shm = shm;
        snprintf(ranks[i].store, sizeof ranks[i].store, "STORE=file:%s", folder);
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < size; i++)
        assert_string_equal(ranks[i].failure, "");
}

static void test_contexts_in_one_process_share_memory(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_job(size, "SHM=1");
}

static void test_contexts_in_one_process_over_tcp(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size++)
        run_job(size, "SHM=0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts_in_one_process_share_memory),
        cmocka_unit_test(test_contexts_in_one_process_over_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
