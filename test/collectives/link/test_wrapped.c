/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mux over links that are wrapped by one that changes and reframes its bytes (wrapped_link.c):
 * in rings smaller than a frame, and over TCP with a poller.
 */
#include "transfers.h"

#include "../wrapped_link.h"
#include "link/poller.h"

#include <poll.h>

enum { COUNT = 40 };
static const size_t sizes[] = {0, 1, 63, 64, 699, 700, 701, 5000, 100003};

struct traffic {
    struct horon_transfer send[COUNT], recv[COUNT];
    uint8_t *from[COUNT], *to[COUNT];
};

static void traffic_post(struct traffic *traffic, struct horon_mux *sender,
                         struct horon_mux *receiver)
{
    for (int i = 0; i < COUNT; i++) {
        const size_t bytes = sizes[(size_t)i % (sizeof sizes / sizeof *sizes)];
        traffic->from[i] = malloc(bytes + 1);
        traffic->to[i] = malloc(bytes + 1);
        fill(traffic->from[i], bytes, (uint64_t)i);
        traffic->send[i] = transfer_of(1, (uint64_t)i, traffic->from[i], bytes);
        traffic->recv[i] = transfer_of(1, (uint64_t)i, traffic->to[i], bytes);
        post_send(sender, &traffic->send[i]);
    }
    for (int i = COUNT - 1; i >= 0; i--)
        post_recv(receiver, &traffic->recv[i]);
}

static bool traffic_done(const struct traffic *traffic)
{
    for (int i = 0; i < COUNT; i++)
        if (!traffic->recv[i].done)
            return false;
    return true;
}

static void traffic_end(struct traffic *traffic)
{
    for (int i = 0; i < COUNT; i++) {
        check_filled(traffic->to[i], traffic->recv[i].bytes, (uint64_t)i);
        free(traffic->from[i]);
        free(traffic->to[i]);
    }
}

static void test_wrapped_rings_of_any_size_carry_everything(void **state)
{
    static const size_t ring_sizes[] = {1, 64, 512, 4096};
    (void)state;
    for (size_t r = 0; r < sizeof ring_sizes / sizeof *ring_sizes; r++) {
        struct mesh mesh;
        struct traffic there, back;
        const struct horon_mux_options options = mesh_options(1000, 4000);
        mesh_create_wrapped(&mesh, 2, ring_sizes[r], &options);
        traffic_post(&there, mesh.mux[0][1], mesh.mux[1][0]);
        traffic_post(&back, mesh.mux[1][0], mesh.mux[0][1]);
        do /* a frame that a link holds in part is only wished to be written */
            mesh_settle(&mesh);
        while (horon_mux_wants_write(mesh.mux[0][1]) || horon_mux_wants_write(mesh.mux[1][0]));
        assert_true(traffic_done(&there));
        assert_true(traffic_done(&back));
        traffic_end(&there);
        traffic_end(&back);
        mesh_destroy(&mesh);
    }
}

static struct horon_mux *open_end(int socket, struct horon_poller *poller,
                                  const struct horon_mux_options *options)
{
    struct horon_link *link = NULL;
    struct horon_mux *mux = NULL;
    struct horon_error error = {0};
    assert_int_equal(horon_link_tcp_create(socket, 10000, &link, &error), HORON_OK);
    link = wrapped_link_create(link);
    assert_int_equal(horon_poller_add(poller, link, &error), HORON_OK);
    assert_int_equal(horon_mux_create(link, options, &mux), HORON_OK);
    return mux;
}

/* Sleeps whenever no mux wants a turn: if anything were lost in a wrapping link, for ever. */
static void test_wrapped_tcp_goes_by_what_the_poller_finds(void **state)
{
    (void)state;
    int sockets[2];
    struct horon_mux *mux[2];
    struct traffic there, back;
    struct horon_poller *poller = NULL;
    struct horon_error error = {0};
    struct horon_mux_options options = mesh_options(1000, 4000);
    options.peer_name = "rank 1 (host-1)";
    mesh_tcp_pair(sockets);
    assert_int_equal(horon_poller_create(NULL, &poller, &error), HORON_OK);
    for (int i = 0; i < 2; i++)
        mux[i] = open_end(sockets[i], poller, &options);
    traffic_post(&there, mux[0], mux[1]);
    traffic_post(&back, mux[1], mux[0]);
    while (!traffic_done(&there) || !traffic_done(&back)) {
        bool any = false, moved = false;
        for (int i = 0; i < 2; i++) {
            if (!horon_mux_wants_turn(mux[i]))
                continue;
            any = true;
            assert_int_equal(horon_mux_progress(mux[i], &moved, &error), HORON_OK);
        }
        struct pollfd poll_for = {.fd = horon_poller_descriptor(poller), .events = POLLIN};
        if (!any)
            assert_int_equal(poll(&poll_for, 1, 10000), 1);
        horon_poller_collect(poller);
    }
    traffic_end(&there);
    traffic_end(&back);
    for (int i = 0; i < 2; i++) {
        horon_poller_remove(poller, horon_mux_link(mux[i]));
        horon_mux_destroy(mux[i]);
    }
    horon_poller_destroy(poller);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapped_rings_of_any_size_carry_everything),
        cmocka_unit_test(test_wrapped_tcp_goes_by_what_the_poller_finds),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
