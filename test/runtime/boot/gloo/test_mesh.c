/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes of ranks that are threads, in both eras; and of one with peers that lie, or are none. */
#undef NDEBUG
#include "mesh_world.h"

#include "../../../free_port.h"
#include "codec.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>

static const enum horon_gloo_era eras[] = {HORON_GLOO_ERA_1, HORON_GLOO_ERA_3};

/* Each pair's two ends are one connection. */
static void check_pairs(struct rank *ranks, int size)
{
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            if (i != j) {
                const uint8_t said[2] = {(uint8_t)i, (uint8_t)j};
                assert_int_equal(send(ranks[i].sockets[j], said, 2, 0), 2);
            }
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            if (i != j) {
                uint8_t heard[3];
                struct pollfd fd = {.fd = ranks[j].sockets[i], .events = POLLIN};
                assert_int_equal(poll(&fd, 1, -1), 1);
                assert_int_equal(recv(fd.fd, heard, 3, MSG_DONTWAIT), 2);
                assert_int_equal(heard[0], i);
                assert_int_equal(heard[1], j);
            }
}

static void test_mesh_of_threads_is_whole(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    struct rank ranks[RANKS_MAX];
    for (int e = 0; e < 2; e++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "%d/%zu", e, s);
            for (int i = 0; i < sizes[s]; i++) {
                start(*state, &ranks[i], eras[e], i, sizes[s]);
                horon_gloo_store_nest(ranks[i].options.store, prefix, NULL);
                go(&ranks[i]);
            }
            for (int i = 0; i < sizes[s]; i++)
                assert_int_equal(join(&ranks[i]), HORON_OK);
            for (int i = 0; i < sizes[s]; i++)
                assert_int_equal(ranks[i].sockets[i], -1);
            check_pairs(ranks, sizes[s]);
            for (int i = 0; i < sizes[s]; i++)
                close_sockets(&ranks[i]);
        }
    }
}

static void test_mesh_strangers_keep_nobody_waiting(void **state)
{
    enum { SILENT = 80 }; /* more than may wait */
    struct world *world = *state;
    struct rank here;
    int silent[SILENT];
    const int64_t wrong = 7, right = 1;
    start(world, &here, HORON_GLOO_ERA_3, 0, 2);
    go(&here);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_3, 2, 0, 1);
    for (int i = 0; i < SILENT; i++)
        silent[i] = connect_to(&peer.address.at);
    int liar = connect_to(&peer.address.at);
    assert_int_equal(send(liar, &wrong, 8, 0), 8);
    int own = connect_to(&peer.address.at);
    assert_int_equal(send(own, &(int64_t){0}, 8, 0), 8);
    int gone = connect_to(&peer.address.at);
    assert_int_equal(send(gone, "x", 1, 0), 1);
    close(gone);
    int real = connect_to(&peer.address.at);
    assert_int_equal(send(real, &right, 3, 0), 3); /* in pieces, and before it has published */
    assert_int_equal(send(real, (const char *)&right + 3, 5, 0), 5);
    publish(world, HORON_GLOO_ERA_3, 2, 1, "127.9.9.9", 9);
    assert_int_equal(join(&here), HORON_OK);
    assert_int_equal(world->warnings, 2); /* that it is linked; and once, whatever comes */
    assert_int_equal(send(here.sockets[1], "hi", 2, 0), 2);
    char heard[2];
    assert_int_equal(recv(real, heard, 2, MSG_WAITALL), 2);
    assert_int_equal(recv(liar, heard, 2, 0), 0);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    close(liar);
    close(own);
    close(real);
    close_sockets(&here);
}

static void test_mesh_of_era_1_prefers_the_host_that_was_published(void **state)
{
    struct world *world = *state;
    struct rank here;
    start(world, &here, HORON_GLOO_ERA_1, 0, 3);
    go(&here);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_1, 3, 0, 1);
    int stranger = connect_to(&peer.address.at); /* from 127.0.0.1 */
    publish(world, HORON_GLOO_ERA_1, 3, 1, "127.9.9.9", 9);
    int real = connect_from("127.9.9.9", &peer.address.at);
    char heard[2];
    assert_int_equal(recv(stranger, heard, 2, 0), 0); /* it was displaced, in whatever order */
    const struct horon_gloo_peer other = published(world, HORON_GLOO_ERA_1, 3, 0, 2);
    int last = connect_to(&other.address.at);
    publish(world, HORON_GLOO_ERA_1, 3, 2, "127.9.9.9", 10);
    assert_int_equal(join(&here), HORON_OK);
    assert_int_equal(send(here.sockets[1], "hi", 2, 0), 2);
    assert_int_equal(recv(real, heard, 2, MSG_WAITALL), 2);
    close(stranger);
    close(real);
    close(last);
    close_sockets(&here);
}

static void test_mesh_a_rank_that_does_not_come_is_named(void **state)
{
    struct world *world = *state;
    struct rank here;
    for (int e = 0; e < 2; e++) {
        start(world, &here, eras[e], 0, 4);
        here.options.deadline_ns = horon_clock_deadline(horon_clock_ns(), 30);
        horon_gloo_store_nest(here.options.store, e ? "3" : "1", NULL);
        horon_gloo_store_destroy(world->others);
        world->others = horon_gloo_hash_store(world->hash);
        horon_gloo_store_nest(world->others, e ? "3" : "1", NULL);
        publish(world, eras[e], 4, 2, "127.9.9.9", 9);
        go(&here);
        join(&here);
        expect_failure(
            &here, HORON_ERR_TIMEOUT,
            "rank 1 has published nothing; rank 2 at 127.9.9.9:9 has not connected; rank 3 has");
        assert_int_equal(here.error.blame.rank, 1);
        assert_int_equal(here.error.blame.cause, HORON_CAUSE_ABSENT);
    }
}

static void test_mesh_a_rank_that_comes_late_is_named_before(void **state)
{
    struct world *world = *state;
    struct rank ranks[2];
    for (int r = 0; r < 2; r++)
        start(world, &ranks[r], HORON_GLOO_ERA_3, r, 2);
    ranks[0].options.slow_ns = 1;
    go(&ranks[0]);
    while (world->slow == 0)
        sched_yield();
    go(&ranks[1]);
    for (int r = 0; r < 2; r++)
        assert_int_equal(join(&ranks[r]), HORON_OK);
    assert_int_equal(world->slow, 1);
    assert_non_null(strstr(world->waits, " s: rank 1 has published nothing"));
    check_pairs(ranks, 2);
    for (int r = 0; r < 2; r++)
        close_sockets(&ranks[r]);
}

/* As a rank of torch's that connects lazily publishes: its address, and no ids. */
static void publish_lazily(struct world *world, const char *key, const char *host)
{
    uint8_t bytes[512];
    struct horon_gloo_address there = {.sequence = HORON_GLOO_NO_SEQUENCE};
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    assert_true(horon_address_parse(host, 9, &there.at));
    horon_write_u64(&out, 0);
    horon_write_u64(&out, HORON_GLOO_ADDRESS_BYTES);
    horon_gloo_address_write(&out, &there);
    assert_int_equal(
        horon_gloo_store_set(world->others, key, bytes, out.used, &no_limit, &world->error),
        HORON_OK);
}

static void test_mesh_a_rank_that_is_lazy_is_told(void **state)
{
    struct world *world = *state;
    struct rank here;
    publish_lazily(world, "1", "127.9.9.9");
    start(world, &here, HORON_GLOO_ERA_3, 0, 2);
    here.options.deadline_ns = horon_clock_deadline(horon_clock_ns(), 30);
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_TIMEOUT, "TORCH_GLOO_LAZY_INIT");
    expect_failure(&here, HORON_ERR_TIMEOUT, "unset it there; rank 0 listens at 127.0.0.1, ");
    expect_failure(&here, HORON_ERR_TIMEOUT, "; rank 1 at 127.9.9.9:9 has not connected");
}

/* Whatever the interfaces, and whichever rank is Gloo's: here it is 0, at another host. */
static void test_mesh_the_lowest_rank_of_horon_warns(void **state)
{
    struct world *world = *state, told[2] = {0};
    struct rank ranks[2];
    int fds[2];
    publish_lazily(world, "0", "192.0.2.1");
    for (int i = 0; i < 2; i++) {
        start(world, &ranks[i], HORON_GLOO_ERA_3, 1 + i, 3);
        told[i].log = (struct horon_log){.fn = note, .arg = &told[i], .level = HORON_LOG_WARN};
        ranks[i].options.log = &told[i].log;
        go(&ranks[i]);
        const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_3, 3, 1 + i, 0);
        fds[i] = connect_to(&peer.address.at);
        assert_int_equal(send(fds[i], &(int64_t){0}, 8, 0), 8);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(&ranks[i]), HORON_OK);
    assert_int_equal(told[0].warnings, 1);
    assert_int_equal(told[1].warnings, 0);
    assert_non_null(
        strstr(told[0].last, "rank 0 is linked with ranks of Gloo at 192.0.2.1, where "));
    for (int i = 0; i < 2; i++)
        close(fds[i]), close_sockets(&ranks[i]);
}

static void test_mesh_an_address_that_is_left_from_before_is_told(void **state)
{
    struct world *world = *state;
    struct rank here;
    struct horon_address gone;
    assert_true(horon_address_parse("127.0.0.1", 0, &gone));
    int fd = horon_address_listen(&gone);
    assert_true(fd >= 0);
    close(fd);
    for (int e = 0; e < 2; e++) {
        start(world, &here, eras[e], 0, 2);
        here.options.interfaces = "127.0.0.0/8";
        /* lower than ours, so that we connect */
        publish(world, eras[e], 2, 1, "0.0.0.0", horon_address_port(&gone));
        go(&here);
        join(&here);
        expect_failure(&here, HORON_ERR_PEER_LOST, "nothing listens");
        assert_int_equal(here.error.blame.rank, 1);
    }
}

/* "there" is on another host; its port is below ours as Gloo compares them, so that we connect. */
static void test_mesh_a_loopback_of_another_host_is_told(void **state)
{
    struct world *world = *state;
    struct rank here;
    for (int e = 0; e < 2; e++) {
        start(world, &here, eras[e], 0, 2);
        publish(world, eras[e], 2, 1, "127.0.0.1", 256);
        go(&here);
        join(&here);
        if (eras[e] == HORON_GLOO_ERA_1) {
            expect_failure(&here, HORON_ERR_PEER_LOST,
                           "or it is on another host, where HORON_INTER");
            continue;
        }
        expect_failure(&here, HORON_ERR_CONFIG,
                       "rank 1 is on host there and published 127.0.0.1:256, which only that host "
                       "reaches: choose its network there, with HORON_INTERFACES");
        assert_int_equal(here.error.blame.rank, 1);
        assert_int_equal(here.error.blame.cause, HORON_CAUSE_SETTING);
    }
}

static void test_mesh_a_rank_that_no_other_host_reaches_is_told(void **state)
{
    static const char *const hosts[] = {"192.0.2.77", "127.9.9.9"};
    struct world *world = *state;
    struct rank here;
    for (int i = 0; i < 4; i++) {
        char prefix[2] = {(char)('0' + i), 0};
        start(world, &here, eras[i / 2], 0, 2);
        here.options.deadline_ns = horon_clock_deadline(horon_clock_ns(), 30);
        horon_gloo_store_nest(here.options.store, prefix, NULL);
        horon_gloo_store_destroy(world->others);
        world->others = horon_gloo_hash_store(world->hash);
        horon_gloo_store_nest(world->others, prefix, NULL);
        publish(world, eras[i / 2], 2, 1, hosts[i % 2], 9);
        go(&here);
        join(&here);
        expect_failure(&here, HORON_ERR_TIMEOUT,
                       ": rank 0 listens at 127.0.0.1, which no other host reaches: where ranks "
                       "are on several, choose a network with HORON_INTERFACES; rank 1 at ");
    }
}

/* So many that the text is cut behind some of them. */
static void test_mesh_the_reason_stands_before_many_that_lack(void **state)
{
    struct world *world = *state;
    struct rank here;
    start(world, &here, HORON_GLOO_ERA_3, 0, RANKS_MAX);
    here.options.deadline_ns = 1; /* long ago */
    for (int i = 1; i < RANKS_MAX; i++)
        publish(world, HORON_GLOO_ERA_3, RANKS_MAX, i, "192.0.2.77", i);
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_TIMEOUT, "choose a network with HORON_INTERFACES; rank 1 at ");
    assert_int_equal(strlen(here.error.text), sizeof here.error.text - 1);
    assert_int_equal(here.error.blame.rank, 1);
}

static struct horon_gloo_store *open_store(const char *url, int rank)
{
    struct horon_gloo_store *store = NULL;
    struct horon_error error;
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = "", .rank = rank, .size = 2, .serve = true, .wait = no_limit};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
    return store;
}

/* In a store that takes a key twice: of another process, or of a job that was killed. */
static void expect_refusal(struct world *world, const char *url)
{
    struct rank here;
    struct horon_gloo_store *before = open_store(url, 0);
    assert_int_equal(horon_gloo_store_set(before, "1", "it", 2, &no_limit, NULL), HORON_OK);
    start(world, &here, HORON_GLOO_ERA_3, 1, 2);
    horon_gloo_store_destroy(here.options.store);
    here.options.store = open_store(url, 1);
    go(&here);
    join(&here);
    horon_gloo_store_destroy(before);
    expect_failure(&here, HORON_ERR_INVALID, "has a rank 1 already: two processes have that rank");
    assert_int_equal(here.error.blame.rank, 1);
}

static void test_mesh_a_rank_that_is_there_already_is_refused(void **state)
{
    char path[] = "/tmp/horon-test-mesh-XXXXXX", url[64];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(url, sizeof url, "c10d-file:%s", path);
    expect_refusal(*state, url);
    unlink(path);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    expect_refusal(*state, url);
}

static void test_mesh_nonsense_and_other_eras_are_refused(void **state)
{
    struct world *world = *state;
    struct rank here;
    publish(world, HORON_GLOO_ERA_1, 2, 1, "127.0.0.1", 9);
    start(world, &here, HORON_GLOO_ERA_3, 0, 2);
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_CONFIG, "HORON_GLOO_ERA=e1");
    struct horon_gloo_value value;
    assert_int_equal(horon_gloo_store_get(world->others, "0", &value, &no_limit, NULL),
                     HORON_AGAIN); /* it would have made the other crash */
    assert_int_equal(horon_gloo_store_set(world->others, "1", "x", 1, &no_limit, NULL), HORON_OK);
    start(world, &here, HORON_GLOO_ERA_3, 0, 2);
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_PROTO, "rank 1 published, 1 bytes");
    publish(world, HORON_GLOO_ERA_3, 2, 1, "::1", 9);
    start(world, &here, HORON_GLOO_ERA_3, 0, 2);
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_CONFIG, "one family");
}

static int no(void *arg)
{
    return ++*(int *)arg > 2;
}

static void test_mesh_an_interrupted_wait_ends(void **state)
{
    struct rank here;
    int asked = 0;
    start(*state, &here, HORON_GLOO_ERA_3, 0, 2);
    here.options.deadline_ns = UINT64_MAX;
    here.options.interrupted = no;
    here.options.interrupted_arg = &asked;
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_CANCELLED, "interrupted");
}

static void test_mesh_what_is_no_rank_is_refused(void **state)
{
    struct rank here;
    start(*state, &here, HORON_GLOO_ERA_3, 2, 2);
    go(&here);
    assert_int_equal(join(&here), HORON_ERR_INVALID);
    start(*state, &here, HORON_GLOO_ERA_2, 0, 2);
    go(&here);
    assert_int_equal(join(&here), HORON_ERR_INVALID);
    start(*state, &here, HORON_GLOO_ERA_3, 0, 2);
    here.options.interfaces = "none0";
    go(&here);
    join(&here);
    expect_failure(&here, HORON_ERR_CONFIG, "HORON_INTERFACES=none0");
}

/* A store in which the time of the caller is over once it has found something. */
struct last_store {
    struct horon_gloo_store base, *real;
};

static horon_status_t last_set(struct horon_gloo_store *base, const char *key, const void *bytes,
                               size_t count, const struct horon_gloo_wait *wait,
                               struct horon_error *error)
{
    return horon_gloo_store_set(((struct last_store *)base)->real, key, bytes, count, wait, error);
}

static horon_status_t last_get(struct horon_gloo_store *base, const char *key,
                               struct horon_gloo_value *value_out,
                               const struct horon_gloo_wait *wait, struct horon_error *error)
{
    struct horon_gloo_store *real = ((struct last_store *)base)->real;
    const horon_status_t status = horon_gloo_store_get(real, key, value_out, wait, error);
    if (status == HORON_OK) /* it is the mesh's own, which is no constant */
        ((struct horon_gloo_wait *)wait)->deadline_ns = 0;
    return status;
}

static void last_destroy(struct horon_gloo_store *base)
{
    horon_gloo_store_destroy(((struct last_store *)base)->real);
}

/* As rank 0 of so many. */
static void start_last(struct world *world, struct rank *here, struct last_store *last, int size)
{
    static const struct horon_gloo_store_ops ops = {
        .name = "last", .set = last_set, .get = last_get, .destroy = last_destroy};
    start(world, here, HORON_GLOO_ERA_3, 0, size);
    *last = (struct last_store){.base.ops = &ops, .real = here->options.store};
    here->options.store = &last->base;
    go(here);
}

static void test_mesh_that_is_whole_as_the_time_ends_is_taken(void **state)
{
    struct world *world = *state;
    struct rank here;
    struct last_store last;
    const int64_t rank = 1;
    start_last(world, &here, &last, 2);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_3, 2, 0, 1);
    int real = connect_to(&peer.address.at), second = connect_to(&peer.address.at);
    assert_int_equal(send(real, &rank, sizeof rank, 0), sizeof rank);
    assert_int_equal(send(second, &rank, sizeof rank, 0), sizeof rank);
    struct pollfd refused[] = {{.fd = real, .events = POLLIN}, {.fd = second, .events = POLLIN}};
    assert_int_equal(poll(refused, 2, -1), 1); /* one of them: the other one has been heard */
    publish(world, HORON_GLOO_ERA_3, 2, 1, "127.9.9.9", 9);
    join(&here);
    close(real);
    close(second);
    assert_int_equal(here.status, HORON_OK);
    close_sockets(&here);
}

static void test_mesh_strangers_are_told_before_many_that_lack(void **state)
{
    struct world *world = *state;
    struct rank here;
    struct last_store last;
    const int64_t none = -1;
    char heard;
    start_last(world, &here, &last, RANKS_MAX);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_3, RANKS_MAX, 0, 1);
    int stranger = connect_to(&peer.address.at);
    assert_int_equal(send(stranger, &none, sizeof none, 0), sizeof none);
    assert_int_equal(recv(stranger, &heard, 1, 0), 0);
    close(stranger);
    publish(world, HORON_GLOO_ERA_3, RANKS_MAX, 1, "127.9.9.9", 9);
    join(&here);
    expect_failure(&here, HORON_ERR_TIMEOUT, "1 connections of others were refused, last of 127.");
    assert_int_equal(strlen(here.error.text), sizeof here.error.text - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_mesh_of_threads_is_whole),
        IN_WORLD(test_mesh_strangers_keep_nobody_waiting),
        IN_WORLD(test_mesh_of_era_1_prefers_the_host_that_was_published),
        IN_WORLD(test_mesh_a_rank_that_does_not_come_is_named),
        IN_WORLD(test_mesh_a_rank_that_comes_late_is_named_before),
        IN_WORLD(test_mesh_a_rank_that_is_lazy_is_told),
        IN_WORLD(test_mesh_the_lowest_rank_of_horon_warns),
        IN_WORLD(test_mesh_an_address_that_is_left_from_before_is_told),
        IN_WORLD(test_mesh_a_loopback_of_another_host_is_told),
        IN_WORLD(test_mesh_a_rank_that_no_other_host_reaches_is_told),
        IN_WORLD(test_mesh_the_reason_stands_before_many_that_lack),
        IN_WORLD(test_mesh_a_rank_that_is_there_already_is_refused),
        IN_WORLD(test_mesh_nonsense_and_other_eras_are_refused),
        IN_WORLD(test_mesh_an_interrupted_wait_ends),
        IN_WORLD(test_mesh_that_is_whole_as_the_time_ends_is_taken),
        IN_WORLD(test_mesh_strangers_are_told_before_many_that_lack),
        IN_WORLD(test_mesh_what_is_no_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
