/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of threads that join over both stores, share memory, connect, and fail with good reasons.
 */
#undef NDEBUG
#include "boots.h"

#include "../../collectives/wrapped_link.h"
#include "boot/store/server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const int sizes[] = {1, 2, 3, 5, 8, 17};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* ---- What a joined world must be able to do ---- */

static int *arena_of(const struct boots_rank *rank, int local_rank)
{
    return rank->boot.local[local_rank].arena.base;
}

static int local_size(const struct boots_rank *rank)
{
    const struct horon_topology *topology = &rank->boot.topology;
    return horon_topology_host_size(topology, topology->host_of[rank->rank]);
}

/* Everybody writes into everybody's arena and rings every doorbell; afterwards all is there. */
static void check_memory(struct boots *world)
{
    for (int r = 0; r < world->size; r++) {
        struct boots_rank *rank = &world->ranks[r];
        const int me = rank->boot.topology.local_rank_of[r];
        const uint64_t one = 1;
        assert_int_equal(rank->boot.control.bytes, 4096 * (size_t)local_size(rank));
        ((int *)rank->boot.control.base)[me] = r + 1;
        for (int i = 0; i < local_size(rank); i++) {
            assert_int_equal(rank->boot.local[i].arena.bytes, 8192);
            assert_int_equal(arena_of(rank, i)[100 + me], 0); /* zeroed, and nobody else's */
            arena_of(rank, i)[100 + me] = 1000 + r;
            assert_int_equal(write(rank->boot.local[i].doorbell, &one, sizeof one), sizeof one);
            assert_true(i == me ? rank->boot.local[i].pidfd == -1 : rank->boot.local[i].pidfd >= 0);
        }
    }
    for (int r = 0; r < world->size; r++) {
        struct boots_rank *rank = &world->ranks[r];
        const struct horon_topology *topology = &rank->boot.topology;
        const int me = topology->local_rank_of[r];
        uint64_t rings = 0;
        for (int i = 0; i < local_size(rank); i++) {
            const int other = horon_topology_rank_at(topology, topology->host_of[r], i);
            assert_int_equal(((int *)rank->boot.control.base)[i], other + 1);
            assert_int_equal(arena_of(rank, me)[100 + i], 1000 + other);
        }
        assert_int_equal(read(rank->boot.local[me].doorbell, &rings, sizeof rings), sizeof rings);
        assert_int_equal(rings, local_size(rank));
    }
}

static void check_socket(int fd, const struct boots_rank *from, const struct boots_rank *to)
{
    int on = 0, number = to->rank * 100 + from->rank, got = 0;
    socklen_t bytes = sizeof on;
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &bytes), 0);
    assert_true(on);
    const int other = to->boot.proven[from->rank].fd;
    struct pollfd waiting = {.fd = other, .events = POLLIN};
    assert_int_equal(send(fd, &number, sizeof number, MSG_NOSIGNAL), sizeof number);
    assert_int_equal(poll(&waiting, 1, 5000), 1);
    assert_int_equal(recv(other, &got, sizeof got, 0), sizeof got);
    assert_int_equal(got, number);
}

static void check_sockets(const struct boots *world)
{
    for (int a = 0; a < world->size; a++) {
        for (int b = 0; b < world->size; b++) {
            const struct boots_rank *from = &world->ranks[a], *to = &world->ranks[b];
            const bool linked = a != b && horon_topology_linked(&from->boot.topology, a, b);
            assert_int_equal(from->boot.proven[b].fd >= 0, linked);
            if (linked)
                check_socket(from->boot.proven[b].fd, from, to);
        }
    }
}

static void check_world(struct boots *world, int hosts)
{
    boots_expect_joined(world);
    for (int r = 0; r < world->size; r++) {
        const struct horon_boot *boot = &world->ranks[r].boot;
        assert_true(boot->job_id == world->ranks[0].boot.job_id);
        assert_int_equal(boot->topology.rank, r);
        assert_int_equal(boot->topology.size, world->size);
        assert_int_equal(boot->topology.host_count, hosts);
        assert_int_equal(horon_topology_is_crowded(&boot->topology),
                         world->size > sysconf(_SC_NPROCESSORS_ONLN));
        if (world->ranks[r].warnings)
            fail_msg("rank %d warned: %s", r, world->ranks[r].warning);
    }
    check_memory(world);
    check_sockets(world);
}

/* ---- Joining ---- */

static void join_worlds(void (*make_place)(struct place *place), bool shared)
{
    for (size_t i = 0; i < SIZES; i++) {
        struct place place;
        struct boots world;
        make_place(&place);
        boots_init(&world, sizes[i], place.setting);
        boots_setting(&world, "JOB_KEY=a secret of these tests");
        boots_setting(&world, shared ? "SHM=1" : "SHM=0");
        boots_join(&world);
        check_world(&world, shared ? 1 : sizes[i]);
        boots_part(&world);
        place_end(&place);
    }
}

static void test_boot_one_host_over_tcp_store_shares_memory(void **state)
{
    (void)state;
    join_worlds(place_tcp, true);
}

static void test_boot_one_host_over_file_store_shares_memory(void **state)
{
    (void)state;
    join_worlds(place_file, true);
}

static void test_boot_many_hosts_over_tcp_store_connect(void **state)
{
    (void)state;
    join_worlds(place_tcp, false);
}

static void test_boot_many_hosts_over_file_store_connect(void **state)
{
    (void)state;
    join_worlds(place_file, false);
}

/* Any rank's thread may call it. */
static struct horon_link *wrap(struct horon_link *inside, const struct horon_proven *proven)
{
    return wrapped_link_create_with(inside, proven->send_secret, proven->receive_secret);
}

static void join_over_wrapped_sessions(void (*make_place)(struct place *place))
{
    struct place place;
    struct boots world;
    make_place(&place);
    boots_init(&world, 5, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.wrap = wrap;
    boots_join(&world);
    check_world(&world, 1);
    boots_part(&world);
    place_end(&place);
}

static void test_boot_store_sessions_over_wrapped_links_join(void **state)
{
    (void)state;
    join_over_wrapped_sessions(place_tcp);
    join_over_wrapped_sessions(place_file);
}

/* The first address is no machine's: packets to it are refused or vanish. */
static void test_boot_store_is_found_at_the_second_of_its_addresses(void **state)
{
    struct boots world;
    char setting[128];
    (void)state;
    snprintf(setting, sizeof setting, "STORE=tcp://203.0.113.1:4000,127.0.0.1:%d", free_port());
    boots_init(&world, 3, setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_join(&world);
    check_world(&world, 1);
    boots_part(&world);
}

static int count_maps(void)
{
    int lines = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        lines += strstr(line, "horon-") != NULL;
    fclose(maps);
    return lines;
}

static void test_boot_two_hundred_rounds_leak_nothing(void **state)
{
    struct place place;
    int fds = 0;
    (void)state;
    place_tcp(&place);
    for (int k = 0; k < 200; k++) {
        struct boots world;
        boots_init(&world, 3, place.setting);
        boots_setting(&world, "JOB_KEY=a secret of these tests");
        boots_setting(&world, k % 2 ? "SHM=0" : "SHM=1");
        boots_join(&world);
        boots_expect_joined(&world);
        boots_part(&world);
        if (k == 1) /* both kinds have been there once */
            fds = count_fds();
    }
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_maps(), 0);
}

/* ---- Addresses ---- */

/* @param family  AF_UNSPEC: any */
static void expect_family(const struct boots *world, int family, int low, int high)
{
    for (int a = 0; a < world->size; a++) {
        for (int b = 0; b < world->size; b++) {
            struct sockaddr_in6 name; /* ports of both families lie at the same place */
            socklen_t bytes = sizeof name;
            if (world->ranks[a].boot.proven[b].fd < 0)
                continue;
            /* the lower rank listened: its own end has the port of the range */
            assert_int_equal(
                getsockname(world->ranks[a].boot.proven[b].fd, (struct sockaddr *)&name, &bytes),
                0);
            if (family != AF_UNSPEC)
                assert_int_equal(name.sin6_family, family);
            if (a < b && low)
                assert_in_range(ntohs(name.sin6_port), low, high);
        }
    }
}

static void join_at(const char *store, const char *interfaces, const char *ports, int family,
                    int low, int high)
{
    struct boots world;
    boots_init(&world, 3, store);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "SHM=0");
    boots_setting(&world, interfaces);
    boots_setting(&world, ports);
    boots_join(&world);
    check_world(&world, 3);
    expect_family(&world, family, low, high);
    boots_part(&world);
}

static void test_boot_ipv6_loopback_is_used(void **state)
{
    char store[64];
    (void)state;
    snprintf(store, sizeof store, "STORE=tcp://[::1]:%d", free_port());
    join_at(store, "INTERFACES=::1", "PORT_RANGE=", AF_INET6, 0, 0);
}

static void test_boot_interfaces_and_ports_are_obeyed(void **state)
{
    struct place place;
    (void)state;
    place_tcp(&place);
    join_at(place.setting, "INTERFACES=127.0.0.0/8", "PORT_RANGE=43000-43400", AF_INET, 43000,
            43400);
}

static void test_boot_host_name_in_store_is_resolved(void **state)
{
    char store[64];
    (void)state;
    snprintf(store, sizeof store, "STORE=tcp://localhost:%d", free_port());
    /* a rank that gets no core for long is tried at its next address, too */
    join_at(store, "INTERFACES=", "PORT_RANGE=", AF_UNSPEC, 0, 0);
}

/* ---- Keys ---- */

static void test_boot_without_key_warns_once_and_uses_loopback(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "SHM=0");
    boots_join(&world);
    boots_expect_joined(&world);
    assert_int_equal(world.ranks[0].warnings, 1);
    assert_non_null(strstr(world.ranks[0].warning, "no job key"));
    assert_int_equal(world.ranks[1].warnings + world.ranks[2].warnings, 0);
    for (int r = 1; r < 3; r++) {
        struct sockaddr_in name;
        socklen_t bytes = sizeof name;
        assert_int_equal(
            getpeername(world.ranks[r].boot.proven[0].fd, (struct sockaddr *)&name, &bytes), 0);
        if (name.sin_family == AF_INET)
            assert_int_equal(ntohl(name.sin_addr.s_addr) >> 24, 127);
    }
    boots_part(&world);
}

static void test_boot_key_file_is_read_without_its_newline(void **state)
{
    struct place place, folder;
    struct boots world;
    char setting[128];
    (void)state;
    place_file(&folder);
    snprintf(setting, sizeof setting, "JOB_KEY_FILE=%s/key", folder.directory);
    FILE *file = fopen(setting + strlen("JOB_KEY_FILE="), "w");
    assert_non_null(file);
    fputs("a secret of these tests\n", file);
    fclose(file);
    place_tcp(&place);
    boots_init(&world, 2, place.setting);
    world.ranks[0].settings[0] = "JOB_KEY=a secret of these tests";
    world.ranks[1].settings[0] = setting;
    boots_join(&world);
    boots_expect_joined(&world);
    boots_part(&world);
    place_end(&folder);
    boots_init(&world, 1, place.setting);
    world.size = 2; /* rank 1 fails by itself */
    world.ranks[0].absent = true;
    world.ranks[1] = (struct boots_rank){.world = &world, .rank = 1, .settings = {setting}};
    boots_join(&world);
    assert_int_equal(world.ranks[1].status, HORON_ERR_CONFIG);
    assert_non_null(strstr(world.ranks[1].error.text, "HORON_JOB_KEY_FILE"));
}

/* ---- Which rank serves ---- */

struct service {
    struct horon_pump pump; /* of the server */
    struct horon_store_server *server;
    int stop[2]; /* a pipe: it serves until nobody can write there */
};

static void *serve(void *arg)
{
    struct service *service = arg;
    struct pollfd waiting[2] = {
        {.fd = service->pump.epoll_fd, .events = POLLIN},
        {.fd = service->stop[0]},
    };
    while (poll(waiting, 2, -1) >= 0 && !waiting[1].revents)
        horon_pump_turn(&service->pump, 0);
    return NULL;
}

static void test_boot_launcher_serves_any_number_of_times(void **state)
{
    char store[64];
    pthread_t thread;
    struct service service = {0};
    struct horon_addresses at = {.count = 1};
    struct horon_error error = {0};
    struct horon_job_key key;
    const struct horon_store_server_options options = {
        .self = {&service.pump, &key, horon_hello_of(HORON_ROLE_STORE, -1, 3), NULL}};
    (void)state;
    assert_int_equal(horon_job_key_from_text(&key, "a secret of these tests", 23, &error),
                     HORON_OK);
    assert_int_equal(horon_pump_init(&service.pump, &error), HORON_OK);
    service.server = horon_store_server_create(&options);
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    assert_int_equal(horon_store_server_listen(service.server, &at, 0, 0, &error), HORON_OK);
    assert_int_equal(pipe2(service.stop, O_CLOEXEC), 0);
    snprintf(store, sizeof store, "STORE=tcp://127.0.0.1:%d", service.server->port);
    assert_int_equal(pthread_create(&thread, NULL, serve, &service), 0);
    for (int k = 0; k < 20; k++) {
        struct boots world;
        boots_init(&world, 3, store);
        boots_setting(&world, "JOB_KEY=a secret of these tests");
        boots_join(&world);
        check_world(&world, 1);
        boots_part(&world);
    }
    close(service.stop[1]);
    pthread_join(thread, NULL);
    close(service.stop[0]);
    horon_store_server_destroy(service.server);
    horon_pump_deinit(&service.pump);
}

/* A stranger sits at the derived address, silent as torch's store is: rank 0 moves on, all find it,
 * and nobody disturbs the stranger: MPICH's mpiexec would end of a connection. */
static void test_boot_taken_master_port_is_passed_over(void **state)
{
    struct boots world;
    int port;
    (void)state;
    const int stranger = take_master_port(&port);
    boots_init(&world, 3, "STORE=");
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_join(&world);
    assert_int_equal(accept4(stranger, NULL, NULL, SOCK_NONBLOCK), -1);
    untake_master_port(stranger);
    check_world(&world, 1);
    boots_part(&world);
}

/* ---- Fork ---- */

static void test_boot_child_of_a_fork_closes_all(void **state)
{
    struct place place;
    struct boots world;
    const int fds = count_fds();
    int status = 0;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "SHM=1");
    boots_join(&world);
    boots_expect_joined(&world);
    for (int r = 0; r < 3; r++)
        horon_boot_settle(&world.ranks[r].boot);
    pid_t child = fork();
    if (child == 0) {
        for (int r = 0; r < 3; r++)
            horon_boot_close_in_child(&world.ranks[r].boot);
        _exit(count_fds() != fds);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_memory(&world);
    boots_part(&world);
    assert_int_equal(count_fds(), fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_one_host_over_tcp_store_shares_memory),
        cmocka_unit_test(test_boot_one_host_over_file_store_shares_memory),
        cmocka_unit_test(test_boot_many_hosts_over_tcp_store_connect),
        cmocka_unit_test(test_boot_many_hosts_over_file_store_connect),
        cmocka_unit_test(test_boot_store_sessions_over_wrapped_links_join),
        cmocka_unit_test(test_boot_store_is_found_at_the_second_of_its_addresses),
        cmocka_unit_test(test_boot_two_hundred_rounds_leak_nothing),
        cmocka_unit_test(test_boot_ipv6_loopback_is_used),
        cmocka_unit_test(test_boot_interfaces_and_ports_are_obeyed),
        cmocka_unit_test(test_boot_host_name_in_store_is_resolved),
        cmocka_unit_test(test_boot_without_key_warns_once_and_uses_loopback),
        cmocka_unit_test(test_boot_key_file_is_read_without_its_newline),
        cmocka_unit_test(test_boot_launcher_serves_any_number_of_times),
        cmocka_unit_test(test_boot_taken_master_port_is_passed_over),
        cmocka_unit_test(test_boot_child_of_a_fork_closes_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
