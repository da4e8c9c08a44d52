/* SPDX-License-Identifier: Apache-2.0 */
/* One thread a rank; settings go through the real table. Nothing here judges but for having joined.
 */
#undef NDEBUG
#include "boots.h"

#include "address.h"
#include "boot/gloo/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The callbacks get no argument of ours: the bytes travel in two rows that boot does not use. */
static size_t control_bytes(const struct horon_config *config, int local_size)
{
    return (size_t)config->spin_us * (size_t)local_size;
}

static size_t arena_bytes(const struct horon_config *config, int local_size, int size)
{
    (void)size;
    (void)local_size;
    return (size_t)config->yield_us << 12;
}

static void take_log(void *arg, horon_log_level_t level, const char *text)
{
    struct boots_rank *rank = arg;
    rank->arrived += strstr(text, "has come to the store") != NULL;
    if (level > HORON_LOG_WARN)
        return;
    rank->warnings++;
    snprintf(rank->warning, sizeof rank->warning, "%s", text);
    const char *waits = strstr(text, "still ");
    if (!waits)
        return;
    if (rank->slow == 0)
        snprintf(rank->waits, sizeof rank->waits, "%s", waits);
    rank->slow++;
}

void boots_setting(struct boots *world, const char *setting)
{
    int i = 0;
    while (world->settings[i])
        i++;
    assert_true(i < BOOT_SETTINGS_MAX);
    world->settings[i] = setting;
}

void boots_init(struct boots *world, int size, const char *store)
{
    memset(world, 0, sizeof *world);
    assert_true(size <= BOOT_RANKS_MAX);
    world->size = size;
    world->control_bytes = 4096;
    world->arena_bytes = 8192;
    world->host_ranks_max = size;
    for (int r = 0; r < size; r++)
        world->ranks[r] = (struct boots_rank){.world = world, .rank = r};
    boots_setting(world, store);
}

static void *join_one(void *arg)
{
    struct boots_rank *rank = arg;
    const struct boots *world = rank->world;
    const char *settings[2 * BOOT_SETTINGS_MAX + 2];
    const int limit_ms = rank->limit_ms ? rank->limit_ms : world->limit_ms;
    char limit[32];
    const struct horon_boot_caller caller = {.control_bytes = control_bytes,
                                             .arena_bytes = arena_bytes,
                                             .host_ranks_max = world->host_ranks_max,
                                             .slow_ns = world->slow_ns,
                                             .wrap = world->wrap,
                                             .interrupted = world->interrupted,
                                             .interrupted_arg = rank,
                                             .get_ready = world->get_ready,
                                             .prepare = world->prepare,
                                             .arg = rank};
    struct horon_config config;
    int count = 0;
    rank->log =
        (struct horon_log){.fn = take_log, .arg = rank, .level = HORON_LOG_DEBUG, .rank = -1};
    for (int i = 0; world->settings[i]; i++)
        settings[count++] = world->settings[i];
    for (int i = 0; rank->settings[i]; i++)
        settings[count++] = rank->settings[i];
    snprintf(limit, sizeof limit, "START_TIMEOUT=%dms", limit_ms);
    if (limit_ms)
        settings[count++] = limit;
    settings[count] = NULL;
    rank->status = horon_config_load(&config, settings, NULL, &rank->error);
    config.spin_us = (int64_t)world->control_bytes;
    config.yield_us = (int64_t)(world->arena_bytes >> 12);
    if (rank->status == HORON_OK)
        rank->status = (config.gloo_store[0] ? horon_gloo_boot : horon_boot)(
            &rank->boot, rank->rank, rank->size ? rank->size : world->size, &config, &caller,
            &rank->log, &rank->error);
    rank->ended = true;
    return NULL;
}

void boots_join(struct boots *world)
{
    for (int r = 0; r < world->size; r++)
        if (!world->ranks[r].absent)
            assert_int_equal(
                pthread_create(&world->ranks[r].thread, NULL, join_one, &world->ranks[r]), 0);
    for (int r = 0; r < world->size; r++)
        if (!world->ranks[r].absent)
            pthread_join(world->ranks[r].thread, NULL);
}

void boots_join_until(struct boots *world, const char *said)
{
    const struct boots start = *world;
    for (int doublings = 0; doublings <= 6; doublings += 2) {
        *world = start;
        world->limit_ms <<= doublings;
        for (int r = 0; r < world->size; r++)
            world->ranks[r].limit_ms <<= doublings;
        boots_join(world);
        if (strstr(world->ranks[0].error.text, said))
            return;
    }
}

void boots_part(struct boots *world)
{
    for (int r = 0; r < world->size; r++)
        if (!world->ranks[r].absent && world->ranks[r].status == HORON_OK)
            horon_boot_deinit(&world->ranks[r].boot);
}

void boots_expect_joined(const struct boots *world)
{
    for (int r = 0; r < world->size; r++)
        if (world->ranks[r].status != HORON_OK)
            fail_msg("rank %d: %s", r, world->ranks[r].error.text);
}

void place_tcp(struct place *place)
{
    memset(place, 0, sizeof *place);
    snprintf(place->setting, sizeof place->setting, "STORE=tcp://127.0.0.1:%d", free_port());
}

void place_file(struct place *place)
{
    memset(place, 0, sizeof *place);
    strcpy(place->directory, "/tmp/horon-test-XXXXXX");
    assert_non_null(mkdtemp(place->directory));
    snprintf(place->setting, sizeof place->setting, "STORE=file:%s", place->directory);
}

void place_end(const struct place *place)
{
    char command[128];
    if (!place->directory[0])
        return;
    snprintf(command, sizeof command, "rm -r %s", place->directory);
    assert_int_equal(system(command), 0);
}

void boots_expect_all_fail(const struct boots *world, horon_status_t status, const char *text)
{
    for (int r = 0; r < world->size; r++) {
        const struct boots_rank *rank = &world->ranks[r];
        if (rank->absent)
            continue;
        if (rank->status != status || !strstr(rank->error.text, text))
            fail_msg("rank %d: status %d, '%s' lacks '%s'", r, rank->status, rank->error.text,
                     text);
        if (status == HORON_ERR_TIMEOUT && !strstr(rank->error.text, "HORON_START_TIMEOUT"))
            fail_msg("rank %d: '%s' does not name the option", r, rank->error.text);
    }
}

int take_master_port(int *port_out)
{
    char port_text[16];
    const int port = free_port();
    const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(stranger, (struct sockaddr *)&name, sizeof name), 0);
    assert_int_equal(listen(stranger, 16), 0);
    snprintf(port_text, sizeof port_text, "%d", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port_text, 1);
    *port_out = port;
    return stranger;
}

void untake_master_port(int stranger)
{
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    close(stranger);
}

void boots_join_told(struct boots *world, const char *const (*variables)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        setenv(variables[i][0], variables[i][1], 1);
    boots_join(world);
    for (size_t i = 0; i < count; i++)
        unsetenv(variables[i][0]);
}
