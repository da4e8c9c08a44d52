/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that do not come to be: the rank to blame is named, everywhere, and nothing is left. */
#undef NDEBUG
#include "boots.h"

#include "address.h"
#include "boot/joining.h"
#include "boot/store/server.h"
#include "boot/store/store.h"
#include "boot/store/stream.h"
#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct serving {
    struct horon_pump pump; /* of a server */
    pthread_t thread;
    _Atomic bool stop;
};

static void *serve(void *arg)
{
    struct serving *serving = arg;
    while (!atomic_load(&serving->stop))
        horon_pump_turn(&serving->pump, 10);
    return NULL;
}

static void test_boot_wrong_key_is_told_apart(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    world.limit_ms = 500;
    world.ranks[0].settings[0] = "JOB_KEY=a secret of these tests";
    world.ranks[1].settings[0] = "JOB_KEY=a Secret of these tests";
    world.ranks[2].settings[0] = "JOB_KEY=a secret of these tests";
    boots_join_until(&world, "rank 1 never came; 127.0.0.1 (which says that it is rank 1)");
    assert_int_equal(world.ranks[1].status, HORON_ERR_AUTH);
    assert_non_null(strstr(world.ranks[1].error.text, "job key"));
    assert_null(strstr(world.ranks[1].error.text, "Secret"));
    assert_int_equal(world.ranks[0].status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[0].error.text, "rank 1 never came"));
    assert_int_equal(world.ranks[2].status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[2].error.text, "rank 1 never came"));
    assert_true(world.ranks[0].warnings > 0); /* the store tells of the stranger */
    assert_null(strstr(world.ranks[0].warning, "ecret"));
}

/* Ranks look for rank 0 at a row of ports, again and again, as under torchrun, until @p said. */
static void join_by_master_port(struct boots *world, const char *said)
{
    char port[16];
    snprintf(port, sizeof port, "%d", free_port());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    boots_join_until(world, said);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

/* Whichever side gives up first: both say what it was, and the log has one line of it. */
static void expect_refused(const struct boots *world, horon_status_t status, const char *named,
                           const char *why)
{
    char wanted[128];
    const struct boots_rank *server = &world->ranks[0], *client = &world->ranks[1];
    assert_int_equal(server->status, HORON_ERR_TIMEOUT);
    snprintf(wanted, sizeof wanted, "rank 1 never came; %s was refused", named);
    if (!strstr(server->error.text, wanted))
        fail_msg("rank 0: %s", server->error.text);
    assert_int_equal(server->warnings, 1);
    assert_int_equal(client->status, status);
    if (!strstr(client->error.text, why) || strstr(client->error.text, "refused"))
        fail_msg("rank 1: %s", client->error.text);
}

static void test_boot_rank_that_is_refused_is_told_why(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool key = i / 2;
        const int gives_up_first = i % 2;
        struct boots world;
        boots_init(&world, 2, "STORE=");
        for (int r = 0; r < 2; r++) {
            world.ranks[r].limit_ms = r == gives_up_first ? 400 : 900;
            world.ranks[r].settings[0] =
                r && key ? "JOB_KEY=a Secret of these tests" : "JOB_KEY=a secret of these tests";
        }
        world.ranks[1].size = key ? 2 : 3;
        join_by_master_port(&world, "was refused");
        if (key)
            expect_refused(&world, HORON_ERR_AUTH, "127.0.0.1 (which says that it is rank 1)",
                           "the job keys differ");
        else
            expect_refused(&world, HORON_ERR_CONFIG, "rank 1 at 127.0.0.1",
                           "rank 1 believes in a job of 3 ranks, rank 0 in one of 2");
    }
}

static void test_boot_rank_that_comes_twice_is_told(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.limit_ms = 700;
    world.ranks[2].rank = 1;
    boots_join_until(&world, "rank 1 came twice");
    const struct boots_rank *second =
        &world.ranks[world.ranks[1].status == HORON_ERR_CONFIG ? 1 : 2];
    const struct boots_rank *first = &world.ranks[second == &world.ranks[1] ? 2 : 1];
    assert_int_equal(second->status, HORON_ERR_CONFIG);
    assert_non_null(strstr(second->error.text, "rank 1 came twice, from 127.0.0.1:"));
    for (int i = 0; i < 2; i++) {
        const struct boots_rank *rank = i ? first : &world.ranks[0];
        assert_int_equal(rank->status, HORON_ERR_TIMEOUT);
        assert_non_null(strstr(rank->error.text, "of 3 ranks, rank 2 never came"));
        assert_non_null(strstr(rank->error.text, "rank 1 came twice, before from 127.0.0.1:"));
    }
    assert_int_equal(world.ranks[0].warnings, 1);
}

static void test_boot_without_key_stays_off_the_network(void **state)
{
    struct boots world;
    (void)state;
    boots_init(&world, 2, "STORE=tcp://192.0.2.1:4000");
    boots_join(&world);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(world.ranks[r].status, HORON_ERR_CONFIG);
        assert_non_null(strstr(world.ranks[r].error.text, "HORON_JOB_KEY"));
    }
}

static void miss_ranks(void (*make_place)(struct place *place))
{
    struct place place;
    struct boots world;
    char limit[32];
    const int fds = count_fds();
    make_place(&place);
    boots_init(&world, 5, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.limit_ms = 300;
    world.ranks[2].absent = true;
    world.ranks[4].absent = true;
    boots_join_until(&world, "ranks 2, 4 never came");
    snprintf(limit, sizeof limit, "longer than %d ms", world.limit_ms);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, "ranks 2, 4 never came");
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, limit);
    assert_int_equal(count_fds(), fds);
    place_end(&place);
}

static void test_boot_missing_ranks_are_named_by_tcp_store(void **state)
{
    (void)state;
    miss_ranks(place_tcp);
}

static void test_boot_missing_ranks_are_named_by_file_store(void **state)
{
    (void)state;
    miss_ranks(place_file);
}

/* Rank 1 alone, for a moment: there is no store. @param setting of its own; or NULL */
static void join_without_rank_0(struct boots *world, struct place *place, const char *setting)
{
    place_tcp(place);
    boots_init(world, 2, place->setting);
    boots_setting(world, "JOB_KEY=a secret of these tests");
    boots_setting(world, "START_TIMEOUT=200ms");
    world->ranks[0].absent = true;
    world->ranks[1].settings[0] = setting;
    boots_join(world);
}

static void test_boot_without_a_server_says_where_it_looked(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    join_without_rank_0(&world, &place, NULL);
    assert_int_equal(world.ranks[1].status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[1].error.text, strstr(place.setting, "tcp://")));
    assert_non_null(strstr(world.ranks[1].error.text, "refused"));
}

static void test_boot_rank_that_fails_alone_says_why(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    join_without_rank_0(&world, &place, "INTERFACES=nothing0");
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "HORON_INTERFACES=nothing0 matches no");
    assert_int_equal(world.ranks[1].error.blame.rank, 1);
}

static void test_boot_different_settings_are_named(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.ranks[2].settings[0] = "FUSION_BYTES=1m";
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "HORON_FUSION_BYTES=67108864 on rank 0");
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "HORON_FUSION_BYTES=1048576 on rank 2");
}

static void test_boot_too_many_ranks_on_a_host_are_refused(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.host_ranks_max = 2;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_UNSUPPORTED, " has 3 ranks, and 2 are the most");
    place_end(&place);
}

static void test_boot_refused_memory_is_an_error_everywhere(void **state)
{
    struct place place;
    struct boots world;
    const int fds = count_fds();
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.arena_bytes = (size_t)1 << 44; /* 16 TiB */
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_MEMORY, "52776558145536 bytes of shared memory");
    assert_int_equal(count_fds(), fds);
}

static void test_boot_one_rank_fails_all_with_its_reason(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "SHM=0");
    world.ranks[0].settings[0] = "INTERFACES=nothing0";
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "HORON_INTERFACES=nothing0 matches no");
    assert_non_null(strstr(world.ranks[1].error.text, "rank 0 ("));
}

static void take_part(struct horon_store *store, struct horon_pump *pump,
                      const struct horon_writer *blob, struct horon_blobs *blobs)
{
    struct horon_error error = {0};
    assert_int_equal(
        horon_store_put(store, HORON_STORE_PUT_MORE, blob->bytes, blob->used, UINT64_MAX, &error),
        HORON_OK);
    while (!horon_store_get(store, blobs))
        horon_pump_turn(pump, 100);
}

/* It knows the profiles of all others when it accepts connections: then its first words come. */
static void wait_for_rank_0(struct horon_blobs *blobs)
{
    struct horon_reader in = horon_blobs_next(blobs);
    struct horon_profile profile;
    struct horon_addresses addresses;
    uint8_t byte;
    assert_true(horon_profile_decode(&in, &profile));
    assert_true(horon_addresses_read(profile.addresses, &addresses));
    assert_true(addresses.count > 0);
    const struct horon_address *last = &addresses.items[addresses.count - 1]; /* loopback */
    const int fd = socket(last->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, &last->any, last->bytes), 0);
    assert_int_equal(recv(fd, &byte, 1, 0), 1);
    close(fd);
}

/* Rank 1 as far as it takes for rank 0 to have read its profile. @p arg is where to join. */
static void *leave_after_one_round(void *arg)
{
    uint8_t bytes[HORON_STORE_BLOB_BYTES_MAX];
    struct horon_pump pump;
    struct horon_job_key key;
    struct horon_config config;
    char settings[HORON_PROFILE_SETTINGS_BYTES];
    struct horon_profile profile;
    struct horon_store *store = NULL;
    struct horon_blobs blobs;
    struct horon_error error = {0};
    const struct horon_store_options options = {
        .self = {&pump, &key, horon_hello_of(HORON_ROLE_STORE, 1, 2), NULL},
        .address = arg,
        .process = "a test"};
    assert_int_equal(horon_config_load(&config, NULL, NULL, &error), HORON_OK);
    assert_int_equal(horon_profile_fill(&profile, settings, &config, &error), HORON_OK);
    strcpy(profile.name, "elsewhere");
    assert_int_equal(horon_job_key_from_text(&key, "a secret of these tests", 23, &error),
                     HORON_OK);
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    assert_int_equal(horon_store_open(&options, &store, &error), HORON_OK);
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_profile_encode(&out, &profile, false); /* of a host of its own */
    take_part(store, &pump, &out, &blobs);
    wait_for_rank_0(&blobs);
    horon_blobs_deinit(&blobs);
    horon_store_destroy(store);
    horon_pump_deinit(&pump);
    return NULL;
}

static void lose_a_rank(void (*make_place)(struct place *place), const char *text)
{
    struct place place;
    struct boots world;
    pthread_t leaver;
    make_place(&place);
    assert_int_equal(
        pthread_create(&leaver, NULL, leave_after_one_round, place.setting + strlen("STORE=")), 0);
    boots_init(&world, 2, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.ranks[1].absent = true;
    boots_join(&world);
    pthread_join(leaver, NULL);
    boots_expect_all_fail(&world, HORON_ERR_PEER_LOST, text);
    place_end(&place);
}

static void test_boot_rank_that_leaves_is_named(void **state)
{
    (void)state;
    lose_a_rank(place_tcp, "rank 1 on elsewhere left while joining");
    lose_a_rank(place_file, "rank 1 on elsewhere left while joining");
}

/* What only other hosts would need is looked at anyway: one host is where a job is tried first. */
static void test_boot_settings_for_other_hosts_are_checked_on_one(void **state)
{
    static const char *const bad[][2] = {
        {"PORT_RANGE=5-3", "HORON_PORT_RANGE=5-3 is not"},
        {"PORT_RANGE=80000-90000", "HORON_PORT_RANGE=80000"},
        {"INTERFACES=nosuch0", "HORON_INTERFACES=nosuch0 matches"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        for (int size = 1; size <= 2; size++) {
            struct place place;
            struct boots world;
            place_tcp(&place);
            boots_init(&world, size, place.setting);
            boots_setting(&world, "JOB_KEY=a secret of these tests");
            boots_setting(&world, bad[i][0]);
            boots_join(&world);
            boots_expect_all_fail(&world, HORON_ERR_CONFIG, bad[i][1]);
        }
    }
}

/* The ranks that would connect to it leave it to that rank to say what is wrong. */
static void test_boot_rank_without_a_free_port_says_so_itself(void **state)
{
    struct place place;
    struct boots world;
    char range[32];
    struct horon_address address;
    horon_address_parse("0.0.0.0", 0, &address);
    const int stranger = horon_address_listen(&address);
    const int port = horon_address_port(&address);
    (void)state;
    assert_true(stranger >= 0);
    snprintf(range, sizeof range, "PORT_RANGE=%d-%d", port, port);
    place_tcp(&place);
    boots_init(&world, 4, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "SHM=0");
    world.ranks[0].settings[0] = range;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "no port of HORON_PORT_RANGE");
    assert_non_null(strstr(world.ranks[3].error.text, "rank 0 ("));
    close(stranger);
}

/* A stranger's server at one address, nobody at the other: soon told, not after START_TIMEOUT. */
static void test_boot_refusal_at_one_of_several_addresses_is_told(void **state)
{
    struct boots world;
    char setting[128], first[32], second[32];
    struct serving serving = {0};
    struct horon_addresses at = {.count = 1};
    struct horon_error error = {0};
    const int port = free_port(), held = hold_port(port + 1);
    struct horon_job_key key;
    const struct horon_store_server_options options = {
        .self = {&serving.pump, &key, horon_hello_of(HORON_ROLE_STORE, -1, 2), NULL}};
    (void)state;
    struct horon_store_server *server = horon_store_server_create(&options);
    assert_int_equal(horon_pump_init(&serving.pump, &error), HORON_OK);
    assert_int_equal(horon_job_key_from_text(&key, "another", 7, &error), HORON_OK);
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    assert_int_equal(horon_store_server_listen(server, &at, port, port, &error), HORON_OK);
    assert_int_equal(pthread_create(&serving.thread, NULL, serve, &serving), 0);
    snprintf(first, sizeof first, "127.0.0.1:%d: ", port);
    snprintf(second, sizeof second, "127.0.0.1:%d: ", port + 1);
    snprintf(setting, sizeof setting, "STORE=tcp://127.0.0.1:%d,127.0.0.1:%d", port, port + 1);
    boots_init(&world, 2, setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_AUTH, first);
    boots_expect_all_fail(&world, HORON_ERR_AUTH, second);
    boots_expect_all_fail(&world, HORON_ERR_AUTH, "refused");
    close(held);
    atomic_store(&serving.stop, true);
    pthread_join(serving.thread, NULL);
    horon_store_server_destroy(server);
    horon_pump_deinit(&serving.pump);
}

/* A program that takes connections and waits to be spoken to, as a web server does: no rank speaks
 * first, and rank 0 need not wait until START_TIMEOUT, as it could not serve there. */
static void test_boot_port_of_another_program_is_told(void **state)
{
    static const char taken[] = "rank 0 found the port taken",
                      silent[] = "gives no sign of being horon";
    static const char *const limits[] = {"START_TIMEOUT=300ms", "START_TIMEOUT=8s"};
    const int fds = count_fds(), port = free_port();
    struct horon_address address;
    char setting[64];
    (void)state;
    assert_true(horon_address_parse("127.0.0.1", port, &address));
    const int stranger = horon_address_listen(&address);
    assert_true(stranger >= 0);
    snprintf(setting, sizeof setting, "STORE=tcp://127.0.0.1:%d", port);
    for (int soon = 0; soon < 2; soon++) {
        struct boots world;
        boots_init(&world, 2, setting);
        boots_setting(&world, "JOB_KEY=a secret of these tests");
        boots_setting(&world, limits[soon]);
        world.ranks[1].absent = soon;
        boots_join(&world);
        boots_expect_all_fail(&world, soon ? HORON_ERR_CONFIG : HORON_ERR_TIMEOUT, silent);
        assert_non_null(strstr(world.ranks[0].error.text, taken));
        assert_null(strstr(world.ranks[1].error.text, taken)); /* it cannot know */
    }
    close(stranger);
    assert_int_equal(count_fds(), fds);
}

static _Atomic int interrupted_rank, asked;

/* The second time, once rank 0 knows of both: else it could not tell the other one. */
static int ask_interrupted(void *arg)
{
    const struct boots_rank *rank = arg;
    return rank->rank == interrupted_rank && rank->world->ranks[0].arrived == 2 &&
           atomic_fetch_add(&asked, 1) > 0;
}

/* Rank 0 serves the store; in either case one that waits is told why, and nothing is left. */
static void test_boot_interrupted_rank_ends_joining_for_all(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct place place;
        struct boots world;
        char text[32];
        const int fds = count_fds();
        place_tcp(&place);
        boots_init(&world, 3, place.setting);
        boots_setting(&world, "JOB_KEY=a secret of these tests");
        world.ranks[2].absent = true;
        world.interrupted = ask_interrupted;
        interrupted_rank = rank;
        asked = 0;
        boots_join(&world);
        boots_expect_all_fail(&world, HORON_ERR_CANCELLED,
                              "joining was interrupted while meeting the other ranks");
        snprintf(text, sizeof text, "rank %d (", rank);
        assert_non_null(strstr(world.ranks[1 - rank].error.text, text));
        assert_null(strstr(world.ranks[rank].error.text, text));
        assert_int_equal(asked, 2);
        assert_int_equal(count_fds(), fds);
        world.interrupted = NULL; /* the same place can be met at again */
        world.ranks[2].absent = false;
        boots_join(&world);
        boots_expect_joined(&world);
        assert_int_equal(asked, 2);
        boots_part(&world);
    }
}

static void expect_refused_store(const char *setting, const char *why)
{
    struct boots world;
    boots_init(&world, 2, setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, why);
}

static void test_boot_bad_store_says_what_is_wrong(void **state)
{
    (void)state;
    expect_refused_store("STORE=file:", "HORON_STORE=file: names no directory");
    expect_refused_store("STORE=file:/no/such/folder", "No such file or directory; make it");
    expect_refused_store("STORE=tcp://127.0.0.1:99999", "with a port of 1-65535");
    setenv("MASTER_ADDR", "no..name", 1);
    setenv("MASTER_PORT", "4000", 1);
    expect_refused_store("STORE=", "the host name 'no..name' is not known");
    expect_refused_store("STORE=", "(the host is from MASTER_ADDR)");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

/* A batch script's shell has the variables of a rank, but nobody started the others. */
static void test_boot_variables_that_count_too_many_are_named(void **state)
{
    struct boots world;
    char port[16];
    (void)state;
    snprintf(port, sizeof port, "%d", free_port());
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    boots_init(&world, 1, "STORE=");
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=100ms");
    world.ranks[0].rank = world.ranks[0].size = -1;
    boots_join(&world);
    unsetenv("SLURM_PROCID");
    unsetenv("SLURM_NTASKS");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, "ranks 1-3 never came");
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT,
                          "(here: rank 0 from SLURM_PROCID, 4 ranks from SLURM_NTASKS)");
}

static void test_boot_bad_store_is_refused(void **state)
{
    static const char *const stores[] = {"STORE=http://x:1", "STORE=tcp://x", "STORE=tcp://:5",
                                         "STORE=tcp://x:0", "STORE=tcp://x:y"};
    (void)state;
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++)
        expect_refused_store(stores[i], "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_wrong_key_is_told_apart),
        cmocka_unit_test(test_boot_rank_that_is_refused_is_told_why),
        cmocka_unit_test(test_boot_rank_that_comes_twice_is_told),
        cmocka_unit_test(test_boot_without_key_stays_off_the_network),
        cmocka_unit_test(test_boot_missing_ranks_are_named_by_tcp_store),
        cmocka_unit_test(test_boot_missing_ranks_are_named_by_file_store),
        cmocka_unit_test(test_boot_without_a_server_says_where_it_looked),
        cmocka_unit_test(test_boot_different_settings_are_named),
        cmocka_unit_test(test_boot_too_many_ranks_on_a_host_are_refused),
        cmocka_unit_test(test_boot_refused_memory_is_an_error_everywhere),
        cmocka_unit_test(test_boot_one_rank_fails_all_with_its_reason),
        cmocka_unit_test(test_boot_rank_that_fails_alone_says_why),
        cmocka_unit_test(test_boot_rank_that_leaves_is_named),
        cmocka_unit_test(test_boot_settings_for_other_hosts_are_checked_on_one),
        cmocka_unit_test(test_boot_rank_without_a_free_port_says_so_itself),
        cmocka_unit_test(test_boot_refusal_at_one_of_several_addresses_is_told),
        cmocka_unit_test(test_boot_port_of_another_program_is_told),
        cmocka_unit_test(test_boot_interrupted_rank_ends_joining_for_all),
        cmocka_unit_test(test_boot_bad_store_says_what_is_wrong),
        cmocka_unit_test(test_boot_variables_that_count_too_many_are_named),
        cmocka_unit_test(test_boot_bad_store_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
