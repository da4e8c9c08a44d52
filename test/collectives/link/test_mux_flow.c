/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flow control under chance: overlapping channels in opposite order with the smallest buffers, many
 * transfers posted in any order, and the two sides in threads of their own. Everything must end,
 * whole.
 */
#include "transfers.h"

#include <pthread.h>
#include <sched.h>

/* ---- opposite orders ---- */

/* One group's exchange: every member sends to and receives from all others, `steps` times in a row.
 */
struct member {
    int step;
    struct horon_transfer send[MESH_SIZE_MAX], recv[MESH_SIZE_MAX];
    uint8_t from[MESH_SIZE_MAX][300], to[MESH_SIZE_MAX][300];
    bool posted;
};

struct group {
    uint32_t channel;
    int size, steps;
    const int *ranks;
    size_t bytes;
    struct member *members; /* [size] */
};

static void member_post(struct mesh *mesh, struct group *group, int me)
{
    struct member *member = &group->members[me];
    const int rank = group->ranks[me];
    for (int i = 0; i < group->size; i++) {
        const int peer = group->ranks[i];
        if (i == me)
            continue;
        fill(member->from[i], group->bytes, (uint64_t)(rank * 100 + member->step));
        member->send[i] = transfer_of((uint64_t)member->step, 0, member->from[i], group->bytes);
        member->recv[i] = transfer_of((uint64_t)member->step, 0, member->to[i], group->bytes);
        member->send[i].id.channel = member->recv[i].id.channel = group->channel;
        post_recv(mesh->mux[rank][peer], &member->recv[i]);
        post_send(mesh->mux[rank][peer], &member->send[i]);
    }
    member->posted = true;
}

/* @return true once all steps are done */
static bool member_advance(struct mesh *mesh, struct group *group, int me)
{
    struct member *member = &group->members[me];
    if (member->step == group->steps)
        return true;
    if (!member->posted)
        member_post(mesh, group, me);
    for (int i = 0; i < group->size; i++) {
        if (i != me && !(member->send[i].done && member->recv[i].done))
            return false;
    }
    for (int i = 0; i < group->size; i++) {
        if (i != me)
            check_filled(member->to[i], group->bytes,
                         (uint64_t)(group->ranks[i] * 100 + member->step));
    }
    member->posted = false;
    member->step++;
    return member->step == group->steps;
}

/*
 * Two groups that overlap in ranks 1, 2 and 3, each a channel; of these, 2 begins the first group
 * at once, while 1 and 3 do not begin it before their part in the second one has ended. So what the
 * others send them of the first group comes unposted, and must not hold up the second one, whose
 * buffers and links are the same.
 */
static void opposite_orders(uint64_t seed)
{
    static const int first_ranks[] = {0, 1, 2, 3}, second_ranks[] = {3, 2, 1, 4};
    struct seeded random = seeded_from(seed);
    const size_t eager = 1 + (size_t)seeded_below(&random, 64);
    const struct horon_mux_options options =
        mesh_options(eager, 1 + (size_t)seeded_below(&random, 64));
    struct mesh mesh;
    struct group groups[2];
    struct member *members = calloc(8, sizeof *members);
    int left = 8;
    bool ended[2][4] = {{false}};
    mesh_create_rings(&mesh, 5, 64, &options);
    for (int g = 0; g < 2; g++)
        groups[g] = (struct group){.channel = 100 + (uint32_t)g,
                                   .size = 4,
                                   .steps = 4,
                                   .ranks = g ? second_ranks : first_ranks,
                                   .bytes = 1 + (size_t)seeded_below(&random, 299),
                                   .members = members + 4 * g};
    for (long turns = 0; left > 0; turns++) {
        const int g = (int)seeded_below(&random, 2), me = (int)seeded_below(&random, 4);
        /* odd ranks do not even begin the first group before their second one has ended */
        const int rank = groups[g].ranks[me];
        const bool held = g == 0 && rank % 2 && !ended[1][rank == 3 ? 0 : 2];
        if (!held && !ended[g][me] && member_advance(&mesh, &groups[g], me)) {
            ended[g][me] = true;
            left--;
        }
        for (int i = 0; i < 8; i++)
            mesh_progress_any(&mesh, &random);
        if (turns > 2000000)
            fail_msg("seed %llu does not end", (unsigned long long)seed);
    }
    mesh_destroy(&mesh);
    free(members);
}

static void test_mux_overlapping_channels_in_opposite_order_finish(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++)
        opposite_orders(seed);
}

/* ---- everything at once ---- */

enum { SOAK_TRANSFERS = 60 };

struct soak_item {
    int from;
    bool send_posted, recv_posted;
    struct horon_transfer send, recv;
    uint8_t *data[2];
};

static void soak(uint64_t seed)
{
    struct seeded random = seeded_from(seed);
    const struct horon_mux_options options =
        mesh_options((size_t)seeded_below(&random, 3000), (size_t)seeded_below(&random, 10000));
    struct mesh mesh;
    static struct soak_item items[SOAK_TRANSFERS];
    memset(items, 0, sizeof items);
    mesh_create_rings(&mesh, 2, (size_t)16 << seeded_below(&random, 11), &options);
    for (uint64_t i = 0; i < SOAK_TRANSFERS; i++) {
        struct soak_item *item = &items[i];
        const size_t bytes =
            seeded_below(&random, 4) ? (size_t)seeded_below(&random, 5000) : (size_t)i % 3;
        item->from = (int)seeded_below(&random, 2);
        item->data[0] = malloc(bytes + 1);
        item->data[1] = malloc(bytes + 1);
        fill(item->data[0], bytes, i);
        item->send = transfer_of(i / 7, i, item->data[0], bytes);
        item->recv = transfer_of(i / 7, i, item->data[1], bytes);
    }
    for (int left = 2 * SOAK_TRANSFERS; left > 0;) {
        struct soak_item *item = &items[seeded_below(&random, SOAK_TRANSFERS)];
        if (seeded_below(&random, 2) && !item->send_posted) {
            post_send(mesh.mux[item->from][!item->from], &item->send);
            item->send_posted = true;
            left--;
        } else if (!item->recv_posted) {
            post_recv(mesh.mux[!item->from][item->from], &item->recv);
            item->recv_posted = true;
            left--;
        }
        for (uint64_t i = seeded_below(&random, 6); i > 0; i--)
            mesh_progress_any(&mesh, &random);
    }
    mesh_settle(&mesh);
    for (uint64_t i = 0; i < SOAK_TRANSFERS; i++) {
        assert_true(items[i].send.done);
        assert_true(items[i].recv.done);
        check_filled(items[i].data[1], items[i].recv.bytes, i);
        free(items[i].data[0]);
        free(items[i].data[1]);
    }
    check_room(&mesh, 0, &options);
    check_room(&mesh, 1, &options);
    mesh_destroy(&mesh);
}

static void test_mux_of_many_transfers_in_random_order_delivers_all(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++)
        soak(seed);
}

/* ---- two threads ---- */

enum { THREAD_TRANSFERS = 40 };

struct half {
    struct horon_mux *mux;
    int rank;
    struct horon_transfer send[THREAD_TRANSFERS], recv[THREAD_TRANSFERS];
    uint8_t from[THREAD_TRANSFERS][3000], to[THREAD_TRANSFERS][3000];
    bool failed;
};

/* Sends all in order, receives all from the last to the first. cmocka is not for threads: it is the
 * main one that looks at the results. */
static void *drive_half(void *arg)
{
    struct half *half = arg;
    for (int i = 0; i < THREAD_TRANSFERS; i++) {
        const int last = THREAD_TRANSFERS - 1 - i;
        half->failed |= horon_mux_post_send(half->mux, &half->send[i], NULL) != HORON_OK;
        half->failed |= horon_mux_post_recv(half->mux, &half->recv[last], NULL) != HORON_OK;
    }
    for (int left = THREAD_TRANSFERS; left > 0 && !half->failed;) {
        bool moved = false;
        half->failed |= horon_mux_progress(half->mux, &moved, NULL) != HORON_OK;
        while (left > 0 && half->send[left - 1].done && half->recv[left - 1].done)
            left--;
        if (!moved)
            sched_yield();
    }
    return NULL;
}

static void test_mux_between_two_threads_delivers_all(void **state)
{
    (void)state;
    static struct half halves[2];
    struct mesh mesh;
    const struct horon_mux_options options = mesh_options(500, 2000);
    pthread_t threads[2];
    mesh_create_rings(&mesh, 2, 256, &options);
    for (int r = 0; r < 2; r++) {
        halves[r].mux = mesh.mux[r][!r];
        halves[r].rank = r;
        for (size_t i = 0; i < THREAD_TRANSFERS; i++) {
            const size_t bytes = i * 73;
            fill(halves[r].from[i], bytes, i + 100 * (size_t)r);
            halves[r].send[i] = transfer_of(i, 0, halves[r].from[i], bytes);
            halves[r].recv[i] = transfer_of(i, 0, halves[r].to[i], bytes);
        }
    }
    for (int r = 0; r < 2; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, drive_half, &halves[r]), 0);
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < 2; r++) {
        assert_false(halves[r].failed);
        for (size_t i = 0; i < THREAD_TRANSFERS; i++)
            check_filled(halves[r].to[i], i * 73, i + 100 * (size_t)!r);
    }
    mesh_destroy(&mesh);
}

static horon_status_t drop_control(void *arg, int peer, const void *bytes, size_t byte_count,
                                   struct horon_error *error)
{
    (void)arg;
    (void)peer;
    (void)bytes;
    (void)byte_count;
    (void)error;
    return HORON_OK;
}

/* Its reader has made room while the writer was awake, and told it nothing: a rank that falls
 * asleep then looks by itself, or sends the rest never. */
static void test_mux_over_a_ring_that_has_room_again_is_unsent(void **state)
{
    (void)state;
    static const uint8_t words[600] = {0};
    struct horon_mux_options options = mesh_options(64, 1024);
    struct mesh mesh;
    options.on_control = drop_control;
    mesh_create_rings(&mesh, 2, 64, &options);
    assert_int_equal(horon_mux_post_control(mesh.mux[0][1], words, sizeof words), HORON_OK);
    for (int turn = 0; turn < 3; turn++) {
        assert_true(horon_mux_has_unsent(mesh.mux[0][1]));
        assert_int_equal(horon_mux_progress(mesh.mux[0][1], &(bool){false}, NULL), HORON_OK);
        assert_true(horon_mux_wants_write(mesh.mux[0][1]));
        assert_false(horon_mux_has_unsent(mesh.mux[0][1]));
        assert_int_equal(horon_mux_progress(mesh.mux[1][0], &(bool){false}, NULL), HORON_OK);
    }
    mesh_settle(&mesh);
    assert_false(horon_mux_has_unsent(mesh.mux[0][1]));
    mesh_destroy(&mesh);
}

/* The last word of a channel goes ahead of its sends that wait: those would be nobody's. */
static void test_mux_forgotten_channel_sends_no_more(void **state)
{
    (void)state;
    static uint8_t data[16];
    const struct horon_mux_options options = mesh_options(1000, 4000);
    struct horon_transfer send = transfer_of(9, 1, data, sizeof data);
    struct mesh mesh;
    uint64_t sent, received;
    mesh_create_rings(&mesh, 2, 1024, &options);
    post_send(mesh.mux[0][1], &send);
    horon_mux_forget_channel(mesh.mux[0][1], send.id.channel);
    mesh_settle(&mesh);
    assert_false(send.done);
    horon_mux_bytes(mesh.mux[1][0], &sent, &received);
    assert_int_equal(received, 0);
    check_room(&mesh, 0, &options);
    check_room(&mesh, 1, &options);
    mesh_destroy(&mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_overlapping_channels_in_opposite_order_finish),
        cmocka_unit_test(test_mux_of_many_transfers_in_random_order_delivers_all),
        cmocka_unit_test(test_mux_between_two_threads_delivers_all),
        cmocka_unit_test(test_mux_forgotten_channel_sends_no_more),
        cmocka_unit_test(test_mux_over_a_ring_that_has_room_again_is_unsent),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
