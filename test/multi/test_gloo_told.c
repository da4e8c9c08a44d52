/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank among Gloo's ranks has to be told, and what it says before it joins. Ranks are
 * threads; the environment says nothing but what a test sets while there is one thread.
 */
#undef NDEBUG
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <assert.h>
#include <horon/horon.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_MAX 4

struct told {
    int rank, size;
    const char *settings[SETTINGS_MAX];
    horon_status_t created;
    char why[HORON_ERROR_TEXT_BYTES];
    int lines; /* as said at the default level */
    char line[1024];
    uint8_t sum[2]; /* of true, by an allreduce and a reduce-scatter of a row a rank */
};

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct told *told = arg;
    (void)level;
    told->lines++;
    snprintf(told->line, sizeof told->line, "%s", text);
}

static void add_up(struct told *told, horon_context_t *ctx)
{
    static const uint8_t rows[2] = {1, 1};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_BOOL;
    desc.flags = HORON_IN_ORDER;
    desc.src = rows;
    desc.dst = &told->sum[0];
    desc.count = 1;
    assert(horon_run(ctx, &desc, -1, told->why, sizeof told->why) == HORON_OK);
    desc.verb = HORON_REDUCESCATTER;
    desc.dst = &told->sum[1];
    desc.count = (uint64_t)horon_size(ctx);
    desc.dst_count = 1;
    assert(horon_run(ctx, &desc, -1, told->why, sizeof told->why) == HORON_OK);
}

/* @return as told->created: joins, adds up with the other rank, and leaves */
static horon_status_t join(struct told *told)
{
    horon_context_t *ctx = NULL;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = told->rank;
    options.size = told->size;
    options.settings = told->settings;
    options.log_fn = hear;
    options.log_arg = told;
    told->created = horon_context_create(&options, &ctx, told->why, sizeof told->why);
    if (told->created == HORON_OK && horon_size(ctx) == 2)
        add_up(told, ctx);
    horon_context_destroy(ctx);
    return told->created;
}

static int begin_clean(void **state)
{
    static const char *const names[] = {"HORON_RANK", "HORON_SIZE"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

static void test_gloo_told_no_place_is_no_job_of_one(void **state)
{
    struct told told = {.rank = -1, .size = -1, .settings = {"GLOO_STORE=hash:nowhere"}};
    (void)state;
    assert_int_equal(join(&told), HORON_ERR_CONFIG);
    if (!strstr(told.why, "set HORON_RANK and HORON_SIZE"))
        fail_msg("%s", told.why);
    setenv("HORON_RANK", "0", 1);
    setenv("HORON_SIZE", "1", 1);
    assert_int_equal(join(&told), HORON_OK);
    begin_clean(NULL);
    told.rank = 0;
    told.size = 1;
    assert_int_equal(join(&told), HORON_OK);
    told = (struct told){.rank = -1, .size = -1};
    assert_int_equal(join(&told), HORON_OK); /* nor are there others without a store */
}

static void test_gloo_told_a_list_of_ranks_is_refused(void **state)
{
    struct told told = {.size = 2, .settings = {"GLOO_STORE=hash:listed", "RANKS=0,1", NULL}};
    (void)state;
    assert_int_equal(join(&told), HORON_ERR_CONFIG);
    if (!strstr(told.why, "HORON_RANKS and HORON_GLOO_STORE exclude each other"))
        fail_msg("%s", told.why);
}

/* Alone, as nobody comes: it is not told once all have met. */
static void test_gloo_told_of_another_backend_is_refused_before_it_joins(void **state)
{
    static const char *const backends[] = {"BACKEND=mpi", "BACKEND=native,mpi", "BACKEND=none"};
    (void)state;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        struct told told = {.size = 2, .settings = {"GLOO_STORE=hash:other", backends[i], NULL}};
        assert_int_equal(join(&told), HORON_ERR_CONFIG);
        if (!strstr(told.why, i == 2 ? "\"none\", which is no backend here"
                                     : "(HORON_GLOO_STORE) there is no backend but gloo: leave "
                                       "one of the two out"))
            fail_msg("%s", told.why);
        if (strncmp(told.why, "HORON_BACKEND names ", 20) != 0)
            fail_msg("%s", told.why);
    }
}

static void *join_thread(void *arg)
{
    join(arg);
    return NULL;
}

static void join_both(struct told *told)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert(!pthread_create(&threads[i], NULL, join_thread, &told[i]));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        if (told[i].created != HORON_OK)
            fail_msg("rank %d: %s", i, told[i].why);
}

/* Two ranks, that listen as @p interfaces says. */
static void begin_two(struct told *told, const char *interfaces)
{
    for (int i = 0; i < 2; i++)
        told[i] = (struct told){
            .rank = i, .size = 2, .settings = {"GLOO_STORE=hash:two", interfaces, NULL}};
}

static void join_two(struct told *told, const char *interfaces)
{
    begin_two(told, interfaces);
    join_both(told);
}

static void expect_line(const struct told *told, const char *part)
{
    if (told->lines != 1 || !strstr(told->line, part) || strstr(told->line, "set HORON_INTERFACES"))
        fail_msg("rank %d: %d lines: %s", told->rank, told->lines, told->line);
}

static void test_gloo_told_of_loopback_one_rank_warns_of_it(void **state)
{
    static const char *const loopback[] = {"INTERFACES=", "INTERFACES=lo"};
    struct told told[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        join_two(told, loopback[i]);
        expect_line(&told[0], "at 127.0.0.1, which all users of this machine reach");
        assert_int_equal(told[1].lines, 0);
    }
}

/* @return an address of this machine that is not the loopback; false: there is none */
static bool find_address(char text[INET_ADDRSTRLEN])
{
    struct ifaddrs *all = NULL;
    bool found = false;
    assert(getifaddrs(&all) == 0);
    for (const struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        const struct sockaddr_in *at = (const void *)one->ifa_addr;
        if (!at || at->sin_family != AF_INET || ntohl(at->sin_addr.s_addr) >> 24 == 127)
            continue;
        found = inet_ntop(AF_INET, &at->sin_addr, text, INET_ADDRSTRLEN) != NULL;
    }
    freeifaddrs(all);
    return found;
}

static void test_gloo_told_of_a_network_one_rank_warns_of_it(void **state)
{
    char address[INET_ADDRSTRLEN], interfaces[64], part[128];
    struct told told[2];
    (void)state;
    if (!find_address(address)) {
        fprintf(stderr, "# this machine has no address but the loopback\n");
        skip();
    }
    snprintf(interfaces, sizeof interfaces, "INTERFACES=%s", address);
    snprintf(part, sizeof part, "at %s, where whatever reaches it", address);
    join_two(told, interfaces);
    expect_line(&told[0], part);
    assert_int_equal(told[1].lines, 0);
}

/* As horon.h says. */
static void test_gloo_told_of_two_that_are_true_sums_bytes(void **state)
{
    struct told told[2];
    (void)state;
    join_two(told, "INTERFACES=");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(told[i].sum[0], 2);
        assert_int_equal(told[i].sum[1], 1);
    }
}

static void test_gloo_told_of_no_store_is_refused_unwarned(void **state)
{
    struct told told = {.rank = 0, .size = 2, .settings = {"GLOO_STORE=redis://here"}};
    (void)state;
    assert_int_equal(join(&told), HORON_ERR_CONFIG);
    if (!strstr(told.why, "'redis://here' is no Gloo store"))
        fail_msg("%s", told.why);
    assert_int_equal(told.lines, 0);
}

static void test_gloo_told_how_but_not_where_is_warned_of(void **state)
{
    struct told told = {.size = 1, .settings = {"GLOO_PREFIX=a", "GLOO_ERA=e1", NULL}};
    (void)state;
    assert_int_equal(join(&told), HORON_OK);
    expect_line(&told, "as HORON_GLOO_STORE is not: HORON_GLOO_PREFIX, HORON_GLOO_ERA");
    told = (struct told){.size = 1, .settings = {"GLOO_NATIVE=0", NULL}};
    assert_int_equal(join(&told), HORON_OK);
    expect_line(&told, "as HORON_GLOO_STORE is not: HORON_GLOO_NATIVE");
    told = (struct told){.size = 1, .settings = {"GLOO_PREFIX=", "GLOO_ERA=auto", NULL}};
    assert_int_equal(join(&told), HORON_OK);
    assert_int_equal(told.lines, 0);
    told = (struct told){.size = 1, .settings = {"GLOO_STORE=hash:one", "GLOO_PREFIX=a", NULL}};
    assert_int_equal(join(&told), HORON_OK);
    assert_int_equal(told.lines, 0); /* nor of links, as it has none */
}

/* As horovodrun tells the first of two on a host; the other one is told by its caller. */
static void test_gloo_told_of_ranks_on_its_host_is_unwarned(void **state)
{
    static const char *const variables[][2] = {
        {"HOROVOD_RANK", "0"},       {"HOROVOD_SIZE", "2"},       {"HOROVOD_LOCAL_RANK", "0"},
        {"HOROVOD_LOCAL_SIZE", "2"}, {"HOROVOD_CROSS_RANK", "0"}, {"HOROVOD_CROSS_SIZE", "1"}};
    const size_t count = sizeof variables / sizeof variables[0];
    struct told told[2];
    (void)state;
    for (size_t i = 0; i < count; i++)
        setenv(variables[i][0], variables[i][1], 1);
    begin_two(told, "INTERFACES=");
    told[0].rank = told[0].size = -1;
    join_both(told);
    expect_line(&told[0], "is linked with ranks of Gloo");
    for (size_t i = 0; i < count; i++)
        unsetenv(variables[i][0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_gloo_told_no_place_is_no_job_of_one, begin_clean),
        cmocka_unit_test(test_gloo_told_a_list_of_ranks_is_refused),
        cmocka_unit_test(test_gloo_told_of_another_backend_is_refused_before_it_joins),
        cmocka_unit_test(test_gloo_told_of_loopback_one_rank_warns_of_it),
        cmocka_unit_test(test_gloo_told_of_a_network_one_rank_warns_of_it),
        cmocka_unit_test(test_gloo_told_of_two_that_are_true_sums_bytes),
        cmocka_unit_test(test_gloo_told_of_no_store_is_refused_unwarned),
        cmocka_unit_test(test_gloo_told_how_but_not_where_is_warned_of),
        cmocka_unit_test(test_gloo_told_of_ranks_on_its_host_is_unwarned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
